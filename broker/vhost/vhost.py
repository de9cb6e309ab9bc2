"""A virtual host: its exchanges, queues and bindings, and the rules for changing them."""

import logging
import secrets
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from leveret.broker.amqp.properties import with_offset
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.auth.users import VHostLimits, is_reached
from leveret.broker.counters.totals import ChannelCounts, ConnectionCounts, QueueCounts, added
from leveret.broker.errors import NotYet, not_found, precondition_failed, resource, resource_locked
from leveret.broker.queue.arguments import STREAM, priorities_of, queue_type
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.due_line import DueLine
from leveret.broker.queue.interfaces import DelayDisk
from leveret.broker.queue.metered_queue import queue_class
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.retained_queue import RetainedQueue
from leveret.broker.queue.retention import Retention
from leveret.broker.queue.settings import QueueSettings, delays_nothing, exchange_settings, queue_settings
from leveret.broker.queue.unknown_arguments import warn_of_unknown
from leveret.broker.scheduling.node_context import INTERNAL, NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.dead_lettering import MOST_DEATHS, DeadLettering
from leveret.broker.vhost.delay_line import DelayLine
from leveret.broker.vhost.direct_reply_to import ReplyQueues
from leveret.broker.vhost.exchange_ids import ExchangeIds, configure_ids
from leveret.broker.vhost.firehose import trace
from leveret.broker.vhost.object_limits import ObjectLimits
from leveret.broker.vhost.parameters import VHostParameters
from leveret.broker.vhost.policies import EXCHANGES, Applied, Policies, queue_kind
from leveret.broker.vhost.recent_history import RecentHistories
from leveret.broker.vhost.tail import Taps
from leveret.confirm.modes import STANDARD
from leveret.exchanges.base import Exchange, Headers
from leveret.exchanges.delayed import LONGEST, LONGEST_OF_PLUGIN
from leveret.exchanges.errors import TooManyHopsError
from leveret.exchanges.router import Router
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import BackingQueue
from leveret.storage.queues.chunks import CHUNK_OCTETS, ChunkCache
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.queues.priority_queue import PriorityQueue
from leveret.storage.queues.queue_ids import retained_qid
from leveret.storage.queues.stream_log import StreamLog

log = logging.getLogger("leveret.queue")


def make_in_memory(qid: int, arguments: Table, *, strict: bool = False) -> BackingQueue:
    """Create the in-memory backing queue of a queue that is not stored; `strict`: see `priorities_of`."""
    del qid
    if queue_type(arguments) == STREAM:
        return StreamLog(None, 0, ChunkCache(CHUNK_OCTETS), with_offset)
    priorities = priorities_of(arguments, strict=strict)
    if not priorities.highest:
        return MemoryQueue()
    return PriorityQueue(
        lambda _: MemoryQueue(),
        priorities.of_content,
        priorities.highest,
        default=priorities.default,
        expires_each=priorities.expires_each,
    )


class Metadata(NamedTuple):
    """The metadata of a virtual host, which administrators set."""

    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""  # of queues declared without one; '' means classic, without an argument
    protected_from_deletion: bool = False  # True if it may not be deleted before this is taken back


class VHost:
    """One virtual host."""

    def __init__(
        self,
        name: str,
        turn: Turn,  # the server's work lists, used by its queues
        context: NodeContext,  # clocks, timers and counters of the node, used by its queues and channels
        *,
        limits: Callable[[], VHostLimits] = VHostLimits,  # returns its current limits
        # creates the backing queue, given the qid (0: not durable) and the arguments
        make_backing: Callable[[int, Table], BackingQueue] = make_in_memory,
        delay_disk: DelayDisk | None = None,  # stores delayed messages; None to keep them in memory
        confirm_mode: str = STANDARD,  # the mode of queues for which no argument or policy sets one
        # false to refuse messages that would be held, and whose publishers wait for a consumer
        holds_promises: bool = True,
        most_deaths: int = MOST_DEATHS,  # maximum number of x-death entries in a dead letter
        patterns: Patterns | None = None,  # compiles the patterns of policies
        object_limits: ObjectLimits | None = None,
        compatibility: QueueCompatibility | None = None,  # the RabbitMQ whose behaviour its queues have
    ) -> None:
        self.name = name
        self.compatibility = compatibility = compatibility or QueueCompatibility()
        self.intercept: Callable[[Message], Message] | None = None
        """Adds to each message of a client what message interceptors do; None if there are none."""
        self.metadata = Metadata()
        self.record: Any = None
        """Writes durable queues and policies (`broker.metadata.recorder.StoredTopology`); None without a record."""
        limits_classic = compatibility.arguments == "3.13"
        self.policies = Policies(name, self.reconfigure, patterns, limits_classic=limits_classic)
        self.parameters = VHostParameters(name)
        self._policies_changed = 0  # number of policy changes so far
        self._is_reconfiguring = False
        self.router = router = Router()
        router.on_deleted = self._exchange_deleted
        router.on_binding = self._tell_binding
        router.make_line = self._make_line
        router.work = self._work
        router.predeclare()
        self.queues: dict[str, Queue] = {}
        self.once: dict[str, ExchangeIds] = {}
        """The ids that exchanges know which take each message once, by the exchange's name."""
        self.ending: dict[Queue, None] = {}  # deleted queues with messages to discard (`Queue.delete`)
        self._ending_names: dict[str, Queue] = {}
        """Those of them that stay recorded under their names until they have discarded their messages."""
        self._unused: OrderedDict[Queue, bool] = OrderedDict()
        """Durable queues to be deleted because they are unused; true for those that have expired."""
        self._is_deleting = False
        self.reply_queues = ReplyQueues(self._make_reply_queue, router)
        self.connection_count = 0
        self.channels_gone = ChannelCounts()  # counters of closed channels
        self.connections_gone = ConnectionCounts()  # counters of closed connections
        self._turn = turn
        self.context = context
        self._limits = limits
        self.object_limits = object_limits or ObjectLimits({})
        self._make_backing = make_backing
        self.disk = delay_disk  # writes bodies to files; None without a data directory
        self._dead_lettering = DeadLettering(
            router,
            self.route_anyway,
            turn,
            context,
            self._blob_threshold,
            most_deaths,
            compatibility,
        )
        self._confirm_mode = confirm_mode
        self.holds_promises = holds_promises
        self.taps = Taps(name, router, self.queues, turn)
        self._dead_lettering.tails_on = self.taps.tails_on
        self.histories = RecentHistories(name, router, self.taps, turn)

    @property
    def _blob_threshold(self) -> int:
        return sys.maxsize if self.disk is None else self.disk.blob_threshold

    def count_closed(self, counts: ChannelCounts) -> None:
        """Add the counters of a closed channel to those of the vhost and of the node."""
        self.context.totals.channel_closed(counts)
        self.channels_gone = added(self.channels_gone, counts)

    # -- exchanges ----------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of that name; raises 404 if there is none."""
        exchange = self.router.get(name)
        if exchange is None:
            raise not_found(f"no {resource('exchange', name, self.name)}")
        return exchange

    def declare_exchange(
        self, name: str, type_name: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: Table
    ) -> Exchange:
        """Declare an exchange that does not exist yet; raises what `Router.declare` raises."""
        exchange = self.router.declare(
            name, type_name, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        if self.policies or exchange.arguments:
            self._configure_exchange(exchange)
        self.histories.declared(exchange)
        self.context.note("exchange_created", self.name, name, exchange, type=type_name)
        return exchange

    def _tell_binding(
        self, is_new: bool, source: Exchange, destination: object, key: str, arguments: Table
    ) -> None:
        kind = "binding_created" if is_new else "binding_deleted"
        self.context.tell(kind, self.name, source.name, destination, key, arguments)
        if is_new and self.histories.by_name:
            self.histories.bound(source, destination)

    def _exchange_deleted(self, exchange: Exchange) -> None:
        self.context.note("exchange_deleted", self.name, exchange.name)
        if (ids := self.once.pop(exchange.name, None)) is not None:
            ids.forget_all()
        self.histories.deleted(exchange)

    def _make_line(self, exchange: Exchange) -> DelayLine:
        longest = LONGEST if self.compatibility.long_delays == "held" else LONGEST_OF_PLUGIN
        line = DelayLine(exchange, self.router, self._turn, self.context, self.disk, longest)
        line.tails_on = self.taps.tails_on
        return line

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; no effect if there is none. 406 with `if_unused` if it is in use."""
        exchange = self.router.get(name)
        if exchange is None:
            return
        if if_unused and exchange.in_use:
            raise precondition_failed(f"{resource('exchange', name, self.name)} in use")
        self.router.remove(name)

    def route(self, exchange: Exchange, routing_keys: Sequence[str], headers: Headers) -> Sequence[Queue]:
        """Return the queues that a message goes to, each once, with direct reply-to; raises TooManyHopsError."""
        queues: Sequence[Queue] = self.router.route(exchange, routing_keys, headers)  # type: ignore[assignment]
        if exchange.name:
            return queues
        replies = (self.reply_queues.reached_by(key) for key in dict.fromkeys(routing_keys))
        return (*queues, *chain.from_iterable(replies))

    def route_anyway(
        self, exchange: Exchange, routing_keys: Sequence[str], headers: Headers
    ) -> Sequence[Queue]:
        """Return the queues as `route` does; with too many hops, those reached so far."""
        try:
            return self.route(exchange, routing_keys, headers)
        except TooManyHopsError as error:
            return error.reached  # type: ignore[return-value] # destinations are queues here

    def delay_lines(self) -> Iterator[DelayLine]:
        """Yield the delay lines of the vhost's exchanges."""
        lines = (exchange.line for exchange in self.router.exchanges.values())
        return (line for line in lines if isinstance(line, DelayLine))

    def holds(self) -> Iterator[DueLine]:
        """Yield the held messages of the vhost's queues, and those that wait for a retry."""
        for queue in self.queues.values():
            yield from queue.lines

    # -- queues -------------------------------------------------------------------------------------------------

    def queue(self, name: str, owner: object) -> Queue:
        """Return the queue of that name; 404 if there is none, 405 if it is exclusive to another connection."""
        queue = self.queues.get(name)
        if queue is None:
            raise not_found(f"no {resource('queue', name, self.name)}")
        self.check_access(queue, owner)
        return queue

    def check_access(self, queue: Queue, owner: object, *, strict: bool = False) -> None:
        """Raise 405 unless `owner` may use the queue; `strict` requires the same owner (None: not exclusive)."""
        current = queue.exclusive_owner
        if current is owner or (current is None and not strict):
            return
        text = (
            f"cannot obtain exclusive access to locked {resource('queue', queue.name, self.name)}. "
            "It could be originally declared on another connection or the exclusive property value does not match "
            "that of the original declaration."
        )
        raise resource_locked(text)

    def create_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive_owner: Any,
        auto_delete: bool,
        arguments: Table,
        qid: int = 0,
    ) -> Queue:
        """Create a queue that does not exist yet; `qid` is that of a durable queue of an earlier run."""
        is_new = not qid
        ending = self._ending_names.pop(name, None)
        if (
            ending is not None
        ):  # a caller that cannot wait reuses the name: a crash now would lose the messages discarded last
            self._forget_rows(ending)
        if durable and exclusive_owner is None and is_new and self.record is not None:
            qid = self.record.queue_created(name, auto_delete=auto_delete, arguments=arguments)
        queue = queue_class(self.context, arguments)(
            name,
            self.name,
            self._make_backing(qid, arguments),
            self._turn,
            durable=durable,
            exclusive_owner=exclusive_owner,
            auto_delete=auto_delete,
            arguments=arguments,
            qid=qid,
            parent=self,
        )
        self.queues[name] = queue
        self.router.add_queue(name, queue)
        self._configure_queue(queue)
        trace(queue, self.taps.firehose)
        self.context.totals.queues_created += is_new
        if is_new:
            warn_of_unknown(resource("queue", name, self.name), arguments)
            if delays_nothing(arguments, queue.settings):
                text = (
                    "%s: x-delayed-retry-type has no effect without x-delayed-retry-min, or a policy with it"
                )
                log.warning(text, resource("queue", name, self.name))
        self.context.note("queue_created", self.name, name, queue)
        return queue

    def dead_letter(
        self, queue: Queue, letters: Sequence[tuple[int, Message]], reason: str
    ) -> tuple[int, Sequence[int]]:
        """Publish messages that a queue discards; see `broker.queue.interfaces.ParentVHost`."""
        return self._dead_lettering.publish(queue, letters, reason)

    def make_retention(self, queue: Queue, before: BackingQueue | None) -> Retention:
        """Create the retention of a queue; before a recovery of messages, which then finds those retained earlier.

        `before` had the messages of a retention that was ended since the start, which are being removed.
        """
        qid = retained_qid(queue.qid)
        backing = self._make_backing(qid, {"x-queue-type": ("longstr", STREAM)})
        if before is not None:
            backing.follow(before)
        retained = RetainedQueue(
            queue.name, self.name, backing, self._turn, durable=queue.durable, qid=qid, parent=self
        )
        return Retention(queue, retained, self._blob_threshold)

    def expire(self, queue: Queue) -> None:
        """Delete a queue that was unused for `x-expires`; its ready messages are not dead-lettered."""
        if queue.qid:
            self._delete_later(queue, is_lapsed=True)
        else:
            self.delete_queue(queue)

    def set_paused(self, queue: Queue, *, paused: bool) -> None:
        """Pause or resume the deliveries of a queue, and record that of a durable one. The caller runs a turn."""
        if queue.is_paused is paused:
            return
        if paused:
            queue.pause()
            self.context.note("queue_paused", self.name, queue.name)
        else:
            queue.unpause()
            self.context.note("queue_resumed", self.name, queue.name)
        if queue.qid and self.record is not None:
            self.record.queue_paused(queue)

    def find_declared(self, name: str) -> Queue | None:
        """Return the queue that a declaration finds: one that waits for its deletion as unused is deleted now."""
        queue = self.queues.get(name)
        if queue is None or self._unused.get(queue) is not False or queue.consumers:
            return queue
        self.delete_queue(queue)
        return None

    def await_name(self, name: str) -> None:
        """Raise `NotYet` while a durable queue of that name is being deleted and a restart would restore it."""
        queue = self._ending_names.get(name)
        if queue is not None:
            raise NotYet(queue.after_finish)

    def check_queue_limit(self, name: str) -> None:
        """Raise 406 if the vhost or the broker has the maximum number of queues."""
        most = self._limits().max_queues
        if is_reached(most, len(self.queues)):
            limit = f"queue limit in vhost '{self.name}' ({most}) is reached"
            raise precondition_failed(f"cannot declare queue '{name}': {limit}")
        self.object_limits.check_queue(name)

    def generated_name(self) -> str:
        """Return a new server-generated queue name."""
        return f"amq.gen-{secrets.token_urlsafe(16)}"

    def delete_queue(self, queue: Queue) -> int:
        """Delete a queue, cancelling its consumers; returns the number of ready messages deleted with it.

        The queue is no longer found from now on. Messages that it had already begun to discard still go to its dead
        letter exchange, and the commit of the last of them records the deletion (`Queue.after_finish`). A crash before
        that restores the queue with its bindings and the messages that have not moved.
        """
        if queue.deleted:
            return 0
        count = self._unlist(queue)
        self._end(queue, queue.delete())
        return count

    def _unlist(self, queue: Queue) -> int:
        """Remove a queue from all lookups; returns its number of ready messages."""
        count = queue.ready_count
        del self.queues[queue.name]
        if queue.qid and self.record is not None:
            self.record.queue_ending(queue.qid)
        context = self.context
        actor, context.actor = context.actor, INTERNAL  # of its bindings, as in RabbitMQ
        self.router.forget(queue.name)
        context.actor = actor
        self.context.totals.queues_deleted += 1
        self.context.note("queue_deleted", self.name, queue.name, ready=str(count))
        if queue.exclusive_owner is not None:
            queue.exclusive_owner.exclusive_queues.pop(queue.name, None)
        return count

    def _end(self, queue: Queue, consumers: Sequence[Consumer]) -> None:
        """Cancel a deleted queue's consumers, and keep track of the queue if it is not finished yet."""
        for consumer in consumers:
            consumer.channel.consumer_cancelled(consumer)
        self._keep_counts(queue)
        if queue.finished:
            self._forget_rows(queue)
        else:
            self.ending[queue] = None
            if queue.qid:
                self._ending_names[queue.name] = queue

    def delete_queues(self, queues: Sequence[Queue], *, unused: bool = False) -> Iterator[None]:
        """Return a job that deletes queues; with `unused` only those without consumers, durable ones perhaps later."""
        for queue in queues:
            if unused and queue.qid:
                self._delete_later(queue, is_lapsed=False)
                yield
            elif not (unused and queue.consumers):
                self.delete_queue(queue)
                yield

    def _delete_later(self, queue: Queue, *, is_lapsed: bool) -> None:
        """Delete an unused durable queue at once, or when time and the disk allow, unless it is used meanwhile.

        `is_lapsed`: it was unused for `x-expires`; else its last consumer was removed.
        """
        self._unused[queue] = is_lapsed
        if not self._is_deleting:
            self._is_deleting = True
            self._work(self._delete_unused(), f"unused queues of vhost '{self.name}'")

    def _delete_unused(self) -> Iterator[None]:
        try:
            while self._unused:
                queue, is_lapsed = self._unused.popitem(last=False)
                if queue.deleted:
                    continue
                if queue.has_lapsed if is_lapsed else not queue.consumers:
                    self.delete_queue(queue)
                else:
                    queue.touch()  # which sets its timer again
                yield
        finally:
            self._is_deleting = False

    def remove_all(self) -> Generator[None, None, None]:
        """Return a job that deletes everything in a vhost that is itself deleted; nothing is dead-lettered in it."""
        for queue in list(self.queues.values()):
            if not queue.deleted:
                self._unlist(queue)
                self._end(queue, queue.delete(discards=False))
                yield
        for queue in list(self.ending):
            queue.finish()
            yield
        for name in list(self.router.exchanges):
            self.router.remove(name)
            yield
        for operator in (False, True):
            for policy in self.policies.list(operator=operator):
                self.policies.clear(policy.name, operator=operator)
                yield
        for component, parameter, _ in self.parameters.items():
            self.parameters.clear(component, parameter)
        self.record = self.router.listener = self.policies.record = self.parameters.record = None

    def queue_finished(self, queue: Queue) -> None:
        """Finish the deletion of a queue that has discarded all its messages."""
        self.ending.pop(queue, None)
        if self._ending_names.get(queue.name) is queue:
            del self._ending_names[queue.name]
        self._forget_rows(queue)
        before, queue.final = queue.final, None
        queue.final = counts = queue.counts()
        if before is not None:
            late = QueueCounts(
                expired=counts.expired - before.expired,
                dropped=counts.dropped - before.dropped,
                dead_lettered=counts.dead_lettered - before.dead_lettered,
                cycled=counts.cycled - before.cycled,
            )
            self.context.totals.queue_deleted(queue.type, late, {})

    def _forget_rows(self, queue: Queue) -> None:
        """Record the deletion of a queue, in the commit of the last messages it has discarded."""
        if queue.qid and self.record is not None:
            steps = self.record.queue_deleted(queue.qid)
            for _ in steps:
                self._work(steps, f"rows of {queue}")
                break

    def _work(self, steps: Iterator[None], name: str) -> None:
        self._turn.add_writing_job(steps, name)

    def _keep_counts(self, queue: Queue) -> None:
        queue.final = counts = queue.counts()
        if queue.meter is not None:
            queue.meter.ended(queue, self.context.now)
        self.context.totals.queue_deleted(queue.type, counts, queue.backing.paging_counts().transitions)

    def consumer_left(self, queue: Queue) -> None:
        """Delete an auto-delete queue whose last consumer was cancelled."""
        if queue.auto_delete and not queue.consumers and not queue.deleted:
            self.delete_queue(queue)

    # -- policies -----------------------------------------------------------------------------------------------

    def queue_policies(self, queue: Queue) -> Applied:
        """Return the policies that apply to a queue."""
        return self.policies.applied(queue_kind(queue.arguments), queue.name)

    def exchange_policies(self, exchange: Exchange) -> Applied:
        """Return the policies that apply to an exchange."""
        return self.policies.applied(EXCHANGES, exchange.name)

    def reconfigure(self) -> None:
        """Apply the policies to all queues and exchanges, perhaps in several steps; a turn must run then."""
        self.context.note("policies_changed", self.name, "")
        self._policies_changed += 1
        if not self._is_reconfiguring:
            self._is_reconfiguring = True
            self._turn.slices.add(self._reconfigure(), f"policies of vhost '{self.name}'")

    def _reconfigure(self) -> Iterator[None]:
        """Return a job that visits all queues and exchanges, and restarts if policies change meanwhile."""
        seen = 0
        while seen != self._policies_changed:
            seen = self._policies_changed
            everything: list[Queue | Exchange] = [*self.queues.values(), *self.router.exchanges.values()]
            for thing in everything:
                if isinstance(thing, Exchange):
                    self._configure_exchange(thing)
                elif not thing.deleted:
                    self._configure_queue(thing)
                yield
                if seen != self._policies_changed:
                    break
        self._is_reconfiguring = False

    def settings_of(self, queue: Queue, definition: Mapping[str, Any]) -> QueueSettings:
        """Return the settings that a queue has with this merged definition of its policies."""
        limit = self.compatibility.delivery_limit
        return queue_settings(queue.arguments, definition, self._confirm_mode, limit)

    def _configure_queue(self, queue: Queue) -> None:
        before, settings = queue.settings, self.settings_of(queue, self.queue_policies(queue).definition)
        if settings == before:
            return
        if settings.on_publish != before.on_publish or settings.confirm_mode != before.confirm_mode:
            self.router.generation += 1  # routes cache which queues may refuse and which await consumers
        queue.configure(settings)

    def _configure_exchange(self, exchange: Exchange) -> None:
        """Set alternate exchange and deduplication; arguments go before policies. The default exchange has none."""
        if not exchange.name:
            return
        definition = self.exchange_policies(exchange).definition
        if "alternate-exchange" not in exchange.arguments:
            self.router.set_alternate(exchange, definition.get("alternate-exchange"))
        settings = exchange_settings(exchange.arguments, definition)
        make = partial(ExchangeIds, exchange, self.name, self.context, self.disk)
        if configure_ids(self.once, exchange.name, settings, make):
            self.router.generation += 1  # routes cache which exchanges take each message once

    # -- direct reply-to ------------------------------------------------------------------------------------------

    def _make_reply_queue(self, name: str) -> Queue:
        return queue_class(self.context, {})(name, self.name, self._make_backing(0, {}), self._turn)

    def delete_reply_queue(self, queue: Queue) -> None:
        """Delete the queue of a direct reply-to consumer that was cancelled, and keep its counts."""
        self.reply_queues.delete(queue)
        self._keep_counts(queue)
