"""Waiting until something holds, with a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

SECONDS = 60.0


def wait_until(found: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Return what a function finds once that is true; AssertionError if it is not in so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.01)
    return value


async def until(holds: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Let the loop run until something holds; raises TimeoutError if it does not in so many seconds."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.001)
