"""The core of an embedded broker: a server and the lock on its data, in the running event loop (driver).

Theory. The process belongs to the application. So nothing of what `broker.cli` does for a process of the broker's own
happens here: no signal handlers, no limits, no umask, no settings of the garbage collector or of the interpreter, no
release of free memory, no log output.

Operations (`broker.administration`) are carried out as the operator on the host: permissions of users do not matter.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from leveret.broker.administration import Administration, AdministrationError, DefinitionsError
from leveret.broker.administration.messages import Steps
from leveret.broker.config.config import Config, Listener
from leveret.broker.embedded.clock import Clock
from leveret.broker.embedded.embedded_server import Answer, EmbeddedServer
from leveret.broker.embedded.errors import (
    ClosedBrokerError,
    ConfigurationError,
    DataDirectoryError,
    PortInUseError,
    RefusedError,
)
from leveret.broker.embedded.fault_state import FaultState
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.recording import Recorder
from leveret.broker.embedded.settable_time import SettableTime
from leveret.broker.embedded.settings import make_config
from leveret.broker.embedded.sockets import HeldPorts, keep_from_children
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.broker.server.startup import open_data_store, port_problem
from leveret.broker.tls.options import TLSFileError
from leveret.storage.errors import StorageError

if TYPE_CHECKING:
    from leveret.broker.administration.transfers import Transfers

T = TypeVar("T")

log = logging.getLogger("leveret")
log.addHandler(logging.NullHandler())  # an application without logging gets no warnings on its standard error

LOOPBACK = "127.0.0.1"
_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to connect to, not to bind


class Core:
    """One embedded broker, as `AsyncBroker`. All of it belongs to the event loop in which `start` runs."""

    def __init__(
        self,
        data_dir: str | Path | None,
        config: Mapping[str, object] | None,
        port: int,
        *,
        record: bool = False,
        management: bool = False,
    ) -> None:
        directory = None if data_dir is None else Path(data_dir).absolute()
        self.config: Config = make_config(config or {}, directory, port)
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
        self.faults = Faults(self.fault_state, lambda: self.server, lambda function: function())

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, as `AsyncBroker.start`; nothing is left open after an error."""
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
        if server.gate.listeners.addresses:
            bound = tuple(Listener(*address) for address in server.gate.listeners.addresses)
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
        """Kill the broker if it is running, and start it again."""
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
        addresses = self.server.gate.listeners.addresses
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
        return f"http://{self._login(None)}@{LOOPBACK}:{self._management_port}"

    def url_of(self, vhost: str, user: tuple[str, str] | None = None) -> str:
        """Return the URL for clients of a virtual host, with the first user of the configuration or another one."""
        return f"amqp://{self._login(user)}@{Listener(*self.address)}/{quote(vhost, safe='')}"

    def _login(self, user: tuple[str, str] | None) -> str:
        first = self.config.users[0]
        return ":".join(quote(word, safe="") for word in user or (first.name, first.password))

    # -- operations -------------------------------------------------------------------------------------------------

    async def do(self, work: Callable[[Administration], T]) -> T:
        """Carry out an operation, and wait until what it has changed is on disk.

        Raises RefusedError if the broker refuses it, ClosedBrokerError if it does not run, and DataDirectoryError if
        the disk cannot be read now.
        """
        server = self.server
        try:
            result = work(server.administration)
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        finally:
            server.loop.run_turn()
        await server.stored()
        return result

    def see(self, work: Callable[[Administration], T]) -> T:
        """Look at something that takes no time; raises as `do`."""
        server = self.server
        server.loop.run_turn()
        try:
            return work(server.administration)
        except AdministrationError as error:
            raise RefusedError(str(error)) from None
        except StorageError as error:
            raise DataDirectoryError(str(error)) from None

    async def look(self, begin: Callable[[Administration], Steps[T]]) -> T:
        """Carry out an operation in steps, between which clients are served; raises as `do`."""
        steps = self.see(begin)
        answer: Any = None
        slices = self.server.turn.slices
        slices.begin()
        while True:
            try:
                read = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            answer = None
            if read is not None:
                answer = await self._read(read)
            elif slices.is_over():
                await asyncio.sleep(0)
            else:
                continue
            slices.begin()

    async def _read(self, work: Callable[[], Any]) -> Any:
        """Run a read in the thread of the reader."""
        server = self.server
        if server.disk is None:
            raise ClosedBrokerError("the broker is not running any more")
        read = Answer[Any]()

        def finished(found: Any, error: BaseException | None) -> None:
            if error is None:
                read.give(found)
            else:
                read.fail(DataDirectoryError(f"cannot read the data now: {error}"))

        server.disk.run_read(work, finished)
        return await server.result_of(read.future)

    async def transfer(self, start: Callable[["Transfers"], int]) -> dict[str, Any]:
        """Transfer messages, and wait until that is on disk; returns the result (`administration.transfers.shown`)."""
        server = self.server
        number = self.see(lambda each: start(each.transfers))
        ended = Answer[None]()
        transfers = server.administration.transfers
        transfers.when_ended(number, lambda: ended.give(None))
        try:
            await server.result_of(ended.future)
        except asyncio.CancelledError:
            transfers.cancel(None, number)
            raise
        await server.stored()
        return transfers.transfer(None, number)
