"""Sockets that become transports: closed once if that fails, whoever has closed the descriptor by then (driver)."""

import os
import socket
from collections.abc import Awaitable


async def handed_over(sock: socket.socket, connecting: Awaitable[object]) -> None:
    """Await the making of a transport of a connected socket; if that fails or is cancelled the socket is closed.

    asyncio's transport closes the socket object; uvloop's closes the descriptor beneath it, whose number may belong to
    another file by the time the object is closed.
    """
    identity = _identity(sock)
    try:
        await connecting
    except BaseException:
        if identity is not None and _identity(sock) == identity:
            sock.close()
        else:
            sock.detach()
        raise


def _identity(sock: socket.socket) -> tuple[int, int] | None:
    """Return what distinguishes the file of a descriptor from others; None if it is closed."""
    try:
        found = os.fstat(sock.fileno())
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
