"""Bindings: `/api/bindings` and those of one queue or exchange."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from leveret.broker.administration.access import visible_vhosts
from leveret.broker.administration.definitions_document import json_text, plain_arguments
from leveret.broker.http.call import Answer, Call, Done, Item, Listing, Steps, table
from leveret.broker.http.errors import not_found
from leveret.broker.http.route import Key, Operation, Route, Scope
from leveret.broker.management.client_errors import changing, found_vhost
from leveret.broker.management.properties_key import canonical, location, properties_key
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Binding, Exchange

DEFAULT_EXCHANGE = "amq.default"
"""Name of the default exchange in paths."""
STEP = 64
"""Bindings that are compared in one step."""
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


def listing(rows: Iterable[BindingRow]) -> Answer:
    """Return the answer that lists bindings."""
    return Listing(rows, FIELDS, _ORDER)


def list_bindings(call: Call) -> Answer:
    """List the bindings of one vhost or of all."""
    vhosts = visible_vhosts(call.broker, call.actor, call.vhost)
    return listing(chain.from_iterable(map(all_bindings, vhosts)))


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


def bindings_to(vhost: VHost, kind: str, name: str) -> Iterator[BindingRow]:
    """Yield the bindings whose destination is the queue or exchange (`kind`) of this name."""
    destination: Any = vhost.queues.get(name) if kind == "queue" else vhost.router.get(name)
    if destination is None:
        return
    if kind == "queue":
        yield BindingRow(vhost.name, Binding("", destination, name, {}))
    for binding in vhost.router.bindings_of(destination):
        yield BindingRow(vhost.name, binding)


def bindings_between(vhost: VHost, source: str, kind: str, name: str) -> Iterator[BindingRow]:
    """Yield the bindings between one source and one destination."""
    destination: Any = vhost.queues.get(name) if kind == "queue" else vhost.router.get(name)
    if destination is None:
        return
    if not source:
        if kind == "queue":
            yield BindingRow(vhost.name, Binding("", destination, name, {}))
        return
    exchange = vhost.router.get(source)
    for binding in () if exchange is None else exchange.bindings_to(destination):
        yield BindingRow(vhost.name, binding)


def exchange_name(name: str) -> str:
    """Return the name of an exchange in a path."""
    return "" if name == DEFAULT_EXCHANGE else name


def list_queue_bindings(call: Call) -> Answer:
    """List the bindings to a queue."""
    vhost = call.broker.vhosts[found_vhost(call)]
    return listing(bindings_to(vhost, "queue", call.names["queue"]))


def list_source_bindings(call: Call) -> Answer:
    """List the bindings from an exchange."""
    vhost = call.broker.vhosts[found_vhost(call)]
    return listing(bindings_from(vhost, exchange_name(call.names["exchange"])))


def list_destination_bindings(call: Call) -> Answer:
    """List the bindings to an exchange."""
    vhost = call.broker.vhosts.get(call.names["vhost"])
    name = exchange_name(call.names["exchange"])
    return listing(() if vhost is None else bindings_to(vhost, "exchange", name))


def _between(call: Call) -> Iterator[BindingRow]:
    vhost = call.broker.vhosts.get(call.names["vhost"])
    if vhost is None:
        return iter(())
    kind, destination = _destination(call)
    return bindings_between(vhost, exchange_name(call.names["source"]), kind, destination)


def _destination(call: Call) -> tuple[str, str]:
    if "queue" in call.names:
        return "queue", call.names["queue"]
    return "exchange", exchange_name(call.names["exchange"])


def list_between(call: Call) -> Answer:
    """List the bindings between an exchange and a queue or an exchange."""
    return listing(_between(call))


def post_binding(call: Call) -> Answer:
    """Bind a queue or an exchange."""
    body = call.body()
    kind, destination = _destination(call)
    given = body.get("routing_key", "")
    routing_key = given if isinstance(given, str) else "null" if given is None else str(given)
    source = exchange_name(call.names["source"])
    with changing(call):
        call.administration.topology.bind(
            call.actor,
            call.names["vhost"],
            source,
            destination,
            destination_type=kind,
            routing_key=routing_key,
            arguments=table(body, "arguments"),
        )
    made = call.administration.topology.arguments(table(body, "arguments"))
    return Done(201, location(destination, properties_key(routing_key, made)))


def get_binding(call: Call) -> Steps:
    """Return one binding."""
    row = yield from _found(call)
    return Item({name: compute(row) for name, compute in FIELDS.items()})


def delete_binding(call: Call) -> Steps:
    """Remove one binding."""
    row = yield from _found(call)
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


def _found(call: Call) -> Any:
    """Find the binding of a path, in steps; raises ApiError if there is none."""
    wanted = canonical(call.names["props"])
    for number, row in enumerate(_between(call), 1):
        if row.key == wanted:
            return row
        if not number % STEP:
            yield None
    raise not_found()


_VHOST = Scope.VHOST
_BODY = (
    Key("routing_key", doc="empty by default"),
    Key("arguments", "object"),
)


def _routes(path: str, what: str) -> tuple[Route, Route]:
    return (
        Route(
            path,
            "bindings",
            {
                "GET": Operation(
                    list_between, f"Bindings from an exchange to {what}.", scope=_VHOST, kind="array"
                ),
                "POST": Operation(
                    post_binding, f"Bind {what} to an exchange.", scope=_VHOST, body=_BODY, statuses=(201,)
                ),
            },
        ),
        Route(
            f"{path}/{{props}}",
            "bindings",
            {
                "GET": Operation(get_binding, "One binding.", scope=_VHOST),
                "DELETE": Operation(delete_binding, "Remove a binding.", scope=_VHOST, statuses=(204,)),
            },
        ),
    )


ROUTES = (
    Route("bindings", "bindings", {"GET": Operation(list_bindings, "All bindings.", kind="array")}),
    Route(
        "bindings/{vhost}",
        "bindings",
        {"GET": Operation(list_bindings, "The bindings of a virtual host.", scope=Scope.VHOST, kind="array")},
    ),
    *_routes("bindings/{vhost}/e/{source}/q/{queue}", "a queue"),
    *_routes("bindings/{vhost}/e/{source}/e/{exchange}", "an exchange"),
    Route(
        "queues/{vhost}/{queue}/bindings",
        "bindings",
        {"GET": Operation(list_queue_bindings, "The bindings to a queue.", scope=_VHOST, kind="array")},
    ),
    Route(
        "exchanges/{vhost}/{exchange}/bindings/source",
        "bindings",
        {
            "GET": Operation(
                list_source_bindings, "The bindings from an exchange.", scope=_VHOST, kind="array"
            )
        },
    ),
    Route(
        "exchanges/{vhost}/{exchange}/bindings/destination",
        "bindings",
        {
            "GET": Operation(
                list_destination_bindings, "The bindings to an exchange.", scope=_VHOST, kind="array"
            )
        },
    ),
)
