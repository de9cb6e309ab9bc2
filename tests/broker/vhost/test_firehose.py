"""The firehose: what is traced, when it is switched, and what it does to the queues; `conformance` has its headers."""

from typing import Any

import pytest
from doubles.fakes import Client, Node, basic_consume, hurry, publish_frames, queue_declare, work
from hypothesis import given, settings, strategies as st
from services.api import OPERATOR, Api

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.queue.consumer_rotation import ConsumerRotation
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost import firehose
from leveret.broker.vhost.firehose import TracedRotation


def trace(node: Node, *, traced: bool = True) -> None:
    """Switch the firehose as the operator."""
    node.administration.vhosts.trace(None, "/", traced=traced)
    node.run_turn()
    node.clock.run()


@pytest.fixture
def client() -> Client:
    """A client that has declared queues, of which `traces` gets what is traced."""
    client = Client()
    for name in ("q", "traces"):
        client.declare(name)
    client.send(make(Wire.Bind, 0, "traces", "amq.rabbitmq.trace", "#", False, {}))
    client.take()
    return client


def queue_of(client: Client, name: str = "q") -> Queue:
    return client.node.vhosts["/"].queues[name]


def deliveries(client: Client, queue: str) -> list[Any]:
    """Consume from a queue without acks; returns what is delivered at once."""
    client.take()
    client.send(basic_consume(queue, f"c-{queue}"[:250], no_ack=True))
    work(client.node)
    return [item for item in client.take() if isinstance(item.method, Basic.Deliver)]


def value_of(item: Any, name: str) -> Any:
    return Properties(item.header).headers[name][1]  # type: ignore[index]


def traces(client: Client) -> list[tuple[str, bytes]]:
    """Take all traces; returns their routing keys and bodies."""
    work(client.node)
    reader = Client(client.node, port=50099)
    found = []
    while True:
        reader.send(make(Basic.Get, 0, "traces", True))
        (item,) = reader.take()
        if not isinstance(item.method, Basic.GetOk):
            reader.connection.lost()
            return found
        found.append((item.method.routing_key, item.body))


def test_it_is_off_and_is_switched(client):
    """Nothing is traced before it is on and after it is off, on channels that have published before, too."""
    client.consume("q")
    client.publish("q", b"before")
    assert type(queue_of(client).consumers) is ConsumerRotation
    trace(client.node)
    client.publish("q", b"on")
    assert [("publish.", b"on"), ("deliver.q", b"on")] == traces(client)
    trace(client.node)
    client.publish("q", b"still")
    trace(client.node, traced=False)
    client.publish("q", b"off")

    assert [("publish.", b"still"), ("deliver.q", b"still")] == traces(client)
    assert type(queue_of(client).consumers) is ConsumerRotation
    assert [b"before", b"on", b"still", b"off"] == [item.body for item in client.take() if item.body]


def test_a_run_of_equal_publishes_is_traced(client):
    """The repeat prefix and the fast path do not bypass it; publishers in confirm mode get their confirms."""
    client.ask(make(Confirm.Select, False))
    client.receive(publish_frames("q", b"one") * 3)
    client.take()
    trace(client.node)
    client.receive(publish_frames("q", b"two") * 3)

    assert [("publish.", b"two")] * 3 == traces(client)
    assert ["1 basic.ack delivery_tag=6 multiple"] == client.sent()


def test_queues_keep_their_consumers(client):
    """Consumers keep their places, credit and pause as it is switched, and new queues are traced."""
    client.send(make(Basic.Qos, 0, 1, False))
    for tag in "abc":
        client.consume("q", tag)
    client.publish("q", b"1")
    before = [each.tag for each in queue_of(client).consumers.ready]
    trace(client.node)
    client.send(queue_declare("new"))
    assert before == [each.tag for each in queue_of(client).consumers.ready]
    assert isinstance(queue_of(client, "new").consumers, TracedRotation)
    queue_of(client).pause()
    trace(client.node, traced=False)
    client.publish("q", b"2")
    client.send(make(Basic.Ack, 1, False))
    assert queue_of(client).is_paused
    queue_of(client).unpause()
    client.node.run_turn()

    taken = [item for item in client.take() if isinstance(item.method, Basic.Deliver)]
    assert [("a", b"1"), ("b", b"2")] == [(item.method.consumer_tag, item.body) for item in taken]
    assert type(queue_of(client, "new").consumers) is ConsumerRotation


def test_a_stride_names_the_channel_of_each_delivery(client):
    """If several consumers are served at once, each trace has the channel of its own consumer."""
    others = [Client(client.node, port=50001 + number) for number in range(3)]
    for each in others:
        each.consume("q", "c")
    queue_of(client).pause()
    for number in range(7):
        client.publish("q", b"%d" % number)
    trace(client.node)
    queue_of(client).unpause()
    work(client.node)
    shown = {item.body: value_of(item, "connection") for item in deliveries(client, "traces")}
    shown.pop(b"", None)

    for each in others:
        taken = [item for item in each.take() if isinstance(item.method, Basic.Deliver)]
        assert [each.connection.name] * len(taken) == [shown.pop(item.body) for item in taken]
    assert {} == shown


def test_a_queue_gets_the_traces_of_its_own_deliveries(client):
    """A queue that is bound to the trace exchange loses nothing, and the traces in it are not traced again."""
    client.send(make(Wire.Bind, 0, "q", "amq.rabbitmq.trace", "deliver.#", False, {}))
    client.consume("q", no_ack=True)
    trace(client.node)
    client.receive(publish_frames("q", b"x") * 3)
    work(client.node)

    keys = [item.method.routing_key for item in client.take() if isinstance(item.method, Basic.Deliver)]
    assert ["q"] * 3 + ["deliver.q"] * 3 == keys
    assert [("publish.", b"x")] * 3 + [("deliver.q", b"x")] * 3 == sorted(traces(client), reverse=True)


@settings(max_examples=30)
@given(
    looks=st.integers(2, 40), count=st.integers(1, 300), switches=st.lists(st.integers(0, 300), max_size=3)
)
def test_deliveries_wait_while_much_is_to_be_traced(looks, count, switches):
    """With little time for each step, everything is delivered once and in order, and traced while it is on."""
    client = Client()
    for name in ("q", "traces"):
        client.declare(name)
    client.send(make(Wire.Bind, 0, "traces", "amq.rabbitmq.trace", "deliver.#", False, {}))
    client.consume("q", no_ack=True)
    queue_of(client).pause()
    for number in range(count):
        client.publish("q", b"%d" % number)
    client.take()
    hurry(client.node, looks=looks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(firehose, "MOST_WAITING", 5)
        trace(client.node)
        queue_of(client).unpause()
        for wait in switches:
            for _ in range(wait % 7):
                client.node.run_turn()
                client.node.turn.resume_unfinished()
                client.node.clock.run()
            trace(client.node, traced=False)
            trace(client.node)
        work(client.node)
    expected = [b"%d" % number for number in range(count)]

    assert expected == [item.body for item in client.take() if isinstance(item.method, Basic.Deliver)]
    found = traces(client)
    assert len({body for _, body in found}) == len(found)
    if not switches:
        assert [("deliver.q", body) for body in expected] == found


def test_it_takes_no_memory_without_bound(client, monkeypatch):
    """A publisher that is faster than the tracing publishes what waits itself."""
    monkeypatch.setattr(firehose, "MOST_WAITING", 5)
    trace(client.node)
    tracer = client.node.vhosts["/"].taps.firehose
    client.connection.receive(publish_frames("q", b"x") * 50)

    assert len(tracer._waiting) < 5
    assert 50 == len(traces(client))


def test_publishers_leave_time_for_deliveries(client, monkeypatch):
    """However fast publishers are, a queue that was held back delivers again before much more is published."""
    monkeypatch.setattr(firehose, "MOST_WAITING", 10)
    client.consume("q", no_ack=True)
    trace(client.node)
    hurry(client.node, looks=20)
    for _ in range(60):
        client.receive(publish_frames("q", b"x") * 5)
    delivered = queue_of(client).delivered

    assert 200 < delivered <= 300
    work(client.node)
    assert 300 == queue_of(client).delivered


def test_large_numbers_and_odd_names_are_traced(client):
    """Names of 255 bytes, names that are no text, and properties of any value do no harm."""
    name = "é" * 127
    client.declare(name)
    client.consume(name, "c")
    trace(client.node)
    headers: Any = {"odd": ("longstr", "\udcff"), "CC": ("array", [("longstr", "\udcff"), ("signedint", 1)])}
    client.publish(name, b"x", headers=headers, timestamp=(1 << 64) - 1, priority=255)

    (publish, deliver) = traces(client)
    assert ("publish.", b"x") == publish
    assert deliver[0].encode("utf-8", "surrogateescape") == f"deliver.{name}".encode()[:255]


def test_of_very_many_queues_the_first_are_named(client, monkeypatch):
    """A fan-out to any number of queues makes no header without bound."""
    monkeypatch.setattr(firehose, "MOST_NAMES", 2)
    for name in "abc":
        client.declare(name)
        client.send(make(Wire.Bind, 0, name, "amq.fanout", "", False, {}))
    trace(client.node)
    client.publish("", b"x", exchange="amq.fanout")
    (item,) = deliveries(client, "traces")

    assert 2 == len(value_of(item, "routed_queues"))


def test_a_vhost_is_deleted_while_it_is_traced():
    """Deleting a virtual host with a firehose leaves nothing behind that fails."""
    api = Api(Node(), OPERATOR)
    assert 201 == api.put("vhosts/v", {"tracing": True})
    assert api.get("vhosts/v")["tracing"] is True
    api.put("users/guest2", {"password": "guest2", "tags": ""})
    api.put("permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    client = Client(api.node, vhost="v")
    client.declare("q")
    client.consume("q")
    client.connection.receive(publish_frames("q", b"x") * 5)
    assert 204 == api.delete("vhosts/v")
    work(api.node)
    assert "v" not in api.node.vhosts


def test_it_is_switched_over_http():
    """PUT with `tracing` switches it, and without it leaves it; anything but a boolean is refused."""
    api = Api(Node())
    for body, traced in (
        ({"tracing": True}, True),
        ({"description": "d"}, True),
        ({"tracing": False}, False),
    ):
        assert 204 == api.put("vhosts/%2F", body)
        assert traced is api.get("vhosts/%2F")["tracing"]
    assert 400 == api.put("vhosts/%2F", {"tracing": "yes"})
    assert not api.get("vhosts?columns=name,tracing")[0]["tracing"]


def test_publishes_and_gets_over_http_are_traced(client):
    """They have the name of the user, and that of the node instead of a connection's."""
    trace(client.node)
    api = Api(client.node)
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    api.post("exchanges/%2F/amq.default/publish", body)
    api.post("queues/%2F/q/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
    work(client.node)
    shown = [
        (item.method.routing_key, value_of(item, "user"), value_of(item, "connection"))
        for item in deliveries(client, "traces")
    ]

    name = f"<{client.node.node_name}>"
    assert [("publish.", "guest", name), ("deliver.q", "guest", name)] == shown
