"""Vhosts, exchanges, queues and bindings: declared and deleted."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    DefinitionsError,
    Group,
    ProtectedError,
    Right,
    authorize,
    entered,
    exchange_of,
    found_vhost,
    queue_of,
    visible_vhosts,
)
from leveret.broker.administration.definitions_document import table_of
from leveret.broker.administration.detached_channel import check_permission, execute
from leveret.broker.administration.messages import found_queue
from leveret.broker.amqp.commands import Exchange as ExchangeMethods, Queue as QueueMethods, make
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.users import User, limits_by_name
from leveret.broker.queue.arguments import TYPES
from leveret.broker.queue.compatibility import short_queue_type
from leveret.broker.vhost.vhost import Metadata, VHost

NO_TYPE = "undefined"  # the default queue type of a vhost that has none, in RabbitMQ's documents
_NAME_OCTETS = 255


class VHostAdministration(Group):
    """Vhosts."""

    def put(
        self,
        actor: User | None,
        name: str,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        default_queue_type: str = "",
    ) -> None:
        """Add a vhost, or change the metadata of the existing one of that name; raises BadRequestError."""
        broker = self._broker
        authorize(broker.users, actor, Right.ADMINISTRATOR)
        check_vhost_name(name)
        kind = checked_queue_type(default_queue_type)
        if name not in broker.vhosts:
            check_vhost_limit(broker, name, len(broker.vhosts) + 1)
        put_vhost(broker, name, description=description, tags=tuple(tags), default_queue_type=kind)

    def delete(self, actor: User | None, name: str) -> None:
        """Close the connections to a vhost and delete it with all in it; raises NotFoundError, ProtectedError."""
        vhost, broker = self._found(actor, name), self._broker
        if vhost.metadata.protected_from_deletion:
            raise ProtectedError(
                f"Refusing to delete virtual host '{name}' because it is protected from deletion"
            )
        for connection in [each for each in broker.clients.connections if each.vhost is vhost]:
            connection.force_close(f"vhost '{name}' is deleted")
        broker.directory.remove_vhost(vhost)

    def protect(self, actor: User | None, name: str, *, is_protected: bool) -> None:
        """Protect a vhost from deletion, or no longer; raises NotFoundError."""
        self._found(actor, name)
        put_vhost(self._broker, name, protected_from_deletion=is_protected)

    def trace(self, actor: User | None, name: str, *, traced: bool) -> None:
        """Switch the firehose of a vhost on or off (`broker.vhost.firehose`); off at a start. Raises NotFoundError."""
        if self._broker.place == "front" and traced:
            raise BadRequestError("there is no firehose with vhosts.processes")
        taps = self._found(actor, name).taps
        taps.trace(self._broker.clients.node_name if traced else None)

    def _found(self, actor: User | None, name: str) -> VHost:
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        return found_vhost(self._broker, name)

    def limits(self, actor: User | None, name: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the limits of one vhost or of all that the actor may see, of those that have some.

        In the list of all the value is an empty list where none is left until they are cleared, as in RabbitMQ.
        """
        users = self._broker.users
        rows = (
            (vhost.name, limits_by_name(users.vhost_limits(vhost.name)))
            for vhost in visible_vhosts(self._broker, actor, name)
        )
        return (
            {"vhost": place, "value": limits or []}
            for place, limits in rows
            if limits or (name is None and users.has_vhost_limits(place))
        )


def check_vhost_name(name: str) -> None:
    """Raise BadRequestError for an invalid vhost name."""
    if not name:
        raise BadRequestError("Virtual host name cannot be empty")
    if len(name.encode("utf-8", "surrogateescape")) > _NAME_OCTETS:
        raise BadRequestError(f"Virtual host name is limited to {_NAME_OCTETS} bytes")


def checked_queue_type(text: str) -> str:
    """Return a vhost's default queue type, '' for none (or `undefined`); raises BadRequestError for an unknown one."""
    kind = short_queue_type(text)
    if kind in {"", NO_TYPE}:
        return ""
    if kind not in TYPES:
        raise BadRequestError(
            f"Unsupported default queue type '{text}': it must be one of {', '.join(TYPES)}"
        )
    return kind


def check_vhost_limit(broker: AdministeredBroker, name: str, count: int) -> None:
    """Raise BadRequestError if `count` vhosts, including a new one of that name, exceed the limit."""
    if (most := broker.config.limits.vhost_max) is not None and count > most:
        raise BadRequestError(f"cannot create vhost '{name}': vhost limit of {most} is reached")


def put_vhost(broker: AdministeredBroker, name: str, **changed: Any) -> None:
    """Add a vhost, or change fields of its `Metadata`; a new queue type that is empty is that of the configuration."""
    vhost = broker.vhosts.get(name)
    if not changed.get("default_queue_type", vhost is not None):
        changed["default_queue_type"] = broker.directory.default_queue_type
    metadata = (Metadata() if vhost is None else vhost.metadata)._replace(**changed)
    if vhost is None:
        broker.directory.add_vhost(name, metadata)
    elif metadata != vhost.metadata:
        vhost.metadata = metadata
        broker.directory.definitions.update_vhost(vhost)


def metadata_of(vhost: VHost) -> dict[str, Any]:
    """Return the metadata of a vhost as RabbitMQ's API shows them."""
    found = vhost.metadata._asdict() | {"tags": list(vhost.metadata.tags)}
    return {key: value for key, value in found.items() if value or key in {"description", "tags"}}


MOST_NAME = 255  # maximum octets of a name or key that a client can send or be sent


class TopologyAdministration(Group):
    """Exchanges, queues and bindings.

    Changes are made as by a client of that user: with its permissions, by the rules of AMQP. Arguments are plain values
    and get the types that RabbitMQ's API gives them.
    """

    def _execute(self, actor: User | None, vhost: str, method: Any) -> Any:
        """Execute a method; the actor's permissions on the queue or exchange are checked by its handler."""
        broker = self._broker
        return execute(broker, actor, entered(broker, actor, vhost, change=True), method)

    # -- exchanges --------------------------------------------------------------------------------------------------

    def declare_exchange(
        self,
        actor: User | None,
        vhost: str,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare an exchange of a type (`kind`); raises the errors that a client would get."""
        _check_size("exchange", name)
        flags = False, durable, auto_delete, internal, True
        self._execute(
            actor, vhost, make(ExchangeMethods.Declare, 0, name, kind, *flags, typed_arguments(arguments))
        )

    def delete_exchange(self, actor: User | None, vhost: str, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; raises NotFoundError, BadRequestError if it is in use."""
        exchange_of(entered(self._broker, actor, vhost), name)
        self._execute(actor, vhost, make(ExchangeMethods.Delete, 0, name, if_unused, True))

    # -- queues -----------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        actor: User | None,
        vhost: str,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a queue; raises the errors that a client would get."""
        if not name:
            raise BadRequestError("queue name cannot be empty")
        _check_size("queue", name)
        flags = False, durable, False, auto_delete, True
        self._execute(actor, vhost, make(QueueMethods.Declare, 0, name, *flags, typed_arguments(arguments)))

    def delete_queue(
        self, actor: User | None, vhost: str, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue; returns the number of ready messages deleted with it. Raises as `purge_queue`."""
        place = entered(self._broker, actor, vhost)
        queue = queue_of(place, name)
        if actor is None and queue.exclusive_owner is not None:  # the operator may, as with rabbitmqctl
            return place.delete_queue(queue)
        reply = self._execute(actor, vhost, make(QueueMethods.Delete, 0, name, if_unused, if_empty, False))
        return int(reply.message_count)

    def purge_queue(self, actor: User | None, vhost: str, name: str) -> int:
        """Purge a queue; returns the number of messages. Raises NotFoundError, or the errors that clients get."""
        queue_of(entered(self._broker, actor, vhost), name)
        return int(self._execute(actor, vhost, make(QueueMethods.Purge, 0, name, False)).message_count)

    def set_queue_paused(self, actor: User | None, vhost: str, name: str, paused: bool) -> None:
        """Pause or resume the deliveries of a queue to its consumers; no effect if it is so already.

        A durable queue keeps this state when the broker restarts. The user needs to be able to read and to configure
        the queue. Raises as `purge_queue`.
        """
        place, queue = found_queue(self._broker, actor, vhost, name)
        check_permission(self._broker, actor, place, "configure", "queue", name)
        place.set_paused(queue, paused=paused)

    # -- bindings ---------------------------------------------------------------------------------------------------

    def bind(
        self,
        actor: User | None,
        vhost: str,
        source: str,
        destination: str,
        *,
        destination_type: str = "queue",
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind a queue or an exchange (`destination_type`) to an exchange; raises the errors that clients get."""
        _check_size("routing key", routing_key)
        bind = (QueueMethods if destination_type == "queue" else ExchangeMethods).Bind
        self._execute(
            actor, vhost, make(bind, 0, destination, source, routing_key, True, typed_arguments(arguments))
        )

    def unbind(
        self,
        actor: User | None,
        vhost: str,
        source: str,
        destination: str,
        *,
        destination_type: str = "queue",
        routing_key: str = "",
        arguments: Table | None = None,
    ) -> None:
        """Remove a binding with exactly these typed arguments; no effect if there is none."""
        names = (destination, source, routing_key)
        if destination_type == "queue":
            method: object = make(QueueMethods.Unbind, 0, *names, arguments or {})
        else:
            method = make(ExchangeMethods.Unbind, 0, *names, True, arguments or {})
        self._execute(actor, vhost, method)


def _check_size(what: str, name: str) -> None:
    """Raise BadRequestError for a name or key that no client could send; in RabbitMQ's words for a queue."""
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > MOST_NAME:
        raise BadRequestError(f"{what} should be less than {MOST_NAME} bytes, actually was {size}\n")


def typed_arguments(arguments: Mapping[str, Any] | None) -> Table:
    """Return arguments with the types that RabbitMQ's API gives them; raises BadRequestError."""
    try:
        return table_of(arguments or {})
    except DefinitionsError as error:
        refusal = BadRequestError(str(error))
        refusal.reason = error.reason
        raise refusal from None
