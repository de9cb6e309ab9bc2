"""How many messages the binding keys of a topic exchange match, found out afterwards.

Theory. A topic exchange counts messages by routing key, as far as it tells keys apart (`Exchange.tally`).
Which binding keys they match is looked up when somebody asks, once for each routing key, in a trie of the keys alone.
"""

from collections.abc import Iterator
from heapq import nlargest

from exchanges.base import Exchange
from exchanges.tally import Tally
from exchanges.trie import TopicTrie

MOST = 64
"""Binding keys of an exchange that have rows, at most."""
_STEP = 256  # bindings or routing keys between two good moments


class Patterns:
    """How many messages the binding keys of one topic exchange have matched."""

    __slots__ = ("_counted", "_generation", "_trie", "counts", "missed")

    def __init__(self) -> None:
        self._generation = -1
        self._trie = TopicTrie()
        self._counted: dict[Tally, int] = {}
        self.counts: dict[str, int] = {}
        self.missed = 0

    def count(self, exchange: Exchange, generation: int) -> Iterator[None]:
        """Count what was published since the last time; yields at good moments."""
        if generation != self._generation:
            self._generation = generation
            trie = TopicTrie()
            patterns = list(dict.fromkeys(binding.binding_key for binding in exchange.bindings()))
            for at in range(0, len(patterns), _STEP):
                for pattern in patterns[at : at + _STEP]:
                    trie.add(pattern, pattern)
                yield
            self._trie = trie
            known = set(patterns)
            self.counts = {pattern: count for pattern, count in self.counts.items() if pattern in known}
        counts, counted = self.counts, self._counted
        for at, tally in enumerate(list(exchange.tallies.values())):
            more = tally.published - counted.get(tally, 0)
            if more:
                counted[tally] = tally.published
                if tally.routing_key is None:
                    self.missed += more
                else:
                    for matched in self._trie.match(tally.routing_key):
                        counts[matched] = counts.get(matched, 0) + more  # type: ignore[call-overload, index]
            if at % _STEP == _STEP - 1:
                yield

    def most_matched(self) -> list[tuple[str, int]]:
        """The binding keys that matched most messages, and how many."""
        return nlargest(MOST, self.counts.items(), key=_count_of)


def _count_of(pair: tuple[str, int]) -> int:
    return pair[1]
