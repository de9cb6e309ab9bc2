"""Exit codes of the command line (sysexits.h, as in RabbitMQ's tools)."""

import os
from typing import Final

DATA: Final[int] = os.EX_DATAERR
"""Data, or a file given as an argument, has an invalid format."""
NO_INPUT: Final[int] = os.EX_NOINPUT
"""A file given as an argument does not exist."""
UNAVAILABLE: Final[int] = os.EX_UNAVAILABLE
"""A port is not available, or a broker cannot be reached."""
SOFTWARE: Final[int] = os.EX_SOFTWARE
"""An internal error."""
CANNOT_CREATE: Final[int] = os.EX_CANTCREAT
"""The data directory is in use, or the directory or a file cannot be created."""
IO: Final[int] = os.EX_IOERR
"""A disk I/O error."""
NO_PERMISSION: Final[int] = os.EX_NOPERM
"""A broker refused a login, or an operation for lack of permission."""
CONFIG: Final[int] = os.EX_CONFIG
"""The configuration is invalid."""
