"""Ports that a killed broker keeps until it starts again (driver).

Theory. A restart must find the port of the first start free, but between the two nobody listens there, and the system
gives free ports to whoever asks for one. So each address is bound by a second socket that never listens: clients are
refused while the broker is down, as they should be, and no other socket gets the port by chance. The broker's own can
share it, because both are bound with SO_REUSEADDR. A program that asks for this very port gets it, too.
"""

import contextlib
import ipaddress
import os
import weakref
from collections.abc import Iterable

from leveret.broker.config.values import Listener
from leveret.broker.embedded.forks import keep_from_children
from leveret.broker.network.listener import bound_socket


class HeldPorts:
    """The ports of one broker. What is held when the object is collected is released."""

    def __init__(self) -> None:
        self._release = weakref.finalize(self, _close, ())
        self._held: tuple[int, ...] = ()

    def hold(self, listeners: Iterable[Listener]) -> tuple[Listener, ...]:
        """Hold addresses until `release`, unless some are held; must be called before anyone listens there.

        A name is not held, since it may have several addresses, nor an address that is not free: the broker will say
        why it cannot be bound.

        Args:
            listeners: the addresses.

        Returns:
            The same, with the port that the system chose for each held one that had the port 0.

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
