"""The command `leveret analyze`: its options and errors (driver: the process, the terminal)."""

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from leveret.analytics import answers
from leveret.analytics.asked import PROGRAM, Asked, command_line
from leveret.analytics.asking import NoServerError, ask
from leveret.analytics.locations import Location, Remote, is_broker, parse as parse_location
from leveret.analytics.names import (
    ALL,
    EMBEDDED,
    NOT_FOLLOWED,
    NOT_LIMITED,
    SUMMARIES,
)
from leveret.analytics.objective import DEFAULT, Objective, parse as parse_objective
from leveret.analytics.scope import Scope
from leveret.analytics.times import EXAMPLES, parse

FOLLOW_SECONDS: Final = 30
LISTEN: Final = ("127.0.0.1", 15693)
LOG: Final = ".serve.log"  # file in the output with the messages of the process of `--keep-warm`
READY_SECONDS: Final = 60  # maximum time for that process to listen
_EXTRA: Final = frozenset({"pyspark", "py4j", "pyarrow", "jinja2"})
_WIDTH: Final = max(map(len, SUMMARIES))
_EPILOG: Final = "\b\nJobs:\n" + "\n".join(
    f"  {name:<{_WIDTH}}  {text}"
    for name, text in [*SUMMARIES.items(), (ALL, "all jobs but compact whose tables exist")]
)


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a click callback for an option whose text, or each of several, is parsed; a ValueError is for the user."""

    def callback(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:
        try:
            return parse(given) if isinstance(given, str) else given and tuple(map(parse, given))
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


def _time(text: str) -> int:
    """Return a time in ms."""
    try:
        return round(parse(text, datetime.now(UTC)).timestamp() * 1000)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"times in words need the package {error.name}: pip install 'leveret[analytics]'"
        ) from error


def _location(text: str) -> Location:
    """Return a path or a URL."""
    place = parse_location(text)
    if isinstance(place, Path) and place.is_file():
        raise ValueError(f"{text!r} is a file")
    return place


def _input(text: str) -> Location:
    """Return a path or a URL; a directory of this machine must be there."""
    place = _location(text)
    if isinstance(place, Path) and not place.is_dir():
        raise ValueError(f"directory {text!r} does not exist")
    return place


def _duration(text: str) -> float:
    """Return a duration in seconds."""
    found = re.fullmatch(r"([1-9]\d{0,6})(s|m|h)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a number of seconds, minutes or hours: 30s, 10m, 2h")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _address(text: str) -> tuple[str, int]:
    """Return `HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the highest port
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options of a command, as `main` declares them."""

    names: Sequence[str]
    directory: Location | None
    output: Location
    since: int | None
    until: int | None
    vhost: str | None
    queue: str | None
    objective: Objective
    master: str | None
    settings: Sequence[tuple[str, str]]
    follow: float | None
    listen: tuple[str, int] | None
    keep_warm: float | None
    serve: bool
    quiet: bool
    begun: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def scope(self) -> Scope:
        """Return the part of the input that is asked for."""
        return Scope(self.since, self.until, self.vhost, self.queue)

    def asked(self) -> Asked | None:
        """Return the request for jobs; None if there are none to run."""
        if self.directory is None or not self.names:
            return None
        return Asked(
            names=self.names,
            directory=self.directory,
            output=self.output,
            scope=self.scope,
            objective=self.objective,
            master=self.master,
            settings=dict(self.settings),
            follow=self.follow,
            source=command_line(sys.argv[1:]),
        )

    def report_progress(self, text: str) -> None:
        """Write a message to the user's terminal."""
        if not self.quiet:
            click.echo(f"{time.monotonic() - self.begun:7.1f} s  {text}", err=True)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=_EPILOG
)
@click.argument("names", metavar="JOB...", nargs=-1, type=click.Choice([*SUMMARIES, ALL]))
@click.option(
    "--input",
    "directory",
    metavar="DIR",
    callback=_parsed(_input),
    help="Input: the broker's export.dir, the records of bench.paper, or the output of `compact` (OUTPUT/tables); "
    "a path, or a URL that Spark understands (hdfs:, s3a:). With --follow also a broker: the virtual host of its "
    "stream leveret.telemetry, amqp://user:password@host/vhost.",
)
@click.option(
    "--output",
    metavar="DIR",
    required=True,
    callback=_parsed(_location),
    help="Output: a directory for each job, with its tables in Parquet and report.html; a path or a URL.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=_parsed(_time),
    help=f"Only rows from this time on: {EXAMPLES}. Times are in UTC.",
)
@click.option("--until", metavar="TIME", callback=_parsed(_time), help="Only rows up to this time.")
@click.option("--vhost", metavar="NAME", help="Only queues and exchanges of this virtual host.")
@click.option("--queue", metavar="NAME", help="Only queues of this name.")
@click.option(
    "--objective",
    metavar="SHARE",
    callback=_parsed(parse_objective),
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
    callback=_parsed(_setting),
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
@click.option(
    "--serve",
    is_flag=True,
    help="Keep running: serve the pages of OUTPUT over HTTP, and run the jobs of later commands with the same OUTPUT "
    "in a Spark session that is kept warm.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_parsed(_address),
    help=f"Address for --serve; by default {LISTEN[0]}:{LISTEN[1]}. There is no login: everybody who reaches it can "
    "read the pages.",
)
@click.option(
    "--keep-warm",
    metavar="DURATION",
    callback=_parsed(_duration),
    help="Run the jobs in a process in the background, which keeps Spark for later commands with the same OUTPUT and "
    "ends when none has come for so long, such as 10m.",
)
@click.option("--quiet", is_flag=True, help="Print errors only.")
def main(**options: Any) -> None:
    """Analyse a broker's telemetry export, or the records of a comparison, with Spark."""
    given = Given(**options)
    if not given.names and not given.serve:
        raise click.MissingParameter(param_hint="'JOB...'", param_type="argument")
    if given.directory is None and given.names:
        raise click.MissingParameter(param_hint="'--input'", param_type="option")
    for wrong in _wrong(given):
        _fail(wrong, os.EX_USAGE)
    asked = given.asked()
    if asked is not None and given.follow is None and answers.is_answered(asked):
        given.report_progress(f"the input has not changed: {answers.page(asked)}")
        if not given.serve:
            return
        asked = None
    if asked is not None and given.follow is None and not given.serve and _was_done(asked, given):
        return
    address = (given.listen or LISTEN) if given.serve else None
    if (
        asked is not None
        and given.keep_warm is not None
        and not given.serve
        and isinstance(given.output, Path)
    ):
        if (child := _in_background(given.output)) != 0:
            given.report_progress(f"starting Spark in process {child}, which keeps it for later commands")
            _ask_started(asked, given.output, child, given)
            return
        asked, given = None, dataclasses.replace(given, serve=True)
    _run(asked, given, address)


def _in_background(output: Path) -> int:
    """Go on in a process of its own, too, without a terminal; return its id, and 0 in it."""
    output.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        log = os.open(output / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for source, target in ((nothing, 0), (nothing, 1), (log, 2)):
            os.dup2(source, target)
    return child


def _ask_started(asked: Asked, output: Path, child: int, given: Given) -> None:
    """Have a server that was just started do it; exit if it failed there, or if the server did."""
    failure: tuple[str, int] | None = None
    end = time.monotonic() + READY_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < end:
        try:
            failure = ask(asked, given.report_progress)
        except NoServerError:
            time.sleep(0.05)
            continue
        if failure is None:
            return
        if failure[1] == os.EX_UNAVAILABLE:
            break
        _fail(*failure)
    # It has ended, or is about to.
    lines = (output / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    last = [line for line in lines if line.startswith(f"{PROGRAM}: ")] or [
        f"{PROGRAM}: {output} has no server"
    ]
    _fail(last[-1].removeprefix(f"{PROGRAM}: "), os.EX_UNAVAILABLE)


def _run(asked: Asked | None, given: Given, address: tuple[str, int] | None) -> None:
    """Run jobs in this process, or serve an output, its pages on `address` if given; exit if that failed."""
    try:
        # The help, wrong options, and requests to a server need no Spark.
        from leveret.analytics import running  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        _fail(
            f"missing package {error.name}; install it with: pip install 'leveret[analytics]'",
            os.EX_UNAVAILABLE,
        )
    if given.serve and isinstance(given.output, Path):
        failure = _serve(asked, given.output, given, address)
    elif asked is not None:
        with _alone(given.output):
            failure = running.run(
                asked, given.report_progress, progress=not given.quiet and sys.stderr.isatty()
            )
    else:
        failure = None
    if failure is not None:
        _fail(*failure)


@contextlib.contextmanager
def _alone(output: Location) -> Iterator[None]:
    """Be the only command that writes to a directory of this machine; exit if another one does."""
    if not isinstance(output, Path):
        yield
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(output, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = f"another command writes to {output}: wait until it has ended, or give another --output"
        _fail(text, os.EX_TEMPFAIL)
    except OSError as error:
        _fail(str(error), os.EX_CANTCREAT)
    try:
        yield
    finally:
        os.close(descriptor)


def _was_done(asked: Asked, given: Given) -> bool:
    """Have the server of the output do it; return whether there is one that does. Exit if it failed there."""
    try:
        failure = ask(asked, given.report_progress)
    except NoServerError as error:
        if str(error):
            given.report_progress(f"not asking the server of {asked.output}: {error}")
        return False
    if failure is not None:
        _fail(*failure)
    return True


def _serve(
    first: Asked | None, output: Path, given: Given, address: tuple[str, int] | None
) -> tuple[str, int] | None:
    """Serve an output, its pages on `address` if given, until a signal or so long idle.

    Returns what went wrong, with an exit code.
    """
    from leveret.analytics.java import JavaError  # noqa: PLC0415 - as above
    from leveret.analytics.serving import ServeError, Server  # noqa: PLC0415
    from leveret.analytics.warm import WarmSession  # noqa: PLC0415

    async def serve() -> tuple[str, int] | None:
        local = given.directory if isinstance(given.directory, Path) else None
        worker = WarmSession(given.master, dict(given.settings), local, given.report_progress)
        host, port = address or (None, 0)
        return await Server(output, worker, host, port, given.report_progress, given.keep_warm).run(first)

    try:
        output.mkdir(parents=True, exist_ok=True)
        return asyncio.run(serve())
    except JavaError as error:
        return str(error), os.EX_UNAVAILABLE
    except (OSError, ServeError) as error:
        return str(error), os.EX_CANTCREAT


def _wrong(given: Given) -> Iterator[str]:
    """Yield what is wrong with options that are right each for itself."""
    keeps = {"--serve": given.serve, "--keep-warm": given.keep_warm is not None}
    kept = [name for name, is_given in keeps.items() if is_given]
    if given.listen is not None and not given.serve:
        yield "--listen needs --serve"
    if is_broker(given.directory) and given.follow is None:
        yield "a broker as --input needs --follow"
    if given.follow is not None:
        yield from (f"{name} cannot be combined with --follow" for name in kept)
        kept.append("--follow")
    if isinstance(given.output, Remote):
        yield from (f"{name} needs an output on this machine" for name in kept)
    if given.follow is not None and (named := [name for name in given.names if name in NOT_FOLLOWED]):
        yield f"--follow cannot be combined with {', '.join(named)}"
    for option in given.scope.told():
        if named := [name for name in given.names if name in NOT_LIMITED[option]]:
            yield f"{option} does not apply to {', '.join(named)}"
    if given.since is not None and given.until is not None and given.since > given.until:
        yield "--since is later than --until"


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"{PROGRAM}: {text}", err=True)
    sys.exit(code)
