"""The samples of everything in a broker, and what they say about an object.

A pass visits all objects in steps and adds a row to the series of each. Series of ended objects end with the next pass.
Counters that the objects keep anyway are read, also by requests, whose totals are those of this moment: only rates and
ranges come from samples.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from operator import add, sub
from typing import Any, TypeVar

from leveret.broker.connection.node import Node
from leveret.broker.scheduling.time_slices import at_once, portions
from leveret.broker.statistics import families
from leveret.broker.statistics.node_figures import disk_counts, node_counts
from leveret.broker.statistics.series import LATE, NO_RATE, Family, Row, Series, Span, Ticks, details
from leveret.broker.vhost.vhost import VHost

STEP = 50  # objects that are visited in one step, some hundred microseconds
T = TypeVar("T")
Read = Callable[[Sequence[int]], int]
Totals = Generator[None, None, Row]
_LENGTHS = slice(families.VHOSTS.columns.index(families.LENGTHS[0]), -len(families.OCTETS))
"""Place of the lengths in the row of a vhost."""
BROKER, NODE = "broker", "node"  # stand for the objects that have the series of the broker, and of the node
NOTHING: Mapping[Any, Series] = {}


class Statistics:
    """The samples of one broker (`broker.server.server.Server`), with so many seconds between two ticks."""

    def __init__(self, broker: Node, interval: float) -> None:
        self._broker = broker
        self.ticks = Ticks(0, 0.0, 0, interval)
        self._origin: float | None = None
        self._series: dict[Any, Series] = {}
        """Samples of queues, channels, connections, exchanges and vhosts, and of the broker and the node."""
        self.is_sampled = False  # True while a `Sampling` runs: of several listeners only the first has one
        self.files = 0  # open file descriptors; the sampler reads their number, which takes long
        self._readers: dict[tuple[int, str], Read] = {}
        self._nothing: dict[int, dict[str, Any]] = {}  # `message_stats` of idle objects, by kind
        self._resets = 0  # number of times that everything was forgotten: a pass at work then keeps nothing
        self._forgotten: dict[VHost | None, tuple[Row, Row]] = {}
        """Counts of channels and connections that were gone then, by vhost; None for the broker."""

    # -- sampling ---------------------------------------------------------------------------------------------------

    def sample(self) -> Iterator[None]:
        """Sample everything, in steps."""
        broker = self._broker
        now = broker.loop.now()
        if self._origin is None:
            self._origin = now
        number = max(self.ticks.number + 1, round((now - self._origin) / self.ticks.interval) + 1)
        self.ticks = self.ticks._replace(number=number, at=now, wall=broker.context.clock())
        vhosts, connections = list(broker.vhosts.values()), list(broker.clients.connections)
        found: dict[Any, Series] = {}
        resets = self._resets
        for family, objects in (
            (families.QUEUES, [queue for vhost in vhosts for queue in vhost.queues.values()]),
            (families.EXCHANGES, [each for vhost in vhosts for each in vhost.router.exchanges.values()]),
            (families.CONNECTIONS, connections),
            (families.CHANNELS, [channel for each in connections for channel in each.channels.values()]),
        ):
            yield from self._visit(family, objects, found)
        lengths: Row = (0, 0)
        for vhost in vhosts:
            row = yield from self._vhost_totals(vhost, found)
            lengths = tuple(map(add, lengths, row[_LENGTHS]))
            self._add(found, vhost, families.VHOSTS, row)
        stats = yield from self.channel_totals(None, found)
        row = (*stats, *lengths, *disk_counts(broker), *families.churn(broker))
        self._add(found, BROKER, families.BROKER, row)
        self._add(found, NODE, families.NODE, tuple(node_counts(broker).values()))
        self._series = found if resets == self._resets else {}
        self._forgotten = {
            each: rows for each, rows in self._forgotten.items() if each is None or each in found
        }

    def forgetting(self) -> Iterator[None]:
        """Forget all samples, in steps, and the counts of ended objects; those of living objects continue."""
        self._resets += 1
        known, self._series = self._series, {}
        totals = self._broker.context.totals
        self._forgotten = {None: (families.channel_row(totals.channels), ())} | {
            vhost: (
                families.channel_row(vhost.channels_gone),
                families.connection_row(vhost.connections_gone),
            )
            for vhost in self._broker.vhosts.values()
        }
        while known:
            for _ in range(min(STEP, len(known))):
                known.popitem()
            yield

    def _visit(self, family: Family, objects: Sequence[Any], found: dict[Any, Series]) -> Iterator[None]:
        ticks, known, read, tiers = self.ticks, self._series, family.read, family.tiers
        for some in portions(objects, STEP):
            now = self._broker.loop.now()
            for each in some:
                found[each] = series = known.get(each) or Series()
                series.add(read(each), now, ticks, tiers)
            yield

    def _add(self, found: dict[Any, Series], key: Any, family: Family, row: Row) -> None:
        found[key] = series = self._series.get(key) or Series()
        series.add(row, self._broker.loop.now(), self.ticks, family.tiers)

    # -- totals of this moment --------------------------------------------------------------------------------------

    def channel_totals(
        self, vhosts: Sequence[VHost] | None, sampled: Mapping[Any, Series] = NOTHING
    ) -> Totals:
        """Add up the counters of the channels of vhosts, or of all, closed ones too, in steps; returns the row.

        `sampled` has series of objects whose last row may be taken, which is quicker.
        """
        channels = self._broker.context.totals.channels
        gone = {None: channels} if vhosts is None else {each: each.channels_gone for each in vhosts}
        rows = [self._since_reset(families.channel_row(counts), each, 0) for each, counts in gone.items()]
        living = [
            channel
            for connection in self._broker.clients.connections
            if vhosts is None or connection.vhost in vhosts
            for channel in connection.channels.values()
        ]
        read = _reader(families.CHANNELS, sampled)
        return (yield from summed(living, read, families.NO_CHANNEL, *rows))

    def _since_reset(self, gone: Row, vhost: VHost | None, part: int) -> Row:
        forgotten = self._forgotten.get(vhost)
        return gone if forgotten is None else tuple(map(sub, gone, forgotten[part]))

    def _vhost_totals(self, vhost: VHost, sampled: Mapping[Any, Series] = NOTHING) -> Totals:
        """Return the row of a vhost: counters of its channels, lengths of its queues, bytes of its connections."""
        stats = yield from self.channel_totals((vhost,), sampled)
        lengths = yield from summed(vhost.queues.values(), families.lengths, (0, 0))
        gone = self._since_reset(families.connection_row(vhost.connections_gone), vhost, 1)
        living = [each for each in self._broker.clients.connections if each.vhost is vhost]
        octets = yield from summed(living, families.connection_row, gone)
        return (*stats, *lengths, *octets)

    def vhost_row(self, vhost: VHost) -> Row:
        """Return the last sample of a vhost; before the first, the totals of this moment."""
        series = self._series.get(vhost)
        return at_once(self._vhost_totals(vhost)) if series is None else series.last

    def churn(self) -> dict[str, int]:
        """Return the numbers of connections, channels and queues that came and went."""
        return dict(zip(families.CHURN, families.churn(self._broker), strict=True))

    # -- what the samples say ---------------------------------------------------------------------------------------

    def series(self, each: Any) -> Series | None:
        """Return the samples of an object, or of `BROKER` or `NODE`; None before the first."""
        return self._series.get(each)

    def past(self, each: Any, seconds: float, family: Family) -> Sequence[int] | None:
        """Return the row that an object had so many seconds ago; None if it was not sampled then, or nothing is now."""
        series, ticks = self._series.get(each), self.ticks
        if series is None or self._broker.loop.now() - ticks.at > LATE * ticks.interval:
            return None
        number = ticks.number - max(1, round(seconds / ticks.interval))
        return series.at(number, ticks, seconds, family.tiers)

    def detail(
        self, series: Series | None, family: Family, name: str, span: Span | None = None
    ) -> Mapping[str, Any]:
        """Return `NAME_details` of an object, given its samples and its kind."""
        if series is None or (span is None and series.is_still):
            return NO_RATE
        key = id(family), name
        read = self._readers.get(key)
        if read is None:
            read = self._readers[key] = family.reader(name)
        return details(series, family, read, self.ticks, self._broker.loop.now(), span)

    def message_stats(self, family: Family, each: Any, span: Span | None = None) -> dict[str, Any]:
        """Return `message_stats` of an object: its counters at this moment, with their `*_details`."""
        row = family.read(each)[: len(family.stats)]
        if span is not None or any(row):
            return self.stats(self._series.get(each), family, named(family, family.stats, row), span)
        nothing = self._nothing.get(id(family))
        if nothing is None:
            nothing = self._nothing[id(family)] = self.stats(None, family, named(family, family.stats, row))
        return nothing

    def stats(
        self, series: Series | None, family: Family, values: Mapping[str, int], span: Span | None = None
    ) -> dict[str, Any]:
        """Return values with their `*_details`."""
        found: dict[str, Any] = {}
        has_rates = series is not None and (span is not None or not series.is_still)
        for name, value in values.items():
            found[name] = value
            found[f"{name}_details"] = self.detail(series, family, name, span) if has_rates else NO_RATE
        return found


def _reader(family: Family, sampled: Mapping[Any, Series]) -> Callable[[Any], Row]:
    def read(each: Any) -> Row:
        series = sampled.get(each)
        return family.read(each) if series is None else series.last

    return read if sampled else family.read


def summed(objects: Iterable[T], read: Callable[[T], Row], *totals: Row) -> Totals:
    """Add up rows (at least one) and those of objects, in steps; returns their sum."""
    total: Row = tuple(map(sum, zip(*totals, strict=True)))
    for some in portions(tuple(objects), STEP):
        total = tuple(map(sum, zip(total, *map(read, some), strict=True)))
        yield
    return total


def named(family: Family, names: Sequence[str], row: Sequence[int]) -> dict[str, int]:
    """Return values of a row by name, with the sums that are made of them."""
    values = dict(zip(names, row, strict=False))
    for name, parts in family.sums.items():
        if all(part in values for part in parts):
            values[name] = sum([values[part] for part in parts])
    return values
