"""Reads the telemetry export of a broker as Arrow tables, for notebooks and programs of one's own.

    from leveret import export

    queues = export.read("/var/lib/leveret/export", "queue_interval", since="2026-11-24T14:00", queue="orders")
    frame = queues.to_pandas()

It reads the files of the broker (JSON Lines) and those of `leveret analyze compact` (Parquet). Neither Spark nor a
running broker is needed, but the packages of the extra `leveret[notebook]`. The tables and their columns are declared
in `leveret.broker.export.tables`; docs/export.md describes them.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from leveret.broker.counters.histogram import Histogram, highest
from leveret.broker.export.tables import AREA_MODULUS, TABLES, ColumnInfo, columns as declared, spark_schema

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["ExportError", "columns", "percentile", "rates", "read", "tables"]

TIME_UNIT: Final = "ms since 1970, UTC"  # unit of the columns that become timestamps
_BATCH: Final = 20_000  # rows that are held as objects at once
_MARGIN: Final = timedelta(hours=1)  # a row may be in the folder of the hour after its own
_SUFFIXES: Final = ("jsonl", "parquet")
_VERSION: Final = 1
_LONE: Final = re.compile(rb"\\u[dD][cC][0-9a-fA-F]{2}")  # octet that is not UTF-8, as the export writes it


class ExportError(Exception):
    """Raised when there is no such table, a condition does not apply to it, or a row is invalid; the text says what."""


def tables(directory: str | os.PathLike[str]) -> list[str]:
    """Return the names of the tables that have files in a directory, in the order of docs/export.md.

    Args:
        directory: the broker's `export.dir`, or `OUTPUT/tables` of `leveret analyze compact`.

    Raises:
        ExportError: there is no such directory.
    """
    root = _root(directory)
    return [name for name in TABLES if _suffix(root / name) is not None]


def columns(table: str) -> tuple[ColumnInfo, ...]:
    """Return the columns of a table: `name`, `type` (as in docs/export.md), `kind`, `unit`, `doc`.

    Raises:
        ExportError: no table has this name.
    """
    _known(table)
    return declared(table)


def read(
    directory: str | os.PathLike[str],
    table: str,
    *,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    vhost: str | None = None,
    queue: str | None = None,
    only: Sequence[str] | None = None,
) -> "pa.Table":
    """Return the rows of a table, ordered by node and time.

    Columns of the unit "ms since 1970, UTC" are of Arrow's type `timestamp[ms, tz=UTC]`. Of the others `bigint` is
    `int64`, `int` is `int32`, `double`, `string` and `boolean` have their own names, an `array` is a `list`, and a
    `map` is one. `Table.to_pandas()` makes a data frame of it.

    Args:
        directory: the broker's `export.dir`, or `OUTPUT/tables` of `leveret analyze compact`.
        table: name of the table.
        since: the first time, as a `datetime` or as text in ISO 8601; UTC if it names no zone. Folders of hours before
            it are not read.
        until: the last time.
        vhost: only rows of this virtual host.
        queue: only rows of queues of this name; of `latency_hist` the rows of the queue.
        only: the columns to return, in this order; all by default.

    Raises:
        ExportError: there is no such directory, table or column, the table has no files, a condition does not apply to
            it, or a line is not a complete row of it.
        ImportError: pyarrow is not installed.
    """
    _known(table)
    root = _root(directory)
    arrow = _arrow()
    from pyarrow import compute  # noqa: PLC0415 - an optional package

    names = {column.name for column in declared(table)}
    if only is not None and (unknown := [name for name in only if name not in names]):
        raise ExportError(f"{table} has no column {', '.join(unknown)}")
    begin, end = _moment("since", since), _moment("until", until)
    wanted = _conditions(table, names, begin, end, vhost, queue)
    suffix = _suffix(root / table)
    if suffix is None:
        raise ExportError(f"no files of {table} in {root}")
    schema = _schema(table)
    kept = []
    for file in sorted(_files(root / table, suffix, begin, end)):
        for rows in _parts(file, suffix, table, schema):
            for column, function, value in wanted:
                scalar = arrow.scalar(value, type=schema.field(column).type)
                rows = rows.filter(compute.call_function(function, [rows[column], scalar]))  # noqa: PLW2901
            kept.append(rows)
    found = arrow.concat_tables(kept) if kept else schema.empty_table()
    order = [name for name in ("node", "ts", "mono_us", "run_id", "t_s") if name in names]
    found = found.sort_by([(name, "ascending") for name in order])
    return found if only is None else found.select(list(only))


def rates(frame: "pd.DataFrame", table: str, *names: str) -> "pd.DataFrame":
    """Return rows in the order of their objects, with rates since the row before of the same object.

    A counter `pub` becomes `pub_per_s`, an area `area_ready` the average `mean_ready`. Both are null in the first row
    of an object, and of a run of the broker, because the rows lack the earlier counts.

    Args:
        frame: rows of the table as a data frame, with `mono_us` and all key columns.
        table: name of the table.
        names: the counters and areas.

    Raises:
        ExportError: no table has this name, the frame lacks a column, or a name is no counter or area.
    """
    kinds = {column.name: column.kind for column in columns(table)}
    keys = [name for name, kind in kinds.items() if kind == "key"]
    if wrong := [name for name in names if kinds.get(name) not in {"counter", "area"}]:
        raise ExportError(f"{table} has no counter or area {', '.join(wrong)}")
    if lacking := [name for name in ("mono_us", *keys, *names) if name not in frame.columns]:
        raise ExportError(f"the frame lacks {', '.join(lacking)}")
    ordered = frame.sort_values([*keys, "mono_us"])
    objects = ordered.groupby(keys, dropna=False)
    # Not `diff`, whose null in first rows makes floats of all, in which areas do not fit.
    steps = ordered[["mono_us", *names]] - objects[["mono_us", *names]].shift(1, fill_value=0)
    us = steps["mono_us"].where(objects.cumcount() > 0)
    return ordered.assign(
        **{f"{name}_per_s": steps[name] / (us / 1e6) for name in names if kinds[name] == "counter"},
        **{
            f"mean_{name.removeprefix('area_')}": steps[name] % AREA_MODULUS / us
            for name in names
            if kinds[name] == "area"
        },
    )


def percentile(histograms: Iterable[Any], share: float) -> int | None:
    """Return a percentile of all samples of the given histograms, in microseconds; None without samples.

    It is the greatest value of its bucket, at most 1/32 above the sample itself.

    Args:
        histograms: the column `b` of rows of `latency_hist`; a group of a data frame's, or of an Arrow table.
        share: 0.99 for the 99th percentile; from 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is from 0 to 1, not {share!r}")
    counts: dict[int, int] = {}
    for each in histograms:
        buckets = each.as_py() if hasattr(each, "as_py") else each
        for bucket in () if buckets is None else buckets:
            counts[bucket["i"]] = counts.get(bucket["i"], 0) + bucket["c"]
    if not counts:
        return None
    merged = Histogram(counts, sum(counts.values()), greatest=highest(max(counts)))
    return merged.percentile(share)


def _arrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional package
    except ModuleNotFoundError as error:
        raise ImportError(
            f"missing package {error.name}; install it with: pip install 'leveret[notebook]'"
        ) from error
    return pa


def _known(table: str) -> None:
    if table not in TABLES:
        raise ExportError(f"no table {table!r}; tables are: {', '.join(TABLES)}")


def _root(directory: str | os.PathLike[str]) -> Path:
    root = Path(directory)
    if not root.is_dir():
        raise ExportError(f"{root} is not a directory")
    return root


def _moment(name: str, time: datetime | str | None) -> datetime | None:
    if time is None:
        return None
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    except ValueError as error:
        raise ExportError(f"{name}: {time!r} is not a time in ISO 8601") from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _conditions(
    table: str,
    names: set[str],
    begin: datetime | None,
    end: datetime | None,
    vhost: str | None,
    queue: str | None,
) -> list[tuple[str, str, Any]]:
    """Return the conditions on rows, as column, function of Arrow's and value. Raises ExportError."""
    is_histogram = table == "latency_hist"
    given = (
        ("ts", "greater_equal", begin, "times: since and until do not apply to it"),
        ("ts", "less_equal", end, "times: since and until do not apply to it"),
        ("vhost", "equal", vhost, "virtual hosts: vhost does not apply to it"),
        ("scope", "equal", "queue" if is_histogram and queue is not None else None, ""),
        ("name" if is_histogram else "queue", "equal", queue, "queues: queue does not apply to it"),
    )
    wanted = [each for each in given if each[2] is not None]
    for column, _, _, text in wanted:
        if column not in names:
            raise ExportError(f"{table} has no {text}")
    return [each[:3] for each in wanted]


def _suffix(folder: Path) -> str | None:
    """Return the format of a table's files; None if there are none."""
    return next((suffix for suffix in _SUFFIXES if any(_finished(folder, suffix))), None)


def _finished(folder: Path, suffix: str) -> Iterator[Path]:
    return (path for path in folder.rglob(f"*.{suffix}") if not path.name.startswith((".", "_")))


def _files(folder: Path, suffix: str, since: datetime | None, until: datetime | None) -> Iterator[Path]:
    first = None if since is None else f"{since - _MARGIN:%Y-%m-%dT%H}"
    last = None if until is None else f"{until + _MARGIN:%Y-%m-%dT%H}"
    for path in _finished(folder, suffix):
        place = dict(part.split("=", 1) for part in path.relative_to(folder).parts[:-1] if "=" in part)
        if "dt" in place and "hour" in place:
            hour = f"{place['dt']}T{place['hour']}"
            if (first is not None and hour < first) or (last is not None and hour > last):
                continue
        yield path


def _schema(table: str) -> "pa.Schema":
    arrow = _arrow()
    fields = []
    for column, field in zip(declared(table), spark_schema(table)["fields"], strict=True):
        kind = arrow.timestamp("ms", tz="UTC") if column.unit == TIME_UNIT else _type(field["type"])
        about = {"kind": column.kind, "unit": column.unit, "doc": column.doc}
        fields.append(arrow.field(column.name, kind, metadata=about))
    return arrow.schema(fields)


def _type(kind: Any) -> Any:
    arrow = _arrow()
    if isinstance(kind, str):
        return {
            "long": arrow.int64(),
            "integer": arrow.int32(),
            "double": arrow.float64(),
            "string": arrow.string(),
            "boolean": arrow.bool_(),
        }[kind]
    if kind["type"] == "array":
        return arrow.list_(_type(kind["elementType"]))
    if kind["type"] == "map":
        return arrow.map_(_type(kind["keyType"]), _type(kind["valueType"]))
    return arrow.struct([(field["name"], _type(field["type"])) for field in kind["fields"]])


def _parts(file: Path, suffix: str, table: str, schema: "pa.Schema") -> Iterator["pa.Table"]:
    arrow = _arrow()
    if suffix == "parquet":
        from pyarrow import parquet  # noqa: PLC0415 - an optional package

        # Spark's files lack Arrow's types of times; folders are no columns.
        yield parquet.read_table(file, columns=schema.names, partitioning=None).cast(schema)
        return
    decoder = msgspec.json.Decoder(TABLES[table].struct)
    rows: list[msgspec.Struct] = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                rows.append(_row(decoder, line))
            except msgspec.MsgspecError as error:
                raise ExportError(f"{file}:{number}: {error}") from error
            if len(rows) == _BATCH:
                yield _table(arrow, rows, schema)
                rows = []
    yield _table(arrow, rows, schema)


def _row(decoder: "msgspec.json.Decoder[Any]", line: bytes) -> Any:
    """Return a line as a row; octets that are not UTF-8 become U+FFFD.

    Raises:
        MsgspecError: it is no complete row of the table, or one of another version.
    """
    try:
        row = decoder.decode(line)
    except msgspec.MsgspecError:
        if not _LONE.search(line):
            raise
        row = decoder.decode(_LONE.sub(rb"\\ufffd", line))
    if row.v != _VERSION:
        raise msgspec.ValidationError(f"version {row.v} of the table, not {_VERSION}")
    return row


def _table(arrow: Any, rows: Sequence[msgspec.Struct], schema: "pa.Schema") -> "pa.Table":
    arrays = []
    for field in schema:
        values = [getattr(row, field.name) for row in rows]
        if field.name == "b":
            values = [[{"i": bucket.i, "c": bucket.c} for bucket in row] for row in values]
        elif arrow.types.is_map(field.type):
            values = [None if each is None else list(each.items()) for each in values]
        arrays.append(arrow.array(values, type=field.type))
    return arrow.table(arrays, schema=schema)
