"""Counters of messages on the less travelled ways."""

import pytest
from doubles.fakes import Client, DiskNode, Node, publish_frames

from leveret.broker.amqp.commands import Basic, Confirm, Queue, make
from leveret.broker.config.config import StorageConfig
from leveret.broker.counters.totals import QueueCounts
from leveret.confirm.consumer_ack import ConsumerAckQueue
from leveret.exchanges.base import Exchange as AnyExchange

DEAD = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}


def exchange(node: Node, name: str) -> AnyExchange:
    return node.vhosts["/"].router.exchanges[name]


def counts(node: Node, name: str = "q") -> QueueCounts:
    return node.vhosts["/"].queues[name].counts()


def awaiting(node: Node, name: str = "q") -> ConsumerAckQueue:
    found = node.vhosts["/"].queues[name].awaiting
    assert found is not None
    return found


@pytest.mark.parametrize("bound", [True, False])
def test_a_run_of_equal_messages_counts_each(bound):
    """Equal messages of one read are counted one by one: by exchange, by queue or as dropped."""
    node = Node()
    client = Client(node)
    client.declare("q")
    if bound:
        client.ask(make(Queue.Bind, 0, "q", "amq.topic", "a.#", False, {}))
    client.receive(5 * publish_frames("a.b", b"body", exchange="amq.topic"))
    topic, (channel,) = exchange(node, "amq.topic"), client.connection.channels.values()

    assert (5, 5 * bound, 5 * (not bound)) == (topic.published_in, topic.published_out, topic.unroutable)
    assert (5, 5 * (not bound)) == (channel.published, channel.counts().dropped)
    assert 5 * bound == counts(node).published


def test_only_what_found_no_queue_is_returned():
    """A mandatory message that is routed is not counted as returned."""
    node = Node()
    client = Client(node)
    client.declare("q")
    for key in ("q", "nowhere"):
        client.publish(key, mandatory=True, headers={"CC": ("array", [("longstr", key)])})
        client.publish(key, mandatory=True)

    assert (4, 2, 2) == (
        exchange(node, "").published_in,
        exchange(node, "").unroutable,
        exchange(node, "").returned,
    )


def test_a_headers_exchange_looks_each_message_up():
    """Routes by headers are not cached, and count each time."""
    node = Node()
    client = Client(node)
    before = exchange(node, "amq.headers").lookups
    for _ in range(3):
        client.publish("", exchange="amq.headers")

    assert 3 <= exchange(node, "amq.headers").lookups - before


@pytest.mark.parametrize("arguments", [{}, {"x-message-ttl": ("signedint", 60_000)}])
@pytest.mark.parametrize("mode", ["standard", "consumer-ack", "consumer-ack-light"])
def test_what_is_rejected_is_no_ack(arguments, mode):
    """Rejected messages are settled, not acked, in each mode, with queue limits or without."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments=arguments | {"x-confirm-mode": ("longstr", mode)})
    client.send(make(Confirm.Select, False))
    client.consume("q")
    client.publish("q")
    client.publish("q")
    client.send(Basic.Ack(1, False))
    client.send(Basic.Reject(2, False))
    found = counts(node)

    assert (1, 1) == (found.settled, found.rejected)


def test_a_large_dead_letter_is_no_ack(tmp_path):
    """A dead letter with a body file leaves its queue as one that moved: it is neither acked nor discarded."""
    node = DiskNode(tmp_path, storage=StorageConfig(sync=False, check_invariants=True, blob_threshold=5000))
    client = Client(node)
    client.declare("dead", durable=True)
    client.declare("q", durable=True, arguments=DEAD)
    node.commit()
    client.publish("q", b"x" * 6000, delivery_mode=2)
    for _ in range(2):
        node.write_files()
        if not client.connection.channels[1].delivered:
            client.ask(make(Basic.Get, 0, "q", False))
            client.send(Basic.Reject(1, False))
    queue = node.vhosts["/"].queues["q"]
    node.disk.close()

    assert (0, 0) == (queue.acked, queue.tally.discarded)
    assert 1 == counts(node, "dead").forwarded


def test_a_dead_letter_without_a_queue_is_unroutable():
    """A dead letter without a queue counts as published to its exchange and as unroutable."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments=DEAD)  # `dead` is not declared
    client.publish("q")
    client.ask(make(Basic.Get, 0, "q", False))
    client.send(Basic.Reject(1, False))

    assert (2, 1) == (exchange(node, "").published_in, exchange(node, "").unroutable)


def test_what_is_too_much_is_dropped():
    """A message above the length limit is dropped, also without a dead-letter exchange."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments={"x-max-length": ("signedint", 1)})
    for _ in range(3):
        client.publish("q")

    assert (2, 0) == (counts(node).dropped, counts(node).expired)


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_promises_add_up(mode):
    """Each promise is accepted, refused or open, whatever happens to its message."""
    node = Node()
    client = Client(node)
    arguments = {"x-confirm-mode": ("longstr", mode), "x-max-length": ("signedint", 2)}
    client.declare("q", arguments=arguments)
    client.send(make(Confirm.Select, False))
    for _ in range(3):
        client.publish("q")  # one is too much
    queue = awaiting(node)
    assert (3, 1, 2, 0) == (queue.promised, queue.refused, queue.open_count, queue.accepted)
    client.consume("q", no_ack=True)
    client.publish("q")
    assert (4, 1, 0, 3) == (queue.promised, queue.refused, queue.open_count, queue.accepted)
    client.ask(make(Basic.Cancel, "c-q", False))
    client.publish("q")
    client.ask(make(Queue.Delete, 0, "q", False, False, False))
    assert (5, 2, 0, 3) == (queue.promised, queue.refused, queue.open_count, queue.accepted)


def test_nacks_of_one_turn_are_counted_one_by_one():
    """A purge refuses all messages that wait for consumers, and each publish is counted."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments={"x-confirm-mode": ("longstr", "consumer-ack")})
    client.send(make(Confirm.Select, False))
    for _ in range(4):
        client.publish("q")
    client.ask(make(Queue.Purge, 0, "q", False))
    (channel,) = client.connection.channels.values()

    assert (4, 0) == (channel.counts().nacked, channel.counts().confirmed)


def test_what_was_delivered_too_often_does_not_come_back():
    """A message at its delivery limit counts as rejected, not as requeued."""
    node = Node()
    client = Client(node)
    client.declare(
        "q",
        durable=True,
        arguments={"x-queue-type": ("longstr", "quorum"), "x-delivery-limit": ("signedint", 1)},
    )
    client.publish("q")
    for tag in (1, 2):
        client.ask(make(Basic.Get, 0, "q", False))
        client.send(Basic.Reject(tag, True))
    tally = node.vhosts["/"].queues["q"].tally

    assert (1, 1) == (tally.requeued, tally.rejected)
    assert 0 == node.vhosts["/"].queues["q"].backing.ready_count
