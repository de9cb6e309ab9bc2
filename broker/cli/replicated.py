"""`leveret serve` with a replicated log: waits to lead, leads, and begins again when it is deposed (driver).

A node that leads no more has state in memory that may be no one's: it closes its clients and becomes a new process
image under the same process id, which waits. Nothing of the old one can be left over.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from leveret.broker import exit_codes
from leveret.broker.cli.startup import (
    StartupError,
    handle_hang_up,
    listen,
    open_audit_log,
    remove_pid_file,
)
from leveret.broker.config.config import RELEASED_AT, Config
from leveret.broker.metadata.recorder import octets
from leveret.broker.placement.shared_users import SharedUsers
from leveret.broker.process import logs
from leveret.broker.process.resource_alarms import memory_limit
from leveret.broker.process.sd_notify import Notifier
from leveret.broker.replication.control import Control, LookForLog, whereabouts
from leveret.broker.replication.node_driver import NodeDriver
from leveret.broker.replication.settings import Settings
from leveret.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from leveret.broker.server.replicated_server import ReplicatedServer

_logger = logging.getLogger(logs.LOGGER_NAME)

REFRESH_SECONDS: Final = 1.0  # time for which definitions read from the copy are shown without another look

ANSWER_SECONDS: Final = 0.05  # time for the answer to an operator who wants another node to lead

Lead = Callable[[asyncio.Event, Callable[[], Any]], Awaitable[int]]


async def serve_replicated(config: Config, stopping: asyncio.Event, lead: Lead, outputs: logs.Logs) -> int:
    """Wait, lead, and hand over when the process is to stop, as `stopping` says; returns the exit code.

    `lead` runs a broker: it is called with an event that is set when that is to end, and with what makes its server.
    Raises StartupError: the copy cannot be opened, the database cannot be used, or the broker cannot start. It is in
    the log, too: a node may wait for long before it leads, without a reader at its terminal.
    """
    try:
        return await _serve(config, stopping, lead, outputs)
    except StartupError as error:
        _logger.critical(
            "replication: node '%s' ends, and the others go on without it: %s. Start it again when that is mended",
            config.replication.node_name,
            error,
        )
        raise


async def _serve(config: Config, stopping: asyncio.Event, lead: Lead, outputs: logs.Logs) -> int:
    driver, look_for_log, shared = await _make_driver(config)
    driver.start()
    if shared is not None:
        shared.start()
    control = Control(driver, config.replication.warnings, config.replication.log, look_for_log, shared)
    standby = Standby(driver, config, control, outputs)
    try:
        await standby.start()
        gc.collect()
        gc.freeze()  # or clients would wait for a look at all that is loaded by now as soon as this node leads
        gc.enable()  # a node may wait for months
        Notifier(os.environ, os.getpid()).ready("waiting to lead", asyncio.get_running_loop())
        log = config.replication.log
        where = f" log '{log}'" if log else ""
        _logger.info("replication: node '%s' waits to lead%s", config.replication.node_name, where)
        await _opened(driver, stopping)
    finally:
        gc.disable()  # while the broker starts, as without replication
        await standby.stop()
    if not driver.opened.done():
        is_ended = await driver.stop()
        _logger.info("stopped")
        if not is_ended:
            _exit(0)
        driver.close()
        return 0
    return await _lead(config, driver, control, stopping, lead, outputs)


async def _make_driver(config: Config) -> tuple[NodeDriver, LookForLog, SharedUsers | None]:
    """Return the driver of this node, what looks for a log, and the users that logs share; raises StartupError."""
    try:
        from leveret.broker.replication.postgresql import PostgreSQLDriver  # noqa: PLC0415 - an extra
        from leveret.broker.replication.postgresql_moves import look_for_log  # noqa: PLC0415
        from leveret.broker.replication.postgresql_servers import Servers, with_timeouts  # noqa: PLC0415
    except ImportError as error:
        raise StartupError(
            f"replication.url needs the package psycopg: pip install 'leveret[postgresql]' ({error})",
            exit_codes.CONFIG,
        ) from None
    wanted = config.replication
    try:
        url = with_timeouts(wanted.engine_url)
    except ValueError as error:
        raise StartupError(f"replication.url: {error}", exit_codes.CONFIG) from None
    settings = Settings(
        max_batch=wanted.max_batch,
        stall_timeout=wanted.stall_timeout,
        require_synchronous=wanted.require_synchronous == "true",
    )
    servers = Servers(url)
    engines = PostgreSQLDriver(servers, wanted.log), PostgreSQLDriver(servers, wanted.log)
    try:
        driver = NodeDriver(
            config.data_dir,
            wanted.node_name,
            wanted.advertised_address,
            engines,
            settings,
            sync=config.storage.sync,
        )
    except StorageError as error:
        raise StartupError(str(error), exit_codes.of_storage(error)) from None
    if released_at := os.environ.pop(RELEASED_AT, ""):
        driver.node.candidate.stand_back(float(released_at))
    return driver, partial(look_for_log, servers), SharedUsers.of(config, servers)


async def _opened(driver: NodeDriver, stopping: asyncio.Event) -> None:
    """Wait until the node leads or the process is to stop; StartupError if the driver cannot go on."""
    stop = asyncio.create_task(stopping.wait())
    try:
        ends: list[asyncio.Future[Any]] = [stop, driver.failed, driver.opened]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
    if driver.failed.done() and (error := driver.failed.exception()) is not None:
        _logger.error("replication failed", exc_info=error)
        raise StartupError(f"replication failed: {error}", exit_codes.SOFTWARE)


class Standby:
    """Listeners of a waiting node, for the cluster, its health, metrics, and the definitions of its copy."""

    def __init__(self, driver: NodeDriver, config: Config, control: Control, outputs: logs.Logs) -> None:
        self._driver = driver
        self._config = config
        self._control = control
        self._outputs = outputs
        self._ending = contextlib.AsyncExitStack()
        self._refreshing = asyncio.Lock()
        self._rows: list[tuple[bytes, bytes]] = []
        self._due = 0.0
        self._broker: Any = None  # A `WaitingBroker`, once it listens

    async def start(self) -> None:
        """Listen where the configuration says so. Raises StartupError if that is impossible."""
        from leveret.broker.server.replicated_server import WaitingBroker  # noqa: PLC0415 - as `main` does

        broker = WaitingBroker(self._config, (), self._control, self._obstacle)
        broker.loop.attach(asyncio.get_running_loop())
        self._broker = broker
        if (writer := open_audit_log(self._config, broker.audit, self._ending)) is not None:
            self._outputs.add(writer)
            self._ending.callback(self._outputs.remove, writer)
        handle_hang_up(self._outputs, broker.gate.certificates.reload)
        await listen(broker, self._config, self._ending, self._monitor, self._management)
        broker.gate.certificates.watch(self._config.tls.reload_interval)
        self._ending.push_async_callback(broker.gate.certificates.forget)

    async def stop(self) -> None:
        """Stop listening."""
        await self._ending.aclose()

    def _obstacle(self) -> str:
        return whereabouts(self._driver.node)

    def _monitor(self) -> Callable[[], Any]:
        from leveret.broker.metrics.http import WaitingMonitor  # noqa: PLC0415 - loaded when it is asked

        return partial(WaitingMonitor, self._broker)

    def _management(self, prefix: str = "", host_names: "Collection[str]" = ()) -> Callable[[], Any]:
        from leveret.broker.http.server import WaitingServer  # noqa: PLC0415 - loaded when it is asked
        from leveret.broker.management.routes import ROUTER  # noqa: PLC0415

        return partial(WaitingServer, self._broker, self._refreshed, ROUTER, prefix, host_names)

    async def _refreshed(self) -> Any:
        """Return the broker with the definitions of the copy as it is now, or was a moment ago."""
        async with self._refreshing:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._due:
                self._broker = await asyncio.to_thread(self._read)
                self._due = loop.time() + REFRESH_SECONDS
            return self._broker

    def _read(self) -> Any:
        from leveret.broker.server.replicated_server import WaitingBroker  # noqa: PLC0415

        former = self._broker
        try:
            rows = self._driver.environment.definitions()
            if rows is not None and self._control.shared is not None:
                rows = self._control.shared.joined(rows)
            if rows is None or rows == self._rows:
                return former
            made = WaitingBroker(self._config, rows, self._control, self._obstacle, former)
        except StorageError as error:
            _logger.warning("replication: the definitions of the copy cannot be shown: %s", error)
            return former
        self._rows = rows
        return made


class _Leadership:
    def __init__(self, config: Config, driver: NodeDriver, control: Control) -> None:
        from leveret.broker.replication.replicated_store import ReplicatedDataStore  # noqa: PLC0415

        self._config = config
        self._driver = driver
        self._control = control
        memory = memory_limit(config.memory_absolute, config.memory_relative)
        ram_limit = max(1, min(config.storage.ram_limit, int(memory * config.storage.paging_ratio)))
        self.store = ReplicatedDataStore(
            driver.environment, config.storage, ram_limit=ram_limit, epoch=driver.opened.result(), log=driver
        )
        self.stale: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ending = asyncio.Event()  # set when the broker is to end
        self.is_transfer = False  # True if an operator wants another node to lead, and this one to go on
        self._server: ReplicatedServer | None = None
        control.on_transfer = self._transfer
        driver.on_wanted = self._wanted

    def make_server(self) -> "ReplicatedServer":
        from leveret.broker.placement.sharing_server import SharingServer  # noqa: PLC0415
        from leveret.broker.server.replicated_server import ReplicatedServer  # noqa: PLC0415

        kind = ReplicatedServer if self._control.shared is None else SharingServer
        self._server = server = kind(
            self._config, self.store, self._driver.may_answer, self._on_stale, self._control
        )
        if isinstance(server, SharingServer):
            self._driver.node.users = server.published
        vhosts = server.vhosts
        self._driver.node.list_vhosts = lambda: tuple(sorted(map(octets, vhosts)))
        return self._server

    def _on_stale(self) -> None:
        if not self.stale.done():
            self.stale.set_result("the lease was not renewed in time")

    def _transfer(self, successor: str) -> None:
        _logger.info("replication: handing over to %s", f"'{successor}'" if successor else "any other node")
        self.is_transfer = True
        self._driver.successor = successor
        if self._server is not None:
            self._server.goes_on = True
        # Not at once: nothing is answered once the lease is given back, neither whoever asks for this.
        asyncio.get_running_loop().call_later(ANSWER_SECONDS, self.ending.set)

    def _wanted(self, successor: str) -> None:
        if not self.is_transfer and not self._control.transfer_problem(successor):
            self._transfer(successor)

    def depose(self) -> None:
        if self._server is not None:
            self._server.depose()


async def _lead(
    config: Config,
    driver: NodeDriver,
    control: Control,
    stopping: asyncio.Event,
    lead: Lead,
    outputs: logs.Logs,
) -> int:
    from leveret.broker.server.replicated_server import GOODBYE_SECONDS  # noqa: PLC0415

    leadership = _Leadership(config, driver, control)
    try:
        await driver.run(leadership.store.scan)
    except StorageError as error:
        await driver.hand_over()
        await driver.stop()
        raise StartupError(str(error), exit_codes.DATA) from None
    if control.shared is not None:
        await control.shared.read()  # the users of now, before anybody logs in
    leading: asyncio.Future[int] = asyncio.ensure_future(lead(leadership.ending, leadership.make_server))
    stop = asyncio.create_task(stopping.wait())
    stop.add_done_callback(lambda _: leadership.ending.set())
    ends: list[asyncio.Future[Any]] = [leading, leadership.stale, driver.closed, driver.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if driver.has_handed_over:  # by the broker, which has closed its clients and is about to end
        ends = [leading, driver.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if leading.done():
        if not driver.has_handed_over:
            await driver.hand_over()
        is_ended = await driver.stop()
        code = leading.result()
        if leadership.is_transfer and not code and not stopping.is_set():
            os.environ[RELEASED_AT] = str(driver.now)
            return _begin_again(outputs)
        if not is_ended:
            _exit(code)
        return code
    leadership.depose()
    if driver.failed.done():
        failure = driver.failed.exception()
        _logger.critical("replication failed, stopping immediately: %s", failure, exc_info=failure)
        _exit(exit_codes.SOFTWARE)
    await asyncio.sleep(GOODBYE_SECONDS)  # for the close of clients to be sent
    remove_pid_file(config.pid_file)
    if stopping.is_set():
        _logger.info("stopped: another node leads")
        _exit(0)
    return _begin_again(outputs)


def _exit(code: int) -> NoReturn:
    """End the process at once: a request to the database, or a broker that leads no more, could go on for long."""
    logging.shutdown()
    os._exit(code)


def _begin_again(outputs: logs.Logs) -> NoReturn:
    """Become a new image of this program, under the same process id."""
    _logger.info("replication: waiting again")
    outputs.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the arguments of this process
