"""The listener: accepts connections, limiting how many clients may be half open at a time (driver).

Theory. `asyncio` servers accept every connection. Here nothing is accepted while all places of `HalfOpen` are taken:
further clients wait in the system's backlog. Whether an address has used up its share of the places is known only once
a socket is accepted: then the socket waits here, unread, until another client of that address has logged in or closed.
As many sockets may wait this way as there are places; beyond that the one that has waited longest is reset, at the
address with the most.
"""

import asyncio
import errno
import itertools
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from leveret.broker.config.values import Listener
from leveret.broker.network import socket_state
from leveret.broker.network.half_open import HalfOpen, origin
from leveret.broker.network.socket_driver import SocketDriver

log = logging.getLogger("leveret.connection")

AT_ONCE = 64  # accepted in one step of the event loop
PAUSE_SECONDS = 1.0  # after an accept that failed for lack of system resources
_OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listeners:
    """The listening sockets of a broker.

    Args:
        half_open: the places for clients that have not logged in.
        make_driver: creates the driver of a new client.

    Attributes:
        addresses: the bound addresses.

    """

    def __init__(self, half_open: HalfOpen, make_driver: Callable[[], SocketDriver]) -> None:
        self.addresses: list[tuple[str, int]] = []
        self._half_open = half_open
        self._make_driver = make_driver
        self._loop: asyncio.AbstractEventLoop
        self._listening: list[socket.socket] = []
        self._is_accepting = False
        self._waiting: dict[str, deque[socket.socket]] = {}
        self._waiting_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def bind(self, listeners: Iterable[Listener]) -> None:
        """Bind the addresses; clients cannot connect before `open`. Raises OSError for an unavailable address."""
        self._loop = asyncio.get_running_loop()
        try:
            for listener in listeners:
                found = await self._loop.getaddrinfo(
                    listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                for family, kind, number, _, address in dict.fromkeys(found):
                    sock = _bound(family, kind, number, address)
                    if sock is not None:
                        self._listening.append(sock)
                        self.addresses.append(sock.getsockname()[:2])
        except OSError:
            self.close()
            raise

    def open(self, backlog: int) -> None:
        """Start accepting clients. Raises OSError for an address on which another process listens by now.

        Args:
            backlog: maximum number of connections that wait in the system to be accepted.

        """
        for sock in self._listening:
            try:
                sock.listen(backlog)
            except OSError as error:
                raise _problem(sock.getsockname(), error) from None
        self._start_accepting()

    def _start_accepting(self) -> None:
        if not self._is_accepting:
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
            for sock in waiting:
                _reset(sock)
        self._waiting.clear()
        self._waiting_count = 0

    def descriptors(self) -> list[int]:
        """Return the descriptors of the listening and the waiting sockets; -1 for one that was closed."""
        waiting = itertools.chain.from_iterable(self._waiting.values())
        return [sock.fileno() for sock in (*self._listening, *waiting)]

    def release(self, origin: str) -> None:
        """Release the place of a client that has logged in or closed, and accept the next one."""
        self._half_open.release(origin)
        waiting = self._waiting.get(origin)
        if waiting and self._half_open.acquire(origin):
            self._connect(self._next_waiting(origin), origin)
        elif self._listening and not self._half_open.is_full:
            self._start_accepting()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if self._half_open.is_full:
                self._stop_accepting()
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
                self._loop.call_later(PAUSE_SECONDS, self._resume_accepting)
                return
            sock.setblocking(False)
            came_from = origin(str(address[0]))
            if self._half_open.acquire(came_from):
                self._connect(sock, came_from)
            else:
                self._keep_waiting(sock, came_from)

    def _resume_accepting(self) -> None:
        if self._listening:
            self._start_accepting()

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for sock in self._listening:
                self._loop.remove_reader(sock)

    def _connect(self, sock: socket.socket, came_from: str) -> None:
        task = self._loop.create_task(self._serve(sock, came_from))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket, came_from: str) -> None:
        driver = self._make_driver()
        driver.origin = came_from
        try:
            await self._loop.connect_accepted_socket(lambda: driver, sock)
        except OSError:  # it has closed already
            sock.close()
            self.release(came_from)

    def _keep_waiting(self, sock: socket.socket, came_from: str) -> None:
        self._waiting.setdefault(came_from, deque()).append(sock)
        self._waiting_count += 1
        if self._waiting_count > self._half_open.most:
            largest = max(self._waiting, key=lambda each: len(self._waiting[each]))
            _reset(self._next_waiting(largest))

    def _next_waiting(self, came_from: str) -> socket.socket:
        waiting = self._waiting[came_from]
        sock = waiting.popleft()
        if not waiting:
            del self._waiting[came_from]
        self._waiting_count -= 1
        return sock


def _reset(sock: socket.socket) -> None:
    socket_state.reset_when_closed(sock)
    sock.close()


def _bound(family: int, kind: int, number: int, address: Any) -> socket.socket | None:
    """Return a socket bound to that address; None if the system does not support the address family."""
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


def _problem(address: Any, error: OSError) -> OSError:
    """Return an error in asyncio's words, which include the address."""
    reason = (error.strerror or str(error)).lower()
    return OSError(error.errno, f"error while attempting to bind on address {address!r}: {reason}")
