"""Operations on the running node, for `leveret ctl`: `/api/leveret/...`. RabbitMQ has them in its command only."""

from functools import partial

from leveret.broker.administration.access import Right, authorize
from leveret.broker.administration.node import LOOPBACK
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.http.call import Answer, Call, Callback, Done, Item, Steps, number, text
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes, required

ROUTES = Routes("node", needs=Right.ADMINISTRATOR)
_LIMIT = (
    Key("relative", "number", doc="fraction of the total memory"),
    Key("absolute", "integer", doc="bytes, instead"),
)


@ROUTES.get("leveret/resources", needs=Right.MONITORING)
def get_resources(call: Call) -> Answer:
    """Memory and disk: in use, limits, alarms."""
    return Item(call.administration.node.resources(call.actor))


@ROUTES.put("leveret/memory-watermark", body=_LIMIT, statuses=(200,))
def put_memory_watermark(call: Call) -> Answer:
    """Set the limit of the memory alarm until the next start."""
    return Item({"limit": call.administration.node.set_memory_watermark(call.actor, call.body())})


@ROUTES.put(
    "leveret/disk-free-limit",
    body=(Key("mem_relative", "number", doc="multiple of the total memory"), _LIMIT[1]),
    statuses=(200,),
)
def put_disk_free_limit(call: Call) -> Answer:
    """Set the limit of the disk alarm until the next start."""
    return Item({"limit": call.administration.node.set_disk_free_limit(call.actor, call.body())})


@ROUTES.put(
    "leveret/log-level", body=(required("level"), Key("category", doc="one category only")), statuses=(204,)
)
def put_log_level(call: Call) -> Answer:
    """Set the minimum level of what is logged until the next start."""
    body = call.body("level")
    call.administration.node.set_log_level(call.actor, text(body, "level"), text(body, "category"))
    return Done()


@ROUTES.post("leveret/rotate-logs")
def rotate_logs(call: Call) -> Answer:
    """Reopen the log files."""
    call.administration.node.rotate_logs(call.actor)
    return Done()


@ROUTES.post("leveret/reload-tls", statuses=(200,))
def reload_tls(call: Call) -> Steps:
    """Read the certificates of TLS listeners again."""
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


@ROUTES.post("leveret/clear-auth-backend-cache")
def clear_auth_backend_cache(call: Call) -> Answer:
    """Forget what authentication backends have decided, so that they are asked again."""
    call.administration.node.forget_decisions(call.actor)
    return Done()


@ROUTES.post("leveret/stop")
def stop(call: Call) -> Answer:
    """Begin the shutdown."""
    call.administration.node.stop(call.actor)
    return Done()


@ROUTES.post("leveret/authenticate", body=(required("username"), required("password")), statuses=(200,))
def authenticate(call: Call) -> Steps:
    """Check the password of a user."""
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


@ROUTES.post(
    "leveret/close-connections",
    needs=Right.MANAGEMENT,
    body=(
        Key("vhost"),
        Key("user"),
        Key("reason"),
        Key("limit", "integer", doc="at most so many; 0 for all"),
    ),
    statuses=(200,),
)
def close_connections(call: Call) -> Answer:
    """Close connections: all, or those of a vhost or a user. Without the tag administrator only one's own."""
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
