"""Definitions read from a broker's store, and the cost of other processes that read it."""

import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from samples.stored import Stored

from leveret.storage.errors import StorageError, UnknownFormatError
from leveret.storage.journal.journal import Journal
from leveret.storage.store import read_only
from leveret.storage.store.environment import Environment
from leveret.storage.store.read_only import stored_definitions


def test_rows_that_were_committed(tmp_path):
    """Committed rows are there; others are not."""
    environment = Environment(tmp_path, sync=False)
    journal = Journal(1 << 40, 4096)
    journal.put("defs", b"Vone", b"1")
    environment.commit(journal.cut())
    journal.put("defs", b"Vtwo", b"2")
    environment.close()

    assert [(b"Vone", b"1")] == stored_definitions(tmp_path)


def test_what_cannot_be_read(tmp_path):
    """Missing data, data of a later format, and a file that is none are distinguished."""
    with pytest.raises(StorageError, match="there is no data"):
        stored_definitions(tmp_path)
    Environment(tmp_path, sync=False).close()
    with lmdb.open(str(tmp_path / "store"), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"3 (needs leveret 0.9.0 or newer)", db=env.open_db(b"meta", txn=txn))
    with pytest.raises(
        UnknownFormatError,
        match=r"has format 3 \(needs leveret 0.9.0 or newer\), this version reads format 2",
    ):
        stored_definitions(tmp_path)
    (tmp_path / "store" / "data.mdb").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="cannot read the data"):
        stored_definitions(tmp_path)


READER = """
import lmdb, sys, time
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=16, map_size=1 << 40)
with env.begin() as txn:
    print("reading", flush=True)
    time.sleep(60)
"""


def reading(data_dir: Path) -> subprocess.Popen[str]:
    """A process that has a read transaction open."""
    words = [sys.executable, "-c", READER, str(data_dir / "store")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "reading\n" == process.stdout.readline()
    return process


def used(stored: Stored, commits: int) -> int:
    """Octets of the data file after many messages have passed through a queue that stays empty."""
    for number in range(commits):
        stored.publish(f"{number % 10}" * 3000, "q")
        stored.commit()
        stored.take("q", 1)
        stored.commit()
    return (stored.environment.store.path / "data.mdb").stat().st_size


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_reader_that_died_does_not_stop_the_reuse_of_pages(tmp_path, number):
    """A look at the readers forgets those whose process has ended, and freed pages are used again."""
    stored = Stored(tmp_path, "q")
    before = used(stored, 20)
    with reading(tmp_path) as process:
        used(stored, 5)
        alive = stored.environment.store.reader_lag()
        process.send_signal(number)
        process.wait(timeout=20)
    dead = stored.environment.store.reader_lag()
    after = used(stored, 200)
    stored.close()

    assert (True, 0) == (alive >= 10, dead)
    assert after <= before + 200_000


def test_definitions_are_read_in_short_transactions(tmp_path, monkeypatch):
    """Definitions are read in transactions of a few rows, and are those of one moment although some change meanwhile."""
    stored = Stored(tmp_path, "q")
    for number in range(25):
        stored.journal.put("defs", b"X%03d" % number, b"old")
    stored.commit()
    monkeypatch.setattr(read_only, "ROWS", 10)
    in_parts, calls = read_only._rows_in_parts, []

    def changing(env, table):
        rows = in_parts(env, table)
        calls.append(len(rows))
        if len(calls) < 3:
            stored.journal.put("defs", b"X%03d" % len(calls), b"new")
            stored.commit()
        return rows

    monkeypatch.setattr(read_only, "_rows_in_parts", changing)
    store = stored.environment.store
    rows = dict(read_only._rows(store.env, store.db["defs"]))
    stored.close()

    assert 4 == len(calls)
    assert [b"old", b"new", b"new", b"old"] == [rows[b"X%03d" % number] for number in range(4)]
    assert rows == dict(stored_definitions(tmp_path))
