"""A compact set of destinations: a tuple while it is small, a dict when it grows.

Most keys have one or two destinations, and a tuple of one takes 48 bytes where a set or dict takes over
200; but a key with 100,000 destinations must not cost a copy of all of them for each bind. Hot path: see
docs/performance.md.
"""

from typing import TypeVar

T = TypeVar("T")
Destinations = tuple[object, ...] | dict[object, None]

_TUPLE_LIMIT = 8


def with_destination(current: tuple[T, ...] | dict[T, None], destination: T) -> tuple[T, ...] | dict[T, None]:
    """Return `current` and `destination`; a dict is modified in place, a tuple is not."""
    if isinstance(current, dict):
        current[destination] = None
        return current
    if destination in current:
        return current
    if len(current) < _TUPLE_LIMIT:
        return (*current, destination)
    grown = dict.fromkeys(current)
    grown[destination] = None
    return grown


def without_destination(
    current: tuple[T, ...] | dict[T, None], destination: T
) -> tuple[T, ...] | dict[T, None]:
    """Return `current` without `destination`; a dict is modified in place, and small ones become tuples again."""
    if isinstance(current, dict):
        current.pop(destination, None)
        if len(current) <= _TUPLE_LIMIT // 2:
            return tuple(current)
        return current
    return tuple(other for other in current if other != destination)
