"""The shovels of a broker, loaded when there is one: that takes 15 ms, and most have none (driver)."""

import asyncio
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.vhost.parameter_checks import SHOVEL

if TYPE_CHECKING:
    from leveret.broker.shovel.shovels import Shovels


log = logging.getLogger("leveret.connection")


class ShovelLoader:
    """The shovels, as far as they are loaded; none may run unless `is_enabled`."""

    def __init__(self, broker: AdministeredBroker, *, is_enabled: bool) -> None:
        self._broker = broker
        self._is_enabled = is_enabled
        self._shovels: Shovels | None = None
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start all that there are."""
        if not self._is_enabled:
            log.warning("no shovel runs: shovel.enabled is false")
            return
        if self._shovels is None:
            from leveret.broker.shovel.shovels import Shovels  # noqa: PLC0415 - most brokers have none

            self._shovels = Shovels(self._broker)
        self._shovels.start()

    def parameter_changed(self, vhost: str, component: str, name: str) -> None:
        """Start, replace or stop the shovel of a parameter."""
        if component != SHOVEL or not self._is_enabled or self._broker.obstacle:
            return
        if self._shovels is not None:
            self._shovels.changed(vhost, name)
        elif self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        """Load what shovels need in a thread, then start all that there are."""
        try:
            await asyncio.to_thread(import_module, "leveret.broker.shovel.shovels")
            self._start_loaded()
        finally:
            self._loading = None

    def _start_loaded(self) -> None:
        """Start all shovels if they are being loaded; who asks for them meanwhile waits for the rest of that."""
        if self._loading is not None and self._shovels is None and not self._broker.is_stopping:
            self.start()

    def statuses(self) -> list[dict[str, Any]]:
        """Return the status of each shovel, without logins."""
        self._start_loaded()
        return [] if self._shovels is None else self._shovels.statuses()

    def restart(self, vhost: str, name: str) -> bool:
        """Restart a shovel; returns whether there is one."""
        self._start_loaded()
        return self._shovels is not None and self._shovels.restart(vhost, name)

    async def stop(self) -> None:
        """Stop the shovels; what they have under way is confirmed and acked if that takes no longer than a moment."""
        if self._loading is not None:
            await asyncio.wait((self._loading,))
        if self._shovels is not None:
            await self._shovels.stop()

    def abandon(self) -> None:
        """Stop what is left of them at once."""
        if self._loading is not None:
            self._loading.cancel()
        if self._shovels is not None:
            self._shovels.abandon()
