"""Reads the header of the PROXY protocol from an accepted socket, and nothing that follows it (driver)."""

import asyncio
import socket

from leveret.broker.auth.users import is_loopback
from leveret.broker.network.proxy_protocol import LONGEST, Address, Header, MalformedHeaderError, parse


async def read_header(sock: socket.socket, seconds: float) -> Header | None:
    """Read the header with which a connection begins.

    A proxy elsewhere may not give a client an address of this host, which would let it in as a local one: the proxy's
    own address holds then, because its host is where that client is.

    Args:
        sock: the socket, which does not block.
        seconds: the time that the header may take.

    Returns:
        The header; None if the peer has closed the connection without sending anything.

    Raises:
        MalformedHeaderError: something else has arrived, or too little in time; the text is for the log.
        OSError: the connection is broken.

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
                    return _believed(header, sock.getpeername()[0])
                octets += sock.recv(len(arrived))  # all of it is the header's: that is not complete
    except TimeoutError:
        raise MalformedHeaderError(f"no complete PROXY header came within {seconds:g} s") from None


def _believed(header: Header, proxy: str) -> Header:
    peer: Address | None = header.peer
    return header._replace(peer=None) if peer and is_loopback(peer[0]) and not is_loopback(proxy) else header


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _resolve, arrived)
    try:
        await arrived
    finally:
        loop.remove_reader(sock)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
