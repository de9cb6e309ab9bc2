"""Policy of paging, seen in a queue's counts: what leaves memory first, how much of it at once, and what stays."""

from math import inf

from leveret.storage.journal.journal import Journal
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.message import Message
from leveret.storage.queues.invariants import check
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue

SEGMENT, IO_BATCH = 16, 8


class Disk:
    """A transient queue, and commits that have always room."""

    def __init__(self) -> None:
        self.journal = Journal()
        pager = Pager(self.journal, lambda _: None, segment=SEGMENT, io_batch=IO_BATCH)
        self.queue = VariableQueue(pager, 1, durable=False)

    def publish(self, count: int) -> None:
        """Publish messages of 100 octets."""
        first = self.queue.next_seq
        self.queue.publish(
            [Message(b"\x00\x01q", number.to_bytes(100, "big"), 1) for number in range(first, first + count)]
        )

    def unack(self, count: int) -> None:
        """Deliver messages without acks."""
        self.publish(count)
        self.queue.fetch(count, ack_required=True)

    def page(self, target: float) -> None:
        """Commit, and page out until so many messages are in memory."""
        self.queue.set_ram_target(target, 1 << 40)
        self.journal.cut()
        self.journal.settled()
        self.queue.reduce_memory_use()
        check(self.queue)

    @property
    def betas(self) -> int:
        """Messages of which memory has the position only."""
        return len(self.queue.q3) + len(self.queue.q2)


def test_what_grows_faster_is_paged_first() -> None:
    """Unacked messages leave memory before ready ones while they grow faster, and after them while they do not."""
    left = []
    for fetched in (90.0, 10.0):
        disk = Disk()
        disk.unack(10)
        disk.publish(10)
        rates = disk.queue.rates
        rates.published, rates.fetched, rates.acked = 100.0, fetched, 0.0
        disk.page(14)
        left.append((disk.queue.ram_msg_count, disk.queue.ram_ack_count))

    assert [(10, 4), (4, 10)] == left


def test_positions_leave_memory_in_batches() -> None:
    """Betas become deltas when there are `msg_store_io_batch_size` too many of them, not one by one."""
    disk = Disk()
    disk.publish(SEGMENT + IO_BATCH - 1)
    disk.page(0)
    before = disk.queue.delta.count
    disk.publish(1)
    disk.page(0)

    assert 0 == before
    assert IO_BATCH - 1 == disk.queue.delta.count, "but for the youngest, which is not on disk yet"


def test_the_more_are_paged_the_fewer_positions_stay() -> None:
    """Betas are at most `n * target / (n + target)` of `n` messages that are not alphas; never fewer than a segment."""
    disk = Disk()
    disk.publish(160)
    disk.page(60)

    assert (60, 100) == (disk.queue.ram_msg_count, disk.betas + disk.queue.delta.count)
    assert -(-100 * 60 // 160) == disk.betas

    few = Disk()
    few.publish(20)
    few.page(4)

    assert (4, 16, 0) == (few.queue.ram_msg_count, few.betas, few.queue.delta.count)


def test_the_youngest_unacked_are_paged_first() -> None:
    """Unacked messages delivered first keep their bodies: they have waited longest for their acks."""
    disk = Disk()
    disk.unack(10)
    disk.page(4)
    found, missing = disk.queue.unacked_messages(range(10))

    assert (list(range(4)), list(range(4, 10))) == ([seq_id for seq_id, _ in found], missing)


def test_one_step_pages_so_many_at_most() -> None:
    """A call moves 2,048 messages, or twice what was just published, so that it stays short."""
    disk = Disk()
    disk.publish(10_000)
    disk.queue.set_ram_target(0, 1 << 40)
    first = disk.queue.ram_msg_count
    disk.queue.reduce_memory_use(2000)

    assert (10_000 - 2048, 10_000 - 2048 - 4000) == (first, disk.queue.ram_msg_count)


def test_bodies_on_their_way_to_disk_count_as_gone() -> None:
    """Bodies that leave memory with the next commit make no others leave meanwhile."""
    disk = Disk()
    disk.publish(100)
    disk.queue.set_ram_target(inf, 50 * (100 + OVERHEAD))
    before = disk.queue.ram_msg_count
    disk.queue.reduce_memory_use()

    assert (50, 50) == (before, disk.queue.ram_msg_count)


def test_what_is_to_be_paged_counts_for_the_backlog_of_the_disk() -> None:
    """Bytes that wait to be paged are bytes that the journal holds, until a commit has taken them."""
    disk = Disk()
    disk.publish(10)
    disk.queue.set_ram_target(0, 1 << 40)
    journal = disk.journal

    assert journal.octets == journal.octets_to_page >= 10 * 100
    disk.page(0)
    assert (0, 0) == (journal.octets, journal.octets_to_page)


def test_a_head_stays_that_can_be_delivered_immediately() -> None:
    """However many others there are, the first ready message keeps its body, unless none may be in memory at all."""
    disk = Disk()
    disk.unack(10)
    disk.publish(5)
    disk.page(1)
    few = disk.queue.ram_msg_count, disk.queue.q4[0].content[-1]  # type: ignore[union-attr]
    disk.page(0)

    assert ((1, 10), 0) == (few, disk.queue.ram_msg_count)
