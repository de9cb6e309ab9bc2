"""A producer without its socket: which messages are due, their frames, and the confirms that are still expected.

Theory. With a rate every message has a time at which it is due, fixed before the run begins, and latencies count from
that time. A broker that stops reading for a second thus adds up to a second to each message that was due meanwhile, as
it would for an application; counted from the time of sending, the pause would be seen in a handful of messages only
(*coordinated omission*). Without a rate a message is due when it is sent.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import BASIC_ACK, content_frames, unpack_ack
from leveret.broker.amqp.properties import build
from leveret.broker.client.frames import FIELDS_AT, Incoming
from leveret.broker.counters.histogram import Latency
from leveret.broker.perf.load import STAMP_SIZE
from leveret.broker.perf.measurement import NANOSECONDS, Tally

BASIC_NACK = Basic.Nack.index
BASIC_RETURN = Basic.Return.index
BATCH = 128  # maximum number of messages of a write
BATCH_BYTES = 64 * 1024
MILLION = 1_000_000
MARK_SIZE = 4

_pack_due = struct.Struct(">Q").pack


class Template(NamedTuple):
    """The frames of a message before and after the eight bytes with the time at which it is due."""

    before: bytes
    after: bytes


def template(
    exchange: str,
    routing_key: str,
    mark: bytes,
    size: int,
    frame_max: int,
    *,
    persistent: bool = False,
    mandatory: bool = False,
) -> Template:
    """Return the frames of a message on channel 1 whose body begins with a mark of four bytes and the due time.

    The mark distinguishes messages of this run from others. The size is that of the body, at least `STAMP_SIZE`;
    frame_max, that of a frame, is 0 for no limit. Raises ValueError if a name is too long.
    """
    method = encode_method(1, make(Basic.Publish, 0, exchange, routing_key, mandatory, False))
    header = build(size, delivery_mode=2 if persistent else 1)
    content = content_frames(1, frame_max, header, mark + bytes(size - MARK_SIZE))
    frames = method + content
    at = len(method) + 8 + len(header) + 7 + MARK_SIZE
    return Template(frames[:at], frames[at + STAMP_SIZE - MARK_SIZE :])


class Schedule:
    """Times at which messages are due: `rate` a second, the first at `began`, for `seconds`; 0 for no end."""

    def __init__(self, rate: float, began: int, seconds: float) -> None:
        # An integer, so that `count` and `due` agree to the nanosecond.
        self._rate = max(1, round(rate * MILLION))
        self.began = began
        self.total: int | None = None  # number of messages of the whole run; None if it has no end
        if seconds:
            self.total = self.count(began + round(seconds * NANOSECONDS) - 1)

    def end(self, now: int) -> None:
        """Let no message be due after now."""
        self.total = self.count(now)

    def due(self, number: int) -> int:
        """Return the time at which a message is due (0 is the first)."""
        return self.began - (-number * MILLION * NANOSECONDS // self._rate)

    def count(self, now: int) -> int:
        """Return the number of messages that are due by now."""
        if now < self.began:
            return 0
        found = (now - self.began) * self._rate // (MILLION * NANOSECONDS) + 1
        return found if self.total is None else min(found, self.total)


class Producer:
    """A producer on one channel, which sends its messages in rotation.

    The window is the maximum number of unconfirmed messages, 0 if confirms are off. Without a schedule, which may be
    set before the first `take`, as many messages as possible are sent.
    """

    def __init__(
        self,
        templates: Sequence[Template],
        tally: Tally,
        *,
        window: int = 0,
        schedule: Schedule | None = None,
    ) -> None:
        self._templates = templates
        self._tally = tally
        self._window = window
        self.schedule = schedule
        size = len(templates[0].before) + len(templates[0].after) + STAMP_SIZE - MARK_SIZE
        self._batch = max(1, min(BATCH, BATCH_BYTES // size))
        self._dues: dict[int, int] = {}  # due times of unconfirmed messages, by sequence number
        self._oldest = 1  # all messages before this sequence number are settled
        self.sent = 0  # number of messages handed out by `take`

    @property
    def unconfirmed(self) -> int:
        """Number of messages that are neither confirmed nor refused."""
        return len(self._dues)

    @property
    def unsent(self) -> int:
        """Number of messages of the whole run that were not sent; 0 without a schedule or its end."""
        schedule = self.schedule
        return 0 if schedule is None or schedule.total is None else schedule.total - self.sent

    def _ready(self, now: int) -> int:
        count = self._batch
        if self.schedule is not None:
            count = min(count, self.schedule.count(now) - self.sent)
        if self._window:
            count = min(count, self._window - len(self._dues))
        return count

    def take(self, now: int) -> bytes:
        """Return the frames to write now, of at most `BATCH` messages; empty if nothing may be sent.

        Without a schedule the messages are due now, in nanoseconds.
        """
        count = self._ready(now)
        if count <= 0:
            return b""
        first = self.sent
        self.sent += count
        self._tally.sent += count
        schedule = self.schedule
        if schedule is None:
            dues = [now] * count
            stamps = [_pack_due(now)] * count
        else:
            dues = [schedule.due(number) for number in range(first, first + count)]
            for due in dues:
                self._tally.send_delay.record((now - due) // 1000)
            stamps = [_pack_due(due) for due in dues]
        if self._window:
            self._dues.update(zip(range(first + 1, first + count + 1), dues, strict=True))
        return self._frames(first, stamps)

    def _frames(self, first: int, stamps: list[bytes]) -> bytes:
        templates = self._templates
        if len(templates) == 1:
            before, after = templates[0]
            return before + (after + before).join(stamps) + after
        count = len(templates)
        parts: list[bytes] = []
        for number, stamp in enumerate(stamps, first):
            before, after = templates[number % count]
            parts += before, stamp, after
        return b"".join(parts)

    def wait(self, now: int) -> int | None:
        """Return the nanoseconds until more can be sent; None if that depends on confirms or nothing is left."""
        if self._window and len(self._dues) >= self._window:
            return None
        schedule = self.schedule
        if schedule is None:
            return 0
        if schedule.total is not None and self.sent >= schedule.total:
            return None
        return max(0, schedule.due(self.sent) - now)

    def settle(self, number: int, now: int, *, multiple: bool, acked: bool) -> None:
        """Count a `basic.ack` or `basic.nack` (not `acked`); sequence number 0 with `multiple` means all."""
        pop = self._dues.pop
        if multiple:
            last = number or self.sent
            dues = [due for each in range(self._oldest, last + 1) if (due := pop(each, None)) is not None]
            self._oldest = max(self._oldest, last + 1)
        else:
            due = pop(number, None)
            dues = [] if due is None else [due]
        if not acked:
            self._tally.nacked += len(dues)
            return
        self._tally.confirmed += len(dues)
        record(self._tally.confirm_latency, dues, now)


def record(latency: Latency, dues: Sequence[int], now: int) -> None:
    """Record the times since several due times (nanoseconds); neighbours with the same due time cost one step."""
    at, end = 0, len(dues)
    while at < end:
        due = dues[at]
        start = at
        at += 1
        while at < end and dues[at] == due:
            at += 1
        latency.record((now - due) // 1000, at - start)


class Confirms(Incoming):
    """The receiving side of a producer's connection: confirms, and returned messages."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally
        self.producer: Producer | None = None  # the producer on channel 1; None until it is set up

    def handle(self, index: int, data: bytes, at: int, now: int) -> bool:
        """Count a confirm or a return."""
        if index in {BASIC_ACK, BASIC_NACK} and self.producer is not None:
            number, bits, _ = unpack_ack(data, at + FIELDS_AT)
            self.producer.settle(number, now, multiple=bool(bits & 1), acked=index == BASIC_ACK)
            return True
        if index == BASIC_RETURN:
            self._tally.returned += 1
            return True
        return False
