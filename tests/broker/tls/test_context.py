"""Contexts of listeners, in handshakes in memory."""

import ssl

import msgspec
import pytest
from samples.certificates import Authority, Issued, client_context, pem_of

from leveret.broker.tls.certificate import peer_of
from leveret.broker.tls.context import Context, make_context
from leveret.broker.tls.options import SUITES_13, HostOptions, TLSFileError, TLSOptions


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture(scope="module")
def options(ca) -> TLSOptions:
    """Options of a listener that asks for no certificate."""
    server = ca.server("server", "localhost", "a.test", "b.test", "x.wild.test")
    return TLSOptions(certfile=server.certfile, keyfile=server.keyfile)


@pytest.fixture(scope="module")
def alice(ca) -> Issued:
    return ca.issue("alice")


def changed(options: TLSOptions, **values: object) -> TLSOptions:
    return msgspec.structs.replace(options, **values)


def verifying(options: TLSOptions, ca: Authority, *, demands: bool = True, **values: object) -> TLSOptions:
    """Return the options of a listener that asks for certificates."""
    return changed(options, verify="verify_peer", cacertfile=ca.file, fail_if_no_peer_cert=demands, **values)


def shake(
    server: Context, client: ssl.SSLContext, host: str = "localhost", session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Do a handshake; returns both ends. Raises what the server's end raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host, session=session),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    for _ in range(10):
        for at, end in enumerate(ends):
            if not done[at]:
                try:
                    end.do_handshake()
                    done[at] = True
                except ssl.SSLWantReadError:
                    pass
        if all(done):
            ends[1].write(b"x")
            ends[0].read(1)  # with it come the tickets of TLS 1.3
            return ends[0], ends[1]
    raise AssertionError("the handshake does not end")


def refusal(server: Context, client: ssl.SSLContext, host: str = "localhost") -> str:
    """Return the reason for which a client is refused, by OpenSSL or after the handshake; '' if it is not."""
    try:
        _, end = shake(server, client, host)
    except ssl.SSLError as error:
        return error.reason or str(error)
    return end.context.refusal(end)


def test_tls_12_and_13_are_spoken(ca, options):
    """A client gets the newest version that it knows, with facts for listings."""
    client = client_context(ca)
    _, end = shake(make_context(options), client)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    _, older = shake(make_context(options), client)
    peer, older_peer = peer_of(end), peer_of(older)

    assert ("tlsv1.3", "any", "aes_256_gcm", "aead") == (
        peer.protocol,
        peer.key_exchange,
        peer.cipher,
        peer.hash,
    )
    assert ("tlsv1.2", "ecdhe_ecdsa", "aead") == (
        older_peer.protocol,
        older_peer.key_exchange,
        older_peer.hash,
    )
    assert (None, False) == (peer.certificate, peer.is_verified)


@pytest.mark.parametrize(("versions", "other"), [(("tlsv1.2",), "TLSv1_3"), (("tlsv1.3",), "TLSv1_2")])
def test_a_version_that_is_not_listed_is_refused(ca, options, versions, other):
    """`versions` is a minimum and a maximum."""
    client = client_context(ca)
    client.minimum_version = client.maximum_version = ssl.TLSVersion[other]

    assert refusal(make_context(changed(options, versions=versions)), client)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(ca, options):
    """TLS 1.1 is never spoken."""
    client = client_context(ca)
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1

    assert "UNSUPPORTED_PROTOCOL" == refusal(make_context(options), client)


def test_ciphers_are_those_listed(ca, options):
    """Without a suite of TLS 1.3 that version is not offered; with all three it is."""
    name = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    _, end = shake(make_context(changed(options, ciphers=(name,))), client_context(ca))
    _, newer = shake(make_context(changed(options, ciphers=(name, *SUITES_13))), client_context(ca))

    assert ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2") == end.cipher()[:2]
    assert "TLSv1.3" == newer.version()


def test_the_order_of_the_server_counts_unless_switched_off(ca, options):
    """`honor_cipher_order` decides between two lists."""
    ours = ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384")
    client = client_context(ca)
    client.set_ciphers(":".join(reversed(ours)))
    chosen = [
        shake(make_context(changed(options, ciphers=ours, honor_cipher_order=honor)), client)[1].cipher()[0]
        for honor in (True, False)
    ]

    assert list(ours) == chosen


def test_a_client_needs_a_certificate_where_it_is_demanded(ca, other, options, alice):
    """One of another CA is refused too, and one that is over; where certificates are optional none is needed."""
    demanding = make_context(verifying(options, ca))
    optional = make_context(verifying(options, ca, demands=False))

    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" == refusal(demanding, client_context(ca))
    assert "" == refusal(optional, client_context(ca))
    for context in (demanding, optional):
        assert "" == refusal(context, client_context(ca, alice))
        assert "CERTIFICATE_VERIFY_FAILED" == refusal(context, client_context(ca, other.issue("mallory")))
        assert "CERTIFICATE_VERIFY_FAILED" == refusal(context, client_context(ca, ca.issue("late", days=-1)))


def test_a_peer_is_verified_only_where_certificates_are(ca, options, alice):
    """Its facts are those of its certificate."""
    peer = peer_of(shake(make_context(verifying(options, ca)), client_context(ca, alice))[1])

    assert ("CN=alice", "CN=ca", True) == (
        peer.certificate.subject,
        peer.certificate.issuer,
        peer.is_verified,
    )
    assert alice.der == peer.der
    assert "TLS 1.3, TLS_AES_256_GCM_SHA384, certificate CN=alice" == str(peer)


def test_revoked_clients_are_refused(ca, options, alice):
    """So are those of a CA whose list is not there, because it might have revoked them."""
    bob = ca.issue("bob")
    crl = ca.revoke([bob])
    second = Authority(ca.folder, "second", ca)
    carol = second.issue("carol")
    peer = make_context(verifying(options, ca, crl_check="peer", crlfile=crl))
    whole = make_context(verifying(options, ca, crl_check="true", crlfile=crl))

    for context in (peer, whole):
        assert "" == refusal(context, client_context(ca, alice))
        assert "CERTIFICATE_VERIFY_FAILED" == refusal(context, client_context(ca, bob))
        assert "CERTIFICATE_VERIFY_FAILED" == refusal(context, client_context(ca, carol))


def test_a_chain_may_be_no_longer_than_depth(ca, options):
    """`depth` counts the intermediate certificates, and a resumed session does not get round it."""
    second = Authority(ca.folder, "intermediate", ca)
    client = client_context(ca, second.issue("deep"))

    assert "" == refusal(make_context(verifying(options, ca, depth=1)), client)
    strict = make_context(verifying(options, ca, depth=0))
    assert "1 intermediate certificates, more than 0" in refusal(strict, client)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client.maximum_version = version
        first, _ = shake(strict, client)
        _, end = shake(strict, client, session=first.session)
        assert end.context.refusal(end)


def test_sessions_are_resumed_unless_switched_off(ca, options):
    """`reuse_sessions` makes a second handshake cheaper."""
    for reuse in (True, False):
        context = make_context(changed(options, reuse_sessions=reuse))
        client = client_context(ca)
        first, _ = shake(context, client)
        _, end = shake(context, client, session=first.session)
        assert reuse == end.session_reused


def test_each_host_has_its_certificate(ca, options):
    """A client gets that of the host it asks for; of a wild card; or the listener's."""
    hosts = {}
    for name in ("a.test", "*.wild.test"):
        issued = ca.issue(name.strip("*."), [name, "x.wild.test"])
        hosts[name] = HostOptions(certfile=issued.certfile, keyfile=issued.keyfile)
    context = make_context(changed(options, hosts=hosts))

    subjects = [
        dict(each[0] for each in shake(context, client_context(ca), host)[0].getpeercert()["subject"])[
            "commonName"
        ]
        for host in ("A.test", "b.test", "x.wild.test", "localhost")
    ]

    assert ["a.test", "server", "wild.test", "server"] == subjects


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_nobody_gets_in_without_the_certificate_that_a_host_demands(ca, other, options, alice, version):
    """Although the listener itself asks for none: the context of a host alone would not change that."""
    hosts = {"a.test": HostOptions(verify="verify_peer", cacertfile=ca.file, fail_if_no_peer_cert=True)}
    context = make_context(changed(options, hosts=hosts))

    def client(*identity: Issued) -> ssl.SSLContext:
        made = client_context(ca, *identity)
        made.maximum_version = version
        return made

    assert "the client presented no certificate" == refusal(context, client(), "a.test")
    assert "CERTIFICATE_VERIFY_FAILED" == refusal(context, client(other.issue("mallory")), "a.test")
    assert "" == refusal(context, client(alice), "a.test")
    assert "" == refusal(context, client(), "b.test")
    assert "" == refusal(context, client(alice), "b.test")
    reused = client()
    first, _ = shake(context, reused, "b.test")
    _, end = shake(context, reused, "a.test", first.session)
    assert end.context.refusal(end)


def test_a_host_may_ask_for_less_than_the_listener(ca, options):
    """The listener demands certificates; clients of the host need none, and are not taken as verified."""
    context = make_context(
        verifying(
            options, ca, hosts={"a.test": HostOptions(verify="verify_none", fail_if_no_peer_cert=False)}
        )
    )

    assert "the client presented no certificate" == refusal(context, client_context(ca), "b.test")
    _, end = shake(context, client_context(ca), "a.test")
    assert ("", False) == (end.context.refusal(end), peer_of(end).is_verified)


def test_revocation_is_looked_at_for_hosts_too(ca, options, alice):
    """If only a host asks for certificates, its list of revoked ones counts."""
    crl = ca.revoke([alice], "of_hosts")
    hosts = {"a.test": HostOptions(verify="verify_peer", cacertfile=ca.file, fail_if_no_peer_cert=True)}
    context = make_context(changed(options, crl_check="peer", crlfile=crl, hosts=hosts))

    assert "CERTIFICATE_VERIFY_FAILED" == refusal(context, client_context(ca, alice), "a.test")
    assert "" == refusal(context, client_context(ca, ca.issue("dora")), "a.test")


def test_an_encrypted_key_needs_its_password(ca, options):
    """A wrong password, or none, is an error that names the key; nobody is asked at a terminal."""
    server = ca.server("encrypted")
    server.keyfile.write_bytes(pem_of(server.key, b"open sesame"))
    own = changed(options, certfile=server.certfile, keyfile=server.keyfile)

    assert "" == refusal(make_context(changed(own, password="open sesame")), client_context(ca))
    for wrong in ("", "sesame"):
        with pytest.raises(TLSFileError, match=r"^ssl_options\.password is not that of the key"):
            make_context(changed(own, password=wrong))


def test_a_key_may_be_in_the_file_of_the_certificate(ca, options):
    """`keyfile` is not needed then."""
    server = ca.server("both")
    server.certfile.write_bytes(server.certfile.read_bytes() + pem_of(server.key))

    assert "" == refusal(
        make_context(changed(options, certfile=server.certfile, keyfile=None)), client_context(ca)
    )


def test_files_that_cannot_be_used_are_errors(ca, options, tmp_path):
    """Each names its key."""
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.write_bytes(b"")
    wrong = ca.server("wrong").keyfile
    for key, values in (
        ("certfile", {"certfile": missing}),
        ("certfile", {"certfile": empty}),
        ("keyfile", {"keyfile": missing}),
        ("keyfile", {"keyfile": wrong}),
        ("cacertfile", {"cacertfile": missing, "verify": "verify_peer"}),
        ("cacertfile", {"cacertfile": empty, "verify": "verify_peer"}),
        (
            "crlfile",
            {"cacertfile": ca.file, "verify": "verify_peer", "crl_check": "peer", "crlfile": missing},
        ),
        (
            "crlfile",
            {"cacertfile": ca.file, "verify": "verify_peer", "crl_check": "peer", "crlfile": ca.file},
        ),
        ("dhfile", {"dhfile": missing}),
        ("dhfile", {"dhfile": empty}),
        ("ciphers", {"ciphers": ("ECDHE-RSA-AES256-GCM-SHA384", "ROT13")}),
    ):
        with pytest.raises(TLSFileError, match=rf"^ssl_options\.{key}\b"):
            make_context(changed(options, **values))
