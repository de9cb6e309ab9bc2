"""Timers of microseconds."""

import asyncio
import ctypes
from types import SimpleNamespace

import pytest

from leveret.broker.shovel.timer import Timer

MS = 1_000_000
SECONDS = 10.0


@pytest.fixture(params=["of the system", "of the loop"])
def kind(request, monkeypatch):
    """A system with timers of its own, and one without."""
    if request.param == "of the loop":
        monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    return request.param


def test_it_calls_back_once_each_time_it_is_set(kind):
    """Not before the time."""
    del kind

    async def rests() -> list[bool]:
        loop = asyncio.get_running_loop()
        called = asyncio.Event()
        timer = Timer(called.set)
        early = []
        for _ in range(3):
            called.clear()
            began = loop.time()
            timer.set(20 * MS)
            await asyncio.wait_for(called.wait(), SECONDS)
            early.append(loop.time() - began < 0.015)
        timer.close()
        return early

    assert [False] * 3 == asyncio.run(rests())


def test_it_does_not_call_back_once_it_is_closed(kind):
    """It may be closed twice, too."""
    del kind

    async def count() -> int:
        calls: list[None] = []
        timer, later = Timer(lambda: calls.append(None)), asyncio.Event()
        timer.set(MS)
        timer.close()
        timer.close()
        after = Timer(later.set)
        after.set(20 * MS)
        await asyncio.wait_for(later.wait(), SECONDS)
        after.close()
        return len(calls)

    assert asyncio.run(count()) == 0
