"""Exchanges: `/api/exchanges`; bindings: `/api/bindings` and those of one queue or exchange.

The names of bindings in paths are RabbitMQ's.
"""

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
from leveret.broker.http.listing import ABSENT, RANGES, asked_ranges
from leveret.broker.http.route import Key, Routes, Scope
from leveret.broker.management.clients import shown
from leveret.broker.statistics import families
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Binding, Exchange
from leveret.exchanges.erlang_hash import Atom, octets, term_hash

ROUTES = Routes("exchanges", scope=Scope.VHOST)
_SYSTEM = "amq."
DEFAULT_EXCHANGE = "amq.default"  # name of the default exchange in paths


class ExchangeRow(NamedTuple):
    """An exchange and its vhost."""

    vhost: VHost
    exchange: Exchange


Fields = Mapping[str, Callable[[ExchangeRow], Any]]


def exchange_fields(call: Call) -> Fields:
    """Return the functions for the keys of an exchange."""
    statistics = call.broker.statistics
    span = asked_ranges(call.query, one="exchange" in call.names).messages

    return {
        "name": lambda row: json_text(row.exchange.name),
        "vhost": lambda row: json_text(row.vhost.name),
        "type": lambda row: row.exchange.type,
        "durable": lambda row: row.exchange.durable,
        "auto_delete": lambda row: row.exchange.auto_delete,
        "internal": lambda row: row.exchange.internal,
        "arguments": lambda row: plain_arguments(row.exchange.arguments),
        "policy": _policy,
        "user_who_performed_action": lambda row: "rmq-internal" if is_predeclared(row.exchange) else "",
        "messages_delayed": lambda row: ABSENT if row.exchange.line is None else row.exchange.line.count,
        "messages_kept": lambda row: _kept(row, "count"),
        "message_bytes_kept": lambda row: _kept(row, "octets"),
        "message_stats": lambda row: statistics.message_stats(families.EXCHANGES, row.exchange, span),
    }


def exchange_name(name: str) -> str:
    """Return the name of an exchange in a path."""
    return "" if name == DEFAULT_EXCHANGE else name


def is_predeclared(exchange: Exchange) -> bool:
    """Return whether every vhost has this exchange."""
    return not exchange.name or exchange.name.startswith(_SYSTEM)


def _kept(row: ExchangeRow, figure: str) -> Any:
    return getattr(row.vhost.histories.by_name.get(row.exchange.name), figure, ABSENT)


def _policy(row: ExchangeRow) -> Any:
    policy = row.vhost.exchange_policies(row.exchange).policy
    return ABSENT if policy is None else json_text(policy.name)


@ROUTES.list("exchanges", query=RANGES)
@ROUTES.list("exchanges/{vhost}", doc="The exchanges of a virtual host.", query=RANGES)
def list_exchanges(call: Call) -> Answer:
    """All exchanges."""
    vhosts = visible_vhosts(call.broker, call.actor, call.vhost)
    rows = (ExchangeRow(vhost, each) for vhost in vhosts for each in tuple(vhost.router.exchanges.values()))
    return Listing(rows, exchange_fields(call))


@ROUTES.get("exchanges/{vhost}/{exchange}", query=RANGES)
def get_exchange(call: Call, exchange: str) -> Answer:
    """One exchange."""
    vhost = call.found_vhost()
    found = vhost.router.get(exchange_name(exchange))
    if found is None:
        raise not_found()
    row = ExchangeRow(vhost, found)
    return Item({**shown(exchange_fields(call), row), "incoming": [], "outgoing": []})


@ROUTES.put(
    "exchanges/{vhost}/{exchange}",
    body=(
        Key("type", doc="`direct` by default"),
        Key("durable", "boolean", doc="false by default"),
        Key("auto_delete", "boolean", doc="false by default"),
        Key("internal", "boolean", doc="false by default"),
        Key("arguments", "object"),
    ),
)
def put_exchange(call: Call, vhost: str, exchange: str) -> Answer:
    """Declare an exchange."""
    name = exchange_name(exchange)
    body = call.body()
    with call.changing():
        is_new = call.broker.vhosts[vhost].router.get(name) is None
        call.administration.topology.declare_exchange(
            call.actor,
            vhost,
            name,
            body.text("type", "direct"),
            durable=body.flag("durable"),
            auto_delete=body.flag("auto_delete"),
            internal=body.flag("internal"),
            arguments=body.table("arguments"),
        )
    return Done(201 if is_new else 204)


@ROUTES.delete(
    "exchanges/{vhost}/{exchange}",
    query=(Key("if-unused", "boolean", doc="only if it is the source of no binding"),),
)
def delete_exchange(call: Call, vhost: str, exchange: str) -> None:
    """Delete an exchange with its bindings."""
    name = exchange_name(exchange)
    if call.found_vhost().router.get(name) is None:
        raise not_found()
    with call.changing():
        is_unused = call.query.flag("if-unused")
        call.administration.topology.delete_exchange(call.actor, vhost, name, if_unused=is_unused)


# -- bindings ----------------------------------------------------------------------------------------------------------


BINDING_ROUTES = Routes("bindings", scope=Scope.VHOST)
_BODY = (Key("routing_key", doc="empty by default"), Key("arguments", "object"))
_TO_QUEUE = "bindings/{vhost}/e/{source}/q/{queue}"
_TO_EXCHANGE = "bindings/{vhost}/e/{source}/e/{exchange}"
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


@BINDING_ROUTES.list("bindings")
@BINDING_ROUTES.list("bindings/{vhost}", doc="The bindings of a virtual host.")
def list_bindings(call: Call) -> Answer:
    """All bindings."""
    vhosts = visible_vhosts(call.broker, call.actor, call.vhost)
    return Listing(chain.from_iterable(map(all_bindings, vhosts)), FIELDS, _ORDER)


def all_bindings(vhost: VHost) -> Iterator[BindingRow]:
    """Yield the bindings of a vhost, those of the default exchange first."""
    yield from bindings_from(vhost, "")
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


@BINDING_ROUTES.list("queues/{vhost}/{queue}/bindings")
def list_queue_bindings(call: Call) -> Answer:
    """The bindings to a queue."""
    vhost = call.found_vhost()
    return Listing(bindings_to(vhost, "queue", call.names["queue"]), FIELDS, _ORDER)


@BINDING_ROUTES.list("exchanges/{vhost}/{exchange}/bindings/source")
def list_source_bindings(call: Call) -> Answer:
    """The bindings from an exchange."""
    vhost = call.found_vhost()
    return Listing(bindings_from(vhost, exchange_name(call.names["exchange"])), FIELDS, _ORDER)


@BINDING_ROUTES.list("exchanges/{vhost}/{exchange}/bindings/destination")
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


@BINDING_ROUTES.list(_TO_QUEUE, doc="Bindings from an exchange to a queue.")
@BINDING_ROUTES.list(_TO_EXCHANGE)
def list_between(call: Call) -> Answer:
    """Bindings from an exchange to an exchange."""
    return Listing(_between(call), FIELDS, _ORDER)


@BINDING_ROUTES.post(_TO_QUEUE, doc="Bind a queue to an exchange.", body=_BODY, statuses=(201,))
@BINDING_ROUTES.post(_TO_EXCHANGE, body=_BODY, statuses=(201,))
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


@BINDING_ROUTES.get(f"{_TO_QUEUE}/{{props}}", f"{_TO_EXCHANGE}/{{props}}")
def get_binding(call: Call) -> Steps:
    """One binding."""
    row = yield from _found_row(call)
    return Item({name: compute(row) for name, compute in FIELDS.items()})


@BINDING_ROUTES.delete(f"{_TO_QUEUE}/{{props}}", f"{_TO_EXCHANGE}/{{props}}")
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
