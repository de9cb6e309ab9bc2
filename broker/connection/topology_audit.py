"""Audit entries about what clients declare, bind and delete (pure)."""

from typing import Any

from leveret.broker.amqp.commands import Exchange, Queue
from leveret.broker.channel.channel import Channel
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.vhost.vhost import VHost

_OF_QUEUES = (Queue.Declare, Queue.Delete, Queue.Bind, Queue.Unbind, Queue.Purge)
_DETAILS = ("exchange_type", "durable", "auto_delete", "exclusive", "source", "routing_key")


class TopologyAudit:
    """One method of the classes queue and exchange, recorded if it changes anything; `objects`: durable or all."""

    __slots__ = ("_audit", "_before", "_channel", "_is_wanted", "_method", "_objects")

    def __init__(self, audit: AuditLog, objects: str, channel: Channel, method: Any) -> None:
        self._audit = audit
        self._objects = objects
        self._channel = channel
        self._method = method
        self._is_wanted = objects == "all" or self._is_durable()
        self._before = _changes(channel.vhost)

    def executed(self, actor: str, peer: str) -> None:
        """Record the method if it has changed something; `actor` and `peer` are its user and the client's address."""
        channel, method = self._channel, self._method
        is_purge = isinstance(method, Queue.Purge)
        if not is_purge and _changes(channel.vhost) == self._before:
            return
        if not (self._is_wanted or self._is_durable()):  # a queue that did not exist before
            return
        name = self._name()
        detail = {key: given for key in _DETAILS if (given := getattr(method, key, None))}
        if isinstance(method, Queue.Bind | Queue.Unbind):
            detail["source"] = method.exchange
        event = method.name.lower()  # such as `queue.declare`
        self._audit.record(event, actor=actor, peer=peer, vhost=channel.vhost.name, name=name, **detail)

    def _name(self) -> str:
        method = self._method
        if isinstance(method, Exchange.Bind | Exchange.Unbind):
            return str(method.destination)
        if isinstance(method, Exchange.Declare | Exchange.Delete):
            return str(method.exchange)
        return str(method.queue or self._channel.last_queue or "")

    def _is_durable(self) -> bool:
        name, vhost = self._name(), self._channel.vhost
        found = vhost.queues.get(name) if isinstance(self._method, _OF_QUEUES) else vhost.router.get(name)
        return found is not None and found.durable


def _changes(vhost: VHost) -> tuple[int, ...]:
    """Return numbers of which one is another after each change of the vhost's queues, exchanges and bindings."""
    router = vhost.router
    return router.binding_count, len(router.exchanges), vhost.context.totals.queues_created, len(vhost.queues)
