"""The commands `leveret definitions ...` for a data directory (driver: files, an event loop for the import).

Their implementation is in `broker.cli.definitions_offline`, which is imported only when needed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from leveret.broker import exit_codes
from leveret.broker.config.config import Config, ConfigError, load
from leveret.broker.persistence.data_lock import DataDirError, locked


def _data_dir(command: Callable[..., None]) -> Callable[..., None]:
    path = click.Path(path_type=Path)
    return click.option("--data-dir", metavar="DIR", type=path, help="Data directory.")(command)


@click.group()
def definitions() -> None:
    """Export or import definitions: users, vhosts, permissions, policies, exchanges, queues, bindings."""


@definitions.command("export")
@_data_dir
@click.argument("file", type=click.Path(path_type=Path), required=False)
def export_definitions(data_dir: Path | None, file: Path | None) -> None:
    """Write the stored definitions to FILE or standard output, as RabbitMQ's JSON. A broker may be running."""
    from leveret.broker.cli.definitions_offline import export_stored  # noqa: PLC0415
    from leveret.storage.errors import StorageError  # noqa: PLC0415

    config = _load(data_dir)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that open files are closed
    try:
        octets = export_stored(config.data_dir)
    except StorageError as error:
        _fail(str(error), exit_codes.DATA)
    if file is None:
        sys.stdout.buffer.write(octets)
        return
    try:
        # contains password hashes
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:  # noqa: PTH123
            output.write(octets)
    except OSError as error:
        _fail(f"cannot write {file}: {error.strerror}", exit_codes.CANNOT_CREATE)


@definitions.command("import")
@_data_dir
@click.argument("file", type=click.Path(path_type=Path))
def import_definitions(data_dir: Path | None, file: Path) -> None:
    """Import the definitions in FILE into a broker, running or stopped; all of them or, if one is invalid, none."""
    from leveret.broker.administration.definitions_document import DefinitionsError  # noqa: PLC0415
    from leveret.broker.cli.definitions_offline import import_stored  # noqa: PLC0415
    from leveret.broker.http.socket_path import NAME  # noqa: PLC0415
    from leveret.storage.errors import StorageError  # noqa: PLC0415

    config = _load(data_dir)
    if not file.is_file():
        _fail(f"file not found: {file}", exit_codes.NO_INPUT)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        with locked(config.data_dir):
            asyncio.run(import_stored(config, file))
    except DataDirError as error:
        if not (config.data_dir / NAME).exists():
            _fail(str(error), exit_codes.CANNOT_CREATE)
        _import_live(config.data_dir, file)
    except (DefinitionsError, StorageError) as error:
        _fail(str(error), exit_codes.DATA)


def _import_live(data_dir: Path, file: Path) -> None:
    """Have the broker that runs on the data import the file."""
    from leveret.broker.cli.ctl.client import ApiClient, ApiError, explained  # noqa: PLC0415
    from leveret.broker.cli.ctl.errors import CtlError  # noqa: PLC0415

    try:
        with contextlib.closing(ApiClient(data_dir)) as api:
            api.request("POST", ("definitions",), file.read_bytes())
    except ApiError as error:
        _fail(str(explained(error)).removeprefix("Error:\n"), exit_codes.DATA)
    except CtlError as error:
        _fail(str(error), error.code)


def _load(data_dir: Path | None) -> Config:
    try:
        return load(data_dir=data_dir, environ=os.environ)
    except ConfigError as error:
        _fail("; ".join(error.problems), exit_codes.CONFIG)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"leveret: {text}", err=True)
    sys.exit(code)
