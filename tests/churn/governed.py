"""A broker whose administration can be called from outside: `serve`, with a UNIX socket for the service layer.

The administration (`broker.administration`) has no interface for other processes yet. The socket takes one JSON list per
line, `[area, operation, arguments, options]`, carries it out as the operator of the machine, and answers `{"done": result}` or `{"error": text}`. The area `objects` counts what the collector knows, by type.
"""

import asyncio
import gc
import json
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from leveret.broker.http.running_brokers import in_directory

ADMIN_SOCKET = "admin.sock"
"""The socket's name, in the folder that the broker runs in."""
CALL_SECONDS = 60.0
TESTS = Path(__file__).resolve().parents[1]
PROGRAM = (
    "-c",
    f"import sys; sys.path[:0] = [{str(TESTS)!r}]; from churn.governed import main; main()",
)
"""The program that the interpreter runs."""


def main() -> None:
    """Run the broker's command line."""
    from leveret.broker.administration import Administration
    from leveret.broker.cli import main
    from leveret.broker.server.server import Server

    start, stop = Server.start, Server.stop
    listeners: list[asyncio.Server] = []

    async def start_with_socket(server: Server) -> None:
        await start(server)
        administration = Administration(server)

        def carry_out(area: str, operation: str, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
            if area == "objects":
                gc.collect()
                return Counter(type(each).__qualname__ for each in gc.get_objects())
            if area == "policies of the vhost":
                return getattr(server.vhosts["/"].policies, operation)(*arguments, **options)
            done = getattr(getattr(administration, area), operation)(None, *arguments, **options)
            return list(done) if isinstance(done, Iterator) else done

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                try:
                    answer = {"done": carry_out(*json.loads(line))}
                except Exception as error:
                    answer = {"error": repr(error)}
                server.loop.run_turn()
                writer.write(json.dumps(answer, default=repr).encode() + b"\n")
            writer.close()

        listeners.append(await asyncio.start_unix_server(serve, ADMIN_SOCKET, limit=1 << 26))

    async def stop_with_socket(server: Server, *arguments: Any) -> None:
        for listener in listeners:
            listener.close()
        await stop(server, *arguments)

    Server.start, Server.stop = start_with_socket, stop_with_socket  # type: ignore[method-assign]
    main.main()


class AdminClient:
    """Client of the broker's socket for administrators."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        in_directory(self.home, ADMIN_SOCKET, sock.connect)
        self.reader, self.writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 26)

    async def call(self, area: str, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call an operation; raises AssertionError if it fails."""
        self.writer.write(json.dumps([area, operation, arguments, options]).encode() + b"\n")
        async with asyncio.timeout(CALL_SECONDS):
            line = await self.reader.readline()
        answer = json.loads(line or b'{"error": "the connection is closed"}')
        assert "done" in answer, f"{operation} {arguments}: {answer['error']}"
        return answer["done"]

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
