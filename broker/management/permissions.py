"""Permissions and topic permissions: `/api/permissions`, `/api/topic-permissions`."""

from collections.abc import Iterator
from typing import Any

from leveret.broker.administration.access import BadRequestError, Right
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, text
from leveret.broker.http.errors import bad_request, not_found
from leveret.broker.http.route import Routes, required
from leveret.broker.management import recorded_state

ROUTES = Routes("permissions", needs=Right.ADMINISTRATOR)
KINDS = ("configure", "write", "read")


@ROUTES.list("permissions")
@ROUTES.list("users/{user}/permissions", doc="Permissions of a user.")
@ROUTES.list("vhosts/{vhost}/permissions", doc="Permissions in a vhost.", group="vhosts")
def list_permissions(call: Call) -> Answer:
    """All permissions."""
    rows = call.administration.users.permissions(call.actor, **call.names)
    return Listing(rows, sort=("vhost", "user"), is_paged=False)


@ROUTES.get("permissions/{vhost}/{user}")
def get_permissions(call: Call) -> Answer:
    """Permissions of a user in a vhost."""
    vhost, user = call.names["vhost"], call.names["user"]
    if not call.broker.users.may_access(user, vhost):
        raise not_found()
    row = call.broker.users.permissions(user, vhost)
    return Item({"user": user, "vhost": vhost} | {kind: getattr(row, kind) for kind in KINDS})


@ROUTES.put(
    "permissions/{vhost}/{user}",
    body=tuple(required(kind, doc="pattern of names") for kind in KINDS),
    state=recorded_state.permissions,
)
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


@ROUTES.delete("permissions/{vhost}/{user}", state=recorded_state.permissions)
def delete_permissions(call: Call) -> None:
    """Remove the access of a user to a vhost."""
    vhost, user = call.names["vhost"], call.names["user"]
    if not call.broker.users.may_access(user, vhost):
        raise not_found()
    call.administration.users.clear_permissions(call.actor, vhost, user)


# -- topic permissions ------------------------------------------------------------------------------------------------


@ROUTES.list("topic-permissions")
@ROUTES.list("users/{user}/topic-permissions", doc="Topic permissions of a user.")
@ROUTES.list("vhosts/{vhost}/topic-permissions", doc="Topic permissions in a vhost.", group="vhosts")
def list_topic_permissions(call: Call) -> Answer:
    """All topic permissions."""
    rows = call.administration.users.topic_permissions(call.actor, **call.names)
    return Listing(rows, sort=("vhost", "user"), is_paged=False)


@ROUTES.list("topic-permissions/{vhost}/{user}", "topic-permissions/{vhost}/{user}/{exchange}")
def get_topic_permissions(call: Call) -> Answer:
    """Topic permissions of a user in a vhost."""
    rows = list(_topic_rows(call))
    if not rows:
        raise not_found()
    return Listing(rows, sort=("exchange",), is_paged=False)


@ROUTES.put(
    "topic-permissions/{vhost}/{user}",
    "topic-permissions/{vhost}/{user}/{exchange}",
    body=(
        required("exchange", doc="a topic exchange, which need not exist"),
        required("write", doc="pattern of the routing keys of publishes"),
        required("read", doc="pattern of the routing keys of bindings"),
    ),
    state=recorded_state.topic_permissions,
)
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


@ROUTES.delete(
    "topic-permissions/{vhost}/{user}",
    "topic-permissions/{vhost}/{user}/{exchange}",
    state=recorded_state.topic_permissions,
)
def delete_topic_permissions(call: Call) -> None:
    """Remove topic permissions."""
    if not any(_topic_rows(call)):
        raise not_found()
    call.administration.users.clear_topic_permissions(
        call.actor, call.names["vhost"], call.names["user"], call.names.get("exchange")
    )


def _topic_rows(call: Call) -> Iterator[dict[str, Any]]:
    vhost, user, wanted = call.names["vhost"], call.names["user"], call.names.get("exchange")
    for exchange, row in call.broker.users.topic_permissions(user, vhost).rows.items():
        if wanted in {None, exchange}:
            yield {"user": user, "vhost": vhost, "exchange": exchange, "write": row.write, "read": row.read}


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
