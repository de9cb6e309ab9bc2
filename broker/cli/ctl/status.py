"""Commands that show the broker as a whole: status, memory, settings, feature flags; and a report of everything."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import click

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.access import list_permissions
from leveret.broker.cli.ctl.cluster import cluster_status
from leveret.broker.cli.ctl.command import CHECKS, Session, command, flag, option
from leveret.broker.cli.ctl.health import found_listeners, listener_line, raised_alarms
from leveret.broker.cli.ctl.lists import (
    CHANNEL,
    CONNECTION,
    EXCHANGE,
    QUEUE,
    list_bindings,
    list_channels,
    list_connections,
    list_exchanges,
    list_queues,
)
from leveret.broker.cli.ctl.output import CtlError
from leveret.broker.cli.ctl.policies import list_global_parameters, list_parameters, list_policies

FEATURE_FLAGS = "Feature flags"
GIGABYTE = 1e9
_UNIT = option("--unit", "-u", help="Ignored.")


def _status(session: Session) -> dict[str, Any]:
    overview = session.api.get("overview")
    resources = session.api.get("leveret", "resources")
    (node,) = session.api.get("nodes")
    totals = overview["object_totals"]
    return {
        "pid": resources["pid"],
        "os": resources.get("os", ""),
        "uptime": node["uptime"] // 1000,
        "is_under_maintenance": False,
        "rabbitmq_version": overview["rabbitmq_version"],
        "product_name": overview["product_name"],
        "product_version": overview["product_version"],
        "leveret_version": overview["leveret_version"],
        "erlang_version": overview["erlang_full_version"],
        "node": overview["node"],
        "data_directory": node.get("db_dir", ""),
        "config_files": node.get("config_files", []),
        "log_files": node.get("log_files", []),
        "alarms": raised_alarms(resources),
        "active_plugins": node.get("enabled_plugins", []),
        "memory": {"total": {"rss": node["mem_used"]}, "strategy": "rss"},
        "vm_memory_calculation_strategy": "rss",
        "vm_memory_high_watermark_limit": resources["memory"]["limit"],
        "disk_free": resources["disk"]["free"],
        "disk_free_limit": resources["disk"]["limit"],
        "file_descriptors": {
            "total_limit": node["fd_total"],
            "total_used": node["fd_used"],
            "sockets_limit": node["sockets_total"],
            "sockets_used": node["sockets_used"],
        },
        "run_queue": 0,
        "processes": {"limit": node["proc_total"], "used": node["proc_used"]},
        "totals": {
            "connection_count": totals["connections"],
            "queue_count": totals["queues"],
            "virtual_host_count": len(session.api.get("vhosts", columns="name")),
        },
        "listeners": found_listeners(session),
    }


def _sections(status: Mapping[str, Any]) -> Iterator[str]:
    def listed(items: list[str]) -> list[str]:
        return [f" * {item}" for item in items] or ["(none)"]

    files = status["file_descriptors"]
    totals = status["totals"]
    sections = {
        "Runtime": [
            f"OS PID: {status['pid']}",
            f"OS: {status['os']}",
            f"Uptime (seconds): {status['uptime']}",
            "Is under maintenance?: false",
            f"Leveret version: {status['leveret_version']}",
            f"RabbitMQ version: {status['rabbitmq_version']}",
            f"Node name: {status['node']}",
        ],
        "Data directory": [f"Node data directory: {status['data_directory']}"],
        "Config files": listed(status["config_files"]),
        "Log file(s)": listed(status["log_files"]),
        "Alarms": listed(status["alarms"]),
        "Memory": [
            f"Total memory used: {status['memory']['total']['rss'] / GIGABYTE:.4f} gb",
            f"Memory high watermark: {status['vm_memory_high_watermark_limit'] / GIGABYTE:.4f} gb",
        ],
        "File Descriptors": [
            f"Total: {files['total_used']}, limit: {files['total_limit']}",
            f"Sockets: {files['sockets_used']}, limit: {files['sockets_limit']}",
        ],
        "Free Disk Space": [
            f"Low free disk space watermark: {status['disk_free_limit'] / GIGABYTE:.4f} gb",
            f"Free disk space: {(status['disk_free'] or 0) / GIGABYTE:.4f} gb",
        ],
        "Totals": [
            f"Connection count: {totals['connection_count']}",
            f"Queue count: {totals['queue_count']}",
            f"Virtual host count: {totals['virtual_host_count']}",
        ],
        "Listeners": [listener_line(row) for row in status["listeners"]],
    }
    for at, (title, lines) in enumerate(sections.items()):
        yield from ("", title, "") if at else (title, "")
        yield from lines


@command(CHECKS, "--formatter json", _UNIT, says="Status of node {session.node} ...")
def status(session: Session, **_ignored: Any) -> None:
    """Show versions, memory, disk, file descriptors, alarms, totals and listeners."""
    found = _status(session)
    session.show_object(found, _sections(found))


@command(CHECKS, "", _UNIT, says="Reporting memory breakdown on node {session.node}...")
def memory_breakdown(session: Session, **_ignored: Any) -> None:
    """Show what the memory is used for."""
    found = session.api.get("nodes", session.node, "memory")["memory"]
    parts = {name: value for name, value in found.items() if isinstance(value, int)}
    whole = max(1, sum(parts.values()))
    lines = (
        f"{name}: {value / GIGABYTE:.4f} gb ({100 * value / whole:.2f}%)"
        for name, value in sorted(parts.items(), key=lambda each: -each[1])
    )
    session.show_object(parts, lines)


@command(CHECKS, says="Application environment of node {session.node} ...")
def environment(session: Session) -> None:
    """Show the settings in effect; passwords are masked."""
    lines = session.api.get("config", "effective").splitlines()
    session.show_object(dict(line.split(" = ", 1) for line in lines if " = " in line), lines)


@command(FEATURE_FLAGS, says="Listing feature flags ...")
def list_feature_flags(session: Session, columns: tuple[str, ...]) -> None:
    """List feature flags, all of which are enabled."""
    session.show_rows(session.api.get("feature-flags"), columns or ("name", "state"))


@command(FEATURE_FLAGS, "name state", flag("--used", text="Only those that are known to be in use."))
def list_deprecated_features(session: Session, columns: tuple[str, ...], *, used: bool) -> None:
    """List the features that RabbitMQ deprecates, and whether they are permitted here."""
    session.announce(f"Listing deprecated features {'in use ' if used else ''}...")
    rows = session.api.get("deprecated-features", *(["used"] if used else []))
    session.show_rows(rows, columns or ("name", "deprecation_phase", "state"))


@command(FEATURE_FLAGS, "all")
def enable_feature_flag(session: Session, name: str) -> None:
    """Do nothing: all feature flags are enabled."""
    session.announce(
        "Enabling all feature flags ..." if name == "all" else f'Enabling feature flag "{name}" ...'
    )
    known = {row["name"] for row in session.api.get("feature-flags")}
    if name != "all" and name not in known:
        text = f"This feature flag is not supported by node {session.node}"
        raise CtlError(f"Error:\n{text}", exit_codes.USAGE)


@command(CHECKS)
def report(session: Session) -> None:
    """Print status, settings, connections, channels, and the objects of all virtual hosts, for a report of a problem.

    It has names and addresses, and no passwords.
    """
    whole = Session(session.api, {"timeout": session.given_seconds})
    whole.announce(f"Reporting server status of node {session.node} ...\n")
    status(whole)
    _show_each(
        whole,
        cluster_status,
        environment,
        partial(list_connections, columns=tuple(CONNECTION)),
        partial(list_channels, columns=tuple(CHANNEL)),
    )
    for vhost in session.api.get("vhosts"):
        _show_each(
            Session(session.api, {"timeout": session.given_seconds, "vhost": vhost["name"]}),
            partial(list_queues, columns=tuple(QUEUE)),
            partial(list_exchanges, columns=tuple(EXCHANGE)),
            partial(list_bindings, columns=()),
            *(list_permissions, list_policies, list_global_parameters, list_parameters),
        )


def _show_each(session: Session, *shows: Callable[[Session], None]) -> None:
    for show in shows:
        click.echo()
        show(session)
