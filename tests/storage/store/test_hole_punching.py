"""Free pages are given back to the disk while the file is in use, and nothing that is needed goes with them."""

import errno
from pathlib import Path
from random import Random

import pytest
from crash.diskfull import fill
from crash.judged import needs_small_disks
from crash.loopdisk import MemoryDisk

from leveret.storage.damage import Damages
from leveret.storage.errors import DamagedError
from leveret.storage.store import hole_punching
from leveret.storage.store.hole_punching import RESERVE, give_back, keep_reserve
from leveret.storage.store.lmdb_environment import LmdbEnvironment

ALL = 10.0
"""Seconds that are enough for all in one step."""


@pytest.fixture(autouse=True)
def _small_reserve(monkeypatch):
    monkeypatch.setattr(hole_punching, "RESERVE", 4096)


def opened(path: Path) -> LmdbEnvironment:
    """A file with one table that is of interest."""
    return LmdbEnvironment(path, ("meta", "rows"), Damages(), sync=False)


def taken(table: LmdbEnvironment) -> int:
    """Octets that the file takes of the disk."""
    return (table.path / "data.mdb").stat().st_blocks * 512


def given_back(table: LmdbEnvironment, seconds: float = 0.01) -> int:
    """Give back all there is; returns the number of steps."""
    given, steps = give_back(table, seconds=seconds), 1
    while given.more:
        given, steps = give_back(table, given.after, seconds=seconds), steps + 1
    return steps


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_is_needed_goes(tmp_path, seed):
    """Rows are as they were after any writes and deletions, for readers of older transactions and after a start too."""
    rng = Random(seed)
    table = opened(tmp_path)
    model: dict[bytes, bytes] = {}
    snapshot, seen = None, model
    for number in range(150):
        with table.writing() as txn:
            for _ in range(rng.choice([1, 5, 40])):
                key = rng.randrange(300).to_bytes(8, "big")
                if rng.random() < 0.45:
                    model[key] = rng.randbytes(rng.choice([10, 500, 5000, 70_000, 300_000]))
                    txn.put(key, model[key], db=table.db["rows"])
                else:
                    model.pop(key, None)
                    txn.delete(key, db=table.db["rows"])
        if number % 10 == 3:
            snapshot, seen = table.env.begin(), dict(model)
        given_back(table, rng.choice([0.0, 1.0]))
        keep_reserve(table, set())
        if snapshot is not None and number % 10 == 8:
            assert seen == dict(snapshot.cursor(table.db["rows"]))
            snapshot.abort()
            snapshot = None
        if number % 30 == 29:
            table.env.close()
            table = opened(tmp_path)
            with table.env.begin() as txn:
                assert model == dict(txn.cursor(table.db["rows"]))
    table.env.close()


def drained(path: Path) -> LmdbEnvironment:
    """A file of some 40 MB of which next to nothing is left."""
    table = opened(path)
    for number in range(100):
        with table.writing() as txn:
            txn.put(b"%03d" % number, bytes(400_000), db=table.db["rows"])
    for number in range(99):
        with table.writing() as txn:
            txn.delete(b"%03d" % number, db=table.db["rows"])
    return table


def test_the_disk_has_the_room_of_what_was_drained(tmp_path):
    """The file takes little of the disk afterwards, in several steps if each may take no time, and grows again."""
    table = drained(tmp_path)
    before = taken(table)
    steps = given_back(table, 0.0)
    after = taken(table)
    for number in range(50):
        with table.writing() as txn:
            txn.put(b"%03d" % number, bytes(400_000), db=table.db["rows"])
    again = taken(table)
    table.env.close()

    assert before > 30_000_000
    assert after < before / 10
    assert after + 15_000_000 < again <= before + 1_000_000
    assert steps > 10


def test_a_reader_keeps_what_it_may_need(tmp_path):
    """Pages that were freed since a transaction began which still reads are left alone."""
    table = opened(tmp_path)
    with table.writing() as txn:
        txn.put(b"large", bytes(10_000_000), db=table.db["rows"])
    with table.env.begin() as reader:
        with table.writing() as txn:
            txn.delete(b"large", db=table.db["rows"])
        for _ in range(3):
            with table.writing() as txn:
                txn.put(b"later", b"", db=table.db["meta"])
        given_back(table)
        kept = taken(table)
        assert bytes(10_000_000) == reader.get(b"large", db=table.db["rows"])
    given_back(table)
    table_taken = taken(table)
    table.env.close()

    assert kept > 10_000_000 > table_taken


def test_files_that_lmdb_sees_otherwise_are_left_alone(tmp_path, monkeypatch):
    """A file whose free pages are not as many as LMDB has unused ones is left alone."""
    table = drained(tmp_path)
    before = taken(table)
    monkeypatch.setattr(hole_punching, "unused_octets", lambda *_: 4096)
    with pytest.raises(DamagedError, match="pages are unused"):
        give_back(table)
    unchanged = taken(table)
    table.env.close()

    assert before == unchanged


def test_a_file_system_without_holes_says_so(tmp_path, monkeypatch):
    """A request that the file system cannot carry out is an OSError, and the file is as it was."""

    def refuse(*_arguments):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    table = drained(tmp_path)
    monkeypatch.setattr(hole_punching, "_fallocate", refuse)
    with pytest.raises(OSError, match="not supported"):
        give_back(table)
    with table.writing() as txn:
        txn.put(b"goes on", b"", db=table.db["meta"])
    table.env.close()


def delete_in_parts(table: LmdbEnvironment, rows: list[bytes]) -> None:
    """Delete rows all over the table, fifty in a commit."""
    Random(1).shuffle(rows)
    while rows:
        with table.writing() as txn:
            for key in rows[:50]:
                txn.delete(key, db=table.db["meta"])
        del rows[:50]


@needs_small_disks
@pytest.mark.parametrize("is_used_up", [False, True])
def test_deletions_have_room_where_others_fill_the_disk(tmp_path, monkeypatch, is_used_up):
    """Pages that LMDB takes first stay allocated, also after other messages used them up: a full disk can be drained."""
    monkeypatch.setattr(hole_punching, "RESERVE", RESERVE)
    with MemoryDisk(tmp_path, 128) as disk:
        table = opened(disk.mount_point)
        rows = [b"%d" % number for number in range(2000)]
        with table.writing() as txn:
            for key in rows:
                txn.put(key, bytes(2000), db=table.db["meta"])
        for number in range(100):
            with table.writing() as txn:
                txn.put(b"%d" % number, bytes(600_000), db=table.db["rows"])
        for number in range(100):
            with table.writing() as txn:
                txn.delete(b"%d" % number, db=table.db["rows"])
        given_back(table, ALL)
        left = taken(table)
        if is_used_up:
            for number in range(40):
                with table.writing() as txn:
                    txn.put(b"%d" % number, bytes(600_000), db=table.db["rows"])
            with table.writing() as txn:
                txn.drop(table.db["rows"], delete=False)
            keep_reserve(table, set(), seconds=ALL)
        fill(disk.mount_point / "filler")
        delete_in_parts(table, rows)
        table.env.close()

    assert RESERVE <= left < RESERVE + 12_000_000
    assert not rows


def test_the_reserve_is_kept_in_steps(tmp_path, monkeypatch):
    """A step that may take no time fills a part of it, the next one goes on, and the last finds nothing to do."""
    table = drained(tmp_path)
    given_back(table, ALL)
    before = taken(table)
    monkeypatch.setattr(hole_punching, "RESERVE", 8_000_000)
    found, sizes = set(), [0]
    while True:
        found = keep_reserve(table, found, seconds=0.0)
        if len(found) == sizes[-1]:
            break
        sizes.append(len(found))
    after = taken(table)
    table.env.close()

    assert len(sizes) > 2
    assert 8_000_000 // 4096 == sizes[-1]
    assert before + 7_000_000 < after < before + 9_000_000
