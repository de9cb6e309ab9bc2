"""Commands for virtual hosts, users, their permissions and limits."""

import base64
from collections.abc import Mapping
from typing import Any

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import VHOSTS, Session, asked_secret, command, flag, option, parsed
from leveret.broker.cli.ctl.output import CtlError, UsageError, cell, refused

USERS = "Users"
ACCESS = "Access control"
QUEUE_TYPES = ("quorum", "classic", "stream")
VHOST_COLUMNS = (
    *("name", "tracing", "description", "tags", "default_queue_type", "cluster_state"),
    "protected_from_deletion",
)


def existing_user(session: Session, name: str, code: int = exit_codes.NO_USER) -> Mapping[str, Any]:
    """Return a user; raises CtlError with an exit code if it does not exist."""
    missing = CtlError(f'Error:\nUser "{name}" does not exist', code)
    found: Mapping[str, Any] = session.api.request("GET", ("users", name), missing=missing)
    return found


def existing_vhost(session: Session, name: str) -> Mapping[str, Any]:
    """Return a vhost; raises CtlError if it does not exist."""
    missing = CtlError(f"Virtual host '{name}' does not exist", exit_codes.DATA)
    found: Mapping[str, Any] = session.api.request("GET", ("vhosts", name), missing=missing)
    return found


def _name(value: str, what: str) -> str:
    if not value:
        raise UsageError(f"Bad argument: {what} cannot be an empty string", exit_codes.DATA)
    return value


# -- vhosts -----------------------------------------------------------------------------------------------------


@command(
    VHOSTS,
    "shop --description 'the web shop'",
    option("--description", default="", help="Description."),
    option("--tags", default="", help="Tags, with commas between."),
    option("--default-queue-type", default="", help="Type of queues that are declared without one."),
)
def add_vhost(session: Session, vhost_name: str, *, default_queue_type: str, **body: str) -> None:
    """Create a virtual host."""
    _name(vhost_name, "vhost")
    session.announce(f'Adding vhost "{vhost_name}" ...')
    if session.api.find("vhosts", vhost_name) is not None:
        return
    if default_queue_type:
        body["default_queue_type"] = default_queue_type
    session.api.put("vhosts", vhost_name, body=body)


@command(VHOSTS, "shop", says='Deleting vhost "{vhost_name}" ...')
def delete_vhost(session: Session, vhost_name: str) -> None:
    """Delete a virtual host with everything in it."""
    existing_vhost(session, vhost_name)
    session.api.delete("vhosts", vhost_name)


@command(VHOSTS, "shop", says="Protecting virtual host '{vhost_name}' from removal (deletion) ...")
def enable_vhost_deletion_protection(session: Session, vhost_name: str) -> None:
    """Protect a virtual host from deletion."""
    existing_vhost(session, vhost_name)
    session.api.post("vhosts", vhost_name, "deletion", "protection")


@command(VHOSTS, "shop", says="Removing deletion protection from virtual host '{vhost_name}' ...")
def disable_vhost_deletion_protection(session: Session, vhost_name: str) -> None:
    """Allow the deletion of a virtual host."""
    existing_vhost(session, vhost_name)
    session.api.delete("vhosts", vhost_name, "deletion", "protection")


@command(VHOSTS, "name description", columns=VHOST_COLUMNS, says="Listing vhosts ...")
def list_vhosts(session: Session, columns: tuple[str, ...]) -> None:
    """List virtual hosts (default: name)."""
    session.show_rows(session.api.get("vhosts"), columns or ("name",))


def _change_vhost(session: Session, name: str, **changed: Any) -> None:
    found = existing_vhost(session, name)
    kept = {key: found[key] for key in ("description", "tags", "default_queue_type")}
    session.api.put("vhosts", name, body={**kept, **changed})


def _trace(session: Session, *, is_on: bool) -> None:
    _change_vhost(session, session.vhost, tracing=is_on)
    session.say(f"Trace {'enabled' if is_on else 'disabled'} for vhost {session.vhost}")


@command(VHOSTS, "-p shop", says='Starting tracing for vhost "{session.vhost}" ...')
def trace_on(session: Session) -> None:
    """Publish what is published and delivered in a virtual host to amq.rabbitmq.trace, too, until the broker stops."""
    _trace(session, is_on=True)


@command(VHOSTS, "-p shop", says='Stopping tracing for vhost "{session.vhost}" ...')
def trace_off(session: Session) -> None:
    """End what trace_on has begun."""
    _trace(session, is_on=False)


@command(VHOSTS, "shop production")
def set_vhost_tags(session: Session, vhost_name: str, tags: tuple[str, ...]) -> None:
    """Set the tags of a virtual host."""
    session.announce(f'Setting tags for vhost "{vhost_name}" to [{", ".join(tags)}] ...')
    _change_vhost(session, vhost_name, tags=list(tags))


@command(
    VHOSTS,
    "shop --default-queue-type quorum",
    option("--description", help="Description."),
    option("--tags", help="Tags, with commas between."),
    option("--default-queue-type", help="Type of queues that are declared without one."),
    option(
        "--protected-from-deletion/--no-protected-from-deletion", default=None, help="Protect it, or not."
    ),
)
def update_vhost_metadata(
    session: Session, vhost_name: str, *, protected_from_deletion: bool | None, **given: str | None
) -> None:
    """Change the metadata of a virtual host that are given, and keep the others."""
    changed = {key: value for key, value in given.items() if value is not None}
    if not changed and protected_from_deletion is None:
        raise UsageError("not enough arguments.", exit_codes.USAGE)
    if (kind := changed.get("default_queue_type", QUEUE_TYPES[0])) not in QUEUE_TYPES:
        text = f"Bad argument: Default queue type must be one of: {', '.join(QUEUE_TYPES)}. Provided: {kind}"
        raise UsageError(text, exit_codes.DATA)
    session.announce(f'Updating metadata of vhost "{vhost_name}" ...')
    _change_vhost(session, vhost_name, **changed)
    if protected_from_deletion is not None:
        change = session.api.post if protected_from_deletion else session.api.delete
        change("vhosts", vhost_name, "deletion", "protection")


# -- users ------------------------------------------------------------------------------------------------------


@command(
    USERS,
    "ann secret",
    flag("--pre-hashed-password", text="The password is a hash, as hash_password prints it."),
)
def add_user(
    session: Session, username: str, password: str | None = None, *, pre_hashed_password: bool
) -> None:
    """Create a user. Without a password it is read from the standard input. The user has no permissions yet."""
    _name(username, "user")
    if pre_hashed_password and password is not None:
        _check_hash(password)
    session.announce(f'Adding user "{username}" ...')
    secret = asked_secret(password, "Password hash" if pre_hashed_password else "Password")
    if pre_hashed_password:
        _check_hash(secret)
    if session.api.find("users", username) is not None:
        raise CtlError(f'Error:\nUser "{username}" already exists', exit_codes.SOFTWARE)
    kind = "password_hash" if pre_hashed_password else "password"
    session.api.put("users", username, body={kind: secret, "tags": ""})
    session.announce(
        "Done. Don't forget to grant the user permissions to some virtual hosts! See 'leveret ctl help "
        "set_permissions' to learn more."
    )


def _check_hash(text: str) -> None:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        wrong = "Bad argument: Could not Base64 decode provided password hash value"
        raise UsageError(wrong, exit_codes.DATA) from None


@command(USERS, "secret", name="hash_password")
def print_hash(session: Session, password: str | None = None) -> None:
    """Print the hash of a password, for add_user --pre-hashed-password and definitions. No broker is needed."""
    from leveret.broker.auth.passwords import Password, hash_password  # noqa: PLC0415 - no other command needs it

    session.announce("Will hash password ...")  # without it, unlike RabbitMQ: logs have the output of scripts
    session.show(hash_password(Password(asked_secret(password, "Password"))))


@command(USERS, "ann", says='Deleting user "{username}" ...')
def delete_user(session: Session, username: str) -> None:
    """Delete a user and close its connections."""
    existing_user(session, username)
    session.api.delete("users", username)


@command(USERS, "ann secret", says='Authenticating user "{username}" ...')
def authenticate_user(session: Session, username: str, password: str | None = None) -> None:
    """Check a user's password."""
    secret = asked_secret(password, "Password")
    answer = session.api.post("leveret", "authenticate", body={"username": username, "password": secret})
    if not answer["authenticated"]:
        text = f'Error:\nError: failed to authenticate user "{username}"\n{answer["reason"]}'
        raise CtlError(text, exit_codes.DATA)
    session.say("Success")


@command(USERS, "ann other", says='Changing password for user "{username}" ...')
def change_password(session: Session, username: str, password: str | None = None) -> None:
    """Change the password of a user. Without one it is read from the standard input."""
    secret = asked_secret(password, "Password")
    tags = existing_user(session, username)["tags"]
    session.api.put("users", username, body={"password": secret, "tags": tags})


@command(USERS, "ann", says='Clearing password for user "{username}" ...')
def clear_password(session: Session, username: str) -> None:
    """Remove the password of a user, who then cannot log in with one."""
    tags = existing_user(session, username, exit_codes.UNAVAILABLE)["tags"]
    session.api.put("users", username, body={"password_hash": "", "tags": tags})


@command(USERS, "--formatter json", says="Listing users ...")
def list_users(session: Session) -> None:
    """List users and their tags."""
    rows = [{"user": row["name"], "tags": row["tags"]} for row in session.api.get("users")]
    session.show_rows(rows, ("user", "tags"))


@command(USERS, "ann monitoring")
def set_user_tags(session: Session, username: str, tags: tuple[str, ...]) -> None:
    """Set the tags of a user: administrator, monitoring, policymaker, management or others.

    They replace those that the user has; without any, all are removed.
    """
    session.announce(f'Setting tags for user "{username}" to [{", ".join(tags)}] ...')
    user = existing_user(session, username)
    kept = {key: user[key] for key in ("password_hash", "hashing_algorithm")}
    session.api.put("users", username, body={"tags": list(tags), **kept})


# -- permissions ------------------------------------------------------------------------------------------------


def _begin(session: Session, announcement: str, username: str) -> None:
    """Announce a change of a user's rights in the vhost; raises CtlError if either does not exist."""
    session.announce(announcement)
    missing = refused(f"Virtual host {session.vhost} does not exist")
    # Unlike the virtual host itself, its permissions are found if it is in another log that shares the users.
    session.api.request("GET", ("vhosts", session.vhost, "permissions"), missing=missing)
    existing_user(session, username)


@command(ACCESS, "-p shop ann '^shop[.]' '.*' '.*'")
def set_permissions(session: Session, username: str, configure: str, write: str, read: str) -> None:
    """Grant a user access to a virtual host.

    CONFIGURE, WRITE and READ are regular expressions for the names of queues and exchanges that the user may declare
    and delete, publish to, and consume from: '.*' is all, '' none.
    """
    _begin(session, f'Setting permissions for user "{username}" in vhost "{session.vhost}" ...', username)
    body = {"configure": configure, "write": write, "read": read}
    session.api.put("permissions", session.vhost, username, body=body)


@command(ACCESS, "ann '^shop[.]' '.*' '.*'")
def set_permissions_globally(session: Session, username: str, configure: str, write: str, read: str) -> None:
    """Give a user access to all virtual hosts that there are, as set_permissions does to one."""
    _begin(session, f'Setting permissions for user "{username}" in all virtual hosts ...', username)
    body = {"configure": configure, "write": write, "read": read}
    for vhost in session.api.get("vhosts", columns="name"):
        session.api.put("permissions", vhost["name"], username, body=body)


@command(ACCESS, "-p shop ann")
def clear_permissions(session: Session, username: str) -> None:
    """Remove a user's access to a virtual host."""
    _begin(session, f'Clearing permissions for user "{username}" in vhost "{session.vhost}" ...', username)
    if session.api.find("permissions", session.vhost, username) is not None:
        session.api.delete("permissions", session.vhost, username)


@command(ACCESS, "-p shop", says='Listing permissions for vhost "{session.vhost}" ...')
def list_permissions(session: Session) -> None:
    """List the permissions in a virtual host."""
    existing_vhost(session, session.vhost)
    rows = session.api.get("vhosts", session.vhost, "permissions")
    session.show_rows(rows, ("user", "configure", "write", "read"))


@command(ACCESS, "ann", says='Listing permissions for user "{username}" ...')
def list_user_permissions(session: Session, username: str) -> None:
    """List the permissions of a user."""
    existing_user(session, username, exit_codes.UNAVAILABLE)
    rows = session.api.get("users", username, "permissions")
    session.show_rows(rows, ("vhost", "configure", "write", "read"))


@command(ACCESS, "-p shop ann amq.topic '^shop[.]' '.*'")
def set_topic_permissions(session: Session, username: str, exchange: str, write: str, read: str) -> None:
    """Restrict the routing keys that a user may use at a topic exchange.

    WRITE and READ are regular expressions for the routing keys that the user may publish with, and bind with.
    """
    where = f'on "{exchange}" for user "{username}" in vhost "{session.vhost}"'
    _begin(session, f"Setting topic permissions {where} ...", username)
    body = {"exchange": exchange, "write": write, "read": read}
    session.api.put("topic-permissions", session.vhost, username, body=body)


@command(ACCESS, "-p shop ann amq.topic")
def clear_topic_permissions(session: Session, username: str, exchange: str | None = None) -> None:
    """Remove a user's topic permissions, at one exchange or at all."""
    at = f' on "{exchange}"' if exchange else ""
    where = f'{at} for user "{username}" in vhost "{session.vhost}"'
    _begin(session, f"Clearing topic permissions{where} ...", username)
    path = ["topic-permissions", session.vhost, username, *([exchange] if exchange else [])]
    if session.api.find(*path) is not None:
        session.api.delete(*path)


@command(ACCESS, "-p shop", says='Listing topic permissions for vhost "{session.vhost}" ...')
def list_topic_permissions(session: Session) -> None:
    """List the topic permissions in a virtual host."""
    existing_vhost(session, session.vhost)
    rows = session.api.get("vhosts", session.vhost, "topic-permissions")
    session.show_rows(rows, ("user", "exchange", "write", "read"), blank=True)


@command(ACCESS, "ann", says='Listing topic permissions for user "{username}" ...')
def list_user_topic_permissions(session: Session, username: str) -> None:
    """List the topic permissions of a user."""
    existing_user(session, username)
    rows = session.api.get("users", username, "topic-permissions")
    session.show_rows(rows, ("vhost", "exchange", "write", "read"))


# -- limits -----------------------------------------------------------------------------------------------------

_OF_ALL = flag("--global", "everywhere", text="Of all.")


def _put_limits(session: Session, kind: str, owner: str, definition: str) -> None:
    limits = parsed(definition)
    if not isinstance(limits, dict):
        raise refused("a JSON object of limits is expected")
    for name, value in limits.items():
        session.api.put(kind, owner, name, body={"value": value})


def _list_all_limits(session: Session, owner: str) -> None:
    session.announce(f"Listing limits for all {owner}s ...")
    found = session.api.get(f"{owner}-limits")
    rows = [{owner: row[owner], "limits": cell(row["value"])} for row in found]
    session.show_rows(rows, (owner, "limits"), blank=True)


def _limits(session: Session, kind: str, owner: str) -> dict[str, Any]:
    rows = session.api.get(kind, owner)
    return {name: value for row in rows for name, value in dict(row["value"]).items()}


@command(VHOSTS, """-p shop '{"max-queues": 500}'""")
def set_vhost_limits(session: Session, definition: str) -> None:
    """Set limits of a virtual host, for instance '{"max-connections": 100, "max-publish-rate": 5000}'."""
    session.announce(f'Setting vhost limits to "{definition}" for vhost "{session.vhost}" ...')
    existing_vhost(session, session.vhost)
    _put_limits(session, "vhost-limits", session.vhost, definition)


@command(VHOSTS, "-p shop", says='Clearing vhost "{session.vhost}" limits ...')
def clear_vhost_limits(session: Session) -> None:
    """Remove the limits of a virtual host."""
    missing = refused("Parameter does not exist")
    session.api.delete("parameters", "vhost-limits", session.vhost, "limits", missing=missing)


@command(VHOSTS, "-p shop", _OF_ALL)
def list_vhost_limits(session: Session, *, everywhere: bool) -> None:
    """List the limits of a virtual host, or of all with --global."""
    if everywhere:
        _list_all_limits(session, "vhost")
        return
    session.announce(f'Listing limits for vhost "{session.vhost}" ...')
    existing_vhost(session, session.vhost)
    if limits := _limits(session, "vhost-limits", session.vhost):
        found = {"node": session.node, "result": "ok", "value": cell(limits)}
        session.show_object(found, [cell(limits)])
    else:
        session.show_object([], [""])


@command(USERS, """ann '{"max-connections": 100}'""")
def set_user_limits(session: Session, username: str, definition: str) -> None:
    """Set limits of a user, for instance '{"max-connections": 10, "max-publish-rate": 500}'."""
    session.announce(f'Setting user limits to "{definition}" for user "{username}" ...')
    existing_user(session, username, exit_codes.UNAVAILABLE)
    _put_limits(session, "user-limits", username, definition)


@command(USERS, "ann max-connections")
def clear_user_limits(session: Session, username: str, limit: str) -> None:
    """Remove a limit of a user; `all` for all of them."""
    what = "all limits" if limit == "all" else f'"{limit}" limit'
    session.announce(f'Clearing {what} for user "{username}" ...')
    existing_user(session, username)
    for row in session.api.get("user-limits", username):
        for name in row["value"]:
            if limit in {"all", name}:
                session.api.delete("user-limits", username, name)


@command(USERS, "--user ann", option("--user", default="guest", help="User (default: guest)."), _OF_ALL)
def list_user_limits(session: Session, *, user: str, everywhere: bool) -> None:
    """List the limits of a user, or of all with --global."""
    if everywhere:
        _list_all_limits(session, "user")
        return
    session.announce(f'Listing limits for user "{user}" ...')
    existing_user(session, user)
    limits = cell(_limits(session, "user-limits", user))
    session.show_object({"message": limits}, [limits])
