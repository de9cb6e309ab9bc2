"""Rows of an input's files, kept as Parquet beside the output: later commands parse new files only (driver: files).

Files of a day, or of an hour if a day has many, are kept as one. Its name is a hash of what it was made of: the files
by their names, sizes, times and inodes, and the declaration of the table. So a file that has changed, or one of another
version, is never taken for what is kept; and as it is moved to its place when it is whole and on the disk, a process
that is ended leaves nothing that another could take for it. It may be removed at any time.

Rows of tables with a clock have the values of the row before beside their own (`successive`). The ends of objects are
kept in another file, and the first rows of objects, made from all of them, in one more.
"""

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq

from leveret.analytics import fast_lines, successive
from leveret.analytics.reading import PLACE
from leveret.analytics.schemas import Table
from leveret.analytics.scope import Scope
from leveret.analytics.series import BEFORE

FOLDER: Final = ".parsed"
"""Directory in the output."""
FORMAT: Final = 2
"""Version of what is kept, besides the declarations of the tables."""
MOST_BYTES: Final = 32 << 20
"""Size of the lines that are kept as one file."""
MOST_THREADS: Final = 8
"""Number of threads that parse: each takes five times the size of its lines, 160 MB of memory as a rule."""
MOST_KEPT_BYTES: Final = 256 << 20
"""Size of all that is kept, above which what was not used for the longest time is removed."""
UNUSED_SECONDS: Final = 3600
"""Time after its last use before which nothing is removed: another command may read it."""
_UNFINISHED: Final = "new-"


class Source(NamedTuple):
    """A file with lines. `name` is relative to the directory of its table."""

    name: str
    size: int
    changed: tuple[int, int, int, int]
    place: tuple[str, ...]


class Kept(NamedTuple):
    """Files of Parquet with the rows of a table, its partition columns, and those with values of the row before."""

    files: list[Path]
    columns: list[str]
    before: list[str]


class NotPlainError(Exception):
    """Raised if files cannot be parsed here; the text says why."""


def kept(directory: Path, folder: Path, table: Table, scope: Scope | None = None) -> Kept:
    """Return what is kept of a table; what is not is parsed.

    Args:
        directory: the directory of the table.
        folder: where files are kept.
        table: its declaration.
        scope: files of hours without rows of its range are left out; None for none.

    Raises:
        NotPlainError: a line is not surely a row, or is not to be parsed here.
        OSError: nothing can be kept there, or a file cannot be read.
    """
    if not fast_lines.is_readable(table):
        raise NotPlainError(f"{table.name} has maps")
    sources = sorted(_sources(directory))
    if any(each.size > fast_lines.MOST_BYTES for each in sources):
        raise NotPlainError("a file is too large")
    columns = _partitions(sources)
    groups = [
        group
        for group in _grouped(sources)
        if scope is None or not columns or any(scope.has_hour(*each.place) for each in group)
    ]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    places = [folder / f"{_hash(group, columns, table)}.parquet" for group in groups]
    # Parsing leaves the interpreter to other threads.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool:
        making = [
            pool.submit(_make, directory, group, columns, table, place)
            for group, place in zip(groups, places, strict=True)
            if not _is_there(place, table)
        ]
        try:
            for each in making:
                each.result()
        finally:
            for each in making:
                each.cancel()
    if not table.has_clock or not places:
        return Kept(places, columns, [])
    firsts, is_ordered = _firsts(places, table)
    before = [f"{BEFORE}{name}" for name in successive.columns(table)] if is_ordered else []
    return Kept([*places, firsts], columns, before)


def _firsts(places: Sequence[Path], table: Table) -> tuple[Path, bool]:
    """Return the file of the first rows of objects; make it if it is not kept. False if objects are not in order."""
    name = hashlib.sha256("".join(place.name for place in places).encode()).hexdigest()[:40]
    ordered, other = (places[0].with_name(f"{name}-{kind}.parquet") for kind in ("firsts", "unordered"))
    for place in (ordered, other):
        if _is_there(place):
            return place, place is ordered
    ends = [pf.read_table(_ends(place)) for place in places]
    rows = successive.firsts(ends, table)
    if rows is not None:
        _store(ordered, lambda file: _write(rows, file))
        return ordered, True
    _store(other, lambda file: _write(successive.without_before(ends, table), file))
    return other, False


def tidy(folder: Path, now: float | None = None) -> None:
    """Remove what was not used for a while if it is unfinished, or if there is more than `MOST_KEPT_BYTES`.

    Args:
        folder: where files are kept, in a directory for each table.
        now: the time (Unix, in seconds); None to ask the clock.
    """
    before = (time.time() if now is None else now) - UNUSED_SECONDS
    found = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):  # removed by another command, or of another user
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if used < before and (total > MOST_KEPT_BYTES or path.name.startswith(_UNFINISHED)):
            with contextlib.suppress(OSError):  # of another user
                path.unlink(missing_ok=True)
                total -= size


def _sources(directory: Path) -> Iterator[Source]:
    """Yield the finished files of a table, as engines find them."""
    for at, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        if any((Path(at) / name).is_symlink() for name in folders):
            raise NotPlainError(f"{at} has links to directories")
        for name in names:
            if name.endswith(".jsonl") and not name.startswith((".", "_")):
                path = Path(at) / name
                try:
                    yield _source(str(path.relative_to(directory)), path.stat())
                except FileNotFoundError as error:
                    raise NotPlainError(f"{path} has been removed") from error


def _source(name: str, status: os.stat_result) -> Source:
    return Source(
        name,
        status.st_size,
        # A file of the same size and time may be another: its inode or the time of its change is.
        (status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino),
        tuple(level.partition("=")[2] for level in name.split("/")[:-1][: len(PLACE)]),
    )


def _partitions(sources: Sequence[Source]) -> list[str]:
    """Return the partition columns of files: those of `PLACE`, or none."""
    levels = [each.name.split("/")[:-1] for each in sources]
    if any("%" in level or "=" not in level for each in levels for level in each):
        raise NotPlainError("a directory is no value of a partition column, or has an escape in its name")
    named = {tuple(level.partition("=")[0] for level in each) for each in levels}
    if len(named) > 1:
        raise NotPlainError("files are in directories of different partition columns")
    columns = next(iter(named), ())
    if columns and columns[: len(PLACE)] != PLACE:
        raise NotPlainError("directories are not those of the export")
    return list(columns[: len(PLACE)])


def _grouped(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Yield files that are kept as one: those of a day or an hour. More than `MOST_BYTES` of them are several.

    The groups of an hour stay as they are if files come and go in others.
    """
    yield from _split(sources, 1)


def _split(sources: Sequence[Source], level: int) -> Iterator[list[Source]]:
    """Yield groups of files with the same beginning of their place; it has `level` parts."""
    groups: dict[tuple[str, ...], list[Source]] = {}
    for each in sources:
        groups.setdefault(each.place[:level], []).append(each)
    for place, group in groups.items():
        if sum(each.size for each in group) <= MOST_BYTES:
            yield group
        elif len(place) == level < len(PLACE):
            yield from _split(group, level + 1)
        else:
            yield from _runs(group)


def _runs(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Yield successive files of at most `MOST_BYTES`, or one that is larger."""
    run: list[Source] = []
    size = 0
    for each in sources:
        if run and size + each.size > MOST_BYTES:
            yield run
            run, size = [], 0
        run.append(each)
        size += each.size
    yield run


def _hash(sources: Sequence[Source], columns: Sequence[str], table: Table) -> str:
    """Return a name for the rows of files."""
    declared = [(column.name, column.type, column.optional) for column in table.columns]
    text = json.dumps([FORMAT, pa.__version__, table.name, declared, columns, sources])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _is_there(place: Path, table: Table | None = None) -> bool:
    """Return whether a file is kept, with its ends if it has rows of this table, and can be read; note the use."""
    try:
        os.utime(place)
        pq.read_metadata(place)
        if table is not None and table.has_clock:
            os.utime(_ends(place))
            pa.ipc.open_file(_ends(place))
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _make(
    directory: Path, sources: Sequence[Source], columns: Sequence[str], table: Table, place: Path
) -> None:
    """Parse files, and keep their rows.

    Raises:
        NotPlainError: a line is not surely a row, or a file has changed.
    """
    made = []
    # Files of a place are parsed as one: to begin anew for each of a minute takes a fifth of the time.
    for place_of, files in itertools.groupby(sources, lambda each: each.place):
        data = bytearray()
        for each in files:
            data += _read(directory, each)
        rows = fast_lines.parse(data, table)
        if rows is None:
            raise NotPlainError(f"{each.name}, or a file before it, has lines of another form")
        for column, value in zip(columns, place_of, strict=False):
            rows = rows.append_column(column, pa.repeat(pa.scalar(value), rows.num_rows))
        made.append(rows)
    rows = pa.concat_tables(made)
    if table.has_clock:
        rows, ends = successive.parted(rows, table)
        _store(_ends(place), lambda file: pf.write_feather(ends, file, compression="uncompressed"))
    _store(place, lambda file: _write(rows, file))


def _ends(place: Path) -> Path:
    """Return the file with the ends of the objects of a file."""
    return place.with_suffix(".ends")


def _write(rows: pa.Table, file: BinaryIO) -> None:
    """Write rows. Numbers that grow, or hardly change, take a fifteenth as differences, and less time to read."""
    kinds = {field.name: field.type for field in rows.schema}
    pq.write_table(
        rows,
        file,
        compression="lz4",
        use_dictionary=[name for name, kind in kinds.items() if pa.types.is_string(kind)],
        column_encoding={
            name: "DELTA_BINARY_PACKED" for name, kind in kinds.items() if pa.types.is_integer(kind)
        },
        write_statistics=False,
    )


def _store(place: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file that is at its place when it is whole and on the disk."""
    descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=place.parent)  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).rename(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(directory: Path, source: Source) -> bytes:
    """Return the content of a file, which is still the one that was found."""
    try:
        with (directory / source.name).open("rb") as file:
            data = file.read()
            status = os.fstat(file.fileno())
    except FileNotFoundError as error:
        raise NotPlainError(f"{source.name} has been removed") from error
    if _source(source.name, status) != source or len(data) != source.size:
        raise NotPlainError(f"{source.name} was written to while it was read")
    if data and not data.endswith(b"\n"):
        raise NotPlainError(f"{source.name} has lines of another form: the last one has no end")
    return data
