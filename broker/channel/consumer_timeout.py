"""Consumer timeout: detection of deliveries that were not acked in time.

Theory. Nothing is recorded when a message is delivered. Instead, each check, about once a second, stores a mark: the
time and the last delivery tag at that time. A delivery is at least as old as the first mark at or after its tag, so its
age is never overestimated, and underestimated by the time between two marks at most.

RabbitMQ checks only the oldest delivery, so one without a timeout hides all others behind it. Here each delivery is
checked against the timeout of its own consumer. A check scans a bounded number of deliveries: a channel with very many
is checked in several passes, each of which continues where the last one stopped.

RabbitMQ 3 closes the channel. RabbitMQ 4.3 requeues the overdue deliveries of a quorum queue, sends `basic.cancel` to
their consumer, and does not remove it: it gets no message until its client has settled all of them
(`broker.channel.late_settlement`). Here that is the default for all queues.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, MutableMapping
from itertools import islice
from typing import Final

from leveret.broker.channel.late_settlement import OverdueDeliveries, Receiver
from leveret.broker.queue.arguments import QUORUM
from leveret.broker.queue.consumer import Consumer

_SCAN_LIMIT = 4096  # maximum number of deliveries scanned in one check
MARKS = 1000  # approximate number of marks kept, whatever the timeout
_NO_TIMEOUT: Final = -1


_Record = tuple[Receiver, int]


class ConsumerTimeouts:
    """The marks of one channel; `quorum_only`: other queues have no timeout, and one of 0 is no time at all."""

    __slots__ = ("_begin", "_longest", "_overdue", "_quorum_only", "_tags", "_times")

    def __init__(self, *, quorum_only: bool = False) -> None:
        self._quorum_only = quorum_only
        self._overdue: dict[Consumer, OverdueDeliveries] = {}
        self._times = array("d")
        self._tags = array("Q")
        self._longest = 0  # the longest timeout seen, in ms: of marks older than that only one is needed
        self._begin = 0  # number of deliveries that the next scan skips

    def overdue(
        self,
        now: float,
        unacked: Mapping[int, _Record],
        last_tag: int,
        consumers: Iterable[Receiver],
        default: int,
    ) -> list[tuple[int, int]]:
        """Store a mark; return tags and timeouts (ms) of deliveries that were not acked in time.

        `unacked` are the deliveries by tag, ascending, not empty; some may belong to other receivers than the
        `consumers`. `now` is seconds of a monotonic clock, `default` the timeout in ms of receivers without one of
        their own; 0 for none.
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
        found = []
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
        unacked: Mapping[int, _Record],
        timeouts: dict[Receiver, int],
        default: int,
    ) -> list[tuple[int, int]]:
        times, tags = self._times, self._tags
        found = []
        begin = self._begin if self._begin < len(unacked) else 0
        self._begin = begin + _SCAN_LIMIT
        for tag, (receiver, _) in islice(unacked.items(), begin, begin + _SCAN_LIMIT):
            timeout = timeouts.get(receiver)
            if timeout is None:
                timeout = self._timeout_of(receiver, timeouts, default)
            if timeout != _NO_TIMEOUT:
                at = bisect_left(tags, tag)
                if at < len(tags) and (now - times[at]) * 1000 > timeout:
                    found.append((tag, timeout))
        return found

    def _timeout_of(self, receiver: Receiver, timeouts: dict[Receiver, int], default: int) -> int:
        own = receiver.ack_timeout
        timeout = default or _NO_TIMEOUT if own is None else own
        if receiver.queue.type != QUORUM if self._quorum_only else not timeout:
            timeout = _NO_TIMEOUT
        timeouts[receiver] = timeout
        self._longest = max(self._longest, timeout)
        return timeout

    def requeue(
        self, tags: Iterable[int], unacked: MutableMapping[int, _Record], consumers: Mapping[str, Consumer]
    ) -> list[Consumer]:
        """Requeue overdue deliveries, and return their consumers, which have to be notified.

        Returns none, and nothing has changed, if one of them belongs to a `basic.get` or a cancelled consumer.
        """
        by_consumer: dict[Consumer, list[int]] = {}
        for tag in tags:
            receiver = unacked[tag][0]
            if not isinstance(receiver, Consumer) or receiver.tag not in consumers:
                return []
            by_consumer.setdefault(receiver, []).append(tag)
        for consumer, own in by_consumer.items():
            overdue = self._overdue.setdefault(consumer, OverdueDeliveries(consumer))
            keys = [unacked[tag][1] for tag in own]
            for tag, key in zip(own, keys, strict=True):
                unacked[tag] = overdue, key
            overdue.add(len(own))
            consumer.queue.requeue(keys, failed=False)
        return list(by_consumer)

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
