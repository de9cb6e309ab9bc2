"""Connections, channels and consumers: `/api/connections`, `/api/channels`, `/api/consumers`, and their keys.

There are rows for callers in the same process, too. Those act as the operator on the host; their broker is the
administered one (`administration.access.AdministeredBroker`), whatever kinds of users and clocks it has.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from leveret.broker.administration.access import is_own
from leveret.broker.administration.definitions_document import json_text, plain_arguments
from leveret.broker.administration.messages import found_queue
from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import decode_whole_table
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.state import connection_state
from leveret.broker.http.call import DIGITS, Answer, Call, Item, Listing
from leveret.broker.http.errors import bad_request, not_authorised, not_found
from leveret.broker.http.listing import ABSENT, RANGES, asked_ranges
from leveret.broker.http.route import Routes, Scope
from leveret.broker.management.queue_fields import ERLANG, idle_since, once_a_row, queue_fields
from leveret.broker.queue.consumer import Consumer
from leveret.broker.statistics import families
from leveret.broker.statistics.rows import channel_levels

ROUTES = Routes("connections")
CLOSED = "Closed via management plugin"  # RabbitMQ's default reason
_DENIED = "User not authorised to access object"
Fields = Mapping[str, Callable[[Any], Any]]
_CHANNEL_LEVELS = {  # keys of a channel that are levels of it (`statistics.rows`)
    "prefetch_count": "prefetch",
    "global_prefetch_count": "global_prefetch",
    "consumer_count": "consumers",
    "messages_unacknowledged": "unacked",
    "messages_unconfirmed": "unconfirmed",
    "messages_uncommitted": "uncommitted",
    "acks_uncommitted": "acks_uncommitted",
}


def connection_fields(call: Call) -> Fields:
    """Return the functions for the keys of a connection."""
    broker = call.broker
    statistics, node, alarm, now = broker.statistics, broker.node_name, broker.alarm, broker.now()
    span = asked_ranges(call.query, one="connection" in call.names).data

    def rate(name: str) -> Callable[[Connection], Any]:
        return lambda each: statistics.detail(statistics.series(each), families.CONNECTIONS, name, span)

    def tls(name: str) -> Callable[[Connection], Any]:
        return lambda each: None if each.tls is None else getattr(each.tls, name)

    def certificate(name: str) -> Callable[[Connection], Any]:
        return lambda each: (
            None if each.tls is None or each.tls.certificate is None else getattr(each.tls.certificate, name)
        )

    return {
        "name": lambda each: each.name,
        "node": lambda _each: node,
        "type": lambda _each: "network",
        "vhost": lambda each: json_text(each.vhost.name),
        "user": lambda each: json_text(each.user.name),
        "user_who_performed_action": lambda each: json_text(each.user.name),
        "user_provided_name": _given_name,
        "state": lambda each: connection_state(each, alarm, now),
        "blocked_by": lambda each: alarm if each.blocked else "",
        "protocol": lambda _each: "AMQP 0-9-1",
        "auth_mechanism": lambda each: each.auth_mechanism,
        "connected_at": lambda each: each.connected_at,
        "channels": lambda each: len(each.channels),
        "channel_max": lambda each: each.channel_max,
        "frame_max": lambda each: each.frame_max,
        "timeout": lambda each: each.heartbeat,
        "peer_host": lambda each: each.peer[0],
        "peer_port": lambda each: each.peer[1],
        "host": lambda each: each.local[0],
        "port": lambda each: each.local[1],
        "client_properties": client_properties,
        "recv_oct": lambda each: each.octets_in,
        "recv_oct_details": rate("recv_oct"),
        "recv_cnt": lambda each: each.reads,
        "send_oct": lambda each: each.octets_out,
        "send_oct_details": rate("send_oct"),
        "send_cnt": lambda each: each.sent,
        "send_pend": lambda each: len(each.outbox.frames),
        "ssl": lambda each: each.tls is not None,
        "ssl_protocol": tls("protocol"),
        "ssl_key_exchange": tls("key_exchange"),
        "ssl_cipher": tls("cipher"),
        "ssl_hash": tls("hash"),
        "peer_cert_subject": certificate("subject"),
        "peer_cert_issuer": certificate("issuer"),
        "peer_cert_validity": certificate("validity"),
        **ERLANG,
    }


def client_properties(connection: Connection) -> dict[str, Any]:
    """Return the properties that a client has sent."""
    try:
        return plain_arguments(decode_whole_table(connection.client_properties))
    except MalformedTable:
        return {}


def _given_name(connection: Connection) -> Any:
    if b"connection_name" not in connection.client_properties:
        return ABSENT
    name = client_properties(connection).get("connection_name")
    return name if isinstance(name, str) else ABSENT


def channel_fields(call: Call) -> Fields:
    """Return the functions for the keys of a channel."""
    broker = call.broker
    statistics, node, alarm, now = broker.statistics, broker.node_name, broker.alarm, broker.now()
    span = asked_ranges(call.query, one="channel" in call.names).messages

    levels = once_a_row(channel_levels)

    def level(name: str) -> Callable[[Channel], Any]:
        read = attrgetter(name)
        return lambda channel: read(levels(channel))

    def state(channel: Any) -> str:
        return "flow" if connection_state(channel.host, alarm, now) == "flow" else "running"

    return {
        "name": channel_name,
        "number": lambda each: each.number,
        "node": lambda _each: node,
        "vhost": lambda each: json_text(each.vhost.name),
        "user": lambda each: json_text(each.host.user.name),
        "user_who_performed_action": lambda each: json_text(each.host.user.name),
        "state": state,
        "connection_details": _connection_details,
        "confirm": lambda each: each.confirms is not None,
        "transactional": lambda each: each.tx is not None,
        **{key: level(name) for key, name in _CHANNEL_LEVELS.items()},
        "pending_raft_commands": lambda _each: 0,
        "idle_since": lambda each: idle_since(statistics, statistics.series(each)),
        "message_stats": lambda each: statistics.message_stats(families.CHANNELS, each, span),
        **ERLANG,
    }


def channel_name(channel: Channel) -> str:
    """Return the name of a channel."""
    return f"{channel.host.name} ({channel.number})"


def _connection_details(channel: Any) -> dict[str, Any]:
    connection = channel.host
    peer = {"name": connection.name, "peer_host": connection.peer[0], "peer_port": connection.peer[1]}
    return {**peer, **_named(connection)}


def _named(connection: Connection) -> dict[str, str]:
    name = _given_name(connection)
    return {} if name is ABSENT else {"user_provided_name": name}


def consumer_fields(call: Call) -> Fields:
    """Return the functions for the keys of a consumer."""
    node = call.broker.node_name

    def channel_details(consumer: Consumer) -> dict[str, Any]:
        channel: Any = consumer.channel
        connection = channel.host
        return {
            "name": channel_name(channel),
            "number": channel.number,
            "connection_name": connection.name,
            "peer_host": connection.peer[0],
            "peer_port": connection.peer[1],
            "user": json_text(connection.user.name),
            "node": node,
            **_named(connection),
        }

    return {
        "consumer_tag": lambda each: json_text(each.tag),
        "queue": lambda each: {"name": json_text(each.queue.name), "vhost": json_text(each.queue.vhost)},
        "channel_details": channel_details,
        "ack_required": lambda each: not each.no_ack,
        "exclusive": lambda each: each.exclusive,
        "prefetch_count": lambda each: each.prefetch_count,
        "arguments": lambda each: plain_arguments(each.arguments),
        "active": lambda each: each.queue.consumers.is_active(each),
        "activity_status": lambda each: each.queue.consumers.activity_status(each),
        "messages_unacknowledged": lambda each: each.unacked,
    }


def shown(fields: Fields, row: Any) -> dict[str, Any]:
    """Return the item of a row."""
    return {name: value for name, compute in fields.items() if (value := compute(row)) is not ABSENT}


def queue_row(broker: Any, vhost: str, name: str) -> dict[str, Any]:
    """Return the row of a queue. Raises NotFoundError if it or its vhost does not exist."""
    _, queue = found_queue(broker, None, vhost, name)
    return shown(queue_fields(Call(broker, None)), queue)


def consumer_rows(broker: Any, vhost: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of the consumers of a queue, with their counts, which RabbitMQ has not. Raises as `queue_row`."""
    _, queue = found_queue(broker, None, vhost, name)
    names = {"deliver": "delivered", "redeliver": "redelivered", "ack": "acked", "returned": "returned"}

    def counts(consumer: Consumer) -> dict[str, int]:
        return {name: getattr(consumer, counter) for name, counter in names.items()}

    fields = {**consumer_fields(Call(broker, None)), "message_stats": counts}
    return [shown(fields, consumer) for consumer in tuple(queue.consumers)]


def connection_rows(broker: Any, vhost: str) -> list[dict[str, Any]]:
    """Return the rows of the connections to a vhost."""
    fields = connection_fields(Call(broker, None))
    return [shown(fields, each) for each in broker.administration.listings.connections(None, vhost)]


# -- connections ------------------------------------------------------------------------------------------------------


def _found(call: Call, *, change: bool = False) -> Connection:
    """Return the connection of the path; raises ApiError if there is none, or if it is another user's."""
    for connection in call.broker.clients.connections:
        if connection.name == call.names["connection"]:
            if not is_own(call.actor, connection, change=change):
                raise not_authorised(_DENIED)
            found: Connection = connection
            return found
    raise not_found()


@ROUTES.list("connections", query=RANGES)
@ROUTES.list(
    "vhosts/{vhost}/connections", doc="The connections to a virtual host.", scope=Scope.VISIBLE, query=RANGES
)
def list_connections(call: Call) -> Answer:
    """Connections."""
    rows = call.administration.listings.connections(call.actor, call.asked_vhost)
    return Listing(rows, connection_fields(call), ("name",))


@ROUTES.list("connections/username/{user}", query=RANGES)
def list_connections_of_user(call: Call, user: str) -> Answer:
    """The connections of a user."""
    rows = call.administration.listings.connections(call.actor, user=user)
    return Listing(rows, connection_fields(call), ("name",))


@ROUTES.delete("connections/username/{user}")
def close_connections_of_user(call: Call, user: str) -> None:
    """Close the connections of a user."""
    reason = call.headers.get("x-reason", CLOSED)
    call.administration.listings.close_connections(call.actor, reason, user=user)


@ROUTES.get("connections/{connection}", query=RANGES)
def get_connection(call: Call) -> Answer:
    """One connection."""
    item = shown(connection_fields(call), _found(call))
    # RabbitMQ has null in lists here
    return Item({name: "" if value is None else value for name, value in item.items()})


@ROUTES.delete("connections/{connection}")
def close_connection(call: Call) -> None:
    """Close a connection; the header `X-Reason` has the reason."""
    _found(call, change=True).force_close(call.headers.get("x-reason", CLOSED))


@ROUTES.list("connections/{connection}/channels", query=RANGES)
def list_channels_of_connection(call: Call) -> Answer:
    """The channels of a connection."""
    return Listing(tuple(_found(call).channels.values()), channel_fields(call), ("name",))


@ROUTES.list("connections/{connection}/sessions")
def list_sessions_of_connection(call: Call) -> Answer:
    """Refused: only connections of AMQP 1.0 have sessions."""
    _found(call)
    raise bad_request("connection does not use AMQP 1.0")


# -- channels and consumers -------------------------------------------------------------------------------------------


@ROUTES.list("channels", query=RANGES, group="channels")
@ROUTES.list(
    "vhosts/{vhost}/channels",
    doc="The channels in a virtual host.",
    scope=Scope.VISIBLE,
    query=RANGES,
    group="channels",
)
def list_channels(call: Call) -> Answer:
    """Channels."""
    rows = call.administration.listings.channels(call.actor, call.asked_vhost)
    return Listing(rows, channel_fields(call), ("name",))


@ROUTES.get("channels/{channel}", query=RANGES, group="channels")
def get_channel(call: Call, channel: str) -> Answer:
    """One channel."""
    name, _, number = channel.removesuffix(")").rpartition(" (")
    is_number = number.isdecimal() and len(number) <= DIGITS
    for connection in call.broker.clients.connections:
        found = connection.channels.get(int(number)) if is_number and connection.name == name else None
        if found is None or channel_name(found) != channel:
            continue
        if not is_own(call.actor, connection):
            raise not_authorised(_DENIED)
        consumers = consumer_fields(call)
        details: dict[str, Any] = {
            "consumer_details": [shown(consumers, each) for each in tuple(found.consumers.values())],
            "publishes": [],
            "deliveries": [],
        }
        return Item(shown(channel_fields(call), found) | details)
    raise not_found()


@ROUTES.list("consumers", group="consumers")
@ROUTES.list(
    "consumers/{vhost}",
    doc="The consumers in a virtual host, those that the user may see.",
    group="consumers",
)
def list_consumers(call: Call) -> Answer:
    """All consumers."""
    rows = call.administration.listings.consumers(call.actor, call.asked_vhost)
    return Listing(rows, consumer_fields(call), ())
