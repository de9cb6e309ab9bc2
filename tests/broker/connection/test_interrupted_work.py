"""Work done in slices, and events between the slices."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, basic_consume, hurry, publish_frames, queue_declare

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Connection, Exchange, Queue, make
from leveret.broker.channel.channel import Channel as OpenChannel
from leveret.broker.channel.settlement import Settlements
from leveret.broker.errors import AMQPError, ReplyCode
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.server import server

MANY = 4000


def test_an_ack_counts_although_the_connection_is_closed_meanwhile():
    """Acknowledged deliveries are not requeued when their connection is closed before all are settled."""
    client = Client()
    client.declare("q")
    client.receive(publish_frames("q", b"x") * MANY)
    client.send(basic_consume("q", "c"))
    queue = client.node.vhosts["/"].queues["q"]
    unacked = queue.backing.unacked_count
    hurry(client.node, looks=2)
    client.connection.receive(encode_method(1, make(Basic.Ack, 0, True)))
    held = client.connection.pending_reply
    client.connection.force_close("stop")
    client.node.clock.run()
    client.node.run_turn()

    assert MANY == unacked
    assert held is not None
    assert (0, MANY) == (queue.ready_count, queue.acked)


def test_auto_delete_queues_are_gone_before_close_ok():
    """An auto-delete queue whose last consumer leaves with a closed channel cannot be found any more."""
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
    node = Client().node
    received = []
    outbox = SimpleNamespace(transport_full=True, full=True, drained=lambda: None)
    loop = SimpleNamespace(
        turn=node.turn,
        context=node.context,
        finish_turn=lambda: None,
        run_turn=lambda: None,
        run_step=lambda _kind, work, _whom: work(),
    )
    gate = SimpleNamespace(
        loop=loop, node=SimpleNamespace(loop=loop), read_buffer=memoryview(bytearray(10)), linger=None
    )
    driver = SocketDriver(gate)
    driver.connection = SimpleNamespace(
        outbox=outbox, receive=received.append, stalled=False, name="c", published=False
    )
    driver._transport = SimpleNamespace(
        is_closing=lambda: False, pause_reading=lambda: None, resume_reading=lambda: None
    )
    driver.pause_reading()
    driver.pause_reading()
    driver._process_buffered()
    driver._process_buffered()
    driver.resume_writing()

    assert [b"", b""] == received
    assert driver.reading


def recovering(monkeypatch, pieces: int, error: Exception) -> Client:
    """A client with unacked deliveries, whose next `basic.recover` fails after so many slices."""

    def failing(_self, _channel, _outcome=None, **_):
        for _ in range(pieces):
            yield
        monkeypatch.undo()
        raise error

    client = Client()
    client.declare("q")
    client.publish("q", b"x")
    client.consume("q")
    client.sent()
    hurry(client.node, looks=2)
    monkeypatch.setattr(Settlements, "requeue_all", failing)
    return client


@pytest.mark.parametrize("pieces", [0, 10], ids=["in its first step", "in a later step"])
def test_a_bug_in_a_method_ends_its_connection(monkeypatch, caplog, pieces):
    """An exception in any step of a method is logged and answered with 541, and no state of the method is kept."""
    client = recovering(monkeypatch, pieces, ValueError("a bug"))
    client.connection.receive(encode_method(1, make(Basic.Recover, True)))
    was_held = client.connection.pending_reply is not None
    client.node.clock.run()
    client.node.run_turn()
    client.node.clock.run()

    assert was_held == (pieces > 0)
    assert "0 connection.close reply_code=541 reply_text=INTERNAL_ERROR" in client.sent()[-1]
    assert f"internal error on connection {client.connection.name}" in caplog.text
    assert client.connection.pending_reply is None
    assert client.driver.reading
    assert (1, 0) == counted(client)
    client.send(Connection.CloseOk(), 0)
    assert client.driver.closed is not None


@pytest.mark.parametrize("pieces", [0, 10], ids=["in its first step", "in a later step"])
def test_what_a_method_refuses_late_closes_its_channel(monkeypatch, pieces):
    """An error for the client closes the channel with its code, in whichever step of the method it is raised."""
    client = recovering(monkeypatch, pieces, AMQPError(ReplyCode.PRECONDITION_FAILED, "no"))
    client.connection.receive(encode_method(1, make(Basic.Recover, True)))
    client.node.clock.run()
    client.node.run_turn()
    client.node.clock.run()

    (close,) = client.sent()
    assert close.startswith("1 channel.close reply_code=406")
    assert "class_id=60 method_id=110" in close
    assert client.connection.pending_reply is None
    assert (1, 0) == counted(client)


def counted(client: Client) -> tuple[int, int]:
    """Return the ready and unacked counts of the queue `q`."""
    queue = client.node.vhosts["/"].queues["q"]
    return queue.ready_count, queue.backing.unacked_count


@pytest.mark.parametrize("looks", [2, 1000], ids=["in many steps", "in one step"])
def test_a_bug_in_the_end_of_a_channel_keeps_nothing_else(monkeypatch, caplog, looks):
    """A connection closes and requeues what its other channels and queues hold, though one channel fails."""
    closing = OpenChannel.closing

    def failing(self):
        yield
        if self.number == 1:
            raise ValueError("a bug")
        yield from closing(self)

    client = Client()
    client.send(Channel.Open(), 2)
    client.declare("q")
    client.send(queue_declare("exclusive", exclusive=True))
    client.publish("q", b"x")
    client.consume("q", channel=2)
    client.sent()
    hurry(client.node, looks=looks)
    monkeypatch.setattr(OpenChannel, "closing", failing)
    client.connection.receive(encode_method(0, make(Connection.Close, 200, "", 0, 0)))
    client.node.clock.run()
    client.node.run_turn()
    client.node.clock.run()

    assert ["0 connection.close-ok"] == client.sent()
    assert "internal error on connection" in caplog.text
    assert (1, 0) == counted(client)
    assert ["q"] == list(client.node.vhosts["/"].queues)
    client.connection.lost()
    client.node.clock.run()
    assert [] == list(client.node.clients.connections)


def test_a_bug_in_the_end_of_a_refused_channel_spares_the_connection(monkeypatch, caplog):
    """A channel closed by the broker is closed for the client though not all of it can be requeued."""

    def failing(self):
        raise ValueError("a bug")
        yield

    client = Client()
    monkeypatch.setattr(OpenChannel, "closing", failing)
    client.send(queue_declare("missing", passive=True))
    client.send(Channel.CloseOk())
    client.send(Channel.Open())

    (closed, opened) = client.sent()
    assert closed.startswith("1 channel.close reply_code=404")
    assert "1 channel.open-ok" == opened
    assert "internal error on connection" in caplog.text


@pytest.mark.parametrize(
    "method",
    [
        make(Queue.Bind, 0, "q", "amq.direct", "key", True, {}),
        make(Queue.Declare, 0, "other", False, True, False, False, True, {}),
        make(Queue.Delete, 0, "q", False, False, True),
        make(Exchange.Declare, 0, "e", "direct", False, True, False, False, True, {}),
    ],
    ids=lambda method: method.name,
)
def test_a_connection_that_declares_waits_for_the_disk(tmp_path: Path, method: Any):
    """Declarations and deletions that a client sends without waiting for replies wait for a disk that has a backlog."""
    node = DiskNode(tmp_path)
    client = Client(node)
    for queue in ("q", "r"):
        client.declare(queue, durable=True)
        node.commit()
    router, connection = node.vhosts["/"].router, client.connection
    is_behind = True
    node.turn.is_backlogged = lambda: is_behind
    connection.receive(
        encode_method(1, method) + encode_method(1, make(Queue.Bind, 0, "r", "amq.direct", "next", True, {}))
    )
    states = [(connection.stalled, connection.has_declared, router.exchanges["amq.direct"].binding_count)]
    is_behind = False
    connection.receive(b"")
    states.append((connection.stalled, False, router.exchanges["amq.direct"].binding_count))

    assert [(True, True), (False, False)] == [state[:2] for state in states]
    assert 1 == states[1][2] - states[0][2]


def test_changes_that_wait_for_a_full_disk_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With many changes that wait for a full disk, further ones close their channel with 506 and have no effect."""
    monkeypatch.setattr(server, "MOST_ROWS", 4)
    node = DiskNode(tmp_path)
    client = Client(node)
    names = [f"q{number}" for number in range(6)]
    for name in names[:4]:
        client.send(make(Queue.Declare, 0, name, False, True, False, False, True, {}))
    node.fail()
    client.sent()
    client.send(make(Queue.Declare, 0, names[4], False, True, False, False, True, {}))
    refused = client.sent()
    client.send(Channel.CloseOk())
    client.send(Channel.Open())
    node.commit()
    client.send(make(Queue.Declare, 0, names[5], False, True, False, False, True, {}))
    node.commit()

    assert [*names[:4], names[5]] == list(node.vhosts["/"].queues)
    assert ["1 channel.close"] == [sent[:15] for sent in refused]
    assert "506" in refused[0]
    assert "RESOURCE_ERROR - no disk space left" in refused[0]
