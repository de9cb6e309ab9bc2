"""Message interceptors, in all that they may overwrite."""

import pytest
from doubles.fakes import Client, Node

from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.vhost.interceptors import Interceptors

OWN = {"timestamp_in_ms": ("long", 5), "x-routed-by": ("longstr", "client"), "own": ("bool", True)}


@pytest.mark.parametrize("overwrites", [None, False, True])
def test_what_a_client_has_written_stays_unless_it_may_be_replaced(overwrites):
    """Each publish gets the time and the node; a client's own stay without `overwrite`, and all other properties always."""
    node = Node(interceptors=Interceptors(timestamp=overwrites, routing_node=overwrites))
    client = Client(node)
    client.declare("q")
    client.publish("q", b"bare", delivery_mode=2)
    client.publish("q", b"full", timestamp=5, headers=OWN)
    got = []
    for _ in range(2):
        client.send(make(Basic.Get, 0, "q", True))
        (item,) = client.take()
        got.append(Properties(item.header))

    now = node.context.clock()
    added = {"timestamp_in_ms": ("long", now), "x-routed-by": ("longstr", node.config.node_name)}
    bare, full = got
    assert (added if overwrites is not None else {}) == (bare.headers or {})
    assert (None if overwrites is None else now // 1000, 2) == (bare.timestamp, bare.delivery_mode)
    assert OWN | (added if overwrites else {}) == full.headers
    assert (now // 1000 if overwrites else 5) == full.timestamp
