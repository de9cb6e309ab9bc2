"""A shovel's connection to the broker that it runs in (driver).

Theory. The shovel is a client like any other: it speaks AMQP, over a pair of connected sockets that no port leads to,
so that its rights, limits, flow control, statistics and fairness towards other clients are those of a client. Only the
login is missing. Without a user in its URI it is the user who has set it, and ends when that one's access does, like
any connection; set by an administrator it may do everything (RabbitMQ: always, as the user `none`).
"""

import asyncio
import socket

from leveret.broker.amqp.tables import encode_table, typed
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Permissions, TopicPermissions
from leveret.broker.auth.users import LoginRefusedError, User, Users
from leveret.broker.client.errors import RefusedError
from leveret.broker.client.uri import Endpoint
from leveret.broker.connection.connection import Connection
from leveret.broker.network.gate import Gate
from leveret.broker.vhost.vhost import VHost

OPERATOR = User("none", "", ("impersonator",))
"""The user of shovels whose URI has none; it may publish messages of any user, as they were published."""
CAPABILITIES = frozenset(("basic.nack", "connection.blocked", "consumer_cancel_notify", "publisher_confirms"))
MECHANISM = "LOCAL"
LOOPBACK = "127.0.0.1"
BUFFER = 32 * 1024
"""Bytes that the socket to the shovel may hold, and that are delivered in one step of the event loop: what is there is
read in one round of the loop, and other clients would wait for more."""
PUBLISHES = 256 * 1024
"""Bytes that the socket from the shovel may hold: all of one read, which is then published, confirmed and acked at once
instead of in two or three rounds of the loop."""


def local_user(users: Users, endpoint: Endpoint, setter: str) -> User | None:
    """Return the user of a URI without a host; None for one who may do everything.

    A password in the URI is checked; without one the rights of `setter` count, '' for an administrator.

    Raises RefusedError: there is no such user, the password is wrong, or it is missing.
    """
    if endpoint.user is not None and endpoint.password is not None:
        try:
            return users.authenticate(endpoint.user, Password(endpoint.password), LOOPBACK)
        except LoginRefusedError as error:
            raise RefusedError(str(error)) from None
    name = setter if endpoint.user is None else endpoint.user
    if setter and name != setter:
        raise RefusedError(f"user '{setter}', who has set the shovel, needs the password of user '{name}'")
    found = users.get(name) if name else None
    if name and found is None:
        raise RefusedError(f"user '{name}' does not exist")
    return found


async def connected(
    gate: Gate, user: User | None, vhost: VHost, *, name: str, title: str, frame_max: int
) -> tuple[socket.socket, Connection]:
    """Open a connection to the broker itself; returns the shovel's end of it, and the broker's.

    The user None may do everything; `title` is the name that RabbitMQ gives the connection, not unique.

    Raises AMQPError: a limit or a right is against it.
    """
    ours, theirs = socket.socketpair()
    driver = gate.make_driver()
    for each, size in ((ours, BUFFER), (theirs, PUBLISHES)):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    connecting = asyncio.ensure_future(
        asyncio.get_running_loop().connect_accepted_socket(lambda: driver, ours)
    )
    try:
        # which takes a moment, and would leave a driver without its socket if it were cancelled
        await asyncio.shield(connecting)
    except BaseException:
        theirs.close()  # and so the driver's end sees that its peer is gone
        raise
    try:
        _begin(driver.connection, user, vhost, name=name, title=title, frame_max=frame_max)
    except BaseException:
        driver.abort()
        theirs.close()
        raise
    return theirs, driver.connection


def _begin(
    connection: Connection, user: User | None, vhost: VHost, *, name: str, title: str, frame_max: int
) -> None:
    if user is None:
        connection.is_trusted = True
        connection.permissions = Permissions(".*", ".*", ".*")
        connection.topic_permissions = TopicPermissions({})
    else:
        connection.node.clients.admit(user, vhost.name)
    connection.is_own = True
    connection.name = name
    connection.capabilities = CAPABILITIES
    properties = {"product": "Leveret shovel", "connection_name": title}
    connection.client_properties = encode_table(typed(properties))
    connection.auth_mechanism = MECHANISM
    connection.frame_max = connection.frame_limit = frame_max
    connection.outbox.limit = BUFFER
    connection.channel_max = connection.node.channel_max
    connection.opened(OPERATOR if user is None else user, vhost)
