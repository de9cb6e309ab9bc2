"""Commands that tell how the broker is: versions, health checks, listeners, alarms, certificates, logs."""

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import leveret
from leveret.broker import COMPATIBLE_VERSION, exit_codes
from leveret.broker.cli.ctl.command import CHECKS, NODES, Session, command, counted, option
from leveret.broker.cli.ctl.output import CtlError, UsageError, refused

STARTUP_SECONDS = 300.0
WAIT_SECONDS = 0.1
CONNECT_SECONDS = 5.0
BLOCK = 64 * 1024
UNITS = ("days", "weeks", "months", "years")
PASSED: Mapping[str, Any] = {"result": "ok"}
PURPOSES = {
    "amqp": "AMQP 0-9-1",
    "amqp/ssl": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
    "https": "HTTP API over TLS (HTTPS)",
    "http/prometheus": "Prometheus exporter API over HTTP",
    "https/prometheus": "Prometheus exporter API over TLS (HTTPS)",
}


# -- versions, start --------------------------------------------------------------------------------------------


@command(NODES)
def ping(session: Session) -> None:
    """Check that the broker answers."""
    session.announce(f"Will ping {session.api.place}. Timeout: {session.seconds * 1000:.0f} ms.")
    session.api.get("whoami")
    text = "Ping succeeded"
    session.show_object({"message": text}, [text])


@command("Help")
def version(session: Session) -> None:
    """Print the version in RabbitMQ's numbers, of the broker if it answers; with --formatter json also Leveret's."""
    try:
        number = session.api.get("version")
    except CtlError:
        number = COMPATIBLE_VERSION
    value = {"version": number, "leveret_version": leveret.__version__}
    session.show_object({"result": "ok", "value": value}, [number])


@command(CHECKS, says="Asking node {session.node} for its RabbitMQ version...")
def server_version(session: Session) -> None:
    """Print the version of the broker, in RabbitMQ's numbers."""
    session.show(session.api.get("overview", columns="rabbitmq_version")["rabbitmq_version"])


@command(CHECKS, says="Asking node {session.node} for its Erlang/OTP version...")
def erlang_version(session: Session) -> None:
    """Print the version of what runs the broker, which is Python."""
    session.show(session.api.get("overview", columns="erlang_full_version")["erlang_full_version"])


def _wait(session: Session, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            session.api.get("whoami")
        except CtlError as error:
            if error.code == exit_codes.NO_PERMISSION:
                raise
            if time.monotonic() >= until:
                raise CtlError(f"Error: timed out. {error}", exit_codes.TEMPORARY) from None
            session.api.close()
            time.sleep(WAIT_SECONDS)
        else:
            return


@command(NODES, "--timeout 60")
def await_startup(session: Session) -> None:
    """Wait until the broker accepts clients, at most for the time of --timeout (default: 300 seconds)."""
    _wait(session, session.given_seconds or STARTUP_SECONDS)


@command(NODES, "/run/leveret.pid", option("-P", "--pid", type=int, help="Ignored."))
def wait(session: Session, pidfile: str | None = None, **_ignored: Any) -> None:
    """Wait until the file with the process id is there, if one is given, and the broker accepts clients."""
    seconds = session.given_seconds or STARTUP_SECONDS
    until = time.monotonic() + seconds
    if pidfile is not None:
        session.announce(f"Waiting for pid file '{pidfile}' to appear")
        while not Path(pidfile).exists():
            if time.monotonic() >= until:
                text = f"Error: operation wait timed out. Timeout value used: {seconds * 1000:.0f}"
                raise CtlError(text, exit_codes.TEMPORARY)
            time.sleep(WAIT_SECONDS)
    _wait(session, max(0.0, until - time.monotonic()))


@command(NODES, says="Starting node {session.node} ...")
def start_app(session: Session) -> None:
    """Start the broker in its process: it runs as long as the process, so this only checks that it answers."""


def _say(session: Session, text: str, **found: bool) -> None:
    session.say(text, {"message": text, **found})


@command(CHECKS, says="Checking if RabbitMQ is running on node {session.node} ...")
def check_running(session: Session) -> None:
    """Check that the broker accepts clients."""
    _say(session, f"RabbitMQ on node {session.node} is fully booted and running")


@command(CHECKS, says="Asking node {session.node} for its status ...")
def is_running(session: Session) -> None:
    """Tell whether the broker accepts clients."""
    _say(session, f"RabbitMQ on node {session.node} is fully booted and running", result=True)


@command(CHECKS, says="Asking node {session.node} for its boot status ...")
def is_booting(session: Session) -> None:
    """Tell whether the broker is starting."""
    state = "fully booted (check with is_running), stopped or has not started booting yet"
    _say(session, f"RabbitMQ on node {session.node} is {state}", result=False)


# -- alarms -----------------------------------------------------------------------------------------------------


@command(CHECKS, says="Checking health of node {session.node} ...")
def node_health_check(session: Session) -> None:
    """Check that the broker works and has no alarms."""
    session.api.get("health", "checks", "alarms")
    session.say("Health check passed")


@command(CHECKS, says="Asking node {session.node} to report any local resource alarms ...")
def check_local_alarms(session: Session) -> None:
    """Check that no alarm is raised."""
    session.api.get("health", "checks", "local-alarms")
    session.say(f"Node {session.node} reported no local alarms", PASSED)


@command(CHECKS, says="Asking node {session.node} to report any local resource alarms ...")
def check_alarms(session: Session) -> None:
    """Check that no alarm is raised."""
    session.api.get("health", "checks", "alarms")
    session.say(f"Node {session.node} reported no alarms, local or clusterwide", PASSED)


def raised_alarms(resources: Mapping[str, Any]) -> list[str]:
    """Return the names of the alarms that are raised."""
    return [name for name in ("memory", "disk") if resources[name]["alarm"]]


@command(CHECKS, says="Asking node {session.node} to report any known resource alarms ...")
def alarms(session: Session) -> None:
    """List the alarms that are raised."""
    raised = raised_alarms(session.api.get("leveret", "resources"))
    none = f"Node {session.node} reported no alarms, local or clusterwide"
    found = {"result": "ok", "node": session.node, "alarms": raised}
    if raised:
        found |= {"local": raised, "global": raised}
    session.show_object(found, [f"{name} alarm on node {session.node}" for name in raised] or [none])


@command(CHECKS, says="Checking if all vhosts are running on node {session.node} ...")
def check_virtual_hosts(session: Session) -> None:
    """Check that all virtual hosts run."""
    session.api.get("health", "checks", "virtual-hosts")
    session.say(f"Node {session.node} reported all vhosts as running", PASSED)


# -- listeners --------------------------------------------------------------------------------------------------


def found_listeners(session: Session) -> list[dict[str, Any]]:
    """Return the listeners of the broker as RabbitMQ's tools show them."""
    return [
        {
            "node": row["node"],
            "interface": row["ip_address"],
            "port": row["port"],
            "protocol": row["protocol"],
            "purpose": PURPOSES.get(row["protocol"], row["protocol"]),
        }
        for row in session.api.get("overview", columns="listeners").get("listeners", [])
    ]


def listener_line(row: Mapping[str, Any]) -> str:
    """Return the line of a listener."""
    return (
        f"Interface: {row['interface']}, port: {row['port']}, protocol: {row['protocol']}, "
        f"purpose: {row['purpose']}"
    )


@command(CHECKS, says="Asking node {session.node} to report its protocol listeners ...")
def listeners(session: Session) -> None:
    """List the ports on which the broker listens."""
    rows = found_listeners(session)
    session.show_object({"result": "ok", "node": session.node, "listeners": rows}, map(listener_line, rows))


@command(CHECKS, "5672")
def check_port_listener(session: Session, port: str) -> None:
    """Check that the broker listens on a port."""
    number = counted(port)
    session.announce(f"Asking node {session.node} if there's an active listener on port {port} ...")
    ports = [row["port"] for row in found_listeners(session)]
    if number not in ports:
        raise CtlError(
            f"No listener for port {port} is active on node {session.node}. "
            f"Found listeners that use the following ports: {', '.join(map(str, ports))}"
        )
    found = {"node": session.node, "port": port, **PASSED}
    session.say(f"A listener for port {port} is running on node {session.node}.", found)


@command(CHECKS, "amqp")
def check_protocol_listener(session: Session, protocol: str) -> None:
    """Check that the broker listens for a protocol: amqp, amqp/ssl, http, https or http/prometheus."""
    session.announce(f"Asking node {session.node} if there's an active listener for protocol {protocol} ...")
    known = [row["protocol"] for row in found_listeners(session)]
    if {"amqp091": "amqp", "amqp0.9.1": "amqp"}.get(protocol, protocol) not in known:
        raise refused(
            f"No listener for protocol {protocol} is active on node {session.node}. "
            f"Found listeners for the following protocols: {', '.join(dict.fromkeys(known))}"
        )
    session.say(f"A listener for protocol {protocol} is running on node {session.node}.")


@command(CHECKS, "", option("--address", help="Address to connect to."))
def check_port_connectivity(session: Session, *, address: str | None) -> None:
    """Check that the ports on which the broker listens accept TCP connections."""
    session.announce(f"Testing TCP connections to all active listeners on node {session.node} ...")
    rows = found_listeners(session)
    failed = []
    for row in rows:
        host = address or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(row["interface"], row["interface"])  # noqa: S104
        try:
            socket.create_connection((host, row["port"]), CONNECT_SECONDS).close()
        except (OSError, UnicodeError) as error:
            failed.append(f"{host}:{row['port']} ({_reason(error)})")
    if failed:
        raise refused(
            f"Connection to ports of the following listeners on node {session.node} failed: {', '.join(failed)}"
        )
    ports = ", ".join(str(row["port"]) for row in rows)
    session.say(f"Successfully connected to ports {ports} on node {session.node}.")


def _reason(error: OSError | UnicodeError) -> str:
    """Return why a name or address cannot be used; UnicodeError is raised for what cannot be a name."""
    return getattr(error, "strerror", "") or str(error)


@command(CHECKS, "localhost")
def resolve_hostname(session: Session, hostname: str) -> None:
    """Print the IPv4 addresses of a host, as this command resolves them."""
    session.announce(f"Asking node {session.node} to resolve hostname {hostname} to IPv4 addresses...")
    try:
        rows = socket.getaddrinfo(hostname, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise refused(f"{hostname}: {_reason(error)}") from None
    for address in dict.fromkeys(str(row[4][0]) for row in rows):
        session.show(address)


@command(
    CHECKS,
    "--within 4 --unit weeks",
    option("--within", type=int, default=4, help="How many (default: 4)."),
    option("--unit", default="weeks", help=f"{', '.join(UNITS)} (default: weeks)."),
)
def check_certificate_expiration(session: Session, *, within: int, unit: str) -> None:
    """Check that no certificate of the broker expires soon."""
    if unit not in UNITS:
        raise UsageError(f"Bad argument: unit '{unit}' is not supported", exit_codes.DATA)
    session.announce(f"Checking certificate expiration on node {session.node} ...")
    session.api.get("health", "checks", "certificate-expiration", str(within), unit)
    session.say(f"No certificates are expiring within {within} {unit}.")


# -- logs -------------------------------------------------------------------------------------------------------


@command(CHECKS, says="Log file location(s) on node {session.node} ...")
def log_location(session: Session) -> None:
    """List the files that the broker logs to."""
    (node,) = session.api.get("nodes", columns="log_files")
    session.show_object(node["log_files"], node["log_files"])


@command(CHECKS, "-N 20", option("-N", "--number", type=int, default=50, help="Lines (default: 50)."))
def log_tail(session: Session, *, number: int) -> None:
    """Print the last lines of the log file, which has to be on this machine."""
    (node,) = session.api.get("nodes", columns="log_files")
    files = [Path(name) for name in node["log_files"] if not name.startswith("<")]
    if not files:
        raise refused("the broker logs to its standard output, and to no file (log.file)")
    session.announce(f"Last {number} log lines on node {session.node} ...")
    try:
        for line in last_lines(files[0], number):
            session.show(line)
    except OSError as error:
        raise refused(f"cannot read {files[0]}: {error.strerror}") from None


def last_lines(path: Path, number: int) -> list[str]:
    """Return the last lines of a file, without reading all of it. Raises OSError."""
    found = b""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        while at and found.count(b"\n") <= number:
            size = min(BLOCK, at)
            at = file.seek(at - size)
            found = file.read(size) + found
    return found.decode("utf-8", "replace").splitlines()[-number:] if number > 0 else []
