"""Publisher confirms of a channel: sequence numbers, and the acks and nacks to send for them.

A channel in confirm mode numbers its publishes from 1. A number is *open* while some queue has not taken responsibility
for its message, *settled* once all queues have, *refused* if a queue could not. A message without any queue is
confirmed immediately with an ack of its own (`confirm_now`), whatever is open below it. All others are confirmed with
as few frames as possible: one `multiple` ack for everything below the first number that is open or was refused, one
`multiple` nack if a run of refused ones follows, then single acks and nacks. So a `multiple` ack never covers an open
number, nor a nacked one unless everything below was confirmed or nacked before. Every number gets exactly one verdict
(a `multiple` ack may cover single acks sent before it, as in RabbitMQ).

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901 - hot: one flat function is several times cheaper than small ones

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from heapq import heappop, heappush

Confirmation = tuple[int, bool, bool]
"""A `basic.ack` or `basic.nack` to send to the publisher: its delivery tag, `multiple`, and true for an ack."""
MARKS = 1000  # approximate number of marks of `ConfirmTimeouts`, whatever the timeout


def _nobody() -> None:
    """Do nothing: no callback is set."""


class ChannelConfirms:
    """The confirm state of one channel; `wake` is called when there may be something to confirm: then call `take` soon.

    `published` and `hold` (which the receive loop inlines) and `take` are the hot path: a publish that every queue
    accepts immediately costs an addition, and a whole turn of them one `multiple` ack. Only held numbers cost more: one
    set entry each, however many there are, and nothing is ever scanned twice.
    """

    __slots__ = (
        "_answered",
        "_early",
        "_low",
        "_nacked",
        "_refused",
        "_settled",
        "_wake",
        "held",
        "nacked_count",
        "scheduled",
        "seq_no",
        "taken",
    )

    def __init__(self, wake: Callable[[], object] = _nobody) -> None:
        self.seq_no = 0
        """Sequence number of the last publish; 0 before the first. The channel adds to it.

        A number counts as settled unless `hold` or `refused` is called.
        """
        self.scheduled = False  # True if a call of `take` is pending
        self._wake = wake
        self.held: set[int] = set()  # the open numbers
        self._low = 0  # no number up to here is open
        self._answered = 0  # every number up to here has been confirmed or nacked
        self.taken = 0  # `seq_no` at the last `take`
        self._settled: list[int] = []  # open at the last take(), settled since
        self._early: set[int] = set()  # published since the last take(), and already confirmed
        self._refused: set[int] = set()  # refused since the last take()
        self.nacked_count = 0  # number of nacked publishes
        self._nacked: list[int] = []  # heap of nacked numbers above `_answered`, for no multiple ack

    def hold(self, first: int, count: int = 1) -> None:
        """Hold `count` numbers from `first` on (published since the last `take`) until they are accepted."""
        if count == 1:
            self.held.add(first)
        else:
            self.held.update(range(first, first + count))

    def confirm_now(self) -> int:
        """Number the next publish as confirmed; the caller must immediately send a single ack for the number returned.

        For a message without a queue, which RabbitMQ acks before it executes the next method.
        """
        self.seq_no = number = self.seq_no + 1
        self._early.add(number)
        self.schedule()
        return number

    def schedule(self) -> None:
        """Schedule a call of `take`."""
        if not self.scheduled:
            self.scheduled = True
            self._wake()

    def close(self) -> None:
        """Ignore all later calls: the channel is closed."""
        self._wake = _nobody
        self.held.clear()
        self.taken = 1 << 62  # as if all numbers had been confirmed

    def accepted(self, seq_no: int) -> None:
        """Settle a held number: every queue took responsibility for its message; ignored if it was nacked meanwhile."""
        try:
            self.held.remove(seq_no)
        except KeyError:
            return
        if seq_no <= self.taken:
            self._settled.append(seq_no)
        if not self.scheduled:
            self.scheduled = True
            self._wake()

    def accepted_all(self, seq_nos: Collection[int]) -> None:
        """Settle held numbers; see `accepted`."""
        settled = self.held.intersection(seq_nos)
        if settled:
            self.held -= settled
            taken = self.taken
            self._settled += [number for number in settled if number <= taken]
            self.schedule()

    def refused(self, seq_no: int) -> None:
        """Refuse a number: some queue cannot take its copy, so it is nacked, whatever the other queues do.

        May be called more than once, and is ignored for a number that was confirmed or nacked.
        """
        if seq_no in self.held:
            self.held.remove(seq_no)
        elif seq_no <= self.taken:
            return
        self._refused.add(seq_no)
        self.schedule()

    def give_up(self, last: int) -> int:
        """Nack all open numbers up to `last`, and ignore their later verdicts; return how many there were.

        Scans the numbers from the first open one to `last` once, so `last` should not exceed what must be nacked.
        """
        held = self.held
        overdue = [number for number in range(self._low + 1, last + 1) if number in held]
        for number in overdue:
            self.refused(number)
        return len(overdue)

    @property
    def unconfirmed_count(self) -> int:
        """Number of publishes not confirmed or nacked yet."""
        taken, held = self.taken, self.held
        latest = range(taken + 1, self.seq_no + 1)  # few, whereas there may be a million open numbers
        before = len(held) - sum([number in held for number in latest])
        before += sum([number <= taken for number in self._refused])
        return len(latest) + before + len(self._settled) - len(self._early)

    @property
    def confirmed_count(self) -> int:
        """Number of confirmed publishes; must be read before `close`."""
        return self.seq_no - self.unconfirmed_count - self.nacked_count

    def take(self) -> list[Confirmation]:
        """Return the acks and nacks that are due, in sending order; they count as sent."""
        self.scheduled = False
        last, answered, held = self.seq_no, self._answered, self.held
        if held or self._refused or self._nacked or self._settled or self._early:
            if len(held) == last - answered:  # the open numbers are all that were not answered
                self.taken = last
                return []
            return self._take_some()
        if last == answered:
            return []
        self._answered = self.taken = self._low = last
        return [(last, last > answered + 1, True)]

    def _take_some(self) -> list[Confirmation]:
        held, refused, nacked = self.held, self._refused, self._nacked
        last = self.seq_no
        settled = self._settled
        if settled:
            settled.sort()
        settled += [n for n in range(self.taken + 1, last + 1) if n not in held and n not in refused]
        if self._early:
            settled = self._settled = [n for n in settled if n not in self._early]
            self._early.clear()
        low = self._low
        while low < last and low + 1 not in held:
            low += 1
        self._low = low
        self.taken = last
        if not settled and not refused:
            self._answered = low
            return []
        cutoff = low
        if refused or nacked:
            cutoff = min(low + 1, *refused, *nacked[:1]) - 1
        confirmations: list[Confirmation] = []
        single = 0
        if settled and settled[0] <= cutoff:
            single = len(settled) if settled[-1] <= cutoff else bisect_right(settled, cutoff)
            tag = settled[single - 1]
            confirmations.append((tag, single > 1, True))
        confirmations += [(n, False, True) for n in settled[single:]]
        if refused:
            confirmations += _nacks(sorted(refused), cutoff)
        self._answered = low
        while nacked and nacked[0] <= low:
            heappop(nacked)
        if refused:
            self.nacked_count += len(refused)
            for number in refused:
                if number > low:
                    heappush(nacked, number)
            self._refused = set()
        self._settled = []
        return confirmations


def _nacks(refused: list[int], answered: int) -> list[Confirmation]:
    """Return the nacks for numbers in ascending order, if all up to `answered` have been confirmed or nacked."""
    run = 0
    if refused[0] == answered + 1:
        run = bisect_right(range(len(refused)), answered + 1, key=lambda at: refused[at] - at)
    nacks = [(refused[run - 1], run > 1, False)] if run else []
    return nacks + [(number, False, False) for number in refused[run:]]


class ConfirmTimeouts:
    """Detection of publishes that have waited for their confirm longer than `confirm.timeout`, on one channel.

    Nothing is recorded when a number is held. As in `broker.channel.consumer_timeout`, each check, about once a second,
    stores a mark: the time and the last number at that time. Numbers are assigned in order, so all numbers up to that
    of a mark are at least as old as the mark. If a mark is old enough, they are overdue; the mark is then removed, as
    no number up to it is still open.
    """

    __slots__ = ("_numbers", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._numbers = array("Q")

    def overdue(self, now: float, last: int, timeout: float) -> int:
        """Store a mark, and return the last number that has waited longer than the timeout, 0 if there is none.

        Each number is returned once, so the caller must settle all open numbers up to it. `now` and the timeout are
        seconds, `last` is the last number assigned.
        """
        times, numbers = self._times, self._numbers
        past = bisect_left(times, now - timeout)
        found = numbers[past - 1] if past else 0
        del times[:past], numbers[:past]
        if not numbers or (numbers[-1] < last and now - times[-1] >= timeout / MARKS):
            times.append(now)
            numbers.append(last)
        return found
