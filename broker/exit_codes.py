"""Exit codes of the command line (sysexits.h, as in RabbitMQ's tools)."""

import os
from typing import Final

from leveret.storage.errors import DamagedError, StorageError, UnknownFormatError

USAGE: Final[int] = os.EX_USAGE  # the arguments of a command are invalid
DATA: Final[int] = os.EX_DATAERR  # data, or a file given as an argument, has an invalid format
NO_INPUT: Final[int] = os.EX_NOINPUT  # A file given as an argument does not exist
NO_USER: Final[int] = os.EX_NOUSER  # A user does not exist
UNAVAILABLE: Final[int] = os.EX_UNAVAILABLE  # a port is taken, or a broker not reached, or it refused
SOFTWARE: Final[int] = os.EX_SOFTWARE  # an internal error
CANNOT_CREATE: Final[int] = os.EX_CANTCREAT  # the data are in use, or a file cannot be created
IO: Final[int] = os.EX_IOERR  # A disk I/O error
TEMPORARY: Final[int] = os.EX_TEMPFAIL
"""The broker did not answer in time, or is too busy with others of these: the same command is possible later."""
NO_PERMISSION: Final[int] = os.EX_NOPERM
"""The broker refused the login, or the socket of the data directory belongs to another user."""
CONFIG: Final[int] = os.EX_CONFIG  # the configuration is invalid


def of_storage(error: StorageError) -> int:
    """Return the exit code for data that cannot be used: whether that is because of what is on disk."""
    return DATA if isinstance(error, DamagedError | UnknownFormatError) else CANNOT_CREATE
