"""Start of a server: its data directory opened, and the address named that could not be bound."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from leveret.broker.config.config import Config, Listener
from leveret.broker.process.resource_alarms import memory_limit

if TYPE_CHECKING:
    from leveret.broker.persistence.data_store import DataStore

Store = TypeVar("Store", bound="DataStore")


def open_data_store(config: Config, store_class: type[Store]) -> Store:
    """Open the data directory, which must be locked, as an object of a class; compact its file if that is worth it.

    Raises StorageError: it cannot be opened; UnknownFormatError if a later version has written it.
    """
    from leveret.broker.persistence.data_store import compact_if_worth_it  # noqa: PLC0415 - not without a disk

    memory = memory_limit(config.memory_absolute, config.memory_relative)
    ram_limit = min(config.storage.ram_limit, int(memory * config.storage.paging_ratio))
    compact_if_worth_it(config.data_dir, config.storage.garbage_fraction)
    return store_class(config.data_dir, config.storage, ram_limit=max(1, ram_limit))


def port_problem(error: OSError, listeners: Iterable[Listener]) -> str:
    """Return one line for a listener that could not be bound; the error's own text contains the address if possible.

    An error that names a file is not about a listener, and is reported as it is.
    """
    if error.filename is not None:
        return f"cannot start: {error.filename}: {error.strerror}"
    reason = error.strerror or str(error)
    # asyncio says "error while attempting to bind on address ('127.0.0.1', 5672): address already in use".
    if (match := re.search(r"\('([^']*)', (\d+)[^)]*\): (.+)", reason)) is not None:
        return f"cannot listen on {Listener(match[1], int(match[2]))}: {match[3]}"
    return f"cannot listen on {', '.join(map(str, listeners))}: {reason}"
