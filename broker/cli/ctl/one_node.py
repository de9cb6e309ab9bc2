"""Commands about other nodes, certificates and virtual hosts that failed: with one node there is little to do."""

from pathlib import Path

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import argument, command, option
from leveret.broker.cli.ctl.errors import CtlError, UsageError, refused
from leveret.broker.cli.ctl.health import CHECKS, NODES
from leveret.broker.cli.ctl.session import Session

GROUP = "Nodes and replicas"
QUORUM_SECONDS = 120.0
KINDS = ("all", "classic", "quorum")
UNITS = ("days", "weeks", "months", "years")
BLOCK = 64 * 1024


def _alone(session: Session, announcement: str, subject: str, verb: str) -> None:
    session.announce(announcement)
    session.say(f"{subject} seems to be the only one in a single node cluster, the {verb} does not apply")


@command("check_if_node_is_quorum_critical", group=CHECKS)
def check_if_node_is_quorum_critical(session: Session) -> None:
    """Check that the node may stop without a quorum queue losing its majority: the check does not apply to one node."""
    text = f"Checking if node {session.node} is critical for quorum of any quorum queues ..."
    _alone(session, text, f"Node {session.node}", "check")


@command("check_if_node_is_mirror_sync_critical", group=CHECKS)
def check_if_node_is_mirror_sync_critical(session: Session) -> None:
    """Check that the node may stop without a mirror losing messages: the check does not apply to one node."""
    text = f"Checking if node {session.node} is critical for data safety of any classic mirrored queues ..."
    _alone(session, text, f"Node {session.node}", "check")


@command("await_online_quorum_plus_one", group=GROUP)
def await_online_quorum_plus_one(session: Session) -> None:
    """Wait until another node could take over the quorum queues: does not apply to one node."""
    seconds = session.given_seconds or QUORUM_SECONDS
    text = (
        f"Will wait for a quorum + 1 of nodes to be online for all quorum queues for {seconds:.0f} seconds..."
    )
    _alone(session, text, "Target node", "command")


@command("await_online_synchronized_mirror", group=GROUP)
def await_online_synchronized_mirror(session: Session) -> None:
    """Wait until another node could take over the mirrored queues: does not apply to one node."""
    seconds = session.given_seconds or QUORUM_SECONDS
    text = (
        "Will wait for a synchronised mirror be online for all classic mirrored queues for "
        f"{seconds:.0f} seconds..."
    )
    _alone(session, text, "Target node", "command")


@command("rebalance", argument("kind"), group=GROUP)
def rebalance(session: Session, kind: str) -> None:
    """Spread the leaders of queues (all, classic or quorum) over the nodes: nothing to do on one node."""
    if kind not in KINDS:
        raise refused(f"type {kind} is not supported. Try one of {', '.join(KINDS)}.")
    session.announce(f"Re-balancing leaders of {kind} queues...")
    session.api.post("rebalance", "queues")
    session.show_rows([], ())


@command("force_gc", group=CHECKS)
def force_gc(session: Session) -> None:
    """Return memory to the operating system: the broker does so by itself, and this does nothing."""
    session.announce(f"Will ask all processes on node {session.node} to schedule a full sweep GC")


@command("start_app", group=NODES)
def start_app(session: Session) -> None:
    """Start the broker in its process: it runs as long as the process, so this only checks that it answers."""
    session.announce(f"Starting node {session.node} ...")


@command("restart_vhost", group="Virtual hosts")
def restart_vhost(session: Session) -> None:
    """Start a virtual host that failed; here they run as long as the broker."""
    place = f"'{session.vhost}' on node '{session.node}'"
    session.announce(f"Trying to restart vhost {place} ...")
    if all(row["name"] != session.vhost for row in session.api.get("vhosts", columns="name")):
        reason = f'{{:no_such_vhost, "{session.vhost}"}}'
        raise CtlError(f"Error:\nFailed to start vhost {place}Reason: {reason}", exit_codes.SOFTWARE)
    session.say(f"Vhost {place.replace(' on', ' is already running on', 1)}")


@command(
    "check_certificate_expiration",
    option("--within", type=int, default=4, help="How many (default: 4)."),
    option("--unit", default="weeks", help=f"{', '.join(UNITS)} (default: weeks)."),
    group=CHECKS,
)
def check_certificate_expiration(session: Session, within: int, unit: str) -> None:
    """Check that no certificate of the broker expires soon."""
    if unit not in UNITS:
        raise UsageError(f"Bad argument: unit '{unit}' is not supported", exit_codes.DATA)
    session.announce(f"Checking certificate expiration on node {session.node} ...")
    session.api.get("health", "checks", "certificate-expiration", str(within), unit)
    session.say(f"No certificates are expiring within {within} {unit}.")


@command("resolve_hostname", argument("hostname"), group=CHECKS)
def resolve_hostname(session: Session, hostname: str) -> None:
    """Print the IPv4 addresses of a host, as this command resolves them."""
    import socket  # noqa: PLC0415 - other commands need not wait for it

    session.announce(f"Asking node {session.node} to resolve hostname {hostname} to IPv4 addresses...")
    try:
        rows = socket.getaddrinfo(hostname, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name
        raise refused(f"{hostname}: {getattr(error, 'strerror', '') or error}") from None
    for address in dict.fromkeys(str(row[4][0]) for row in rows):
        session.show(address)


@command(
    "log_tail", option("-N", "--number", type=int, default=50, help="Lines (default: 50)."), group=CHECKS
)
def log_tail(session: Session, number: int) -> None:
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
