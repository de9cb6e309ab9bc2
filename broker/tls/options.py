"""The options of a TLS listener, as `ssl_options.*`, `management.ssl.*` and `prometheus.ssl.*` set them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import msgspec

from leveret.broker.config_key import Key

VERSIONS: Final = ("tlsv1.2", "tlsv1.3")
"""Versions of TLS that are offered, the oldest first. Older ones are insecure (RFC 8996)."""
SUITES_13: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""The cipher suites of TLS 1.3, of which Python's TLS offers all or none."""

Verify = Literal["verify_none", "verify_peer"]
RevocationCheck = Literal["false", "true", "peer"]


class TLSFileError(Exception):
    """Raised if a file, or a value that OpenSSL judges, cannot be used; the text names the key."""


class HostOptions(msgspec.Struct, frozen=True):
    """Options of one host name (SNI); what is None is as for the listener."""

    certfile: Path | None = None
    keyfile: Path | None = None
    password: str | None = None
    cacertfile: Path | None = None
    verify: Verify | None = None
    fail_if_no_peer_cert: bool | None = None


class TLSOptions(msgspec.Struct, frozen=True):
    """Options of a TLS listener; `prefix` is what their keys begin with, for messages."""

    # fmt: off
    certfile: Annotated[Path | None, Key(".certfile",
        doc="Certificate of the broker, followed by its intermediate certificates.")] = None
    keyfile: Annotated[Path | None, Key(".keyfile", doc="Its private key; in `certfile` by default.")] = None
    password: Annotated[str, Key(".password", secret=True, doc="Password of an encrypted key.")] = ""
    cacertfile: Annotated[Path | None, Key(".cacertfile",
        doc="Certificates of the CAs that issue those of clients.")] = None
    verify: Annotated[Verify, Key(".verify",
        doc="`verify_peer`: clients are asked for a certificate, which must be valid if they present one.")
    ] = "verify_none"
    fail_if_no_peer_cert: Annotated[bool, Key(".fail_if_no_peer_cert",
        doc="Clients must present a certificate; needs `verify_peer`.")] = False
    depth: Annotated[int | None, Key(".depth", low=0, high=255,
        doc="Maximum number of intermediate certificates between that of a client and its CA; OpenSSL's limit by "
        "default. With it no session is resumed.")] = None
    versions: Annotated[tuple[str, ...], Key(".versions.$name", "choice", choices=VERSIONS,
        doc="Versions of TLS, `versions.1 = tlsv1.3` and so on; both by default. Older ones are insecure and an error.")
    ] = ()
    ciphers: Annotated[tuple[str, ...], Key(".ciphers.$name",
        doc="Cipher suites by their OpenSSL or IANA names, the preferred one first; those of Python's TLS by default. "
        "The three suites of TLS 1.3 go together; without them TLS 1.3 is not offered.")] = ()
    honor_cipher_order: Annotated[bool, Key(".honor_cipher_order",
        doc="The order of the broker's suites counts, not of the client's. RabbitMQ's default is false.")] = True
    dhfile: Annotated[Path | None, Key(".dhfile",
        doc="Diffie-Hellman parameters; without, no `DHE` suite is offered.")] = None
    crl_check: Annotated[RevocationCheck, Key(".crl_check",
        doc="Refuse revoked certificates: `peer` looks at that of the client, `true` at its whole chain.")] = "false"
    crlfile: Annotated[Path | None, Key(".crlfile", own=True,
        doc="Lists of revoked certificates (PEM), one of each CA; after a list has ended its CA's clients are refused.")
    ] = None
    reuse_sessions: Annotated[bool, Key(".reuse_sessions", doc="Clients may resume a session.")] = True
    reload_interval: Annotated[float, Key("ssl_options.reload_interval", "seconds", low=0, own=True,
        doc="Interval between two looks whether certificates have changed; `0` for none. Holds for all listeners.")
    ] = 60.0
    hosts: Annotated[Mapping[str, HostOptions],
        Key("ssl_options.sni.$name.certfile", "path", own=True,
            doc="Certificate for clients that ask for this host, such as `ssl_options.sni.mq.example.org.certfile`; "
            "`*.example.org` stands for one further name. What is not set for a host is as for the others."),
        Key("ssl_options.sni.$name.keyfile", "path", own=True, doc="Its private key; in its `certfile` by default."),
        Key("ssl_options.sni.$name.password", secret=True, own=True, doc="Password of an encrypted key."),
        Key("ssl_options.sni.$name.cacertfile", "path", own=True,
            doc="Certificates of the CAs of that host's clients."),
        Key("ssl_options.sni.$name.verify", "choice", choices=get_args(Verify), own=True,
            doc="`verify_peer`: clients of that host are asked for a certificate. If one host asks, all do, and what "
            "is presented must be valid; no session is resumed then."),
        Key("ssl_options.sni.$name.fail_if_no_peer_cert", "choice", choices=("true", "false"), own=True,
            doc="Clients of that host must present a certificate.")] = {}
    prefix: str = "ssl_options"
    # fmt: on

    @property
    def of_hosts(self) -> dict[str, "TLSOptions"]:
        """The options by name of the host, complete; '' is the listener's own."""
        found = {"": msgspec.structs.replace(self, hosts={})}
        for name, host in self.hosts.items():
            set_here = {
                field: value
                for field in host.__struct_fields__
                if (value := getattr(host, field)) is not None
            }
            if "certfile" in set_here:  # the key and the password of another certificate are of no use
                set_here = {"keyfile": None, "password": ""} | set_here
            own = msgspec.structs.replace(self, hosts={}, prefix=f"{self.prefix}.sni.{name}", **set_here)
            found[name.lower()] = own
        return found

    @property
    def files(self) -> list[Path]:
        """All files, once each."""
        named = [
            path
            for each in self.of_hosts.values()
            for path in (each.certfile, each.keyfile, each.cacertfile, each.crlfile, each.dhfile)
            if path is not None
        ]
        return list(dict.fromkeys(named))


class CertificateLogin(msgspec.Struct, frozen=True):
    """The part of a client's certificate that is the name of a user (`ssl_cert_login_*`)."""

    # fmt: off
    source: Annotated[str,
        Key("ssl_cert_login_from", "choice",
            choices=("distinguished_name", "common_name", "subject_alternative_name", "subject_alt_name"),
            doc="The part of a client's certificate that is the user's name with the mechanism `EXTERNAL`.")
    ] = "distinguished_name"
    san_type: Annotated[str,
        Key("ssl_cert_login_san_type", "choice", choices=("dns", "ip", "email", "uri", "other_name"),
            doc="Kind of the alternative name that `ssl_cert_login_from = subject_alternative_name` takes.")] = "dns"
    san_index: Annotated[int, Key("ssl_cert_login_san_index", low=0, high=255,
        doc="Number of that name among those of its kind, from 0.")] = 0
    # fmt: on


def problems_of(options: TLSOptions) -> Iterator[str]:
    """Yield a sentence for each combination of options that cannot be carried out."""
    for each in options.of_hosts.values():
        prefix = each.prefix
        if each.certfile is None:
            yield f"{prefix}.certfile is missing: a TLS listener needs a certificate"
        if each.verify == "verify_peer" and each.cacertfile is None:
            yield f"{prefix}.cacertfile is missing: {prefix}.verify = verify_peer needs the CA of the clients"
        if each.fail_if_no_peer_cert and each.verify != "verify_peer":
            yield f"{prefix}.fail_if_no_peer_cert = true needs {prefix}.verify = verify_peer"
    prefix, check = options.prefix, options.crl_check
    if check != "false" and options.crlfile is None:
        needs = f"{prefix}.crl_check = {check} needs a list of revoked certificates of each CA"
        yield f"{prefix}.crlfile is missing: {needs}"
    if options.crlfile is not None and check == "false":
        yield f"{prefix}.crlfile needs {prefix}.crl_check = peer or true"
    if options.ciphers:
        yield from _cipher_problems(options)


def _cipher_problems(options: TLSOptions) -> Iterator[str]:
    prefix, versions = options.prefix, options.versions
    missing = [name for name in SUITES_13 if name not in options.ciphers]
    key = f"{prefix}.ciphers"
    if 0 < len(missing) < len(SUITES_13):
        add = f"add {' and '.join(missing)}, or list none, which disables TLS 1.3"
        yield f"{key}: the suites of TLS 1.3 are offered together: {add}"
    elif missing and versions == ("tlsv1.3",):
        yield f"{key} has no suite of TLS 1.3, the only version in {prefix}.versions"
    elif not missing and versions in {(), VERSIONS} and not older_ciphers(options):
        yield f"{key} has no suite of TLS 1.2: add one, or set {prefix}.versions.1 = tlsv1.3"


def older_ciphers(options: TLSOptions) -> list[str]:
    """Return OpenSSL's names of the ciphers for TLS 1.2; names of TLS 1.3 are left out."""
    is_13 = ("TLS_AES_", "TLS_CHACHA20_")
    return [openssl_name(name) for name in options.ciphers if not name.startswith(is_13)]


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2 with a name of IANA, or of OpenSSL."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, rest = name.removeprefix("TLS_").partition("_WITH_")
    cipher = rest.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    words = f"{'' if exchange == 'RSA' else exchange + '_'}{cipher}"
    return words.replace("_", "-")
