"""Bindings: `/api/bindings` and those of one queue or exchange; the names of bindings in paths are RabbitMQ's."""

import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote_plus

from leveret.broker.administration.access import visible_vhosts
from leveret.broker.administration.definitions_document import json_text, plain_arguments
from leveret.broker.administration.topology import typed_arguments
from leveret.broker.amqp.tables import Field, Table
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Steps, changing, found_vhost, table
from leveret.broker.http.errors import not_found
from leveret.broker.http.route import Key, Routes, Scope
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Binding, Exchange

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
    vhost = call.broker.vhosts[found_vhost(call)]
    return Listing(bindings_to(vhost, "queue", call.names["queue"]), FIELDS, _ORDER)


@ROUTES.list("exchanges/{vhost}/{exchange}/bindings/source")
def list_source_bindings(call: Call) -> Answer:
    """The bindings from an exchange."""
    vhost = call.broker.vhosts[found_vhost(call)]
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
    with changing(call):
        arguments = table(body, "arguments")
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
    with changing(call):
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
    return [(_octets(name), Atom(field[0]), _value(field)) for name, field in table.items()]


def _value(field: Field) -> Any:
    kind, value = field
    match kind:
        case "table":
            return _fields(value)
        case "array":
            return [(Atom(each[0]), _value(each)) for each in value]
        case "void":
            return Atom("undefined")
    return _octets(value) if isinstance(value, str) else value


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# -- Erlang's portable hash of a term (`erlang:phash2`), by which RabbitMQ names bindings that have arguments ----------
# It is the same in all versions of Erlang: the words of a term are mixed, one after the other, by Bob Jenkins's
# function of 1996, each kind of term with a multiple of the golden ratio of its own. Only the terms of arguments are
# known here.


_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_SMALL, _LIST_END, _ATOM, _STRING, _TUPLE, _NEGATIVE, _BIG, _FLOAT, _BINARY = (
    _GOLDEN * factor & _WORD for factor in (1, 2, 3, 4, 9, 10, 11, 12, 13)
)
_EMPTY_LIST = 3468870702
_SHIFTS = ((13, 8, 13), (12, 16, 5), (3, 10, 15))
_SMALL_LIMIT = 1 << 27
_BLOCK = 12
_OCTET = 256


class Atom(str):
    """An atom of Erlang; a plain text is no term."""

    __slots__ = ()


def term_hash(term: Any) -> int:
    """Return the hash (0 to 2**32 - 1) of a term of lists, tuples, bytes, whole numbers, floats and atoms."""
    total = 0
    waiting = [term]
    while waiting:
        term = waiting.pop()
        match term:
            case Atom():
                value = _atom_hash(term.encode("latin-1", "replace"))
                total = _mixed(total, value, 0, _ATOM) if total else value
            case bool():
                waiting.append(Atom("true" if term else "false"))
            case int():
                total = _number(total, term)
            case float():
                low, high = struct.unpack("<II", struct.pack("<d", term or 0.0))
                total = _mixed(total, high, low, _FLOAT)
            case bytes():
                start = _BINARY + total & _WORD
                total = _block(term, start) if term else start
            case tuple():
                total = _mixed(total, len(term), 0, _TUPLE)
                waiting.extend(reversed(term))
            case []:
                total = _mixed(total, 2, 0, _LIST_END) if total else _EMPTY_LIST
            case list():
                total = _list(total, term, waiting)
            case _:
                raise TypeError(term)
    return total


def _list(total: int, items: list[Any], waiting: list[Any]) -> int:
    """Mix the octets that a list begins with; its next item and the rest of it wait."""
    at = 0
    word = 0
    while at < len(items) and type(items[at]) is int and 0 <= items[at] < _OCTET:
        word = (word << 8 | items[at]) & _WORD
        at += 1
        if not at % 4:
            total = _mixed(total, word, 0, _STRING)
            word = 0
    if at % 4:
        total = _mixed(total, word, 0, _STRING)
    if at == len(items):
        waiting.append([])
    else:
        waiting.append(items[at + 1 :])
        waiting.append(items[at])
    return total


def _number(total: int, number: int) -> int:
    if -_SMALL_LIMIT <= number < _SMALL_LIMIT:
        if number < 0:
            total = _mixed(total, -number, 0, _SMALL)
        return _mixed(total, number, 0, _SMALL)
    kind = _NEGATIVE if number < 0 else _BIG
    rest = abs(number)
    while rest:
        total = _mixed(total, rest & _WORD, rest >> 32 & _WORD, kind)
        rest >>= 64
    return total


def _mixed(total: int, one: int, other: int, kind: int) -> int:
    return _mix(kind + one & _WORD, kind + other & _WORD, total)[2]


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in _SHIFTS:
        a = ((a - b - c) & _WORD) ^ c >> first
        b = ((b - c - a) ^ a << second) & _WORD
        c = ((c - a - b) & _WORD) ^ b >> third
    return a, b, c


def _block(octets: bytes, start: int) -> int:
    """Hash octets: blocks of three words, the last one with the length in its first octet."""
    a = b = _GOLDEN
    c = start
    whole = len(octets) // _BLOCK * _BLOCK
    for at in range(0, whole, _BLOCK):
        x, y, z = struct.unpack_from("<III", octets, at)
        a, b, c = _mix(a + x & _WORD, b + y & _WORD, c + z & _WORD)
    rest = octets[whole:].ljust(_BLOCK, b"\0")
    x, y, z = struct.unpack("<III", rest[:8] + b"\0" + rest[8:11])
    c = c + len(octets) & _WORD
    return _mix(a + x & _WORD, b + y & _WORD, c + z & _WORD)[2]


def _atom_hash(octets: bytes) -> int:
    value = 0
    for octet in octets:
        value = (value << 4) + octet
        high = value & 0xF0000000
        value = (value ^ high >> 24 ^ high) & _WORD
    return value
