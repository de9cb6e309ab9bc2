"""Consumers: prefetch, and encoding of deliveries.

Hot path: see docs/performance.md.
"""

from collections.abc import Sequence
from itertools import repeat

from leveret.broker.amqp.fastpath import SPLIT_LIMIT, body_start, deliver_head, pack_tag, reframe, reframed
from leveret.broker.amqp.tables import Table
from leveret.broker.queue.interfaces import ClientChannel, OwningQueue
from leveret.storage.large_table import MANY, fitting
from leveret.storage.message import Message

UNLIMITED = 1 << 60
_NONE: tuple[None, bytes, bytes] = (None, b"", b"")
INLINE_LIMIT = (
    512  # content up to here is copied into one frame string, larger content is passed by reference
)
_START_LIMIT = 512  # bytes before a body that are remembered
_NO_START: tuple[tuple[()] | bytes, bytes, int] = ((), b"", 0)


class Consumer:
    """A consumer, created by `basic.consume`.

    With `no_ack` deliveries count as acked when sent, and no prefetch applies. `prefetch_count` is the limit of unacked
    messages, 0 for none; a consumer of a higher `priority` is served first. The `arguments` are valid.
    """

    __slots__ = (
        "_heads",
        "_latest",
        "_start",
        "arguments",
        "cancelled",
        "channel",
        "delivered",
        "exclusive",
        "limit",
        "no_ack",
        "outbox",
        "parked",
        "prefetch_count",
        "priority",
        "queue",
        "redelivered",
        "returned",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        tag: str,
        queue: OwningQueue,
        channel: ClientChannel,
        *,
        no_ack: bool,
        exclusive: bool = False,
        prefetch_count: int = 0,
        priority: int = 0,
        arguments: Table | None = None,
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.channel = channel
        self.outbox = channel.outbox
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch_count = prefetch_count
        self.limit = prefetch_count if prefetch_count and not no_ack else UNLIMITED
        self.priority = priority
        self.arguments = arguments or {}
        self.unacked = 0
        self.parked = False  # True if it is not in the queue's rotation: no credit, or a full outbox
        self.cancelled = False
        # counters
        self.delivered = 0
        self.redelivered = 0  # deliveries of messages that had been delivered before, to any consumer
        self.returned = 0  # deliveries that were requeued or rejected
        self._heads: dict[int, bytes] = {}
        """The deliver method before the delivery tag, by the size of the address; an address has at most 512 bytes."""
        self._latest: tuple[bytes | None, bytes, bytes] = _NONE
        """The last address, and the deliver method before and after the delivery tag."""
        self._start = _NO_START
        """The bytes before the body of the last content from another channel, their form for this channel, and the size
        of that content."""

    def __repr__(self) -> str:
        return f"<consumer {self.tag!r} of {self.queue!r}>"

    @property
    def room(self) -> int:
        """Number of messages that may be delivered now (<= 0: none)."""
        if self.outbox.full:
            return 0
        room = self.limit - self.unacked
        if self.channel.global_prefetch:
            left = self.channel.global_room
            if self.no_ack and left > 0:
                return room  # not counted against the channel's limit, but waits while that is used up
            return min(room, left)
        return room

    @property
    def acked(self) -> int:
        """Number of acked deliveries; 0 for a consumer with automatic acks."""
        return 0 if self.no_ack else self.delivered - self.unacked - self.returned

    def give_back(self, count: int) -> None:
        """Subtract messages that were requeued or rejected from the unacked count."""
        self.unacked -= count
        self.returned += count

    @property
    def ack_timeout(self) -> int | None:
        """Timeout for acks in ms: 0 for none, None for the broker's default."""
        own = self.arguments.get("x-consumer-timeout")
        return self.queue.settings.consumer_timeout if own is None else own[1]

    def park(self) -> None:
        """Mark this consumer as taken out of the queue's rotation."""
        self.parked = True
        if self.outbox.full:
            self.outbox.parked[self] = None

    def wake(self) -> None:
        """Rejoin the rotation if there is room again; called after acks and when the outbox has drained."""
        if not self.parked or self.cancelled:
            return
        if self.outbox.full:
            self.outbox.parked[self] = None
        elif self.room > 0:
            self.parked = False
            self.queue.rejoin(self)

    def deliver(self, seq_ids: Sequence[int], messages: Sequence[Message], *, redelivered: bool) -> None:
        """Send messages; the caller must ensure that there is `room` for them."""
        channel = self.channel
        number, frame_max = channel.number, channel.frame_max
        outbox = self.outbox
        append, pack, inline = outbox.frames.append, pack_tag, INLINE_LIMIT
        first = tag = channel.delivery_tag
        size = 0
        heads = self._heads
        old, new, total = self._start
        address, head, tail = latest = _NONE if redelivered else self._latest
        for message in messages:
            tag += 1
            if message.address is not address:
                address = message.address
                head = heads.get(len(address)) or self._encode(len(address))
                tail = (b"\x01" if redelivered else b"\x00") + address + b"\xce"
            content = message.content
            length = len(content)
            if message.channel_id != number or length > frame_max:
                if length == total and content.startswith(old):
                    size += length
                    append(head + pack(tag) + tail + new)
                    append(content[len(new) :])
                    continue
                if length > SPLIT_LIMIT:
                    size += length
                    append(head + pack(tag) + tail)
                    outbox.frames += reframed(content, number, frame_max)
                    continue
                content = self._reframe(content)
                old, new, total = self._start
                length = len(content)
            size += length
            if length > inline:
                append(head + pack(tag) + tail)
                append(content)
            else:
                append(head + pack(tag) + tail + content)
        if address is not latest[0] and not redelivered:
            self._latest = address, head, tail
        if redelivered:
            self.redelivered += tag - first
        self._sent(seq_ids, first + 1, size)

    def _sent(self, seq_ids: Sequence[int], first: int, size: int) -> None:
        """Take account of deliveries from a tag on that are in the outbox, of `size` bytes."""
        channel, outbox = self.channel, self.outbox
        count = len(seq_ids)
        channel.delivery_tag = last = first + count - 1
        channel.delivered += count
        self.queue.delivered += count
        self.delivered += count
        if not self.no_ack:
            unacked = channel.unacked
            if count == 1:
                unacked[last] = self, seq_ids[0]
            else:
                unacked.update(zip(range(first, last + 1), zip(repeat(self), seq_ids), strict=True))
            if len(unacked) > MANY:
                channel.unacked = fitting(unacked)
            self.unacked += count
        outbox.pending = pending = outbox.pending + size
        if pending > outbox.limit:
            outbox.full = True
        if not outbox.scheduled:
            outbox.scheduled = True
            outbox.turn.outboxes.append(outbox)

    def _reframe(self, content: bytes) -> bytes:
        """Return the content for this channel; remember the bytes before its body if such a content came before."""
        framed = reframe(content, self.channel.number, self.channel.frame_max)
        length, start = len(content), 0
        if length == self._start[2] and length == len(framed):
            start = body_start(content)
        if 0 < start <= _START_LIMIT:
            self._start = content[:start], framed[:start], length
        else:
            self._start = (), b"", length
        return framed

    def _encode(self, size: int) -> bytes:
        """Return the octets of the deliver method before the delivery tag, cached by the size of the address."""
        head = self._heads[size] = deliver_head(self.channel.number, self.tag, size)
        return head


class GetRecipient:
    """The "consumer" of a message fetched by `basic.get` in a channel's unacked table: without prefetch and credit."""

    __slots__ = ("_channel", "queue")
    parked = False

    def __init__(self, queue: OwningQueue, channel: ClientChannel) -> None:
        self.queue = queue
        self._channel = channel

    def __repr__(self) -> str:
        return f"<get of {self.queue!r}>"

    @property
    def unacked(self) -> int:
        """Number of unsettled messages that the channel fetched by `basic.get`."""
        return self._channel.got

    @unacked.setter
    def unacked(self, count: int) -> None:
        self._channel.got = count

    def give_back(self, count: int) -> None:
        """Subtract messages that were requeued or rejected from the count."""
        self._channel.got -= count

    @property
    def ack_timeout(self) -> int | None:
        """Timeout for acks in ms, as for a consumer without one of its own."""
        return self.queue.settings.consumer_timeout

    def wake(self) -> None:
        """Do nothing: there is no consumer to wake."""
