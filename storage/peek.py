"""Reading the definitions that are stored, also beside the process of a broker that is using them."""

from pathlib import Path

import lmdb

from storage.environment import FORMAT
from storage.errors import StorageError, UnknownFormatError
from storage.table import MAP_SIZE


def stored_definitions(data_dir: Path) -> list[tuple[bytes, bytes]]:
    """All rows of definitions as of one moment: keys and values, see `storage.definitions`.

    Raises:
        UnknownFormatError: a later version wrote the data.
        StorageError: there are none, or they cannot be read.

    """
    path = data_dir / "store"
    if not (path / "data.mdb").is_file():
        raise StorageError(f"there are no data in {data_dir}")
    try:
        # with its lock, so that a broker at work does not use pages again that are being read
        with lmdb.open(str(path), readonly=True, create=False, max_dbs=16, map_size=MAP_SIZE) as env:
            tables = {name: env.open_db(name, create=False) for name in (b"meta", b"defs")}
            with env.begin() as txn:
                written = txn.get(b"format", db=tables[b"meta"])
                if written != FORMAT:
                    shown = "no format" if written is None else f"format {written.decode('ascii', 'replace')}"
                    text = f"the data in {data_dir} have {shown}, this version knows {FORMAT.decode()}"
                    raise UnknownFormatError(text)
                return list(txn.cursor(tables[b"defs"]))
    except lmdb.Error as error:
        raise StorageError(f"cannot read the data in {data_dir}: {error}") from None
