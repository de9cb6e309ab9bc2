"""Names and times in certificates, in RabbitMQ's form."""

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from samples.certificates import name_of

from leveret.broker.tls.certificate import (
    CertificateError,
    Peer,
    cipher_parts,
    distinguished_name,
    facts_of,
    facts_of_file,
    login_name,
)
from leveret.broker.tls.options import CertificateLogin


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (name_of("alice"), "CN=alice"),
        (
            name_of("alice", (NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Hares & Co")),
            "CN=alice,O=Hares & Co,C=DE",
        ),
        (name_of('a,b+c;d<e>f"g\\h'), r"CN=a\,b\+c\;d\<e\>f\"g\\h"),
        (name_of(" edge "), r"CN=\ edge\ "),
        (name_of("#1#"), r"CN=\#1#"),
        (name_of("Müller~"), r"CN=M\C3\BCller\7E"),
        (name_of("new\nline"), r"CN=new\0Aline"),
        (name_of("x", (NameOID.EMAIL_ADDRESS, "a@b.c"), (NameOID.USER_ID, "7")), "CN=x,UID=7,EMAILADDRESS=a@b.c"),
        (name_of("x", (NameOID.DOMAIN_COMPONENT, "org"), (NameOID.SURNAME, "S")), "CN=x,SN=S,DC=org"),
        (name_of("x", (x509.ObjectIdentifier("1.2.3.4"), "odd")), "CN=x,1.2.3.4=odd"),
        (x509.Name([]), ""),
        (
            x509.Name([x509.RelativeDistinguishedName([
                x509.NameAttribute(NameOID.COMMON_NAME, "x"), x509.NameAttribute(NameOID.TITLE, "Dr"),
            ])]),
            "CN=x+TITLE=Dr",
        ),
    ],
)  # fmt: skip
def test_a_distinguished_name_is_written_as_by_rabbitmq(name, text):
    """The most specific part comes first, with the escapes of RFC 4514 and of everything that is not printable."""
    assert text == distinguished_name(name)


def test_the_name_of_the_user_may_be_any_part(ca):
    """The distinguished name, all common names, or an alternative name by its kind and number."""
    names = [
        "a.example.org", "b.example.org", "127.0.0.1", x509.RFC822Name("a@example.org"),
        x509.UniformResourceIdentifier("spiffe://example.org/a"),
        x509.OtherName(x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), b"\x0c\x05alice"),
    ]  # fmt: skip
    subject = name_of("second", (NameOID.COMMON_NAME, "first"))
    der = ca.issue("many", names, subject=subject).der

    def name(*login: object) -> str:
        return login_name(der, CertificateLogin(*login))

    assert "CN=second,CN=first" == name()
    assert "first,second" == name("common_name")
    wanted = {
        ("dns", 0): "a.example.org", ("dns", 1): "b.example.org", ("dns", 2): "", ("ip", 0): "127.0.0.1",
        ("email", 0): "a@example.org", ("uri", 0): "spiffe://example.org/a", ("other_name", 0): "alice",
    }  # fmt: skip
    assert wanted == {key: name("subject_alternative_name", *key) for key in wanted}


def test_a_certificate_without_the_part_has_no_name(ca):
    """Neither a common name nor alternative names."""
    der = ca.issue("none", subject=name_of("", (NameOID.ORGANIZATION_NAME, "O"))).der

    assert "" == login_name(der, CertificateLogin("common_name"))
    assert "" == login_name(der, CertificateLogin("subject_alternative_name"))


def test_facts_are_those_of_the_certificate(ca):
    """With the times in RabbitMQ's form."""
    issued = ca.issue("alice")
    facts = facts_of(issued.der)

    assert ("CN=alice", "CN=ca") == (facts.subject, facts.issuer)
    assert f"{facts.begins:%Y-%m-%dT%H:%M:%SZ} - {facts.ends:%Y-%m-%dT%H:%M:%SZ}" == facts.validity
    assert facts == facts_of_file(issued.certfile.read_bytes())


@pytest.mark.parametrize(
    "octets", [b"", b"\x30\x03\x02\x01\x01", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_what_is_no_certificate_is_refused(octets):
    """There is one kind of error, and a peer with it has no facts."""
    for read in (facts_of, facts_of_file):
        with pytest.raises(CertificateError):
            read(octets)
    with pytest.raises(CertificateError):
        login_name(octets, CertificateLogin())
    assert Peer("TLSv1.3", "TLS_AES_128_GCM_SHA256", octets).certificate is None


@pytest.mark.parametrize(
    ("suite", "parts"),
    [
        ("TLS_AES_256_GCM_SHA384", ("any", "aes_256_gcm", "aead")),
        ("TLS_CHACHA20_POLY1305_SHA256", ("any", "chacha20_poly1305", "aead")),
        ("ECDHE-RSA-AES128-GCM-SHA256", ("ecdhe_rsa", "aes_128_gcm", "aead")),
        ("ECDHE-ECDSA-AES256-SHA384", ("ecdhe_ecdsa", "aes_256_cbc", "sha384")),
        ("DHE-RSA-CHACHA20-POLY1305", ("dhe_rsa", "chacha20_poly1305", "aead")),
        ("AES128-SHA", ("rsa", "aes_128_cbc", "sha")),
    ],
)
def test_a_cipher_suite_has_three_parts(suite, parts):
    """In the words of RabbitMQ's listings."""
    assert parts == cipher_parts(suite)
