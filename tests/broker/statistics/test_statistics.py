"""Samples of a whole broker."""

import tracemalloc

from doubles.fakes import Client, Node

from leveret.broker.statistics import families
from leveret.broker.statistics.series import Series


def sample(node: Node, milliseconds: int = 5000) -> int:
    """Let time pass and sample; returns the number of steps."""
    node.pass_time(milliseconds)
    return sum(1 for _ in node.statistics.sample())


def test_series_end_with_their_objects():
    """After the next pass nothing is kept of queues, channels and connections that are gone."""
    node = Node()
    client = Client(node)
    client.declare("q")
    queue = node.vhosts["/"].queues["q"]
    sample(node)
    assert node.statistics.series(queue) is not None
    node.vhosts["/"].delete_queue(queue)
    connection = client.connection
    connection.lost()
    sample(node)

    assert node.statistics.series(queue) is None
    assert node.statistics.series(connection) is None


def test_totals_of_a_vhost_include_what_closed_channels_did():
    """Counters never decrease when a channel or a connection ends."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.publish("q", b"1")
    sample(node)
    vhost = node.vhosts["/"]
    before = node.statistics.series(vhost)
    assert before is not None
    published, octets = before.last[0], before.last[-2]
    client.connection.lost()
    sample(node)

    assert (1, 1) == (published, before.last[0])
    assert 0 <= octets <= before.last[-2]


def test_a_pass_goes_in_steps():
    """No step visits more than a few dozen objects."""
    node = Node()
    for number in range(1000):
        node.vhosts["/"].create_queue(
            f"q{number}", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
        )

    assert sample(node) > 1000 / 50


def test_a_thousand_busy_queues_and_connections_need_less_than_40_megabytes():
    """Rings of queues that change at each tick for more than an hour; connections and channels need less."""
    ticks = Node().statistics.ticks
    tracemalloc.start()
    try:
        kept = []
        few = 20
        for family, number in (
            (families.QUEUES, few),
            (families.CONNECTIONS, few),
            (families.CHANNELS, few),
        ):
            many = [Series() for _ in range(number)]
            for tick in range(1, 800):
                row = (tick * 1_000_000,) * len(family.columns)
                for each in many:
                    each.add(row, tick * 5.0, ticks._replace(number=tick), family.tiers)
            kept.append(many)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert used * 1000 / few <= 40_000_000
