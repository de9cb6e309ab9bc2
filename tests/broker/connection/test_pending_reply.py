"""Replies that wait for a commit, and methods that wait for data they need."""

from typing import Any

import pytest
from conformance.wire import Client as RealClient, ClosedError
from doubles.fakes import Client, StoringNode, basic_consume, publish_frames, queue_declare
from processes.running import serving

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Connection as Wire, Exchange, Queue, Tx, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.errors import NotYet
from leveret.broker.methods import HANDLERS
from leveret.storage.queues.backing_queue import Fetched
from leveret.storage.queues.memory_queue import MemoryQueue

FULL = "no disk space left: the change took effect, and will be stored when there is space again"


@pytest.fixture
def node() -> StoringNode:
    return StoringNode()


def frames(*methods: Any, channel: int = 1) -> bytes:
    return b"".join(encode_method(channel, method) for method in methods)


def exchange_declare(name: str, *, passive: bool = False, durable: bool = True) -> Any:
    return make(Exchange.Declare, 0, name, "direct", passive, durable, False, False, False, {})


def bind(queue: str, exchange: str = "amq.direct") -> Any:
    return make(Queue.Bind, 0, queue, exchange, "k", False, {})


def get(queue: str) -> Any:
    return make(Basic.Get, 0, queue, True)


def durable(client: Client, *names: str) -> None:
    for name in names:
        client.send(queue_declare(name, durable=True))
        client.node.commit()
    client.sent()


def test_a_durable_declaration_is_answered_after_its_commit(client, node):
    """The reply to a durable declaration is sent after its commit."""
    assert [] == client.declare("q", durable=True)
    node.commit()

    assert ["1 queue.declare-ok queue=q"] == client.sent()


def test_with_nothing_to_write_nothing_waits(client, node):
    """A redeclaration of a stored object is answered at once, and reading never stops."""
    durable(client, "q")

    assert ["1 queue.declare-ok queue=q"] == client.declare("q", durable=True)
    assert ["1 queue.declare-ok queue=q"] == client.declare("q", passive=True)
    assert client.driver.reading


def test_what_is_not_durable_does_not_wait(client, other, node):
    """Methods on transient and exclusive objects are answered while others wait for the disk."""
    other.declare("q", durable=True)

    assert ["1 queue.declare-ok queue=t"] == client.declare("t")
    assert ["1 queue.declare-ok queue=e"] == client.declare("e", exclusive=True, durable=True)
    assert ["1 exchange.declare-ok"] == client.ask(exchange_declare("x", durable=False))
    assert ["1 queue.bind-ok"] == client.ask(bind("t"))
    assert ["1 queue.purge-ok"] == client.ask(make(Queue.Purge, 0, "t", False))


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        (queue_declare("new", durable=True), "queue.declare-ok queue=new"),
        (queue_declare("q", durable=True), "queue.declare-ok queue=q"),
        (bind("q"), "queue.bind-ok"),
        (make(Queue.Unbind, 0, "q", "amq.direct", "k", {}), "queue.unbind-ok"),
        (make(Queue.Purge, 0, "q", False), "queue.purge-ok"),
        (make(Queue.Delete, 0, "q", False, False, False), "queue.delete-ok"),
        (make(Queue.Delete, 0, "nothing", False, False, False), "queue.delete-ok"),
        (exchange_declare("new"), "exchange.declare-ok"),
        (exchange_declare("x"), "exchange.declare-ok"),
        (make(Exchange.Bind, 0, "x", "amq.direct", "k", False, {}), "exchange.bind-ok"),
        (make(Exchange.Unbind, 0, "x", "amq.direct", "k", False, {}), "exchange.unbind-ok"),
        (make(Exchange.Delete, 0, "x", False, False), "exchange.delete-ok"),
        (make(Exchange.Delete, 0, "nothing", False, False), "exchange.delete-ok"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whoever_speaks_of_durable_things_waits_for_what_is_pending(client, node, method, reply):
    """A reply about durable objects never overtakes a commit, whoever made the change in it."""
    durable(client, "q")
    client.send(exchange_declare("x"))
    node.commit()
    client.sent()
    node.store.busy = True

    assert [] == client.ask(method)
    node.commit()
    assert [f"1 {reply}"] == client.sent()


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        (queue_declare("q", passive=True), "queue.declare-ok queue=q"),
        (exchange_declare("x", passive=True), "exchange.declare-ok"),
        (make(Queue.Unbind, 0, "t", "amq.direct", "k", {}), "queue.unbind-ok"),
        (make(Queue.Delete, 0, "t", False, False, False), "queue.delete-ok"),
        (make(Exchange.Unbind, 0, "y", "amq.direct", "k", False, {}), "exchange.unbind-ok"),
        (make(Exchange.Delete, 0, "y", False, False), "exchange.delete-ok"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_promises_nothing_durable_waits_for_nothing(client, node, method, reply):
    """Passive declarations, and methods that remove an object that is not durable, are answered at once."""
    durable(client, "q")
    client.send(exchange_declare("x"))
    node.commit()
    client.send(queue_declare("t"))
    client.send(exchange_declare("y", durable=False))
    client.sent()
    node.store.busy = True

    assert [f"1 {reply}"] == client.ask(method)


def test_commit_ok_waits(client, node):
    """`tx.commit` is answered after the commit that contains the whole transaction."""
    durable(client, "q")
    client.send(Tx.Select())
    client.publish("q", b"m")
    client.sent()
    node.store.busy = True

    assert [] == client.ask(Tx.Commit())
    assert 1 == node.vhosts["/"].queues["q"].ready_count
    node.commit()
    assert ["1 tx.commit-ok"] == client.sent()


def test_what_comes_behind_is_executed_behind(client, node):
    """Frames of the same read wait for the reply before them, on other channels too, and keep their order."""
    client.ask(Channel.Open(), 2)
    client.receive(
        publish_frames("q", b"lost")
        + frames(queue_declare("q", durable=True))
        + publish_frames("q", b"kept")
        + frames(queue_declare("t"), channel=2)
        + frames(bind("q"), get("q"))
    )

    assert ([], {"q"}) == (client.sent(), set(node.vhosts["/"].queues))
    node.commit()
    assert ["1 queue.declare-ok queue=q", "2 queue.declare-ok queue=t"] == client.sent()
    node.commit()
    bound, got = client.sent()
    assert ("1 queue.bind-ok", "'kept'") == (bound, got[-6:])


def test_without_a_reply_nothing_waits(client, node):
    """With nowait the next frame is executed at once."""
    quiet = make(Queue.Declare, 0, "q", False, True, False, False, True, {})
    client.receive(frames(quiet) + publish_frames("q", b"m") + frames(get("q")))

    assert client.sent()[0].startswith("1 basic.get-ok")
    assert client.driver.reading


def test_nothing_is_read_while_a_reply_waits(client, node):
    """The driver is stopped and resumed; data read before it stopped are kept in order."""
    client.send(queue_declare("q", durable=True))
    late = frames(queue_declare("t"), queue_declare("u"))

    assert not client.driver.reading
    client.receive(late[:9])
    client.receive(late[9:])
    assert [] == client.sent()
    node.commit()
    assert [f"1 queue.declare-ok queue={name}" for name in "qtu"] == client.sent()
    assert client.driver.reading


def test_a_frame_cut_in_two_survives_the_wait(client, node):
    """Half a frame behind the method is kept and completed after the reply."""
    octets = frames(queue_declare("q", durable=True), queue_declare("t"))
    client.receive(octets[:-5])
    node.commit()

    assert ["1 queue.declare-ok queue=q"] == client.sent()
    client.receive(octets[-5:])
    assert ["1 queue.declare-ok queue=t"] == client.sent()


def test_others_go_on_and_so_do_deliveries(client, other, node):
    """A waiting connection still receives messages, and other connections publish and settle."""
    client.declare("t")
    client.send(basic_consume("t", "c", no_ack=True))
    client.sent()
    client.send(queue_declare("q", durable=True))
    other.publish("t", b"meanwhile")

    assert ["'meanwhile'"] == [line[-11:] for line in client.sent()]
    assert other.ask(get("t"))[0].startswith("1 basic.get-empty")
    node.commit()
    assert ["1 queue.declare-ok queue=q"] == client.sent()


def test_many_wait_for_one_commit(node):
    """Connections that declare meanwhile are all answered after the same commit."""
    clients = [Client(node, port=50100 + number) for number in range(16)]
    for number, client in enumerate(clients):
        assert [] == client.declare(f"q{number}", durable=True)
    node.commit()

    assert [[f"1 queue.declare-ok queue=q{number}"] for number in range(16)] == [
        client.sent() for client in clients
    ]


def test_waiting_is_no_silence(node):
    """No heartbeat is missed while nothing is read, and heartbeats are sent."""
    client = Client(node, heartbeat=10)
    client.declare("q", durable=True)
    for _ in range(20):
        node.clock.now += 5
        client.connection.tick(node.now())
    node.finish_turn()

    assert {"0 heartbeat"} == set(client.sent())
    assert client.driver.closed is None
    node.commit()
    client.receive(HEARTBEAT)
    assert ["1 queue.declare-ok queue=q"] == client.sent()


def test_who_is_gone_is_not_answered(client, node):
    """A connection lost while it waits gets no reply; its declarations stay."""
    client.send(queue_declare("q", durable=True))
    client.connection.lost()
    node.commit()

    assert [] == client.sent()
    assert "q" in node.restarted().vhosts["/"].queues


def test_a_waiting_connection_can_be_closed(client, node):
    """Closing does not wait: the kept frames are not executed any more, and close-ok is read."""
    client.receive(frames(queue_declare("q", durable=True), queue_declare("t")))
    client.connection.force_close("enough")
    node.finish_turn()
    node.clock.run()

    assert ["connection.close"] == [line.split()[1] for line in client.sent()]
    assert client.driver.reading
    node.commit()
    assert ([], {"q"}) == (client.sent(), set(node.vhosts["/"].queues))
    client.send(Wire.CloseOk(), 0)
    assert client.driver.closed == 0.0


def test_a_full_disk_closes_the_channel(client, node):
    """A full disk closes the channel with an error; its later frames are ignored, other channels go on."""
    client.ask(Channel.Open(), 2)
    client.receive(
        frames(queue_declare("q", durable=True), queue_declare("t")) + frames(queue_declare("u"), channel=2)
    )
    node.fail()

    assert [
        f'1 channel.close reply_code=506 reply_text="RESOURCE_ERROR - {FULL}" class_id=50 method_id=10',
        "2 queue.declare-ok queue=u",
    ] == client.sent()
    assert client.driver.reading
    client.send(Channel.CloseOk())
    assert client.ask(Channel.Open())[0].startswith("1 channel.open-ok")


def test_what_found_the_disk_full_is_written_later(client, other, node):
    """A declaration that met a full disk is in effect and in the next commit, for which a redeclaration waits."""
    client.send(queue_declare("q", durable=True))
    node.fail()

    assert [] == other.declare("q", durable=True)
    assert {} == node.restarted().vhosts["/"].queues
    node.commit()
    assert ["1 queue.declare-ok queue=q"] == other.sent()
    assert {"q"} == set(node.restarted().vhosts["/"].queues)


# -- methods that cannot be executed yet ------------------------------------------------------------------------------


class Loading:
    """A handler whose method has what it needs when the test says so."""

    def __init__(self) -> None:
        self.calls = 0
        self.waiting: list[Any] = []
        self.there = False

    def __call__(self, channel, method) -> None:
        self.calls += 1
        if not self.there:
            raise NotYet(self.waiting.append)
        channel.send(Basic.GetEmpty())

    def loaded(self, node: StoringNode, *, there: bool = True) -> None:
        self.there = there
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()
        node.run_turn()
        node.clock.run()


@pytest.fixture
def loading(monkeypatch) -> Loading:
    handler = Loading()
    monkeypatch.setitem(HANDLERS, Basic.Get, handler)
    return handler


def test_a_method_is_executed_again_when_it_is_worth_it(client, node, loading):
    """A method that waits is answered once, before later frames, and nothing is read meanwhile."""
    client.receive(frames(get("q"), queue_declare("t")))

    assert (1, [], False) == (loading.calls, client.sent(), client.driver.reading)
    loading.loaded(node)
    assert ["1 basic.get-empty", "1 queue.declare-ok queue=t"] == client.sent()
    assert (2, True) == (loading.calls, client.driver.reading)


def test_a_method_may_have_to_wait_again(client, node, loading):
    """A method that still lacks its data is tried again."""
    client.receive(frames(get("q"), queue_declare("t")))
    loading.loaded(node, there=False)

    assert (2, [], False) == (loading.calls, client.sent(), client.driver.reading)
    loading.loaded(node)
    assert ["1 basic.get-empty", "1 queue.declare-ok queue=t"] == client.sent()
    assert client.driver.reading


def test_who_is_gone_does_not_try_again(client, node, loading):
    """A connection lost while its method waits never executes it."""
    client.send(get("q"))
    client.connection.lost()
    loading.loaded(node)

    assert (1, []) == (loading.calls, client.sent())


def test_a_method_that_waits_and_then_fails_is_reported_as_its_own(client, node, monkeypatch):
    """An error of the second attempt names the method and closes its channel."""
    loading = Loading()
    monkeypatch.setitem(HANDLERS, Queue.Purge, loading)
    client.send(make(Queue.Purge, 0, "nothing", False))
    monkeypatch.undo()
    loading.loaded(node)

    assert "class_id=50 method_id=30" in client.sent()[0]


class Distant(MemoryQueue):
    """A backing queue whose messages have to be read first."""

    loading = True

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        if self.loading:
            return Fetched((), [], redelivered=False)
        return super().fetch(count, ack_required=ack_required)

    def arrive(self) -> None:
        self.loading = False
        self.on_loaded()


@pytest.fixture
def distant(client, node) -> Distant:
    """The backing queue of the queue `q`, which has one message."""
    client.declare("q")
    queue = node.vhosts["/"].queues["q"]
    queue.backing = Distant()
    queue.backing.on_loaded = queue.touch
    client.publish("q", b"far")
    return queue.backing


def test_get_waits_for_a_message_that_is_read_from_disk(client, other, node, distant):
    """A get is answered with the message once it is read from disk; other connections do not wait."""
    client.receive(frames(get("q"), queue_declare("t")))

    assert [] == client.sent()
    assert ["1 queue.declare-ok queue=other"] == other.declare("other")
    distant.arrive()
    node.run_turn()
    node.clock.run()
    got, declared = client.sent()
    assert ("1 basic.get-ok", "'far'", "1 queue.declare-ok queue=t") == (got[:14], got[-5:], declared)


def test_get_of_a_queue_that_goes_meanwhile(client, other, node, distant):
    """A get that waits for a message of a queue that is then deleted fails as it would have after the deletion."""
    client.send(get("q"))
    other.ask(make(Queue.Delete, 0, "q", False, False, False))
    node.clock.run()

    assert "reply_code=404" in client.sent()[0]
    assert client.driver.reading


# -- over sockets -----------------------------------------------------------------------------------------------------


def test_a_pipeline_over_a_socket_survives_a_kill(tmp_path):
    """Durable declarations sent in one write are answered in order, and all of them are there after SIGKILL."""
    names = [f"q{number}" for number in range(40)]
    with serving(tmp_path) as running:
        client = RealClient(running.address, timeout=10.0)
        with client.socket:
            channel = client.login().channel()
            client.raw(frames(*[queue_declare(name, durable=True) for name in names], queue_declare("t")))
            answered = [channel.receive("queue.declare-ok").fields["queue"] for _ in (*names, "t")]
        running.process.kill()
    with serving(tmp_path) as running:
        client = RealClient(running.address, timeout=10.0)
        with client.socket:
            channel = client.login().channel()
            found = [channel.call("queue.declare", queue=name, passive=True) for name in names]
            with pytest.raises(ClosedError, match="no queue 't'"):
                channel.call("queue.declare", queue="t", passive=True)

    assert [*names, "t"] == answered
    assert names == [method.fields["queue"] for method in found]
