"""Portions of a variable queue: some hundred messages at a time, from the head or the tail, without taking any.

Theory. A look (`storage.queues.peek`) shows a whole queue at one moment, so it copies the lists of all that is in
memory at once. A walk over a long queue needs neither: it asks for one portion after another, each as it is at its own
moment, and remembers no more than the position of the last message. Positions never change, so messages that come, are
taken, paged out or loaded between two portions do not disturb a walk, and it sees none twice. It misses a message that
is requeued behind it.

A portion comes from one part of the queue only (`returned`, q4, q3, delta, q2, q1), has at most about
`PORTION_OCTETS` of bodies, and reads a piece of one segment at most.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

from leveret.storage.journal.blocks import Block, Entry
from leveret.storage.journal.reads import Loaded, Range
from leveret.storage.queues.backing_queue import Peeked, Portion, PortionSteps, Read
from leveret.storage.queues.peek import (
    ALWAYS,
    Delta,
    Run,
    Snapshot,
    decoded,
    is_away,
    known_blocks,
    make_run,
    run_pieces,
)
from leveret.storage.queues.positions import AHEAD, span, steps_of, within
from leveret.storage.queues.prefetch import Reading
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.runs import index_of, some

PORTION_OCTETS: Final = 1024 * 1024
"""Content bytes after which a portion ends."""
READ_OCTETS: Final = 64 * 1024
"""Bytes after which the read of a portion stops."""
_WINDOW = 512
"""Positions of the delta that a portion covers on the way to the head."""
_seq_id_of = attrgetter("seq_id")


class Portions(Reading):
    """The portions of a variable queue."""

    __slots__ = ()

    def portion(self, most: int, after: int | None = None, *, backwards: bool = False) -> PortionSteps:
        """Look at the next ready messages; see `BackingQueue.portion`."""
        low, high = span(after, backwards=backwards)
        for part in reversed(self._parts()) if backwards else self._parts():
            steps: PortionSteps | None = part(low, high, most, backwards=backwards)
            if steps is not None:
                return steps
        return steps_of(Portion([], None))

    def _parts(self) -> tuple[Any, ...]:
        """Return the parts of the queue from the head on, each as a function that returns a portion of it."""
        return (self._portion_of_returned, self._portion_of_q4, self._portion_of_q3, self._portion_of_delta,
                self._portion_of_q2, self._portion_of_q1)  # fmt: skip

    def _portion_of_returned(
        self, low: float, high: float, most: int, *, backwards: bool
    ) -> PortionSteps | None:
        found = self.returned.between(low + AHEAD, high + AHEAD, most, backwards=backwards)
        return self._portion_of_items(
            [item for _, item in found], [seq_id for seq_id, _ in found], ALWAYS, AHEAD
        )

    def _portion_of_q4(self, low: float, high: float, most: int, *, backwards: bool) -> PortionSteps | None:
        return self._portion_of_run(self.q4, self._q4_first, low, high, most, backwards=backwards)

    def _portion_of_q1(self, low: float, high: float, most: int, *, backwards: bool) -> PortionSteps | None:
        return self._portion_of_run(self.q1, self._q1_first, low, high, most, backwards=backwards)

    def _portion_of_run(
        self, run: deque[Item], first: int, low: float, high: float, most: int, *, backwards: bool
    ) -> PortionSteps | None:
        """Return a portion of messages whose positions have no gaps."""
        start, stop = int(max(0, low - first)), int(min(len(run), high - first))
        start, stop = within(start, stop, most, backwards=backwards)
        if start >= stop:
            return None
        items, seq_ids = some(run, start, stop - start), list(range(first + start, first + stop))
        return self._portion_of_items(items, seq_ids, 0, backwards=backwards)

    def _portion_of_q3(self, low: float, high: float, most: int, *, backwards: bool) -> PortionSteps | None:
        below = self.redelivered_below
        return self._portion_of_entries(self.q3, below, low, high, most, backwards=backwards)

    def _portion_of_q2(self, low: float, high: float, most: int, *, backwards: bool) -> PortionSteps | None:
        return self._portion_of_entries(self.q2, 0, low, high, most, backwards=backwards)

    def _portion_of_entries(
        self, entries: deque[Entry], below: int, low: float, high: float, most: int, *, backwards: bool
    ) -> PortionSteps | None:
        start, stop = within(_place(entries, low), _place(entries, high), most, backwards=backwards)
        found = some(entries, start, stop - start) if start < stop else []
        return self._portion_of_items(found, [entry.seq_id for entry in found], below, backwards=backwards)

    def _portion_of_items(
        self,
        items: Sequence[Item],
        seq_ids: Sequence[int],
        below: float,
        ahead: int = 0,
        *,
        backwards: bool = False,
    ) -> PortionSteps | None:
        """Return a portion of messages that memory knows; None if there are none."""
        if not items:
            return None
        if backwards:
            items, seq_ids = items[::-1], seq_ids[::-1]
        count = _fitting(items)
        return self._run_portion(items[:count], seq_ids[:count], below, seq_ids[count - 1] - ahead)

    def _run_portion(
        self, items: Sequence[Item], seq_ids: Sequence[int], below: float, at: int | None
    ) -> PortionSteps:
        run = make_run(seq_ids, items, redelivered_below=below)
        stored = self.stored_returns
        returns = {seq_id: stored[seq_id] for seq_id in seq_ids if seq_id in stored} if stored else {}
        return _run_steps(run, self.pager.snapshot() if is_away(run) else None, returns, at)

    def _portion_of_delta(
        self, low: float, high: float, most: int, *, backwards: bool
    ) -> PortionSteps | None:
        start, stop, segment = int(max(self.delta_start, low)), int(min(self.delta_stop, high)), self.segment
        if start >= stop or not self.delta_count:
            return None
        if backwards:
            return self._delta_backwards(stop, most)
        part = min(stop, (start // segment + 1) * segment)
        return _delta_steps(*self._look_at_delta(start, part), stop, most)

    def _look_at_delta(self, start: int, stop: int) -> tuple[Delta, Snapshot]:
        known = known_blocks(self._blocks_in(start // self.segment * self.segment, stop))
        delta = Delta(
            Range(self.qid, start, stop), self.redelivered_below, known, self.counts_returns, self.gaps.copy()
        )
        return delta, self.pager.snapshot()

    def _delta_backwards(self, stop: int, most: int) -> PortionSteps:
        """Look for the last messages of the delta before a position.

        What is read begins at one position and ends when it is enough, so this position is searched: it is moved away
        as long as there is nothing behind it (at each start of the broker, positions leave out very many), and nearer
        as long as the read does not reach the end.
        """
        width, is_growing = min(_WINDOW, self.segment), True
        while self.delta_count and stop > self.delta_start:
            start = max(self.delta_start, stop - width)
            delta, snapshot = self._look_at_delta(start, stop)
            found: Loaded = yield from _read(snapshot, delta.whole)
            if found.stop < stop and start < stop - 1:
                width, is_growing = (stop - start) // 2, False
                continue
            if piece := decoded(found, delta, start, stop)[::-1]:
                return Portion(piece[:most], piece[most - 1].seq_id if len(piece) > most else start)
            stop = start
            width = width * 8 if is_growing else width
            is_growing = True
        return Portion([], stop)

    def _blocks_in(self, start: int, stop: int) -> Iterable[Block]:
        """Return the known blocks that begin in a range of positions."""
        blocks = self.blocks
        if len(blocks) <= stop - start:
            return [block for block in blocks.values() if block.first < stop]
        return [blocks[slot] for slot in range(start * 2, stop * 2) if slot in blocks]

    # -- ages -------------------------------------------------------------------------------------------------------

    def came_before(self, seq_id: int) -> float | None:
        """Return a time before which a message came; see `BackingQueue.came_before`."""
        arrivals = self.rates.arrivals
        return None if arrivals is None else arrivals.before(seq_id)

    # -- the unacked ------------------------------------------------------------------------------------------------

    def unacked_ids(self) -> list[int]:
        """Return the seq_ids of the unacked messages."""
        return [*self._unacked, *self._unacked_out]

    def unacked_portion(self, seq_ids: Sequence[int]) -> PortionSteps:
        """Look at unacked messages; see `BackingQueue.unacked_portion`."""
        items: list[Item] = []
        known: list[int] = []
        octets = count = 0
        for count, seq_id in enumerate(seq_ids, 1):  # noqa: B007 - used after the loop
            item = self._unacked.get(seq_id) or self._unacked_out.get(seq_id)
            if item is not None:
                items.append(item)
                known.append(seq_id)
                octets += _size(item)
                if octets >= PORTION_OCTETS:
                    break
        return self._run_portion(items, known, ALWAYS, count)


def _place(entries: deque[Entry], place: float) -> int:
    """Return the index of the first entry from a place on."""
    if not entries or place <= entries[0].seq_id:
        return 0
    first, last = entries[0].seq_id, entries[-1].seq_id
    if place > last:
        return len(entries)
    is_dense = last - first == len(entries) - 1
    return int(place) - first if is_dense else index_of(entries, place, _seq_id_of)


def _size(item: Item) -> int:
    return item.size if type(item) is Entry else len(item.content)  # type: ignore[union-attr]


def _fitting(items: Sequence[Item]) -> int:
    """Return the number of messages that a portion may have of these, at least one."""
    octets = 0
    for count, item in enumerate(items, 1):
        octets += _size(item)
        if octets >= PORTION_OCTETS:
            return count
    return len(items)


def _run_steps(run: Run, snapshot: Snapshot | None, returns: dict[int, int], at: int | None) -> PortionSteps:
    """Read the bodies of a portion that are not in memory."""
    found: list[Peeked] = []
    pieces = run_pieces(run, snapshot, PORTION_OCTETS)
    answer: Any = None
    try:
        while True:
            piece = pieces.send(answer)
            answer = None
            if isinstance(piece, list):
                found += piece
            else:
                answer = yield piece
    except StopIteration:
        pass
    finally:
        if snapshot is not None:
            snapshot.close()
    if returns:
        found = [each._replace(returns=returns.get(each.seq_id, each.returns)) for each in found]
    return Portion(found, at)


def _delta_steps(delta: Delta, snapshot: Snapshot, end: int, most: int) -> PortionSteps:
    """Read a portion of the delta, which ends at `end`."""
    found = yield from _read(snapshot, delta.whole)
    stop = min(found.stop, end)
    piece = decoded(found, delta, delta.whole.first, stop)
    return Portion(piece[:most], piece[most - 1].seq_id if len(piece) > most else stop - 1)


def _read(snapshot: Snapshot, whole: Range) -> Generator[Read, Loaded, Loaded]:
    """Read blocks from a range of positions; the snapshot is closed at the end."""
    read = snapshot.read
    try:
        return (yield lambda: read([whole], READ_OCTETS))
    finally:
        snapshot.close()
