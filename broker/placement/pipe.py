"""One end of the stream between the front and a process, which carries messages and descriptors (driver)."""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable

from leveret.broker.placement.messages import AnyMessage, BrokenStreamError, Handed, Stream, encode

log = logging.getLogger("leveret")

READ_OCTETS = 256 * 1024
_DESCRIPTORS = 4  # room for those of one read, which ends with the first part that has one


class Pipe:
    """One end; `received` gets each message, `Handed` with its socket, `closed` is called at the end of the stream.

    The socket is None if this process has no descriptor left for it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        received: Callable[[AnyMessage, socket.socket | None], object],
        closed: Callable[[], object],
    ) -> None:
        self._loop, self._socket = loop, sock
        self._received, self._closed = received, closed
        self._stream = Stream()
        self._sockets: deque[socket.socket | None] = deque()  # that have come before their messages
        self._unsent: deque[tuple[memoryview, int | None]] = deque()
        self.on_drained: Callable[[], object] | None = None  # called when nothing is unsent any more
        sock.setblocking(False)
        loop.add_reader(sock, self._read)

    @property
    def is_full(self) -> bool:
        """True while messages wait until the other end has read earlier ones."""
        return bool(self._unsent)

    def send(self, message: AnyMessage, descriptor: int | None = None) -> None:
        """Send a message; the descriptor, which the caller closes, is duplicated."""
        octets = memoryview(encode(message))
        if not self._unsent:
            left = self._write(octets, descriptor)
            if left is None:
                return
            octets, descriptor = left
            self._loop.add_writer(self._socket, self._write_more)
        self._unsent.append((octets, None if descriptor is None else os.dup(descriptor)))

    def close(self) -> None:
        """Close this end."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, descriptor in self._unsent:
            if descriptor is not None:
                os.close(descriptor)
        for sock in self._sockets:
            if sock is not None:
                sock.close()
        self._unsent.clear()
        self._sockets.clear()

    def _write(self, octets: memoryview, descriptor: int | None) -> tuple[memoryview, int | None] | None:
        """Write as much as possible; returns the rest, None if there is none."""
        try:
            if descriptor is None:
                sent = self._socket.send(octets)
            else:
                sent = socket.send_fds(self._socket, [octets], [descriptor])
        except (BlockingIOError, InterruptedError):
            return octets, descriptor
        except OSError:  # the other end has closed, which the reader sees
            return None
        return (octets[sent:], None) if sent < len(octets) else None

    def _write_more(self) -> None:
        while self._unsent:
            octets, descriptor = self._unsent[0]
            left = self._write(octets, descriptor)
            if descriptor is not None and (left is None or left[1] is None):
                os.close(descriptor)
            if left is not None:
                self._unsent[0] = left
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._socket)
        if self.on_drained is not None:
            self.on_drained()

    def _read(self) -> None:
        try:
            octets, descriptors, flags, _ = socket.recv_fds(self._socket, READ_OCTETS, _DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            octets, descriptors, flags = b"", [], 0
        self._sockets += [socket.socket(fileno=each) for each in descriptors]
        if flags & socket.MSG_CTRUNC and not descriptors:
            self._sockets.append(None)
        try:
            for message in self._stream.take(octets):
                sock = self._sockets.popleft() if isinstance(message, Handed) and self._sockets else None
                self._received(message, sock)
        except BrokenStreamError as error:
            log.critical("the stream between the front and a process is broken: %s", error)
            octets = b""
        if not octets:
            self.close()
            self._closed()
