"""The jobs of one command (driver: the process, its signals)."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leveret.analytics import (
    anomalies,
    answers,
    capacity,
    churn,
    compact,
    confirm_compare,
    health,
    job as one_job,
    latency,
    overview as overview_job,
    paging,
    report,
    routing,
    site,
)
from leveret.analytics.asked import PROGRAM, Asked
from leveret.analytics.follow import Follower
from leveret.analytics.java import JavaError
from leveret.analytics.job import Job, Page
from leveret.analytics.locations import Location, Remote, size_of, upload
from leveret.analytics.names import ALL, NOT_FOLLOWED, NOT_IN_ALL, NOT_LIMITED
from leveret.analytics.reading import Counted, Input, InputError
from leveret.analytics.scope import written
from leveret.analytics.series import forget_views
from leveret.analytics.session import LIGHT_BYTES, session

JOBS: Final[Mapping[str, Job]] = {  # in the order of `names`
    job.name: job
    for job in (
        *(overview_job.JOB, compact.VALIDATE, confirm_compare.JOB, latency.JOB, paging.JOB, health.JOB),
        *(anomalies.JOB, routing.JOB, capacity.JOB, churn.JOB, compact.COMPACT),
    )
}
GRACE_SECONDS: Final = 2  # time in which a signal that has ended Java reaches this process, too
NODES: Final = 10  # number of nodes that a page names
_CALLING: Final = "An error occurred while calling"


def run(asked: Asked, report_progress: Callable[[str], None], *, progress: bool) -> tuple[str, int] | None:
    """Run the jobs; return what went wrong, with the code to exit with, or None.

    `asked`: what to do; `report_progress`: called with progress messages; `progress`: show Spark's own bar on the
    terminal.
    """
    stopping = None if asked.follow is None else _stop_on_signals()

    def work() -> None:
        if isinstance(asked.output, Path):
            asked.output.mkdir(parents=True, exist_ok=True)
        report_progress("starting Spark")
        light = is_small(asked.directory)
        with session(asked.master, asked.settings, progress=progress, light=light, archives=True) as spark:
            if asked.follow is None or stopping is None or isinstance(asked.output, Remote):
                once(asked, spark, report_progress)
            else:
                follower = Follower(spark, asked.directory, asked.output, asked.scope, asked.objective)
                keep_looking(asked, follower, asked.output, asked.follow, report_progress, stopping)

    return judged(work, stopping)


def once(asked: Asked, spark: SparkSession, report_progress: Callable[[str], None]) -> None:
    """Run the jobs of a request in a session, as `deliver` does, and note the answer."""
    question = answers.question(asked)
    data = Input(spark, asked.directory, asked.output, scope=asked.scope, objective=asked.objective)
    deliver(asked.names, data, asked.output, report_progress, asked.source)
    answers.note(asked, question)


def judged(work: Callable[[], None], stopping: threading.Event | None = None) -> tuple[str, int] | None:
    """Do work; return what went wrong, with the code to exit with, or None.

    `work`: runs jobs; `stopping`: set if the process has to end.
    """
    try:
        work()
    except (JavaError, report.PagesError) as error:
        return str(error), os.EX_UNAVAILABLE
    except InputError as error:
        return str(error), os.EX_DATAERR
    except (OSError, PySparkException, Py4JError) as error:
        if stopping is not None and stopping.wait(GRACE_SECONDS):
            return None  # Java was ended as well; the next start goes on from what is stored
        if isinstance(error, OSError):
            return str(error), os.EX_CANTCREAT
        return f"Spark failed: {_one_line(error)}", os.EX_SOFTWARE
    return None


def is_small(directory: Location) -> bool:
    """Return whether an input is on this machine and small enough that a query takes less time than compiling it."""
    size = size_of(directory)
    return size is not None and size < LIGHT_BYTES


def forget(spark: SparkSession) -> None:
    """Drop all rows that Spark keeps for queries."""
    spark.catalog.clearCache()
    forget_views(spark)
    for rows in spark.sparkContext._jsc.getPersistentRDDs().values():  # noqa: SLF001 - no other way
        rows.unpersist(False)


def deliver(
    names: Sequence[str],
    data: Input,
    output: Location,
    report_progress: Callable[[str], None],
    source: str = PROGRAM,
) -> None:
    """Run jobs as `analyse` does, with an output in any file system: pages are made here, and copied there."""
    if isinstance(output, Path):
        analyse(names, data, output, report_progress, source=source)
        return
    with tempfile.TemporaryDirectory(prefix="leveret-") as place:
        analyse(names, data, Path(place), report_progress, output, source)
        report_progress(f"copying pages to {output}")
        upload(data.spark, Path(place), output)


def analyse(
    names: Sequence[str],  # names of `JOBS`, or `ALL`
    data: Input,
    output: Path,
    report_progress: Callable[[str], None],  # called with progress messages
    tables: Location | None = None,  # directory for the tables, if that is another one
    source: str = PROGRAM,  # the command, as pages show it
) -> None:
    """Run jobs, each into its own directory, and write their pages; for `all` also an index page.

    Raises InputError: the input lacks tables that a job requested by name needs, or `ALL` found nothing to do.
    """
    wanted, skipped = _wanted(names, data)
    overview: site.OverviewPage | None = None
    has_index = bool({ALL, "overview"} & set(names)) or (output / report.INDEX).exists()

    def made(name: str) -> report.Made:
        return report.Made(source, datetime.now(UTC), about(data, JOBS[name].tables))

    def compute(name: str) -> Page:
        return one_job.run(JOBS[name], data, (tables or output) / name, _about(name, report_progress))

    # Most queries are small and wait for their plans, so two jobs together use all cores. Pages are made meanwhile.
    order = wanted[::-1]
    needed = dict.fromkeys(table for name in order for table in JOBS[name].tables if data.has(table))
    with (
        ThreadPoolExecutor(1, "pages") as drawing,
        ThreadPoolExecutor(data.at_once, "jobs") as computing,
    ):
        report_progress(f"reading {', '.join(needed)}")
        for _ in computing.map(data.placed, needed):
            pass
        drawn: dict[str, tuple[Page, Future[None]]] = {}
        for name, page in zip(order, computing.map(compute, order), strict=True):
            if isinstance(page, site.OverviewPage):
                overview = page
                continue
            counted = {each: data.counted[each] for each in JOBS[name].tables if each in data.counted}
            writing = drawing.submit(_write, page, output / name, counted, made(name), has_index=has_index)
            drawn[name] = page, writing
        pages = [(name, drawn[name][0]) for name in wanted if name in drawn]
        for name, _ in pages:
            drawn[name][1].result()
            report_progress(f"{name}: {output / name / 'report.html'}")
    if overview is None and ALL not in names:
        return
    if overview is not None:
        site.write(output, overview, pages, skipped, made("overview"))
    else:
        text = report.index(pages, skipped, report.Made(source, datetime.now(UTC)))
        report.write(output / report.INDEX, text)
    report.write_assets(output)
    report_progress(f"{output / report.INDEX}")


def _chosen(names: Sequence[str], *, is_folded: bool) -> list[str]:
    """Return the jobs that are asked for, in the order of `JOBS`."""
    others = NOT_FOLLOWED if is_folded else NOT_IN_ALL
    return [name for name in JOBS if name in names or (ALL in names and name not in others)]


def _wanted(names: Sequence[str], data: Input) -> tuple[list[str], dict[str, str]]:
    """Return the jobs to run, and those of `ALL` that have nothing to do, with the reasons."""
    asked = _chosen(names, is_folded=data.is_folded)
    skipped = {name: why for name in asked if name not in names and (why := _unsuitable(name, data))}
    return [name for name in asked if name not in skipped], skipped


def _unsuitable(name: str, data: Input) -> str:
    """Return why a job has nothing to do; empty if it has."""
    lacking = [table for table in JOBS[name].needs if not data.has(table)]
    if lacking:
        return f"missing tables: {', '.join(lacking)}"
    limits = ", ".join(option for option in data.scope.told() if name in NOT_LIMITED[option])
    return f"{limits} does not apply to it" if limits else ""


def _about(name: str, report_progress: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: report_progress(f"{name}: {text}")


def _write(
    page: Page, folder: Path, counted: Mapping[str, Counted], made: report.Made, *, has_index: bool
) -> None:
    report.write_assets(folder.parent)
    report.write(folder / "report.html", report.page(page, made, counted, has_index=has_index))


def about(data: Input, tables: Sequence[str]) -> list[str]:
    """Return what a page is about: the nodes with their versions, the range, the rows of each table that was read.

    `tables`: the tables of the page's job.
    """
    seen = {name: data.seen[name] for name in tables if name in data.seen}
    nodes = sorted({node for each in seen.values() for node in each.nodes})
    versions = data.versions() if nodes else {}
    lines = []
    if nodes:
        known = [f"{node} (Leveret {versions[node]})" if node in versions else node for node in nodes]
        more = f" and {len(known) - NODES} more" if len(known) > NODES else ""
        lines.append(f"{'Node' if len(nodes) == 1 else 'Nodes'}: {', '.join(known[:NODES])}{more}")
    first = [each.first_ms for each in seen.values() if each.first_ms is not None]
    last = [each.last_ms for each in seen.values() if each.last_ms is not None]
    if first and last:
        lines.append(f"Range: {written(min(first))} to {written(max(last))} UTC")
    if not data.scope.is_all:
        lines.append(f"Only: {', '.join(data.scope.told().values())}")
    rows = ", ".join(f"{name} {each.rows:,}" for name, each in seen.items())
    if data.is_folded and rows:
        read = ", ".join(f"{name} {data.counted[name].rows:,}" for name in seen)
        return [*lines, f"Rows: {read}, those older than ten minutes folded to {rows}"]
    return [*lines, *([f"Rows: {rows}"] if rows else [])]


class Stopped(Exception):  # noqa: N818 - not an error
    """Raised between two steps of a round that is not to be finished."""


def keep_looking(
    asked: Asked,
    follower: Follower,  # reads the new files
    output: Path,
    seconds: float,  # pause between the end of a round and the next
    report_progress: Callable[[str], None],  # called with progress messages
    # checked before each step of a round: pages are those of this round or of the one before
    stopping: threading.Event,
) -> None:
    """Run jobs repeatedly on all data written so far, with a pause between rounds, until stopped."""
    chosen = _chosen(asked.names, is_folded=True)
    needed = dict.fromkeys(table for name in chosen for table in JOBS[name].tables)

    def report_or_stop(text: str) -> None:
        if stopping.is_set():
            raise Stopped
        report_progress(text)

    while not stopping.is_set():
        try:
            rows = follower.catch_up(needed)
            analyse(asked.names, rows, output, report_or_stop, source=asked.source)
            forget(rows.spark)
        except InputError as error:
            report_progress(f"{error}; waiting")
        except Stopped:
            break
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
