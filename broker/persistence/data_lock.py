"""The lock on a data directory (driver): held by one process, whose id is reported to others."""

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from leveret.storage.files import DIRECTORY, FILE, open_regular

_HOLDER = re.compile(rb"(\d+) (\S+)\n")


class DataDirError(Exception):
    """Raised if a data directory cannot be used; the text is one line for the administrator."""


class InUseError(DataDirError):
    """Raised if another process holds the lock of a data directory."""


@contextlib.contextmanager
def locked(data_dir: Path, *, make: bool = True) -> Iterator[None]:
    """Create the data directory (unless `make` is False) and hold its lock, so that no two processes share it.

    The kernel releases the lock when the process ends in any way. The file stays, with the id and host of the last
    holder, which are meaningless while the lock is free.

    Raises InUseError if the lock is held, DataDirError if the directory cannot be used.
    """
    try:
        if make:
            data_dir.mkdir(mode=DIRECTORY, parents=True, exist_ok=True)
        lock = _open(data_dir)
    except OSError as error:
        raise DataDirError(f"cannot use data directory {data_dir}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _HOLDER.fullmatch(os.pread(lock, 512, 0))
            who = f", process {holder[1].decode()} on {holder[2].decode()}" if holder else ""
            raise InUseError(
                f"cannot use data directory {data_dir}: another broker is using it{who}"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk the holder cannot be reported
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} {socket.gethostname()}\n".encode("utf-8", "replace"), 0)
        yield
    finally:
        os.close(lock)


def _open(data_dir: Path) -> int:
    """Open the lock file, creating it for the owner of the directory if needed; returns a descriptor.

    Raises OSError also for a symbolic link and for anything else than a regular file, because another file would be
    overwritten.
    """
    path = data_dir / "leveret.lock"
    try:
        lock = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE)
    except FileExistsError:
        lock = open_regular(path, os.O_RDWR)
    else:
        owner = data_dir.stat()
        if not os.geteuid() and owner.st_uid:  # root opens a directory that a broker of another user will use
            os.fchown(lock, owner.st_uid, owner.st_gid)
    return lock
