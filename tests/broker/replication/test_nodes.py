"""Three brokers with one log, as real processes: what was confirmed survives each of them, and the database."""

import signal

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from replicated.cluster import cluster
from replicated.numbered import Publisher

ENDS = (0, -signal.SIGTERM)
"""Exit codes after SIGTERM; the latter of a node that was deposed and has just begun again."""


BODIES = [b"%d" % number for number in range(30)]
STREAM = {"x-queue-type": "stream"}


def append(nodes, bodies):
    """Append messages to a stream, and wait for their confirms."""
    _, connection = nodes.connect()
    with connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("stream", durable=True, arguments=STREAM)
        for body in bodies:
            channel.basic_publish("", "stream", body)


def read(nodes, count):
    """Return the offsets and bodies of so many messages of the stream."""
    found = []
    _, connection = nodes.connect()
    with connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=count)
        wanted = {"x-stream-offset": "first"}
        for _, properties, body in channel.consume("stream", arguments=wanted, inactivity_timeout=20):
            if body is None:
                break
            found.append((properties.headers["x-stream-offset"], body))
            if len(found) == count:
                break
        channel.cancel()
    return found


@pytest.mark.timeout(600)
def test_what_is_confirmed_survives():
    """After losses of a leader with its disk, of the database's primary, and of all copies, all is there, in order, in a stream too."""
    with cluster() as (database, nodes):
        publisher = Publisher(nodes)
        try:
            publisher.goes_on()
            append(nodes, BODIES[:20])
            assert nodes.told_by_waiting()

            first = nodes.leader()
            nodes.kill(first, wiped=True)
            publisher.goes_on()
            append(nodes, BODIES[20:])
            nodes.start(first)

            assert nodes.end(nodes.leader()) in ENDS
            publisher.goes_on()

            database.lose_primary()
            publisher.goes_on()

            nodes.kill_all(wiped=True)
            for name in nodes.ports:
                nodes.start(name)
            publisher.goes_on()
            assert list(enumerate(BODIES)) == read(nodes, len(BODIES))
        finally:
            publisher.end()

        assert publisher.error is None
        assert [] == publisher.judge()
        assert database.url not in "".join(map(nodes.log, nodes.ports))
