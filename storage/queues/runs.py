"""Runs of messages, ascending by position, from whose middle some are looked at or removed.

A run is a deque. Turning it there and back costs a nanosecond or so for each member between the place and its nearer
end.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeVar

PREPARED = 2048
"""Maximum number of messages that one step moves to where they have positions."""
SAMPLE = 64
"""Maximum number of members that are looked at to estimate the number of some of them."""
T = TypeVar("T")


def share(members: Iterable[T], length: int, is_counted: Callable[[T], bool]) -> int:
    """Return about how many members are counted: exact if all of them or none are, or if there are few.

    Args:
        members: the members.
        length: their number.
        is_counted: tells them.

    """
    some = [is_counted(each) for each in islice(members, SAMPLE)]
    return some.count(True) * length // len(some) if some else 0


def take_out(run: deque[T], wanted: Collection[int], seq_id_of: Callable[[T], int]) -> list[T]:
    """Remove the members with these positions from a run, ascending by position; return them."""
    if not run or not wanted:
        return []
    first, last = min(wanted), max(wanted)
    at = index_of(run, first, seq_id_of)
    if at == len(run) or seq_id_of(run[at]) > last:
        return []
    run.rotate(-at)
    taken: list[T] = []
    kept: list[T] = []
    left = len(run) - at
    while left and seq_id_of(run[0]) <= last:
        item = run.popleft()
        left -= 1
        (taken if seq_id_of(item) in wanted else kept).append(item)
    run.extendleft(reversed(kept))
    run.rotate(at)
    return taken


def index_of(run: deque[T], seq_id: float, seq_id_of: Callable[[T], int]) -> int:
    """Return the index of the first member with a position of at least `seq_id`."""
    low, high = 0, len(run)
    while low < high:
        middle = (low + high) // 2
        if seq_id_of(run[middle]) < seq_id:
            low = middle + 1
        else:
            high = middle
    return low


def some(run: deque[T], at: int, most: int) -> list[T]:
    """Return at most `most` members of a run from index `at` on."""
    run.rotate(-at)
    try:
        return list(islice(run, min(most, len(run) - at)))
    finally:
        run.rotate(at)
