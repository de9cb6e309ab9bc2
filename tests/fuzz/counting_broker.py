"""The broker with counters around its handlers: ``python counting_broker.py REPORT.json serve ...``.

Everything else is the broker's own command. When the process ends, the report says which methods were reached, in
which virtual host, how often their handlers returned and how often they refused, and how long the longest read took.
"""

import atexit
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from broker import channel, cli, connection, handshake, methods, server, transport  # noqa: E402
from conformance.codec import SPECS  # noqa: E402


class Counts:
    """What happened, by virtual host and method."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.longest_read = 0.0

    def save(self, path: Path) -> None:
        """Write the report."""
        path.write_text(
            json.dumps(
                {
                    "reached": self.reached,
                    "returned": self.returned,
                    "longest_read": self.longest_read,
                    "handlers": sorted(_wire_name(command) for command in methods.HANDLERS),
                }
            ),
            encoding="utf-8",
        )


def _wire_name(command: Any) -> str:
    return SPECS[command.index >> 16, command.index & 0xFFFF].name


def _counted_handler(counts: Counts, name: str, handler: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def handle(on: Any, method: Any) -> None:
        key = f"{on.vhost.name} {name}"
        counts.reached[key] += 1
        handler(on, method)
        counts.returned[key] += 1

    return handle


def instrument(counts: Counts) -> None:
    """Put the counters in."""
    for command, handler in list(methods.HANDLERS.items()):
        methods.HANDLERS[command] = _counted_handler(counts, _wire_name(command), handler)

    run = connection.Connection._method

    def count_method(self: Any, number: int, data: bytes, at: int, end: int) -> None:
        ids = int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 9 : at + 11], "big")
        spec = SPECS.get(ids)
        key = f"{self.vhost.name} {spec.name if spec else 'unknown'}"
        if spec is None or spec.class_id in {10, 20}:
            counts.reached[key] += 1
        run(self, number, data, at, end)
        if spec is not None and spec.class_id in {10, 20}:
            counts.returned[key] += 1

    connection.Connection._method = count_method

    greet = handshake.Handshake._method

    def count_handshake(self: Any, data: bytes, at: int, end: int) -> None:
        spec = SPECS.get((int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 4], "big")))
        counts.reached[f"- {spec.name if spec else 'unknown'}"] += 1
        greet(self, data, at, end)

    handshake.Handshake._method = count_handshake

    opened = server.Server.connection_opened

    def count_opened(self: Any, which: Any) -> None:
        for name in ("connection.start-ok", "connection.tune-ok", "connection.open"):
            counts.reached[f"{which.vhost.name} {name}"] += 1
            counts.returned[f"{which.vhost.name} {name}"] += 1
        opened(self, which)

    server.Server.connection_opened = count_opened

    find_route = channel.Channel.find_route

    def count_route(self: Any, address: bytes, bits: int) -> Any:
        counts.reached[f"{self.vhost.name} basic.publish"] += 1
        return find_route(self, address, bits)

    channel.Channel.find_route = count_route

    closed = server.Server.channel_closed

    def count_closed(self: Any, user: Any, which: Any) -> None:
        counts.returned[f"{which.vhost.name} basic.publish"] += which.published
        counts.reached[f"{which.vhost.name} basic.ack"] += which.acked
        counts.returned[f"{which.vhost.name} basic.ack"] += which.acked
        closed(self, user, which)

    server.Server.channel_closed = count_closed

    updated = transport.SocketDriver.buffer_updated

    def time_read(self: Any, nbytes: int) -> None:
        start = time.thread_time()
        updated(self, nbytes)
        counts.longest_read = max(counts.longest_read, time.thread_time() - start)

    transport.SocketDriver.buffer_updated = time_read


def main() -> None:
    """Run the broker's command."""
    counts = Counts()
    instrument(counts)
    atexit.register(counts.save, Path(sys.argv.pop(1)))
    cli.main()


if __name__ == "__main__":
    main()
