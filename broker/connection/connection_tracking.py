"""Connection tracking: limits and counts of connections and channels."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import decode_whole_table
from leveret.broker.auth.permissions import Decision
from leveret.broker.auth.users import User, Users, is_reached
from leveret.broker.counters.totals import added
from leveret.broker.errors import not_allowed
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.vhost import VHost

log = logging.getLogger("leveret.connection")

_BATCH = 256  # connections examined per step


class ConnectionTracking:
    """The open connections of a node, and counters of closed ones.

    `most_sockets` is the number of clients that the file descriptors allow: one user without a limit of its own leaves
    a tenth of them to others.
    """

    def __init__(
        self,
        turn: Turn,
        context: NodeContext,
        users: Users,
        vhosts: Mapping[str, VHost],
        *,
        node_name: str,
        connection_max: int | None = None,
        channel_max: int | None = None,
        most_sockets: int | None = None,
    ) -> None:
        self._turn = turn
        self._context = context
        self._users = users
        self._vhosts = vhosts
        self.node_name = node_name
        self.connection_max = connection_max
        self._channel_max = channel_max
        self._share = None if most_sockets is None else max(1, most_sockets - most_sockets // 10)
        self.connections: set[Any] = set()
        self.handed = 0  # connections that processes of virtual hosts have; limits count them as those here
        self.connections_of_users: Counter[str] = Counter()  # number of connections by user
        self.channels_of_users: Counter[str] = Counter()
        self.channel_count = 0
        self.connections_opened = self.connections_closed = 0
        self.channels_opened = self.channels_closed = 0
        users.on_revoked = self.revoke

    def with_unfinished(self, least: int) -> list[tuple[int, Any]]:
        """Return the connections whose incomplete publishes hold at least `least` bytes, the largest first."""
        held = [(connection.unfinished, connection) for connection in self.connections]
        return sorted((each for each in held if each[0] >= least), key=lambda each: -each[0])

    def admit(self, user: User, vhost: str, access: Decision | None = None) -> VHost:
        """Return the vhost for one more connection of the user; raises 530 if it is refused (RabbitMQ's order).

        `access` is what the backends have decided; None to look at the internal database.
        """
        limit = self.connection_max
        if limit is not None and len(self.connections) + self.handed >= limit:
            raise not_allowed(f"connection refused: node connection limit ({limit}) is reached")
        found = self._vhosts.get(vhost)
        if found is None:
            raise not_allowed(f"vhost {vhost} not found")
        limit = self._users.vhost_limits(vhost).max_connections
        refused = f"access to vhost '{vhost}' refused for user '{user.name}'"
        if is_reached(limit, found.connection_count):
            raise not_allowed(f"{refused}: connection limit ({limit}) is reached")
        limit = self._users.user_limits(user.name).max_connections
        if is_reached(limit, self.connections_of_users[user.name]):
            raise not_allowed(
                f"connection refused for user '{user.name}': user connection limit ({limit}) is reached"
            )
        if limit is None and is_reached(self._share, self.connections_of_users[user.name]):
            raise not_allowed(
                f"connection refused for user '{user.name}': it has {self._share} connections, and the rest of what "
                "the limit of file descriptors allows is for others; set max-connections of the user to allow more"
            )
        if access is None:
            access = Decision(self._users.may_access(user.name, vhost))
        if not access.is_allowed:
            raise not_allowed(refused + access.fault)
        return found

    def check_channel_limits(self, user: User) -> None:
        """Raise 530 if the user or the node has the maximum number of channels."""
        limit = self._users.user_limits(user.name).max_channels
        if is_reached(limit, self.channels_of_users[user.name]):
            raise not_allowed(
                f"number of channels opened for user '{user.name}' has reached "
                f"the maximum allowed user limit of {limit}"
            )
        limit = self._channel_max
        if limit is not None and self.channel_count >= limit:
            raise not_allowed(
                f"number of channels opened on node '{self.node_name}' has reached "
                f"the maximum allowed limit of {limit}"
            )

    def connection_opened(self, connection: Any) -> None:
        """Add an open connection to the list and counts."""
        self.connections.add(connection)
        connection.connected_at = self._context.clock()
        self.connections_opened += 1
        self.connections_of_users[connection.user.name] += 1
        connection.vhost.connection_count += 1
        self._report("connection_opened", connection)
        log.log(
            _level(connection),
            "connection %s: user '%s' authenticated and granted access to vhost '%s'%s",
            connection.name,
            connection.user.name,
            connection.vhost.name,
            "" if connection.tls is None else f" ({connection.tls})",
        )

    def count_handed(self, user: str, vhost: VHost, number: int) -> None:
        """Add to the counts for limits a connection that was handed to a process, or with -1 remove it."""
        self.handed += number
        self.connections_of_users[user] += number
        vhost.connection_count += number

    def connection_closed(self, connection: Any) -> None:
        """Remove a connection, keeping its totals; called once for each opened one."""
        self.connections.discard(connection)
        self.connections_closed += 1
        counts = connection.counts()
        self._context.totals.connection_closed(counts)
        connection.vhost.connections_gone = added(connection.vhost.connections_gone, counts)
        self.connections_of_users[connection.user.name] -= 1
        connection.vhost.connection_count -= 1
        reason = connection.close_reason or "client unexpectedly closed TCP connection"
        self._report("connection_closed", connection, reason=reason)
        log.log(_level(connection), "closing connection %s: %s", connection.name, reason)

    # -- rights that are taken away -----------------------------------------------------------------------------------

    def revoke(self, user: str, vhost: str | None) -> None:
        """Revoke on connections to the vhost what the user may no longer do; with None close all. A turn must run."""
        if not self.connections_of_users[user]:
            return
        if vhost is None:
            self._turn.slices.add(self._closing_steps(user), f"deletion of user '{user}'")
        else:
            self._turn.slices.add(self._enforcement_steps(user, vhost), f"permission change of user '{user}'")

    def _enforcement_steps(self, user: str, vhost: str) -> Iterator[None]:
        for connection in self._connections_of(user):
            if connection is not None and connection.vhost.name == vhost:
                yield from connection.enforce_rights()
            yield

    def _closing_steps(self, user: str) -> Iterator[None]:
        for connection in self._connections_of(user):
            if connection is not None:
                connection.force_close(f"user '{user}' is deleted")
            yield

    def _connections_of(self, user: str) -> Iterator[Any]:
        """Yield the current connections of the user, and None after every few dozen other connections."""
        for number, connection in enumerate(list(self.connections), 1):
            if connection.user.name == user:
                yield connection
            if not number % _BATCH:
                yield None

    def _report(self, kind: str, connection: Any, **detail: str) -> None:
        if self._context.events is not None:
            detail |= {
                "user": connection.user.name,
                "peer": connection.peer[0],
                "client": client_name(connection),
            }
        self._context.note(kind, connection.vhost.name, connection.name, connection, **detail)

    def channel_opened(self, user: User) -> None:
        """Count an opened channel."""
        self.channel_count += 1
        self.channels_opened += 1
        self.channels_of_users[user.name] += 1

    def channel_closed(self, user: User, channel: Any) -> None:
        """Remove a channel from the counts, keeping its totals."""
        self.channel_count -= 1
        self.channels_closed += 1
        self.channels_of_users[user.name] -= 1
        channel.vhost.count_closed(channel.counts())


def client_name(connection: Any) -> str:
    """Return the client's product and version, as far as it sends them."""
    try:
        properties = decode_whole_table(connection.client_properties)
    except MalformedTable:
        return ""
    values = [properties.get(name, ("void", ""))[1] for name in ("product", "version")]
    return " ".join([each for each in values if isinstance(each, str) and each])


def _level(connection: Any) -> int:
    """Return the level of lines about a connection: those of the broker's own shovels say themselves what is wrong."""
    return logging.DEBUG if connection.is_own else logging.INFO
