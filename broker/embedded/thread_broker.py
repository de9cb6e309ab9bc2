"""`Broker`: a broker in a thread of its own, for applications without an event loop (driver)."""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from leveret.broker.embedded.clock import ThreadClock
from leveret.broker.embedded.core import STOPPED, Core
from leveret.broker.embedded.errors import CallTimeoutError, ClosedBrokerError
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.vhost import VHost

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
    """A thread that runs one core in an event loop until it is told to stop.

    Args:
        core: a core that is not running.

    """

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


class Broker(VHost):
    """A broker in a thread of its own; `with`, or `start` and `stop`.

    What it has of `VHost` concerns the first virtual host of the configuration, which is `/` by default. It
    can be used from any thread, and in a coroutine too, whose event loop a call then blocks for a moment
    (`AsyncBroker` does not). A forked process cannot use it.

    Args:
        data_dir: directory for what is durable, created if needed; None keeps everything in memory.
        config: keys of the configuration file and their values, as text or as bool, number or path.
        port: port on 127.0.0.1; 0 chooses a free one. The key `listeners.tcp.*` configures other addresses.
        record: whether everything that is published is recorded (`published`).
        management: whether the management API is served on a free port of 127.0.0.1 (`management_url`).

    Raises:
        ConfigurationError: a key or value of `config` is wrong.

    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        record: bool = False,
        management: bool = False,
    ) -> None:
        core = Core(
            None if data_dir is None else Path(data_dir),
            config or {},
            port,
            record=record,
            management=management,
        )
        super().__init__(core, core.config.vhosts[0], None)
        self._thread: LoopThread | None = None
        self._finalizer: weakref.finalize[[LoopThread], Broker] | None = None

    def start(self) -> Self:
        """Start; clients can connect when this returns.

        A broker that was stopped or killed starts again at the same port, on what is in its data directory.

        Raises:
            PortInUseError: the port is taken.
            DataDirectoryError: another broker uses the directory, or it cannot be read.
            ClosedBrokerError: it is running already.

        """
        if self._thread is not None:  # its core may have been killed
            self._thread.call(self._core.start)
            return self
        thread = LoopThread(self._core)
        thread.start()
        self._thread = thread
        self._finalizer = weakref.finalize(self, _abandon, thread)
        return self

    def stop(self) -> None:
        """Disconnect the clients and close; what is durable is on disk then. No effect if it is not running."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        thread.stop()

    def kill(self) -> None:
        """End as if the process were killed: clients are disconnected, nothing more is sent or written.

        What was confirmed is in the data directory; what was not confirmed may be. `start` starts it again.
        """
        self._call(self._core.kill)

    def restart(self) -> None:
        """Kill the broker if it is running, and start it again with the same URL on what a kill has left.

        Raises what `start` raises.
        """
        self._call(self._core.restart)

    @property
    def faults(self) -> Faults:
        """Faults on demand."""
        return Faults(self._core.fault_state, lambda: self._core.server, self._run)

    def _run(self, function: Callable[[], T]) -> T:
        """Run a function in the thread."""

        async def run() -> T:
            return function()

        return self._call(run)

    @property
    def clock(self) -> ThreadClock:
        """The clock of the broker, which can be stopped and advanced."""
        return ThreadClock(self._core.clock, self._call)  # not kept, because it refers back

    @property
    def management_url(self) -> str:
        """The URL of the management API with a login, for `management=True`. Raises ClosedBrokerError."""
        return self._core.management_url

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is not None and self._core.is_running:
            warnings.warn(f"unclosed broker {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url if self._core.is_running else 'closed'}>"

    def vhost_view(self, name: str) -> VHost:
        """Return a view of another virtual host, which must exist when it is used."""
        return VHost(self._core, name, self._call)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the thread."""
        if self._thread is None:
            _ = self._core.server  # raises ClosedBrokerError
            raise ClosedBrokerError("the broker is not running")
        return self._thread.call(work)
