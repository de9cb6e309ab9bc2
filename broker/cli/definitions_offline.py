"""Export and import of the definitions in a data directory without a running broker (driver: opens the data)."""

from pathlib import Path

import msgspec

from leveret.broker.administration.definitions import exported
from leveret.broker.administration.definitions_document import at_once, writing
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.auth.users import Users
from leveret.broker.config.config import Config
from leveret.broker.metadata.recorder import Definitions, NullJournal
from leveret.broker.metadata.restore import restore
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.server.server import Server
from leveret.broker.vhost.parameters import GlobalParameters
from leveret.broker.vhost.vhost import VHost
from leveret.storage.errors import DiskFullError
from leveret.storage.store.read_only import has_data, stored_definitions


class _Stored:
    """The stored definitions, created in memory only."""

    def __init__(self, rows: list[tuple[bytes, bytes]]) -> None:
        self.users = Users()
        self.global_parameters = GlobalParameters()
        self.vhosts: dict[str, VHost] = {}
        self._turn = Turn()
        self._context = NodeContext()
        definitions = Definitions(NullJournal(), lambda: 0)
        restore(rows, definitions, self.users, self.global_parameters, self._make_vhost)

    def _make_vhost(self, name: str) -> VHost:
        vhost = self.vhosts[name] = VHost(name, self._turn, self._context)
        return vhost


def export_stored(data_dir: Path) -> bytes:
    """Return the stored definitions as RabbitMQ's JSON; a broker may be using the data.

    Raises:
        StorageError: there are no data, or they cannot be read.

    """
    return at_once(writing(exported(_Stored(stored_definitions(data_dir)))))


def compare_stored(config: Config, octets: bytes) -> Outcome:
    """Return what an import of a file would do to the stored definitions, or to those of a first start.

    Args:
        config: the configuration.
        octets: the file.

    Raises:
        BadRequestError: the file is not a JSON object.
        StorageError: the data cannot be read.

    """
    config = msgspec.structs.replace(config, listeners=(), definitions=None)
    if not has_data(config.data_dir):
        broker = Server(config, None)
    else:
        # with a file to import at its start, a broker does not create the objects of a first one
        broker = Server(msgspec.structs.replace(config, definitions=Path()), None)
        broker.load_definitions(stored_definitions(config.data_dir))
    return broker.administration.definitions.import_file(None, octets, dry_run=True)


async def import_stored(config: Config, file: Path) -> Outcome:
    """Start a broker without listeners on the data, have it import the file as at any start, and stop it.

    The caller holds the lock of the data directory.

    Raises:
        DefinitionsError: a definition is invalid; nothing has changed then.
        DiskFullError: not all that it changes is on disk.
        StorageError: the data cannot be read.

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
