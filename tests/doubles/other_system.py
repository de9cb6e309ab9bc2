"""A system without what only Linux has, made of this one: no /proc, no epoll, no calls that macOS lacks, no uvloop.

As a plugin (`pytest -p other_system`) it is in effect for the tests of that process; as a program it is the command
`leveret` on such a system. psutil, which reads /proc itself on Linux, still can unless `is_told` is False.
"""

import ctypes
import os
import select
import selectors
import sys
from typing import Any

HIDDEN = "/proc"
ONLY_LINUX = {"fallocate", "malloc_trim", "mallinfo2"}
"""Functions of the C library."""


class Library(ctypes.CDLL):
    """A C library without the functions of Linux."""

    def __getattr__(self, name: str) -> Any:
        if name in ONLY_LINUX:
            raise AttributeError(name)
        return super().__getattr__(name)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise FileNotFoundError for a file or folder of /proc; an audit hook."""
    if event in {"open", "os.listdir", "os.scandir"}:
        name = arguments[0]
        if isinstance(name, str) and (name == HIDDEN or name.startswith(f"{HIDDEN}/")):
            raise FileNotFoundError(2, "No such file or directory", name)


def pretend(*, is_told: bool = True) -> None:
    """Take away what the other system does not have, until the process ends."""
    import psutil

    if is_told:
        psutil.PROCFS_PATH = f"/{HIDDEN}"
    sys.addaudithook(refuse)
    for module, name in (
        (os, "fdatasync"),
        (os, "posix_fallocate"),
        (select, "epoll"),
    ):
        delattr(module, name)
    selectors.DefaultSelector = selectors.PollSelector
    ctypes.CDLL = Library


def pytest_configure(config: Any) -> None:
    """Be that system before any module of the product is loaded."""
    pretend()


if __name__ == "__main__":
    pretend(is_told="untold" not in sys.argv[1:])
    sys.modules["uvloop"] = None
    from leveret.broker.cli.main import main

    main([word for word in sys.argv[1:] if word != "untold"])
