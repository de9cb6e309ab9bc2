"""Reads of the database that several logs are in, repeated every second (driver)."""

import asyncio
import logging
import time
from typing import Any, Final

from leveret.broker.replication.engine import NoAnswerError
from leveret.storage.errors import StorageError

log = logging.getLogger("leveret.replication")

READ_SECONDS: Final = 1.0


class DatabaseReads:
    """Reads `what` again and again, as log lines name it, one read after the other.

    `reader` is the connection to the database, which is closed with this.
    """

    def __init__(self, reader: Any, what: str) -> None:
        self._reader = reader
        self._what = what
        self._lock = asyncio.Lock()  # some callers read beside the task, on the same connection
        self._task: asyncio.Task[None] | None = None
        self._begun_at = float("-inf")  # time of the last read, by the monotonic clock
        self.problem = "the database was not asked yet"
        """Reason why the state of now is not known; '' for none."""

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._reader.close()

    async def _keep(self) -> None:
        while True:
            await self.read(READ_SECONDS / 2)
            await asyncio.sleep(READ_SECONDS)

    async def read(self, age: float = 0.0) -> None:
        """Read, unless that was begun less than `age` seconds ago; if it fails all stays as it was (`problem`)."""
        failure: Exception | None = None
        async with self._lock:
            now = time.monotonic()
            if now - self._begun_at < age:
                return
            self._begun_at = now
            try:
                problem = await self._read()
            except NoAnswerError as error:
                problem = f"the database does not answer: {error}"
            except StorageError as error:
                problem = f"a row cannot be read, perhaps of a newer Leveret: {error}"
            except Exception as error:  # noqa: BLE001 - a bug of ours must end neither the task nor a takeover
                problem, failure = f"an error of Leveret, with a traceback in the log: {error!r}", error
        before, self.problem = self.problem, problem
        if problem and problem != before:
            log.warning("%s may be out of date: %s", self._what, problem, exc_info=failure)
        elif before and not problem:
            log.info("%s: up to date", self._what)

    async def _read(self) -> str:
        """Read once; return what is wrong with what was read, '' for nothing."""
        raise NotImplementedError
