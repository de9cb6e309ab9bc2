"""The message reader: reads from disk what queues request, in a thread (driver).

The thread owns every read of messages beside that of recovery, and reports to the event loop, which alone accesses the
queues.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from leveret.broker.persistence.storage_host import StorageHost
from leveret.broker.persistence.worker_thread import WorkerThread
from leveret.storage.journal.reads import Loaded, LoadRequest
from leveret.storage.store.environment import Environment


class MessageReader:
    """Reads messages for queues.

    Args:
        environment: the data.
        host: runs the turn after a queue got its messages.
        loop: the event loop.

    """

    def __init__(self, environment: Environment, host: StorageHost, loop: asyncio.AbstractEventLoop) -> None:
        self._environment = environment
        self._host = host
        self._loop = loop
        self._worker = WorkerThread("leveret-reader", loop, host)
        self._found: deque[tuple[LoadRequest, Loaded]] = deque()

    def load(self, request: LoadRequest) -> None:
        """Read the messages that a queue requests; it receives them in the loop."""

        def done(found: Loaded | None, error: BaseException | None) -> None:
            if error is not None or found is None:
                self._host.storage_failed(error or RuntimeError("read without a result"))
                return
            self._found.append((request, found))
            if len(self._found) == 1:
                self._loop.call_soon(self._hand_over)

        self._worker.submit(lambda: self._environment.read(request.ranges, request.limit), done)

    def _hand_over(self) -> None:
        """Pass one queue the messages that were read for it.

        One queue per iteration of the loop: it takes milliseconds, and many queues may have requested reads at once.
        """
        try:
            self._host.run_step("result of a read for", self._pass_on)
        finally:
            self._found.popleft()
            if self._found:
                self._loop.call_soon(self._hand_over)

    def _pass_on(self) -> None:
        self._host.turn.slices.latest = "a deleted queue"  # unless it runs
        request, found = self._found[0]
        request.queue.loaded(request, found)
        self._host.run_turn()

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `job`, which reads, in the thread, and `done` in the loop with its result or exception."""
        self._worker.submit(job, done)

    @property
    def pending(self) -> int:
        """Number of reads whose results were not passed on yet."""
        return self._worker.pending + len(self._found)

    def stop(self) -> None:
        """End the thread."""
        self._worker.stop()
