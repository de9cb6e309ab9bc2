"""The delays of retries: how long a message that comes back to its queue waits before it is delivered again."""

from typing import NamedTuple

TYPES = ("all", "failed", "returned", "disabled")
"""Values of `delayed-retry-type`."""
KEYS = ("delayed-retry-type", "delayed-retry-min", "delayed-retry-max", "delayed-retry-multiplier")
"""Settings of policies, and with `x-` before their names arguments, that give the delays."""
_LONGEST = 1 << 56
"""Milliseconds of the longest delay, whatever the multiplier."""


class Backoff(NamedTuple):
    """The delays of retries, as RabbitMQ 4.3 computes them but for the multiplier.

    Attributes:
        type: which messages wait: 'failed' deliveries (rejected, or lost by their consumer), those that a consumer has
            'returned' (nack, recover), or 'all'.
        least: milliseconds before the first retry.
        most: maximum of milliseconds.
        multiplier: what each delay is multiplied by for the next; None to add `least` instead.
    """

    type: str
    least: int
    most: int
    multiplier: int | None = None

    def delay(self, failures: int, *, failed: bool) -> int:
        """Return the milliseconds that a message waits which has failed so often; 0 for none."""
        if self.type != "all" and failed is not (self.type == "failed"):
            return 0
        times = max(1, failures)
        if self.multiplier is None:
            return min(self.least * times, self.most)
        exponent = min(times - 1, _LONGEST.bit_length())
        return min(self.least * int(self.multiplier**exponent), self.most)
