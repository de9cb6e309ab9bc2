"""An open-loop load: each message is sent when it is due, whatever the broker does, and timed from then.

So a broker that stops for a second has delayed all messages of that second, as its users would see it (no coordinated
omission). Everything runs in one thread: a connection for each producer and consumer, confirms, a `multiple` ack for
each read, messages in turn over the producers and the queues. What the client itself sends late is reported.
"""

import dataclasses
import gc
import os
import select
import socket
import struct
import time
from collections.abc import Sequence

from pamqp import commands

from bench.bulk import CONFIRM_ACK, DELIVER, Bulk, BulkError, ack_at, frame_at
from bench.client import ack_frame, publish_frames
from bench.endpoint import Endpoint

WARM_UP = 1.0
"""Seconds at the beginning whose messages are not counted."""
GRACE = 10.0
"""Seconds after the last message was due in which everything must have been delivered and confirmed."""
PREFETCH = 500
HOPELESS = 1.0
"""Age in seconds of an undelivered message at which a run with `gives_up` ends."""
stamp = struct.Struct(">d")


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """Messages a second over all producers, and what they are like."""

    rate: float
    seconds: float
    producers: int = 1
    consumers: int = 1
    queues: int = 1
    size: int = 1500
    persistent: bool = True
    gives_up: bool = False
    """End as soon as the broker is a second behind."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds from the time each message was due, shortest first, without the warm-up."""

    delivered: list[float]
    confirmed: list[float]
    late: float
    """The 99th percentile of the seconds by which the client itself sent late."""
    missing: int
    """Messages that were not delivered or not confirmed in time."""


class Producer(Bulk):
    """A connection that publishes the messages number `first`, `first + step`, ...

    Args:
        endpoint: the broker.
        first: number of its first message.
        step: number of producers.
        interval: seconds between the due times of consecutive messages of all producers.

    """

    def __init__(self, endpoint: Endpoint, first: int, step: int, interval: float) -> None:
        super().__init__(endpoint)
        self.call(commands.Confirm.Select())
        self.first, self.step, self.interval = first, step, interval
        self.unsent = b""
        self.oldest = 0
        self.singles: set[int] = set()
        self.times: list[tuple[int, float]] = []
        """The number of each confirmed message, and the seconds from its due time."""

    def write(self, octets: bytes) -> None:
        """Send what the socket takes, and keep the rest."""
        octets = self.unsent + octets
        try:
            taken = self.socket.send(octets, socket.MSG_DONTWAIT) if octets else 0
        except BlockingIOError:
            taken = 0
        self.unsent = octets[taken:]

    def note_confirms(self, now: float) -> None:
        """Note the confirms that have been read."""
        octets, at = self.rest, 0
        while len(octets) - at >= 8:
            end = at + frame_at(octets, at)[2] + 8
            if end > len(octets):
                break
            if octets[at + 7 : at + 11] == CONFIRM_ACK:
                tag, multiple = ack_at(octets, at + 11)
                self._confirm(tag, now, multiple=multiple)
            elif octets[at] != 8:
                raise BulkError(f"not a confirm: {octets[at : at + 40]!r}")
            at = end
        self.rest = octets[at:]

    def _confirm(self, tag: int, now: float, *, multiple: bool) -> None:
        oldest, singles = self.oldest, self.singles
        for each in range(oldest + 1, tag + 1) if multiple else (tag,):
            if each not in singles:
                number = self.first + (each - 1) * self.step
                self.times.append((number, now - number * self.interval))
        if multiple:
            self.oldest = max(oldest, tag)
            if singles:
                self.singles = {each for each in singles if each > tag}
        else:
            singles.add(tag)
            while self.oldest + 1 in singles:
                self.oldest += 1
                singles.remove(self.oldest)


class Consumer(Bulk):
    """A connection that consumes from all queues and acknowledges what it reads.

    Args:
        endpoint: the broker.
        queues: what it consumes from.

    """

    def __init__(self, endpoint: Endpoint, queues: Sequence[str]) -> None:
        super().__init__(endpoint)
        self.call(commands.Basic.Qos(prefetch_count=PREFETCH))
        for queue in queues:
            self.call(commands.Basic.Consume(queue=queue))
        self.times: list[tuple[float, float]] = []
        """The due time of each delivered message, and the seconds from then."""

    def note_deliveries(self, now: float) -> None:
        """Note the deliveries that have been read, and acknowledge them."""
        octets, at, tag = self.rest, 0, 0
        note, unpack = self.times.append, stamp.unpack_from
        size = len(octets)
        while size - at >= 8:
            if octets[at] == 8:
                at += 8
                continue
            if size - at < 11:
                break
            if octets[at + 7 : at + 11] != DELIVER:
                raise BulkError(f"not a delivery: {octets[at : at + 40]!r}")
            header = at + frame_at(octets, at)[2] + 8
            if size - header < 8:
                break
            body = header + frame_at(octets, header)[2] + 8
            if size - body < 8 or size - body < frame_at(octets, body)[2] + 8:
                break
            (tag,) = struct.unpack_from(">Q", octets, at + 12 + octets[at + 11])
            (due,) = unpack(octets, body + 7)
            note((due, now - due))
            at = body + frame_at(octets, body)[2] + 8
        self.rest = octets[at:]
        if tag:
            self.socket.sendall(ack_frame(1, 1, 13, 60, 80, tag, True, 0xCE))


def run(endpoint: Endpoint, load: Load) -> Outcome:
    """Apply a load to durable queues of its own, which are deleted afterwards.

    Raises:
        BulkError: the broker refused something or closed a connection.
        OSError: no broker is there.

    """
    interval = 1.0 / load.rate
    control = Bulk(endpoint)
    names = [f"open-loop-{os.getpid()}-{time.time_ns()}-{number}" for number in range(load.queues)]
    open_ones = [control]
    try:
        for name in names:
            control.declare(name, durable=True)
        producers, consumers = [], []
        for number in range(load.producers):
            producers.append(Producer(endpoint, number, load.producers, interval))
            open_ones.append(producers[-1])
        for _ in range(load.consumers):
            consumers.append(Consumer(endpoint, names))
            open_ones.append(consumers[-1])
        late, total = _drive(load, names, producers, consumers)
    finally:
        for each in open_ones[1:]:
            each.close()
        for name in names:
            control.call(commands.Queue.Delete(queue=name))
        control.close()
    first = WARM_UP * load.rate * interval
    delivered = [pair for consumer in consumers for pair in consumer.times]
    confirmed = [pair for producer in producers for pair in producer.times]
    late = sorted(late[int(len(late) * WARM_UP / (WARM_UP + load.seconds)) :])
    return Outcome(
        sorted(took for due, took in delivered if due >= first),
        sorted(took for number, took in confirmed if number * interval >= first),
        late[min(len(late) - 1, int(len(late) * 0.99))] if late else 0.0,
        2 * total - len(delivered) - len(confirmed),
    )


def _drive(
    load: Load, names: Sequence[str], producers: Sequence[Producer], consumers: Sequence[Consumer]
) -> tuple[list[float], int]:
    """Send everything when it is due, and read until all is back; returns how late each step was, and the messages."""
    filler = bytes(max(0, load.size - stamp.size))
    heads = [
        publish_frames(name, bytes(stamp.size) + filler, persistent=load.persistent)[: -load.size - 1]
        for name in names
    ]
    tail = filler + b"\xce"
    many, count, interval = len(producers), len(heads), 1.0 / load.rate
    total, sent, pack = int(load.rate * (load.seconds + WARM_UP)), 0, stamp.pack
    late: list[float] = []
    readers = {each.socket: each for each in (*producers, *consumers)}
    clock = time.perf_counter
    gc.collect()
    gc.disable()
    began = clock()
    try:
        while True:
            now = clock() - began
            due = min(total, int(now * load.rate) + 1)
            if due > sent:
                late.append(now - sent * interval)
                for at, producer in enumerate(producers):
                    first = sent + (at - sent) % many
                    parts = [heads[n % count] + pack(n * interval) + tail for n in range(first, due, many)]
                    producer.write(b"".join(parts))
                sent = due
            elif sent == total and _is_done(total, producers, consumers):
                break
            if now > load.seconds + WARM_UP + GRACE:
                break
            if load.gives_up and _is_hopeless(now, sent, interval, consumers):
                break
            blocked = [producer for producer in producers if producer.unsent]
            wait = 0.1 if sent == total else max(0.0, began + sent * interval - clock())
            readable, writable, _ = select.select(list(readers), [each.socket for each in blocked], [], wait)
            for producer in blocked:
                if producer.socket in writable:
                    producer.write(b"")
            for each in map(readers.__getitem__, readable):
                each.read()
                if isinstance(each, Producer):
                    each.note_confirms(clock() - began)
                else:
                    each.note_deliveries(clock() - began)
    finally:
        gc.enable()
    return late, total


def _is_done(total: int, producers: Sequence[Producer], consumers: Sequence[Consumer]) -> bool:
    return total == sum(len(each.times) for each in consumers) == sum(len(each.times) for each in producers)


def _is_hopeless(now: float, sent: int, interval: float, consumers: Sequence[Consumer]) -> bool:
    """Return whether more messages are under way than are sent in `HOPELESS` seconds."""
    under_way = sent - sum(len(each.times) for each in consumers)
    return now > HOPELESS and under_way * interval > HOPELESS


def percentile(times: Sequence[float], share: float) -> float:
    """Return the value that `share` per cent of the sorted values do not exceed; infinite if there are none."""
    return times[min(len(times) - 1, int(len(times) * share / 100.0))] if times else float("inf")
