"""Operations on the running node, for `leveret ctl`: `/api/leveret/...`. RabbitMQ has them in its command only."""

from functools import partial

from leveret.broker.administration.access import Right, authorize
from leveret.broker.administration.node import LOOPBACK
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.http.call import Answer, Call, Callback, Done, Item, Steps, number, text
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Operation, Route


def get_resources(call: Call) -> Answer:
    """Return memory and disk."""
    return Item(call.administration.node.resources(call.actor))


def put_memory_watermark(call: Call) -> Answer:
    """Set the limit of the memory alarm."""
    return Item({"limit": call.administration.node.set_memory_watermark(call.actor, call.body())})


def put_disk_free_limit(call: Call) -> Answer:
    """Set the limit of the disk alarm."""
    return Item({"limit": call.administration.node.set_disk_free_limit(call.actor, call.body())})


def put_log_level(call: Call) -> Answer:
    """Set the log level."""
    body = call.body("level")
    call.administration.node.set_log_level(call.actor, text(body, "level"), text(body, "category"))
    return Done()


def rotate_logs(call: Call) -> Answer:
    """Reopen the log files."""
    call.administration.node.rotate_logs(call.actor)
    return Done()


def reload_tls(call: Call) -> Steps:
    """Read the certificates of listeners again."""
    problems = yield Callback(partial(call.administration.node.reload_tls, call.actor))
    if problems:
        raise bad_request(f"The old certificates stay in use: {'; '.join(problems)}")
    rows = call.broker.tls_certificates
    return Item({
        "certificates": [
            {"key": key, "subject": each.subject, "issuer": each.issuer, "validity": each.validity}
            for key, each in rows.items()
        ]
    })  # fmt: skip


def clear_auth_backend_cache(call: Call) -> Answer:
    """Forget what authentication backends have decided."""
    call.administration.node.forget_decisions(call.actor)
    return Done()


def stop(call: Call) -> Answer:
    """Begin the shutdown."""
    call.administration.node.stop(call.actor)
    return Done()


def authenticate(call: Call) -> Steps:
    """Check a password."""
    body = call.body("username", "password")
    name, password = text(body, "username"), text(body, "password")
    backends = call.broker.backends
    if backends is None:
        reason = call.administration.node.authenticate(call.actor, name, password)
    else:
        authorize(call.broker.users, call.actor, Right.ADMINISTRATOR)
        verdict = yield Callback(partial(backends.log_in, name, Password(password), LOOPBACK))
        reason = str(verdict) if isinstance(verdict, LoginRefusedError) else ""
    return Item({"authenticated": not reason, "reason": reason})


def close_connections(call: Call) -> Answer:
    """Close connections."""
    body = call.body()
    vhost = text(body, "vhost") or None
    reason = text(body, "reason", "closed by an administrator")
    limit = number(body, "limit", 0)
    if limit < 0:
        raise bad_request("'limit' must not be negative")
    closed = call.administration.listings.close_connections(
        call.actor, reason, vhost, user=text(body, "user") or None, most=limit or None
    )
    return Item({"closed": closed})


_GROUP = "node"
_ADMINISTRATOR = Right.ADMINISTRATOR
_LIMIT = (
    Key("relative", "number", doc="fraction of the total memory"),
    Key("absolute", "integer", doc="bytes, instead"),
)
ROUTES = (
    Route(
        "leveret/resources",
        _GROUP,
        {"GET": Operation(get_resources, "Memory and disk: in use, limits, alarms.", Right.MONITORING)},
    ),
    Route(
        "leveret/memory-watermark",
        _GROUP,
        {
            "PUT": Operation(
                put_memory_watermark,
                "Set the limit of the memory alarm until the next start.",
                _ADMINISTRATOR,
                body=_LIMIT,
            )
        },
    ),
    Route(
        "leveret/disk-free-limit",
        _GROUP,
        {
            "PUT": Operation(
                put_disk_free_limit,
                "Set the limit of the disk alarm until the next start.",
                _ADMINISTRATOR,
                body=(Key("mem_relative", "number", doc="multiple of the total memory"), _LIMIT[1]),
            )
        },
    ),
    Route(
        "leveret/log-level",
        _GROUP,
        {
            "PUT": Operation(
                put_log_level,
                "Set the minimum level of what is logged until the next start.",
                _ADMINISTRATOR,
                body=(Key("level", is_required=True), Key("category", doc="one category only")),
                statuses=(204,),
            )
        },
    ),
    Route(
        "leveret/rotate-logs",
        _GROUP,
        {"POST": Operation(rotate_logs, "Reopen the log files.", _ADMINISTRATOR, statuses=(204,))},
    ),
    Route(
        "leveret/reload-tls",
        _GROUP,
        {"POST": Operation(reload_tls, "Read the certificates of TLS listeners again.", _ADMINISTRATOR)},
    ),
    Route(
        "leveret/clear-auth-backend-cache",
        _GROUP,
        {
            "POST": Operation(
                clear_auth_backend_cache,
                "Forget what authentication backends have decided, so that they are asked again.",
                _ADMINISTRATOR,
                statuses=(204,),
            )
        },
    ),
    Route(
        "leveret/stop",
        _GROUP,
        {"POST": Operation(stop, "Begin the shutdown.", _ADMINISTRATOR, statuses=(204,))},
    ),
    Route(
        "leveret/authenticate",
        _GROUP,
        {
            "POST": Operation(
                authenticate,
                "Check the password of a user.",
                _ADMINISTRATOR,
                body=(Key("username", is_required=True), Key("password", is_required=True)),
            )
        },
    ),
    Route(
        "leveret/close-connections",
        _GROUP,
        {
            "POST": Operation(
                close_connections,
                "Close connections: all, or those of a vhost or a user. Without the tag administrator only one's own.",
                body=(
                    Key("vhost"),
                    Key("user"),
                    Key("reason"),
                    Key("limit", "integer", doc="at most so many; 0 for all"),
                ),
            )
        },
    ),
)
