"""Files whose names come from elsewhere: a setting, a URI, an argument of a command, an entry of a directory.

Theory. What such a name leads to is not known. To open a FIFO or a device, or to read it, may take for ever, and
nothing of the process runs meanwhile if the event loop does it; and a file may be too large for the memory. So a name
is opened only if it is a regular file's, without waiting, and no more is read than the caller says. Symbolic links are
followed: that is how certificates are mounted and replaced. Whoever types a name at a command may also have meant a
pipe (`<(...)`), and can end the command.

A regular file can still keep its reader waiting, for instance on a file system of the network. The event loop leaves
that to threads (`broker.client.sockets`, `broker.tls.credentials`).
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from leveret.storage.files import open_regular

MOST_OCTETS = 16 * 1024 * 1024  # bytes by default: lists of revoked certificates have megabytes
MOST_DEFINITIONS = 1024 * 1024 * 1024  # limit of a file with definitions in bytes
PIECE = 1024 * 1024


def read_named(path: Path | str, most: int = MOST_OCTETS, *, is_typed: bool = False) -> bytes:
    """Return what is in a file of at most `most` bytes; raises OSError, whose `strerror` says why that is impossible.

    `is_typed`: the name was typed at a command that can be interrupted: then it may be a pipe or a device, too, which
    is read to its end.
    """
    if is_typed:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    else:
        # before it is opened, because that alone has effects on devices
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        descriptor = open_regular(path, follows_links=True)
    try:
        octets = bytearray()
        while len(octets) <= most and (piece := os.read(descriptor, min(PIECE, most + 1 - len(octets)))):
            octets += piece
    finally:
        os.close(descriptor)
    if len(octets) > most:
        raise OSError(errno.EFBIG, f"is larger than {most} bytes", str(path))
    return bytes(octets)


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
