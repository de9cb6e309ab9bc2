"""Requests of a front to its processes, over their sockets, each of which may be missing (driver)."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

import aiohttp
from yarl import URL

from leveret.broker.config.placement import FOLDER
from leveret.broker.http.connections import called
from leveret.broker.http.errors import ApiError
from leveret.broker.placement.front import FrontServer
from leveret.broker.placement.joining import Answered, Answers

T = TypeVar("T")
log = logging.getLogger("leveret.management")

SECONDS: Final = 1.0  # maximum time in which a process must answer anything at all
KNOCK_SECONDS: Final = 0.25  # time of an answer after which a process is asked whether it answers at all
LOADING_SECONDS: Final = 10.0  # the same for its first answer
MOST_OCTETS: Final = 128 << 20  # maximum octets of the answers of all processes to one request
TOO_LONG: Final = "the answer is too long with vhosts.processes: ask for pages, columns or one virtual host"
LINE_OCTETS: Final = 1 << 20


class NoAnswerError(ApiError):
    """A process of virtual hosts does not answer."""

    def __init__(self, number: int) -> None:
        super().__init__(503, "service_unavailable", silence(number))
        self.number = number


def silence(number: int) -> str:
    """Return the reason of a failure by a process that does not answer."""
    return f"process {number} of virtual hosts does not answer"


class Questions:
    """Asks the processes of a front over the socket that has this name in the directory of each."""

    def __init__(self, front: FrontServer, socket_name: str) -> None:
        self._front = front
        self._socket_name = socket_name
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        self._folders: list[int] = []  # descriptors
        self._silent: set[int] = set()  # processes whose silence was logged
        self._known: dict[int, int | None] = {}  # the ids of the processes that have answered

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()
        for folder in self._folders:
            os.close(folder)
        self._sessions.clear()
        self._folders.clear()

    def _session(self, number: int) -> aiohttp.ClientSession:
        if number not in self._sessions:
            # by the descriptor of the directory, as the path of a socket must be short
            folder = os.open(self._front.config.data_dir / FOLDER / str(number), os.O_RDONLY)
            self._folders.append(folder)
            self._sessions[number] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(f"/proc/self/fd/{folder}/{self._socket_name}", limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                read_bufsize=LINE_OCTETS,
                skip_auto_headers=("user-agent", "content-type", "accept-encoding"),
            )
        return self._sessions[number]

    async def ask(
        self, number: int, method: str, target: str, headers: Mapping[str, str], content: Any = None
    ) -> aiohttp.ClientResponse:
        """Send a request to a process; returns its answer, whose body is not read yet. Raises NoAnswerError."""
        process = self._front.processes.all[number]
        if not process.is_ready:
            raise self._no_answer(number)
        try:
            async with asyncio.timeout(SECONDS):  # what was changed here before must have been sent
                while not self._front.settled.are_sent:
                    await called(lambda done: process.wait(lambda: True, partial(done, None)))
            session = self._session(number)
        except OSError:
            raise self._no_answer(number) from None
        url = URL(f"http://process{target}", encoded=True)
        answer = await self.answered(number, session._request(method, url, headers=headers, data=content))  # noqa: SLF001 - a coroutine
        self._known[number] = process.pid
        self._silent.discard(number)
        return answer

    async def answered(self, number: int, work: Coroutine[Any, Any, T], seconds: float = KNOCK_SECONDS) -> T:
        """Wait for an answer, as long as the process answers other questions at once. Raises NoAnswerError.

        These are asked every so many seconds.
        """
        is_known = self._known.get(number) == self._front.processes.all[number].pid
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=seconds))[0]:
                # its first answer waits until it has loaded what answers
                async with asyncio.timeout(SECONDS if is_known else LOADING_SECONDS):
                    async with self._session(number).get("http://process/api/"):
                        pass
            return task.result()
        except (aiohttp.ClientError, OSError):
            raise self._no_answer(number) from None
        finally:
            task.cancel()

    def _no_answer(self, number: int) -> NoAnswerError:
        if number not in self._silent:
            self._silent.add(number)
            log.warning("process %d of virtual hosts does not answer: its virtual hosts are missing", number)
        return NoAnswerError(number)

    async def ask_all(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        content: bytes | Mapping[int, bytes] = b"",
        *,
        is_list: bool = False,
    ) -> Answers:
        """Send a request to all processes, or to those for which there is a content of their own. Raises ApiError.

        A list is divided into lines.
        """
        room = [MOST_OCTETS]
        contents = (
            content if isinstance(content, Mapping) else dict.fromkeys(self._front.processes.all, content)
        )

        async def one(number: int) -> Answered | int:
            try:
                answer = await self.ask(number, method, target, headers, contents[number] or None)
                async with answer:
                    return await self.answered(number, _read(number, answer, room, is_list=is_list))
            except NoAnswerError:
                return number

        made = await asyncio.gather(*[one(number) for number in contents])
        found = [each for each in made if isinstance(each, Answered)]
        return Answers(found, [each for each in made if isinstance(each, int)])


async def _read(number: int, answer: aiohttp.ClientResponse, room: list[int], *, is_list: bool) -> Answered:
    """Read the answer of a process; `room` is what all together may still have in bytes."""
    lines: list[bytes] = []
    rest = bytearray()
    async for piece in answer.content.iter_any():
        room[0] -= len(piece)
        if room[0] < 0:
            raise ApiError(503, "service_unavailable", TOO_LONG)
        rest += piece
        if is_list and b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            lines += whole
            rest = bytearray(last)
    content = bytes(rest)
    if is_list and answer.status == HTTPStatus.OK:
        lines += [content] if content else []
    return Answered(number, answer.status, answer.headers.get("content-type", ""), content, lines)
