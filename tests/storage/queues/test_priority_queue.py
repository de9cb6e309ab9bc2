"""The priority queue against a sorted list of every message it was given, on a real disk, and what it owes its owner."""

import random
import shutil
import tempfile
from math import inf
from pathlib import Path

import pytest
from checks.internals import has_unfinished
from hypothesis import event, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from samples.walks import unacked_of, walked

from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.message import Message, Persistent
from leveret.storage.queues.backing_queue import PagingCounts
from leveret.storage.queues.invariants import check
from leveret.storage.queues.memory_monitor import MemoryMonitor, memory_of
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.priority_queue import PriorityQueue, parts
from leveret.storage.queues.queue_ids import level_qid, queue_qid
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment
from leveret.storage.store.recovery import recover, saved_rows

MEMORY = Path("/dev/shm")
MAX = 4
READY, UNACKED, GONE = "ready", "unacked", "gone"


def priority_of(content: bytes) -> int:
    """Return the priority, which in these tests is the octet where the length of the header frame would be."""
    return content[3]


def content_of(name: int, priority: int, size: int = 0) -> bytes:
    return b"\x02\x00\x01" + bytes([priority]) + name.to_bytes(4, "big") + bytes(size)


def name_of(message: Message) -> int:
    return int.from_bytes(message.content[4:8], "big")


class Store:
    """A data directory without threads, and one durable priority queue in it."""

    def __init__(
        self,
        data_dir: Path,
        qid: int = 0,
        *,
        segment: int = 16,
        ram_limit: int = 1 << 40,
        max_priority: int = MAX,
    ) -> None:
        self.environment = Environment(data_dir, sync=False)
        boot = self.environment.boot
        self.journal = Journal(boot << 40, 300)
        self.requests: list[LoadRequest] = []
        self.pager = Pager(
            self.journal,
            self.requests.append,
            segment=segment,
            io_batch=4,
            load_octets=1500,
            blob_threshold=1 << 30,
            ram_limit=ram_limit,
        )
        self.pager.snapshot = self.environment.snapshot
        self.target = inf
        self.qid = qid or (boot << 32) + 1
        self.woken = 0
        self.queue = PriorityQueue(self.make_level, priority_of, max_priority, self.qid)
        self.queue.on_loaded = self.wake
        self.found = recover(self.environment, {self.qid} if qid else set())
        self.environment.begin_use()
        for number, recovered in self.found.items():
            self.queue.stored_level(number).recover(recovered)
        self.queue.recount()

    def make_level(self, level: int) -> VariableQueue:
        first = self.environment.boot << 40
        made = VariableQueue(self.pager, level_qid(self.qid, level), durable=True, next_seq=first)
        made.target_ram_count = self.target
        return made

    def wake(self) -> None:
        self.woken += 1

    def commit(self) -> None:
        while self.journal.has_work or has_unfinished(self.environment):
            self.environment.commit(self.journal.cut())
            self.journal.settled()

    def read(self) -> None:
        requests, self.requests[:] = self.requests[:], []
        for request in requests:
            request.queue.loaded(request, self.environment.read(request.ranges, request.limit))

    def end(self, *, clean: bool) -> None:
        self.commit()
        if clean:
            self.environment.save(saved_rows(parts([self.queue])))
        self.environment.close()


class Copy:
    """The model's view of a message."""

    def __init__(self, name: int, level: int, expires: int, *, persistent: bool) -> None:
        self.name = name
        self.level = level
        self.expires = expires
        self.persistent = persistent
        self.state = READY
        self.seq_id = 0
        self.fetched = self.redelivered = False

    @property
    def place(self) -> tuple[int, int]:
        return -self.level, self.name


class Machine(RuleBasedStateMachine):
    """A priority queue and its disk; a restart may come at any time, but after a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.data_dir = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.store: Store | None = None
        self.copies: list[Copy] = []
        self.names = 0

    @initialize(segment=st.sampled_from([16, 4]), count=st.sampled_from([0, 3, 20, inf]))
    def begin(self, segment: int, count: float) -> None:
        self.segment = segment
        self.store = Store(self.data_dir, segment=segment)
        self.store.target = count
        self.publish([0, 3, 9, 1] * 10, True, 50, 0)

    @property
    def queue(self) -> PriorityQueue[VariableQueue]:
        return self.store.queue

    def having(self, state: str) -> list[Copy]:
        return sorted((copy for copy in self.copies if copy.state == state), key=lambda copy: copy.place)

    def verify(self) -> None:
        queue = self.queue
        for level in queue.levels.values():
            check(level)
        ready = self.having(READY)
        assert len(ready) == queue.ready_count
        assert len(self.having(UNACKED)) == queue.unacked_count
        filled = queue._filled
        queue.recount()
        assert (len(ready), filled) == (queue.ready_count, queue._filled)
        expires = queue.head_expires()
        assert expires is None or ready[0].expires == expires

    def new(self, priority: int, size: int, expires: int, *, persistent: bool) -> Message:
        self.names += 1
        level = min(priority, MAX)
        self.copies.append(Copy(self.names, level, expires if not persistent else 0, persistent=persistent))
        self.copies[-1].expires = expires
        content = content_of(self.names, priority, size)
        if persistent:
            return Persistent(b"\x01x\x01k", content, 1, None, 0, 1)
        return Message(b"\x01x\x01k", content, 1)

    @rule(
        priorities=st.lists(st.sampled_from([0, 1, 3, 4, 9, 255]), min_size=1, max_size=60),
        persistent=st.booleans(),
        size=st.sampled_from([0, 50, 400]),
        expires=st.sampled_from([0, 0, 5000]),
    )
    def publish(self, priorities: list[int], persistent: bool, size: int, expires: int) -> None:
        run = [self.new(each, size, expires, persistent=persistent) for each in priorities]
        self.queue.publish(run, persistent=persistent, expires=expires)
        self.verify()

    @precondition(lambda self: self.queue.ready_count == 0)
    @rule(
        priorities=st.lists(st.sampled_from([0, 1, 4, 9]), min_size=1, max_size=6),
        ack_required=st.booleans(),
        persistent=st.booleans(),
    )
    def publish_delivered(self, priorities: list[int], ack_required: bool, persistent: bool) -> None:
        run = [self.new(each, 10, 0, persistent=persistent) for each in priorities]
        seq_ids = self.queue.publish_delivered(run, ack_required=ack_required, persistent=persistent)
        assert len(run) == len(seq_ids)
        for copy, seq_id in zip(self.copies[-len(run) :], seq_ids, strict=True):
            copy.seq_id = seq_id
            copy.state = UNACKED if ack_required else GONE
            copy.fetched = True
        self.verify()

    def take(self, count: int, *, ack_required: bool) -> int:
        seq_ids, messages, redelivered = self.queue.fetch(count, ack_required=ack_required)
        expected = self.having(READY)[: len(messages)]
        assert len(messages) <= count
        assert [copy.name for copy in expected] == list(map(name_of, messages))
        assert {redelivered} >= {copy.redelivered for copy in expected}
        if not messages:
            event("waited for a load")
            assert self.queue.levels[self.having(READY)[0].level].loading
        if len({copy.level for copy in expected}) > 1:
            event("several levels at once")
        for copy, seq_id in zip(expected, seq_ids, strict=True):
            assert copy.level == seq_id & 0xFF
            copy.seq_id = seq_id
            copy.state = UNACKED if ack_required else GONE
            copy.fetched = True
        self.verify()
        return len(messages)

    @precondition(lambda self: self.queue.ready_count)
    @rule(count=st.integers(1, 40), ack_required=st.booleans())
    def fetch(self, count: int, ack_required: bool) -> None:
        self.take(count, ack_required=ack_required)

    def choose(self, seed: int) -> list[Copy]:
        chance = random.Random(seed)
        unacked = self.having(UNACKED)
        return chance.sample(unacked, chance.randint(1, len(unacked)))

    @precondition(lambda self: self.queue.unacked_count)
    @rule(what=st.sampled_from(["ack", "move", "requeue", "requeue"]), seed=st.integers(0, 999))
    def settle(self, what: str, seed: int) -> None:
        chosen = self.choose(seed)
        for copy in chosen:
            copy.state = READY if what == "requeue" else GONE
            copy.redelivered = True
        seq_ids = [copy.seq_id for copy in chosen]
        if what == "requeue":
            self.queue.requeue(seq_ids)
        else:
            self.queue.ack(seq_ids, moved=what == "move")
        self.verify()

    @precondition(lambda self: self.queue.unacked_count)
    @rule(seed=st.integers(0, 999))
    def look_at_unacked(self, seed: int) -> None:
        chosen = self.choose(seed)
        found, missing = self.queue.unacked_messages(copy.seq_id for copy in chosen)
        if missing:
            event("unacked ones had to be read")
            assert self.queue.loading
        expected = [(copy.seq_id, copy.name) for copy in chosen if copy.seq_id not in missing]
        assert expected == [(seq_id, name_of(message)) for seq_id, message in found]
        self.verify()

    @rule(most=st.sampled_from([1, 4, 100]), backwards=st.booleans())
    def walk(self, most: int, backwards: bool) -> None:
        found = walked(self.queue, most, backwards=backwards)
        assert [copy.name for copy in self.having(READY)] == [name_of(peeked.message) for peeked in found]
        names = [name_of(peeked.message) for peeked in unacked_of(self.queue, most)]
        assert sorted(copy.name for copy in self.having(UNACKED)) == sorted(names)
        self.verify()

    @precondition(lambda self: self.queue.ready_count)
    @rule(count=st.integers(1, 30))
    def drop(self, count: int) -> None:
        expected = self.having(READY)[:count]
        dropped = self.queue.drop(count)
        assert dropped == len(expected) or self.queue.loading
        for copy in expected[:dropped]:
            copy.state = GONE
        self.verify()

    @rule(really=st.sampled_from([False, False, True]))
    def purge(self, really: bool) -> None:
        if really:
            assert len(self.having(READY)) == self.queue.purge()
            for copy in self.having(READY):
                copy.state = GONE
            self.verify()

    @rule()
    def commit(self) -> None:
        self.store.commit()
        self.verify()

    @precondition(lambda self: self.store.requests)
    @rule()
    def read(self) -> None:
        before = self.store.woken
        self.store.read()
        event("loads" if self.store.woken > before else "overtaken loads")
        self.verify()

    @rule(count=st.sampled_from([0, 1, 8, inf]), octets=st.sampled_from([0, 2000, 1 << 40]))
    def reduce_memory_use(self, count: float, octets: int) -> None:
        self.store.target = count
        for level in self.queue.levels.values():
            level.set_ram_target(count, octets)
        self.verify()

    @rule(how=st.sampled_from(["no", "no", "stop", "kill"]))
    def restart(self, how: str) -> None:
        if how == "no":
            return
        clean = how == "stop"
        target = self.store.target
        self.store.end(clean=clean)
        event(how)
        self.copies = [copy for copy in self.copies if copy.state != GONE and copy.persistent]
        for copy in self.copies:
            copy.state = READY
            copy.redelivered = not clean or copy.redelivered or copy.fetched
        self.store = Store(self.data_dir, self.store.qid, segment=self.segment)
        self.store.target = target
        assert {copy.level for copy in self.copies} == set(self.queue.levels)
        self.verify()

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            if self.store is not None:
                self.store.environment.close()
            shutil.rmtree(self.data_dir)

    def drain(self) -> None:
        """Consume everything: nothing may be left on disk then."""
        if self.store is None:
            return
        self.queue.ack([copy.seq_id for copy in self.having(UNACKED)])
        for copy in self.having(UNACKED):
            copy.state = GONE
        while self.queue.ready_count:
            if not self.take(50, ack_required=False):
                self.store.commit()
                self.store.read()
        self.store.commit()
        for table in (self.store.environment.store, self.store.environment.paged):
            with table.env.begin() as txn:
                for name in ("blocks", "acks", "bodies", "refs", "sweeps"):
                    assert not list(txn.cursor(table.db[name])), name


def test_priority_queue_does_what_a_sorted_list_would() -> None:
    """A queue gives messages by priority and then by age, after any operations and across restarts."""
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


# -- what it owes its owner -------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path)
    yield made
    made.environment.close()


def stored(queue: PriorityQueue[VariableQueue], *priorities: int, first: int = 1, size: int = 0) -> None:
    """Persistent messages, numbered."""
    run = [
        Persistent(b"\x01x\x01k", content_of(name, priority, size), 1, None, 0, 1)
        for name, priority in enumerate(priorities, first)
    ]
    queue.publish(run, persistent=True)


def in_memory(max_priority: int = MAX) -> PriorityQueue[MemoryQueue]:
    return PriorityQueue(lambda _: MemoryQueue(), priority_of, max_priority)


def messages(*priorities: int) -> list[Message]:
    return [Message(b"", content_of(name, priority), 1) for name, priority in enumerate(priorities, 1)]


def names(queue: PriorityQueue[MemoryQueue], count: int) -> list[int]:
    return [name_of(message) for message in queue.fetch(count, ack_required=True).messages]


def page_out(store: Store) -> None:
    for _ in range(2):
        store.commit()
        for level in store.queue.levels.values():
            level.set_ram_target(0, 0)
    store.commit()


def test_whoever_waits_for_a_level_is_woken(store):
    """Every level that has read something calls the owner, the first that are given are the most urgent."""
    stored(store.queue, *[4, 0, 2] * 100)
    page_out(store)
    order = []
    while store.queue.ready_count:
        found = store.queue.fetch(50, ack_required=False)
        if not found.messages:
            before = store.woken
            assert store.requests
            store.read()
            assert before < store.woken
        order += [message.content[3] for message in found.messages]

    assert [4] * 100 + [2] * 100 + [0] * 100 == order


def test_lower_levels_wait_while_the_head_is_being_read(store):
    """Less urgent messages do not overtake, although they are in memory; more urgent ones do."""
    stored(store.queue, *[2] * 100)
    page_out(store)
    stored(store.queue, 0, first=500)
    assert [] == store.queue.fetch(10, ack_required=True).messages
    stored(store.queue, 3, first=600)

    assert [600] == list(map(name_of, store.queue.fetch(10, ack_required=True).messages))
    assert [] == store.queue.fetch(10, ack_required=True).messages
    store.read()
    assert 1 == name_of(store.queue.fetch(10, ack_required=True).messages[0])


def test_damaged_messages_are_not_waited_for(store):
    """A level whose messages cannot be read any more does not keep the others from being served."""
    stored(store.queue, 1, 1, 0)
    page_out(store)
    level = store.queue.levels[1]
    level.fetch(1, ack_required=False)
    (request,) = [each for each in store.requests if each.queue is level]
    found = store.environment.read(request.ranges, request.limit)
    spoilt = [
        raw._replace(value=raw.value[:80] + bytes([raw.value[80] ^ 1]) + raw.value[81:])
        for raw in found.blocks
    ]
    level.loaded(request, found._replace(blocks=spoilt))

    assert (2, 1) == (store.queue.ready_count, level.damaged)
    assert 1 == store.woken


@pytest.mark.parametrize("clean", [True, False])
def test_levels_are_recovered(tmp_path, clean):
    """After a restart each message is in its level, and only those levels exist."""
    first = Store(tmp_path)
    stored(first.queue, 0, 9, 2, 9)
    first.end(clean=clean)
    again = Store(tmp_path, first.qid)
    order = []
    while again.queue.ready_count:
        found = again.queue.fetch(10, ack_required=False)
        order += map(name_of, found.messages)
        again.read()

    assert ({0, 2, 4}, [2, 4, 3, 1]) == (set(again.queue.levels), order)
    again.end(clean=True)


def test_a_deleted_queue_leaves_nothing(store):
    """All levels go from the disk with their queue."""
    stored(store.queue, 0, 9, 2, 9)
    store.commit()
    store.queue.delete()
    store.commit()

    assert [] == list(store.environment.rows("blocks"))


def test_a_run_spans_levels_but_not_what_was_delivered_before():
    """One fetch takes from several levels as long as none of it is redelivered."""
    queue = in_memory()
    queue.publish(messages(1, 2, 3))
    taken = queue.fetch(2, ack_required=True)
    assert ([3, 2], False) == ([name_of(each) for each in taken.messages], taken.redelivered)
    queue.publish(messages(4)[:1])
    queue.requeue(taken.seq_ids)

    batches = [queue.fetch(9, ack_required=True) for _ in range(4)]

    assert [[4], [3], [2], [1]] == [[each.content[3] for each in batch.messages] for batch in batches]
    assert [False, True, True, False] == [batch.redelivered for batch in batches]


def test_a_message_that_expired_behind_one_that_did_not_is_no_head():
    """The next message alone is the head: one that expired behind it is not."""
    queue = in_memory()
    queue.publish(messages(1, 1), expires=1000)
    assert (1000, (2, True)) == (queue.head_expires(), queue.head_run(5000, 10))
    queue.publish(messages(3))

    assert (0, (1, False), True) == (queue.head_expires(), queue.head_run(5000, 10), queue.expiring)


def test_the_most_urgent_are_dropped_first():
    """Room is made from the head, over several levels if need be."""
    queue = in_memory()
    queue.publish(messages(0, 3, 1, 3))

    assert 3 == queue.drop(3)
    assert [1] == names(queue, 5)
    assert (0, 0) == (queue.drop(1), queue.ready_count)


def test_levels_are_made_when_they_are_used():
    """A queue with many priorities costs what is used of them."""
    queue = in_memory(255)
    queue.publish(messages(0, 255, 255))

    assert {0, 255} == set(queue.levels)


def test_ids_of_levels_lead_back_to_their_queue():
    """Level 0 has the id of the queue, and all ids fit into 64 bits."""
    qid = (1 << 55) + 17

    assert qid == level_qid(qid, 0)
    assert [qid] * 256 == [queue_qid(level_qid(qid, level)) for level in range(256)]
    assert level_qid(qid, 255).bit_length() == 64


def test_memory_is_bounded_over_all_levels(tmp_path):
    """A long backlog in ten levels takes no more memory than the limit, and is given in order."""
    limit = 10 << 20
    store = Store(tmp_path, segment=256, ram_limit=limit // 40, max_priority=9)
    monitor = MemoryMonitor(store.pager, limit)
    peak = 0
    for number in range(0, 20_000, 200):
        stored(store.queue, *[name % 10 for name in range(200)], first=number, size=1000)
        store.commit()
        if number % 2000 == 0:
            monitor.look(number / 1000)
        peak = max(peak, sum(map(memory_of, store.queue.levels.values())))
    assert limit // 2 < peak <= limit
    assert 20_000 == store.queue.ready_count
    order = []
    while store.queue.ready_count:
        order += [message.content[3] for message in store.queue.fetch(500, ack_required=False).messages]
        store.commit()
        store.read()
    assert sorted(order, reverse=True) == order
    store.environment.close()


def test_paging_counts_are_the_sums_of_the_levels(store):
    """States, memory, rates and transitions of a priority queue are those of its levels together."""
    store.target = 5
    queue = store.queue
    queue.publish([Message(b"", content_of(name, name % 2, 100), 1) for name in range(100)])
    for _ in range(4):
        store.commit()
        for level in queue.levels.values():
            level.reduce_memory_use()
    queue.levels[0].rates.published = 3.0
    queue.levels[1].rates.published = 4.0
    first, second = [level.paging_counts() for level in queue.levels.values()]
    counts = queue.paging_counts()

    for name in set(PagingCounts._fields) - {"transitions"}:
        both = getattr(first, name), getattr(second, name)
        is_position = name in {"delta_start", "delta_stop", "next_seq", "next_deliver"}
        expected = None if is_position else sum(both)  # type: ignore[arg-type]
        assert expected == getattr(counts, name), name
    assert (7.0, 10) == (counts.ingress_rate, counts.target_ram_count)
    moved = {kind: first.transitions[kind] + second.transitions[kind] for kind in first.transitions}
    assert moved == dict(counts.transitions)
    assert {"alpha_to_beta", "to_delta"} <= moved.keys()
    states = [level.state_counts() for level in queue.levels.values()]
    assert tuple(map(sum, zip(*states, strict=True))) == queue.state_counts()
    assert sum(queue.state_counts()) == 100
    assert 100 == counts.q1 + counts.q2 + counts.q3 + counts.q4 + counts.delta


def test_paging_counts_of_levels_in_memory():
    """A queue without levels, or with levels that do not page, has no target and no transitions."""
    queue = PriorityQueue(lambda _: MemoryQueue(), priority_of, MAX)
    assert (PagingCounts(), (0, 0, 0, 0)) == (queue.paging_counts(), queue.state_counts())
    for levels in (1, 2):
        queue.publish([Message(b"", content_of(levels, levels), 1) for _ in range(2)])
        queue.fetch(1, ack_required=True)

        counts = queue.paging_counts()
        expected = PagingCounts(ram_msg_count=levels, ram_ack_count=levels, q4=levels)
        assert expected == counts._replace(next_seq=0, next_deliver=0)
        assert (levels, 0, 0, 0) == queue.state_counts()
