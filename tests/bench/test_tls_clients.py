"""Clients in other languages over TLS: the verdict about one, and the certificates that they get."""

import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from bench.tls_clients import __main__ as program


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("print('done')", (True, "")),
        ("import sys; print('done'); print('a warning', file=sys.stderr)", (True, "")),
        ("import sys; print('done'); sys.exit(1)", (False, "nothing")),
        ("raise OSError('refused')", (False, "OSError: refused")),
        ("pass", (False, "nothing")),
    ],
)
def test_a_client_is_taken_if_it_says_so_and_ends_well(code: str, verdict: tuple[bool, str]):
    """Neither an end without a word nor a word without an end counts."""
    assert program.is_taken([sys.executable, "-c", code]) == verdict


def test_strangers_differ_from_the_one_who_is_taken_in_one_thing_each(tmp_path: Path):
    """The broker that demands a certificate takes one of its CA that has not expired, and no other."""
    ca, cases = program.cases(tmp_path)
    demanded = [case for case in cases if case.is_demanded]
    (taken,) = [case for case in demanded if case.is_taken]
    assert taken.authority is ca
    assert len(demanded) == 5
    for case in demanded:
        if case.identity is not None:
            assert case.identity.certificate.subject == taken.identity.certificate.subject


def test_java_reads_certificate_and_key_from_one_file(tmp_path: Path):
    """The file has both, under the password that the program knows."""
    identity = program.cases(tmp_path)[1][2].identity
    (store,) = program.files(identity, takes_store=True)
    key, certificate, _ = pkcs12.load_key_and_certificates(Path(store).read_bytes(), program.PASSWORD)
    assert certificate == identity.certificate
    assert key.private_numbers() == identity.key.private_numbers()
