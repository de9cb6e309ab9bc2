"""Connections through a proxy that cuts them at random: a close of the client ends, as with RabbitMQ."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aio_pika
import pytest

CLOSE_SECONDS = 20.0
VARIANTS = 24
WAYS = ("abort", "end", "silence")
"""The sockets are reset, or closed in good order, or stay open and nothing passes any more."""


class Proxy:
    """Passes octets on between one client and a broker until it is asked to cut."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.address: tuple[str, int]
        self.silent = False
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_broker = await asyncio.open_connection(self.host, self.port)
        self._writers += writer, to_broker
        for source, sink in ((reader, to_broker), (there, writer)):
            task = asyncio.ensure_future(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while octets := await source.read(65536):
                if not self.silent:
                    sink.write(octets)
            if not self.silent:
                sink.close()

    def cut(self, way: str) -> None:
        """Stop passing anything on."""
        self.silent = way == "silence"
        for writer in self._writers:
            if way == "abort":
                writer.transport.abort()
            elif way == "end":
                writer.close()

    async def close(self) -> None:
        """Close all sockets and end all tasks."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(amqp_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the broker, and the address to reach it by."""
    parts = urlsplit(amqp_url)
    proxy = Proxy(parts.hostname or "127.0.0.1", parts.port or 5672)
    await proxy.open()
    try:
        yield proxy, f"amqp://guest:guest@127.0.0.1:{proxy.address[1]}/?heartbeat=1"
    finally:
        await proxy.close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the client's tasks, at the loop's end
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
async def test_a_close_ends_after_a_cut_at_any_moment(
    amqp_url: str, unique: Callable[[str], str], way: str
) -> None:
    """The close of a client ends, however its connection is cut while it publishes and consumes."""
    rng = random.Random(way)
    hung = await asyncio.gather(
        *[
            _variant(amqp_url, unique(f"cut-{way}-{number}"), way, rng.uniform(0, 2.5))
            for number in range(VARIANTS)
        ]
    )

    assert [] == [each for each in hung if each]


async def _variant(amqp_url: str, name: str, way: str, after: float) -> str:
    """One connection that is cut after so many seconds; what was wrong, if anything."""
    async with proxied(amqp_url) as (proxy, url):
        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        queue = await channel.declare_queue(name, exclusive=True)

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            with suppress(aio_pika.exceptions.AMQPError, OSError, RuntimeError):
                await message.ack()

        await queue.consume(take)

        async def work() -> None:
            while True:
                await channel.default_exchange.publish(aio_pika.Message(b"x"), name)

        working = asyncio.ensure_future(work())
        await asyncio.sleep(after)
        proxy.cut(way)
        began = time.monotonic()
        try:
            await asyncio.wait_for(connection.close(), CLOSE_SECONDS)
        except TimeoutError:
            return f"{name}, cut after {after:.2f} s: the close hung"
        except (aio_pika.exceptions.AMQPError, OSError, RuntimeError):
            pass
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        took = time.monotonic() - began
        return "" if took < CLOSE_SECONDS else f"{name}: the close took {took:.1f} s"
