"""The synchronous API made from the asynchronous one, and its thread (driver).

Theory. The asynchronous API is the only one that is written. `made_from` gives a class a method for each public
coroutine of an asynchronous class, with its name, signature and docstring, which carries it out in the loop of the
broker and waits for its result. Such a method has nothing of its own but its name in a traceback.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Generic, Self, TypeVar

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.embedded_server import STOPPED
from leveret.broker.embedded.errors import CallTimeoutError, ClosedBrokerError, LeveretError
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.tails import LOOK_SECONDS, AsyncTail
from leveret.broker.embedded.vhost import AsyncBroker
from leveret.broker.scheduling.loop import log_loop_error, loop_factory

C = TypeVar("C", bound=type)
S = TypeVar("S")
T = TypeVar("T")


Call = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
"""Runs a coroutine in the loop of a broker, and returns its result.

Raises CallTimeoutError, ClosedBrokerError, and what the coroutine raises.
"""


class Proxy(Generic[S]):
    """An object for callers without an event loop that stands for one in the loop of a broker."""

    _target: S
    _forward: Call

    def __init__(self, target: S, call: Call) -> None:
        self._target = target
        self._forward = call

    def _call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self._forward(work)

    def __repr__(self) -> str:
        return repr(self._target)


def made_from(
    source: type,
    *,
    properties: Collection[str] = (),
    names: Mapping[str, str] | None = None,
    views: Mapping[str, type] | None = None,
) -> Callable[[C], C]:
    """Return a decorator that gives a proxy the public methods and properties of a class, but those that it has itself.

    A method is carried out in the loop of the broker, a property is read at once. If the proxy has a method `_start`,
    this is what its `start` does, which has the signature and docstring of the source all the same. `_enter` and
    `_exit` are those of a context manager, and `_init` is the constructor: a proxy that has it gets the sections of the
    docstring of the source, too.

    Args:
        source: the class of the objects that the proxies stand for.
        properties: names of coroutines without arguments that become properties.
        names: other names for methods of the source.
        views: by the name of a method or property whose result takes no time, the proxy for that.
    """
    renamed = {"__aenter__": "__enter__", "__aexit__": "__exit__", **(names or {})}

    def decorated(cls: C) -> C:
        for original, member in vars(source).items():
            name = renamed.get(original, original)
            own = getattr(cls, f"_{name.strip('_')}", None)
            if name in vars(cls) or (name.startswith("_") and own is None):
                continue
            view = (views or {}).get(name)
            if isinstance(member, property):
                setattr(cls, name, property(_method(cls, name, member.fget, own, view or _unchanged)))
            elif name in properties:
                method = _method(cls, name, member)
                summary = method.__doc__.removeprefix("Return ")
                setattr(cls, name, property(method, doc=summary[0].upper() + summary[1:]))
            else:
                setattr(cls, name, _method(cls, name, member, own, view))
        if hasattr(cls, "_init"):
            cls.__doc__ = f"{(cls.__doc__ or '').rstrip()}{_sections(source)}"
        return cls

    return decorated


def _method(
    cls: type,
    name: str,
    source: Any,
    own: Callable[..., Any] | None = None,
    view: Callable[..., Any] | None = None,
) -> Any:
    work = source if inspect.iscoroutinefunction(source) else partial(_called, source)

    def method(self: Any, /, *arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        try:
            if own is not None:
                return own(self, *arguments, **options)
            if view is not None:
                return view(source(self._target, *arguments, **options), self._call)
            return self._call(partial(work, self._target, *arguments, **options))
        except (LeveretError, AssertionError) as error:
            # It says everything without the frames of the broker.
            raise error.with_traceback(None) from None
        except TypeError as error:
            problem = str(error).removeprefix(f"{source.__qualname__}()")
            if problem == str(error):  # it is not about the arguments
                raise
            raise TypeError(f"{method.__qualname__}(){problem}") from None

    method.__code__ = method.__code__.replace(co_name=name)  # for tracebacks
    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__name__}.{name}", cls.__module__
    method.__doc__ = source.__doc__ and source.__doc__.replace("`async ", "`").replace("`Async", "`")
    method.__annotations__ = source.__annotations__
    method.__wrapped__ = source  # type: ignore[attr-defined] # for its signature, which is slow to make
    if isinstance(view, type):
        method.__annotations__ = source.__annotations__ | {"return": view}
        method.__signature__ = inspect.signature(source).replace(return_annotation=view)  # type: ignore[attr-defined]
    return method


async def _called(method: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return method(*arguments, **options)


def _unchanged(found: T, _: Call) -> T:
    return found


def _sections(source: type) -> str:
    """Return the sections of the docstring of a class, from its arguments on, with the blank line before them."""
    text = source.__doc__ or ""
    return text[len(text.partition("Args:")[0].rstrip()) :]


CALL_SECONDS = 60  # time for the thread to answer a call, in seconds: it is far more than any call takes


class LoopThread:
    """A thread that runs one core in an event loop until it has to stop."""

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

        Raises CallTimeoutError: the loop has not answered for a minute; ClosedBrokerError: the thread belongs to the
        process that has forked this one, or has ended.
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
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                self._loop = runner.get_loop()
                self._loop.set_exception_handler(log_loop_error)
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


def _abandon(thread: LoopThread) -> None:
    """Stop a broker that no caller can stop, or whose process ends."""
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
        if self._thread is None:
            _ = self._core.server  # raises ClosedBrokerError
            raise ClosedBrokerError("the broker is not running")
        return self._thread.call(work)

    def _faults(self) -> Faults:
        return Faults(self._core.fault_state, lambda: self._core.server, self._run)

    def _run(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self._call(run)

    def __del__(self) -> None:
        if self._thread is not None and self._core.is_running:
            warnings.warn(f"unclosed broker {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return repr(self._target).replace("Async", "", 1)


class TailProxy(Proxy[AsyncTail]):
    """The part of a `Tail` that is not made from `AsyncTail`: the context manager and the iterator."""

    def _enter(self) -> Self:
        self._call(self._target.__aenter__)
        return self

    def _exit(self, *_: object) -> None:
        with contextlib.suppress(ClosedBrokerError):
            self._call(lambda: self._target.__aexit__(None, None, None))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageView:
        with contextlib.suppress(ClosedBrokerError):
            while not self._target.is_ended:
                found: MessageView | None = self._call(lambda: self._target.next(LOOK_SECONDS))
                if found is not None:
                    return found
        raise StopIteration
