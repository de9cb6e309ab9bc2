"""Operations on the running node: `/api/leveret/...`. RabbitMQ has most of them in its command only.

Among them are backups, for the operator on the host only, and the nodes of a broker whose log is replicated.
"""

import logging
import math
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from leveret.broker.administration.access import (
    BadRequestError,
    ForbiddenError,
    Right,
    refusals,
)
from leveret.broker.administration.definitions_document import json_text
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.http.call import Answer, Call, Callback, Done, Item, Steps
from leveret.broker.http.errors import bad_request, not_found
from leveret.broker.http.route import Key, Routes, required
from leveret.broker.process.logs import CATEGORIES, KEPT, LEVELS, LOGGER_NAME, RECENT
from leveret.broker.process.resource_alarms import memory_limit, total_memory
from leveret.storage.errors import StorageError

ROUTES = Routes("node", needs=Right.ADMINISTRATOR)
BACKUP_ROUTES = Routes("backup", needs=Right.ADMINISTRATOR)
CLUSTER_ROUTES = Routes("cluster", needs=Right.ADMINISTRATOR)
_LIMIT = (
    Key("relative", "number", doc="fraction of the total memory"),
    Key("absolute", "integer", doc="bytes, instead"),
)
_LOOPBACK = "127.0.0.1"


@ROUTES.get("leveret/resources", needs=Right.MONITORING)
def get_resources(call: Call) -> Answer:
    """Memory and disk: in use, limits, alarms."""
    memory, disk = call.broker.resource_monitor.memory, call.broker.resource_monitor.disk
    return Item({
        "node": call.broker.clients.node_name,
        "pid": os.getpid(),
        "os": "Windows" if sys.platform == "win32" else os.uname().sysname,
        "memory": {
            "used": memory.used,
            "limit": memory.limit,
            "total": total_memory(),
            "alarm": memory.raised,
        },
        "disk": {"free": disk.free, "limit": disk.limit, "alarm": disk.raised, "full": disk.full},
    })  # fmt: skip


@ROUTES.put("leveret/memory-watermark", body=_LIMIT, statuses=(200,))
def put_memory_watermark(call: Call) -> Answer:
    """Set the limit of the memory alarm until the next start."""
    monitor = call.broker.resource_monitor
    monitor.memory.limit = _octets(call.body(), memory_limit(None, 1.0), most=1)
    monitor.check_memory(0.0)
    return Item({"limit": monitor.memory.limit})


@ROUTES.put(
    "leveret/disk-free-limit",
    body=(Key("mem_relative", "number", doc="multiple of the total memory"), _LIMIT[1]),
    statuses=(200,),
)
def put_disk_free_limit(call: Call) -> Answer:
    """Set the limit of the disk alarm until the next start."""
    monitor = call.broker.resource_monitor
    given = {"relative" if key == "mem_relative" else key: value for key, value in call.body().items()}
    monitor.disk.limit = _octets(given, total_memory(), most=100)
    monitor.check_disk()
    return Item({"limit": monitor.disk.limit})


def _octets(limit: Mapping[str, Any], total: int, *, most: float) -> int:
    """Return a limit in bytes, given as `relative` to a total, or as `absolute`."""
    for key, unit, highest in (("relative", total, most), ("absolute", 1, math.inf)):
        value = limit.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= highest:
            return int(value * unit)
    raise BadRequestError(f"the limit must be a fraction from 0 to {most} ('relative') or bytes ('absolute')")


@ROUTES.put("leveret/log-level", body=(required("level"), Key("category", doc="one category only")))
def put_log_level(call: Call) -> None:
    """Set the minimum level of what is logged until the next start."""
    body = call.body("level")
    level, category = body.text("level"), body.text("category")
    if level not in LEVELS:
        raise BadRequestError(f"level must be one of {', '.join(LEVELS)}")
    name = LOGGER_NAME
    if category and category != "default":
        if category not in CATEGORIES:
            raise BadRequestError(f"category must be default or one of {', '.join(CATEGORIES)}")
        name = f"{LOGGER_NAME}.{category}"
    logging.getLogger(name).setLevel(LEVELS[level])


@ROUTES.post("leveret/rotate-logs")
def rotate_logs(call: Call) -> None:
    """Reopen the log files."""
    _process(call).reopen_logs()


@ROUTES.post("leveret/stop")
def stop(call: Call) -> None:
    """Begin the shutdown."""
    _process(call).stop()


def _process(call: Call) -> Any:
    process = call.broker.process
    if process is None:
        raise BadRequestError("this broker is part of an application, which alone can do that")
    return process


@ROUTES.post("leveret/reload-tls")
def reload_tls(call: Call) -> Steps:
    """Read the certificates of TLS listeners again."""
    problems = yield Callback(call.broker.gate.certificates.reload)
    if problems:
        raise bad_request(f"The old certificates stay in use: {'; '.join(problems)}")
    rows = call.broker.gate.certificates.facts
    return Item({
        "certificates": [
            {"key": key, "subject": each.subject, "issuer": each.issuer, "validity": each.validity}
            for key, each in rows.items()
        ]
    })  # fmt: skip


@ROUTES.post("leveret/clear-auth-backend-cache")
def clear_auth_backend_cache(call: Call) -> None:
    """Forget what authentication backends have decided, so that they are asked again."""
    call.broker.forget_decisions()


@ROUTES.post("leveret/authenticate", body=(required("username"), required("password")))
def authenticate(call: Call) -> Steps:
    """Check the password of a user."""
    body = call.body("username", "password")
    name, password = body.text("username"), Password(body.text("password"))
    backends, reason = call.broker.backends, ""
    if backends is not None:
        verdict = yield Callback(partial(backends.log_in, name, password, _LOOPBACK))
        reason = str(verdict) if isinstance(verdict, LoginRefusedError) else ""
    else:
        try:
            call.broker.users.authenticate(name, password, _LOOPBACK)
        except LoginRefusedError as error:
            reason = str(error)
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
    vhost = body.text("vhost") or None
    reason = body.text("reason", "closed by an administrator")
    limit = body.number("limit", 0)
    if limit < 0:
        raise bad_request("'limit' must not be negative")
    closed = call.administration.listings.close_connections(
        call.actor, reason, vhost, user=body.text("user") or None, most=limit or None
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
    level, count = query.text("level", "info"), query.number("count", _COUNT)
    after = query.number_or_none("after")
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
    exported = call.broker.config.export.dir
    yield from ()
    shown = None if exported is None else json_text(str(exported))
    return Item({"url": call.broker.config.management.reports_url or None, "export": shown})


# -- backups ----------------------------------------------------------------------------------------------------------
# Whoever starts a backup has to ask for its progress, or it is cancelled: a command that is killed leaves none behind.


FORBIDDEN = "Only the operator on the host of the broker may do this"


@BACKUP_ROUTES.get("leveret/backup")
def get_backup(call: Call) -> Answer:
    """The progress or the result of the latest backup."""
    backup = _latest(call)
    backup.attend()
    return _progress(backup)


@BACKUP_ROUTES.post(
    "leveret/backup",
    body=(
        required("path", doc="absolute path of the new directory"),
        Key("rate", "integer", doc="maximum bytes per second; 0 for no limit"),
    ),
)
def start_backup(call: Call) -> Answer:
    """Start a backup of the data into a new directory, on the host of the broker."""
    backups = _backups(call)
    body = call.body("path")
    rate = body.number("rate", 0)
    if rate < 0:
        raise BadRequestError("'rate' must not be negative")
    with refusals(StorageError, BadRequestError):
        return _progress(backups.start(Path(body.text("path")), rate))


@BACKUP_ROUTES.delete(
    "leveret/backup", body=(Key("path", doc="cancel it only if it is written there"),), statuses=(200,)
)
def cancel_backup(call: Call) -> Answer:
    """Cancel the running backup."""
    backup = _latest(call)
    path = str(backup.dest)
    if call.body().text("path", path) != path:
        raise not_found()
    backup.cancel("cancelled")
    return _progress(backup)


def _backups(call: Call) -> Any:
    if call.actor is not None:
        raise ForbiddenError(FORBIDDEN)
    if call.broker.backups is None:
        raise BadRequestError("the broker has no data directory")
    return call.broker.backups


def _latest(call: Call) -> Any:
    backup = _backups(call).latest
    if backup is None:
        raise not_found()
    return backup


def _progress(backup: Any) -> Item:
    return Item({
        "path": str(backup.dest),
        "state": str(backup.state),
        "copied": backup.octets,
        "total": backup.total,
        "seconds": round(backup.seconds, 3),
        "files": backup.files,
        "error": backup.error,
    })  # fmt: skip


# -- the nodes of a broker whose log is replicated --------------------------------------------------------------------


@CLUSTER_ROUTES.get("leveret/cluster", needs=Right.MONITORING)
def get_cluster(call: Call) -> Answer:
    """Role and lag of this node, who leads, the members and when they were seen, and problems; also on a
    node that waits. With `vhosts.directory` all logs, their leaders and virtual hosts.
    """
    found = call.broker.cluster or call.broker.logs
    return Item({"replicated": False} if found is None else found.described())


@CLUSTER_ROUTES.post("leveret/cluster/balance", is_stored=False)
def balance(call: Call) -> Steps:
    """Have each node lead its share of the logs of `vhosts.directory`; returns the hand-overs that follow."""
    if (logs := call.broker.logs) is None:
        raise BadRequestError("vhosts.directory is not set")
    found = yield Callback(logs.balance)
    _refuse(found if isinstance(found, str) else "")
    return Item({"handovers": found})


@CLUSTER_ROUTES.post(
    "leveret/cluster/transfer",
    body=(Key("name", doc="the node; any by default"),),
    statuses=(202,),
    is_stored=False,
)
def transfer(call: Call) -> Answer:
    """Have another node lead; this one closes its clients and waits."""
    successor = call.body().text("name")
    cluster = _cluster(call)
    _refuse(cluster.transfer_problem(successor))
    cluster.transfer(successor)
    return Done(202)


@CLUSTER_ROUTES.post(
    "leveret/cluster/move",
    body=(Key("vhost", doc="the virtual host"), Key("log", doc="the name of a log that does not exist yet")),
    statuses=(202,),
    is_stored=False,
)
def move(call: Call) -> Steps:
    """Move a virtual host to a new log of the database; this node closes its clients, and another one may lead."""
    cluster, body = _cluster(call), call.body()
    log, name = body.text("log"), body.text("vhost")
    if (vhost := call.broker.vhosts.get(name)) is None:
        raise not_found()
    _refuse((yield Callback(partial(cluster.look_for_log, log))))
    cluster.move(vhost.record.vhost_id, name, log)
    return Done(202)


@CLUSTER_ROUTES.delete("leveret/cluster/members/{name}", is_stored=False)
def forget(call: Call, name: str) -> Steps:
    """Forget a node that is down for good."""
    cluster = _cluster(call)
    _refuse(cluster.forget_problem(name))
    yield Callback(partial(cluster.forget, name))
    return Done()


@CLUSTER_ROUTES.post("leveret/cluster/accept-log", is_stored=False)
def accept_log(call: Call) -> None:
    """Go on with a log that is shorter than the copies of all nodes; drops all later entries."""
    cluster = _cluster(call)
    _refuse(cluster.acceptance_problem())
    cluster.accept_log()


def _cluster(call: Call) -> Any:
    cluster = call.broker.cluster
    if cluster is None:
        raise BadRequestError("this broker is one node: replication.url is not set")
    return cluster


def _refuse(problem: str) -> None:
    if problem:
        raise BadRequestError(problem)
