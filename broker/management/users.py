"""Users, their permissions and limits: `/api/users`, `/api/whoami`, `/api/permissions`, `/api/user-limits`."""

import base64
from typing import Any

from leveret.broker.administration.access import BadRequestError, Right
from leveret.broker.administration.definitions_document import as_words
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.auth.users import USER_LIMITS, limits_by_name
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Steps, Values
from leveret.broker.http.errors import ApiError, bad_request, not_found
from leveret.broker.http.route import Key, Routes, required

ROUTES = Routes("users", needs=Right.ADMINISTRATOR)
PERMISSION_ROUTES = Routes("permissions", needs=Right.ADMINISTRATOR)
KINDS = ("configure", "write", "read")
State = dict[str, Any] | list[Any] | None
"""State of an object before or after a change, as the audit log records it: without passwords and other secrets.

Functions that return it raise nothing and check no rights: the audit log is the operator's. What may be secret in free
values is masked when it is recorded.
"""


def _user_of(call: Call, name: str) -> dict[str, Any] | None:
    found = call.broker.users.get(name)
    return None if found is None else {"tags": list(found.tags), "may_log_in": bool(found.password_hash)}


def _user_state(call: Call) -> State:
    return _user_of(call, call.names["user"])


def _users_state(call: Call) -> State:
    try:
        names = call.body().get("users")
    except ApiError:
        return None
    if not isinstance(names, list):
        return None
    found = ((name, _user_of(call, name)) for name in names if isinstance(name, str))
    return [{"name": name, **row} for name, row in found if row is not None] or None


@ROUTES.list("users")
def list_users(call: Call) -> Answer:
    """All users."""
    return Listing(call.administration.users.all(call.actor), sort=("name",))


@ROUTES.get("users/{user}")
def get_user(call: Call, user: str) -> Answer:
    """One user."""
    return Item(call.administration.users.get(call.actor, user))


@ROUTES.put(
    "users/{user}",
    body=(
        required("tags", "any", doc="a list, or one text with commas"),
        Key("password"),
        Key("password_hash", doc="instead of the password; empty for none, as without both"),
        Key("hashing_algorithm", doc="of the hash; that of its size by default"),
    ),
    state=_user_state,
)
def put_user(call: Call, user: str) -> Answer:
    """Create a user, or change its password and tags."""
    body = call.body()
    if "tags" not in body:
        raise bad_request("tags_not_present")
    if {"password", "password_hash"} <= body.keys():
        raise bad_request("both_password_and_password_hash_are_provided")
    is_new = call.broker.users.get(user) is None
    given = Values({key: body[key] for key in ("password", "password_hash") if key in body})
    if not is_base64(given.get("password_hash", "")):
        raise bad_request(["not_base64", given["password_hash"]])
    given.text("password")
    if not given:
        given["password_hash"] = ""  # who sends neither, disables the password
    algorithm = body.text("hashing_algorithm", "")
    tags = [tag for tag in tags_of(body["tags"]) if tag]
    call.administration.users.put(call.actor, user, tags=tags, hashing_algorithm=algorithm, **given)
    return Done(201 if is_new else 204)


@ROUTES.delete("users/{user}", state=_user_state)
def delete_user(call: Call, user: str) -> None:
    """Delete a user and close its connections."""
    call.administration.users.delete(call.actor, user)


@ROUTES.post("users/bulk-delete", body=(required("users", "array", doc="names"),), state=_users_state)
def delete_users(call: Call) -> None:
    """Delete several users."""
    names = call.body("users")["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("'users' must be a list of names")
    for name in names:
        if call.broker.users.get(name) is None:
            raise bad_request(["no_such_user", name])
    for name in dict.fromkeys(names):
        call.administration.users.delete(call.actor, name)


@ROUTES.list("users/without-permissions")
def list_users_without_permissions(call: Call) -> Steps:
    """Users that have access to no vhost."""
    permitted = set()
    for at, (name, _vhost, _row) in enumerate(call.broker.users.permission_rows()):
        permitted.add(name)
        if not at % 64:
            yield None
    users = call.administration.users.all(call.actor)
    return Listing((user for user in users if user["name"] not in permitted), sort=("name",))


@ROUTES.get("whoami", needs=Right.MANAGEMENT)
def whoami(call: Call) -> Answer:
    """The user who asks."""
    actor = call.actor
    if actor is None:
        return Item({"name": "", "tags": ["administrator"], "is_internal_user": True})
    return Item({"name": actor.name, "tags": list(actor.tags), "is_internal_user": True})


def is_base64(given: Any) -> bool:
    """Return whether a value is a text in base64."""
    try:
        base64.b64decode(given, validate=True)
    except (TypeError, ValueError):
        return False
    return True


def tags_of(given: Any) -> list[str]:
    """Return tags as a list, which may be a text with commas; raises ApiError."""
    if not isinstance(given, str | list) or not all(isinstance(each, str) for each in given):
        raise bad_request("'tags' must be a list of texts, or one text with commas between them")
    return as_words(given)


# -- limits -----------------------------------------------------------------------------------------------------------


def _limits_state(call: Call) -> State:
    return limits_by_name(call.broker.users.user_limits(call.names["user"])) or None


LIMIT = (required("value", "integer", doc="negative for no limit"),)


@ROUTES.list("user-limits", "user-limits/{user}", needs=Right.MANAGEMENT, group="limits", has_head=False)
def list_user_limits(call: Call) -> Answer:
    """Limits of a user, or of all users."""
    rows = call.administration.users.limits(call.actor, call.names.get("user"))
    return Listing(rows, sort=("user",), is_paged=False)


@ROUTES.put(
    "user-limits/{user}/{limit}",
    doc=f"Set one of {', '.join(USER_LIMITS)}.",
    body=LIMIT,
    group="limits",
    state=_limits_state,
)
def put_user_limit(call: Call, user: str, limit: str) -> None:
    """Set a limit of a user."""
    value = call.body("value")["value"]
    if call.broker.users.get(user) is None:
        raise bad_request(["no_such_user", user])
    call.administration.users.set_limits(call.actor, user, {limit: value})


@ROUTES.delete("user-limits/{user}/{limit}", group="limits", state=_limits_state)
def delete_user_limit(call: Call, user: str, limit: str) -> None:
    """Remove a limit of a user."""
    call.administration.users.clear_limits(call.actor, user, limit)


# -- permissions ------------------------------------------------------------------------------------------------------


def _permissions_of(call: Call) -> dict[str, str] | None:
    user, vhost = call.names["user"], call.names["vhost"]
    if not call.broker.users.may_access(user, vhost):
        return None
    row = call.broker.users.permissions(user, vhost)
    return {kind: getattr(row, kind) for kind in KINDS}


@ROUTES.list("users/{user}/queues")
def list_queues_of_user(call: Call) -> Answer:
    """Refused: the broker does not record who has declared a queue; the audit log does."""
    del call
    raise bad_request("who has declared a queue is not recorded")


@PERMISSION_ROUTES.list("permissions")
@PERMISSION_ROUTES.list("users/{user}/permissions", doc="Permissions of a user.")
@PERMISSION_ROUTES.list("vhosts/{vhost}/permissions", doc="Permissions in a vhost.", group="vhosts")
def list_permissions(call: Call) -> Answer:
    """All permissions."""
    rows = call.administration.users.permissions(call.actor, **call.names)
    return Listing(rows, sort=("vhost", "user"), is_paged=False)


@PERMISSION_ROUTES.get("permissions/{vhost}/{user}")
def get_permissions(call: Call, vhost: str, user: str) -> Answer:
    """Permissions of a user in a vhost."""
    found = _permissions_of(call)
    if found is None:
        raise not_found()
    return Item({"user": user, "vhost": vhost, **found})


@PERMISSION_ROUTES.put(
    "permissions/{vhost}/{user}",
    body=tuple(required(kind, doc="pattern of names") for kind in KINDS),
    state=_permissions_of,
)
def put_permissions(call: Call, vhost: str, user: str) -> Answer:
    """Set the permissions of a user in a vhost."""
    body = call.body(*KINDS)
    _check_names(call)
    is_new = _permissions_of(call) is None
    patterns = {kind: body.text(kind) for kind in KINDS}
    try:
        call.administration.users.set_permissions(call.actor, vhost, user, **patterns)
    except BadRequestError as error:
        raise _invalid(error) from None
    return Done(201 if is_new else 204)


@PERMISSION_ROUTES.delete("permissions/{vhost}/{user}", state=_permissions_of)
def delete_permissions(call: Call, vhost: str, user: str) -> None:
    """Remove the access of a user to a vhost."""
    if _permissions_of(call) is None:
        raise not_found()
    call.administration.users.clear_permissions(call.actor, vhost, user)


_TOPIC = ("topic-permissions/{vhost}/{user}", "topic-permissions/{vhost}/{user}/{exchange}")


def _topic_permissions_of(call: Call) -> dict[str, dict[str, str]] | None:
    """Return the patterns of the user of a path by exchange, or those at the exchange of the path; None for none."""
    rows = call.broker.users.topic_permissions(call.names["user"], call.names["vhost"]).rows
    wanted = call.names.get("exchange")
    found = {
        exchange: {"write": row.write, "read": row.read}
        for exchange, row in rows.items()
        if wanted in {None, exchange}
    }
    return found or None


@PERMISSION_ROUTES.list("topic-permissions")
@PERMISSION_ROUTES.list("users/{user}/topic-permissions", doc="Topic permissions of a user.")
@PERMISSION_ROUTES.list(
    "vhosts/{vhost}/topic-permissions", doc="Topic permissions in a vhost.", group="vhosts"
)
def list_topic_permissions(call: Call) -> Answer:
    """All topic permissions."""
    rows = call.administration.users.topic_permissions(call.actor, **call.names)
    return Listing(rows, sort=("vhost", "user"), is_paged=False)


@PERMISSION_ROUTES.list(*_TOPIC)
def get_topic_permissions(call: Call, vhost: str, user: str) -> Answer:
    """Topic permissions of a user in a vhost."""
    found = _topic_permissions_of(call)
    if found is None:
        raise not_found()
    rows = [{"user": user, "vhost": vhost, "exchange": name, **row} for name, row in found.items()]
    return Listing(rows, sort=("exchange",), is_paged=False)


@PERMISSION_ROUTES.put(
    *_TOPIC,
    body=(
        required("exchange", doc="a topic exchange, which need not exist"),
        required("write", doc="pattern of the routing keys of publishes"),
        required("read", doc="pattern of the routing keys of bindings"),
    ),
    state=_topic_permissions_of,
)
def put_topic_permissions(call: Call, vhost: str, user: str) -> Answer:
    """Restrict the routing keys of a user at a topic exchange."""
    body = call.body("exchange", "write", "read")
    _check_names(call)
    exchange, write, read = (body.text(key) for key in ("exchange", "write", "read"))
    users = call.administration.users
    is_new = not call.broker.users.topic_permissions(user, vhost)
    try:
        users.set_topic_permissions(call.actor, vhost, user, exchange, write=write, read=read)
    except BadRequestError as error:
        raise _invalid(error) from None
    return Done(201 if is_new else 204)


@PERMISSION_ROUTES.delete(*_TOPIC, state=_topic_permissions_of)
def delete_topic_permissions(call: Call, vhost: str, user: str) -> None:
    """Remove topic permissions."""
    if _topic_permissions_of(call) is None:
        raise not_found()
    exchange = call.names.get("exchange")
    call.administration.users.clear_topic_permissions(call.actor, vhost, user, exchange)


def _check_names(call: Call) -> None:
    if not call.broker.has_vhost(call.names["vhost"]) or call.broker.users.get(call.names["user"]) is None:
        raise bad_request("vhost_or_user_not_found")


def _invalid(error: BadRequestError) -> Exception:
    """Return the error for a pattern that is not supported, in RabbitMQ's form."""
    cause = error.__cause__
    if not isinstance(cause, InvalidPatternError):
        return error
    return bad_request(["invalid_regexp", cause.pattern, cause.reason])
