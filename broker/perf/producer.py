"""Producers and consumers without their sockets: which messages are due, their frames, and what arrives.

Theory. With a rate every message has a time at which it is due, fixed before the run begins, and latencies count from
that time. A broker that stops reading for a second thus adds up to a second to each message that was due meanwhile, as
it would for an application; counted from the time of sending, the pause would be seen in a handful of messages only
(*coordinated omission*). Without a rate a message is due when it is sent.

The deliveries of a load are alike: between two of them only the delivery tag, the redelivered bit and the time in the
body differ. After one delivery was parsed frame by frame, `Deliveries.skip` therefore reads the next ones with one
`struct` of the same shape, and compares the bytes between these fields with those of the first. What does not match is
parsed frame by frame again.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Frame, make
from leveret.broker.amqp.fastpath import (
    BASIC_ACK,
    FRAME_END,
    TYPE_HEADER,
    TYPE_METHOD,
    content_frames,
    unpack_ack,
    unpack_header,
)
from leveret.broker.amqp.properties import build
from leveret.broker.client.frames import FIELDS_AT, Incoming
from leveret.broker.counters.histogram import Latency
from leveret.broker.perf.load import STAMP_SIZE
from leveret.broker.perf.measurement import NANOSECONDS, Tally

BASIC_DELIVER = Basic.Deliver.index
BASIC_NACK = Basic.Nack.index
BASIC_RETURN = Basic.Return.index
BATCH = 128  # maximum number of messages of a write
BATCH_BYTES = 64 * 1024
MILLION = 1_000_000
MARK_SIZE = 4
BODY_AT = 7
TAG_SIZE = 9  # bytes of the delivery tag and the redelivered bit

_DUE = struct.Struct(">Q")
_pack_due, _unpack_due = _DUE.pack, _DUE.unpack_from
_unpack_tag = struct.Struct(">Q?").unpack_from
_pack_ack = struct.Struct(">BHIHHQ?B").pack


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


@lru_cache(maxsize=64)
def _layout(head: int, middle: int) -> struct.Struct:
    return struct.Struct(f">{head}sQ?{middle}sQ")


class Deliveries(Incoming):
    """The receiving side of a consumer's connection.

    Only bodies that begin with the mark of this run contain a due time. `ack_every` are the deliveries per ack, 0 for
    none: an ack of one delivery is sent for each, others have `multiple`.
    """

    def __init__(self, tally: Tally, mark: bytes, ack_every: int) -> None:
        super().__init__()
        self._tally = tally
        self._mark = mark
        self._ack_every = ack_every
        self._unacked: list[int] = []
        self._method_at = self._tag_at = -1
        """Positions of the last `basic.deliver` and of its tag in the bytes of this read; -1 if it came earlier."""
        self._redelivered = False
        self._head = self._middle = b""
        self._stride = 0
        self._is_first_frame = False
        self._whole_body = 0  # size of the body, in bytes, that the last content header declares

    def skip(self, data: bytes, at: int, now: int) -> int:
        """Process deliveries of the known layout, from `at` on."""
        stride = self._stride
        end = len(data) - stride
        if not stride or at > end:
            return at
        head, middle = self._head, self._middle
        unpack = _layout(len(head), len(middle)).unpack_from
        start = at
        tags: list[int] = []
        dues: list[int] = []
        redelivered = 0
        while at <= end:
            first, tag, again, between, due = unpack(data, at)
            if first != head or between != middle:
                break
            tags.append(tag)
            dues.append(due)
            redelivered += again
            at += stride
        if at > start:
            self._tally.received += len(tags)
            self._tally.own += len(tags) - redelivered
            record(self._tally.latency, dues, now)
            if self._ack_every:
                self._unacked += tags
        return at

    def feed(self, data: bytes, now: int) -> list[tuple[int, Frame]]:
        """Process received bytes; see `Incoming.feed`. Acks are then in `replies`."""
        self._method_at = -1
        methods = super().feed(data, now)
        if self._unacked:
            self._acknowledge()
        return methods

    def handle(self, index: int, data: bytes, at: int, now: int) -> bool:  # noqa: ARG002 - see the base
        """Note the tag of a delivery."""
        if index != BASIC_DELIVER:
            return False
        self._method_at = at
        self._tag_at = at + FIELDS_AT + 1 + data[at + FIELDS_AT]
        tag, self._redelivered = _unpack_tag(data, self._tag_at)
        self._tally.received += 1
        if self._ack_every:
            self._unacked.append(tag)
        return True

    def content(self, kind: int, data: bytes, at: int, end: int, now: int) -> None:
        """Read the due time at the beginning of a body, and learn the layout of the delivery."""
        if kind == TYPE_HEADER:
            self._is_first_frame = True
            self._whole_body = unpack_header(data, at)[4]
            return
        if not self._is_first_frame:
            return
        self._is_first_frame = False
        body = at + BODY_AT
        if not data.startswith(self._mark, body) or end - 1 - body < STAMP_SIZE:
            return
        due_at = body + MARK_SIZE
        (due,) = _unpack_due(data, due_at)
        self._tally.latency.record((now - due) // 1000)
        self._tally.own += not self._redelivered
        method_at = self._method_at
        if method_at >= 0 and end - 1 - body == self._whole_body:
            self._head, self._middle = data[method_at : self._tag_at], data[self._tag_at + TAG_SIZE : due_at]
            self._stride = end - method_at

    def _acknowledge(self) -> None:
        every, tags = self._ack_every, self._unacked
        count = len(tags) // every * every
        last = tags[every - 1 : count : every]
        self._replies += [_pack_ack(TYPE_METHOD, 1, 13, 60, 80, tag, every > 1, FRAME_END) for tag in last]
        del tags[:count]
