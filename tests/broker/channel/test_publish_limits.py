"""Limits of one publish: keys in CC and BCC, and hops between exchanges."""

import pytest
from doubles.fakes import Client, Node, publish_frames

from leveret.broker.amqp.commands import Channel, Exchange, Queue, make
from leveret.broker.channel.settings import Limits


def publisher(**settings) -> Client:
    """A client of a broker with a topic exchange `x`, bound to `y`, bound to a queue."""
    client = Client(Node(limits=Limits(**settings)))
    client.declare("q")
    for name in ("x", "y"):
        client.ask(make(Exchange.Declare, 0, name, "topic", False, False, False, False, False, {}))
    client.ask(make(Exchange.Bind, 0, "y", "x", "#", False, {}))
    client.ask(make(Queue.Bind, 0, "q", "y", "#", False, {}))
    return client


def keys(cc: int, bcc: int = 0) -> dict[str, object]:
    """Headers with so many keys."""
    return {
        "CC": ("array", [("longstr", f"c{number}") for number in range(cc)]),
        "BCC": ("array", [("longstr", f"b{number}") for number in range(bcc)]),
    }


@pytest.mark.parametrize(("cc", "bcc", "is_taken"), [(2, 1, True), (2, 2, False), (4, 0, False)])
def test_keys_of_cc_and_bcc_are_limited(cc, bcc, is_taken):
    """A publish with more keys in CC and BCC than allowed closes its channel with 406 that names the limit."""
    client = publisher(cc_keys=3)
    client.receive(publish_frames("k", b"body", exchange="x", headers=keys(cc, bcc)))
    sent = client.sent()

    assert ([] if is_taken else 1) == (sent if is_taken else len(sent))
    assert is_taken is not any("406" in line and "limits.cc_keys (3)" in line for line in sent)


def test_hops_between_exchanges_are_limited():
    """A publish that would pass more exchanges than allowed closes its channel with 406 that names the limit."""
    client = publisher(exchange_hops=0)
    client.receive(publish_frames("k", b"body", exchange="x"))
    (close,) = client.sent()

    assert ("channel.close", True) == (close.split()[1].split("(")[0], "limits.exchange_hops (0)" in close)


def test_hops_count_for_each_key():
    """A message with a second key may pass half as many exchanges."""
    client = publisher(exchange_hops=1)
    client.receive(publish_frames("k", b"body", exchange="x"))
    one_key = client.sent()
    client.receive(publish_frames("k", b"body", exchange="x", headers=keys(1)))

    assert ([], 1) == (one_key, len(client.sent()))


def test_only_the_channel_ends():
    """A connection stays open after a publish over a limit."""
    client = publisher(exchange_hops=0)
    client.receive(publish_frames("k", b"body", exchange="x"))
    client.take()
    client.send(Channel.CloseOk())
    client.send(Channel.Open())

    assert 1 == len(client.sent())
