"""The session that `leveret analyze --serve` keeps (driver: a Java process, or Sail's server), and jobs in it.

It is Sail's if that suits the command. The first request that Sail does not take, or cannot do, starts Spark in its
place, which runs all later ones.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from leveret.analytics import engine, sail
from leveret.analytics.asked import Asked
from leveret.analytics.names import AUTO, SAIL, SPARK
from leveret.analytics.running import HandedOverError, by_sail, is_small, judged, once
from leveret.analytics.session import session


class WarmSession:
    """A session that is kept, with the settings of the command that started it.

    Args:
        master: the Spark master; None for the default.
        settings: Spark settings.
        directory: the input of the command, by whose size Spark is set up; None if it names none.
        report_progress: called with messages for the user's terminal.
        wanted: one of `ENGINES`.
    """

    def __init__(
        self,
        master: str | None,
        settings: Mapping[str, str],
        directory: Path | None,
        report_progress: Callable[[str], None],
        wanted: str = AUTO,
    ) -> None:
        self._master = master
        self._settings = dict(settings)
        self._directory = directory
        self._report = report_progress
        self._stack = contextlib.ExitStack()
        self._spark: SparkSession | None = None
        self._is_cancelled = False
        self._engine = (
            SPARK if wanted == AUTO and (master is not None or settings or sail.lacks()) else wanted
        )

    def start(self) -> None:
        """Start the engine.

        Raises:
            JavaError: no suitable Java was found.
            SailError: Sail was asked for by name and cannot be used.
        """
        if self._engine != SPARK:
            try:
                self._spark = self._stack.enter_context(sail.session(guarded=self._engine != SAIL))
            except sail.SailError as error:
                if self._engine == SAIL:
                    raise
                self._report(f"not using Sail: {error}")
            else:
                self._report("Sail is ready")
                return
        self._start_spark()

    def _start_spark(self) -> None:
        """Start Spark, in place of Sail."""
        self._stack.close()
        self._spark, self._engine = None, SPARK
        self._report("starting Spark")
        light = self._directory is not None and is_small(self._directory)
        self._spark = self._stack.enter_context(session(self._master, self._settings, light=light))
        self._report("Spark is ready")

    def takes(self, asked: Asked) -> str:
        """Return why it does not take a request; empty if it does."""
        if (asked.master or self._master) != self._master or dict(asked.settings) != self._settings:
            return "the server has other Spark settings"
        if asked.engine not in {AUTO, self._engine} and self._engine != AUTO:
            return f"the server runs {self._engine}"
        return ""

    def run(self, asked: Asked, report_progress: Callable[[str], None]) -> tuple[str, int] | None:
        """Run jobs; return what went wrong, with an exit code."""
        if self._spark is None:
            return "Spark was not started", os.EX_UNAVAILABLE
        try:
            return judged(lambda: self._work(asked, report_progress))
        except HandedOverError as error:  # of what was cancelled
            return str(error), os.EX_TEMPFAIL

    def _work(self, asked: Asked, report_progress: Callable[[str], None]) -> None:
        if self._engine != SPARK and self._spark is not None:
            why = engine.unsuitable(asked)
            if not why:
                try:
                    by_sail(asked, self._spark, report_progress)
                except HandedOverError as error:
                    if self._is_cancelled:
                        raise  # it did not fail by itself, and the server ends
                    why = str(error)
                else:
                    return
            if asked.engine == SAIL:
                raise sail.SailError(why)
            report_progress(f"starting Spark in place of Sail: {why}")
            self._start_spark()
        elif asked.engine == SAIL:
            raise sail.SailError(
                "the server runs Spark by now"
            )  # since an earlier request that only Spark can do
        if self._spark is not None:
            try:
                once(asked, self._spark, report_progress)
            finally:
                with contextlib.suppress(Py4JError, OSError):
                    self._spark.catalog.clearCache()

    def is_alive(self) -> bool:
        """Return whether Spark can run more jobs: its Java may have been killed."""
        if self._engine != SPARK:
            return self._spark is not None
        try:
            return self._spark is not None and not self._spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001
        except (Py4JError, OSError):
            return False

    def cancel(self) -> None:
        """Have queries that run fail soon. Nothing is run afterwards."""
        self._is_cancelled = True
        if self._spark is not None and self._engine != SPARK:
            with contextlib.suppress(Exception):  # SIGINT ends its server, too
                self._spark.interruptAll()
        elif self._spark is not None:
            with contextlib.suppress(Py4JError, OSError):
                self._spark.sparkContext.cancelAllJobs()

    def stop(self) -> None:
        """Stop Spark."""
        self._stack.close()
