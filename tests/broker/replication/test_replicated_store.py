"""The store of a node that leads: batches are settled once they are logged, and read once they are applied."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from doubles.fakes import Host

from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence import committer
from leveret.broker.replication.replicated_store import ReplicatedDataStore
from leveret.broker.server import shutdown
from leveret.storage.journal.blocks import read_bitmap, read_header
from leveret.storage.message import Message, Persistent
from leveret.storage.store.replica import ReplicaEnvironment

SECONDS = 20.0


class HeldLog:
    """A log that logs at once, and applies a batch when the test says so."""

    def __init__(self, environment: ReplicaEnvironment) -> None:
        self._environment = environment
        self.waiting: list[tuple[bytes, Callable[[], object]]] = []
        self.count = 0
        self.writer: Any = None
        self.report_full: Callable[[bool], object] = bool
        self.handed_over: list[int] = []
        """The number of batches that were logged when the lease was given back."""
        self.applies_late = False
        self.is_behind = self.is_waiting = self.is_in_pieces = False
        self.unanswered: list[Callable[[], object]] | None = None
        """Callbacks of batches that are not logged yet; None if each is at once."""

    def submit(self, octets: bytes, logged: Callable[[], object], applied: Callable[[], object]) -> None:
        self.count += 1
        self.waiting.append((octets, applied))
        if self.unanswered is None:
            logged()
        else:
            self.unanswered.append(logged)

    def use_writer(self, submit: Any) -> None:
        self.writer = submit

    def on_full(self, report: Callable[[bool], object]) -> None:
        self.report_full = report

    def apply_late(self) -> None:
        self.applies_late = True

    async def hand_over(self) -> None:
        self.handed_over.append(self.count)

    async def apply(self) -> None:
        octets, applied = self.waiting.pop(0)
        done = asyncio.Event()

        def finish(_result: object, error: BaseException | None) -> None:
            assert error is None, error
            applied()
            done.set()

        place = b"%d" % self.count
        self.writer(lambda: self._environment.apply(place, [(octets, (), ())], ()), finish)
        await asyncio.wait_for(done.wait(), SECONDS)


class Publisher:
    def __init__(self) -> None:
        self.accepts: list[int] = []

    def accepted(self, seq_no: int) -> None:
        self.accepts.append(seq_no)

    def refused(self, seq_no: int) -> None:
        raise AssertionError(f"{seq_no} was nacked")


class Leading:
    """A store in use, and a durable queue."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        environment = ReplicaEnvironment(path, sync=False)
        self.log = HeldLog(environment)
        config = StorageConfig(sync=False)
        self.disk = ReplicatedDataStore(environment, config, ram_limit=1 << 20, epoch=1, log=self.log)
        self.host, self.full = Host(), list[bool]()
        self.disk.start(self.host, asyncio.get_running_loop(), self.full.append)
        self.queue = self.disk.make_backing(self.disk.next_id(), {})
        self.publisher = Publisher()

    def publish(self, seq_no: int, octets: int = 10) -> None:
        self.queue.publish(
            [Persistent(b"\0\0", b"\0" * octets, 1, self.publisher, seq_no, 1)], persistent=True
        )
        self.disk.commits.wake()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.005)


async def test_a_batch_is_confirmed_before_it_is_applied(tmp_path: Path) -> None:
    """And the next one is cut meanwhile; bodies that are to be evicted stay until they can be read."""
    leading = Leading(tmp_path / "data")
    leading.publish(1)
    await leading.until(lambda: leading.publisher.accepts == [1])
    leading.publish(2)
    await leading.until(lambda: leading.publisher.accepts == [1, 2])
    assert 2 == len(leading.log.waiting)

    leading.queue.set_ram_target(0, 0)
    leading.queue.reduce_memory_use()
    assert leading.queue.ram_octets
    await leading.log.apply()
    await leading.log.apply()
    assert 0 == leading.queue.ram_octets
    assert 0 == leading.disk.journal.octets_in_flight
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_what_is_not_applied_holds_up_publishers(tmp_path: Path) -> None:
    """By the limit of what waits for a disk, and until it is applied."""
    leading = Leading(tmp_path / "data")
    for number in range(5):
        leading.publish(number, committer.BACKLOG_HIGH // 4)
    await leading.until(lambda: len(leading.publisher.accepts) == 5)
    assert leading.disk.commits.backlogged
    while leading.log.waiting:
        await leading.log.apply()

    assert not leading.disk.commits.backlogged
    assert 1 == leading.host.times_cleared
    assert 0 == leading.disk.journal.octets_in_flight
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_a_copy_without_room_blocks_publishers_and_nacks_nothing(tmp_path: Path) -> None:
    """The log confirms what is published meanwhile."""
    leading = Leading(tmp_path / "data")
    leading.log.report_full(True)
    leading.publish(1)
    await leading.until(lambda: leading.publisher.accepts == [1])
    assert [True] == leading.full
    assert leading.disk.commits.is_full
    leading.log.report_full(False)
    assert [True, False] == leading.full

    await leading.log.apply()
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_a_stop_hands_over_as_soon_as_all_is_logged(tmp_path: Path) -> None:
    """Entries that are not applied are in the log, and the copy is behind by them."""
    leading = Leading(tmp_path / "data")
    leading.publish(1)
    await leading.until(lambda: leading.publisher.accepts == [1])
    await leading.log.apply()
    leading.publish(2)
    leading.publish(3)
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)

    assert [1, 2, 3] == leading.publisher.accepts
    assert leading.log.handed_over == [leading.log.count]
    again = ReplicaEnvironment(tmp_path / "data", sync=False)
    assert (b"1", 1) == (again.place, len(list(again.rows("blocks"))))
    again.close()


async def test_a_stop_waits_for_the_log_only(tmp_path: Path) -> None:
    """Batches that are logged and not applied hold nothing up any more."""
    leading = Leading(tmp_path / "data")
    for number in range(5):
        leading.publish(number, committer.BACKLOG_HIGH // 4)
    await leading.until(lambda: len(leading.publisher.accepts) == 5)
    assert leading.disk.commits.backlogged
    leading.disk.commits.prepare_stop()

    assert leading.log.applies_late
    assert (False, 1) == (leading.disk.commits.backlogged, leading.host.times_cleared)
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_a_stop_moves_no_more_than_memory_holds(tmp_path: Path) -> None:
    """A stop writes nothing while the log is far ahead of the copy: all of it would be in memory."""
    leading = Leading(tmp_path / "data")
    flush = SimpleNamespace(
        left=2, step=lambda: stepped.append(1) or setattr(flush, "left", flush.left - 1) or True
    )
    stepped: list[int] = []
    queue = SimpleNamespace()
    host = SimpleNamespace(
        vhosts={"/": SimpleNamespace(queues={"q": queue}, once={})}, stored=lambda **_: asyncio.sleep(0, True)
    )
    leading.log.is_behind = True
    with patch.object(shutdown.ShutdownFlush, "all_of", lambda *_: [flush]):
        flushing = asyncio.ensure_future(shutdown._flush_promised(host, leading.disk, host.stored))
        await asyncio.sleep(2 * shutdown.BEHIND_SECONDS)
        assert not stepped
        leading.log.is_behind = False
        assert 0 == await asyncio.wait_for(flushing, SECONDS)

    assert [1, 1] == stepped
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_a_stop_moves_messages_while_others_are_logged(tmp_path: Path) -> None:
    """Not before those are on their way to the log, nor more than belong to the next entry."""
    leading = Leading(tmp_path / "data")
    octets = shutdown.COMMIT_OCTETS // 2
    flush = SimpleNamespace(left=8)
    moved: list[int] = []

    def step() -> bool:
        flush.left -= 1
        moved.append(flush.left)
        leading.publish(8 - flush.left, octets)
        return True

    async def stored(**_: bool) -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        leading.disk.journal.when_safe(done.set_result)
        leading.disk.commits.wake()
        return await done

    flush.step = step
    host = SimpleNamespace(
        vhosts={"/": SimpleNamespace(queues={"q": SimpleNamespace()}, once={})}, stored=stored
    )
    log = leading.log
    log.unanswered = []
    with patch.object(shutdown.ShutdownFlush, "all_of", lambda *_: [flush]):
        flushing = asyncio.ensure_future(shutdown._flush_promised(host, leading.disk, host.stored))
        await leading.until(lambda: log.count and leading.disk.journal.octets >= shutdown.COMMIT_OCTETS)
        before = len(moved)
        log.is_waiting = True
        log.unanswered.pop()()
        await leading.until(lambda: log.count == 2)
        await asyncio.sleep(20 * shutdown.CUT_SECONDS)
        assert before == len(moved)
        log.is_waiting = False
        await leading.until(lambda: leading.disk.journal.octets >= shutdown.COMMIT_OCTETS)
        assert (2, before + 2) == (log.count, len(moved))
        while not flushing.done():
            answered, log.unanswered = log.unanswered, []
            for logged in answered:
                logged()
            await asyncio.sleep(shutdown.CUT_SECONDS)

    assert 0 == flushing.result()
    assert list(range(1, 9)) == leading.publisher.accepts
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_a_stop_cuts_the_next_batch_while_one_is_logged(tmp_path: Path) -> None:
    """One more, and not while pieces of one are logged: its entry would come behind. Before a stop it waits for more."""
    leading = Leading(tmp_path / "data")
    log, journal = leading.log, leading.disk.journal
    log.unanswered = []
    leading.publish(1)
    await leading.until(lambda: log.count == 1)
    leading.publish(2)
    await asyncio.sleep(20 * committer.MIN_GAP)
    assert (1, None) == (log.count, journal.following)

    leading.disk.commits.prepare_stop()
    log.is_in_pieces = True
    leading.disk.commits.wake()
    await asyncio.sleep(20 * committer.MIN_GAP)
    assert (1, None) == (log.count, journal.following)

    log.is_in_pieces = False
    leading.disk.commits._page_due = 0.0  # as when the disk was full a while ago
    leading.disk.commits.wake()
    await leading.until(lambda: log.count == 2)
    leading.publish(3)
    await asyncio.sleep(20 * committer.MIN_GAP)
    assert (2, []) == (log.count, leading.publisher.accepts)

    log.unanswered.pop(0)()
    assert [1] == leading.publisher.accepts
    await leading.until(lambda: log.count == 3)
    while log.unanswered:
        log.unanswered.pop(0)()
    assert [1, 2, 3] == leading.publisher.accepts
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_a_batch_without_anything_to_log_is_settled_behind_the_one_before_it(tmp_path: Path) -> None:
    """A callback that waits for it does not run earlier."""
    leading = Leading(tmp_path / "data")
    log, journal = leading.log, leading.disk.journal
    log.unanswered = []
    called: list[bool] = []
    leading.disk.commits.prepare_stop()
    leading.publish(1)
    await leading.until(lambda: log.count == 1)
    other = leading.disk.make_backing(leading.disk.next_id(), {})
    settled = [Persistent(b"\0\0", b"", 1, leading.publisher, 2, 1)]
    other.ack(other.publish_delivered(settled, ack_required=True, persistent=True))
    journal.when_safe(called.append)
    leading.disk.commits.wake()
    await leading.until(lambda: journal.following is not None and not leading.disk.commits.is_preparing)
    assert (1, []) == (log.count, called)

    log.unanswered.pop(0)()
    assert [True] == called
    assert (None, None) == (journal.in_flight, journal.following)
    await asyncio.wait_for(leading.disk.stop([leading.queue, other]), SECONDS)


async def test_nothing_is_paged_at_a_stop(tmp_path: Path) -> None:
    """Transient messages end with the process: what is logged waits neither for them nor for the disk."""
    leading = Leading(tmp_path / "data")
    leading.disk.commits.prepare_stop()
    leading.queue.publish([Message(b"\0\0", b"\0" * 1000, 1)], persistent=False)
    leading.queue.set_ram_target(0, 0)
    leading.queue.reduce_memory_use()
    leading.publish(1)
    await leading.until(lambda: leading.publisher.accepts == [1])

    assert (True, 0) == (leading.disk.journal.has_unpaged, leading.disk.journal.paged_out)
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)


async def test_a_stop_with_a_full_copy_loses_nothing(tmp_path, caplog):
    """And reports no loss: the log has what the copy has no room for."""
    leading = Leading(tmp_path / "data")
    leading.publish(1)
    leading.log.report_full(True)
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)

    assert [1] == leading.publisher.accepts
    assert "lost" not in caplog.text


async def test_delivery_counts_of_a_stop_are_logged(tmp_path: Path) -> None:
    """Of messages that are requeued before they are applied, too: the next leader continues to count."""
    leading = Leading(tmp_path / "data")
    leading.publish(1)
    await leading.until(lambda: leading.publisher.accepts == [1])
    (seq_id,) = leading.queue.fetch(1, ack_required=True).seq_ids
    leading.queue.note_returns({seq_id: 3})
    leading.queue.requeue([seq_id])
    await asyncio.wait_for(leading.disk.stop([leading.queue]), SECONDS)

    again = ReplicaEnvironment(tmp_path / "data", sync=False)
    again.apply(b"next", [(octets, (), ()) for octets, _ in leading.log.waiting], ())
    blocks = dict(again.rows("blocks"))
    counts = [read_bitmap(row, read_header(key, blocks[key])).returns for key, row in again.rows("acks")]
    assert [{0: 3}] == counts
    again.close()
