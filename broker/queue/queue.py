"""Queues: publish, delivery to consumers in rotation, requeue, purge and deletion.

Theory. During a turn the queue only collects: publishes in `inbox`, settled deliveries in `acks`. `run`, once a turn,
processes both: acks first, then arrivals (delivered directly to ready consumers while nothing older is waiting,
otherwise kept by the backing queue), then the ready messages. Consumers that can take a message are in `rotation`; one
without credit or with a full outbox is parked and rejoins at the end, so the round-robin is strict among those that are
ready. Operations that need the exact state call `settle` first.

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901, PLR0912, PLR0915 - hot: one flat function is several times cheaper than small ones

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from leveret.broker.amqp.properties import may_expire
from leveret.broker.amqp.tables import Table
from leveret.broker.counters.sampling import QueueMeter
from leveret.broker.counters.totals import QueueCounts, QueueTally
from leveret.broker.errors import NotYet
from leveret.broker.queue.arguments import QUORUM, queue_type
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.limits import Keeper, QueueLimits
from leveret.broker.queue.settings import NO_SETTINGS, QueueSettings
from leveret.broker.scheduling.turn import Turn
from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.confirm.deadlock import Stillness
from leveret.confirm.modes import CONSUMER_ACK_LIGHT, STANDARD
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue, Fetched

_NOT_YET = Fetched((), [], redelivered=False)
"""Result of `get` while it has to wait."""
RUN_BUDGET = 4096
"""Maximum number of messages that a queue delivers in one turn before others run."""
_STEP = 256  # messages fetched at a time
_STEP_OCTETS = 1024 * 1024  # and about so many bytes, where messages are large
_SMALL = 4096
_FEW = 8  # maximum number of consumers removed from the rotation one by one
_CAPACITY_WEIGHT = 0.13  # of one sample per second: a sample from five seconds ago has half the weight


class Owner(Protocol):
    """The connection that an exclusive queue belongs to."""

    exclusive_queues: "dict[str, Queue]"


class Queue:
    """A queue of a vhost.

    Args:
        name: name of the queue.
        vhost: name of the vhost.
        backing: the backing queue, which keeps the messages.
        turn: the server's work list.
        durable: true if the queue survives a restart.
        exclusive_owner: the connection that owns an exclusive queue, or None.
        auto_delete: true if the queue is deleted with its last consumer.
        arguments: arguments of the declaration.
        qid: the number under which a durable queue is stored; 0 for other queues.
        keeper: the vhost, as needed by limits; None for a queue that never has any.

    """

    __slots__ = (
        "_alike",
        "_capacity",
        "_gone",
        "_heirs",
        "_held_back",
        "_joined",
        "_keeper",
        "_suspensions",
        "acked",
        "acks",
        "active_consumer",
        "arguments",
        "auto_delete",
        "awaiting",
        "awaits_consumers",
        "backing",
        "consumers",
        "deleted",
        "delivered",
        "draining",
        "durable",
        "exclusive_consumer",
        "exclusive_owner",
        "final",
        "futile_pauses",
        "gone",
        "had_consumer",
        "inbox",
        "inbox_persistent",
        "largest",
        "meter",
        "name",
        "on_drained",
        "on_gone",
        "paced_at",
        "prioritised",
        "published",
        "qid",
        "redelivered",
        "rotation",
        "rules",
        "saves_all",
        "settings",
        "single_active",
        "stillness",
        "tally",
        "touched",
        "turn",
        "type",
        "unpaced_until",
        "vhost",
    )

    def __init__(
        self,
        name: str,
        vhost: str,
        backing: BackingQueue,
        turn: Turn,
        *,
        durable: bool = False,
        exclusive_owner: "Owner | None" = None,
        auto_delete: bool = False,
        arguments: Table | None = None,
        qid: int = 0,
        keeper: Keeper | None = None,
    ) -> None:
        self.name = name
        self.vhost = vhost
        self.qid = qid
        self.backing = backing
        backing.on_loaded = self.touch
        self.awaiting: ConsumerAckQueue | None = None
        """The `backing` if it confirms on consumer ack; None if the queue never had such a confirm mode."""
        self.stillness: Stillness | None = None
        """State of deadlock detection, if publishers wait for consumers (`confirm.deadlock`)."""
        self.awaits_consumers = False
        """True if messages published on channels in confirm mode must be `Promised`."""
        self.turn = turn
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.arguments = arguments or {}
        self.type = queue_type(self.arguments)
        self.saves_all = self.type == QUORUM
        """True if all messages are stored on disk, persistent or not."""
        self.deleted = False
        """True once the queue is deleted and cannot be found any more."""
        self.gone = False
        """True once the deleted queue is empty: it has no messages left to discard."""
        self._keeper = keeper
        self.settings = NO_SETTINGS
        self.rules: QueueLimits | None = None
        """Limits and expiry; None while there are none."""
        # consumers
        self.consumers: dict[Consumer, None] = _NOBODY
        self.rotation: deque[Consumer] = _NO_ROTATION
        self.exclusive_consumer: Consumer | None = None
        self.single_active = self.arguments.get("x-single-active-consumer") == ("bool", True)
        self.active_consumer: Consumer | None = None
        """With `single_active`: the active consumer. The others wait outside the rotation."""
        self.had_consumer = False
        self._alike: bool | None = None
        self._capacity = 1.0
        self._gone = 0
        """Number of cancelled consumers still in the rotation."""
        self._suspensions = 0
        self._held_back: dict[Consumer, None] = {}
        """Consumers that would be in the rotation if the queue were not suspended."""
        self._heirs: list[tuple[int, int, Consumer]] = _NO_HEIRS
        """With `single_active`: a heap of the waiting consumers, by priority, then age; some may be cancelled."""
        self._joined = 0
        self.prioritised = False
        """True if some consumer has (or had) a priority other than 0, so that the rotation is ordered by priority."""
        # per turn
        self.inbox: list[Message] = []
        self.inbox_persistent = False
        """True if some message in the inbox is persistent, and the queue durable."""
        self.acks: list[int] = []
        self.touched = False
        self.largest = 0
        """Size in bytes of the largest content since the queue was last empty, if over 4 KiB."""
        self.on_drained: dict[DrainListener, None] = _NO_LISTENERS
        self.on_gone: list[Callable[[], object]] = _NO_CALLBACKS
        self.unpaced_until = 0.0
        """Time (monotonic seconds) until which publishers are not paused for this queue (`connection.flow_control`)."""
        self.futile_pauses = 0
        self.paced_at = float("-inf")
        """Time at which a publisher was last paused for this queue."""
        self.draining = (0.0, 0)
        """Start of the wait for full sockets, and the number of deliveries at that time."""
        # counters
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.tally = QueueTally()
        self.final: QueueCounts | None = None
        """Counters at the time of the deletion: later acks of consumers are not added."""
        self.meter: QueueMeter | None = None
        """Measures latencies; None without an export."""
        if turn.events is not None:
            self.meter = QueueMeter(turn.now, turn.clock())

    def counts(self) -> QueueCounts:
        """Return the counters of the queue; must be called between two turns."""
        if self.final is not None:
            return self.final
        tally = self.tally
        auto = tally.delivered_auto
        for consumer in self.consumers:
            if consumer.no_ack:
                auto += consumer.delivered
        return QueueCounts(
            published=self.published,
            forwarded=tally.forwarded,
            delivered=self.delivered,
            delivered_auto=auto,
            got_ack=tally.got_ack,
            got_auto=tally.got_auto,
            get_empty=tally.get_empty,
            redelivered=self.redelivered,
            acked=self.acked,
            discarded=tally.discarded,
            lost=0 if self.awaiting is None else self.awaiting.lost,
            expired=tally.expired,
            dropped=tally.dropped,
            rejected=tally.rejected,
            dead_lettered=tally.dead_lettered,
            purged=tally.purged,
        )

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

    def run(self) -> bool:
        """Process acks, arrivals and ready messages; return true if the budget was used up before all was done."""
        if self._gone:
            self._sweep()
        backing = self.backing
        rules = self.rules
        acks = self.acks
        if acks:
            count = len(acks)
            self.acked += count
            if self.meter is not None:
                self.meter.forgotten(acks, self.tally.discarded, self.turn.latencies)
            backing.ack(acks)
            if rules is not None:
                rules.acked(acks)
            del acks[:count]  # removing one of its own dead letters may have added another ack
        more = is_behind = False
        if rules is not None:
            rules.begin()
            is_behind = rules.is_behind  # arrivals are offered to consumers before limits apply to them
        inbox = self.inbox
        if inbox:
            self.published += len(inbox)
            if rules is None:
                self.take_in(inbox)
            else:
                rules.take_in(inbox)
            inbox.clear()
            self.inbox_persistent = False
        if backing.ready_count:
            if self.rotation and not is_behind:
                more = self._deliver_ready()
        else:
            self.largest = 0
        if rules is not None:
            more = rules.end() or more
            if is_behind and not rules.is_behind and self.rotation:
                more = True
        if self.on_drained:
            self._tell_drained()
        if self.meter is not None:
            self.meter.ran(self, self.turn)
        return more

    def take_in(self, messages: list[Message], *, expires: int = 0) -> None:
        """Deliver arrivals to consumers if nothing older waits, or enqueue them; `expires` in epoch ms, 0 for never."""
        backing = self.backing
        persistent = self.inbox_persistent
        ready, count = backing.ready_count, len(messages)
        if self.rotation and not ready:
            messages = self._hand_over(messages, persistent=persistent, expires=expires)
            if not messages:
                return
        try:
            backing.publish(messages, persistent=persistent, small=self.largest <= _SMALL, expires=expires)
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
        acked = list(self.acks)
        if self.awaiting is not None:
            self._give_up_promises(self.awaiting)
            acked = []
        self.inbox.clear()
        self.inbox_persistent = False
        self.acks.clear()
        if acked:  # they are no longer in the unacked table of a channel
            held, away = self.backing.unacked_messages(acked)
            self.requeue([*[seq_id for seq_id, _ in held], *away])
        if self.deleted and not self.gone:
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
        """Return a description with the names of the queue and its vhost."""
        return f"<queue {self.name!r} in vhost {self.vhost!r}>"

    def _hand_over(self, messages: list[Message], *, persistent: bool, expires: int) -> list[Message]:
        """Deliver arrivals directly to consumers; return those that no consumer could take."""
        at, end = 0, len(messages)
        publish_delivered = self.backing.publish_delivered
        try:
            while at < end and self.rotation:
                consumers, count = self._next_share(end - at)
                if not count:
                    self._park_first()
                    continue
                share = messages[at : at + count]
                ack_required = not consumers[0].no_ack
                seq_ids = publish_delivered(
                    share, ack_required=ack_required, persistent=persistent, expires=expires
                )
                at += count
                batch = Fetched(seq_ids, share, redelivered=False)
                if self.rules is not None:
                    self.rules.fetched(batch, ack_required=ack_required)
                self._distribute(consumers, batch)
        except Exception:
            self.taken(at)
            raise
        return messages[at:] if at else messages

    def _deliver_ready(self) -> bool:
        """Deliver ready messages to consumers; return true if the budget was used up first."""
        backing = self.backing
        rules = self.rules
        budget = RUN_BUDGET
        while backing.ready_count and self.rotation:
            if budget <= 0:
                return True
            consumers, count = self._next_share(backing.ready_count)
            if not count:
                self._park_first()
                continue
            if rules is not None:
                count = rules.live(count)
                if not count:
                    return False
            ack_required = not consumers[0].no_ack
            batch = backing.fetch(count, ack_required=ack_required)
            if not batch.messages:
                return False  # they are being read from disk; the queue is touched afterwards
            if rules is not None:
                batch = rules.fetched(batch, ack_required=ack_required)
            if batch.redelivered:
                self.redelivered += len(batch.messages)
            self._distribute(consumers, batch)
            budget -= count
        return False

    def _next_share(self, available: int) -> tuple[Sequence[Consumer], int]:
        """Return the next consumers in the rotation, and the number of messages they take together (<= `available`).

        The number is 0 if the first has no room any more: others have used up the prefetch of the channel or the
        outbox that it shares with them.

        Several consumers are served in one stride if each has a channel of its own and either all or none need acks;
        each channel then sees the same order as with one message at a time.
        """
        rotation = self.rotation
        step = _STEP if self.largest <= _SMALL else max(1, _STEP_OCTETS // self.largest)
        width = len(rotation)
        first = rotation[0]
        room = first.room
        if room <= 0:
            return (first,), 0
        if width == 1:
            return (first,), min(available, room, step)
        if available >= width:
            if self._alike is None:
                self._alike = self._are_alike()
            if self._alike:
                consumers = list(rotation)
                room = min(consumer.room for consumer in consumers)
                if room > 0:
                    rounds = min(room, available // width, max(1, step // width))
                    return consumers, rounds * width
        return (first,), 1

    def _are_alike(self) -> bool:
        """Return whether consumers may be served in strides; evaluated again when consumers are added or removed."""
        consumers = list(self.consumers)
        first = consumers[0]
        return (
            not self.prioritised
            and len({consumer.channel for consumer in consumers}) == len(consumers)
            and all(consumer.no_ack is first.no_ack for consumer in consumers)
        )

    def _park_first(self) -> None:
        """Remove the first consumer from the rotation until it has room again."""
        self.rotation.popleft().park()

    def _distribute(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Deliver a batch round-robin; park consumers without room, and keep the order of the others."""
        seq_ids, messages, redelivered = batch
        if self.meter is not None and not consumers[0].no_ack:
            self.meter.delivered(seq_ids[-1], self.turn.now)
        width = len(consumers)
        rotation = self.rotation
        if width == 1:
            consumer = consumers[0]
            consumer.deliver(seq_ids, messages, redelivered=redelivered)
            if consumer.room <= 0:
                rotation.popleft()
                consumer.park()
            elif self.prioritised:
                rotation.popleft()
                _insert_by_priority(rotation, consumer)
            elif len(rotation) > 1:
                rotation.rotate(-1)
            return
        for at in range(min(width, len(messages))):
            consumers[at].deliver(seq_ids[at::width], messages[at::width], redelivered=redelivered)
        rotation.rotate(-(len(messages) % width))
        full = [consumer for consumer in consumers if consumer.room <= 0]
        if len(full) > _FEW:
            out = set(full)
            left = [consumer for consumer in rotation if consumer not in out]
            rotation.clear()
            rotation.extend(left)
        for consumer in full:
            if len(full) <= _FEW:
                rotation.remove(consumer)
            consumer.park()

    def _tell_drained(self) -> None:
        for listener in list(self.on_drained):
            listener.queue_ran(self)

    # -- off the fast path ----------------------------------------------------------------------------------------

    def put(self, message: Message) -> bool:
        """Enqueue a message that did not come by the fast path; return False if it is refused.

        The caller must then nack the publish, and call `accepted` for this copy if the queue would have stored it.
        """
        if self.rules is None:
            if may_expire(message.content):
                self._need_rules()
        elif self.rules.refuses(message):
            return False
        self.inbox.append(message)
        self.touch()
        size = len(message.content)
        if size > _SMALL and size > self.largest:
            self.largest = size
        if message.persistent and self.durable:
            self.inbox_persistent = True
        return True

    def configure(self, settings: QueueSettings) -> None:
        """Apply settings from arguments and policies."""
        if settings.lazy is not self.settings.lazy:
            self.backing.set_lazy(lazy=settings.lazy)
        self._await_consumers(settings.confirm_mode)
        self.settings = settings
        if settings.asks_something:
            self._need_rules()
        if self.rules is not None:
            self.rules.configure(settings)
            self.touch()

    def _await_consumers(self, mode: str) -> None:
        """Apply a confirm mode to later publishes."""
        self.settle()
        self.awaits_consumers = mode != STANDARD
        if self.awaits_consumers:
            if self.awaiting is None:
                self.backing = self.awaiting = ConsumerAckQueue(self.backing, self._work_off)
            self.awaiting.set_light(light=mode == CONSUMER_ACK_LIGHT)
        elif self.awaiting is not None:
            self.awaiting.set_light(light=False)

    def _work_off(self, steps: Iterator[None]) -> None:
        """Run long work as a job."""
        self.turn.slices.add(steps, f"verdicts of {self}")

    @property
    def store(self) -> BackingQueue:
        """The backing queue that keeps the messages, without the `ConsumerAckQueue` in front of it."""
        return self.backing if self.awaiting is None else self.awaiting.inner

    def used(self) -> None:
        """Restart the time until an unused queue expires: it was declared, or its last consumer was removed."""
        if self.rules is not None:
            self.rules.used()

    def recovered(self) -> None:
        """Apply limits and expiry to the messages of an earlier run, after they were recovered."""
        if self.backing.expiring:
            self._need_rules()
        if self.rules is not None:
            self.rules.recount()
            self.touch()

    def _need_rules(self) -> None:
        if self.rules is None and self._keeper is not None:
            self.rules = QueueLimits(self, self._keeper)
            self.rules.configure(self.settings)

    # -- consumers ----------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer; the caller must have checked exclusivity, and must call `touch` afterwards."""
        if not self.consumers:
            self.consumers = {}
            self.rotation = deque()
            self._capacity = 1.0
        self.consumers[consumer] = None
        self._alike = None
        self.had_consumer = True
        if consumer.exclusive:
            self.exclusive_consumer = consumer
        if consumer.priority:
            self.prioritised = True
        if self.single_active:
            if self.active_consumer is not None:
                self._add_heir(consumer)
                return
            self.active_consumer = consumer
        consumer.parked = True
        consumer.wake()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer whose channel was closed, or that was cancelled: its channel keeps its unacked messages."""
        consumer.cancelled = True
        consumer.outbox.parked.pop(consumer, None)
        del self.consumers[consumer]
        if consumer.no_ack:
            self.tally.delivered_auto += consumer.delivered
        self._alike = None
        if not consumer.parked and self.is_active(consumer):
            self._gone += 1
            if self._gone > len(self.rotation) // 2:
                self._sweep()
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        if self.active_consumer is consumer:
            self._promote()
        if not self.consumers:
            self.used()
            self.consumers = _NOBODY
            self.rotation = _NO_ROTATION
            self._gone = 0
            self._heirs = _NO_HEIRS
            self.prioritised = False

    def _add_heir(self, consumer: Consumer) -> None:
        """Add a consumer to those that wait to become the single active consumer."""
        if self._heirs is _NO_HEIRS:
            self._heirs = []
        elif len(self._heirs) > 2 * len(self.consumers):  # most of them are cancelled
            self._heirs = [heir for heir in self._heirs if not heir[2].cancelled]
            heapify(self._heirs)
        self._joined += 1
        heappush(self._heirs, (-consumer.priority, self._joined, consumer))

    def _promote(self) -> None:
        """Replace the single active consumer by the waiting one of the highest priority, then the oldest."""
        self.active_consumer = None
        if self.deleted:
            return
        heirs = self._heirs
        while heirs:
            heir = heappop(heirs)[2]
            if not heir.cancelled:
                self.active_consumer = heir
                heir.parked = True
                heir.wake()
                return

    def is_active(self, consumer: Consumer) -> bool:
        """Return whether a consumer would get messages if there were any and it had room."""
        return not self.single_active or self.active_consumer is consumer

    def _sweep(self) -> None:
        """Remove cancelled consumers from the rotation; done for many at once, because it scans the whole rotation."""
        self._gone = 0
        left = [consumer for consumer in self.rotation if not consumer.cancelled]
        self.rotation.clear()
        self.rotation.extend(left)

    def rejoin(self, consumer: Consumer) -> None:
        """Put a parked consumer that has room again at the end of the rotation, or of its priority."""
        if self._suspensions:
            consumer.parked = True
            self._held_back[consumer] = None
            return
        if self.prioritised:
            _insert_by_priority(self.rotation, consumer)
        else:
            self.rotation.append(consumer)
        if not self.touched:
            self.touched = True
            self.turn.queues.append(self)

    def suspend(self) -> None:
        """Deliver nothing until `resume` has been called as many times, because more messages are being requeued."""
        self._suspensions += 1
        for consumer in self.rotation:
            if not consumer.cancelled:
                consumer.parked = True
                self._held_back[consumer] = None
        self.rotation.clear()
        self._gone = 0

    def resume(self) -> None:
        """Resume delivery."""
        self._suspensions -= 1
        if not self._suspensions:
            waiting, self._held_back = self._held_back, {}
            for consumer in waiting:
                consumer.wake()
            self.touch()

    # -- exact operations -----------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True if ready messages must be discarded, but there was no time for that."""
        return self.rules is not None and self.rules.is_behind

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
        return self.backing.unacked_count

    @property
    def consumer_capacity(self) -> float:
        """Fraction of the last seconds, 0 to 1, in which an arrival would have been delivered immediately.

        As RabbitMQ's `consumer_capacity`: 0 without consumers, and it decreases while no consumer has room for ready
        messages.
        """
        return self._capacity if self.consumers else 0.0

    def sample_capacity(self) -> None:
        """Sample whether consumers have room; must be called about once a second."""
        if self.consumers:
            able = len(self.rotation) > self._gone or not self.backing.ready_count
            self._capacity += (able - self._capacity) * _CAPACITY_WEIGHT

    @property
    def consumer_count(self) -> int:
        """Number of consumers, ready or not."""
        return len(self.consumers)

    def get(self, *, no_ack: bool) -> Fetched | None:
        """Fetch one message for `basic.get`; return None if the queue is empty, an empty batch if `get` must wait."""
        self.settle()
        if self._suspensions:
            self.touch()
            return _NOT_YET
        backing, rules = self.backing, self.rules
        if rules is not None:
            rules.used()
            if rules.is_behind or (backing.ready_count and not rules.live(1) and backing.ready_count):
                if rules.wants_time:
                    self.touch()
                return _NOT_YET
        if not backing.ready_count:
            return None
        batch = backing.fetch(1, ack_required=not no_ack)
        if self.meter is not None:
            self.touch()
        if rules is not None and batch.messages:
            batch = rules.fetched(batch, ack_required=not no_ack)
            rules.live(1)  # expired messages behind it do not count as remaining
            self.touch()
        return batch

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Requeue unacked messages at their original positions; light deliveries are no longer kept, and are nacked."""
        if self.meter is not None:
            self.meter.came_back(seq_ids)
        if self.awaiting is not None:
            seq_ids, gone = self.awaiting.split(seq_ids)
            self.awaiting.refuse_light(gone)
            if self.deleted:
                self.turn.totals.lost += len(gone)
        if self.deleted:
            return
        self.settle()
        tally, count = self.tally, len(seq_ids)
        if self.rules is not None:
            seq_ids = self.rules.requeued(seq_ids)
        tally.requeued += len(seq_ids)
        tally.rejected += count - len(seq_ids)  # delivery limit reached
        if seq_ids:
            self.backing.requeue(seq_ids)
            if self.rules is not None:
                self.rules.shorten()
        self.touch()

    def discard(self, seq_ids: Collection[int]) -> None:
        """Discard unacked messages that were rejected without requeue; the caller must call `touch` afterwards."""
        self.tally.rejected += len(seq_ids)
        if self.meter is not None:
            self.meter.settled(seq_ids, self.turn.latencies)
        if self.rules is None or self.deleted:
            self.acks.extend(seq_ids)
            self.tally.discarded += len(seq_ids)
            return
        if self.awaiting is not None:
            seq_ids, settled = self.awaiting.split(seq_ids)
            self.acks.extend(settled)  # type: ignore[arg-type] # a promise is a key, too
            self.tally.discarded += len(settled)
        self.rules.rejected(seq_ids)

    def dead_lettered(self, count: int, moved: Collection[int]) -> None:
        """Count dead-lettered messages, and remove those that `moved`."""
        self.tally.dead_lettered += count
        if self.rules is not None:
            self.rules.acked(moved)
        self.backing.ack(moved, moved=True)

    def letter_is_safe(self, seq_id: int) -> None:
        """Remove the original of a dead letter whose body has been written to its file."""
        if self.rules is not None:
            self.rules.discards.moving -= 1
        self.let_go(seq_id)

    def let_go(self, seq_id: int) -> None:
        """Remove an unacked message that is safely stored elsewhere."""
        if not self.gone:
            self.acks.append(seq_id)
            self.tally.discarded += 1
            self.touch()

    def purge(self) -> int:
        """Drop the ready messages; return how many."""
        self.settle()
        self.largest = 0
        self.touch()  # methods that wait for a message to be read must be executed again
        if self.rules is not None:
            self.rules.purged()
        count = self.backing.purge()
        self.tally.purged += count
        return count

    def delete(self, *, discards: bool = True) -> list[Consumer]:
        """Delete the queue; return its consumers, to which the caller must send a `basic.cancel`.

        The queue is `gone` immediately, or it keeps its messages and runs until those that had to be discarded by now
        are discarded, as without the deletion; then the keeper is notified (`Keeper.queue_gone`). Without `discards`
        there are no dead letters.
        """
        self.settle()
        self.deleted = True
        consumers = list(self.consumers)
        for consumer in consumers:
            self.remove_consumer(consumer)
        if self.rules is None or self.rules.queue_deleted() or not discards:
            self._empty()
        else:
            self.touch()
        if self.on_drained:
            self._tell_drained()
        return consumers

    def _empty(self) -> None:
        """Drop every message."""
        self.gone = True
        self.rules = None  # nothing expires any more, and messages rejected from now on are only dropped
        self.backing.delete()
        self.inbox.clear()

    def finish(self) -> None:
        """Empty the deleted queue after everything it had to discard is discarded, or cannot be; notify the waiting."""
        self._empty()
        if self._keeper is not None:
            self._keeper.queue_gone(self)
        waiting, self.on_gone = self.on_gone, _NO_CALLBACKS
        for callback in waiting:
            callback()

    def after_gone(self, callback: Callable[[], object]) -> None:
        """Call back when the deleted queue has discarded what it had to; immediately if it has."""
        if self.gone:
            callback()
        else:
            self.on_gone = [*self.on_gone, callback]

    def after_next_run(self, callback: Callable[[], object]) -> None:
        """Call back once, after the next run; the queue runs when messages have been read from disk."""
        self.add_listener(_Once(callback))

    def add_listener(self, listener: "DrainListener") -> None:
        """Notify `listener` after each run."""
        if self.on_drained is _NO_LISTENERS:
            self.on_drained = {}
        self.on_drained[listener] = None

    def remove_listener(self, listener: "DrainListener") -> None:
        """Stop notifying `listener`."""
        self.on_drained.pop(listener, None)
        if not self.on_drained:
            self.on_drained = _NO_LISTENERS


class DrainListener:
    """Listener for runs of a queue (see `broker.connection.flow_control`)."""

    __slots__ = ()

    def queue_ran(self, queue: Queue) -> None:
        """Called after each run of `queue`."""
        raise NotImplementedError


class _Once(DrainListener):
    """Calls a callback after the next run."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def queue_ran(self, queue: Queue) -> None:
        """Remove this listener, and call the callback."""
        queue.remove_listener(self)
        self._callback()


# Shared by all queues without consumers, never modified: ten thousand idle queues should not own empty lists.
_NOBODY: dict[Consumer, None] = {}
_NO_ROTATION: deque[Consumer] = deque()
_NO_HEIRS: list[tuple[int, int, Consumer]] = []
_NO_LISTENERS: dict[DrainListener, None] = {}
_NO_CALLBACKS: list[Callable[[], object]] = []


def _descending(consumer: Consumer) -> int:
    return -consumer.priority


def _insert_by_priority(rotation: deque[Consumer], consumer: Consumer) -> None:
    """Insert a consumer after those of its priority; cheap at both ends."""
    priority = consumer.priority
    if not rotation or rotation[-1].priority >= priority:
        rotation.append(consumer)
    elif rotation[0].priority < priority:
        rotation.appendleft(consumer)
    else:
        rotation.insert(bisect_right(rotation, -priority, key=_descending), consumer)
