"""Commands for users, virtual hosts and permissions."""

from collections.abc import Mapping
from typing import Any

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import ApiError
from leveret.broker.cli.ctl.command import argument, command, option
from leveret.broker.cli.ctl.errors import CtlError, UsageError, no_user, no_vhost, refused
from leveret.broker.cli.ctl.session import Session, asked_secret, chosen

USERS = "Users"
ACCESS = "Access control"
VHOSTS = "Virtual hosts"
_NOT_FOUND = 404


def _get(session: Session, *path: str) -> Any:
    """Return the answer to a GET; None if the object does not exist."""
    try:
        return session.api.get(*path)
    except ApiError as error:
        if error.status == _NOT_FOUND:
            return None
        raise


def existing_user(session: Session, name: str, code: int = exit_codes.NO_USER) -> Mapping[str, Any]:
    """Return a user; raises CtlError with an exit code if it does not exist."""
    found = _get(session, "users", name)
    if found is None:
        raise no_user(name, code)
    row: Mapping[str, Any] = found
    return row


def check_vhost(session: Session, name: str) -> None:
    """Raise CtlError if a vhost does not exist."""
    if _get(session, "vhosts", name) is None:
        raise no_vhost(name)


def _begin(session: Session, announcement: str, username: str) -> None:
    """Announce a change of a user's rights in the vhost; raises CtlError if either does not exist."""
    session.announce(announcement)
    if _get(session, "vhosts", session.vhost) is None:
        raise refused(f"Virtual host {session.vhost} does not exist")
    existing_user(session, username)


def _name(value: str, what: str) -> str:
    if not value:
        raise UsageError(f"Bad argument: {what} cannot be an empty string", exit_codes.DATA)
    return value


# -- users ------------------------------------------------------------------------------------------------------


@command("add_user", argument("username"), argument("password", optional=True), group=USERS)
def add_user(session: Session, username: str, password: str | None) -> None:
    """Create a user. Without a password it is read from the standard input. The user has no permissions yet."""
    _name(username, "user")
    session.announce(f'Adding user "{username}" ...')
    secret = asked_secret(password, "Password")
    if _get(session, "users", username) is not None:
        raise CtlError(f'Error:\nUser "{username}" already exists', exit_codes.SOFTWARE)
    session.api.put("users", username, body={"password": secret, "tags": ""})
    session.announce(
        "Done. Don't forget to grant the user permissions to some virtual hosts! See 'leveret ctl help "
        "set_permissions' to learn more."
    )


@command("delete_user", argument("username"), group=USERS)
def delete_user(session: Session, username: str) -> None:
    """Delete a user and close its connections."""
    session.announce(f'Deleting user "{username}" ...')
    existing_user(session, username)
    session.api.delete("users", username)


@command("change_password", argument("username"), argument("password", optional=True), group=USERS)
def change_password(session: Session, username: str, password: str | None) -> None:
    """Change the password of a user. Without one it is read from the standard input."""
    session.announce(f'Changing password for user "{username}" ...')
    secret = asked_secret(password, "Password")
    tags = existing_user(session, username)["tags"]
    session.api.put("users", username, body={"password": secret, "tags": tags})


@command("clear_password", argument("username"), group=USERS)
def clear_password(session: Session, username: str) -> None:
    """Remove the password of a user, who then cannot log in with one."""
    session.announce(f'Clearing password for user "{username}" ...')
    tags = existing_user(session, username, exit_codes.UNAVAILABLE)["tags"]
    session.api.put("users", username, body={"password_hash": "", "tags": tags})


@command("authenticate_user", argument("username"), argument("password", optional=True), group=USERS)
def authenticate_user(session: Session, username: str, password: str | None) -> None:
    """Check a user's password."""
    session.announce(f'Authenticating user "{username}" ...')
    secret = asked_secret(password, "Password")
    answer = session.api.post("leveret", "authenticate", body={"username": username, "password": secret})
    if not answer["authenticated"]:
        raise CtlError(
            f'Error:\nError: failed to authenticate user "{username}"\n{answer["reason"]}', exit_codes.DATA
        )
    session.say("Success")


@command("list_users", group=USERS)
def list_users(session: Session) -> None:
    """List users and their tags."""
    session.announce("Listing users ...")
    rows = [{"user": row["name"], "tags": row["tags"]} for row in session.api.get("users")]
    session.show_rows(rows, ("user", "tags"))


@command("set_user_tags", argument("username"), argument("tags", many=True), group=USERS)
def set_user_tags(session: Session, username: str, tags: tuple[str, ...]) -> None:
    """Set the tags of a user: administrator, monitoring, policymaker, management or others.

    They replace those that the user has; without any, all are removed.
    """
    session.announce(f'Setting tags for user "{username}" to [{", ".join(tags)}] ...')
    user = existing_user(session, username)
    kept = {key: user[key] for key in ("password_hash", "hashing_algorithm")}
    session.api.put("users", username, body={"tags": list(tags), **kept})


# -- permissions ------------------------------------------------------------------------------------------------


@command(
    "set_permissions",
    argument("username"),
    argument("configure"),
    argument("write"),
    argument("read"),
    group=ACCESS,
)
def set_permissions(session: Session, username: str, configure: str, write: str, read: str) -> None:
    """Grant a user access to a virtual host.

    CONFIGURE, WRITE and READ are regular expressions for the names of queues and exchanges that the user may declare
    and delete, publish to, and consume from: '.*' is all, '' none.
    """
    _begin(session, f'Setting permissions for user "{username}" in vhost "{session.vhost}" ...', username)
    body = {"configure": configure, "write": write, "read": read}
    session.api.put("permissions", session.vhost, username, body=body)


@command("clear_permissions", argument("username"), group=ACCESS)
def clear_permissions(session: Session, username: str) -> None:
    """Remove a user's access to a virtual host."""
    _begin(session, f'Clearing permissions for user "{username}" in vhost "{session.vhost}" ...', username)
    if _get(session, "permissions", session.vhost, username) is not None:
        session.api.delete("permissions", session.vhost, username)


@command("list_permissions", group=ACCESS)
def list_permissions(session: Session) -> None:
    """List the permissions in a virtual host."""
    session.announce(f'Listing permissions for vhost "{session.vhost}" ...')
    check_vhost(session, session.vhost)
    rows = session.api.get("vhosts", session.vhost, "permissions")
    session.show_rows(rows, ("user", "configure", "write", "read"))


@command("list_user_permissions", argument("username"), group=ACCESS)
def list_user_permissions(session: Session, username: str) -> None:
    """List the permissions of a user."""
    session.announce(f'Listing permissions for user "{username}" ...')
    existing_user(session, username, exit_codes.UNAVAILABLE)
    session.show_rows(
        session.api.get("users", username, "permissions"), ("vhost", "configure", "write", "read")
    )


@command(
    "set_topic_permissions",
    argument("username"),
    argument("exchange"),
    argument("write"),
    argument("read"),
    group=ACCESS,
)
def set_topic_permissions(session: Session, username: str, exchange: str, write: str, read: str) -> None:
    """Restrict the routing keys that a user may use at a topic exchange.

    WRITE and READ are regular expressions for the routing keys that the user may publish with, and bind with.
    """
    where = f'on "{exchange}" for user "{username}" in vhost "{session.vhost}"'
    _begin(session, f"Setting topic permissions {where} ...", username)
    body = {"exchange": exchange, "write": write, "read": read}
    session.api.put("topic-permissions", session.vhost, username, body=body)


@command(
    "clear_topic_permissions", argument("username"), argument("exchange", optional=True), group=ACCESS
)  # fmt: skip
def clear_topic_permissions(session: Session, username: str, exchange: str | None) -> None:
    """Remove a user's topic permissions, at one exchange or at all."""
    at = f' on "{exchange}"' if exchange else ""
    where = f'{at} for user "{username}" in vhost "{session.vhost}"'
    _begin(session, f"Clearing topic permissions{where} ...", username)
    path = ["topic-permissions", session.vhost, username, *([exchange] if exchange else [])]
    if _get(session, *path) is not None:
        session.api.delete(*path)


@command("list_topic_permissions", group=ACCESS)
def list_topic_permissions(session: Session) -> None:
    """List the topic permissions in a virtual host."""
    session.announce(f'Listing topic permissions for vhost "{session.vhost}" ...')
    check_vhost(session, session.vhost)
    rows = session.api.get("vhosts", session.vhost, "topic-permissions")
    session.show_rows(rows, ("user", "exchange", "write", "read"), blank=True)


@command("list_user_topic_permissions", argument("username"), group=ACCESS)
def list_user_topic_permissions(session: Session, username: str) -> None:
    """List the topic permissions of a user."""
    session.announce(f'Listing topic permissions for user "{username}" ...')
    existing_user(session, username)
    rows = session.api.get("users", username, "topic-permissions")
    session.show_rows(rows, ("vhost", "exchange", "write", "read"))


# -- vhosts -----------------------------------------------------------------------------------------------------

VHOST_COLUMNS = (
    *("name", "tracing", "description", "tags", "default_queue_type", "cluster_state"),
    "protected_from_deletion",
)


@command(
    "add_vhost",
    argument("vhost_name"),
    option("--description", default="", help="Description."),
    option("--tags", default="", help="Tags, with commas between."),
    option("--default-queue-type", default="", help="Type of queues that are declared without one."),
    group=VHOSTS,
)
def add_vhost(
    session: Session, vhost_name: str, description: str, tags: str, default_queue_type: str
) -> None:
    """Create a virtual host."""
    _name(vhost_name, "vhost")
    session.announce(f'Adding vhost "{vhost_name}" ...')
    if _get(session, "vhosts", vhost_name) is not None:
        return
    body = {"description": description, "tags": tags}
    if default_queue_type:
        body["default_queue_type"] = default_queue_type
    session.api.put("vhosts", vhost_name, body=body)


@command("delete_vhost", argument("vhost_name"), group=VHOSTS)
def delete_vhost(session: Session, vhost_name: str) -> None:
    """Delete a virtual host with everything in it."""
    session.announce(f'Deleting vhost "{vhost_name}" ...')
    if _get(session, "vhosts", vhost_name) is None:
        raise no_vhost(vhost_name)
    session.api.delete("vhosts", vhost_name)


@command("enable_vhost_deletion_protection", argument("vhost_name"), group=VHOSTS)
def enable_vhost_deletion_protection(session: Session, vhost_name: str) -> None:
    """Protect a virtual host from deletion."""
    session.announce(f"Protecting virtual host '{vhost_name}' from removal (deletion) ...")
    check_vhost(session, vhost_name)
    session.api.post("vhosts", vhost_name, "deletion", "protection")


@command("disable_vhost_deletion_protection", argument("vhost_name"), group=VHOSTS)
def disable_vhost_deletion_protection(session: Session, vhost_name: str) -> None:
    """Allow the deletion of a virtual host."""
    session.announce(f"Removing deletion protection from virtual host '{vhost_name}' ...")
    check_vhost(session, vhost_name)
    session.api.delete("vhosts", vhost_name, "deletion", "protection")


@command("list_vhosts", argument("columns", many=True), group=VHOSTS, columns=VHOST_COLUMNS)
def list_vhosts(session: Session, columns: tuple[str, ...]) -> None:
    """List virtual hosts (default: name)."""
    names = chosen(columns, VHOST_COLUMNS, ("name",))
    session.announce("Listing vhosts ...")
    session.show_rows(session.api.get("vhosts"), names)


def _trace(session: Session, *, is_on: bool) -> None:
    found = _get(session, "vhosts", session.vhost)
    if found is None:
        raise no_vhost(session.vhost)
    kept = {name: found[name] for name in ("description", "tags", "default_queue_type")}
    session.api.put("vhosts", session.vhost, body={**kept, "tracing": is_on})
    session.say(f"Trace {'enabled' if is_on else 'disabled'} for vhost {session.vhost}")


@command("trace_on", group=VHOSTS)
def trace_on(session: Session) -> None:
    """Publish what is published and delivered in a virtual host to amq.rabbitmq.trace, too, until the broker stops."""
    session.announce(f'Starting tracing for vhost "{session.vhost}" ...')
    _trace(session, is_on=True)


@command("trace_off", group=VHOSTS)
def trace_off(session: Session) -> None:
    """End what trace_on has begun."""
    session.announce(f'Stopping tracing for vhost "{session.vhost}" ...')
    _trace(session, is_on=False)


@command("set_vhost_tags", argument("vhost_name"), argument("tags", many=True), group=VHOSTS)
def set_vhost_tags(session: Session, vhost_name: str, tags: tuple[str, ...]) -> None:
    """Set the tags of a virtual host."""
    session.announce(f'Setting tags for vhost "{vhost_name}" to [{", ".join(tags)}] ...')
    check_vhost(session, vhost_name)
    session.api.put("vhosts", vhost_name, body={"tags": list(tags)})
