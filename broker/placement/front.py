"""The front: a broker without messages that logs clients in, and hands them to the process of their virtual host."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from leveret.broker.auth.users import User
from leveret.broker.config.config import Config
from leveret.broker.metadata.recorder import MetadataJournal, octets, text
from leveret.broker.placement.forwarding import (
    ForwardingConnection,
    ForwardingDriver,
    ForwardingHandshake,
    ForwardingServer,
)
from leveret.broker.placement.messages import (
    Alarmed,
    AnyMessage,
    Begin,
    Changed,
    Handed,
    Left,
    Placed,
    Ready,
    Removed,
)
from leveret.broker.placement.node_rows import SettledChanges
from leveret.broker.placement.placement import Placement, PlacementError
from leveret.broker.placement.processes import Processes, ProcessStartError, VHostProcess, check_directory
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.server.shutdown import STOP_SECONDS
from leveret.broker.vhost.vhost import VHost

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore

log = logging.getLogger("leveret.connection")


class FrontHandshake(ForwardingHandshake):
    """A handshake that ends with the hand-over instead of `connection.open-ok`, which the process sends."""

    def _opened(self, user: User, vhost: VHost) -> None:
        connection = self._client
        connection.user, connection.vhost = user, vhost
        server = connection.node
        assert isinstance(server, FrontServer) and isinstance(connection, FrontConnection)  # noqa: S101, PT018 - it has made it
        self._wait(partial(server.when_taken, connection), connection.hand_over)


class FrontConnection(ForwardingConnection):
    """A client until it is handed over."""

    __slots__ = ()
    handshake_class = FrontHandshake

    def hand_over(self, process: VHostProcess) -> None:
        """Pass the socket and what the client has sent on; nothing more is read here."""
        server, driver = self.node, self.driver
        assert isinstance(server, FrontServer) and isinstance(driver, FrontDriver)  # noqa: S101, PT018 - as above
        message = Handed(
            server.handed(process, self.user.name, self.vhost),
            octets(self.user.name),
            octets(self.vhost.name),
            self.auth_mechanism,
            self.client_properties,
            [octets(name) for name in self.capabilities],
            self.frame_max,
            self.channel_max,
            self.heartbeat,
            self.peer,
            self.local,
            self.leave(),
        )
        driver.hand_over(process, message)


class FrontDriver(ForwardingDriver):
    """The driver of such a client."""

    connection_class = FrontConnection

    def hand_over(self, process: VHostProcess, message: Handed) -> None:
        """Send the socket to a process, and close it here, which the client does not see."""
        self._closing = True
        assert process.pipe is not None  # noqa: S101 - it takes clients
        process.pipe.send(message, self._socket.fileno())
        self._transport.abort()


class FrontServer(ForwardingServer):
    """The front. Its vhosts are empty: they are the names, and the limits, of those of its processes."""

    place = "front"
    driver_class = FrontDriver
    settled: SettledChanges

    def __init__(
        self, config: Config, disk: "DataStore | None" = None, time_source: TimeSource | None = None
    ) -> None:
        wanted = config.placement
        self.placement = Placement(wanted.processes, wanted.pins)
        self.processes = Processes(wanted.processes, self._received, self._lost)
        self._numbers = count(1)
        self._handed: dict[int, dict[int, tuple[str, VHost]]] = {number: {} for number in self.processes.all}
        self._unplaced = set(self.processes.all)  # processes that have not started yet
        self._alarms: dict[
            int, list[str]
        ] = {}  # names of those that are raised in each process, 0 for this one
        self._is_new = False  # True if nothing is stored here yet
        super().__init__(config, disk, time_source)

    def _make_journal(self) -> tuple[MetadataJournal, Callable[[], int]]:
        journal, next_id = super()._make_journal()
        self.loop.attach(asyncio.get_running_loop())
        self.settled = SettledChanges(journal, self._tell, self.loop.call_soon)
        self.settled.on_sent = self._changes_sent
        return self.settled, next_id  # type: ignore[return-value]

    def load_definitions(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what an earlier run has stored; raises as `Server.load_definitions`, and PlacementError."""
        stored = list(rows)
        self._is_new = not stored
        self.settled.restore(stored)
        check_directory(self.config.data_dir, self.config.placement.processes, is_new=self._is_new)
        return super().load_definitions(stored)

    async def start(self) -> None:
        """Start the processes, then as `Server.start`; raises ProcessStartError, too."""
        self.resource_monitor.on_changed = partial(self._alarmed, 0)
        await self.processes.start()
        try:
            await super().start()
        except BaseException:
            await self.processes.stop()
            raise

    async def stop(self, reason: str = "shutdown", seconds: float = STOP_SECONDS) -> int:
        """Stop accepting, stop the processes, then as `Server.stop`."""
        self.is_stopping = True
        self.gate.close()
        await self.processes.stop()
        return await super().stop(reason, seconds)

    # -- clients ------------------------------------------------------------------------------------------------------

    def when_taken(self, connection: FrontConnection, callback: Callable[[VHostProcess], object]) -> None:
        """Call back, in a step of its own, with the process of a client's virtual host when that takes the client.

        It takes none before it has all changes so far: the user or its rights may be among them.
        """
        process = self.processes.all[self.placement.place(connection.vhost.name)]

        def try_now() -> None:
            if process.takes_clients and self.settled.are_sent:
                callback(process)
            else:
                process.wait(lambda: connection.pending_reply is not None, try_soon)

        def try_soon() -> None:
            self.loop.call_soon(try_now)

        # later, because what was read behind `connection.open` is kept only when this read is over
        try_soon()

    def _changes_sent(self) -> None:
        for process in self.processes.all.values():
            process.release()

    def handed(self, process: VHostProcess, user: str, vhost: VHost) -> int:
        """Count a client that a process gets, for the limits; returns its number."""
        number = next(self._numbers)
        self._handed[process.number][number] = user, vhost
        self.clients.count_handed(user, vhost, 1)
        return number

    def _left(self, process: VHostProcess, number: int) -> None:
        client = self._handed[process.number].pop(number, None)
        if client is not None:
            self.clients.count_handed(*client, -1)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _received(self, process: VHostProcess, message: AnyMessage) -> None:
        match message:
            case Left():
                self._left(process, message.number)
            case Alarmed():
                self._alarmed(process.number, message.names)
            case Ready():
                try:
                    self._found(process, [text(name) for name in message.vhosts])
                except PlacementError as error:
                    self.processes.fail(ProcessStartError(str(error)))

    def _found(self, process: VHostProcess, vhosts: list[str]) -> None:
        """Begin with a process that has started; at the start of the front only when all have started."""
        if not self._unplaced:
            self._begin(process)
            return
        lost = [name for name in vhosts if name not in self.vhosts]
        if lost and self._is_new:
            raise PlacementError(
                f"process {process.number} has virtual hosts, such as '{lost[0]}', but {self.config.data_dir} has "
                "lost their names"
            )
        self.placement.found(process.number, [name for name in vhosts if name in self.vhosts])
        self._unplaced.discard(process.number)
        if not self._unplaced:
            for name in self.vhosts:
                log.info("virtual host '%s' is in process %d", name, self.placement.place(name))
            for each in self.processes.all.values():
                self._begin(each)

    def _begin(self, process: VHostProcess) -> None:
        if process.pipe is None:
            return  # it has ended again, and will tell once more
        names = self.placement.vhosts(process.number)
        rows = [row for row in self.settled.vhosts.values() if text(row.name) in names]
        process.pipe.send(Begin(self.settled.rows, rows))
        log.info("process %d: pid %s, %d virtual hosts", process.number, process.pid, len(rows))
        self.processes.ready(process)
        self._alarmed(process.number, self._alarms.get(process.number, []))

    def _alarmed(self, number: int, names: list[str]) -> None:
        """Have all processes block publishers while there is an alarm in one."""
        self._alarms[number] = names
        for process in self.processes.all.values():
            if process.is_ready and process.pipe is not None:
                others = [
                    name for each, some in self._alarms.items() if each != process.number for name in some
                ]
                process.pipe.send(Alarmed(sorted(set(others))))

    def _lost(self, process: VHostProcess) -> None:
        self._alarmed(process.number, [])
        for number in list(self._handed[process.number]):
            self._left(process, number)

    def _tell(self, message: AnyMessage) -> None:
        """Send a change that is on disk to the processes; one that is starting gets the result when it is ready."""
        match message:
            case Changed():
                for process in self.processes.all.values():
                    if process.is_ready and process.pipe is not None:
                        process.pipe.send(message)
                return
            case Placed():
                name = text(message.vhost.name)
                if (number := self.placement.of(name)) is None:
                    number = self.placement.place(name)
                    log.info("virtual host '%s' is in process %d", name, number)
            case Removed():
                number = self.placement.remove(text(message.vhost))
            case _:
                return
        if (
            number is not None
            and (process := self.processes.all[number]).is_ready
            and process.pipe is not None
        ):
            process.pipe.send(message)
