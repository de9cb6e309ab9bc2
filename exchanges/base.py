"""Base class of all exchanges: properties, bindings, and the index of bindings by destination.

A binding is identified by its destination, its binding key and its arguments; arguments compare as in RabbitMQ:
by name, type and value, in any order. Hot path: see docs/performance.md.
"""
# ruff: noqa: S101 - asserts tell the type checker what always holds; no input is checked by them

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
K = TypeVar("K")

Field = tuple[str, object]  # one value of a table: (RabbitMQ's name of its type, value)
Table = dict[str, Field]  # A typed AMQP table
Headers = Callable[[], Table] | Table | None  # the headers of a message, or what decodes them on demand

PIECE = 64  # bindings removed between two checks of the clock
MOST_COUNTED_KEYS = 1024  # most routing keys of an exchange that are counted separately at a time, if any


class Envelope(dict[str, Field]):
    """The headers of a message with its `properties`, for the types that read one of them by its name."""

    __slots__ = ("properties",)

    def __init__(self, headers: Table, properties: object) -> None:
        super().__init__(headers)
        self.properties = properties


class Binding(NamedTuple):
    """One binding, as returned by listings; exchanges themselves store less. The source is a name."""

    source: str
    destination: object
    binding_key: str
    arguments: Table


def _frozen(value: object) -> object:
    """Make a field's value hashable, keeping the order inside (RabbitMQ sorts only the outermost table)."""
    if isinstance(value, dict):
        return tuple((name, kind, _frozen(inner)) for name, (kind, inner) in value.items())
    if isinstance(value, list):
        return tuple((kind, _frozen(inner)) for kind, inner in value)
    return value


class ArgumentedKey:
    """A binding key with arguments, which identifies a binding between one exchange and one destination.

    A binding without arguments is identified by its plain key, which needs no object of its own.
    """

    __slots__ = ("_identity", "arguments", "binding_key")

    def __init__(self, binding_key: str, arguments: Table) -> None:
        self.binding_key = binding_key
        self.arguments = arguments
        self._identity = (
            binding_key,
            tuple(
                (name, kind, _frozen(value))
                for name, (kind, value) in sorted(arguments.items(), key=itemgetter(0))
            ),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArgumentedKey) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


Identity = str | ArgumentedKey
Bound = Identity | dict[Identity, None]
"""The bindings of one destination to an exchange: a single one as itself, several as the keys of a dict."""


def members(found: "T | dict[T, None] | None") -> Collection[T]:
    """Return the members of what is a single one, the keys of a dict, or None for none."""
    if isinstance(found, dict):
        return found
    return () if found is None else (found,)


def put_member(table: "dict[K, T | dict[T, None]]", place: K, member: T) -> bool:
    """Add a member at a place of a table of such; False if it is there."""
    found = table.get(place)
    if isinstance(found, dict):
        is_new = member not in found
        found[member] = None
        return is_new
    if found == member:
        return False
    table[place] = member if found is None else {found: None, member: None}
    return True


ExchangeClass: TypeAlias = "type[Exchange]"


class Line(Protocol):
    """The delayed messages of one exchange, which routing treats as a destination."""

    number: int  # its id on disk; 0 for none yet
    longest: int  # the longest delay (ms) that it takes

    def ignored(self, delay: int) -> None:
        """Take note that a message with a longer delay is routed at once."""

    @property
    def count(self) -> int:
        """Number of waiting messages."""

    def delete(self) -> None:
        """Delete the messages, because the exchange was deleted."""


class Tally:
    """Counter of messages that reached the same number of queues (`width`) and, if it has one, had this routing key.

    Publishing increments `published`. A route remembers its tally, so that counting costs no more than an addition, and
    the statistics of an exchange are summed up from its tallies on demand.
    """

    __slots__ = ("published", "routing_key", "width")

    def __init__(self, width: int = 0, routing_key: str | None = None) -> None:
        self.width = width
        self.routing_key = routing_key
        self.published = 0


class Exchange:
    """One exchange of one vhost; subclasses match keys and headers of messages to bindings.

    Bind and unbind through the `Router`, which keeps the graph, the caches and auto-delete consistent; the methods
    here change this exchange only. Destinations are any hashable objects.
    """

    __slots__ = (
        "_by_destination",
        "_late",
        "_repeats",
        "alternate",
        "arguments",
        "auto_delete",
        "binding_count",
        "durable",
        "exchange_destinations",
        "had_binding",
        "ids_line",
        "internal",
        "line",
        "lookups",
        "name",
        "number",
        "repeated",
        "returned",
        "tallies",
    )

    type: ClassVar[str]
    needs_headers: ClassVar[bool] = False
    """True if `match` reads the headers, or chance decides: its result must not be remembered by key."""
    reads_properties: ClassVar[bool] = False  # True if `match` reads a property, and needs an `Envelope`
    picks_one: ClassVar[bool] = False  # True if `match` chooses one destination, for several keys too
    is_ordered: ClassVar[bool] = False
    """True if `match` depends on the order of the bindings, which must outlive a restart."""
    keyless: ClassVar[bool] = False  # True if `match` ignores the routing key
    indexed: ClassVar[bool] = False  # True if `match` is one dictionary lookup, which no cache can improve
    counts_keys: ClassVar[bool] = False  # True if messages are counted by routing key, too

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
        alternate: str | None = None,
    ) -> None:
        # name, durable, auto_delete, internal, arguments: as declared
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments or {}
        self.alternate = alternate  # name of the alternate exchange; change it through `Router.set_alternate`
        self.had_binding = False  # True from the first binding on
        self.line: Line | None = None  # the delayed messages of a delayed exchange (`exchanges.delayed`)
        self.number = 0  # its id on disk; 0 for none yet
        self.ids_line = 0  # line of the ids that it knows (`broker.queue.id_log`); 0 for that of its number
        # message counters by number of queues reached and possibly by routing key; publishing increments them
        self.tallies: dict[tuple[int, str | None], Tally] = {}
        self._late: tuple[Tally, ...] = ()
        """Tallies removed the last time: a message in progress then may have counted on one."""
        # messages without a queue that were returned. lookups: routes that had to be computed
        self.returned = 0
        self.repeated = 0  # publishes dropped because the exchange knew their ids
        self.lookups = 0
        # the exchanges bound to this one as destinations, None while there are none
        self.exchange_destinations: dict[Exchange, None] | None = None
        self._by_destination: dict[object, Bound] = {}
        self.binding_count = 0  # number of explicit bindings
        self._prepare()
        # Further bindings to a destination with the same place in a subclass's index (they differ only in
        # parts that routing ignores), so that unbinding need not search for them; None while there are
        # none.
        self._repeats: dict[tuple[object, object], int] | None = None

    def _prepare(self) -> None:
        """Create the empty index that the type's `match` needs."""

    def __repr__(self) -> str:
        return f"<{self.type} exchange {self.name!r}>"

    def tally(self, width: int, routing_key: str) -> Tally:
        """Return the counter of messages with this key that reach `width` queues."""
        tallies = self.tallies
        key: str | None = None
        if self.counts_keys and ((width, routing_key) in tallies or len(tallies) < MOST_COUNTED_KEYS):
            key = routing_key
        tally = tallies.get((width, key))
        if tally is None:
            tally = tallies[width, key] = Tally(width, key)
        return tally

    def stop_counting_keys(self, tallies: Iterable[Tally]) -> None:
        """Fold these per-key tallies into the tally without key, which frees their slots for other keys.

        Routes remember tallies, so the caller must have all of them recomputed before the next message
        (`Router.generation`). A message in progress meanwhile counts on the tally it has found; that count is added the
        next time.
        """
        self._take_over(self._late)
        self._late = tuple(tallies)
        for tally in self._late:
            del self.tallies[tally.width, tally.routing_key]
        self._take_over(self._late)

    def _take_over(self, tallies: Iterable[Tally]) -> None:
        for tally in tallies:
            if tally.published:
                rest = self.tallies.get((tally.width, None))
                if rest is None:
                    rest = self.tallies[tally.width, None] = Tally(tally.width)
                rest.published += tally.published
                tally.published = 0

    def _all_tallies(self) -> Iterator[Tally]:
        return chain(self.tallies.values(), self._late)

    @property
    def published_in(self) -> int:
        """Messages published to this exchange."""
        return sum([tally.published for tally in self._all_tallies()])

    @property
    def published_out(self) -> int:
        """Copies of those messages that reached queues."""
        return sum([tally.width * tally.published for tally in self._all_tallies()])

    @property
    def unroutable(self) -> int:
        """Messages that reached no queue, including those that were returned."""
        return sum([tally.published for tally in self._all_tallies() if not tally.width])

    @property
    def in_use(self) -> bool:
        """Return whether this exchange is the source of a binding (the condition of exchange.delete's if-unused)."""
        return bool(self._by_destination)

    @classmethod
    def class_for(cls, arguments: Table) -> "ExchangeClass":
        """Return the class of an exchange with these arguments; raises an ExchangeError for invalid ones."""
        del arguments
        return cls

    def validate_binding(self, destination: object, binding_key: str, arguments: Table) -> None:
        """Raise InvalidBindingError if there may be no such binding; a destination that is not there yet is None."""

    def bind(self, destination: object, binding_key: str, arguments: Table | None = None) -> bool:
        """Bind, keeping `arguments`; return False if this very binding existed. Raises InvalidBindingError."""
        self.validate_binding(destination, binding_key, arguments or {})
        identity: Identity = ArgumentedKey(binding_key, arguments) if arguments else binding_key
        if not put_member(self._by_destination, destination, identity):
            return False
        self.had_binding = True
        self.binding_count += 1
        if isinstance(destination, Exchange):
            if self.exchange_destinations is None:
                self.exchange_destinations = {}
            self.exchange_destinations[destination] = None
        self._bound(destination, identity)
        return True

    def unbind(self, destination: object, binding_key: str, arguments: Table | None = None) -> bool:
        """Unbind; return False if there was no such binding."""
        identity: Identity = ArgumentedKey(binding_key, arguments) if arguments else binding_key
        bound = self._by_destination.get(destination)
        if bound is None:
            return False
        if isinstance(bound, dict):
            if identity not in bound:
                return False
            del bound[identity]
            if len(bound) == 1:
                self._by_destination[destination] = next(iter(bound))
        elif bound == identity:
            self._destination_gone(destination)
        else:
            return False
        self.binding_count -= 1
        self._unbound(destination, identity)
        return True

    def detach(self, destination: object) -> Bound | None:
        """Remove all bindings to `destination`; returns them, None if there were none.

        The caller must call `sweep`, and ignore until then that `match` still returns the destination.
        """
        bound = self._by_destination.get(destination)
        if bound is not None:
            self._destination_gone(destination)
            self.binding_count -= len(members(bound))
        return bound

    def sweep(self, destination: object, bound: Bound) -> Iterator[Identity]:
        """Remove detached bindings from the index, one by one; yields each."""
        if not isinstance(bound, dict):
            self._unbound(destination, bound)
            yield bound
            return
        while bound:
            identity, _ = bound.popitem()
            self._unbound(destination, identity)
            yield identity

    def tear_down(self) -> Iterator[tuple[object, Identity]]:
        """Remove all bindings, one by one; yields each. The exchange was deleted and no longer routes."""
        self.exchange_destinations = None
        self.binding_count = 0
        while self._by_destination:
            # from the end: entries removed from the front of a dict slow down each later iteration
            destination, bound = self._by_destination.popitem()
            for identity in self.sweep(destination, bound):
                yield destination, identity

    def _destination_gone(self, destination: object) -> None:
        del self._by_destination[destination]
        if self.exchange_destinations is not None and destination in self.exchange_destinations:
            assert isinstance(destination, Exchange)
            del self.exchange_destinations[destination]
            if not self.exchange_destinations:
                self.exchange_destinations = None

    def is_bound(self, destination: object) -> bool:
        """Return whether there is a binding to `destination`."""
        return destination in self._by_destination

    def has_binding(self, destination: object, binding_key: str, arguments: Table | None = None) -> bool:
        """Return whether this very binding exists."""
        identity: Identity = ArgumentedKey(binding_key, arguments) if arguments else binding_key
        return identity in self._identities(destination)

    def _identities(self, destination: object) -> Collection[Identity]:
        return members(self._by_destination.get(destination))

    def destinations(self) -> Collection[object]:
        """Return a live view of everything bound here, each once."""
        return self._by_destination.keys()

    def bindings(self) -> Iterator[Binding]:
        """Yield every binding. The exchange may change meanwhile: such bindings may be included or not."""
        for destination in tuple(self._by_destination):
            yield from self.bindings_to(destination)

    def bindings_to(self, destination: object) -> Iterator[Binding]:
        """Yield the bindings to one destination, oldest first. The exchange may change meanwhile."""
        for identity in tuple(self._identities(destination)):
            yield Binding(self.name, destination, binding_key_of(identity), arguments_of(identity))

    def binding_keys_to(self, destination: object) -> list[str]:
        """Return the keys of the bindings to one destination, also if there are none."""
        return list(map(binding_key_of, self._identities(destination)))

    def match(self, routing_key: str, headers: Headers = None) -> Collection[object]:
        """Return the destinations of this exchange alone, each once.

        The result may be a live view or shared: read it before the next change, never write to it.
        `headers` is looked at only where `needs_headers`.
        """
        raise NotImplementedError

    def match_keys(self, routing_keys: Sequence[str], headers: Headers) -> Collection[object]:
        """Return the destinations for the routing key and those of CC and BCC, each once; see `match`."""
        # Many keys may lead to the same collection, and that may be long.
        matches = {id(match): match for match in [self.match(key, headers) for key in routing_keys]}
        return dict.fromkeys(chain.from_iterable(matches.values()))

    def matched(self, routing_keys: Sequence[str], headers: Headers) -> Collection[object]:
        """Return the destinations of the message that was just routed, without another choice."""
        return self.match_keys(routing_keys, headers)

    def prepare(self, routing_key: str) -> Iterator[None] | None:  # noqa: ARG002
        """Return steps that speed up a slow `match` for a key; None if it is fast anyway.

        They have an effect as long as no binding is added or removed after the last one.
        """
        return None

    def _bound(self, destination: object, identity: Identity) -> None:
        """Index a new binding; the index by destination has it already."""

    def _unbound(self, destination: object, identity: Identity) -> None:
        """Drop a binding from the index; the index by destination lacks it already."""

    def _repeat(self, destination: object, place: object) -> None:
        """Note a further binding to `destination` at the same place of the index."""
        if self._repeats is None:
            self._repeats = {}
        repeated = (destination, place)
        self._repeats[repeated] = self._repeats.get(repeated, 0) + 1

    def _add_to(self, index: "dict[T, Destinations]", place: T, destination: object) -> None:
        """Index a destination at a place, or note that it is there already."""
        found = index.get(place, ())
        if destination in found:
            self._repeat(destination, place)
        else:
            index[place] = with_destination(found, destination)

    def _drop_from(self, index: "dict[T, Destinations]", place: T, destination: object) -> None:
        """Drop a destination from a place of an index, unless a further binding has it there."""
        if not self._repeat_gone(destination, place):
            drop(index, place, destination)

    def _repeat_gone(self, destination: object, place: object) -> bool:
        """Forget a binding noted by `_repeat`; False if the remaining one is the last of its place."""
        repeats = self._repeats
        if repeats is None:
            return False
        repeated = (destination, place)
        count = repeats.get(repeated)
        if count is None:
            return False
        if count > 1:
            repeats[repeated] = count - 1
            return True
        del repeats[repeated]
        if not repeats:
            self._repeats = None
        return True


def arguments_of(identity: Identity) -> Table:
    """Return the arguments of a binding's identity."""
    return {} if isinstance(identity, str) else identity.arguments


def binding_key_of(identity: Identity) -> str:
    """Return the binding key of a binding's identity."""
    return identity if isinstance(identity, str) else identity.binding_key


Destinations = tuple[object, ...] | dict[object, None]
"""A set of destinations: a tuple while it is small, a dict when it grows.

Most keys have one or two, and a tuple of one takes 48 bytes where a set or dict takes over 200; but a key with 100,000
destinations must not cost a copy of all of them for each bind.
"""
_TUPLE_LIMIT = 8


def with_destination(current: tuple[T, ...] | dict[T, None], destination: T) -> tuple[T, ...] | dict[T, None]:
    """Return `current` and `destination`; a dict is modified in place, a tuple is not."""
    if isinstance(current, dict):
        current[destination] = None
        return current
    if destination in current:
        return current
    if len(current) < _TUPLE_LIMIT:
        return (*current, destination)
    grown = dict.fromkeys(current)
    grown[destination] = None
    return grown


def without_destination(
    current: tuple[T, ...] | dict[T, None], destination: T
) -> tuple[T, ...] | dict[T, None]:
    """Return `current` without `destination`; a dict is modified in place, and small ones become tuples again."""
    if isinstance(current, dict):
        current.pop(destination, None)
        if len(current) <= _TUPLE_LIMIT // 2:
            return tuple(current)
        return current
    return tuple(other for other in current if other != destination)


def union_of(found: Iterable[Destinations]) -> dict[object, None]:
    """Return the destinations of several sets, each once."""
    union: dict[object, None] = {}
    for destinations in found:
        union.update(dict.fromkeys(destinations))
    return union


def drop(index: "dict[T, tuple[K, ...] | dict[K, None]]", place: T, destination: K) -> None:
    """Drop a destination from a place of an index, and the place with the last one."""
    if left := without_destination(index[place], destination):
        index[place] = left
    else:
        del index[place]
