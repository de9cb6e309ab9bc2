"""The definition of a shovel, from its parameter, and the changes of messages on their way that it asks for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from leveret.broker.amqp.errors import WireError
from leveret.broker.amqp.fastpath import FRAME_OVERHEAD
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table, decode_value, encode_value, join_fields, typed
from leveret.broker.client.uri import Endpoint, endpoint_of
from leveret.broker.vhost.shovel_keys import NEVER, QUEUE_LENGTH, uris

PREFETCH = 1000
RECONNECT_SECONDS = 1
AS_LONG = -1  # as many messages as the queue has at the start
_AFTER: Mapping[Any, int | None] = {NEVER: None, QUEUE_LENGTH: AS_LONG}
ON_CONFIRM, ON_PUBLISH, NO_ACK = "on-confirm", "on-publish", "no-ack"


@dataclass(frozen=True, slots=True)
class Source:
    """The source of messages."""

    endpoints: tuple[Endpoint, ...]  # brokers, of which one is chosen
    queue: str  # name of the queue; '' for one of the shovel's own, bound to an exchange
    arguments: Table  # of the queue, should it have to be declared
    # exchange, routing_key: what the shovel's own queue is bound to
    exchange: str
    routing_key: str
    prefetch: int  # most messages under way
    consumer_arguments: Table  # of the consumer
    # number of messages after which the shovel deletes itself; None for none, or `AS_LONG`
    delete_after: int | None


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of messages."""

    endpoints: tuple[Endpoint, ...]  # brokers, of which one is chosen
    # queue, arguments: a queue that is declared if it does not exist; None for none
    queue: str | None
    arguments: Table
    # exchange, routing_key: of publishes; None for those of each message
    exchange: str | None
    routing_key: str | None
    properties: Mapping[str, Any]  # properties that are set in each message
    adds_headers: bool  # whether each message gets a header that says where it comes from
    adds_timestamp: bool  # whether it gets one that says when it was moved


@dataclass(frozen=True, slots=True)
class Definition:
    """A shovel."""

    # vhost, name: its name, and the vhost of its parameter
    vhost: str
    name: str
    source: Source
    destination: Destination
    ack_mode: str  # one of `ON_CONFIRM`, `ON_PUBLISH`, `NO_ACK`
    reconnect_seconds: float  # time until it connects again after a failure; 0 for never
    setter: str = ""  # name of the user who has set it; '' for an administrator

    @classmethod
    def of(cls, vhost: str, name: str, value: Mapping[str, Any], setter: str = "") -> Self:
        """Return the definition of a valid parameter (`broker.vhost.shovel_keys`)."""
        mode, delay = value.get("ack-mode", ON_CONFIRM), value.get("reconnect-delay", RECONNECT_SECONDS)
        return cls(vhost, name, _source(value), _destination(value), mode, delay, setter)

    @property
    def brokers(self) -> dict[str, str]:
        """The URIs of both ends, without logins and under RabbitMQ's names."""
        ends = {"src-uri": self.source.endpoints, "dest-uri": self.destination.endpoints}
        return {key: ", ".join(each.shown for each in endpoints) for key, endpoints in ends.items()}

    def ends(self) -> dict[str, str]:
        """Return both ends under RabbitMQ's names, as status and forward headers have them."""
        source, destination = self.source, self.destination
        found = (
            {"src-queue": source.queue}
            if source.queue
            else {"src-exchange": source.exchange, "src-exchange-key": source.routing_key}
        )
        if destination.queue is not None:
            return {**found, "dest-queue": destination.queue}
        ends = {"dest-exchange": destination.exchange, "dest-exchange-key": destination.routing_key}
        return {**found, **{key: name for key, name in ends.items() if name is not None}}


def _first(value: Mapping[str, Any], *keys: str, default: Any = None) -> Any:
    """Return the value of the first key that is there: the later ones are older names of it."""
    return next((value[key] for key in keys if key in value), default)


def _source(value: Mapping[str, Any]) -> Source:
    after = _first(value, "src-delete-after", "delete-after", default=NEVER)
    return Source(
        tuple(map(endpoint_of, uris(value, "src-uri"))),
        value.get("src-queue", ""),
        typed(value.get("src-queue-args") or {}),
        value.get("src-exchange", ""),
        value.get("src-exchange-key", ""),
        _first(value, "src-prefetch-count", "prefetch-count", default=PREFETCH),
        typed(value.get("src-consumer-args") or {}),
        _AFTER.get(after, after),
    )


def _destination(value: Mapping[str, Any]) -> Destination:
    queue = value.get("dest-queue")
    return Destination(
        tuple(map(endpoint_of, uris(value, "dest-uri"))),
        queue,
        typed(value.get("dest-queue-args") or {}),
        value.get("dest-exchange") if queue is None else "",
        value.get("dest-exchange-key") if queue is None else queue,
        dict(_first(value, "dest-publish-properties", "publish-properties", default={}) or {}),
        _first(value, "dest-add-forward-headers", "add-forward-headers", default=False),
        _first(value, "dest-add-timestamp-header", "add-timestamp-header", default=False),
    )


# -- changes of messages ----------------------------------------------------------------------------------------------

SHOVELLED = b"x-shovelled"
TIMESTAMP = b"x-shovelled-timestamp"
INVALID = b"x-invalid-headers"
_ARRAY = b"A"
_LENGTH_SIZE = 5  # bytes of the type and the length of an array

Rewrite = Callable[[bytes], bytes]  # given the payload of a content header, returns the changed one


def rewriting(
    definition: Definition, cluster: str, shown: tuple[str, str], seconds: Callable[[], float], frame_max: int
) -> Rewrite | None:
    """Return what changes the messages of a shovel; None if they stay as they are.

    A message whose header would need more than a frame goes on as it is, rather than end the connection each time.

    `cluster` is the name of this cluster, `shown` are the URIs of source and destination without passwords, `seconds`
    returns the time since the epoch, and `frame_max` is that of the destination.
    """
    to = definition.destination
    if not (to.properties or to.adds_headers or to.adds_timestamp):
        return None
    entry = _entry(definition, cluster, shown)

    def rewrite(payload: bytes) -> bytes:
        try:
            made = changed(Properties(payload))
        except (WireError, LookupError):
            return payload  # of no client: it goes on as it is, rather than stop all others
        return made if len(made) + FRAME_OVERHEAD <= frame_max else payload

    def changed(properties: Properties) -> bytes:
        changes: dict[str, Any] = dict(to.properties)
        if to.adds_headers or to.adds_timestamp:
            headers = properties.split_headers()
            if to.adds_headers:
                _prepend(headers, entry)
            if to.adds_timestamp:
                headers[TIMESTAMP] = encode_value(("long", int(seconds())))
            changes["headers"] = join_fields(headers.items())
        return properties.replace(**changes)

    return rewrite


def _entry(definition: Definition, cluster: str, shown: tuple[str, str]) -> bytes:
    """Return RabbitMQ's note about one move, encoded as a field, in its order."""
    texts: Mapping[str, str] = {
        "shovelled-by": cluster,
        "shovel-type": "dynamic",
        "shovel-name": definition.name,
        "shovel-vhost": definition.vhost,
        "src-uri": shown[0],
        "dest-uri": shown[1],
        **definition.ends(),
    }
    return encode_value(("table", {name: ("longstr", text) for name, text in texts.items()}))


def _prepend(headers: dict[bytes, bytes], entry: bytes) -> None:
    """Put the note before those of earlier moves (rabbit_basic:prepend_table_header)."""
    found = headers.get(SHOVELLED, _ARRAY)
    if found[:1] == _ARRAY:
        headers[SHOVELLED] = _array(entry + found[_LENGTH_SIZE:])
        return
    headers[SHOVELLED] = _array(entry)
    invalid = decode_value(headers.get(INVALID, b"V"))
    kept: Table = dict(invalid[1]) if invalid[0] == "table" else {}
    earlier = kept.get("x-shovelled", ("array", []))
    kept["x-shovelled"] = "array", [decode_value(found), *(earlier[1] if earlier[0] == "array" else [])]
    headers[INVALID] = encode_value(("table", kept))


def _array(items: bytes) -> bytes:
    return _ARRAY + len(items).to_bytes(4, "big") + items
