"""The running brokers of a user: each has a file in the runtime directory, by which commands find it (driver).

The file has the process id as its name and the path of the data directory in it. A broker that was killed leaves its
file, so only those count whose control socket answers. Clients load this, and nothing of what serves the sockets.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PosixPath
from typing import Final

from leveret.broker.process.named_files import read_named

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


USUAL: Final = (Path("var"), Path("/var/lib/leveret"))
"""Data directories of `leveret serve` without options, and of the service."""


class Several(PosixPath):
    """The data directory of a command that may mean several brokers; nothing is there."""


def runtime_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the files: in that of the session, or else a private one beside other temporary files."""
    if session := environ.get("XDG_RUNTIME_DIR"):
        return Path(session) / "leveret"
    return Path(environ.get("TMPDIR") or "/tmp") / f"leveret-{os.getuid()}"  # noqa: S108 - if it is private


@contextlib.contextmanager
def announced(data_dir: Path, environ: Mapping[str, str], tell: Callable[..., object]) -> Iterator[None]:
    """Have commands find the broker on a data directory meanwhile; `tell` logs why they will not."""
    file = runtime_directory(environ) / str(os.getpid())
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(file.parent):
            raise PermissionError(f"{file.parent} is not private")
        file.write_bytes(os.fsencode(data_dir.absolute()))
    except OSError as error:
        tell("commands without --data-dir cannot find this broker: %s", error)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def found(environ: Mapping[str, str]) -> list[Path]:
    """Return the data directories of the brokers that a command without one may mean.

    That of the working directory or of the service if it runs, alone; otherwise those of this user, sorted.
    """
    for usual in USUAL:
        if _answers(usual):
            return [usual]
    directory = runtime_directory(environ)
    if not _is_private(directory):
        return []
    files = [each for each in directory.iterdir() if each.name.isdecimal()]
    return sorted({path for each in files if (path := _named(each)) is not None and _answers(path)})


def _named(file: Path) -> Path | None:
    """Return the data directory that a file names; None if its broker has just ended."""
    try:
        return Path(os.fsdecode(read_named(file)))
    except OSError:
        return None


def _is_private(directory: Path) -> bool:
    """Return whether a directory is there and of this user alone: others must not lead commands to their brokers."""
    try:
        known = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(known.st_mode) and known.st_uid == os.getuid() and not known.st_mode & 0o022


def _answers(data_dir: Path) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock, contextlib.suppress(OSError):
        sock.settimeout(1.0)
        in_directory(data_dir, NAME, sock.connect)
        return True
    return False
