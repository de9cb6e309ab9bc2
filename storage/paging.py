"""Moving a variable queue's messages out of memory: bodies first, then positions.

The theory is in `storage.variable_queue`.

Hot path: see docs/performance.md.
"""

from collections import deque
from itertools import groupby
from math import inf
from operator import attrgetter

from storage.blocks import STORED, Entry
from storage.loading import RETURNED, UNACKED
from storage.message import Message
from storage.sub_queues import NO_ENTRIES, OVERHEAD, Item, SubQueues

PAGE_AT_ONCE = 2048
"""Messages that one call moves out of memory at most, so that it stays short."""

_block_of = attrgetter("block")


class Paging(SubQueues):
    """A variable queue's way out of memory."""

    __slots__ = ()

    def set_lazy(self, *, lazy: bool) -> None:
        """Keep as little as possible in memory (`x-queue-mode=lazy`), or no longer."""
        self.lazy = lazy
        self.set_ram_target(inf, self.pager.ram_limit)

    def set_ram_target(self, count: float, octets: int) -> None:
        """Let the queue have so many messages, and so many octets of them, in memory."""
        self.target_ram_count = 0 if self.lazy else count
        self.ram_limit = 0 if self.lazy else octets
        self.reduce_memory_use()

    def reduce_memory_use(self, published: int = 0) -> None:
        """Move messages out of memory, as far as its targets ask for and one step may go.

        `published` is how many have just come: at least twice as many may go.
        """
        at_once = max(PAGE_AT_ONCE, 2 * published)
        self.count_octets()
        target = self._effective_target()
        if target == inf:
            return
        excess = self.ram_msg_count + self.ram_ack_count - int(target)
        if excess > 0:
            quota = min(excess, at_once)
            if self.rates.acks_grow_faster:
                quota -= self._limit_ram_acks(quota)
                self._push_alphas_to_betas(quota, target)
            else:
                quota -= self._push_alphas_to_betas(quota, target)
                self._limit_ram_acks(quota)
        betas = len(self.q2) + len(self.q3) - self._permitted_beta_count(target)
        if betas >= self.pager.io_batch:
            self._push_betas_to_deltas(int(min(betas, at_once)))

    def _effective_target(self) -> float:
        """The target as a number of messages, of their present size on average."""
        count = self.ram_msg_count + self.ram_ack_count
        octets = self.ram_octets - self._evicting + self.unacked_octets
        if octets + OVERHEAD * count <= self.ram_limit:
            return self.target_ram_count
        average = OVERHEAD + octets / max(1, count)
        return min(self.target_ram_count, self.ram_limit / average)

    def _permitted_beta_count(self, target: float) -> float:
        """How many betas and gammas may stay in memory; never less than a segment (docs/storage.md)."""
        if not self.ready_count:
            return inf
        if not target:
            return min(len(self.q3), self.segment)
        others = self.ready_count - len(self.q1) - len(self.q4)
        return max(self.segment, others * target / (others + target))

    def _limit_ram_acks(self, quota: int) -> int:
        """Drop bodies of unacked messages, the youngest first; returns of how many."""
        if quota <= 0 or not self.ram_ack_count:
            return 0
        unacked, out = self._unacked, self._unacked_out
        before = len(unacked)
        limited = min(quota, before)
        paged: list[Entry] = []
        for _ in range(limited):
            seq_id, item = unacked.popitem()
            if type(item) is not Entry:
                item = _paged_entry(seq_id, item)  # type: ignore[arg-type]
                paged.append(item)
            elif item.state == STORED:
                item.message = None
            else:
                item.evict = True
            out[seq_id] = item
        if paged:
            self._unacked_entries += len(paged)
            self._note_paged(paged)
        self.unacked_octets = self.unacked_octets * len(unacked) // before
        if limited:
            self._moved("limit_ram_acks", limited)
        return limited

    def _note_paged(self, entries: list[Entry]) -> None:
        """Have transient messages written to the environment of paged ones, and their bodies dropped then."""
        self.journal_paged += entries
        self._journal.octets += sum([entry.size for entry in entries]) + OVERHEAD * len(entries)
        if not self.journaled:
            self._journal.touch(self)

    def _push_alphas_to_betas(self, quota: int, target: float) -> int:
        """Drop bodies of alphas: q1 from its head, then q4 from its tail; returns of how many."""
        pushed = min(quota, len(self.q1))
        if pushed:
            first = self._q1_first
            self._q1_first += pushed
            popleft = self.q1.popleft
            entries = self._demote(range(first, first + pushed), [popleft() for _ in range(pushed)])
            if not self.delta_count:
                self._q3().extend(entries)
            elif self.q2 is NO_ENTRIES:
                self.q2 = deque(entries)
            else:
                self.q2.extend(entries)
        keep = 1 if target else 0  # a head that can be delivered at once
        more = min(quota - pushed, len(self.q4) - keep)
        if more > 0:
            last = self._q4_first + len(self.q4) - 1
            pop = self.q4.pop
            self._q3().extendleft(self._demote(range(last, last - more, -1), [pop() for _ in range(more)]))
            self._ahead = 0
            pushed += more
        return pushed

    def _demote(self, seq_ids: range, items: list[Item]) -> list[Entry]:
        """Drop the bodies of alphas, now or when their commit is done."""
        entries: list[Entry] = []
        paged: list[Entry] = []
        freed = evicting = 0
        for seq_id, item in zip(seq_ids, items, strict=True):
            if type(item) is not Entry:
                entry = _paged_entry(seq_id, item)  # type: ignore[arg-type]
                evicting += entry.size
                paged.append(entry)
            else:
                entry = item
                if entry.state == STORED:
                    entry.message = None
                    freed += entry.size
                elif not entry.evict:
                    entry.evict = True
                    evicting += entry.size
            entries.append(entry)
        self.ram_octets -= freed
        self._evicting += evicting
        if paged:
            self._note_paged(paged)
            self._moved("alpha_to_beta", len(paged))
        gammas = len(entries) - len(paged)
        if gammas:
            self._run_entries -= gammas
            self._moved("alpha_to_gamma", gammas)
        return entries

    def stored(self, entries: list[Entry]) -> None:
        """Entries that shall be evicted are on disk now (the journal calls this)."""
        out = self._unacked_out
        ready = 0
        for entry in entries:
            entry.evict = False
            entry.message = None
            if not out or entry.seq_id not in out:
                ready += entry.size
        self.ram_octets -= ready
        self._evicting -= ready

    def _push_betas_to_deltas(self, quota: int) -> None:
        """Forget entries that are on disk: q3 from its tail down to a segment's boundary, then q2 from its head."""
        q3, q2 = self.q3, self.q2
        pushed = 0
        if q3 and (
            self._loading is None or self._loading.what in {RETURNED, UNACKED}
        ):  # else the delta's start may not move
            boundary = (q3[0].seq_id // self.segment + 1) * self.segment
            young = self._take_unwritten(boundary)
            taken: list[Entry] = []
            while len(taken) < quota and q3[-1].seq_id >= boundary and q3[-1].state == STORED:
                taken.append(q3.pop())
            if taken:
                self._to_delta(taken)
                self.delta_start = taken[-1].seq_id
                if not self.delta_count:
                    self.delta_stop = taken[0].seq_id + 1
                self.delta_count += len(taken)
                pushed = len(taken)
            if young and self.delta_count:
                q2 = self.q2 = deque(young)
            else:
                q3.extend(young)
            self._ahead = min(self._ahead, len(q3))
        if self.delta_count:
            taken = []
            while pushed + len(taken) < quota and q2 and q2[0].state == STORED:
                taken.append(q2.popleft())
            if taken:
                self._to_delta(taken)
                self.delta_stop = taken[-1].seq_id + 1
                self.delta_count += len(taken)
                pushed += len(taken)
        if pushed:
            self._moved("to_delta", pushed)

    def _take_unwritten(self, boundary: int) -> list[Entry]:
        """Take those entries off q3's tail that are not on disk yet, if a delta could begin before them.

        While a publisher goes on the youngest ones never are; they belong into q2 as soon as there is a delta.
        """
        q3 = self.q3
        young: list[Entry] = []
        if not self.delta_count and len(q3) > self.segment and q3[self.segment].state == STORED:
            while q3[-1].state != STORED and q3[-1].seq_id >= boundary:
                young.append(q3.pop())
            young.reverse()
        return young

    def _to_delta(self, entries: list[Entry]) -> None:
        """Forget entries, neighbours all of them: their blocks know how many of their records are away."""
        blocks = self.blocks
        for block, run in groupby(entries, _block_of):
            members = list(run)
            for entry in members:
                if entry.message is not None:  # read ahead
                    entry.message = None
                    self.ram_octets -= entry.size
            self.delta_octets += sum([entry.size for entry in members])
            if block.paged:
                self.delta_paged += len(members)
            block.away = away = block.away + len(members)
            if away == block.count:  # nothing of it is in memory any more, and nothing of it is dead
                blocks.pop(block.slot, None)
                block.home = None
            else:
                blocks[block.slot] = block
                block.home = blocks


def _paged_entry(seq_id: int, message: Message) -> Entry:
    """An entry for a transient message that is to be paged."""
    entry = Entry(seq_id, message, len(message.content), durable=False, expires=message.expires)
    entry.evict = True
    return entry
