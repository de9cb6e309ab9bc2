"""Publisher flow control: balances publishers and consumers of a queue.

A publisher without limits can keep the broker reading so much that consumers' acks wait in their sockets while the
backlog grows. So a connection that has just published to a queue with a backlog and *brisk* consumers is not read for a
moment: until the queue has drained, or `PAUSE_SECONDS` at most. Slow consumers do not throttle publishers: a pause that
has not helped is not repeated on that queue for a while, which doubles each time it happens again, so a queue whose
only consumer has prefetch 1 and never acks takes publishes at full speed. A connection that also consumes is never
paused, because its acks could then not be read.

A queue that had no time yet to discard excess or expired messages pauses everybody who publishes to it: it delivers
nothing until then, so this delays no acks.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from leveret.broker.queue.queue import DrainListener, Queue
from leveret.broker.vhost.fan_out import AT_ONCE

HIGH = 1000
"""Ready messages from which a publisher is paused."""
LOW = 250
"""Ready messages at which it resumes."""
PAUSE_SECONDS = 0.01
FUTILE_SECONDS = 0.02
"""Time without further pauses on a queue after the first pause that did not help."""
FUTILE_LIMIT = 1.0
"""Maximum of that time after repeated futile pauses."""
SMALL_APPETITE = 16 * 1024
"""Bytes per read from a publisher that is being paced."""
DRAIN_SECONDS = 0.2
_LOOK_AT = 16  # consumers
_BRISK_SHARE = 12
_BRISK_MESSAGES = 2500  # messages that a publisher at full speed could have sent during a pause
_BRISK_OCTETS = 5_000_000


class Reader(Protocol):
    """The driver of a publishing connection."""

    appetite: int

    def pause_reading(self) -> None:
        """Stop reading for now."""

    def resume_reading(self) -> None:
        """Resume reading."""


class Pause(DrainListener):
    """The pause of one publisher for one queue."""

    __slots__ = ("_delivered", "_message_size", "_queue", "_reader", "over")

    def __init__(self, queue: Queue, reader: Reader, message_size: int) -> None:
        self._queue = queue
        self._reader = reader
        self._message_size = max(1, message_size)
        self._delivered = queue.delivered
        self.over = False
        queue.add_listener(self)
        reader.appetite = min(reader.appetite, SMALL_APPETITE)
        reader.pause_reading()

    def queue_ran(self, queue: Queue) -> None:
        """Resume if the backlog is gone, or no consumer is left to drain it."""
        if queue.is_behind:
            return
        if queue.backing.ready_count <= LOW or not queue.consumers:
            self._finish()

    def expire(self, now: float) -> None:
        """Resume after `PAUSE_SECONDS`, and judge whether the pause has helped."""
        if self.over:
            return
        queue = self._queue
        if queue.is_behind:
            self._finish()
            return
        if self._was_futile(now):
            queue.futile_pauses += 1
            backoff = FUTILE_SECONDS * 2 ** min(queue.futile_pauses, 10)
            queue.unpaced_until = now + min(backoff, FUTILE_LIMIT)
        else:
            queue.futile_pauses = 0
        self._finish()

    def _was_futile(self, now: float) -> bool:
        """Return whether the consumers are too slow to wait for.

        A consumer whose socket is full takes nothing for a while and then much at once, however fast it reads: it is
        judged by what it took in `DRAIN_SECONDS`.
        """
        queue = self._queue
        possible = min(_BRISK_MESSAGES, _BRISK_OCTETS // self._message_size)
        if (queue.delivered - self._delivered) * _BRISK_SHARE >= possible:
            return False
        if not any(consumer.outbox.full for consumer in islice(queue.consumers, _LOOK_AT)):
            return True
        since, delivered = queue.draining
        if now - since > 2 * DRAIN_SECONDS:  # the window is stale: start a new one
            queue.draining = now, queue.delivered
            return False
        if now - since < DRAIN_SECONDS:
            return False
        queue.draining = now, queue.delivered
        return (queue.delivered - delivered) * _BRISK_SHARE < possible * (now - since) / PAUSE_SECONDS

    def _finish(self) -> None:
        self.over = True
        self._queue.remove_listener(self)
        self._reader.resume_reading()


def congested(queues: Sequence[Queue], now: float) -> Queue | None:
    """Return the first of the queues that a publisher should wait for, as far as there is time to check them."""
    for queue in islice(queues, AT_ONCE):
        if queue.is_behind:
            return queue
        if queue.backing.ready_count > HIGH and queue.consumers and now >= queue.unpaced_until:
            return queue
    return None
