"""Chooses the engine of a command: Spark, or Sail for inputs of this machine that it suits (driver: files)."""

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from leveret.analytics import sail
from leveret.analytics.asked import Asked
from leveret.analytics.locations import Location, size_of
from leveret.analytics.names import NOT_BY_SAIL, SAIL, SPARK
from leveret.analytics.scope import Scope
from leveret.analytics.session import SUBMITTED
from leveret.analytics.stored_input import StoredInput

_PLAIN_PATH: Final = re.compile(r"[\w./=@,+-]+", re.ASCII)
"""Paths that Sail and Spark understand alike: others are URLs with escapes, or patterns."""


def unsuitable(asked: Asked) -> str:
    """Return why Spark runs a request and not Sail; empty if Sail does."""
    if asked.engine == SPARK:
        return "it was asked for"
    if SUBMITTED in os.environ or asked.master is not None or asked.settings:
        return "Spark's settings were given"
    if asked.follow is not None:
        return "only Spark follows"
    if named := [name for name in asked.names if name in NOT_BY_SAIL]:
        return f"only Spark runs {', '.join(named)}"
    # Below a scratch directory with an escape in its name Sail would read other files than it wrote: none.
    places = asked.directory, asked.output, Path(tempfile.gettempdir())
    return next(filter(None, map(unreachable, places)), "") or _too_large(asked)


def unreachable(place: Location) -> str:
    """Return why Sail cannot use a directory; empty if it can."""
    if not isinstance(place, Path) or not _PLAIN_PATH.fullmatch(str(place.resolve())):
        return f"only Spark can use {place}"
    return ""


def _too_large(asked: Asked) -> str:
    if asked.engine == SAIL:
        return ""
    if missing := sail.lacks():
        return f"Sail is not installed (missing package {missing})"
    size = size_of(asked.directory)
    return "" if size is not None and size < sail.MOST_BYTES else "the input is large"


def run_stored(
    asked: Asked,
    spark: SparkSession,
    deliver: Callable[..., None],
    report_progress: Callable[[str], None],
) -> None:
    """Run the jobs of a request in a session of Sail.

    Args:
        asked: the request.
        spark: the session.
        deliver: `running.deliver`.
        report_progress: called with progress messages.

    Raises:
        UnusualLineError: only Spark's parser can judge a line of the input.
    """
    from leveret.analytics import parsed_files  # noqa: PLC0415 - with a package that only Sail needs

    assert isinstance(asked.output, Path)  # noqa: S101 - Sail has no other outputs
    with tempfile.TemporaryDirectory(prefix="leveret-") as scratch:
        data = StoredInput(
            spark, asked.directory, asked.output, Path(scratch), Scope(*asked.limits), asked.objective
        )
        deliver(asked.names, data, asked.output, report_progress, asked.source)
    parsed_files.tidy(asked.output.resolve() / parsed_files.FOLDER)
