"""The event exchange: what happens to objects of the broker, as messages of `amq.rabbitmq.event`.

Theory. RabbitMQ's plugin rabbitmq_event_exchange. Objects tell of events as they happen (`NodeContext.tell`), often in
the middle of a change: so a message is made at once, because the object may be gone later, but only if the routing key
of the event leads to a queue; it is published when the queues of the turn have run. What waits is bounded; what does
not fit is dropped, counted and logged. A queue that takes events is bounded by its own limits, like any other.
"""

import ipaddress
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.fastpath import content_frames, join_address
from leveret.broker.amqp.properties import PERSISTENT_MODE, build
from leveret.broker.amqp.tables import Field, Table, decode_whole_table, encode_table, entry_texts
from leveret.broker.process.audit_log import masked
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import INTERNAL, NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import distribute
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.storage.message import Message

log = logging.getLogger("leveret")

EXCHANGE = "amq.rabbitmq.event"
MOST_WAITING = 10_000  # events that may wait to be published; only a step that changes many objects has more
MOST_OCTETS = 16 << 20  # sum of their octets
_VERSION: Final = "{0,9,1}"  # of the protocol
LARGEST: Final = 16 << 10  # octets of one header, a frame that cannot be split: clients refuse larger ones
LEFT_OUT: Final = "(left out)"  # stands for what is larger, or has no form in AMQP


class Event(NamedTuple):
    """An event of an object; `actor` is the name of the acting user, `subject` what else describes the object."""

    vhost: str
    name: str
    actor: str
    subject: tuple[Any, ...]
    node: str


Values = dict[str, Any]  # headers of an event, as values of JSON
HeadersOf = Callable[[Event], Values]


class EventExchange:
    """The event exchange of a broker."""

    durable = stores_input = False

    def __init__(self, turn: Turn, context: NodeContext, node_name: str) -> None:
        self._turn = turn
        self._context = context
        self._node_name = node_name
        self._vhost: VHost | None = None
        self._waiting: deque[tuple[tuple[Queue, ...], Message]] = deque()
        self._octets = 0
        # lost: number of events that were dropped because too many waited
        # failed: number of events that were dropped because of an internal error
        self.lost = self.failed = self._reported = 0
        self.touched = False

    def __repr__(self) -> str:
        return "<event exchange>"

    @property
    def vhost(self) -> str | None:
        """Name of the vhost; None before the exchange is opened."""
        return None if self._vhost is None else self._vhost.name

    def open(self, vhost: VHost) -> None:
        """Declare the exchange if it is not there yet, and publish events from now on."""
        if vhost.router.get(EXCHANGE) is None:
            vhost.declare_exchange(
                EXCHANGE, "topic", durable=True, auto_delete=False, internal=True, arguments={}
            )
        self._vhost = vhost

    def add(self, kind: str, vhost: str, name: str, actor: str, subject: tuple[Any, ...]) -> None:
        """Take an event, to be published after this turn; what has changed the object sees no internal error."""
        known = EVENTS.get(kind)
        if self._vhost is None or known is None:
            return
        exchange = self._vhost.router.get(EXCHANGE)
        if exchange is None or not exchange.in_use:
            return
        try:
            self._take(exchange, *known, Event(vhost, name, actor, subject, self._node_name))
        except Exception:  # the change itself is done
            log.exception("internal error: the event '%s' of '%s' is lost", known[0], name)
            self.failed += 1

    def _take(self, exchange: Exchange, key: str, headers_of: HeadersOf, event: Event) -> None:
        now = self._context.clock()
        headers: Table = {}

        def all_headers() -> Table:
            if not headers:
                headers["timestamp_in_ms"] = "long", now
                headers.update(described(event, headers_of))
            return headers

        router = self._vhost.router  # type: ignore[union-attr] # or nothing is taken
        queues: Any = router.route_anyway(exchange, (key,), all_headers)
        if not queues:
            return
        if len(self._waiting) >= MOST_WAITING or self._octets >= MOST_OCTETS:
            self.lost += 1
            self._touch()
            return
        header = build(0, headers=all_headers(), delivery_mode=PERSISTENT_MODE, timestamp=now // 1000)
        message = Message(join_address(EXCHANGE, key), content_frames(1, 0, header, b""), 1)
        self._waiting.append((queues, message))
        self._octets += len(message.content)
        self._touch()

    def _touch(self) -> None:
        if not self.touched:
            self.touched = True
            self._turn.queues.append(self)

    # -- the turn -----------------------------------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        """True if something waits to be published."""
        return bool(self._waiting)

    def run(self) -> bool:
        """Publish what waits while the step has time; return true if some is left."""
        if self.lost != self._reported:
            log.warning(
                "event exchange: dropped %d events, because %d events or %d MiB of them waited to be published",
                self.lost - self._reported,
                MOST_WAITING,
                MOST_OCTETS >> 20,
            )
            self._reported = self.lost
        waiting, is_over = self._waiting, self._turn.slices.is_over
        while waiting:
            queues, message = waiting.popleft()
            self._octets -= len(message.content)
            distribute(self._turn, queues, message, persistent=True)
            if is_over():
                break
        return bool(waiting)

    def give_up(self) -> None:
        """Drop what waits after an internal error."""
        self._waiting.clear()
        self._octets = 0


def field(value: Any) -> Field:
    """Return a value of JSON as RabbitMQ writes it: numbers in 64 bits, an empty object as an empty array."""
    match value:
        case bool():
            return "bool", value
        case int():
            return "long", value
        case float():
            return "double", value
        case Mapping():
            return (
                ("table", {str(key): field(each) for key, each in value.items()}) if value else ("array", [])
            )
        case list() | tuple():
            return "array", [field(each) for each in value]
    return "longstr", str(value)


def bounded(value: Field) -> Field:
    """Return a header that any client can take: what is too large, or cannot be decoded again, is left out."""
    kind, content = value
    if kind == "bool" or (kind == "longstr" and len(content) * 3 <= LARGEST) or content == []:
        return value
    try:
        encoded = encode_table({"": value})
        if len(encoded) <= LARGEST:
            decode_whole_table(encoded)
            return value
    except (ValueError, MalformedTable, RecursionError):
        pass
    return ("array", [("longstr", LEFT_OUT)]) if kind == "array" else ("longstr", LEFT_OUT)


def described(event: Event, headers_of: HeadersOf) -> Table:
    """Return the headers of an event, each of bounded size."""
    try:
        return {name: bounded(field(value)) for name, value in headers_of(event).items()}
    except RecursionError:  # JSON of many levels
        made = headers(event, name=event.name, vhost=event.vhost, value=LEFT_OUT)
        return {name: bounded(field(value)) for name, value in made.items()}


def headers(event: Event, **values: Any) -> Values:
    """Return headers with these values, and the acting user."""
    return {**values, "user_who_performed_action": event.actor}


def address_term(host: str) -> str:
    """Return an address as an Erlang term, such as `{127,0,0,1}`."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    parts: Iterable[int] = address.packed
    if address.version == 6:  # noqa: PLR2004 - the version of IP
        parts = struct.unpack(">8H", address.packed)
    return f"{{{','.join(map(str, parts))}}}"


def terms(arguments: Table) -> list[str]:
    """Return arguments as an array of Erlang terms."""
    return list(entry_texts(arguments))


def _named(event: Event) -> Values:
    return headers(event, name=event.name)


def _in_vhost(event: Event) -> Values:
    return headers(event, name=event.name, vhost=event.vhost)


def _read(thing: Any, *names: str) -> Values:
    return {name: getattr(thing, name) for name in names}


def _queue_created(event: Event) -> Values:
    (queue,) = event.subject
    owner = queue.exclusive_owner
    return {
        **_in_vhost(event),
        **_read(queue, "durable", "auto_delete"),
        "arguments": terms(queue.arguments),
        "owner_pid": "" if owner is None else owner.name,
        "exclusive": owner is not None,
    }


def _exchange_created(event: Event) -> Values:
    (exchange,) = event.subject
    arguments = terms(exchange.arguments or {})
    known = _read(exchange, "type", "durable", "auto_delete", "internal")
    return {**_in_vhost(event), **known, "arguments": arguments, "policy": ""}


def _binding(event: Event) -> Values:
    destination, key, arguments = event.subject
    return {
        **headers(event, vhost=event.vhost, source_name=event.name, source_kind="exchange", routing_key=key),
        "destination_name": destination.name,
        "destination_kind": "queue" if isinstance(destination, Queue) else "exchange",
        "arguments": terms(arguments),
    }


def _peer(connection: Any) -> Values:
    return {
        "peer_host": address_term(connection.peer[0]),
        "peer_port": connection.peer[1],
        "host": address_term(connection.local[0]),
        "ssl": connection.tls is not None,
    }


def _tls(connection: Any) -> Values:
    tls = connection.tls
    certificate = None if tls is None else tls.certificate
    parts = ("ssl_", tls, ("protocol", "key_exchange", "cipher", "hash")), (
        "peer_cert_", certificate, ("subject", "issuer", "validity")
    )  # fmt: skip
    return {f"{what}{name}": getattr(part, name, "") or "" for what, part, names in parts for name in names}


def _client_properties(connection: Any) -> tuple[Values, Values]:
    """Return a header with the properties of the client, and one with the name it has given itself."""
    if not connection.client_properties:
        return {}, {}
    try:
        properties = decode_whole_table(connection.client_properties)
    except MalformedTable:
        return {}, {}
    kind, given = properties.get("connection_name", ("void", None))
    name = {"user_provided_name": given} if kind == "longstr" else {}
    return {"client_properties": terms(properties)}, name


def _connection_created(event: Event) -> Values:
    (connection,) = event.subject
    properties, given = _client_properties(connection)
    return {
        "type": "network",
        "pid": connection.name,
        "name": connection.name,
        "port": connection.local[1],
        **_peer(connection),
        **_tls(connection),
        "auth_mechanism": connection.auth_mechanism,
        "protocol": _VERSION,
        "user": connection.user.name,
        "vhost": event.vhost,
        "timeout": connection.heartbeat,
        **_read(connection, "frame_max", "channel_max"),
        **properties,
        "connected_at": connection.connected_at,
        "node": event.node,
        "user_who_performed_action": connection.user.name,
        **given,
    }


def _connection_closed(event: Event) -> Values:
    (connection,) = event.subject
    properties, given = _client_properties(connection)
    return {"name": connection.name, "pid": connection.name, "node": event.node, **properties, **given}


def _channel_closed(event: Event) -> Values:
    connection, number = event.subject
    return {"pid": f"{connection.name} ({number})", "user_who_performed_action": connection.user.name}


def _channel_created(event: Event) -> Values:
    connection, number = event.subject
    closed = _channel_closed(event)
    return {
        "pid": closed["pid"],
        "name": closed["pid"],
        "connection": connection.name,
        "number": number,
        "user": connection.user.name,
        "vhost": event.vhost,
        **closed,
    }


def _consumer_deleted(event: Event) -> Values:
    consumer, channel = event.subject
    return {
        **headers(event, consumer_tag=event.name, vhost=event.vhost, queue=consumer.queue.name),
        "channel": f"{channel.host.name} ({channel.number})",
    }


def _consumer_created(event: Event) -> Values:
    consumer, _channel = event.subject
    return {
        **_consumer_deleted(event),
        "exclusive": consumer.exclusive,
        "ack_required": not consumer.no_ack,
        "prefetch_count": consumer.prefetch_count,
        "arguments": terms(consumer.arguments),
    }


def _authenticated(event: Event) -> Values:
    connection, mechanism, *errors = event.subject
    found = {
        "connection_type": "network",
        "name": event.name,
        "connection_name": connection.name,
        **_peer(connection),
        **(_tls(connection) if connection.tls is not None else {}),
        "protocol": _VERSION,
        "auth_mechanism": mechanism,
    }
    for error in errors:  # a text of Erlang's: the list of its characters
        found["error"] = list(map(ord, error))
    return found


def _policy_set(event: Event) -> Values:
    (policy,) = event.subject
    return {**_in_vhost(event), **policy.term()}


def _parameter(event: Event) -> Values:
    component, *values = event.subject
    of_vhost = {"vhost": event.vhost} if event.vhost else {}
    naming = event.name if component == "global" else ""  # other names are those of objects
    shown = {"value": masked(naming, values[0])} if values else {}
    return headers(event, component=component, name=event.name, **of_vhost, **shown)


def _limits(event: Event) -> Values:
    limits = {key: each for limits in event.subject for key, each in limits.items()}
    return headers(event, name="limits", **limits)


def _user_limits(event: Event) -> Values:
    return {**_limits(event), "username": event.name}


def _tags_set(event: Event) -> Values:
    (tags,) = event.subject
    return headers(event, name=event.name, tags=tags)


def _vhost(event: Event) -> Values:
    (vhost,) = event.subject
    return headers(
        event,
        name=event.name,
        description=vhost.metadata.description,
        tags=vhost.metadata.tags or "",
        default_queue_type=vhost.metadata.default_queue_type or "undefined",
        tracing=vhost.taps.firehose is not None,
        cluster_state={event.node: "running"},
    )


def _vhost_down(event: Event) -> Values:
    """Return the headers of a vhost that has stopped, which RabbitMQ does by itself, for any deletion."""
    return headers(event._replace(actor=INTERNAL), name=event.name, node=event.node)


def _shovel_removed(event: Event) -> Values:
    return {"name": event.name, "vhost": event.vhost}


def _shovel_status(event: Event) -> Values:
    state, details = event.subject
    return {**_shovel_removed(event), "status": state, **details}


def _permission(event: Event) -> Values:
    rights = dict(zip(("configure", "write", "read"), event.subject, strict=False))
    return headers(event, user=event.name, vhost=event.vhost, **rights)


def _topic_permission(event: Event) -> Values:
    named = zip(("exchange", "write", "read"), event.subject, strict=False)
    rights = {name: each for name, each in named if each is not None}
    return headers(event, user=event.name, vhost=event.vhost, **rights)


def _alarm(event: Event) -> Values:
    return {"source": event.name, "node": event.node}


EVENTS: Final[Mapping[str, tuple[str, HeadersOf]]] = {
    "queue_created": ("queue.created", _queue_created),
    "queue_deleted": ("queue.deleted", _in_vhost),
    "exchange_created": ("exchange.created", _exchange_created),
    "exchange_deleted": ("exchange.deleted", _in_vhost),
    "binding_created": ("binding.created", _binding),
    "binding_deleted": ("binding.deleted", _binding),
    "connection_opened": ("connection.created", _connection_created),
    "connection_closed": ("connection.closed", _connection_closed),
    "channel_created": ("channel.created", _channel_created),
    "channel_closed": ("channel.closed", _channel_closed),
    "consumer_created": ("consumer.created", _consumer_created),
    "consumer_deleted": ("consumer.deleted", _consumer_deleted),
    "auth_succeeded": ("user.authentication.success", _authenticated),
    "auth_failed": ("user.authentication.failure", _authenticated),
    "policy_set": ("policy.set", _policy_set),
    "policy_cleared": ("policy.cleared", _in_vhost),
    "operator_policy_cleared": ("operator.policy.cleared", _in_vhost),
    "parameter_set": ("parameter.set", _parameter),
    "parameter_cleared": ("parameter.cleared", _parameter),
    "vhost_created": ("vhost.created", _vhost),
    "vhost_updated": ("vhost.updated", _vhost),
    "vhost_down": ("vhost.down", _vhost_down),
    "vhost_deleted": ("vhost.deleted", _named),
    "vhost_limits_set": ("vhost.limits.set", _limits),
    "vhost_limits_cleared": ("vhost.limits.cleared", _limits),
    "user_created": ("user.created", _named),
    "user_deleted": ("user.deleted", _named),
    "user_password_changed": ("user.password.changed", _named),
    "user_password_cleared": ("user.password.cleared", _named),
    "user_tags_set": ("user.tags.set", _tags_set),
    "user_limits_set": ("user.limits.set", _user_limits),
    "user_limits_cleared": ("user.limits.cleared", _user_limits),
    "permission_created": ("permission.created", _permission),
    "permission_deleted": ("permission.deleted", _permission),
    "shovel_status": ("shovel.worker.status", _shovel_status),
    "shovel_removed": ("shovel.worker.removed", _shovel_removed),
    "alarm_raised": ("alarm.set", _alarm),
    "alarm_cleared": ("alarm.cleared", _alarm),
    "topic_permission_created": ("topic.permission.created", _topic_permission),
    "topic_permission_deleted": ("topic.permission.deleted", _topic_permission),
}
"""Routing key and headers of each kind of event; other kinds are not published."""
