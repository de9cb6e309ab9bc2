"""The copy of a replicated log: batches of the journal as bytes, applied once, with their place."""

from pathlib import Path
from random import Random

import pytest
from crash.judged import needs_power_cuts
from crash.loopdisk import LoopDisk
from samples.writer import QID, Writer

from leveret.storage import delayed
from leveret.storage.delayed import SWEEP_ROWS
from leveret.storage.errors import DamagedError, StorageError
from leveret.storage.journal.batch import decode_batch
from leveret.storage.journal.journal import Journal
from leveret.storage.message import Persistent
from leveret.storage.store.compact import compact
from leveret.storage.store.environment import Environment
from leveret.storage.store.replica import (
    NotReplicatedError,
    Part,
    ReplicaEnvironment,
    begin_restore,
    put_in_place,
    remove_copy,
)

SEEDS = range(20)
TABLES = ("defs", "blocks", "acks", "bodies", "refs", "sweeps")


def contents(environment):
    """Return what the tables have that the log changes."""
    return {name: list(environment.rows(name)) for name in TABLES}


class Logging(Writer):
    """A queue's part of a journal whose batches go to an environment, and as bytes to others."""

    def __init__(self, environment, replicas, journal=None, qid=QID):
        super().__init__(environment, journal, qid)
        self.replicas = replicas
        self.place = 0

    def commit(self, entries=None):
        batch = self.journal.cut()
        self.place += 1
        for replica in self.replicas:
            octets, error = replica.prepare(batch)
            assert error is None
            if octets is not None:
                replica.apply(self.place.to_bytes(8, "big"), [(octets, (), ())], ())
        self.environment.commit(batch)
        self.journal.settled()
        return entries or []


def history(writer, random):
    """Publish, settle and purge at random."""
    journal = writer.journal
    live, seq = [], 1 << 40
    for _ in range(60):
        match random.randrange(6):
            case 0 | 1 | 2:
                count, size = random.randint(1, 90), random.choice([10, 200, 5000])
                live += writer.write(*range(seq, seq + count), size=size, copies=random.choice([1, 1, 3]))
                seq += count
            case 3 if live:
                random.shuffle(live)
                dead, live = live[: len(live) // 2], live[len(live) // 2 :]
                writer.kill(*dead)
            case 4 if live:
                journal.returned(live[0], 2)
                journal.put("defs", random.randbytes(4), b"definition")
                writer.commit()
            case 5 if random.random() < 0.2:
                journal.sweep(writer.qid, 0, seq)
                writer.commit()
                live = []
            case _:
                journal.put("defs", b"same", random.randbytes(8))
                writer.commit()


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_are_equal(tmp_path: Path, seed: int) -> None:
    """A copy to which the batches of a journal were applied has the tables of the environment that committed them."""
    environment = Environment(tmp_path / "a", sync=False)
    replica = ReplicaEnvironment(tmp_path / "b", sync=False)

    history(Logging(environment, [replica]), Random(seed))

    assert contents(environment) == contents(replica)
    assert environment.store.span == replica.store.span
    environment.close()
    replica.close()


def write_a_place(path: Path) -> None:
    replica = ReplicaEnvironment(path, sync=False)
    journal = Journal(1 << 40)
    journal.put("defs", b"key", b"value")
    octets, _ = replica.prepare(journal.cut())
    assert octets is not None
    replica.apply(b"place", [(octets, (), ())], ())
    replica.close()


def test_the_place_is_written_with_the_batch(tmp_path: Path) -> None:
    """A copy that is opened again knows its place, and the batches up to there are in it."""
    write_a_place(tmp_path)

    replica = ReplicaEnvironment(tmp_path, sync=False)
    assert b"place" == replica.place
    assert [(b"key", b"value")] == list(replica.rows("defs"))
    assert not replica.was_clean
    replica.close()


def test_batches_applied_together_delete_no_more_delayed_messages_than_one(tmp_path: Path) -> None:
    """As many as one transaction should; the next ones delete the rest."""
    copy, journal = ReplicaEnvironment(tmp_path, sync=False), Journal(1 << 40)

    def batch() -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
        octets, _ = copy.prepare(journal.cut())
        journal.settled()
        assert octets is not None
        return octets, (), ()

    count = 2 * SWEEP_ROWS + 1
    for number in range(count):
        journal.put(delayed.TABLE, delayed.pack_key(7, (number, number)), b"delayed")
    batches = [batch()]
    journal.delete(delayed.TABLE, delayed.pack_line(7))
    batches.append(batch())
    for number in range(5):
        journal.put("defs", b"%d" % number, b"definition")
        batches.append(batch())
    left = []
    copy.apply(b"all", batches, ())
    while copy.has_unfinished_durable:
        left.append(len(list(copy.rows(delayed.TABLE))))
        copy.sweep_on()

    assert [count - SWEEP_ROWS, 1] == left
    assert [] == list(copy.rows(delayed.TABLE))
    copy.close()


def test_what_cannot_be_read_is_not_applied_in_part(tmp_path: Path) -> None:
    """If one batch of an entry is damaged none is applied, and the place stays."""
    replica = ReplicaEnvironment(tmp_path, sync=False)
    journal = Journal(1 << 40)
    journal.put("defs", b"key", b"value")
    octets, _ = replica.prepare(journal.cut())
    assert octets is not None

    with pytest.raises(DamagedError):
        replica.apply(b"place", [(octets, (), ()), (octets[:-1], (), ())], ())
    assert b"" == replica.place
    assert [] == list(replica.rows("defs"))
    with pytest.raises(DamagedError):
        decode_batch(b"\x91\x02")
    replica.close()


@pytest.mark.parametrize(
    ("content", "share"),
    [
        (b"a text that is said again, " * 10_000, 0.1),
        (Random(1).randbytes(100_000), 1.01),
        (b"short", 200),
    ],
    ids=["text", "random", "short"],
)
def test_what_can_be_compressed_is(tmp_path: Path, content: bytes, share: float) -> None:
    """A batch takes less in the log if its contents allow that, and is the same for whoever reads it."""
    replica = ReplicaEnvironment(tmp_path, sync=False)
    writer = Writer(replica)
    writer.note(Persistent(b"\x01x\x01k", content, 1, None, 0, 1), 7)
    octets, _ = replica.prepare(writer.journal.cut())
    assert octets is not None

    assert len(octets) <= share * len(content)
    assert [content] == [body for _, body in decode_batch(octets).bodies] or content in octets
    with pytest.raises(DamagedError):
        decode_batch(octets[:-1])
    replica.close()


def test_a_batch_in_pieces(tmp_path: Path) -> None:
    """Pieces are kept over a start, applied with the batch that names them, and removed with those of a lost leader."""
    replica = ReplicaEnvironment(tmp_path, sync=False)
    writer = Writer(replica)
    writer.note(Persistent(b"\x01x\x01k", b"b" * 5000, 1, None, 0, 1), 7)
    octets, _ = replica.prepare(writer.journal.cut())
    assert octets is not None
    replica.keep_part(b"1", Part(9, 0, is_last=True), b"left", ())
    replica.keep_part(b"2", Part(5, 0, is_last=False), octets[:100], ())
    replica.close()

    replica = ReplicaEnvironment(tmp_path, sync=False)
    assert ({5: 100, 9: 4}, {9}) == replica.open_batches()
    replica.keep_part(b"3", Part(5, 100, is_last=True), octets[100:], (9,))
    assert ({5: len(octets)}, {5}) == replica.open_batches()
    replica.apply(b"4", [(b"", (5,), ())], ())

    assert ({}, set()) == replica.open_batches()
    assert b"4" == replica.place
    assert 1 == len(list(replica.rows("blocks")))
    replica.close()


def test_a_snapshot_is_a_copy(tmp_path: Path) -> None:
    """The file of a snapshot, put in place elsewhere, is a copy with its place; one of another place is refused."""
    environment = Environment(tmp_path / "a", sync=False)
    replica = ReplicaEnvironment(tmp_path / "b", sync=False)
    history(Logging(environment, [replica]), Random(3))
    path, place = replica.copy_to_file()
    octets = path.read_bytes()
    replica.forget_copy()
    assert not path.exists()

    other = ReplicaEnvironment(tmp_path / "c", sync=False)
    other.close()
    remove_copy(tmp_path / "c")
    begin_restore(tmp_path / "c").write_bytes(octets)
    with pytest.raises(DamagedError):
        put_in_place(tmp_path / "c", b"elsewhere")
    put_in_place(tmp_path / "c", place)
    other = ReplicaEnvironment(tmp_path / "c", sync=False)

    assert place == other.place
    assert contents(replica) == contents(other)
    for each in (environment, replica, other):
        each.close()


def test_data_of_one_machine_are_no_copy(tmp_path: Path) -> None:
    """A directory with data of a broker without a log is refused, and left as it is."""
    environment = Environment(tmp_path, sync=False)
    Writer(environment).write(1 << 40)
    before = contents(environment)
    environment.close()

    with pytest.raises(NotReplicatedError):
        ReplicaEnvironment(tmp_path, sync=False)
    environment = Environment(tmp_path, sync=False)
    assert before == contents(environment)
    environment.close()


def test_a_copy_that_was_used_alone_is_no_copy_any_more(tmp_path: Path) -> None:
    """A copy is not compacted; opened without a log it loses its place, and is refused as a copy from then on."""
    write_a_place(tmp_path)

    with pytest.raises(StorageError, match="not compacted"):
        compact(tmp_path)
    Environment(tmp_path, sync=False).close()
    with pytest.raises(NotReplicatedError):
        ReplicaEnvironment(tmp_path, sync=False)


@needs_power_cuts
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_undoes_one_entry_at_most(tmp_path, seed):
    """After a power cut a copy is at the last place or the one before, with what belongs to it."""
    random = Random(seed)
    known = {}
    with LoopDisk(tmp_path, 64) as disk:
        data_dir = disk.mount_point / "copy"
        environment, plain = ReplicaEnvironment(data_dir), Environment(tmp_path / "plain")
        assert (False, True) == tuple(each.store.env.flags()["metasync"] for each in (environment, plain))
        writer = Logging(plain, [environment])
        for _ in range(random.randint(5, 40)):
            writer.write(*range(writer.place << 8, (writer.place << 8) + random.randint(1, 9)), size=3000)
            known[environment.place] = contents(environment)
        plain.close()
        last = sorted(known)[-2:]
        disk.cut()
        environment.close()
        disk.restore()
        found = ReplicaEnvironment(data_dir)
        try:
            assert found.place in last
            assert known[found.place] == contents(found)
        finally:
            found.close()
