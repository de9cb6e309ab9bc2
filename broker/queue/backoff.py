"""The delays of retries: how long a message that comes back to its queue waits before it is delivered again."""

from typing import NamedTuple

TYPES = ("all", "failed", "returned", "disabled")  # values of `delayed-retry-type`
KEYS = tuple(f"delayed-retry-{each}" for each in ("type", "min", "max", "multiplier", "jitter"))
"""Settings of policies, and with `x-` before their names arguments, that give the delays."""
_LONGEST = 1 << 56  # milliseconds of the longest delay, whatever the multiplier
_BITS = 32
_GOLDEN = 0x9E3779B9  # golden ratio, as a fraction of 2^32: its multiples are spread evenly


class Backoff(NamedTuple):
    """The delays of retries, as RabbitMQ 4.3 computes them but for multiplier and jitter."""

    type: str
    """Which messages wait: 'failed' deliveries (rejected, or lost by their consumer), those that a consumer has
    'returned' (nack, recover), or 'all'."""
    least: int  # milliseconds before the first retry
    most: int  # maximum of milliseconds
    multiplier: int | None = None  # what each delay is multiplied by for the next; None: `least` is added
    jitter: int = 0  # percentage by which a delay may be shorter, so that messages come back apart

    def delay(self, failures: int, *, failed: bool, seq_id: int = 0) -> int:
        """Return the milliseconds that a message waits which has failed so often; 0 for none.

        With jitter `seq_id` and the number of failures determine by how much the delay is shorter.
        """
        if self.type != "all" and failed is not (self.type == "failed"):
            return 0
        times = max(1, failures)
        if self.multiplier is None:
            delay = min(self.least * times, self.most)
        else:
            exponent = min(times - 1, _LONGEST.bit_length())
            delay = min(self.least * int(self.multiplier**exponent), self.most)
        share = (seq_id + times) * _GOLDEN % (1 << _BITS)
        return delay - (delay * self.jitter * share // 100 >> _BITS)
