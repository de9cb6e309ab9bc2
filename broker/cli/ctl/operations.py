"""Commands that act on the running broker: connections, limits, logs, its end."""

from typing import Any

import click

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import NODES, Session, command, flag, option
from leveret.broker.cli.ctl.output import UsageError, refused

OPERATIONS = "Operations"
CONFIGURATION = "Configuration and environment"


# -- connections ------------------------------------------------------------------------------------------------


@command(OPERATIONS, "'127.0.0.1:40312 -> 127.0.0.1:5672' 'moved to another broker'")
def close_connection(session: Session, connection: str, explanation: str) -> None:
    """Close a connection, given by its name (the column `name` or `pid` of list_connections)."""
    session.announce(f"Closing connection {connection}, reason: {explanation}...")
    missing = refused(f"there is no connection {connection}")
    session.api.delete("connections", connection, missing=missing, headers={"X-Reason": explanation})


@command(
    OPERATIONS,
    "-p shop 'maintenance'",
    flag("--global", "everywhere", text="In all virtual hosts."),
    option("--limit", type=click.IntRange(0), default=0, help="At most so many; 0 for all."),
    option("--per-connection-delay", type=int, help="Ignored: they are closed at once."),
)
def close_all_connections(
    session: Session, explanation: str, *, everywhere: bool, limit: int, **_ignored: Any
) -> None:
    """Close all connections to a virtual host, or with --global all, or some of them."""
    where = f"to node {session.node} (across all vhosts)" if everywhere else f"in vhost {session.vhost}"
    session.announce(f"Closing {limit or 'all'} connections {where}, reason: {explanation}...")
    body = {"reason": explanation, "limit": limit, **({} if everywhere else {"vhost": session.vhost})}
    closed = session.api.post("leveret", "close-connections", body=body)["closed"]
    session.say(f"Closed {closed} connections")


@command(OPERATIONS, "ann 'password changed'")
def close_all_user_connections(session: Session, username: str, explanation: str) -> None:
    """Close all connections of a user."""
    session.announce(f"Closing connections of user {username}, reason: {explanation}...")
    session.api.post("leveret", "close-connections", body={"reason": explanation, "user": username})


# -- limits and logs --------------------------------------------------------------------------------------------


def octets(text: str) -> int:
    """Return a size in bytes, which may have a unit as in the configuration file. Raises UsageError."""
    # Only few commands need these, and all would wait for them.
    from leveret.broker.config.values import parse_amount  # noqa: PLC0415
    from leveret.broker.config_key import Key  # noqa: PLC0415

    try:
        return parse_amount(text, Key("limit", "amount", low=0))
    except ValueError:
        hint = f"{text!r} is no size, such as 1073741824 or 1GB"
        raise UsageError("Bad argument.", exit_codes.DATA, hint) from None


def _fraction(text: str, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError("Bad argument.", exit_codes.DATA, f"{text!r} is no number") from None
    if not 0 <= value <= most:
        text = f"Bad argument: The {what} should be a fraction between 0.0 and {most}"
        raise UsageError(text, exit_codes.DATA)
    return value


def _needed(value: str | None) -> str:
    if value is None:
        raise UsageError("not enough arguments.", exit_codes.USAGE)
    return value


@command(CONFIGURATION, "0.6")
def set_vm_memory_high_watermark(session: Session, fraction: str, value: str | None = None) -> None:
    """Set the limit of the memory alarm: a fraction of the memory, or `absolute` and a size, until the next start."""
    body: dict[str, float]
    if fraction == "absolute":
        body, shown = {"absolute": octets(_needed(value))}, f"{value} bytes"
    else:
        body, shown = {"relative": _fraction(fraction, 1.0, "threshold")}, fraction
    session.announce(f"Setting memory threshold on {session.node} to {shown} ...")
    session.api.put("leveret", "memory-watermark", body=body)


@command(CONFIGURATION, "2GB")
def set_disk_free_limit(session: Session, limit: str, fraction: str | None = None) -> None:
    """Set the limit of the disk alarm: a size, or `mem_relative` and a multiple of the memory, until the next start."""
    body: dict[str, float]
    if limit == "mem_relative":
        body = {"mem_relative": _fraction(_needed(fraction), 100.0, "limit")}
        shown = f"{fraction} times the total RAM"
    else:
        body, shown = {"absolute": octets(limit)}, f"{limit} bytes"
    session.announce(f"Setting disk free limit on {session.node} to {shown} ...")
    session.api.put("leveret", "disk-free-limit", body=body)


@command(CONFIGURATION, "debug connection", says='Setting log level to "{log_level}" ...')
def set_log_level(session: Session, log_level: str, category: str | None = None) -> None:
    """Set the minimum level of what is logged, until the next start."""
    session.api.put("leveret", "log-level", body={"level": log_level, "category": category or ""})


@command(CONFIGURATION, "shop-eu", says="Setting cluster name to {name} ...")
def set_cluster_name(session: Session, name: str) -> None:
    """Set the name that the broker gives its cluster."""
    session.api.put("cluster-name", body={"name": name})


@command(OPERATIONS, says="Rotating logs for node {session.node} ...")
def rotate_logs(session: Session) -> None:
    """Reopen the log files, for example after they were moved."""
    session.api.post("leveret", "rotate-logs")


@command(OPERATIONS, says="Reloading TLS certificates of node {session.node} ...")
def reload_tls(session: Session) -> None:
    """Read the certificates of TLS listeners again; connections that are there stay, and use the old ones."""
    found = session.api.post("leveret", "reload-tls")["certificates"]
    session.show_rows(found, ("key", "subject", "issuer", "validity"))


@command(OPERATIONS, says="Clearing the cache of authentication backends ...")
def clear_auth_backend_cache(session: Session) -> None:
    """Forget what authentication backends have decided, in the cache and in connections: they are asked again."""
    session.api.post("leveret", "clear-auth-backend-cache")


@command(NODES, says="Stopping and halting node {session.node} ...")
def stop(session: Session, pidfile: str | None = None) -> None:
    """Stop the broker, as SIGTERM does: connections are closed, everything is written to disk."""
    del pidfile
    session.api.post("leveret", "stop")


@command(NODES, "", flag("--no-wait", text="Ignored."), says="Shutting down RabbitMQ node {session.node} ...")
def shutdown(session: Session, **_ignored: Any) -> None:
    """Stop the broker, as `stop`."""
    session.api.post("leveret", "stop")
