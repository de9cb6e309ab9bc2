"""The listener: accepts connections, limiting how many clients may be half open at a time (driver).

Theory. `asyncio` servers accept every connection. Here nothing is accepted while all places are taken:
further clients wait in the system's backlog, as those with TLS do beyond a rate of handshakes. Whether an address has
used up its share of the places is known only once a socket is accepted: then the socket waits here, unread, until
another client of that address has logged in or closed. As many sockets may wait this way as there are places; beyond
that the one that has waited longest is reset, at the address with the most.
"""

import asyncio
import errno
import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.auth.users import is_loopback
from leveret.broker.config.values import Listener
from leveret.broker.connection.publish_limits import Bucket
from leveret.broker.network import socket_state
from leveret.broker.network.proxy_protocol import LONGEST, Header, MalformedHeaderError, parse
from leveret.broker.process.shares import Shares, origin
from leveret.broker.scheduling.loop import resolve

if TYPE_CHECKING:
    from leveret.broker.tls.credentials import Credentials

log = logging.getLogger("leveret.connection")

AT_ONCE = 64  # accepted in one step of the event loop
PAUSE_SECONDS = 1.0  # after an accept that failed for lack of system resources
_OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Accepted(NamedTuple):
    """An accepted socket, which has no driver yet."""

    sock: socket.socket  # the socket
    origin: str  # where the client is (`shares.origin`)
    tls: "Credentials | None"  # the certificates of the listener; None for one without TLS
    header: Header | None = None  # a proxy's information about the client; None without a proxy


class Listeners:
    """The listening sockets of a broker."""

    def __init__(
        self,
        half_open: Shares,  # the places for clients that have not logged in, who may take their time
        make_driver: Callable[[], Any],  # creates the driver of a new client
        # logs that a client was refused: its address, the name of its connection, the reason
        log_refusal: Callable[[str, str, str], object],
        # time for the header of the PROXY protocol; None if clients connect without a proxy
        proxy_seconds: float | None = None,
        # clients with TLS that are accepted per second, after as many at once; None for no limit
        handshake_rate: int | None = None,
    ) -> None:
        self._proxy_seconds = proxy_seconds
        self._handshake_bucket = None if handshake_rate is None else Bucket(handshake_rate)
        self.addresses: list[tuple[str, int]] = []  # the bound addresses of plain listeners
        self.tls_addresses: list[tuple[str, int]] = []  # those of listeners with TLS
        self._half_open = half_open
        self._make_driver = make_driver
        self._log_refusal = log_refusal
        self._loop: asyncio.AbstractEventLoop
        self._listening: dict[socket.socket, Credentials | None] = {}
        self._is_accepting = False
        self._waiting: dict[str, deque[Accepted]] = {}
        self._waiting_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        """The tasks of sockets with TLS, and of those that wait for a proxy's header."""

    async def bind(self, listeners: Iterable[Listener], tls: "Credentials | None" = None) -> None:
        """Bind addresses; clients cannot connect before `open`. Raises OSError for an unavailable address."""
        self._loop = asyncio.get_running_loop()
        try:
            for listener in listeners:
                found = await self._loop.getaddrinfo(
                    listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                for family, kind, number, _, address in dict.fromkeys(found):
                    sock = _bound(family, kind, number, address)
                    if sock is not None:
                        self._listening[sock] = tls
                        bound = self.addresses if tls is None else self.tls_addresses
                        bound.append(sock.getsockname()[:2])
        except OSError:
            self.close()
            raise

    def open(self, backlog: int) -> None:
        """Start accepting clients; at most `backlog` connections wait in the system for that.

        Raises OSError for an address on which another process listens by now.
        """
        for sock in self._listening:
            try:
                sock.listen(backlog)
            except OSError as error:
                raise _problem(sock.getsockname(), error) from None
        self._start_accepting()

    def _start_accepting(self) -> None:
        if not self._is_accepting and self._listening and not self._half_open.is_full:
            self._is_accepting = True
            for sock in self._listening:
                self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Stop listening, and reset the waiting sockets."""
        self._stop_accepting()
        for sock in self._listening:
            sock.close()
        self._listening.clear()
        for waiting in self._waiting.values():
            for accepted in waiting:
                _reset(accepted.sock)
        self._waiting.clear()
        self._waiting_count = 0
        for task in self._handshakes:
            task.cancel()

    def descriptors(self) -> list[int]:
        """Return the descriptors of the listening and the waiting sockets; -1 for one that was closed."""
        waiting = itertools.chain.from_iterable(self._waiting.values())
        return [sock.fileno() for sock in (*self._listening, *(each.sock for each in waiting))]

    def release(self, origin: str) -> None:
        """Release the place of a client that has logged in or closed, and accept the next one."""
        self._half_open.release(origin)
        waiting = self._waiting.get(origin)
        if waiting and self._half_open.acquire(origin):
            self._connect(self._next_waiting(origin))
        else:
            self._start_accepting()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if self._half_open.is_full:
                self._stop_accepting()
                return
            if not self._may_accept(listening):
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF:
                    raise
                log.error("cannot accept connections for %.0f s: %s", PAUSE_SECONDS, error.strerror)  # noqa: TRY400
                self._stop_accepting()
                self._loop.call_later(PAUSE_SECONDS, self._start_accepting)
                return
            if self._handshake_bucket is not None and self._listening[listening] is not None:
                self._handshake_bucket.take(1, self._loop.time())
            sock.setblocking(False)
            if self._proxy_seconds is None:
                self._admit(Accepted(sock, origin(str(address[0])), self._listening[listening]))
            else:
                own = f"header of {address[0]}:{address[1]}"  # no proxy's share: all clients come from it
                self._half_open.acquire(own)
                accepted = Accepted(sock, own, self._listening[listening])
                self._run(self._read_header(accepted, self._proxy_seconds), self._handshakes)

    def _may_accept(self, listening: socket.socket) -> bool:
        """Return whether the rate of handshakes allows one more; otherwise accept nothing there until it does."""
        bucket = self._handshake_bucket
        if bucket is None or self._listening[listening] is None:
            return True
        due = bucket.paid + 1 / bucket.rate
        if due <= self._loop.time():
            return True
        self._loop.remove_reader(listening)
        self._loop.call_at(due, self._accept_again, listening)
        return False

    def _accept_again(self, listening: socket.socket) -> None:
        if self._is_accepting and listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    def _admit(self, accepted: Accepted) -> None:
        if self._half_open.acquire(accepted.origin):
            self._connect(accepted)
        else:
            self._keep_waiting(accepted)

    async def _read_header(self, accepted: Accepted, seconds: float) -> None:
        """Read what the proxy tells about a client, which occupies a place of its own meanwhile."""
        sock, reason = accepted.sock, ""
        host, name = _name_of(sock)
        header = None
        try:
            header = await read_header(sock, seconds)
        except MalformedHeaderError as error:
            reason = str(error)
        except OSError:
            pass
        except asyncio.CancelledError:
            sock.close()
            raise
        self._half_open.release(accepted.origin)
        if header is None or not self._listening:
            sock.close()
            if reason:
                self._log_refusal(host, name, f"{reason}; the peer must be a proxy (proxy_protocol = true)")
        else:
            came_from = origin(header.peer[0] if header.peer else host)
            self._admit(accepted._replace(origin=came_from, header=header))
        self._start_accepting()

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for sock in self._listening:
                self._loop.remove_reader(sock)

    def _connect(self, accepted: Accepted) -> None:
        self._run(self._serve(accepted), self._tasks if accepted.tls is None else self._handshakes)

    def _run(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, accepted: Accepted) -> None:
        sock, tls = accepted.sock, accepted.tls
        driver = self._make_driver()
        driver.origin = accepted.origin
        driver.header = accepted.header
        if tls is not None:
            from leveret.broker.tls.acceptor import Handshake, failure  # noqa: PLC0415 - only if it is used
        peer = _name_of(sock) if tls is not None else ("", "")
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(lambda: driver, sock)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: Handshake(driver, partial(self._refused, driver, peer)),
                    sock,
                    ssl=tls.context,
                    ssl_handshake_timeout=tls.handshake_timeout,
                )
        except OSError as error:  # it has closed already, or the handshake failed
            sock.close()
            self._refused(driver, peer, "" if tls is None else failure(error, tls.handshake_timeout))
        except BaseException:  # such as the end of the broker: the place is free again whatever it was
            sock.close()
            self._refused(driver, peer, "")
            raise

    def _refused(self, driver: Any, peer: tuple[str, str], reason: str) -> None:
        came_from, driver.origin = driver.origin, ""
        if came_from:
            self.release(came_from)
        if reason:
            self._log_refusal(*peer, reason)

    def _keep_waiting(self, accepted: Accepted) -> None:
        self._waiting.setdefault(accepted.origin, deque()).append(accepted)
        self._waiting_count += 1
        if self._waiting_count > self._half_open.most:
            largest = max(self._waiting, key=lambda each: len(self._waiting[each]))
            _reset(self._next_waiting(largest).sock)

    def _next_waiting(self, came_from: str) -> Accepted:
        waiting = self._waiting[came_from]
        accepted = waiting.popleft()
        if not waiting:
            del self._waiting[came_from]
        self._waiting_count -= 1
        return accepted


async def read_header(sock: socket.socket, seconds: float) -> Header | None:
    """Read the header of the PROXY protocol with which a connection begins, within some seconds, and nothing more.

    A proxy elsewhere may not give a client an address of this host, which would let it in as a local one: the proxy's
    own address holds then, because its host is where that client is. The socket does not block. None if the peer has
    closed the connection without sending anything.

    Raises MalformedHeaderError if something else has arrived, or too little in time, with a text for the log; OSError
    if the connection is broken.
    """
    octets = b""
    try:
        async with asyncio.timeout(seconds):
            while True:
                await _readable(sock)
                arrived = sock.recv(LONGEST - len(octets), socket.MSG_PEEK)
                if not arrived:
                    if not octets:
                        return None
                    raise MalformedHeaderError("the connection has ended within the PROXY header")
                header = parse(octets + arrived)
                if header is not None:
                    sock.recv(header.size - len(octets))
                    is_local = header.peer is not None and is_loopback(header.peer[0])
                    if is_local and not is_loopback(sock.getpeername()[0]):
                        header = header._replace(peer=None)
                    return header
                octets += sock.recv(len(arrived))  # all of it is the header's: that is not complete
    except TimeoutError:
        raise MalformedHeaderError(f"no complete PROXY header came within {seconds:g} s") from None


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, resolve, arrived, None)
    try:
        await arrived
    finally:
        loop.remove_reader(sock)


def _name_of(sock: socket.socket) -> tuple[str, str]:
    try:
        peer, local = socket_state.address(sock.getpeername()), socket_state.address(sock.getsockname())
    except OSError:  # it has closed already
        return "", ""
    return peer[0], f"{peer[0]}:{peer[1]} -> {local[0]}:{local[1]}"


def _reset(sock: socket.socket) -> None:
    socket_state.reset_when_closed(sock)
    sock.close()


def _bound(family: int, kind: int, number: int, address: Any) -> socket.socket | None:
    try:
        sock = socket.socket(family, kind, number)
    except OSError:
        return None
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _problem(address, error) from None
    return sock


def bound_socket(host: str, port: int, *, is_ipv6: bool) -> socket.socket:
    """Return a socket bound to an address, as a listener binds it, that does not listen; OSError if it is not free."""
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    sock = _bound(family, socket.SOCK_STREAM, 0, (host, port))
    if sock is None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    return sock


def _problem(address: Any, error: OSError) -> OSError:
    """Return an error in asyncio's words, which include the address."""
    reason = (error.strerror or str(error)).lower()
    return OSError(error.errno, f"error while attempting to bind on address {address!r}: {reason}")
