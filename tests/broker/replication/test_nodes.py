"""Three brokers with one log, as real processes: what was confirmed survives each of them, and the database."""

import signal

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from replicated.cluster import cluster
from replicated.numbered import Publisher

ENDS = (0, -signal.SIGTERM)
"""Exit codes after SIGTERM; the latter of a node that was deposed and has just begun again."""


@pytest.mark.timeout(600)
def test_what_is_confirmed_survives():
    """After losses of a leader with its disk, of the database's primary, and of all copies, all is there, in order."""
    with cluster() as (database, nodes):
        publisher = Publisher(nodes)
        try:
            publisher.goes_on()
            assert nodes.told_by_waiting()

            first = nodes.leader()
            nodes.kill(first, wiped=True)
            publisher.goes_on()
            nodes.start(first)

            assert nodes.end(nodes.leader()) in ENDS
            publisher.goes_on()

            database.lose_primary()
            publisher.goes_on()

            nodes.kill_all(wiped=True)
            for name in nodes.ports:
                nodes.start(name)
            publisher.goes_on()
        finally:
            publisher.end()

        assert publisher.error is None
        assert [] == publisher.judge()
        assert database.url not in "".join(map(nodes.log, nodes.ports))
