"""Deadlock detection: queues whose publishers and consumers wait for each other, with confirms on consumer ack.

Theory. A publisher waits for confirms before it publishes more, and a consumer for more deliveries before it acks those
it has, so neither ever proceeds. The symptoms: nothing is ready, nothing is published or acked, and a consumer with
deliveries has room for more. A slow consumer has the same symptoms, so the deadlock is not resolved here; it is
reported, once for each queue.

A queue without any consumer never confirms, either: that is reported, too, each time that it begins.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from leveret.confirm.consumer_ack import ConsumerAckQueue

TRAP_SECONDS = 10.0  # seconds without a publish or an ack before a queue is reported
TRAP = (
    "%r appears deadlocked: %d publishes await consumer acks, and nothing was published or acked for %d s. The "
    "publishers' windows of unconfirmed messages must be at least as large as the ack batches (or prefetch counts) of "
    "all consumers together; or set confirm.timeout"
)
FORSAKEN = (
    "%r has no consumer. Publishes that wait for the ack of one: %d, for %d s. Start a consumer; or set "
    "confirm.timeout, or the confirm mode 'standard'"
)


class AwaitedQueue(Protocol):
    """A queue, as deadlock detection sees it."""

    published: int
    acked: int
    deadlock_state: "DeadlockState | None"

    awaiting: ConsumerAckQueue | None

    @property
    def consumers(self) -> Iterable[Any]:
        """Its consumers."""


class DeadlockState:
    """State of deadlock detection for one queue: the times since the last publish or ack, and of the last consumer."""

    __slots__ = ("_counts", "_forsaken_since", "_is_forsaken", "_is_reported", "_since")

    def __init__(self) -> None:
        self._counts = (-1, -1)
        self._since = 0.0
        self._is_reported = False
        self._forsaken_since: float | None = None
        self._is_forsaken = False

    def is_forsaken(self, now: float, *, waits: bool) -> bool:
        """Return true, once, if publishes have waited without a consumer for `TRAP_SECONDS`; `waits`: they do now."""
        if not waits:
            self._forsaken_since, self._is_forsaken = None, False
            return False
        if self._forsaken_since is None:
            self._forsaken_since = now
        if self._is_forsaken or now - self._forsaken_since < TRAP_SECONDS:
            return False
        self._is_forsaken = True
        return True

    def lasts(self, now: float, *, published: int, acked: int, is_still: bool) -> bool:
        """Record the counters; return true, once, if the queue has been still for `TRAP_SECONDS`."""
        if not is_still or (published, acked) != self._counts:
            self._counts = published, acked
            self._since = now
        if self._is_reported or now - self._since < TRAP_SECONDS:
            return False
        self._is_reported = True
        return True


def is_trapped(queue: AwaitedQueue, now: float) -> bool:
    """Return whether a queue appears to be deadlocked and was not reported before; call it about once a second."""
    promises = queue.awaiting
    if promises is None:
        return False
    is_still = (
        promises.open_count > 0
        and not promises.ready_count
        and any(consumer.unacked and consumer.room > 0 for consumer in queue.consumers)
    )
    return _state_of(queue).lasts(now, published=queue.published, acked=queue.acked, is_still=is_still)


def is_forsaken(queue: AwaitedQueue, now: float) -> bool:
    """Return whether publishes wait for a consumer that has been missing for a while; true once, until one comes.

    Must be called about once a second; `now` is seconds of a monotonic clock.
    """
    promises = queue.awaiting
    if promises is None:
        return False
    return _state_of(queue).is_forsaken(
        now, waits=promises.open_count > 0 and not any(True for _ in queue.consumers)
    )


def _state_of(queue: AwaitedQueue) -> DeadlockState:
    if queue.deadlock_state is None:
        queue.deadlock_state = DeadlockState()
    return queue.deadlock_state
