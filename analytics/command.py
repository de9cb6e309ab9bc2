"""The command `leveret analyze` (driver: the process, its signals, the terminal)."""

import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn, Protocol

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from leveret.analytics import job as one_job, report
from leveret.analytics.follow import Follower
from leveret.analytics.java import JavaError
from leveret.analytics.job import Page
from leveret.analytics.jobs import ALL, JOBS, NOT_IN_ALL
from leveret.analytics.reading import Input, InputError
from leveret.analytics.session import EMBEDDED, session

PROGRAM: Final = "leveret analyze"
FOLLOW_SECONDS: Final = 30
_SECRET: Final = re.compile(r"^((?:--conf=)?[\w-]+(?:\.[\w-]+)+=).*", re.DOTALL)
"""A Spark key with its value, which may be a password; pages are shared, so they must not have it."""
_CALLING: Final = "An error occurred while calling"
_WIDTH: Final = max(map(len, JOBS))
_EPILOG: Final = "\b\nJobs:\n" + "\n".join(
    f"  {name:<{_WIDTH}}  {text}"
    for name, text in [
        *((name, job.summary) for name, job in JOBS.items()),
        (ALL, "all jobs but compact whose tables exist"),
    ]
)


def _settings(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Parse `KEY=VALUE` settings."""
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        found.append((key, value))
    return tuple(found)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=_EPILOG
)
@click.argument("names", metavar="JOB...", nargs=-1, required=True, type=click.Choice([*JOBS, ALL]))
@click.option(
    "--input",
    "directory",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Input: the broker's export.dir, the records of bench.paper, or the output of `compact` (OUTPUT/tables).",
)
@click.option(
    "--output",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Output: a directory for each job, with its tables in Parquet and report.html.",
)
@click.option(
    "--master", metavar="URL", help=f"Spark master; by default {EMBEDDED} (this machine, all cores)."
)
@click.option(
    "--conf",
    "settings",
    metavar="KEY=VALUE",
    callback=_settings,
    multiple=True,
    help="Set a Spark configuration property; may be repeated.",
)
@click.option(
    "--follow",
    metavar="[SECONDS]",
    type=click.FloatRange(min=1),
    is_flag=False,
    flag_value=FOLLOW_SECONDS,
    help=f"Keep running, and read new files every SECONDS seconds (default {FOLLOW_SECONDS}).",
)
@click.option("--quiet", is_flag=True, help="Print errors only.")
def main(
    names: Sequence[str],
    directory: Path,
    output: Path,
    master: str | None,
    settings: Sequence[tuple[str, str]],
    follow: float | None,
    *,
    quiet: bool,
) -> None:
    """Analyse a broker's telemetry export, or the records of a comparison, with Spark."""
    begun = time.monotonic()

    def report_progress(text: str) -> None:
        if not quiet:
            click.echo(f"{time.monotonic() - begun:7.1f} s  {text}", err=True)

    if follow is not None and NOT_IN_ALL & set(names):
        _fail(f"--follow cannot be combined with {', '.join(NOT_IN_ALL & set(names))}", os.EX_USAGE)
    try:
        output.mkdir(parents=True, exist_ok=True)
        report_progress("starting Spark")
        with session(master, dict(settings), progress=not quiet and sys.stderr.isatty()) as spark:
            if follow is None:
                analyse(names, Input(spark, directory, output), output, report_progress)
            else:
                keep_looking(
                    names,
                    Follower(spark, directory, output),
                    output,
                    follow,
                    report_progress,
                    _stop_on_signals(),
                )
    except JavaError as error:
        _fail(str(error), os.EX_UNAVAILABLE)
    except InputError as error:
        _fail(str(error), os.EX_DATAERR)
    except OSError as error:
        _fail(str(error), os.EX_CANTCREAT)
    except (PySparkException, Py4JError) as error:
        _fail(f"Spark failed: {_one_line(error)}", os.EX_SOFTWARE)


def analyse(names: Sequence[str], data: Input, output: Path, report_progress: Callable[[str], None]) -> None:
    """Run jobs, each into its own directory, and write their pages; for `all` also an index page.

    Args:
        names: of `JOBS`, or `ALL`.
        data: the input.
        output: the output directory.
        report_progress: called with progress messages.

    Raises:
        InputError: the input lacks tables that a job requested by name needs, or `ALL` found nothing to do.
    """
    wanted = [name for name in JOBS if name in names or (ALL in names and name not in NOT_IN_ALL)]
    skipped: dict[str, str] = {}
    pages: list[tuple[str, Page]] = []
    for name in wanted:
        lacking = [table for table in JOBS[name].needs if not data.has(table)]
        if lacking and name not in names:
            skipped[name] = f"missing tables: {', '.join(lacking)}"
            continue
        page = one_job.run(JOBS[name], data, output / name, _about(name, report_progress))
        _write(page, output / name, data)
        pages.append((name, page))
        report_progress(f"{name}: {output / name / 'report.html'}")
    if ALL in names:
        report.write(output / "index.html", report.index(pages, skipped))
        report_progress(f"{ALL}: {output / 'index.html'}")


def _about(name: str, report_progress: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: report_progress(f"{name}: {text}")


def _write(page: Page, folder: Path, data: Input) -> None:
    for section in page.sections:
        if section.figure is not None and section.name:
            report.write(folder / f"{section.name}.svg", section.figure)
    text = report.page(page, source=command_line(sys.argv[1:]), made=datetime.now(UTC), counted=data.counted)
    report.write(folder / "report.html", text)


def command_line(words: Sequence[str]) -> str:
    """Return the command with these words, without the values of Spark's keys."""
    shown = [_SECRET.sub(r"\1...", word) for word in words]
    return f"{PROGRAM} {shlex.join(shown)}"


class Stopping(Protocol):
    """A stop signal that can be polled and waited for: a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether to stop."""

    def wait(self, timeout: float) -> bool:
        """Wait for the signal, at most `timeout` seconds."""


def keep_looking(
    names: Sequence[str],
    follower: Follower,
    output: Path,
    seconds: float,
    report_progress: Callable[[str], None],
    stopping: Stopping,
) -> None:
    """Run jobs repeatedly on all data written so far, with a pause between rounds, until stopped.

    Args:
        names: as for `analyse`.
        follower: reads the new files.
        output: the output directory.
        seconds: pause between the end of a round and the next.
        report_progress: called with progress messages.
        stopping: checked before each round.
    """
    wanted = [job for name, job in JOBS.items() if name in names or ALL in names]
    needed = dict.fromkeys(table for job in wanted for table in (*job.needs, *job.uses))
    while not stopping.is_set():
        try:
            analyse(names, follower.catch_up(needed), output, report_progress)
        except InputError as error:
            report_progress(f"{error}; waiting")
        stopping.wait(seconds)


def _stop_on_signals() -> threading.Event:
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopping.set())
    return stopping


def _one_line(error: Exception) -> str:
    """Return the failure in one line. Errors without a text of pyspark's begin with the name of a call."""
    lines = [
        line.removeprefix(": ") for line in str(error).splitlines() if line and not line.startswith(_CALLING)
    ]
    return lines[0] if lines else repr(error)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"{PROGRAM}: {text}", err=True)
    sys.exit(code)
