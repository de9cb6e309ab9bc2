"""Connections, channels and consumers: `/api/connections`, `/api/channels`, `/api/consumers`."""

from collections.abc import Iterator
from typing import Any

from leveret.broker.administration.access import Right, visible_vhosts
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.http.call import DIGITS, Answer, Call, Done, Item, Listing
from leveret.broker.http.errors import not_authorised, not_found
from leveret.broker.http.route import Operation, Route, Scope
from leveret.broker.management.client_errors import found_vhost
from leveret.broker.management.client_fields import (
    channel_fields,
    channel_name,
    connection_fields,
    consumer_fields,
    shown,
)
from leveret.broker.management.ranges import QUERY
from leveret.broker.queue.consumer import Consumer

CLOSED = "Closed via management plugin"
"""RabbitMQ's default reason."""
_DENIED = "User not authorised to access object"


def _sees_all(call: Call, *, change: bool = False) -> bool:
    tags = call.actor.tags if call.actor is not None else {Right.ADMINISTRATOR}
    return Right.ADMINISTRATOR in tags or (Right.MONITORING in tags and not change)


def _is_own(call: Call, connection: Connection, *, change: bool = False) -> bool:
    actor = call.actor
    return _sees_all(call, change=change) or (actor is not None and connection.user.name == actor.name)


def _connections(call: Call, vhost: str | None = None, user: str | None = None) -> Iterator[Connection]:
    """Yield the connections that the user may see."""
    for connection in tuple(call.broker.clients.connections):
        is_wanted = vhost in {None, connection.vhost.name} and user in {None, connection.user.name}
        if is_wanted and _is_own(call, connection):
            yield connection


def _channels(call: Call, vhost: str | None = None) -> Iterator[Channel]:
    for connection in _connections(call, vhost):
        yield from tuple(connection.channels.values())


def _found(call: Call, *, change: bool = False) -> Connection:
    """Return the connection of the path; raises ApiError if there is none, or if it is somebody else's."""
    for connection in call.broker.clients.connections:
        if connection.name == call.names["connection"]:
            if not _is_own(call, connection, change=change):
                raise not_authorised(_DENIED)
            found: Connection = connection
            return found
    raise not_found()


# -- connections ------------------------------------------------------------------------------------------------------


def list_connections(call: Call) -> Answer:
    """List the connections that the user may see."""
    vhost = call.headers.get("x-vhost") if "vhost" not in call.names else found_vhost(call)
    return Listing(_connections(call, vhost or None), connection_fields(call), ("name",))


def list_connections_of_user(call: Call) -> Answer:
    """List the connections of a user."""
    rows = _connections(call, user=call.names["user"])
    return Listing(rows, connection_fields(call), ("name",))


def close_connections_of_user(call: Call) -> Answer:
    """Close the connections of a user."""
    reason = call.headers.get("x-reason", CLOSED)
    for connection in tuple(call.broker.clients.connections):
        if connection.user.name == call.names["user"] and _is_own(call, connection, change=True):
            connection.force_close(reason)
    return Done()


def get_connection(call: Call) -> Answer:
    """Return one connection."""
    item = shown(connection_fields(call), _found(call))
    # RabbitMQ has null in lists here
    return Item({name: "" if value is None else value for name, value in item.items()})


def close_connection(call: Call) -> Answer:
    """Close a connection; the reason is in the header `X-Reason`."""
    _found(call, change=True).force_close(call.headers.get("x-reason", CLOSED))
    return Done()


def list_channels_of_connection(call: Call) -> Answer:
    """List the channels of a connection."""
    return Listing(tuple(_found(call).channels.values()), channel_fields(call), ("name",))


# -- channels and consumers -------------------------------------------------------------------------------------------


def list_channels(call: Call) -> Answer:
    """List the channels that the user may see."""
    vhost = call.headers.get("x-vhost") if "vhost" not in call.names else found_vhost(call)
    return Listing(_channels(call, vhost or None), channel_fields(call), ("name",))


def get_channel(call: Call) -> Answer:
    """Return one channel with its consumers."""
    wanted = call.names["channel"]
    name, _, number = wanted.removesuffix(")").rpartition(" (")
    is_number = number.isdecimal() and len(number) <= DIGITS
    for connection in call.broker.clients.connections:
        channel = connection.channels.get(int(number)) if is_number and connection.name == name else None
        if channel is None or channel_name(channel) != wanted:
            continue
        if not _is_own(call, connection):
            raise not_authorised(_DENIED)
        consumers = consumer_fields(call)
        details: dict[str, Any] = {
            "consumer_details": [shown(consumers, each) for each in tuple(channel.consumers.values())],
            "publishes": [],
            "deliveries": [],
        }
        return Item(shown(channel_fields(call), channel) | details)
    raise not_found()


def list_consumers(call: Call) -> Answer:
    """List the consumers of the queues that the user may see."""
    if "vhost" in call.names:
        found_vhost(call)
    return Listing(_consumers(call), consumer_fields(call), ())


def _consumers(call: Call) -> Iterator[Consumer]:
    name = call.vhost
    for vhost in visible_vhosts(call.broker, call.actor):
        if name in {None, vhost.name}:
            for queue in tuple(vhost.queues.values()):
                yield from tuple(queue.consumers)


ROUTES = (
    Route(
        "connections",
        "connections",
        {"GET": Operation(list_connections, "Connections.", query=QUERY, kind="array")},
    ),
    Route(
        "vhosts/{vhost}/connections",
        "connections",
        {
            "GET": Operation(
                list_connections,
                "The connections to a virtual host.",
                scope=Scope.VISIBLE,
                query=QUERY,
                kind="array",
            )
        },
    ),
    Route(
        "connections/username/{user}",
        "connections",
        {
            "GET": Operation(
                list_connections_of_user, "The connections of a user.", query=QUERY, kind="array"
            ),
            "DELETE": Operation(
                close_connections_of_user, "Close the connections of a user.", statuses=(204,)
            ),
        },
    ),
    Route(
        "connections/{connection}",
        "connections",
        {
            "GET": Operation(get_connection, "One connection.", query=QUERY),
            "DELETE": Operation(
                close_connection,
                "Close a connection; the header `X-Reason` has the reason.",
                statuses=(204,),
            ),
        },
    ),
    Route(
        "connections/{connection}/channels",
        "connections",
        {
            "GET": Operation(
                list_channels_of_connection, "The channels of a connection.", query=QUERY, kind="array"
            )
        },
    ),
    Route("channels", "channels", {"GET": Operation(list_channels, "Channels.", query=QUERY, kind="array")}),
    Route(
        "vhosts/{vhost}/channels",
        "channels",
        {
            "GET": Operation(
                list_channels,
                "The channels in a virtual host.",
                scope=Scope.VISIBLE,
                query=QUERY,
                kind="array",
            )
        },
    ),
    Route("channels/{channel}", "channels", {"GET": Operation(get_channel, "One channel.", query=QUERY)}),
    Route("consumers", "consumers", {"GET": Operation(list_consumers, "All consumers.", kind="array")}),
    Route(
        "consumers/{vhost}",
        "consumers",
        {
            "GET": Operation(
                list_consumers, "The consumers in a virtual host, those that the user may see.", kind="array"
            )
        },
    ),
)
