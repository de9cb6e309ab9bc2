"""A thread that runs the jobs of a queue and reports their results to the event loop (driver)."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

from leveret.broker.scheduling.loop import Loop

Job = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]  # takes the result of a job, or its exception, in the loop


class WorkerThread:
    """A thread that runs submitted jobs, and reports their results to the event loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, host: Loop) -> None:
        self._name = name
        self._host = host
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop = loop
        self.pending = 0  # number of submitted jobs whose results were not reported yet
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run `job` in the thread, and `done` in the loop with the result or exception."""

        def work() -> None:
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop has to know
                self._loop.call_soon_threadsafe(self._report, done, None, error)
            else:
                self._loop.call_soon_threadsafe(self._report, done, result, None)

        self.pending += 1
        self._jobs.put(work)

    def _report(self, done: Done, result: Any, error: BaseException | None) -> None:
        self.pending -= 1
        self._host.run_step(f"result of {self._name} for", lambda: done(result, error), done)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # a batch refers to queues, which may be deleted while the thread is idle

    def stop(self) -> None:
        """Finish the submitted jobs, then end."""
        self._jobs.put(None)
        self._thread.join()
