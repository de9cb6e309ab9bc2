"""Reads of many sockets in one round of the event loop, which one run of the turn serves."""

import pytest
from conformance.codec import encode_header, encode_method, frame
from doubles.fakes import Client, Node, ReadTransport, hurry

from leveret.broker.amqp.commands import Basic, Channel, Confirm, make
from leveret.broker.channel.channel import MANY_OPEN
from leveret.broker.network.socket_driver import MANY, SocketDriver
from leveret.broker.scheduling.turn import GATHER_NS, GATHER_OCTETS

SOCKETS = MANY + 2
HEARTBEAT = frame(8, 0, b"")


class Socket:
    """A client with a real driver, which the test gives the octets."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = Client(node)
        self.driver = SocketDriver(node.gate)
        self.driver.connection = self.client.connection
        self.driver._transport = self.transport = ReadTransport()

    def arrive(self, octets: bytes) -> None:
        self.node.gate.read_buffer[: len(octets)] = octets
        self.driver.buffer_updated(len(octets))

    def publish(self, *bodies: bytes, key: str = "q") -> None:
        method = frame(1, 1, encode_method("basic.publish", exchange="", routing_key=key))
        self.arrive(
            b"".join(method + frame(2, 1, encode_header(len(body))) + frame(3, 1, body) for body in bodies)
        )


@pytest.fixture
def node() -> Node:
    made = Node()
    made.gate.read_buffer = memoryview(bytearray(2 * GATHER_OCTETS))
    Client(made).declare("q")
    return made


@pytest.fixture
def sockets(node) -> list[Socket]:
    """As many sockets as are served together, each of which was read before."""
    made = [Socket(node) for _ in range(SOCKETS)]
    for each in made:
        each.arrive(HEARTBEAT)
    node.clock.run()
    return made


def ready(node: Node) -> int:
    """Return the number of messages that the queue has taken in by its runs."""
    return node.vhosts["/"].queues["q"].backing.ready_count


def bodies(client: Client) -> list[bytes]:
    """Return the bodies delivered since the last call, in order."""
    return [sent.body for sent in client.take() if isinstance(sent.method, Basic.Deliver)]


def test_few_sockets_are_served_one_by_one(node):
    """With fewer sockets each read is processed to its end before the next."""
    few = [Socket(node) for _ in range(MANY)]
    for count, each in enumerate([*few, *few], 1):
        each.publish(b"m")
        assert count == ready(node)


def test_a_socket_is_alone_while_no_other_is_read(node, monkeypatch):
    """A client that waits for each of its messages is told from several that do so at the same time."""
    one, other = Socket(node), Socket(node)
    found: list[bool] = []
    monkeypatch.setattr(node.loop, "finish_turn", lambda *, is_alone: found.append(is_alone))
    for each in (one, one, other, one, one):
        each.publish(b"m")

    assert [True, False, False, True] == found[1:]


def test_many_sockets_are_served_together(node, sockets):
    """Messages of many sockets are in their queue at the end of the round, in the order of the reads."""
    consumer = Client(node)
    consumer.consume("q", no_ack=True)
    consumer.take()
    for number, each in enumerate(sockets):
        each.publish(b"%d" % number)
    assert [] == bodies(consumer)
    node.clock.run()

    assert [b"%d" % number for number in range(SOCKETS)] == bodies(consumer)


def test_a_socket_is_read_again_after_its_last_read_was_processed(node, sockets):
    """A second read of a socket in the same round runs the turn for all that were read before."""
    for each in sockets:
        each.publish(b"first")
    assert 0 == ready(node)
    sockets[0].publish(b"second")
    assert SOCKETS <= ready(node)
    node.clock.run()
    assert SOCKETS + 1 == ready(node)


def test_many_octets_are_processed_at_once(node, sockets):
    """Reads that have as many octets as may wait are processed without the end of the round."""
    body = bytes(GATHER_OCTETS // 4)
    for each in sockets[:3]:
        each.publish(body)
    assert 0 == ready(node)
    sockets[3].publish(body)
    assert 4 == ready(node)


def test_long_rounds_are_divided(node, sockets):
    """A read that begins too long after the first runs the turn."""
    sockets[0].publish(b"m")
    assert 0 == ready(node)
    now = node.turn.slices.clock() + GATHER_NS
    node.turn.slices.clock = lambda: now
    sockets[1].publish(b"m")
    assert 2 == ready(node)


def test_replies_come_at_the_end_of_the_round(node, sockets):
    """Confirms of many publishers are written at the end of the round, each publisher's in one frame."""
    for each in sockets:
        each.client.ask(make(Confirm.Select, False))
    for each in sockets:
        each.publish(b"one", b"two")
        assert [] == each.client.sent()
    node.clock.run()
    for each in sockets:
        (ack,) = each.client.take()
        assert (2, True) == (ack.method.delivery_tag, ack.method.multiple)


def acks(client: Client) -> list[int]:
    """Return the delivery tags of acks since the last call."""
    return [sent.method.delivery_tag for sent in client.take() if isinstance(sent.method, Basic.Ack)]


WAIT = 50_000_000
"""Nanoseconds for which confirms wait."""


def publishing(node: Node, publisher: Socket, count: int) -> None:
    """Publish messages of which a consumer acks the second, while confirms wait for others."""
    consumer = Client(node)
    consumer.declare("late", arguments={"x-confirm-mode": ("longstr", "consumer-ack")})
    consumer.consume("late")
    publisher.client.ask(make(Confirm.Select, False))
    node.turn.confirm_wait = WAIT
    publisher.publish(*[b"m"] * count, key="late")
    node.clock.run()
    assert count == len(bodies(consumer))
    assert [] == acks(publisher.client)
    consumer.send(make(Basic.Ack, 2, False))
    node.clock.run()


@pytest.fixture
def publisher(node, sockets) -> Socket:
    """A publisher with a confirm that waits for others."""
    publishing(node, sockets[0], MANY_OPEN + 1)
    return sockets[0]


def test_a_confirm_of_a_publisher_that_awaits_many_waits_for_others(node, publisher):
    """It is sent after the wait, which its latency contains."""
    latency = node.context.latencies.confirm["consumer-ack"]
    assert [] == acks(publisher.client)
    assert not latency.take().count
    (due,) = [callback for at, callback in node.clock.later if at == node.clock.now + WAIT / 1e9]
    node.clock.now += WAIT / 1e9
    due()
    node.clock.run()
    assert [2] == acks(publisher.client)


def test_a_publisher_that_awaits_few_is_told_at_once(node, sockets):
    """A confirm of a publisher with few open ones does not wait."""
    publishing(node, sockets[0], MANY_OPEN)
    assert [2] == acks(sockets[0].client)


def test_a_wait_ends_with_the_first_turn_after_its_time(node, publisher):
    """Confirms are sent by the turn that finds that they have waited, without the timer."""
    node.turn.confirm_wait = 0
    node.turn.slices.clock = lambda: WAIT
    node.turn.confirm_wait = WAIT
    node.turn.channels += node.turn.withheld
    node.run_turn()
    assert [2] == acks(publisher.client)


def test_a_publisher_that_closes_its_channel_gets_its_confirms_before(node, publisher):
    """A confirm that is withheld is sent before the answer to `channel.close`, not lost."""
    publisher.client.send(make(Channel.Close, 200, "", 0, 0))
    assert ["Basic.Ack", "Channel.CloseOk"] == [
        type(sent.method).__qualname__ for sent in publisher.client.take()
    ]


def test_a_broker_that_stops_sends_the_confirms_before(node, publisher):
    """A confirm that is withheld is sent before `connection.close`, too."""
    publisher.client.connection.force_close("shutdown")
    node.finish_turn()
    assert ["Basic.Ack", "Connection.Close"] == [
        type(sent.method).__qualname__ for sent in publisher.client.take()
    ]


def test_the_last_octets_of_a_client_that_leaves_take_effect(node, sockets):
    """A client that has gone before the end of the round has published what it sent."""
    leaving = sockets[3]
    leaving.publish(b"last")
    leaving.driver._end_connection()
    assert 1 == ready(node)


def test_octets_that_arrive_while_queues_are_deferred_are_kept(node, sockets):
    """Octets read after the time of a step was over are processed later, behind those read before, and not lost."""
    for number in range(40):
        Client(node).declare(f"q{number}")
    hurry(node, looks=4)
    first = sockets[0]
    for number in range(40):
        first.publish(b"m", key=f"q{number}")
    first.publish(b"m")
    node.clock.run()
    for _ in range(200):
        node.run_turn()
        node.clock.run()
        later, node.clock.later = node.clock.later, []
        for _, callback in later:
            callback()
    assert 1 == ready(node)
    assert [1] * 40 == [node.vhosts["/"].queues[f"q{number}"].ready_count for number in range(40)]
    assert first.transport.is_read
