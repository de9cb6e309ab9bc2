"""Rows of the export, generated from a broker's state and counters. Pure.

Theory. `Rows.take` visits all objects once and yields a row for each that has changed since its last row, or has had
none for a minute. Each row is generated in one step with its own reading of the clock, so its counters and areas are
consistent; between two rows the broker may run, so that ten thousand queues block nobody: a yielded None marks a
possible pause, too. Deleted objects get a last row with their final state.
"""

from collections.abc import Callable, Generator, Iterator
from functools import reduce
from typing import Any, NamedTuple

from leveret.broker.connection.connection import Connection
from leveret.broker.connection.connection_tracking import client_name
from leveret.broker.connection.state import connection_state
from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.sampling import BrokerEvent, QueueMeter
from leveret.broker.counters.totals import ChannelCounts, QueueCounts, Totals, added
from leveret.broker.export.change_tracker import Seen
from leveret.broker.export.queue_rows import facts, queue_row
from leveret.broker.export.tables import (
    Bucket,
    ConnInterval,
    Event,
    ExchangeInterval,
    LatencyHist,
    NodeInterval,
    QueueInterval,
    Row,
    TopicPattern,
)
from leveret.broker.export.topic_patterns import Patterns
from leveret.broker.metrics.sampler import MeasuredBroker
from leveret.broker.queue.queue import Queue
from leveret.exchanges.base import Exchange

_MESSAGES = ("published", "returned", "confirmed", "nacked", "delivered", "acked")


class Process(NamedTuple):
    """Process figures from the operating system: bytes, descriptors, microseconds."""

    rss: int
    fds: int
    cpu_user_us: int
    cpu_sys_us: int


class Rows:
    """Generates the rows of one broker.

    Args:
        broker: the broker.
        node: its name.
        boot_id: the id of this run.
        clock: returns nanoseconds of the clock of `Turn.now`.

    """

    def __init__(self, broker: MeasuredBroker, *, node: str, boot_id: str, clock: Callable[[], int]) -> None:
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

    def take(self, ts: int, process: Process, lost: int) -> Iterator[Row | None]:
        """Yield all rows that are due.

        Args:
            ts: the time, epoch ms.
            process: figures from the operating system.
            lost: number of rows so far that could not be written.

        Yields:
            Rows, and None where the caller should check whether to pause.

        """
        broker = self._broker
        if broker.context.events is not None:
            yield from map(self._event, broker.context.events.take())
        ready, unacked = yield from self._queue_rows(ts)
        yield from self._exchange_rows(ts)
        counted, paused, consumers = yield from self._connection_rows(ts)
        totals, latencies = broker.context.totals, broker.context.latencies
        for mode, latency in latencies.confirm.items():
            yield from self._histogram(ts, "confirm", mode, latency.take())
        if broker.disk is not None:
            yield from self._histogram(ts, "commit", "", broker.disk.commits.duration.take())
        lag = latencies.loop_lag.take()
        yield from self._histogram(ts, "loop_lag", "", lag)
        journal = None if broker.disk is None else broker.disk.journal
        reads = [] if broker.disk is None else [broker.disk.pager.read_delta, broker.disk.pager.read_entries]
        memory, disk = broker.resource_monitor.memory, broker.resource_monitor.disk
        yield NodeInterval(
            **self._common(ts),
            connections=len(broker.clients.connections),
            channels=broker.clients.channel_count,
            queues=sum([len(vhost.queues) for vhost in broker.vhosts.values()]),
            consumers=consumers,
            paused=paused,
            ready=ready,
            unacked=unacked,
            mem_used=memory.used,
            mem_limit=memory.limit,
            disk_free=-1 if disk.free is None else disk.free,
            disk_limit=disk.limit,
            alarms=[name for name, alarm in (("memory", memory), ("disk", disk)) if alarm.raised],
            **_messages(counted),
            commits=0 if journal is None else journal.commits,
            commit_bytes=0 if journal is None else journal.octets_written,
            commit_messages=0 if journal is None else journal.written,
            paged_out=0 if journal is None else journal.paged_out,
            read_messages=sum([each.messages for each in reads]),
            read_blocks=sum([each.blocks for each in reads]),
            read_bodies=sum([each.bodies for each in reads]),
            connections_opened=broker.clients.connections_opened,
            connections_closed=broker.clients.connections_closed,
            channels_opened=broker.clients.channels_opened,
            channels_closed=broker.clients.channels_closed,
            queues_created=totals.queues_created,
            queues_deleted=totals.queues_deleted,
            loop_lag_max_us=lag.greatest,
            loop_lag_p99_us=lag.percentile(0.99),
            export_lost=lost,
            **process._asdict(),
        )

    def _common(self, ts: int, now: int | None = None) -> dict[str, Any]:
        """Return the common columns of all rows; their time is now, unless another is given (ns)."""
        return {
            "ts": ts,
            "mono_us": (self._clock() if now is None else now) // 1000,
            "node": self._node,
            "boot_id": self._boot_id,
        }

    def _event(self, event: BrokerEvent) -> Event:
        ts, now, kind, vhost, name, detail = event
        return Event(**self._common(ts, now), kind=kind, vhost=vhost, name=name, detail=detail)

    def _histogram(
        self, ts: int, metric: str, mode: str, histogram: Histogram, queue: Queue | None = None
    ) -> Iterator[LatencyHist]:
        if histogram.count:
            yield LatencyHist(
                **self._common(ts),
                scope="node" if queue is None else "queue",
                vhost="" if queue is None else queue.vhost,
                name="" if queue is None else queue.name,
                metric=metric,
                mode=mode,
                scheme="ll5",
                count=histogram.count,
                sum_us=histogram.total,
                min_us=histogram.least,
                max_us=histogram.greatest,
                b=[Bucket(bucket, count) for bucket, count in histogram.buckets()],
            )

    # -- queues -----------------------------------------------------------------------------------------------------

    def _queue_rows(self, ts: int) -> Generator[Row | None, None, tuple[int, int]]:
        """Yield the rows of queues; returns the numbers of ready and unacked messages in all of them."""
        seen = self._queues
        seen.begin()
        all_ready = all_unacked = 0
        for queue in [queue for vhost in self._broker.vhosts.values() for queue in vhost.queues.values()]:
            last = seen.visit(queue, ts)
            ready, unacked = queue.backing.ready_count, queue.backing.unacked_count
            all_ready += ready
            all_unacked += unacked
            counts = queue.counts()
            if seen.is_due(last, facts(queue, counts), ts):
                yield self._queue_row(queue, counts, last.since, ts)
            else:
                yield None
            if queue.meter is not None and queue.meter.has_times:
                yield from self._queue_histograms(queue, queue.meter, ts)
        for queue, last in seen.gone():
            yield self._queue_row(queue, queue.counts(), last.since, ts)
            if queue.meter is not None:
                yield from self._queue_histograms(queue, queue.meter, ts)
        return all_ready, all_unacked

    def _queue_row(self, queue: Queue, counts: QueueCounts, since: int, ts: int) -> QueueInterval:
        now = self._clock()
        return queue_row(queue, counts, now=now, first_seen=since, common=self._common(ts, now))

    def _queue_histograms(self, queue: Queue, meter: QueueMeter, ts: int) -> Iterator[LatencyHist]:
        mode = queue.settings.confirm_mode
        for metric, histogram in zip(("deliver", "residence", "ack"), meter.take(), strict=True):
            yield from self._histogram(ts, metric, mode, histogram, queue)

    # -- exchanges --------------------------------------------------------------------------------------------------

    def _exchange_rows(self, ts: int) -> Iterator[Row | None]:
        seen = self._exchanges
        seen.begin()
        vhosts = list(self._broker.vhosts.values())
        for vhost, exchange in [(v, e) for v in vhosts for e in v.router.exchanges.values()]:
            key = vhost.name, exchange
            last = seen.visit(key, ts)
            bindings, published, returned = exchange.binding_count, exchange.published_in, exchange.returned
            if not seen.is_due(last, (bindings, published, returned, exchange.lookups), ts):
                yield None
                continue
            yield self._exchange_row(vhost.name, exchange, last.since, ts)
            if exchange.counts_keys and published:
                patterns = self._patterns.get(key)
                if patterns is None:
                    patterns = self._patterns[key] = Patterns()
                yield from patterns.count(exchange, vhost.router.generation)
                if patterns.make_room(exchange):
                    vhost.router.generation += 1  # cached routes refer to the tallies
                yield from self._pattern_rows(vhost.name, exchange, patterns, last.since, ts)
        for key, last in seen.gone():
            self._patterns.pop(key, None)
            yield self._exchange_row(*key, last.since, ts)

    def _exchange_row(self, vhost: str, exchange: Exchange, since: int, ts: int) -> ExchangeInterval:
        published, unroutable = exchange.published_in, exchange.unroutable
        return ExchangeInterval(
            **self._common(ts),
            vhost=vhost,
            exchange=exchange.name,
            since_ms=since,
            type=exchange.type,
            bindings=exchange.binding_count,
            pub_in=published,
            routed=published - unroutable,
            unroutable_returned=exchange.returned,
            unroutable_dropped=unroutable - exchange.returned,
            fanout_sum=exchange.published_out,
            route_lookups=exchange.lookups,
        )

    def _pattern_rows(
        self, vhost: str, exchange: Exchange, patterns: Patterns, since: int, ts: int
    ) -> Iterator[TopicPattern]:
        for pattern, matches in patterns.most_matched:
            yield TopicPattern(
                **self._common(ts),
                vhost=vhost,
                exchange=exchange.name,
                pattern=pattern,
                since_ms=since,
                matches=matches,
                error=patterns.missed,
            )

    # -- connections ------------------------------------------------------------------------------------------------

    def _connection_rows(self, ts: int) -> Generator[Row | None, None, tuple[ChannelCounts, int, int]]:
        """Yield connection rows; returns channels' counters, and the numbers of paused connections and consumers."""
        broker, seen = self._broker, self._connections
        seen.begin()
        totals: Totals = broker.context.totals
        total = totals.channels
        live = [
            (each, list(each.channels.values()), each.channels_gone) for each in broker.clients.connections
        ]
        paused = consumers = 0
        for connection, channels, gone in live:
            last = seen.visit(connection, ts)
            own = reduce(added, [channel.counts() for channel in channels], ChannelCounts())
            total = added(total, own)
            own = added(own, gone)
            state = connection_state(connection, broker.alarm, broker.now())
            paused += state in {"flow", "blocked"}
            consumers += sum([len(channel.consumers) for channel in channels])
            if seen.is_due(last, (own, connection.counts(), len(channels), state), ts):
                yield self._connection_row(connection, own, state, last.since, ts)
            else:
                yield None
        for connection, last in seen.gone():
            yield self._connection_row(connection, connection.channels_gone, "closing", last.since, ts)
        return total, paused, consumers

    def _connection_row(
        self, connection: Connection, counts: ChannelCounts, state: str, since: int, ts: int
    ) -> ConnInterval:
        channels = list(connection.channels.values())
        octets = connection.counts()
        confirming = [channel.confirms for channel in channels if channel.confirms is not None]
        return ConnInterval(
            **self._common(ts),
            conn_id=connection.name,
            since_ms=since,
            user=connection.user.name,
            vhost=connection.vhost.name,
            peer=connection.peer[0],
            client=client_name(connection),
            state=state,
            channels=len(channels),
            consumers=sum([len(channel.consumers) for channel in channels]),
            unacked=sum([len(channel.unacked) for channel in channels]),
            unconfirmed=sum([confirms.unconfirmed_count for confirms in confirming]),
            prefetch=sum(
                [each.prefetch_count for channel in channels for each in channel.consumers.values()]
            ),
            write_buffer_bytes=connection.driver.unsent,
            recv_bytes=octets.octets_in,
            sent_bytes=octets.octets_out,
            **_messages(counts),
        )


def _messages(counts: ChannelCounts) -> dict[str, Any]:
    """Return the columns that connections and the node have of what their channels count."""
    return {name: getattr(counts, name) for name in _MESSAGES}
