"""Listening sockets whose server is loaded when the first client connects (driver); one is in the data directory.

Loading it takes longer than much of a start, and memory that an unwatched broker does not need. Clients can connect
from the start on: the first one waits until the server is loaded, in a thread.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from leveret.broker.http.running_brokers import NAME, in_directory
from leveret.broker.tls.acceptor import Acceptor
from leveret.broker.tls.credentials import Credentials

BACKLOG = 16

log = logging.getLogger("leveret.management")


def listening(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on an address; raises OSError."""
    (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:  # whose text has the address, which the caller says
        raise OSError(error.errno, os.strerror(error.errno or 0).lower()) from None


async def serve(
    accept: Callable[[], asyncio.BaseProtocol], sock: socket.socket, tls: Credentials | None, use: str
) -> asyncio.Server | Acceptor:
    """Serve a listening socket. The caller removes the path of a Unix one, which may have been valid for the bind only.

    `accept` returns the protocol of a new connection; `use` says for the log what a listener with TLS is for.
    """
    if tls is not None:
        return Acceptor(sock, accept, tls, use)
    loop = asyncio.get_running_loop()
    if sock.family != socket.AF_UNIX:
        return await loop.create_server(accept, sock=sock, backlog=BACKLOG)
    listen: Callable[..., Awaitable[asyncio.Server]] = partial(
        loop.create_unix_server, accept, sock=sock, backlog=BACKLOG
    )
    try:
        return await listen(cleanup_socket=False)
    except TypeError:  # loops of before Python 3.13 neither look for the path nor know the option
        return await listen()


Load = Callable[[], Callable[[], Any]]
"""Returns a function that makes a server of sockets (`broker.http.server.ManagementServer`); is called in a thread."""


class LateServer:
    """The server of a socket that listens, which is loaded for the first client."""

    def __init__(self, sock: socket.socket, load: Load, tls: Credentials | None = None) -> None:
        self._load = load
        self._tls = tls
        self._sock: socket.socket | None = sock
        self._server: Any = None
        self._loading: asyncio.Task[None] | None = None
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock, self._first_client, sock)

    def _first_client(self, sock: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(sock)
        self._loading = asyncio.create_task(self._serve(sock))

    async def _serve(self, sock: socket.socket) -> None:
        try:
            make = await asyncio.to_thread(self._load)
            self._server = make()
            await self._server.serve_socket(sock, self._tls)
        except Exception:  # such as one of a file that an upgrade has removed
            log.exception("the server of %s cannot start; restart the broker", sock.getsockname())
            sock.close()
        self._sock = None

    async def close(self) -> None:
        """Stop listening."""
        if self._loading is not None:
            await asyncio.wait((self._loading,))
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None
        if self._server is not None:
            await self._server.stop()


@contextlib.asynccontextmanager
async def control_socket(directory: Path, load: Load, name: str = NAME) -> AsyncIterator[None]:
    """Listen meanwhile on the socket in the (locked) data directory for `leveret ctl`, or on one of another name.

    Only the owner of the directory can open it, and then may do everything. A failure is only logged.
    """
    path, late = directory / name, None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)  # of a broker that was killed
        in_directory(directory, name, sock.bind)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        sock.listen(BACKLOG)
        late = LateServer(sock, load)
    except OSError as error:
        sock.close()
        log.warning("leveret ctl cannot connect: %s: %s", path, error.strerror)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        if late is not None:
            await late.close()
