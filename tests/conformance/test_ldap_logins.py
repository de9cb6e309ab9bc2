"""Users of a directory may do the same as with RabbitMQ's plugin rabbitmq_auth_backend_ldap."""

import pytest
from conformance import ldap_logins
from conformance.brokers import start_ours
from processes import slapd

pytest.importorskip("ldap3")

EXPLAINED = {
    # a directory ignores spaces around a name, but the broker would have another user
    "login 'ann ' 'ann-secret'": ("ok", "403"),
    "login ' ann' 'ann-secret'": ("ok", "403"),
    # RabbitMQ inserts names into DNs, and into regular expressions, as they are
    "login 'Smith, John' 'odd-secret'": ("403", "ok"),
    "login 'a+b' 'odd-secret'": ("403", "ok"),
    "queue.bind '(paren)' (paren)-q amq.topic x": ("403", "ok"),
}
"""Outcomes that differ: RabbitMQ's, and ours."""
LEAST = 100


def outcomes(lines: list[str]) -> dict[str, str]:
    """Return the outcomes by what was done."""
    return {case: outcome for case, _, outcome in (line.rpartition(": ") for line in lines)}


def test_a_directory_decides_as_for_rabbitmq(tmp_path):
    """Logins, virtual hosts, queues, exchanges and routing keys; where ours differs, there is a reason."""
    with slapd.running(tmp_path, ldap_logins.entries()) as directory:
        broker = start_ours(ldap_logins.ours(directory))
        try:
            ours = outcomes(ldap_logins.record(broker))
        finally:
            broker.stop()
    rabbitmqs = outcomes(ldap_logins.RECORD.read_text(encoding="utf-8").splitlines())
    differing = {case: (rabbitmqs[case], ours[case]) for case in rabbitmqs if rabbitmqs[case] != ours[case]}

    assert len(rabbitmqs) >= LEAST
    assert EXPLAINED == differing
    assert "Traceback" not in broker.last_log
