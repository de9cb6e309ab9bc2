"""Empty collections that are shared by all objects that never needed one of their own; adding to one raises.

An empty deque takes 600 bytes, and there may be ten thousand idle queues of four each. Whoever adds the first element
replaces the shared collection by one of its own.

Hot path: see docs/performance.md. Reading is what it is for any deque or dict.
"""

from collections import deque
from typing import NoReturn, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def _refuse(*_: object) -> NoReturn:
    """Refuse to add elements, which every owner of the shared collection would get."""
    message = "this empty collection is shared: replace it before adding to it"
    raise TypeError(message)


class EmptyDeque(deque[Value]):
    """A deque that stays empty."""

    __slots__ = ()

    append = appendleft = extend = extendleft = insert = __iadd__ = _refuse


class EmptyDict(dict[Key, Value]):
    """A dict that stays empty; removing a key with a default is allowed."""

    __slots__ = ()

    __setitem__ = setdefault = update = __ior__ = _refuse
