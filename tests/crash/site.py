"""A data directory and the broker that runs on it, dies on it, and is started again."""

import asyncio
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from crash.ledger import Ledger
from crash.link import Link, LostError
from pamqp import commands
from processes.running import BROKER, END_SECONDS, Running, finished

QUIET = ("--set", "log.connection.level=error")
"""Options for a quiet log while clients come and go."""
BAD_LINE = re.compile(
    r"^(?!.*\[critical\]).*(?:Traceback|unexpected error|internal error|never retrieved)", re.MULTILINE
)
"""Lines of the log that are violations; a broken disk is critical, and has a traceback."""
GIVEN_BACK = "returned unused space in the data file"
REPLAYED = "redo log replayed"
STOP_SECONDS = 30.0
CHECK_SECONDS = 300.0
STORE_CHECK = ("store", "check", "--data-dir")


class Site:
    """One data directory with its ledger, and at most one broker at a time.

    Args:
        home: an existing folder; the data go below it.
        arguments: more words for `leveret serve`, at every start.
        program: what the interpreter runs instead of the broker as it is, and which changes what is loaded already.
        allowance: seconds that a start may take beside the recovery.
        is_forked: that of `Running`.

    """

    def __init__(
        self,
        home: Path,
        *arguments: str,
        program: Sequence[str] = BROKER,
        allowance: float = 2.0,
        is_forked: bool = True,
    ) -> None:
        self.home, self.arguments, self.program, self.allowance = home, arguments, program, allowance
        self._is_forked = is_forked
        self.ledger = Ledger()
        self.running: Running | None = None
        self.exit_code: int | None = None
        self.ready_after = 0.0
        self.errors = ""
        """The text that the last broker wrote to stderr."""
        self.given_back = 0
        """Number of times that a broker gave unused parts of its data file back to the disk."""
        self.replayed = 0
        """Number of starts that found commits in the redo log."""

    @property
    def data_dir(self) -> Path:
        """The broker's data directory."""
        return self.home / "data"

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def start(self, *arguments: str, before: Sequence[str] = (), judge: bool = True) -> int:
        """Start a broker and wait until it takes connections; returns its port.

        `before` are words of a tracer. The time is judged unless there is one, or `judge` says no: what counts is
        how long the process took, less what it waited for a processor that others had.

        Raises AssertionError if it ends instead.
        """
        recovered = self.ledger.owed()
        began = time.monotonic()
        self.running = Running(
            self.home, *QUIET, *self.arguments, *arguments, before=before, program=self.program,
            is_forked=self._is_forked, is_late=self.program is not BROKER,
        )  # fmt: skip
        try:
            self.running.wait_for("Server startup complete")
        except AssertionError:
            self._collect()
            raise
        self.ready_after = time.monotonic() - began
        self.replayed += any(REPLAYED in line for line in self.running.lines)
        if judge and not before:
            self.ledger.ready(self.ready_after - waited_for_processor(self.pid), recovered, self.allowance)
        return self.running.address[1]

    def kill(self) -> None:
        """Kill the broker; does not call the ledger."""
        self.running.process.kill()
        self._collect()

    def stop(self) -> int:
        """Stop the broker in good order; returns its exit code. Does not call the ledger."""
        self.running.process.terminate()
        try:
            self.running.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.ledger.broke("O10", f"the broker did not stop within {STOP_SECONDS} s")
            self.running.process.kill()
        return self._collect()

    def finish(self) -> None:
        """Stop the broker in good order, and note in the ledger an exit code that is not 0."""
        if (code := self.stop()) != 0:
            self.ledger.broke("O10", f"exit code {code} after SIGTERM")

    def ended(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the broker has ended by itself; returns its exit code, negative for a signal.

        Raises AssertionError if it does not.
        """
        try:
            self.running.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker lives on after {seconds} s") from None
        return self._collect()

    def _collect(self) -> int:
        out, self.errors = self.running.process.communicate(timeout=END_SECONDS)
        self.running.look_for_slow_steps(out)
        for line in self.running.slow:
            self.ledger.broke("O8", f"the broker says: {line}")
        self.given_back += out.count(GIVEN_BACK)
        self.exit_code = self.running.process.returncode
        self.running = None
        for text in (out, self.errors):
            if (found := BAD_LINE.search(text)) is not None:
                self.ledger.broke("O8", f"the broker says: {text[found.start() : found.start() + 2000]}")
        return self.exit_code

    def close(self) -> None:
        """Leave no process behind."""
        if self.running is not None:
            self.kill()

    def check(self) -> str:
        """Return the findings of `leveret store check` on the stopped broker's data; empty if there are none."""
        done = finished(*STORE_CHECK, str(self.data_dir), cwd=self.home, seconds=CHECK_SECONDS)
        return "" if done.returncode == 0 else f"exit {done.returncode}: {done.stdout}{done.stderr}"


def waited_for_processor(pid: int) -> float:
    """Seconds in which the process could have run and did not."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except OSError:
        return 0.0


async def depths(site: Site, link: Link, queues: Sequence[str]) -> dict[str, int]:
    """Ask for the number of ready messages of each queue and note it in the ledger; deleted queues are left out."""
    found = {}
    for number, queue in enumerate(queues, 1000):
        try:
            await link.open(number)
            ready = (await link.call(commands.Queue.Declare(queue=queue, passive=True), number)).message_count
        except LostError:
            if link.lost.done():
                raise
            site.ledger.missing(queue)
            continue
        await link.call(commands.Channel.Close(200, "", 0, 0), number)
        found[queue] = ready
        site.ledger.depth(queue, ready)
    return found


async def until(
    condition: Callable[[], bool],
    seconds: float,
    step: float = 0.002,
    *,
    progress: Callable[[], object] | None = None,
) -> bool:
    """Return whether a condition comes true in time.

    With `progress` the time begins anew whenever that changes: a busy machine is slow, but does not stand still.
    """
    deadline = time.monotonic() + seconds
    before = None if progress is None else progress()
    while not condition():
        if progress is not None and (now := progress()) != before:
            before, deadline = now, time.monotonic() + seconds
        elif time.monotonic() > deadline:
            return False
        await asyncio.sleep(step)
    return True
