"""Look-ups that a message read from disk costs, by its state and its size."""

import sys
from pathlib import Path

import pytest

from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest, Reads
from leveret.storage.message import Message, Persistent
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment

COUNT = 400


class Disk:
    """A durable queue whose messages are all on disk."""

    def __init__(self, path: Path, size: int, count: int, *, persistent: bool, segment: int = 2048) -> None:
        self.environment = Environment(path, sync=False)
        self.journal = Journal()
        self.requests: list[LoadRequest] = []
        self.pager = Pager(self.journal, self.requests.append, segment=segment)
        self.queue = VariableQueue(self.pager, 1, durable=True)
        self.size = size
        self.persistent = persistent
        self.queue.set_ram_target(0, 0)
        for _ in range(0, count, 100):
            self.publish(100)
        self.queue.set_ram_target(0, 0)
        self.queue.set_ram_target(1 << 60, 1 << 60)

    def publish(self, count: int) -> None:
        """Publish messages, commit them, and page."""
        body = bytes(self.size)
        messages = [
            Persistent(b"\x00\x01q", body, 1, None, 0, 1)
            if self.persistent
            else Message(b"\x00\x01q", bytes(self.size), 1)
            for _ in range(count)
        ]
        self.queue.publish(messages, persistent=self.persistent)
        self.queue.reduce_memory_use()
        self.environment.commit(self.journal.cut())
        self.journal.settled()
        self.queue.reduce_memory_use()

    def load(self) -> int:
        """Do the loads that are under way, and those that they begin; how many."""
        loads = 0
        while self.requests:
            request = self.requests.pop(0)
            loads += 1
            self.queue.loaded(request, self.environment.read(request.ranges, request.limit))
        return loads

    def drain(self) -> int:
        """Consume all; how many loads that took."""
        loads = 0
        while self.queue.ready_count:
            if not self.queue.fetch(1000, ack_required=False).messages:
                loads += self.load()
        self.environment.close()
        return loads


def counts(reads: Reads) -> tuple[int, int, int]:
    return reads.messages, reads.blocks, reads.bodies


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
def test_a_small_body_comes_with_its_position(tmp_path: Path, persistent: bool) -> None:
    """A message whose body is in its record costs one look-up, shared with its neighbours, in all states."""
    disk = Disk(tmp_path, 100, COUNT, persistent=persistent, segment=64)
    entries = len(disk.queue.q3) + len(disk.queue.q2)
    disk.drain()

    messages, blocks, bodies = map(
        sum, zip(*map(counts, (disk.pager.read_delta, disk.pager.read_entries)), strict=True)
    )
    assert (COUNT, 0) == (messages, bodies)
    assert entries == disk.pager.read_entries.messages
    assert 0 < blocks < COUNT / 10


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "transient"])
@pytest.mark.parametrize("speed", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("segment", [1, 16, 64])
def test_nothing_is_read_twice_while_publishers_are_at_work(
    tmp_path: Path, segment: int, speed: float, persistent: bool
) -> None:
    """A queue of which little may be in memory reads each message once, however fast its consumers are."""
    disk = Disk(tmp_path, 100, COUNT, persistent=persistent, segment=segment)
    queue, reads = disk.queue, disk.pager.read_delta
    queue.set_ram_target(20, 1 << 60)
    fetched, due = 0, 0.0
    for _ in range(100):
        disk.publish(10)
        due += 10 * speed
        while due >= 1 and queue.ready_count:
            taken = len(queue.fetch(int(due), ack_required=False).messages)
            assert taken or disk.requests
            fetched += taken
            due -= taken
            disk.load()

    assert 0 < reads.messages <= fetched + segment
    disk.environment.close()


def test_a_large_body_is_a_second_look_up(tmp_path: Path) -> None:
    """A persistent message whose body lies apart from its record costs one look-up more, in all states."""
    disk = Disk(tmp_path, 5000, COUNT, persistent=True, segment=64)
    disk.drain()

    for reads in (disk.pager.read_delta, disk.pager.read_entries):
        assert 0 < reads.messages == reads.bodies
        assert 0 < reads.blocks <= reads.messages


if __name__ == "__main__":  # python -m tests.storage.test_reads DIRECTORY
    print("kind, octets: state messages blocks bodies")
    for kind, octets in ((True, 100), (True, 1000), (True, 5000), (False, 1000)):
        measured = Disk(Path(sys.argv[1]) / f"{kind}{octets}", octets, 20_000, persistent=kind)
        all_loads = measured.drain()
        print("persistent" if kind else "transient", octets, "loads", all_loads)
        for name, found in (
            ("delta", measured.pager.read_delta),
            ("beta, gamma", measured.pager.read_entries),
        ):
            print(f"  {name}:", *counts(found))
