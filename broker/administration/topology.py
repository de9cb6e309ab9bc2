"""Declaring and deleting exchanges, queues and bindings."""

from collections.abc import Mapping
from typing import Any

from leveret.broker.administration.access import (
    BadRequestError,
    DefinitionsError,
    Group,
    entered,
    exchange_of,
    queue_of,
)
from leveret.broker.administration.definitions_document import table_of
from leveret.broker.administration.detached_channel import check_permission, execute
from leveret.broker.administration.messages import found_queue
from leveret.broker.amqp.commands import Exchange as ExchangeMethods, Queue as QueueMethods, make
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.users import User

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
