"""The path of the socket in the data directory (driver), apart from what serves it, so that clients load only this."""

import os
from collections.abc import Callable
from pathlib import Path

NAME = "ctl.sock"
METRICS = "metrics.sock"  # of a process of virtual hosts
SHORT = 100  # octets of the path of a socket that every system takes (104 on macOS, 108 on Linux)


def in_directory(directory: Path, name: str, use: Callable[[str], object]) -> None:
    """Call a function with the path of a socket in a directory, a short one whatever the length of the directory's.

    Without `/proc` the directory is the working directory meanwhile.
    """
    path = str(directory / name)
    if len(os.fsencode(path)) < SHORT:
        use(path)
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        if Path(f"/proc/self/fd/{handle}").exists():
            use(f"/proc/self/fd/{handle}/{name}")
            return
        before = os.open(".", os.O_RDONLY)
        try:
            os.fchdir(handle)
            use(name)
        finally:
            os.fchdir(before)
            os.close(before)
    finally:
        os.close(handle)
