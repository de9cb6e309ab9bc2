"""Operations of both brokers in one virtual host, as coroutines of the loop of the core (driver).

All of it goes through the service layer (`broker.administration`), as the operator on the host: permissions of users do
not matter here.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.broker.administration import AdministrationError
from leveret.broker.administration.messages import MessageView, Steps
from leveret.broker.embedded.core import Core, EmbeddedServer
from leveret.broker.embedded.errors import (
    ClosedBrokerError,
    DataDirectoryError,
    NackedError,
    NotIdleError,
    NotRecordedError,
    RefusedError,
    UnroutableError,
)
from leveret.broker.embedded.recording import Record
from leveret.storage.errors import StorageError
from leveret.storage.message import Message

if TYPE_CHECKING:
    from leveret.broker.administration.publishing import Outcome

T = TypeVar("T")


class Operations:
    """Operations in one virtual host.

    Args:
        core: the broker.
        vhost: name of the virtual host.

    """

    def __init__(self, core: Core, vhost: str) -> None:
        self.core = core
        self.vhost = vhost

    async def do(self, work: Callable[[EmbeddedServer], T]) -> T:
        """Carry out an operation of the service layer, and wait until what it has changed is on disk.

        Raises:
            RefusedError: the broker refuses it.
            ClosedBrokerError: the broker does not run.
            DataDirectoryError: the disk cannot be read now.

        """
        server = self.core.server
        try:
            result = work(server)
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        finally:
            server.run_turn()
        await server.stored()
        return result

    def see(self, work: Callable[[EmbeddedServer], T]) -> T:
        """Look at something that takes no time; raises as `do`."""
        server = self.core.server
        server.run_turn()
        try:
            return work(server)
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        except StorageError as error:
            raise DataDirectoryError(str(error)) from None

    async def look(self, begin: Callable[[EmbeddedServer], Steps[T]]) -> T:
        """Carry out an operation in steps, between which clients are served; raises as `do`."""
        server = self.core.server
        steps = self.see(begin)
        answer: Any = None
        slices = server.turn.slices
        slices.begin()
        while True:
            try:
                wanted = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            answer = None
            if wanted is not None:
                answer = await self._read(wanted)
            elif slices.is_over():
                await asyncio.sleep(0)
            else:
                continue
            slices.begin()

    async def _read(self, wanted: Callable[[], Any]) -> Any:
        """Run a read in the thread of the reader."""
        server = self.core.server
        disk = server.disk
        if disk is None:
            raise ClosedBrokerError("the broker is not running any more")
        read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def finished(found: Any, error: BaseException | None) -> None:
            if read.done():
                return
            if error is not None:
                read.set_exception(DataDirectoryError(f"cannot read the data now: {error}"))
            else:
                read.set_result(found)

        disk.run_read(wanted, finished)
        return await server.result_of(read)

    # -- looking ----------------------------------------------------------------------------------------------------

    async def messages(
        self, queue: str, most: int | None, where: str = "", *, from_tail: bool = False
    ) -> list[MessageView]:
        """Return the messages of a queue; see `MessageAdministration.peek_queue`, and `Peeking.peek` for a choice."""
        if not where and not from_tail:
            return await self.look(
                lambda server: server.administration.messages.peek_queue(None, self.vhost, queue, most)
            )
        from leveret.broker.administration.peeking import MOST_MESSAGES, MOST_OCTETS, Wanted  # noqa: PLC0415

        wanted = Wanted(MOST_MESSAGES if most is None else most, from_tail, where, MOST_OCTETS)
        found = await self.look(
            lambda server: server.administration.peeking.peek(None, self.vhost, queue, wanted)
        )
        return found.messages

    async def delayed(self, exchange: str) -> list[MessageView]:
        """Return the messages that an exchange delays."""
        return await self.look(
            lambda server: server.administration.messages.peek_delayed(None, self.vhost, exchange)
        )

    async def queue(self, name: str) -> dict[str, Any]:
        """Return the row of a queue in the listing of queues. Raises RefusedError if there is none."""
        return self.see(lambda server: server.administration.listings.queue(None, self.vhost, name))

    async def queues(self) -> list[dict[str, Any]]:
        """Return the rows of all queues."""
        return list(self.see(lambda server: server.administration.listings.queues(None, self.vhost)))

    async def consumers(self, queue: str) -> list[dict[str, Any]]:
        """Return the rows of a queue's consumers."""
        return self.see(
            lambda server: server.administration.listings.queue_consumers(None, self.vhost, queue)
        )

    async def connections(self) -> list[dict[str, Any]]:
        """Return the rows of the connections to the virtual host."""
        return list(self.see(lambda server: server.administration.listings.connections(None, self.vhost)))

    async def definitions(self) -> dict[str, Any]:
        """Return the definitions of the whole broker, as `leveret definitions export` writes them."""
        found: dict[str, Any] = json.loads(
            await self.look(lambda server: server.administration.definitions.exporting(None))
        )
        return found

    async def record(self, exchange: str) -> None:
        """Record what is published to an exchange from now on."""
        server = self.core.server
        self.core.recorder.record(self.vhost, exchange)
        vhost = server.vhosts.get(self.vhost)
        if vhost is not None:
            vhost.router.generation += 1  # channels look their routes up again

    async def published(self, exchange: str) -> Record:
        """Return what was published to a recorded exchange."""
        self.see(lambda _: None)
        found = self.core.recorder.published(self.vhost, exchange)
        if found is None:
            raise NotRecordedError(
                f"exchange '{exchange}' is not recorded: use Broker(record=True), or call record('{exchange}') before"
            )
        return found

    async def recorded(self) -> list[tuple[str, Record]]:
        """Return the exchanges to which something was published, with their messages."""
        self.see(lambda _: None)
        found = self.core.recorder.recorded(self.vhost)
        if found is None:
            raise NotRecordedError("nothing is recorded: use Broker(record=True), or call record() before")
        return list(found.items())

    async def wait_until_idle(self, timeout: float) -> None:  # noqa: ASYNC109 - its error says what is not idle
        """Wait until no message is on its way; see `VHost.wait_until_idle`."""
        server = self.core.server
        try:
            async with asyncio.timeout(timeout):
                await server.settle()
                while self._on_their_way(server):
                    await server.turn_ended()
                    await server.settle()
        except TimeoutError:
            left = "; ".join(self._on_their_way(server)) or "the broker is busy"
            raise NotIdleError(f"vhost '{self.vhost}' is not idle after {timeout:g} s: {left}") from None

    def _on_their_way(self, server: EmbeddedServer) -> list[str]:
        """Return the queues with messages that consumers have or will get, each with a text about them."""
        found = []
        vhost = server.vhosts.get(self.vhost)
        for queue in () if vhost is None else vhost.queues.values():
            unacked = queue.backing.unacked_count
            ready = queue.ready_count if queue.consumer_count and not queue.is_paused else 0
            if unacked or ready:
                found.append(
                    f"queue '{queue.name}' has {unacked} unacked messages and {ready} for its consumers"
                )
        return found

    async def forget_published(self) -> None:
        """Forget what was recorded, and record no more than from the start of the broker."""
        self.core.recorder.forget(self.vhost)

    # -- acting -----------------------------------------------------------------------------------------------------

    async def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Create what definitions contain."""
        octets = json.dumps(definitions).encode()
        await self.do(lambda server: server.administration.definitions.import_file(None, octets))

    async def declare(
        self,
        queue: str | None,
        *,
        exchange: str | None,
        type: str | None,  # noqa: A002 - the name of the field in AMQP
        routing_key: str,
        durable: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        """Declare a queue, an exchange, or both and a binding between them; see `VHost.declare`."""

        def work(server: EmbeddedServer) -> None:
            topology, vhost = server.administration.topology, self.vhost
            place = server.vhosts.get(vhost)
            if exchange and (type is not None or (place and place.router.get(exchange) is None)):
                own = None if queue is not None else arguments
                topology.declare_exchange(
                    None,
                    vhost,
                    exchange,
                    type or "direct",
                    durable=durable,
                    auto_delete=auto_delete and queue is None,
                    arguments=own,
                )
            if queue is None:
                return
            topology.declare_queue(
                None, vhost, queue, durable=durable, auto_delete=auto_delete, arguments=arguments
            )
            if exchange:
                topology.bind(None, vhost, exchange, queue, routing_key=routing_key)

        await self.do(work)

    async def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; return how many."""
        return await self.do(
            lambda server: server.administration.topology.purge_queue(None, self.vhost, queue)
        )

    async def delete_queue(self, queue: str) -> int:
        """Delete a queue; return the number of its ready messages."""
        return await self.do(
            lambda server: server.administration.topology.delete_queue(None, self.vhost, queue)
        )

    async def set_paused(self, queue: str, *, paused: bool) -> None:
        """Pause or resume the deliveries of a queue; see `QueueView.pause`."""
        vhost = self.vhost
        await self.do(lambda each: each.administration.topology.set_queue_paused(None, vhost, queue, paused))

    async def close_connections(self, reason: str) -> int:
        """Close the connections to the virtual host with 320 and a reason; return how many."""
        return await self.do(
            lambda server: server.administration.listings.close_connections(None, reason, self.vhost)
        )

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str,
        *,
        properties: Mapping[str, Any] | None,
        headers: Mapping[str, Any] | None,
        mandatory: bool,
        confirm: bool,
    ) -> None:
        """Publish a message; see `VHost.publish`."""
        octets = body.encode() if isinstance(body, str) else bytes(memoryview(body))  # a number is no size
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def finished(outcome: "Outcome") -> None:
            if not done.done():
                done.set_result(outcome)

        server = self.core.server
        try:
            message = server.administration.publishing.publish(
                None,
                self.vhost,
                exchange,
                routing_key,
                octets,
                finished,
                properties=properties,
                headers=headers,
            )
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        finally:
            server.run_turn()
        self._record(server, exchange, message)
        if not confirm and not mandatory:
            return
        if mandatory and done.done() and done.result() == "unroutable":
            raise UnroutableError(
                f"no queue for exchange '{exchange}' and routing key '{routing_key}' in vhost '{self.vhost}'"
            )
        if confirm and await server.result_of(done) == "nacked":
            raise NackedError(
                f"a queue has refused the message (exchange '{exchange}', routing key '{routing_key}')"
            )

    def _record(self, server: EmbeddedServer, exchange: str, message: Message) -> None:
        """Record a message that was published here."""
        vhost = server.vhosts[self.vhost]
        found = vhost.router.get(exchange)
        if found is not None and self.core.recorder.is_active(self.vhost):
            self.core.recorder.add(vhost, found, message)
