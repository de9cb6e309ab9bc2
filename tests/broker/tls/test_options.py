"""Options of TLS listeners as the configuration sets them, and those that cannot be carried out."""

from pathlib import Path

import pytest

from leveret.broker.config.config import ConfigError, effective, load
from leveret.broker.config.sections import HTTPTLSConfig
from leveret.broker.config.values import Listener
from leveret.broker.tls.options import SUITES_13, CertificateLogin, HostOptions, TLSOptions, openssl_name

ON = ("listeners.ssl.default=5671", "ssl_options.certfile=/c.pem")
VERIFIED = (*ON, "ssl_options.verify=verify_peer", "ssl_options.cacertfile=/ca.pem")


def problems_of(*settings: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(settings=settings)
    return caught.value.problems


def test_every_option_of_amqp_is_read():
    """RabbitMQ's keys, and those of hosts, become the options of the TLS listeners; plain ones stay."""
    config = load(settings=(
        "listeners.ssl.1=5671", "listeners.ssl.2=[::1]:5672", "ssl_handshake_timeout=2s",
        "ssl_options.certfile=/c.pem", "ssl_options.keyfile=/k.pem", "ssl_options.password=secret",
        "ssl_options.cacertfile=/ca.pem", "ssl_options.verify=verify_peer", "ssl_options.fail_if_no_peer_cert=true",
        "ssl_options.depth=2", "ssl_options.versions.1=tlsv1.2", "ssl_options.ciphers.2=AES128-SHA256",
        "ssl_options.ciphers.1=ECDHE-RSA-AES256-GCM-SHA384", "ssl_options.honor_cipher_order=false",
        "ssl_options.crl_check=peer", "ssl_options.crlfile=/crl.pem", "ssl_options.reuse_sessions=false",
        "ssl_options.reload_interval=5s", "ssl_options.sni.a.example.org.certfile=/a.pem",
        "ssl_options.sni.a.example.org.fail_if_no_peer_cert=false", "ssl_cert_login_from=subject_alt_name",
        "ssl_cert_login_san_type=email", "ssl_cert_login_san_index=1",
    ))  # fmt: skip

    assert (Listener("", 5671), Listener("::1", 5672)) == config.tls_listeners
    assert (Listener("127.0.0.1", 5672),) == config.listeners
    assert 2.0 == config.tls_handshake_timeout
    assert CertificateLogin("subject_alternative_name", "email", 1) == config.certificate_login
    assert config.tls == TLSOptions(
        certfile=Path("/c.pem"), keyfile=Path("/k.pem"), password="secret", cacertfile=Path("/ca.pem"),
        verify="verify_peer", fail_if_no_peer_cert=True, depth=2, versions=("tlsv1.2",),
        ciphers=("ECDHE-RSA-AES256-GCM-SHA384", "AES128-SHA256"), honor_cipher_order=False, crl_check="peer",
        crlfile=Path("/crl.pem"), reuse_sessions=False, reload_interval=5,
        hosts={"a.example.org": HostOptions(certfile=Path("/a.pem"), fail_if_no_peer_cert=False)},
    )  # fmt: skip


def test_what_a_host_does_not_set_is_as_for_the_listener():
    """But the key and the password of the listener are not those of another certificate."""
    hosts = {"A.org": HostOptions(certfile=Path("/a")), "b.org": HostOptions(verify="verify_peer")}
    options = TLSOptions(
        certfile=Path("/c"), keyfile=Path("/k"), password="x", cacertfile=Path("/ca"), hosts=hosts
    )

    rows = options.of_hosts

    assert ["", "a.org", "b.org"] == list(rows)
    assert (Path("/a"), None, "", Path("/ca")) == (
        rows["a.org"].certfile,
        rows["a.org"].keyfile,
        rows["a.org"].password,
        rows["a.org"].cacertfile,
    )
    assert (Path("/c"), Path("/k"), "x", "verify_peer") == (
        rows["b.org"].certfile,
        rows["b.org"].keyfile,
        rows["b.org"].password,
        rows["b.org"].verify,
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("listeners.ssl.1=5671",), "ssl_options.certfile is missing"),
        ((*ON, "ssl_options.verify=verify_peer"), "ssl_options.cacertfile is missing"),
        ((*ON, "ssl_options.fail_if_no_peer_cert=true"), "needs ssl_options.verify = verify_peer"),
        ((*ON, "ssl_options.sni.a.org.verify=verify_peer"), "ssl_options.sni.a.org.cacertfile is missing"),
        ((*VERIFIED, "ssl_options.crl_check=true"), "ssl_options.crlfile is missing"),
        ((*VERIFIED, "ssl_options.crlfile=/crl"), "needs ssl_options.crl_check"),
        (
            (*ON, "ssl_options.versions.1=tlsv1.1"),
            "ssl_options.versions.1 = 'tlsv1.1' must be one of tlsv1.2, tlsv1.3",
        ),
        (
            (*ON, "ssl_options.verify=yes"),
            "ssl_options.verify = 'yes' must be one of verify_none, verify_peer",
        ),
        ((*ON, "ssl_options.depth=-1"), "ssl_options.depth = '-1' must be at least 0"),
        ((*ON, "ssl_options.crl_check=best_effort"), "ssl_options.crl_check = 'best_effort' must be one of"),
        ((*ON, f"ssl_options.ciphers.1={SUITES_13[0]}"), "the suites of TLS 1.3 are offered together"),
        (
            (*ON, "ssl_options.ciphers.1=AES128-SHA256", "ssl_options.versions.1=tlsv1.3"),
            "no suite of TLS 1.3",
        ),
        (
            (*ON, *(f"ssl_options.ciphers.{at}={suite}" for at, suite in enumerate(SUITES_13))),
            "ssl_options.ciphers has no suite of TLS 1.2",
        ),
        ((*ON, "ssl_options.psk_identity=x"), "ssl_options.psk_identity is not supported"),
        ((*ON, "ssl_options.cacerts.1=x"), "ssl_options.cacerts.1 is not supported"),
        (
            (*ON, "ssl_options.certifle=x"),
            "unknown key ssl_options.certifle; did you mean ssl_options.certfile?",
        ),
        (("management.ssl.port=15671",), "management.ssl.certfile is missing"),
        (("prometheus.ssl.verify=verify_peer",), "prometheus.ssl.cacertfile is missing"),
        (("ssl_cert_login_from=name",), "ssl_cert_login_from = 'name' must be one of distinguished_name"),
        (
            (*ON, "ssl_options.password=encrypted:x"),
            "ssl_options.password is not base64 after 'encrypted:'",
        ),
    ],
)
def test_an_option_that_cannot_be_carried_out_is_an_error(settings, problem):
    """The error names the key."""
    assert any(problem in each for each in problems_of(*settings)), problems_of(*settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl_options.secure_renegotiate", "true"),
        ("ssl_options.client_renegotiation", "false"),
        ("ssl_options", "none"),
        ("listeners.ssl", "none"),
    ],
)
def test_a_key_that_asks_for_what_is_so_anyway_is_silent(key, value):
    """Neither an error nor a warning."""
    assert () == load(settings=[f"{key}={value}"]).warnings


def test_options_without_a_listener_are_a_warning():
    """A file that only prepares TLS loads; the log says that nothing listens."""
    (warning,) = load(settings=["ssl_options.certfile=/c.pem"]).warnings

    assert "there is no TLS listener" in warning


def test_an_https_listener_replaces_the_plain_one_unless_that_is_configured_too():
    """As in RabbitMQ, both are there only if both are configured."""
    only = load(settings=["management.ssl.certfile=/c.pem"]).management
    both = load(settings=["management.ssl.certfile=/c.pem", "management.ssl.port=1", "management.tcp.port=2"])

    wanted = TLSOptions(prefix="management.ssl", certfile=Path("/c.pem"))
    assert (HTTPTLSConfig(15671, "127.0.0.1", wanted), False) == (only.tls, only.has_plain)
    assert both.management.tls is not None
    assert (1, True, 2) == (both.management.tls.port, both.management.has_plain, both.management.port)
    assert load().management.has_plain


def test_no_password_of_a_key_is_shown():
    """The effective configuration has asterisks."""
    prefixes = ("ssl_options", "management.ssl", "prometheus.ssl", "ssl_options.sni.a.org")
    settings = [
        f"{each}.{field}" for each in prefixes for field in ("password=secret-word", "certfile=/c.pem")
    ]

    text = "\n".join(effective(load(settings=["listeners.ssl.1=5671", *settings])))

    assert "secret-word" not in text
    assert 4 == text.count('"password":"***"') - 1  # one is of the user


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA256", "AES128-SHA256"),
        ("ECDHE-RSA-AES128-SHA256", "ECDHE-RSA-AES128-SHA256"),
    ],
)
def test_a_cipher_may_have_its_name_of_iana(name, known):
    """It is translated to OpenSSL's."""
    assert known == openssl_name(name)
