"""Fan-out to more queues than a step of the loop reaches: recipients, order and confirms."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.fakes import Client, DiskNode, Node, hurry, publish_frames

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue as Wire, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.channel import channel
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost import copies
from leveret.storage.message import Message

QUEUES = 40
FULL: Table = {"x-max-length": ("long", 1), "x-overflow": ("longstr", "reject-publish")}
AWAITED: Table = {"x-confirm-mode": ("longstr", "consumer-ack")}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach four queues at once, and no more than two in a row."""
    monkeypatch.setattr(channel, "AT_ONCE", 4)
    monkeypatch.setattr(copies, "AT_ONCE", 4)
    monkeypatch.setattr(copies, "PIECE", 2)


def bound(
    client: Client, count: int = QUEUES, *, durable: bool = False, arguments: Table | None = None
) -> list[Queue]:
    """Declare queues bound to `amq.fanout`, and return them in the order of their names."""
    for number in range(count):
        client.declare(f"q{number}", durable=durable, arguments=arguments or {})
        if isinstance(client.node, DiskNode):
            client.node.commit()
        client.send(make(Wire.Bind, 0, f"q{number}", "amq.fanout", "", False, {}))
        if isinstance(client.node, DiskNode):
            client.node.commit()
    client.sent()
    return list(client.node.vhosts["/"].queues.values())


def begun(client: Client, octets: bytes, *, looks: int = 5) -> None:
    """Receive one read in a step that ends soon."""
    hurry(client.node, looks=looks)
    client.connection.receive(octets)
    client.node.finish_turn()
    if client.connection.stalled:
        client.driver.pause_reading()
        client.driver.wait()


def steps(node: Node) -> Iterator[None]:
    """Take every further step of the loop, one at a time."""
    while node.clock.soon:
        node.clock.soon.pop(0)()
        yield


def taken(queue: Queue) -> int:
    """Return the number of messages that have reached a queue."""
    return queue.published + len(queue.inbox)


def bodies(queue: Queue) -> list[bytes]:
    found = []
    while (batch := queue.get(no_ack=True)) is not None:
        found += [message.body for message in batch.messages]
    return found


def test_nothing_of_a_connection_overtakes_a_message_on_its_way_to_many_queues():
    """Each queue has the messages of a connection in the order they were sent, on whatever channels."""
    client = Client()
    client.send(Channel.Open(), channel=2)
    queues = bound(client)
    octets = publish_frames(body=b"wide", exchange="amq.fanout")
    octets += publish_frames(f"q{QUEUES - 1}", b"narrow")
    octets += publish_frames(f"q{QUEUES - 1}", b"of another channel", channel=2)
    octets += publish_frames(body=b"", exchange="amq.fanout", channel=2)
    octets += publish_frames(f"q{QUEUES - 1}", b"last")
    begun(client, octets)
    reached = [sum(queue.ready_count for queue in queues)]
    reached += [sum(queue.ready_count for queue in queues) for _ in steps(client.node)]

    assert reached[0] < QUEUES
    assert [[b"wide", b""]] * (QUEUES - 1) == [bodies(queue) for queue in queues[:-1]]
    assert [b"wide", b"narrow", b"of another channel", b"", b"last"] == bodies(queues[-1])


@pytest.mark.parametrize("octets", [b"", b"x"], ids=["empty", "with a body"])
def test_content_that_comes_alone_is_not_overtaken(octets: bytes):
    """Later messages wait for a fan-out also where its header and body come in reads of their own."""
    client = Client()
    queues = bound(client)
    wide = publish_frames(body=octets, exchange="amq.fanout")
    at = len(encode_method(1, make(Basic.Publish, 0, "amq.fanout", "", False, False)))
    client.receive(wide[:at])
    begun(client, wide[at:] + publish_frames(f"q{QUEUES - 1}", b"narrow"))
    list(steps(client.node))

    assert [octets, b"narrow"] == bodies(queues[-1])


@pytest.mark.parametrize(
    "properties", [{}, {"expiration": "60000"}, {"headers": {"CC": ("array", [])}}], ids=str
)
def test_a_message_is_confirmed_when_all_its_queues_have_it(properties: dict[str, object]):
    """A message is confirmed once, when each of its queues has it."""
    client = Client()
    queues = bound(client)
    client.ask(make(Confirm.Select, False))
    begun(client, publish_frames(body=b"x", exchange="amq.fanout", mandatory=True, **properties) * 2)
    seen = [(client.sent(), min(map(taken, queues))) for _ in steps(client.node)]

    answers = [(sent, least) for sent, least in seen if sent]
    assert [(["1 basic.ack delivery_tag=1"], 1), (["1 basic.ack delivery_tag=2"], 2)] == answers
    assert len(seen) > 4


def test_others_publish_meanwhile():
    """A connection that publishes to one of many queues does not wait for another's fan-out to all of them."""
    client = Client()
    queues = bound(client)
    other = Client(client.node, port=50001)
    begun(client, publish_frames(body=b"wide", exchange="amq.fanout"))
    other.connection.receive(publish_frames(f"q{QUEUES - 1}", b"of another"))
    before = taken(queues[-1])
    list(steps(client.node))

    assert 1 == before
    assert {b"of another", b"wide"} == set(bodies(queues[-1]))


@pytest.mark.parametrize("end", ["channel", "connection", "socket", "exchange"])
def test_a_message_reaches_all_its_queues_whatever_ends(end: str):
    """A fan-out that has begun continues when its exchange, channel, connection or socket is closed."""
    client = Client()
    queues = bound(client)
    other = Client(client.node, port=50001)
    close = make(Channel.Close, 200, "", 0, 0)
    begun(
        client,
        publish_frames(body=b"x", exchange="amq.fanout")
        + (encode_method(1, close) if end == "channel" else b""),
    )
    assert sum(map(taken, queues)) < QUEUES
    if end == "connection":
        client.connection.force_close("a test")
    elif end == "socket":
        client.connection.lost()
    elif end == "exchange":
        for queue in queues:
            other.connection.receive(encode_method(1, make(Wire.Unbind, 0, queue.name, "amq.fanout", "", {})))
    list(steps(client.node))

    assert [[b"x"]] * QUEUES == [bodies(queue) for queue in queues]


def test_queues_that_are_deleted_meanwhile_are_left_out():
    """A queue deleted before a message has reached it delays no confirm, and the others get the message."""
    client = Client()
    queues = bound(client)
    client.ask(make(Confirm.Select, False))
    other = Client(client.node, port=50001)
    begun(client, publish_frames(body=b"x", exchange="amq.fanout", delivery_mode=2))
    for number in range(1, QUEUES, 2):
        other.connection.receive(encode_method(1, make(Wire.Delete, 0, f"q{number}", False, False, False)))
    list(steps(client.node))

    assert ["1 basic.ack delivery_tag=1"] == client.sent()
    assert [[b"x"]] * (QUEUES // 2) == [bodies(queue) for queue in queues[::2]]


def test_a_queue_that_refuses_a_message_has_it_nacked():
    """A message that one of many queues refuses is nacked once; the others have it."""
    client = Client()
    client.declare("full", arguments=FULL)
    client.send(make(Wire.Bind, 0, "full", "amq.fanout", "", False, {}))
    client.publish("full", b"first")
    queues = bound(client)
    client.ask(make(Confirm.Select, False))
    begun(client, publish_frames(body=b"x", exchange="amq.fanout"))
    list(steps(client.node))

    assert ["1 basic.nack delivery_tag=1 requeue"] == client.sent()
    assert [[b"first"], *[[b"x"]] * QUEUES] == [bodies(queue) for queue in queues]


def test_consumers_of_all_queues_are_waited_for():
    """A message to many queues that confirm on consumer ack is confirmed when all their consumers have acked."""
    client = Client()
    bound(client, arguments=AWAITED)
    client.declare("other")
    client.send(make(Wire.Bind, 0, "other", "amq.fanout", "", False, {}))
    consumer = Client(client.node, port=50001)
    for number in range(QUEUES):
        consumer.consume(f"q{number}")
    client.ask(make(Confirm.Select, False))
    begun(client, publish_frames(body=b"x", exchange="amq.fanout"))
    list(steps(client.node))
    answers = [client.sent()]
    for tag in range(1, QUEUES + 1):
        consumer.send(make(Basic.Ack, tag, False))
        answers.append(client.sent())

    assert [[]] * QUEUES == answers[:-1]
    assert ["1 basic.ack delivery_tag=1"] == answers[-1]


@pytest.mark.parametrize("is_cut", [False, True], ids=["committed", "cut meanwhile"])
def test_a_transaction_keeps_its_order(is_cut: bool):
    """Publishes of a transaction behind a fan-out do not overtake it, nor does commit-ok."""
    client = Client()
    queues = bound(client)
    client.ask(Tx.Select())
    begun(
        client,
        publish_frames(body=b"wide", exchange="amq.fanout") + publish_frames(f"q{QUEUES - 1}", b"narrow"),
    )
    list(steps(client.node))
    assert 0 == sum(map(taken, queues))
    client.connection.receive(encode_method(1, Tx.Commit()))
    if is_cut:
        client.connection.lost()
    answers = [len(client.sent()) for _ in steps(client.node) if not min(map(taken, queues))]

    assert 0 == sum(answers)
    assert is_cut or ["1 tx.commit-ok"] == client.sent()
    assert [[b"wide"]] * (QUEUES - 1) == [bodies(queue) for queue in queues[:-1]]
    assert [b"wide", b"narrow"] == bodies(queues[-1])


def test_all_queues_have_a_message_on_disk_or_none(tmp_path: Path):
    """A persistent message is committed when all its queues have it, and its body is removed with its last copy."""
    node = DiskNode(tmp_path)
    client = Client(node)
    bound(client, durable=True)
    node.commit()
    client.ask(make(Confirm.Select, False))
    begun(client, publish_frames(body=b"x" * 5000, exchange="amq.fanout", delivery_mode=2))
    split = []
    for _ in steps(node):
        split.append(node.turn.is_split)
        assert [] == client.sent()
    node.commit()
    answers = client.sent()
    client.connection.lost()
    node = node.killed()
    queues = list(node.vhosts["/"].queues.values())

    assert split[0]
    assert not split[-1]
    assert ["1 basic.ack delivery_tag=1"] == answers
    assert [1] * QUEUES == [queue.ready_count for queue in queues]


def test_after_an_internal_error_the_publisher_is_notified(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A message that a bug keeps from one of many queues is nacked, and the connection goes on."""

    def fail(*_: object, **_options: object) -> bool:
        raise RuntimeError("a bug")

    client = Client()
    queues = bound(client)
    client.ask(make(Confirm.Select, False))
    with monkeypatch.context() as context:
        context.setattr(Queue, "put", fail)
        begun(client, publish_frames(body=b"x", exchange="amq.fanout") + publish_frames("q0", b"next"))
        list(steps(client.node))

    assert ["1 basic.ack delivery_tag=2", "1 basic.nack delivery_tag=1 requeue"] == client.sent()
    assert [b"next"] == bodies(queues[0])
    assert "a bug" in caplog.text


def test_an_internal_error_leaves_no_body_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A body that a bug keeps from one of many queues is removed with the last copy of the others."""
    node = DiskNode(tmp_path)
    client = Client(node)
    queues = bound(client, 8, durable=True)
    put = Queue.put

    def fail(queue: Queue, message: Message, **options: bool) -> bool:
        if queue is queues[5]:
            raise RuntimeError("a bug")
        return put(queue, message, **options)

    with monkeypatch.context() as context:
        context.setattr(Queue, "put", fail)
        begun(client, publish_frames(body=b"x" * 5000, exchange="amq.fanout", delivery_mode=2))
        list(steps(node))
    node.commit()
    before = body_rows(node)
    assert [1, 1, 1, 1, 1, 0, 0, 0] == [len(bodies(queue)) for queue in queues]
    node.run_turn()
    node.commit()

    assert (1, 0) == (before, body_rows(node))


def dead_letters(client: Client, bodies: list[bytes], **properties: object) -> bytes:
    """Fill a queue whose dead letters go to all queues of `amq.fanout`; returns what rejects its messages."""
    arguments: Table = {"x-dead-letter-exchange": ("longstr", "amq.fanout")}
    client.declare("source", durable=isinstance(client.node, DiskNode), arguments=arguments)
    for body in bodies:
        client.publish("source", body, **properties)
    client.consume("source")
    if isinstance(client.node, DiskNode):
        client.node.commit()
    client.take()
    return encode_method(1, make(Basic.Nack, len(bodies), True, False))


def test_dead_letters_reach_many_queues_in_their_order():
    """Dead letters to more queues than fit into a step arrive in all of them, in the order of their rejection."""
    client = Client()
    queues = bound(client)
    octets = dead_letters(client, [b"1", b"2", b"3"])
    begun(client, octets + publish_frames(f"q{QUEUES - 1}", b"later"))
    reached = [sum(map(taken, queues))]
    reached += [sum(map(taken, queues)) for _ in steps(client.node)]
    last = bodies(queues[-1])

    assert reached[0] < QUEUES
    assert [[b"1", b"2", b"3"]] * (QUEUES - 1) == [bodies(queue) for queue in queues[:-1]]
    assert [b"1", b"2", b"3"] == [body for body in last if body != b"later"]
    assert 4 == len(last)


def test_dead_letters_to_many_queues_move_in_one_commit(tmp_path: Path):
    """A crash finds a dead letter to many queues in its source, or in all of its targets, never in some of them."""
    node = DiskNode(tmp_path)
    client = Client(node)
    bound(client, durable=True)
    octets = dead_letters(client, [b"x"], delivery_mode=2)
    begun(client, octets)
    split = [node.turn.is_split, *(node.turn.is_split for _ in steps(node))]
    node.commit()
    client.connection.lost()
    queues = node.killed().vhosts["/"].queues

    assert split[0]
    assert not split[-1]
    assert 0 == queues.pop("source").ready_count
    assert [1] * QUEUES == [queue.ready_count for queue in queues.values()]


def test_dead_letters_leave_out_queues_that_are_deleted_meanwhile(tmp_path: Path):
    """A queue deleted before a dead letter has reached it leaves no copy behind, and the others receive it."""
    node = DiskNode(tmp_path)
    client = Client(node)
    queues = bound(client, durable=True)
    octets = dead_letters(client, [b"x" * 5000], delivery_mode=2)
    begun(client, octets)
    for queue in queues[1::2]:
        node.vhosts["/"].delete_queue(queue)
    list(steps(node))
    node.commit()
    before = body_rows(node)
    assert [[b"x" * 5000]] * (QUEUES // 2) == [bodies(queue) for queue in queues[::2]]
    node.run_turn()
    node.commit()

    assert (1, 0) == (before, body_rows(node))


@pytest.mark.parametrize("looks", [5, 1_000_000], ids=["in slices", "at once"])
def test_a_publish_whose_dead_letter_is_refused_late_is_nacked(looks: int):
    """A dead letter that waits behind another to many queues may be refused when its original is settled: a nack."""
    client = Client()
    for number in range(400):  # so many that other deferred queues get a turn before the last of them
        client.declare(f"q{number}")
        client.send(make(Wire.Bind, 0, f"q{number}", "amq.direct", "wide", False, {}))
    client.declare("full", arguments=FULL)
    client.publish("full", b"first")
    client.send(make(Wire.Bind, 0, "full", "amq.direct", "narrow", False, {}))
    arguments = AWAITED | {"x-dead-letter-exchange": ("longstr", "amq.direct"), "x-max-length": ("long", 1)}
    client.declare("source", arguments=arguments)
    for key in ("wide", "narrow", "last"):
        client.send(make(Wire.Bind, 0, "source", "amq.topic", key, False, {}))
    client.ask(make(Confirm.Select, False))
    octets = [publish_frames(key, key.encode(), exchange="amq.topic") for key in ("wide", "narrow", "last")]
    begun(client, b"".join(octets), looks=looks)
    list(steps(client.node))

    answers = client.sent()
    assert "1 basic.nack delivery_tag=2 requeue" in answers
    assert not any("basic.ack" in each for each in answers if "delivery_tag=2" in each)
    assert [b"first"] == bodies(client.node.vhosts["/"].queues["full"])


def test_dead_letters_go_on_after_an_internal_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A bug in one of many queues keeps a dead letter from that queue alone."""
    client = Client()
    queues = bound(client)
    octets = dead_letters(client, [b"1", b"2"])
    put = Queue.put
    failing: Queue | None = queues[20]

    def fail(queue: Queue, message: Message, **options: bool) -> bool:
        nonlocal failing
        if queue is failing:
            failing = None
            raise RuntimeError("a bug")
        return put(queue, message, **options)

    with monkeypatch.context() as context:
        context.setattr(Queue, "put", fail)
        begun(client, octets)
        list(steps(client.node))

    assert "a bug" in caplog.text
    assert [[b"2"] if queue is queues[20] else [b"1", b"2"] for queue in queues] == list(map(bodies, queues))


def test_dead_letters_that_are_refused_and_dead_lettered_again_all_arrive(tmp_path: Path):
    """Dead letters that a full queue refuses, and passes on to its own dead letter exchange, arrive once and in order."""
    node = DiskNode(tmp_path)
    client = Client(node)
    passes_on: Table = {"x-dead-letter-exchange": ("longstr", "")}
    full = {
        **passes_on,
        "x-max-length": ("long", 1),
        "x-overflow": ("longstr", "reject-publish-dlx"),
        "x-dead-letter-routing-key": ("longstr", "last"),
    }
    client.declare("last", durable=True)
    node.commit()
    client.declare("full", arguments=full)
    client.publish("full", b"first")
    client.declare(
        "source", durable=True, arguments={**passes_on, "x-dead-letter-routing-key": ("longstr", "full")}
    )
    node.commit()
    for body in (b"1", b"2", b"3"):
        client.publish("source", body, delivery_mode=2)
    node.commit()
    client.consume("source")
    client.take()
    client.send(make(Basic.Nack, 3, True, False))
    node.clock.run()
    node.commit()
    found = bodies(node.vhosts["/"].queues["last"])
    client.connection.lost()
    queues = node.killed().vhosts["/"].queues

    assert [b"1", b"2", b"3"] == found
    assert [3, 0] == [queues[name].ready_count for name in ("last", "source")]


@pytest.mark.parametrize("way", ["published", "dead-lettered"])
def test_transient_messages_to_many_durable_queues_keep_no_commit_waiting(tmp_path: Path, way: str):
    """Commits go on while a transient message is on its way to durable queues; a persistent one behind it stops them."""
    node = DiskNode(tmp_path)
    client = Client(node)
    queues = bound(client, durable=True)
    if way == "published":
        octets = publish_frames(body=b"1", exchange="amq.fanout")
    else:
        client.declare("source", arguments={"x-dead-letter-exchange": ("longstr", "amq.fanout")})
        client.publish("source", b"1")
        client.publish("source", b"2", delivery_mode=2)
        client.consume("source")
        client.take()
        octets = encode_method(1, make(Basic.Nack, 1, False, False))
    begun(client, octets)
    transient = [(sum(map(taken, queues)), node.turn.is_split)]
    if way == "published":
        transient += [(sum(map(taken, queues)), node.turn.is_split) for _ in steps(node)]
        begun(client, publish_frames(body=b"2", exchange="amq.fanout", delivery_mode=2))
    else:
        client.connection.receive(encode_method(1, make(Basic.Nack, 2, False, False)))
        node.finish_turn()
    persistent = [(sum(map(taken, queues)), node.turn.is_split)]
    persistent += [(sum(map(taken, queues)), node.turn.is_split) for _ in steps(node)]
    node.commit()

    assert any(0 < reached < QUEUES for reached, _ in transient)
    assert not any(is_split for _, is_split in transient)
    assert any(QUEUES < reached < 2 * QUEUES for reached, _ in persistent)
    assert all(is_split for reached, is_split in persistent if QUEUES < reached < 2 * QUEUES)
    assert not node.turn.is_split
    assert [[b"1", b"2"]] * QUEUES == [bodies(queue) for queue in queues]


def test_delayed_messages_reach_many_queues_in_one_commit(tmp_path: Path):
    """Delayed messages that are due reach more queues than fit into a step, in order, and are never in some only."""
    node = DiskNode(tmp_path)
    client = Client(node)
    queues = bound(client, durable=True)
    kind: Table = {"x-delayed-type": ("longstr", "fanout")}
    client.send(make(Exchange.Declare, 0, "d", "x-delayed-message", False, True, False, False, False, kind))
    node.commit()
    for queue in queues:
        client.send(make(Wire.Bind, 0, queue.name, "d", "", False, {}))
        node.commit()
    for body in (b"1", b"2"):
        client.publish("", body, exchange="d", headers={"x-delay": ("signedint", 1000)}, delivery_mode=2)
    node.commit()
    hurry(node, looks=5)
    node.pass_time(1001)
    states = [(sum(map(taken, queues)), node.turn.is_split)]
    states += [(sum(map(taken, queues)), node.turn.is_split) for _ in steps(node)]
    node.commit()
    client.connection.lost()
    after = node.killed()

    assert any(0 < reached < 2 * QUEUES for reached, _ in states)
    assert all(is_split for reached, is_split in states if reached % QUEUES)
    found = list(after.vhosts["/"].queues.values())
    assert [2] * QUEUES == [queue.ready_count for queue in found]
    assert [[b"1", b"2"]] * QUEUES == [bodies(queue) for queue in queues]


def body_rows(node: DiskNode) -> int:
    """Return the number of bodies that are stored apart from their records."""
    return sum(1 for _ in node.disk.environment.rows("bodies"))
