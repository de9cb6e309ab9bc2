"""Which queues, consumers, connections and channels an actor may see, and the end of connections.

The iterators check rights when they begin. They are lazy, so a caller that shows very many objects can serve others in
between; objects that are created or deleted meanwhile may be listed or not.
"""

from collections.abc import Iterator

from leveret.broker.administration.access import (
    AdministeredBroker,
    Right,
    authorize,
    sees_all,
    visible_vhosts,
)
from leveret.broker.auth.users import User
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue


class Listings:
    """Objects by the rights of the acting user, whom each method takes first."""

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    def queues(self, actor: User | None, vhost: str | None = None) -> Iterator[Queue]:
        """Return the queues of one vhost, or of all that the actor may see. Raises as `visible_vhosts`."""
        return (
            queue
            for place in visible_vhosts(self._broker, actor, vhost)
            for queue in tuple(place.queues.values())
            if not queue.deleted
        )

    def consumers(self, actor: User | None, vhost: str | None = None) -> Iterator[Consumer]:
        """Return the consumers of the queues that the actor may see; of no vhost that it may not see."""
        return (
            consumer
            for place in visible_vhosts(self._broker, actor)
            if vhost in {None, place.name}
            for queue in tuple(place.queues.values())
            for consumer in tuple(queue.consumers)
        )

    def connections(
        self, actor: User | None, vhost: str | None = None, *, user: str | None = None, change: bool = False
    ) -> Iterator[Connection]:
        """Return the open connections, all or those to one vhost or of one user, that the actor may see.

        An actor sees its own; with the tag monitoring those of others, too, unless it is to `change` them. The caller
        checks that the actor may know of the vhost.
        """
        return (
            each
            for each in tuple(self._broker.clients.connections)
            if vhost in {None, each.vhost.name}
            and user in {None, each.user.name}
            and is_own(actor, each, change=change)
        )

    def channels(self, actor: User | None, vhost: str | None = None) -> Iterator[Channel]:
        """Return the channels of these connections."""
        return (
            channel for each in self.connections(actor, vhost) for channel in tuple(each.channels.values())
        )

    def close_connections(
        self,
        actor: User | None,
        reason: str,
        vhost: str | None = None,
        *,
        user: str | None = None,
        most: int | None = None,
    ) -> int:
        """Close the connections that the actor may close, at most `most`, with 320; returns their number.

        Raises ForbiddenError: the actor may not see the vhost.
        """
        authorize(self._broker.users, actor, Right.MANAGEMENT, vhost)
        chosen = list(self.connections(actor, vhost, user=user, change=True))[:most]
        for connection in chosen:
            connection.force_close(reason)
        return len(chosen)


def is_own(actor: User | None, connection: Connection, *, change: bool = False) -> bool:
    """Return whether the actor may see a connection, or change it."""
    return sees_all(actor, change=change) or (actor is not None and connection.user.name == actor.name)
