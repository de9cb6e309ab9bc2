"""The samples of everything in a broker, and what they say about an object.

A pass visits all objects in steps and adds a row to the series of each. Series of objects that are gone end with the
next pass. Counters that the objects keep anyway are read, also by requests, whose totals are those of this moment:
only rates and ranges come from samples.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import add, sub
from typing import Any, Protocol, TypeVar

from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.statistics import families
from leveret.broker.statistics.rates import NO_RATE, Family, Span, details
from leveret.broker.statistics.series import Row, Series, Ticks, Tier
from leveret.broker.vhost.vhost import VHost

STEP = 50
"""Objects that are visited in one step, some hundred microseconds."""
T = TypeVar("T", bound=Hashable)
Read = Callable[[Sequence[int]], int]


class SampledBroker(Protocol):
    """The sampled broker (`broker.server.server.Server`)."""

    vhosts: dict[str, VHost]
    clients: ConnectionTracking
    context: NodeContext

    def now(self) -> float:
        """Return seconds of a monotonic clock."""

    def disk_counts(self) -> tuple[int, int]:
        """Return the numbers of messages read from disk and written to it."""

    def node_counts(self) -> Mapping[str, int]:
        """Return the figures of the node by RabbitMQ's names (`families.NODE`)."""


class Statistics:
    """The samples of one broker.

    Args:
        broker: the broker.
        interval: seconds between two ticks.

    """

    def __init__(self, broker: SampledBroker, interval: float) -> None:
        self._broker = broker
        self.ticks = Ticks(0, 0.0, 0, interval)
        self._origin: float | None = None
        self._queues: dict[Any, Series] = {}
        self._channels: dict[Any, Series] = {}
        self._connections: dict[Any, Series] = {}
        self._exchanges: dict[Any, Series] = {}
        self._vhosts: dict[Any, Series] = {}
        self._broker_series = Series()
        self._node_series = Series()
        self.is_sampled = False
        """True while a `Sampling` runs: of several listeners only the first has one."""
        self.files = 0
        """Open file descriptors; the sampler reads their number, which takes long."""
        self._readers: dict[tuple[int, str], Read] = {}
        self._resets = 0
        """Number of times that everything was forgotten: a pass that is at work then has nothing to keep."""
        self._forgotten: dict[VHost | None, tuple[Row, Row]] = {}
        """Counts of channels and connections that were gone then, by vhost; None for the broker."""

    # -- sampling ---------------------------------------------------------------------------------------------------

    def sample(self) -> Iterator[None]:
        """Sample everything, in steps."""
        broker = self._broker
        now = broker.now()
        if self._origin is None:
            self._origin = now
        number = max(self.ticks.number + 1, round((now - self._origin) / self.ticks.interval) + 1)
        self.ticks = self.ticks._replace(number=number, at=now, wall=broker.context.clock())
        vhosts = list(broker.vhosts.values())
        lengths: dict[str, tuple[int, int]] = {}
        queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
        self._queues = yield from self._visit(queues, self._queues, families.queue_row, families.QUEUES.tiers)
        for vhost in vhosts:
            lengths[vhost.name] = yield from lengths_of(vhost.queues.values())
        exchanges = [each for vhost in vhosts for each in vhost.router.exchanges.values()]
        self._exchanges = yield from self._visit(
            exchanges, self._exchanges, families.exchange_row, families.EXCHANGES.tiers
        )
        connections = list(broker.clients.connections)
        self._connections = yield from self._visit(
            connections, self._connections, families.live_connection_row, families.CONNECTIONS.tiers
        )
        channels = [channel for each in connections for channel in each.channels.values()]
        self._channels = yield from self._visit(
            channels, self._channels, families.live_channel_row, families.CHANNELS.tiers
        )
        found: dict[Any, Series] = {}
        resets = self._resets
        for vhost in vhosts:
            stats = yield from self.channel_totals(vhost)
            octets = yield from self.octet_totals(vhost)
            found[vhost] = self._added(
                self._vhosts.get(vhost), (*stats, *lengths[vhost.name], *octets), families.VHOSTS.tiers
            )
        self._vhosts = found if resets == self._resets else {}
        self._forgotten = {
            each: rows for each, rows in self._forgotten.items() if each is None or each in found
        }
        stats = yield from self.channel_totals(None)
        ready, unacked = (sum([each[place] for each in lengths.values()]) for place in (0, 1))
        self._added(
            self._broker_series,
            (*stats, ready, unacked, *broker.disk_counts(), *self.churn().values()),
            families.BROKER.tiers,
        )
        node = {"fd_used": self.files, **broker.node_counts()}
        self._added(
            self._node_series,
            tuple([node[name] for name in families.NODE.columns]),
            families.NODE.tiers,
        )

    def forgetting(self) -> Iterator[None]:
        """Forget all samples, in steps, and the counts of what is gone; those of living objects go on."""
        self._resets += 1
        known = self._queues, self._channels, self._connections, self._exchanges, self._vhosts
        self._queues, self._channels, self._connections, self._exchanges, self._vhosts = ({} for _ in known)
        self._broker_series, self._node_series = Series(), Series()
        totals = self._broker.context.totals
        self._forgotten = {None: (families.channel_row(totals.channels), ())} | {
            vhost: (
                families.channel_row(vhost.channels_gone),
                families.connection_row(vhost.connections_gone),
            )
            for vhost in self._broker.vhosts.values()
        }
        for series in known:
            while series:
                for _ in range(min(STEP, len(series))):
                    series.popitem()
                yield

    def _visit(
        self,
        objects: Sequence[T],
        known: Mapping[T, Series],
        row: Callable[[T], Row],
        tiers: tuple[Tier, ...],
    ) -> Generator[None, None, dict[Any, Series]]:
        """Add a sample to the series of each object; returns the series by object."""
        found: dict[T, Series] = {}
        ticks, now, resets = self.ticks, self._broker.now, self._resets
        for at in range(0, len(objects), STEP):
            time = now()
            for each in objects[at : at + STEP]:
                series = known.get(each)
                if series is None:
                    series = Series()
                found[each] = series
                series.add(row(each), time, ticks, tiers)
            yield
        return found if resets == self._resets else {}

    def _added(self, series: Series | None, row: Row, tiers: tuple[Tier, ...]) -> Series:
        if series is None:
            series = Series()
        series.add(row, self._broker.now(), self.ticks, tiers)
        return series

    # -- totals of this moment --------------------------------------------------------------------------------------

    def channel_totals(self, vhost: VHost | None) -> Generator[None, None, Row]:
        """Add up the counters of the channels of a vhost, or of all, closed ones too, in steps; returns the row."""
        broker = self._broker
        gone = broker.context.totals.channels if vhost is None else vhost.channels_gone
        total = self._since_reset(families.channel_row(gone), vhost, 0)
        living = [
            channel
            for connection in broker.clients.connections
            if vhost is None or connection.vhost is vhost
            for channel in connection.channels.values()
        ]
        for at in range(0, len(living), STEP):
            for channel in living[at : at + STEP]:
                total = tuple(map(add, total, families.live_channel_row(channel)))
            yield
        return total

    def _since_reset(self, gone: Row, vhost: VHost | None, part: int) -> Row:
        forgotten = self._forgotten.get(vhost)
        return gone if forgotten is None else tuple(map(sub, gone, forgotten[part]))

    def octet_totals(self, vhost: VHost) -> Generator[None, None, Row]:
        """Add up the bytes of the connections to a vhost, closed ones too, in steps; returns received and sent."""
        received, sent = self._since_reset(families.connection_row(vhost.connections_gone), vhost, 1)
        living = [each for each in self._broker.clients.connections if each.vhost is vhost]
        for at in range(0, len(living), STEP):
            for each in living[at : at + STEP]:
                received += each.octets_in
                sent += each.octets_out
            yield
        return received, sent

    def vhost_row(self, vhost: VHost) -> Row:
        """Return the last sample of a vhost; before the first, the totals of this moment."""
        series = self._vhosts.get(vhost)
        if series is not None:
            return series.last
        stats, lengths, octets = (
            finished(steps)
            for steps in (
                self.channel_totals(vhost),
                lengths_of(vhost.queues.values()),
                self.octet_totals(vhost),
            )
        )
        return (*stats, *lengths, *octets)

    def churn(self) -> dict[str, int]:
        """Return the numbers of connections, channels and queues that came and went."""
        clients, totals = self._broker.clients, self._broker.context.totals
        values = (
            clients.connections_opened,
            clients.connections_closed,
            clients.channels_opened,
            clients.channels_closed,
            totals.queues_declared,
            totals.queues_created,
            totals.queues_deleted,
        )
        return dict(zip(families.CHURN, values, strict=True))

    # -- what the samples say ---------------------------------------------------------------------------------------

    def queue(self, queue: Queue) -> Series | None:
        """Return the samples of a queue; None before the first."""
        return self._queues.get(queue)

    def channel(self, channel: Any) -> Series | None:
        """Return the samples of a channel; None before the first."""
        return self._channels.get(channel)

    def connection(self, connection: Any) -> Series | None:
        """Return the samples of a connection; None before the first."""
        return self._connections.get(connection)

    def exchange(self, exchange: Any) -> Series | None:
        """Return the samples of an exchange; None before the first."""
        return self._exchanges.get(exchange)

    def vhost(self, vhost: VHost) -> Series | None:
        """Return the samples of a vhost; None before the first."""
        return self._vhosts.get(vhost)

    @property
    def broker(self) -> Series | None:
        """The samples of the broker; None before the first."""
        return self._broker_series if self._broker_series.last else None

    @property
    def node(self) -> Series | None:
        """The samples of the node; None before the first."""
        return self._node_series if self._node_series.last else None

    def detail(
        self, series: Series | None, family: Family, name: str, span: Span | None = None
    ) -> Mapping[str, Any]:
        """Return `NAME_details` of an object.

        Args:
            series: its samples.
            family: its kind.
            name: the name of the value.
            span: the range that was asked for.

        """
        if series is None or (span is None and series.is_still):
            return NO_RATE
        key = id(family), name
        read = self._readers.get(key)
        if read is None:
            read = self._readers[key] = family.reader(name)
        return details(series, family, read, self.ticks, self._broker.now(), span)

    def stats(
        self,
        series: Series | None,
        family: Family,
        values: Mapping[str, int],
        span: Span | None = None,
    ) -> dict[str, Any]:
        """Return values with their `*_details`."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            found[name] = value
            found[f"{name}_details"] = self.detail(series, family, name, span)
        return found


def lengths_of(queues: Iterable[Queue]) -> Generator[None, None, tuple[int, int]]:
    """Add up the ready and the unacked messages of queues, in steps; returns both."""
    ready = unacked = 0
    for number, queue in enumerate(list(queues), 1):
        ready += queue.backing.ready_count
        unacked += queue.backing.unacked_count
        if not number % STEP:
            yield
    return ready, unacked


def finished(steps: Generator[None, None, Row]) -> Row:
    """Run steps to their end; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            row: Row = done.value
            return row


def named(family: Family, names: Sequence[str], row: Sequence[int]) -> dict[str, int]:
    """Return values of a row by name, with the sums that are made of them."""
    values = dict(zip(names, row, strict=False))
    for name, parts in family.sums.items():
        if all(part in values for part in parts):
            values[name] = sum([values[part] for part in parts])
    return values
