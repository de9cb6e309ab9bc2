"""`AsyncBroker`, `AsyncVHost`, `AsyncQueueView`: a broker in the event loop of the application (driver)."""

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from leveret.broker.administration import Administration, AdministrationError
from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.clock import Clock
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.embedded_server import Answer, EmbeddedServer
from leveret.broker.embedded.errors import (
    NackedError,
    NotIdleError,
    NotRecordedError,
    RefusedError,
    UnroutableError,
)
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.recording import Record, check_no_unroutable, check_published
from leveret.broker.embedded.tails import AsyncTail
from leveret.broker.transfer.retry import MOST_RETRIES
from leveret.broker.vhost.tail import EVERYTHING
from leveret.storage.message import Message

if TYPE_CHECKING:
    from leveret.broker.administration.detached_channel import Outcome
    from leveret.broker.administration.transfers import Transfers


class AsyncQueueView:
    """One queue, existing or not. Its methods raise RefusedError if there is no such queue."""

    def __init__(self, core: Core, vhost: str, name: str) -> None:
        self._core = core
        self._vhost = vhost
        self._name = name

    def __repr__(self) -> str:
        return f"<queue {self._name!r} in vhost {self._vhost!r}>"

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._name

    async def messages(
        self, most: int | None = None, *, where: str = "", from_tail: bool = False
    ) -> list[MessageView]:
        """Return the messages: the ready ones in the order of delivery, then the unacked ones, then the delayed ones.

        The call consumes nothing and marks no message as redelivered. The list is a snapshot of one moment,
        unless there is a condition (`where`) or another order (`from_tail`).

        Args:
            most: number of ready messages; None for all. With a condition, or from the tail, at most so many of each
                state, from 1 to 1000, and 1000 for None.
            where: a condition that they meet, such as `headers.kind == "retry" and size > 1KiB`. A queue of any length
                is searched, in pieces, which are not of one moment.
            from_tail: True to begin with the newest.

        Raises:
            RefusedError: there is no such queue, or the condition is invalid.
        """
        vhost, name = self._vhost, self._name
        if not where and not from_tail:
            return await self._core.look(lambda each: each.messages.peek_queue(None, vhost, name, most))
        from leveret.broker.administration.messages import MOST_MESSAGES, MOST_OCTETS, Wanted  # noqa: PLC0415

        wanted = Wanted(MOST_MESSAGES if most is None else most, from_tail, where, MOST_OCTETS)
        return (await self._core.look(lambda each: each.messages.peek(None, vhost, name, wanted))).messages

    async def depth(self) -> int:
        """Return the number of ready messages."""
        return int((await self.details())["messages_ready"])

    async def unacked(self) -> int:
        """Return the number of messages that were delivered and not settled yet."""
        return int((await self.details())["messages_unacknowledged"])

    async def consumers(self) -> list[dict[str, Any]]:
        """Return the consumers, under RabbitMQ's names."""
        from leveret.broker.management.clients import consumer_rows  # noqa: PLC0415 - loaded when it is used first

        return self._core.see(lambda _: consumer_rows(self._core.server, self._vhost, self._name))

    async def details(self) -> dict[str, Any]:
        """Return type, arguments, counters and state, under RabbitMQ's names."""
        from leveret.broker.management.clients import queue_row  # noqa: PLC0415 - loaded when it is used first

        return self._core.see(lambda _: queue_row(self._core.server, self._vhost, self._name))

    async def purge(self) -> int:
        """Drop the ready messages; return how many."""
        return await self._core.do(lambda each: each.topology.purge_queue(None, self._vhost, self._name))

    async def delete(self) -> int:
        """Delete the queue; return the number of its ready messages."""
        return await self._core.do(lambda each: each.topology.delete_queue(None, self._vhost, self._name))

    async def pause(self) -> None:
        """Pause the deliveries to consumers until `resume`; a durable queue stays paused when the broker restarts.

        Consumers keep the messages that they have. A `basic.get` of a client returns nothing. Publishes, acks,
        expiry, limits and dead letters continue. No effect on a paused queue; `details` has the state `paused`.
        """
        await self._core.do(lambda each: each.topology.set_queue_paused(None, self._vhost, self._name, True))

    async def resume(self) -> None:
        """Resume the deliveries after `pause`; no effect on a queue that is not paused."""
        await self._core.do(lambda each: each.topology.set_queue_paused(None, self._vhost, self._name, False))

    async def move(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Move ready messages to a queue, or to `exchange:NAME` or `exchange:NAME/KEY`, in the order of the queue.

        Args:
            destination: the destination.
            where: condition that messages must meet (docs/filters.md); '' for all.
            limit: maximum number of messages; None for no limit.

        Returns:
            The result: among others `matched`, `done`, and `causes`, the numbers of messages that stay by cause.

        Raises:
            RefusedError: the destination does not exist or is the queue itself, or the condition is invalid.
        """
        return await self._transfer("move", destination, where=where, limit=limit)

    async def copy(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Copy ready messages, and leave them in the queue; see `move`."""
        return await self._transfer("move", destination, where=where, limit=limit, is_copy=True)

    async def discard(self, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Drop ready messages without dead letters; see `move`."""
        return await self._transfer("discard", where=where, limit=limit)

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
        begin, end = (None if each is None else round(each.timestamp() * 1000) for each in (since, until))
        return await self._transfer(
            "replay", destination, where=where, limit=limit, since=begin or 0, until=end
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
        options = {"destination": destination, "first": first, "reason": reason, "most_retries": max_retries}
        return await self._transfer("retry", where=where, limit=limit, **options)

    async def _transfer(
        self, action: str, *arguments: Any, where: str, limit: int | None, **options: Any
    ) -> dict[str, Any]:
        from leveret.broker.administration.transfers import Chosen  # noqa: PLC0415

        def start(transfers: "Transfers") -> int:
            begin: Callable[..., int] = getattr(transfers, f"start_{action}")
            return begin(None, self._vhost, self._name, *arguments, **options, chosen=Chosen(where, limit))

        return await self._core.transfer(start)


class AsyncVHost:
    """One virtual host of a broker in the running event loop."""

    def __init__(self, core: Core, vhost: str) -> None:
        self._core = core
        self._vhost = vhost

    def __repr__(self) -> str:
        return f"<vhost {self._vhost!r}>"

    @property
    def vhost(self) -> str:
        """Name of the virtual host."""
        return self._vhost

    @property
    def url(self) -> str:
        """URL for clients, such as `amqp://guest:guest@127.0.0.1:54321/%2F`. Raises ClosedBrokerError."""
        return self._core.url_of(self._vhost)

    @property
    def port(self) -> int:
        """The port of the first listener. Raises ClosedBrokerError."""
        return self._core.address[1]

    def queue(self, name: str) -> AsyncQueueView:
        """Return a view of a queue, which need not exist yet."""
        return AsyncQueueView(self._core, self._vhost, name)

    async def queues(self) -> list[str]:
        """Return the names of the queues."""
        return self._core.see(lambda each: [queue.name for queue in each.listings.queues(None, self._vhost)])

    async def delayed(self, exchange: str) -> list[MessageView]:
        """Return the messages that an exchange of type `x-delayed-message` keeps, in the order of their due times."""
        return await self._core.look(lambda each: each.messages.peek_delayed(None, self._vhost, exchange))

    def tail(self, exchange: str, pattern: str = EVERYTHING, *, where: str = "") -> AsyncTail:
        """Return an iterator (`async with`, `async for`) over the messages that reach an exchange from now on.

        It needs no binding, and publishers do not wait for it. It includes unroutable messages, dead letters and
        messages from other exchanges. The exchange must exist.

        Args:
            exchange: name of the exchange; '' for the default exchange.
            pattern: what routing keys must match, as in a binding to a topic exchange.
            where: a condition that messages must meet (docs/filters.md); '' for all.
        """
        return AsyncTail(self._core, self._vhost, exchange, pattern, where)

    async def record(self, exchange: str) -> None:
        """Record the messages of an exchange from now on; the exchange need not exist yet."""
        server = self._core.server
        self._core.recorder.record(self._vhost, exchange)
        vhost = server.vhosts.get(self._vhost)
        if vhost is not None:
            vhost.router.generation += 1  # channels look their routes up again

    async def published(self, exchange: str) -> list[MessageView]:
        """Return the messages that reached a recorded exchange, from publishers and other exchanges, in order.

        They include unroutable messages and dead letters. A broker records the latest 100,000 messages
        with at most 64 MiB of bodies. Raises NotRecordedError.
        """
        return list(self._published(exchange).messages)

    def _published(self, exchange: str) -> Record:
        self._core.see(lambda _: None)
        found = self._core.recorder.published(self._vhost, exchange)
        if found is None:
            raise NotRecordedError(
                f"exchange '{exchange}' is not recorded: use Broker(record=True), or call record('{exchange}') before"
            )
        return found

    async def forget_published(self) -> None:
        """Delete the record of the virtual host, and end the recording that `record` has begun."""
        self._core.recorder.forget(self._vhost)

    async def connections(self) -> list[dict[str, Any]]:
        """Return the connections to the virtual host, under RabbitMQ's names."""
        from leveret.broker.management.clients import connection_rows  # noqa: PLC0415 - loaded when it is used first

        return self._core.see(lambda _: connection_rows(self._core.server, self._vhost))

    async def definitions(self) -> dict[str, Any]:
        """Return the definitions of the whole broker, in RabbitMQ's format."""
        from leveret.broker.administration.definitions_document import encoded  # noqa: PLC0415 - as above

        document = await self._core.look(lambda each: each.definitions.exporting(None))
        found: dict[str, Any] = json.loads(encoded(document))
        return found

    async def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Create what definitions in RabbitMQ's format contain, entirely or not at all. Raises RefusedError."""
        octets = json.dumps(definitions).encode()
        await self._core.do(lambda each: each.definitions.import_file(None, octets))

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
            durable: whether the declared objects survive a restart.
            auto_delete: whether the queue (without one, the exchange) is deleted when it is no longer used.
            arguments: arguments of the queue; without one, those of the exchange.

        Raises:
            RefusedError: it exists with other properties, or the broker refuses the arguments.
        """

        def work(each: Administration) -> None:
            topology, vhost = each.topology, self._core.server.vhosts.get(self._vhost)
            if exchange and (type is not None or (vhost and vhost.router.get(exchange) is None)):
                topology.declare_exchange(
                    None,
                    self._vhost,
                    exchange,
                    type or "direct",
                    durable=durable,
                    auto_delete=auto_delete and queue is None,
                    arguments=arguments if queue is None else None,
                )
            if queue is None:
                return
            topology.declare_queue(
                None, self._vhost, queue, durable=durable, auto_delete=auto_delete, arguments=arguments
            )
            if exchange:
                topology.bind(None, self._vhost, exchange, queue, routing_key=routing_key)

        await self._core.do(work)

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
        octets = body.encode() if isinstance(body, str) else bytes(memoryview(body))  # a number is no size
        done: Answer[Outcome] = Answer()
        server = self._core.server
        try:
            message = server.administration.publishing.publish(
                None,
                self._vhost,
                exchange,
                routing_key,
                octets,
                done.give,
                properties=properties,
                headers=headers,
            )
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        finally:
            server.loop.run_turn()
        self._record(server, exchange, message)
        if mandatory and done.future.done() and done.future.result() == "unroutable":
            raise UnroutableError(
                f"no queue for exchange '{exchange}' and routing key '{routing_key}' in vhost '{self._vhost}'"
            )
        if confirm and await server.result_of(done.future) == "nacked":
            raise NackedError(
                f"a queue has refused the message (exchange '{exchange}', routing key '{routing_key}')"
            )

    def _record(self, server: EmbeddedServer, exchange: str, message: Message) -> None:
        vhost = server.vhosts[self._vhost]
        found = vhost.router.get(exchange)
        if found is not None and self._core.recorder.is_active(self._vhost):
            self._core.recorder.add(vhost, found, message)

    async def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; return how many. Raises RefusedError if there is no such queue."""
        return await self.queue(queue).purge()

    async def close_connections(self, reason: str = "closed by the application") -> int:
        """Close the connections to the virtual host with 320 CONNECTION_FORCED and a reason; return how many."""
        return await self._core.do(lambda each: each.listings.close_connections(None, reason, self._vhost))

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
        record = self._published(exchange)
        check_published(exchange, record, body=body, routing_key=routing_key, headers=headers, times=times)

    async def assert_acked(self, queue: str, n: int) -> None:
        """Check that consumers have acknowledged `n` messages of a queue since it was declared.

        Raises:
            AssertionError: it is another number.
            RefusedError: there is no such queue.
        """
        __tracebackhide__ = True
        acked = (await self.queue(queue).details())["message_stats"]["ack"]
        if acked != n:
            raise AssertionError(f"queue {queue!r}: {acked} messages acknowledged, expected {n}")

    async def assert_no_unroutable(self) -> None:
        """Check that every recorded message has reached a queue.

        Raises:
            AssertionError: some have not; the text has the latest of them.
            NotRecordedError: nothing is recorded, or the record has forgotten messages.
        """
        __tracebackhide__ = True
        self._core.see(lambda _: None)
        found = self._core.recorder.recorded(self._vhost)
        if found is None:
            raise NotRecordedError("nothing is recorded: use Broker(record=True), or call record() before")
        check_no_unroutable(list(found.items()))

    async def wait_until_idle(self, timeout: float = 5) -> None:  # noqa: ASYNC109 - its error says what is not idle
        """Wait until the broker is idle.

        Idle means: received bytes are processed, commits are complete, no timer is due, no message is unacked, and
        no queue with consumers has messages. Publishes that a client has not sent yet do not count.

        Args:
            timeout: seconds, in real time, greater than 0; at most 50 for a `Broker`.

        Raises:
            NotIdleError: the broker was not idle in time; the text names the queues.
        """
        server = self._core.server
        try:
            async with asyncio.timeout(timeout):
                await server.settle()
                while self._busy_queues(server):
                    await server.loop.turn_ended()
                    await server.settle()
        except TimeoutError:
            left = "; ".join(self._busy_queues(server)) or "the broker is busy"
            raise NotIdleError(f"vhost '{self._vhost}' is not idle after {timeout:g} s: {left}") from None

    def _busy_queues(self, server: EmbeddedServer) -> list[str]:
        """Return the queues with messages that consumers have or will get, each with a text about them."""
        found = []
        vhost = server.vhosts.get(self._vhost)
        for queue in () if vhost is None else vhost.queues.values():
            unacked = queue.backing.unacked_count
            ready = queue.ready_count if queue.consumer_count and not queue.is_paused else 0
            if unacked or ready:
                found.append(
                    f"queue '{queue.name}' has {unacked} unacked messages and {ready} for its consumers"
                )
        return found


class AsyncBroker(AsyncVHost):
    """A broker in the running event loop; `async with`, or `start` and `stop`.

    The methods of `AsyncVHost` apply to the first virtual host of the configuration, by default `/`. It stops
    with the loop: a broker that is to serve clients while the loop is busy with something else needs a thread
    (`Broker`).

    Args:
        data_dir: directory of the durable data, created if needed; None keeps everything in memory.
        config: keys of the configuration file and their values, as text or as bool, number or path.
        port: port on 127.0.0.1; 0 chooses a free one. The key `listeners.tcp.*` configures other addresses.
        record: whether every publish is recorded (`published`).
        management: whether the management API is served on a free port of 127.0.0.1 (`management_url`).

    Raises:
        ConfigurationError: a key or value of `config` is wrong.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        record: bool = False,
        management: bool = False,
    ) -> None:
        core = Core(data_dir, config, port, record=record, management=management)
        super().__init__(core, core.config.vhosts[0])

    @property
    def clock(self) -> Clock:
        """The clock of the broker, which can be stopped and advanced."""
        return self._core.clock

    @property
    def faults(self) -> Faults:
        """Faults on demand."""
        return self._core.faults

    async def start(self) -> Self:
        """Start; clients can connect when this returns.

        After `stop` or `kill` the broker starts again at the same port, with its data directory.

        Raises:
            PortInUseError: the port is taken.
            DataDirectoryError: another broker uses the directory, or it cannot be read.
            ClosedBrokerError: it is running already.
        """
        await self._core.start()
        return self

    async def stop(self) -> None:
        """Disconnect the clients, write durable data to disk and close. No effect if it is not running."""
        await self._core.stop()

    async def kill(self) -> None:
        """End as if the process were killed: clients are disconnected, nothing more is sent or written.

        Confirmed messages are in the data directory; unconfirmed ones may be. `start` starts the broker again.
        """
        await self._core.kill()

    async def restart(self) -> None:
        """Kill the broker if it is running, and start it again with the same URL and the remaining data.

        Raises what `start` raises.
        """
        await self._core.restart()

    @property
    def management_url(self) -> str:
        """The URL of the management API with a login, for `management=True`. Raises ClosedBrokerError."""
        return self._core.management_url

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url if self._core.is_running else 'closed'}>"

    def vhost_view(self, name: str) -> AsyncVHost:
        """Return a view of another virtual host, which must exist when it is used."""
        return AsyncVHost(self._core, name)
