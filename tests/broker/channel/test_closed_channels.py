"""Nothing is sent on a channel after its `channel.close`, whatever was in progress."""

import pytest
from doubles.fakes import Client, DiskNode, StoringNode, hurry, publish_frames, queue_declare

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, make
from leveret.broker.config.config import UserConfig

PATTERNS = (".*", ".*", ".*")
USERS = (
    UserConfig("guest", "guest", ("administrator",), {"/": PATTERNS}),
    UserConfig("bob", "bob", (), {"/": PATTERNS}),
)
MANY = 10_000


def bob(node) -> Client:
    """A client without `basic.cancel`, whose channel is closed when a consumer loses its permission."""
    return Client(node, user="bob", port=50001, capabilities={})


def take_right(node) -> None:
    """Revoke the read permissions of `bob`."""
    node.administration.users.set_permissions(None, "/", "bob", configure=".*", write=".*", read="")
    node.run_turn()


def is_403(line: str) -> bool:
    return line.startswith("1 channel.close reply_code=403")


@pytest.mark.parametrize("stored", [True, False])
def test_a_reply_held_for_the_disk_is_not_sent_behind_the_close(stored):
    """The `*-ok` of a channel that was closed while it waited for the disk is dropped, and so is its error."""
    node = StoringNode(users=USERS)
    client = bob(node)
    client.declare("q")
    client.consume("q")
    client.sent()
    client.send(queue_declare("durable", durable=True))
    take_right(node)
    (closed,) = client.sent()
    client.send(Channel.CloseOk())  # kept: the connection reads nothing before the disk has answered
    client.send(Channel.Open())
    (node.commit if stored else node.fail)()

    assert is_403(closed)
    assert ["1 channel.open-ok"] == client.sent()
    assert "durable" in node.vhosts["/"].queues


def test_the_replies_of_other_channels_are_sent():
    """A reply held for one channel is sent although another channel is closed meanwhile."""
    node = StoringNode(users=USERS)
    client = bob(node)
    client.declare("q")
    client.consume("q")
    client.send(Channel.Open(), 2)
    client.sent()
    client.send(queue_declare("durable", durable=True), 2)
    take_right(node)
    (closed,) = client.sent()
    node.commit()

    assert is_403(closed)
    assert ["2 queue.declare-ok queue=durable"] == client.sent()


def test_a_channel_that_still_settles_gets_nothing_behind_its_close(tmp_path):
    """Nothing is delivered or confirmed on a closed channel while its settlements are carried out."""
    node = DiskNode(tmp_path, users=USERS)
    client, other = bob(node), Client(node)
    client.declare("stored", durable=True)
    client.declare("q")
    node.commit()
    client.receive(publish_frames("q", b"x") * MANY)
    client.consume("q")
    client.send(Confirm.Select())
    client.publish("stored", b"x", delivery_mode=2)
    node.clock.run()
    client.sent()
    queue = node.vhosts["/"].queues["q"]
    hurry(node, looks=2)
    client.connection.receive(encode_method(1, make(Basic.Ack, 0, True)))
    held = client.connection.pending_reply
    node.administration.users.set_permissions(None, "/", "bob", configure=".*", write=".*", read="")
    while not client.driver.octets:
        node.clock.soon.pop(0)()
    left = queue.backing.unacked_count
    other.publish("q", b"late")
    node.commit()
    node.clock.run()
    (closed,) = client.sent()

    assert held is not None
    assert left > 0
    assert is_403(closed)
    assert (MANY, 1) == (queue.delivered, queue.ready_count)
    assert MANY == queue.acked
