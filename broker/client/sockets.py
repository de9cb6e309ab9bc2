"""Sockets of a client, connected and handed over to transports, and their TLS contexts (driver).

Theory. A context costs 35 ms and 0.8 MB with the authorities of a system, and its files are named by a URI: they may be
anything, on any file system. So it is made in a thread, within a deadline, and connections with equal parameters share
it until one of its files changes. A thread that does not come back is not followed by another one.
"""

import asyncio
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.options import TLS
from leveret.broker.client.uri import Address
from leveret.broker.process.deadlined_thread import SECONDS, in_time, started
from leveret.broker.tls.context import client_context, load_certificate
from leveret.broker.tls.credentials import Stamps, stamps


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


MOST = 64  # contexts that are kept for the next connection


class _Made(NamedTuple):
    seen: Stamps
    context: ssl.SSLContext


class Contexts:
    """The contexts of the connections of one client program, or of all shovels."""

    def __init__(self) -> None:
        self._made: OrderedDict[TLS, _Made] = OrderedDict()
        self._making: dict[TLS, asyncio.Future[_Made]] = {}

    async def get(self, tls: TLS) -> ssl.SSLContext:
        """Return the context of a connection; raises UnreachableError if a file cannot be used, or not in time."""
        making = self._making.get(tls)
        if making is None:
            making = self._making[tls] = started(partial(_current, tls, self._made.get(tls)))
            making.add_done_callback(lambda done: self._keep(tls, done))
        try:
            return (await in_time(making, SECONDS)).context
        except TimeoutError:
            files = " or ".join(map(str, tls.files)) or "the authorities of the system"
            raise UnreachableError(f"cannot read {files} for TLS in {SECONDS:g} s") from None

    def _keep(self, tls: TLS, done: "asyncio.Future[_Made]") -> None:
        del self._making[tls]
        self._made.pop(tls, None)
        if not done.cancelled() and done.exception() is None:
            self._made[tls] = done.result()
            if len(self._made) > MOST:
                self._made.popitem(last=False)


def _current(tls: TLS, before: _Made | None) -> _Made:
    """Return the context of files as they are now; raises UnreachableError."""
    files = tls.files
    if tls.directory is not None:
        _check_places(files, tls.directory)
    seen = stamps(files)
    if before is not None and before.seen == seen:
        return before
    return _Made(seen, _context(tls))


def _check_places(files: list[Path], directory: str) -> None:
    """Raise UnreachableError for a file that is not in the directory, or is a link that leads out of it."""
    for each in files:
        if (
            "\0" in str(each)
            or not directory
            or not Path(os.path.realpath(each)).is_relative_to(os.path.realpath(directory))
        ):
            raise UnreachableError(f"cannot use {each} for TLS: it is not in a directory that is allowed")


def _context(tls: TLS) -> ssl.SSLContext:
    what = tls.cacertfile
    try:
        context = client_context(tls.cacertfile or None)
        context.check_hostname = tls.is_verified and tls.server_name is not None
        context.verify_mode = ssl.CERT_REQUIRED if tls.is_verified else ssl.CERT_NONE
        if tls.certfile or tls.keyfile:
            what = tls.keyfile or tls.certfile
            load_certificate(context, tls.certfile or tls.keyfile, tls.keyfile or None, lambda: tls.password)
    except (OSError, ValueError) as error:  # an SSLError, too; a NUL in a name
        raise UnreachableError(
            f"cannot use {what} for TLS: {getattr(error, 'strerror', '') or error}"
        ) from None
    return context
