"""Views of a broker in the event loop of the application: a virtual host, a queue, an exchange."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.assertions import check_acked, check_no_unroutable, check_published
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.tails import AsyncTail
from leveret.broker.embedded.transfer_operations import TransferOperations
from leveret.broker.transfer.retry import MOST_RETRIES
from leveret.broker.vhost.tail import EVERYTHING


class AsyncQueueView:
    """One queue, existing or not. Its methods raise RefusedError if there is no such queue.

    Attributes:
        name: its name.

    """

    def __init__(self, operations: TransferOperations, name: str) -> None:
        self._operations = operations
        self.name = name

    def __repr__(self) -> str:
        return f"<queue {self.name!r} in vhost {self._operations.vhost!r}>"

    async def messages(
        self, most: int | None = None, *, where: str = "", from_tail: bool = False
    ) -> list[MessageView]:
        """Return the messages: at most `most` ready ones in the order of delivery, the unacked ones, the delayed ones.

        Nothing is consumed, and no message is marked as redelivered by that. All that is returned was there at the same
        moment, unless a condition (`where`) or an order (`from_tail`) is given: see `QueueView.peek`.
        """
        return await self._operations.messages(self.name, most, where, from_tail=from_tail)

    async def depth(self) -> int:
        """Return the number of ready messages."""
        return int((await self._operations.queue(self.name))["messages_ready"])

    async def unacked(self) -> int:
        """Return the number of messages that were delivered and not settled yet."""
        return int((await self._operations.queue(self.name))["messages_unacknowledged"])

    async def consumers(self) -> list[dict[str, Any]]:
        """Return the consumers, under RabbitMQ's names."""
        return await self._operations.consumers(self.name)

    async def details(self) -> dict[str, Any]:
        """Return type, arguments, counters and state, under RabbitMQ's names."""
        return await self._operations.queue(self.name)

    async def purge(self) -> int:
        """Drop the ready messages; return how many."""
        return await self._operations.purge(self.name)

    async def delete(self) -> int:
        """Delete the queue; return the number of its ready messages."""
        return await self._operations.delete_queue(self.name)

    async def pause(self) -> None:
        """Pause the deliveries to consumers until `resume`; a durable queue stays paused when the broker restarts.

        What consumers have already stays theirs. A `basic.get` of a client finds nothing meanwhile. Publishes, acks,
        expiry, limits and dead letters go on. No effect on a paused queue; `details` has the state `paused`.
        """
        await self._operations.set_paused(self.name, paused=True)

    async def resume(self) -> None:
        """Resume the deliveries after `pause`; no effect on a queue that is not paused."""
        await self._operations.set_paused(self.name, paused=False)

    async def move(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Move ready messages to a queue, or to `exchange:NAME` or `exchange:NAME/KEY`, in the order of the queue.

        Args:
            destination: the destination.
            where: condition that messages must meet (docs/filters.md); '' for all.
            limit: maximum number of messages; None for no limit.

        Returns:
            The result: among others `matched`, `done`, and `causes`, the numbers of messages that stay by cause.

        Raises:
            RefusedError: the destination does not exist or is the queue itself, or the condition is none.

        """
        return await self._operations.move(self.name, destination, where=where, limit=limit)

    async def copy(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Copy ready messages, and leave them in the queue; see `move`."""
        return await self._operations.move(self.name, destination, is_copy=True, where=where, limit=limit)

    async def discard(self, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Drop ready messages without dead letters; see `move`."""
        return await self._operations.discard(self.name, where=where, limit=limit)

    async def replay(
        self,
        destination: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        where: str = "",
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Copy messages that consumers have acked and the queue retains (`x-retain-for`), with `x-leveret-replayed`.

        Args:
            destination: as for `move`; the queue itself is possible.
            since: only those acked at this time or later; None for all. Without a time zone it is local.
            until: only those acked before this time; None for no such limit.
            where: as for `move`.
            limit: as for `move`.

        """
        return await self._operations.replay(
            self.name, destination, since=since, until=until, where=where, limit=limit
        )

    async def retry(
        self,
        destination: str = "",
        *,
        where: str = "",
        limit: int | None = None,
        first: bool = False,
        reason: str = "",
        max_retries: int = MOST_RETRIES,
    ) -> dict[str, Any]:
        """Move dead letters back to the queues in which they died, and count that in `x-leveret-retries`; see `move`.

        Args:
            destination: another destination for all of them.
            where: as for `move`.
            limit: as for `move`.
            first: True for the queue of the first death instead of the newest.
            reason: only those whose newest death has this reason; '' for any.
            max_retries: number of retries after which a message stays.

        """
        return await self._operations.retry(
            self.name,
            destination,
            where=where,
            limit=limit,
            first=first,
            reason=reason,
            max_retries=max_retries,
        )


class AsyncVHost:
    """One virtual host of a broker in the running event loop."""

    def __init__(self, core: Core, vhost: str) -> None:
        self._core = core
        self._operations = TransferOperations(core, vhost)

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

    def queue(self, name: str) -> AsyncQueueView:
        """Return a view of a queue, which need not exist yet."""
        return AsyncQueueView(self._operations, name)

    async def queues(self) -> list[str]:
        """Return the names of the queues."""
        return [row["name"] for row in await self._operations.queues()]

    async def delayed(self, exchange: str) -> list[MessageView]:
        """Return the messages that an exchange of type `x-delayed-message` keeps, in the order of their due times."""
        return await self._operations.delayed(exchange)

    def tail(self, exchange: str, pattern: str = EVERYTHING, *, where: str = "") -> AsyncTail:
        """Return the messages that are published to an exchange from `async with` on, for `async for`.

        Nothing is bound, and publishers do not wait. Messages that reach no queue are there, too, dead letters, and
        those that come to it from another exchange. An exchange must exist.

        Args:
            exchange: name of the exchange; '' for the default exchange.
            pattern: what routing keys must match, as in a binding to a topic exchange.
            where: a condition that messages must meet (docs/filters.md); '' for all.

        """
        return AsyncTail(self._core, self.vhost, exchange, pattern, where)

    async def record(self, exchange: str) -> None:
        """Record what is published to an exchange from now on; it need not exist yet."""
        await self._operations.record(exchange)

    async def published(self, exchange: str) -> list[MessageView]:
        """Return what was published to a recorded exchange, in order, and what reached it from other exchanges.

        That includes messages that went to no queue, and dead letters. A broker records the latest 100,000 messages
        with at most 64 MiB of bodies. Raises NotRecordedError.
        """
        return list((await self._operations.published(exchange)).messages)

    async def forget_published(self) -> None:
        """Forget what was recorded in the virtual host, and end what `record` has begun there."""
        await self._operations.forget_published()

    async def connections(self) -> list[dict[str, Any]]:
        """Return the connections to the virtual host, under RabbitMQ's names."""
        return await self._operations.connections()

    async def definitions(self) -> dict[str, Any]:
        """Return the definitions of the whole broker, in RabbitMQ's format."""
        return await self._operations.definitions()

    async def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Create what definitions in RabbitMQ's format contain, entirely or not at all. Raises RefusedError."""
        await self._operations.import_definitions(definitions)

    async def declare(
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
        await self._operations.declare(
            queue,
            exchange=exchange,
            type=type,
            routing_key=routing_key,
            durable=durable,
            auto_delete=auto_delete,
            arguments=arguments,
        )

    async def publish(
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
        await self._operations.publish(
            exchange,
            routing_key,
            body,
            properties=properties,
            headers=headers,
            mandatory=mandatory,
            confirm=confirm,
        )

    async def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; return how many. Raises RefusedError if there is no such queue."""
        return await self._operations.purge(queue)

    async def close_connections(self, reason: str = "closed by the application") -> int:
        """Close the connections to the virtual host with 320 CONNECTION_FORCED and a reason; return how many."""
        return await self._operations.close_connections(reason)

    # -- assertions -------------------------------------------------------------------------------------------------

    async def assert_published(
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
        record = await self._operations.published(exchange)
        check_published(exchange, record, body=body, routing_key=routing_key, headers=headers, times=times)

    async def assert_acked(self, queue: str, n: int) -> None:
        """Check that consumers have acknowledged `n` messages of a queue since it was declared.

        Raises:
            AssertionError: it is another number.
            RefusedError: there is no such queue.

        """
        __tracebackhide__ = True
        details = await self._operations.queue(queue)
        check_acked(queue, details["message_stats"]["ack"], n)

    async def assert_no_unroutable(self) -> None:
        """Check that every recorded message has reached a queue.

        Raises:
            AssertionError: some have not; the text has the latest of them.
            NotRecordedError: nothing is recorded, or the record has forgotten messages.

        """
        __tracebackhide__ = True
        check_no_unroutable(await self._operations.recorded())

    async def wait_until_idle(self, timeout: float = 5) -> None:  # noqa: ASYNC109 - its error says what is not idle
        """Wait until no message is on its way.

        Input that has arrived is processed then, commits are done, nothing that is due is left, no message is unacked,
        and no queue with consumers has messages. Clients that are about to publish are not known.

        Args:
            timeout: seconds, in real time, greater than 0.

        Raises:
            NotIdleError: that is not the case in time; the text names the queues.

        """
        await self._operations.wait_until_idle(timeout)
