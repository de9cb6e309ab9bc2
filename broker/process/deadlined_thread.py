"""Work that may wait for a file system without an end, done beside the event loop (driver).

Theory. The threads of `asyncio.to_thread` are few, and a process does not end before they do. A network file system
without its server would use them up, and keep a broker from stopping. A thread that is left alone does neither.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 10.0  # default time for files to be read


def started(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Begin work in a thread of its own; returns a future with its outcome. Nothing stops the thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    done.add_done_callback(_seen)

    def run() -> None:
        try:
            result, error = [work()], None
        except Exception as failure:  # noqa: BLE001 - it is raised where the future is awaited
            result, error = [], failure
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(_finish, done, result, error)

    threading.Thread(target=run, name="leveret-files", daemon=True).start()
    return done


async def in_time(done: "asyncio.Future[T]", seconds: float = SECONDS) -> T:
    """Wait for what `started` has begun; raises TimeoutError if that takes longer, and what the work has raised."""
    async with asyncio.timeout(seconds):
        return await asyncio.shield(done)


def _finish(done: "asyncio.Future[T]", result: list[T], error: Exception | None) -> None:
    if done.done():  # cancelled
        return
    if error is None:
        done.set_result(result[0])
    else:
        done.set_exception(error)


def _seen(done: "asyncio.Future[T]") -> None:
    """Mark an error as seen, so that it is not logged where no caller is waiting."""
    if not done.cancelled():
        done.exception()
