"""Standard publisher confirms: numbers, and which of them may be told.

A channel in confirm mode numbers its publishes from 1. A number is *open* while some queue has not taken
responsibility for its message, *settled* once every one has, *refused* when a queue could not. A message without any
queue is told at once, by an ack of its own (`told_now`), whatever is open below it. Of all others the publisher is
told in the fewest frames: one `multiple` ack for everything below the first number that is open or was refused, one
`multiple` nack if a run of refused ones follows, then single acks and nacks. So a `multiple` ack never covers an open
number, nor a nacked one unless everything below had its verdict before, and every number gets exactly one verdict (a
`multiple` ack may cover single acks sent before it, as RabbitMQ's do).

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901 - hot: one flat function is several times cheaper than small ones

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple


class Confirmation(NamedTuple):
    """One `basic.ack` (or, with `ack` false, `basic.nack`) to send to the publisher."""

    delivery_tag: int
    multiple: bool
    ack: bool


def _nobody() -> None:
    """Nobody wants to know."""


class ChannelConfirms:
    """The confirm state of one channel.

    Args:
        wake: called when something may be told that `take` has not been asked for since: it is owed a `take` soon.

    `published` and `hold` (which the receive loop writes out) and `take` are the hot path: a publish that every
    queue accepts at once costs an addition, and a whole turn of them one `multiple` ack. Only numbers held back cost
    more: a place in a set each, whatever their number, and nothing is ever walked twice.
    """

    __slots__ = (
        "_early",
        "_low",
        "_nacked",
        "_refused",
        "_settled",
        "_told",
        "_wake",
        "held",
        "nacked_count",
        "scheduled",
        "seq_no",
        "taken",
    )

    def __init__(self, wake: Callable[[], object] = _nobody) -> None:
        self.seq_no = 0
        """Number of the last publish; 0 before the first."""
        self.scheduled = False
        """A `take` is owed."""
        self._wake = wake
        self.held: set[int] = set()
        """The open numbers."""
        self._low = 0  # no number up to here is open
        self._told = 0  # every number up to here has its verdict
        self.taken = 0
        """`seq_no` at the last `take`."""
        self._settled: list[int] = []  # were open at the last take(), settled since
        self._early: set[int] = set()  # published since the last take(), and told already
        self._refused: set[int] = set()  # refused since the last take()
        self.nacked_count = 0
        """Numbers that were told as nack."""
        self._nacked: list[int] = []  # told as nack, above _told, a heap: no multiple ack may cross them

    def published(self, count: int = 1) -> None:
        """Number the next `count` publishes, taken for settled unless `hold` or `refused` says otherwise."""
        self.seq_no += count

    def hold(self, first: int, count: int = 1) -> None:
        """Hold `count` numbers from `first` on (published since the last `take`) until they are accepted."""
        if count == 1:
            self.held.add(first)
        else:
            self.held.update(range(first, first + count))

    def told_now(self) -> int:
        """Number the next publish and take it for told; the caller sends the ack for that number alone, at once.

        For a message that has no queue, which RabbitMQ acks before it looks at the next method.
        """
        self.seq_no = number = self.seq_no + 1
        self._early.add(number)
        self.schedule()
        return number

    def schedule(self) -> None:
        """Have `take` called soon."""
        if not self.scheduled:
            self.scheduled = True
            self._wake()

    def close(self) -> None:
        """Nobody is left to be told: whatever still comes is ignored."""
        self._wake = _nobody
        self.held.clear()
        self.taken = 1 << 62  # as if all numbers had been told

    def accepted(self, seq_no: int) -> None:
        """Every queue took responsibility for the message of a held number; ignored if it was given up meanwhile."""
        try:
            self.held.remove(seq_no)
        except KeyError:
            return
        if seq_no <= self.taken:
            self._settled.append(seq_no)
        if not self.scheduled:
            self.scheduled = True
            self._wake()

    def refused(self, seq_no: int) -> None:
        """Some queue cannot take its copy: the number is nacked, whatever the others say.

        May be called again, and is ignored for a number that has its verdict.
        """
        if seq_no in self.held:
            self.held.remove(seq_no)
        elif seq_no <= self.taken:
            return
        self._refused.add(seq_no)
        self.schedule()

    def give_up(self, last: int) -> int:
        """Nack all open numbers up to `last`, whatever becomes of them later; returns how many there were.

        Walks once along the numbers since the first open one, so `last` should not be ahead of what has to be nacked.
        """
        held = self.held
        overdue = [number for number in range(self._low + 1, last + 1) if number in held]
        for number in overdue:
            self.refused(number)
        return len(overdue)

    @property
    def unconfirmed_count(self) -> int:
        """Numbers without a verdict sent yet."""
        taken, held = self.taken, self.held
        latest = range(taken + 1, self.seq_no + 1)  # few, where the open ones may be a million
        before = len(held) - sum([number in held for number in latest])
        before += sum([number <= taken for number in self._refused])
        return len(latest) + before + len(self._settled) - len(self._early)

    @property
    def confirmed_count(self) -> int:
        """Numbers that were told as ack; to be asked before `close`."""
        return self.seq_no - self.unconfirmed_count - self.nacked_count

    def take(self) -> list[Confirmation]:
        """What may be told now, in sending order; taking it counts as telling it."""
        self.scheduled = False
        last = self.seq_no
        if self.held or self._refused or self._nacked or self._settled or self._early:
            return self._take_some()
        told = self._told
        if last == told:
            return []
        self._told = self.taken = self._low = last
        return [Confirmation(last, last > told + 1, True)]

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
            self._told = low
            return []
        cutoff = low
        if refused or nacked:
            cutoff = min(low + 1, *refused, *nacked[:1]) - 1
        confirmations = []
        single = 0
        if settled and settled[0] <= cutoff:
            single = len(settled) if settled[-1] <= cutoff else bisect_right(settled, cutoff)
            tag = settled[single - 1]
            confirmations.append(Confirmation(tag, multiple=single > 1, ack=True))
        confirmations += [Confirmation(n, multiple=False, ack=True) for n in settled[single:]]
        if refused:
            confirmations += _nacks(sorted(refused), cutoff)
        self._told = low
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


def _nacks(refused: list[int], told: int) -> list[Confirmation]:
    """The nacks of numbers in their order, where all numbers up to `told` have their verdict."""
    run = 0
    if refused[0] == told + 1:
        run = bisect_right(range(len(refused)), told + 1, key=lambda at: refused[at] - at)
    nacks = [Confirmation(refused[run - 1], multiple=run > 1, ack=False)] if run else []
    return nacks + [Confirmation(number, multiple=False, ack=False) for number in refused[run:]]
