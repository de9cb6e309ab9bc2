"""The lock on a data directory (driver): one process at a time, and the others are told which."""

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

_HOLDER = re.compile(rb"(\d+) (\S+)\n")


class DataDirError(Exception):
    """Raised when a data directory cannot be used; the text is one line for the administrator."""


@contextlib.contextmanager
def locked(data_dir: Path, *, make: bool = True) -> Iterator[None]:
    """Make the data directory (unless told not to) and hold its lock, so that no two processes share it.

    The lock is the kernel's and goes with the process, however that ends. The file stays, with the id and the host of
    the last holder, which mean nothing while nobody holds the lock.

    Raises DataDirError if the directory cannot be used or the lock is held.
    """
    try:
        if make:
            data_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(data_dir / "leveret.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataDirError(f"cannot use data directory {data_dir}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _HOLDER.fullmatch(os.pread(lock, 512, 0))
            who = f", process {holder[1].decode()} on {holder[2].decode()}" if holder else ""
            raise DataDirError(
                f"cannot use data directory {data_dir}: another broker is using it{who}"
            ) from None
        with contextlib.suppress(OSError):  # a full disk: then nobody is told who holds it
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} {socket.gethostname()}\n".encode("utf-8", "replace"), 0)
        yield
    finally:
        os.close(lock)
