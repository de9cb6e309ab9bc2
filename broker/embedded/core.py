"""The core of an embedded broker: a server and the lock on its data, in the running event loop (driver).

Theory. The process belongs to the application. So nothing of what `broker.cli` does for a process of the broker's own
happens here: no signal handlers, no limits, no umask, no settings of the garbage collector or of the interpreter, no
release of free memory, no log output. Where a broker that is alone ends its process because the disk has failed, this
one disconnects its clients without a reply, and refuses further calls.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from leveret.broker.administration import DefinitionsError
from leveret.broker.config.config import Config, Listener
from leveret.broker.embedded.clock import Clock
from leveret.broker.embedded.errors import (
    ClosedBrokerError,
    ConfigurationError,
    DataDirectoryError,
    PortInUseError,
)
from leveret.broker.embedded.fault_state import FaultState
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.faulty_channel import FaultyChannel
from leveret.broker.embedded.faulty_connections import FaultyDriver
from leveret.broker.embedded.faulty_server import FaultyServer
from leveret.broker.embedded.forks import keep_from_children
from leveret.broker.embedded.held_ports import HeldPorts
from leveret.broker.embedded.recording import RecordedVHost, Recorder
from leveret.broker.embedded.settable_time import SettableTime
from leveret.broker.embedded.settings import make_config
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.broker.server.startup import open_data_store, port_problem
from leveret.broker.tls.options import TLSFileError
from leveret.storage.errors import StorageError

if TYPE_CHECKING:
    from leveret.broker.embedded.faulty_store import FaultyStore

T = TypeVar("T")

log = logging.getLogger("leveret")
log.addHandler(logging.NullHandler())  # an application without logging gets no warnings on its standard error

LOOPBACK = "127.0.0.1"
STOPPED = "the broker was stopped during the call"
CANCEL_SECONDS = 0.1
"""Interval between two attempts to end a stop whose disk has failed."""
STOP_SECONDS = 0.25
"""Time for clients to answer `connection.close`: one in a thread of its own may not be reading at all."""
_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to connect to, not to bind


class EmbeddedServer(FaultyServer):
    """A server in a process that is not its own.

    Args:
        config: the configuration.
        disk: the data store; None for a broker in memory.
        time: its time source.
        faults: its faults.
        recorder: records what is published.

    Attributes:
        failure: the reason for which the disk has failed; None normally.

    """

    failure: BaseException | None = None
    _turn_ended: asyncio.Future[None] | None = None
    _is_over = False

    def __init__(
        self,
        config: Config,
        disk: "FaultyStore | None",
        time: SettableTime,
        faults: FaultState,
        recorder: Recorder,
    ) -> None:
        self.vhost_class = partial(RecordedVHost, recorder)
        self.channel_class = partial(FaultyChannel, recorder)
        self._awaited: set[asyncio.Future[Any]] = set()
        """Futures that callers of the application wait for."""
        super().__init__(config, disk, time, faults)

    async def result_of(self, future: "asyncio.Future[T]") -> T:
        """Wait for a future that the server resolves. Raises ClosedBrokerError if it ends before that."""
        self._awaited.add(future)
        try:
            return await future
        finally:
            self._awaited.discard(future)

    async def stop_unless_broken(self) -> None:
        """Stop. Raises ClosedBrokerError if the disk fails meanwhile: what waits for it would wait forever."""
        stopping = asyncio.ensure_future(self.stop("shutdown", STOP_SECONDS))
        ended = asyncio.get_running_loop().create_future()

        def end(_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        stopping.add_done_callback(end)
        try:
            await self.result_of(ended)
        finally:
            while not stopping.done():  # a wait with a limit may take the first one for its own
                stopping.cancel()
                await asyncio.wait((stopping,), timeout=CANCEL_SECONDS)
        stopping.result()

    async def finish_jobs(self) -> None:
        """Wait until no work is deferred any more. Raises ClosedBrokerError if the server ends before that."""
        while self.turn.slices or self.turn.has_paused_jobs:
            if self._is_over:
                raise ClosedBrokerError(STOPPED)
            self.turn.resume_paused_jobs()
            await asyncio.sleep(0)

    def _break_off(self, reason: str) -> None:
        """End all waits."""
        for future in [each for each in self._awaited if not each.done()]:
            future.set_exception(ClosedBrokerError(reason))

    def finish_turn(self, *, is_alone: bool = False) -> None:
        """Finish a turn, and wake those who wait for the next one."""
        super().finish_turn(is_alone=is_alone)
        if self._turn_ended is not None:
            self._turn_ended.set_result(None)
            self._turn_ended = None

    async def turn_ended(self) -> None:
        """Wait for the end of a turn, which something has caused: a client, a timer, the disk."""
        if self._turn_ended is None:
            self._turn_ended = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._turn_ended)

    def storage_failed(self, error: BaseException) -> None:
        """Disconnect all clients: the contents of the disk are unknown, so nothing may be confirmed or retried."""
        if self.failure is None:
            self.failure = error
            log.critical("storage failed, disconnecting all clients: %s", error, exc_info=error)
            self.cut_off()
            self._break_off(f"the disk of the broker has failed: {error}")

    def discard(self) -> None:
        """Release the event loop and the buffer of reads, which are large, after the stop.

        Objects of a server refer to each other: without this, all of it would stay until the application's collector
        runs a full collection, which may be after thousands of brokers.
        """
        self._is_over = True
        self._break_off(STOPPED)
        self.read_buffer = memoryview(b"")
        self._timer = self._ticker = None
        self.all_closed = asyncio.Event()
        for part in (self, self._listeners, self.resource_monitor, self.time_source):
            vars(part).pop("_loop", None)

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, those of clients and those that listen."""
        clients = [driver.descriptor for driver in self.drivers if isinstance(driver, FaultyDriver)]
        return [number for number in (*self._listeners.descriptors(), *clients) if number >= 0]

    def cut_off(self) -> None:
        """Stop without a word to clients, and without writing anything."""
        self._stopping = True
        self.close_listeners()
        self.stop_timers()
        for driver in list(self.drivers):
            driver.abort()


def _run(function: Callable[[], T]) -> T:
    """Run a function, already in the event loop of the broker."""
    return function()


class Core:
    """One embedded broker. All of it belongs to the event loop in which `start` runs.

    Args:
        data_dir: the data directory; None for a broker in memory.
        config: keys of the configuration file and their values.
        port: port on 127.0.0.1, 0 for a free one.
        record: whether everything that is published is recorded.
        management: whether the management API is served, on a free port of 127.0.0.1.

    Raises:
        ConfigurationError: with all problems.

    """

    def __init__(
        self,
        data_dir: Path | None,
        config: Mapping[str, object],
        port: int,
        *,
        record: bool = False,
        management: bool = False,
    ) -> None:
        self.config: Config = make_config(config, None if data_dir is None else data_dir.absolute(), port)
        self._has_management = management
        self._management: Any = None
        self._management_port = 0
        self._is_on_disk = data_dir is not None
        self._server: EmbeddedServer | None = None
        self._lock = contextlib.ExitStack()
        self._ports = HeldPorts()
        self.recorder = Recorder(records_all=record)
        self.time = SettableTime()
        self.clock = Clock(self.time, lambda: self.server)
        self.fault_state = FaultState()
        self.faults = Faults(self.fault_state, lambda: self.server, _run)

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start; clients may connect when this returns. Further starts have the port of the first.

        Raises:
            PortInUseError, DataDirectoryError: nothing has changed, and nothing is left open.
            ConfigurationError: a pattern or a definitions file of the configuration is invalid.

        """
        if self._server is not None:
            raise ClosedBrokerError("the broker has been started already")
        with contextlib.ExitStack() as ending, contextlib.ExitStack() as failing:
            failing.callback(self._ports.release)
            try:
                if self._is_on_disk:
                    ending.enter_context(locked(self.config.data_dir))
                listeners = self._ports.hold(self.config.listeners)
                self.config = msgspec.structs.replace(self.config, listeners=listeners)
                server = self._make_server()
                await server.start()
            except (DataDirError, StorageError) as error:
                raise DataDirectoryError(str(error)) from None
            except (DefinitionsError, TLSFileError) as error:
                raise ConfigurationError((str(error),)) from None
            except OSError as error:
                raise PortInUseError(port_problem(error, self.config.listeners)) from None
            keep_from_children(server)
            self._server = server
            self._lock = ending.pop_all()
            failing.pop_all()
        if self._has_management:
            await self._start_management(server)
        if server.addresses:
            bound = tuple(Listener(*address) for address in server.addresses)
            self.config = msgspec.structs.replace(self.config, listeners=bound)

    async def _start_management(self, server: Any) -> None:
        """Serve the management API, on the port of the first start. Raises PortInUseError; the broker is stopped."""
        # Imported here, because it takes longer than all the rest.
        from leveret.broker.http.server import ManagementServer  # noqa: PLC0415
        from leveret.broker.management.routes import ROUTER  # noqa: PLC0415

        management = ManagementServer(server, ROUTER)
        try:
            await management.start(LOOPBACK, self._management_port)
        except OSError as error:
            await self.stop()
            raise PortInUseError(port_problem(error, (Listener(LOOPBACK, self._management_port),))) from None
        keep_from_children(management)
        self._management = management
        self._management_port = management.address[1]

    async def _stop_management(self) -> None:
        if self._management is not None:
            management, self._management = self._management, None
            await management.stop()

    def _make_server(self) -> EmbeddedServer:
        if not self._is_on_disk:
            return EmbeddedServer(self.config, None, self.time, self.fault_state, self.recorder)
        from leveret.broker.embedded.faulty_store import FaultyStore  # noqa: PLC0415 - slow, and not in memory

        disk = open_data_store(self.config, FaultyStore)
        try:
            return EmbeddedServer(self.config, disk, self.time, self.fault_state, self.recorder)
        except BaseException:
            disk.close()
            raise

    async def stop(self) -> None:
        """Disconnect the clients, write everything to disk, and close; without effect if it is not running."""
        self._ports.release()
        if self._server is None:
            return
        if self._server.failure is None:
            self.faults.clear_in_loop()
        self.clock.resume()  # a retry of a full disk would never come
        await self._stop_management()
        server, self._server = self._server, None
        with self._lock:
            try:
                if server.failure is None:
                    await server.stop_unless_broken()
            finally:
                if server.failure is not None and server.disk is not None:  # before, or with the last commit
                    server.disk.abandon()
                    await server.gone()
                server.discard()

    async def kill(self) -> None:
        """End as if the process were killed: nothing more is sent or written. Without effect if it is not running."""
        server, self._server = self._server, None
        if server is None:
            return
        await self._stop_management()
        with self._lock:
            server.cut_off()
            if server.disk is not None:
                server.disk.abandon()
            await server.gone()
        server.discard()

    async def restart(self) -> None:
        """Kill the broker if it is running, and start it again at the same address, on what a kill has left.

        Raises what `start` raises.
        """
        await self.kill()
        await self.start()

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._server is not None

    @property
    def server(self) -> EmbeddedServer:
        """The running server. Raises ClosedBrokerError."""
        if self._server is None:
            raise ClosedBrokerError(
                "the broker is not running: use it within `with`, or between start() and stop()"
            )
        if self._server.failure is not None:
            raise ClosedBrokerError(f"the disk of the broker has failed: {self._server.failure}")
        return self._server

    # -- addresses --------------------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for clients: of the first listener. Raises ClosedBrokerError."""
        addresses = self.server.addresses
        if not addresses:
            raise ClosedBrokerError("the broker has no listener (listeners.tcp = none)")
        host, port = addresses[0]
        return _ANY.get(host, host), port

    @property
    def management_url(self) -> str:
        """The URL of the management API, with a login. Raises ClosedBrokerError."""
        if self._management is None:
            self.server  # noqa: B018 - raises if the broker is closed
            raise ClosedBrokerError("the broker was made without management=True")
        user = self.config.users[0]
        login = ":".join(quote(word, safe="") for word in (user.name, user.password))
        return f"http://{login}@{LOOPBACK}:{self._management_port}"

    def url_of(self, vhost: str, user: tuple[str, str] | None = None) -> str:
        """Return the URL for clients of a virtual host.

        Args:
            vhost: its name.
            user: name and password; those of the first user of the configuration if None.

        Raises:
            ClosedBrokerError: the broker does not run.

        """
        host, port = self.address
        if user is None:
            user = (self.config.users[0].name, self.config.users[0].password)
        login = ":".join(quote(word, safe="") for word in user)
        return f"amqp://{login}@{Listener(host, port)}/{quote(vhost, safe='')}"
