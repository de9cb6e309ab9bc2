"""Queue limits are bounded in memory and time: no state of deleted objects, and no turn without end."""

from fakes import Client, hurry, publish_frames

from leveret.broker.amqp.commands import Basic, Queue as Wire, make
from leveret.broker.queue.settings import QueueSettings


def test_deleted_queues_leave_no_timer() -> None:
    """A deleted queue's expiry timer is removed, also if a delivery is settled afterwards."""
    client = Client()
    client.declare("q", arguments={"x-expires": ("signedint", 86_400_000)})
    client.publish("q", b"1")
    client.consume("q")
    client.send(make(Wire.Delete, 0, "q", False, False, False))
    client.send(make(Basic.Ack, 1, False))

    assert 0 == len(client.node.context.timers)


def test_exclusive_queues_leave_no_timer() -> None:
    """An exclusive queue's timer is removed when its connection ends and requeues unacked messages."""
    client = Client()
    client.declare("q", exclusive=True, arguments={"x-expires": ("signedint", 86_400_000)})
    client.publish("q", b"1")
    client.consume("q")
    client.connection.lost()
    client.node.run_turn()

    assert 0 == len(client.node.context.timers)


def test_counts_of_returns_go_with_their_messages() -> None:
    """Delivery counts of messages that were purged, dropped or taken without an ack are removed."""
    client = Client()
    arguments = {"x-delivery-limit": ("signedint", 9), "x-max-length": ("signedint", 2)}
    client.declare("q", arguments=arguments)
    queue = client.node.vhosts["/"].queues["q"]
    for end in ("purge", "drop", "get"):
        for body in (b"1", b"2"):
            client.publish("q", body)
        client.send(make(Basic.Get, 0, "q", False))
        client.send(make(Basic.Get, 0, "q", False))
        client.send(make(Basic.Nack, 0, True, True))
        if end == "drop":
            client.publish("q", b"3")
            client.publish("q", b"4")
        if end == "get":
            client.send(make(Basic.Get, 0, "q", True))
            client.send(make(Basic.Get, 0, "q", True))
        client.send(make(Wire.Purge, 0, "q", False))

        assert queue.limits is not None
        assert ({}, {}) == (queue.limits._returns, queue.limits._returned)


def test_dropping_what_a_new_limit_does_not_allow_takes_several_turns() -> None:
    """A byte limit set on a long queue is applied in several turns, so that others go on."""
    client = Client()
    client.declare("q")
    queue = client.node.vhosts["/"].queues["q"]
    client.receive(publish_frames("q", b"12345") * 3000)
    hurry(client.node, looks=8)
    queue.configure(QueueSettings(max_octets=10))
    client.node.run_turn()

    assert 1000 <= queue.backing.ready_count
    client.node.clock.run()
    assert 2 == queue.backing.ready_count


def test_octets_are_known_again_when_nothing_is_left() -> None:
    """Messages unacked when a limit is set do not distort its count permanently, whatever is dropped."""
    client = Client()
    client.declare("q")
    queue = client.node.vhosts["/"].queues["q"]
    client.publish("q", b"12345")
    client.send(make(Basic.Get, 0, "q", False))
    queue.configure(QueueSettings(max_octets=10, overflow="reject-publish"))
    client.node.vhosts["/"].router.generation += 1
    client.send(make(Basic.Reject, 1, True))
    client.send(make(Basic.Get, 0, "q", True))
    for _ in range(3):
        client.publish("q", b"67890")

    assert 2 == queue.ready_count
