"""Deliveries of quorum queues that are not acked in time, with `compatibility.consumer_timeout = 4.3`.

Checked beside RabbitMQ 4.3.6, which does the same.
"""

import pytest
from doubles.fakes import Client, Node, queue_declare

from leveret.broker.amqp.commands import Basic, Channel, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.channel.settings import Compatibility
from leveret.broker.queue.compatibility import QueueCompatibility

QUORUM: Table = {"x-queue-type": ("longstr", "quorum")}
CANCEL = "1 basic.cancel consumer_tag=c nowait"


class Consuming(Client):
    """A client that consumes from the quorum queue `q` as `c`, two at a time, each for at most five seconds."""

    def __init__(self, *, capable: bool = True, arguments: Table | None = None, **options: object) -> None:
        queues = QueueCompatibility(delivery_count="failures")
        node = Node(compatibility=Compatibility(consumer_timeout="4.3", queues=queues))
        super().__init__(node, capabilities={"consumer_cancel_notify": ("bool", capable)})
        timeout: Table = {"x-consumer-timeout": ("signedint", 5000)}
        self.declare("q", durable=True, arguments={**QUORUM, **timeout, **(arguments or {})})
        self.ask(make(Basic.Qos, 0, 2, False))
        self.consume("q", "c", **options)
        self.queue = node.vhosts["/"].queues["q"]

    def publish_all(self, *bodies: bytes) -> list[str]:
        for body in bodies:
            self.publish("q", body)
        return self.sent()

    def wait(self, seconds: int) -> list[str]:
        """Let time pass, and return what is sent meanwhile."""
        for _ in range(seconds):
            self.node.clock.now += 1
            self.node.turn.slices.begin()
            self.node._overdue.run(self.node.now())
        self.node.run_turn()
        return self.sent()

    def deliveries(self, method: object) -> list[int]:
        self.send(method)
        return [sent.method.delivery_tag for sent in self.take() if hasattr(sent.method, "redelivered")]


@pytest.fixture
def late() -> Consuming:
    """One whose two deliveries are overdue; a third message is ready."""
    client = Consuming()
    client.publish_all(b"0", b"1", b"2")
    assert [] == client.wait(5)
    assert [CANCEL] == client.wait(3)
    return client


def test_the_consumer_is_told_and_its_messages_are_requeued(late):
    """The messages are ready, in order and redelivered; the channel is open, and the consumer counts still."""
    assert 3 == late.queue.ready_count
    assert [] == late.wait(60)
    assert "consumer_count=1" in late.ask(queue_declare("q", passive=True))[0]
    other = Client(late.node)
    got = other.ask(make(Basic.Get, 0, "q", True))
    assert "redelivered" in got[0]
    assert 2 == late.queue.ready_count


def test_the_consumer_gets_messages_again_when_all_is_settled(late):
    """Late acks have no effect but the last one: what was requeued is delivered again, with new tags."""
    assert [] == late.deliveries(make(Basic.Ack, 1, False))
    assert [3, 4] == late.deliveries(make(Basic.Ack, 2, False))
    assert [5] == late.deliveries(make(Basic.Ack, 4, True))
    late.send(make(Basic.Ack, 5, False))
    assert (0, 0) == (late.queue.ready_count, late.queue.unacked_count)


@pytest.mark.parametrize(
    "method",
    [
        make(Basic.Ack, 0, True),
        make(Basic.Ack, 2, True),
        make(Basic.Nack, 2, True, False),
        make(Basic.Nack, 2, True, True),
        make(Basic.Recover, True),
    ],
)
def test_every_late_settlement_is_without_effect(late, method):
    """Rejected or recovered deliveries are neither lost nor there twice."""
    assert [3, 4] == late.deliveries(method)
    assert (1, 2) == (late.queue.ready_count, late.queue.unacked_count)


def test_a_second_settlement_is_an_error(late):
    """A tag is settled once, late or not."""
    late.send(make(Basic.Ack, 1, False))
    assert "unknown delivery tag 1" in late.ask(make(Basic.Ack, 1, False))[0]
    assert 3 == late.queue.ready_count


def test_a_transaction_may_settle_late(late):
    """A rollback takes the late acks back, a commit lets the consumer go on."""
    late.ask(make(Tx.Select))
    late.send(make(Basic.Ack, 2, True))
    late.ask(make(Tx.Rollback))
    assert [] == late.deliveries(make(Basic.Ack, 2, True))
    assert [3, 4] == late.deliveries(make(Tx.Commit))
    assert (1, 2) == (late.queue.ready_count, late.queue.unacked_count)


def test_it_is_told_again_of_each_delivery():
    """Deliveries of other times are overdue at theirs, and all must be settled."""
    client = Consuming()
    client.publish_all(b"0")
    client.wait(3)
    client.publish_all(b"1")

    assert [CANCEL] == client.wait(5)
    assert [CANCEL] == client.wait(3)
    assert [] == client.deliveries(make(Basic.Ack, 1, False))
    assert [3, 4] == client.deliveries(make(Basic.Ack, 2, False))


def test_it_may_be_late_again(late):
    """Later deliveries have a time of their own."""
    late.send(make(Basic.Ack, 2, True))
    late.sent()
    assert [] == late.wait(5)
    assert [CANCEL] == late.wait(3)
    assert 3 == late.queue.ready_count


def test_the_tag_is_in_use_until_the_client_cancels(late):
    """The consumer is still there: a client that consumes again by that tag has to cancel it first."""
    assert ["1 basic.cancel-ok consumer_tag=c"] == late.ask(make(Basic.Cancel, "c", False))
    assert 0 == len(late.queue.consumers)
    assert [3, 4] == late.deliveries(make(Basic.Consume, 0, "q", "c", False, False, False, False, {}))
    assert [] == late.deliveries(make(Basic.Ack, 2, True))
    assert (1, 2) == (late.queue.ready_count, late.queue.unacked_count)


def test_a_closed_channel_leaves_all_as_it_is(late):
    """The messages are ready once, and the consumer is gone."""
    late.ask(make(Channel.Close, 200, "", 0, 0))
    assert (3, 0, 0) == (late.queue.ready_count, late.queue.unacked_count, len(late.queue.consumers))


CLOSED = (
    '1 channel.close reply_code=406 reply_text="PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. '
    'Timeout value used: -1 ms. This timeout value can be configured, see consumers doc guide to learn more"'
)


def test_a_client_without_the_capability_loses_its_channel():
    """One that does not know `basic.cancel` is told by an error, with the text of 4.3."""
    client = Consuming(capable=False)
    client.publish_all(b"0")
    assert [CLOSED] == client.wait(8)
    assert 1 == client.queue.ready_count


def test_what_was_got_closes_the_channel():
    """A `basic.get` has no consumer that could be cancelled."""
    client = Consuming()
    client.ask(make(Basic.Cancel, "c", False))
    client.publish_all(b"0")
    client.ask(make(Basic.Get, 0, "q", False))
    assert [CLOSED] == client.wait(8)


def test_nothing_times_out_in_a_classic_queue():
    """Only quorum queues have a timeout, whatever the broker's is and what an older declaration said."""
    node = Node(consumer_timeout=5.0, compatibility=Compatibility(consumer_timeout="4.3"))
    client = Client(node)
    stored: Table = {"x-consumer-timeout": ("signedint", 1000)}
    node.vhosts["/"].create_queue(
        "q", durable=True, exclusive_owner=None, auto_delete=False, arguments=stored
    )
    client.consume("q")
    client.publish("q")
    client.sent()
    assert [] == Consuming.wait(client, 100)  # type: ignore[arg-type]


def test_a_timeout_of_0_is_no_time():
    """0 does not mean that there is no timeout, as it does in a classic queue of 3.13."""
    client = Consuming(arguments={"x-consumer-timeout": ("signedint", 0)})
    client.publish_all(b"0")
    assert [CANCEL] == client.wait(2)


def test_a_late_delivery_is_no_failure():
    """It counts for no delivery limit."""
    client = Consuming(arguments={"x-delivery-limit": ("signedint", 0)})
    client.publish_all(b"0")
    for tag in (1, 2):
        assert [CANCEL] == client.wait(8)
        assert [tag + 1] == client.deliveries(make(Basic.Ack, tag, False))


def test_the_next_consumer_becomes_the_single_active_one():
    """The late one waits until its client has settled all, and then takes its turn."""
    client = Consuming(arguments={"x-single-active-consumer": ("bool", True)})
    other = Client(client.node)
    other.ask(make(Basic.Qos, 0, 2, False))
    other.consume("q", "o")
    client.publish_all(b"0", b"1")
    assert [CANCEL] == client.wait(8)
    assert ["o", "o"] == [
        sent.method.consumer_tag for sent in other.take() if hasattr(sent.method, "redelivered")
    ]
    assert "o" == client.queue.consumers.active.tag

    client.wait(8)  # nobody is left
    assert client.queue.consumers.active is None
    assert [3, 4] == client.deliveries(make(Basic.Ack, 2, True))
    assert "c" == client.queue.consumers.active.tag
    other.send(make(Basic.Ack, 2, True))
    assert [] == [sent for sent in other.take() if hasattr(sent.method, "redelivered")]
    client.ask(make(Basic.Cancel, "c", False))
    assert "o" == client.queue.consumers.active.tag
