"""Figures of a queue that need a look at its messages: how many are persistent, and the timestamp of the next."""

from pathlib import Path

import pytest
from api import Api
from fakes import Client, DiskNode, Node

from leveret.broker.amqp.commands import Basic, make

PRIORITY = {"x-max-priority": ("long", 5)}


@pytest.fixture
def node(tmp_path: Path):
    """A broker with a data directory."""
    made = DiskNode(tmp_path)
    yield made
    made.disk.close()


def figures(node: Node, name: str) -> tuple[int, int, int, int]:
    """Return messages and bytes of a queue, and those that are persistent."""
    found = Api(node).get(f"queues/%2F/{name}")
    keys = "messages", "messages_persistent", "message_bytes", "message_bytes_persistent"
    count, persistent, octets, persistent_octets = (found[key] for key in keys)
    return count, persistent, octets, persistent_octets


@pytest.mark.parametrize("arguments", [{}, PRIORITY], ids=["classic", "priority"])
def test_persistent_messages_are_counted(node, arguments):
    """Ready and unacked ones, in memory, on disk only, and after a restart; transient ones are not."""
    client = Client(node)
    client.declare("q", durable=True, arguments=arguments)
    node.commit()
    for number in range(10):
        client.publish("q", b"x" * 100, delivery_mode=2 if number % 2 else 1)
    before = figures(node, "q")
    client.consume("q")
    node.run_turn()
    unacked = figures(node, "q")
    client.connection.lost()
    node.commit()
    after = figures(node, "q")

    assert (10, 5) == before[:2] == unacked[:2] == after[:2]
    assert before[2] // 2 == before[3] > 0


def test_persistent_messages_survive(node):
    """After a restart only they are there, on disk, and all of their bytes are persistent."""
    client = Client(node)
    client.declare("q", durable=True)
    node.commit()
    for number in range(200):
        client.publish("q", b"x" * 100, delivery_mode=2 if number % 4 else 1)
    node.commit()
    count = figures(node, "q")[:2]
    again = node.killed()
    survived = figures(again, "q")
    again.disk.close()

    assert (200, 150) == count
    assert (150, 150) == survived[:2]
    assert survived[2] == survived[3]


def test_queues_that_end_with_the_broker_have_none(node):
    """Neither a transient queue nor a queue without messages."""
    client = Client(node)
    client.declare("transient")
    client.declare("empty", durable=True)
    node.commit()
    client.publish("transient", b"x", delivery_mode=2)

    assert (1, 0, 0) == (*figures(node, "transient")[:2], figures(node, "transient")[3])
    assert (0, 0, 0, 0) == figures(node, "empty")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("arguments", [{}, PRIORITY], ids=["classic", "priority"])
def test_the_timestamp_of_the_next_message(node, durable, arguments):
    """It is that of the message which is delivered next; null without a timestamp or a message."""
    client = Client(node)
    client.declare("q", durable=durable, arguments=arguments)
    node.commit()

    def shown() -> object:
        return Api(node).get("queues/%2F/q?columns=head_message_timestamp")["head_message_timestamp"]

    found = [shown()]
    for timestamp in (1_700_000_001, None, 1_700_000_003):
        more = {} if timestamp is None else {"timestamp": timestamp}
        client.publish("q", b"x", delivery_mode=2, **more)
    for _ in range(3):
        found.append(shown())
        client.send(make(Basic.Get, 0, "q", False))
        node.run_turn()
    found.append(shown())

    assert [None, 1_700_000_001, None, 1_700_000_003, None] == found
    client.connection.lost()
    node.run_turn()
    assert 1_700_000_001 == shown()
