"""Sockets: connected, and made transports; closed once if that fails, whoever closes the descriptor (driver)."""

import asyncio
import os
import socket
from collections.abc import Awaitable
from functools import partial

from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.uri import Address
from leveret.broker.process.deadlined_thread import in_time, started


async def connected(address: Address, seconds: float) -> socket.socket:
    """Return a socket that is connected to one of the addresses of the host. Raises UnreachableError."""
    loop = asyncio.get_running_loop()
    reason = "no address found"
    try:
        looking = started(partial(socket.getaddrinfo, address.host, address.port, type=socket.SOCK_STREAM))
        found = await in_time(looking, seconds)
    except TimeoutError:
        found, reason = [], f"no address found in {seconds:g} s"
    except OSError as error:
        found, reason = [], error.strerror or str(error)
    for family, kind, protocol, _, where in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        sock.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(sock, where), seconds)
        except TimeoutError:
            reason = f"no answer in {seconds:g} s"
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
        sock.close()
    raise UnreachableError(f"cannot connect to {address.endpoint}: {reason}")


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
