"""Consumers of streams, and the shares that they are sent.

Hot path: see docs/performance.md.
"""

from collections.abc import Iterator, Sequence
from typing import overload

from leveret.broker.amqp.fastpath import pack_tag
from leveret.broker.queue.consumer import INLINE_LIMIT, Consumer
from leveret.storage.message import Message
from leveret.storage.queues.chunks import Shape, message_of_copy


class Share(Sequence[Message]):
    """Messages of one chunk, by their copies (see `storage.queues.chunks`), with its `shape` and `largest`."""

    __slots__ = ("copies", "largest", "shape")

    def __init__(self, copies: list[bytes], shape: Shape | None, largest: int) -> None:
        self.copies = copies
        self.shape = shape
        self.largest = largest

    def fits(self, channel_id: int, frame_max: int) -> bool:
        """Return whether a channel can be sent the copies as they are."""
        return self.shape is not None and self.shape.channel_id == channel_id and self.largest <= frame_max

    def __len__(self) -> int:
        return len(self.copies)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [message_of_copy(copy) for copy in self.copies[index]]
        return message_of_copy(self.copies[index])

    def __iter__(self) -> Iterator[Message]:
        return map(message_of_copy, self.copies)


class StreamConsumer(Consumer):
    """A consumer of a stream: it joins the copies of a share that were made for its channel number."""

    __slots__ = ()

    def deliver(self, seq_ids: Sequence[int], messages: Sequence[Message], *, redelivered: bool) -> None:
        """Send messages, as `Consumer.deliver`."""
        channel = self.channel
        if not isinstance(messages, Share) or not messages.fits(channel.number, channel.frame_max):
            super().deliver(seq_ids, messages, redelivered=redelivered)
            return
        copies, shape = messages.copies, messages.shape
        count = len(copies)
        first = channel.delivery_tag + 1
        size = shape.address_size  # type: ignore[union-attr] # it fits
        parts: list[bytes] = [self._heads.get(size) or self._encode(size)] * (3 * count)
        parts[1::3] = map(pack_tag, range(first, first + count))
        parts[2::3] = copies
        if messages.largest > INLINE_LIMIT:
            self.outbox.frames += parts
        else:
            self.outbox.frames.append(b"".join(parts))
        self._sent(seq_ids, first, sum(map(len, copies)))
