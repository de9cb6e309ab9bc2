"""The service level objective of a latency, as users write it: `99.9% in 100ms`."""

import dataclasses
import re
from typing import Final

_US: Final = {"us": 1, "ms": 1000, "s": 1_000_000}
_WRITTEN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%\s*(?:in|within)\s*(\d+(?:\.\d+)?)\s*(us|ms|s)")


class ObjectiveError(ValueError):
    """Raised for a text that is no objective; its own text is for people."""


@dataclasses.dataclass(frozen=True, slots=True)
class Objective:
    """The fraction of messages to be within a time: `share` between 0 and 1, `us` in microseconds."""

    share: float = 0.999
    us: int = 100_000

    def words(self) -> str:
        """Return it as it is written."""
        return f"{self.share * 100:.6g}% in {self.us / 1000:g}ms"


DEFAULT: Final = Objective()


def parse(text: str) -> Objective:
    """Return the objective that a text says.

    Raises ObjectiveError: it says none, a share that is not between 0 and 100 %, or no time at all.
    """
    said = _WRITTEN.fullmatch(text.strip().lower())
    if said is not None:
        share, us = float(said[1]) / 100, round(float(said[2]) * _US[said[3]])
        if 0 < share < 1 and us > 0:
            return Objective(share, us)
    raise ObjectiveError(f"{text!r} is not an objective; write for example {DEFAULT.words()}")
