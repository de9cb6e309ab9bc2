"""The HTTP listeners and the control socket of a node that waits to lead (driver)."""

import asyncio
import contextlib
import logging
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.cli.http_listeners import listen
from leveret.broker.cli.process_files import open_audit_log
from leveret.broker.config.config import Config
from leveret.broker.process import logs
from leveret.broker.replication.control import Control
from leveret.broker.replication.keeper import Keeper
from leveret.broker.replication.standing import whereabouts
from leveret.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from leveret.broker.http.late_server import SocketServer

_logger = logging.getLogger(logs.LOGGER_NAME)

REFRESH_SECONDS: Final = 1.0
"""Time for which definitions that were read from the copy are shown without another look."""


class Standby:
    """Listeners of a waiting node, for the cluster, its health, metrics, and the definitions of its copy.

    Args:
        keeper: of the node.
        config: the configuration.
        control: the cluster.
        outputs: the logs, which are reopened together with the audit log.

    """

    def __init__(self, keeper: Keeper, config: Config, control: Control, outputs: logs.Logs) -> None:
        self._keeper = keeper
        self._config = config
        self._control = control
        self._outputs = outputs
        self._ending = contextlib.AsyncExitStack()
        self._refreshing = asyncio.Lock()
        self._rows: list[tuple[bytes, bytes]] = []
        self._due = 0.0
        self._broker: Any = None
        """A `WaitingBroker`, once it listens."""

    async def start(self) -> None:
        """Listen where the configuration says so. Raises StartupError if that is impossible."""
        from leveret.broker.http.late_server import ControlSocket  # noqa: PLC0415 - as `main` does
        from leveret.broker.http.socket_path import NAME  # noqa: PLC0415
        from leveret.broker.server.waiting_broker import WaitingBroker  # noqa: PLC0415

        broker = WaitingBroker(self._config, (), self._control, self._obstacle)
        loop = asyncio.get_running_loop()
        broker.attach(loop)
        self._broker = broker
        if (writer := open_audit_log(self._config, broker.audit, self._ending)) is not None:
            self._outputs.add(writer)
            self._ending.callback(self._outputs.remove, writer)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        listen(broker, self._config, self._ending, self._monitor, self._management)
        broker.watch_certificates()
        self._ending.push_async_callback(broker.forget_certificates)
        control = ControlSocket(self._config.data_dir, self._management)
        try:
            control.open()
        except OSError as error:
            _logger.warning(
                "leveret ctl cannot connect: %s: %s", self._config.data_dir / NAME, error.strerror
            )
        self._ending.push_async_callback(control.close)

    async def stop(self) -> None:
        """Stop listening."""
        await self._ending.aclose()

    def _hang_up(self) -> None:
        self._outputs.reopen()
        self._broker.reload_tls()

    def _obstacle(self) -> str:
        return whereabouts(self._keeper.node)

    def _monitor(self) -> "Callable[[], SocketServer]":
        from leveret.broker.metrics.http import WaitingMonitor  # noqa: PLC0415 - loaded when it is asked

        return partial(WaitingMonitor, self._broker)

    def _management(
        self, prefix: str = "", host_names: "Collection[str]" = ()
    ) -> "Callable[[], SocketServer]":
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
        from leveret.broker.server.waiting_broker import WaitingBroker  # noqa: PLC0415

        former = self._broker
        try:
            rows = self._keeper.environment.definitions()
            if rows is None or rows == self._rows:
                return former
            made = WaitingBroker(self._config, rows, self._control, self._obstacle, former)
        except StorageError as error:
            _logger.warning("replication: the definitions of the copy cannot be shown: %s", error)
            return former
        self._rows = rows
        return made
