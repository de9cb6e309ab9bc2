"""The command `leveret store backup` (driver: files, signals, the socket of a running broker)."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click

from leveret.broker import exit_codes
from leveret.broker.config.config import ConfigError, load
from leveret.broker.config.values import parse_amount
from leveret.broker.config_key import Key
from leveret.broker.http.socket_path import NAME as SOCKET_NAME
from leveret.broker.persistence.backup import unfinished
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.errors import StorageError
from leveret.storage.store.backup import Backup, Copied, Pace, Stopped, last

RATE = "50MB"


@click.command()
@click.option(
    "--data-dir", metavar="DIR", type=click.Path(path_type=Path), help="Data directory (default: var)."
)
@click.option(
    "--rate",
    metavar="BYTES",
    default=RATE,
    show_default=True,
    help="Maximum bytes per second, such as 50MB; 0 for no limit. It is raised if the broker writes faster.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
@click.argument("dest", type=click.Path(path_type=Path))
def backup(data_dir: Path | None, rate: str, dest: Path, *, as_json: bool) -> None:
    """Copy all data to the new directory DEST, while the broker runs or is stopped.

    The copy is a data directory as of one moment after the command began: with all messages confirmed and all
    definitions changed before. It has its name once it is whole. The broker writes it if it runs.

    \b
    Examples:
      leveret store backup --data-dir /var/lib/leveret /backup/today
      leveret store backup --rate 200MB /backup/today
    """  # noqa: D301 - click's mark for lines that stay as they are
    try:
        octets = parse_amount(rate, Key("--rate", "amount", low=0))
    except ValueError as error:
        _fail(f"--rate {error}", exit_codes.CONFIG)
    try:
        found = load(data_dir=data_dir, environ=os.environ).data_dir
    except ConfigError as error:
        _fail("; ".join(error.problems), exit_codes.CONFIG)
    path = Path(os.path.abspath(dest))  # without resolving links  # noqa: PTH100
    try:
        with _ended_in_order():
            done = _back_up(found, path, octets)
    except DataDirError as error:
        _fail(str(error), exit_codes.CANNOT_CREATE)
    except StorageError as error:
        _fail(f"no backup was written: {error}", exit_codes.of_storage(error))
    if as_json:
        click.echo(json.dumps({"path": str(path), **done._asdict()}))
    else:
        click.echo(f"{path}: {done.octets} bytes copied, {done.files} bodies in files of their own")


def _back_up(data_dir: Path, dest: Path, rate: int) -> Copied:
    """Back up the data of a stopped broker or, if it runs, have the broker do it.

    Raises DataDirError if they are in use and the broker cannot be asked, StorageError if no backup was written.
    """
    try:
        with locked(data_dir, make=False):
            return _of_stopped(data_dir, dest, rate)
    except DataDirError as error:
        if not (data_dir / SOCKET_NAME).is_socket():
            raise
        from leveret.broker.cli.backup_request import back_up_running  # noqa: PLC0415 - it takes a while

        return back_up_running(data_dir, dest, rate, error)


def _of_stopped(data_dir: Path, dest: Path, rate: int) -> Copied:
    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    with last(data_dir) as moment, unfinished(data_dir, dest) as target:
        return Backup(data_dir, target, Stopped(moment), Pace(rate, wait)).run()


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM end the command as an exception does, so that nothing is left behind."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"leveret: {text}", err=True)
    sys.exit(code)
