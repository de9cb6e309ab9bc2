"""Rows of the export, generated from a broker's state and counters. Pure.

Theory. `Rows.take` visits all objects once and yields a row for each that has changed since its last row, or has had
none for a minute. Each row is generated in one step with its own reading of the clock, so its counters and areas are
consistent; between two rows the broker may run, so that ten thousand queues block no client: a yielded None marks a
possible pause, too. Deleted objects get a last row with their final state.

A topic exchange counts messages by routing key, for a limited number of keys (`Exchange.tally`). The binding
keys that they match are looked up on request, once for each routing key, in a trie of the binding keys alone.

When other keys were used since the last time, those least used in between make room: their counts are kept, and the
next new keys are tracked instead, more frequent ones sooner. So counts by binding key are never too high, and their
maximum error is known: `missed`.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import chain, islice
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.connection_tracking import client_name
from leveret.broker.connection.state import connection_state
from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.sampling import QueueMeter
from leveret.broker.counters.totals import ChannelCounts, QueueCounts, added
from leveret.broker.export.tables import (
    AREA_MODULUS,
    CONNECTION,
    EVENT,
    EXCHANGE,
    LATENCY,
    NODE,
    QUEUE,
    TOPIC_PATTERN,
)
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics.node_figures import Process, disk_of
from leveret.broker.statistics.rows import ChannelLevels, all_of, channel_levels, queue_levels
from leveret.exchanges.base import Exchange, Tally
from leveret.exchanges.topic import TopicTrie
from leveret.storage.queues.backing_queue import PagingCounts

MOST = 64  # maximum number of binding keys with rows per exchange
_MANY = 4096  # counts between two yields
_STEP = 32  # routing keys, destinations or binding keys between two yields


class Patterns:
    """Counts of messages that the binding keys of one topic exchange have matched."""

    def __init__(self) -> None:
        self._generation = -1
        self._keys: list[str] = []
        self._trie = TopicTrie()
        self._counted: dict[Tally, int] = {}
        self._recent: list[tuple[int, Tally]] = []  # increments of the last count, and tallies of single keys
        self._is_short = False
        self.counts: dict[str, int] = {}  # number by binding key, as far as known
        self.missed = 0  # messages whose keys were not tracked: the maximum error of every count
        self.most_matched: list[tuple[str, int]] = []
        """The binding keys that matched most messages, with their counts, at the end of `count`."""

    def count(self, exchange: Exchange, generation: int) -> Iterator[None]:
        """Count the messages published since the last time; yields where a pause is possible.

        The exchange is the same each time; the generation changes when bindings may have changed.
        """
        if generation != self._generation:
            self._generation = generation
            yield from self._learn(exchange)
        counted = self._counted
        self._recent, self._is_short = [], False
        for at, tally in enumerate(list(exchange.tallies.values())):
            more = tally.published - counted.get(tally, 0)
            if tally.routing_key is not None:
                self._count(tally)
                self._recent.append((more, tally))
            elif more:
                counted[tally] = tally.published
                self.missed += more
                self._is_short = True
            if at % _STEP == _STEP - 1:
                yield
        self.most_matched = []
        items = iter(self.counts.items())
        while some := list(islice(items, _MANY)):
            self.most_matched = nlargest(MOST, chain(self.most_matched, some), key=itemgetter(1))
            yield

    def _learn(self, exchange: Exchange) -> Iterator[None]:
        found: dict[str, None] = {}
        for at, destination in enumerate(list(exchange.destinations())):
            found.update(dict.fromkeys(exchange.binding_keys_to(destination)))
            if at % _STEP == _STEP - 1:
                yield
        keys = list(found)
        if keys == self._keys:
            return
        trie, counts = TopicTrie(), {}
        for at, key in enumerate(keys):
            trie.add(key, key)
            counts[key] = self.counts.get(key, 0)  # keys without matches are reported, too
            if at % _STEP == _STEP - 1:
                yield
        self._keys, self._trie, self.counts = keys, trie, counts

    def _count(self, tally: Tally) -> None:
        more = tally.published - self._counted.get(tally, 0)
        if more:
            self._counted[tally] = tally.published
            counts = self.counts
            for matched in self._trie.match(tally.routing_key):  # type: ignore[arg-type]
                counts[matched] = counts.get(matched, 0) + more  # type: ignore[call-overload, index]

    def make_room(self, exchange: Exchange) -> bool:
        """Make the exchange track other keys if some were not tracked, after `count`; True if routes become invalid.

        In that case the caller must recompute all routes from the exchange before the next message is published.
        """
        recent, self._recent = self._recent, []
        if not self._is_short:
            return False
        unused = sum([not more for more, _ in recent])
        given_up = [tally for _, tally in nsmallest(max(unused, len(recent) // 4), recent, key=itemgetter(0))]
        counted = self._counted
        for tally in given_up:
            self._count(tally)
            counted.pop(tally, None)
        moved = [(tally.width, tally.published) for tally in given_up]
        exchange.stop_counting_keys(given_up)
        for width, published in moved:
            if published:
                rest = exchange.tallies[width, None]
                counted[rest] = counted.get(rest, 0) + published
        return bool(given_up)


FULL_MS = 60_000  # interval after which an object gets a row even if unchanged
T = TypeVar("T")


@dataclass(slots=True)
class Last:
    """The latest row of an object."""

    since: int
    facts: object = None
    written: int = 0

    def is_due(self, facts: object, ts: int) -> bool:
        """Return whether the object needs a row, because its facts changed or are old. The caller then writes it."""
        if facts == self.facts and ts - self.written < FULL_MS:
            return False
        self.facts, self.written = facts, ts
        return True


class Seen(Generic[T]):
    """Tracks the rows written for the objects of one kind."""

    def __init__(self) -> None:
        self._before: dict[T, Last] = {}  # of the round before, those that were not visited yet
        self._last: dict[T, Last] = {}

    def visit(self, thing: T, ts: int) -> Last:
        """Record that an object still exists; returns its latest row."""
        self._last[thing] = last = self._before.pop(thing, None) or Last(ts)
        return last

    def gone(self) -> list[tuple[T, Last]]:
        """End a round; returns the objects that were not visited, which are no longer tracked."""
        gone = list(self._before.items())
        self._before, self._last = self._last, {}
        return gone

    def forget(self) -> None:
        """Note that written rows were lost: every object gets a row in the next round."""
        for last in (*self._before.values(), *self._last.values()):
            last.facts = None


class Rows:
    """Generates the rows of one broker, of this run (`boot_id`); the clock has the nanoseconds of `Turn.now`."""

    def __init__(
        self, broker: AdministeredBroker, *, node: str, boot_id: str, clock: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._node = node
        self._boot_id = boot_id
        self._clock = clock
        self._queues: Seen[Queue] = Seen()
        self._exchanges: Seen[tuple[str, Exchange]] = Seen()
        self._connections: Seen[Connection] = Seen()
        self._patterns: dict[tuple[str, Exchange], Patterns] = {}

    def begin(self) -> None:
        """Record the current lengths of queues: messages of an earlier run count from here."""
        for vhost in self._broker.vhosts.values():
            for queue in vhost.queues.values():
                if queue.meter is not None:
                    queue.meter.update(queue, self._clock())

    def forget(self) -> None:
        """Note that rows written lately were lost."""
        for seen in (self._queues, self._exchanges, self._connections):
            seen.forget()

    def take(self, ts: int, process: Process, lost: int) -> Iterator[Any]:
        """Yield all rows that are due at a time (epoch ms), and None where the caller should check whether to pause.

        `lost` is the number of rows so far that could not be written.
        """
        broker = self._broker
        disk = disk_of(broker)
        if broker.context.events is not None:
            for event in broker.context.events.take():
                yield EVENT.row(self._common(event.ts, event.now), event)
        ready, unacked = yield from self._queue_rows(ts)
        yield from self._exchange_rows(ts)
        counts, paused, consumers = yield from self._connection_rows(ts)
        latencies = broker.context.latencies
        for mode, latency in latencies.confirm.items():
            yield from self._histogram(ts, "confirm", mode, latency.take())
        yield from self._histogram(ts, "commit", "", disk.commits.duration.take())
        lag = latencies.loop_lag.take()
        yield from self._histogram(ts, "loop_lag", "", lag)
        node = SimpleNamespace(
            broker=broker,
            clients=broker.clients,
            totals=broker.context.totals,
            resources=broker.resource_monitor,
            disk=disk,
            process=process,
            counts=counts,
            consumers=consumers,
            paused=paused,
            ready=ready,
            unacked=unacked,
            lag=lag,
            lost=lost,
        )
        yield NODE.row(self._common(ts), node)

    def _common(self, ts: int, now: int | None = None) -> tuple[Any, ...]:
        """Return the common columns of all rows; their time is now, unless another is given (ns)."""
        return 1, ts, (self._clock() if now is None else now) // 1000, self._node, self._boot_id

    def _histogram(
        self, ts: int, metric: str, mode: str, histogram: Histogram, queue: Queue | None = None
    ) -> Iterator[Any]:
        if histogram.count:
            yield LATENCY.row(
                self._common(ts),
                SimpleNamespace(
                    scope="node" if queue is None else "queue",
                    vhost="" if queue is None else queue.vhost,
                    name="" if queue is None else queue.name,
                    metric=metric,
                    mode=mode,
                    durations=histogram,
                ),
            )

    # -- queues -----------------------------------------------------------------------------------------------------

    def _queue_rows(self, ts: int) -> Generator[Any, None, tuple[int, int]]:
        """Yield the rows of queues; returns the numbers of ready and unacked messages in all of them."""
        seen = self._queues
        all_ready = all_unacked = 0
        for queue in [queue for vhost in self._broker.vhosts.values() for queue in vhost.queues.values()]:
            last = seen.visit(queue, ts)
            ready, unacked = queue.backing.ready_count, queue.backing.unacked_count
            all_ready += ready
            all_unacked += unacked
            counts = queue.counts()
            paging = queue.backing.paging_counts()
            if last.is_due(_facts(queue, counts, paging), ts):
                yield self._queue_row(queue, counts, paging, last.since, ts)
            else:
                yield None
            if queue.meter is not None and queue.meter.has_times:
                yield from self._queue_histograms(queue, queue.meter, ts)
        for queue, last in seen.gone():
            yield self._queue_row(queue, queue.counts(), queue.backing.paging_counts(), last.since, ts)
            if queue.meter is not None:
                yield from self._queue_histograms(queue, queue.meter, ts)
        return all_ready, all_unacked

    def _queue_row(self, queue: Queue, counts: QueueCounts, paging: PagingCounts, since: int, ts: int) -> Any:
        now, meter = self._clock(), queue.meter
        if meter is None:
            meter = QueueMeter(now, since)  # which has measured nothing
        elif not queue.deleted:  # its messages at the deletion are included in its areas
            meter.update(queue, now)
        areas = {name: getattr(meter, name) for name in ("ready", "unacked", "beta", "gamma", "delta")}
        areas["alpha"] = areas["ready"] - areas["beta"] - areas["gamma"] - areas["delta"]
        about = SimpleNamespace(
            queue=queue,
            since=meter.since,
            counts=counts,
            levels=queue_levels(queue, paging),
            paging=paging,
            **{f"area_{name}": value // 1000 % AREA_MODULUS for name, value in areas.items()},
        )
        return QUEUE.row(self._common(ts, now), about)

    def _queue_histograms(self, queue: Queue, meter: QueueMeter, ts: int) -> Iterator[Any]:
        mode = queue.settings.confirm_mode
        for metric, histogram in zip(("deliver", "residence", "ack"), meter.take(), strict=True):
            yield from self._histogram(ts, metric, mode, histogram, queue)

    # -- exchanges --------------------------------------------------------------------------------------------------

    def _exchange_rows(self, ts: int) -> Iterator[Any]:
        seen = self._exchanges
        vhosts = list(self._broker.vhosts.values())
        for vhost, exchange in [(v, e) for v in vhosts for e in v.router.exchanges.values()]:
            key = vhost.name, exchange
            last = seen.visit(key, ts)
            bindings, published, returned = exchange.binding_count, exchange.published_in, exchange.returned
            if not last.is_due((bindings, published, returned, exchange.lookups), ts):
                yield None
                continue
            about = SimpleNamespace(vhost=vhost.name, exchange=exchange, since=last.since)
            yield EXCHANGE.row(self._common(ts), about)
            if exchange.counts_keys and published:
                patterns = self._patterns.get(key)
                if patterns is None:
                    patterns = self._patterns[key] = Patterns()
                yield from patterns.count(exchange, vhost.router.generation)
                if patterns.make_room(exchange):
                    vhost.router.generation += 1  # cached routes refer to the tallies
                about.missed = patterns.missed
                for pattern, matches in patterns.most_matched:
                    about.pattern, about.matches = pattern, matches
                    yield TOPIC_PATTERN.row(self._common(ts), about)
        for key, last in seen.gone():
            self._patterns.pop(key, None)
            about = SimpleNamespace(vhost=key[0], exchange=key[1], since=last.since)
            yield EXCHANGE.row(self._common(ts), about)

    # -- connections ------------------------------------------------------------------------------------------------

    def _connection_rows(self, ts: int) -> Generator[Any, None, tuple[ChannelCounts, int, int]]:
        """Yield connection rows; returns channels' counters, and the numbers of paused connections and consumers."""
        broker, seen = self._broker, self._connections
        total: ChannelCounts = broker.context.totals.channels
        live = [
            (each, list(each.channels.values()), each.channels_gone) for each in broker.clients.connections
        ]
        paused = consumers = 0
        for connection, channels, gone in live:
            last = seen.visit(connection, ts)
            own = all_of([ChannelCounts(), *[channel.counts() for channel in channels]])
            total = added(total, own)
            own = added(own, gone)
            state = connection_state(connection, broker.alarm, broker.now())
            paused += state in {"flow", "blocked"}
            consumers += sum([len(channel.consumers) for channel in channels])
            if last.is_due((own, connection.counts(), len(channels), state), ts):
                yield self._connection_row(connection, own, state, last.since, ts)
            else:
                yield None
        for connection, last in seen.gone():
            yield self._connection_row(connection, connection.channels_gone, "closing", last.since, ts)
        return total, paused, consumers

    def _connection_row(
        self, connection: Connection, counts: ChannelCounts, state: str, since: int, ts: int
    ) -> Any:
        channels = list(connection.channels.values())
        about = SimpleNamespace(
            connection=connection,
            since=since,
            state=state,
            counts=counts,
            channels=len(channels),
            levels=all_of([ChannelLevels(), *map(channel_levels, channels)]),
            client=client_name(connection),
            prefetch=sum(
                [each.prefetch_count for channel in channels for each in channel.consumers.values()]
            ),
        )
        return CONNECTION.row(self._common(ts), about)


def _facts(queue: Queue, counts: QueueCounts, paging: PagingCounts) -> tuple[object, ...]:
    """Return the values that decide whether a queue needs a new row: unless they change, only its time would."""
    awaiting, backing = queue.awaiting, queue.backing
    return (
        counts,
        backing.ready_count,
        backing.unacked_count,
        queue.held_count,
        queue.tally.requeued,
        None if awaiting is None else (awaiting.promised, awaiting.refused),
        sum(paging.transitions.values()),
        len(queue.consumers),
        queue.settings.confirm_mode,
    )
