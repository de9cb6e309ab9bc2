"""The receiving side of a consumer's connection: deliveries, their latency, and acks.

Theory. The deliveries of a load are alike: between two of them only the delivery tag, the redelivered bit and the time
in the body differ. After one delivery was parsed frame by frame, `Deliveries.skip` therefore reads the next ones with
one `struct` of the same shape, and compares the bytes between these fields with those of the first. What does not match
is parsed frame by frame again.
"""

import struct
from functools import lru_cache

from leveret.broker.amqp.commands import Basic, Frame
from leveret.broker.amqp.fastpath import FRAME_END, TYPE_HEADER, TYPE_METHOD, unpack_header
from leveret.broker.client.frames import FIELDS_AT, Incoming
from leveret.broker.perf.load import STAMP_SIZE
from leveret.broker.perf.measurement import Tally
from leveret.broker.perf.producer import MARK_SIZE, record

BASIC_DELIVER = Basic.Deliver.index
BODY_AT = 7
TAG_SIZE = 9  # bytes of the delivery tag and the redelivered bit

_unpack_tag = struct.Struct(">Q?").unpack_from
_unpack_due = struct.Struct(">Q").unpack_from
_pack_ack = struct.Struct(">BHIHHQ?B").pack


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
