"""A broker that takes orders from its administrator: `serve`, with a door for the service layer beside the clients'.

The administration (`broker.administration`) has no door of its own yet. This opens one for the churn: a UNIX socket
that takes one JSON list in each line, `[area, operation, arguments, options]`, carries it out as the operator at the
machine, and answers `{"done": result}` or `{"error": text}`. The area `objects` counts what the collector knows, by type.
"""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DOOR = "door"
"""The socket's name, in the folder that the broker runs in."""
ORDER_SECONDS = 60.0
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
    doors: list[asyncio.Server] = []

    async def open_door(server: Server) -> None:
        await start(server)
        administration = Administration(server)

        def carry_out(area: str, operation: str, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
            if area == "objects":
                gc.collect()
                return Counter(type(each).__qualname__ for each in gc.get_objects())
            if area == "policies":
                return getattr(server.vhosts["/"].policies, operation)(*arguments, **options)
            done = getattr(getattr(administration, area), operation)(None, *arguments, **options)
            return list(done) if isinstance(done, Iterator) else done

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                try:
                    answer = {"done": carry_out(*json.loads(line))}
                except Exception as error:
                    answer = {"error": repr(error)}
                server.run_turn()
                writer.write(json.dumps(answer, default=repr).encode() + b"\n")
            writer.close()

        doors.append(await asyncio.start_unix_server(serve, DOOR, limit=1 << 26))

    async def close_door(server: Server, *arguments: Any) -> None:
        for door in doors:
            door.close()
        await stop(server, *arguments)

    Server.start, Server.stop = open_door, close_door  # type: ignore[method-assign]
    main.main()


class Door:
    """Client of the broker's door for an administrator."""

    def __init__(self, home: Path) -> None:
        self.path = home / DOOR
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        """Connect."""
        self.reader, self.writer = await asyncio.open_unix_connection(self.path, limit=1 << 26)

    async def order(self, area: str, operation: str, *arguments: Any, **options: Any) -> Any:
        """Have an order carried out; raises AssertionError if it fails."""
        self.writer.write(json.dumps([area, operation, arguments, options]).encode() + b"\n")
        async with asyncio.timeout(ORDER_SECONDS):
            line = await self.reader.readline()
        answer = json.loads(line or b'{"error": "the door is shut"}')
        assert "done" in answer, f"{operation} {arguments}: {answer['error']}"
        return answer["done"]

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        await self.writer.wait_closed()
