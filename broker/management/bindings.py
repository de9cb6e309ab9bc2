"""Bindings: `/api/bindings` and those of one queue or exchange; the names of bindings in paths are RabbitMQ's."""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote_plus

from leveret.broker.administration.access import visible_vhosts
from leveret.broker.administration.definitions_document import json_text, plain_arguments
from leveret.broker.administration.topology import typed_arguments
from leveret.broker.amqp.tables import Field, Table
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Steps
from leveret.broker.http.errors import not_found
from leveret.broker.http.route import Key, Routes, Scope
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Binding, Exchange
from leveret.exchanges.erlang_hash import Atom, octets, term_hash

ROUTES = Routes("bindings", scope=Scope.VHOST)
_BODY = (Key("routing_key", doc="empty by default"), Key("arguments", "object"))
_TO_QUEUE = "bindings/{vhost}/e/{source}/q/{queue}"
_TO_EXCHANGE = "bindings/{vhost}/e/{source}/e/{exchange}"
DEFAULT_EXCHANGE = "amq.default"  # name of the default exchange in paths
STEP = 64  # bindings that are compared in one step
_ORDER = ("vhost", "source", "destination", "routing_key", "properties_key")


class BindingRow(NamedTuple):
    """A binding and its vhost."""

    vhost: str
    binding: Binding

    @property
    def destination_type(self) -> str:
        """The kind of the destination: `queue` or `exchange`."""
        return "exchange" if isinstance(self.binding.destination, Exchange) else "queue"

    @property
    def destination(self) -> str:
        """Name of the destination."""
        destination: Any = self.binding.destination
        return str(destination.name)

    @property
    def key(self) -> str:
        """The properties key."""
        return properties_key(self.binding.binding_key, self.binding.arguments)


FIELDS: Mapping[str, Callable[[BindingRow], Any]] = {
    "source": lambda row: json_text(row.binding.source),
    "vhost": lambda row: json_text(row.vhost),
    "destination": lambda row: json_text(row.destination),
    "destination_type": lambda row: row.destination_type,
    "routing_key": lambda row: json_text(row.binding.binding_key),
    "arguments": lambda row: plain_arguments(row.binding.arguments),
    "properties_key": lambda row: row.key,
}


@ROUTES.list("bindings")
@ROUTES.list("bindings/{vhost}", doc="The bindings of a virtual host.")
def list_bindings(call: Call) -> Answer:
    """All bindings."""
    vhosts = visible_vhosts(call.broker, call.actor, call.vhost)
    return Listing(chain.from_iterable(map(all_bindings, vhosts)), FIELDS, _ORDER)


def all_bindings(vhost: VHost) -> Iterator[BindingRow]:
    """Yield the bindings of a vhost, those of the default exchange first."""
    for queue in tuple(vhost.queues.values()):
        yield BindingRow(vhost.name, Binding("", queue, queue.name, {}))
    for binding in vhost.router.bindings():
        yield BindingRow(vhost.name, binding)


def bindings_from(vhost: VHost, source: str) -> Iterator[BindingRow]:
    """Yield the bindings whose source has this name."""
    if not source:
        return (
            BindingRow(vhost.name, Binding("", queue, queue.name, {}))
            for queue in tuple(vhost.queues.values())
        )
    exchange = vhost.router.get(source)
    return (BindingRow(vhost.name, each) for each in (() if exchange is None else exchange.bindings()))


def bindings_to(vhost: VHost, kind: str, name: str, source: str | None = None) -> Iterator[BindingRow]:
    """Yield the bindings whose destination is the queue or exchange (`kind`) of this name, of one source or of all."""
    destination: Any = vhost.queues.get(name) if kind == "queue" else vhost.router.get(name)
    if destination is None:
        return
    if kind == "queue" and not source:
        yield BindingRow(vhost.name, Binding("", destination, name, {}))
    exchange = vhost.router.get(source) if source else None
    found = vhost.router.bindings_of(destination) if source is None else ()
    for binding in found if exchange is None else exchange.bindings_to(destination):
        yield BindingRow(vhost.name, binding)


def exchange_name(name: str) -> str:
    """Return the name of an exchange in a path."""
    return "" if name == DEFAULT_EXCHANGE else name


@ROUTES.list("queues/{vhost}/{queue}/bindings")
def list_queue_bindings(call: Call) -> Answer:
    """The bindings to a queue."""
    vhost = call.found_vhost()
    return Listing(bindings_to(vhost, "queue", call.names["queue"]), FIELDS, _ORDER)


@ROUTES.list("exchanges/{vhost}/{exchange}/bindings/source")
def list_source_bindings(call: Call) -> Answer:
    """The bindings from an exchange."""
    vhost = call.found_vhost()
    return Listing(bindings_from(vhost, exchange_name(call.names["exchange"])), FIELDS, _ORDER)


@ROUTES.list("exchanges/{vhost}/{exchange}/bindings/destination")
def list_destination_bindings(call: Call) -> Answer:
    """The bindings to an exchange."""
    vhost = call.broker.vhosts.get(call.names["vhost"])
    name = exchange_name(call.names["exchange"])
    return Listing(() if vhost is None else bindings_to(vhost, "exchange", name), FIELDS, _ORDER)


def _between(call: Call) -> Iterator[BindingRow]:
    vhost = call.broker.vhosts.get(call.names["vhost"])
    if vhost is None:
        return iter(())
    return bindings_to(vhost, *_destination(call), exchange_name(call.names["source"]))


def _destination(call: Call) -> tuple[str, str]:
    if "queue" in call.names:
        return "queue", call.names["queue"]
    return "exchange", exchange_name(call.names["exchange"])


@ROUTES.list(_TO_QUEUE, doc="Bindings from an exchange to a queue.")
@ROUTES.list(_TO_EXCHANGE)
def list_between(call: Call) -> Answer:
    """Bindings from an exchange to an exchange."""
    return Listing(_between(call), FIELDS, _ORDER)


@ROUTES.post(_TO_QUEUE, doc="Bind a queue to an exchange.", body=_BODY, statuses=(201,))
@ROUTES.post(_TO_EXCHANGE, body=_BODY, statuses=(201,))
def post_binding(call: Call) -> Answer:
    """Bind an exchange to an exchange."""
    body = call.body()
    kind, destination = _destination(call)
    given = body.get("routing_key", "")
    routing_key = given if isinstance(given, str) else "null" if given is None else str(given)
    with call.changing():
        arguments = body.table("arguments")
        call.administration.topology.bind(
            call.actor,
            call.names["vhost"],
            exchange_name(call.names["source"]),
            destination,
            destination_type=kind,
            routing_key=routing_key,
            arguments=arguments,
        )
    made = typed_arguments(arguments)
    return Done(201, location(destination, properties_key(routing_key, made)))


@ROUTES.get(f"{_TO_QUEUE}/{{props}}", f"{_TO_EXCHANGE}/{{props}}")
def get_binding(call: Call) -> Steps:
    """One binding."""
    row = yield from _found_row(call)
    return Item({name: compute(row) for name, compute in FIELDS.items()})


@ROUTES.delete(f"{_TO_QUEUE}/{{props}}", f"{_TO_EXCHANGE}/{{props}}")
def delete_binding(call: Call) -> Steps:
    """Remove a binding."""
    row = yield from _found_row(call)
    with call.changing():
        call.administration.topology.unbind(
            call.actor,
            row.vhost,
            row.binding.source,
            row.destination,
            destination_type=row.destination_type,
            routing_key=row.binding.binding_key,
            arguments=row.binding.arguments,
        )
    return Done()


def _found_row(call: Call) -> Any:
    wanted = canonical(call.names["props"])
    for number, row in enumerate(_between(call), 1):
        if row.key == wanted:
            return row
        if not number % STEP:
            yield None
    raise not_found()


# -- the last segment of a path ---------------------------------------------------------------------------------------


_EMPTY = "~"


def properties_key(binding_key: str, arguments: Table) -> str:
    """Return the name of a binding among those of the same source and destination."""
    if not binding_key and not arguments:
        return _EMPTY
    key = quote_plus(binding_key, safe="", encoding="utf-8", errors="surrogateescape").replace("~", "%7E")
    if not arguments:
        return key
    number = term_hash(_fields(dict(sorted(arguments.items()))))
    return f"{key}~{urlsafe_b64encode(number.to_bytes(4, 'big')).decode().rstrip('=')}"


def canonical(key: str) -> str:
    """Return the name of a binding as `properties_key` writes it: clients may percent-encode it otherwise."""
    binding_key, separator, number = key.partition("~")
    if not binding_key:
        return key
    return properties_key(unquote_plus(binding_key, errors="surrogateescape"), {}) + separator + number


def location(destination: str, key: str) -> str:
    """Return the path of a new binding, relative to that of the request."""
    name = quote(destination, safe="", encoding="utf-8", errors="surrogateescape")
    return f"{name}/{quote_plus(key, safe='~')}"


def _fields(table: Table) -> list[Any]:
    return [(octets(name), Atom(field[0]), _value(field)) for name, field in table.items()]


def _value(field: Field) -> Any:
    kind, value = field
    match kind:
        case "table":
            return _fields(value)
        case "array":
            return [(Atom(each[0]), _value(each)) for each in value]
        case "void":
            return Atom("undefined")
    return octets(value) if isinstance(value, str) else value
