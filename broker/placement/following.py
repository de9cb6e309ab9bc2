"""A topic of events of all processes, followed for those who watch it through the front (driver)."""

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

import aiohttp

from leveret.broker.http.feeds import Reading, Topic
from leveret.broker.placement.joining import MISSING, added, decoded
from leveret.broker.placement.questions import NoAnswerError, Questions

IDLE_SECONDS: Final = 60.0  # time after the last pass of a feed from which nothing is followed any more
QUIET_SECONDS: Final = 2.0  # time without an event after which a process is asked whether it answers
RETRY_SECONDS: Final = 1.0
STEP: Final = 50  # rows that are read in one step
_DATA: Final = b"data: "


class Following:
    """The events of a topic from each process; `target` is the path that they are asked for."""

    def __init__(
        self, questions: Questions, numbers: Iterable[int], target: str, headers: Mapping[str, str]
    ) -> None:
        self._questions = questions
        self._target, self._headers = target, headers
        self._rows: dict[int, dict[Hashable, Any]] = {number: {} for number in numbers}
        self._are_whole = {number: asyncio.Event() for number in numbers}
        self._missing: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._read_at = 0.0

    async def begin(self) -> None:
        """Follow, and wait until each process has reported all that it has, or does not answer."""
        self._follow_all()
        for event in self._are_whole.values():
            await event.wait()

    @property
    def is_over(self) -> bool:
        """True if nothing is followed any more."""
        return all(task.done() for task in self._tasks)

    def close(self) -> None:
        """Follow no longer."""
        for task in self._tasks:
            task.cancel()

    def read(self, own: Topic) -> Reading:
        """Yield what there is of a topic now, with what the front has of it, as `feeds.Topic.read`."""
        self._follow_all()
        if own.columns:
            for rows in self._rows.values():
                for at, row in enumerate(list(rows.items())):
                    yield row
                    if not at % STEP:
                        yield None
            return
        parts = [row for rows in self._rows.values() for row in rows.values()]
        for item in own.read():
            if item is None:
                yield None
                continue
            key, shown = item
            shown["objects"] = dict.fromkeys(shown["objects"], 0)  # the front has exchanges that are not used
            missing = {MISSING: sorted(self._missing)} if self._missing else {}
            yield key, added([shown, *parts]) | missing

    def _follow_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._read_at = loop.time()
        if self.is_over:
            self._tasks = [loop.create_task(self._follow(number)) for number in self._rows]

    async def _follow(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._read_at + IDLE_SECONDS:
            try:
                async with await self._questions.ask(number, "GET", self._target, self._headers) as answer:
                    reading = answer.content.readline
                    while line := await self._questions.answered(number, reading(), QUIET_SECONDS):
                        if line.startswith(_DATA):
                            self._take(number, decoded(line[len(_DATA) :]))
                        if loop.time() >= self._read_at + IDLE_SECONDS:
                            break
            except (NoAnswerError, aiohttp.ClientError):
                self._missing.add(number)
            self._rows[number].clear()
            self._are_whole[number].set()
            await asyncio.sleep(RETRY_SECONDS)

    def _take(self, number: int, event: dict[str, Any]) -> None:
        """Take an event over, as a page does."""
        rows = self._rows[number]
        self._missing.discard(number)
        if "rows" not in event:
            if event:
                rows[""] = event
                self._are_whole[number].set()
            return
        if "columns" in event:
            rows.clear()
        rows.update({tuple(row[:2]): row for row in event["rows"]})
        for key in event.get("gone", ()):
            rows.pop(tuple(key), None)
        if "at" in event:
            self._are_whole[number].set()
