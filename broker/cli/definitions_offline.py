"""Export and import of the definitions in a data directory without a running broker (driver: opens the data)."""

from pathlib import Path

import msgspec

from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.config.config import Config
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.server.server import Server
from leveret.storage.errors import DiskFullError
from leveret.storage.store.read_only import has_data, stored_definitions


def _memory_broker(config: Config) -> Server:
    """Return a broker with the stored definitions that does not write. Raises StorageError."""
    # with a file to import at its start, a broker does not create the objects of a first one
    server = Server(msgspec.structs.replace(config, listeners=(), definitions=Path()), None)
    server.load_definitions(stored_definitions(config.data_dir))
    return server


def export_stored(data_dir: Path) -> bytes:
    """Return the stored definitions as RabbitMQ's JSON; a broker may be using the data.

    Raises StorageError if there are no data, or they cannot be read.
    """
    return _memory_broker(Config(data_dir=data_dir)).administration.definitions.export_file(None)


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
