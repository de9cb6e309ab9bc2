"""The sockets of embedded brokers: children close them, and a killed broker keeps its ports (driver).

Theory. A forked child has all descriptors of its parent. As long as it lives, a client whose connection the broker has
closed would not notice, and a port that the broker has left would stay taken and even accept connections without a
reader. Workers of Celery and of `multiprocessing` are such children. So each descriptor is replaced by one of the null
device. It is not closed: its number would be given to a file of the child, which the child's copy of the broker's
objects would close one day.

A restart must find the port of the first start free, but between the two it is free, and the system gives free ports to
any process. So each address is bound by a second socket that never listens: clients are refused while the broker is
down, as they should be, and no other socket gets the port by chance. The broker's own can share it, because both are
bound with SO_REUSEADDR. A program that asks for this very port gets it, too.
"""

import contextlib
import ipaddress
import os
import weakref
from collections.abc import Iterable
from typing import Any, Final

from leveret.broker.config.values import Listener
from leveret.broker.network.listener import bound_socket

_servers: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def keep_from_children(server: Any) -> None:
    """Have the children that are forked from now on close the sockets (`descriptors`) that a server has then."""
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


class HeldPorts:
    """The ports of one broker. What is held when the object is collected is released."""

    def __init__(self) -> None:
        self._release = weakref.finalize(self, _close, ())
        self._held: tuple[int, ...] = ()

    def hold(self, listeners: Iterable[Listener]) -> tuple[Listener, ...]:
        """Hold addresses until `release`, unless some are held; must be called before anyone listens there.

        A name is not held, since it may have several addresses, nor an address that is not free: the broker will say
        why it cannot be bound. Returns the same, with the port that the system chose for each held one that had the
        port 0.
        """
        given = tuple(listeners)
        if self._held:
            return given
        found = []
        held = []
        for listener in given:
            with contextlib.suppress(OSError, ValueError):
                version = ipaddress.ip_address(listener.host).version
                sock = bound_socket(listener.host, listener.port, is_ipv6=version == 6)  # noqa: PLR2004
                listener = Listener(listener.host, sock.getsockname()[1])  # noqa: PLW2901
                held.append(sock.detach())
            found.append(listener)
        self._held = tuple(held)
        self._release = weakref.finalize(self, _close, self._held)
        keep_from_children(self)
        return tuple(found)

    def release(self) -> None:
        """Hold nothing any more; without effect if nothing is held."""
        self._held = ()
        self._release()

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of the sockets."""
        return self._held


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
