"""Opens files that may be something else: a name in a directory says nothing about what it names."""

import errno
import os
from pathlib import Path
from stat import S_ISREG


def open_regular(
    path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o600, *, follows_links: bool = False
) -> int:
    """Open a regular file; returns its descriptor.

    Nothing waits for the other end of a named pipe.

    Args:
        path: the file.
        flags: as for `os.open`; it is closed when another program is executed.
        mode: of a file that is made.
        follows_links: whether the last part of the name may be a symbolic link; otherwise no other file is read or
            overwritten.

    Raises OSError also for anything that is no regular file.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follows_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, mode)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path} is not a regular file")
    return descriptor
