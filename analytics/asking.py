"""Asks the `leveret analyze --serve` of an output to run jobs (driver: a Unix socket, which only its user may open)."""

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from leveret.analytics.asked import Asked, to_json

SOCKET: Final = ".serve.sock"  # name of the socket in the output directory
ROUTE: Final = "/analyze"
LONGEST: Final = 100  # length of a path, in bytes, up to which systems take it as the address of a socket
CONNECT_SECONDS: Final = 5
IDLE_SECONDS: Final = 3600
"""Time without a line of a server after which it counts as dead; it writes one at least every minute."""


class NoServerError(Exception):
    """Raised when no server of the output takes the request; the text says why, and is empty if there is none."""


class ForeignServerError(Exception):
    """Raised for the server of another user."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        owner = self._path.stat().st_uid
        if owner not in {os.geteuid(), 0}:  # a request has settings of Spark, which may be passwords
            raise ForeignServerError("its socket belongs to another user")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_SECONDS)
        with reachable(self._path) as address:
            self.sock.connect(address)
        self.sock.settimeout(IDLE_SECONDS)


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield the address of a socket as a path that systems take: a long one is reached by its open directory."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def ask(asked: Asked, report_progress: Callable[[str], None]) -> tuple[str, int] | None:
    """Have the server of an output run jobs; return what went wrong, with the code to exit with, or None.

    `asked`: the request; its output is on this machine; `report_progress`: called with progress messages. Raises
    NoServerError: there is no server, or it does not take this request.
    """
    if not isinstance(asked.output, Path):
        raise NoServerError("")
    connection = _Connection(asked.output.resolve() / SOCKET)
    try:
        connection.request("POST", ROUTE, json.dumps(to_json(asked)), {"Content-Type": "application/json"})
    except ForeignServerError as error:
        raise NoServerError(str(error)) from error
    except OSError as error:
        connection.close()
        # A socket whose server was killed is removed by the next server.
        raise NoServerError("") from error
    try:
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise NoServerError(answer.read().decode("utf-8", "replace").strip())
        for line in answer:
            told = json.loads(line)
            if "text" in told:
                report_progress(told["text"])
            elif "code" in told:
                return (told["error"], told["code"]) if told["code"] else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"the server of {asked.output} ended: {error!r}", os.EX_UNAVAILABLE
    finally:
        connection.close()
    return f"the server of {asked.output} ended before the jobs did", os.EX_UNAVAILABLE
