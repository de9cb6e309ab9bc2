"""Queues are paused and resumed over HTTP, shown as paused, and only with the rights for it."""

import pytest
from doubles.fakes import Client, Node
from services.api import OPERATOR, Api

from leveret.broker.amqp.commands import Basic, make


@pytest.fixture
def node() -> Node:
    """A broker with a queue of two messages, and a user who may read and configure only some queues."""
    node = Node()
    client = Client(node)
    for name in ("q", "readable", "configurable"):
        client.declare(name)
        client.publish(name, b"one")
        client.publish(name, b"two")
    api = Api(node, OPERATOR)
    api.put("users/ann", {"password": "ann", "tags": "management"})
    api.put("permissions/%2F/ann", {"configure": "^(q|c)", "write": "", "read": "^(q|r)"})
    return node


def test_a_queue_is_paused_and_resumed(node):
    """Both are answered with 204, as often as they are asked for, and lists show the state."""
    api, client = Api(node), Client(node, port=50001)
    for _ in range(2):
        assert 204 == api.put("leveret/queues/%2F/q/pause")
    client.consume("q")

    assert "paused" == api.get("queues/%2F/q")["state"]
    assert {"q": "paused", "readable": "running", "configurable": "running"} == {
        each["name"]: each["state"] for each in api.get("queues")
    }
    assert [] == client.take()
    for _ in range(2):
        assert 204 == api.put("leveret/queues/%2F/q/resume")
    assert [b"one", b"two"] == [item.body for item in client.take()]
    assert "running" == api.get("queues/%2F/q")["state"]


def test_an_operator_gets_from_a_paused_queue(node):
    """POST get answers with messages, unlike a client's basic.get."""
    api, client = Api(node), Client(node, port=50001)
    api.put("leveret/queues/%2F/q/pause")

    body = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert ["one", "two"] == [each["payload"] for each in api.post("queues/%2F/q/get", body).body]
    assert ["1 basic.get-empty"] == client.ask(make(Basic.Get, 0, "q", True))


def test_the_explanations_say_it(node):
    """`explain queue` and `explain message` name the pause as the reason why nothing is delivered."""
    api, client = Api(node), Client(node, port=50001)
    client.consume("q", "worker")
    client.declare("late")
    client.consume("late", "worker2")
    api.put("leveret/queues/%2F/late/pause")
    client.publish("late", b"one")

    found = api.get("leveret/explain/queue/%2F/late")
    assert found["paused"] is True
    assert any(line.startswith("warning: paused (1 ready message, 0 unacked): ") for line in found["lines"])
    lines = api.get("leveret/explain/message/%2F/late/1")["lines"]
    assert "the queue is paused: consumers get nothing before it is resumed" in lines
    assert api.get("leveret/explain/queue/%2F/q")["paused"] is False
    found = api.post("leveret/explain/publish/%2F/amq.default", {"routing_key": "late"}).body
    assert "    'late' (1 ready, 1 consumer; paused) by (default)" in found["lines"]


@pytest.mark.parametrize(
    ("queue", "status"), [("q", 204), ("readable", 401), ("configurable", 401), ("none", 404)]
)
def test_a_pause_needs_permissions(node, queue, status):
    """Read and configure are needed, and a queue of that name."""
    for action in ("pause", "resume"):
        assert status == Api(node, "ann:ann").put(f"leveret/queues/%2F/{queue}/{action}")


def test_an_exclusive_queue_is_its_owners(node):
    """The operator may pause the exclusive queue of a client, other users may not."""
    client = Client(node, port=50001)
    client.declare("q-own", exclusive=True)

    assert 400 == Api(node).put("leveret/queues/%2F/q-own/pause")
    assert 204 == Api(node, OPERATOR).put("leveret/queues/%2F/q-own/pause")
