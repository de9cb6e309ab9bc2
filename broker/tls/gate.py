"""The end of a TLS handshake on the server's side, and the reason of one that failed (driver)."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

_NOT_TLS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "BAD_RECORD_TYPE",
    "PACKET_LENGTH_TOO_LONG",
}
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


class Gate(asyncio.Protocol):
    """The protocol of a connection until its handshake is over; another follows if the client is let in.

    Args:
        protocol: the one that follows.
        refused: called with the reason if the client is not let in; the connection is closed then.

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
    """Return the reason of a handshake that failed, for the log; '' if the client just went away.

    Args:
        error: what it was ended by.
        seconds: the time it may take.

    """
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
