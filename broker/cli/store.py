"""The commands `leveret store ...`, all but `backup` for the data of a stopped broker (driver: processes).

Data are read in a separate process, because a damaged file may crash its reader: see `storage.store.check`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

import leveret
from leveret.broker import exit_codes
from leveret.broker.cli.backup import backup
from leveret.broker.cli.messages.group import Group
from leveret.broker.config.config import ConfigError, load
from leveret.broker.persistence.data_lock import DataDirError, InUseError, locked
from leveret.storage.errors import StorageError
from leveret.storage.store import compact as offline

_ROOT = Path(leveret.__file__).parent.parent


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object."),
        click.option(
            "--data-dir",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Data directory (default: var).",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=Group)
def store() -> None:
    """Back up data; inspect or compact the data of a stopped broker."""


store.add_command(backup)


@store.command()
@_options
def check(data_dir: Path | None, *, as_json: bool) -> None:
    """Read and check all data: exit code 0 if they are intact, 65 if something is damaged.

    \b
    Example:
      leveret store check --data-dir /var/lib/leveret
    """  # noqa: D301 - click's mark for lines that stay as they are
    with _in_use(data_dir) as found:
        findings, stats = read(found)
    damaged = [each for each in findings if each["damage"]]
    if as_json:
        click.echo(json.dumps({"clean": not damaged, "findings": findings, "stats": stats}))
    else:
        for each in findings:
            kind = "damaged" if each["damage"] else "left over"
            click.echo(f"{kind}: {each['where']}: {each['text']}")
        if damaged:
            click.echo(f"{len(damaged)} damaged items in {found}")
        elif stats is not None:
            queues, messages = len(stats["queues"]), stats["messages"]
            click.echo(f"clean: {queues} queues, {messages} messages, {stats['blocks']} blocks in {found}")
    sys.exit(exit_codes.DATA if damaged else 0)


@store.command("stats")
@_options
def show_stats(data_dir: Path | None, *, as_json: bool) -> None:
    """Print statistics of each queue and the fraction of garbage in the data file; exit code 65 for damaged data.

    \b
    Example:
      leveret store stats --data-dir /var/lib/leveret
    """  # noqa: D301 - click's mark for lines that stay as they are
    with _in_use(data_dir) as found:
        findings, stats = read(found)
    if stats is None:
        _fail(f"cannot read the data in {found}: {_first(findings)}", exit_codes.DATA)
    if as_json:
        click.echo(json.dumps(stats))
    else:
        for row in _table(stats["queues"]):
            click.echo(row)
        for name, value in stats.items():
            if name != "queues":
                click.echo(f"{name}: {value}")
    if any(each["damage"] for each in findings):
        _fail(f"the data in {found} are damaged, so these are not all: {_first(findings)}", exit_codes.DATA)


def _table(queues: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a header and one line per queue."""
    columns = ("messages", "octets", "blocks", "dead", "dead_octets")
    names = [
        (each["vhost"] or "?", (each["name"] or f"id {each['qid']}") + " (retained)" * each["retained"])
        for each in queues
    ]
    left = [len(max(column, key=len)) for column in zip(("vhost", "queue"), *names, strict=True)]
    for (vhost, name), each in zip((("vhost", "queue"), *names), (None, *queues), strict=True):
        cells = [f"{column if each is None else each[column]:>{len(column) + 4}}" for column in columns]
        yield f"{vhost:{left[0]}}  {name:{left[1]}}{''.join(cells)}"


@store.command("compact")
@_options
def compact_data(data_dir: Path | None, *, as_json: bool) -> None:
    """Rewrite the data files without garbage. An interrupted compaction changes nothing.

    \b
    Example:
      leveret store compact --data-dir /var/lib/leveret
    """  # noqa: D301 - click's mark for lines that stay as they are
    with _in_use(data_dir) as found:
        findings, stats = read(found)
        if stats is None or any(each["damage"] for each in findings):
            _fail(f"will not compact damaged data: {_first(findings)}", exit_codes.DATA)
        try:
            done = offline.compact(found)
        except StorageError as error:
            _fail(str(error), exit_codes.of_storage(error))
    if as_json:
        click.echo(json.dumps(done._asdict()))
    else:
        click.echo(f"before: {done.before} bytes")
        click.echo(f"after: {done.after} bytes, without {done.records} records of settled messages")


@store.command("reset-log")
@click.option(
    "--data-dir", metavar="DIR", type=click.Path(path_type=Path), help="Data directory (default: var)."
)
def reset_log(data_dir: Path | None) -> None:
    """Do without a redo log that is lost, damaged or of other data: its last commits are lost.

    The next start has what the data file has. The file of the log is kept, under another name.

    \b
    Example:
      leveret store reset-log --data-dir /var/lib/leveret
    """  # noqa: D301 - click's mark for lines that stay as they are
    with _in_use(data_dir) as found:
        try:
            kept = offline.reset_log(found)
        except StorageError as error:
            _fail(str(error), exit_codes.of_storage(error))
    click.echo("the data file is used without a redo log" + (f", which is kept as {kept}" if kept else ""))


def read(data_dir: Path) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Read data in another process; returns its rows, and the summary, None if the process did not finish."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *_python_path()])}
    words = [sys.executable, "-m", "leveret.broker.cli.store_reader", str(data_dir)]
    ours, theirs = os.pipe()  # its end tells the program that nobody waits any more
    try:
        done = subprocess.run(words, stdin=ours, capture_output=True, env=environment, check=False)  # noqa: S603
    finally:
        os.close(ours)
        os.close(theirs)
    findings: list[dict[str, Any]] = []
    stats = None
    reading = "the file"
    for line in done.stdout.splitlines():
        try:
            ((kind, value),) = json.loads(line).items()
        except ValueError:  # truncated by the end of the process
            continue
        if kind == "finding":
            findings.append(value)
        elif kind == "reading":
            reading = value
        else:
            stats = value
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else last[0]
        findings.append({"where": reading, "text": f"the reading process ended with {how}", "damage": True})
        stats = None
    return findings, stats


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@contextlib.contextmanager
def _in_use(data_dir: Path | None) -> Iterator[Path]:
    """Hold the lock of the selected data directory; ends the process if that is impossible."""
    try:
        found = load(data_dir=data_dir, environ=os.environ).data_dir
    except ConfigError as error:
        _fail("; ".join(error.problems), exit_codes.CONFIG)
    try:
        with locked(found, make=False):
            yield found
    except InUseError as error:
        _fail(
            f"{error}; stop it, or use a copy that `leveret store backup` has made", exit_codes.CANNOT_CREATE
        )
    except DataDirError as error:
        _fail(str(error), exit_codes.CANNOT_CREATE)


def _first(findings: list[dict[str, Any]]) -> str:
    return next(
        (f"{each['where']}: {each['text']}" for each in findings if each["damage"]), "there is no data"
    )


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"leveret: {text}", err=True)
    sys.exit(code)
