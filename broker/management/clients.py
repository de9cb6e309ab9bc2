"""Connections, channels and consumers: `/api/connections`, `/api/channels`, `/api/consumers`."""

from typing import Any

from leveret.broker.administration.access import is_own
from leveret.broker.connection.connection import Connection
from leveret.broker.http.call import DIGITS, Answer, Call, Item, Listing
from leveret.broker.http.errors import bad_request, not_authorised, not_found
from leveret.broker.http.listing import RANGES
from leveret.broker.http.route import Routes, Scope
from leveret.broker.management.client_fields import (
    channel_fields,
    channel_name,
    connection_fields,
    consumer_fields,
    shown,
)

ROUTES = Routes("connections")
CLOSED = "Closed via management plugin"  # RabbitMQ's default reason
_DENIED = "User not authorised to access object"


def _found(call: Call, *, change: bool = False) -> Connection:
    """Return the connection of the path; raises ApiError if there is none, or if it is another user's."""
    for connection in call.broker.clients.connections:
        if connection.name == call.names["connection"]:
            if not is_own(call.actor, connection, change=change):
                raise not_authorised(_DENIED)
            found: Connection = connection
            return found
    raise not_found()


# -- connections ------------------------------------------------------------------------------------------------------


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
