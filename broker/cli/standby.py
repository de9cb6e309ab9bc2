"""The HTTP listeners of a node that waits: probes, metrics of replication, and who leads (driver).

A waiting node has no users that it could ask for a login, so nothing here tells more than where the leader is.
"""

import asyncio
import contextlib
import logging
from typing import Final
from urllib.parse import parse_qs, urlsplit

from leveret.broker.config.config import Config, Listener
from leveret.broker.process import logs
from leveret.broker.replication.keeper import Keeper

_logger = logging.getLogger(logs.LOGGER_NAME)

HEAD_OCTETS: Final = 8192
REQUEST_SECONDS: Final = 5.0
CONNECTIONS: Final = 32
"""Maximum number of connections of each listener; further ones are closed at once."""
_STATUS: Final = {200: "OK", 400: "Bad Request", 503: "Service Unavailable"}


class Standby:
    """The listeners for metrics and for the management API, as long as the node waits.

    Args:
        keeper: of the node.
        config: the configuration, with the addresses.

    """

    def __init__(self, keeper: Keeper, config: Config) -> None:
        self._keeper = keeper
        self._config = config
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, where that is possible and wanted without TLS."""
        for wanted in (self._config.prometheus, self._config.management):
            if not (wanted.enabled and wanted.has_plain and wanted.port):
                continue
            try:
                server = await asyncio.start_server(self._accept, wanted.host, wanted.port, limit=HEAD_OCTETS)
            except OSError as error:
                _logger.warning(
                    "no listener for probes on %s: %s", Listener(wanted.host, wanted.port), error.strerror
                )
                continue
            self._servers.append(server)

    async def stop(self) -> None:
        """Stop listening, and end what is under way."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._servers.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    try:
                        head = await reader.readuntil(b"\r\n\r\n")
                    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                        return
                    status, text = self.answer(head)
                    body = text.encode()
                    writer.write(
                        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    )
                    if not head.startswith(b"HEAD "):
                        writer.write(body)
                    await writer.drain()
        finally:
            writer.close()

    def answer(self, head: bytes) -> tuple[int, str]:  # noqa: PLR0911 - one for each path
        """Return status and text of the answer to a request, which begins with `head`."""
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3:  # noqa: PLR2004 - method, path, version
            return 400, "this is no request\n"
        try:
            url = urlsplit(words[1].decode("ascii", "replace"))
        except ValueError:
            return 400, "this is no path\n"
        node = self._keeper.node
        if url.path == "/healthz":
            return 200, "ok\n"
        if url.path == "/readyz" and parse_qs(url.query).get("role") == ["member"]:
            if node.is_caught_up():
                return 200, "ok\n"
            return 503, f"this node is not caught up: {node.role.value}\n"
        if url.path == "/metrics":
            return 200, self._metrics()
        return 503, f"this node waits; {self._leader()}\n"

    def _leader(self) -> str:
        seen = self._keeper.node.candidate.seen
        if seen is None:
            return "it has not reached the database yet"
        if not seen.holder:
            return "no node leads"
        return f"{seen.name} leads, at {seen.address}"

    def _metrics(self) -> str:
        node = self._keeper.node
        seen = node.candidate.seen
        last = node.follower.position.index if seen is None else seen.last
        rows = {
            "leveret_replication_role": ("1 while this node leads, 0 while it waits", 0),
            "leveret_replication_epoch": (
                "Number of the leadership that was seen last",
                seen.epoch if seen else 0,
            ),
            "leveret_replication_lag_batches": (
                "Entries of the log that are not applied here",
                max(0, last - node.follower.position.index),
            ),
        }
        return "".join(
            f"# TYPE {name} gauge\n# HELP {name} {text}\n{name} {value}\n"
            for name, (text, value) in rows.items()
        )
