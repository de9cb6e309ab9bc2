"""Commands that act on the running broker: connections, limits, logs, definitions, its end."""

import sys
from pathlib import Path
from typing import Any

import click

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import IMPORT_SECONDS, ApiError
from leveret.broker.cli.ctl.command import argument, command, option
from leveret.broker.cli.ctl.errors import CtlError, UsageError
from leveret.broker.cli.ctl.session import Session
from leveret.broker.process.named_files import MOST_DEFINITIONS, read_named
from leveret.broker.process.private_files import write_private

GROUP = "Operations"
CONFIGURATION = "Configuration and environment"
DEFINITIONS = "Definitions"
_NOT_FOUND = 404


# -- connections ------------------------------------------------------------------------------------------------


@command("close_connection", argument("connection"), argument("explanation"), group=GROUP)
def close_connection(session: Session, connection: str, explanation: str) -> None:
    """Close a connection, given by its name (the column `name` or `pid` of list_connections)."""
    session.announce(f"Closing connection {connection}, reason: {explanation}...")
    try:
        session.api.delete("connections", connection, headers={"X-Reason": explanation})
    except ApiError as error:
        if error.status == _NOT_FOUND:
            raise CtlError(f"Error:\nthere is no connection {connection}", exit_codes.UNAVAILABLE) from None
        raise


@command(
    "close_all_connections",
    argument("explanation"),
    option("--global", "everywhere", is_flag=True, help="In all virtual hosts."),
    option("--limit", type=click.IntRange(0), default=0, help="At most so many; 0 for all."),
    option("--per-connection-delay", type=int, help="Ignored: they are closed at once."),
    group=GROUP,
)
def close_all_connections(
    session: Session, explanation: str, *, everywhere: bool, limit: int, **ignored: Any
) -> None:
    """Close all connections to a virtual host, or with --global all, or some of them."""
    del ignored
    where = f"to node {session.node} (across all vhosts)" if everywhere else f"in vhost {session.vhost}"
    session.announce(f"Closing {limit or 'all'} connections {where}, reason: {explanation}...")
    body = {"reason": explanation, "limit": limit, **({} if everywhere else {"vhost": session.vhost})}
    closed = session.api.post("leveret", "close-connections", body=body)["closed"]
    session.say(f"Closed {closed} connections")


@command("close_all_user_connections", argument("username"), argument("explanation"), group=GROUP)
def close_all_user_connections(session: Session, username: str, explanation: str) -> None:
    """Close all connections of a user."""
    session.announce(f"Closing connections of user {username}, reason: {explanation}...")
    session.api.post("leveret", "close-connections", body={"reason": explanation, "user": username})


# -- limits and logs --------------------------------------------------------------------------------------------


def octets(text: str) -> int:
    """Return a size in bytes, which may have a unit as in the configuration file.

    Raises:
        UsageError: it is none.

    """
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
        raise UsageError(
            f"Bad argument: The {what} should be a fraction between 0.0 and {most}", exit_codes.DATA
        )
    return value


@command(
    "set_vm_memory_high_watermark",
    argument("fraction"),
    argument("value", optional=True),
    group=CONFIGURATION,
)
def set_vm_memory_high_watermark(session: Session, fraction: str, value: str | None) -> None:
    """Set the limit of the memory alarm: a fraction of the memory, or `absolute` and a size, until the next start."""
    if fraction == "absolute":
        if value is None:
            raise UsageError("not enough arguments.", exit_codes.USAGE)
        body: dict[str, float] = {"absolute": octets(value)}
        shown = f"{value} bytes"
    else:
        body, shown = {"relative": _fraction(fraction, 1.0, "threshold")}, fraction
    session.announce(f"Setting memory threshold on {session.node} to {shown} ...")
    session.api.put("leveret", "memory-watermark", body=body)


@command("set_disk_free_limit", argument("limit"), argument("fraction", optional=True), group=CONFIGURATION)
def set_disk_free_limit(session: Session, limit: str, fraction: str | None) -> None:
    """Set the limit of the disk alarm: a size, or `mem_relative` and a multiple of the memory, until the next start."""
    if limit == "mem_relative":
        if fraction is None:
            raise UsageError("not enough arguments.", exit_codes.USAGE)
        body: dict[str, float] = {"mem_relative": _fraction(fraction, 100.0, "limit")}
        shown = f"{fraction} times the total RAM"
    else:
        body, shown = {"absolute": octets(limit)}, f"{limit} bytes"
    session.announce(f"Setting disk free limit on {session.node} to {shown} ...")
    session.api.put("leveret", "disk-free-limit", body=body)


@command("set_log_level", argument("log_level"), argument("category", optional=True), group=CONFIGURATION)
def set_log_level(session: Session, log_level: str, category: str | None) -> None:
    """Set the minimum level of what is logged, until the next start."""
    session.announce(f'Setting log level to "{log_level}" ...')
    session.api.put("leveret", "log-level", body={"level": log_level, "category": category or ""})


@command("rotate_logs", group=GROUP)
def rotate_logs(session: Session) -> None:
    """Reopen the log files, for example after they were moved."""
    session.announce(f"Rotating logs for node {session.node} ...")
    session.api.post("leveret", "rotate-logs")


@command("reload_tls", group=GROUP)
def reload_tls(session: Session) -> None:
    """Read the certificates of TLS listeners again; connections that are there stay, and use the old ones."""
    session.announce(f"Reloading TLS certificates of node {session.node} ...")
    found = session.api.post("leveret", "reload-tls")["certificates"]
    session.show_rows(found, ("key", "subject", "issuer", "validity"))


@command("clear_auth_backend_cache", group=GROUP)
def clear_auth_backend_cache(session: Session) -> None:
    """Forget what authentication backends have decided, in the cache and in connections: they are asked again."""
    session.announce("Clearing the cache of authentication backends ...")
    session.api.post("leveret", "clear-auth-backend-cache")


@command("set_cluster_name", argument("name"), group=CONFIGURATION)
def set_cluster_name(session: Session, name: str) -> None:
    """Set the name that the broker gives its cluster."""
    session.announce(f"Setting cluster name to {name} ...")
    session.api.put("cluster-name", body={"name": name})


@command("stop", argument("pidfile", optional=True), group="Nodes")
def stop(session: Session, pidfile: str | None) -> None:
    """Stop the broker, as SIGTERM does: connections are closed, everything is written to disk."""
    del pidfile
    session.announce(f"Stopping and halting node {session.node} ...")
    session.api.post("leveret", "stop")


@command("shutdown", option("--no-wait", is_flag=True, help="Ignored."), group="Nodes")
def shutdown(session: Session, *, no_wait: bool) -> None:
    """Stop the broker, as `stop`."""
    del no_wait
    session.announce(f"Shutting down RabbitMQ node {session.node} ...")
    session.api.post("leveret", "stop")


# -- definitions ------------------------------------------------------------------------------------------------


@command(
    "export_definitions",
    argument("file"),
    option("--format", "kind", default="json", help="json"),
    group=DEFINITIONS,
)
def export_definitions(session: Session, file: str, kind: str) -> None:
    """Write the definitions as JSON to a file, or with - to the standard output."""
    import msgspec  # noqa: PLC0415

    if kind.lower() != "json":
        raise UsageError("only JSON is supported", exit_codes.USAGE)
    path = Path(file)
    if file != "-":
        if not path.parent.is_dir():
            raise UsageError(f"Bad argument: Directory {path.parent} does not exist", exit_codes.DATA)
        session.announce(f'Exporting definitions in JSON to a file at "{file}" ...')
    found = session.api.get("definitions")
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    if file == "-":
        session.show(text)
        return
    try:
        write_private(path, f"{text}\n".encode())  # contains password hashes
    except OSError as error:
        raise CtlError(f"Error: cannot write {file}: {error.strerror}", exit_codes.CANNOT_CREATE) from None


@command(
    "import_definitions",
    argument("file"),
    option("--format", "kind", default="json", help="json"),
    option("--skip-if-unchanged", is_flag=True, help="Ignored: unchanged definitions change nothing."),
    option(
        "--dry-run", is_flag=True, help="Change nothing, and list what would be added, changed and refused."
    ),
    group=DEFINITIONS,
)
def import_definitions(
    session: Session, file: str, kind: str, *, skip_if_unchanged: bool, dry_run: bool
) -> None:
    """Import definitions from a JSON file, or with - from the standard input; all of them or, if one is bad, none.

    A dry run ends with 0 if nothing would change, with 1 if something would, and with 65 if it cannot be imported.
    """
    # Other commands need not wait for it.
    from leveret.broker.cli.ctl.import_report import dry_run_exit_code, report  # noqa: PLC0415

    del skip_if_unchanged
    if kind.lower() != "json":
        raise UsageError("only JSON is supported", exit_codes.USAGE)
    if file == "-":
        session.announce("Importing definitions in JSON from standard input ...")
        content = sys.stdin.buffer.read()
    else:
        if not Path(file).exists():
            raise UsageError(f"Bad argument: File {file} does not exist", exit_codes.DATA)
        session.announce(f'Importing definitions in JSON from a file at "{file}" ...')
        try:
            content = read_named(file, MOST_DEFINITIONS, is_typed=True)
        except OSError as error:
            raise CtlError(f"Error: cannot read {file}: {error.strerror}", exit_codes.NO_INPUT) from None
    if session.given_seconds is None:
        session.api.allow(IMPORT_SECONDS)
    query = {"dry_run": "true"} if dry_run else None
    try:
        answer = session.api.request("POST", ("leveret", "definitions"), content, query=query)
    except ApiError as error:
        if error.reason == "failed_to_parse_json":
            text = "Error:\nFailed to deserialise input (format: JSON)"
            raise CtlError(text, exit_codes.DATA) from None
        raise
    for line in report(answer, session.formatter):
        (session.show if dry_run or session.is_json else session.announce)(line)
    if dry_run:
        sys.exit(dry_run_exit_code(answer))
