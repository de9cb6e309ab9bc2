"""The processes of virtual hosts, as the front starts them, and starts again those that have ended (driver)."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from leveret.broker import exit_codes
from leveret.broker.config.placement import FOLDER, MOST_PROCESSES
from leveret.broker.placement.messages import AnyMessage
from leveret.broker.placement.pipe import Pipe
from leveret.broker.placement.placement import PlacementError

log = logging.getLogger("leveret")

FIRST_PAUSE: Final = (
    0.1  # seconds until a process that has ended is started again; doubled for each further time
)
LONGEST_PAUSE: Final = 5.0
LEAST_WAITING: Final = 1024  # clients that wait for a process, from which those that have left are removed
START_ATTEMPTS: Final = 4  # times that a process may end before it is ready, when the front starts
OPTION: Final = "--vhosts-process"  # of `leveret serve`, with the number and the descriptor of a process

Waiting = tuple[Callable[[], bool], Callable[[], object]]


class ProcessStartError(PlacementError):
    """Raised if a process does not start; the text is one line."""


def check_directory(data_dir: Path, count: int, *, is_new: bool) -> None:
    """Raise PlacementError if so many processes would lose virtual hosts; `is_new`: it has no definitions."""
    folder = data_dir / FOLDER
    if not count:
        if folder.is_dir():
            raise PlacementError(f"vhosts.processes is missing: the virtual hosts are in {folder}")
        return
    if not is_new and not folder.is_dir():
        raise PlacementError(
            f"vhosts.processes: {data_dir} is of a broker without it, whose queues no process would have; use "
            "another directory"
        )
    for number in range(count + 1, MOST_PROCESSES + 1):
        if (folder / str(number)).is_dir():
            raise PlacementError(
                f"vhosts.processes = {count}, but virtual hosts are in {folder / str(number)}"
            )


class VHostProcess:
    """One process: its stream, and what waits until it takes clients."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid: int | None = None
        self.pipe: Pipe | None = None
        self.is_ready = False  # whether it has the users and its virtual hosts
        self.failures = 0  # times in a row that it has ended before it was ready
        self._waiting: list[Waiting] = []
        self._most = LEAST_WAITING

    @property
    def takes_clients(self) -> bool:
        """True if a client can be handed over now."""
        return self.is_ready and self.pipe is not None and not self.pipe.is_full

    def wait(self, is_there: Callable[[], bool], callback: Callable[[], object]) -> None:
        """Have a client wait for `release`; `is_there` is false once it has left, when it need not be kept."""
        if len(self._waiting) >= self._most:
            self._waiting = [each for each in self._waiting if each[0]()]
            self._most = max(LEAST_WAITING, 2 * len(self._waiting))
        self._waiting.append((is_there, callback))

    def release(self) -> None:
        """Call back for all who wait; they may wait again."""
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback()


class Processes:
    """All of them. `received` gets the messages of each, `lost` each that has ended.

    A process is this program with the arguments of this one, and an option that makes it one.
    """

    def __init__(
        self,
        count: int,
        received: Callable[[VHostProcess, AnyMessage], object],
        lost: Callable[[VHostProcess], object],
    ) -> None:
        self.all = {number: VHostProcess(number) for number in range(1, count + 1)}
        self._received, self._lost = received, lost
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._started: dict[int, asyncio.Future[None]] = {}
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._is_stopping = False

    async def start(self) -> None:
        """Start all, and wait until they are ready (`ready`). Raises ProcessStartError, and none runs then."""
        loop = asyncio.get_running_loop()
        self._started = {number: loop.create_future() for number in self.all}
        self._tasks = {number: loop.create_task(self._keep(each)) for number, each in self.all.items()}
        try:
            await asyncio.gather(*self._started.values())
        except BaseException:
            await self.stop()
            raise

    def ready(self, process: VHostProcess) -> None:
        """Note that a process takes clients."""
        process.is_ready, process.failures = True, 0
        started = self._started[process.number]
        if not started.done():
            started.set_result(None)
        process.release()

    def fail(self, error: ProcessStartError) -> None:
        """Have `start` raise an error."""
        for started in self._started.values():
            if not started.done():
                started.set_exception(error)
                return

    async def stop(self) -> None:
        """End all as SIGTERM does, and wait for them."""
        self._is_stopping = True
        for number, task in self._tasks.items():
            running = self._running.get(number)
            if running is None:
                task.cancel()
                continue
            with contextlib.suppress(ProcessLookupError):
                running.terminate()
        for started in self._started.values():
            started.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _keep(self, process: VHostProcess) -> None:
        started = self._started[process.number]
        while True:
            code = await self._run(process)
            if self._is_stopping:
                return
            process.failures += 1
            if not started.done() and process.failures >= START_ATTEMPTS:
                text = f"process {process.number} of virtual hosts does not start: it ends with {code}"
                started.set_exception(ProcessStartError(text))
                return
            pause = min(FIRST_PAUSE * 2 ** (process.failures - 1), LONGEST_PAUSE)
            text = "process %d of virtual hosts has ended (%d): it is started again in %g s"
            log.error(text, process.number, code, pause)
            await asyncio.sleep(pause)

    async def _run(self, process: VHostProcess) -> int:
        """Run a process until it ends; returns its exit code."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        arguments = [*sys.orig_argv[1:], OPTION, str(process.number), str(theirs.fileno())]
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        try:
            running = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # or a SIGINT of the terminal would reach it, too
            )
        except OSError as error:  # the system has no room for it now
            log.error("process %d of virtual hosts: %s", process.number, error.strerror)  # noqa: TRY400
            ours.close()
            return exit_codes.TEMPORARY
        finally:
            theirs.close()
        self._running[process.number] = running
        process.pid = running.pid
        process.pipe = Pipe(
            asyncio.get_running_loop(), ours, lambda message, _: self._received(process, message), _nothing
        )
        process.pipe.on_drained = partial(_release, process)
        code = await running.wait()
        del self._running[process.number]
        process.is_ready, process.pid = False, None
        process.pipe.close()
        process.pipe = None
        self._lost(process)
        return code


def _nothing() -> None:
    """Do nothing: the end of the process follows."""


def _release(process: VHostProcess) -> None:
    process.release()
