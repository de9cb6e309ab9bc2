"""The ticks of the statistics: a pass at each interval, in slices of a millisecond (driver)."""

import asyncio
import contextlib
from collections.abc import Iterator

from leveret.broker.connection.node import Node
from leveret.broker.process.resource_alarms import open_files
from leveret.broker.statistics.statistics import Statistics

SLICE = 1_000_000  # nanoseconds of a slice
START_SECONDS = 0.1  # time between two looks whether the broker has started


class Sampling:
    """Samples a broker until it is stopped."""

    def __init__(self, broker: Node, statistics: Statistics) -> None:
        self._broker = broker
        self._statistics = statistics
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless the broker is sampled already; the first pass follows once clients may connect."""
        if not self._statistics.is_sampled:
            self._statistics.is_sampled = True
            self._task = asyncio.get_running_loop().create_task(self._run(), name="statistics")

    async def stop(self) -> None:
        """End."""
        task, self._task = self._task, None
        if task is not None:
            self._statistics.is_sampled = False
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        broker = self._broker
        statistics = self._statistics
        while broker.obstacle:  # noqa: ASYNC110 - nothing tells when the start is over
            await asyncio.sleep(START_SECONDS)
        time = asyncio.get_running_loop().time
        due = time()
        while True:
            statistics.files = await asyncio.to_thread(open_files)
            steps = statistics.sample()
            while self._slice(steps):  # noqa: ASYNC110 - others have a turn
                await asyncio.sleep(0)
            due = max(due + statistics.ticks.interval, time())
            await asyncio.sleep(due - time())

    def _slice(self, steps: Iterator[None]) -> bool:
        """Run steps for the time of a slice; returns False at the end."""
        slices = self._broker.turn.slices
        with slices.step("sample of", "statistics") as begun:
            return any(slices.clock() >= begun + SLICE for _ in steps)
