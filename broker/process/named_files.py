"""Files whose names come from elsewhere: a setting, a URI, an argument of a command, an entry of a directory.

Theory. What such a name leads to is not known. To open a FIFO or a device, or to read it, may take for ever, and
nothing of the process runs meanwhile if the event loop does it; and a file may be too large for the memory. So a name
is opened only if it is a regular file's, without waiting, and no more is read than the caller says. Symbolic links are
followed: that is how certificates are mounted and replaced. Whoever types a name at a command may also have meant a
pipe (`<(...)`), and can end the command.

A regular file can still keep its reader waiting, for instance on a file system of the network. The event loop leaves
that to threads (`broker.client.sockets`, `broker.tls.credentials`).
"""

import errno
import os
import stat
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
