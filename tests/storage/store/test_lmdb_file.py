"""The data file as it is read without LMDB: its last page, its free pages, and whether it is cut off."""

from pathlib import Path
from random import Random

import lmdb
import pytest

from leveret.storage.errors import DamagedError, StorageError
from leveret.storage.store.lmdb_environment import unused_octets
from leveret.storage.store.lmdb_file import DataFile, refuse_cut_off

PAGE = 4096


@pytest.mark.parametrize("seed", range(3))
def test_free_pages_are_those_that_nothing_uses(tmp_path: Path, seed: int) -> None:
    """After any changes the pages in use and the free ones, each once, are all pages of the file; LMDB counts the same."""
    rng = Random(seed)
    path = tmp_path / "data.mdb"
    with lmdb.open(str(tmp_path), map_size=1 << 32, max_dbs=2, sync=False) as env:
        tables = [env.open_db(name) for name in (b"a", b"b")]
        for number in range(300):
            with env.begin(write=True) as txn:
                for _ in range(rng.choice([1, 5, 50])):
                    key, table = rng.randrange(400).to_bytes(8, "big"), rng.choice(tables)
                    if rng.random() < 0.5:
                        txn.put(key, bytes(rng.choice([10, 500, 5000, 70_000, 300_000])), db=table)
                    else:
                        txn.delete(key, db=table)
                if number % 100 == 99:
                    txn.drop(tables[0], delete=False)
            with DataFile(path) as file, env.begin() as txn:
                meta = file.meta
                free = [page for _, pages in file.free_pages() for page in pages]
                own = meta.branch_pages + meta.leaf_pages + meta.overflow_pages
                unused = unused_octets(env, txn, tables) // PAGE

                assert (env.info()["last_pgno"], env.info()["last_txnid"]) == meta[-2:]
                assert sorted(set(free)) == sorted(free)
                assert unused == len(free) + own
            refuse_cut_off(path)


def made(tmp_path: Path) -> Path:
    """A file with rows of all sizes, and free pages."""
    with lmdb.open(str(tmp_path), map_size=1 << 30, sync=False) as env:
        for number in range(40):
            with env.begin(write=True) as txn:
                txn.put(bytes((number,)), bytes(100_000))
                txn.delete(bytes((number - 5,)) if number > 5 else b"none")
    return tmp_path / "data.mdb"


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """A file without pages that hold something is refused, and the sizes are reported."""
    path = made(tmp_path)
    with DataFile(path) as file:
        needed = (file.meta.last_page + 1) * PAGE
    octets = path.read_bytes()[: needed // 2]
    path.write_bytes(octets)
    with pytest.raises(StorageError, match=f"truncated: it has {len(octets)} bytes and needs {needed}"):
        refuse_cut_off(path)


def test_free_pages_at_the_end_may_be_missing(tmp_path: Path) -> None:
    """LMDB does not write pages that one transaction takes and frees, so a file may lack free ones at its end."""
    path = made(tmp_path)
    with lmdb.open(str(tmp_path), map_size=1 << 30, sync=False) as env:
        with env.begin(write=True) as txn:
            txn.put(b"last", bytes(500_000))
        for _ in range(2):
            with env.begin(write=True) as txn:
                txn.delete(b"last")
                txn.put(b"x", b"")
    with DataFile(path) as file:
        free = {page for _, pages in file.free_pages() for page in pages}
        last = file.meta.last_page
    assert last in free
    path.write_bytes(path.read_bytes()[: last * PAGE])

    refuse_cut_off(path)


@pytest.mark.parametrize("octets", [b"", b"no database" * 1000, bytes(3 * PAGE)])
def test_what_is_no_data_file_is_left_to_lmdb(tmp_path: Path, octets: bytes) -> None:
    """A file that is no LMDB data file is not judged, and has no pages."""
    path = tmp_path / "data.mdb"
    path.write_bytes(octets)
    refuse_cut_off(path)
    with pytest.raises(DamagedError, match="is not an LMDB data file"):
        DataFile(path)


def test_damage_in_the_tree_of_free_pages_is_reported(tmp_path: Path) -> None:
    """A page of the tree that is another's, or is cut off, is never taken for a list of free pages."""
    path = made(tmp_path)
    with DataFile(path) as file:
        root = file.meta.root
    octets = bytearray(path.read_bytes())
    octets[root * PAGE] ^= 1
    path.write_bytes(octets)
    with (
        DataFile(path) as file,
        pytest.raises(DamagedError, match=f"page {root} of .* is not part of a tree"),
    ):
        list(file.free_pages())
