"""Brokers that a benchmark does not start: any AMQP URL with a name, `--peer lavinmq=amqp://guest:guest@127.0.0.1:5673`.

What is known of their process (processor time, memory, writes) comes from /proc if they listen on this machine.
"""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bench import brokers
from bench.brokers import Broker
from bench.endpoint import Endpoint

LOOPBACK = ("127.0.0.1", "localhost")
LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def parse(text: str) -> tuple[str, Endpoint]:
    """Split `NAME=amqp://...`.

    Raises:
        argparse.ArgumentTypeError: it is not that, or not on the loopback interface.

    """
    name, _, address = text.partition("=")
    try:
        parts = urlsplit(address)
        port = parts.port or 5672
    except ValueError as error:
        message = f"{address!r}: {error}"
        raise argparse.ArgumentTypeError(message) from None
    if not name.isidentifier() or parts.scheme != "amqp":
        message = f"{text!r} is not NAME=amqp://[USER:PASSWORD@]HOST[:PORT][/VHOST]"
        raise argparse.ArgumentTypeError(message)
    if parts.hostname not in LOOPBACK:
        message = f"peer {name}: benchmarks use the loopback interface, not {parts.hostname}"
        raise argparse.ArgumentTypeError(message)
    return name, Endpoint(
        port=port,
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        vhost=unquote(parts.path[1:]) or "/",
    )


class Peer(Broker):
    """A broker that was started by somebody else; its figures are 0 if its process is not known."""

    endpoint: Endpoint

    def cpu_seconds(self) -> float:
        """Return the processor time used by its process so far, in seconds."""
        return super().cpu_seconds() if self.pid else 0.0

    def reset_peak(self) -> None:
        """Leave another's process alone."""

    def stop(self, limit: float = 0.0) -> None:
        """Leave it running."""

    def _status(self, field: str) -> int:
        return super()._status(field) if self.pid else 0

    def _io(self, field: str) -> int:
        with contextlib.suppress(OSError):
            return super()._io(field) if self.pid else 0
        return 0


def peer(name: str, place: Endpoint) -> Peer:
    """Return a broker that listens already."""
    found = Peer(
        name=name,
        port=place.port,
        process=None,  # type: ignore[arg-type] # it is not ours
        pid=listener(place.port) or 0,
        started_in=0.0,
        settings=f"on port {place.port}, as it was found",
        log=Path.cwd(),
    )
    found.endpoint = place
    return found


def listener(port: int) -> int | None:
    """Return the process that listens on a TCP port of this machine; None if that cannot be known."""
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in _rows(table)
        if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port
    }
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if any(str(each.readlink()) in links for each in (process / "fd").iterdir()):
                    return int(process.name)
    return None


def _rows(table: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in Path(table).read_text().splitlines()[1:]:
            yield line.split()


@contextlib.contextmanager
def running(
    names: Sequence[str],
    found: Sequence[tuple[str, Endpoint]],
    settings: Sequence[str] = (),
    relay: Path | None = None,
) -> Iterator[dict[str, Broker]]:
    """Run brokers for the duration of a `with` block, beside peers that run already.

    Args:
        names: which brokers to start, as in `brokers.running`.
        found: the peers, as `option` has parsed them.
        settings: `KEY=VALUE` pairs for Leveret's `--set`.
        relay: a script to run instead of the project's own relay.

    Raises:
        BrokerError: as in `brokers.running`.

    """
    with brokers.running(names, settings, relay) as started:
        yield {**started, **{name: peer(name, place) for name, place in found}}


def endpoint_of(broker: Broker) -> Endpoint:
    """Return where a broker listens, whoever started it."""
    return broker.endpoint if isinstance(broker, Peer) else Endpoint(broker.port)


def option(parser: argparse.ArgumentParser) -> None:
    """Add `--peer` to a command line."""
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=parse,
        metavar="NAME=URL",
        help="another broker to measure, that runs already: an AMQP URL of this machine",
    )
