"""The objects around the parts of a queue, as these see them: the queue, its vhost, the channels of its consumers.

A queue imports its parts, and vhosts and channels import queues: so this is all that the parts know of them.
"""
# ruff: noqa: D102 - the classes that are named describe their members

from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from leveret.broker.counters.totals import QueueTally
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.queue.settings import QueueSettings
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.scheduling.turn import Runnable, Turn
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.storage.damage import Damages
from leveret.storage.delayed import DelayedRows, Start
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue

if TYPE_CHECKING:
    from leveret.storage.journal.journal import Journal
    from leveret.storage.store.environment import FileSnapshot


class OwningQueue(Runnable, Protocol):
    """A queue (`broker.queue.queue.Queue`), as its parts see it."""

    name: str
    vhost: str
    type: str
    durable: bool
    qid: int
    settings: QueueSettings
    turn: Turn
    backing: BackingQueue
    awaiting: ConsumerAckQueue | None
    saves_all: bool
    awaits_consumers: bool
    deleted: bool
    inbox: list[Message]
    acks: list[int]
    delivered: int
    tally: QueueTally
    moving: int

    @property
    def store(self) -> BackingQueue: ...
    @property
    def ids(self) -> Any:
        """Its `broker.queue.deduplication.Deduplication`; None if it never took messages by their ids."""

    @property
    def consumers(self) -> Any:
        """Its `broker.queue.consumer_rotation.ConsumerRotation`."""

    @property
    def consumer_count(self) -> int: ...
    @property
    def held_count(self) -> int: ...
    def touch(self) -> None: ...
    def settle(self) -> None: ...
    def end_first(self) -> None: ...
    def used(self) -> None: ...
    def take_in(self, messages: list[Message], *, expires: int) -> None: ...
    def admit(self, message: Message) -> None: ...
    def taken(self, count: int) -> None: ...
    def add_consumer(self, consumer: Any) -> None:
        """Add a consumer; the caller must have checked exclusivity, and must call `touch` afterwards."""

    def rejoin(self, consumer: Any) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def requeue(self, seq_ids: Collection[int], *, failed: bool = True) -> None: ...
    def bring_back(self, seq_ids: Collection[int]) -> None: ...
    def drop_rejected(self, keys: Collection[int], *, moved: bool) -> None: ...
    def dead_lettered(self, count: int, moved: Collection[int]) -> None: ...
    def after_next_run(self, callback: Callable[[], object]) -> None: ...
    def finish(self) -> None: ...


class DelayDisk(Protocol):
    """The data store (`broker.persistence.data_store.DataStore`); earlier runs used only numbers below `first_seq`."""

    first_seq: int
    journal: "Journal"

    @property
    def damages(self) -> Damages: ...
    @property
    def blob_threshold(self) -> int: ...
    def next_id(self) -> int: ...
    def read_delayed(self, line: int, start: Start, done: Callable[[DelayedRows], None]) -> None: ...
    def snapshot(self) -> "FileSnapshot": ...


class TakingQueue(Protocol):
    """The queue, or the exchange (`broker.vhost.exchange_ids.ExchangeIds`), as its deduplication sees it."""

    name: str
    vhost: str
    durable: bool
    saves_all: bool
    qid: int
    awaits_consumers: bool

    @property
    def tally(self) -> Any:
        """Counters, `repeated` among them, of its repeats."""

    def touch(self) -> None: ...
    def end_first(self) -> None: ...


class RetainedMessages(Protocol):
    """The queue of retained messages (`broker.queue.retained_queue.RetainedQueue`)."""

    settings: QueueSettings
    backing: BackingQueue

    def keep(self, messages: Sequence[Message]) -> None: ...
    def settle(self) -> None: ...
    def retain(self, settings: QueueSettings) -> None: ...
    def delete(self) -> Any: ...


class ParentVHost(Protocol):
    """The vhost, which expires queues and publishes their dead letters."""

    context: NodeContext
    compatibility: QueueCompatibility
    disk: DelayDisk | None
    holds_promises: bool  # false to refuse messages to be held whose publishers wait for a consumer

    def expire(self, queue: Any) -> None: ...
    def queue_finished(self, queue: Any) -> None:
        """Called when a deleted queue has discarded its last message."""

    def make_retention(self, queue: Any, before: BackingQueue | None) -> Any:
        """Create the retention of a queue, with the queue of its retained messages; `before` had the last ones."""

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
    def global_room(self) -> int: ...
    def consumer_cancelled(self, consumer: Any) -> None: ...
    def number_publishes(self, route: Any, count: int = 1) -> None: ...
