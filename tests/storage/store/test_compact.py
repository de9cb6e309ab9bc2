"""Compaction of the data file: what stays, what goes, and what an interruption leaves."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, strategies as st
from samples.stored import Stored, example

from leveret.storage.errors import DamagedError, DiskFullError, StorageError, UnknownFormatError
from leveret.storage.journal.blocks import (
    Record,
    bodies_of,
    offsets_of,
    pack_bits,
    read_bitmap,
    read_header,
    read_records,
)
from leveret.storage.store import compact as module
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import LEFT_BEHIND, Compacted, compact, measure, rewritten
from leveret.storage.store.environment import Environment
from leveret.storage.store.lmdb_environment import MAP_SIZE


def rows_of(data_dir: Path) -> dict[str, dict[bytes, bytes]]:
    found = {}
    path = str(data_dir / "store")
    with lmdb.open(path, readonly=True, lock=False, max_dbs=16, map_size=MAP_SIZE) as env:
        for name in ("meta", "defs", "queues", "blocks", "acks", "bodies", "refs", "sweeps"):
            table = env.open_db(name.encode(), create=False)
            with env.begin() as txn:
                found[name] = dict(txn.cursor(table))
    return found


def messages_of(rows: dict[str, dict[bytes, bytes]]) -> list[tuple[Any, ...]]:
    """Return the unsettled messages, in order: queue, seq_id and all else."""
    found = []
    for key, value in rows["blocks"].items():
        header = read_header(key, value)
        for record in read_records(value, header, read_bitmap(rows["acks"].get(key), header).dead):
            found.append((header.qid, *record[1:]))  # noqa: PERF401 - reads better
    return sorted(found)


def findings(data_dir: Path) -> list[Finding]:
    found: list[Finding] = []
    Check(data_dir, found.append).run()
    return found


def with_garbage(data_dir: Path, *, clean: bool = False) -> None:
    """A file most of which is unused pages, and some dead records."""
    stored = Stored(data_dir, "much", "little")
    for number in range(600):
        stored.publish(f"{number % 10}" * 3000, "much")
        stored.publish(f"little {number}", "little")
    stored.commit()
    stored.take("much", 500)
    stored.take("little", 500, *range(0, 500, 5))
    stored.commit()
    stored.commit()
    stored.close(clean=clean)


@pytest.mark.parametrize("clean", [False, True])
def test_what_is_needed_stays(tmp_path, clean):
    """Messages, bodies, definitions and what a clean stop saved are the same afterwards; the file is smaller."""
    with_garbage(tmp_path, clean=clean)
    before, garbage = rows_of(tmp_path), measure(tmp_path)
    done = compact(tmp_path)
    after = rows_of(tmp_path)

    assert messages_of(before) == messages_of(after)
    assert {} == after["acks"]
    for name in ("meta", "defs", "queues", "bodies", "refs", "sweeps"):
        assert before[name] == after[name]
    assert [] == findings(tmp_path)
    assert (garbage.file, (tmp_path / "store" / "data.mdb").stat().st_size) == (done.before, done.after)
    assert done.after < done.before / 2
    dead = [
        read_bitmap(value, read_header(key, before["blocks"][key])).dead
        for key, value in before["acks"].items()
    ]
    assert sum(bits.bit_count() for bits in dead) == done.records
    assert (True, True) == (measure(tmp_path).fraction < 0.1, garbage.fraction > 0.5)


def test_bodies_and_files_stay(tmp_path):
    """References go on referring, and what is left out is what was settled."""
    example(tmp_path)
    before = rows_of(tmp_path)

    assert 32 == compact(tmp_path).records
    assert messages_of(before) == messages_of(rows_of(tmp_path))
    assert [] == findings(tmp_path)


def test_a_second_time_changes_nothing(tmp_path):
    """Data without garbage come out as they went in."""
    with_garbage(tmp_path)
    compact(tmp_path)
    before, size = rows_of(tmp_path), (tmp_path / "store" / "data.mdb").stat().st_size

    assert Compacted(size, size, 0) == compact(tmp_path)
    assert before == rows_of(tmp_path)


def test_many_transactions_are_as_good_as_one(tmp_path, monkeypatch):
    """Rows are copied whole and in order, however little one transaction takes."""
    monkeypatch.setattr(module, "AT_ONCE", 500)
    with_garbage(tmp_path)
    before = rows_of(tmp_path)
    compact(tmp_path)

    assert messages_of(before) == messages_of(rows_of(tmp_path))
    assert [] == findings(tmp_path)


def test_blocks_that_change_places_are_put_in_order(tmp_path, monkeypatch):
    """A block whose first records are dead may begin behind one that began in its midst."""
    monkeypatch.setattr(module, "AT_ONCE", 1)
    stored = Stored(tmp_path, "q")
    queue = stored.queues["q"]
    for number in range(20):
        stored.publish(("f" * 30_000) if number == 10 else f"{number}", "q")
    files, stored.journal.files = stored.journal.files, {}
    stored.commit()
    stored.journal.files = files
    stored.commit()
    stored.take("q", 15, 10)
    stored.commit()
    stored.close()
    before = rows_of(tmp_path)
    compact(tmp_path)
    after = rows_of(tmp_path)

    assert 2 == len(before["blocks"]) == len(after["blocks"])
    assert queue.qid == int.from_bytes(next(iter(after["blocks"]))[:8], "big")
    assert messages_of(before) == messages_of(after)
    assert list(before["blocks"]) != list(after["blocks"])
    assert [] == findings(tmp_path)


def interrupted(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["_put", "_fill", "os.fsync", "replacing"])
def test_an_interrupted_compaction_changes_nothing(tmp_path, monkeypatch, where):
    """A compaction interrupted at any step leaves the old data in use, and the next one does all of it."""
    with_garbage(tmp_path)
    before = rows_of(tmp_path)
    if where == "os.fsync":
        monkeypatch.setattr(os, "fsync", interrupted)
    elif where != "replacing":
        monkeypatch.setattr(module, where, interrupted)
    replacing = interrupted if where == "replacing" else lambda: None
    with pytest.raises(KeyboardInterrupt):
        compact(tmp_path, replacing=replacing)
    monkeypatch.undo()

    assert before == rows_of(tmp_path)
    assert messages_of(before) == messages_of(rows_of(tmp_path))
    assert compact(tmp_path).records > 0
    assert messages_of(before) == messages_of(rows_of(tmp_path))


KILLED = """
import os, sys
from pathlib import Path
from leveret.storage.store import compact
data_dir, step = Path(sys.argv[1]), sys.argv[2]
if step == "replaced":
    compact.sync_directory = lambda _: os._exit(9)
compact.compact(data_dir, replacing=lambda: os._exit(9) if step == "replacing" else None)
"""


@pytest.mark.parametrize("step", ["replacing", "replaced"])
def test_a_kill_leaves_a_file_that_nobody_reads(tmp_path, step):
    """Before the new file takes the old one's name, and after it, the data are whole; the next compaction tidies up."""
    with_garbage(tmp_path)
    before = messages_of(rows_of(tmp_path))
    words = [sys.executable, "-c", KILLED, str(tmp_path), step]
    done = subprocess.run(words, cwd=Path(__file__).parents[3], timeout=30, check=False)

    assert 9 == done.returncode
    assert (step == "replacing") == (tmp_path / "store" / LEFT_BEHIND).exists()
    assert before == messages_of(rows_of(tmp_path))
    assert [] == findings(tmp_path)
    compact(tmp_path)
    assert not (tmp_path / "store" / LEFT_BEHIND).exists()


def test_no_room_beside_the_old_file(tmp_path, monkeypatch):
    """A file system without room for the new file is left as it is, and the sizes are reported."""
    with_garbage(tmp_path)
    before = rows_of(tmp_path)
    stat = os.statvfs(tmp_path)
    few = os.statvfs_result((*stat[:4], 3, *stat[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: few)
    with pytest.raises(DiskFullError, match=r"not enough disk space to compact: [0-9]+ bytes are needed"):
        compact(tmp_path)

    assert before == rows_of(tmp_path)
    assert not (tmp_path / "store" / LEFT_BEHIND).exists()


def test_another_format_is_left_alone(tmp_path):
    """Data of a later version are neither measured nor touched."""
    example(tmp_path)
    with lmdb.open(str(tmp_path / "store"), max_dbs=16) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"format", b"9", db=meta)
    for step in (measure, compact):
        with pytest.raises(UnknownFormatError, match="has format 9, this version reads format 2"):
            step(tmp_path)


def test_no_data_is_reported(tmp_path):
    """A directory without readable data is an error, and nothing is made in it."""
    with pytest.raises(StorageError, match="there is no data in"):
        measure(tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "data.mdb").write_bytes(b"x" * 10_000)
    with pytest.raises(StorageError, match="cannot read the data in"):
        compact(tmp_path)


def test_a_damaged_block_stays_as_it_is(tmp_path):
    """A block that cannot be taken apart is copied with its bitmap: compaction never makes damage worse."""
    example(tmp_path)
    with lmdb.open(str(tmp_path / "store"), max_dbs=16) as env:
        blocks, acks = env.open_db(b"blocks"), env.open_db(b"acks")
        with env.begin(write=True) as txn:
            key, bits = next(iter(txn.cursor(acks)))
            value = b"damaged!" + txn.get(key, db=blocks)[8:]
            txn.put(key, value, db=blocks)
    compact(tmp_path)
    after = rows_of(tmp_path)

    assert (value, bits) == (after["blocks"][key], after["acks"][key])


def block_of(tmp_path: Path, count: int) -> bytes:
    stored = Stored(tmp_path, "q")
    for number in range(count):
        stored.publish(f"{number}" * (number + 1), "q")
    stored.commit()
    stored.close()
    (row,) = rows_of(tmp_path)["blocks"].items()
    return row


@pytest.fixture(scope="module")
def block(tmp_path_factory) -> tuple[bytes, bytes]:
    return block_of(tmp_path_factory.mktemp("block"), 10)


def records_at(row: tuple[bytes, bytes], *places: int) -> list[Record]:
    found = read_records(row[1], read_header(*row))
    return [record for record in found if isinstance(record, Record) and record.place in places]


@given(dead=st.integers(0, 2**10 - 1))
def test_a_block_without_its_dead_records(block, dead):
    """A block without its dead records has the others, in order, and its header agrees."""
    left = [record[1:] for record in read_records(block[1], read_header(*block), dead)]
    new = rewritten(*block, pack_bits(block[0], 10, dead, {3: 7, 5: 1}))
    if new is None:
        assert [] == left
        return
    key, value, marks = new
    counts = read_bitmap(marks, read_header(key, value)).returns
    header = read_header(key, value)

    assert left == [record[1:] for record in read_records(value, header)]
    assert (left[0][0], left[-1][0], len(left)) == (header.first, header.last, header.records)
    assert sum(each[-1] for each in left) == header.octets
    assert header.first == int.from_bytes(key[8:], "big")
    assert [place + 1 for place in range(10) if not dead >> place & 1] == list(bodies_of(value, header))
    assert [count for place, count in ((3, 7), (5, 1)) if not dead >> place & 1] == list(counts.values())
    assert all(left[place][0] in {record[1] for record in records_at(block, 3, 5)} for place in counts)


def test_a_damaged_record_stays_damaged(block):
    """A compaction does not make a record right that is not."""
    key, value = block
    at = offsets_of(value, read_header(key, value))[5]
    torn = value[: at + 25] + bytes([value[at + 25] ^ 1]) + value[at + 26 :]
    new_key, new, _ = rewritten(key, torn, pack_bits(key, 10, 0b11))
    found = list(read_records(new, read_header(new_key, new)))

    assert [3] == [record for record in found if isinstance(record, int)]
    assert 8 == len(found)


def test_a_torn_block_is_refused(block):
    """A block whose directory is wrong cannot be taken apart."""
    with pytest.raises(DamagedError):
        rewritten(block[0], block[1][:100], pack_bits(block[0], 10, 1))


def test_it_can_be_opened_and_used_afterwards(tmp_path):
    """A start after a compaction counts on, and what it writes lies beside what was there."""
    with_garbage(tmp_path)
    boot = int.from_bytes(rows_of(tmp_path)["meta"][b"boot"][:8], "big")
    before = messages_of(rows_of(tmp_path))
    compact(tmp_path)
    environment = Environment(tmp_path, sync=False)

    assert boot + 1 == environment.boot
    environment.close()
    stored = Stored(tmp_path, "new")
    stored.publish("more", "new")
    stored.commit()
    stored.close()
    assert len(before) + 1 == len(messages_of(rows_of(tmp_path)))
    assert [] == findings(tmp_path)
