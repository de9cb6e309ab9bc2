"""The commands `leveret store ...`, all but `backup` for the data of a stopped broker (driver: processes).

Data are read in a separate process, because a damaged file may crash its reader: see `storage.store.check`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import leveret
from leveret.broker import exit_codes
from leveret.broker.cli.entry import Group, examples
from leveret.broker.cli.options import data_dir_option, data_errors, fail, json_option, load_or_exit
from leveret.broker.config.placement import FOLDER
from leveret.broker.config.values import parse_amount
from leveret.broker.config_key import Key
from leveret.broker.http.running_brokers import NAME as SOCKET_NAME
from leveret.broker.persistence.backup import unfinished
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.errors import StorageError
from leveret.storage.files import DIRECTORY
from leveret.storage.store import compact as offline
from leveret.storage.store.backup import Backup, Copied, Pace, last

if TYPE_CHECKING:
    from leveret.broker.cli.ctl.client import ApiClient

_ROOT = Path(leveret.__file__).parent.parent
POLL_SECONDS = (0.05, 1.0)  # time between two questions about a backup to the broker: at first, and at most


@click.group(cls=Group)
def store() -> None:
    """Back up data; inspect or compact the data of a stopped broker."""


@store.command()
@data_dir_option
@json_option
@examples("store check --data-dir /var/lib/leveret")
def check(data_dir: Path | None, *, as_json: bool) -> None:
    """Read and check all data: exit code 0 if they are intact, 65 if something is damaged."""
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
            later = f", held or delayed: {stats['delayed']}" if stats["delayed"] else ""
            click.echo(
                f"clean: queues: {queues}, messages: {messages}{later}, blocks: {stats['blocks']}, in {found}"
            )
    sys.exit(exit_codes.DATA if damaged else 0)


@store.command("stats")
@data_dir_option
@json_option
@examples("store stats --data-dir /var/lib/leveret")
def show_stats(data_dir: Path | None, *, as_json: bool) -> None:
    """Print statistics of each queue and the fraction of garbage in the data file; exit code 65 for damaged data."""
    with _in_use(data_dir) as found:
        findings, stats = read(found)
    if stats is None:
        fail(f"cannot read the data in {found}: {_first(findings)}", exit_codes.DATA)
    if as_json:
        click.echo(json.dumps(stats))
    else:
        for row in _table(stats["queues"]):
            click.echo(row)
        for name, value in stats.items():
            if name != "queues":
                click.echo(f"{name}: {value}")
    if any(each["damage"] for each in findings):
        fail(f"the data in {found} are damaged, so these are not all: {_first(findings)}", exit_codes.DATA)


def _table(queues: list[dict[str, Any]]) -> Iterator[str]:
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
@data_dir_option
@json_option
@examples("store compact --data-dir /var/lib/leveret")
def compact_data(data_dir: Path | None, *, as_json: bool) -> None:
    """Rewrite the data files without garbage. An interrupted compaction changes nothing."""
    with _in_use(data_dir) as found:
        findings, stats = read(found)
        if stats is None or any(each["damage"] for each in findings):
            fail(f"will not compact damaged data: {_first(findings)}", exit_codes.DATA)
        done = offline.compact(found)
    if as_json:
        click.echo(json.dumps(done._asdict()))
    else:
        click.echo(f"before: {done.before} bytes")
        click.echo(f"after: {done.after} bytes, without {done.records} records of settled messages")


@store.command("reset-log")
@data_dir_option
@examples("store reset-log --data-dir /var/lib/leveret")
def reset_log(data_dir: Path | None) -> None:
    """Do without a redo log that is lost, damaged or of other data: its last commits are lost.

    The next start has what the data file has. The file of the log is kept, under another name.
    """
    with _in_use(data_dir) as found:
        kept = offline.reset_log(found)
    click.echo("the data file is used without a redo log" + (f", which is kept as {kept}" if kept else ""))


def read(data_dir: Path) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Read data in another process; returns its rows, and the summary, None if the process did not finish."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *given])}
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
        last_line = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else last_line[0]
        findings.append({"where": reading, "text": f"the reading process ended with {how}", "damage": True})
        stats = None
    return findings, stats


@contextlib.contextmanager
def _in_use(data_dir: Path | None) -> Iterator[Path]:
    """Hold the lock of the selected data directory; ends the process if it, or the data, cannot be used."""
    found = load_or_exit(data_dir=data_dir).data_dir
    advice = "; stop it, or use a copy that `leveret store backup` has made"
    with data_errors(advice=advice), locked(found, make=False):
        yield found


def _first(findings: list[dict[str, Any]]) -> str:
    return next(
        (f"{each['where']}: {each['text']}" for each in findings if each["damage"]), "there is no data"
    )


# -- backup -----------------------------------------------------------------------------------------------------


@store.command()
@data_dir_option
@click.option(
    "--rate",
    metavar="BYTES",
    default="50MB",
    show_default=True,
    help="Maximum bytes per second, such as 50MB; 0 for no limit. It is raised if the broker writes faster.",
)
@json_option
@click.argument("dest", type=click.Path(path_type=Path))
@examples("store backup --data-dir /var/lib/leveret /backup/today", "store backup --rate 200MB /backup/today")
def backup(data_dir: Path | None, rate: str, dest: Path, *, as_json: bool) -> None:
    """Copy all data to the new directory DEST, while the broker runs or is stopped.

    The copy is a data directory as of one moment after the command began: with all messages confirmed and all
    definitions changed before. It has its name once it is whole. The broker writes it if it runs.
    """
    try:
        octets = parse_amount(rate, Key("--rate", "amount", low=0))
    except ValueError as error:
        fail(f"--rate {error}", exit_codes.CONFIG)
    found = load_or_exit(data_dir=data_dir).data_dir
    path = Path(os.path.abspath(dest))  # without resolving links  # noqa: PTH100
    with data_errors("no backup was written: "), _ended_in_order():
        done = _back_up(found, path, octets)
    if as_json:
        click.echo(json.dumps({"path": str(path), **done._asdict()}))
    else:
        click.echo(f"{path}: {done.octets} bytes copied, {done.files} bodies in files of their own")


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM end the command as an exception does, so that nothing is left behind."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _back_up(data_dir: Path, dest: Path, rate: int) -> Copied:
    """Back up the data of a stopped broker or, if it runs, have the broker do it.

    Raises DataDirError if they are in use and the broker cannot be asked, StorageError if no backup was written.
    """

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    try:
        with locked(data_dir, make=False), last(data_dir) as moment, unfinished(data_dir, dest) as target:
            pace = Pace(rate, wait)
            done = Backup(data_dir, target, moment, pace).run()
            for part in sorted((data_dir / FOLDER).glob("[0-9]*")):  # of processes of virtual hosts
                copy = target / FOLDER / part.name
                copy.mkdir(DIRECTORY, parents=True)
                with locked(part, make=False), last(part) as of_part:
                    done = Copied(pace.octets, done.files + Backup(part, copy, of_part, pace).run().files)
            return done
    except DataDirError as error:
        if not (data_dir / SOCKET_NAME).is_socket():
            raise
        from leveret.broker.cli.ctl.client import ApiClient  # noqa: PLC0415 - it takes a while

        with contextlib.closing(ApiClient(data_dir)) as client:
            return _request_backup(client, dest, rate, error)


def _request_backup(client: "ApiClient", dest: Path, rate: int, in_use: DataDirError) -> Copied:
    """Have a running broker back up its data, and wait until it is done; cancels the backup when interrupted.

    Raises StorageError with the broker's reason if no backup was written, DataDirError, with the text of `in_use`, if
    it does not answer.
    """
    from leveret.broker.cli.ctl.output import ApiError, CtlError  # noqa: PLC0415 - as above

    def ask(method: str, body: Any = None) -> Any:
        try:
            return client.request(method, ("leveret", "backup"), body)
        except ApiError as error:
            raise StorageError(str(error)) from error
        except CtlError as error:
            raise DataDirError(f"{in_use}, and it does not answer: {error}") from error

    pause = POLL_SECONDS[0]
    try:
        found = ask("POST", {"path": str(dest), "rate": rate})
        while found["state"] == "running":
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS[1])
            found = ask("GET")
    except (KeyboardInterrupt, SystemExit):
        client.close()  # an answer may be on its way
        with contextlib.suppress(Exception):
            ask("DELETE", {"path": str(dest)})
        raise
    if found["state"] != "done":
        raise StorageError(found["error"])
    return Copied(found["copied"], found["files"])
