"""Withdrawal of messages from any place of a variable queue, where a walk (`storage.queues.peek`) has found them.

Theory. Withdrawn messages become unacked, so they are settled like deliveries; they were never delivered. In q4 and q1
positions follow from places, which have no gaps. So before a message is withdrawn from there, the messages around it go
to q3 and q2, where each has its position (`prepare`). They keep their bodies. They leave q4 from its tail and q1 from
its head; if there is nothing else, all of q4 becomes q1 first. A message in the delta gets its entry from the walk's
read. Its neighbours may be read before its end is on disk, hence `storage.queues.delta.Gaps`.
"""
# ruff: noqa: SLF001 - friends: it changes the sub-queues, as the methods of the queue do

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from operator import attrgetter

from leveret.storage.journal.blocks import GONE, NEW, Entry
from leveret.storage.journal.reads import DELTA
from leveret.storage.message import body_octets
from leveret.storage.queues.loading import Reading, entry_of
from leveret.storage.queues.peek import PREPARED, Places, slot_of
from leveret.storage.queues.requeued import Item, size_of
from leveret.storage.queues.sub_queues import NOTHING

_seq_id = attrgetter("seq_id")


def take_out(run: deque[Entry], wanted: Collection[int]) -> list[Entry]:
    """Remove the entries with these positions from a run, ascending by position; return them."""
    if not run or not wanted:
        return []
    last = max(wanted)
    at = bisect_left(run, min(wanted), key=_seq_id)
    run.rotate(-at)
    taken: list[Entry] = []
    kept: list[Entry] = []
    left = len(run) - at
    while left and run[0].seq_id <= last:
        entry = run.popleft()
        left -= 1
        (taken if entry.seq_id in wanted else kept).append(entry)
    run.extendleft(reversed(kept))
    run.rotate(at)
    return taken


class Withdrawal:
    """Withdraws messages of one piece of a walk; `places` says where those of its delta were found.

    `missed` gets the positions of messages that can be withdrawn only after a read, and of all that follow them.
    """

    def __init__(self, queue: Reading, places: Places, missed: list[int]) -> None:
        self._queue = queue
        self._places = places
        self._missed = missed

    def prepare(self, first: int, last: int) -> bool:
        """See `Piece.prepare`."""
        queue = self._queue
        if queue.deleted:
            return True
        q4_stop = queue._q4_first + len(queue.q4)
        if queue.q4 and first < q4_stop and last >= queue._q4_first:
            queue.count_octets()
            if queue.q3 or queue.delta.count:
                first = max(first, queue._q4_first)
                count = min(PREPARED, q4_stop - first)
                queue._shift_q4(count, queue.exposed)
                if q4_stop - count > first:
                    return False
            else:
                queue.q1, queue.q4 = queue.q4, NOTHING
                queue._q1_first = queue._q4_first
        if queue.q1 and last >= queue._q1_first:
            count = min(PREPARED, len(queue.q1), last + 1 - queue._q1_first)
            queue._shift_q1(count, queue.exposed)
        return not queue.q1 or last < queue._q1_first

    def withdraw(self, seq_ids: Collection[int]) -> list[int]:
        """See `Piece.withdraw`."""
        queue = self._queue
        if queue.deleted:
            return []
        wanted = set(seq_ids)
        self._missed += self._paged_since(wanted)
        wanted.difference_update(self._missed)
        taken: list[tuple[int, Item]] = list(queue.returned.remove_those(wanted))
        for run in (queue.q3, queue.q2):
            taken += [(entry.seq_id, _kept(queue, entry)) for entry in take_out(run, wanted)]
        queue._ahead = 0
        queue._count_ready([item for _, item in taken], -1)
        taken += self._from_delta(wanted)
        queue.ready_count -= len(taken)
        for seq_id, item in taken:
            self._hold(seq_id, item)
        queue._fit_unacked()
        self._close_up()
        return sorted([seq_id for seq_id, _ in taken])

    def _paged_since(self, wanted: Collection[int]) -> list[int]:
        """Return positions from the first one on that is missed, or whose message memory and the walk do not have."""
        queue, places = self._queue, self._places
        away, gaps = queue.delta.positions, queue.delta.gaps
        paged = [each for each in wanted if each in away and each not in places and each not in gaps]
        first = min([*self._missed[:1], *paged], default=queue.next_seq)
        return sorted([each for each in wanted if each >= first])

    def _from_delta(self, wanted: Collection[int]) -> list[tuple[int, Item]]:
        """Take messages out of the delta; they get entries."""
        taken: list[tuple[int, Item]] = []
        queue, delta = self._queue, self._queue.delta
        for seq_id in wanted:
            place = self._places.get(seq_id)
            if place is None or seq_id not in delta.positions or seq_id in delta.gaps:
                continue
            raw, header, bitmap, record, message = place
            block = delta.blocks.get(slot_of(raw, header))
            if block is None:
                # how many of its records are counted is found out when they are read in order
                if bitmap.is_damaged:
                    continue
                block = delta.new_block(raw, header, bitmap)
            durable = queue.durable and not raw.paged
            entry = entry_of(record, block, None, body_octets(message.content), durable=durable)
            queue._note_stored_returns(block, [entry])
            delta.leave(block, 1, entry.body)
            delta.count -= 1
            taken.append((seq_id, entry))
        return taken

    def _hold(self, seq_id: int, item: Item) -> None:
        queue = self._queue
        queue.delta.note_withdrawn(seq_id)
        queue._unacked_entries += type(item) is Entry
        if type(item) is Entry and item.message is None:
            queue._unacked_out[seq_id] = item
            queue.unacked_away_octets += item.size
        else:
            queue._unacked[seq_id] = item
            queue.unacked_octets += size_of(item)

    def _close_up(self) -> None:
        """Restore the order of the sub-queues after messages were withdrawn."""
        queue = self._queue
        if queue.delta.stop and not queue.delta.count:
            if queue._loading is not None and queue._loading.what == DELTA:
                queue._loading = None
            queue._delta_exhausted()
        elif not queue.q3 and not queue.delta.count:
            queue._q1_to_q4()
        queue.delta.gaps.forget_before(queue._first_unfetched())
        if queue._starved and queue._loading is None:
            queue._starved = False
            queue.on_loaded()
        queue._keep_ahead()


def _kept(queue: Reading, entry: Entry) -> Item:
    """Return the rest of an entry that will not be paged."""
    if entry.evict:
        queue._keep(entry)
    if entry.state == NEW and not entry.durable:
        entry.state = GONE
        return entry.message  # type: ignore[return-value] # it has its body until it is on disk
    return entry
