"""Checks of an import for what it keeps if it is there: exchanges, queues and bindings."""

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec

from leveret.broker.administration.access import AdministeredBroker, BadRequestError
from leveret.broker.administration.definitions_document import (
    BindingEntry,
    ExchangeEntry,
    QueueEntry,
    plain_arguments,
    table_of,
)
from leveret.broker.administration.definitions_planned import Names, Planned, check_short
from leveret.broker.amqp.tables import Table
from leveret.broker.errors import resource
from leveret.broker.queue.arguments import (
    check_alternate_exchange_type,
    check_dead_letter_exchange_type,
    check_queue_arguments,
    check_queue_properties,
    with_default_type,
)
from leveret.exchanges.base import Exchange
from leveret.exchanges.router import EXCHANGE_TYPES, Router

log = logging.getLogger("leveret.definitions")

RESERVED = "amq."


class TopologyChecks:
    """Checks entries against existing objects and the entries before them. All raise for invalid ones.

    Args:
        broker: the broker.
        names: what entries may refer to.

    """

    def __init__(self, broker: AdministeredBroker, names: Names) -> None:
        self._broker = broker
        self._names = names
        self._exchanges: dict[tuple[str, str], Exchange] = {}
        """The exchanges of the file, by vhost and name: tried out, and connected to nothing."""
        self._written: set[tuple[str, str, bool, str, str, bytes]] = set()
        """Bindings with arguments that the broker has, as an export writes them."""
        self._predeclared = Router()
        self._predeclared.predeclare()

    def exchange(self, entry: ExchangeEntry) -> Planned:
        """Check an exchange."""
        self._names.check_vhost(entry.vhost)
        if entry.name.startswith(RESERVED) or not entry.name:
            return Planned(
                {}, {}, lambda: log.warning("definitions: predeclared exchange '%s' ignored", entry.name)
            )
        check_short("its name", entry.name)
        arguments = table_of(entry.arguments)
        if entry.type not in EXCHANGE_TYPES:
            raise BadRequestError(f"unknown exchange type '{entry.type}'")
        check_alternate_exchange_type(entry.name, entry.vhost, arguments)
        tried = Router().declare(entry.name, entry.type, arguments=arguments)
        self._exchanges.setdefault((entry.vhost, entry.name), tried)
        place = self._broker.vhosts.get(entry.vhost)
        present = None if place is None else place.router.get(entry.name)

        def apply() -> None:
            vhost = self._broker.vhosts[entry.vhost]
            if vhost.router.get(entry.name) is None:
                vhost.declare_exchange(
                    entry.name,
                    entry.type,
                    durable=entry.durable,
                    auto_delete=entry.auto_delete,
                    internal=entry.internal,
                    arguments=arguments,
                )

        return Planned(
            None if present is None else _properties(present, type=present.type, internal=present.internal),
            _properties(entry, type=entry.type, internal=entry.internal),
            apply,
            is_kept=True,
        )

    def queue(self, entry: QueueEntry) -> Planned:
        """Check a queue."""
        self._names.check_vhost(entry.vhost)
        if not entry.name:
            raise BadRequestError("queue name cannot be empty")
        check_short("its name", entry.name)
        arguments = with_default_type(
            table_of(entry.arguments),
            self._names.default_queue_type(entry.vhost),
            durable=entry.durable,
            exclusive=False,
            auto_delete=entry.auto_delete,
        )
        check_dead_letter_exchange_type(entry.name, entry.vhost, arguments)
        check_queue_arguments(entry.name, entry.vhost, arguments)
        check_queue_properties(
            entry.name,
            entry.vhost,
            durable=entry.durable,
            exclusive=False,
            auto_delete=entry.auto_delete,
            arguments=arguments,
        )
        self._names.added.add(("queues", entry.vhost, entry.name))
        place = self._broker.vhosts.get(entry.vhost)
        present = None if place is None else place.queues.get(entry.name)

        def apply() -> None:
            vhost = self._broker.vhosts[entry.vhost]
            if entry.name not in vhost.queues:
                vhost.create_queue(
                    entry.name,
                    durable=entry.durable,
                    exclusive_owner=None,
                    auto_delete=entry.auto_delete,
                    arguments=arguments,
                )

        after = {**_properties(entry), "arguments": plain_arguments(arguments)}
        return Planned(None if present is None else _properties(present), after, apply, is_kept=True)

    def binding(self, entry: BindingEntry) -> Planned:
        """Check a binding."""
        self._names.check_vhost(entry.vhost)
        check_short("its routing key", entry.routing_key)
        arguments = table_of(entry.arguments)
        source = self._find_exchange(entry.vhost, entry.source)
        to_queue = entry.destination_type == "queue"
        destination: object = (
            self._find_queue(entry.vhost, entry.destination)
            if to_queue
            else self._find_exchange(entry.vhost, entry.destination)
        )
        if arguments:
            source.validate(arguments)
        # an export has no types of numbers: the binding that it came from is another one than it would make
        is_there = source.has_binding(destination, entry.routing_key, arguments) or (
            bool(arguments)
            and (
                entry.vhost,
                entry.source,
                to_queue,
                entry.destination,
                entry.routing_key,
                _written(arguments),
            )
            in self._written
        )

        def apply() -> None:
            if is_there:
                return
            vhost = self._broker.vhosts[entry.vhost]
            found: object = (vhost.queues if to_queue else vhost.router.exchanges)[entry.destination]
            vhost.router.bind(entry.source, found, entry.routing_key, arguments)

        return Planned({} if is_there else None, {}, apply, is_kept=True)

    def noting_bindings(self, entries: Sequence[BindingEntry]) -> Generator[None]:
        """Note the bindings that there are, in steps; must come before `binding` is called for these entries."""
        if not any(entry.arguments for entry in entries):
            return
        for name, vhost in tuple(self._broker.vhosts.items()):
            for exchange in tuple(vhost.router.exchanges.values()):
                for each in exchange.bindings():
                    if each.arguments:
                        to_queue = not isinstance(each.destination, Exchange)
                        written = _written(each.arguments)
                        target: str = each.destination.name  # type: ignore[attr-defined]
                        self._written.add((name, exchange.name, to_queue, target, each.binding_key, written))
                    yield

    def _find_queue(self, vhost: str, name: str) -> object:
        """Return a queue of the broker; None for one of the file."""
        place = self._broker.vhosts.get(vhost)
        present = None if place is None else place.queues.get(name)
        if present is None and ("queues", vhost, name) not in self._names.added:
            self._names.check("queues", vhost, name)
            raise BadRequestError(f"no {resource('queue', name, vhost)}")
        return present

    def _find_exchange(self, vhost: str, name: str) -> Exchange:
        """Return an exchange of the broker, or else of the file."""
        place = self._broker.vhosts.get(vhost)
        router = self._predeclared if place is None else place.router
        present = router.get(name) or self._exchanges.get((vhost, name))
        if present is None or not name:
            self._names.check("exchanges", vhost, name)
            raise BadRequestError(f"no {resource('exchange', name, vhost)}")
        return present

    def forgetting(self) -> Generator[None]:
        """Forget what was tried out, in steps."""
        while self._exchanges:
            self._exchanges.popitem()
            yield
        while self._written:
            self._written.pop()
            yield


def _written(arguments: Table) -> bytes:
    """Return arguments as an export writes them, in one order."""
    return msgspec.json.encode(plain_arguments(arguments), order="sorted")


def _properties(thing: Any, **more: Any) -> Mapping[str, Any]:
    """Return the properties of an exchange or queue, of the file or the broker."""
    is_entry = isinstance(thing, ExchangeEntry | QueueEntry)
    return {
        **more,
        "durable": thing.durable,
        "auto_delete": thing.auto_delete,
        "arguments": thing.arguments if is_entry else plain_arguments(thing.arguments),
    }
