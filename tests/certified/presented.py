"""Certificates that clients present: usual ones, unusual ones, and bad ones, by name.

All are made when they are needed, as they end. `cryptography` makes most of them; OpenSSL's command those that it refuses
to make.
"""

import datetime as dt
import ipaddress
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from processes.commands import execute
from samples.certificates import Authority, Issued, pem_of

DAY = dt.timedelta(days=1)
USER = "alice"
DEPTH = 1
"""Number of intermediate certificates that the brokers allow."""
P256 = ec.generate_private_key(ec.SECP256R1())
"""The key of most certificates; making one takes time, and is not tested."""


class Presented(NamedTuple):
    """The files that a client presents, if any."""

    name: str
    certfile: Path | None
    keyfile: Path | None


class Parts(NamedTuple):
    """The parts of a certificate; see `made`."""

    subject: x509.Name
    names: tuple[x509.GeneralName, ...] = ()
    key: Any = P256
    begins: float = -1
    ends: float = 30
    is_ca: bool = False
    path_length: int | None = None
    digest: Any = None
    extensions: tuple[tuple[x509.ExtensionType, bool], ...] = ()
    has_basic: bool = True


def named(*parts: tuple[ObjectIdentifier, str] | tuple[ObjectIdentifier, str, _ASN1Type]) -> x509.Name:
    """Return a distinguished name, whatever is in it; the first part is the least specific one."""
    return x509.Name([_attribute(*part) for part in parts])


def _attribute(
    kind: ObjectIdentifier, value: str, asn1: _ASN1Type = _ASN1Type.UTF8String
) -> x509.NameAttribute[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its length
        return x509.NameAttribute(kind, value, asn1, _validate=False)


def common(value: str) -> x509.Name:
    return named((NameOID.COMMON_NAME, value))


ALICE = common(USER)


def made(parts: Parts, issuer: x509.Name, key: Any) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    builder = (
        x509.CertificateBuilder()
        .subject_name(parts.subject)
        .issuer_name(issuer)
        .public_key(parts.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + parts.begins * DAY)
        .not_valid_after(
            now + parts.ends * DAY
            if parts.ends < 1e6
            else dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
        )
    )
    if parts.has_basic:
        basic = x509.BasicConstraints(ca=parts.is_ca, path_length=parts.path_length)
        builder = builder.add_extension(basic, critical=True)
    if parts.names:
        builder = builder.add_extension(x509.SubjectAlternativeName(parts.names), critical=False)
    for extension, critical in parts.extensions:
        builder = builder.add_extension(extension, critical=critical)
    digest = (
        None
        if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
        else (parts.digest or hashes.SHA256())
    )
    return builder.sign(key, digest)


def key_usage(**wanted: bool) -> tuple[x509.ExtensionType, bool]:
    kinds = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{kind: wanted.get(kind, False) for kind in kinds}), True


def extended(*uses: ObjectIdentifier, critical: bool = False) -> tuple[x509.ExtensionType, bool]:
    return x509.ExtendedKeyUsage(uses), critical


def other_name(text: str) -> x509.OtherName:
    """Return an alternative name of a kind of its own (Microsoft's user principal name), a UTF8String."""
    octets = text.encode()
    return x509.OtherName(ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), bytes((12, len(octets))) + octets)


ODD = ' #a,b+c"d\\e<f>;g=h/i*(j) '
EVERY_KIND = named(
    (NameOID.COUNTRY_NAME, "DE"), (NameOID.STATE_OR_PROVINCE_NAME, "Bayern"), (NameOID.LOCALITY_NAME, "Hof"),
    (NameOID.STREET_ADDRESS, "Gasse 1"), (NameOID.ORGANIZATION_NAME, "Shop"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "A"),
    (NameOID.ORGANIZATIONAL_UNIT_NAME, "B"), (NameOID.DOMAIN_COMPONENT, "example"), (NameOID.SERIAL_NUMBER, "77"),
    (NameOID.TITLE, "Dr"), (NameOID.SURNAME, "S"), (NameOID.GIVEN_NAME, "G"), (NameOID.INITIALS, "I"),
    (NameOID.GENERATION_QUALIFIER, "Jr"), (NameOID.PSEUDONYM, "P"), (NameOID.USER_ID, "u1"),
    (NameOID.EMAIL_ADDRESS, "a@example.org"), (NameOID.DN_QUALIFIER, "q"), (NameOID.POSTAL_CODE, "95028"),
    (NameOID.BUSINESS_CATEGORY, "b"), (ObjectIdentifier("1.2.3.4.5"), "own"), (NameOID.COMMON_NAME, USER),
)  # fmt: skip
CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH

LEAVES: dict[str, Callable[[], Parts]] = {
    "usual": lambda: Parts(ALICE),
    "usual of a client": lambda: Parts(
        ALICE, extensions=(key_usage(digital_signature=True), extended(CLIENT_AUTH))
    ),
    "has ended": lambda: Parts(ALICE, begins=-9, ends=-1),
    "not yet valid": lambda: Parts(ALICE, begins=1),
    "ends in 9999": lambda: Parts(ALICE, ends=1e9),
    # -- names
    "no common name": lambda: Parts(named((NameOID.ORGANIZATION_NAME, "Shop"))),
    "empty subject": lambda: Parts(x509.Name([]), (x509.DNSName("alice.example.org"),)),
    "empty common name": lambda: Parts(common("")),
    "two common names": lambda: Parts(named((NameOID.COMMON_NAME, USER), (NameOID.COMMON_NAME, "guest"))),
    "common name not last": lambda: Parts(
        named((NameOID.COMMON_NAME, USER), (NameOID.ORGANIZATION_NAME, "Shop"))
    ),
    "names in UTF-8": lambda: Parts(
        named((NameOID.ORGANIZATION_NAME, "Größe"), (NameOID.COMMON_NAME, "Жанна 😀"))
    ),
    "name as BMPString": lambda: Parts(named((NameOID.COMMON_NAME, "Жанна", _ASN1Type.BMPString))),
    "name as UniversalString": lambda: Parts(named((NameOID.COMMON_NAME, USER, _ASN1Type.UniversalString))),
    "name as T61String": lambda: Parts(named((NameOID.COMMON_NAME, USER, _ASN1Type.T61String))),
    "name as PrintableString": lambda: Parts(named((NameOID.COMMON_NAME, USER, _ASN1Type.PrintableString))),
    "name as IA5String": lambda: Parts(named((NameOID.COMMON_NAME, USER, _ASN1Type.IA5String))),
    "odd characters": lambda: Parts(common(ODD)),
    "control characters": lambda: Parts(common("a\r\n[error] b\tc\x7f")),
    "NUL in the name": lambda: Parts(common(f"{USER}\0.example.org")),
    "tilde": lambda: Parts(common("a~b|c}d{e")),
    "parts of several values": lambda: Parts(
        x509.Name(
            [
                x509.RelativeDistinguishedName([_attribute(NameOID.ORGANIZATION_NAME, "Shop")]),
                x509.RelativeDistinguishedName(
                    [_attribute(NameOID.COMMON_NAME, USER), _attribute(NameOID.USER_ID, "7")]
                ),
            ]
        )
    ),
    "every kind of name": lambda: Parts(EVERY_KIND),
    "long common name": lambda: Parts(common("a" * 300)),
    "long subject": lambda: Parts(
        named(*[(NameOID.ORGANIZATIONAL_UNIT_NAME, "b" * 60)] * 40, (NameOID.COMMON_NAME, USER))
    ),
    "DNS names": lambda: Parts(ALICE, (x509.DNSName("a.example.org"), x509.DNSName("*.example.org"))),
    "addresses": lambda: Parts(
        ALICE,
        (
            x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
            x509.IPAddress(ipaddress.ip_address("2001:db8::7")),
        ),
    ),
    "mail addresses": lambda: Parts(ALICE, (x509.RFC822Name("alice@example.org"),)),
    "URIs": lambda: Parts(ALICE, (x509.UniformResourceIdentifier("spiffe://example.org/alice"),)),
    "other names": lambda: Parts(
        ALICE, (other_name("alice@example.org"), x509.RegisteredID(ObjectIdentifier("1.2.3")))
    ),
    "other name in UTF-8": lambda: Parts(ALICE, (other_name("жанна"),)),
    "directory name": lambda: Parts(
        ALICE, (x509.DirectoryName(common("bob")), x509.DNSName("a.example.org"))
    ),
    "a thousand names": lambda: Parts(ALICE, tuple(x509.DNSName(f"n{n}.example.org") for n in range(1000))),
    # -- uses
    "key agreement only": lambda: Parts(ALICE, extensions=(key_usage(key_agreement=True),)),
    "key encipherment only": lambda: Parts(ALICE, extensions=(key_usage(key_encipherment=True),)),
    "server only": lambda: Parts(ALICE, extensions=(extended(ExtendedKeyUsageOID.SERVER_AUTH),)),
    "mail only": lambda: Parts(
        ALICE, extensions=(extended(ExtendedKeyUsageOID.EMAIL_PROTECTION, critical=True),)
    ),
    "any use": lambda: Parts(ALICE, extensions=(extended(ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE),)),
    "unknown critical extension": lambda: Parts(
        ALICE, extensions=((x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4.6"), b"\x05\0"), True),)
    ),
    "unknown extension": lambda: Parts(
        ALICE, extensions=((x509.UnrecognizedExtension(ObjectIdentifier("1.2.3.4.6"), b"\x05\0"), False),)
    ),
    "a CA": lambda: Parts(ALICE, is_ca=True),
    "without extensions": lambda: Parts(ALICE, has_basic=False),
    # -- keys
    "RSA 1024": lambda: Parts(ALICE, key=rsa.generate_private_key(65537, 1024)),
    "RSA 2048": lambda: Parts(ALICE, key=rsa.generate_private_key(65537, 2048)),
    "P-384": lambda: Parts(ALICE, key=ec.generate_private_key(ec.SECP384R1())),
    "P-521": lambda: Parts(ALICE, key=ec.generate_private_key(ec.SECP521R1())),
    "Ed25519": lambda: Parts(ALICE, key=ed25519.Ed25519PrivateKey.generate()),
    "Ed448": lambda: Parts(ALICE, key=ed448.Ed448PrivateKey.generate()),
    "signed with SHA-512": lambda: Parts(ALICE, digest=hashes.SHA512()),
}
"""Certificates that the CA of the brokers has issued."""


class Collection:
    """All certificates, in a folder.

    Args:
        folder: where the files are; nothing else may be there.

    Attributes:
        ca: the CA that the brokers trust.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = Authority(folder)

    def all(self) -> Iterable[Presented]:
        """Yield them one after the other, none first."""
        yield Presented("none", None, None)
        for name, parts in LEAVES.items():
            leaf = parts()
            yield self._written(name, made(leaf, self.ca.name, self.ca.key), leaf.key)
        yield from self._chains()
        yield from self._strangers()
        yield self._by_openssl("signed with SHA-1", "-sha1")

    def _chains(self) -> Iterable[Presented]:
        """Yield those of intermediate CAs."""
        ca, key = Parts(common("first"), is_ca=True, key=ec.generate_private_key(ec.SECP256R1())), self.ca.key
        first = made(ca, self.ca.name, key)
        leaf = Parts(ALICE)
        of_first = made(leaf, ca.subject, ca.key)
        yield self._written("one intermediate", of_first, leaf.key, first)
        yield self._written("intermediate missing", of_first, leaf.key)
        yield self._written("root sent, too", of_first, leaf.key, first, self.ca.certificate)
        second = Parts(common("second"), is_ca=True, key=ec.generate_private_key(ec.SECP256R1()))
        chain = made(second, ca.subject, ca.key), first
        yield self._written("too deep", made(leaf, second.subject, second.key), leaf.key, *chain)
        for name, parts in (
            ("intermediate is no CA", ca._replace(is_ca=False)),
            ("intermediate has ended", ca._replace(begins=-9, ends=-1)),
            ("intermediate may not sign", ca._replace(extensions=(key_usage(digital_signature=True),))),
            ("intermediate for other names", ca._replace(extensions=(only_for("example.com"),))),
        ):
            of_it = made(leaf._replace(names=(x509.DNSName("a.example.org"),)), ca.subject, ca.key)
            yield self._written(name, of_it, leaf.key, made(parts, self.ca.name, key))

    def _strangers(self) -> Iterable[Presented]:
        """Yield those that the CA of the brokers has not issued."""
        leaf = Parts(ALICE)
        other = ec.generate_private_key(ec.SECP256R1())
        yield self._written("another CA", made(leaf, common("other"), other), leaf.key)
        yield self._written("another CA of the same name", made(leaf, self.ca.name, other), leaf.key)
        yield self._written("self-signed", made(leaf, ALICE, leaf.key), leaf.key)
        as_ca = leaf._replace(subject=self.ca.name, is_ca=True)
        yield self._written("self-signed as the CA", made(as_ca, self.ca.name, leaf.key), leaf.key)

    def _by_openssl(self, name: str, *words: str) -> Presented:
        stem = self.folder / name.replace(" ", "-")
        key, request, certificate, ca_key = (
            stem.with_suffix(f".{end}") for end in ("key", "csr", "pem", "ca-key")
        )
        key.write_bytes(pem_of(P256))
        ca_key.write_bytes(pem_of(self.ca.key))
        for command in (
            ["req", "-new", "-key", key, "-subj", f"/CN={USER}", "-out", request],
            ["x509", "-req", "-in", request, "-CA", self.ca.file, "-CAkey", ca_key, "-set_serial", "77", "-days", "30",
             *words, "-out", certificate],
        ):  # fmt: skip
            execute(["openssl", *command], check=True)
        return Presented(name, certificate, key)

    def _written(
        self, name: str, certificate: x509.Certificate, key: Any, *chain: x509.Certificate
    ) -> Presented:
        pem = b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain)
        stem = "".join(letter if letter.isalnum() else "-" for letter in name)
        issued = Issued(self.folder, stem, certificate, key, pem)
        return Presented(name, issued.certfile, issued.keyfile)


def only_for(domain: str) -> tuple[x509.ExtensionType, bool]:
    """Return the extension that limits what a CA may issue to a domain."""
    return x509.NameConstraints([x509.DNSName(domain)], None), True
