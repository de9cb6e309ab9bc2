"""The commands `leveret definitions ...` for a data directory (driver: files, an event loop for the import)."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from leveret.broker import exit_codes
from leveret.broker.administration import BadRequestError, DefinitionsError
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.cli.ctl.client import IMPORT_SECONDS, ApiClient
from leveret.broker.cli.ctl.definitions import DRY_RUN, ON_UNSUPPORTED, UNSUPPORTED, end_import, import_query
from leveret.broker.cli.ctl.output import DISK_FULL, ApiError, CtlError
from leveret.broker.cli.entry import Group, examples
from leveret.broker.cli.options import data_dir_option, data_errors, fail, load_or_exit
from leveret.broker.config.config import Config
from leveret.broker.http.running_brokers import NAME as SOCKET_NAME
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.process.named_files import MOST_DEFINITIONS, read_named, write_private
from leveret.broker.server.server import Server
from leveret.storage.errors import DiskFullError, StorageError
from leveret.storage.store.read_only import has_data, stored_definitions


@click.group(cls=Group)
def definitions() -> None:
    """Export or import definitions: users, vhosts, permissions, policies, exchanges, queues, bindings."""


@definitions.command("export")
@data_dir_option
@click.argument("file", type=click.Path(path_type=Path), required=False)
@examples("definitions export --data-dir /var/lib/leveret definitions.json")
def export_definitions(data_dir: Path | None, file: Path | None) -> None:
    """Write the stored definitions to FILE or standard output, as RabbitMQ's JSON. A broker may be running."""
    config = load_or_exit(data_dir=data_dir)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that open files are closed
    try:
        octets = _memory_broker(Config(data_dir=config.data_dir)).administration.definitions.export_file(None)
    except StorageError as error:
        fail(str(error), exit_codes.DATA)
    if file is None:
        sys.stdout.buffer.write(octets)
        return
    try:
        write_private(file, octets)  # contains password hashes
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}", exit_codes.CANNOT_CREATE)


@definitions.command("import")
@data_dir_option
@click.option("--dry-run", is_flag=True, help=DRY_RUN)
@click.option(
    "--formatter", type=click.Choice(["table", "json"]), default="table", help="Form of the output."
)
@click.option("--on-unsupported", type=click.Choice(ON_UNSUPPORTED), help=UNSUPPORTED)
@click.argument("file", type=click.Path(path_type=Path))
@examples(
    "definitions import --dry-run definitions.json",
    "definitions import --data-dir /var/lib/leveret definitions.json",
)
def import_definitions(
    data_dir: Path | None, file: Path, formatter: str, on_unsupported: str | None, *, dry_run: bool
) -> None:
    """Import the definitions in FILE into a broker, running or stopped; all of them or, if one is invalid, none.

    A dry run ends with 0 if nothing would change, with 1 if something would, and with 65 if it cannot be imported.
    """
    config = load_or_exit(data_dir=data_dir)
    if on_unsupported is not None:
        config = msgspec.structs.replace(config, on_unsupported=on_unsupported)
    if not file.is_file():
        fail(f"file not found: {file}", exit_codes.NO_INPUT)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        answer = _answer(config, file, on_unsupported, is_dry=dry_run)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}", exit_codes.NO_INPUT)
    end_import(answer, formatter, click.echo)


def _answer(config: Config, file: Path, on_unsupported: str | None, *, is_dry: bool) -> Any:
    """Import the file into the stored data, or have the broker that runs on them do it; returns what has changed."""
    wrong = f"cannot import definitions {file}: " if is_dry else ""
    has_lock = not is_dry or config.data_dir.is_dir()  # a dry run makes no directory
    with data_errors(wrong):
        try:
            with locked(config.data_dir) if has_lock else contextlib.nullcontext():
                if is_dry:
                    found = compare_stored(config, read_named(file, MOST_DEFINITIONS))
                else:
                    found = asyncio.run(import_stored(config, file))
                return found.shown(dry_run=is_dry)
        except DataDirError:
            if not (config.data_dir / SOCKET_NAME).exists():
                raise
        except (BadRequestError, DefinitionsError) as error:
            fail(f"{wrong}{error}", exit_codes.DATA)
    return _by_broker(config.data_dir, file, import_query(on_unsupported, dry_run=is_dry))


def _by_broker(data_dir: Path, file: Path, query: Mapping[str, str]) -> Any:
    content = read_named(file, MOST_DEFINITIONS)
    try:
        with contextlib.closing(ApiClient(data_dir, IMPORT_SECONDS)) as api:
            return api.request("POST", ("leveret", "definitions"), content, query=query)
    except ApiError as error:
        code = exit_codes.CANNOT_CREATE if error.kind == DISK_FULL else exit_codes.DATA
        fail(error.shown.removeprefix("Error:\n"), code)
    except CtlError as error:
        fail(str(error), error.code)


# -- without a running broker -----------------------------------------------------------------------------------------


def _memory_broker(config: Config) -> Server:
    """Return a broker with the stored definitions that does not write. Raises StorageError."""
    # with a file to import at its start, a broker does not create the objects of a first one
    server = Server(msgspec.structs.replace(config, listeners=(), definitions=Path()), None)
    server.load_definitions(stored_definitions(config.data_dir))
    return server


def compare_stored(config: Config, octets: bytes) -> Outcome:
    """Return what an import of a file would do to the stored definitions, or to those of a first start.

    Raises BadRequestError if the file is not a JSON object, StorageError if the data cannot be read.
    """
    if has_data(config.data_dir):
        server = _memory_broker(config)
    else:
        server = Server(msgspec.structs.replace(config, listeners=(), definitions=None), None)
    return server.administration.definitions.import_file(None, octets, dry_run=True)


async def import_stored(config: Config, file: Path) -> Outcome:
    """Start a broker without listeners on the data, have it import the file as at any start, and stop it.

    The caller holds the lock of the data directory. Raises DefinitionsError if a definition is invalid, nothing has
    changed then; DiskFullError if not all changes are on disk; StorageError if the data cannot be read.
    """
    disk = DataStore(config.data_dir, config.storage, ram_limit=config.storage.ram_limit)
    shovel = msgspec.structs.replace(config.shovel, enabled=False)  # nothing moves before a broker runs
    server = Server(msgspec.structs.replace(config, listeners=(), shovel=shovel), disk)
    await server.start()
    try:
        (outcome,) = server.import_definitions(file)
    finally:
        lost = await server.stop()
    if lost:
        raise DiskFullError(f"the disk is full: {lost} changes of the import are not stored")
    return outcome
