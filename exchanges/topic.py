"""The topic exchange: binding keys are patterns of words, kept in a trie.

Hot path: see docs/performance.md.
"""

from collections.abc import Iterator
from typing import ClassVar

from leveret.exchanges.base import Exchange, Headers, Identity, binding_key_of
from leveret.exchanges.trie import TopicTrie


class TopicExchange(Exchange):
    """Routes by patterns: `*` matches one word, `#` any number of words; words are separated by dots."""

    __slots__ = ("_trie",)

    type: ClassVar[str] = "topic"
    counts_keys: ClassVar[bool] = True

    def _prepare(self) -> None:
        self._trie: TopicTrie | None = None  # made at the first binding

    def match(self, routing_key: str, headers: Headers = None) -> tuple[object, ...]:  # noqa: ARG002
        """Return the destinations of all patterns that match, each destination once."""
        trie = self._trie
        return () if trie is None else trie.match(routing_key)

    def prepare(self, routing_key: str) -> Iterator[None] | None:
        """Return the steps of a match that hostile patterns make slow; None if it is fast anyway."""
        return None if self._trie is None else self._trie.steps_to(routing_key)

    def _bound(self, destination: object, identity: Identity) -> None:
        if self._trie is None:
            self._trie = TopicTrie()
        pattern = _shortest(binding_key_of(identity))
        if not self._trie.add(pattern, destination):
            self._repeat(destination, pattern)

    def _unbound(self, destination: object, identity: Identity) -> None:
        pattern = _shortest(binding_key_of(identity))
        trie = self._trie
        if trie is None or self._repeat_gone(destination, pattern):
            return
        trie.remove(pattern, destination)
        if trie.is_empty():
            self._trie = None


def _shortest(binding_key: str) -> str:
    """Return a pattern with successive `#` reduced to one, which matches the same and costs less."""
    if "#.#" not in binding_key:
        return binding_key
    words = binding_key.split(".")
    return ".".join(
        [word for word, before in zip(words, ["", *words], strict=False) if not word == before == "#"]
    )
