"""Work that is done in pieces, and what comes between the pieces."""

from types import SimpleNamespace

from fakes import Client, basic_consume, hurry, publish_frames

from broker.amqp.codec import encode_method
from broker.amqp.commands import Basic, Channel, make
from broker.transport import SocketDriver

MANY = 4000


def test_an_ack_counts_although_the_connection_is_closed_meanwhile():
    """Deliveries that a client has acknowledged do not come back when its connection is closed before all are settled."""
    client = Client()
    client.declare("q")
    client.receive(publish_frames("q", b"x") * MANY)
    client.send(basic_consume("q", "c"))
    queue = client.node.vhosts["/"].queues["q"]
    unacked = queue.backing.unacked_count
    hurry(client.node, looks=2)
    client.connection.receive(encode_method(1, make(Basic.Ack, 0, True)))
    held = client.connection.held
    client.connection.force_close("stop")
    client.node.clock.run()
    client.node.run_turn()

    assert MANY == unacked
    assert held is not None
    assert (0, MANY) == (queue.ready_count, queue.acked)


def test_auto_delete_queues_are_gone_before_close_ok():
    """Nobody finds an auto-delete queue whose last consumer left with a channel that is closed."""
    client = Client()
    client.send(Channel.Open(), 2)
    for number in range(200):
        client.declare(f"q{number}", auto_delete=True)
        client.send(basic_consume(f"q{number}", f"c{number}"))
    client.sent()
    hurry(client.node, looks=5)
    client.connection.receive(encode_method(1, make(Channel.Close, 200, "", 0, 0)))
    client.node.finish_turn()
    left = []
    while client.node.clock.soon:
        client.node.clock.soon.pop(0)()
        left.append((len(client.node.vhosts["/"].queues), "1 channel.close-ok" in client.sent()))

    assert [0] == [queues for queues, is_closed in left if is_closed]
    assert len(left) > 3


def test_each_call_that_waits_for_a_full_socket_is_made_up_for():
    """Two pauses that end while the socket is full both end when it has drained."""
    turn = Client().node.turn
    received = []
    outbox = SimpleNamespace(transport_full=True, full=True, drained=lambda: None)
    server = SimpleNamespace(
        turn=turn, read_buffer=memoryview(bytearray(10)), finish_turn=lambda: None, run_turn=lambda: None
    )
    driver = SocketDriver(server)
    driver.connection = SimpleNamespace(
        outbox=outbox, receive=received.append, stalled=False, name="c", published=False
    )
    driver._transport = SimpleNamespace(
        is_closing=lambda: False, pause_reading=lambda: None, resume_reading=lambda: None
    )
    driver.pause_reading()
    driver.pause_reading()
    driver._go_on()
    driver._go_on()
    driver.resume_writing()

    assert [b"", b""] == received
    assert driver.reading
