"""A shovel's connection to the broker that it runs in (driver).

Theory. The shovel is a client like any other: it speaks AMQP, over a pair of connected sockets that no port leads to,
so that its rights, limits, flow control, statistics and fairness towards other clients are those of a client. Only the
login is missing. Without a user in its URI it is the user who has set it, and ends when that one's access does, like
any connection; set by an administrator it may do everything (RabbitMQ: always, as the user `none`).
"""

import asyncio
import socket
from dataclasses import dataclass
from typing import Protocol

from leveret.broker.amqp.tables import encode_table, typed
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError, Permissions, TopicPermissions, User, Users
from leveret.broker.client.amqp_uri import Endpoint
from leveret.broker.client.errors import RefusedError
from leveret.broker.connection.connection import Connection
from leveret.broker.network.socket_driver import DriverHost, SocketDriver
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


class LocalHost(DriverHost, Protocol):
    """The part of the server that local connections use."""

    @property
    def driver_class(self) -> "type[SocketDriver]":
        """The class of drivers of clients' connections."""


@dataclass(frozen=True, slots=True)
class Login:
    """The user of a connection, and its vhost.

    Attributes:
        user: the user; None for one who may do everything.
        vhost: the virtual host.
        name: name of the connection.
        title: the name that RabbitMQ gives it, not unique.
        frame_max: maximum size of a frame in bytes.

    """

    user: User | None
    vhost: VHost
    name: str
    title: str
    frame_max: int


def local_user(users: Users, endpoint: Endpoint, setter: str) -> User | None:
    """Return the user of a URI without a host; None for one who may do everything.

    Args:
        users: the users.
        endpoint: the URI. A password in it is checked.
        setter: name of the user whose rights count without one; '' for an administrator.

    Raises:
        RefusedError: there is no such user, the password is wrong, or it is missing.

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


async def connected(server: LocalHost, login: Login) -> tuple[socket.socket, Connection]:
    """Open a connection to the broker itself; returns the shovel's end of it, and the broker's.

    Raises:
        AMQPError: a limit or a right is against it.

    """
    ours, theirs = socket.socketpair()
    driver = server.driver_class(server)
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
        _begin(driver.connection, login)
    except BaseException:
        driver.abort()
        theirs.close()
        raise
    return theirs, driver.connection


def _begin(connection: Connection, login: Login) -> None:
    """Open a connection without a handshake; raises AMQPError."""
    user = OPERATOR if login.user is None else login.user
    if login.user is None:
        connection.is_trusted = True
        connection.permissions = Permissions(".*", ".*", ".*")
        connection.topic_permissions = TopicPermissions({})
    else:
        connection.node.clients.admit(user, login.vhost.name)
    connection.is_own = True
    connection.name = login.name
    connection.capabilities = CAPABILITIES
    properties = {"product": "Leveret shovel", "connection_name": login.title}
    connection.client_properties = encode_table(typed(properties))
    connection.auth_mechanism = MECHANISM
    connection.frame_max = connection.frame_limit = login.frame_max
    connection.outbox.limit = BUFFER
    connection.channel_max = connection.node.channel_max
    connection.opened(user, login.vhost)
