"""Certificates for tests, made when a test runs: CAs, servers, clients, lists of revoked ones."""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)
_ISSUES = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip
"""The use of the key of a CA."""


def name_of(common: str, *more: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """Return a distinguished name, which ends in its common name."""
    parts = [x509.NameAttribute(kind, value) for kind, value in more]
    return x509.Name([*parts, *([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else ())])


class Issued:
    """A certificate with its key, in files.

    Attributes:
        certfile, keyfile: PEM; `certfile` has the intermediate certificates, too.

    """

    def __init__(
        self, folder: Path, stem: str, certificate: x509.Certificate, key: Any, chain: bytes = b""
    ) -> None:
        self.certificate = certificate
        self.key = key
        self.certfile = folder / f"{stem}.pem"
        self.keyfile = folder / f"{stem}.key"
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.chain = pem + chain
        self.certfile.write_bytes(self.chain)
        self.keyfile.write_bytes(pem_of(key))
        self.keyfile.chmod(0o600)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)


def pem_of(key: Any, password: bytes = b"") -> bytes:
    """Return a key in PEM, encrypted if there is a password."""
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


class Authority:
    """A CA.

    Args:
        folder: where its files and those of what it issues are.
        stem: its name, and that of its file.
        parent: the CA that has issued its certificate; None for a root.

    """

    def __init__(self, folder: Path, stem: str = "ca", parent: "Authority | None" = None) -> None:
        self.folder = folder
        self.stem = stem
        self.name = name_of(stem)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._serial = 1
        issuer, key = (self.name, self.key) if parent is None else (parent.name, parent.key)
        self.certificate = self._signed(self.name, self.key, issuer, key, is_ca=True)
        chain = b"" if parent is None else parent.chain
        self.chain = self.certificate.public_bytes(serialization.Encoding.PEM) + chain
        self._intermediates = b"" if parent is None else self.chain
        self.file = folder / f"{stem}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        stem: str,
        names: Iterable[x509.GeneralName | str] = (),
        *,
        subject: x509.Name | None = None,
        days: float = 30,
    ) -> Issued:
        """Issue a certificate; `names` are alternative names, `days` is its time to live, which may be over."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [general(name) for name in names]
        subject = name_of(stem) if subject is None else subject
        certificate = self._signed(subject, key, self.name, self.key, alternatives, days=days)
        return Issued(self.folder, stem, certificate, key, self._intermediates)

    def server(self, stem: str = "server", *names: str, days: float = 30) -> Issued:
        return self.issue(stem, names or ("localhost", "127.0.0.1"), days=days)

    def revoke(self, revoked: Sequence[Issued] = (), stem: str = "revoked") -> Path:
        """Write a list of revoked certificates; returns its file."""
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(now - DAY).next_update(now + DAY)
        for each in revoked:
            row = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
            builder = builder.add_revoked_certificate(row.revocation_date(now - DAY).build())
        path = self.folder / f"{stem}.crl"
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def _signed(
        self,
        subject: x509.Name,
        key: Any,
        issuer: x509.Name,
        issuer_key: Any,
        alternatives: Sequence[x509.GeneralName] = (),
        *,
        is_ca: bool = False,
        days: float = 30,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        begin = now - DAY if days > 0 else now + (days - 1) * DAY
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
            )
        )
        if is_ca:
            builder = builder.add_extension(_ISSUES, critical=True)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return builder.sign(issuer_key, hashes.SHA256())


def general(name: x509.GeneralName | str) -> x509.GeneralName:
    """Return an alternative name: of an address, of a DNS name, or as it is."""
    if isinstance(name, x509.GeneralName):
        return name
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def client_context(authority: Authority | None, identity: Issued | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts a CA, or anybody, and has a certificate, or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority.file)
    if identity is not None:
        context.load_cert_chain(identity.certfile, identity.keyfile)
    return context
