"""The objects around the parts of a queue, as these see them: the queue, its vhost, the channels of its consumers.

A queue imports its parts, and vhosts and channels import queues: so this is all that the parts know of them.
"""

from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import Any, Protocol

from leveret.broker.counters.totals import QueueTally
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.queue.settings import QueueSettings
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.scheduling.turn import Runnable, Turn
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue


class OwningQueue(Runnable, Protocol):
    """A queue (`broker.queue.queue.Queue`), as its parts see it."""

    name: str
    type: str
    settings: QueueSettings
    turn: Turn
    backing: BackingQueue
    awaiting: ConsumerAckQueue | None
    saves_all: bool
    deleted: bool
    inbox: list[Message]
    acks: list[int]
    delivered: int
    tally: QueueTally
    moving: int

    @property
    def store(self) -> BackingQueue:
        """The backing queue that keeps the messages."""

    @property
    def ids(self) -> Any:
        """Its `broker.queue.deduplication.Deduplication`; None if it never took messages by their ids."""

    @property
    def consumers(self) -> Any:
        """Its `broker.queue.consumer_rotation.ConsumerRotation`."""

    @property
    def consumer_count(self) -> int:
        """Number of consumers, ready or not."""

    @property
    def held_count(self) -> int:
        """Number of messages that no consumer gets yet."""

    def touch(self) -> None:
        """Schedule a run of the queue at the end of this turn."""

    def settle(self) -> None:
        """Process the acks and arrivals collected in this turn."""

    def take_in(self, messages: list[Message], *, expires: int) -> None:
        """Deliver arrivals to consumers, or enqueue them."""

    def taken(self, count: int) -> None:
        """Record that the first `count` arrivals were enqueued before an error."""

    def add_consumer(self, consumer: Any) -> None:
        """Add a consumer; the caller must have checked exclusivity, and must call `touch` afterwards."""

    def rejoin(self, consumer: Any) -> None:
        """Put a consumer back at the end of the rotation."""

    def suspend(self) -> None:
        """Deliver nothing until `resume` has been called as many times."""

    def resume(self) -> None:
        """Resume delivery."""

    def requeue(self, seq_ids: Collection[int], *, failed: bool = True) -> None:
        """Requeue unacked messages at their original positions."""

    def discard(self, seq_ids: Collection[int]) -> None:
        """Discard unacked messages that were rejected without requeue; the caller must call `touch` afterwards."""

    def drop_rejected(self, keys: Collection[int], *, moved: bool) -> None:
        """Remove rejected messages that do not become dead letters."""

    def dead_lettered(self, count: int, moved: Collection[int]) -> None:
        """Count dead-lettered messages, and remove those that `moved`."""

    def after_next_run(self, callback: Callable[[], object]) -> None:
        """Call back once, after the next run; the queue runs when messages have been read from disk."""

    def finish(self) -> None:
        """Empty a deleted queue after its last discard."""


class RetainedMessages(Protocol):
    """The queue of retained messages (`broker.queue.retained_queue.RetainedQueue`)."""

    settings: QueueSettings
    backing: BackingQueue
    message_count: int  # number of acked messages

    @property
    def is_counted(self) -> bool:
        """True if that is exact; otherwise there may be more."""

    def keep(self, messages: Collection[Message], *, largest: int, persistent: bool) -> None:
        """Append messages; see `RetainedQueue.keep`."""

    def gather(self, messages: Sequence[Message], share: int, *, is_saved: bool) -> None:
        """Append messages that may wait for others; see `RetainedQueue.gather`."""

    def retain(self, settings: QueueSettings) -> None:
        """Apply the settings of the queue that the messages come from."""

    def delete(self) -> Any:
        """Delete it."""


class ParentVHost(Protocol):
    """The vhost, which expires queues and publishes their dead letters."""

    context: NodeContext
    compatibility: QueueCompatibility

    def expire(self, queue: Any) -> None:
        """Delete an unused queue."""

    def queue_finished(self, queue: Any) -> None:
        """Called when a deleted queue has discarded its last message."""

    def make_retention(self, queue: Any, before: BackingQueue | None) -> Any:
        """Create the retention of a queue, with the queue of its retained messages; `before` had the last ones."""

    def make_hold(self, queue: Any) -> Any:
        """Create what holds messages of a queue until their time (`broker.queue.hold.Hold`)."""

    def make_ids(self, queue: Any) -> Any:
        """Create what a queue knows of ids (`broker.queue.deduplication.Deduplication`)."""

    def make_retries(self, queue: Any) -> Any:
        """Create what holds back messages that come back to a queue (`broker.queue.retries.Retries`)."""

    def dead_letter(
        self, queue: Any, letters: Sequence[tuple[int, Message]], reason: str
    ) -> tuple[int, Collection[int]]:
        """Publish unacked messages of a queue to its dead letter exchange, if that exists and routes them.

        A negative seq_id stands for a message that was never in the queue. Returns the number of messages taken, from
        the first on: at least one, fewer than all if the step is over. And the seq_ids of those that may be removed in
        the same commit; the others are removed when their dead letters are safely stored (`Queue.remove_moved`).
        """


class ClientChannel(Protocol):
    """A channel (`broker.channel.channel.Channel`), as its consumers and the routes of its publishes see it."""

    number: int
    frame_max: int
    outbox: Outbox
    delivery_tag: int
    unacked: MutableMapping[int, tuple[Any, int]]
    global_prefetch: int
    got: int
    delivered: int
    confirms: ChannelConfirms | None
    published: int
    dropped: int
    tx: Any
    committing: Any

    @property
    def host(self) -> Any:
        """Its connection, or what stands for it: it has a `name` and a `user`."""

    @property
    def global_room(self) -> int:
        """Number of further messages that the channel-wide prefetch allows."""

    def consumer_cancelled(self, consumer: Any) -> None:
        """Remove a consumer whose queue was deleted, and notify the client."""

    def number_publishes(self, route: Any, count: int = 1) -> None:
        """Assign sequence numbers to publishes, and schedule their confirms."""
