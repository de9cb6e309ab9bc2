"""The place of a walk in a queue: which messages it still has before it.

A requeued message is in front of all others, whatever its position. So the place of a walk is the position of the last
message, and for a requeued one the position less `AHEAD`.
"""

from math import inf
from typing import Final

from leveret.storage.queues.backing_queue import Portion, PortionSteps

AHEAD: Final = 1 << 64


def span(after: int | None, *, backwards: bool) -> tuple[float, float]:
    """Return the places that a walk has before it: from one to before another."""
    if after is None:
        return -inf, inf
    return (-inf, after) if backwards else (after + 1, inf)


def within(start: int, stop: int, most: int, *, backwards: bool) -> tuple[int, int]:
    """Return the first, or the last, part of a range."""
    return (max(start, stop - most), stop) if backwards else (start, min(stop, start + most))


def steps_of(portion: Portion) -> PortionSteps:
    """Return a portion that needs no read."""
    yield from ()
    return portion
