"""Forwards clients of virtual hosts that another broker has, after `connection.open`, octet by octet (driver).

The client's handshake is made here, and then repeated there with what the client has sent, so that each broker checks
the password itself and neither has to trust the other. Of several addresses the first counts that opens the connection:
nodes of a replicated log that wait refuse it. Nothing is read of what goes on after that.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.fastpath import FRAME_OVERHEAD, TYPE_METHOD, unpack_frame
from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.options import EXTERNAL, TLS
from leveret.broker.client.sockets import Contexts
from leveret.broker.config.config import Config
from leveret.broker.config.placement import PlacementConfig
from leveret.broker.config.values import BrokerAddress
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.handshake import PROTOCOL_HEADER, Handshake
from leveret.broker.connection.state import CLOSED
from leveret.broker.errors import AMQPError, ReplyCode, not_allowed
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.placement.logs import Logs
from leveret.broker.placement.placement import PlacementError
from leveret.broker.placement.shared_users import SharedUsers, without_users
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.server.server import Server

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore

log = logging.getLogger("leveret.connection")

OPEN_SECONDS: Final = 3.0  # time for a broker to open the connection of a client
REDIRECT: Final = "connection.redirect"
"""Capability of a client that connects to another address itself if the broker tells it."""
FORWARDED: Final = "x-forwarded"
"""Client property of one that was forwarded: it is not forwarded again, as brokers may name each other."""
_START, _SECURE, _TUNE = ((10, 10), (10, 20), (10, 30))
_CLOSE: Final = (10, 50)
_PASSED_OVER: Final = frozenset({ReplyCode.NOT_ALLOWED, ReplyCode.CONNECTION_FORCED})
"""Codes after which the next broker is asked: the virtual host is not there, or that broker stops, or forwards, too."""
_OF_HANDSHAKE: Final = frozenset({_START, _SECURE, _TUNE})
"""Class and method of what the other broker sends before it has opened the connection: the client has had these."""
_MOST_OCTETS: Final = 65536  # maximum octets of those


class Upstream(asyncio.Protocol):
    """The connection to the other broker; `opened` is resolved once that has opened it, or refused to with a reason."""

    def __init__(self, forwards: "Forwards", said: bytes) -> None:
        self._forwards, self._said = forwards, said
        self._received = b""  # what is to be sent to the client, or is no frame yet
        self._transport: Any = None
        self._driver: ForwardingDriver | None = None
        self._is_full = False
        self.is_refused = False  # by that broker alone, or as it has no such virtual host for the user
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what the client has said."""
        self._transport = transport
        self._transport.write(self._said)
        self._said = b""

    def data_received(self, data: bytes) -> None:
        """Pass octets on to the client, once the connection is open."""
        if self._driver is not None:
            self._forwards.octets_out += len(data)
            self._driver.pass_on(data)
            return
        self._received += data
        while len(self._received) >= FRAME_OVERHEAD and not self.opened.done():
            kind, number, length = unpack_frame(self._received, 0)
            end = length + FRAME_OVERHEAD
            if end > _MOST_OCTETS:
                self._transport.abort()
                return
            if len(self._received) < end:
                return
            ids = int.from_bytes(self._received[7:9], "big"), int.from_bytes(self._received[9:11], "big")
            if not number and (kind != TYPE_METHOD or ids in _OF_HANDSHAKE):  # or a heartbeat
                self._received = self._received[end:]
            else:
                code = int.from_bytes(self._received[11:13], "big")
                self.is_refused = ids == _CLOSE and code in _PASSED_OVER
                self.opened.set_result(None)
                self._transport.pause_reading()  # until the client gets it

    def eof_received(self) -> bool:
        """Close the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the client's connection, too."""
        if self._driver is not None:
            self._driver.upstream_lost()
        elif not self.opened.done():
            self.opened.set_exception(exc or ConnectionResetError("it has closed the connection"))

    def pause_writing(self) -> None:
        """Read nothing more of the client while the other broker does not read."""
        if self._driver is not None:
            self._is_full = True
            self._driver.pause_reading()

    def resume_writing(self) -> None:
        """Read the client again."""
        if self._is_full and self._driver is not None:
            self._is_full = False
            self._driver.resume_reading()

    def begin(self, driver: "ForwardingDriver", unread: bytes) -> None:
        """Carry the octets of a client from now on, first those that were read behind `connection.open`."""
        self._driver = driver
        received, self._received = self._received, b""
        self.data_received(received)
        self.send(unread)
        self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send octets of the client."""
        self._forwards.octets_in += len(data)
        self._transport.write(data)

    def hold(self, *, is_held: bool) -> None:
        """Read nothing more while the client does not read."""
        if not self._transport.is_closing():
            (self._transport.pause_reading if is_held else self._transport.resume_reading)()

    def close_unused(self) -> None:
        """Close the connection if the client has left meanwhile."""
        if self._driver is None:
            self.close()

    def close(self) -> None:
        """Close the connection when everything is sent."""
        self.opened.cancel()
        if self._transport is not None:
            self._transport.close()


class Forwards:
    """The virtual hosts of other brokers, and what is forwarded there."""

    def __init__(self, loop: Loop, wanted: PlacementConfig) -> None:
        self._loop = loop
        self._elsewhere = dict(wanted.elsewhere)
        self.logs: Logs | None = None  # those of `vhosts.directory`, in which all virtual hosts are
        tls = wanted.tls
        cacertfile, certfile, keyfile = (
            str(each or "") for each in (tls.cacertfile, tls.certfile, tls.keyfile)
        )
        self._tls = TLS(cacertfile, certfile, keyfile, tls.password, tls.verify == "verify_peer", tls.sni)
        self._contexts = Contexts()
        self.connections = 0  # that are forwarded now
        self.octets_in = self.octets_out = 0  # of clients, and to them
        self._tasks: set[asyncio.Task[Any]] = set()

    def __contains__(self, vhost: str) -> bool:
        return self.logs is not None or vhost in self._elsewhere

    def __bool__(self) -> bool:
        return self.logs is not None or bool(self._elsewhere)

    def when_found(
        self, vhost: str, said: bytes, answered: Callable[["Upstream | BrokerAddress | str | None"], object]
    ) -> None:
        """Call back with a connection to the broker that has a virtual host, or why there is none; None if none has.

        `said` is what the client has sent; without it only the address of that broker is found out.
        """
        task = asyncio.get_running_loop().create_task(self._find(vhost, said))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(self._found, answered))

    def _found(
        self, answered: Callable[["Upstream | BrokerAddress | str | None"], object], done: asyncio.Task[Any]
    ) -> None:
        if done.cancelled():
            return
        there = done.result()
        self._loop.run_step("forwarding", partial(answered, there))
        self._loop.finish_turn()
        if isinstance(there, Upstream):
            there.close_unused()

    async def _find(self, vhost: str, said: bytes) -> "Upstream | BrokerAddress | str | None":
        reasons = []
        refused: Upstream | None = None  # what tells the client that no broker has the virtual host
        addresses: tuple[BrokerAddress, ...] | None = self._elsewhere.get(vhost)
        if self.logs is not None:
            addresses = await self.logs.addresses(vhost)
            if self.logs.problem:
                reasons.append(self.logs.problem)
        if addresses is None:
            return None
        for address in addresses:
            try:
                found = await self._opened(address, said)
            except (OSError, TimeoutError, UnreachableError) as error:
                reason = getattr(error, "verify_message", "") or str(error) or "it does not answer"
                reasons.append(f"{address}: {reason}")
                continue
            if refused is not None:
                refused.close()
                refused = None
            if isinstance(found, Upstream) and found.is_refused:  # it may have gone to another log
                refused = found
                continue
            if self.logs is None:  # the first that the next client is given
                self._elsewhere[vhost] = (address, *(each for each in addresses if each != address))
            return found
        return refused or "; ".join(reasons) or "no node of its log has an address that can be used"

    async def _opened(self, address: BrokerAddress, said: bytes) -> "Upstream | BrokerAddress":
        upstream = Upstream(self, said)
        more: dict[str, Any] = {}
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                if address.is_tls:
                    name = self._tls.server_name or address.host
                    more = {"ssl": await self._contexts.get(self._tls), "server_hostname": name}
                    more["ssl_shutdown_timeout"] = OPEN_SECONDS
                await asyncio.get_running_loop().create_connection(
                    lambda: upstream, address.host, address.port, **more
                )
                if said:
                    await upstream.opened
                    return upstream
        except BaseException:
            upstream.close()
            raise
        upstream.close()
        return address

    def close(self) -> None:
        """Look for no broker any more."""
        for task in self._tasks:
            task.cancel()


class ForwardingHandshake(Handshake):
    """A handshake that keeps what the client has sent, until the virtual host is known."""

    def __init__(self, connection: "ForwardingConnection") -> None:
        super().__init__(connection)
        self._client = connection
        self._said = [PROTOCOL_HEADER]
        self._start: Any = None  # the method with which it has logged in

    def _start_ok(self, method: Any) -> None:
        self._start = method
        super()._start_ok(method)

    def _method(self, data: bytes, at: int, end: int) -> None:
        self._said.append(data[at - 7 : end + 1])
        super()._method(data, at, end)

    def _open(self, method: Any) -> None:
        connection, vhost = self._client, method.virtual_host
        server = connection.node
        assert isinstance(server, ForwardingServer)  # noqa: S101 - it has made the connection
        if vhost not in server.forwards:
            super()._open(method)
            return
        if FORWARDED in self._start.client_properties:
            text = (
                f"virtual host '{vhost}' is in a circle: the brokers that were named for it forward it, too"
            )
            log.error("connection %s: %s", connection.name, text)
            raise AMQPError(ReplyCode.CONNECTION_FORCED, text)
        if self._start.mechanism == EXTERNAL and REDIRECT not in connection.capabilities:
            text = f"virtual host '{vhost}' is elsewhere, where a login by certificate cannot be forwarded"
            raise AMQPError(ReplyCode.NOT_ALLOWED, text)
        start, self._start = self._start, None  # it has a password
        start.client_properties[FORWARDED] = "bool", True
        self._said[1] = encode_method(0, start)
        said = b"" if REDIRECT in connection.capabilities else b"".join(self._said)
        self._said.clear()

        def found(there: Upstream | BrokerAddress | str | None) -> None:
            if isinstance(there, Upstream):
                connection.forward(there, vhost)
                return
            if there is None:
                connection.refuse(not_allowed(f"vhost {vhost} not found"), 10, 40)
                return
            text = f"virtual host '{vhost}' is at {there}"
            if not isinstance(there, BrokerAddress):
                log.error(
                    "connection %s: no broker has opened virtual host '%s': %s", connection.name, vhost, there
                )
                text = f"virtual host '{vhost}' is elsewhere, and cannot be reached now"
            connection.refuse(AMQPError(ReplyCode.CONNECTION_FORCED, text), 10, 40)

        self._wait(partial(server.forwards.when_found, vhost, said), found)


class ForwardingConnection(Connection):
    """A client until it is forwarded."""

    __slots__ = ()
    handshake_class = ForwardingHandshake

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._scan = self.handshake_class(self).scan

    def leave(self) -> bytes:
        """Read nothing more of the client here; returns what it has sent behind `connection.open`."""
        unread = b"".join(self._chunks)
        self._chunks.clear()
        self.enter(CLOSED)
        self._deadline, self.heartbeat = None, 0
        self.driver.admitted()
        return unread

    def forward(self, upstream: Upstream, vhost: str) -> None:
        """Have the other broker serve the client."""
        driver = self.driver
        assert isinstance(driver, ForwardingDriver)  # noqa: S101 - it has made the connection
        log.info("connection %s: virtual host '%s' is forwarded", self.name, vhost)
        driver.forward(upstream, self.leave())


class ForwardingDriver(SocketDriver):
    """The driver of such a client."""

    connection_class: type[Connection] = ForwardingConnection
    _upstream: Upstream | None = None

    @property
    def _forwards(self) -> Forwards:
        server = self._gate.node
        assert isinstance(server, ForwardingServer)  # noqa: S101 - it has made the driver
        return server.forwards

    def forward(self, upstream: Upstream, unread: bytes) -> None:
        """Carry the octets of the client from now on."""
        self._upstream = upstream
        self._forwards.connections += 1
        upstream.begin(self, unread)

    def pass_on(self, data: bytes) -> None:
        """Send octets to the client."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def upstream_lost(self) -> None:
        """Close the client's connection when everything is sent."""
        self.close()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes of a read."""
        if self._upstream is None:
            super().buffer_updated(nbytes)
        else:
            self._upstream.send(bytes(self._gate.read_buffer[:nbytes]))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the closing of the socket."""
        if self._upstream is not None:
            self._forwards.connections -= 1
            self._upstream.close()
            self._upstream = None
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Read nothing more of the other broker while the client does not read."""
        super().pause_writing()
        if self._upstream is not None:
            self._upstream.hold(is_held=True)

    def resume_writing(self) -> None:
        """Read the other broker again."""
        super().resume_writing()
        if self._upstream is not None:
            self._upstream.hold(is_held=False)


class ForwardingServer(Server):
    """A broker that forwards the clients of some virtual hosts."""

    driver_class: type[SocketDriver] = ForwardingDriver
    forwards: Forwards

    def __init__(
        self, config: Config, disk: "DataStore | None" = None, time_source: TimeSource | None = None
    ) -> None:
        servers = _servers(config)
        self.shared = None if servers is None else SharedUsers.of(config, servers)
        super().__init__(config if self.shared is None else without_users(config), disk, time_source)
        self.forwards = Forwards(self.loop, config.placement)
        self.logs = self.forwards.logs = _logs(config, servers, self.shared)
        if self.forwards:
            self.gate.most_sockets = max(1, self.gate.most_sockets // 2)  # a forwarded client takes two

    def load_definitions(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what an earlier run has stored, with the users of the logs; raises as `Server.load_definitions`."""
        if self.shared is None:
            return super().load_definitions(rows)
        queues: list[Queue] = self.shared.load(self, rows, super().load_definitions)
        return queues

    async def start(self) -> None:
        """Start as `Server.start`, and read the directory of logs."""
        if self.shared is not None:
            self.loop.attach(asyncio.get_running_loop())
            await self.shared.read()
            self.shared.start()
        await super().start()
        if self.logs is not None:
            self.logs.start()

    async def stop(self, *arguments: Any, **options: Any) -> int:
        """Open no connection elsewhere any more, then stop as `Server.stop`."""
        self.forwards.close()
        for each in (self.logs, self.shared):
            if each is not None:
                await each.close()
        return await super().stop(*arguments, **options)


def _servers(config: Config) -> Any:
    """Return the database of `vhosts.directory`, None for none; raises PlacementError."""
    if not config.placement.directory:
        return None
    from leveret.broker.replication.postgresql_servers import Servers, with_timeouts  # noqa: PLC0415 - an extra

    try:
        return Servers(with_timeouts(config.placement.directory))
    except ValueError as error:
        raise PlacementError(f"vhosts.directory: {error}") from None


def _logs(config: Config, servers: Any, shared: SharedUsers | None) -> Logs | None:
    if servers is None:
        return None
    from leveret.broker.replication.postgresql_directory import LogReader  # noqa: PLC0415 - an extra

    return Logs(LogReader(servers), is_tls=bool(config.tls_listeners), shared=shared)
