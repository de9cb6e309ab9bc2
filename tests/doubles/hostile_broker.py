"""A broker that means harm, for the client's side of a connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import zip_longest
from typing import Any

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Channel, Connection, make
from leveret.broker.client.client import Client
from leveret.broker.client.errors import ClientError
from leveret.broker.client.frames import Incoming
from leveret.broker.client.options import Options
from leveret.broker.client.uri import Address

SECONDS = 10.0
START = encode_method(0, make(Connection.Start, 0, 9, {}, "PLAIN", "en_US"))
TUNE = encode_method(0, make(Connection.Tune, 2047, 131_072, 0))
LOGIN = (
    START,
    TUNE,
    encode_method(0, make(Connection.OpenOk, "")),
    encode_method(1, make(Channel.OpenOk, "")),
)
"""Methods by which a broker lets a client in."""
FRAMES = (1, 2, 1)
"""Numbers of frames of the client before its second part and each of the following ones."""


class Hostile:
    """A server on a free port.

    Args:
        script: what it sends, the first part after the protocol header and the next ones after `FRAMES`.

    Attributes:
        is_closed: set when the client has closed the connection.

    """

    def __init__(self, *script: bytes) -> None:
        self._script = script
        self.is_closed = asyncio.Event()
        self.writer: asyncio.StreamWriter
        self.sent = 0
        """Octets of the script that the client's side of the network has taken."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            await asyncio.wait_for(reader.readexactly(8), SECONDS)
            for part, count in zip_longest(self._script, FRAMES[: len(self._script) - 1], fillvalue=0):
                for at in range(0, len(part), 65_536):
                    writer.write(part[at : at + 65_536])
                    await asyncio.wait_for(writer.drain(), SECONDS)
                    self.sent += len(part[at : at + 65_536])
                for _ in range(count):
                    await asyncio.wait_for(_frame(reader), SECONDS)
            while await reader.read(65_536):
                pass
        self.is_closed.set()
        writer.close()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
        finally:
            server.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(7)
    return head + await reader.readexactly(int.from_bytes(head[3:], "big") + 1)


async def outcome(
    server: Hostile,
    incoming: Incoming | None = None,
    options: Options | None = None,
    use: Callable[[Client], Any] = lambda _: None,
) -> str:
    """Connect to a server and use the connection until it fails; returns the reason."""
    async with server.listening() as address, asyncio.timeout(SECONDS):
        try:
            client = await Client.connect(
                address, incoming or Incoming(), options or Options(seconds=SECONDS / 2)
            )
        except ClientError as error:
            return str(error)
        try:
            use(client)
            await client.failed
        except ClientError as error:
            return str(error)
        finally:
            await client.abort()
    return ""
