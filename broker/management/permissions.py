"""Permissions and topic permissions: `/api/permissions`, `/api/topic-permissions`."""

from collections.abc import Iterator
from typing import Any

from leveret.broker.administration.access import BadRequestError, Right
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, text
from leveret.broker.http.errors import bad_request, not_found
from leveret.broker.http.route import Key, Operation, Route
from leveret.broker.management import recorded_state

KINDS = ("configure", "write", "read")


def list_permissions(call: Call) -> Answer:
    """List the permissions of all users in all vhosts."""
    return Listing(call.administration.users.permissions(call.actor), sort=_SORT, is_paged=False)


def list_permissions_of_user(call: Call) -> Answer:
    """List the permissions of a user in all vhosts."""
    rows = call.administration.users.permissions(call.actor, user=call.names["user"])
    return Listing(rows, sort=_SORT, is_paged=False)


def get_permissions(call: Call) -> Answer:
    """Return the permissions of a user in a vhost."""
    vhost, user = call.names["vhost"], call.names["user"]
    if not call.broker.users.may_access(user, vhost):
        raise not_found()
    row = call.broker.users.permissions(user, vhost)
    return Item({"user": user, "vhost": vhost} | {kind: getattr(row, kind) for kind in KINDS})


def put_permissions(call: Call) -> Answer:
    """Set the permissions of a user in a vhost."""
    body = call.body(*KINDS)
    vhost, user = _found(call)
    is_new = not call.broker.users.may_access(user, vhost)
    patterns = {kind: text(body, kind) for kind in KINDS}
    try:
        call.administration.users.set_permissions(call.actor, vhost, user, **patterns)
    except BadRequestError as error:
        raise _invalid(error) from None
    return Done(201 if is_new else 204)


def delete_permissions(call: Call) -> Answer:
    """Remove the permissions of a user in a vhost, and close its connections to it."""
    vhost, user = call.names["vhost"], call.names["user"]
    if not call.broker.users.may_access(user, vhost):
        raise not_found()
    call.administration.users.clear_permissions(call.actor, vhost, user)
    return Done()


# -- topic permissions ----------------------------------------------------------------------------------------------


def list_topic_permissions(call: Call) -> Answer:
    """List the topic permissions of all users in all vhosts."""
    return Listing(call.administration.users.topic_permissions(call.actor), sort=_SORT, is_paged=False)


def list_topic_permissions_of_user(call: Call) -> Answer:
    """List the topic permissions of a user in all vhosts."""
    rows = call.administration.users.topic_permissions(call.actor, user=call.names["user"])
    return Listing(rows, sort=_SORT, is_paged=False)


def get_topic_permissions(call: Call) -> Answer:
    """List the topic permissions of a user in a vhost, of all exchanges or of one."""
    rows = list(_topic_rows(call))
    if not rows:
        raise not_found()
    return Listing(rows, sort=("exchange",), is_paged=False)


def put_topic_permissions(call: Call) -> Answer:
    """Restrict the routing keys of a user at a topic exchange."""
    body = call.body("exchange", "write", "read")
    vhost, user = _found(call)
    exchange, write, read = (text(body, key) for key in ("exchange", "write", "read"))
    is_new = not call.broker.users.topic_permissions(user, vhost)
    try:
        call.administration.users.set_topic_permissions(
            call.actor, vhost, user, exchange, write=write, read=read
        )
    except BadRequestError as error:
        raise _invalid(error) from None
    return Done(201 if is_new else 204)


def delete_topic_permissions(call: Call) -> Answer:
    """Remove the topic permissions of a user in a vhost, of all exchanges or of one."""
    if not any(_topic_rows(call)):
        raise not_found()
    call.administration.users.clear_topic_permissions(
        call.actor, call.names["vhost"], call.names["user"], call.names.get("exchange")
    )
    return Done()


def _topic_rows(call: Call) -> Iterator[dict[str, Any]]:
    vhost, user, wanted = call.names["vhost"], call.names["user"], call.names.get("exchange")
    for exchange, row in call.broker.users.topic_permissions(user, vhost).rows.items():
        if wanted in {None, exchange}:
            yield {
                "user": user,
                "vhost": vhost,
                "exchange": exchange,
                "write": row.write,
                "read": row.read,
            }


def _found(call: Call) -> tuple[str, str]:
    vhost, user = call.names["vhost"], call.names["user"]
    if vhost not in call.broker.vhosts or call.broker.users.get(user) is None:
        raise bad_request("vhost_or_user_not_found")
    return vhost, user


def _invalid(error: BadRequestError) -> Exception:
    """Return the error for a pattern that is not supported, in RabbitMQ's form."""
    cause = error.__cause__
    if not isinstance(cause, InvalidPatternError):
        return error
    return bad_request(["invalid_regexp", cause.pattern, cause.reason])


_SORT = ("vhost", "user")
_ADMINISTRATOR = Right.ADMINISTRATOR
_TOPIC_GET = Operation(
    get_topic_permissions, "Topic permissions of a user in a vhost.", _ADMINISTRATOR, kind="array")  # fmt: skip
_TOPIC_PUT = Operation(
    put_topic_permissions,
    "Restrict the routing keys of a user at a topic exchange.",
    _ADMINISTRATOR,
    body=(
        Key("exchange", is_required=True, doc="a topic exchange, which need not exist"),
        Key("write", is_required=True, doc="pattern of the routing keys of publishes"),
        Key("read", is_required=True, doc="pattern of the routing keys of bindings"),
    ),
    statuses=(201, 204),
    state=recorded_state.topic_permissions,
)
_TOPIC_DELETE = Operation(
    delete_topic_permissions,
    "Remove topic permissions.",
    _ADMINISTRATOR,
    statuses=(204,),
    state=recorded_state.topic_permissions,
)
_TOPIC_OPERATIONS = {"GET": _TOPIC_GET, "PUT": _TOPIC_PUT, "DELETE": _TOPIC_DELETE}
ROUTES = (
    Route(
        "permissions",
        "permissions",
        {"GET": Operation(list_permissions, "All permissions.", _ADMINISTRATOR, kind="array")},
    ),
    Route(
        "permissions/{vhost}/{user}",
        "permissions",
        {
            "GET": Operation(get_permissions, "Permissions of a user in a vhost.", _ADMINISTRATOR),
            "PUT": Operation(
                put_permissions,
                "Set the permissions of a user in a vhost.",
                _ADMINISTRATOR,
                body=tuple(Key(kind, is_required=True, doc="pattern of names") for kind in KINDS),
                statuses=(201, 204),
                state=recorded_state.permissions,
            ),
            "DELETE": Operation(
                delete_permissions,
                "Remove the access of a user to a vhost.",
                _ADMINISTRATOR,
                statuses=(204,),
                state=recorded_state.permissions,
            ),
        },
    ),
    Route(
        "topic-permissions",
        "permissions",
        {"GET": Operation(list_topic_permissions, "All topic permissions.", _ADMINISTRATOR, kind="array")},
    ),
    Route("topic-permissions/{vhost}/{user}", "permissions", _TOPIC_OPERATIONS),
    Route("topic-permissions/{vhost}/{user}/{exchange}", "permissions", _TOPIC_OPERATIONS),
    Route(
        "users/{user}/permissions",
        "permissions",
        {"GET": Operation(list_permissions_of_user, "Permissions of a user.", _ADMINISTRATOR, kind="array")},
    ),
    Route(
        "users/{user}/topic-permissions",
        "permissions",
        {
            "GET": Operation(
                list_topic_permissions_of_user, "Topic permissions of a user.", _ADMINISTRATOR, kind="array"
            )
        },
    ),
)
