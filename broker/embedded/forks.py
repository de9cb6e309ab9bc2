"""Forks: a child of a process with embedded brokers lets go of their sockets (driver).

Theory. A forked child has all descriptors of its parent. As long as it lives, a client whose connection the broker has
closed would not notice, and a port that the broker has left would stay taken and even accept connections that nobody
reads. Workers of Celery and of `multiprocessing` are such children. So each descriptor is replaced by one of the null
device. It is not closed: its number would be given to a file of the child, which the child's copy of the broker's
objects would close one day.
"""

import contextlib
import os
import weakref
from collections.abc import Iterable
from typing import Final, Protocol


class HasSockets(Protocol):
    """A server."""

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors of its sockets."""


_servers: Final[weakref.WeakSet[HasSockets]] = weakref.WeakSet()


def keep_from_children(server: HasSockets) -> None:
    """Have the children that are forked from now on let go of the sockets that a server has then."""
    _servers.add(server)


def _let_go() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for server in list(_servers):
        for descriptor in server.descriptors():
            with contextlib.suppress(OSError):  # -1: it was closed
                os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
