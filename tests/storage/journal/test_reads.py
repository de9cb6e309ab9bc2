"""Loads that are under way while something else happens."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.storage.journal.blocks import Entry
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import BODIES, DELTA, LoadRequest
from leveret.storage.message import Message, Persistent
from leveret.storage.queues.backing_queue import Recovered
from leveret.storage.queues.invariants import check
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment

SEGMENT = 8


class Disk:
    def __init__(self, path: Path) -> None:
        self.environment = Environment(path, sync=False)
        self.journal = Journal(embed_below=1000)
        self.requests: list[LoadRequest] = []
        pager = Pager(self.journal, self.requests.append, segment=SEGMENT, io_batch=1)
        self.queue = VariableQueue(pager, 1, durable=True)
        self.calls = 0
        self.queue.on_loaded = self.loaded

    def loaded(self) -> None:
        self.calls += 1

    def publish(self, count: int, *, persistent: bool = True) -> None:
        messages: list[Message] = []
        for number in range(self.queue.next_seq, self.queue.next_seq + count):
            content = b"\x02\x00\x01" + number.to_bytes(8, "big")
            messages.append(
                Persistent(b"\x00\x01q", content, 1, None, 0, 1)
                if persistent
                else Message(b"\x00\x01q", content, 1)
            )
        self.queue.publish(messages, persistent=persistent)
        check(self.queue)

    def commit(self) -> None:
        self.environment.commit(self.journal.cut())
        self.journal.settled()
        check(self.queue)

    def page(self, target: float = 0) -> None:
        self.queue.set_ram_target(target, 1 << 40)
        check(self.queue)

    def load(self) -> None:
        request = self.requests.pop(0)
        request.queue.loaded(request, self.environment.read(request.ranges, request.limit))
        check(self.queue)

    def fetch(self, count: int = 100) -> list[int]:
        seq_ids, messages, _ = self.queue.fetch(count, ack_required=False)
        check(self.queue)
        assert list(seq_ids) == [int.from_bytes(message.content[3:], "big") for message in messages]
        return list(seq_ids)

    def drain(self) -> list[int]:
        found = []
        while self.queue.ready_count:
            some = self.fetch()
            found += some
            if not some:
                assert self.queue.loading
                self.load()
        return found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.environment.close()


def test_a_body_that_is_evicted_while_others_are_read_is_not_lost(disk: Disk) -> None:
    """A load that began before a commit knows nothing of it; what it did not find is asked for again."""
    disk.publish(2)
    disk.commit()
    disk.page()
    disk.publish(2)
    disk.page()

    assert [] == disk.fetch()

    request = disk.requests.pop()
    found = disk.environment.read(request.ranges, request.limit)
    disk.commit()
    disk.queue.loaded(request, found)

    assert 0 == disk.queue.damaged
    assert [0, 1, 2, 3] == disk.drain()


def test_bodies_that_will_be_wanted_at_once_are_kept(disk: Disk) -> None:
    """Messages that wait for their commit near the head keep their bodies, since they would be read again."""
    disk.publish(4)
    disk.page()

    assert [0] == disk.fetch(1)

    disk.commit()

    assert [1, 2, 3] == disk.fetch()
    assert [] == disk.requests


def test_publishing_does_not_hold_up_a_load(disk: Disk) -> None:
    """Paging goes on behind a load, and the load is still taken."""
    disk.publish(40)
    disk.commit()
    disk.page()
    disk.page()

    assert disk.queue.delta.count

    while len(disk.queue.q3) > 1 or not disk.requests:
        disk.fetch(1)
        if disk.requests and disk.requests[0].what == BODIES:
            disk.load()
    assert DELTA == disk.requests[0].what
    disk.publish(40)
    disk.commit()
    disk.page()
    calls = disk.calls
    disk.load()

    assert calls + 1 == disk.calls
    assert disk.drain()[-1] == 79


def test_a_purge_overtakes_a_load(disk: Disk) -> None:
    """Messages requested before a purge are not taken after it."""
    disk.publish(4)
    disk.commit()
    disk.page()
    disk.fetch()
    disk.queue.purge()
    disk.load()

    assert 0 == disk.calls
    assert 0 == disk.queue.ready_count


def test_a_long_gap_is_read_over_at_once(disk: Disk) -> None:
    """Messages of different starts are far apart: it does not take a load for each segment between."""
    disk.publish(2)
    disk.queue = VariableQueue(disk.queue.pager, 1, durable=True, next_seq=5 << 40)
    disk.publish(2)
    disk.commit()
    second = VariableQueue(disk.queue.pager, 1, durable=True, next_seq=6 << 40)
    second.recover(Recovered(4, 0, (5 << 40) + 2, 44, 6 << 40))
    disk.queue = second
    found = []
    loads = 0
    while second.ready_count:
        batch = second.fetch(10, ack_required=False)
        assert batch.redelivered or not batch.messages
        found += list(batch.seq_ids)
        if not batch.messages:
            loads += 1
            disk.load()

    assert [0, 1, 5 << 40, (5 << 40) + 1] == found
    assert 2 == loads


def test_a_damaged_record_costs_one_message(disk: Disk) -> None:
    """A message that cannot be read is counted, given up, and removed from the disk with the rest of its block."""
    disk.publish(SEGMENT * 2)
    disk.commit()
    blocks = disk.environment.store.db["blocks"]
    with disk.environment.store.env.begin(write=True) as txn:
        for key, value in list(txn.cursor(blocks)):
            txn.put(key, value[:-1] + b"x", db=blocks)
    again = VariableQueue(disk.queue.pager, 1, durable=True, next_seq=1000)
    again.recover(Recovered(SEGMENT * 2, 0, SEGMENT * 2, 11 * 2 * SEGMENT, 1000))
    disk.queue = again

    assert [*range(SEGMENT - 1), *range(SEGMENT, 2 * SEGMENT - 1)] == disk.drain()
    assert 2 == again.damaged
    assert 0 == again.ready_count

    disk.commit()

    assert [] == list(disk.environment.rows("blocks"))
    assert [] == list(disk.environment.rows("acks"))


def test_a_missing_body_costs_one_message(disk: Disk) -> None:
    """A reference without a body is given up, wherever its entry is."""
    disk.journal.embed_below = 0
    disk.publish(SEGMENT)
    disk.commit()
    entry = disk.queue.q4[3]
    assert isinstance(entry, Entry)
    disk.page()
    with disk.environment.store.env.begin(write=True) as txn:
        txn.delete(entry.msg_id.to_bytes(8, "big"), db=disk.environment.store.db["bodies"])

    assert [0, 1, 2, 4, 5, 6, 7] == disk.drain()
    assert 1 == disk.queue.damaged
