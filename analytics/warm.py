"""The session that `leveret analyze --serve` keeps (driver: a Java process), and jobs in it."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from leveret.analytics.asked import Asked
from leveret.analytics.running import forget, is_small, judged, once
from leveret.analytics.session import session


class WarmSession:
    """A session that is kept, with the settings of the command that started it."""

    def __init__(
        self,
        master: str | None,  # the Spark master; None for the default
        settings: Mapping[str, str],  # Spark settings
        # the input of the command, by whose size Spark is set up; None if it names none
        directory: Path | None,
        report_progress: Callable[[str], None],  # called with messages for the user's terminal
    ) -> None:
        self._master = master
        self._settings = dict(settings)
        self._directory = directory
        self._report = report_progress
        self._stack = contextlib.ExitStack()
        self._spark: SparkSession | None = None

    def start(self) -> None:
        """Start Spark. Raises JavaError: no suitable Java was found."""
        self._report("starting Spark")
        light = self._directory is not None and is_small(self._directory)
        self._spark = self._stack.enter_context(
            session(self._master, self._settings, light=light, archives=True)
        )
        self._report("Spark is ready")

    def takes(self, asked: Asked) -> str:
        """Return why it does not take a request; empty if it does."""
        if (asked.master or self._master) != self._master or dict(asked.settings) != self._settings:
            return "the server has other Spark settings"
        return ""

    def run(self, asked: Asked, report_progress: Callable[[str], None]) -> tuple[str, int] | None:
        """Run jobs; return what went wrong, with an exit code."""
        spark = self._spark
        if spark is None:
            return "Spark was not started", os.EX_UNAVAILABLE
        try:
            return judged(lambda: once(asked, spark, report_progress))
        finally:
            with contextlib.suppress(Py4JError, OSError):
                forget(spark)

    def is_alive(self) -> bool:
        """Return whether Spark can run more jobs: its Java may have been killed."""
        try:
            return self._spark is not None and not self._spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001
        except (Py4JError, OSError):
            return False

    def cancel(self) -> None:
        """Have queries that run fail soon. Nothing is run afterwards."""
        if self._spark is not None:
            with contextlib.suppress(Py4JError, OSError):
                self._spark.sparkContext.cancelAllJobs()

    def stop(self) -> None:
        """Stop Spark."""
        self._stack.close()
