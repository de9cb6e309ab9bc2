"""The broker with counters around its handlers: ``python counting_broker.py REPORT.json serve ...``.

Everything else is the broker's own command. When the process ends, the report says which methods were reached, in
which virtual host, how often their handlers returned, how long the longest read took, and what all the sessions, which
are over by then, have left behind.
"""

import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance.codec import SPECS  # noqa: E402

from leveret.broker import methods  # noqa: E402
from leveret.broker.channel import channel  # noqa: E402
from leveret.broker.cli import main as cli  # noqa: E402
from leveret.broker.connection import connection, connection_tracking, handshake  # noqa: E402
from leveret.broker.network import socket_driver  # noqa: E402
from leveret.broker.server import server  # noqa: E402

JOBS_SECONDS = 5.0  # that the rest of connections may take to go once their sockets are closed


class Counts:
    """Counts of events, by virtual host and method."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.longest_read = 0.0
        self.longest_reader = ""
        self.longest_collection = 0.0
        self.collected = 0
        """Objects that only the cycle collector could free."""
        self._collecting_since = 0.0
        self.left: dict[str, int] = {}
        """Figures that should be 0 once all clients have gone, and are not."""
        self.kept: dict[str, int] = {}
        """Objects in memory, for those who look for leaks."""

    def watch_collector(self, phase: str, info: dict[str, int]) -> None:
        """Time the cycle collector (see `gc.callbacks`)."""
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self.longest_collection = max(
                self.longest_collection, time.thread_time() - self._collecting_since
            )
            self.collected += info["collected"]

    def look_around(self, broker: Any) -> None:
        """Count what is left; the canary has gone, too."""
        vhosts = list(broker.vhosts.values())
        left = {
            "connections listed": len(broker.clients.connections),
            "connections of users": sum(map(abs, broker.clients.connections_of_users.values())),
            "connections of virtual hosts": sum(abs(vhost.connection_count) for vhost in vhosts),
            "channels": broker.clients.channel_count,
            "channels of users": sum(map(abs, broker.clients.channels_of_users.values())),
            "reply queues": sum(len(vhost.reply_queues) for vhost in vhosts),
            "consumers": sum(len(queue.consumers) for vhost in vhosts for queue in vhost.queues.values()),
            "exclusive queues": sum(
                queue.exclusive_owner is not None for vhost in vhosts for queue in vhost.queues.values()
            ),
            "queues of the strict host": sum(len(vhost.queues) for vhost in vhosts if vhost.name == "strict"),
        }
        self.left = {what: count for what, count in left.items() if count}
        gc.callbacks.clear()
        gc.collect()
        names = ("Connection", "Channel", "Consumer", "Queue", "Message", "Route", "PropertyDemands")
        living = Counter(type(thing).__name__ for thing in gc.get_objects())
        self.kept = {name: living[name] for name in names}

    def save(self, path: Path) -> None:
        path.write_text(
            json.dumps(
                {
                    "reached": self.reached,
                    "returned": self.returned,
                    "longest_read": self.longest_read,
                    "longest_reader": self.longest_reader,
                    "longest_collection": self.longest_collection,
                    "collected": self.collected,
                    "left": self.left,
                    "kept": self.kept,
                    "handlers": sorted(_wire_name(command) for command in methods.HANDLERS),
                }
            ),
            encoding="utf-8",
        )


def _wire_name(command: Any) -> str:
    return SPECS[command.index >> 16, command.index & 0xFFFF].name


def _counted_handler(
    counts: Counts, name: str, handler: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    def handle(on: Any, method: Any) -> None:
        key = f"{on.vhost.name} {name}"
        counts.reached[key] += 1
        handler(on, method)
        counts.returned[key] += 1

    return handle


def instrument(counts: Counts, report: Path) -> None:
    """Put the counters in; the report is written when the broker stops."""
    for command, handler in list(methods.HANDLERS.items()):
        methods.HANDLERS[command] = _counted_handler(counts, _wire_name(command), handler)

    gc.callbacks.append(counts.watch_collector)

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
        spec = SPECS.get(
            (int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 4], "big"))
        )
        counts.reached[f"- {spec.name if spec else 'unknown'}"] += 1
        greet(self, data, at, end)

    handshake.Handshake._method = count_handshake

    opened = connection_tracking.ConnectionTracking.connection_opened

    def count_opened(self: Any, which: Any) -> None:
        for name in ("connection.start-ok", "connection.tune-ok", "connection.open"):
            counts.reached[f"{which.vhost.name} {name}"] += 1
            counts.returned[f"{which.vhost.name} {name}"] += 1
        opened(self, which)

    connection_tracking.ConnectionTracking.connection_opened = count_opened

    find_route = channel.Channel.find_route

    def count_route(self: Any, address: bytes, bits: int) -> Any:
        counts.reached[f"{self.vhost.name} basic.publish"] += 1
        return find_route(self, address, bits)

    channel.Channel.find_route = count_route

    closed = connection_tracking.ConnectionTracking.channel_closed

    def count_closed(self: Any, user: Any, which: Any) -> None:
        counts.returned[f"{which.vhost.name} basic.publish"] += which.published
        counts.reached[f"{which.vhost.name} basic.ack"] += which.acked
        counts.returned[f"{which.vhost.name} basic.ack"] += which.acked
        closed(self, user, which)

    connection_tracking.ConnectionTracking.channel_closed = count_closed

    updated = socket_driver.SocketDriver.buffer_updated

    def time_read(self: Any, nbytes: int) -> None:
        start = time.thread_time()
        updated(self, nbytes)
        took = time.thread_time() - start
        if took > counts.longest_read:
            counts.longest_read, counts.longest_reader = took, self.connection.name

    socket_driver.SocketDriver.buffer_updated = time_read

    stop = server.Server.stop

    async def look_and_stop(self: Any, *reason: str) -> None:
        latest = time.monotonic() + JOBS_SECONDS
        while len(self.turn.slices) and time.monotonic() < latest:  # what sockets that are closed have left
            await asyncio.sleep(0)
        counts.look_around(self)
        counts.save(report)
        await stop(self, *reason)

    server.Server.stop = look_and_stop


def main() -> None:
    """Run the broker's command."""
    counts = Counts()
    instrument(counts, Path(sys.argv.pop(1)))
    cli.main()


if __name__ == "__main__":
    main()
