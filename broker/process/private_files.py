"""Files with secrets that are written for their owner only."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

MODE = 0o600
_DESCRIPTORS = Path("/proc/self/fd")
_OF_SYSTEM = frozenset((Path("/dev"), Path("/dev/fd")))
"""Folders with names for descriptors of the process, besides `/proc`: such a name is never replaced."""


def write_private(path: Path, octets: bytes) -> None:
    """Write a file that only its owner may read: completely and on disk, or not at all. Raises OSError.

    A file of that name is replaced, whatever its permissions, and so is a symbolic link. What is no regular file, such
    as a pipe, is written to, and so is `/dev/stdout`, whatever it leads to.
    """
    folder = path.parent.resolve()
    is_of_system = folder in _OF_SYSTEM or folder.is_relative_to("/proc")
    with contextlib.suppress(FileNotFoundError):
        if is_of_system or not stat.S_ISREG(path.stat().st_mode):
            path.write_bytes(octets)  # a directory, too, which is an error
            return
    beside = path.with_name(f".{os.fsdecode(os.fsencode(path.name)[:200])}.{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()  # of a process of this number that was killed
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE), "wb") as file:  # noqa: PTH123 - with a mode
            file.write(octets)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        raise
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def private_copy(octets: bytes) -> Iterator[str]:
    """Give the name of a file with these octets to a library that only reads named files; it is deleted afterwards."""
    if hasattr(os, "memfd_create") and _DESCRIPTORS.is_dir():
        file = open(os.memfd_create("leveret"), "wb")  # noqa: PTH123, SIM115 - in memory; closed below
        name = f"{_DESCRIPTORS}/{file.fileno()}"
    else:
        file = tempfile.NamedTemporaryFile("wb")  # type: ignore[assignment]  # noqa: SIM115 - closed below
        name = file.name
    with file:
        file.write(octets)
        file.flush()
        yield name
