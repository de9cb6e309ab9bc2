"""Growth of the processor time of a task with its size."""

import time
from collections.abc import Callable


def growth(act: Callable[[int], object]) -> float:
    """Return the factor by which the processor time grows with four times the number, the least of three runs."""

    def spent(count: int) -> float:
        prepared = act(count)
        began = time.process_time()
        prepared()
        return time.process_time() - began

    return min(spent(8000) / spent(2000) for _ in range(3))
