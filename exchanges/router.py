"""The exchange graph of one vhost: declares and binds exchanges, and routes messages through them.

A message visits each exchange once, however the exchanges are bound to one another. An exchange without a matching
destination passes it to its alternate exchange (rabbit_exchange:route1/4). Hot path: see
docs/performance.md.
"""
# ruff: noqa: C901, PLR0911, PLR0912 - hot: one flat function is several times cheaper than small ones

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from leveret.exchanges.base import (
    PIECE,
    Binding,
    Bound,
    Exchange,
    Headers,
    Identity,
    Line,
    Table,
    arguments_of,
    binding_key_of,
    members,
    put_member,
)
from leveret.exchanges.delayed import DELAYABLE_TYPES, DelayedExchange
from leveret.exchanges.errors import TooManyHopsError, UnknownExchangeError, UnknownExchangeTypeError
from leveret.exchanges.headers import HeadersExchange
from leveret.exchanges.recent_history import RecentHistoryExchange

EXCHANGE_TYPES: dict[str, type[Exchange]] = {
    **DELAYABLE_TYPES,
    DelayedExchange.type: DelayedExchange,
    RecentHistoryExchange.type: RecentHistoryExchange,
}

_UNLIMITED = 1 << 62
_CACHE_LIMIT = 8192  # routes kept by one router, about 250 bytes each

_PREDECLARED = (
    # name, type, internal
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
    ("amq.topic", "topic", False),
)


class Listener(Protocol):
    """Observer of every change, whether requested or a consequence of another one."""

    def declared(self, exchange: Exchange) -> None:
        """An exchange was declared."""

    def removed(self, exchange: Exchange) -> None:
        """An exchange was deleted; `unbound` is called for each of its bindings, possibly later."""

    def bound(self, source: Exchange, destination: object, binding_key: str, arguments: Table) -> None:
        """A binding was added."""

    def unbound(self, source: Exchange, destination: object, binding_key: str, arguments: Table) -> None:
        """A binding was removed; its source or destination may be deleted, too."""


def _ignored(_exchange: Exchange) -> None:
    """Default of `on_deleted`: do nothing."""


def _at_once(steps: Iterator[None], _name: str) -> None:
    """Default of `work`: carry out all steps immediately."""
    deque(steps, maxlen=0)


class Router:
    """The exchanges and bindings of one vhost, and the names of its queues for the default exchange."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}  # by name; read it, change it through the methods
        self.queues: dict[str, object] = {}  # by queue name; changed by `add_queue` and `forget` only
        self.generation = 0
        """Incremented by every change after which some message may take another route; callers that cache routes drop
        them when it has changed."""
        self.binding_count = 0  # number of explicit bindings
        self.reads_properties = 0  # number of exchanges that need an `Envelope` as the headers of a message
        self.listener: Listener | None = None
        """Notified of changes to durable exchanges and to bindings from them; None for no observer."""
        self.make_line: Callable[[DelayedExchange], Line] | None = None  # None disables delays
        self._compares_exactly = False
        self.on_deleted: Callable[[Exchange], object] = _ignored  # called with each one, whatever the reason
        self.on_binding: Callable[[bool, Exchange, object, str, Table], object] | None = None
        """Called for each binding that was added (true) or removed (false), for any reason, with its source,
        destination, binding key and arguments; None for no observer."""
        self.work: Callable[[Iterator[None], str], object] = _at_once
        """Carries out long jobs, under a name for the log: immediately, or one step at a time. Meanwhile the router
        responds as if the whole job was done."""
        self._leaving: set[object] = set()  # deleted destinations that may still be in indexes of exchanges
        # The exchanges that a destination is bound to: one as itself, several as the keys of a dict.
        self._sources: dict[object, Exchange | dict[Exchange, None]] = {}
        # Routes by exchange and key; None for an exchange from which a headers exchange can be reached.
        self._routes: dict[Exchange, dict[str, tuple[object, ...]] | None] = {}
        self._cached = 0
        self._needing: dict[Exchange, bool] = {}
        self._asked: set[str] = set()  # names looked up in the default exchange in this generation
        self._default: Exchange | None = None
        self.hop_limit = _UNLIMITED  # most exchanges after the first that a message may pass, times its keys

    # Topology

    def predeclare(self) -> None:
        """Declare the exchanges that every vhost has, including the default exchange; all durable."""
        for name, type_name, internal in _PREDECLARED:
            self.declare(name, type_name, durable=True, internal=internal)

    def compare_exactly(self) -> None:
        """Have headers exchanges tell integers from floats; must be called before there are bindings."""
        self._compares_exactly = True
        for exchange in self.exchanges.values():
            if isinstance(exchange, HeadersExchange):
                exchange.compare_exactly()

    def declare(
        self,
        name: str,
        type_name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
        alternate: str | None = None,
    ) -> Exchange:
        """Add an exchange, or return the existing one of that name, unchecked and unchanged.

        `alternate` defaults to the argument `alternate-exchange` if that is a long string.
        Raises UnknownExchangeTypeError, and other ExchangeErrors for arguments that the type refuses.
        """
        exchange = self.exchanges.get(name)
        if exchange is not None:
            return exchange
        exchange_class = EXCHANGE_TYPES.get(type_name)
        if exchange_class is None:
            raise UnknownExchangeTypeError(type_name)
        exchange_class = exchange_class.class_for(arguments or {})
        if alternate is None and arguments:
            kind, value = arguments.get("alternate-exchange", ("void", None))
            if kind == "longstr" and isinstance(value, str):
                alternate = value
        exchange = exchange_class(
            name,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
            alternate=alternate,
        )
        if self._compares_exactly and isinstance(exchange, HeadersExchange):
            exchange.compare_exactly()
        if self.make_line is not None and isinstance(exchange, DelayedExchange):
            exchange.line = self.make_line(exchange)
        self.exchanges[name] = exchange
        self.reads_properties += exchange.reads_properties
        if not name:
            self._default = exchange
        if durable and self.listener is not None:
            self.listener.declared(exchange)
        self._changed()
        return exchange

    def get(self, name: str) -> Exchange | None:
        """Return the exchange of this name; None if there is none."""
        return self.exchanges.get(name)

    def remove(self, name: str) -> list[Exchange]:
        """Delete an exchange with its bindings as source and as destination.

        Returns it and the auto-delete exchanges that thereby lost their last binding as a source, in the
        order of their deletion, as far as they are known by now; nothing if there is no such exchange.
        """
        exchange = self.exchanges.get(name)
        return [] if exchange is None else self._remove(exchange)

    def bind(
        self, source_name: str, destination: object, binding_key: str, arguments: Table | None = None
    ) -> bool:
        """Bind a queue (the object given to `add_queue`) or an `Exchange` to an exchange.

        Returns False if this very binding existed. `arguments` is kept: do not change it afterwards.
        Raises UnknownExchangeError, and InvalidBindingError if the type of the source refuses it.
        """
        source = self.exchanges.get(source_name)
        if source is None:
            raise UnknownExchangeError(source_name)
        if not source.bind(destination, binding_key, arguments):
            return False
        self.binding_count += 1
        put_member(self._sources, destination, source)
        if source.durable and self.listener is not None:
            self.listener.bound(source, destination, binding_key, arguments or {})
        self._changed()
        if self.on_binding is not None:
            self.on_binding(True, source, destination, binding_key, arguments or {})
        return True

    def unbind(
        self, source_name: str, destination: object, binding_key: str, arguments: Table | None = None
    ) -> tuple[bool, list[Exchange]]:
        """Unbind; return whether the binding existed, and the auto-delete exchanges deleted with it."""
        source = self.exchanges.get(source_name)
        if source is None or not source.unbind(destination, binding_key, arguments):
            return False, []
        self.binding_count -= 1
        if source.durable and self.listener is not None:
            self.listener.unbound(source, destination, binding_key, arguments or {})
        if not source.is_bound(destination):
            self._discard_source(destination, source)
        gone = self._remove(source) if source.auto_delete and not source.in_use else []
        self._changed()
        if self.on_binding is not None:
            self.on_binding(False, source, destination, binding_key, arguments or {})
        return True, gone

    def set_alternate(self, exchange: Exchange, alternate: str | None) -> None:
        """Change the alternate exchange of an exchange (a policy may)."""
        if exchange.alternate != alternate:
            exchange.alternate = alternate
            self._changed()

    def add_queue(self, name: str, destination: object) -> None:
        """Bind a queue to the default exchange under its name."""
        self.queues[name] = destination
        self._name_changed(name)

    def forget(self, name: str) -> list[Exchange]:
        """Remove a deleted queue: its name, and all its bindings.

        Returns the auto-delete exchanges deleted because of that, as far as they are known by now; nothing for an
        unknown name.
        """
        destination = self.queues.pop(name, None)
        if destination is None:
            return []
        self._name_changed(name)
        if destination not in self._sources:
            return []
        gone: list[Exchange] = []
        self._do(self._leave([destination], [], gone), f"bindings of queue '{name}'")
        return gone

    def bindings(self) -> Iterator[Binding]:
        """Yield all explicit bindings. The router may change meanwhile: such bindings may be included or not."""
        for exchange in tuple(self.exchanges.values()):
            yield from exchange.bindings()

    def bindings_of(self, destination: object) -> Iterator[Binding]:
        """Yield the explicit bindings to one destination. The router may change meanwhile."""
        for source in tuple(members(self._sources.get(destination))):
            if self.exchanges.get(source.name) is source:
                yield from source.bindings_to(destination)

    def _discard_source(self, destination: object, source: Exchange) -> None:
        sources = self._sources.get(destination)
        if isinstance(sources, dict):
            sources.pop(source, None)
            if len(sources) == 1:
                self._sources[destination] = next(iter(sources))
        elif sources is source:
            del self._sources[destination]

    def _remove(self, exchange: Exchange) -> list[Exchange]:
        gone: list[Exchange] = []
        self._do(self._leave([], [exchange], gone), f"bindings of exchange '{exchange.name}'")
        return gone

    def _do(self, steps: Iterator[None], name: str) -> None:
        """Carry out one step now, and leave the rest to `work`."""
        for _ in steps:
            self.work(steps, name)
            break

    def _leave(
        self, destinations: list[object], to_delete: list[Exchange], gone: list[Exchange]
    ) -> Iterator[None]:
        """Job: remove destinations and exchanges, and auto-delete exchanges that become unused by that."""
        # Bindings have no effect once they are detached; removing them from indexes and from disk takes longer. The
        # names of queues among the destinations are removed already. `gone` is filled with the deleted exchanges, in
        # order.
        departed: list[object] = []
        sweeps: deque[tuple[Exchange, object, Bound]] = deque()
        count = 0
        while to_delete or destinations:
            if to_delete:
                exchange = to_delete.pop()
                if self.exchanges.get(exchange.name) is exchange:
                    self._delete(exchange)
                    gone.append(exchange)
                    destinations.append(exchange)
                continue
            destination = destinations.pop()
            sources = self._sources.pop(destination, None)
            if sources is None:
                continue
            departed.append(destination)
            self._leaving.add(destination)
            self._changed()
            # those that choose come first, in one step: they would choose it and lose the message
            for source in sorted(members(sources), key=lambda each: not each.picks_one):
                bound = source.detach(destination) if self.exchanges.get(source.name) is source else None
                if bound is not None:
                    self.binding_count -= len(members(bound))
                    sweeps.append((source, destination, bound))
                    if source.auto_delete and not source.in_use:
                        to_delete.append(source)
                count += 1
                if not (count % PIECE or source.picks_one):
                    yield
        while sweeps:
            source, destination, bound = sweeps.popleft()
            for identity in source.sweep(destination, bound):
                self._notify_unbound(source, destination, identity)
                count += 1
                if not count % PIECE:
                    yield
        self._leaving.difference_update(departed)
        for exchange in gone:
            for destination, identity in exchange.tear_down():
                self._discard_source(destination, exchange)
                self._notify_unbound(exchange, destination, identity)
                count += 1
                if not count % PIECE:
                    yield

    def _delete(self, exchange: Exchange) -> None:
        del self.exchanges[exchange.name]
        self.reads_properties -= exchange.reads_properties
        if exchange is self._default:
            self._default = None
        self.binding_count -= exchange.binding_count
        self._changed()
        if exchange.durable and self.listener is not None:
            self.listener.removed(exchange)
        if exchange.line is not None:
            exchange.line.delete()
        self.on_deleted(exchange)

    def _notify_unbound(self, source: Exchange, destination: object, identity: Identity) -> None:
        if source.durable and self.listener is not None:
            self.listener.unbound(source, destination, binding_key_of(identity), arguments_of(identity))
        if self.on_binding is not None:
            key, arguments = binding_key_of(identity), arguments_of(identity)
            self.on_binding(False, source, destination, key, arguments)

    def _name_changed(self, name: str) -> None:
        """Invalidate all cached routes if one of them may depend on whether this queue name exists."""
        # Most short-lived queues were not looked up before they were declared: reply queues of one request each.
        if name in self._asked:
            self._asked.clear()
            self.generation += 1

    def _changed(self) -> None:
        self._asked.clear()
        self.generation += 1
        self._routes.clear()
        self._cached = 0
        self._needing.clear()

    # Routing

    def route(
        self, exchange: Exchange, routing_keys: Sequence[str], headers: Headers = None
    ) -> tuple[object, ...]:
        """Return the queues that a message goes to, each once, in no particular order.

        `routing_keys` are the routing key and those of CC and BCC. A callable `headers` is called at most
        once, and only if the message reaches a headers exchange.

        Raises TooManyHopsError.
        """
        if len(routing_keys) == 1:
            return self.route_key(exchange, routing_keys[0], headers)
        if exchange is self._default:
            queues = self.queues
            return tuple(queues[key] for key in dict.fromkeys(routing_keys) if key in queues)
        return self._walk(exchange, routing_keys, headers)

    def route_key(self, exchange: Exchange, routing_key: str, headers: Headers = None) -> tuple[object, ...]:
        """Return the route of a message with one routing key, as nearly all; see `route`. Raises TooManyHopsError."""
        routes = self._routes.get(exchange)
        if routes is not None:
            route = routes.get(routing_key)
            if route is not None:
                return route
        if exchange is self._default:
            if len(self._asked) >= _CACHE_LIMIT:
                self._asked.clear()
                self.generation += 1
            self._asked.add(routing_key)
            queue = self.queues.get(routing_key)
            return () if queue is None else (queue,)
        if exchange.exchange_destinations is None:
            if exchange.indexed and exchange.alternate is None and not self._leaving:
                return tuple(exchange.match(routing_key))
            if exchange.keyless and exchange.in_use and not exchange.needs_headers:
                # One route for all keys: remember it once, as it may be long.
                routing_key = ""
                route = None if routes is None else routes.get(routing_key)
                if route is not None:
                    return route
        route = self._walk(exchange, (routing_key,), headers)
        if routes is None:
            if exchange in self._routes:
                return route
            if self.needs_headers(exchange):
                self._routes[exchange] = None
                return route
            routes = self._routes[exchange] = {}
        if self._cached >= _CACHE_LIMIT:
            self._routes.clear()
            self._cached = 0
            routes = self._routes[exchange] = {}
        self._cached += 1 + len(route) // 8  # a tuple of eight is about as big as the entry itself
        routes[routing_key] = route
        return route

    def route_anyway(
        self, exchange: Exchange, routing_keys: Sequence[str], headers: Headers = None
    ) -> tuple[object, ...]:
        """Route a message without a publisher to report to: with too many hops, to the queues reached so far."""
        try:
            return self.route(exchange, routing_keys, headers)
        except TooManyHopsError as error:
            return error.reached

    def needs_headers(self, exchange: Exchange) -> bool:
        """Return whether a message published to this exchange can reach a headers exchange."""
        needing = self._needing.get(exchange)
        if needing is None:
            needing = any(each.needs_headers for each in self.reachable(exchange))
            self._needing[exchange] = needing
        return needing

    def reachable(self, exchange: Exchange) -> Iterator[Exchange]:
        """Yield the exchanges that a message may reach from one on, whatever its key and headers, each once."""
        found = {exchange: None}
        work = [exchange]
        while work:
            visited = work.pop()
            yield visited
            alternate = None if visited.alternate is None else self.exchanges.get(visited.alternate)
            for each in (*(visited.exchange_destinations or ()), *((alternate,) if alternate else ())):
                if each not in found:
                    found[each] = None
                    work.append(each)

    def reached(self, exchange: Exchange, routing_keys: Sequence[str], headers: Headers) -> list[Exchange]:
        """Return the exchanges that a message passes, each once: the one it is published to, and others from there."""
        reached = [exchange]
        for visited in reached:
            found = [each for each in visited.matched(routing_keys, headers) if each not in self._leaving]
            if not found and visited.alternate is not None:
                found = [self.exchanges.get(visited.alternate)]
            reached += [
                each for each in dict.fromkeys(found) if isinstance(each, Exchange) and each not in reached
            ]
            if len(reached) > self.hop_limit:
                break
        return reached

    def _walk(self, exchange: Exchange, routing_keys: Sequence[str], headers: Headers) -> tuple[object, ...]:
        leaving = self._leaving
        if (
            exchange.exchange_destinations is None
            and len(routing_keys) == 1
            and not callable(headers)
            and not leaving
        ):
            found = exchange.match(routing_keys[0], headers)
            if found or exchange.alternate is None:
                return found if type(found) is tuple else tuple(found)
        queues: dict[object, None] = {}
        seen = {exchange}
        work = [exchange]
        most = 1 + self.hop_limit // len(routing_keys)
        while work:
            if len(seen) > most:
                raise TooManyHopsError(tuple(queues), self.hop_limit)
            visited = work.pop()
            if visited.needs_headers and callable(headers):
                headers = headers()
            if len(routing_keys) == 1 or visited.keyless:
                found = visited.match(routing_keys[0], headers)
            else:
                found = visited.match_keys(routing_keys, headers)
            if leaving:
                found = [destination for destination in found if destination not in leaving]
            if not found:
                alternate = None if visited.alternate is None else self.exchanges.get(visited.alternate)
                if alternate is not None and alternate not in seen:
                    seen.add(alternate)
                    work.append(alternate)
            elif visited.exchange_destinations is None:
                queues.update(dict.fromkeys(found))
            else:
                for destination in found:
                    if not isinstance(destination, Exchange):
                        queues[destination] = None
                    elif destination not in seen:
                        seen.add(destination)
                        work.append(destination)
        return tuple(queues)
