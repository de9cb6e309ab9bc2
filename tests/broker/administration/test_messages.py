"""Looking at messages and publishing one as an administrator."""

from typing import Any

import pytest
from doubles.fakes import Client, Node, publish_frames
from services.api import OPERATOR, Api

from leveret.broker.administration import BadRequestError, ForbiddenError, NotFoundError
from leveret.broker.administration.messages import MessageView
from leveret.broker.amqp.commands import Basic, Queue, make
from leveret.broker.auth.users import User
from leveret.broker.management.clients import connection_rows, consumer_rows, queue_row

ANN = User("ann", "", ("management",))


@pytest.fixture
def node() -> Node:
    node = Node()
    node.users.add(ANN)
    node.users.set_permissions("ann", "/", "", "amq.topic", "mine.*")
    return node


def result_of(steps: Any) -> list[MessageView]:
    """Carry out a look that needs no read."""
    while True:
        try:
            assert next(steps) is None
        except StopIteration as stopped:
            return stopped.value


def outcomes(
    node: Node, exchange: str, routing_key: str, actor: User | None = None, **options: Any
) -> list[str]:
    """Publish a message; return what is reported of it."""
    found: list[str] = []
    node.administration.publishing.publish(
        actor, "/", exchange, routing_key, b"body", found.append, **options
    )
    node.run_turn()
    return found


def test_a_look_needs_the_permission_to_read(node):
    """A user sees the messages of queues that the user may read, and gets the error of a client for others."""
    node.administration.topology.declare_queue(None, "/", "mine")
    node.administration.topology.declare_queue(None, "/", "other")
    messages = node.administration.messages

    assert [] == result_of(messages.peek_queue(ANN, "/", "mine"))
    with pytest.raises(
        ForbiddenError, match="read access to queue 'other' in vhost '/' refused for user 'ann'"
    ):
        messages.peek_queue(ANN, "/", "other")
    with pytest.raises(ForbiddenError, match="Not management user"):
        messages.peek_queue(User("eve", ""), "/", "mine")
    with pytest.raises(NotFoundError, match="no queue 'none' in vhost '/'"):
        messages.peek_queue(None, "/", "none")
    with pytest.raises(NotFoundError, match="no exchange 'none' in vhost '/'"):
        messages.peek_delayed(None, "/", "none")
    assert [] == result_of(messages.peek_delayed(None, "/", "amq.topic"))


def test_messages_of_this_turn_are_seen(node):
    """A message that has arrived in this turn and is still in the inbox of its queue is seen."""
    client = Client(node)
    client.send(make(Queue.Declare, 0, "mine", False, False, False, False, False, {}))
    client.connection.receive(publish_frames("mine", b"one"))

    (message,) = result_of(node.administration.messages.peek_queue(None, "/", "mine"))

    assert (b"one", "", "mine", "ready") == (
        message.body,
        message.exchange,
        message.routing_key,
        message.state,
    )


def test_delivery_counts_are_those_that_consumers_get(node):
    """A message that was requeued in a queue with a delivery limit is shown with `x-delivery-count`."""
    node.administration.topology.declare_queue(None, "/", "mine", arguments={"x-delivery-limit": 5})
    assert ["confirmed"] == outcomes(node, "", "mine")
    client = Client(node)
    client.send(make(Basic.Get, 0, "mine", False))
    client.send(make(Basic.Nack, 1, False, True))

    (message,) = result_of(node.administration.messages.peek_queue(None, "/", "mine"))

    assert ({"x-delivery-count": 1}, True) == (message.headers, message.redelivered)


def test_a_publish_reports_its_verdict(node):
    """A publish is confirmed, nacked or unroutable; invalid ones and those without permission are errors."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    node.administration.topology.declare_queue(None, "/", "mine", arguments=full)

    assert ["confirmed"] == outcomes(node, "", "mine", properties={"priority": 3}, headers={"n": 1})
    assert ["nacked"] == outcomes(node, "", "mine")
    assert ["unroutable"] == outcomes(node, "amq.topic", "mine", ANN)
    with pytest.raises(ForbiddenError, match=r"write access to exchange 'amq\.default'"):
        outcomes(node, "", "mine", ANN)
    with pytest.raises(NotFoundError, match="no exchange 'none' in vhost '/'"):
        outcomes(node, "none", "mine")
    with pytest.raises(BadRequestError, match="invalid expiration 'soon'"):
        outcomes(node, "", "mine", properties={"expiration": "soon"})
    with pytest.raises(BadRequestError, match="routing key of 256 bytes"):
        outcomes(node, "", "k" * 256)
    with pytest.raises(BadRequestError, match="invalid properties: no field type for set"):
        outcomes(node, "", "mine", headers={"x": {1}})
    (message,) = result_of(node.administration.messages.peek_queue(None, "/", "mine"))
    assert ({"priority": 3}, {"n": 1}) == (message.properties, message.headers)


def test_one_queue_can_be_listed(node):
    """A single queue and its consumers are listed as among all others."""
    node.administration.topology.declare_queue(None, "/", "mine")
    client = Client(node)
    client.send(make(Basic.Consume, 0, "mine", "worker", False, False, False, False, {}))
    api = Api(node, OPERATOR)

    assert api.get("queues") == [queue_row(node, "/", "mine")]
    assert api.get("consumers") == [
        {key: value for key, value in row.items() if key != "message_stats"}
        for row in consumer_rows(node, "/", "mine")
    ]
    assert api.get("connections") == connection_rows(node, "/")


def test_connections_are_closed_together(node):
    """An administrator closes all connections to a virtual host; other users only their own."""
    Client(node)
    Client(node)

    assert 0 == node.administration.listings.close_connections(ANN, "maintenance")
    assert 2 == node.administration.listings.close_connections(None, "maintenance", "/")
