"""The requeued messages of a queue, kept in order, against a sorted list; and what redelivering many of them costs."""

import sys
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from time import process_time
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.message import Message
from leveret.storage.queues import requeued as returned_module
from leveret.storage.queues.invariants import check
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.requeued import Item, Requeued
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment

CONTENT = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(7) + b"\x64\x00\x00\xce" + b"x" * 100


def message(seq_id: int) -> Message:
    """A message that says where it belongs."""
    return Message(b"", seq_id.to_bytes(4, "big"), 1)


def before(seq_id: int) -> Callable[[Item], bool]:
    """Return a predicate that is true for messages before a place."""
    return lambda item: int.from_bytes(item.content, "big") < seq_id  # type: ignore[union-attr]


@patch.object(returned_module, "CHUNK", 3)
@given(st.data())
def test_returned_is_a_sorted_list(data: st.DataObject) -> None:
    """Requeued messages, after any takes, pops and removals in any order, are those of a sorted list."""
    returned = Requeued()
    expected: dict[int, Message] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        missing = [seq_id for seq_id in range(40) if seq_id not in expected]
        seq_ids = data.draw(st.lists(st.sampled_from(missing), unique=True)) if missing else []
        if data.draw(st.booleans()):
            seq_ids.sort()
        messages = [message(seq_id) for seq_id in seq_ids]
        returned.add(seq_ids, messages)
        expected.update(zip(seq_ids, messages, strict=True))
        if expected and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(expected)))
            assert [(gone, expected[gone])] == returned.remove_those([gone, 40])
            del expected[gone]
        most, below = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 50))
        taken = returned.take(most, before(below))
        first = [seq_id for seq_id in sorted(expected)[:most] if seq_id < below]

        assert [(seq_id, expected.pop(seq_id)) for seq_id in first] == taken
        if expected and data.draw(st.booleans()):
            assert returned.pop() is expected.pop(max(expected))
        assert [(seq_id, expected[seq_id]) for seq_id in sorted(expected)] == list(returned)
        assert len(expected) == len(returned)
        assert bool(expected) is bool(returned)
        if expected:
            assert min(expected) == returned.first()[0]
            assert expected[min(expected)] in returned.sample(3)
            assert list(expected.values()) == sorted(returned.sample(99), key=list(expected.values()).index)


class Paged:
    """A queue whose unacked messages have all been paged out."""

    def __init__(self, path: Path, count: int) -> None:
        self.environment = Environment(path, sync=False)
        self.journal = Journal()
        self.requests: list[LoadRequest] = []
        self.longest = 0.0
        self.queue = VariableQueue(Pager(self.journal, self.requests.append), 1, durable=False)
        self.count = count
        for first in range(0, count, 10_000):
            some = min(10_000, count - first)
            self.queue.publish([Message(b"\x00\x01q", CONTENT, 1) for _ in range(some)])
            self.queue.fetch(some, ack_required=True)
        while self.queue.ram_ack_count:
            self.queue.set_ram_target(0, 0)
            self.environment.commit(self.journal.cut())
            self.journal.settled()
        self.queue.set_ram_target(1 << 60, 1 << 60)

    def redeliver(self) -> float:
        """Requeue all and deliver them again; returns the processor seconds of the queue's own work for each."""
        seq_ids = range(self.count)
        began = process_time()
        self.queue.requeue(seq_ids)
        spent = process_time() - began
        left = self.count
        while left:
            began = process_time()
            batch = self.queue.fetch(256, ack_required=False)
            step = process_time() - began
            left -= len(batch.messages)
            if not batch.messages:
                request = self.requests.pop()
                found = self.environment.read(request.ranges, request.limit)
                began = process_time()
                self.queue.loaded(request, found)
                step += process_time() - began
            spent += step
            self.longest = max(self.longest, step)
        return spent / self.count


def redelivery(path: Path, count: int) -> tuple[float, float]:
    """Processor seconds for each message, and of the longest step."""
    paged = Paged(path, count)
    try:
        spent = paged.redeliver()
        check(paged.queue)
    finally:
        paged.environment.close()
    return spent, paged.longest


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Return as many empty directories as are wanted."""
    return (tmp_path / str(number) for number in range(100))


def test_redelivery_of_paged_messages_is_linear(folders: Iterator[Path]) -> None:
    """A requeued message whose body was paged out costs the same among 100,000 as among 10,000, within a half."""
    few = many = inf
    for _ in range(5):  # other load only ever adds to one of them
        few = min(few, redelivery(next(folders), 10_000)[0])
        many = min(many, redelivery(next(folders), 100_000)[0])
        if many <= 1.5 * few:
            break

    assert many <= 1.5 * few, f"{many * 1e6:.1f} us a message of 100,000, {few * 1e6:.1f} us of 10,000"


if __name__ == "__main__":  # python -m tests.storage.test_returned DIRECTORY COUNT...
    for wanted in sys.argv[2:]:
        each, longest = redelivery(Path(sys.argv[1]) / wanted, int(wanted))
        print(f"{wanted:>9} messages: {each * 1e6:.1f} us each, longest step {longest * 1000:.1f} ms")
