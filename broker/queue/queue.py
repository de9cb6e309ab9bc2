"""A queue: its consumers in rotation, and who gets which message.

Theory. During a turn the queue only collects: publishes in `inbox`, settled deliveries in `acks`. `run`, once a turn,
works both off: acks first, then arrivals (handed straight to ready consumers while nothing older is waiting, kept by
the backing queue otherwise), then whatever is ready. Consumers that can take a message stand in `rotation`; one
without credit or with a full outbox is parked and comes back at the end, so the round-robin is strict among those
that are ready. Operations that need the exact state call `settle` first.

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
"""What `get` answers while it has to wait."""
RUN_BUDGET = 4096
"""Messages a queue delivers in one turn before others get theirs."""
_STEP = 256  # messages fetched at a time
_STEP_OCTETS = 1024 * 1024  # and about so many octets, where messages are large
_SMALL = 4096
_FEW = 8  # consumers that are taken out of the rotation one by one
_CAPACITY_WEIGHT = 0.13  # of one sample a second: what was the case five seconds ago counts half


class Owner(Protocol):
    """The connection that an exclusive queue belongs to."""

    exclusive_queues: "dict[str, Queue]"


class Queue:
    """One queue of one vhost.

    Args:
        name: its name.
        vhost: its vhost's name.
        backing: keeps its messages.
        turn: the server's work list.
        durable: survives a restart.
        exclusive_owner: the connection it belongs to, or None.
        auto_delete: goes with its last consumer.
        arguments: as declared.
        qid: the number under which a durable queue is stored; 0 for one that is not.
        keeper: the vhost, as far as rules need it; None for a queue that never has any.

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
        """What of `backing` tells publishers what consumers say; None as long as none has asked for it."""
        self.stillness: Stillness | None = None
        """Since when nothing has moved, if publishers wait for consumers (`confirm.deadlock`)."""
        self.awaits_consumers = False
        """Whether messages that come by a channel in confirm mode are to be `Promised`."""
        self.turn = turn
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.arguments = arguments or {}
        self.type = queue_type(self.arguments)
        self.saves_all = self.type == QUORUM
        """All its messages are kept on disk, persistent or not."""
        self.deleted = False
        """Nobody finds it any more."""
        self.gone = False
        """Nor has it any message left that it would have to discard: it is empty."""
        self._keeper = keeper
        self.settings = NO_SETTINGS
        self.rules: QueueLimits | None = None
        """None while nothing expires here and nothing is limited."""
        # consumers
        self.consumers: dict[Consumer, None] = _NOBODY
        self.rotation: deque[Consumer] = _NO_ROTATION
        self.exclusive_consumer: Consumer | None = None
        self.single_active = self.arguments.get("x-single-active-consumer") == ("bool", True)
        self.active_consumer: Consumer | None = None
        """Where `single_active`: the one consumer that is served. The others wait beside the rotation."""
        self.had_consumer = False
        self._alike: bool | None = None
        self._capacity = 1.0
        self._gone = 0
        """How many in the rotation have left already."""
        self._suspensions = 0
        self._held_back: dict[Consumer, None] = {}
        """Who would stand in the rotation, while the queue is suspended."""
        self._heirs: list[tuple[int, int, Consumer]] = _NO_HEIRS
        """Where `single_active`: a heap of those that wait, by priority and then age; some may have left."""
        self._joined = 0
        self.prioritised = False
        """Some consumer has (or had) a priority other than 0, so places in the rotation are not all alike."""
        # per turn
        self.inbox: list[Message] = []
        self.inbox_persistent = False
        """Some message there is persistent, and the queue durable."""
        self.acks: list[int] = []
        self.touched = False
        self.largest = 0
        """Octets of the largest content seen since the queue was last empty, where over 4 KiB."""
        self.on_drained: dict[DrainListener, None] = _NO_LISTENERS
        self.on_gone: list[Callable[[], object]] = _NO_CALLBACKS
        self.unpaced_until = 0.0
        """Until then (monotonic seconds) publishers are not made to wait for this queue (`connection.flow_control`)."""
        self.futile_pauses = 0
        self.paced_at = float("-inf")
        """When a publisher was last made to wait for it."""
        self.draining = (0.0, 0)
        """When waiting for full sockets began, and what had been delivered then."""
        # counters
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.tally = QueueTally()
        self.final: QueueCounts | None = None
        """What it had counted when it was deleted: what consumers ack afterwards is not added any more."""
        self.meter: QueueMeter | None = None
        """Measures times; None if nobody wants to know."""
        if turn.events is not None:
            self.meter = QueueMeter(turn.now, turn.clock())

    def counts(self) -> QueueCounts:
        """What it has counted; between two turns."""
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
        """Have the queue run at the end of this turn."""
        if not self.touched:
            self.touched = True
            self.turn.queues.append(self)

    def settle(self) -> None:
        """Work off what this turn has collected, so that counts and contents are exact."""
        if (self.inbox or self.acks) and self.run():
            self.touch()

    @property
    def has_input(self) -> bool:
        """Whether acks or arrivals wait for the next run."""
        return bool(self.acks or self.inbox)

    def run(self) -> bool:
        """Work off acks, arrivals and ready messages; true if the budget ran out before the work."""
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
            del acks[:count]  # to forget a dead letter of its own may have settled another message here
        more = is_behind = False
        if rules is not None:
            rules.begin()
            is_behind = rules.is_behind  # what comes now is offered to consumers before any of it is too much
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
        """Hand arrivals to consumers if nothing older waits, or keep them; they expire then (epoch ms), 0 for never."""
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
        """So many of the first arrivals are here although there was an error then: they are not to be given up."""
        del self.inbox[:count]

    def give_up(self) -> None:
        """After an internal error: refuse what has arrived and is not here, and requeue what was acked and still is."""
        for message in self.inbox:
            if message.promise is not None:
                message.promise.refused()
            elif message.persistent and self.durable:
                message.refused()  # type: ignore[attr-defined]
                message.accepted()  # type: ignore[attr-defined] # refused before: only its copy here counts no more
        acked = list(self.acks)
        if self.awaiting is not None:
            self._give_up_promises(self.awaiting)
            acked = []
        self.inbox.clear()
        self.inbox_persistent = False
        self.acks.clear()
        if acked:  # no channel knows them any more
            held, away = self.backing.unacked_messages(acked)
            self.requeue([*[seq_id for seq_id, _ in held], *away])
        if self.deleted and not self.gone:
            self.finish()

    def _give_up_promises(self, awaiting: ConsumerAckQueue) -> None:
        """Refuse all that is kept, and of what is not the acks that are forgotten and what reached no channel."""
        acked = awaiting.split(self.acks)[1]
        known: set[object] = {*acked}
        for consumer in self.consumers:
            known.update([key for _, key in consumer.channel.unacked.values()])
        torn = [promise for promise in awaiting.handed if promise is not None and promise not in known]
        awaiting.refuse_light([*acked, *torn])
        awaiting.refuse_all()

    def __repr__(self) -> str:
        """Name the queue and its vhost."""
        return f"<queue {self.name!r} in vhost {self.vhost!r}>"

    def _hand_over(self, messages: list[Message], *, persistent: bool, expires: int) -> list[Message]:
        """Give arrivals straight to consumers; returns those that nobody could take."""
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
        """Give ready messages to consumers; true if the budget ran out first."""
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
                return False  # they are being read from disk; the queue is touched when they are here
            if rules is not None:
                batch = rules.fetched(batch, ack_required=ack_required)
            if batch.redelivered:
                self.redelivered += len(batch.messages)
            self._distribute(consumers, batch)
            budget -= count
        return False

    def _next_share(self, available: int) -> tuple[Sequence[Consumer], int]:
        """Who is next, and how many messages they take together, at most `available`.

        0 if the first has no room any more: what it shares with others, a channel's prefetch or an outbox, has
        been used up by them since.

        Several consumers are served in one stride when each sits on a channel of its own and all want acks or none
        does; the order each channel sees is then the same as one message at a time.
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
        """Whether consumers may be served in strides; found out anew when one comes or goes."""
        consumers = list(self.consumers)
        first = consumers[0]
        return (
            not self.prioritised
            and len({consumer.channel for consumer in consumers}) == len(consumers)
            and all(consumer.no_ack is first.no_ack for consumer in consumers)
        )

    def _park_first(self) -> None:
        """Take the first consumer out of the rotation until it has room again."""
        self.rotation.popleft().park()

    def _distribute(self, consumers: Sequence[Consumer], batch: Fetched) -> None:
        """Deliver a batch round-robin; consumers left without room are parked, the others keep their order."""
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
        """Take a message that has come in another way than most; False if it is refused.

        The caller owes its publisher to be told, and this copy to be `accepted` if the queue would have saved it.
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
        """Do from now on what arguments and policies ask for."""
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
        """Treat promises of later publishes as the mode says."""
        self.settle()
        self.awaits_consumers = mode != STANDARD
        if self.awaits_consumers:
            if self.awaiting is None:
                self.backing = self.awaiting = ConsumerAckQueue(self.backing, self._work_off)
            self.awaiting.set_light(light=mode == CONSUMER_ACK_LIGHT)
        elif self.awaiting is not None:
            self.awaiting.set_light(light=False)

    def _work_off(self, steps: Iterator[None]) -> None:
        """Carry out what takes long as a job."""
        self.turn.slices.add(steps, f"verdicts of {self}")

    @property
    def store(self) -> BackingQueue:
        """What keeps the messages, whatever stands before it."""
        return self.backing if self.awaiting is None else self.awaiting.inner

    def used(self) -> None:
        """Somebody has asked about the queue, or the last consumer left: one that expires begins to wait anew."""
        if self.rules is not None:
            self.rules.used()

    def recovered(self) -> None:
        """The messages of an earlier run are there."""
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
        """Let a consumer join; the caller has checked exclusivity and owes a `touch`."""
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
        """A consumer was cancelled or its channel closed. Its unacked messages stay with the channel."""
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
        """A consumer waits to be the single active one."""
        if self._heirs is _NO_HEIRS:
            self._heirs = []
        elif len(self._heirs) > 2 * len(self.consumers):  # most of them have left
            self._heirs = [heir for heir in self._heirs if not heir[2].cancelled]
            heapify(self._heirs)
        self._joined += 1
        heappush(self._heirs, (-consumer.priority, self._joined, consumer))

    def _promote(self) -> None:
        """The single active consumer has left: the one of the highest priority, then the oldest, follows it."""
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
        """Whether a consumer would get messages, if there were any and it had room."""
        return not self.single_active or self.active_consumer is consumer

    def _sweep(self) -> None:
        """Take those who have left out of the rotation; done for many at once, because it means walking along it."""
        self._gone = 0
        left = [consumer for consumer in self.rotation if not consumer.cancelled]
        self.rotation.clear()
        self.rotation.extend(left)

    def rejoin(self, consumer: Consumer) -> None:
        """A parked consumer has room again: to the end of its priority's rotation."""
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
        """Deliver nothing until `resume` was called as often: more messages are coming back to their places."""
        self._suspensions += 1
        for consumer in self.rotation:
            if not consumer.cancelled:
                consumer.parked = True
                self._held_back[consumer] = None
        self.rotation.clear()
        self._gone = 0

    def resume(self) -> None:
        """Go on delivering."""
        self._suspensions -= 1
        if not self._suspensions:
            waiting, self._held_back = self._held_back, {}
            for consumer in waiting:
                consumer.wake()
            self.touch()

    # -- exact operations -----------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether messages are ready that have to be discarded, and there was no time for that."""
        return self.rules is not None and self.rules.is_behind

    def catch_up(self) -> None:
        """Raise `NotYet` while messages are ready that had to be discarded, and there was no time to do so."""
        self.settle()
        if self.is_behind:
            raise NotYet(self.after_next_run)

    @property
    def ready_count(self) -> int:
        """Messages waiting for a consumer."""
        self.settle()
        return self.backing.ready_count

    @property
    def unacked_count(self) -> int:
        """Messages delivered or got and not settled yet."""
        self.settle()
        return self.backing.unacked_count

    @property
    def consumer_capacity(self) -> float:
        """The share of the last seconds in which an arrival would have been delivered at once: 0 to 1.

        As RabbitMQ's `consumer_capacity`: 0 without consumers, and it sinks while messages are ready that no consumer
        has room for.
        """
        return self._capacity if self.consumers else 0.0

    def sample_capacity(self) -> None:
        """Note whether consumers have room; to be called about once a second."""
        if self.consumers:
            able = len(self.rotation) > self._gone or not self.backing.ready_count
            self._capacity += (able - self._capacity) * _CAPACITY_WEIGHT

    @property
    def consumer_count(self) -> int:
        """Consumers, ready or not."""
        return len(self.consumers)

    def get(self, *, no_ack: bool) -> Fetched | None:
        """Take one message for `basic.get`, or None; an empty batch if it is being read from disk."""
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
            rules.live(1)  # what has expired behind it does not count as remaining
            self.touch()
        return batch

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Unacked messages come back, to their places; some may be gone, and their publishers are told."""
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
        tally.rejected += count - len(seq_ids)  # delivered as often as they may be
        if seq_ids:
            self.backing.requeue(seq_ids)
            if self.rules is not None:
                self.rules.shorten()
        self.touch()

    def discard(self, seq_ids: Collection[int]) -> None:
        """Unacked messages were rejected without requeue; the caller owes a `touch`."""
        self.tally.rejected += len(seq_ids)
        if self.meter is not None:
            self.meter.settled(seq_ids, self.turn.latencies)
        if self.rules is None or self.deleted:
            self.acks.extend(seq_ids)
            self.tally.discarded += len(seq_ids)
            return
        if self.awaiting is not None:
            seq_ids, settled = self.awaiting.split(seq_ids)
            self.acks.extend(settled)  # type: ignore[arg-type] # a key as any other
            self.tally.discarded += len(settled)
        self.rules.rejected(seq_ids)

    def dead_lettered(self, count: int, moved: Collection[int]) -> None:
        """So many messages were published to the dead letter exchange; those that `moved` are forgotten."""
        self.tally.dead_lettered += count
        if self.rules is not None:
            self.rules.acked(moved)
        self.backing.ack(moved, moved=True)

    def letter_is_safe(self, seq_id: int) -> None:
        """The body of a dead letter is in its file: the original goes."""
        if self.rules is not None:
            self.rules.discards.moving -= 1
        self.let_go(seq_id)

    def let_go(self, seq_id: int) -> None:
        """An unacked message is safe elsewhere, and has no place here any more."""
        if not self.gone:
            self.acks.append(seq_id)
            self.tally.discarded += 1
            self.touch()

    def purge(self) -> int:
        """Drop the ready messages; returns how many."""
        self.settle()
        self.largest = 0
        self.touch()  # whoever waits for a message to be read must learn that it is gone
        if self.rules is not None:
            self.rules.purged()
        count = self.backing.purge()
        self.tally.purged += count
        return count

    def delete(self, *, discards: bool = True) -> list[Consumer]:
        """The queue goes; returns its consumers, whom the caller owes a `basic.cancel`.

        It is `gone` at once, or keeps its messages and runs until what it had to discard by now is discarded, as it
        would have been without the deletion; the keeper is told then (`Keeper.queue_gone`). Without `discards` there
        are no dead letters.
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
        self.rules = None  # nothing expires any more, and what is rejected from now on is only forgotten
        self.backing.delete()
        self.inbox.clear()

    def finish(self) -> None:
        """All that the deleted queue had to discard is discarded, or cannot be."""
        self._empty()
        if self._keeper is not None:
            self._keeper.queue_gone(self)
        waiting, self.on_gone = self.on_gone, _NO_CALLBACKS
        for callback in waiting:
            callback()

    def after_gone(self, callback: Callable[[], object]) -> None:
        """Call back when the queue, which is deleted, has discarded what it had to; at once if it has."""
        if self.gone:
            callback()
        else:
            self.on_gone = [*self.on_gone, callback]

    def after_next_run(self, callback: Callable[[], object]) -> None:
        """Call back after the next run, once; there is one when messages have been read from disk."""
        self.add_listener(_Once(callback))

    def add_listener(self, listener: "DrainListener") -> None:
        """Tell `listener` after each run."""
        if self.on_drained is _NO_LISTENERS:
            self.on_drained = {}
        self.on_drained[listener] = None

    def remove_listener(self, listener: "DrainListener") -> None:
        """Stop telling `listener`."""
        self.on_drained.pop(listener, None)
        if not self.on_drained:
            self.on_drained = _NO_LISTENERS


class DrainListener:
    """Is told each time a queue has run (see `broker.connection.flow_control`)."""

    __slots__ = ()

    def queue_ran(self, queue: Queue) -> None:
        """`queue` has just run."""
        raise NotImplementedError


class _Once(DrainListener):
    """Tells somebody of the next run."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def queue_ran(self, queue: Queue) -> None:
        """It is over."""
        queue.remove_listener(self)
        self._callback()


# Shared by all queues without consumers, never changed: ten thousand idle queues should not own empty lists.
_NOBODY: dict[Consumer, None] = {}
_NO_ROTATION: deque[Consumer] = deque()
_NO_HEIRS: list[tuple[int, int, Consumer]] = []
_NO_LISTENERS: dict[DrainListener, None] = {}
_NO_CALLBACKS: list[Callable[[], object]] = []


def _descending(consumer: Consumer) -> int:
    return -consumer.priority


def _insert_by_priority(rotation: deque[Consumer], consumer: Consumer) -> None:
    """Put a consumer behind those of its priority; cheap at both ends."""
    priority = consumer.priority
    if not rotation or rotation[-1].priority >= priority:
        rotation.append(consumer)
    elif rotation[0].priority < priority:
        rotation.appendleft(consumer)
    else:
        rotation.insert(bisect_right(rotation, -priority, key=_descending), consumer)
