"""A server whose connections, logins and alarms can have faults (driver)."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError, User
from leveret.broker.config.config import Config
from leveret.broker.embedded.clocked_server import ClockedServer
from leveret.broker.embedded.fault_state import FaultState
from leveret.broker.embedded.faulty_channel import FaultyChannel
from leveret.broker.embedded.faulty_connections import FaultyConnection, FaultyDriver
from leveret.broker.embedded.settable_time import SettableTime
from leveret.broker.metadata.recorder import StoredUsers
from leveret.broker.process.resource_alarms import DiskAlarm, MemoryAlarm
from leveret.broker.server.resource_monitor import ResourceMonitor

if TYPE_CHECKING:
    from leveret.broker.embedded.faulty_store import FaultyStore
    from leveret.broker.persistence.data_store import DataStore

GONE_SECONDS = 5.0
"""Longest wait for the sockets of a server that was cut off."""


class FaultyUsers(StoredUsers):
    """The users, of whom none may log in while logins are refused."""

    __slots__ = ("faults",)

    faults: FaultState

    def authenticate(self, name: str, password: Password | None, peer_host: str) -> User:
        """Authenticate a user by password, as `Users.authenticate`."""
        if self.faults.refuses_logins:
            raise LoginRefusedError(f"user '{name}' - logins are refused by a fault")
        return super().authenticate(name, password, peer_host)


class _MemoryAlarm(MemoryAlarm):
    """The memory alarm, which a fault can raise."""

    __slots__ = ("_faults",)

    def __init__(self, limit: int, faults: FaultState) -> None:
        super().__init__(limit)
        self._faults = faults

    def check(self, used: int) -> bool:
        """Compare the bytes in use now; return true if that raised or cleared the alarm."""
        before = self.raised
        super().check(used)
        self.raised |= self._faults.is_memory_short
        return before != self.raised


class _DiskAlarm(DiskAlarm):
    """The disk alarm, which a fault can raise."""

    __slots__ = ("_faults",)

    def __init__(self, limit: int, faults: FaultState) -> None:
        super().__init__(limit)
        self._faults = faults

    def _update(self) -> bool:
        before = self.raised
        super()._update()
        self.raised |= self._faults.is_disk_short
        return before != self.raised

    def check_again(self) -> bool:
        """Compare what was measured last with the limit again; return true if that raised or cleared the alarm."""
        return self._update()


class FaultyMonitor(ResourceMonitor):
    """The resource alarms, without a release of the application's memory."""

    memory: _MemoryAlarm
    disk: _DiskAlarm

    def __init__(self, host: Any, disk: "DataStore | None", memory_limit: int, disk_limit: int) -> None:
        super().__init__(host, disk, memory_limit, disk_limit)
        self.memory = _MemoryAlarm(memory_limit, host.faults)
        self.disk = _DiskAlarm(disk_limit, host.faults)

    def _release_pages(self, now: float, resident: int) -> None:
        """Do nothing: the memory is the application's."""

    def report_full(self, is_full: bool) -> None:
        """Raise the disk alarm, as `ResourceMonitor.report_full`; when the disk has space measure it at once."""
        super().report_full(is_full)
        if not is_full and self._timer is not None:
            self._timer.cancel()
            self._measure_disk()

    def check_again(self) -> None:
        """Raise and clear alarms after a change of faults. A turn must run afterwards."""
        if self.memory.check(self.memory.used):
            self._changed("memory", self.memory)
        if self.disk.check_again():
            self._changed("disk", self.disk)


class FaultyServer(ClockedServer):
    """A server that has the faults of a `FaultState`.

    Args:
        config: the configuration.
        disk: the data store; None for a broker without persistence.
        time: its time source.
        faults: its faults.

    """

    monitor_class = FaultyMonitor
    driver_class = FaultyDriver
    users_class = FaultyUsers
    resource_monitor: FaultyMonitor
    users: FaultyUsers

    def __init__(
        self, config: Config, disk: "FaultyStore | None", time: SettableTime, faults: FaultState
    ) -> None:
        self.faults = faults
        self.held_confirms: dict[FaultyChannel, None] = {}
        """Channels with confirms that are held."""
        super().__init__(config, disk, time)
        self.users.faults = faults
        if disk is not None:
            disk.set_faults(faults)

    @property
    def faulty_connections(self) -> list[FaultyConnection]:
        """The open connections, in the order of their names."""
        return sorted(self.clients.connections, key=lambda each: each.name)

    def watch_publishes(self) -> None:
        """Let faults of publishes begin, or end."""
        for connection in self.faulty_connections:
            connection.watch_publishes()

    def release_confirms(self) -> None:
        """Send the confirms that were held."""
        held, self.held_confirms = self.held_confirms, {}
        for channel in held:
            if channel.confirms is not None:
                channel.schedule_confirms()
        self.run_turn()

    def release_output(self) -> None:
        """Send everything that is on its way to clients."""
        for driver in self._faulty_drivers:
            driver.release_pipe()

    def limit_outboxes(self) -> None:
        """Apply the rate of slow consumers to what one turn sends to them."""
        for driver in self._faulty_drivers:
            driver.limit_outbox()

    @property
    def _faulty_drivers(self) -> list[FaultyDriver]:
        return [each for each in self.drivers if isinstance(each, FaultyDriver)]

    def release_duplicates(self) -> None:
        """Deliver what a hostile broker was going to deliver again."""
        for connection in self.faulty_connections:
            for channel in list(connection.channels.values()):
                channel.release_duplicates()
        self.run_turn()

    async def gone(self) -> None:
        """Wait until the sockets of a server that was cut off are closed."""
        self.all_closed.clear()
        if self.drivers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all_closed.wait(), GONE_SECONDS)
        if self.export is not None:
            await self.export.stop("killed")

    def sever_all(self) -> None:
        """Drop all connections at once."""
        for driver in list(self.drivers):
            driver.abort()

    def redeliver_all(self) -> None:
        """Requeue all unacked deliveries, so that they are delivered again."""
        for connection in self.faulty_connections:
            for channel in list(connection.channels.values()):
                channel.redeliver(list(channel.unacked))
        self.run_turn()

    def check_alarms(self) -> None:
        """Raise and clear alarms after a change of faults, and retry what has found the disk full."""
        if self.disk is not None and not self.faults.is_disk_full:
            self.disk.commits.retry()
        self.resource_monitor.check_again()
        self.run_turn()
