"""Standard publisher confirms: numbers, and which of them may be told.

A channel in confirm mode numbers its publishes from 1. A number is *open* while some queue has not taken
responsibility for its message, *settled* once every one has (or the message was unroutable), *refused* when a queue
could not. The publisher is told in the fewest frames: one `multiple` ack for everything below the first number that
is open or was refused, then single acks and nacks. So a `multiple` ack never covers an open number, nor a nacked one
unless everything below had its verdict before, and every number gets exactly one verdict (a `multiple` ack may cover
single acks sent before it, as RabbitMQ's do).

Hot path: see docs/performance.md.
"""

from typing import NamedTuple


class Confirmation(NamedTuple):
    """One `basic.ack` (or, with `ack` false, `basic.nack`) to send to the publisher."""

    delivery_tag: int
    multiple: bool
    ack: bool


class StandardConfirms:
    """The confirm state of one channel.

    `published` (which the receive loop writes out: it adds to `seq_no`) and `take` are the hot path: a
    publish that every queue accepts at once costs an addition, and a whole turn of them one `multiple` ack.
    Only numbers held back with `open` cost more.
    """

    __slots__ = ("_nacked", "_open", "_refused", "_settled", "_taken", "_told", "seq_no")

    def __init__(self) -> None:
        self.seq_no = 0
        """Number of the last publish; 0 before the first."""
        self._told = 0  # every number up to here has its verdict
        self._taken = 0  # seq_no at the last take()
        self._open: dict[int, int] = {}  # seq_no -> copies not accepted yet, ascending
        self._settled: list[int] = []  # were open at the last take(), settled since
        self._refused: list[int] = []  # refused since the last take()
        self._nacked: set[int] = set()  # told as nack, above _told: no multiple ack may cross them

    def published(self, count: int = 1) -> None:
        """Number the next `count` publishes, taken for settled unless `open` or `refuse` says otherwise."""
        self.seq_no += count

    def open(self, seq_no: int, copies: int) -> None:
        """Hold `seq_no` (published since the last `take`) until `copies` (>= 1) queues have accepted it."""
        self._open[seq_no] = copies

    def accepted(self, seq_no: int) -> None:
        """One queue took responsibility for its copy of an open number."""
        left = self._open.get(seq_no)
        if left is None:
            return  # refused by another queue before
        if left > 1:
            self._open[seq_no] = left - 1
            return
        del self._open[seq_no]
        if seq_no <= self._taken:
            self._settled.append(seq_no)

    def refuse(self, seq_no: int) -> None:
        """Some queue cannot take its copy: the number is nacked, whatever the others say. Call once a number."""
        self._open.pop(seq_no, None)
        self._refused.append(seq_no)

    @property
    def unconfirmed_count(self) -> int:
        """Numbers without a verdict sent yet."""
        taken = self._taken
        held = sum(number <= taken for number in (*self._open, *self._refused))
        return self.seq_no - taken + held + len(self._settled)

    def take(self) -> list[Confirmation]:
        """What may be told now, in sending order; taking it counts as telling it."""
        last = self.seq_no
        if self._open or self._refused or self._nacked or self._settled:
            return self._take_some()
        told = self._told
        if last == told:
            return []
        self._told = self._taken = last
        return [Confirmation(last, last > told + 1, True)]

    def _take_some(self) -> list[Confirmation]:
        open_, refused, nacked = self._open, self._refused, self._nacked
        without_verdict = open_.keys() | refused
        settled = sorted(self._settled)
        settled += [n for n in range(self._taken + 1, self.seq_no + 1) if n not in without_verdict]
        first_open = next(iter(open_), self.seq_no + 1)
        cutoff = min([first_open, *refused, *nacked]) - 1
        confirmations = []
        covered = [n for n in settled if n <= cutoff]
        if covered:
            tag = covered[-1]
            confirmations.append(Confirmation(tag, multiple=tag > self._told + 1, ack=True))
        confirmations += [Confirmation(n, multiple=False, ack=True) for n in settled[len(covered) :]]
        confirmations += [Confirmation(n, multiple=False, ack=False) for n in sorted(refused)]
        self._told = first_open - 1
        self._nacked = {n for n in (*nacked, *refused) if n > self._told}
        self._taken = self.seq_no
        self._settled = []
        self._refused = []
        return confirmations
