"""Definitions read from a broker's store."""

import lmdb
import pytest

from leveret.storage.errors import StorageError, UnknownFormatError
from leveret.storage.journal.journal import Journal
from leveret.storage.store.environment import Environment
from leveret.storage.store.metadata_reader import stored_definitions


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
