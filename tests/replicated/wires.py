"""The way of each node to the database, by TCP, which can be cut, held up, slowed down, or made to lose answers."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

CHUNK = 65536
UP, DOWN = 0, 1
"""Towards the database, and back."""
SECONDS = 30.0


class Wire:
    """The way of one node to all servers of the database; to be used in the loop of `Wires`.

    Octets that are held are delivered late, in order, as by a network that repeats what was lost.

    Args:
        sockets: of the servers.

    """

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._sockets = sockets
        self.ports: list[int] = []
        self._servers: list[asyncio.Server] = []
        self._is_open = (asyncio.Event(), asyncio.Event())
        for gate in self._is_open:
            gate.set()
        self.delay = 0.0
        """Seconds that each piece takes, in both directions."""
        self.is_cut = False
        """True if connections are refused."""
        self.swallows = False
        """True if answers are lost."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        for path in self._sockets:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: Path = path) -> None:
                task = asyncio.ensure_future(self._serve(path, reader, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _serve(self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        self._writers.add(writer)
        there = None
        try:
            try:
                backward, there = await asyncio.open_unix_connection(str(path / ".s.PGSQL.5432"))
            except OSError:
                return
            self._writers.add(there)
            up = asyncio.ensure_future(self._pump(reader, there, UP))
            down = asyncio.ensure_future(self._pump(backward, writer, DOWN))
            try:
                await asyncio.wait([up, down])
            finally:
                up.cancel()
                down.cancel()
        finally:
            for each in (writer, there):
                if each is not None:
                    self._writers.discard(each)
                    each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._is_open[direction].wait()
                if direction == DOWN and self.swallows:
                    continue
                writer.write(data)
                await writer.drain()
        await self._is_open[direction].wait()
        writer.close()  # once what is in it is written

    def hold(self, *directions: int) -> None:
        """Deliver nothing in these directions until `release`."""
        for direction in directions:
            self._is_open[direction].clear()

    def release(self) -> None:
        """Deliver everything that was held, in time, and all answers; take connections."""
        self.delay, self.is_cut, self.swallows = 0.0, False, False
        for gate in self._is_open:
            gate.set()

    def reset(self) -> None:
        """Break all connections, with what is on its way."""
        for writer in list(self._writers):
            writer.transport.abort()

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()


class Wires:
    """The ways of all nodes, in a thread of its own.

    Args:
        names: of the nodes.
        sockets: of the servers.
        url: what a URL needs beside hosts and ports.

    """

    def __init__(self, names: Iterable[str], sockets: Sequence[Path], url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires")
        self._thread.start()
        self.wires: dict[str, Wire] = {}
        for name in names:
            self.wires[name] = self._within(self._wire(sockets))
        hosts = ",".join("127.0.0.1" for _ in sockets)
        self.urls = {
            name: f"postgresql:///leveret?host={hosts}&port={','.join(map(str, wire.ports))}&{url}"
            for name, wire in self.wires.items()
        }

    @staticmethod
    async def _wire(sockets: Sequence[Path]) -> Wire:
        wire = Wire(sockets)
        await wire.listen()
        return wire

    def _within(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS)

    def do(self, name: str, what: Callable[[Wire], object]) -> None:
        """Do something with the way of a node, in the loop."""

        async def within() -> None:
            what(self.wires[name])

        self._within(within())

    def heal(self) -> None:
        """Let everything through."""
        for name in self.wires:
            self.do(name, Wire.release)

    def stop(self) -> None:
        for name in self.wires:
            self.do(name, Wire.close)
        self._within(asyncio.sleep(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()
