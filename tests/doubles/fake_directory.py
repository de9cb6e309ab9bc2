"""A directory for tests that answers whatever a test wants: silence, errors, octets that are no LDAP."""

import asyncio
import contextlib

from processes.slapd import BROKER

from leveret.broker.auth.backends.ldap import LDAPBackend
from leveret.broker.auth.backends.ldap_queries import query_of
from leveret.broker.auth.backends.settings import LDAPQueries, LDAPSettings

SECONDS = 60.0
ALL = query_of("vhost_access", "{constant, true}")
BIND, SEARCH, EXTENDED = 0x60, 0x63, 0x77
"""Tags of requests; that of the answer is the next one, of a search two more."""


class Fake:
    """A server that answers as a test wants.

    Attributes:
        answer: returns the octets that follow a request: its number as it came, its tag and its octets are the arguments.
        received: all octets that have arrived.

    """

    def __init__(self, answer):
        self.answer = answer
        self.received = b""
        self.connections = 0
        self.tasks = set()

    async def serve(self, reader, writer):
        self.connections += 1
        self.tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, IndexError
            ):
                await self._answer(reader, writer)
        finally:
            writer.transport.abort()

    async def _answer(self, reader, writer):
        while head := await reader.read(2):
            octets = head + await reader.readexactly(head[1] if head[1] < 0x80 else 0)
            self.received += octets
            end = 4 + octets[3]  # of the number, which grows with each request of this process
            for piece in self.answer(octets[2:end], octets[end], octets):
                if piece is None:
                    await asyncio.Event().wait()
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)

    async def close(self):
        for each in self.tasks:
            each.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def result(number, tag, code, name=b""):
    """Return an answer to a request, whose number is an integer of BER."""
    body = bytes([0x0A, 1, code, 4, len(name)]) + name + b"\x04\0"
    body = number + bytes([tag + (2 if tag == SEARCH else 1), len(body)]) + body
    return bytes([0x30, len(body)]) + body


@contextlib.asynccontextmanager
async def faked(answer, **more):
    """Give a fake server, and a backend that asks it."""
    fake = Fake(answer)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    settings = LDAPSettings(
        **{
            "servers": ("127.0.0.1",),
            "port": server.sockets[0].getsockname()[1],
            "timeout": SECONDS,
            "connection_pool_size": 1,
            "user_dn_pattern": "uid=${username},ou=people",
            "other_bind": BROKER,
            "queries": LDAPQueries(vhost_access=ALL, resource_access=ALL),
        }
        | more
    )
    backend = LDAPBackend(settings)
    try:
        async with asyncio.timeout(SECONDS):
            yield fake, backend
    finally:
        await backend.close()
        server.close()
        await fake.close()


def codes(**by_tag):
    numbers = {"bind": BIND, "search": SEARCH, "extended": EXTENDED}
    wanted = {numbers[name]: code for name, code in by_tag.items()}
    return lambda number, tag, _octets: [result(number, tag, wanted[tag])] if tag in wanted else []
