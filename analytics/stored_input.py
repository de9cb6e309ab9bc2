"""Input tables for an engine that cannot cache: what several queries use is stored in a scratch directory.

Lines are parsed once, and rows of files that do not change are kept for later commands (`parsed_files`). Tables with
lines that the fast parser does not take are read by the engine, which accepts the broker's own form (`canonical`) only.
Other lines are for Spark to judge, so no engine but Spark has rules of its own on what a row is.
"""

import itertools
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions as F

from leveret.analytics.canonical import line_pattern
from leveret.analytics.locations import Location, source, url
from leveret.analytics.objective import DEFAULT, Objective
from leveret.analytics.reading import FILE, LINE, PLACE, REASON, Input, whole
from leveret.analytics.schemas import Table, tables
from leveret.analytics.scope import EVERYTHING, Scope

FORMAT: Final = "arrow"
"""Format of stored rows: an engine of Arrow's writes and reads it as it is, in a fifth of the time of Parquet."""
SMALL_BYTES: Final = 256 << 10
"""Size of stored rows up to which they are a part of the queries that use them."""
_IS_PLAIN: Final = "_is_plain"


class UnusualLineError(Exception):
    """Raised if a line is not of the broker's own form; the text names the table."""


class StoredInput(Input):
    """The tables under a directory of this machine.

    Args:
        spark: the session.
        directory: holds a directory for each table.
        output: the output directory.
        scratch: an empty directory for rows that several queries use; the caller removes it.
        scope: the rows to give to jobs.
        objective: the latency that users want.
    """

    jobs_at_once = 2

    def __init__(
        self,
        spark: SparkSession,
        directory: Location,
        output: Location,
        scratch: Path,
        scope: Scope = EVERYTHING,
        objective: Objective = DEFAULT,
    ) -> None:
        super().__init__(spark, directory, output, scope=scope, objective=objective)
        self._scratch = scratch
        self._numbers = itertools.count(1)
        self._before: dict[str, list[str]] = {}
        self._successive: dict[str, DataFrame] = {}

    def keep(self, rows: DataFrame) -> DataFrame:
        """Store rows that several results use; return them.

        They are computed by this, and not when they are used for the first time.
        """
        import pyarrow as pa  # noqa: PLC0415 - only this engine needs it
        import pyarrow.feather as pf  # noqa: PLC0415 - as above

        folder = self._scratch / str(next(self._numbers))
        rows.write.format(FORMAT).save(url(folder))
        parts = sorted(folder.glob(f"*.{FORMAT}"))
        if not parts:
            return self.spark.createDataFrame([], rows.schema)
        stored = self.spark.read.format(FORMAT).load(url(folder))
        if sum(part.stat().st_size for part in parts) > SMALL_BYTES:
            return stored
        # Of rows in memory the engine knows the number, and so joins others with them where those are. The columns are
        # asked of what is stored: for those of the query it would be planned once more.
        return self.spark.createDataFrame(pa.concat_tables(map(pf.read_table, parts)), stored.schema)

    def release(self) -> None:
        """Do nothing: the caller removes the directory."""

    def successive(self, name: str) -> DataFrame:
        """Return the rows of `table`, with the values of each object's row before if they are kept.

        Raises:
            InputError: the table has no files.
        """
        if name not in self._successive:
            rows = self._wanted(name)
            # The row before the first one of a range is not in it.
            before = () if self.scope.has_range else self._before.get(name, ())
            # One object for all jobs: it asks the engine only once for its columns.
            self._successive.setdefault(name, rows.select(*tables()[name].schema.names, *before))
        return self._successive[name]

    def _whole_lines(self, table: Table) -> DataFrame:
        return whole(self._stored(table, in_range=False))

    def _parsed(self, table: Table) -> DataFrame:
        return self._stored(table, in_range=self.scope.has_range)

    def _stored(self, table: Table, *, in_range: bool) -> DataFrame:
        """Return the lines of a table, parsed.

        Raises:
            UnusualLineError: one is not of the broker's own form.
        """
        nothing = F.lit(None).cast("string")
        kept = self._kept_rows(table, in_range=in_range)
        rows = self._judged(table, in_range=in_range) if kept is None else kept
        return rows.select("*", *[nothing.alias(name) for name in (REASON, FILE, LINE)])

    def _kept_rows(self, table: Table, *, in_range: bool) -> DataFrame | None:
        """Return the rows of a table from files that were parsed, now or before; None if they are not to be."""
        from leveret.analytics import parsed_files  # noqa: PLC0415 - with a package that only this engine needs

        assert isinstance(self.directory, Path)  # noqa: S101 - this engine has no other inputs
        assert isinstance(self.output, Path)  # noqa: S101 - as above
        folder = self.output / parsed_files.FOLDER / table.name
        scope = self.scope if in_range else None
        try:
            found = parsed_files.kept(self.directory / table.name, folder, table, scope)
        except (parsed_files.NotPlainError, OSError):  # rows that cannot be kept are no reason to fail
            return None
        if not found.files:
            return None
        self._before[table.name] = found.before
        rows = self.spark.read.parquet(*map(url, found.files))
        rows = rows.select(*table.schema.names, *found.before, *found.columns)
        return rows.filter(self.scope.hours()) if in_range and found.columns else rows

    def _judged(self, table: Table, *, in_range: bool) -> DataFrame:
        """Return the rows of a table whose lines the engine has looked at one by one.

        Raises:
            UnusualLineError: one is not of the broker's own form.
        """
        folder = self.directory / table.name
        text = self.spark.read.text(source(folder), lineSep="\n", pathGlobFilter="*.jsonl")
        if in_range and set(PLACE) <= set(text.columns):
            text = text.filter(self.scope.hours())
        place = [name for name in PLACE if name in text.columns]
        stored = self.keep(
            text.select(
                *place,
                F.col("value").rlike(line_pattern(table)).alias(_IS_PLAIN),
                # explode: as in `reading.lines`.
                F.explode(F.array(F.from_json("value", table.schema))).alias("row"),
            ).select(*[F.col(f"row.{name}").alias(name) for name in table.schema.names], *place, _IS_PLAIN)
        )
        if stored.filter(~F.col(_IS_PLAIN)).limit(1).count():
            raise UnusualLineError(f"{table.name} has lines that only Spark's parser can judge")
        return stored.select(*table.schema.names, *place)
