"""The command `leveret store backup` (driver: files, signals, the socket of a running broker)."""

import contextlib
import http.client
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from leveret.broker import exit_codes
from leveret.broker.config.config import ConfigError, load
from leveret.broker.config.keys import Key
from leveret.broker.config.values import parse_amount
from leveret.broker.persistence.backup_directory import unfinished
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.errors import DamagedError, StorageError, UnknownFormatError
from leveret.storage.store.backup import Backup, Copied, Stopped
from leveret.storage.store.moment import last
from leveret.storage.store.pace import Pace

RATE = "50MB"
SOCKET_NAME = "ctl.sock"
POLL_SECONDS = (0.05, 1.0)
"""Time between two questions to the broker: at first, and at most."""
ANSWER_SECONDS = 60.0
_PATH = "/api/leveret/backup"


@click.command()
@click.option("--data-dir", metavar="DIR", type=click.Path(path_type=Path), help="Data directory.")
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
    """
    try:
        octets = parse_amount(
            rate, Key(name="--rate", kind="amount", default="", unit="bytes", low=0, doc="")
        )
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
        is_data = isinstance(error, DamagedError | UnknownFormatError)
        _fail(f"no backup was written: {error}", exit_codes.DATA if is_data else exit_codes.CANNOT_CREATE)
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
        with contextlib.closing(_Connection(data_dir)) as connection:
            return _of_running(connection, dest, rate, error)


def _of_stopped(data_dir: Path, dest: Path, rate: int) -> Copied:
    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    with last(data_dir) as moment, unfinished(data_dir, dest) as target:
        return Backup(data_dir, target, Stopped(moment), Pace(rate, wait)).run()


def _of_running(connection: "_Connection", dest: Path, rate: int, in_use: DataDirError) -> Copied:
    pause = POLL_SECONDS[0]
    try:
        found = connection.ask("POST", {"path": str(dest), "rate": rate}, in_use)
        while found["state"] == "running":
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS[1])
            found = connection.ask("GET", None, in_use)
    except (KeyboardInterrupt, SystemExit):
        connection.close()  # an answer may be on its way
        with contextlib.suppress(Exception):
            connection.ask("DELETE", {"path": str(dest)}, in_use)
        raise
    if found["state"] != "done":
        raise StorageError(found["error"])
    return Copied(found["copied"], found["files"])


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM end the command as an exception does, so that nothing is left behind."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Connection(http.client.HTTPConnection):
    """A connection to the socket in a data directory, whose path may be of any length."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self._data_dir = data_dir

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with contextlib.chdir(self._data_dir):
            self.sock.connect(SOCKET_NAME)

    def ask(self, method: str, body: Any, in_use: DataDirError) -> Any:
        """Send a request and return the object of the answer.

        Raises StorageError with the broker's reason for a refusal, `in_use` if it does not answer.
        """
        try:
            self.request(method, _PATH, None if body is None else json.dumps(body))
            with self.getresponse() as response:
                octets = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise DataDirError(
                f"{in_use}, and it does not answer: {str(error) or type(error).__name__}"
            ) from error
        answer = json.loads(octets)
        if response.status != http.client.OK:
            raise StorageError(str(answer["reason"]))
        return answer


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"leveret: {text}", err=True)
    sys.exit(code)
