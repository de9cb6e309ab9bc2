"""SEC-17, second part: a right that is taken away counts at once, for what is open as well (docs/security.md)."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from doubles.fakes import Client, Node, basic_consume, hurry

from leveret.broker.administration.users import UserAdministration
from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Confirm, Connection as Wire, Queue, Tx, make
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import build
from leveret.broker.config.config import UserConfig

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
PATTERNS = (".*", ".*", ".*")


@pytest.fixture
def node() -> Node:
    """A broker with the users `guest` and `bob`, who may do everything in the vhosts `/` and `v`."""
    rights = {"/": PATTERNS, "v": PATTERNS}
    return Node(
        vhosts=("/", "v"),
        users=(
            UserConfig("guest", "guest", ("administrator",), rights),
            UserConfig("bob", "bob", (), rights),
        ),
    )


@pytest.fixture
def users(node) -> UserAdministration:
    return node.administration.users


def bob(node: Node, port: int = 50001, **options: Any) -> Client:
    """A connection of `bob`."""
    return Client(node, user="bob", port=port, **options)


def refused(node: Node, port: int) -> None:
    """Fail if `bob` can open one more connection."""
    with pytest.raises(AssertionError):  # the client's, who misses open-ok
        bob(node, port)


def unasked(node: Node, client: Client) -> list[str]:
    """Return the methods sent to the client without a request of its own."""
    node.run_turn()
    return client.sent()


# -- consumers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda users: users.set_permissions(None, "/", "bob", **{**ALL, "read": ""}),
        lambda users: users.set_permissions(None, "/", "bob", **{**ALL, "read": "^other"}),
        lambda users: users._broker.administration.definitions.import_file(
            None,
            msgspec.json.encode({"permissions": [{"user": "bob", "vhost": "/", **ALL, "read": "^other"}]}),
        ),
    ],
    ids=["to nothing", "to other names", "by an import"],
)
def test_sec_17_consumers_go_with_the_right_to_read(node, users, change: Callable[[Any], None]):
    """Consumers of queues that may not be read any more are cancelled, and get nothing more; others stay."""
    Client(node).declare("q")
    Client(node, port=50002).declare("other")
    client = bob(node)
    client.consume("q")
    client.consume("other")
    client.publish("q", b"held")
    client.sent()
    change(users)
    kept = next(users.permissions(None, user="bob"))["read"]

    expected = ["1 basic.cancel consumer_tag=c-q nowait"]
    expected += [] if kept == "^other" else ["1 basic.cancel consumer_tag=c-other nowait"]
    assert expected == unasked(node, client)
    queues = node.vhosts["/"].queues
    assert (0, int(kept == "^other")) == (queues["q"].consumer_count, queues["other"].consumer_count)
    Client(node, port=50003).publish("q", b"secret")
    assert ([], 1) == (client.sent(), queues["q"].ready_count)
    assert [] == client.ask(make(Basic.Ack, 1, False))  # what was delivered before is still its own
    assert 0 == len(client.connection.channels[1].unacked)
    assert "ACCESS_REFUSED - read access to queue 'q'" in client.consume("q")[-1]


def test_sec_17_a_client_that_knows_no_cancel_loses_its_channel(node, users):
    """A client that has not announced `basic.cancel` has its channel closed with 403."""
    client = bob(node, capabilities={})
    client.declare("q")
    client.consume("q", tag="one")
    client.consume("q", tag="two")
    users.set_permissions(None, "/", "bob", **{**ALL, "read": ""})

    (sent,) = unasked(node, client)
    assert sent.startswith(
        "1 channel.close reply_code=403 reply_text=\"ACCESS_REFUSED - read access to queue 'q' in"
    )
    assert 0 == node.vhosts["/"].queues["q"].consumer_count


def test_sec_17_an_auto_delete_queue_goes_with_its_last_consumer(node, users):
    """Cancelling for want of a right does what any cancel does: an auto-delete queue goes, the next of one is served."""
    client, other = bob(node), Client(node, port=50002)
    client.declare("auto", auto_delete=True)
    client.consume("auto")
    client.declare("single", arguments={"x-single-active-consumer": ("bool", True)})
    client.consume("single")
    other.consume("single")
    users.set_permissions(None, "/", "bob", **{**ALL, "read": ""})
    client.publish("single", b"x")

    assert {"single"} == set(node.vhosts["/"].queues)
    assert any("basic.deliver consumer_tag=c-single" in line for line in other.sent())
    assert [
        "1 basic.cancel consumer_tag=c-auto nowait",
        "1 basic.cancel consumer_tag=c-single nowait",
    ] == unasked(node, client)


def test_sec_17_replies_need_no_right(node, users):
    """A consumer of direct replies stays, as no other client can name its queue."""
    client = bob(node)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    users.set_permissions(None, "/", "bob", configure="", write="", read="")

    assert [] == unasked(node, client)
    assert client.connection.channels[1].reply_consumer is not None


def test_sec_17_another_right_is_no_reason(node, users):
    """Consumers stay where the patterns change and the queue may be read, and those of other users and vhosts stay."""
    client = bob(node)
    client.declare("q")
    client.consume("q")
    guest = Client(node, port=50002)
    guest.consume("q", tag="guest")
    elsewhere = bob(node, 50003, vhost="v")
    elsewhere.declare("q")
    elsewhere.consume("q")
    users.set_permissions(None, "/", "bob", configure="", write="", read="^q$")
    users.set_permissions(None, "/", "guest", configure=".*", write=".*", read="q")

    assert ([], [], []) == tuple(unasked(node, each) for each in (client, guest, elsewhere))
    assert 2 == node.vhosts["/"].queues["q"].consumer_count


# -- publishers -------------------------------------------------------------------------------------------------------


def test_sec_17_the_next_publish_is_refused(node, users):
    """A publisher that was allowed a moment ago, and whose route is known, gets 403 for its next publish."""
    client = bob(node)
    client.declare("q")
    client.send(make(Confirm.Select, False))
    for _ in range(3):
        client.publish("q", b"body")
    client.sent()
    users.set_permissions(None, "/", "bob", **{**ALL, "write": ""})
    client.publish("q", b"body")

    (sent,) = client.sent()
    assert "403" in sent
    assert "write access to exchange 'amq.default' in vhost '/' refused for user 'bob'" in sent
    assert 3 == node.vhosts["/"].queues["q"].ready_count


@pytest.mark.parametrize("kind", ["permission", "topic"])
def test_sec_17_a_body_on_its_way_is_refused(node, users, kind):
    """A right that goes between a publish and the last octet of its body is missing for that publish."""
    client = bob(node)
    client.declare("q")
    client.send(make(Queue.Bind, 0, "q", "amq.topic", "#", False, {}))
    method = encode_method(1, make(Basic.Publish, 0, "amq.topic", "key", False, False))
    content = content_frames(1, 4096, build(10), b"0123456789")
    client.receive(method + content[:-5])
    client.sent()
    if kind == "topic":
        users.set_topic_permissions(None, "/", "bob", "amq.topic", write="^x", read="")
    else:
        users.set_permissions(None, "/", "bob", **{**ALL, "write": ""})
    client.receive(content[-5:])

    assert "ACCESS_REFUSED - write access to" in client.sent()[-1]
    assert 0 == node.vhosts["/"].queues["q"].ready_count


def test_sec_17_a_transaction_keeps_what_was_allowed(node, users):
    """A transaction's messages from before the right went are committed, as in RabbitMQ; later ones are 403."""
    client = bob(node)
    client.declare("q")
    client.ask(make(Tx.Select))
    client.publish("q", b"before")
    users.set_permissions(None, "/", "bob", **{**ALL, "write": ""})

    assert ["1 tx.commit-ok"] == client.ask(make(Tx.Commit))
    client.publish("q", b"after")
    assert "403" in client.sent()[-1]
    assert 1 == node.vhosts["/"].queues["q"].ready_count


# -- connections ------------------------------------------------------------------------------------------------------


def test_sec_17_connections_go_with_their_user(node, users):
    """All connections of a deleted user are closed with 320, in every vhost and state; those of others stay."""
    clients = [bob(node, 50001), bob(node, 50002, vhost="v"), bob(node, 50003)]
    node.blocked.add(clients[2].connection)
    other = Client(node)
    users.delete(None, "bob")

    for client in clients:
        (sent,) = unasked(node, client)
        assert sent == (
            "0 connection.close reply_code=320 reply_text=\"CONNECTION_FORCED - user 'bob' is deleted\""
        )
        client.send(make(Wire.CloseOk), 0)
        assert "closed" == client.connection.state
    assert ([], "open") == (unasked(node, other), other.connection.state)


def test_sec_17_connections_go_with_the_access_to_their_vhost(node, users):
    """Clearing a user's permissions in a vhost closes its connections to that vhost, and the next is refused."""
    client, elsewhere = bob(node), bob(node, 50002, vhost="v")
    client.declare("mine", exclusive=True)
    users.clear_permissions(None, "/", "bob")

    (sent,) = unasked(node, client)[-1:]
    text = "CONNECTION_FORCED - access to vhost '/' refused for user 'bob'"
    assert f'0 connection.close reply_code=320 reply_text="{text}"' == sent
    assert {} == node.vhosts["/"].queues
    assert [] == unasked(node, elsewhere)
    refused(node, 50003)


def test_sec_17_a_new_password_counts_for_the_next_login(node, users):
    """Connections that are open stay when the password changes, as in RabbitMQ; the old one opens no more."""
    client = bob(node)
    users.put(None, "bob", tags=(), password="other")

    assert ([], "open") == (unasked(node, client), client.connection.state)
    refused(node, 50002)


def test_sec_17_a_limit_of_nothing_keeps_new_ones_out(node, users):
    """With `max-connections` 0 a user opens no more connections, and those that are open stay."""
    client = bob(node)
    users.set_limits(None, "bob", {"max-connections": 0})

    refused(node, 50002)
    assert ([], "open") == (unasked(node, client), client.connection.state)


def test_sec_17_tags_count_at_once(node, users):
    """A user that is no impersonator any more cannot publish in another's name."""
    users.put(None, "bob", tags=("impersonator",))
    client = bob(node)
    client.declare("q")
    client.publish("q", b"x", user_id="guest")
    users.put(None, "bob", tags=())
    client.publish("q", b"x", user_id="guest")

    assert "PRECONDITION_FAILED - user_id property set to 'guest'" in client.sent()[-1]
    assert 1 == node.vhosts["/"].queues["q"].ready_count


# -- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cleared", [True, False])
def test_sec_17_many_are_worked_off_in_slices(node, users, cleared):
    """A step of the loop does not work off a revoked right alone, however many consumers or connections it concerns."""
    client = bob(node)
    client.declare("q")
    for number in range(100):
        client.send(basic_consume("q", f"c{number}"))
    others = [bob(node, 50002 + number) for number in range(100)]
    hurry(node, looks=10)
    if cleared:
        users.clear_permissions(None, "/", "bob")
    else:
        users.set_permissions(None, "/", "bob", **{**ALL, "read": ""})

    steps = 0
    while node.turn.slices:
        steps += 1
        node.clock.soon.pop(0)()
    assert 5 < steps < 1000
    assert {"closing" if cleared else "open"} == {each.connection.state for each in (client, *others)}
    assert 0 == node.vhosts["/"].queues["q"].consumer_count
