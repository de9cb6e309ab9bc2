"""Facts about certificates, and the names in them, written as RabbitMQ does (rabbit_cert_info, rabbit_ssl).

`cryptography` reads them; it is loaded when there is a certificate to read, because that takes long.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.tls.options import CertificateLogin

if TYPE_CHECKING:
    from cryptography import x509


_SHORT: Final = {  # RabbitMQ's names of the attributes of a distinguished name; others are written as numbers
    "2.5.4.4": "SN",
    "2.5.4.42": "GIVENNAME",
    "2.5.4.43": "INITIALS",
    "2.5.4.44": "GENERATIONQUALIFIER",
    "2.5.4.3": "CN",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.12": "TITLE",
    "2.5.4.6": "C",
    "2.5.4.5": "SERIALNUMBER",
    "2.5.4.65": "PSEUDONYM",
    "0.9.2342.19200300.100.1.25": "DC",
    "1.2.840.113549.1.9.1": "EMAILADDRESS",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.1": "UID",
}
_COMMON_NAME: Final = "2.5.4.3"
_FIRST_PRINTABLE, _AFTER_PRINTABLE = 32, 126
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class CertificateError(Exception):
    """Raised if a certificate cannot be read."""


class CertificateFacts(NamedTuple):
    """The facts of a certificate for listings: the names as text, the times in UTC."""

    subject: str
    issuer: str
    begins: datetime
    ends: datetime

    @property
    def validity(self) -> str:
        """The time for which it is valid."""
        return f"{self.begins:{_TIME}} - {self.ends:{_TIME}}"


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a client's certificate may contain anything
        raise CertificateError(str(error)) from None


@_readable()
def facts_of(der: bytes) -> CertificateFacts:
    """Return the facts of a certificate in DER. Raises CertificateError."""
    return _facts(_read(der))


@_readable()
def facts_of_file(pem: bytes) -> CertificateFacts:
    """Return the facts of the first certificate in a PEM file. Raises CertificateError."""
    from cryptography import x509  # noqa: PLC0415 - see above

    return _facts(x509.load_pem_x509_certificate(pem))


@_readable()
def login_name(der: bytes, login: CertificateLogin) -> str:
    """Return the name of the user in a client's certificate; '' if it has none. Raises CertificateError."""
    certificate = _read(der)
    if login.source == "distinguished_name":
        return distinguished_name(certificate.subject)
    if login.source == "common_name":
        return ",".join(
            str(each.value) for each in certificate.subject if each.oid.dotted_string == _COMMON_NAME
        )
    names = list(_alternative_names(certificate, login.san_type))
    return names[login.san_index] if login.san_index < len(names) else ""


def distinguished_name(name: "x509.Name") -> str:
    """Return a distinguished name in the form of RFC 4514: the most specific part first, as RabbitMQ writes it."""
    return ",".join("+".join(map(_attribute, part)) for part in reversed(name.rdns))


def _attribute(attribute: "x509.NameAttribute[str | bytes]") -> str:
    number = attribute.oid.dotted_string
    value = attribute.value
    return f"{_SHORT.get(number, number)}={_escaped(value.encode() if isinstance(value, str) else value)}"


def _escaped(value: bytes) -> str:
    """Return a value with escapes; octets that are not printable ASCII are escaped by their numbers."""
    written = []
    for place, octet in enumerate(value):
        character = chr(octet)
        is_edge = (place == 0 and character in " #") or (place == len(value) - 1 and character == " ")
        if is_edge or character in '"+,;<>\\':
            written.append(f"\\{character}")
        elif _FIRST_PRINTABLE <= octet < _AFTER_PRINTABLE:
            written.append(character)
        else:
            written.append(f"\\{octet:02X}")
    return "".join(written)


def _alternative_names(certificate: "x509.Certificate", kind: str) -> Iterable[str]:
    from cryptography import x509  # noqa: PLC0415 - see above

    kinds: dict[str, type[x509.GeneralName]] = {
        "dns": x509.DNSName,
        "ip": x509.IPAddress,
        "email": x509.RFC822Name,
        "uri": x509.UniformResourceIdentifier,
        "other_name": x509.OtherName,
    }
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    for each in names:
        if isinstance(each, kinds[kind]):
            yield _string_in(each.value) if isinstance(each, x509.OtherName) else str(each.value)


def _string_in(der: bytes) -> str:
    """Return the text in a short string of ASN.1; other values as they are, as far as they are UTF-8."""
    is_short_string = len(der) > 2 and der[0] in {12, 19, 22} and der[1] == len(der) - 2  # noqa: PLR2004 - type, length
    return (der[2:] if is_short_string else der).decode("utf-8", "replace")


def _facts(certificate: "x509.Certificate") -> CertificateFacts:
    return CertificateFacts(
        distinguished_name(certificate.subject),
        distinguished_name(certificate.issuer),
        certificate.not_valid_before_utc.astimezone(UTC),
        certificate.not_valid_after_utc.astimezone(UTC),
    )


def _read(der: bytes) -> "x509.Certificate":
    from cryptography import x509  # noqa: PLC0415 - see above

    return x509.load_der_x509_certificate(der)


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
