"""The topic exchange: binding keys are patterns in a trie of words, matched through a lazily built automaton.

Theory. The trie of patterns is read as a nondeterministic automaton: its states are the trie's
nodes; a word leads from a node to the child of that word and to the child `*`; the child `#` is entered
without a word (zero words) and left by none (any word leads from it to itself). The nodes that are active
after some words are a *set*, and that set is all that matters for the remaining words. So sets are
interned as `_State`s and each remembers the transitions of the words seen so far. Matching a key whose words were
met before in these states costs one dictionary lookup per word; a new transition costs one pass over the
nodes of a set, never more than the trie has, so that no pattern or key, however many `#` it has, costs more
than words x nodes.

All words that are no child of any node of a set have the same transition (`other`); only a limited
number of them is remembered by name, so that keys with unique words (identifiers) do not fill the memory.
All remembered states are dropped whenever a pattern is added or removed; they are limited in
proportion to the trie, and so are the nodes of all states together.

Hostile patterns (`*.a.*.a`, `#.a.#.b`) make sets of as many nodes as the trie has. Such large sets are not
remembered, and callers that must not block match the key in steps first (`steps_to`), whose result is kept
for `match`.

Hot path: see docs/performance.md.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import ClassVar

from leveret.exchanges.base import (
    Destinations,
    Exchange,
    Headers,
    Identity,
    binding_key_of,
    union_of,
    with_destination,
    without_destination,
)

# Limit of the transitions that a trie remembers: in proportion to its own size, and bounded. With their states
# they take about 120 bytes each, at most 4 MB.
_TRANSITIONS_AT_LEAST = 1024
_TRANSITIONS_PER_NODE = 8
_TRANSITIONS_AT_MOST = 32768
_REFUSALS_PER_TRANSITION = 16  # when full: restart after this many times the limit, for the current keys
_LARGE = 1024  # nodes from which a state is neither remembered nor followed in one step
_MEMBERS_AT_MOST = 1 << 20  # nodes in all remembered states, of eight bytes each
_PIECE = 1024  # nodes per step
_TRIES = 3  # attempts to match a key in steps while patterns change
_FOUND_AT_MOST = 64  # results kept for the callers of `steps_to`
_WILDCARDS = {"*": "star", "#": "hash"}  # and the attributes of nodes that are their children
_OTHER_WORDS_LIMIT = 64  # words without a pattern of their own that one state remembers by name


class _Node:
    """One word of one or several patterns."""

    __slots__ = ("children", "destinations", "hash", "loops", "star")

    def __init__(self, *, loops: bool = False) -> None:
        self.children: dict[str, _Node] | None = None
        self.star: _Node | None = None
        self.hash: _Node | None = None
        self.destinations: Destinations = ()
        self.loops = loops  # the node of a `#`: any word leads back to it

    def child(self, word: str) -> "_Node | None":
        """Return the node of a pattern's next word, wildcards included."""
        if word in _WILDCARDS:
            found: _Node | None = getattr(self, _WILDCARDS[word])
            return found
        return None if self.children is None else self.children.get(word)

    def grow(self, word: str) -> "_Node":
        """Add the node of a pattern's next word, which must be missing."""
        node = _Node(loops=word == "#")
        if word in _WILDCARDS:
            setattr(self, _WILDCARDS[word], node)
        elif self.children is None:
            self.children = {word: node}
        else:
            self.children[word] = node
        return node

    def prune(self, word: str) -> None:
        """Remove the node of a pattern's next word."""
        if word in _WILDCARDS:
            setattr(self, _WILDCARDS[word], None)
        elif self.children is not None:
            del self.children[word]
            if not self.children:
                self.children = None

    def is_bare(self) -> bool:
        """Return whether no pattern ends here or passes through."""
        return not self.destinations and self.children is None and self.star is None and self.hash is None


class _State(dict[str, "_State"]):
    """A set of active nodes; as a dict, the next state for each remembered word."""

    __slots__ = ("accepted", "nodes", "other", "strangers", "trie")

    def __init__(self, trie: "TopicTrie", nodes: tuple[_Node, ...]) -> None:
        super().__init__()
        self.trie = trie
        self.nodes = nodes
        self.accepted: tuple[object, ...] | None = None
        self.other: _State | None = None
        self.strangers = 0

    def __missing__(self, word: str) -> "_State":
        return self.trie.follow(self, word)


class TopicTrie:
    """The patterns of one topic exchange. `add` and `remove` are idempotent per (pattern, destination)."""

    __slots__ = (
        "_changes",
        "_found",
        "_limit",
        "_members",
        "_nodes",
        "_refused",
        "_remembered",
        "_root",
        "_start",
        "_states",
    )

    def __init__(self) -> None:
        self._root = _Node()
        self._nodes = 0
        self._states: dict[tuple[_Node, ...], _State] = {}
        self._start: _State | None = None
        self._remembered = 0
        self._members = 0
        self._refused = 0
        self._limit = _TRANSITIONS_AT_LEAST
        self._changes = 0
        self._found: dict[str, tuple[object, ...]] = {}  # results computed in steps since the last change

    def add(self, pattern: str, destination: object) -> bool:
        """Add a pattern for a destination; return False if it was there."""
        node = self._root
        for word in _words(pattern):
            child = node.child(word)
            if child is None:
                child = node.grow(word)
                self._nodes += 1
            node = child
        if destination in node.destinations:
            return False
        node.destinations = with_destination(node.destinations, destination)
        self._changed()
        return True

    def remove(self, pattern: str, destination: object) -> None:
        """Remove a pattern of a destination, and the nodes that no pattern needs any more."""
        node = self._root
        path: list[tuple[_Node, str]] = []
        for word in _words(pattern):
            path.append((node, word))
            child = node.child(word)
            if child is None:
                return
            node = child
        node.destinations = without_destination(node.destinations, destination)
        while path and node.is_bare():
            node, word = path.pop()
            node.prune(word)
            self._nodes -= 1
        self._changed()

    def is_empty(self) -> bool:
        """Return whether there is no pattern; an empty trie has no node but its root."""
        return self._root.is_bare()

    def match(self, key: str) -> tuple[object, ...]:
        """Return the destinations of all patterns that match a routing key, each once."""
        if self._found and key in self._found:
            return self._found[key]
        state: _State | None = self._start
        if state is None:
            state = self._begin()
        if key:  # the empty key has no words, while "." has two that are empty
            for word in key.split("."):
                state = state[word]
        accepted = state.accepted
        if accepted is None:
            accepted = state.accepted = _accepted(state.nodes)
        return accepted

    def steps_to(self, key: str) -> Iterator[None] | None:
        """Return steps that speed up `match` for a key, if no pattern changes after the last; None if it is fast."""
        if key in self._found or self._nodes < _LARGE:
            return None
        state = self._start or self._begin()
        for word in _words(key):
            if len(state.nodes) >= _LARGE:
                return self._find(key)
            state = state[word]
        return self._find(key) if state.accepted is None and len(state.nodes) >= _LARGE else None

    def _find(self, key: str) -> Iterator[None]:
        for _ in range(_TRIES):
            changes = self._changes
            nodes = _closure((self._root,))
            for word in _words(key):
                reached: set[_Node] = set()
                for some in _pieces(nodes):
                    _step(some, word, reached)
                    yield
                nodes = reached
            union: dict[object, None] = {}
            for some in _pieces(nodes):
                union.update(union_of(node.destinations for node in some))
                yield
            if changes == self._changes:
                if len(self._found) >= _FOUND_AT_MOST:
                    self._found.clear()
                self._found[key] = tuple(union)
                return

    def _changed(self) -> None:
        self._changes += 1
        self._found.clear()
        self.forget()

    def forget(self) -> None:
        """Drop all remembered states and results."""
        if not self._states:
            return
        # States reference one another in cycles: break these, so that no garbage collector is needed.
        for state in self._states.values():
            state.clear()
            state.other = None
        self._states.clear()
        self._start = None
        self._remembered = 0
        self._members = 0
        self._refused = 0

    def follow(self, state: _State, word: str) -> _State:
        """Return the next state from `state` for a word that it does not remember."""
        if len(state.nodes) >= _LARGE:
            return _State(self, tuple(_step(state.nodes, word)))
        limit = self._limit
        if self._remembered >= limit or self._members >= _MEMBERS_AT_MOST:
            self._refused += 1
            if self._refused <= limit * _REFUSALS_PER_TRANSITION:
                # Full of the first transitions, mostly beginnings of keys: continue without remembering.
                return _State(self, tuple(_step(state.nodes, word)))
            # Restart, with this state as an orphan that lives until the match is done.
            self.forget()
        for node in state.nodes:
            if node.children is not None and word in node.children:
                following = self._intern(_step(state.nodes, word))
                break
        else:
            if state.other is None:
                state.other = self._intern(_step(state.nodes, word))
            following = state.other
            if state.strangers >= _OTHER_WORDS_LIMIT:
                return following
            state.strangers += 1
        state[word] = following
        self._remembered += 1
        return following

    def _begin(self) -> _State:
        self._limit = min(_TRANSITIONS_AT_MOST, _TRANSITIONS_AT_LEAST + _TRANSITIONS_PER_NODE * self._nodes)
        self._start = start = self._intern(_closure((self._root,)))
        return start

    def _intern(self, nodes: Iterable[_Node]) -> _State:
        members = tuple(sorted(nodes, key=id))
        state = self._states.get(members)
        if state is None:
            state = self._states[members] = _State(self, members)
            self._members += len(members)
        return state


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


def _words(key: str) -> list[str]:
    """Split a key; the empty key has no words at all (RabbitMQ up to 3.13)."""
    return key.split(".") if key else []


def _closure(nodes: Iterable[_Node]) -> set[_Node]:
    """Add the nodes that are reached without a word."""
    reached: set[_Node] = set()
    for node in nodes:
        following: _Node | None = node
        while following is not None:
            reached.add(following)
            following = following.hash
    return reached


def _pieces(nodes: Collection[_Node]) -> Iterator[Sequence[_Node]]:
    listed = tuple(nodes)
    for at in range(0, len(listed), _PIECE):
        yield listed[at : at + _PIECE]


def _step(nodes: Iterable[_Node], word: str, reached: set[_Node] | None = None) -> set[_Node]:
    """Return the nodes that a word leads to, including those already `reached` from others."""
    if reached is None:
        reached = set()
    for node in nodes:
        # A node is added with all nodes reached from it without a word, so a known node ends the walk.
        child = None if node.children is None else node.children.get(word)
        for first in (node if node.loops else None, node.star, child):
            following = first
            while following is not None and following not in reached:
                reached.add(following)
                following = following.hash
    return reached


def _accepted(nodes: Iterable[_Node]) -> tuple[object, ...]:
    """Return the destinations of patterns that end at one of the nodes."""
    found = [node.destinations for node in nodes if node.destinations]
    if not found:
        return ()
    if len(found) == 1:
        return tuple(found[0])
    return tuple(union_of(found))
