"""The socket in the data directory by which `leveret ctl` reaches the broker (driver).

Only the owner of the directory can open it, and whoever can may do everything.
"""

import contextlib
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from leveret.broker.http.late_server import BACKLOG, LateServer, SocketServer
from leveret.broker.http.socket_path import NAME, bind_in


class ControlSocket:
    """The socket of one data directory.

    Args:
        directory: the data directory, which is locked.
        load: returns a function that makes the server; called in a thread.

    """

    def __init__(self, directory: Path, load: Callable[[], Callable[[], SocketServer]]) -> None:
        self._path = directory / NAME
        self._load = load
        self._late: LateServer | None = None

    def open(self) -> None:
        """Start listening; raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()  # of a broker that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bind_in(sock, self._path.parent, NAME)
            self._path.chmod(stat.S_IRUSR | stat.S_IWUSR)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._late = LateServer(sock, self._load)

    async def close(self) -> None:
        """Stop listening, and remove the socket."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._late is not None:
            await self._late.close()
