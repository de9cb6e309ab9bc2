"""State of a variable queue that all its parts use: the sub-queues, the unacked messages, the counts.

The theory is in `storage.queues.variable_queue`, which has the operations; `storage.queues.paging` moves messages out
of memory, `storage.queues.loading` reads them back. They are a chain of classes, and this one is the base.

What is touched once per run of messages is an object with fields of its own (`storage.queues.delta`). The others stay
fields of one object (fifty in all), because a push, load or fetch changes most of them together, and each object
between costs its attribute for every message. Code that only looks at a queue (`storage.queues.peek`) or withdraws from
it (`storage.queues.withdrawal`) has none of them.

Hot path: see docs/performance.md.
"""
# ruff: noqa: PLR0915 - hot: one flat function is several times cheaper than small ones

from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from itertools import chain, islice
from math import inf

from leveret.storage.empty import EmptyDeque
from leveret.storage.journal.blocks import GONE, LOGGED, NEW, NO_RETURNS, STORED, WRITING, Entry, octets_of
from leveret.storage.journal.reads import LoadRequest, Range
from leveret.storage.large_table import fitting
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import NO_TRANSITIONS, PagingCounts, Recovered, never
from leveret.storage.queues.delta import Delta
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.peek import AHEAD, ALWAYS, Looks, Part, Snapshot, Stretch, dense, sparse
from leveret.storage.queues.rates import Rates
from leveret.storage.queues.requeued import NONE_REQUEUED, Item, Requeued, size_of

SAMPLE = 1024  # maximum number of entries to inspect; of more than that a sample is used

NOTHING: deque[Item] = EmptyDeque()  # shared by all queues without alphas
NO_ENTRIES: deque[Entry] = EmptyDeque()  # shared by all queues without betas and gammas


class SubQueues(Looks):
    """The parts of a variable queue.

    Args:
        pager: the state that it shares with other queues.
        qid: the queue's id, never used for another one.
        durable: its persistent messages survive a restart.
        next_seq: the seq_id of the first message published.
    """

    __slots__ = (
        "_ahead",
        "_asked",
        "_evicting",
        "_journal",
        "_loading",
        "_not_fetched",
        "_q1_first",
        "_q4_counted",
        "_q4_first",
        "_run_entries",
        "_settled_early",
        "_starved",
        "_unacked",
        "_unacked_entries",
        "_unacked_out",
        "acked",
        "away_octets",
        "counts_returns",
        "damaged",
        "deleted",
        "delta",
        "durable",
        "expiring",
        "journal_fresh",
        "journal_paged",
        "journal_returns",
        "journaled",
        "lazy",
        "lost_octets",
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
        "read_ahead",
        "ready_count",
        "redelivered_below",
        "returned",
        "segment",
        "stored_returns",
        "target_ram_count",
        "transitions",
        "unacked_away_octets",
        "unacked_octets",
    )

    def __init__(self, pager: Pager, qid: int, *, durable: bool, next_seq: int = 0) -> None:
        # for good
        self.pager = pager
        self.qid = qid
        self.durable = durable
        self.segment = pager.segment
        self.read_ahead = max(1, pager.segment // 2)
        """Messages at the head to have in memory before they are fetched; below that, as many more are read at once."""
        self._journal = pager.journal
        self.on_loaded: Callable[[], object] = never
        # the sub-queues, from the head
        self.returned: Requeued[Item] = NONE_REQUEUED
        self.q4: deque[Item] = NOTHING
        self.q3: deque[Entry] = NO_ENTRIES
        self.delta = Delta()
        self.q2: deque[Entry] = NO_ENTRIES
        self.q1: deque[Item] = NOTHING
        self._q4_first = self._q1_first = self.next_seq = next_seq
        self._q4_counted = False
        """True if `ram_octets` includes q4. For a short q4 of small messages counting costs more than it is worth."""
        self._run_entries = 0  # entries in q4 and q1, whose items are bare messages otherwise
        self.ready_count = 0
        # the unacked
        self._unacked: MutableMapping[int, Item] = {}
        self._unacked_out: MutableMapping[int, Entry] = {}
        """Unacked messages that need no body in memory; a few still have it, until their commit."""
        self._unacked_entries = 0  # number of entries in both tables of unacked messages
        self.redelivered_below = 0  # messages below it may have been delivered before the start
        # disk
        self.journal_fresh: list[Entry] = []
        self.journal_paged: list[Entry] = []
        self.journal_returns: dict[int, int] = NO_RETURNS
        """Delivery counts of requeued messages that are not on disk yet, by seq_id, if counted."""
        self.counts_returns = False  # True if delivery counts are kept
        self.stored_returns: dict[int, int] = NO_RETURNS
        """Delivery counts of messages read from disk and not fetched since, by seq_id."""
        self.journaled = False
        self._settled_early: dict[int, Entry] | None = None if pager.early_confirm else {}
        """Entries that are settled and not on disk yet, by seq_id, if these are written nevertheless."""
        self.deleted = False
        self._loading: LoadRequest | None = None
        self._asked = False  # messages on disk were requested, since the start or the queue was last empty
        self._starved = False  # a fetch of the head returned nothing; `on_loaded` will be called
        self._ahead = 0  # entries at the head of q3 that are known to have their body
        # memory
        self.lazy = False
        self.target_ram_count = inf
        self.ram_limit = pager.ram_limit
        self.ram_octets = 0  # content bytes of ready messages in memory
        self.away_octets = 0  # content bytes of ready messages whose position, not body, is in memory
        self.unacked_octets = 0  # approximate ones in memory: acked ones count with the average
        self.unacked_away_octets = 0  # content bytes of unacked messages that need no body in memory
        self._evicting = 0  # its part that only waits for a commit: entries of q3 and q2 to be evicted
        # counters
        self._not_fetched = next_seq
        """Positions below `next_seq` that no ready message has, and that were not counted as fetched: those from before
        the start, and of lost or purged messages. A requeue takes from it, so that the message counts again."""
        self.acked = 0
        self.damaged = 0
        self.lost_octets = 0  # body bytes of ready messages that could not be read
        self.expiring = False  # True if any message that was published or recovered has an expiry time
        self.rates = Rates()
        self.transitions: dict[str, int] | None = None

    # -- counts -----------------------------------------------------------------------------------------------------

    @property
    def fetched(self) -> int:
        """Number of messages that were fetched, withdrawn, dropped or published as delivered; repeats count, too."""
        return self.next_seq - self.ready_count - self._not_fetched

    @property
    def unacked_count(self) -> int:
        """Number of messages fetched with `ack_required` and neither acked nor requeued yet."""
        return len(self._unacked) + len(self._unacked_out)

    @property
    def ram_msg_count(self) -> int:
        """Number of ready messages whose body is in memory, except those read ahead."""
        return len(self.q4) + len(self.q1) + len(self.returned)

    @property
    def ram_ack_count(self) -> int:
        """Number of unacked messages whose body is kept in memory."""
        return len(self._unacked)

    @property
    def loading(self) -> bool:
        """True if messages are being read from disk."""
        return self._loading is not None

    def state_counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of ready messages that are alpha, beta, gamma and delta, without visiting each entry.

        Exact, unless both persistent and transient messages were paged and there are more than `SAMPLE` of them, or
        more than that were requeued: then it is estimated from a sample.
        """
        returned = self.returned
        if not self.q3 and not self.delta.count and not returned:
            return len(self.q4) + len(self.q1), 0, 0, 0
        some = returned.sample(SAMPLE)
        without = [item.durable for item in some if type(item) is Entry and item.message is None]
        betas = without.count(False) * len(returned) // max(1, len(some))
        gammas = without.count(True) * len(returned) // max(1, len(some))
        alphas = len(self.q4) + len(self.q1) + len(returned) - betas - gammas
        entries = len(self.q3) + len(self.q2)
        if not self.durable:
            betas += entries
        elif self.transitions is None or "alpha_to_beta" not in self.transitions:
            gammas += entries
        else:
            kinds = [entry.durable for entry in (*islice(self.q3, SAMPLE), *islice(self.q2, SAMPLE))]
            transient = kinds.count(False) * entries // max(1, len(kinds))
            betas += transient
            gammas += entries - transient
        return alphas, betas, gammas, self.delta.count

    def paging_counts(self) -> PagingCounts:
        """Return the present numbers of each part, and the rates."""
        self.count_octets()
        has_delta = self.delta.count > 0
        return PagingCounts(
            ram_msg_count=self.ram_msg_count,
            ram_ack_count=self.ram_ack_count,
            ram_octets=self.ram_octets,
            unacked_octets=self.unacked_octets,
            delta_octets=self.delta.octets,
            away_octets=self.away_octets,
            unacked_away_octets=self.unacked_away_octets,
            target_ram_count=self.target_ram_count,
            ingress_rate=self.rates.published,
            egress_rate=self.rates.fetched,
            ack_ingress_rate=self.rates.taken,
            ack_egress_rate=self.rates.acked,
            q1=len(self.q1),
            q2=len(self.q2),
            q3=len(self.q3),
            q4=len(self.returned) + len(self.q4),
            delta=self.delta.count,
            delta_transient=self.delta.paged,
            delta_start=self.delta.start if has_delta else None,
            delta_stop=self.delta.stop if has_delta else None,
            next_seq=self.next_seq,
            next_deliver=self._first_unfetched(),
            transitions=dict(self.transitions) if self.transitions else NO_TRANSITIONS,
        )

    def some_in_memory(self, most: int) -> tuple[list[Message], list[bool]]:
        """Return at most `most` messages of each part whose body is in memory, and whether each has an entry."""
        items = chain(
            islice(self.returned.items, most),
            islice(self.q4, most),
            islice(self.q3, most),
            islice(reversed(self.q1), most),
            islice(self._unacked.values(), most),
        )
        chosen = [item for item in items if type(item) is not Entry or item.message is not None]
        return self._bodies(chosen), [type(item) is Entry for item in chosen]

    def count_octets(self) -> None:
        """Make `ram_octets` exact by including q4."""
        if not self._q4_counted:
            self._q4_counted = True
            self.ram_octets += sum([size_of(item) for item in self.q4])

    def _moved(self, transition: str, count: int) -> None:
        if self.transitions is None:
            self.transitions = {}
        self.transitions[transition] = self.transitions.get(transition, 0) + count

    def _count_ready(self, items: Iterable[Item], sign: int) -> None:
        """Count the content bytes of messages that become ready (1), or no longer are (-1)."""
        for item in items:
            if type(item) is not Entry:
                self.ram_octets += sign * len(item.content)  # type: ignore[union-attr]
            elif item.message is not None:
                self.ram_octets += sign * item.size
            else:
                self.away_octets += sign * item.size

    # -- looks ------------------------------------------------------------------------------------------------------

    def _parts(self) -> tuple[Part | None, ...]:
        return (
            Part(self.returned.between, ALWAYS, AHEAD),
            Part(partial(dense, self.q4, self._q4_first)),
            Part(partial(sparse, self.q3), self.redelivered_below),
            None,
            Part(partial(sparse, self.q2)),
            Part(partial(dense, self.q1, self._q1_first)),
        )

    def _unacked_tables(self) -> tuple[Mapping[int, Item], ...]:
        return self._unacked, self._unacked_out

    def _end(self) -> int:
        return self.next_seq

    def _snapshot(self) -> Snapshot:
        return self.pager.snapshot()

    def _stretch(self, low: float, high: float, *, is_whole: bool = False) -> Stretch | None:
        delta = self.delta
        first, stop = int(max(delta.start, low)), int(min(delta.stop, high))
        if first >= stop or not delta.count:
            return None
        segment = first // self.segment * self.segment
        known = delta.blocks_in(segment, stop if is_whole else min(stop, segment + self.segment))
        return Stretch(
            Range(self.qid, first, stop),
            self.segment,
            self.pager.load_octets,
            self.redelivered_below,
            {block.slot: (block.bits | block.noted, dict(block.returns)) for block in known},
            self.counts_returns,
            delta.gaps.copy(),
        )

    def came_before(self, seq_id: int) -> float | None:
        """Return a time before which a message came; see `BackingQueue.came_before`."""
        arrivals = self.rates.arrivals
        return None if arrivals is None else arrivals.before(seq_id)

    # -- shared by the parts ----------------------------------------------------------------------------------------

    @staticmethod
    def _bodies(items: Iterable[Item]) -> list[Message]:
        return [item.message if type(item) is Entry else item for item in items]  # type: ignore[misc]

    def _keep(self, entry: Entry) -> None:
        """Cancel the eviction of an entry."""
        entry.evict = False
        self._evicting -= entry.size

    def _first_unfetched(self) -> int:
        """Return the position of the first message that was never fetched, or of the next one to be published."""
        if self.q4:
            return self._q4_first
        if self.q3:
            return self.q3[0].seq_id
        return self.delta.start if self.delta.count else self.next_seq

    def _forget(self, items: Iterable[Item], *, moved: bool = False) -> None:
        """Settle messages, in the journal too; unwritten ones are dropped. `moved`: they live on in other queues."""
        if self._settled_early is not None and not moved:
            items = self._settle_early(items, self._settled_early)
        journal = self._journal
        for entry in items:
            if type(entry) is not Entry:
                continue
            state = entry.state
            if entry.evict:
                self._keep(entry)
            if state == STORED:
                journal.dead(entry, moved=moved)
            elif state == NEW:
                entry.state = GONE
                if entry.durable:
                    journal.early += 1
                    entry.message.accepted()  # type: ignore[union-attr]
            elif state in {WRITING, LOGGED}:
                journal.dead(entry, moved=moved)
                if entry.durable and state == WRITING:
                    journal.early += 1
                    journal.in_vain += 1
                    entry.message.accepted()  # type: ignore[union-attr]

    def _settle_early(self, items: Iterable[Item], settled: dict[int, Entry]) -> list[Item]:
        """Keep those of some settled messages that are not on disk yet until they are; return the others."""
        others: list[Item] = []
        for entry in items:
            if type(entry) is Entry and entry.durable and entry.state in {NEW, WRITING}:
                if entry.evict:
                    self._keep(entry)
                entry.evict = True  # so that the journal reports when it is on disk
                settled[entry.seq_id] = entry
            else:
                others.append(entry)
        return others

    def _end_settled(self, entries: list[Entry]) -> list[Entry]:
        """Note the ends of entries that were settled early and are safe now; return the others."""
        settled = self._settled_early
        if not settled:
            return entries
        others = []
        for entry in entries:
            if settled.pop(entry.seq_id, None) is None:
                others.append(entry)
            else:
                entry.evict = False
                self._journal.delete_late(entry)
        return others

    def unstored(self, entries: Iterable[Entry]) -> None:
        """Handle entries that found no space on disk (called by the journal): settled ones no longer need any."""
        settled = self._settled_early
        for entry in entries if settled else ():
            if settled.pop(entry.seq_id, None) is not None:  # type: ignore[union-attr] # it has some
                entry.state = GONE
                entry.evict = False
                entry.message.accepted()  # type: ignore[union-attr]

    def _fit_unacked(self) -> None:
        self._unacked = fitting(self._unacked)
        self._unacked_out = fitting(self._unacked_out)

    def _q3(self) -> deque[Entry]:
        if self.q3 is NO_ENTRIES:
            self.q3 = deque()
        return self.q3

    # -- restarts ---------------------------------------------------------------------------------------------------

    def recover(self, found: Recovered) -> None:
        """Take over messages on disk."""
        self.expiring = found.expiring
        self.ready_count = count = found.messages
        self._not_fetched -= count
        delta = self.delta
        delta.count, delta.octets = count, found.octets
        delta.start, delta.stop = (found.first, found.stop) if count else (0, 0)
        self.redelivered_below = found.redelivered_below

    def saved(self) -> Recovered:
        """Return what `recover` needs at the next start, once all is on disk."""
        first_unfetched = self._first_unfetched()
        unacked = chain(self._unacked.values(), self._unacked_out.values())
        kept = [
            item
            for item in chain(self.returned.items, unacked, self.q4, self.q3, self.q2, self.q1)
            if type(item) is Entry and item.durable
        ]
        count = self.delta.count - self.delta.paged
        octets = self.delta.octets - self.delta.octets_paged
        seq_ids = [entry.seq_id for entry in kept]
        if count:
            seq_ids += [self.delta.start, self.delta.stop - 1]
        if not seq_ids:
            return Recovered()
        octets = max(0, octets + octets_of(kept))  # a damaged bitmap's messages were not counted
        redelivered_below = max(first_unfetched, self.redelivered_below)
        stop = max(seq_ids) + 1
        return Recovered(count + len(kept), min(seq_ids), stop, octets, redelivered_below, self.expiring)
