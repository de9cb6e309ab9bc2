"""Connections: methods, errors, closing, timeouts, and the release of resources."""

import random

import pytest
from checks.internals import ready_messages
from doubles.fakes import Client, Node, hurry, publish_frames, set_policy
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Connection as Wire, Tx, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.channel.settings import Compatibility
from leveret.broker.config.config import UserConfig
from leveret.broker.connection.connection import CLOSE_TIMEOUT, FATAL_DELAY, Connection


@pytest.fixture
def client() -> Client:
    """A client with a queue `q`."""
    made = Client()
    made.declare("q")
    return made


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + end


# -- errors -----------------------------------------------------------------------------------------------------------


def test_a_hard_error_closes_the_connection(client):
    """A hard error releases everything at once, executes nothing further, and closes the socket at close-ok."""
    client.consume("q")
    client.publish("q", b"unacked")
    client.sent()
    sent = client.ask(Channel.Open())
    assert [
        (
            "0 connection.close reply_code=504 reply_text=\"CHANNEL_ERROR - second 'channel.open' seen\" "
            "class_id=20 method_id=10"
        )
    ] == sent
    queue = client.node.vhosts["/"].queues["q"]
    assert ("closing", 1, 0) == (client.connection.state, queue.ready_count, queue.consumer_count)
    client.publish("q", b"ignored")
    assert 1 == queue.ready_count
    assert client.driver.closed is None
    client.send(make(Wire.CloseOk), 0)

    assert ("closed", 0.0) == (client.connection.state, client.driver.closed)
    assert [] == client.ask(Channel.Open(), 2)


@pytest.mark.parametrize("fatal", [False, True])
def test_nothing_is_delivered_behind_our_close(client, fatal):
    """Our close follows the last delivery, and awaits close-ok, however many channels there are."""
    for number in range(2, 50):
        client.send(Channel.Open(), number)
        client.consume("q", f"c{number}", number)
    client.sent()
    other = Client(client.node, port=50001)
    hurry(client.node, looks=10)
    client.receive(frame(8, 0, b"", b"x") if fatal else encode_method(1, Channel.Open()))
    assert [] == client.sent()
    other.receive(publish_frames("q", b"late") * 10)
    client.node.clock.run()
    *before, close = client.sent()

    assert close.startswith("0 connection.close")
    assert all(" basic.deliver " in sent for sent in before)
    assert (FATAL_DELAY if fatal else None) == client.driver.closed
    assert 10 == client.node.vhosts["/"].queues["q"].ready_count
    assert client.driver.reading


def test_nothing_is_read_before_close_ok_is_sent(client):
    """A client is not read while its channels are closed: its EOF would close the socket without close-ok."""
    for number in range(2, 200):
        client.send(Channel.Open(), number)
    client.sent()
    hurry(client.node, looks=10)
    client.send(make(Wire.Close, 200, "", 0, 0), 0)

    assert ([], False) == (client.sent(), client.driver.reading)
    client.node.clock.run()
    assert (["0 connection.close-ok"], True) == (client.sent(), client.driver.reading)
    assert {} == client.connection.channels


def test_a_client_that_is_lost_while_it_is_closed_leaves_nothing(client):
    """A socket that is lost while channels are being closed ends the connection, once all of them are closed."""
    for number in range(2, 200):
        client.send(Channel.Open(), number)
    hurry(client.node, looks=10)
    client.send(make(Wire.Close, 200, "", 0, 0), 0)
    client.connection.lost()
    client.node.clock.run()

    clients = client.node.clients
    assert (0, 0) == (len(clients.connections), clients.channel_count)
    assert "lost" == client.connection.state


@pytest.mark.parametrize(
    "octets", [frame(1, 0, b"", b"x"), b"\x01\x00\x00\xff\xff\xff\xff", frame(8, 0, b"")[:-1] + b"x"]
)
def test_garbage_while_closing_ends_it(client, octets):
    """Broken framing after our close ends the connection without another frame."""
    client.ask(Channel.Open())
    client.receive(HEARTBEAT + octets)

    assert ([], "closed", 0.0) == (client.sent(), client.connection.state, client.driver.closed)


def test_close_ok_does_not_come(client):
    """After the time allowed for close-ok the socket is closed."""
    client.ask(Channel.Open())
    now = client.node.clock.now

    assert now + CLOSE_TIMEOUT == client.connection.tick(now + 1)
    assert client.driver.closed is None
    assert client.connection.tick(now + CLOSE_TIMEOUT) is None
    assert 0.0 == client.driver.closed


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (frame(1, 1, bytes(20), b"\x00"), "{invalid_frame_end_marker,0}"),
        (b"\x01\x00\x01\x00\xff\xff\xff", "{frame_too_large,16777215,131064}"),
    ],
)
def test_broken_frames_are_fatal(client, octets, text):
    """A broken frame is answered with its error, nothing more is read, and the socket closes without close-ok."""
    client.sent()
    client.receive(octets + encode_method(2, Channel.Open()))
    (sent,) = client.sent()

    assert "0 connection.close reply_code=501" in sent
    assert text in sent
    assert ("closed", FATAL_DELAY) == (client.connection.state, client.driver.closed)


def test_a_bug_of_ours_is_an_internal_error(client, monkeypatch):
    """An unexpected exception closes the connection with 541 and nothing else, and is logged."""
    monkeypatch.setattr(client.node.vhosts["/"], "queue", lambda *_: 1 // 0)

    assert ["0 connection.close reply_code=541 reply_text=INTERNAL_ERROR"] == client.ask(
        make(Basic.Get, 0, "q", False)
    )[-1:]


# -- ends -------------------------------------------------------------------------------------------------------------


def holding(node: Node) -> Client:
    """A client with an exclusive queue, a consumer, and messages unacked and uncommitted."""
    client = Client(node)
    client.declare("q")
    client.declare("mine", exclusive=True)
    client.declare("gone", auto_delete=True)
    client.consume("q")
    client.consume("gone")
    client.publish("q", b"a")
    client.publish("mine", b"b")
    client.send(Channel.Open(), 2)
    client.send(make(Basic.Get, 0, "mine", False), 2)
    client.sent()
    return client


def assert_released(node: Node, connection: Connection) -> None:
    """A `holding` client leaves nothing but its shared queue with its message."""
    queues = node.vhosts["/"].queues
    assert ["q"] == list(queues)
    assert (1, 0, 0) == (queues["q"].ready_count, queues["q"].unacked_count, queues["q"].consumer_count)
    assert ({}, {}) == (connection.channels, connection.exclusive_queues)


def test_a_client_says_goodbye():
    """`connection.close` releases everything and is answered; the client closes the socket, or we do after a delay."""
    node = Node()
    client = holding(node)

    assert ["0 connection.close-ok"] == client.ask(make(Wire.Close, 200, "bye", 0, 0), 0)
    assert_released(node, client.connection)
    connection, now = client.connection, node.clock.now
    assert ("closed", "bye", None) == (connection.state, connection.close_reason, client.driver.closed)
    client.receive(b"what comes now does not matter")
    assert ([], now + CLOSE_TIMEOUT) == (client.sent(), connection.tick(now + 1))
    assert connection.tick(now + CLOSE_TIMEOUT) is None
    assert 0.0 == client.driver.closed


def test_a_shutdown_does_not_wait_for_those_who_said_goodbye():
    """A connection whose close has been answered is ended at once when the broker stops."""
    client = Client(Node())
    client.ask(make(Wire.Close, 200, "bye", 0, 0), 0)
    client.connection.force_close("shutdown")

    assert ([], 0.0) == (client.sent(), client.driver.closed)


def test_a_lost_connection_releases_everything_once():
    """A lost connection deletes its exclusive queues, requeues, and lowers counters; a second call does nothing."""
    node = Node()
    client = holding(node)
    other = Client(node, port=50001)
    client.receive(publish_frames("q", b"half")[:-5])
    for _ in range(2):
        client.connection.lost()

        assert_released(node, client.connection)
        assert ({other.connection}, 1, 1) == (
            node.clients.connections,
            node.clients.channel_count,
            node.clients.connections_closed,
        )
        assert 1 == node.vhosts["/"].connection_count
        assert {"guest": 1} == dict(node.clients.connections_of_users)
    assert "lost" == client.connection.state
    assert client.connection.tick(1e9) is None
    client.receive(publish_frames("q"))
    assert 1 == node.vhosts["/"].queues["q"].ready_count


def test_totals_outlive_their_channels():
    """Publishes, deliveries and acks of closed channels stay in the server's counters."""
    node = Node()
    client = holding(node)
    client.send(make(Basic.Ack, 1, False))
    client.connection.lost()

    done = node.context.totals.channels
    assert (2, 1, 1, 1) == (done.published, done.delivered_ack, done.got_ack, done.acked)


def test_exclusive_queues_that_went_before_are_forgotten(client):
    """A long connection that uses one auto-delete queue after the other keeps none of them."""
    for number in range(3):
        client.declare(f"mine-{number}", exclusive=True, auto_delete=True)
        client.consume(f"mine-{number}", "c")
        client.send(make(Basic.Cancel, "c", False))
    client.declare("other", exclusive=True, auto_delete=True)
    client.consume("other", "c")
    client.send(make(Channel.Close, 200, "", 0, 0))

    assert {} == client.connection.exclusive_queues
    assert ["q"] == list(client.node.vhosts["/"].queues)


def test_a_shutdown_is_reported():
    """`force_close` releases everything and sends 320, or nothing before the end of the handshake."""
    node = Node()
    client = holding(node)
    newcomer = Client(node, connect=False)
    for each in (client, newcomer):
        each.connection.force_close("maintenance")
    node.finish_turn()

    assert ['0 connection.close reply_code=320 reply_text="CONNECTION_FORCED - maintenance"'] == client.sent()
    assert_released(node, client.connection)
    assert ([], 0.0) == (newcomer.sent(), newcomer.driver.closed)
    client.connection.force_close("again")
    assert [] == client.sent()


# -- time -------------------------------------------------------------------------------------------------------------


def test_heartbeats_keep_a_silent_connection_open():
    """A heartbeat is sent in each half interval, and two intervals without a frame end the connection."""
    client = Client(heartbeat=10)
    connection, now = client.connection, 5000.0
    client.declare("mine", exclusive=True)
    connection.tick(now)
    client.node.finish_turn()
    client.sent()
    for number in range(30):
        now += 5
        if number < 10:
            client.receive(HEARTBEAT)
        again = connection.tick(now)
        client.node.finish_turn()
        if again is None:
            break

        assert (now + 5, ["0 heartbeat"]) == (again, client.sent())

    assert 13 == number
    assert [10, 10] == [connection.heartbeats, client.node.turn.heartbeats]
    assert ("missed heartbeats", 0.0) == (connection.close_reason, client.driver.closed)
    assert {} == client.node.vhosts["/"].queues


@pytest.mark.parametrize(("is_heard", "ticks"), [(False, 8), (True, None)])
def test_silence_is_longer_while_nothing_is_read(is_heard, ticks):
    """A connection that is not read ends after four intervals in which the kernel got nothing from its client."""
    client = Client(heartbeat=10)
    client.driver.heard = is_heard
    connection, now = client.connection, 5000.0
    connection.tick(now)
    client.driver.pause_reading()
    silent = 0
    while silent < 20:
        now += 5
        silent += 1
        if connection.tick(now) is None:
            break

    assert (ticks or 20) == silent


def test_only_reads_of_nothing_else_count_as_heartbeats():
    """A client that sends a heartbeat with each publish, or two at once, is a busy one."""
    client = Client()
    client.declare("q")
    client.receive(publish_frames("q", b"1") + HEARTBEAT)
    client.receive(HEARTBEAT + HEARTBEAT)

    assert 0 == client.node.turn.heartbeats
    client.receive(HEARTBEAT)
    assert 1 == client.node.turn.heartbeats


def test_without_heartbeats_nothing_is_due():
    """A connection that negotiated no heartbeat is never ended for silence."""
    client = Client(heartbeat=0)

    assert client.connection.tick(1e9) is None
    assert "open" == client.connection.state


# -- confirms and alarms ----------------------------------------------------------------------------------------------


def wait(client: Client, seconds: int) -> list[str]:
    """Let time pass and the server check its connections, then return what the client is sent."""
    node = client.node
    for _ in range(seconds):
        node.clock.now += 1
        node.turn.slices.begin()
        node._overdue.run(node.now())
    node.run_turn()
    return client.sent()


def overdue(timeout: int) -> str:
    text = (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: {timeout} ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    return f'1 channel.close reply_code=406 reply_text="{text}"'


CANCEL = "1 basic.cancel consumer_tag=c-q nowait"


def test_a_consumer_is_cancelled_when_acks_do_not_come(caplog):
    """Its channel stays open, the message is ready again, a late ack is taken, and the log says how late it was."""
    client = Client(Node(consumer_timeout=30.0))
    client.declare("q")
    client.consume("q")
    client.publish("q", b"late")
    client.sent()

    assert [] == wait(client, 29)
    assert [CANCEL] == wait(client, 4)
    assert 1 == client.node.vhosts["/"].queues["q"].ready_count
    assert "acknowledgement of delivery tag 1, sent more than 30000 ms ago: sent basic.cancel" in caplog.text
    client.send(make(Basic.Ack, 1, False))
    assert ["1 basic.cancel-ok consumer_tag=c-q"] == [
        each for each in client.ask(make(Basic.Cancel, "c-q", False)) if "deliver" not in each
    ]


@pytest.mark.parametrize(("mode", "capable"), [("closes-channel", True), ("cancels-consumer", False)])
def test_a_channel_is_closed_when_acks_do_not_come(mode, capable):
    """As RabbitMQ 3 does, or for a client that cannot be told; a later ack is ignored."""
    client = Client(
        Node(consumer_timeout=30.0, compatibility=Compatibility(consumer_timeout=mode)),
        capabilities={"consumer_cancel_notify": ("bool", capable)},
    )
    client.declare("q")
    client.consume("q")
    client.publish("q", b"late")
    client.sent()

    assert [] == wait(client, 29)
    assert [overdue(30_000)] == wait(client, 4)
    client.send(make(Basic.Ack, 1, False))
    assert 1 == client.node.vhosts["/"].queues["q"].ready_count
    assert "1 channel.close" not in client.ask(Channel.CloseOk())


@pytest.mark.parametrize(("queue", "consumer"), [(None, 0), (0, None), (5000, 0)])
def test_there_may_be_no_timeout(queue, consumer):
    """A timeout of 0 disables it, as an argument of the queue or of the consumer."""
    client = Client(Node(consumer_timeout=10.0))
    client.declare("q", arguments={} if queue is None else {"x-consumer-timeout": ("signedint", queue)})
    client.consume("q", arguments={} if consumer is None else {"x-consumer-timeout": ("signedint", consumer)})
    client.publish("q")
    client.sent()

    assert [] == wait(client, 100)


def test_a_policy_holds_for_what_was_delivered_before(client):
    """A timeout set by a policy applies to deliveries that wait already, counted from their delivery."""
    client.consume("q")
    client.publish("q")
    client.sent()
    assert [] == wait(client, 20)
    set_policy(client.node.vhosts["/"].policies, "patience", "^q$", {"consumer-timeout": 25_000})

    assert [] == wait(client, 4)
    assert [CANCEL] == wait(client, 4)


def test_a_channel_that_waits_for_the_disk_is_not_closed_meanwhile(client):
    """Nothing times out while a reply of the connection is on its way."""
    client.consume("q", arguments={"x-consumer-timeout": ("signedint", 5000)})
    client.publish("q")
    client.sent()
    client.connection.pending_reply = object()

    assert [] == wait(client, 9)
    client.connection.pending_reply = None
    assert [CANCEL] == wait(client, 9)


def test_confirms_of_a_read_are_put_together(client):
    """All publishes of a read are confirmed in one frame, those of other channels in theirs."""
    client.send(make(Confirm.Select, False))
    client.send(Channel.Open(), 2)
    client.send(make(Confirm.Select, False), 2)
    client.sent()
    client.receive(publish_frames("q") * 5 + publish_frames("q", channel=2))

    assert ["1 basic.ack delivery_tag=5 multiple", "2 basic.ack delivery_tag=1"] == client.sent()


def test_publishers_wait_while_memory_is_short(client):
    """A connection that publishes during an alarm is blocked and not read until it is unblocked; others go on."""
    node = client.node
    other = Client(node, port=50001)
    other.sent()
    node.set_alarm("low on memory")
    client.publish("q")
    node.finish_turn()

    assert ['0 connection.blocked reason="low on memory"'] == client.sent()[-1:]
    assert not client.driver.reading
    assert ["1 queue.declare-ok queue=other"] == other.declare("other")
    assert other.driver.reading
    node.set_alarm("")
    node.finish_turn()
    node.clock.run()
    assert (["0 connection.unblocked"], True) == (client.sent(), client.driver.reading)
    client.connection.unblock()
    assert [] == client.sent()


def test_an_alarm_that_comes_again_blocks_again(client):
    """Publishes kept at the first alarm are blocked by a second one that is raised before they are carried out."""
    node = client.node
    node.set_alarm("low on memory")
    client.receive(publish_frames("q", b"x") * 2)
    node.set_alarm("")
    node.set_alarm("low on disk")
    node.clock.run()

    assert (True, False) == (client.connection.blocked, client.driver.reading)
    node.set_alarm("")
    node.clock.run()
    assert (2, True) == (node.vhosts["/"].queues["q"].ready_count, client.driver.reading)


def test_a_publish_without_the_right_keeps_no_body():
    """The body of a publish that will be refused is not kept, and the refusal comes when it is complete."""
    user = UserConfig("me", "me", (), {"/": ("", "", "")})
    client = Client(Node(users=(user,)), user="me")
    frames = publish_frames("q", bytes(40_000), exchange="amq.direct", frame_max=4096)
    client.receive(frames[:-100])

    assert ([], 0) == (client.sent(), client.connection.unfinished)
    assert not client.connection.channels[1].parts
    client.node.users.set_permissions("me", "/", ".*", ".*", ".*")
    client.receive(frames[-100:])
    text = "ACCESS_REFUSED - write access to exchange 'amq.direct' in vhost '/' refused for user 'me'"
    assert [text] == [each.method.reply_text for each in client.take()]


def test_what_is_not_complete_is_counted(client):
    """Bytes of an incomplete body and of an open transaction are counted until they are carried out."""
    frames = publish_frames("q", bytes(40_000), frame_max=4096)
    client.receive(frames[:-5000])
    assert 32_704 == client.connection.unfinished
    client.receive(frames[-5000:])
    assert 0 == client.connection.unfinished
    client.send(Tx.Select())
    client.publish("q", bytes(1000))
    assert 1000 < client.connection.unfinished < 1100
    client.send(Tx.Commit())
    assert 0 == client.connection.unfinished


def test_who_holds_much_is_closed_while_memory_is_short(client):
    """The largest holders above a megabyte are closed with 506 until enough is released; the others go on."""
    node = client.node
    others = [Client(node, port=50001 + number) for number in range(3)]
    for megabytes, each in enumerate((client, *others)):
        each.receive(publish_frames("q", bytes((megabytes << 20) + 300_000))[:-1000])
        each.sent()
    held = others[2].connection.unfinished
    node.free_memory(held + 1)
    node.finish_turn()

    text = f"RESOURCE_ERROR - low on memory: incomplete publishes of this connection use {held} bytes"
    assert text == others[2].take()[-1].method.reply_text
    assert ["open", "open", "closing", "closing"] == [each.connection.state for each in (client, *others)]
    node.free_memory(1 << 30)
    assert ["open", "closing", "closing", "closing"] == [each.connection.state for each in (client, *others)]


def test_a_blocked_connection_can_be_closed(client):
    """An error of a connection that is not read during an alarm closes it, and reading goes on for its close-ok."""
    client.node.set_alarm("low on memory")
    client.publish("q")
    client.connection.force_close("enough")
    client.node.finish_turn()

    assert client.driver.reading
    assert set() == client.node.blocked
    client.connection.unblock()
    client.node.finish_turn()
    assert "connection.close" in client.sent()[-1]


def test_who_consumes_is_known(client):
    """A connection consumes while it has consumers, or deliveries to settle."""
    assert not client.connection.consumes
    client.consume("q")
    assert client.connection.consumes
    client.publish("q")
    client.send(make(Basic.Cancel, "c-q", False))
    assert client.connection.consumes
    client.send(make(Basic.Ack, 1, False))
    assert not client.connection.consumes


# -- conservation -----------------------------------------------------------------------------------------------------


class Worker(Client):
    """A client that keeps track of its deliveries."""

    def __init__(self, node: Node, number: int) -> None:
        super().__init__(node, port=50000 + number)
        self.held: dict[int, int] = {}
        self.consumers = 0

    def look(self) -> None:
        for item in self.take():
            if item.header:
                self.held[item.method.delivery_tag] = int(item.body)


@settings(max_examples=100)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(10, 120))
def test_no_message_is_lost_or_doubled(seed, steps):
    """A message is acked once or waits in its place, whatever clients do and however they end."""
    chosen = random.Random(seed)
    node = Node()
    publisher = Client(node)
    publisher.declare("q")
    workers: list[Worker] = []
    published = opened = 0
    acked: list[int] = []
    for _ in range(steps):
        kind = chosen.randrange(9)
        worker = chosen.choice(workers) if workers else None
        if kind < 3:
            count = chosen.choice((1, 3, 40))
            publisher.receive(
                b"".join(publish_frames("q", b"%d" % (published + one)) for one in range(count))
            )
            published += count
        elif kind == 3 or worker is None:
            opened += 1
            workers.append(Worker(node, opened))
            workers[-1].send(make(Basic.Qos, 0, chosen.randrange(5), chosen.random() < 0.3))
        elif kind == 4:
            worker.consumers += 1
            worker.send(make(Basic.Consume, 0, "q", f"c{worker.consumers}", False, False, False, False, {}))
        elif kind == 5:
            worker.send(make(Basic.Get, 0, "q", False))
        elif kind == 6 and worker.held:
            tag = chosen.choice(list(worker.held))
            settled = [one for one in worker.held if one <= tag] if chosen.random() < 0.3 else [tag]
            multiple = len(settled) > 1
            if chosen.random() < 0.7:
                worker.send(make(Basic.Ack, tag, multiple))
                acked += [worker.held[one] for one in settled]
            else:
                worker.send(make(Basic.Nack, tag, multiple, True))
            for one in settled:
                del worker.held[one]
        elif kind == 7:
            worker.send(make(Channel.Close, 200, "", 0, 0))
            worker.send(Channel.Open())
            worker.take()
            worker.held.clear()
        elif kind == 8:
            workers.remove(worker)
            worker.connection.lost()
            node.finish_turn()
        for each in workers:
            each.look()
    for each in workers:
        each.connection.lost()
    left = [int(message.body) for message in ready_messages(node.vhosts["/"].queues["q"].backing)]  # type: ignore[attr-defined]

    assert sorted(left) == left
    assert list(range(published)) == sorted(left + acked)
