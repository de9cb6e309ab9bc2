"""A client that publishes at a steady rate and measures its confirms beside a broker's other work.

A process of its own (`Canary`), as the clients of a case keep their interpreter busy. It publishes persistent messages
of 1 KB to a durable queue and consumes them; it acks only what was confirmed, so that no confirm comes from an ack
instead of the disk. Each message has the time at which it was due and the time at which it was really sent. A canary that
the machine has kept waiting sends late, which is not the broker's doing: so the broker is judged by the time since a
message was sent, and the time since it was due stands beside it, as a broker that does not read makes nothing late here.
"""

import json
import math
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from conformance.codec import BODY, HEADER, METHOD, encode_header, encode_method, frame  # noqa: E402
from conformance.wire import Client  # noqa: E402
from processes.running import children, environment, leash  # noqa: E402

RATE = 1000
"""Messages a second."""
BODY_OCTETS = 1024
QUEUE = "canary"
WARM_UP = 200
"""Messages that are sent, and not counted, before it says that it is ready."""
ACKED_TOGETHER = 50
END_SECONDS = 60.0
"""Seconds within which a canary that ends has its confirms, and has reported."""
_HEAD = struct.Struct(">BHI")
_DELIVER, _ACK, _NACK = (60, 60), (60, 80), (60, 120)
_CLOSES = ((10, 50), (20, 40))


class Times(NamedTuple):
    p50: float
    p99: float
    max: float


class Measurement(NamedTuple):
    """Measurements of a canary.

    Attributes:
        seconds: how long it published.
        published: messages.
        meanwhile: of these, confirmed before it was stopped.
        nacked: of these, refused.
        since_sent: from the time a message was sent to its confirm.
        since_due: from the time it should have been sent to its confirm.
        late: from the time it should have been sent to the time it was.

    """

    seconds: float
    published: int
    meanwhile: int
    nacked: int
    since_sent: Times
    since_due: Times
    late: Times


def times(seconds: Sequence[float]) -> Times:
    """The percentiles of some durations, the smallest value that so many of them do not exceed."""
    ordered = sorted(seconds) or [0.0]
    middle, high = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return Times(*(round(1000 * value, 2) for value in (middle, high, ordered[-1])))


class Canary:
    """A canary's process.

    Args:
        address: where the broker listens.

    """

    def __init__(self, address: tuple[str, int]) -> None:
        words = [*leash(), sys.executable, __file__, address[0], str(address[1])]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def __enter__(self) -> Self:
        """Wait until it publishes."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", line
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            for pid in (*children(self._process.pid), self._process.pid):
                subprocess.run(["kill", "-KILL", str(pid)], check=False)
        self._process.communicate(timeout=END_SECONDS)

    def restart(self) -> None:
        """Forget what was measured so far: what comes now is the case, and what came before was its preparation."""
        assert self._process.stdin is not None
        self._process.stdin.write("restart\n")
        self._process.stdin.flush()

    def end(self) -> Measurement:
        """Stop its publishing, and wait for the confirms of what it has published."""
        out, _ = self._process.communicate("end\n", timeout=2 * END_SECONDS)
        assert self._process.returncode == 0, out
        found = json.loads(out)
        return Measurement(
            **{name: Times(*value) if isinstance(value, list) else value for name, value in found.items()}
        )


# -- in the process ---------------------------------------------------------------------------------------------------


class _NonBlockingClient:
    """A connection that neither waits to send nor to receive."""

    def __init__(self, client: Client) -> None:
        self.socket = client.socket
        self.socket.setblocking(False)
        self.unsent = bytearray()
        self._received = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, octets: bytes = b"") -> None:
        self.unsent += octets
        try:
            del self.unsent[: self.socket.send(self.unsent)]
        except BlockingIOError:
            pass

    def methods(self) -> Iterator[tuple[tuple[int, int], bytes]]:
        """The methods that have come: class and method, and the rest of each."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the broker has closed the connection")
        octets = self._received
        octets += data
        at = 0
        while len(octets) >= at + _HEAD.size:
            kind, _, size = _HEAD.unpack_from(octets, at)
            after = at + _HEAD.size + size + 1
            if len(octets) < after:
                break
            if kind == METHOD:
                payload = bytes(octets[at + _HEAD.size : after - 1])
                number = struct.unpack_from(">HH", payload)
                if number in _CLOSES:
                    raise ConnectionError(repr(payload))
                yield number, payload[4:]
            at = after
        del octets[:at]


class _SteadyPublisher:
    """Publishes, and keeps the times."""

    def __init__(self, address: tuple[str, int]) -> None:
        publisher = Client(address, END_SECONDS).login()
        channel = publisher.channel()
        channel.queue(QUEUE, durable=True, arguments={"x-confirm-mode": "standard"})
        channel.call("confirm.select")
        consumer = Client(address, END_SECONDS).login()
        consumer.channel().consume(QUEUE)
        self._clients = (publisher, consumer)
        self._publisher, self._consumer = _NonBlockingClient(publisher), _NonBlockingClient(consumer)
        self._message = _message()
        self._begin = 0.0
        self._due_count = 0
        """Messages that were due since `_begin`, all of which were sent."""
        self._tag = 0
        self._unconfirmed: dict[int, tuple[float, float]] = {}
        """Times when a message was due and when it was sent, by its delivery tag."""
        self._delivered = self._acked = 0
        self.nacked = 0
        self.found: list[tuple[float, float, float]] = []
        """Times when each confirmed message was due, sent and confirmed."""

    def publish(self, count: float = math.inf) -> None:
        """Publish so many messages, or until there is something on the standard input."""
        self._begin = time.monotonic()
        self._due_count = 0
        while self._due_count < count:
            now = time.monotonic()
            while self._due_count < count and (due := self._begin + self._due_count / RATE) <= now:
                self._due_count += 1
                self._tag += 1
                self._unconfirmed[self._tag] = (due, time.monotonic())
                self._publisher.send(self._message)
            if self._look(self._begin + self._due_count / RATE - time.monotonic(), sys.stdin):
                break

    def settle(self) -> None:
        """Wait for the confirms of all that was published."""
        deadline = time.monotonic() + END_SECONDS
        while self._unconfirmed:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"{len(self._unconfirmed)} messages are not confirmed")
            self._look(left)

    def close(self) -> None:
        for client in self._clients:
            client.close_socket()

    def _look(self, seconds: float, *others: Any) -> bool:
        """Take what comes within so many seconds; whether something else can be read."""
        sides = (self._publisher, self._consumer)
        wanting = [side for side in sides if side.unsent]
        readable, writable, _ = select.select([*sides, *others], wanting, (), max(0.0, seconds))
        now = time.monotonic()
        for side in writable:
            side.send()
        if self._publisher in readable:
            for number, rest in self._publisher.methods():
                if number in {_ACK, _NACK}:
                    self._confirmed(now, *struct.unpack_from(">QB", rest), is_ack=number == _ACK)
        if self._consumer in readable:
            self._delivered += sum(number == _DELIVER for number, _ in self._consumer.methods())
        self._ack()
        return any(other in readable for other in others)

    def _confirmed(self, now: float, tag: int, bits: int, *, is_ack: bool) -> None:
        waiting = self._unconfirmed
        tags = [tag]
        if bits & 1:
            tags = []
            for each in waiting:  # in the order of their tags
                if each > tag:
                    break
                tags.append(each)
        for each in tags:
            self.found.append((*waiting.pop(each), now))
        self.nacked += 0 if is_ack else len(tags)

    def _ack(self) -> None:
        """Ack deliveries of what was confirmed: everything before the oldest message that was not."""
        safe = min(self._delivered, next(iter(self._unconfirmed), self._tag + 1) - 1)
        if safe >= self._acked + ACKED_TOGETHER or (not self._unconfirmed and safe > self._acked):
            self._acked = safe
            self._consumer.send(
                frame(METHOD, 1, encode_method("basic.ack", delivery_tag=safe, multiple=True))
            )


def _message() -> bytes:
    octets = frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key=QUEUE))
    octets += frame(HEADER, 1, encode_header(BODY_OCTETS, delivery_mode=2))
    return octets + frame(BODY, 1, b"x" * BODY_OCTETS)


def main() -> None:
    """Publish to the broker at the address of the command line until the standard input says `end`."""
    host, port = sys.argv[1:]
    publisher = _SteadyPublisher((host, int(port)))
    publisher.publish(WARM_UP)
    publisher.settle()
    publisher.found.clear()
    publisher.nacked = 0
    print("ready", flush=True)
    began = time.monotonic()
    since = 0.0
    publisher.publish()
    while True:
        words = os.read(sys.stdin.fileno(), 64).split()  # not by lines: no part of it may wait in a buffer
        if b"restart" in words:  # a short case sends both words at once
            since = time.monotonic()
        if not words or b"end" in words:
            break
        publisher.publish()
    seconds = time.monotonic() - max(since, began)
    meanwhile = len([due for due, _, _ in publisher.found if due >= since])
    publisher.settle()
    publisher.close()
    found = [each for each in publisher.found if each[0] >= since]
    measurement = Measurement(
        round(seconds, 3),
        len(found),
        meanwhile,
        publisher.nacked,
        times([confirmed - sent for _, sent, confirmed in found]),
        times([confirmed - due for due, _, confirmed in found]),
        times([sent - due for due, sent, _ in found]),
    )
    print(json.dumps(measurement._asdict()))


if __name__ == "__main__":
    main()
