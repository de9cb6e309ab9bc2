"""The highest rate at which something still holds, by binary search."""

from collections.abc import Callable


def highest(holds: Callable[[float], bool], *, lowest: float, most: float, precision: float = 0.05) -> float:
    """Return the highest rate that holds, 0 if not even the lowest does.

    Each rate that fails is tried a second time, because other programs may have disturbed the first attempt.

    Args:
        holds: tells whether a rate holds.
        lowest: the rate that is tried first; it is doubled while it holds.
        most: no higher rate is tried.
        precision: the result is at most this part below a rate that has failed.

    """

    def twice(rate: float) -> bool:
        return holds(rate) or holds(rate)

    good, bad = 0.0, lowest
    while twice(bad):
        good = bad
        if good >= most:
            return good
        bad = min(most, 2 * bad)
    while good and bad / good > 1 + precision:
        middle = (good * bad) ** 0.5
        if twice(middle):
            good = middle
        else:
            bad = middle
    return good
