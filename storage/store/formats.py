"""The data format on disk: the one that this version reads and writes, and the error for another.

The row `format` of the table `meta` is text: the number of the format, and the version that is needed to read it, in
words. A version that does not know the number shows the whole text, which names the version to install
(docs/upgrade.md).

Formats 1 to `FORMAT` - 1 were those of unreleased builds. A version with a new format changes `FORMAT` and `NEEDED`.
If it upgrades older data, `fault_of` accepts their numbers, too, and `storage.store.start` writes `FORMAT_ROW` in the
transaction that counts the start, so that no kill leaves a state between the two. Rows are not converted then: those of
the new form are marked as such, the others are read for as long as they exist (docs/adr/0021-store-formats.md).
"""

from pathlib import Path

from leveret.storage.errors import UnknownFormatError

PLACE = b"replicated"
"""Key, in the table `meta`, of the place in a replicated log that the data are a copy of (`storage.store.replica`)."""
FORMAT = 2
"""The format that this version reads and writes."""
NEEDED = "0.2.0"
"""The first version that reads `FORMAT`."""
FORMAT_ROW = f"{FORMAT} (needs leveret {NEEDED} or newer)".encode()


def number_of(row: bytes | None) -> int | None:
    """Return the format number in a row; None if the row has none, or is missing."""
    number = (row or b"").partition(b" ")[0]
    return int(number) if number.isdigit() else None


def fault_of(row: bytes | None) -> str:
    """Describe a format's error for an administrator; "" for one that this version reads."""
    if number_of(row) == FORMAT:
        return ""
    shown = "no format" if row is None else f"format {row.decode('ascii', 'replace')}"
    return f"{shown}, this version reads format {FORMAT}"


def check_format(data_dir: Path, row: bytes | None) -> None:
    """Raise UnknownFormatError unless this version reads the row's format; the text names the version that does."""
    fault = fault_of(row)
    if fault:
        raise UnknownFormatError(f"the data in {data_dir} has {fault}")
