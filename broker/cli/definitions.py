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
from typing import Any, NoReturn

import click

from leveret.broker import exit_codes
from leveret.broker.cli.messages.group import Group
from leveret.broker.config.config import Config, ConfigError, load
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.broker.process.named_files import MOST_DEFINITIONS, read_named
from leveret.broker.process.private_files import write_private


def _data_dir(command: Callable[..., None]) -> Callable[..., None]:
    path = click.Path(path_type=Path)
    return click.option("--data-dir", metavar="DIR", type=path, help="Data directory (default: var).")(
        command
    )


@click.group(cls=Group)
def definitions() -> None:
    """Export or import definitions: users, vhosts, permissions, policies, exchanges, queues, bindings."""


@definitions.command("export")
@_data_dir
@click.argument("file", type=click.Path(path_type=Path), required=False)
def export_definitions(data_dir: Path | None, file: Path | None) -> None:
    """Write the stored definitions to FILE or standard output, as RabbitMQ's JSON. A broker may be running.

    \b
    Example:
      leveret definitions export --data-dir /var/lib/leveret definitions.json
    """  # noqa: D301 - click's mark for lines that stay as they are
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
        write_private(file, octets)  # contains password hashes
    except OSError as error:
        _fail(f"cannot write {file}: {error.strerror}", exit_codes.CANNOT_CREATE)


@definitions.command("import")
@_data_dir
@click.option(
    "--dry-run", is_flag=True, help="Change nothing, and list what would be added, changed and refused."
)
@click.option(
    "--formatter", type=click.Choice(["table", "json"]), default="table", help="Form of the output."
)
@click.argument("file", type=click.Path(path_type=Path))
def import_definitions(data_dir: Path | None, file: Path, formatter: str, *, dry_run: bool) -> None:
    """Import the definitions in FILE into a broker, running or stopped; all of them or, if one is invalid, none.

    A dry run ends with 0 if nothing would change, with 1 if something would, and with 65 if it cannot be imported.

    \b
    Examples:
      leveret definitions import --dry-run definitions.json
      leveret definitions import --data-dir /var/lib/leveret definitions.json
    """  # noqa: D301 - click's mark for lines that stay as they are
    from leveret.broker.cli.ctl.import_report import dry_run_exit_code, report  # noqa: PLC0415

    config = _load(data_dir)
    if not file.is_file():
        _fail(f"file not found: {file}", exit_codes.NO_INPUT)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        answer = (_compared if dry_run else _imported)(config, file)
    except OSError as error:
        _fail(f"cannot read {file}: {error.strerror}", exit_codes.NO_INPUT)
    for line in report(answer, formatter):
        click.echo(line)
    if dry_run:
        sys.exit(dry_run_exit_code(answer))


def _imported(config: Config, file: Path) -> Any:
    from leveret.broker.administration import DefinitionsError  # noqa: PLC0415
    from leveret.broker.cli.definitions_offline import import_stored  # noqa: PLC0415
    from leveret.storage.errors import StorageError  # noqa: PLC0415

    try:
        with locked(config.data_dir):
            return asyncio.run(import_stored(config, file)).shown(dry_run=False)
    except DataDirError as error:
        if not _may_be_running(config):
            _fail(str(error), exit_codes.CANNOT_CREATE)
        return _by_broker(config.data_dir, file)
    except DefinitionsError as error:
        _fail(str(error), exit_codes.DATA)
    except StorageError as error:
        _fail(str(error), exit_codes.of_storage(error))


def _compared(config: Config, file: Path) -> Any:
    """Return what an import would do: to a running broker or, without one, to what is stored."""
    from leveret.broker.administration.access import BadRequestError  # noqa: PLC0415
    from leveret.broker.cli.definitions_offline import compare_stored  # noqa: PLC0415
    from leveret.storage.errors import StorageError  # noqa: PLC0415

    try:
        with locked(config.data_dir) if config.data_dir.is_dir() else contextlib.nullcontext():
            return compare_stored(config, read_named(file, MOST_DEFINITIONS)).shown(dry_run=True)
    except DataDirError as error:
        if not _may_be_running(config):
            _fail(str(error), exit_codes.CANNOT_CREATE)
        return _by_broker(config.data_dir, file, dry_run="true")
    except BadRequestError as error:
        _fail(f"cannot import definitions {file}: {error}", exit_codes.DATA)
    except StorageError as error:
        _fail(f"cannot import definitions {file}: {error}", exit_codes.of_storage(error))


def _may_be_running(config: Config) -> bool:
    from leveret.broker.http.socket_path import NAME  # noqa: PLC0415

    return (config.data_dir / NAME).exists()


def _by_broker(data_dir: Path, file: Path, **query: str) -> Any:
    """Have the broker that runs on the data import the file."""
    from leveret.broker.cli.ctl.client import (  # noqa: PLC0415
        DISK_FULL,
        IMPORT_SECONDS,
        ApiClient,
        ApiError,
        explained,
    )
    from leveret.broker.cli.ctl.errors import CtlError  # noqa: PLC0415

    try:
        with contextlib.closing(ApiClient(data_dir, IMPORT_SECONDS)) as api:
            return api.request(
                "POST", ("leveret", "definitions"), read_named(file, MOST_DEFINITIONS), query=query
            )
    except ApiError as error:
        code = exit_codes.CANNOT_CREATE if error.kind == DISK_FULL else exit_codes.DATA
        _fail(str(explained(error)).removeprefix("Error:\n"), code)
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
