"""Queues with a meter; `test_sampling` checks what meters record."""

import pytest
from doubles.fakes import Client, Node, publish_frames

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import ExportConfig
from leveret.broker.queue.metered_queue import MeteredQueue
from leveret.broker.queue.queue import Queue


@pytest.fixture
def node(tmp_path) -> Node:
    """A broker with sampling enabled."""
    return Node(export=ExportConfig(dir=tmp_path))


def test_queues_are_metered_only_if_there_is_an_export(node):
    """A broker without an export has no meters and keeps no events; the queues of direct reply-to are no exception."""
    quiet = Client(Node())
    for client in (quiet, Client(node)):
        client.declare("q")
    plain, metered = quiet.node.vhosts["/"], node.vhosts["/"]

    assert [Queue, Queue] == [type(plain.queues["q"]), type(plain.reply_queues.create())]
    assert [MeteredQueue, MeteredQueue] == [type(metered.queues["q"]), type(metered.reply_queues.create())]
    assert (None, None) == (plain.queues["q"].meter, quiet.node.context.events)
    assert metered.queues["q"].meter is not None


def test_a_message_fetched_by_get_is_no_longer_ready(node):
    """The time that a message was ready ends with the turn of the `basic.get`, though nothing else runs the queue."""
    client = Client(node)
    client.declare("q")
    client.publish("q")
    node.pass_time(100)
    client.send(make(Basic.Get, 0, "q", True))
    node.pass_time(100)
    queue = node.vhosts["/"].queues["q"]
    queue.meter.update(queue, node.loop.monotonic())

    assert 100 * 1_000_000 == queue.meter.ready


def test_a_requeued_delivery_is_not_timed(node):
    """The ack of a delivery that was requeued is not timed; the next delivery's is."""
    client = Client(node)
    client.declare("q")
    client.publish("q")
    client.consume("q")
    node.pass_time(100)
    client.send(Basic.Reject(1, True))
    node.pass_time(50)
    client.send(Basic.Ack(2, False))
    _, _, ack = node.vhosts["/"].queues["q"].meter.take()

    assert (1, 50_000) == (ack.count, ack.total)


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_rejects_of_a_transaction_are_no_acks_of_others(node, is_stored):
    """An ack that is timed after rejects in a transaction counts once, whatever the transaction publishes."""
    client = Client(node)
    for name in ("q", "out"):
        client.declare(name, durable=True)
    client.send(Tx.Select())
    client.consume("q")
    for _ in range(2):
        client.publish("q")
        client.send(Tx.Commit())
    queue = node.vhosts["/"].queues["q"]
    if is_stored:
        client.publish("out", delivery_mode=2)
    client.send(Basic.Reject(1, False))
    client.send(Tx.Commit())
    before = queue.meter.take()[2].count
    client.publish("q")
    client.send(Tx.Commit())
    client.send(Basic.Ack(2, False))
    client.send(Tx.Commit())
    client.send(Basic.Ack(3, False))
    client.send(Tx.Commit())

    assert (1, 2) == (before, queue.meter.take()[2].count)


def test_a_get_that_waits_for_the_disk_keeps_nothing_busy(node):
    """A `basic.get` that waits until expired messages can be discarded does not run its queue meanwhile."""
    client = Client(node)
    client.declare("dead")
    arguments: Table = {
        "x-dead-letter-exchange": ("longstr", ""),
        "x-dead-letter-routing-key": ("longstr", "dead"),
        "x-message-ttl": ("long", 1000),
    }
    client.declare("q", arguments=arguments)
    client.receive(publish_frames("q", b"1") * 600)
    node.turn.is_backlogged = lambda: True
    node.pass_time(1001)
    node.clock.run()
    client.connection.receive(encode_method(1, make(Basic.Get, 0, "q", True)))
    node.finish_turn()
    if client.connection.stalled:
        client.driver.pause_reading()
        client.driver.wait()
    steps = 0
    while node.clock.soon and steps < 100:
        node.clock.soon.pop(0)()
        steps += 1

    assert steps < 100
    assert [] == client.sent()
