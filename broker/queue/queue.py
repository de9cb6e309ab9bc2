"""Queues: publish, delivery to consumers in rotation, requeue, purge and deletion.

Theory. During a turn the queue only collects: publishes in `inbox`, settled deliveries in `acks`. `run`, once a turn,
processes both: acks first, then arrivals (delivered directly to ready consumers while nothing older is waiting,
otherwise kept by the backing queue), then the ready messages. `consumers` chooses their consumers
(`broker.queue.consumer_rotation`). Operations that need the exact state call `settle` first.

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901, PLR0912 - hot: one flat function is several times cheaper than small ones

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, cast

from leveret.broker.amqp.properties import may_expire
from leveret.broker.amqp.tables import Table
from leveret.broker.counters.sampling import QueueMeter
from leveret.broker.counters.totals import QueueCounts, QueueTally
from leveret.broker.errors import NotYet
from leveret.broker.queue.arguments import CLASSIC, queue_type
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.consumer_rotation import ConsumerRotation
from leveret.broker.queue.deduplication import Deduplication
from leveret.broker.queue.due_line import DueLine
from leveret.broker.queue.hold import Hold
from leveret.broker.queue.id_notes import Verdict
from leveret.broker.queue.interfaces import ParentVHost
from leveret.broker.queue.limits import QueueLimits
from leveret.broker.queue.retention import Retention
from leveret.broker.queue.settings import NO_SETTINGS, QueueSettings
from leveret.broker.scheduling.turn import Turn
from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.confirm.deadlock import DeadlockState
from leveret.confirm.modes import CONSUMER_ACK_LIGHT, STANDARD
from leveret.confirm.promise import Promise, joined
from leveret.storage.delayed import Due
from leveret.storage.message import Awaited, Message
from leveret.storage.queues.backing_queue import BackingQueue, Fetched
from leveret.storage.queues.queue_ids import is_retained

_NOBODY: Mapping[int, Due] = MappingProxyType({})
_NOT_YET = Fetched((), [], redelivered=False)  # result of `get` while it has to wait
RUN_BUDGET = 4096  # maximum number of messages that a queue delivers in one turn before others run
SMALL = 4096  # bytes of contents that are small: a queue with only such ones need not know their sizes


class Queue:
    """A queue of a vhost.

    `backing` keeps the messages, and `exclusive_owner` is the connection of an exclusive queue. `qid` is the number
    under which a durable one is stored (else 0), `parent` the vhost (None for a queue that never has limits).
    """

    consumer_class: ClassVar[type[Consumer]] = Consumer
    __slots__ = (
        "_parent",
        "acked",
        "acks",
        "arguments",
        "auto_delete",
        "awaiting",
        "awaits_consumers",
        "backing",
        "consumers",
        "deadlock_state",
        "deleted",
        "delivered",
        "drain_began",
        "durable",
        "exclusive_owner",
        "final",
        "finish_callbacks",
        "finished",
        "inbox",
        "inbox_persistent",
        "ineffective_pauses",
        "largest",
        "limits",
        "moving",
        "name",
        "no_pause_until",
        "published",
        "publishers_paused_at",
        "qid",
        "redelivered",
        "run_listeners",
        "saves_all",
        "settings",
        "tally",
        "touched",
        "turn",
        "type",
        "vhost",
    )

    limits_class: type[QueueLimits] = QueueLimits

    def __init__(
        self,
        name: str,
        vhost: str,
        backing: BackingQueue,
        turn: Turn,
        *,
        durable: bool = False,
        exclusive_owner: Any = None,
        auto_delete: bool = False,
        arguments: Table | None = None,
        qid: int = 0,
        parent: ParentVHost | None = None,
    ) -> None:
        self.name = name
        self.vhost = vhost
        self.qid = qid
        self.backing = backing
        backing.on_loaded = self.touch
        self.awaiting: ConsumerAckQueue | None = None
        """The `backing` if it confirms on consumer ack; None if the queue never had such a confirm mode."""
        self.deadlock_state: DeadlockState | None = None
        """State of deadlock detection, if publishers wait for consumers (`confirm.deadlock`)."""
        self.awaits_consumers = False  # True if messages published in confirm mode must be `Promised`
        self.turn = turn
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.arguments = arguments or {}
        self.type = queue_type(self.arguments)
        self.saves_all = self.type != CLASSIC  # True if all messages are stored on disk, persistent or not
        self.deleted = False  # True once the queue is deleted and can no longer be found
        self.finished = False  # True once the deleted queue is empty: it has no messages left to discard
        self._parent = parent
        self.settings = NO_SETTINGS
        self.limits: QueueLimits | None = None  # limits and expiry; None while there are none
        self.consumers = ConsumerRotation(
            single_active=self.arguments.get("x-single-active-consumer") == ("bool", True)
        )
        # per turn
        self.inbox: list[Message] = []
        self.inbox_persistent = False  # True if a message in the inbox is persistent, and the queue durable
        self.acks: list[int] = []
        self.touched = False
        self.largest = 0  # size in bytes of the largest content since the queue was last empty, if over 4 KiB
        self.run_listeners = _NO_LISTENERS
        self.finish_callbacks: tuple[Callable[[], object], ...] = ()
        self.moving = 0
        """Number of unacked messages of which copies for other queues are being written to files; they stay here until
        then, even if the queue is deleted."""
        self.no_pause_until = 0.0
        """Time (monotonic seconds) until which publishers are not paused for this queue (`connection.flow_control`)."""
        self.ineffective_pauses = 0
        self.publishers_paused_at = float("-inf")  # time at which a publisher was last paused for this queue
        self.drain_began = (0.0, 0)  # start of the wait for full sockets, and the deliveries at that time
        # counters
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.tally = QueueTally()
        self.final: QueueCounts | None = None  # at the deletion: later acks are not added

    @property
    def meter(self) -> QueueMeter | None:
        """The meter of a `MeteredQueue`; None without an export."""
        return None

    def counts(self) -> QueueCounts:
        """Return the counters of the queue; must be called between two turns."""
        if self.final is not None:
            return self.final
        tally = self.tally
        auto = tally.delivered_auto
        if self.consumers:
            auto += sum([each.delivered for each in self.consumers if each.no_ack])
        # Without the constructor, which takes a third of the time: of ten thousand queues every few seconds.
        return tuple.__new__(QueueCounts, (
            self.published,
            self.delivered - auto - tally.got_ack - tally.got_auto,
            auto,
            tally.got_ack,
            tally.got_auto,
            tally.get_empty,
            self.redelivered,
            max(0, self.acked - tally.discarded),
            tally.forwarded,
            0 if self.awaiting is None else self.awaiting.lost,
            tally.expired,
            tally.dropped,
            tally.rejected,
            tally.dead_lettered,
            tally.cycled,
            tally.purged,
            tally.repeated,
        ))  # fmt: skip

    # -- the turn -----------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Schedule a run of the queue at the end of this turn."""
        if not self.touched:
            self.touched = True
            self.turn.queues.append(self)

    def settle(self) -> None:
        """Process the acks and arrivals collected in this turn, so that counts and contents are exact."""
        if (self.inbox or self.acks) and self.run():
            self.touch()

    @property
    def has_input(self) -> bool:
        """True if acks or arrivals wait for the next run."""
        return bool(self.acks or self.inbox)

    @property
    def stores_input(self) -> bool:
        """True if some of them are written to disk; acks of transient messages count, too."""
        return self.inbox_persistent or (self.durable and bool(self.acks))

    def run(self) -> bool:
        """Process acks, arrivals and ready messages; return true if the budget was used up before all was done."""
        consumers = self.consumers
        if consumers.cancelled:
            consumers.sweep()
        backing = self.backing
        limits = self.limits
        acks = self.acks
        if acks:
            count = len(acks)
            self.acked += count
            if limits is None:
                backing.ack(acks)
            elif limits.retention is None:
                backing.ack(acks)
                limits.settled(acks)
            else:
                limits.settled(acks)
                limits.retention.take(acks)
            del acks[:count]  # removing one of its own dead letters may have added another ack
        more = is_behind = False
        if limits is not None:
            limits.begin()
            is_behind = limits.is_behind  # arrivals are offered to consumers before limits apply to them
        inbox = self.inbox
        if inbox:
            self.published += len(inbox)
            if limits is None:
                self.take_in(inbox)
            else:
                limits.take_in(inbox)
            inbox.clear()
            self.inbox_persistent = False
        if backing.ready_count:
            if consumers.ready and not is_behind:
                more = self._deliver_ready()
        else:
            self.largest = 0
        if limits is not None:
            more = limits.end() or more
            if is_behind and not limits.is_behind and consumers.ready:
                more = True
        if self.run_listeners:
            self._notify_listeners()
        return more

    def take_in(self, messages: list[Message], *, expires: int = 0) -> None:
        """Deliver arrivals to consumers if nothing older waits, or enqueue them; `expires` in epoch ms, 0 for never."""
        backing = self.backing
        persistent = self.inbox_persistent
        ready, count = backing.ready_count, len(messages)
        if self.consumers.ready and not ready:
            messages = self._hand_over(messages, persistent=persistent, expires=expires)
            if not messages:
                return
        try:
            backing.publish(messages, persistent=persistent, small=self.largest <= SMALL, expires=expires)
        except Exception:
            self.taken(count - len(messages) + backing.ready_count - ready)
            raise

    def taken(self, count: int) -> None:
        """Record that the first `count` arrivals were enqueued before an error, so `give_up` must not refuse them."""
        del self.inbox[:count]

    def give_up(self) -> None:
        """Recover from an internal error: refuse arrivals not enqueued, and requeue acked messages not removed."""
        for message in self.inbox:
            if message.promise is not None:
                message.promise.refused()
            elif message.persistent and self.durable:
                message.refused()  # type: ignore[attr-defined]
                message.accepted()  # type: ignore[attr-defined] # already refused: this only releases the copy
        if self.limits is not None and self.limits.ids is not None:
            self.limits.ids.give_up(self.inbox)
        acked = list(self.acks)
        if self.awaiting is not None:
            self._give_up_promises(self.awaiting)
            acked = []
        self.inbox.clear()
        self.inbox_persistent = False
        self.acks.clear()
        if self.retention is not None:
            self.retention.forget(acked)
        if acked:  # they are no longer in the unacked table of a channel
            held, away = self.backing.unacked_messages(acked)
            self.requeue([*[seq_id for seq_id, _ in held], *away])
        if self.deleted and not self.finished:
            self.finish()

    def _give_up_promises(self, awaiting: ConsumerAckQueue) -> None:
        """Refuse the promises of all messages kept here, and of light deliveries acked or not known to any channel."""
        acked = awaiting.split(self.acks)[1]
        known: set[object] = {*acked}
        for consumer in self.consumers:
            known.update([key for _, key in consumer.channel.unacked.values()])
        torn = [promise for promise in awaiting.handed if promise is not None and promise not in known]
        awaiting.refuse_light([*acked, *torn])
        awaiting.refuse_all()

    def __repr__(self) -> str:
        return f"queue {self.name!r} in vhost {self.vhost!r}"  # as logs name it

    def _hand_over(self, messages: list[Message], *, persistent: bool, expires: int) -> list[Message]:
        """Deliver arrivals directly to consumers; return those that no consumer could take."""
        at, end = 0, len(messages)
        publish_delivered = self.backing.publish_delivered
        rotation = self.consumers
        retains = self.limits is not None and self.limits.keeps_fetched
        try:
            while at < end and rotation.ready:
                consumers, count = rotation.next_share(end - at, self.largest)
                if not count:
                    rotation.park_first()
                    continue
                share = messages[at : at + count]
                ack_required = not consumers[0].no_ack
                seq_ids = publish_delivered(
                    share, ack_required=ack_required or retains, persistent=persistent, expires=expires
                )
                at += count
                batch = Fetched(seq_ids, share, redelivered=False)
                if self.limits is not None:
                    batch = self.limits.fetched(batch, ack_required=ack_required)
                    if not batch.messages:
                        continue
                self.deliver_to(consumers, batch)
        except Exception:
            self.taken(at)
            raise
        return messages[at:] if at else messages

    def _deliver_ready(self) -> bool:
        """Deliver ready messages to consumers; return true if the budget was used up first."""
        backing = self.backing
        limits = self.limits
        rotation = self.consumers
        budget = RUN_BUDGET
        retains = limits is not None and limits.keeps_fetched
        while backing.ready_count and rotation.ready:
            if budget <= 0:
                return True
            consumers, count = rotation.next_share(backing.ready_count, self.largest)
            if not count:
                rotation.park_first()
                continue
            if limits is not None:
                count = limits.drop_expired(count)
                if not count:
                    return False
            ack_required = not consumers[0].no_ack
            batch = backing.fetch(count, ack_required=ack_required or retains)
            if not batch.messages:
                return False  # they are being read from disk; the queue is touched afterwards
            if limits is not None:
                batch = limits.fetched(batch, ack_required=ack_required)
                if not batch.messages:  # they wait for their retry
                    budget -= count
                    continue
            if batch.redelivered:
                self.redelivered += len(batch.messages)
            self.deliver_to(consumers, batch)
            budget -= count
        return False

    def deliver_to(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Deliver a batch to the consumers that were chosen for it."""
        self.consumers.deliver(consumers, batch)

    def _notify_listeners(self) -> None:
        for listener in list(self.run_listeners):
            listener.queue_ran(self)

    # -- off the fast path ----------------------------------------------------------------------------------------

    def put(self, message: Message, *, is_new: bool = True) -> bool:
        """Enqueue a message that did not come by the fast path; return False if it is refused.

        The caller must then nack the publish, and call `accepted` for this copy if the queue would have stored it.
        `is_new`: false for one that was in a queue before, which is no repeat (`broker.queue.deduplication`).
        """
        limits = self.limits
        if limits is None:
            if may_expire(message.content):
                self._need_limits()
            self.admit(message)
            return True
        ids = limits.ids
        mark = None if ids is None else ids.source.mark(message)
        if ids is None or mark is None:
            return not limits.refuses(message) and self._enqueue(message, limits)
        if is_new and ids.knows(mark):
            self.end_first()
        if is_new and ids.is_repeat(mark, message):
            return True
        has_room = ids.has_room(is_new=is_new)
        if not has_room and is_new:
            return False
        if limits.refuses(message) or not self._enqueue(message, limits):
            return False
        if has_room:
            ids.take(mark, message)
        return True

    def end_first(self) -> None:
        """Process what was settled before the publish in progress, which may have its id."""
        if self.limits is not None and (self.acks or self.limits.dead_letters):
            self.run()
            self.touch()

    def has_room_for(self, count: int) -> bool:
        """Return whether so many publishes are taken for certain; others have to be asked about one by one."""
        return self.limits is None or self.limits.length.has_room_for(count)

    def _enqueue(self, message: Message, limits: QueueLimits) -> bool:
        """Enqueue or hold a message; return False if too many are held."""
        if (hold := limits.hold) is not None and (due := hold.due_of(message)):
            return hold.put(message, due)
        self.admit(message)
        return True

    def admit(self, message: Message) -> None:
        """Enqueue a message that the queue takes in any case."""
        self.admit_all((message,))

    def admit_all(self, messages: Sequence[Message]) -> None:
        """Enqueue messages, at least one, that the queue takes in any case; all are persistent, or none."""
        self.inbox += messages
        self.touch()
        size = max([len(message.content) for message in messages])
        if size > SMALL and size > self.largest:
            self.largest = size
        if messages[0].persistent and self.durable:
            self.inbox_persistent = True

    def configure(self, settings: QueueSettings) -> None:
        """Apply settings from arguments and policies."""
        if settings.lazy is not self.settings.lazy:
            self.backing.set_lazy(lazy=settings.lazy)
        self._await_consumers(settings.confirm_mode)
        self.settings = settings
        if settings.needs_limits:
            self._need_limits()
        if self.limits is not None:
            self.limits.configure(settings)
            self.touch()

    def _await_consumers(self, mode: str) -> None:
        self.settle()
        self.awaits_consumers = mode != STANDARD
        if self.awaits_consumers:
            if self.awaiting is None:
                self.backing = self.awaiting = ConsumerAckQueue(self.backing, self._add_job)
            self.awaiting.set_light(light=mode == CONSUMER_ACK_LIGHT)
        elif self.awaiting is not None:
            self.awaiting.set_light(light=False)

    def _add_job(self, steps: Iterator[None]) -> None:
        self.turn.slices.add(steps, f"confirms of {self}")

    @property
    def store(self) -> BackingQueue:
        """The backing queue that keeps the messages, without the `ConsumerAckQueue` in front of it."""
        return self.backing if self.awaiting is None else self.awaiting.inner

    def use_levels(self, levels: BackingQueue) -> None:
        """Use a store that has messages of other levels than those of the queue, before a recovery."""
        levels.on_loaded = self.touch
        levels.count_returns(counted=self.limits is not None and self.limits.deliveries.most is not None)
        self.backing = levels

    @property
    def retention(self) -> Retention | None:
        """The retention, which takes the acks if the queue retains acked messages."""
        return None if self.limits is None else self.limits.retention

    @property
    def retained(self) -> Any:
        """Its retained messages (`broker.queue.retained_queue.RetainedQueue`), up to date; None if it retains none."""
        if self.retention is None:
            return None
        self.retention.retained.settle()
        return self.retention.retained

    @property
    def hold(self) -> Hold | None:
        """The messages held until their time; None if the queue never held any."""
        return None if self.limits is None else self.limits.hold

    @property
    def ids(self) -> Deduplication | None:
        """The ids that the queue knows; None if it never took messages by their ids."""
        return None if self.limits is None else self.limits.ids

    @property
    def lines(self) -> tuple[DueLine, ...]:
        """Its messages that no consumer gets yet: those of the hold, and those of delayed retries."""
        return () if self.limits is None else self.limits.length.lines

    @property
    def held_count(self) -> int:
        """Number of messages that no consumer gets yet: held ones, and those that wait for a retry."""
        return sum([line.count for line in self.lines])

    @property
    def next_due(self) -> int | None:
        """Time (epoch ms) at which the first of them is due; None for none, or while it is read."""
        return min([due for line in self.lines if (due := line.next_due) is not None], default=None)

    @property
    def stores(self) -> tuple[BackingQueue, ...]:
        """Everything that keeps messages of the queue: its `store`, and that of its retained messages."""
        retained = self.retained
        return (self.store,) if retained is None else (self.store, retained.store)

    def used(self) -> None:
        """Restart the time until an unused queue expires: it was declared, or its last consumer was removed."""
        if self.limits is not None:
            self.limits.expiry.used()

    @property
    def has_lapsed(self) -> bool:
        """True if the queue was unused for `x-expires`."""
        return self.limits is not None and self.limits.expiry.has_lapsed

    def recovered(self) -> None:
        """Apply limits and expiry to the messages of an earlier run, after they were recovered."""
        if self.backing.expiring:
            self._need_limits()
        if self.limits is not None:
            self.limits.length.recount()
            self.touch()
        if self.retained is not None:
            self.retained.recovered()

    def recover_ids(self, line: int, value: bytes, rows: Callable[[], Iterable[tuple[Due, bytes]]]) -> None:
        """Take over the ids of an earlier run; see `broker.queue.deduplication.Deduplication.recover`."""
        self._need_limits()
        if self.limits is not None:
            self.limits.need_ids().recover(line, value, rows)

    def recover_held(self, line: int, count: int, rows: Callable[[], Iterable[tuple[Due, bytes]]]) -> None:
        """Take over the held messages of an earlier run, or those that waited; see `DueLine.recover`."""
        self._need_limits()
        if self.limits is not None:
            due_line = self.limits.need_retries() if is_retained(line) else self.limits.need_hold()
            due_line.recover(line, count, rows)

    def need_hold(self) -> Hold | None:
        """Return what holds messages of the queue, made if there is none; None for a queue that never has limits."""
        self._need_limits()
        return None if self.limits is None else self.limits.need_hold()

    def _need_limits(self) -> None:
        if self.limits is None and self._parent is not None:
            self.limits = self.limits_class(self, self._parent)
            self.limits.configure(self.settings)

    # -- consumers ----------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer; the caller must have checked exclusivity, and must call `touch` afterwards."""
        self.consumers.add(consumer)

    def check_consumer(self, tag: str | None, arguments: Table) -> None:
        """Raise 406 if the queue cannot have a consumer with this tag, None for one of ours, and valid arguments."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer whose channel was closed, or that was cancelled: its channel keeps its unacked messages."""
        self._count_removed(consumer)
        self.consumers.remove(consumer)
        if not self.consumers:
            self.used()

    def _count_removed(self, consumer: Consumer) -> None:
        """Add the deliveries of a removed consumer to the counters, if they count as acked."""
        if consumer.no_ack:
            self.tally.delivered_auto += consumer.delivered

    def rejoin(self, consumer: Consumer) -> None:
        """Put a parked consumer that has room again at the end of the rotation, or of its priority."""
        if self.consumers.rejoin(consumer) and not self.touched:
            self.touched = True
            self.turn.queues.append(self)

    def suspend(self) -> None:
        """Deliver nothing until `resume` has been called as many times, because more messages are being requeued."""
        self.consumers.suspend()

    def resume(self) -> None:
        """Resume delivery."""
        if self.consumers.resume():
            self.touch()

    @property
    def is_paused(self) -> bool:
        """True while an operator has paused the deliveries to consumers."""
        return self.consumers.is_paused

    def pause(self) -> None:
        """Deliver nothing to consumers until `unpause`, as an operator has requested. No effect if the queue is paused.

        Delivered messages stay unacked, and everything else continues: publishes, acks, requeues, expiry, limits.
        """
        if not self.consumers.is_paused:
            self.consumers.pause()
            self.no_pause_until = float("inf")  # there is no reason to slow publishers down

    def unpause(self) -> None:
        """Resume deliveries after `pause`; no effect if the queue is not paused."""
        if self.consumers.is_paused:
            self.no_pause_until = 0.0
            if self.consumers.unpause():
                self.touch()

    # -- exact operations -----------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True if ready messages must be discarded, but there was no time for that."""
        return self.limits is not None and self.limits.is_behind

    def catch_up(self) -> None:
        """Raise `NotYet` while ready messages must be discarded, but there was no time for that."""
        self.settle()
        if self.is_behind:
            raise NotYet(self.after_next_run)

    @property
    def ready_count(self) -> int:
        """Number of messages waiting for a consumer."""
        self.settle()
        return self.backing.ready_count

    @property
    def unacked_count(self) -> int:
        """Number of messages delivered, by `basic.get` too, and not settled yet."""
        self.settle()
        return self.backing.unacked_count - len(self.waiting)

    @property
    def waiting(self) -> Mapping[int, Due]:
        """Unacked messages that wait for their next delivery, by seq_id, with their times."""
        return _NOBODY if self.limits is None or self.limits.retries is None else self.limits.retries.waiting

    @property
    def consumer_capacity(self) -> float:
        """As RabbitMQ's `consumer_capacity`, 0 to 1 (`ConsumerRotation.capacity`)."""
        return self.consumers.capacity

    def sample_capacity(self) -> None:
        """Sample whether consumers have room; must be called about once a second."""
        self.consumers.sample_capacity(is_idle=not self.backing.ready_count)

    @property
    def consumer_count(self) -> int:
        """Number of consumers, ready or not."""
        return len(self.consumers)

    def get(self, *, no_ack: bool) -> Fetched | None:
        """Fetch one message for `basic.get`; return None if the queue is empty, an empty batch if `get` must wait."""
        self.settle()
        if self.consumers.is_suspended:
            self.touch()
            return _NOT_YET
        backing, limits = self.backing, self.limits
        if limits is not None:
            limits.expiry.used()
            if limits.is_behind or (
                backing.ready_count and not limits.drop_expired(1) and backing.ready_count
            ):
                if limits.wants_time:
                    self.touch()
                return _NOT_YET
        if not backing.ready_count:
            return None
        retains = limits is not None and limits.keeps_fetched
        batch = backing.fetch(1, ack_required=not no_ack or retains)
        if limits is not None and batch.messages:
            batch = limits.fetched(batch, ack_required=not no_ack)
            limits.drop_expired(1)  # expired messages behind it do not count as remaining
            self.touch()
        return batch

    def requeue(self, seq_ids: Collection[int], *, moved: bool = False, failed: bool = True) -> None:
        """Requeue unacked messages at their original positions; light deliveries are no longer kept, and are nacked.

        `moved`: those over the delivery limit leave as in `discard`. `failed`: false if a consumer gave them back.
        """
        if self.awaiting is not None:
            seq_ids, gone = self.awaiting.split(seq_ids)
            self.awaiting.refuse_light(gone)
            if self.deleted and self._parent is not None:
                self._parent.context.totals.lost += len(gone)
        if self.deleted:
            return
        self.settle()
        tally, count = self.tally, len(seq_ids)
        if self.limits is not None:
            seq_ids = self.limits.requeued(seq_ids, moved=moved, failed=failed)
        tally.requeued += len(seq_ids)
        tally.rejected += count - len(seq_ids)  # delivery limit reached
        if seq_ids and self.limits is not None and self.limits.holds_back(seq_ids, failed=failed):
            self.touch()  # others may be over the delivery limit
            return
        if seq_ids:
            self.bring_back(seq_ids)
        self.touch()

    def bring_back(self, seq_ids: Collection[int]) -> None:
        """Put unacked messages back to their original positions."""
        if self.limits is not None:
            self.limits.back(seq_ids)
        self.backing.requeue(seq_ids)
        if self.limits is not None:
            self.limits.shorten()
        self.touch()

    def discard(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Discard unacked messages that were rejected without requeue; the caller must call `touch` afterwards.

        `moved`: those that do not become dead letters leave in one commit with what replaces them; see `ack_moved`.
        """
        self.tally.rejected += len(seq_ids)
        if self.limits is None or self.deleted:
            self.drop_rejected(seq_ids, moved=moved)
            return
        if self.awaiting is not None:
            seq_ids, settled = self.awaiting.split(seq_ids)
            self.drop_rejected(settled, moved=moved)  # type: ignore[arg-type] # a promise is a key, too
        self.limits.rejected(seq_ids, moved=moved)

    def drop_rejected(self, keys: Collection[int], *, moved: bool) -> None:
        """Remove rejected messages that do not become dead letters, in the next run or, if they `moved`, at once."""
        self.tally.discarded += len(keys)
        if moved:
            self.acked += len(keys)
            self._remove_moved(keys)
        else:
            self.acks.extend(keys)

    def ack_moved(self, keys: Collection[int]) -> None:
        """Remove acked messages at once, in one commit with what this turn has published in their place."""
        self.acked += len(keys)
        if self.limits is None or self.limits.retention is None:
            self._remove_moved(keys)
        else:
            self.limits.settled(keys)
            self.limits.retention.take(keys, moved=True)

    def join(self, keys: Collection[int]) -> list[Promise]:
        """Return the promises that wait for unacked messages; the caller is one of their copies from now on.

        A `Verdict` waits for the commit itself, with an id that this has to have.
        """
        waiting = [message for message in self.backing.awaited(keys) if not _has_verdict(message.promise)]
        return [promise for message in waiting if (promise := joined(message)) is not None]

    def dead_lettered(self, count: int, moved: Collection[int]) -> None:
        """Count dead-lettered messages, and remove those that `moved`."""
        self.tally.dead_lettered += count
        self._remove_moved(moved)

    def _remove_moved(self, seq_ids: Collection[int]) -> None:
        if self.limits is not None:
            self.limits.settled(seq_ids)
        self.backing.ack(seq_ids, moved=True)

    def remove_moved(self, seq_id: int, is_written: bool) -> None:
        """Remove one of the `moving` messages, because its copies elsewhere are safe or settled.

        `is_written`: the copies are written by the next commit, which has to remove the message as well. Otherwise all
        of them are settled, and it is removed in the next run, as this may be one.
        """
        self.moving -= 1
        if self.finished:
            return
        if is_written:
            self._remove_moved((seq_id,))
        elif self.limits is not None and self.retention is not None:
            self.limits.removed([seq_id])
        else:
            self.acks.append(seq_id)
            self.tally.discarded += 1
        if self.deleted and self.limits is None and not self.moving:
            self.finish()
        else:
            self.touch()

    def purge(self) -> int:
        """Drop the ready and the held messages; return how many."""
        self.settle()
        self.largest = 0
        self.touch()  # methods that wait for a message to be read must be executed again
        if self.limits is not None:
            self.limits.purged()
        count = self.backing.purge()
        count += sum([line.purge() for line in self.lines])
        self.tally.purged += count
        return count

    def delete(self, *, discards: bool = True) -> list[Consumer]:
        """Delete the queue; return its consumers, to which the caller must send a `basic.cancel`.

        The queue is `finished` immediately, or it keeps its messages and runs on. It discards those that had to be
        discarded by now, as without the deletion, and waits for those that move elsewhere. Then it notifies the vhost
        (`ParentVHost.queue_finished`). Without `discards` there are no dead letters, and nothing is waited for.
        """
        self.settle()
        self.deleted = True
        consumers = self.consumers.clear()
        for consumer in consumers:
            self._count_removed(consumer)
        if self.limits is not None and (self.limits.queue_deleted() or not discards):
            self.limits = None  # no message expires from now on, and rejected ones are only dropped
        if not discards or (self.limits is None and not self.moving):
            self._empty()
        else:
            self.touch()
        if self.run_listeners:
            self._notify_listeners()
        return consumers

    def _empty(self) -> None:
        self.finished = True
        self.limits = None
        self.backing.delete()
        self.inbox.clear()

    def finish(self) -> None:
        """Empty the deleted queue after everything it had to discard is discarded, or cannot be; notify the waiting."""
        self._empty()
        if self._parent is not None:
            self._parent.queue_finished(self)
        waiting, self.finish_callbacks = self.finish_callbacks, ()
        for callback in waiting:
            callback()

    def after_finish(self, callback: Callable[[], object]) -> None:
        """Call back when the deleted queue has discarded its last message; immediately if it has."""
        if self.finished:
            callback()
        else:
            self.finish_callbacks = (*self.finish_callbacks, callback)

    def after_next_run(self, callback: Callable[[], object]) -> None:
        """Call back once, after the next run; the queue runs when messages have been read from disk."""
        self.add_listener(_Once(callback))

    def add_listener(self, listener: "RunListener") -> None:
        """Notify `listener` after each run."""
        if not self.run_listeners:
            self.run_listeners = {}
        self.run_listeners[listener] = None

    def remove_listener(self, listener: "RunListener") -> None:
        """Stop notifying `listener`."""
        if listener in self.run_listeners:
            del self.run_listeners[listener]
            if not self.run_listeners:
                self.run_listeners = _NO_LISTENERS


class RunListener:
    """Listener for runs of a queue (see `broker.connection.flow_control`)."""

    __slots__ = ()

    def queue_ran(self, queue: Queue) -> None:
        """Called after each run of `queue`."""
        raise NotImplementedError


class _Once(RunListener):
    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def queue_ran(self, queue: Queue) -> None:
        queue.remove_listener(self)
        self._callback()


# Shared by all queues without listeners; immutable, so a write without a check raises an exception.
_NO_LISTENERS = cast("dict[RunListener, None]", MappingProxyType({}))


def _has_verdict(promise: Awaited | None) -> bool:
    return isinstance(promise, Promise) and isinstance(promise.publisher, Verdict)
