"""A stream's log, compared with a list: appends, commits, retention, readers at any offset, restarts."""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.storage.damage import Damages
from leveret.storage.errors import DiskFullError
from leveret.storage.journal.blocks import Entry
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.journal.stream_rows import SEGMENTS, segment_key
from leveret.storage.message import Message, Persistent
from leveret.storage.queues.chunks import ChunkCache, message_of_copy
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.peek import Snapshot
from leveret.storage.queues.stream_log import FINEST, StreamLog
from leveret.storage.queues.stream_tail import TAIL_OCTETS
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import compact
from leveret.storage.store.environment import Environment
from leveret.storage.store.recovery import recover, saved_rows

QID = 7
ADDRESS = b"\x00\x01q"


def content(number: int, size: int = 0) -> bytes:
    """Return a content with a number in its body, of at least `size` bytes."""
    body = str(number).encode().ljust(size, b".")
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
    return (
        b"\x02\x00\x01\x00\x00\x00\x0e"
        + header
        + b"\xce\x03\x00\x01"
        + len(body).to_bytes(4, "big")
        + body
        + b"\xce"
    )


def address_of(number: int) -> bytes:
    """Return the address of a message: most runs have one, some have several."""
    return b"\x01x\x01q" if number // 50 % 2 and not number % 3 else ADDRESS


def marked(head: bytes) -> tuple[bytes, bytes]:
    """Return the frame of a content header with a place for an offset at its end."""
    return head[:3] + (len(head) - 8 + 8).to_bytes(4, "big") + head[7:-1], head[-1:]


class Publisher:
    """Counts the confirms of a stream's messages."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()

    def accepted(self, seq_no: int) -> None:
        self.confirmed.add(seq_no)

    def refused(self, seq_no: int) -> None:
        raise AssertionError(seq_no)


class Disk:
    """A stream on disk, whose commits and reads the test makes."""

    def __init__(self, path: Path, *, cache: int = 1 << 20, load_octets: int = 4096) -> None:
        self.path, self.cache, self.load_octets = path, cache, load_octets
        self.publisher = Publisher()
        self.open()

    def open(self) -> None:
        """Open the data, and recover the stream."""
        self.environment = Environment(self.path, sync=False)
        self.journal = Journal(self.environment.boot << 40 | 1)
        self.requests: list[LoadRequest] = []
        self.pager = Pager(
            self.journal, self.requests.append, segment=16, load_octets=self.load_octets, damages=Damages()
        )
        self.pager.snapshot = self._snapshot
        self.log = StreamLog(self.pager, QID, ChunkCache(self.cache), marked)
        found = recover(self.environment, [QID])
        if rows := self.environment.segments().get(QID):
            self.log.know(rows)
        if QID in found:
            self.log.recover(found[QID])

    def _snapshot(self) -> Snapshot:
        return self.environment.snapshot()

    def publish(self, count: int, time: int, *, size: int = 0) -> None:
        """Append messages, each with its offset in its body."""
        first = self.log.next_seq
        self.log.publish(
            [
                Persistent(address_of(number), content(number, size), 1, self.publisher, number, 1)
                for number in range(first, first + count)
            ],
            expires=time,
        )

    def commit(self) -> None:
        """Write what was noted, and tell."""
        self.environment.commit(self.journal.cut())
        self.journal.settled()

    def load(self) -> bool:
        """Do one read; false if there is none."""
        if not self.requests:
            return False
        request = self.requests.pop(0)
        self.log.loaded(request, self.environment.read(request.ranges, request.limit))
        return True

    def read(self, offset: int, most: int) -> list[tuple[int, bytes]]:
        """Return offsets and bodies of at most so many messages, as a reader gets them."""
        found: list[tuple[int, bytes]] = []
        offset = max(offset, self.log.first)
        while len(found) < most:
            chunk = self.log.chunk(offset)
            if chunk is None:
                if not self.load():
                    break
                continue
            for at, copy in zip(chunk.offsets, chunk.copies, strict=True):
                message = message_of_copy(copy)
                assert (message.address, message.header[-8:]) == (address_of(at), at.to_bytes(8, "big"))
                if at >= offset:
                    found.append((at, message.body.rstrip(b".")))
            offset = chunk.stop
        return found[:most]

    def look(self) -> list[tuple[int, bytes]]:
        """Return offsets and bodies of all messages, as an operator sees them."""
        steps, answer = self.log.peek(), None
        while True:
            try:
                read = steps.send(answer)
            except StopIteration as end:
                return [(each.seq_id, each.message.body.rstrip(b".")) for each in end.value.ready]
            answer = None if read is None else read()

    def find(self, time: int) -> int:
        """Return the first offset of a time or a later one."""
        found: list[int] = []
        self.log.find_time(object(), time, found.append)
        while not found:
            assert self.load()
        return found[0]

    def stop(self, *, clean: bool) -> None:
        """Close the data, as after a clean stop or a kill."""
        if clean:
            while self.journal.has_work:
                self.commit()
            self.environment.save(saved_rows([self.log]))
        self.environment.close()


class StreamMachine(RuleBasedStateMachine):
    """Compares a log with a list of (time, number)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.times: list[int] = []
        self.safe = self.safe_first = 0
        self.time = 1000

    @initialize(
        cache=st.sampled_from((1, 20_000, 1 << 20)),
        segment=st.sampled_from((200, 3000, 100_000)),
        age=st.sampled_from((3, inf)),
    )
    def begin(self, cache: int, segment: int, age: float) -> None:
        self.segment, self.age = segment, age
        self.disk = Disk(Path(self.folder.name) / "data", cache=cache)
        self.disk.log.segment_octets, self.disk.log.segment_ms = segment, age

    @rule(count=st.integers(1, 40), later=st.integers(0, 3), size=st.sampled_from((0, 0, 500, 5000)))
    def publish(self, count: int, later: int, size: int) -> None:
        self.time += later
        self.disk.publish(count, self.time, size=size)
        self.times += [self.time] * count

    @rule()
    def commit(self) -> None:
        self.disk.commit()
        self.safe = len(self.times)
        self.safe_first = self.disk.log.first

    @rule(needed=st.integers(0, 500))
    def trim(self, needed: int) -> None:
        self.disk.log.trim(needed)

    @rule(octets=st.sampled_from((0, 1000, 20_000)), age=st.integers(0, 5))
    def retain(self, octets: int, age: int) -> None:
        log = self.disk.log
        before = log.first
        log.retain(octets, self.time - age)
        assert before <= log.first <= max(before, self.safe)
        rows = log.segments
        assert all(after.time - row.time <= self.age + 3 for row, after in pairwise(rows))
        if len(rows) > 1 and rows[1].first <= self.safe:
            assert log.kept_octets <= octets
            assert self.times[rows[1].first] > self.time - age

    @rule(at=st.floats(0, 1), most=st.integers(1, 60))
    def read(self, at: float, most: int) -> None:
        offset = int(at * len(self.times))
        first = max(offset, self.disk.log.first)
        expected = [(number, str(number).encode()) for number in range(first, min(first + most, self.safe))]
        assert self.disk.read(offset, most) == expected

    @rule()
    def look(self) -> None:
        numbers = range(self.disk.log.first, len(self.times))
        assert self.disk.look() == [(number, str(number).encode()) for number in numbers]

    @precondition(lambda self: self.times)
    @rule(at=st.floats(0, 1), more=st.integers(-1, 1))
    def find(self, at: float, more: int) -> None:
        time = self.times[int(at * (len(self.times) - 1))] + more
        first = self.disk.log.first
        wanted = next(
            (number for number in range(first, len(self.times)) if self.times[number] >= time),
            len(self.times),
        )
        assert self.disk.find(time) == wanted

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        first = self.disk.log.first
        if clean:
            self.safe, self.safe_first = len(self.times), first
        self.disk.stop(clean=clean)
        del self.times[self.safe :]
        self.disk.open()
        self.disk.log.segment_octets, self.disk.log.segment_ms = self.segment, self.age
        log = self.disk.log
        assert log.next_seq == self.safe
        assert (
            self.safe_first <= log.first <= first or not self.safe
        )  # a kill may bring back what was deleted last
        assert log.ready_count == self.safe - log.first

    @invariant()
    def confirmed(self) -> None:
        if hasattr(self, "disk"):
            assert self.disk.publisher.confirmed >= set(range(self.safe)) or not self.safe
            assert self.disk.log.next_seq == len(self.times)
            assert not self.disk.log.damaged

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.environment.close()
        self.folder.cleanup()


TestModel = StreamMachine.TestCase
TestModel.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "data", load_octets=64 * 1024)
    yield made
    made.environment.close()


def test_readers_at_the_same_place_cost_one_read(disk: Disk) -> None:
    """Fifty readers of the same messages read the disk once."""
    disk.publish(100, 1)
    disk.commit()
    disk.log.trim(1 << 60)
    for _ in range(50):
        assert disk.log.chunk(0) is None
    assert len(disk.requests) == 1
    disk.load()
    chunks = {id(disk.log.chunk(0)) for _ in range(50)}
    assert len(chunks) == 1
    assert not disk.requests


def test_no_reader_sees_a_message_before_its_commit(disk: Disk) -> None:
    """A message that a kill may lose is given to nobody."""
    disk.publish(3, 1)
    assert disk.read(0, 10) == []
    disk.commit()
    assert len(disk.read(0, 10)) == 3


def test_a_message_that_other_queues_have_too_survives_a_kill(disk: Disk) -> None:
    """The segment of a message whose body is stored elsewhere is visited at a start, so the body stays."""
    body = content(0, 8000)
    shared = Persistent(ADDRESS, body, 1, None, 0, 2)
    disk.publish(1, 1)
    disk.log.publish([shared], expires=1)
    disk.commit()
    disk.log.segment_octets = 1
    disk.publish(3, 1)
    disk.commit()
    disk.stop(clean=False)
    disk.open()
    assert [number for number, _ in disk.read(0, 10)] == [0, 1, 2, 3, 4]
    assert disk.log.damaged == 0


@pytest.mark.parametrize(("embed_below", "size"), [(0, 0), (1 << 30, 70_000)])
def test_a_body_stays_after_a_kill_wherever_the_settings_have_it_stored(
    disk: Disk, embed_below: int, size: int
) -> None:
    """A start that visits the last segment only removes no body to which an earlier one refers."""
    disk.journal.embed_below = Journal(embed_below=embed_below).embed_below
    disk.pager.blob_threshold = 65_536
    disk.publish(1, 1)
    disk.publish(1, 1, size=size)
    for msg_id, (message, _) in list(disk.journal.files.items()):
        disk.environment.bodies.write(msg_id, message.content)
        disk.journal.file_written(msg_id)
    disk.commit()
    disk.log.segment_octets = 1
    disk.pager.blob_threshold = 1 << 30
    disk.journal.embed_below = 4096
    disk.publish(2, 1)
    disk.commit()
    disk.stop(clean=False)
    disk.open()
    assert [number for number, _ in disk.read(0, 10)] == [0, 1, 2, 3]
    assert disk.log.damaged == 0


def test_no_offset_is_given_again_when_the_last_segment_has_no_message(disk: Disk) -> None:
    """Retention has deleted all others, and the body of the last message was not in its file when the broker was killed."""
    disk.publish(3, 1)
    disk.commit()
    disk.pager.blob_threshold = 1000
    disk.log.segment_octets = 1
    disk.publish(1, 2, size=2000)
    disk.log.retain(0, 0)
    disk.commit()
    disk.stop(clean=False)
    disk.open()
    assert disk.log.next_seq == 3
    disk.publish(1, 3)
    disk.commit()
    assert disk.read(0, 10) == [(3, b"3")]


@pytest.mark.parametrize("clean", [False, True])
def test_a_segment_whose_row_is_damaged_is_read_all_the_same(disk: Disk, clean: bool) -> None:
    """After a clean stop, and after a kill; retention deletes it like others."""
    disk.log.segment_octets = 200
    for number in range(4):
        disk.publish(10, number, size=40)
        disk.commit()
    starts = [segment.first for segment in disk.log.segments]
    assert len(starts) > 2
    disk.stop(clean=clean)
    environment = Environment(disk.path, sync=False)
    with environment.store.env.begin(write=True) as txn:
        table = environment.store.db[SEGMENTS]
        key = segment_key(QID, starts[0])
        txn.put(key, txn.get(key, db=table)[:-1] + b"\xff", db=table)
    environment.close()
    disk.open()
    assert (disk.log.first, disk.log.ready_count) == (0, 40)
    assert [offset for offset, _ in disk.read(0, 40)] == list(range(40))
    disk.log.retain(400, 0)
    disk.commit()
    assert [*disk.environment.segments()[QID]] == disk.log.segments


def test_a_slow_reader_costs_little_memory_and_no_time(disk: Disk) -> None:
    """The messages that are kept for it are few, with all that they take, and no turn walks through them."""

    class Unwalked(deque[Entry]):
        def __iter__(self) -> Iterator[Entry]:
            raise AssertionError

    disk.log._tail.entries = Unwalked()
    for _ in range(20):
        disk.publish(500, 1)
        disk.commit()
        disk.log.trim(0)
    count, _, _, _ = disk.log.state_counts()
    assert 1000 < count < TAIL_OCTETS // OVERHEAD
    disk.log.trim(disk.log.next_seq)
    assert not disk.log.state_counts()[0]


def test_a_clock_that_was_in_the_future_ends_no_retention(disk: Disk) -> None:
    """Messages that came while the clock was a year ahead grow old from the next message on, also after a kill."""
    log, year, now = disk.log, 365 * 86_400_000, 1_000_000
    log.segment_ms = 1000
    disk.publish(3, now)
    disk.publish(3, now + year)
    disk.commit()
    disk.publish(1, now + 100_000)
    disk.commit()
    assert [row.time for row in log.segments] == [now, now + 100_000, now + 100_000]
    log.retain(inf, now + 100_000)
    assert log.first == 6
    disk.stop(clean=False)
    disk.open()
    log = disk.log
    log.segment_ms = 1000
    disk.publish(1, now + 200_000)
    disk.commit()
    log.retain(inf, now + 200_000)
    assert log.first == 7


def test_reads_from_disk_are_counted(disk: Disk) -> None:
    """A read of a stream counts its messages and blocks as a read of any queue does."""
    disk.publish(100, 1)
    disk.commit()
    disk.log.trim(inf)
    assert len(disk.read(0, 100)) == 100
    reads = disk.pager.read_delta
    assert (reads.messages, reads.blocks) == (100, 7)


def test_the_tails_of_all_streams_share_their_memory(disk: Disk) -> None:
    """A stream keeps no stored messages for slow readers once those of all streams are at the limit."""
    disk.log.trim(0)
    for _ in range(10):
        disk.publish(1, 1, size=1000)
    disk.commit()
    disk.log.trim(0)
    assert disk.log.state_counts()[0] == 10
    cache = disk.log._cache
    cache.tail_octets += cache.limit - 5000
    disk.log.trim(0)
    assert 0 < disk.log.state_counts()[0] < 5
    disk.log.delete()
    assert cache.tail_octets == cache.limit - 5000


def test_segments_are_few_whatever_size_they_are_to_have() -> None:
    """A client that asks for very small ones takes no memory for each message."""
    log = StreamLog(None, 0, ChunkCache(1000), marked)
    log.segment_octets = 0
    message = Message(ADDRESS, content(0), 1)
    for _ in range(10):
        log.publish([message] * FINEST, expires=1)
    assert FINEST < len(log.segments) < 4 * FINEST


def test_a_search_that_was_given_up_reads_no_more(disk: Disk) -> None:
    """Readers that come and go, each with a time, leave one read behind; the search of one that stays goes on."""
    for time in range(1, 40):
        disk.publish(20, time)
        disk.commit()
    disk.log.trim(1 << 60)
    found: list[int] = []
    for _ in range(100):
        gone = object()
        disk.log.find_time(gone, 20, found.append)
        disk.log.give_up_search(gone)
    assert len(disk.requests) == 1
    disk.log.find_time(disk, 30, found.append)
    while disk.load():
        pass
    assert found == [29 * 20]
    assert disk.find(7) == 6 * 20


def test_messages_in_memory_only(tmp_path: Path) -> None:
    """Without a disk a stream is in memory, and readers get all of it."""
    del tmp_path
    log = StreamLog(None, 0, ChunkCache(1000), marked)
    log.publish([Message(ADDRESS, content(number), 1) for number in range(5)], expires=1)
    log.trim(1 << 60)
    chunk = log.chunk(2)
    assert chunk is not None
    assert list(chunk.offsets) == [2, 3, 4]
    log.segment_octets = 1
    log.publish([Message(ADDRESS, content(number), 1) for number in range(5)], expires=9)
    log.retain(0, 5)
    assert log.first == 9


def test_a_run_is_checked_and_compacted_as_its_messages(disk: Disk) -> None:
    """A check finds the messages of runs, and compaction keeps those that retention has left in a block."""
    disk.log.segment_octets = 3000
    disk.publish(15, 1, size=1000)
    disk.commit()
    disk.log.retain(8000, 0)
    disk.publish(1, 1)
    disk.commit()
    first = disk.log.first
    assert 0 < first < 12
    disk.stop(clean=False)
    compact(disk.path)
    findings: list[Finding] = []
    stats = Check(disk.path, findings.append).run()
    assert stats is not None
    assert {(each.messages, each.dead) for each in stats.queues} == {(16 - first, 0)}
    assert [each for each in findings if each.damage] == []
    disk.open()
    assert disk.read(0, 20) == [(number, str(number).encode()) for number in range(first, 16)]


def test_messages_that_need_one_have_a_record_of_their_own(disk: Disk) -> None:
    """A run has no message that is large, or that other queues have, too; all are read in their order."""
    sizes = [10, 10, 20_000, 10, 10, 10]
    copies = [1, 1, 1, 1, 2, 1]
    disk.log.publish(
        [
            Persistent(ADDRESS, content(number, size), 1, None, number, count)
            for number, (size, count) in enumerate(zip(sizes, copies, strict=True))
        ],
        expires=1,
    )
    assert [entry.span for entry in disk.log._tail.entries] == [2, 1, 1, 1, 1]
    disk.commit()
    disk.log.trim(1 << 60)
    assert disk.read(0, 9) == [(number, str(number).encode()) for number in range(6)]


def test_each_message_of_a_run_that_finds_no_space_is_refused(disk: Disk) -> None:
    """The publisher of each message hears that it cannot be written now, and that of none that it is confirmed."""
    refused: list[int] = []
    disk.publisher.refused = refused.append  # type: ignore[method-assign]
    disk.publish(3, 1)
    disk.journal.cut()
    disk.journal.settled(DiskFullError("full"))
    assert refused == [0, 1, 2]
    disk.commit()
    assert not disk.publisher.confirmed
    assert [number for number, _ in disk.read(0, 9)] == [0, 1, 2]


def test_a_deleted_stream_confirms_the_messages_of_runs_when_that_is_safe(disk: Disk) -> None:
    """None is confirmed before the deletion is on disk: after a kill the stream would be there without them."""
    disk.publish(3, 1)
    disk.log.delete()
    assert not disk.publisher.confirmed
    disk.commit()
    assert disk.publisher.confirmed == {0, 1, 2}
