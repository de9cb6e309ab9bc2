"""Operations on the running node: `/api/leveret/...`. RabbitMQ has most of them in its command only."""

from functools import partial

from leveret.broker.administration.access import Right, authorize
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.administration.node import LOOPBACK
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.http.call import Answer, Call, Callback, Item, Steps, number, text
from leveret.broker.http.errors import bad_request
from leveret.broker.http.route import Key, Routes, required
from leveret.broker.process.logs import LEVELS
from leveret.broker.process.recent_log import KEPT, RECENT

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


@ROUTES.put("leveret/log-level", body=(required("level"), Key("category", doc="one category only")))
def put_log_level(call: Call) -> None:
    """Set the minimum level of what is logged until the next start."""
    body = call.body("level")
    call.administration.node.set_log_level(call.actor, text(body, "level"), text(body, "category"))


@ROUTES.post("leveret/rotate-logs")
def rotate_logs(call: Call) -> None:
    """Reopen the log files."""
    call.administration.node.rotate_logs(call.actor)


@ROUTES.post("leveret/reload-tls")
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
def clear_auth_backend_cache(call: Call) -> None:
    """Forget what authentication backends have decided, so that they are asked again."""
    call.administration.node.forget_decisions(call.actor)


@ROUTES.post("leveret/stop")
def stop(call: Call) -> None:
    """Begin the shutdown."""
    call.administration.node.stop(call.actor)


@ROUTES.post("leveret/authenticate", body=(required("username"), required("password")))
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


# -- the log and the reports ------------------------------------------------------------------------------------------


_LEVELS = tuple(name for name, value in LEVELS.items() if LEVELS["info"] <= value < LEVELS["none"])
_COUNT = 200


@ROUTES.get(
    "leveret/logs",
    doc=f"The last `lines` of the log of the process, the oldest first, of the {KEPT:,} that are in memory: "
    "those that `log.*.level` lets through, from info on. `last` is the number of the newest line, to go "
    "on after; `missed` how many of the lines after `after` are no longer there.",
    needs=Right.MONITORING,
    query=(
        Key("after", "integer", doc="`last` of the answer before: only lines since then"),
        Key("level", doc=f"the least level: {', '.join(f'`{name}`' for name in _LEVELS)}"),
        Key("count", "integer", doc=f"maximum number of lines, 1 to {KEPT}; {_COUNT} by default"),
    ),
)
def get_logs(call: Call) -> Answer:
    """Return the last lines."""
    query = call.query
    level, count = text(query, "level", "info"), number(query, "count", _COUNT)
    after = number(query, "after", 0) if "after" in query else None
    if level not in _LEVELS:
        raise bad_request(f"level must be one of {', '.join(_LEVELS)}")
    if not 1 <= count <= KEPT:
        raise bad_request(f"count must be from 1 to {KEPT}")
    if after is not None and after < 0:
        raise bad_request("after must not be negative")
    found = RECENT.find(after=after, level=level, count=count)
    lines = [
        {"number": line.number, "time": line.time, "level": line.level, "category": line.category,
         "message": json_text(line.text)}
        for line in found.lines
    ]  # fmt: skip
    return Item({"lines": lines, "last": found.last, "missed": found.missed})


@ROUTES.get("leveret/reports", needs=Right.MONITORING)
def get_reports(call: Call) -> Steps:
    """The `url` of the reports of the analysis (`management.reports_url`), and the directory of the
    `export` that they are made from; null for what is not configured.
    """
    exported = call.broker.export_dir
    yield from ()
    return Item(
        {
            "url": call.broker.reports_url or None,
            "export": None if exported is None else json_text(str(exported)),
        }
    )
