"""The core of an embedded broker: a server and the lock on its data, in the running event loop (driver).

Theory. The process belongs to the application. So nothing of what `broker.cli` does for a process of the broker's own
happens here: no signal handlers, no limits, no umask, no settings of the garbage collector or of the interpreter, no
release of free memory, no log output.

Operations (`broker.administration`) are carried out as the operator on the host: permissions of users do not matter.

A forked child has all descriptors of its parent. As long as it lives, a client whose connection the broker has
closed would not notice, and a port that the broker has left would stay taken and even accept connections without a
reader. Workers of Celery and of `multiprocessing` are such children. So each descriptor is replaced by one of the null
device. It is not closed: its number would be given to a file of the child, which the child's copy of the broker's
objects would close one day.

A restart must find the port of the first start free, but between the two it is free, and the system gives free ports to
any process. So each address is bound by a second socket that never listens: clients are refused while the broker is
down, as they should be, and no other socket gets the port by chance. The broker's own can share it, because both are
bound with SO_REUSEADDR. A program that asks for this very port gets it, too.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from leveret.broker.administration import Administration, AdministrationError, DefinitionsError
from leveret.broker.administration.messages import Steps
from leveret.broker.config.config import Config, ConfigError, load
from leveret.broker.config.values import Listener
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
from leveret.broker.network.listener import bound_socket
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.broker.server.startup import open_data_store, port_problem
from leveret.broker.tls.options import TLSFileError
from leveret.storage.errors import StorageError

if TYPE_CHECKING:
    from leveret.broker.administration.transfers import Transfers


# Settings of a process that is nothing but a broker; here the process is the application's.
_OF_THE_PROCESS: Final = {
    "data_dir": "it is the argument data_dir",
    "pid_file": "an embedded broker has no process of its own",
    "log": "an embedded broker logs to the loggers below 'leveret' of the module logging, which are the application's",
    "prometheus": "an embedded broker has no metrics listener",
    "replication": "an embedded broker is not replicated: `leveret serve` is",
    "vhosts": "an embedded broker is one process: `leveret serve` may be several",
    "management": "the management API is served with the argument management=True",
}
_OF_LOGINS: Final = ("management.oauth_", "management.disable_basic_auth")
"""Beginnings of keys about the management API that say who may use it."""
_DEFAULTS: Final = {
    # All memory of the process counts, so the broker would block publishers because of what the application needs.
    "vm_memory_high_watermark.relative": "1"
}


def make_config(values: Mapping[str, object], data_dir: Path | None, port: int) -> Config:
    """Return the configuration of an embedded broker; raises ConfigurationError with all problems.

    `data_dir` is None for a broker in memory. The `port` on 127.0.0.1, 0 for a free one, is used unless `values` has
    listeners.
    """
    problems = [
        f"config: {key}: {_OF_THE_PROCESS[top]}"
        for key in values
        if (top := str(key).partition(".")[0]) in _OF_THE_PROCESS and not str(key).startswith(_OF_LOGINS)
    ]
    if problems:
        raise ConfigurationError(tuple(problems))
    given: dict[str, object] = dict(_DEFAULTS)
    if not any(str(key).startswith("listeners.tcp") for key in values):
        given["listeners.tcp.default"] = f"127.0.0.1:{port}"
    elif port:
        raise ConfigurationError(("config: listeners.tcp: the argument port is given, too",))
    if any(str(key).startswith("vm_memory_high_watermark.") for key in values):
        del given["vm_memory_high_watermark.relative"]
    try:
        return load((), data_dir, values=given | dict(values))
    except ConfigError as error:
        raise ConfigurationError(error.problems) from None


_servers: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def keep_from_children(server: Any) -> None:
    """Have the children that are forked from now on close the sockets (`descriptors`) that a server has then."""
    _servers.add(server)


def _let_go() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for server in list(_servers):
        for descriptor in server.descriptors():
            with contextlib.suppress(OSError):  # -1: it was closed
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class HeldPorts:
    """The ports of one broker. What is held when the object is collected is released."""

    def __init__(self) -> None:
        self._release = weakref.finalize(self, _close, ())
        self._held: tuple[int, ...] = ()

    def hold(self, listeners: Iterable[Listener]) -> tuple[Listener, ...]:
        """Hold addresses until `release`, unless some are held; must be called before anyone listens there.

        A name is not held, since it may have several addresses, nor an address that is not free: the broker will say
        why it cannot be bound. Returns the same, with the port that the system chose for each held one that had the
        port 0.
        """
        given = tuple(listeners)
        if self._held:
            return given
        found = []
        held = []
        for listener in given:
            with contextlib.suppress(OSError, ValueError):
                version = ipaddress.ip_address(listener.host).version
                sock = bound_socket(listener.host, listener.port, is_ipv6=version == 6)  # noqa: PLR2004
                listener = Listener(listener.host, sock.getsockname()[1])  # noqa: PLW2901
                held.append(sock.detach())
            found.append(listener)
        self._held = tuple(held)
        self._release = weakref.finalize(self, _close, self._held)
        keep_from_children(self)
        return tuple(found)

    def release(self) -> None:
        """Hold nothing any more; without effect if nothing is held."""
        self._held = ()
        self._release()

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of the sockets."""
        return self._held


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


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
