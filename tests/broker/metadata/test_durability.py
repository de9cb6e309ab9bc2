"""Durability as clients see it on the wire: real data, and commits when a test says so."""

import gc

import pytest
from doubles.fakes import DiskNode, publish_frames, queue_declare

from leveret.broker.amqp.commands import Basic, Confirm, Queue, Tx, make


@pytest.fixture
def node(tmp_path):
    node = DiskNode(tmp_path)
    yield node
    node.disk.close()


def durable(client, *names):
    for name in names:
        client.send(queue_declare(name, durable=True))
        client.node.commit()
    client.sent()


def delete(name):
    return make(Queue.Delete, 0, name, False, False, False)


def test_a_get_that_waits_for_a_message_is_answered_when_that_is_purged(client, other, node):
    """A get that waits for a message to be read is answered as empty if another client purges the queue."""
    durable(client, "q")
    client.publish("q", b"one", delivery_mode=2)
    node.commit()
    node.vhosts["/"].queues["q"].backing.set_ram_target(0, 0)
    assert [] == client.ask(make(Basic.Get, 0, "q", True))

    other.send(make(Queue.Purge, 0, "q", False))
    node.commit()

    assert ["1 queue.purge-ok message_count=1"] == other.sent()
    assert ["1 basic.get-empty"] == client.sent()


def test_a_transaction_for_a_queue_that_is_gone_leaves_nothing(client, other, node):
    """A transaction's publish to a queue deleted since then leaves nothing on disk; the rest of it is done, and 406."""
    durable(client, "q", "r")
    client.send(Tx.Select())
    client.publish("q", b"one", delivery_mode=2)
    client.publish("r", b"two", delivery_mode=2)
    other.send(delete("q"))
    node.commit()

    client.send(Tx.Commit())
    node.commit()

    selected, closed = client.sent()
    assert "1 tx.select-ok" == selected
    assert closed.startswith(
        '1 channel.close reply_code=406 reply_text="PRECONDITION_FAILED - partial tx completion"'
    )
    assert 1 == len(list(node.disk.environment.rows("blocks")))


def test_commit_ok_waits_for_bodies_in_files(client, node):
    """A transaction is answered once the file of a very large body, and its record, are on disk."""
    durable(client, "q")
    client.ask(Tx.Select())
    client.publish("q", b"x" * node.config.storage.blob_threshold, delivery_mode=2)
    assert [] == client.ask(Tx.Commit())
    node.commit()
    assert [] == client.sent()

    node.disk.journal.file_written(*node.disk.journal.files)
    assert [] == client.sent()
    node._go_on()
    node.commit()

    assert ["1 tx.commit-ok"] == client.sent()


def test_commit_ok_is_refused_when_there_is_no_room_for_a_file(client, node):
    """A transaction whose body file finds no space on disk fails with an error."""
    durable(client, "q")
    client.ask(Tx.Select())
    client.publish("q", b"x" * node.config.storage.blob_threshold, delivery_mode=2)
    client.send(Tx.Commit())

    node.disk.journal.file_failed(*node.disk.journal.files)
    node._go_on()

    assert client.sent()[0].startswith("1 channel.close reply_code=506")


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_deleted_queue_is_freed_at_once(client, node, is_durable):
    """A deleted queue leaves nothing to the garbage collector, whose pauses delay all clients."""
    client.send(queue_declare("q", durable=is_durable))
    node.commit()
    client.publish("q", b"one", delivery_mode=2)
    queue = node.vhosts["/"].queues["q"]
    parts = {
        id(queue): type(queue),
        id(queue.backing): type(queue.backing),
    }  # other tests may have left queues, too
    del queue
    gc.collect()
    gc.disable()
    try:
        client.send(delete("q"))
        node.commit()
        left = [each for each in gc.get_objects() if parts.get(id(each)) is type(each)]
    finally:
        gc.enable()

    assert [] == left


def test_a_queue_that_fails_refuses_what_it_was_about_to_take(client, node, monkeypatch):
    """An internal error of one queue nacks the message, and its other copy is stored as the only one."""
    durable(client, "bad", "good")
    for name in ("bad", "good"):
        client.send(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
        node.commit()
    client.ask(Confirm.Select())
    bad = node.vhosts["/"].queues["bad"].backing

    publish = type(bad).publish

    def fail(queue, *arguments, **options):
        if queue is bad:
            raise RuntimeError("a bug")
        publish(queue, *arguments, **options)

    monkeypatch.setattr(type(bad), "publish", fail)
    client.publish("", b"x" * 5000, exchange="amq.fanout", delivery_mode=2)
    node.commit()

    assert ["1 basic.nack delivery_tag=1 requeue"] == client.sent()
    assert [] == list(node.disk.environment.rows("refs"))


def fail_in(monkeypatch, backing, name, *, times=1, late=False):
    """Let a backing queue's method raise in the call with the number `times`; if `late`, after it has done its work."""
    method = getattr(type(backing), name)
    calls = []

    def fail(queue, *arguments, **options):
        if queue is not backing:
            return method(queue, *arguments, **options)
        calls.append(name)
        if len(calls) != times:
            return method(queue, *arguments, **options)
        if late:
            method(queue, *arguments, **options)
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(backing), name, fail)


def references(node):
    """Return the reference counts of bodies stored once for several records."""
    return [int.from_bytes(count, "big") for _, count in node.disk.environment.rows("refs")]


@pytest.mark.parametrize(
    ("expirations", "consumed", "fails"),
    [
        (("60000", "70000", "70000"), False, {"times": 2}),
        (("60000", "70000", "70000"), False, {"late": True}),
        ((None, None, None), True, {}),
    ],
    ids=["before the second part", "after the first part", "after a delivery"],
)
def test_a_queue_that_fails_keeps_what_it_has_taken(
    client, other, node, monkeypatch, expirations, consumed, fails
):
    """An internal error among arrivals loses those not yet in the queue, and no other queue's body."""
    durable(client, "bad", "good")
    for name in ("bad", "good"):
        client.send(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
        node.commit()
    if consumed:
        other.send(make(Basic.Qos, 0, 1, False))
        other.consume("bad")
    client.ask(Confirm.Select())
    bad = node.vhosts["/"].queues["bad"].backing
    fail_in(monkeypatch, bad, "publish", **fails)
    client.receive(
        b"".join(
            publish_frames("", b"x" * 5000, exchange="amq.fanout", delivery_mode=2, expiration=expiration)
            for expiration in expirations
        )
    )
    node.commit()

    assert 1 == bad.ready_count + bad.unacked_count
    assert [2] == references(node)
    assert ["ack delivery_tag=1", "nack delivery_tag=2", "nack delivery_tag=3"] == sorted(
        each.removeprefix("1 basic.").removesuffix(" requeue") for each in client.sent()
    )
    queues = node.killed().vhosts["/"].queues
    assert (1, 3) == (queues["bad"].ready_count, queues["good"].ready_count)


def test_a_queue_that_fails_gives_acked_messages_back(client, other, node, monkeypatch):
    """Messages acked when an internal error occurs are redelivered, and their bodies are removed with the next ack."""
    durable(client, "q")
    client.publish("q", b"x" * 5000, delivery_mode=2)
    node.commit()
    other.consume("q")
    queue = node.vhosts["/"].queues["q"]
    fail_in(monkeypatch, queue.backing, "ack")
    delivered = other.ask(make(Basic.Ack, 1, False))
    node.commit()

    assert ["1 basic.deliver consumer_tag=c-q delivery_tag=2 redelivered"] == [
        each.partition(" routing_key")[0] for each in delivered
    ]
    other.send(make(Basic.Ack, 2, False))
    node.commit()
    assert (0, 0) == (queue.ready_count, queue.backing.unacked_count)
    assert [] == list(node.disk.environment.rows("bodies"))


def test_a_quorum_queue_keeps_every_message(client, other, node):
    """A message to a quorum queue is confirmed when it is on disk, persistent or not, however it gets there."""
    client.send(queue_declare("q", durable=True, arguments={"x-queue-type": ("longstr", "quorum")}))
    dead = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "q")}
    client.send(queue_declare("passing", arguments=dead))
    node.commit()
    client.ask(Confirm.Select())
    for body in (b"1", b"2", b"3"):
        client.publish("q", body)
    client.publish("q", b"4", user_id="guest")
    other.send(Tx.Select())
    other.publish("q", b"5")
    other.send(Tx.Commit())
    client.publish("passing", b"6")
    client.send(make(Basic.Get, 0, "passing", False))
    client.send(make(Basic.Reject, 1, False))

    assert not any(each.startswith("1 basic.ack delivery_tag=4") for each in client.sent())
    node.commit()
    assert ["1 basic.ack delivery_tag=4 multiple"] == client.sent()
    after = node.killed()
    assert 6 == after.vhosts["/"].queues["q"].ready_count
    after.disk.close()
