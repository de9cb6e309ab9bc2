"""The variable queue: a backing queue whose messages are in memory, on disk, or both.

Theory (after RabbitMQ's `rabbit_variable_queue`). A ready message is in one of four states:

=======  ================  =============================  ===========================
state    body              position                       where
=======  ================  =============================  ===========================
alpha    memory            memory                         q4, q1
beta     paged to disk     memory                         q3, q2 (transient message)
gamma    disk              memory and disk                q3, q2 (persistent message)
delta    disk              disk, as a range of seq_ids    delta
=======  ================  =============================  ===========================

In order of seq_id, which is the order of publishing: head, q4, q3, delta, q2, q1, tail. A message is published as an
alpha into q4, or into q1 if q3 or delta have any. Memory pressure turns alphas into betas or gammas (those farthest
from the head first: q1 from its head, q4 from its tail) and these into deltas (q3 from its tail, q2 from its head).
The way back is demand: when q3 runs low the next blocks of the delta are read into it, bodies and all; when q3 and
delta are both empty q1 becomes q4. A persistent message in a durable queue is on disk, or on its way there, in every
state: once written it is an alpha, a gamma or a delta, never a beta.

Reading takes time, so it is asked for ahead (`_prefetch`), one load at a time, and `fetch` may return nothing though
messages are ready: then a load is under way, and `on_loaded` is called when it is done. A body is dropped from
memory only when its commit is done, so what is not in memory can always be read.

What was fetched is older than anything that never was. So a requeued message is in front of q4, q3 and delta alike:
requeued ones wait in a heap, `returned`, which counts as the front of q4 (and may hold betas and gammas, whose body
was dropped while they were unacked). Nothing is ever merged into q3 or the delta.

A transient alpha is the bare `Message`: its seq_id follows from its place, since q4 and q1 have no gaps. Whatever is
on disk, or has to go there, has an `Entry`. `storage.invariants.check` says what must hold between calls.

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import chain
from math import inf
from operator import attrgetter

from storage.backing_queue import Batch
from storage.blocks import (
    GONE,
    NEW,
    STORED,
    WRITING,
    Block,
    Entry,
    Header,
    Record,
    bits_of,
    plain_entries,
    read_header,
    read_records,
)
from storage.errors import DamagedError
from storage.journal import LAST_SEQ_ID, Journal
from storage.loading import Loaded, LoadRequest, Range, RawBlock
from storage.message import Message
from storage.rates import Rates

Item = Message | Entry

OVERHEAD = 256
"""Octets of memory that an alpha costs beside its content, about."""
PAGE_AT_ONCE = 2048
"""Messages that one call moves out of memory at most, so that it stays short."""

DELTA, BODIES, RETURNED = "delta", "bodies", "returned"
"""What is read: part of the delta, bodies of entries in q3, or of requeued ones."""

_NOTHING: deque[Item] = deque()
_NO_ENTRIES: deque[Entry] = deque()
_NONE_FETCHED = Batch((), [], redelivered=False)
_seq_id = attrgetter("seq_id")


class Pager:
    """What the queues of one broker share.

    Args:
        journal: takes what has to go to disk.
        load: has blocks read; the queue's `loaded` is called with what was found, later.
        segment: seq_ids that are loaded together at most (`queue_index_segment_entry_count`).
        io_batch: betas that are turned into deltas together at least (`msg_store_io_batch_size`).
        load_octets: what is enough for one load.
        file_from: octets of content from which a persistent body is written to a file of its own.
        ram_limit: octets of alphas that one queue may have, as long as nothing else says so.

    """

    __slots__ = ("active", "file_from", "io_batch", "journal", "load", "load_octets", "ram_limit", "segment")

    def __init__(
        self,
        journal: Journal,
        load: Callable[[LoadRequest], None],
        *,
        segment: int = 2048,
        io_batch: int = 256,
        load_octets: int = 1024 * 1024,
        file_from: int = 4 * 1024 * 1024,
        ram_limit: int = 32 * 1024 * 1024,
    ) -> None:
        self.journal = journal
        self.load = load
        self.segment = segment
        self.io_batch = io_batch
        self.load_octets = load_octets
        self.file_from = file_from
        self.ram_limit = ram_limit
        self.active: set[VariableQueue] = set()
        """Queues that had a backlog since the memory monitor last looked."""


def _never() -> None:
    """Nobody wants to know."""


class VariableQueue:
    """A `BackingQueue` that pages.

    Args:
        pager: what it shares with others.
        qid: the queue's id, never used for another one.
        durable: its persistent messages survive.
        next_seq: the seq_id of the first message published.

    """

    __slots__ = (
        "_ahead",
        "_evicting",
        "_journal",
        "_loading",
        "_q1_first",
        "_q4_first",
        "_run_entries",
        "_unacked",
        "_unacked_entries",
        "_unacked_out",
        "acked",
        "blocks",
        "damaged",
        "deleted",
        "delta_count",
        "delta_octets",
        "delta_paged",
        "delta_start",
        "delta_stop",
        "durable",
        "fetched",
        "journal_fresh",
        "journal_paged",
        "journaled",
        "lazy",
        "next_seq",
        "on_loaded",
        "pager",
        "q1",
        "q2",
        "q3",
        "q4",
        "qid",
        "ram_limit",
        "ram_octets",
        "rates",
        "ready_count",
        "redelivered_below",
        "returned",
        "segment",
        "target_ram_count",
        "transitions",
        "unacked_octets",
    )

    def __init__(self, pager: Pager, qid: int, *, durable: bool, next_seq: int = 0) -> None:
        # for good
        self.pager = pager
        self.qid = qid
        self.durable = durable
        self.segment = pager.segment
        self._journal = pager.journal
        self.on_loaded: Callable[[], object] = _never
        # the sub-queues, from the head
        self.returned: list[tuple[int, Item]] = []
        self.q4: deque[Item] = _NOTHING
        self.q3: deque[Entry] = _NO_ENTRIES
        self.delta_start = self.delta_count = self.delta_stop = 0
        self.delta_paged = self.delta_octets = 0
        """How many messages of the delta are transient, and octets of all its content."""
        self.q2: deque[Entry] = _NO_ENTRIES
        self.q1: deque[Item] = _NOTHING
        self._q4_first = self._q1_first = self.next_seq = next_seq
        self._run_entries = 0
        """Entries in q4 and q1, whose items are bare messages otherwise."""
        self.ready_count = 0
        # the unacked
        self._unacked: dict[int, Item] = {}
        self._unacked_out: dict[int, Entry] = {}
        """Those of them that need no body in memory; a few still have it, until their commit."""
        self._unacked_entries = 0
        """Entries in both."""
        self.redelivered_below = 0
        """Messages with a lower seq_id may have been delivered before the broker was started."""
        # disk
        self.blocks: dict[int, Block] = {}
        """Blocks that the delta has a share in and that memory knows of."""
        self.journal_fresh: list[Entry] = []
        self.journal_paged: list[Entry] = []
        self.journaled = False
        self.deleted = False
        self._loading: LoadRequest | None = None
        self._ahead = 0
        """Entries at the head of q3 that are known to have their body."""
        # memory
        self.lazy = False
        self.target_ram_count = inf
        self.ram_limit = pager.ram_limit
        self.ram_octets = 0
        """Content of ready messages in memory."""
        self.unacked_octets = 0
        """About the content of unacked ones in memory: what is acked counts as the average does."""
        self._evicting = 0
        """How much of that is only waiting for its commit: entries of q3 and q2 that are to be evicted."""
        # counters
        self.fetched = 0
        self.acked = 0
        self.damaged = 0
        self.rates = Rates()
        self.transitions: dict[str, int] | None = None

    # -- counts -----------------------------------------------------------------------------------------------------

    @property
    def unacked_count(self) -> int:
        """Messages fetched with `ack_required` and neither acked nor requeued yet."""
        return len(self._unacked) + len(self._unacked_out)

    @property
    def ram_msg_count(self) -> int:
        """Ready messages whose body is in memory, but for those read ahead."""
        return len(self.q4) + len(self.q1) + len(self.returned)

    @property
    def ram_ack_count(self) -> int:
        """Unacked messages whose body is kept in memory."""
        return len(self._unacked)

    @property
    def loading(self) -> bool:
        """Whether messages are being read from disk."""
        return self._loading is not None

    def states(self) -> dict[str, int]:
        """How many ready messages are alpha, beta, gamma and delta."""
        alphas = len(self.q4) + len(self.q1)
        betas = gammas = 0
        for _, item in self.returned:
            if type(item) is not Entry or item.message is not None:
                alphas += 1
            elif item.durable:
                gammas += 1
            else:
                betas += 1
        for entries in (self.q3, self.q2):
            durable = sum(entry.durable for entry in entries)
            gammas += durable
            betas += len(entries) - durable
        return {"alpha": alphas, "beta": betas, "gamma": gammas, "delta": self.delta_count}

    def _moved(self, transition: str, count: int) -> None:
        if self.transitions is None:
            self.transitions = {}
        self.transitions[transition] = self.transitions.get(transition, 0) + count

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, messages: Collection[Message], *, persistent: bool = False) -> None:
        """Append messages at the tail, in order."""
        seq_id = self.next_seq
        if self.q3 or self.delta_count:
            run = self.q1
            if run is _NOTHING:
                run = self.q1 = deque()
            if not run:
                self._q1_first = seq_id
        else:
            run = self.q4
            if run is _NOTHING:
                run = self.q4 = deque()
            if not run:
                self._q4_first = seq_id
        count = len(messages)
        if persistent and self.durable:
            items = self._journaled(messages, seq_id)
            run.extend(items)
            for item in items:
                if type(item) is Entry:
                    self._run_entries += 1
        else:
            run.extend(messages)
        self.next_seq = seq_id + count
        self.ready_count += count
        self.ram_octets += sum([len(message.content) for message in messages])
        if (
            self.ram_octets + OVERHEAD * self.ready_count > self.ram_limit
            or self.ready_count > self.target_ram_count
        ):
            self.reduce_memory_use(count)
        self.pager.active.add(self)

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False
    ) -> range:
        """Record messages that go straight to a consumer; `ready_count` must be 0. Returns their seq_ids."""
        first = self.next_seq
        self.next_seq = stop = first + len(messages)
        seq_ids = range(first, stop)
        if persistent and self.durable:
            if ack_required:
                items = self._journaled(messages, first)
                self._unacked.update(zip(seq_ids, items, strict=True))
                self._unacked_entries += sum([type(item) is Entry for item in items])
                self._delivered(messages)
            else:
                for message in messages:
                    if message.persistent:
                        self._journal.early += 1
                        message.accepted()  # type: ignore[attr-defined]
        elif ack_required:
            self._unacked.update(zip(seq_ids, messages, strict=True))
            self._delivered(messages)
        return seq_ids

    def _delivered(self, messages: list[Message]) -> None:
        """Messages went straight to the unacked, who may become too many."""
        self.unacked_octets += len(messages[0].content) * len(messages)
        self.pager.active.add(self)
        if (
            self.unacked_octets + OVERHEAD * len(self._unacked) > self.ram_limit
            or len(self._unacked) > self.target_ram_count
        ):
            self.reduce_memory_use(len(messages))

    def _journaled(self, messages: Collection[Message], seq_id: int) -> list[Item]:
        """The messages, those that must be written as entries that the journal knows."""
        items: list[Item] = []
        journal, fresh, file_from = self._journal, self.journal_fresh, self.pager.file_from
        octets = 0
        for message in messages:
            if message.persistent:
                size = len(message.content)
                octets += size + OVERHEAD
                if message.publisher is not None:  # type: ignore[attr-defined]
                    journal.urgent = True
                entry = Entry(seq_id, message, size, durable=True)
                items.append(entry)
                if size < file_from:
                    fresh.append(entry)
                else:
                    journal.write_file(self, entry, message)  # type: ignore[arg-type]
            else:
                items.append(message)
            seq_id += 1
        journal.octets += octets
        if not self.journaled:
            journal.touch(self)
        return items

    # -- fetching ---------------------------------------------------------------------------------------------------

    def fetch(self, count: int, *, ack_required: bool) -> Batch:
        """Take at most `count` messages from the head; `ready_count` must not be 0.

        Returns none if the next one is being read from disk.
        """
        if self.returned:
            return self._fetch_returned(count, ack_required=ack_required)
        run = self.q4
        if not run:
            return self._fetch_read(count, ack_required=ack_required)
        items: list[Item]
        if count >= len(run):
            items = list(run)
            run.clear()
            count = len(items)
        else:
            popleft = run.popleft
            items = [popleft() for _ in range(count)]
        first = self._q4_first
        self._q4_first = first + count
        seq_ids = range(first, first + count)
        self.ready_count -= count
        self.fetched += count
        messages: list[Message]
        if self._run_entries:
            messages = self._bodies(items)
            entries = sum([type(item) is Entry for item in items])
            self._run_entries -= entries
            if ack_required:
                self._unacked.update(zip(seq_ids, items, strict=True))
                self._unacked_entries += entries
            else:
                self._forget(items)
        else:
            messages = items  # type: ignore[assignment]
            if ack_required:
                self._unacked.update(zip(seq_ids, items, strict=True))
        octets = sum([len(message.content) for message in messages])
        self.ram_octets -= octets
        if ack_required:
            self.unacked_octets += octets
        return Batch(seq_ids, messages, redelivered=False)

    @staticmethod
    def _bodies(items: Iterable[Item]) -> list[Message]:
        return [item.message if type(item) is Entry else item for item in items]  # type: ignore[misc]

    def _fetch_returned(self, count: int, *, ack_required: bool) -> Batch:
        returned = self.returned
        taken: list[tuple[int, Item]] = []
        while returned and len(taken) < count:
            item = returned[0][1]
            if type(item) is Entry and item.message is None:
                break
            taken.append(heappop(returned))
        if not taken:
            self._prefetch()
            return _NONE_FETCHED
        return self._take(taken, ack_required=ack_required, redelivered=True)

    def _fetch_read(self, count: int, *, ack_required: bool) -> Batch:
        """Take from q3, as far as its bodies are in memory."""
        q3 = self.q3
        taken: list[tuple[int, Item]] = []
        watermark = self.redelivered_below
        redelivered = bool(q3) and q3[0].seq_id < watermark
        while q3 and len(taken) < count:
            entry = q3[0]
            if entry.message is None or (entry.seq_id < watermark) is not redelivered:
                break
            del q3[0]
            item: Item = entry
            if entry.evict:
                self._keep(entry)
            if entry.state == NEW and not entry.durable:  # was to be paged, and need not be any more
                entry.state = GONE
                item = entry.message
            taken.append((entry.seq_id, item))
        self._ahead = max(0, self._ahead - len(taken))
        batch = _NONE_FETCHED
        if taken:
            batch = self._take(taken, ack_required=ack_required, redelivered=redelivered)
            if self.unacked_octets + OVERHEAD * len(self._unacked) > self.ram_limit:
                self.reduce_memory_use(len(taken))
        if not q3 and not self.delta_count:
            self._q1_to_q4()
        elif self._ahead < self.segment // 2 and (self._ahead < len(q3) or self.delta_count):
            self._prefetch()
        return batch

    def _take(self, taken: list[tuple[int, Item]], *, ack_required: bool, redelivered: bool) -> Batch:
        count = len(taken)
        self.ready_count -= count
        self.fetched += count
        items = [item for _, item in taken]
        messages = self._bodies(items)
        octets = sum([len(message.content) for message in messages])
        self.ram_octets -= octets
        if ack_required:
            self.unacked_octets += octets
            self._unacked.update(taken)
            self._unacked_entries += sum([type(item) is Entry for item in items])
        else:
            self._forget(items)
        return Batch([seq_id for seq_id, _ in taken], messages, redelivered=redelivered)

    def _keep(self, entry: Entry) -> None:
        """Do not evict an entry after all."""
        entry.evict = False
        self._evicting -= entry.size

    def _q1_to_q4(self) -> None:
        """Nothing is on disk any more but what q1 has."""
        assert not self.q2
        if self.q1:
            assert not self.q4
            self.q4, self.q1 = self.q1, _NOTHING
            self._q4_first = self._q1_first

    # -- settling ---------------------------------------------------------------------------------------------------

    def ack(self, seq_ids: Collection[int]) -> None:
        """Forget fetched messages for good."""
        unacked = self._unacked
        self.acked += len(seq_ids)
        before = len(unacked)
        if not self._unacked_entries:
            for seq_id in seq_ids:
                del unacked[seq_id]
            if before:
                self.unacked_octets = self.unacked_octets * len(unacked) // before
            return
        if self._unacked_out:
            items = [self._take_unacked(seq_id) for seq_id in seq_ids]
        else:
            pop = unacked.pop
            items = [pop(seq_id) for seq_id in seq_ids]
        if before:
            self.unacked_octets = self.unacked_octets * len(unacked) // before
        entries = [item for item in items if type(item) is Entry]
        self._unacked_entries -= len(entries)
        self._forget(entries)

    def _take_unacked(self, seq_id: int) -> Item:
        entry = self._unacked_out.pop(seq_id, None)
        if entry is None:
            return self._unacked.pop(seq_id)
        entry.evict = False
        return entry

    def _forget(self, items: Iterable[Item]) -> None:
        """Settled: the journal drops what it has not written and notes the end of what it has."""
        journal = self._journal
        for entry in items:
            if type(entry) is not Entry:
                continue
            state = entry.state
            if entry.evict:
                self._keep(entry)
            if state == STORED:
                journal.dead(entry)
            elif state == NEW:
                entry.state = GONE
                if entry.durable:
                    journal.early += 1
                    entry.message.accepted()  # type: ignore[union-attr]
            elif state == WRITING:
                journal.dead(entry)
                if entry.durable:
                    journal.early += 1
                    entry.message.accepted()  # type: ignore[union-attr]

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions, marked redelivered."""
        returned, take = self.returned, self._take_unacked
        before = len(self._unacked)
        for seq_id in seq_ids:
            item = take(seq_id)
            if type(item) is Entry:
                self._unacked_entries -= 1
                if item.message is not None:
                    self.ram_octets += item.size
            else:
                self.ram_octets += len(item.content)  # type: ignore[union-attr]
            heappush(returned, (seq_id, item))
        if before:
            self.unacked_octets = self.unacked_octets * len(self._unacked) // before
        self.ready_count += len(seq_ids)
        self.pager.active.add(self)

    def drop(self, count: int) -> int:
        """Drop at most `count` messages (>= 1) from the head without reading their bodies; returns how many.

        Fewer, perhaps none, where the next one's position is being read from disk.
        """
        dropped: list[Item] = []
        while self.ready_count and len(dropped) < count:
            if self.returned:
                item = heappop(self.returned)[1]
            elif self.q4:
                item = self.q4.popleft()
                self._q4_first += 1
                self._run_entries -= type(item) is Entry
            elif self.q3:
                item = self.q3.popleft()
                self._ahead = max(0, self._ahead - 1)
                if not self.q3 and not self.delta_count:
                    self._q1_to_q4()
            else:
                self._prefetch()
                break
            self.ready_count -= 1
            dropped.append(item)
            if type(item) is not Entry:
                self.ram_octets -= len(item.content)  # type: ignore[union-attr]
            elif item.message is not None:
                self.ram_octets -= item.size
        self.fetched += len(dropped)
        self._forget(dropped)
        return len(dropped)

    def peek_head(self) -> Message | None:
        """The next message, if it is in memory; a load is under way otherwise, if there is one."""
        if self.returned:
            item: Item = self.returned[0][1]
        elif self.q4:
            item = self.q4[0]
        elif self.q3:
            item = self.q3[0]
        else:
            if self.delta_count:
                self._prefetch()
            return None
        message = item.message if type(item) is Entry else item
        if message is None:
            self._prefetch()
        return message  # type: ignore[return-value]

    def dropwhile(self, condition: Callable[[Message], bool]) -> int:
        """Drop messages from the head as long as they meet a condition; returns how many.

        Stops where the next one is being read from disk: call again when it is there.
        """
        dropped = 0
        while (message := self.peek_head()) is not None and condition(message):
            dropped += self.drop(1)
        return dropped

    def fetchwhile(self, condition: Callable[[Message], bool]) -> Batch:
        """Take messages from the head as long as they meet a condition; they are unacked then.

        Stops as `dropwhile` does.
        """
        seq_ids: list[int] = []
        messages: list[Message] = []
        redelivered = False
        while (message := self.peek_head()) is not None and condition(message):
            batch = self.fetch(1, ack_required=True)
            seq_ids += batch.seq_ids
            messages += batch.messages
            redelivered = redelivered or batch.redelivered
        return Batch(seq_ids, messages, redelivered=redelivered)

    def purge(self) -> int:
        """Drop every ready message; returns how many. Unacked messages stay."""
        purged = self.ready_count
        self._forget(item for _, item in self.returned)
        for run in (self.q4, self.q1):
            if self._run_entries:
                self._forget(run)
        self._forget(self.q3)
        self._forget(self.q2)
        if self.delta_count:
            self._journal.sweep(self.qid, self.delta_start, self.delta_stop)
            for block in self.blocks.values():
                block.swept = True
        self._empty()
        return purged

    def _empty(self) -> None:
        self.returned = []
        self.q4 = self.q1 = _NOTHING
        self.q3 = self.q2 = _NO_ENTRIES
        self.blocks = {}
        self.delta_start = self.delta_count = self.delta_stop = self.delta_paged = self.delta_octets = 0
        self.ready_count = self.ram_octets = self._evicting = self._run_entries = self._ahead = 0
        self._loading = None

    def delete(self) -> None:
        """The queue goes, with its unacked messages. Nothing but acks of those may be called afterwards."""
        journal = self._journal
        returned = [item for _, item in self.returned]
        unacked = chain(self._unacked.values(), self._unacked_out.values())
        for item in chain(returned, self.q4, self.q3, self.q2, self.q1, unacked):
            if type(item) is Entry:
                # what is on disk is swept, by what the disk says; so nothing of it may be noted as dead any more
                if item.durable and item.state in {NEW, WRITING}:
                    journal.early += 1
                    item.message.accepted()  # type: ignore[union-attr]
                item.state = GONE
                item.evict = False
        self._empty()
        self.on_loaded = _never  # or it would keep its owner, who keeps it
        self.deleted = True
        self.pager.active.discard(self)
        if self.durable or self.transitions is not None:
            journal.sweep(self.qid, 0, LAST_SEQ_ID)

    # -- memory -----------------------------------------------------------------------------------------------------

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
                if self.q2 is _NO_ENTRIES:
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

    def _q3(self) -> deque[Entry]:
        if self.q3 is _NO_ENTRIES:
            self.q3 = deque()
        return self.q3

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

    # -- loading ----------------------------------------------------------------------------------------------------

    def _prefetch(self) -> None:
        """Have the next messages read, unless something is being read already."""
        if self._loading is not None or self.deleted:
            return
        if self.returned:
            self._load_returned()
            return
        ahead = octets = 0
        enough, limit = self.segment // 2, self.pager.load_octets
        wanted: list[Entry] = []
        for entry in self.q3:
            if wanted:
                if octets >= limit or entry.seq_id - wanted[0].seq_id >= enough:
                    break
                if entry.message is None:
                    wanted.append(entry)
                    octets += entry.size
            elif entry.message is None:
                wanted.append(entry)
                octets = entry.size
            elif ahead >= enough or octets >= limit:
                self._ahead = ahead
                return
            else:
                if entry.evict:  # it would have to be read again at once
                    self._keep(entry)
                    octets += entry.size
                ahead += 1
        self._ahead = ahead
        if wanted:
            self._load([Range(self.qid, wanted[0].seq_id, wanted[-1].seq_id + 1)], BODIES, wanted)
        elif self.delta_count and ahead < enough:
            boundary = (self.delta_start // self.segment + 1) * self.segment
            self._load([Range(self.qid, self.delta_start, min(boundary, self.delta_stop))], DELTA)

    def _load_returned(self) -> None:
        """Have the bodies read of the next requeued messages that have none."""
        ranges: list[Range] = []
        wanted: list[Entry] = []
        octets = 0
        for seq_id, item in nsmallest(256, self.returned, key=_first):
            if type(item) is Entry and item.message is None:
                octets += item.size
                if octets > self.pager.load_octets and ranges:
                    break
                wanted.append(item)
                if ranges and ranges[-1].stop == seq_id:
                    ranges[-1] = Range(self.qid, ranges[-1].first, seq_id + 1)
                else:
                    ranges.append(Range(self.qid, seq_id, seq_id + 1))
        if ranges:
            self._load(ranges, RETURNED, wanted)

    def _load(self, ranges: Sequence[Range], what: str, entries: Sequence[Entry] = ()) -> None:
        request = LoadRequest(self, tuple(ranges), self.pager.load_octets, what, entries, self.delta_stop)
        self._loading = request
        self.pager.load(request)

    def loaded(self, request: LoadRequest, found: Loaded) -> None:
        """Take what was read. The caller owes a turn afterwards: messages may have become available."""
        if self._loading is not request:
            return  # overtaken by a purge
        self._loading = None
        if request.what == DELTA:
            self._take_delta(request, found)
        else:
            self._take_bodies(request, found)
        self.on_loaded()

    def _take_delta(self, request: LoadRequest, found: Loaded) -> None:
        """Append a part of the delta to q3."""
        first = self.delta_start
        stop = min(found.stop, request.horizon)
        entries: list[Entry] = []
        for raw in found.blocks:
            try:
                header = read_header(raw.value)
            except DamagedError:
                self.damaged += 1
                continue
            dead = bits_of(raw.dead)
            slot = header.first * 2 + raw.paged
            block = self.blocks.get(slot)
            is_new = block is None
            if block is None:
                block = Block(self.qid, header.first, header.records, paged=raw.paged)
                block.live = block.away = header.records - dead.bit_count()
                block.bits = dead
                block.home = self.blocks
                self.blocks[slot] = block
            is_wholly_away = is_new and first <= header.first and header.last < stop
            self._take_block(block, raw, header, range(first, stop), found, entries)
            if is_wholly_away and block.away:
                self._give_up_damaged(block, raw.value, header, dead)
        entries.sort(key=_seq_id)
        self._q3().extend(entries)
        self._ahead = 0
        self.ram_octets += sum([entry.size for entry in entries])
        self.delta_start = stop
        self.delta_count -= len(entries)
        self._moved("from_delta", len(entries))
        lost = self.delta_count - (self.delta_stop - stop)
        if lost > 0:  # damaged ones were counted; they are not there
            self.delta_count -= lost
            self.ready_count -= lost
        if self.delta_count <= 0 or stop >= self.delta_stop:
            self._delta_exhausted()
        if not entries and self.delta_count:
            self._prefetch()

    def _take_block(
        self, block: Block, raw: RawBlock, header: Header, wanted: range, found: Loaded, entries: list[Entry]
    ) -> None:
        """Make entries of those records of a block that belong to a part of the delta."""
        dead = bits_of(raw.dead)
        durable = self.durable and not raw.paged
        plain = plain_entries(raw.value, header, dead, block, wanted, durable=durable)
        if plain is not None:
            block.away -= len(plain)
            self.delta_octets -= sum([entry.size for entry in plain])
            self.delta_paged -= raw.paged * len(plain)
            entries += plain
            return
        address = b""
        for record in read_records(raw.value, header, dead):
            if isinstance(record, int):
                self.damaged += 1
                continue
            if record.seq_id not in wanted:
                continue
            if record.address != address:
                address = record.address
            message = _message(record, address, found)
            block.away -= 1
            self.delta_octets -= record.size
            self.delta_paged -= raw.paged
            entry = Entry(record.seq_id, message, record.size, durable=durable)
            entry.state = STORED
            entry.block = block
            entry.index = record.place
            entry.msg_id = record.msg_id
            if message is None:  # damaged: it cannot be served
                self.damaged += 1
                self.delta_count -= 1
                self.ready_count -= 1
                self._journal.dead(entry)
            else:
                entries.append(entry)

    def _give_up_damaged(self, block: Block, value: bytes, header: Header, dead: int) -> None:
        """Note as dead what cannot be read of a block that nothing in memory stands for."""
        for record in read_records(value, header, dead):
            if isinstance(record, int):
                block.away -= 1
                entry = Entry(0, None, 0, durable=False)
                entry.block = block
                entry.index = record
                self._journal.dead(entry)

    def _delta_exhausted(self) -> None:
        """All of the delta has been read: q2 follows q3."""
        if self.delta_count:  # damaged ones were counted; they are not there
            self.ready_count -= self.delta_count
        self.delta_start = self.delta_count = self.delta_stop = self.delta_paged = self.delta_octets = 0
        if self.q2:
            self._q3().extend(self.q2)
            self.q2 = _NO_ENTRIES
        if not self.q3:
            self._q1_to_q4()

    def _take_bodies(self, request: LoadRequest, found: Loaded) -> None:
        """Give entries in q3, or returned ones, their bodies."""
        waiting = {
            entry.seq_id: entry
            for entry in request.entries
            if entry.message is None and entry.state == STORED
        }
        address = b""
        for raw in found.blocks:
            try:
                header = read_header(raw.value)
            except DamagedError:
                self.damaged += 1
                continue
            for record in read_records(raw.value, header):
                wanted = None if isinstance(record, int) else waiting.get(record.seq_id)
                if wanted is None or wanted.block.first != header.first or wanted.block.paged != raw.paged:
                    continue
                if record.address != address:  # type: ignore[union-attr]
                    address = record.address  # type: ignore[union-attr]
                message = _message(record, address, found)  # type: ignore[arg-type]
                if message is not None:
                    del waiting[wanted.seq_id]
                    wanted.message = message
                    self.ram_octets += wanted.size
        for seq_id, entry in waiting.items():
            if seq_id < found.stop:
                self._lose(entry, returned=request.what == RETURNED)

    def _lose(self, entry: Entry, *, returned: bool) -> None:
        """A body cannot be read: its message is given up, and the damage counted."""
        self.damaged += 1
        self.ready_count -= 1
        self._journal.dead(entry)
        if returned:
            self.returned = sorted(each for each in self.returned if each[1] is not entry)
            return
        self.q3.remove(entry)
        self._ahead = 0
        if not self.q3 and not self.delta_count:
            self._q1_to_q4()

    # -- restarts ---------------------------------------------------------------------------------------------------

    def recover(self, count: int, first: int, stop: int, *, redelivered_below: int, octets: int = 0) -> None:
        """Take over `count` messages that are on disk, with seq_ids from `first` to before `stop`."""
        self.ready_count = self.delta_count = count
        self.delta_start, self.delta_stop = (first, stop) if count else (0, 0)
        self.delta_octets = octets
        self.redelivered_below = redelivered_below

    def saved(self) -> tuple[int, int, int, int, int]:
        """What `recover` needs at the next start: count, first, stop, octets, redelivered_below.

        The caller owes: everything noted is on disk.
        """
        first_unfetched = self.next_seq
        if self.q4:
            first_unfetched = self._q4_first
        elif self.q3:
            first_unfetched = self.q3[0].seq_id
        elif self.delta_count:
            first_unfetched = self.delta_start
        returned = [item for _, item in self.returned]
        unacked = chain(self._unacked.values(), self._unacked_out.values())
        kept = [
            item
            for item in chain(returned, unacked, self.q4, self.q3, self.q2, self.q1)
            if type(item) is Entry and item.durable
        ]
        count = self.delta_count - self.delta_paged
        octets = self.delta_octets if count else 0
        seq_ids = [entry.seq_id for entry in kept]
        if count:
            seq_ids += [self.delta_start, self.delta_stop - 1]
        if not seq_ids:
            return 0, 0, 0, 0, 0
        octets += sum([entry.size for entry in kept])
        redelivered_below = max(first_unfetched, self.redelivered_below)
        return count + len(kept), min(seq_ids), max(seq_ids) + 1, octets, redelivered_below


def _first(pair: tuple[int, Item]) -> int:
    return pair[0]


def _message(record: Record, address: bytes, found: Loaded) -> Message | None:
    content = record.content if not record.msg_id else found.bodies.get(record.msg_id)
    if content is None or len(content) < 7:
        return None
    return Message(address, content, content[1] << 8 | content[2])
