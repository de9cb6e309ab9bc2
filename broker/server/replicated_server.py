"""The servers of a replicated log: of the node that leads, and of one that waits to lead (driver)."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Connection as Wire, make
from leveret.broker.config.config import Config
from leveret.broker.config.sections import EventsConfig, ExportConfig
from leveret.broker.connection.state import OPEN
from leveret.broker.errors import ReplyCode
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.queue.queue import Queue
from leveret.broker.replication.control import Control
from leveret.broker.replication.replicated_store import ReplicatedDataStore
from leveret.broker.scheduling.loop import Loop
from leveret.broker.server.server import Server

GOODBYE_SECONDS: Final = 0.3  # time for clients to answer the close of their connections
_REASON: Final = "CONNECTION_FORCED - this node leads no more"
_CLOSE: Final = encode_method(0, make(Wire.Close, int(ReplyCode.CONNECTION_FORCED), _REASON, 0, 0))


class LeadingLoop(Loop):
    """An event loop that does nothing more, and writes nothing, once another node may lead."""

    may_answer: Callable[[], bool]  # whether the lease is fresh; asked before anything is written in a turn
    on_stale: Callable[[], object]  # called once it is not
    is_deposed = False  # True once nothing may be written any more

    def may_write(self) -> bool:
        """Return whether anything may be written to clients now."""
        return not self.is_deposed and self.may_answer()

    def finish_turn(self, *, is_alone: bool = False) -> None:
        """Write to every connection touched by the turn, unless another node may lead by now."""
        if self.may_write():
            super().finish_turn(is_alone=is_alone)
        elif not self.is_deposed:
            self.on_stale()

    def run_step(self, kind: str, work: Callable[[], object], whom: object = None) -> None:
        """Do some work as one step of the event loop, unless this node leads no more."""
        if not self.is_deposed:
            super().run_step(kind, work, whom)


class LeadingDriver(SocketDriver):
    """A socket that is written to only while the lease is fresh."""

    _loop: LeadingLoop

    def flush(self) -> None:
        """Write the outbox, unless another node may lead by now."""
        if self._loop.may_write():
            super().flush()


class ReplicatedServer(Server):
    """A broker that answers only while its lease is fresh; `disk` is the copy of the log's state.

    `may_answer` returns whether the lease is fresh; it is asked at the end of each turn, before anything is written.
    `on_stale` is called once it is not.
    """

    loop_class = LeadingLoop
    driver_class = LeadingDriver
    loop: LeadingLoop

    def __init__(
        self,
        config: Config,
        disk: ReplicatedDataStore,
        may_answer: Callable[[], bool],
        on_stale: Callable[[], object],
        cluster: Control | None = None,
    ) -> None:
        super().__init__(config, disk)
        self.cluster = cluster
        self.loop.may_answer = may_answer
        self._on_stale = on_stale
        self.loop.on_stale = self._stale

    def load_definitions(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what the log has, and delete what was moved to another one; raises as `Server.load_definitions`."""
        store: Any = self.disk
        queues = self.create([row for row in rows if row[0] not in store.elsewhere])
        for key in store.elsewhere:
            self.directory.definitions.delete(key)
        return queues

    def create(self, rows: list[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what the log has; raises as `load_definitions`."""
        return super().load_definitions(rows)

    async def stop(self, reason: str = "shutdown", seconds: float = GOODBYE_SECONDS) -> int:
        """Stop as `Server.stop` does; clients have less time to answer, for another node waits to serve them."""
        return await super().stop(reason, seconds)

    @property
    def obstacle(self) -> str:
        """Reason why clients may not connect; '' if they may."""
        return "this node leads no more" if self.loop.is_deposed else super().obstacle

    def _stale(self) -> None:
        self._on_stale()
        self.depose()

    def depose(self) -> None:
        """Close all clients with 320, without anything that was to be sent to them; nothing is done after this."""
        if self.loop.is_deposed:
            return
        self.is_stopping = True
        self.gate.close()
        for driver in list(self.gate.drivers):
            connection = driver.connection
            frames = connection.outbox.frames
            frames.clear()
            if connection.state == OPEN:
                frames.append(_CLOSE)
                SocketDriver.flush(driver)
        self.loop.is_deposed = True


class WaitingBroker(Server):
    """The broker of a node that waits to lead: it has the definitions of its copy in memory, to be looked at.

    It is never started, has no clients and no messages, changes nothing, and may be made in any thread. `obstacle`
    returns the reason for which clients may not connect: where the leader is. Logins, listeners and certificates are
    those of a `former` one. Raises what `Server.load_definitions` raises.
    """

    def __init__(
        self,
        config: Config,
        rows: Iterable[tuple[bytes, bytes]],
        cluster: Control,
        obstacle: Callable[[], str],
        former: "WaitingBroker | None" = None,
    ) -> None:
        self._obstacle = obstacle
        alone = msgspec.structs.replace(
            config,
            listeners=(),
            tls_listeners=(),
            export=ExportConfig(),
            events=EventsConfig(),
            definitions=Path(),  # so that an empty copy has no default user, either
        )
        super().__init__(alone)
        self.load_definitions(rows)
        self.config = config
        self.cluster = cluster
        self.shared = cluster.shared
        if former is not None:
            self._take_over(former)

    def _take_over(self, former: "WaitingBroker") -> None:
        self.loop.attach(former.loop.running)
        self.audit = former.audit
        self.logins = former.logins
        self.listeners = former.listeners
        self.gate.certificates = former.gate.certificates

    @property
    def obstacle(self) -> str:
        """Reason why clients may not connect."""
        return self._obstacle()
