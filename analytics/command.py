"""The command `leveret analyze`: its options and errors (driver: the process, the terminal)."""

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import click

from leveret.analytics.locations import Location, Remote, parse as parse_location
from leveret.analytics.names import ALL, EMBEDDED, NOT_FOLLOWED, NOT_LIMITED, SUMMARIES
from leveret.analytics.objective import DEFAULT, Objective, ObjectiveError, parse as parse_objective
from leveret.analytics.times import EXAMPLES, TimeError, parse

PROGRAM: Final = "leveret analyze"
FOLLOW_SECONDS: Final = 30
_EXTRA: Final = frozenset({"pyspark", "py4j", "jinja2", "matplotlib"})
_WIDTH: Final = max(map(len, SUMMARIES))
_EPILOG: Final = "\b\nJobs:\n" + "\n".join(
    f"  {name:<{_WIDTH}}  {text}"
    for name, text in [*SUMMARIES.items(), (ALL, "all jobs but compact whose tables exist")]
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


def _time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Parse a time; return it in ms."""
    if text is None:
        return None
    try:
        return round(parse(text, datetime.now(UTC)).timestamp() * 1000)
    except TimeError as error:
        raise click.BadParameter(str(error)) from error
    except ModuleNotFoundError as error:
        raise click.BadParameter(f"times in words need the package {error.name}") from error


def _objective(_context: click.Context, _parameter: click.Parameter, text: str) -> Objective:
    """Parse an objective."""
    try:
        return parse_objective(text)
    except ObjectiveError as error:
        raise click.BadParameter(str(error)) from error


def _location(_context: click.Context, _parameter: click.Parameter, text: str) -> Location:
    """Parse a path or a URL."""
    place = parse_location(text)
    if isinstance(place, Path) and place.is_file():
        raise click.BadParameter(f"{text!r} is a file")
    return place


def _input(context: click.Context, parameter: click.Parameter, text: str) -> Location:
    """Parse a path or a URL; a directory of this machine must be there."""
    place = _location(context, parameter, text)
    if isinstance(place, Path) and not place.is_dir():
        raise click.BadParameter(f"directory {text!r} does not exist")
    return place


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=_EPILOG
)
@click.argument("names", metavar="JOB...", nargs=-1, required=True, type=click.Choice([*SUMMARIES, ALL]))
@click.option(
    "--input",
    "directory",
    metavar="DIR",
    required=True,
    callback=_input,
    help="Input: the broker's export.dir, the records of bench.paper, or the output of `compact` (OUTPUT/tables); "
    "a path, or a URL that Spark understands (hdfs:, s3a:).",
)
@click.option(
    "--output",
    metavar="DIR",
    required=True,
    callback=_location,
    help="Output: a directory for each job, with its tables in Parquet and report.html; a path or a URL.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=_time,
    help=f"Only rows from this time on: {EXAMPLES}. Times are in UTC.",
)
@click.option("--until", metavar="TIME", callback=_time, help="Only rows up to this time.")
@click.option("--vhost", metavar="NAME", help="Only queues and exchanges of this virtual host.")
@click.option("--queue", metavar="NAME", help="Only queues of this name.")
@click.option(
    "--objective",
    metavar="SHARE",
    callback=_objective,
    default=DEFAULT.words(),
    show_default=True,
    help="The latency that users want, for its error budget.",
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
    directory: Location,
    output: Location,
    since: int | None,
    until: int | None,
    vhost: str | None,
    queue: str | None,
    objective: Objective,
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

    limits = {"--since": since, "--until": until, "--vhost": vhost, "--queue": queue}
    if wrong := _wrong(names, {option for option, value in limits.items() if value is not None}, follow):
        _fail(wrong, os.EX_USAGE)
    if follow is not None and isinstance(output, Remote):
        _fail("--follow needs an output on this machine", os.EX_USAGE)
    if since is not None and until is not None and since > until:
        _fail("--since is later than --until", os.EX_USAGE)
    try:
        # The help, and wrong options, need no Spark.
        from leveret.analytics import running  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        _fail(
            f"missing package {error.name}; install it with: pip install 'leveret[analytics]'",
            os.EX_UNAVAILABLE,
        )
    asked = running.Asked(
        names, directory, output, (since, until, vhost, queue), objective, master, dict(settings), follow
    )
    failure = running.run(asked, report_progress, progress=not quiet and sys.stderr.isatty())
    if failure is not None:
        _fail(*failure)


def _wrong(names: Sequence[str], limits: set[str], follow: float | None) -> str:
    """Return what is wrong with options that are right each for itself; empty if nothing is."""
    if follow is not None and (named := [name for name in names if name in NOT_FOLLOWED]):
        return f"--follow cannot be combined with {', '.join(named)}"
    for option, excluded in NOT_LIMITED.items():
        if option in limits and (named := [name for name in names if name in excluded]):
            return f"{option} does not apply to {', '.join(named)}"
    return ""


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"{PROGRAM}: {text}", err=True)
    sys.exit(code)
