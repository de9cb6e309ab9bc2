"""Synchronous classes that are made from asynchronous ones.

Theory. The asynchronous API is the only one that is written. `made_from` gives a class a method for each public
coroutine of an asynchronous class, with its name, signature and docstring, which carries it out in the loop of the
broker and waits for its result. Such a method has nothing of its own but its name in a traceback.
"""

import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from leveret.broker.embedded.errors import LeveretError

C = TypeVar("C", bound=type)
S = TypeVar("S")
T = TypeVar("T")


class Call(Protocol):
    """Runs a coroutine in the loop of a broker, and returns its result."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Raises CallTimeoutError, ClosedBrokerError, and what the coroutine raises."""


class Proxy(Generic[S]):
    """An object for callers without an event loop that stands for one in the loop of a broker."""

    _target: S
    _forward: Call

    def __init__(self, target: S, call: Call) -> None:
        self._target = target
        self._forward = call

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
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
    """Return a method of a proxy."""
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
