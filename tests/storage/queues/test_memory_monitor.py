"""Distribution of memory: targets by rates, the limit divided among queues, and shared memory counted once."""

from math import inf
from pathlib import Path

import pytest

from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.message import Message
from leveret.storage.queues.invariants import check
from leveret.storage.queues.memory_monitor import INTERVAL, MemoryMonitor, memory_of
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment

MIB = 1024 * 1024
SIZE = 1000


class Store:
    """Some transient queues, their disk, and a clock."""

    def __init__(self, path: Path, limit: int, queues: int, *, fixed_target: int | None = None) -> None:
        self.environment = Environment(path, sync=False)
        self.journal = Journal()
        self.requests: list[LoadRequest] = []
        self.pager = Pager(self.journal, self.requests.append, ram_limit=max(MIB, limit // 4))
        self.monitor = MemoryMonitor(self.pager, limit, fixed_target=fixed_target)
        self.queues = [VariableQueue(self.pager, 1 + number, durable=False) for number in range(queues)]
        self.now = 0.0

    def publish(self, queue: VariableQueue, count: int, size: int = SIZE) -> None:
        queue.publish([Message(b"\x00\x01q", bytes(size), 1) for _ in range(count)])

    def consume(self, queue: VariableQueue, count: int) -> None:
        """Consume messages, as far as they are there."""
        while count > 0 and queue.ready_count:
            got = len(queue.fetch(count, ack_required=False).messages)
            count -= got
            if not got:
                request = self.requests.pop(0)
                request.queue.loaded(request, self.environment.read(request.ranges, request.limit))

    def commit(self) -> None:
        """Commit until there is nothing to do."""
        while self.journal.has_work or self.journal.has_unpaged:
            self.environment.commit(self.journal.cut())
            self.journal.settled()

    def look(self) -> None:
        """Let the monitor look, an interval later."""
        self.now += INTERVAL
        self.monitor.look(self.now)
        self.commit()
        for queue in self.queues:
            check(queue)

    def run(self, seconds: int, rates: list[tuple[int, int]]) -> None:
        """Publish to and consume from each queue at some rates in messages a second."""
        for _ in range(int(seconds / INTERVAL)):
            for _ in range(5):
                for queue, (published, consumed) in zip(self.queues, rates, strict=True):
                    self.publish(queue, int(published * INTERVAL / 5))
                    self.consume(queue, int(consumed * INTERVAL / 5))
                self.commit()
            self.look()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_nobody_has_a_target_while_there_is_room(folder: Path) -> None:
    """Below half of the limit queues have no target, and the same share of the limit, at most a quarter."""
    store = Store(folder, 32 * MIB, 2)
    store.publish(store.queues[0], 100)
    store.publish(store.queues[1], 9000)
    store.look()
    store.look()

    assert [inf, inf] == [queue.target_ram_count for queue in store.queues]
    assert [8 * MIB] * 2 == [queue.ram_limit for queue in store.queues]
    assert sum(memory_of(queue) for queue in store.queues) == store.monitor.used


def test_targets_follow_the_rates(folder: Path) -> None:
    """Above half of the limit each queue may keep what lasts as long as that of the others: in proportion to its rates."""
    store = Store(folder, 16 * MIB, 2)
    slow, fast = store.queues
    store.publish(slow, 1)
    store.publish(fast, 1)
    store.look()
    store.publish(slow, 2500)
    store.publish(fast, 5000)
    store.look()
    duration = store.monitor.desired_duration

    assert inf != duration
    assert int(duration * slow.rates.total) == slow.target_ram_count
    assert int(duration * fast.rates.total) == fast.target_ram_count
    assert slow.target_ram_count < fast.target_ram_count < inf


@pytest.mark.parametrize(
    ("used", "seconds"), [(0.49, inf), (0.5, 21), (0.9, 21 / 1.8), (0.95, 20 / 1.9), (2.0, 5)]
)
def test_the_more_memory_is_used_the_shorter_is_what_may_stay(
    folder: Path, used: float, seconds: float
) -> None:
    """The desired duration is the mean one by the share of the limit in use, a second longer in sum below 95 %."""
    store = Store(folder, 1000, 1)
    store.monitor.used = int(used * 1000)

    assert pytest.approx(seconds) == store.monitor._judge(20.0, 2)


def test_a_fast_queue_keeps_more_than_one_that_only_grows(folder: Path) -> None:
    """A queue that is consumed as fast as it is filled has more of the memory than one that only grows."""
    store = Store(folder, 4 * MIB, 2)
    fast, growing = store.queues
    store.publish(fast, 2500)
    store.run(40, [(2000, 2000), (300, 0)])

    assert 12_000 == growing.ready_count
    assert fast.ram_msg_count > 2 * growing.ram_msg_count
    assert store.monitor.used <= store.monitor.limit
    assert fast.ram_msg_count * SIZE > MIB, "more than an even share, which is a quarter of the limit"


def test_the_bound_in_octets_allows_what_the_target_asks_for(folder: Path) -> None:
    """A queue gets as many octets as its target takes, as far as the limit goes: most of it, if it is the fastest."""
    store = Store(folder, 16 * MIB, 4)
    store.run(10, [(2000, 2000), (40, 40), (40, 40), (40, 40)])
    for queue in store.queues:
        store.publish(queue, 2500)
    store.look()
    limits = [queue.ram_limit for queue in store.queues]

    assert inf != store.monitor.desired_duration
    assert limits[0] > 0.7 * store.monitor.limit
    assert limits[0] >= min(store.queues[0].target_ram_count * SIZE, 0.7 * store.monitor.limit)
    assert sum(limits) <= 1.05 * store.monitor.limit


def test_an_idle_queue_keeps_nothing_where_memory_is_short(folder: Path) -> None:
    """A queue without rates would keep its messages longest, so they go to disk first."""
    store = Store(folder, 2 * MIB, 2)
    idle, busy = store.queues
    store.publish(idle, 900)
    store.run(60, [(0, 0), (400, 300)])

    assert 900 == idle.ready_count
    assert 0 == idle.ram_msg_count
    assert busy.ram_msg_count > 300


def test_a_fixed_target_is_everybodys(folder: Path) -> None:
    """A fixed target is that of all queues: nothing is judged."""
    store = Store(folder, 16 * MIB, 2, fixed_target=100)
    for queue in store.queues:
        store.publish(queue, 300)
    store.look()

    assert [100, 100] == [queue.ram_msg_count for queue in store.queues]


def test_what_queues_share_counts_once(folder: Path) -> None:
    """Messages that 200 queues have take little more than their own size; when one queue alone has them they are its."""
    store = Store(folder, 16 * MIB, 200)
    for size in (50_000, 25_000):
        message = Message(b"\x00\x01q", bytes(size), 1)
        for queue in store.queues:
            queue.publish([message] * 10)
    del message
    naive = sum(memory_of(queue) for queue in store.queues)
    store.look()
    shared = store.monitor.used
    for queue in store.queues[1:]:
        queue.drop(20)
    store.look()

    assert naive > 100 * MIB
    assert shared < 2 * MIB
    assert inf == store.monitor.desired_duration
    assert 0 == store.journal.paged_out
    assert [20] + [0] * 199 == [queue.ram_msg_count for queue in store.queues]


def test_a_look_goes_in_steps(folder: Path) -> None:
    """Many queues are looked at some at a time, and one that is deleted in between is left alone."""
    store = Store(folder, 1 * MIB, 100)
    for queue in store.queues:
        store.publish(queue, 10)
    steps = store.monitor.steps(1.0)
    count = 0
    for _ in steps:
        count += 1
        if count == 2:
            for queue in store.queues[::2]:
                queue.delete()
    store.commit()

    assert count > 18
    assert all(queue.ram_limit < MIB for queue in store.queues[1::2])
    assert not any(queue.deleted for queue in store.pager.active)
