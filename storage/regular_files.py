"""Opens files that may be something else: a name in a directory says nothing about what it names."""

import errno
import os
from pathlib import Path
from stat import S_ISREG


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file; returns its descriptor.

    A symbolic link is not followed, so that no other file is read or overwritten, and nothing waits for the other end
    of a named pipe.

    Args:
        path: the file.
        flags: as for `os.open`; it is closed when another program is executed.
        mode: of a file that is made.

    Raises OSError also for anything that is no regular file.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path} is not a regular file")
    return descriptor
