"""A process of virtual hosts: a broker without listeners whose clients and users come from the front (driver)."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from leveret.broker.administration.topology import put_vhost
from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Connection as Wire
from leveret.broker.config.config import Config
from leveret.broker.config.placement import MOST_PROCESSES
from leveret.broker.connection.connection import Connection
from leveret.broker.errors import AMQPError, not_allowed
from leveret.broker.metadata.recorder import octets, text
from leveret.broker.network.proxy_protocol import Header
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.network.socket_state import address
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
from leveret.broker.placement.node_rows import FollowedRows
from leveret.broker.placement.pipe import Pipe
from leveret.broker.process.resource_alarms import raised
from leveret.broker.server.server import Server
from leveret.storage.store.metadata_rows import VHostRow

if TYPE_CHECKING:
    from leveret.broker.network.gate import Gate
    from leveret.broker.persistence.data_store import DataStore

log = logging.getLogger("leveret.connection")
IDS = "vhosts_of_process"  # global parameter of a process
_OPEN = (10, 40)  # class and method of `connection.open`


class HandedConnection(Connection):
    """A client that the front has logged in."""

    __slots__ = ()

    def go_on(self, handed: Handed) -> None:
        """Answer `connection.open`."""
        self.auth_mechanism, self.client_properties = handed.mechanism, handed.client_properties
        self.capabilities = frozenset(map(text, handed.capabilities))
        self.frame_max, self.frame_limit = handed.frame_max, handed.frame_max or 1 << 31
        self.channel_max = handed.channel_max
        self.tuned(handed.heartbeat)
        name, vhost = text(handed.user), text(handed.vhost)
        try:
            user = self.node.users.get(name)
            if user is None:
                raise not_allowed(f"access to vhost '{vhost}' refused for user '{name}'")
            self.opened(user, self.node.clients.admit(user, vhost))
        except AMQPError as error:
            self.refuse(error, *_OPEN)
        else:
            self.outbox.send(encode_method(0, Wire.OpenOk()))


class HandedDriver(SocketDriver):
    """The driver of such a client; `left` is called when its socket is closed."""

    connection_class = HandedConnection

    def __init__(self, gate: "Gate", handed: Handed, left: Callable[[], object]) -> None:
        super().__init__(gate)
        self._handed: Handed | None = handed
        self._left = left
        self.header = Header(0, handed.peer, handed.local)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the socket, and go on where the front has ended."""
        super().connection_made(transport)
        if not self._closing:
            self._loop.run_step("hand-over", self._go_on, self.connection.name)

    def _go_on(self) -> None:
        handed, self._handed = self._handed, None
        assert handed is not None  # noqa: S101 - this is called once
        connection = self.connection
        assert isinstance(connection, HandedConnection)  # noqa: S101 - the class says so
        connection.go_on(handed)
        connection.receive(handed.unread)
        self._loop.finish_turn()
        if connection.stalled or connection.published:
            self._flow.after_read(len(handed.unread))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the closing of the socket."""
        super().connection_lost(exc)
        self._left()


class VHostServer(Server):
    """The broker of a process; `lost` is called when the front has ended."""

    place = "process"

    def __init__(
        self, config: Config, disk: "DataStore | None", front: socket.socket, lost: Callable[[], object]
    ) -> None:
        super().__init__(config, disk)
        self._front_socket, self._front_lost = front, lost
        # the front asks all processes for a transfer by its number, so no two have the same
        self.administration.transfers.numbers = count(int(config.data_dir.name), MOST_PROCESSES)
        self._rows = FollowedRows(self.directory)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pipe: Pipe

    async def start(self) -> None:
        """Start as any broker, then tell the front what this one has."""
        await super().start()
        self._pipe = Pipe(asyncio.get_running_loop(), self._front_socket, self._received, self._front_lost)
        self._pipe.send(Ready([octets(name) for name in self.vhosts]))
        monitor = self.resource_monitor
        monitor.on_changed = self._tell_alarms
        self._tell_alarms(raised(monitor.memory, monitor.disk))

    def _tell_alarms(self, names: list[str]) -> None:
        self._pipe.send(Alarmed(names))

    def _received(self, message: AnyMessage, sock: socket.socket | None) -> None:
        if isinstance(message, Handed):
            self._take(message, sock)
        else:
            self.loop.run_step("change by the front", partial(self._follow, message))

    def _follow(self, message: AnyMessage) -> None:
        match message:
            case Begin():
                self._begin(message)
            case Changed():
                self._rows.follow(message.rows)
            case Placed():
                self._put(message.vhost)
            case Removed():
                self._remove(text(message.vhost))
            case Alarmed():
                self.resource_monitor.set_elsewhere(message.names)
        self.loop.run_and_finish_turn()

    def _begin(self, begin: Begin) -> None:
        """Take over the users, and have the virtual hosts of the front; one with another id is an earlier one."""
        rows = {text(row.name): row for row in begin.vhosts}
        for name, number in self._ids.items():
            if name not in rows or rows[name].id != number:
                self._remove(name)
        self._rows.follow(begin.rows)  # after that, as it removes the permissions in these
        for row in begin.vhosts:
            self._put(row)

    @property
    def _ids(self) -> dict[str, int]:
        """The ids of the virtual hosts in the front, by name, stored with them."""
        stored = dict(self.directory.global_parameters.get(IDS) or {})
        return {name: stored.get(name, 0) for name in self.vhosts}

    def _put(self, row: VHostRow) -> None:
        name = text(row.name)
        if self._ids.get(name) != row.id:
            self.directory.global_parameters.set(IDS, self._ids | {name: row.id})
        put_vhost(
            self,
            name,
            description=text(row.description),
            tags=tuple(map(text, row.tags)),
            default_queue_type=text(row.default_queue_type),
        )

    def _remove(self, name: str) -> None:
        if name in self.vhosts:
            self.administration.vhosts.delete(None, name)

    def _take(self, handed: Handed, sock: socket.socket | None) -> None:
        left = partial(self._pipe.send, Left(handed.number))
        if sock is None:
            log.error("refused a connection: the limit of file descriptors is reached")
            left()
            return
        sock.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(handed, sock, left))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, handed: Handed, sock: socket.socket, left: Callable[[], object]) -> None:
        try:
            if address(sock.getpeername()) != handed.peer:
                raise ConnectionError("a client was handed over with the socket of another one")
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: HandedDriver(self.gate, handed, left), sock
            )
        except OSError as error:  # it has closed already
            log.info("client %s:%d was not taken: %s", *handed.peer, error)
            sock.close()
            left()
