"""The configuration keys of TLS: those of AMQP, of the management API and of the metrics differ by their beginning."""

from typing import Final

from leveret.broker.config.key import Key
from leveret.broker.tls.options import VERSIONS

METRICS_PORT, MANAGEMENT_PORT = 15691, 15671
_BOOLEANS: Final = ("true", "false")
_VERIFY: Final = ("verify_none", "verify_peer")


def _options(prefix: str) -> tuple[Key, ...]:
    """Return the keys of the options of one kind of listener."""
    return (
        Key(name=f"{prefix}.certfile", kind="path", default="",
            doc="Certificate of the broker, followed by its intermediate certificates."),
        Key(name=f"{prefix}.keyfile", kind="path", default="", doc="Its private key; in `certfile` by default."),
        Key(name=f"{prefix}.password", kind="string", default="", secret=True, doc="Password of an encrypted key."),
        Key(name=f"{prefix}.cacertfile", kind="path", default="",
            doc="Certificates of the CAs that issue those of clients."),
        Key(name=f"{prefix}.verify", kind="choice", default="verify_none", choices=_VERIFY,
            doc="`verify_peer`: clients are asked for a certificate, which must be valid if they present one."),
        Key(name=f"{prefix}.fail_if_no_peer_cert", kind="bool", default="false",
            doc="Clients must present a certificate; needs `verify_peer`."),
        Key(name=f"{prefix}.depth", kind="int", default="", low=0, high=255,
            doc="Maximum number of intermediate certificates between that of a client and its CA; OpenSSL's limit by "
            "default. With it no session is resumed."),
        Key(name=f"{prefix}.versions.$name", kind="choice", default="", choices=VERSIONS,
            doc="Versions of TLS, `versions.1 = tlsv1.3` and so on; both by default. Older ones are insecure and an "
            "error."),
        Key(name=f"{prefix}.ciphers.$name", kind="string", default="",
            doc="Cipher suites by their OpenSSL or IANA names, the preferred one first; those of Python's TLS by "
            "default. The three suites of TLS 1.3 go together; without them TLS 1.3 is not offered."),
        Key(name=f"{prefix}.honor_cipher_order", kind="bool", default="true",
            doc="The order of the broker's suites counts, not of the client's. RabbitMQ's default is false."),
        Key(name=f"{prefix}.dhfile", kind="path", default="",
            doc="Diffie-Hellman parameters; without, no `DHE` suite is offered."),
        Key(name=f"{prefix}.crl_check", kind="choice", default="false", choices=("false", "true", "peer"),
            doc="Refuse revoked certificates: `peer` looks at that of the client, `true` at its whole chain."),
        Key(name=f"{prefix}.crlfile", kind="path", default="", origin="Leveret",
            doc="Lists of revoked certificates (PEM), one of each CA; after a list has ended its CA's clients are "
            "refused."),
        Key(name=f"{prefix}.reuse_sessions", kind="bool", default="true", doc="Clients may resume a session."),
    )  # fmt: skip


def _http(prefix: str, port: int) -> tuple[Key, ...]:
    return (
        Key(name=f"{prefix}.port", kind="int", default="", low=1, high=65535,
            doc=f"Port of the HTTPS listener; {port} if another key that begins like this one is set."),
        Key(name=f"{prefix}.ip", kind="string", default="127.0.0.1",
            doc="Its address. RabbitMQ's default is all interfaces."),
        *_options(prefix),
    )  # fmt: skip


LISTENERS: Final[tuple[Key, ...]] = (
    Key(name="listeners.ssl", kind="choice", default="", choices=("none",),
        doc="`none` disables all TLS listeners."),
    Key(name="listeners.ssl.$name", kind="listener", default="",
        doc="An AMQP listener with TLS: `5671`, `host:port` or `[ipv6]:port`. Plain listeners stay, unless "
        "`listeners.tcp = none`."),
    *_options("ssl_options"),
    Key(name="ssl_options.reload_interval", kind="seconds", default="60", unit="s", low=0, origin="Leveret",
        doc="Interval between two looks whether certificates have changed; `0` for none. Holds for all listeners."),
    Key(name="ssl_options.sni.$name.certfile", kind="path", default="", origin="Leveret",
        doc="Certificate for clients that ask for this host, such as `ssl_options.sni.mq.example.org.certfile`; "
        "`*.example.org` stands for one further name. What is not set for a host is as for the others."),
    Key(name="ssl_options.sni.$name.keyfile", kind="path", default="", origin="Leveret",
        doc="Its private key; in its `certfile` by default."),
    Key(name="ssl_options.sni.$name.password", kind="string", default="", secret=True, origin="Leveret",
        doc="Password of an encrypted key."),
    Key(name="ssl_options.sni.$name.cacertfile", kind="path", default="", origin="Leveret",
        doc="Certificates of the CAs of that host's clients."),
    Key(name="ssl_options.sni.$name.verify", kind="choice", default="", choices=_VERIFY, origin="Leveret",
        doc="`verify_peer`: clients of that host are asked for a certificate. If one host asks, all do, and what is "
        "presented must be valid; no session is resumed then."),
    Key(name="ssl_options.sni.$name.fail_if_no_peer_cert", kind="choice", default="", choices=_BOOLEANS,
        origin="Leveret", doc="Clients of that host must present a certificate."),
    Key(name="ssl_handshake_timeout", kind="duration", default="5000", unit="ms", low=0,
        attribute="tls_handshake_timeout", doc="Time limit of the TLS handshake."),
    Key(name="ssl_handshake_rate", kind="limit", default="500", low=1, attribute="tls_handshake_rate",
        origin="Leveret",
        doc="Maximum number of clients per second that are accepted on AMQP listeners with TLS, because a handshake "
        "takes about a millisecond of the processor; further ones wait to be accepted."),
    Key(name="ssl_cert_login_from", kind="choice", default="distinguished_name",
        choices=("distinguished_name", "common_name", "subject_alternative_name", "subject_alt_name"),
        doc="The part of a client's certificate that is the user's name with the mechanism `EXTERNAL`."),
    Key(name="ssl_cert_login_san_type", kind="choice", default="dns",
        choices=("dns", "ip", "email", "uri", "other_name"), attribute="certificate_login.san_type",
        doc="Kind of the alternative name that `ssl_cert_login_from = subject_alternative_name` takes."),
    Key(name="ssl_cert_login_san_index", kind="int", default="0", low=0, high=255,
        attribute="certificate_login.san_index", doc="Number of that name among those of its kind, from 0."),
)  # fmt: skip

METRICS: Final = _http("prometheus.ssl", METRICS_PORT)
MANAGEMENT: Final = _http("management.ssl", MANAGEMENT_PORT)
