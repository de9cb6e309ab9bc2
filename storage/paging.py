"""Moving a variable queue's messages out of memory: bodies first, then positions.

The theory is in `storage.variable_queue`.

Hot path: see docs/performance.md.
"""

from collections import deque
from math import inf

from storage.blocks import STORED, Block, Entry
from storage.loading import RETURNED
from storage.message import Message
from storage.sub_queues import NO_ENTRIES, OVERHEAD, Item, SubQueues

PAGE_AT_ONCE = 2048
"""Messages that one call moves out of memory at most, so that it stays short."""


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
        for _ in range(limited):
            seq_id, item = unacked.popitem()
            if type(item) is not Entry:
                item = self._page(seq_id, item)  # type: ignore[arg-type]
                self._unacked_entries += 1
            elif item.state == STORED:
                item.message = None
            else:
                item.evict = True
            out[seq_id] = item
        self.unacked_octets = self.unacked_octets * len(unacked) // before
        if limited:
            self._moved("limit_ram_acks", limited)
        return limited

    def _page(self, seq_id: int, message: Message) -> Entry:
        """Have a transient message written to the environment of paged ones, and its body dropped then."""
        entry = Entry(seq_id, message, len(message.content), durable=False)
        entry.evict = True
        self.journal_paged.append(entry)
        self._journal.octets += entry.size + OVERHEAD
        if not self.journaled:
            self._journal.touch(self)
        return entry

    def _push_alphas_to_betas(self, quota: int, target: float) -> int:
        """Drop bodies of alphas: q1 from its head, then q4 from its tail; returns of how many."""
        pushed = 0
        while pushed < quota and self.q1:
            seq_id = self._q1_first
            self._q1_first += 1
            entry = self._demote(seq_id, self.q1.popleft())
            if self.delta_count:
                if self.q2 is NO_ENTRIES:
                    self.q2 = deque()
                self.q2.append(entry)
            else:
                self._q3().append(entry)
            pushed += 1
        keep = 1 if target else 0  # a head that can be delivered at once
        while pushed < quota and len(self.q4) > keep:
            seq_id = self._q4_first + len(self.q4) - 1
            entry = self._demote(seq_id, self.q4.pop())
            self._q3().appendleft(entry)
            self._ahead = 0
            pushed += 1
        return pushed

    def _demote(self, seq_id: int, item: Item) -> Entry:
        """Drop an alpha's body, now or when its commit is done."""
        if type(item) is not Entry:
            entry = self._page(seq_id, item)  # type: ignore[arg-type]
            self._evicting += entry.size
            self._moved("alpha_to_beta", 1)
            return entry
        self._run_entries -= 1
        self._moved("alpha_to_gamma", 1)
        if item.state == STORED:
            item.message = None
            self.ram_octets -= item.size
        elif not item.evict:
            item.evict = True
            self._evicting += item.size
        return item

    def stored(self, entry: Entry) -> None:
        """An entry that shall be evicted is on disk now (the journal calls this)."""
        entry.evict = False
        entry.message = None
        if entry.seq_id not in self._unacked_out:
            self.ram_octets -= entry.size
            self._evicting -= entry.size

    def _push_betas_to_deltas(self, quota: int) -> None:
        """Forget entries that are on disk: q3 from its tail down to a segment's boundary, then q2 from its head."""
        q3, q2, blocks = self.q3, self.q2, self.blocks
        pushed = 0
        if q3 and (
            self._loading is None or self._loading.what == RETURNED
        ):  # else the delta's start may not move
            boundary = (q3[0].seq_id // self.segment + 1) * self.segment
            young = self._take_unwritten(boundary)
            while pushed < quota and q3[-1].seq_id >= boundary and q3[-1].state == STORED:
                entry = q3.pop()
                self._to_delta(entry, blocks)
                self.delta_start = entry.seq_id
                if not self.delta_count:
                    self.delta_stop = entry.seq_id + 1
                self.delta_count += 1
                pushed += 1
            if young and self.delta_count:
                q2 = self.q2 = deque(young)
            else:
                q3.extend(young)
            self._ahead = min(self._ahead, len(q3))
        if self.delta_count:
            while pushed < quota and q2 and q2[0].state == STORED:
                entry = q2.popleft()
                self._to_delta(entry, blocks)
                self.delta_stop = entry.seq_id + 1
                self.delta_count += 1
                pushed += 1
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

    def _to_delta(self, entry: Entry, blocks: dict[int, Block]) -> None:
        if entry.message is not None:  # read ahead
            entry.message = None
            self.ram_octets -= entry.size
        block = entry.block
        self.delta_octets += entry.size
        self.delta_paged += block.paged
        block.away = away = block.away + 1
        if away == block.count:  # nothing of it is in memory any more, and nothing of it is dead
            blocks.pop(block.slot, None)
            block.home = None
        else:
            blocks[block.slot] = block
            block.home = blocks
