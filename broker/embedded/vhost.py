"""View of a virtual host of a broker in a thread of its own. Every call is forwarded to its event loop."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.assertions import check_acked, check_no_unroutable, check_published
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.queue_view import Call, QueueView
from leveret.broker.embedded.tails import AsyncTail, Tail
from leveret.broker.embedded.transfer_operations import TransferOperations
from leveret.broker.vhost.tail import EVERYTHING

T = TypeVar("T")


class VHost:
    """One virtual host of a broker in a thread of its own."""

    def __init__(self, core: Core, vhost: str, call: Call | None) -> None:
        self._core = core
        self._operations = TransferOperations(core, vhost)
        self._forward = call

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        assert self._forward is not None  # noqa: S101 - or the class has a method of its own
        return self._forward(work)

    @property
    def vhost(self) -> str:
        """Name of the virtual host."""
        return self._operations.vhost

    @property
    def url(self) -> str:
        """URL for clients, such as `amqp://guest:guest@127.0.0.1:54321/%2F`. Raises ClosedBrokerError."""
        return self._core.url_of(self.vhost)

    @property
    def port(self) -> int:
        """The port of the first listener. Raises ClosedBrokerError."""
        return self._core.address[1]

    def queue(self, name: str) -> QueueView:
        """Return a view of a queue, which need not exist yet."""
        return QueueView(self._operations, self._call, name)

    def queues(self) -> list[str]:
        """Return the names of the queues."""
        return [row["name"] for row in self._call(self._operations.queues)]

    def delayed(self, exchange: str) -> list[MessageView]:
        """Return the messages that an exchange of type `x-delayed-message` keeps, in the order of their due times."""
        return self._call(lambda: self._operations.delayed(exchange))

    def tail(self, exchange: str, pattern: str = EVERYTHING, *, where: str = "") -> Tail:
        """Return the messages that are published to an exchange from `with` on, for `for`.

        Nothing is bound, and publishers do not wait. Messages that reach no queue are there, too, dead letters, and
        those that come to it from another exchange. An exchange must exist.

        Args:
            exchange: name of the exchange; '' for the default exchange.
            pattern: what routing keys must match, as in a binding to a topic exchange.
            where: a condition that messages must meet (docs/filters.md); '' for all.

        """
        return Tail(AsyncTail(self._core, self.vhost, exchange, pattern, where), self._call)

    def record(self, exchange: str) -> None:
        """Record what is published to an exchange from now on; it need not exist yet."""
        self._call(lambda: self._operations.record(exchange))

    def published(self, exchange: str) -> list[MessageView]:
        """Return what was published to a recorded exchange, in order, and what reached it from other exchanges.

        That includes messages that went to no queue, and dead letters. A broker records the latest 100,000 messages
        with at most 64 MiB of bodies. Raises NotRecordedError.
        """
        return list(self._call(lambda: self._operations.published(exchange)).messages)

    def forget_published(self) -> None:
        """Forget what was recorded in the virtual host, and end what `record` has begun there."""
        self._call(self._operations.forget_published)

    @property
    def connections(self) -> list[dict[str, Any]]:
        """The connections to the virtual host, under RabbitMQ's names."""
        return self._call(self._operations.connections)

    @property
    def definitions(self) -> dict[str, Any]:
        """The definitions of the whole broker, in RabbitMQ's format."""
        return self._call(self._operations.definitions)

    def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Create what definitions in RabbitMQ's format contain, entirely or not at all. Raises RefusedError."""
        self._call(lambda: self._operations.import_definitions(definitions))

    def declare(
        self,
        queue: str | None = None,
        *,
        exchange: str | None = None,
        type: str | None = None,  # noqa: A002 - the name of the field in AMQP
        routing_key: str = "",
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a queue, an exchange, or both with a binding between them.

        Args:
            queue: name of the queue; None to declare an exchange only.
            exchange: name of the exchange; None to declare a queue only.
            type: type of the exchange. Without it an exchange that exists is used as it is, and another one is
                declared as a direct exchange.
            routing_key: the key of the binding.
            durable: whether what is declared survives a restart.
            auto_delete: whether the queue (without one, the exchange) is deleted when it is no longer used.
            arguments: arguments of the queue; without one, those of the exchange.

        Raises:
            RefusedError: it exists with other properties, or the broker refuses the arguments.

        """
        self._call(
            lambda: self._operations.declare(
                queue,
                exchange=exchange,
                type=type,
                routing_key=routing_key,
                durable=durable,
                auto_delete=auto_delete,
                arguments=arguments,
            )
        )

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str,
        *,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        mandatory: bool = False,
        confirm: bool = True,
    ) -> None:
        """Publish a message, and wait for its confirm.

        Args:
            exchange: name of the exchange; '' for the default one, which routes to the queue named by the routing key.
            routing_key: the routing key.
            body: the body; text is encoded as UTF-8.
            properties: properties by their AMQP names, for example `{"delivery_mode": 2}`.
            headers: the headers as plain values.
            mandatory: whether a message that reaches no queue is an error.
            confirm: whether to wait for the confirm. In the confirm modes `consumer-ack` that may take long.

        Raises:
            UnroutableError: it is mandatory, and has reached no queue.
            NackedError: a queue has refused it.
            RefusedError: there is no such exchange, or the properties are invalid.

        """
        self._call(
            lambda: self._operations.publish(
                exchange,
                routing_key,
                body,
                properties=properties,
                headers=headers,
                mandatory=mandatory,
                confirm=confirm,
            )
        )

    def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; return how many. Raises RefusedError if there is no such queue."""
        return self._call(lambda: self._operations.purge(queue))

    def close_connections(self, reason: str = "closed by the application") -> int:
        """Close the connections to the virtual host with 320 CONNECTION_FORCED and a reason; return how many."""
        return self._call(lambda: self._operations.close_connections(reason))

    # -- assertions -------------------------------------------------------------------------------------------------

    def assert_published(
        self,
        exchange: str,
        body: bytes | str | None = None,
        routing_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        times: int | None = None,
    ) -> None:
        """Check that matching messages were published to a recorded exchange.

        Args:
            exchange: name of the exchange; '' for the default exchange.
            body: the body, text as UTF-8; None for any.
            routing_key: the routing key; None for any.
            headers: headers that a message must have, among others; None for any.
            times: number of matching messages; None for at least one.

        Raises:
            AssertionError: there are fewer or more; the text has the latest messages.
            NotRecordedError: the exchange is not recorded, or the record has forgotten messages that may matter.

        """
        __tracebackhide__ = True
        record = self._call(lambda: self._operations.published(exchange))
        check_published(exchange, record, body=body, routing_key=routing_key, headers=headers, times=times)

    def assert_acked(self, queue: str, n: int) -> None:
        """Check that consumers have acknowledged `n` messages of a queue since it was declared.

        Raises:
            AssertionError: it is another number.
            RefusedError: there is no such queue.

        """
        __tracebackhide__ = True
        details = self._call(lambda: self._operations.queue(queue))
        check_acked(queue, details["message_stats"]["ack"], n)

    def assert_no_unroutable(self) -> None:
        """Check that every recorded message has reached a queue.

        Raises:
            AssertionError: some have not; the text has the latest of them.
            NotRecordedError: nothing is recorded, or the record has forgotten messages.

        """
        __tracebackhide__ = True
        check_no_unroutable(self._call(self._operations.recorded))

    def wait_until_idle(self, timeout: float = 5) -> None:
        """Wait until no message is on its way.

        Input that has arrived is processed then, commits are done, nothing that is due is left, no message is unacked,
        and no queue with consumers has messages. Clients that are about to publish are not known.

        Args:
            timeout: seconds, in real time, at most 50.

        Raises:
            NotIdleError: that is not the case in time; the text names the queues.

        """
        self._call(lambda: self._operations.wait_until_idle(timeout))
