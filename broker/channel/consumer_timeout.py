"""Consumer timeout: detection of deliveries that were not acked in time.

Theory. Nothing is recorded when a message is delivered. Instead, each check, about once a second, stores a mark: the
time and the last delivery tag at that time. A delivery is at least as old as the first mark at or after its tag, so its
age is never overestimated, and underestimated by the time between two marks at most.

RabbitMQ checks only the oldest delivery, so one without a timeout hides all others behind it. Here each delivery is
checked against the timeout of its own consumer. A check scans a bounded number of deliveries: a channel with very many
is checked in several passes, each of which continues where the last one stopped.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import islice

from leveret.broker.queue.consumer import Consumer, GetRecipient

_SCAN_LIMIT = 4096  # maximum number of deliveries scanned in one check
MARKS = 1000
"""Approximate number of marks kept, whatever the timeout."""
_NO_TIMEOUT = 0


Receiver = Consumer | GetRecipient


class ConsumerTimeouts:
    """The marks of one channel."""

    __slots__ = ("_begin", "_longest", "_tags", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._tags = array("Q")
        self._longest = 0
        """The longest timeout seen, in ms: of marks older than that only one is needed."""
        self._begin = 0
        """Number of deliveries that the next scan skips."""

    def overdue(
        self,
        now: float,
        unacked: Mapping[int, tuple[Receiver, int]],
        last_tag: int,
        consumers: Iterable[Receiver],
        default: int,
    ) -> tuple[int, int] | None:
        """Store a mark, and find a delivery that was not acked in time.

        Args:
            now: seconds of a monotonic clock.
            unacked: unacked deliveries by delivery tag, ascending; not empty.
            last_tag: the last delivery tag used.
            consumers: the consumers of the channel. Some of the unacked deliveries may belong to others.
            default: timeout in ms of receivers that have none of their own; 0 for none.

        Returns:
            Its delivery tag and the timeout in ms, None if there is none.

        """
        first = next(iter(unacked))
        times, tags = self._times, self._tags
        past = bisect_left(tags, first)
        del times[:past], tags[:past]
        timeouts: dict[Receiver, int] = {}
        known = 0
        for consumer in consumers:
            if consumer.unacked:
                known += consumer.unacked
                self._timeout_of(consumer, timeouts, default)
        found = None
        if tags:
            age = (now - times[0]) * 1000
            all_known = known == len(unacked)
            if not all_known or any(_NO_TIMEOUT < timeout < age for timeout in timeouts.values()):
                found = self._scan(now, unacked, timeouts, default)
        self._mark(now, last_tag)
        return found

    def _scan(
        self,
        now: float,
        unacked: Mapping[int, tuple[Receiver, int]],
        timeouts: dict[Receiver, int],
        default: int,
    ) -> tuple[int, int] | None:
        times, tags = self._times, self._tags
        begin = self._begin if self._begin < len(unacked) else 0
        self._begin = begin + _SCAN_LIMIT
        for tag, (receiver, _) in islice(unacked.items(), begin, begin + _SCAN_LIMIT):
            timeout = timeouts.get(receiver)
            if timeout is None:
                timeout = self._timeout_of(receiver, timeouts, default)
            if timeout != _NO_TIMEOUT:
                at = bisect_left(tags, tag)
                if at < len(tags) and (now - times[at]) * 1000 > timeout:
                    return tag, timeout
        return None

    def _timeout_of(self, receiver: Receiver, timeouts: dict[Receiver, int], default: int) -> int:
        own = receiver.ack_timeout
        timeouts[receiver] = timeout = default if own is None else own
        self._longest = max(self._longest, timeout)
        return timeout

    def age(self, tag: int, now: float) -> float:
        """Return the age of a delivery in seconds by its tag; it may be some seconds older, as the marks are."""
        at = bisect_left(self._tags, tag)
        return now - self._times[at] if at < len(self._tags) else 0.0

    def _mark(self, now: float, last_tag: int) -> None:
        times, tags = self._times, self._tags
        longest = self._longest / 1000
        if not tags or (tags[-1] < last_tag and now - times[-1] >= longest / MARKS):
            times.append(now)
            tags.append(last_tag)
        old = bisect_left(times, now - longest)
        if old > 1:  # only the last of the old marks is needed
            del times[: old - 1], tags[: old - 1]
