"""Facts about the TLS of a connection: protocol, cipher, and the client's certificate."""

import re
from typing import Any

from leveret.broker.tls.certificate import CertificateError, CertificateFacts, facts_of

_EXCHANGES = ("ECDHE-ECDSA", "ECDHE-RSA", "DHE-RSA", "DHE-DSS", "ECDH-ECDSA", "ECDH-RSA", "DHE-PSK", "PSK")
_AUTHENTICATED = re.compile(r"GCM|CCM|CHACHA20")


class Peer:
    """The TLS of one connection."""

    __slots__ = ("certificate", "cipher", "der", "hash", "is_verified", "key_exchange", "protocol", "suite")

    def __init__(self, protocol: str, suite: str, der: bytes = b"", *, is_verified: bool = False) -> None:
        self.protocol = protocol.lower()  # `tlsv1.3` or `tlsv1.2`
        self.suite = suite  # the cipher suite in OpenSSL's words
        # key_exchange, cipher, hash: the parts of the cipher suite in RabbitMQ's words
        self.key_exchange, self.cipher, self.hash = cipher_parts(suite)
        self.der = der  # the client's certificate; empty if it presented none
        # whether a CA of the configuration has issued it, as far as clients are asked for certificates
        self.is_verified = is_verified
        self.certificate: CertificateFacts | None = None  # facts about it; None without one
        if der:
            try:
                self.certificate = facts_of(der)
            except CertificateError:
                self.certificate = None

    def __str__(self) -> str:
        presented = f", certificate {self.certificate.subject}" if self.certificate is not None else ""
        return f"{self.protocol.replace('tlsv', 'TLS ')}, {self.suite}{presented}"


def peer_of(handshake: Any) -> Peer:
    """Return the facts of a connection whose handshake (`ssl.SSLObject`) is over."""
    suite, protocol, _bits = handshake.cipher() or ("", "", 0)
    der = handshake.getpeercert(binary_form=True) or b""
    is_verified = getattr(handshake.context, "verifies", False)
    return Peer(handshake.version() or protocol, suite, der, is_verified=is_verified)


def cipher_parts(suite: str) -> tuple[str, str, str]:
    """Return the key exchange, the cipher and the hash of a cipher suite of OpenSSL, as RabbitMQ lists them."""
    name = suite
    if name.startswith("TLS_"):
        exchange = "any"
        name = name.removeprefix("TLS_").replace("_", "-")
    else:
        exchange = next((each for each in _EXCHANGES if name.startswith(f"{each}-")), "")
        name = name.removeprefix(f"{exchange}-")
        exchange = exchange.lower().replace("-", "_") or "rsa"
    words = re.sub(r"AES(\d)", r"AES-\1", name).split("-")
    if _AUTHENTICATED.search(name):
        digest = "aead"
        words = words[:-1] if words[-1].startswith("SHA") else words
    else:
        digest = words.pop().lower()
        words.append("CBC")
    return exchange, "_".join(words).lower(), digest
