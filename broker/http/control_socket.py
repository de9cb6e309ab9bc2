"""The socket in the data directory by which `leveret ctl` reaches the broker (driver).

Only the owner of the directory can open it, and whoever can may do everything. It listens from the start on; what
serves it is loaded, in a thread, when the first client connects, because that takes longer than all the rest of a
start.
"""

import asyncio
import contextlib
import logging
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from leveret.broker.http.socket_path import NAME, bind_in

log = logging.getLogger("leveret.management")

BACKLOG = 16


class SocketServer(Protocol):
    """Serves a listening socket (`broker.http.server.ManagementServer`)."""

    async def serve_socket(self, sock: socket.socket) -> None:
        """Serve the socket, which it closes at `stop`."""

    async def stop(self) -> None:
        """Stop listening."""


class ControlSocket:
    """The socket of one data directory.

    Args:
        directory: the data directory, which is locked.
        load: returns the server; called in a thread.

    """

    def __init__(self, directory: Path, load: Callable[[], Callable[[], SocketServer]]) -> None:
        self._path = directory / NAME
        self._load = load
        self._sock: socket.socket | None = None
        self._server: SocketServer | None = None
        self._loading: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start listening; raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()  # of a broker that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bind_in(sock, self._path.parent, NAME)
            self._path.chmod(stat.S_IRUSR | stat.S_IWUSR)
            sock.setblocking(False)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        asyncio.get_running_loop().add_reader(sock, self._first_client, sock)

    def _first_client(self, sock: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(sock)
        self._loading = asyncio.create_task(self._serve(sock))

    async def _serve(self, sock: socket.socket) -> None:
        make = await asyncio.to_thread(self._load)
        self._server = make()
        self._sock = None
        await self._server.serve_socket(sock)

    async def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._loading is not None:
            await asyncio.wait((self._loading,))
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._server is not None:
            await self._server.stop()
