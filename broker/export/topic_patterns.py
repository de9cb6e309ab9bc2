"""Counts of messages matched by each binding key of a topic exchange, computed afterwards.

Theory. A topic exchange counts messages by routing key, for a limited number of keys (`Exchange.tally`). The binding
keys that they match are looked up on request, once for each routing key, in a trie of the binding keys alone.

When other keys were used since the last time, those least used in between make room: their counts are kept, and the
next new keys are tracked instead, more frequent ones sooner. So counts by binding key are never too high, and their
maximum error is known: `missed`.
"""

from collections.abc import Iterator
from heapq import nlargest, nsmallest
from itertools import chain, islice
from operator import itemgetter

from leveret.exchanges.base import Exchange, Tally
from leveret.exchanges.topic import TopicTrie

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
