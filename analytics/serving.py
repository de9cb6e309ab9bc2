"""`leveret analyze --serve`: one process that serves the pages of an output, and runs jobs in a warm Spark session.

Driver: sockets, signals, a thread for Spark. Pages are served over HTTP, on loopback unless the user wants another
address. Jobs come over a Unix socket in the output, which only its user may open, one request after another. Whoever
has the lock file of an output is its server, so a socket that is there without it is a leftover of one that was killed.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from leveret.analytics.asked import Asked, RequestError, from_json, to_json
from leveret.analytics.asking import ROUTE, SOCKET, reachable
from leveret.analytics.served_files import HEADERS, TYPES, file_of, is_welcome
from leveret.analytics.warm import WarmSession

LOCK: Final = ".serve.lock"
LARGEST_REQUEST: Final = 1 << 20  # bytes of a request over the Unix socket
SIGN_OF_LIFE_SECONDS: Final = 30
Failure = tuple[str, int] | None


class ServeError(Exception):
    """Raised when an output cannot be served; the text says why."""


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Be the server of an output. Raises ServeError: there is another one."""
    descriptor = os.open(output / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ServeError(f"{output} is served by another process") from error
        yield
    finally:
        os.close(descriptor)


class Server:
    """The server of an output."""

    def __init__(
        self,
        output: Path,  # the output directory; it exists
        worker: WarmSession,  # runs the jobs; in one thread, but for `cancel`
        host: str | None,  # address to serve pages on; None to serve none
        port: int,  # its port; 0 for any
        report_progress: Callable[[str], None],  # called with messages for the user's terminal
        idle: float | None = None,  # seconds without a request after which it ends; None for never
    ) -> None:
        self._output = output.resolve()
        self._worker = worker
        self._host = host
        self._port = port
        self._report = report_progress
        self._thread = ThreadPoolExecutor(1, "spark")
        self._stopping = asyncio.Event()
        self._is_broken = False
        self._idle = idle
        self._running = 0
        self._last = 0.0
        self._loop: asyncio.AbstractEventLoop

    async def run(self, first: Asked | None) -> Failure:
        """Serve until SIGTERM or SIGINT, or until it was idle for so long; return what ended it otherwise.

        `first`: jobs to run at the start. Raises ServeError: the output or the address is in use.
        """
        loop = self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        with _locked(self._output):
            async with self._listening():
                # As those that come by the socket: with absolute paths.
                failure = await self._work(None if first is None else from_json(to_json(first)))
        return failure

    async def _work(self, first: Asked | None) -> Failure:
        """Start Spark, run the first jobs, and wait for the end."""
        loop = asyncio.get_running_loop()
        started = loop.run_in_executor(self._thread, self._worker.start)
        stopped = asyncio.ensure_future(self._stopping.wait())
        watching = asyncio.ensure_future(self._watch())
        try:
            waited: set[asyncio.Future[Any]] = {started, stopped}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if started.done():
                started.result()
                running = None if first is None else loop.create_task(self._first(first))
                await stopped
                if running is not None:
                    running.cancel()
        finally:
            stopped.cancel()
            watching.cancel()
            # What waits is not begun; what runs fails soon.
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._worker.cancel()
            await asyncio.to_thread(self._thread.shutdown)
            await asyncio.to_thread(self._worker.stop)
        return ("Spark has ended; start again", os.EX_SOFTWARE) if self._is_broken else None

    async def _watch(self) -> None:
        """End the server when it was idle for so long."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        while self._idle is not None:
            left = self._last + self._idle - loop.time()
            if left <= 0 and not self._running:
                self._stopping.set()
                return
            await asyncio.sleep(max(left, 0) or self._idle)

    async def _first(self, asked: Asked) -> None:
        async for told in self._answers(asked):
            if "text" in told:
                self._report(str(told["text"]))
            elif told.get("code"):
                self._report(str(told["error"]))

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        pages, jobs = web.Application(), web.Application(client_max_size=LARGEST_REQUEST)
        pages.router.add_get("/{path:.*}", self._page)
        jobs.router.add_post(ROUTE, self._jobs)
        made = [jobs] if self._host is None else [jobs, pages]
        runners = [web.AppRunner(each, access_log=None, shutdown_timeout=1.0) for each in made]
        path = self._output / SOCKET
        try:
            for runner in runners:
                await runner.setup()
            for runner in runners[1:]:
                try:
                    await web.TCPSite(runner, self._host, self._port).start()
                except OSError as error:
                    raise ServeError(
                        f"cannot listen on {self._host}:{self._port}: {error.strerror}"
                    ) from error
            path.unlink(missing_ok=True)
            before = os.umask(0o177)  # from its first moment nobody else may open it
            try:
                with reachable(path) as address:
                    await web.UnixSite(runners[0], address).start()
            finally:
                os.umask(before)
            if self._host is not None:
                port = runners[1].addresses[0][1]
                host = f"[{self._host}]" if ":" in self._host else self._host
                self._report(f"serving {self._output} on http://{host}:{port}/")
            yield
        finally:
            for runner in runners:
                await runner.cleanup()
            path.unlink(missing_ok=True)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if not is_welcome(request.headers.get("Host", ""), self._host or ""):
            return web.Response(status=421, text="This server has another name.\n", headers=HEADERS)
        found = await asyncio.to_thread(file_of, self._output, request.rel_url.raw_path)
        if found is None:
            return web.Response(status=404, text="There is no such page.\n", headers=HEADERS)
        return web.FileResponse(found, headers={**HEADERS, "Content-Type": TYPES[found.suffix]})

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        """Answer a request with lines of JSON: texts, and at the end the exit code."""
        try:
            asked = from_json(await request.json())
        except (ValueError, RequestError) as error:
            return web.Response(status=400, text=f"{error}\n")
        if asked.output != self._output:
            return web.Response(status=409, text=f"this server is that of {self._output}\n")
        if self._stopping.is_set():
            return web.Response(status=503, text="the server is ending\n")
        if why := self._worker.takes(asked):
            return web.Response(status=409, text=f"{why}\n")
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        async for told in self._answers(asked):
            await answer.write(json.dumps(told).encode() + b"\n")
        await answer.write_eof()
        return answer

    async def _answers(self, asked: Asked) -> AsyncIterator[dict[str, object]]:
        """Run jobs after those before; yield what there is to tell."""
        self._running += 1
        try:
            async for told in self._told(asked):
                yield told
        finally:
            self._running -= 1
            self._last = asyncio.get_running_loop().time()

    async def _told(self, asked: Asked) -> AsyncIterator[dict[str, object]]:
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[dict[str, object]] = asyncio.Queue()

        def tell(text: str) -> None:
            line: dict[str, object] = {"text": text}
            loop.call_soon_threadsafe(told.put_nowait, line)

        running = loop.run_in_executor(self._thread, self._run, asked, tell)
        while not (running.done() and told.empty()):
            waiting = asyncio.ensure_future(told.get())
            waited: set[asyncio.Future[Any]] = {waiting, running}
            done, _ = await asyncio.wait(
                waited, timeout=SIGN_OF_LIFE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if waiting in done:
                yield waiting.result()
                continue
            waiting.cancel()
            if not done:
                yield {"alive": True}
        try:
            failure = running.result()
        except asyncio.CancelledError:
            failure = "the server was stopped", os.EX_TEMPFAIL
        except Exception as error:  # noqa: BLE001 - an error of a job must not end the server
            failure = f"failed: {error!r}", os.EX_SOFTWARE
        if failure is not None and self._stopping.is_set():
            failure = "the server was stopped", os.EX_TEMPFAIL
        text, code = failure or ("", 0)
        yield {"code": code, "error": text}

    def _run(self, asked: Asked, tell: Callable[[str], None]) -> Failure:
        """Run jobs, in Spark's thread."""
        failure = self._worker.run(asked, tell)
        if failure is not None and not self._worker.is_alive():
            self._is_broken = True
            self._loop.call_soon_threadsafe(self._stopping.set)
        return failure
