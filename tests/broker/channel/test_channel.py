"""Publishes and settlements of a channel in special cases."""

import pytest
from doubles.fakes import Client, publish_frames

from leveret.broker.amqp.commands import Basic, Channel, Tx, make


@pytest.fixture
def client() -> Client:
    """A client with a queue `q`."""
    made = Client()
    made.declare("q")
    return made


# -- direct reply-to --------------------------------------------------------------------------------------------------

REPLY_TO = "amq.rabbitmq.reply-to"


def test_replies_end_with_the_channel(client):
    """Closing the channel of a direct reply-to consumer removes its queue."""
    client.consume(REPLY_TO, "replies", no_ack=True)
    vhost = client.node.vhosts["/"]
    assert 1 == len(vhost.reply_queues)
    client.send(make(Channel.Close, 200, "", 0, 0))

    assert {} == vhost.reply_queues


# -- consumers --------------------------------------------------------------------------------------------------------


def test_a_consumer_counts_what_it_does(client):
    """A consumer's deliveries are acked, unacked or returned; in a transaction they stay unacked until the commit."""
    client.receive(publish_frames("q") * 6)
    client.consume("q", "a")
    consumer = client.connection.channels[1].consumers["a"]

    def counts() -> tuple[int, ...]:
        return consumer.delivered, consumer.redelivered, consumer.unacked, consumer.acked, consumer.returned

    assert (6, 0, 6, 0, 0) == counts()
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Basic.Ack, 3, True))
    assert (6, 0, 3, 3, 0) == counts()
    client.send(make(Basic.Reject, 4, False))
    assert (6, 0, 2, 3, 1) == counts()
    client.send(make(Basic.Nack, 5, False, True))
    assert (7, 1, 2, 3, 2) == counts()
    client.send(make(Basic.Recover, True))
    assert (9, 3, 2, 3, 4) == counts()
    client.send(make(Tx.Select))
    client.send(make(Basic.Ack, 0, True))
    assert (9, 3, 2, 3, 4) == counts()
    client.send(make(Tx.Commit))
    assert (9, 3, 0, 5, 4) == counts()


def test_a_consumer_without_acks_acks_nothing(client):
    """Deliveries of a consumer without acks are complete when they are sent."""
    client.receive(publish_frames("q") * 2)
    client.consume("q", "a", no_ack=True)
    consumer = client.connection.channels[1].consumers["a"]

    assert (2, 0, 0) == (consumer.delivered, consumer.unacked, consumer.acked)
