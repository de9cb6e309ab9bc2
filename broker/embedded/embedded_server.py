"""The server of an embedded broker: its time can be moved, and its connections, logins and alarms have faults (driver).

Theory. The process belongs to the application. Where a broker that is alone ends its process because the disk has
failed, this one disconnects its clients without a reply, and refuses further calls.
"""

import asyncio
import contextlib
import logging
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError, User
from leveret.broker.channel.channel import Channel
from leveret.broker.config.config import Config
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.state import OPEN
from leveret.broker.embedded.errors import ClosedBrokerError
from leveret.broker.embedded.fault_state import FaultState
from leveret.broker.embedded.faulty_connections import FaultyChannel, FaultyConnection, FaultyDriver
from leveret.broker.embedded.recording import RecordedVHost, Recorder
from leveret.broker.embedded.settable_time import SECOND, SettableTime
from leveret.broker.metadata.recorder import StoredUsers
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS
from leveret.broker.server.resource_monitor import ResourceMonitor
from leveret.broker.server.server import Server

if TYPE_CHECKING:
    from leveret.broker.embedded.faulty_store import FaultyStore

CALM_ROUNDS = 2  # iterations of the loop without work or input after which nothing is under way
READ_SECONDS = 0.0005  # interval of checks whether the reader's thread has finished
_TICK = round(TICK_SECONDS * SECOND)
_LATE = (
    1e-6  # seconds by which ticks are late, because the products and quotients of their times are not exact
)


log = logging.getLogger("leveret")
T = TypeVar("T")

STOPPED = "the broker was stopped during the call"
CANCEL_SECONDS = 0.1  # interval between two attempts to end a stop whose disk has failed
STOP_SECONDS = 0.25  # time for clients to answer `connection.close`: one in a thread may not be reading
GONE_SECONDS = 5.0  # longest wait for the sockets of a server that was cut off


class Answer(Generic[T]):
    """An awaited answer of the server; the first result, or error, counts."""

    def __init__(self) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(self, result: T) -> None:
        """Resolve it."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Resolve it with an error."""
        if not self.future.done():
            self.future.set_exception(error)


class FaultyUsers(StoredUsers):
    """The users, of whom none may log in while logins are refused."""

    faults: FaultState

    def authenticate(self, name: str, password: Password | None, peer_host: str) -> User:
        """Authenticate a user by password, as `Users.authenticate`."""
        if self.faults.refuses_logins:
            raise LoginRefusedError(f"user '{name}' - logins are refused by a fault")
        return super().authenticate(name, password, peer_host)


class FaultyMonitor(ResourceMonitor):
    """The resource alarms, without a release of the application's memory."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check for the first time: faults outlive a server."""
        self._force()
        super().start(loop)

    def _force(self) -> None:
        faults: FaultState = self._host.faults  # type: ignore[attr-defined] # an `EmbeddedServer`
        self.memory.is_forced, self.disk.is_forced = faults.is_memory_short, faults.is_disk_short

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
        self._force()
        if self.memory.check(self.memory.used):
            self._changed("memory", self.memory)
        if self.disk.check(self.disk.free):
            self._changed("disk", self.disk)


class EmbeddedLoop(Loop):
    """An event loop that others wait for."""

    _turn_ended: asyncio.Future[None] | None = None
    is_over = False  # True after the stop of its server

    async def finish_jobs(self) -> None:
        """Wait until no work is deferred any more. Raises ClosedBrokerError if the server ends before that."""
        while self.turn.slices or self.turn.has_paused_jobs:
            if self.is_over:
                raise ClosedBrokerError(STOPPED)
            self.turn.resume_paused_jobs()
            await asyncio.sleep(0)

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

    def discard(self) -> None:
        """Release the event loop, after the stop."""
        self.is_over = True
        self._timer = self._ticker = None
        vars(self).pop("_loop", None)


class EmbeddedServer(Server):
    """A server in a process that is not its own, which records, has faults, and whose time can be stopped and moved.

    `failure` is the reason for which the disk has failed; None normally.
    """

    loop_class = EmbeddedLoop
    monitor_class = FaultyMonitor
    driver_class = FaultyDriver
    users_class = FaultyUsers
    loop: EmbeddedLoop
    resource_monitor: FaultyMonitor
    users: FaultyUsers
    time_source: SettableTime
    failure: BaseException | None = None

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
        self._awaited: set[asyncio.Future[Any]] = set()  # futures that callers of the application wait for
        self.faults = faults
        self.held_confirms: dict[FaultyChannel, None] = {}  # channels with confirms that are held
        self._beats: dict[Connection, float] = {}  # while time stands still: real times of the last ones
        super().__init__(config, disk, time)
        self.users.faults = faults
        if disk is not None:
            disk.set_faults(faults)

    # -- faults -----------------------------------------------------------------------------------------------------

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
        self.loop.run_turn()

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
        return [each for each in self.gate.drivers if isinstance(each, FaultyDriver)]

    def release_duplicates(self) -> None:
        """Deliver what a hostile broker was going to deliver again."""
        for connection in self.faulty_connections:
            for channel in list(connection.channels.values()):
                channel.release_duplicates()
        self.loop.run_turn()

    async def gone(self) -> None:
        """Wait until the sockets of a server that was cut off are closed."""
        self.gate.all_closed.clear()
        if self.gate.drivers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gate.all_closed.wait(), GONE_SECONDS)
        if self.export is not None:
            await self.export.stop("killed")

    def sever_all(self) -> None:
        """Drop all connections at once."""
        for driver in list(self.gate.drivers):
            driver.abort()

    def redeliver_all(self) -> None:
        """Requeue all unacked deliveries, so that they are delivered again."""
        for connection in self.faulty_connections:
            for channel in list(connection.channels.values()):
                channel.redeliver(list(channel.unacked))
        self.loop.run_turn()

    def check_alarms(self) -> None:
        """Raise and clear alarms after a change of faults, and retry what has found the disk full."""
        if self.disk is not None and not self.faults.is_disk_full:
            self.disk.commits.retry()
        self.resource_monitor.check_again()
        self.loop.run_turn()

    # -- what is due ------------------------------------------------------------------------------------------------

    def run_timeouts(self, now: float) -> None:
        """Carry out what is due at a tick; while the time stands still that is nothing, but clients get heartbeats."""
        if self.time_source.stands:
            self._keep_alive(self.now())
        else:
            if self._beats:  # the next ones are due by a clock that stood still
                self._beats.clear()
                self._keep_alive(self.now())
                self._beats.clear()
            super().run_timeouts(now)

    def _keep_alive(self, now: float) -> None:
        """Send heartbeats in real time: clients would miss them, and disconnect."""
        beats = {}
        for connection in self._beating():
            beats[connection] = self._beats.get(connection, -inf)
            if now - beats[connection] >= connection.heartbeat / 2:
                connection.outbox.send(HEARTBEAT)
                beats[connection] = now
        self._beats = beats

    def next_timeout(self, elapsed: int) -> float:
        """Return the time of the next tick after `elapsed` that may have something to do; infinite for none.

        Both in nanoseconds of the time source.
        """
        following = self.loop.ticks.next_due * _TICK
        connections = self.clients.connections
        if any(map(_may_time_out, chain.from_iterable(each.channels.values() for each in connections))):
            following = min(following, (elapsed // SECOND + 1) * SECOND)
        return max(following, elapsed)

    def run_tick(self, elapsed: int) -> None:
        """Carry out deadlines and heartbeats, and at each full second consumer and confirm timeouts."""
        now = elapsed / SECOND + _LATE
        self.loop.ticks.run(now)
        if not elapsed % SECOND:
            for connection in list(self.clients.connections):
                connection.close_overdue(now)
        self.loop.run_turn()

    def suspend_heartbeats(self) -> dict[Connection, float]:
        """Stop the heartbeats of open connections; return the seconds until the next one of each."""
        now, left = self.time_source.now(), {}
        for connection in self._beating():
            if connection.bucket >= 0:
                left[connection] = (
                    connection.bucket - 0.5
                ) * TICK_SECONDS - now  # it is put into the next bucket
                self.loop.ticks.forget(connection)
        return left

    def resume_heartbeats(self, left: dict[Connection, float]) -> None:
        """Resume heartbeats, with the seconds left for each connection."""
        for connection, seconds in left.items():
            if connection.state == OPEN and connection.bucket < 0:
                self.loop.wake(connection, seconds)

    def _beating(self) -> list[Connection]:
        return [each for each in self.clients.connections if each.heartbeat and each.state == OPEN]

    # -- what is under way ------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True if work waits for a later step of the loop, for a commit or for a read."""
        if self.loop.is_busy:
            return True
        return self.disk is not None and (bool(self.disk.reads_pending) or self._is_writing)

    @property
    def _is_writing(self) -> bool:
        """True if a commit is under way or will be, unless the disk is full: then it waits for the next try."""
        journal = self.disk.journal
        if journal.in_flight is not None:
            return True
        return not self.disk.commits.is_full and bool(journal.has_work or journal.files)

    async def settle(self) -> None:
        """Wait until everything under way is carried out, including input that has arrived and its confirms.

        Frames for clients are passed to the transports then.
        """
        calm = 0
        received = -1
        while calm < CALM_ROUNDS:
            await asyncio.sleep(0)
            before, received = received, sum([each.octets_in for each in self.clients.connections])
            if self.is_busy:
                calm = 0
                await self.carry_on()
            elif received != before:
                calm = 0
            else:
                calm += 1

    async def carry_on(self) -> None:
        """Wait for some of the work that is under way."""
        self.loop.send_withheld()
        await self.loop.finish_jobs()
        if self.disk is None:
            return
        if self._is_writing and not self.disk.commits.is_full:
            await self.stored(files=True)
        elif self._is_writing or self.disk.reads_pending:
            await asyncio.sleep(READ_SECONDS)

    # -- waits ------------------------------------------------------------------------------------------------------

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
        ended = Answer[object]()
        stopping.add_done_callback(ended.give)
        try:
            await self.result_of(ended.future)
        finally:
            while not stopping.done():  # a wait with a limit may take the first one for its own
                stopping.cancel()
                await asyncio.wait((stopping,), timeout=CANCEL_SECONDS)
        stopping.result()

    def _break_off(self, reason: str) -> None:
        for future in [each for each in self._awaited if not each.done()]:
            future.set_exception(ClosedBrokerError(reason))

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
        self._break_off(STOPPED)
        self.loop.discard()
        self.gate.read_buffer = memoryview(b"")
        self.gate.all_closed = asyncio.Event()
        for part in (self.gate.listeners, self.resource_monitor, self.time_source):
            vars(part).pop("_loop", None)

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, those of clients and those that listen."""
        clients = [driver.descriptor for driver in self.gate.drivers if isinstance(driver, FaultyDriver)]
        return [number for number in (*self.gate.listeners.descriptors(), *clients) if number >= 0]

    def cut_off(self) -> None:
        """Stop without a word to clients, and without writing anything."""
        self.is_stopping = True
        self.gate.close()
        self.stop_timers()
        for driver in list(self.gate.drivers):
            driver.abort()


def _may_time_out(channel: Channel) -> bool:
    return bool(channel.unacked) or (channel.confirms is not None and bool(channel.confirms.held))
