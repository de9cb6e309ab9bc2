"""Transactions: what they collect, and their commit and rollback in slices."""

from pathlib import Path

import pytest
from checks.internals import ready_messages
from doubles.fakes import Client, DiskNode, Node, basic_consume, hurry, publish_frames

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Queue, Tx, make
from leveret.broker.channel.settings import Limits


@pytest.fixture
def client() -> Client:
    """A client with a queue `q`."""
    made = Client()
    made.declare("q")
    return made


def bodies(client: Client) -> list[bytes]:
    return [message.body for message in ready_messages(client.node.vhosts["/"].queues["q"].backing)]


def fill(client: Client, count: int) -> None:
    """Publish that many messages, named by letters, and get all of them."""
    for number in range(count):
        client.publish("q", b"%c" % (97 + number))
        client.send(make(Basic.Get, 0, "q", False))
    client.sent()


def test_publishes_of_a_transaction_can_be_limited():
    """The publish beyond the limit closes the channel; a commit makes room for as many again, and acks do not count."""
    client = Client(Node(limits=Limits(transaction_publishes=2)))
    client.declare("q")
    fill(client, 1)
    client.send(Tx.Select())
    client.send(make(Basic.Ack, 1, False))
    for body in (b"1", b"2"):
        client.publish("q", body)
    assert ["1 tx.select-ok", "1 tx.commit-ok"] == client.ask(Tx.Commit())
    for body in (b"3", b"4", b"5"):
        client.publish("q", body)

    (closed,) = client.sent()
    assert "PRECONDITION_FAILED - transaction has reached the maximum of 2 uncommitted publishes" in closed
    assert "class_id=60 method_id=40" in closed
    assert [b"1", b"2"] == bodies(client)


# -- in slices ----------------------------------------------------------------------------------------------------------


def transaction(looks: int, count: int = 20) -> Client:
    """A client with an open transaction: publishes to two queues, and acks, nacks and requeues of its deliveries."""
    client = Client(Node())
    for name in ("in", "out"):
        client.declare(name)
    for number in range(count):
        client.publish("in", b"%d" % number)
    client.send(Tx.Select())
    client.send(basic_consume("in", "c"))
    client.take()
    for number in range(count):
        client.receive(publish_frames("out", b"%d" % number))
        tag = number + 1
        if number % 3:
            client.send(make(Basic.Nack, tag, False, number % 3 == 1))
        else:
            client.send(make(Basic.Ack, tag, False))
    client.take()
    if looks:
        hurry(client.node, looks=looks)
    return client


def outcome(client: Client) -> tuple[object, ...]:
    """Commit, then return the replies and the state of queues and channel."""
    client.send(Tx.Commit())
    client.node.clock.run()
    sent = client.sent()
    queues = client.node.vhosts["/"].queues
    return (
        sent,
        [(queue.published, queue.acked, queue.backing.ready_count) for queue in queues.values()],
        [message.body for message in ready_messages(queues["out"].backing)],
        list(client.connection.channels[1].unacked),
    )


def test_a_commit_in_pieces_does_what_one_in_one_piece_does():
    """A commit has the same effects, and one commit-ok, however short the steps are."""
    expected = outcome(transaction(0))

    assert [expected] * 3 == [outcome(transaction(looks)) for looks in (1, 2, 7)]


def test_a_channel_that_ends_amid_its_commit_leaves_nothing_unacked():
    """A connection lost during its commit settles or requeues each of its deliveries once."""
    client = transaction(1)
    client.node.turn.slices.begin()
    client.connection.receive(b"")
    client.driver.octets.clear()
    client.connection.receive(encode_method(1, Tx.Commit()))
    held = client.connection.pending_reply is not None
    client.connection.lost()
    client.node.clock.run()
    queue = client.node.vhosts["/"].queues["in"]

    assert (True, 0) == (held, queue.unacked_count)
    assert 20 == queue.ready_count + queue.acked


def test_a_rollback_in_pieces_gives_back_what_was_settled(monkeypatch):
    """A rollback in any number of slices makes settled deliveries unacked again, in order, with one rollback-ok."""
    monkeypatch.setattr("leveret.broker.channel.transaction.PIECE", 3)
    for looks in (0, 1, 2, 7):
        client = transaction(looks)
        client.send(Tx.Rollback())
        client.node.clock.run()
        channel = client.connection.channels[1]

        assert ["1 tx.rollback-ok"] == client.sent()
        assert list(range(1, 21)) == list(channel.unacked)
        assert channel.tx is not None
        assert (0, [], []) == (channel.unfinished, channel.tx.publishes, channel.tx.settled)


def test_a_channel_that_ends_amid_its_rollback_requeues_all(monkeypatch):
    """A connection that is lost during its rollback requeues each of its deliveries."""
    monkeypatch.setattr("leveret.broker.channel.transaction.PIECE", 3)
    client = transaction(1)
    client.node.turn.slices.begin()
    client.connection.receive(encode_method(1, Tx.Rollback()))
    held = client.connection.pending_reply is not None
    client.connection.lost()
    client.node.clock.run()
    queue = client.node.vhosts["/"].queues["in"]

    assert (True, 20, 0) == (held, queue.ready_count, queue.unacked_count)


@pytest.mark.parametrize("looks", [1, 2, 7])
def test_a_commit_waits_for_queues_that_somebody_else_had_deferred(tmp_path: Path, looks: int) -> None:
    """Commit-ok is sent when all is on disk, also if another client's publishes wait in the queue at the time."""
    node = DiskNode(tmp_path)
    busy, client = Client(node), Client(node)
    for number in range(10):
        busy.send(make(Queue.Declare, 0, f"q{number}", False, True, False, False, False, {}))
        node.commit()
        busy.send(make(Queue.Bind, 0, f"q{number}", "amq.fanout", "", False, {}))
        node.commit()
    client.send(Tx.Select())
    client.take()
    hurry(node, looks=looks)
    node.turn.slices.begin()
    busy.connection.receive(publish_frames(exchange="amq.fanout", delivery_mode=2))
    node.finish_turn()
    was_split = node.turn.is_split
    node.turn.slices.clock = lambda: 0  # from now on steps have time enough
    client.receive(publish_frames("q9", b"1", delivery_mode=2) + encode_method(1, Tx.Commit()))
    node.clock.run()
    before = client.sent()
    node.commit()

    assert (True, [], ["1 tx.commit-ok"]) == (was_split, before, client.sent())
    assert 2 == node.killed().vhosts["/"].queues["q9"].ready_count


@pytest.mark.parametrize("looks", [1, 2, 3, 7])
@pytest.mark.parametrize("is_committing", [False, True])
def test_who_follows_a_transactional_consumer_gets_the_oldest_first(
    looks: int, *, is_committing: bool
) -> None:
    """Messages requeued by a lost channel come before newer ones, however long its transaction takes to end."""
    client, heir = Client(node := Node()), Client(node)
    client.declare("q", arguments={"x-single-active-consumer": ("bool", True)})
    for body in (b"1", b"2", b"3", b"4"):
        client.publish("q", body)
    client.send(Tx.Select())
    client.send(make(Basic.Qos, 0, 2, False))
    client.send(basic_consume("q", "c"))
    heir.send(basic_consume("q", "d"))
    client.receive(publish_frames("nowhere") * 10)
    heir.take()
    hurry(node, looks=looks)
    node.turn.slices.begin()
    if is_committing:
        client.connection.receive(encode_method(1, Tx.Commit()))
    client.connection.lost()
    node.finish_turn()
    node.clock.run()

    assert ["'1'", "'2'", "'3'", "'4'"] == [each.split()[-1] for each in heir.sent()]
