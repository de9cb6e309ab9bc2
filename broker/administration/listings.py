"""Listings of connections, channels, consumers, queues and alarms, computed on request.

A listing is an iterator, which checks the right at once and computes the next row when that is requested. So a caller
that lists very many can serve others in between (`broker.scheduling.time_slices`); objects that are created or deleted
meanwhile may be listed or not.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from leveret.broker.administration.access import (
    AdministeredBroker,
    ForbiddenError,
    NotFoundError,
    Right,
    authorize,
    visible_vhosts,
)
from leveret.broker.administration.definitions_document import plain_arguments
from leveret.broker.amqp.errors import MalformedTable
from leveret.broker.amqp.tables import decode_whole_table
from leveret.broker.auth.users import User
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.flow_control import Pause
from leveret.broker.connection.state import FLOW_SECONDS, connection_state
from leveret.broker.errors import resource
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.policies import Applied
from leveret.broker.vhost.vhost import VHost

IDLE_SECONDS = 10.0
"""Time in seconds without activity after which a queue is idle."""

_Seen = tuple[tuple[int, ...], float]


class Listings:
    """Connections, channels, consumers, queues, alarms. Every method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker
        self._seen: dict[str, dict[str, _Seen]] = {}
        """Last observed activity by vhost and queue."""

    # -- clients ----------------------------------------------------------------------------------------------------

    def connections(self, actor: User | None, vhost: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the open connections: the actor's own, or all for a monitoring user."""
        return map(self._shown_connection, self._connections(actor, vhost))

    def channels(self, actor: User | None, vhost: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the channels of these connections."""
        return (
            self._shown_channel(connection, channel)
            for connection in self._connections(actor, vhost)
            for channel in tuple(connection.channels.values())
        )

    def consumers(self, actor: User | None, vhost: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the consumers of the queues that the actor may see, with their delivery counts."""
        return (
            shown_consumer(place, consumer)
            for place in visible_vhosts(self._broker, actor, vhost)
            for queue in tuple(place.queues.values())
            for consumer in tuple(queue.consumers)
        )

    def close_connection(self, actor: User | None, name: str, reason: str) -> bool:
        """Close a connection with 320 and this reason; False if there is none of that name.

        Only the actor's own, unless the actor is an administrator: the monitoring tag allows no changes.
        """
        administrator = actor is None or Right.ADMINISTRATOR in actor.tags
        for connection in self._connections(actor, None):
            if connection.name == name:
                if actor is not None and not administrator and connection.user.name != actor.name:
                    raise ForbiddenError("Not administrator user")
                connection.force_close(reason)
                return True
        return False

    def close_connections(
        self,
        actor: User | None,
        reason: str,
        vhost: str | None = None,
        *,
        user: str | None = None,
        most: int | None = None,
    ) -> int:
        """Close all connections, or those to one vhost or of one user, with 320 and this reason; returns their number.

        Only the actor's own, unless the actor is an administrator; at most `most` of them.
        """
        is_administrator = actor is None or Right.ADMINISTRATOR in actor.tags
        chosen = [
            each
            for each in self._connections(actor, vhost)
            if (is_administrator or (actor is not None and each.user.name == actor.name))
            and user in {None, each.user.name}
        ]
        chosen = chosen[:most]
        for connection in chosen:
            connection.force_close(reason)
        return len(chosen)

    def _connections(self, actor: User | None, vhost: str | None) -> list[Connection]:
        broker = self._broker
        authorize(broker.users, actor, Right.MANAGEMENT, vhost)
        everybodys = actor is None or not {Right.MONITORING, Right.ADMINISTRATOR}.isdisjoint(actor.tags)
        return [
            each
            for each in broker.clients.connections
            if vhost in {None, each.vhost.name}
            and (everybodys or (actor is not None and each.user.name == actor.name))
        ]

    def _shown_connection(self, connection: Connection) -> dict[str, Any]:
        return {
            "name": connection.name,
            "user": connection.user.name,
            "vhost": connection.vhost.name,
            "state": connection_state(connection, self._broker.alarm, self._broker.now()),
            "blocked_by": self._broker.alarm if connection.blocked else "",
            "channels": len(connection.channels),
            "channel_max": connection.channel_max,
            "frame_max": connection.frame_max,
            "timeout": connection.heartbeat,
            "protocol": "AMQP 0-9-1",
            "peer_host": connection.peer[0],
            "peer_port": connection.peer[1],
            "host": connection.local[0],
            "port": connection.local[1],
            "client_properties": _client_properties(connection),
        }

    def _shown_channel(self, connection: Connection, channel: Channel) -> dict[str, Any]:
        transaction = channel.tx
        state = connection_state(connection, self._broker.alarm, self._broker.now())
        return {
            "name": f"{connection.name} ({channel.number})",
            "number": channel.number,
            "connection": connection.name,
            "user": connection.user.name,
            "vhost": connection.vhost.name,
            "state": "flow" if state == "flow" else "running",
            "confirm": channel.confirms is not None,
            "transactional": transaction is not None,
            "prefetch_count": channel.prefetch_count,
            "global_prefetch_count": channel.global_prefetch,
            "consumer_count": len(channel.consumers),
            "messages_unacknowledged": len(channel.unacked),
            "messages_unconfirmed": 0 if channel.confirms is None else channel.confirms.unconfirmed_count,
            "messages_uncommitted": 0 if transaction is None else len(transaction.publishes),
            "acks_uncommitted": 0 if transaction is None else len(transaction.settled),
        }

    # -- queues -----------------------------------------------------------------------------------------------------

    def queues(self, actor: User | None, vhost: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the queues of one vhost or of all that the actor may see, with their counts and state."""
        return chain.from_iterable(map(self._queues, visible_vhosts(self._broker, actor, vhost)))

    def queue(self, actor: User | None, vhost: str, name: str) -> dict[str, Any]:
        """Return the row of one queue. Raises NotFoundError if there is none, ForbiddenError as `queues`."""
        place = visible_vhosts(self._broker, actor, vhost)[0]
        queue = place.queues.get(name)
        if queue is None:
            raise NotFoundError(f"no {resource('queue', name, vhost)}")
        seen = self._seen.setdefault(vhost, {})
        return self._shown_queue(place, queue, seen, seen)

    def queue_consumers(self, actor: User | None, vhost: str, name: str) -> list[dict[str, Any]]:
        """Return the rows of the consumers of one queue. Raises as `queue`."""
        place = visible_vhosts(self._broker, actor, vhost)[0]
        queue = place.queues.get(name)
        if queue is None:
            raise NotFoundError(f"no {resource('queue', name, vhost)}")
        return [shown_consumer(place, consumer) for consumer in queue.consumers]

    def _queues(self, vhost: VHost) -> Iterator[dict[str, Any]]:
        before, seen = self._seen.get(vhost.name, {}), dict[str, _Seen]()
        for queue in tuple(vhost.queues.values()):
            if not queue.deleted:
                yield self._shown_queue(vhost, queue, before, seen)
        self._seen[vhost.name] = seen
        for name in self._seen.keys() - self._broker.vhosts.keys():
            del self._seen[name]

    def _shown_queue(
        self, vhost: VHost, queue: Queue, before: dict[str, _Seen], seen: dict[str, _Seen]
    ) -> dict[str, Any]:
        now = self._broker.now()
        unacked = queue.backing.unacked_count
        counts = (queue.published, queue.delivered, queue.acked, queue.ready_count, unacked)
        was, since = before.get(queue.name, ((), now))
        seen[queue.name] = counts, since if was == counts else now
        return {
            "name": queue.name,
            "vhost": vhost.name,
            "type": queue.type,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive_owner is not None,
            "arguments": plain_arguments(queue.arguments),
            "confirm_mode": queue.settings.confirm_mode,
            "state": queue_state(queue, now - seen[queue.name][1], now),
            "messages": queue.ready_count + unacked,
            "messages_ready": queue.ready_count,
            "messages_unacknowledged": unacked,
            "consumers": queue.consumer_count,
            **shown_policies(vhost.queue_policies(queue)),
            "consumer_capacity": queue.consumer_capacity,
            "single_active_consumer_tag": active.tag
            if (active := queue.consumers.active) is not None
            else None,
            "message_stats": {
                "publish": queue.published,
                "deliver_get": queue.delivered,
                "redeliver": queue.redelivered,
                "ack": queue.acked,
            },
        }

    # -- alarms -----------------------------------------------------------------------------------------------------

    def alarms(self, actor: User | None) -> list[dict[str, Any]]:
        """Return the raised alarms and their causes; empty if publishers are not blocked."""
        broker = self._broker
        authorize(broker.users, actor, Right.MONITORING)
        memory, disk = broker.resource_monitor.memory, broker.resource_monitor.disk
        found: list[dict[str, Any]] = []
        if memory.raised:
            found.append({"resource": "memory", "used": memory.used, "limit": memory.limit})
        if disk.raised:
            found.append({"resource": "disk", "free": disk.free, "limit": disk.limit, "full": disk.full})
        return found


def shown_policies(applied: Applied) -> dict[str, Any]:
    """Return the policies that apply, and their merged definition."""
    policy, operator = applied.policy, applied.operator_policy
    return {
        "policy": None if policy is None else policy.name,
        "operator_policy": None if operator is None else operator.name,
        "effective_policy_definition": applied.definition,
    }


def queue_state(queue: Queue, quiet: float, now: float) -> str:
    """Return the state of a queue.

    `paused` if an operator has paused its deliveries, `flow` if publishers are slowed down for it, `idle` if it was
    inactive for a while, else `running`.

    Args:
        queue: the queue.
        quiet: time in seconds since the last known activity.
        now: seconds of the clock of `Queue.publishers_paused_at`.

    """
    if queue.is_paused:
        return "paused"
    if now - queue.publishers_paused_at < FLOW_SECONDS or any(
        isinstance(each, Pause) for each in queue.run_listeners
    ):
        return "flow"
    return "idle" if quiet >= IDLE_SECONDS else "running"


def shown_consumer(vhost: VHost, consumer: Consumer) -> dict[str, Any]:
    """Return a consumer under RabbitMQ's names."""
    channel: Any = consumer.channel
    queue: Any = consumer.queue
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": vhost.name},
        "channel_details": {"number": channel.number, "connection_name": channel.host.name},
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch_count,
        "arguments": plain_arguments(consumer.arguments),
        "active": queue.consumers.is_active(consumer),
        "activity_status": queue.consumers.activity_status(consumer),
        "messages_unacknowledged": consumer.unacked,
        "message_stats": {
            "deliver": consumer.delivered,
            "redeliver": consumer.redelivered,
            "ack": consumer.acked,
            "returned": consumer.returned,
        },
    }


def _client_properties(connection: Connection) -> dict[str, Any]:
    """Return the properties that the client has sent."""
    try:
        return plain_arguments(decode_whole_table(connection.client_properties))
    except MalformedTable:
        return {}
