"""A TLS server with the certificates of the moment, the end of a handshake, and why one has failed (driver)."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import cast

from leveret.broker.process.shares import Shares, origin
from leveret.broker.tls.credentials import Credentials

log = logging.getLogger("leveret.tls")

HANDSHAKES = 16  # most handshakes at work; a further one replaces the oldest of the busiest address
PAUSE_SECONDS = 1.0  # after an accept that failed for lack of system resources
LOG_SECONDS = 1.0  # time between two lines about handshakes that failed
_NOT_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "BAD_RECORD_TYPE",
    "PACKET_LENGTH_TOO_LONG",
}
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


class Handshake(asyncio.Protocol):
    """The protocol of a connection until its handshake is over; `protocol` follows if the client is let in.

    Otherwise `refused` is called with the reason, and the connection is closed.
    """

    def __init__(self, protocol: asyncio.BaseProtocol, refused: Callable[[str], object]) -> None:
        self._protocol = protocol
        self._refused = refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the client, and pass the connection on."""
        transport = cast("asyncio.Transport", transport)
        handshake = transport.get_extra_info("ssl_object")
        reason = handshake.context.refusal(handshake)
        if reason:
            transport.abort()
            self._refused(reason)
        else:
            transport.set_protocol(self._protocol)
            self._protocol.connection_made(transport)


def failure(error: BaseException, seconds: float) -> str:
    """Return the reason of a handshake that failed after so many seconds; '' if the client just left."""
    if isinstance(error, ssl.SSLError):
        return _reason(error)
    if isinstance(error, ConnectionAbortedError):
        return f"the TLS handshake took longer than {seconds:g} s"
    return ""


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message or error.reason}"
    if error.reason in _NOT_TLS:
        return "a client without TLS on a TLS port: let it use TLS (amqps://, https://), or another port"
    if error.reason == _NO_CERTIFICATE:
        return "the client presented no certificate"
    if error.reason and "ALERT" in error.reason:
        alert = error.reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return f"the client refused ours: {alert}; does it know our CA and use the name in our certificate?"
    return f"TLS handshake failed: {(error.reason or str(error)).replace('_', ' ').lower()}"


class Acceptor:
    """Accepts clients until it is closed; in place of an `asyncio.Server`.

    Args:
        sock: the socket, which listens.
        make: makes the protocol of a new connection.
        tls: the certificates.
        use: what the listener is for, for the log.
    """

    def __init__(
        self, sock: socket.socket, make: Callable[[], asyncio.BaseProtocol], tls: Credentials, use: str
    ) -> None:
        self.sockets = (sock,)  # the listening socket
        self._make = make
        self._tls = tls
        self._use = use
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], str] = {}  # those at work, the oldest first, by origin
        self._places = Shares(HANDSHAKES, HANDSHAKES)
        self._is_open = True
        self._is_accepting = False
        self._logged = 0.0
        sock.setblocking(False)
        self._start()

    def close(self) -> None:
        """Stop listening, and give up the handshakes at work."""
        self._pause()
        self._is_open = False
        for sock in self.sockets:
            sock.close()
        for task in self._tasks:
            task.cancel()

    def _start(self) -> None:
        if self._is_open and not self._is_accepting:
            self._is_accepting = True
            self._loop.add_reader(self.sockets[0], self._accept)

    def _pause(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self.sockets[0])

    def _accept(self) -> None:
        try:
            sock, address = self.sockets[0].accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("cannot accept connections for %.0f s: %s", PAUSE_SECONDS, error.strerror)  # noqa: TRY400
            self._pause()
            self._loop.call_later(PAUSE_SECONDS, self._start)
            return
        sock.setblocking(False)
        owner = origin(str(address[0]))
        yielding = self._places.yielding(owner)
        if yielding is not None:
            oldest = next(each for each, of in self._tasks.items() if of == yielding)
            self._ended(oldest)
            oldest.cancel()
        self._places.acquire(owner)
        task = self._loop.create_task(self._serve(sock))
        self._tasks[task] = owner
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        owner = self._tasks.pop(task, None)
        if owner is not None:
            self._places.release(owner)

    async def _serve(self, sock: socket.socket) -> None:
        peer = ""
        try:
            peer = str(sock.getpeername()[0])
            await self._loop.connect_accepted_socket(
                lambda: Handshake(self._make(), partial(self._refused, peer)),
                sock,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._tls.handshake_timeout,
            )
        except OSError as error:
            sock.close()
            self._refused(peer, failure(error, self._tls.handshake_timeout))
        except asyncio.CancelledError:
            sock.close()
            raise

    def _refused(self, peer: str, reason: str) -> None:
        now = self._loop.time()
        if reason and now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.error("closing connection of %s to the listener for %s: %s", peer, self._use, reason)
