"""Moving a variable queue's messages out of memory: bodies first, then positions.

The theory is in `storage.queues.variable_queue`.

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter

from leveret.storage.journal.blocks import STORED, Entry
from leveret.storage.journal.reads import RETURNED, UNACKED
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.large_table import fitting
from leveret.storage.message import Message
from leveret.storage.queues.rates import Arrivals
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.sub_queues import NO_ENTRIES, NOTHING, SubQueues

PAGE_AT_ONCE = 2048  # maximum number of messages that one call moves out of memory, to keep it short
PAGE_OCTETS = 1024 * 1024  # bytes of transient messages to page before it looks at the journal's space again

_block_of = attrgetter("block")


class Paging(SubQueues):
    """The part of a variable queue that moves messages out of memory."""

    __slots__ = ()

    def set_lazy(self, *, lazy: bool) -> None:
        """Keep as little as possible in memory (`x-queue-mode=lazy`), or stop doing so."""
        self.lazy = lazy
        self.set_ram_target(inf, self.pager.ram_limit)

    def mark_arrivals(self, now: float) -> None:
        """Remember the time (seconds of a monotonic clock) at which the messages published so far were there."""
        rates = self.rates
        if not self.ready_count and not self.unacked_count:
            rates.arrivals = None
            return
        if rates.arrivals is None:
            rates.arrivals = Arrivals()
        has_older = bool(self.returned) or bool(self.unacked_count)
        rates.arrivals.mark(now, self.next_seq, 0 if has_older else self._first_unfetched())

    def set_ram_target(self, count: float, octets: int) -> None:
        """Set the maximum number of messages in memory, and their maximum bytes."""
        self.target_ram_count = 0 if self.lazy else count
        self.ram_limit = 0 if self.lazy else octets
        self.reduce_memory_use()

    def reduce_memory_use(self, published: int = 0) -> None:
        """Move messages out of memory, as far as the targets require and one step permits.

        `published` is the number of messages just published: at least twice as many may be moved.
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
        """Return the target as a number of messages of the present average size."""
        count = self.ram_msg_count + self.ram_ack_count
        octets = self.ram_octets - self._evicting + self.unacked_octets
        if octets + OVERHEAD * count <= self.ram_limit:
            return self.target_ram_count
        average = OVERHEAD + octets / max(1, count)
        return min(self.target_ram_count, self.ram_limit / average)

    def _permitted_beta_count(self, target: float) -> float:
        """Return how many betas and gammas may stay in memory; never less than a segment (docs/storage.md)."""
        if not self.ready_count:
            return inf
        if not target:
            return min(len(self.q3), self.segment)
        others = self.ready_count - len(self.q1) - len(self.q4)
        return max(self.segment, others * target / (others + target))

    def _limit_ram_acks(self, quota: int) -> int:
        """Drop bodies of unacked messages, the youngest first; returns of how many."""
        limited = 0
        unacked = self._unacked
        while unacked and limited < quota:
            if self._unacked_entries < len(unacked) + len(self._unacked_out) and not self._may_page():
                break
            average = self.unacked_octets // len(unacked)
            limited += self._limit_run(min(quota - limited, self._run(average)))
        if limited:
            self._moved("limit_ram_acks", limited)
        return limited

    def _limit_run(self, count: int) -> int:
        """Drop the bodies of at most `count` unacked messages; returns of how many."""
        unacked, out = self._unacked, self._unacked_out
        before = len(unacked)
        limited = min(count, before)
        octets = 0
        seq_ids: list[int] = []
        messages: list[Message] = []
        for _ in range(limited):
            seq_id, item = unacked.popitem()
            if type(item) is not Entry:
                seq_ids.append(seq_id)
                messages.append(item)  # type: ignore[arg-type]
                continue
            if item.state == STORED:
                item.forget()
            else:
                item.evict = True
            out[seq_id] = item
            octets += item.size
        if messages:
            del item
            self._unacked_entries += len(messages)
            paged = self._page(seq_ids, messages)
            octets += sum([entry.size for entry in paged])
            out.update(zip(seq_ids, paged, strict=True))
        self.unacked_away_octets += octets
        self.unacked_octets = self.unacked_octets * len(unacked) // before
        self._unacked_out = fitting(out)
        return limited

    def _page(self, seq_ids: Sequence[int], messages: list[Message]) -> list[Entry]:
        """Note transient messages for the environment of paged ones; their bodies are dropped once written."""
        # A body shared with other queues is written once, apart from its records. The caller must have removed the
        # messages from the queue.
        journal = self._journal
        shared, embed_below = journal.shared, journal.embed_below
        entries: list[Entry] = []
        octets = OVERHEAD * len(messages)
        holders = shared.holders(messages)
        for seq_id, message, others in zip(seq_ids, messages, holders, strict=True):
            content = message.content
            size = len(content)
            entry = Entry(seq_id, message, size, durable=False, expires=message.expires)
            entry.evict = True
            entry.msg_id = shared.known(content) if shared else 0
            if not entry.msg_id:
                octets += size
                if others and size * (1 + others) >= embed_below:
                    entry.msg_id = shared.number(content)
            entries.append(entry)
        journal.octets += octets
        journal.octets_to_page += octets
        journal.messages_to_page += len(entries)
        self.journal_paged += entries
        if not self.journaled:
            journal.touch(self)
        return entries

    def _q1_to_q4(self) -> None:
        """Move q1 to q4, when no other part has messages on disk."""
        # If q4 still has messages, those that followed were lost or withdrawn. Positions in q4 have no gaps, so its
        # last message goes to q3, and others are still published to q1.
        assert not self.q2  # noqa: S101 - it comes before q1
        if self.q4:
            if self.q1 or self._q4_first + len(self.q4) < self.next_seq:
                self.count_octets()
                self._shift_q4(1, self.exposed)
        elif self.q1:
            self.q4, self.q1 = self.q1, NOTHING
            self._q4_counted = True
            self._q4_first = self._q1_first

    def exposed(self, seq_ids: range, items: list[Item]) -> list[Entry]:
        """Return alphas as entries that have their position, and keep their bodies."""
        entries: list[Entry] = []
        for seq_id, item in zip(seq_ids, items, strict=True):
            if type(item) is Entry:
                self._run_entries -= 1
                entries.append(item)
            else:
                size = len(item.content)  # type: ignore[union-attr]
                entries.append(Entry(seq_id, item, size, durable=False, expires=item.expires))  # type: ignore[arg-type]
        bare = sum([not entry.durable for entry in entries])
        if bare:
            self._moved("alpha_to_beta", bare)
        if len(entries) > bare:
            self._moved("alpha_to_gamma", len(entries) - bare)
        return entries

    def _push_alphas_to_betas(self, quota: int, target: float) -> int:
        """Drop bodies of alphas: q1 from its head, then q4 from its tail; returns of how many."""
        # Transient messages must be written first: no more of them at once than the journal has space for.
        pushed = self._push_q1(quota)
        keep = 1 if target else 0  # keeps a head that can be delivered immediately
        more = min(quota - pushed, len(self.q4) - keep)
        while more > 0 and self._may_push():
            count = min(more, self._run(self.ram_octets // self.ram_msg_count))
            self._shift_q4(count, self._demote)
            pushed += count
            more -= count
        return pushed

    def _push_q1(self, quota: int) -> int:
        pushed = 0
        left = min(quota, len(self.q1))
        while left and self._may_push():
            count = min(left, self._run(self.ram_octets // self.ram_msg_count))
            self._shift_q1(count, self._demote)
            pushed += count
            left -= count
        return pushed

    def _shift_q4(self, count: int, change: Callable[[range, list[Item]], list[Entry]]) -> None:
        """Move messages from the tail of q4 to q3, where each has its position."""
        last = self._q4_first + len(self.q4) - 1
        pop = self.q4.pop
        self._q3().extendleft(change(range(last, last - count, -1), [pop() for _ in range(count)]))
        self._ahead = 0

    def _shift_q1(self, count: int, change: Callable[[range, list[Item]], list[Entry]]) -> None:
        """Move messages from the head of q1 to where each has its position."""
        first = self._q1_first
        self._q1_first += count
        popleft = self.q1.popleft
        entries = change(range(first, first + count), [popleft() for _ in range(count)])
        if not self.delta.count:
            self._q3().extend(entries)
        elif self.q2 is NO_ENTRIES:
            self.q2 = deque(entries)
        else:
            self.q2.extend(entries)

    def _may_push(self) -> bool:
        """Return whether alphas may leave memory now: always, if they are on disk or on their way there."""
        return self._run_entries == len(self.q4) + len(self.q1) or self._may_page()

    def _may_page(self) -> bool:
        """Return whether transient messages may be paged now; if not, the queue resumes when the journal has space."""
        if self.pager.may_page:
            return True
        self.pager.waiting[self] = None
        return False

    @staticmethod
    def _run(average: int) -> int:
        """Return how many messages of a size are paged before checking the journal again."""
        return max(1, min(PAGE_AT_ONCE, PAGE_OCTETS // (average + OVERHEAD)))

    def _demote(self, seq_ids: range, items: list[Item]) -> list[Entry]:
        """Drop the bodies of alphas, now or when their commit is done."""
        if not self._run_entries:
            entries = self._page(seq_ids, items)  # type: ignore[arg-type]
            self._evicting += sum([entry.size for entry in entries])
            self._moved("alpha_to_beta", len(entries))
            return entries
        bare = [number for number, item in enumerate(items) if type(item) is not Entry]
        messages = [items[number] for number in bare]
        for number in bare:
            items[number] = None  # type: ignore[call-overload]
        paged = self._page([seq_ids[number] for number in bare], messages)  # type: ignore[arg-type]
        for number, entry in zip(bare, paged, strict=True):
            items[number] = entry
        entries = items  # type: ignore[assignment]
        freed = evicting = 0
        for entry in entries:
            if entry.state == STORED:
                entry.forget()
                freed += entry.size
            else:
                evicting += entry.size
                entry.evict = True
        self.ram_octets -= freed
        self.away_octets += freed
        self._evicting += evicting
        if paged:
            self._moved("alpha_to_beta", len(paged))
        gammas = len(entries) - len(paged)
        if gammas:
            self._run_entries -= gammas
            self._moved("alpha_to_gamma", gammas)
        return entries

    def logged(self, entries: list[Entry]) -> None:
        """Handle entries to be evicted, or settled early, that are safe, and on disk later (called by the journal)."""
        self._end_settled(entries)

    def stored(self, entries: list[Entry]) -> None:
        """Handle entries to be evicted, or settled early, that are on disk now (called by the journal)."""
        out = self._unacked_out
        ready = 0
        for entry in self._end_settled(entries):
            entry.evict = False
            entry.forget()
            if not out or entry.seq_id not in out:
                ready += entry.size
        self.ram_octets -= ready
        self.away_octets += ready
        self._evicting -= ready
        self.pager.resume_paging()

    def _push_betas_to_deltas(self, quota: int) -> None:
        """Forget entries that are on disk: q3 from its tail, but for those that it reads ahead; q2 from its head."""
        # The delta is read if q3 has less than `read_ahead` entries, up to a position that is a multiple of that. q3
        # keeps so many entries, and what one such read would have returned with the next one; so no entry that was
        # read from the delta ever goes back to it.
        q3, q2 = self.q3, self.q2
        ahead = self.read_ahead
        pushed = 0
        if len(q3) > ahead and (
            self._loading is None or self._loading.what in {RETURNED, UNACKED}
        ):  # otherwise the delta's start may not move
            boundary = (q3[ahead].seq_id // ahead + 1) * ahead
            young = self._take_unwritten(boundary)
            taken: list[Entry] = []
            while len(taken) < quota and q3[-1].seq_id >= boundary and q3[-1].state == STORED:
                taken.append(q3.pop())
            if taken:
                self._to_delta(taken)
                self.delta.start = taken[-1].seq_id
                if not self.delta.count:
                    self.delta.stop = taken[0].seq_id + 1
                self.delta.count += len(taken)
                pushed = len(taken)
            if young and self.delta.count:
                q2 = self.q2 = deque(young)
            else:
                q3.extend(young)
            self._ahead = min(self._ahead, len(q3))
        if self.delta.count:
            taken = []
            while pushed + len(taken) < quota and q2 and q2[0].state == STORED:
                taken.append(q2.popleft())
            if taken:
                self._to_delta(taken)
                self.delta.stop = taken[-1].seq_id + 1
                self.delta.count += len(taken)
                pushed += len(taken)
        if pushed:
            self._moved("to_delta", pushed)

    def _take_unwritten(self, boundary: int) -> list[Entry]:
        """Remove entries that are not on disk yet from q3's tail, if a delta could begin before them."""
        # While messages are being published the youngest ones never are; they belong in q2 once there is a delta.
        q3 = self.q3
        young: list[Entry] = []
        if not self.delta.count and len(q3) > self.segment and q3[self.segment].state == STORED:
            while q3[-1].state != STORED and q3[-1].seq_id >= boundary:
                young.append(q3.pop())
            young.reverse()
        return young

    def _to_delta(self, entries: list[Entry]) -> None:
        """Forget entries that are all neighbours."""
        for _, run in groupby(entries, _block_of):
            members = list(run)
            for entry in members:
                if entry.message is not None:  # read ahead
                    entry.forget()
                    self.ram_octets -= entry.size
                else:
                    self.away_octets -= entry.size
            self.delta.enter(members)
