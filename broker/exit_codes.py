"""With what the commands end: the codes of sysexits.h, as RabbitMQ's tools use them."""

import os
from typing import Final

DATA: Final[int] = os.EX_DATAERR
"""Data, or a file that was given, cannot be read for what it should be."""
NO_INPUT: Final[int] = os.EX_NOINPUT
"""A file that was given is not there."""
UNAVAILABLE: Final[int] = os.EX_UNAVAILABLE
"""A port is not available."""
SOFTWARE: Final[int] = os.EX_SOFTWARE
"""An error of ours."""
CANNOT_CREATE: Final[int] = os.EX_CANTCREAT
"""The data directory is in use, or it or a file cannot be made."""
IO: Final[int] = os.EX_IOERR
"""The disk failed."""
CONFIG: Final[int] = os.EX_CONFIG
"""The configuration is wrong."""
