"""Bodies that several queues share: their holders, each queue's part, and paging them once."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest

from leveret.storage.errors import DiskFullError
from leveret.storage.journal.batch import Batch
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.journal.shared_bodies import OVERHEAD, PLACE, SharedBodies
from leveret.storage.message import Message, dated
from leveret.storage.queues.invariants import check
from leveret.storage.queues.pager import PAGING_OCTETS, Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment


def content(number: int, size: int = 1000) -> bytes:
    return b"\x02\x00\x01" + number.to_bytes(4, "big") + bytes(size)


class Disk:
    """Some transient queues, their disk, and what they have asked for."""

    def __init__(self, path: Path, queues: int) -> None:
        self.environment = Environment(path, sync=False)
        self.journal = Journal()
        self.requests: list[LoadRequest] = []
        self.pager = Pager(self.journal, self.requests.append, segment=16, io_batch=1)
        self.queues = [VariableQueue(self.pager, 1 + number, durable=False) for number in range(queues)]

    def publish(self, count: int, size: int = 1000, *, expires: int = 0) -> None:
        messages = [Message(b"\x00\x01q", content(number, size), 1) for number in range(count)]
        for queue in self.queues:
            queue.publish(messages, expires=expires)

    def page(self, *queues: VariableQueue) -> None:
        for queue in queues:
            queue.set_ram_target(0, 0)

    def commit(self, page: float = inf) -> Batch:
        batch = self.journal.cut(page)
        try:
            self.environment.commit(batch)
        except DiskFullError as error:
            return self.journal.settled(error)
        return self.journal.settled()

    def commit_all(self) -> None:
        """Commit until there is nothing to do."""
        while self.journal.has_work or self.journal.has_unpaged:
            self.commit()

    def rows(self, table: str) -> int:
        paged = self.environment.paged
        with paged.env.begin() as txn:
            return int(txn.stat(paged.db[table])["entries"])

    def drain(self, queue: VariableQueue) -> list[int]:
        """Consume a queue; the numbers of its messages."""
        found = []
        while queue.ready_count:
            messages = queue.fetch(100, ack_required=False).messages
            check(queue)
            found += [int.from_bytes(message.content[3:7], "big") for message in messages]
            if not messages:
                request = self.requests.pop(0)
                request.queue.loaded(request, self.environment.read(request.ranges, request.limit))
        return found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path, 3)
    yield made
    made.environment.close()


def test_who_holds_a_body_is_counted() -> None:
    """A message is held by each list that has it, and its body by its copies that expire as well."""
    shared = SharedBodies(iter(range(1, 9)).__next__)
    messages = [Message(b"", content(number), 1) for number in range(2)]
    others = [messages[:1], messages[:], dated(messages[:1], 5)]

    assert [3, 1] == shared.holders(messages)

    assert 1 == shared.number(messages[0].content)
    others.clear()

    assert [0, 0] == shared.holders(messages)


def test_a_share_is_that_of_one_queue() -> None:
    """A body counts for each queue in equal parts, an entry for its own queue alone."""
    shared = SharedBodies(iter(range(1, 9)).__next__)
    messages = [Message(b"", bytes(1000), 1)]
    queues = [messages[:] for _ in range(4)]
    whole = 1000 + OVERHEAD

    assert (250 + PLACE + (OVERHEAD - PLACE) / 4) / whole == shared.own_share(messages, [False])
    assert (250 + OVERHEAD) / whole == shared.own_share(messages, [True])
    assert 1.0 == shared.own_share([], [])

    del queues[1:]

    assert 1.0 == shared.own_share(messages, [False])


def test_a_number_lasts_as_long_as_the_body() -> None:
    """A body that memory no longer has loses its number; one that it has keeps it."""
    shared = SharedBodies(iter(range(1, 9)).__next__)
    kept, gone = content(1), content(2)
    numbers = [shared.number(kept), shared.number(gone)]
    del gone
    shared.prune()

    assert [1, 2] == numbers
    assert (1, 1) == (shared.known(kept), len(shared))
    assert 0 == shared.known(content(1))


@pytest.mark.parametrize("expires", [0, 1 << 50])
def test_a_transient_body_is_paged_once_for_all_queues(disk: Disk, expires: int) -> None:
    """A body is written once, however many queues page the message, at once or one after the other."""
    disk.publish(20, 2000, expires=expires)
    disk.page(*disk.queues[:2])
    disk.commit()
    disk.page(disk.queues[2])
    second = disk.commit()

    assert (20, 20) == (disk.rows("bodies"), disk.rows("refs"))
    assert [1] * 20 == [count for _, count in second.paged.shared.values()]
    for queue in disk.queues:
        assert 0 == queue.ram_msg_count
        assert list(range(20)) == disk.drain(queue)
    disk.commit_all()
    assert [0] * 5 == [disk.rows(table) for table in ("blocks", "acks", "bodies", "refs", "sweeps")]


def test_a_body_of_one_queue_stays_with_its_record(disk: Disk) -> None:
    """A transient message that no other queue has is paged in its block, at any size."""
    disk.queues[0].publish([Message(b"\x00\x01q", content(7, 9000), 1)])
    disk.page(disk.queues[0])
    disk.commit()

    assert (1, 0) == (disk.rows("blocks"), disk.rows("bodies"))
    assert [7] == disk.drain(disk.queues[0])


def test_a_body_that_went_with_its_messages_is_written_again(disk: Disk) -> None:
    """A paged body is written again for the next queue if all messages that referred to it are gone."""
    disk.publish(1, 5000)
    disk.page(disk.queues[0])
    disk.commit()
    disk.queues[0].purge()
    disk.commit_all()
    assert 0 == disk.rows("bodies")
    disk.page(disk.queues[1])
    disk.commit()

    assert 1 == disk.rows("bodies")
    assert [[0], [0]] == [disk.drain(queue) for queue in disk.queues[1:]]


@pytest.mark.parametrize("what", ["acked", "kept"])
def test_a_shared_body_without_room_stays_in_memory(disk: Disk, what: str) -> None:
    """A body without room stays in memory, is tried again, and leaves nothing behind, settled meanwhile or not."""
    disk.publish(4, 5000)
    disk.page(*disk.queues)
    batch = disk.journal.cut()
    if what == "acked":
        disk.queues[0].drop(3)
    no_room = patch.object(disk.environment.paged, "apply", side_effect=lmdb.MapFullError("planted"))
    with no_room, pytest.raises(DiskFullError) as failed:
        disk.environment.commit(batch)
    disk.journal.settled(failed.value)
    for queue in disk.queues:
        check(queue)
    disk.commit_all()

    assert 4 == disk.rows("bodies")
    first = range(3, 4) if what == "acked" else range(4)
    assert [list(first), [*range(4)], [*range(4)]] == [disk.drain(queue) for queue in disk.queues]
    disk.commit_all()
    assert [0] * 5 == [disk.rows(table) for table in ("blocks", "acks", "bodies", "refs", "sweeps")]


def test_a_shared_body_counts_once_in_the_bytes_of_a_commit(disk: Disk) -> None:
    """A commit that pages a body for several records, of one queue or more, counts its bytes once."""
    messages = [Message(b"\x00\x01q", content(number, 5000), 1) for number in range(4)]
    one, two, _ = disk.queues
    for queue in (one, one, two):
        queue.publish(messages)
    disk.page(one, two)
    batch = disk.commit(4 * (len(messages[0].content) + OVERHEAD) + 6 * OVERHEAD)

    assert [8, 2] == [len(entries) for _, entries in batch.entries]


def test_what_is_paged_at_once_is_bounded(tmp_path: Path) -> None:
    """Queues that have much to page do so in parts, each when the last is on disk, and all of them get there."""
    disk = Disk(tmp_path, 4)
    for number, queue in enumerate(disk.queues):
        queue.publish([Message(b"\x00\x01q", content(number, 100_000), 1) for _ in range(100)])
    disk.page(*disk.queues)
    paged = []
    while disk.journal.has_work:
        paged.append(disk.commit().paged.octets)
    disk.environment.close()

    assert max(paged) <= PAGING_OCTETS + 1024 * 1024
    assert 40_000_000 <= sum(paged)
    assert [0] * 4 == [queue.ram_msg_count for queue in disk.queues]


def test_unacked_messages_are_paged_in_parts(tmp_path: Path) -> None:
    """Unacked messages are paged in parts, too."""
    disk = Disk(tmp_path, 2)
    for number, queue in enumerate(disk.queues):
        queue.publish([Message(b"\x00\x01q", content(number, 100_000), 1) for _ in range(100)])
        queue.fetch(100, ack_required=True)
    disk.page(*disk.queues)
    paged = []
    while disk.journal.has_work:
        paged.append(disk.commit().paged.octets)
    disk.environment.close()

    assert max(paged) <= PAGING_OCTETS + 1024 * 1024
    assert [0] * 2 == [queue.ram_ack_count for queue in disk.queues]
