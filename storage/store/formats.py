"""Data formats on disk: the one this version writes, those it reads, and the errors for others.

The row `format` of the table `meta` is text: the number of the format and, from 2 on, the version that is needed to
read it, in words. A version that does not know the number shows the whole text, which names the version to install
(docs/upgrade.md, docs/adr/0021-store-formats.md).

Formats:

1. Version 0.1.0.
2. Since 0.2.0. A block's directory has the size of each body (`storage.journal.blocks`), the row that a clean stop
   saves of a queue has the size of all its bodies (`storage.store.recovery`), and a bitmap may be followed by
   delivery counts. Checksums of records cover their block and place, those of bitmaps their block, those of bodies
   the whole id. Small rows end with a checksum (`storage.store.row_checksums`). A new store has an id, which its
   redo log and its files of bodies have, too (`storage.store.owner`); one of an earlier version is used without.
   Blocks of format 1 are read as they are: their body sizes are computed when needed, and a compaction rewrites the
   blocks.
"""

from pathlib import Path

from leveret.storage.errors import UnknownFormatError

PLACE = b"replicated"
"""Key, in the table `meta`, of the place in a replicated log that the data are a copy of (`storage.store.replica`)."""
FORMAT = 2
"""The format that this version writes."""
READABLE = (1, FORMAT)
"""The formats that this version reads."""
NEEDED = "0.2.0"
"""The first version that reads `FORMAT`."""
FORMAT_ROW = f"{FORMAT} (needs leveret {NEEDED} or newer)".encode()


def number_of(row: bytes | None) -> int | None:
    """Return the format number in a row; None if the row has none, or is missing."""
    number = (row or b"").partition(b" ")[0]
    return int(number) if number.isdigit() else None


def fault_of(row: bytes | None) -> str:
    """Describe a format's error for an administrator; "" for one that this version reads."""
    if number_of(row) in READABLE:
        return ""
    shown = "no format" if row is None else f"format {row.decode('ascii', 'replace')}"
    return f"{shown}, this version reads formats {' and '.join(map(str, READABLE))}"


def check_format(data_dir: Path, row: bytes | None) -> None:
    """Raise UnknownFormatError unless this version reads the row's format; the text names the version that does."""
    fault = fault_of(row)
    if fault:
        raise UnknownFormatError(f"the data in {data_dir} has {fault}")
