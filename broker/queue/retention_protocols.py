"""The queues on both sides of a retention (`broker.queue.retention`), as far as it needs them."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from leveret.broker.scheduling.turn import Turn
from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue


class RetainingQueue(Protocol):
    """A queue, as far as its retention needs it."""

    name: str
    backing: BackingQueue
    awaiting: ConsumerAckQueue | None
    saves_all: bool
    deleted: bool

    @property
    def durable(self) -> bool:
        """True if the queue survives a restart."""

    @property
    def store(self) -> BackingQueue:
        """The backing queue that keeps the messages."""

    @property
    def turn(self) -> Turn:
        """The server's work list."""

    def touch(self) -> None:
        """Schedule a run of the queue at the end of this turn."""

    def after_next_run(self, callback: Callable[[], object]) -> None:
        """Call back once, after the next run; the queue runs when messages have been read from disk."""


class RetainedMessages(Protocol):
    """The queue of retained messages (`broker.queue.retained_queue.RetainedQueue`)."""

    settings: Any
    backing: BackingQueue
    message_count: int
    """Number of acked messages."""

    @property
    def is_counted(self) -> bool:
        """True if that is exact; otherwise there may be more."""

    def keep(self, messages: Collection[Message], *, largest: int, persistent: bool) -> None:
        """Append messages; see `RetainedQueue.keep`."""

    def gather(self, messages: Sequence[Message], share: int, *, is_saved: bool) -> None:
        """Append messages that may wait for others; see `RetainedQueue.gather`."""

    def retain(self, settings: Any) -> None:
        """Apply the settings of the queue that the messages come from."""

    def delete(self) -> Any:
        """Delete it."""
