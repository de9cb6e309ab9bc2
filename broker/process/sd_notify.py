"""Notifications to systemd: readiness, watchdog keep-alives and shutdown (driver: a socket, timers).

The protocol of sd_notify(3): datagrams of ``NAME=value`` lines to the socket that ``NOTIFY_SOCKET`` names. Without that
variable nothing is sent.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping

_logger = logging.getLogger("leveret")


class Notifier:
    """Sends notifications to the service manager that started the broker.

    Args:
        environ: `NOTIFY_SOCKET`, a path or, after an ``@``, an abstract name; `WATCHDOG_USEC`, microseconds without a
            keep-alive after which the service manager kills the process; `WATCHDOG_PID`, the process that this is for.
        pid: the id of this process.
    """

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        expected = environ.get("WATCHDOG_USEC", "")
        meant = environ.get("WATCHDOG_PID", "") in {"", str(pid)}
        # Half of the allowed time: one keep-alive may be late.
        self._seconds = int(expected) / 2_000_000 if name and meant and expected.isdecimal() else 0.0

    def ready(self, status: str, loop: asyncio.AbstractEventLoop) -> None:
        """Report that clients may connect, with one line of status.

        From now on the watchdog, if there is one, gets keep-alives until the loop ends: a blocked loop is detected,
        while a long shutdown is not mistaken for one.
        """
        self._notify(f"READY=1\nSTATUS={status}")
        if self._seconds:
            self._is_alive(loop)

    def stopping(self) -> None:
        """Report that the broker is stopping."""
        self._notify("STOPPING=1\nSTATUS=stopping")

    def _is_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        self._notify("WATCHDOG=1")
        loop.call_later(self._seconds, self._is_alive, loop)

    def _notify(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)  # a service manager that does not listen must not stop the loop
                out.sendto(text.encode(), self._address)
        except OSError as error:
            _logger.warning(
                "cannot tell the service manager %s: %s", text.partition("\n")[0], error.strerror or error
            )
