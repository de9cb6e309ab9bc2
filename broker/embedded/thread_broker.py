"""The thread of a `Broker`, for applications without an event loop (driver)."""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from leveret.broker.embedded.async_broker import AsyncBroker
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.embedded_server import STOPPED
from leveret.broker.embedded.errors import CallTimeoutError, ClosedBrokerError
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.proxy import Proxy

log = logging.getLogger("leveret")
T = TypeVar("T")

CALL_SECONDS = 60
"""Time for the thread to answer a call, in seconds: it is far more than any call takes."""


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop where that is installed, of asyncio elsewhere; no policy is changed."""
    try:
        import uvloop  # noqa: PLC0415 - only a broker with a loop of its own needs it
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """A thread that runs one core in an event loop until it is told to stop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event
        self._started = concurrent.futures.Future[None]()
        self._ended = concurrent.futures.Future[None]()
        self._thread = threading.Thread(target=self._run, name="leveret-broker", daemon=True)

    def start(self) -> None:
        """Start the thread and the core; raises what `Core.start` raises, and then the thread has ended."""
        self._thread.start()
        try:
            self._started.result()
        except KeyboardInterrupt:
            self._started.add_done_callback(lambda _: self._tell_to_end())
            raise
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        """Stop the core, and wait for the end of the thread; raises what `Core.stop` raises."""
        if os.getpid() != self._process:
            return  # a fork has no thread
        self._tell_to_end()
        self._thread.join()
        self._ended.result()

    def _tell_to_end(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._ending.set)

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop, and return its result.

        Raises:
            CallTimeoutError: the loop has not answered for a minute.
            ClosedBrokerError: the thread belongs to the process that has forked this one.

        """
        if os.getpid() != self._process:
            raise ClosedBrokerError(
                "the broker belongs to the parent of this process: create one after the fork"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("a call from the thread of the broker would wait for itself")
        try:
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        except RuntimeError:
            raise ClosedBrokerError("the broker is not running") from None
        for _ in range(CALL_SECONDS):
            with contextlib.suppress(concurrent.futures.TimeoutError):
                return self._result(future)
            if future.done():  # the work itself has timed out
                return future.result()
            if not self._thread.is_alive():
                break
        future.cancel()
        if not self._thread.is_alive():
            raise ClosedBrokerError(STOPPED)
        raise CallTimeoutError(f"the broker has not answered for {CALL_SECONDS} s")

    @staticmethod
    def _result(future: concurrent.futures.Future[T]) -> T:
        """Wait for the result for a second. Raises TimeoutError."""
        try:
            return future.result(1)
        except concurrent.futures.CancelledError:
            raise ClosedBrokerError(STOPPED) from None

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_event_loop) as runner:
                self._loop = runner.get_loop()
                self._loop.set_exception_handler(_log_loop_error)
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            if self._started.done():
                self._ended.set_exception(error)
            else:
                self._started.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        await self._core.start()
        self._started.set_result(None)
        await self._ending.wait()
        await self._core.stop()


def _log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    log.error("unexpected error in the event loop: %s", context.get("message"), exc_info=error)


def _abandon(thread: LoopThread) -> None:
    """Stop a broker that nobody can stop any more, or whose process ends."""
    with contextlib.suppress(Exception):
        thread.stop()


class ThreadProxy(Proxy[AsyncBroker]):
    """The part of a `Broker` that is not made from `AsyncBroker`: its thread."""

    _thread: LoopThread | None = None
    _finalizer: "weakref.finalize[[LoopThread], ThreadProxy]"

    def _init(self, **options: Any) -> None:
        self._target = AsyncBroker(**options)
        self._core = self._target._core  # noqa: SLF001 - its own

    def _start(self) -> Self:
        if self._thread is not None:  # its core may have been killed
            self._thread.call(self._core.start)
            return self
        thread = LoopThread(self._core)
        thread.start()
        self._thread = thread
        self._finalizer = weakref.finalize(self, _abandon, thread)
        return self

    _enter = _start

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._finalizer.detach()
            thread.stop()

    def _exit(self, *_: object) -> None:
        self._stop()

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the thread."""
        if self._thread is None:
            _ = self._core.server  # raises ClosedBrokerError
            raise ClosedBrokerError("the broker is not running")
        return self._thread.call(work)

    def _faults(self) -> Faults:
        return Faults(self._core.fault_state, lambda: self._core.server, self._run)

    def _run(self, function: Callable[[], T]) -> T:
        """Run a function in the thread."""

        async def run() -> T:
            return function()

        return self._call(run)

    def __del__(self) -> None:
        if self._thread is not None and self._core.is_running:
            warnings.warn(f"unclosed broker {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return repr(self._target).replace("Async", "", 1)
