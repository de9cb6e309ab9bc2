"""Publishes and settlements of a channel in special cases."""

import pytest
from checks.internals import ready_messages
from doubles.fakes import CAPABILITIES, Client, Node, publish_frames

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.channel.settings import Limits
from leveret.broker.config.config import UserConfig


@pytest.fixture
def client() -> Client:
    """A client with a queue `q`."""
    made = Client()
    made.declare("q")
    return made


def bodies(client: Client, queue: str = "q") -> list[bytes]:
    return [message.body for message in ready_messages(client.node.vhosts["/"].queues[queue].backing)]


def fill(client: Client, count: int) -> None:
    """Publish that many messages, named by letters, and get all of them."""
    for number in range(count):
        client.publish("q", b"%c" % (97 + number))
        client.send(make(Basic.Get, 0, "q", False))
    client.sent()


# -- settling -------------------------------------------------------------------------------------------------------


def test_requeued_messages_go_back_to_their_places(client):
    """Returned messages keep their places, marked redelivered, however and in whatever order they are settled."""
    fill(client, 4)
    client.publish("q", b"e")
    client.send(make(Basic.Reject, 3, True))
    client.send(make(Basic.Nack, 2, True, True))

    assert [b"a", b"b", b"c", b"e"] == bodies(client)
    assert ["1 basic.get-ok delivery_tag=5 redelivered routing_key=q message_count=3 'a'"] == client.ask(
        make(Basic.Get, 0, "q", True)
    )


def test_recover_requeues_everything(client):
    """`basic.recover` requeues all unacked messages; without requeue it is not implemented."""
    fill(client, 3)

    assert ["1 basic.recover-ok"] == client.ask(make(Basic.Recover, True))
    assert [b"a", b"b", b"c"] == bodies(client)
    assert 'reply_text="NOT_IMPLEMENTED - requeue=false"' in client.ask(make(Basic.Recover, False))[0]


def test_closing_a_channel_gives_everything_back(client):
    """Closing a channel requeues unacked messages and cancels consumers; acks of an open transaction do not count."""
    client.send(Tx.Select())
    fill(client, 0)
    client.consume("q")
    client.send(Channel.Open(), 2)
    for body in (b"a", b"b"):
        client.publish("q", body, channel=2)
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Channel.Close, 200, "", 0, 0))

    assert [b"a", b"b"] == bodies(client)
    assert 0 == client.node.vhosts["/"].queues["q"].consumer_count


def test_getting_counts_for_no_prefetch(client):
    """A message got by `basic.get` does not use the channel's prefetch."""
    client.send(make(Basic.Qos, 0, 1, True))
    fill(client, 2)
    client.consume("q")
    client.publish("q", b"c")
    client.publish("q", b"d")

    assert [b"c"] == [item.body for item in client.take() if item.body]
    client.send(make(Basic.Ack, 1, False))
    assert [] == client.sent()
    client.send(make(Basic.Ack, 3, False))
    assert [b"d"] == [item.body for item in client.take()]


# -- modes --------------------------------------------------------------------------------------------------------------


def test_a_channel_confirms_or_is_transactional(client):
    """Switching from one mode to the other is 406; asking for the same again is not."""
    assert ["1 confirm.select-ok"] == client.ask(make(Confirm.Select, False))
    assert ["1 confirm.select-ok"] == client.ask(make(Confirm.Select, False))
    assert "cannot switch from confirm to tx mode" in client.ask(Tx.Select())[0]
    client.send(Channel.Open(), 2)
    client.send(Tx.Select(), 2)
    assert "cannot switch from tx to confirm mode" in client.ask(make(Confirm.Select, False), 2)[-1]


# -- publishing -------------------------------------------------------------------------------------------------------


def test_an_unroutable_mandatory_message_comes_back(client):
    """An unroutable message is returned with 312 and content before its confirm; without mandatory only confirmed."""
    client.ask(make(Confirm.Select, False))
    client.receive(publish_frames("nowhere", b"body", mandatory=True, content_type="text/plain"))

    assert [
        "1 basic.return reply_code=312 reply_text=NO_ROUTE routing_key=nowhere content_type=text/plain 'body'",
        "1 basic.ack delivery_tag=1",
    ] == client.sent()
    client.publish("nowhere", b"body")
    assert ["1 basic.ack delivery_tag=2"] == client.sent()
    channel = client.connection.channels[1]
    assert (2, 1) == (channel.published, channel.returned)


def keys(*names: str) -> tuple[str, object]:
    return "array", [("longstr", name) for name in names]


def test_copies_go_to_the_keys_of_cc_and_bcc(client):
    """CC and BCC keys are routed as well; each queue gets one copy, from which BCC is removed."""
    for name in ("cc", "bcc", "other"):
        client.declare(name)
    client.publish(
        "q", b"body", headers={"CC": keys("cc", "q"), "BCC": keys("bcc"), "x": ("bool", True)}, priority=3
    )
    queues = client.node.vhosts["/"].queues

    assert {"q": 1, "cc": 1, "bcc": 1, "other": 0} == {
        name: queue.ready_count for name, queue in queues.items()
    }
    for name in ("q", "cc", "bcc"):
        (message,) = ready_messages(queues[name].backing)
        properties = Properties(message.header)
        assert {"CC": keys("cc", "q"), "x": ("bool", True)} == properties.headers
        assert (b"body", 4, 3) == (message.body, message.body_size, properties.priority)


def test_errors_of_a_publish_are_due_with_its_content(client):
    """A publish to an unknown exchange fails when its content is complete, not before."""
    octets = publish_frames("k", b"body", exchange="missing")
    client.sent()
    client.receive(octets[:-1])

    assert [] == client.sent()
    client.receive(octets[-1:])
    assert [
        (
            "1 channel.close reply_code=404 reply_text=\"NOT_FOUND - no exchange 'missing' in vhost '/'\" "
            "class_id=60 method_id=40"
        )
    ] == client.sent()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exchange": "internal"}, "ACCESS_REFUSED - cannot publish to internal exchange 'internal' in vhost '/'"),
        ({"expiration": "-1"}, "PRECONDITION_FAILED - invalid expiration '-1'"),
        ({"user_id": "me"}, "PRECONDITION_FAILED - user_id property set to 'me' but authenticated user was 'guest'"),
        ({"reply_to": "amq.rabbitmq.reply-to"}, "PRECONDITION_FAILED - fast reply consumer does not exist"),
        ({"headers": {"CC": ("longstr", "q")}}, "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header"),
    ],
)  # fmt: skip
def test_what_cannot_be_published(client, options, text):
    """A publish that RabbitMQ refuses closes the channel with RabbitMQ's text."""
    client.ask(make(Exchange.Declare, 0, "internal", "fanout", False, False, False, True, False, {}))
    client.publish("q", b"body", **options)

    assert text in client.sent()[-1]
    assert [] == bodies(client)


def test_permissions_are_asked_for_each_address():
    """A user may publish to exchanges that its write permission matches, to topic exchanges also by routing key."""
    user = UserConfig("me", "me", (), {"/": (".*", "^(amq.topic|$)", ".*")})
    node = Node(users=(user,))
    node.users.set_topic_permissions("me", "/", "amq.topic", "^free", ".*")
    client = Client(node, user="me")
    client.publish("free.way", exchange="amq.topic")

    assert [] == client.sent()
    client.publish("toll.way", exchange="amq.topic")
    assert (
        "ACCESS_REFUSED - write access to topic 'toll.way' in exchange 'amq.topic' in vhost '/' refused for user 'me'"
    ) in client.sent()[0]
    client.send(make(Channel.CloseOk))
    client.send(Channel.Open())
    client.publish("k", exchange="amq.direct")
    assert "write access to exchange 'amq.direct' in vhost '/' refused for user 'me'" in client.sent()[-1]


# -- direct reply-to --------------------------------------------------------------------------------------------------

REPLY_TO = "amq.rabbitmq.reply-to"


def test_replies_find_the_one_who_asked(client):
    """A request carries a made-up reply address; a reply to it is delivered, and after a cancel it is unroutable."""
    client.consume(REPLY_TO, "replies", no_ack=True)
    client.publish("q", b"ask", reply_to=REPLY_TO, correlation_id="1")
    server = Client(client.node, port=50001)
    server.send(make(Basic.Get, 0, "q", True))
    address = Properties(server.take()[0].header).reply_to
    assert address is not None
    assert address.startswith(REPLY_TO + ".")
    client.sent()

    assert [f"1 queue.declare-ok queue={address} consumer_count=1"] == server.declare(address, passive=True)
    server.publish(address, b"answer", correlation_id="1")
    assert [
        f"1 basic.deliver consumer_tag=replies delivery_tag=1 routing_key={address} correlation_id=1 'answer'"
    ] == (client.sent())
    client.send(make(Basic.Cancel, "replies", False))
    server.publish(address, b"late", mandatory=True)
    assert "basic.return reply_code=312" in server.sent()[0]
    assert "404" in server.declare(address, passive=True)[0]


def test_replies_end_with_the_channel(client):
    """Closing the channel of a direct reply-to consumer removes its queue."""
    client.consume(REPLY_TO, "replies", no_ack=True)
    vhost = client.node.vhosts["/"]
    assert 1 == len(vhost.reply_queues)
    client.send(make(Channel.Close, 200, "", 0, 0))

    assert {} == vhost.reply_queues


def test_a_reply_consumer_takes_no_acks_and_is_alone(client):
    """Consuming replies with acks, or twice on a channel, is 406."""
    assert "PRECONDITION_FAILED - reply consumer cannot acknowledge" in client.consume(REPLY_TO)[0]
    client.send(Channel.Open(), 2)
    client.consume(REPLY_TO, "a", 2, no_ack=True)
    assert (
        "PRECONDITION_FAILED - reply consumer already set"
        in client.consume(REPLY_TO, "b", 2, no_ack=True)[-1]
    )


# -- consumers --------------------------------------------------------------------------------------------------------


def test_a_cancelled_consumer_keeps_what_it_got(client):
    """Unacked messages of a cancelled consumer can still be acked; no message is delivered after `basic.cancel`."""
    client.consume("q")
    client.publish("q", b"a")
    client.sent()

    assert ["1 basic.cancel-ok consumer_tag=c-q"] == client.ask(make(Basic.Cancel, "c-q", False))
    client.publish("q", b"b")
    client.send(make(Basic.Ack, 1, False))
    assert [] == client.sent()
    assert ([b"b"], 0) == (bodies(client), client.node.vhosts["/"].queues["q"].unacked_count)
    assert ["1 basic.cancel-ok consumer_tag=other"] == client.ask(make(Basic.Cancel, "other", False))


def test_prefetch_applies_to_each_consumer(client):
    """`basic.qos` applies to each consumer that comes after it; every ack restores credit."""
    client.consume("q", "free")
    client.send(make(Basic.Cancel, "free", False))
    client.send(make(Basic.Qos, 0, 2, False))
    client.consume("q", "a")
    client.consume("q", "b")
    client.sent()
    client.receive(publish_frames("q") * 6)

    assert ["a", "b", "a", "b"] == [item.method.consumer_tag for item in client.take()]
    client.send(make(Basic.Ack, 2, False))
    assert ["b"] == [item.method.consumer_tag for item in client.take()]
    client.send(make(Basic.Ack, 3, True))
    assert ["a"] == [item.method.consumer_tag for item in client.take()]


def test_consumers_per_channel_can_be_limited():
    """One consumer more than the limit is 530."""
    client = Client(Node(limits=Limits(consumer_max_per_channel=1)), capabilities=CAPABILITIES)
    client.declare("q")
    client.consume("q", "a")

    assert "NOT_ALLOWED - reached maximum (1) of consumers per channel" in client.consume("q", "b")[0]


def test_an_ack_of_a_deleted_queue_is_harmless(client):
    """Messages of a deleted queue can be settled in every way."""
    fill(client, 3)
    client.ask(make(Queue.Delete, 0, "q", False, False, False))
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Basic.Reject, 2, True))

    assert ["1 tx.select-ok"] == client.ask(Tx.Select())
    client.send(make(Basic.Nack, 0, True, False))
    assert ["1 tx.commit-ok"] == client.ask(Tx.Commit())


def test_a_consumer_counts_what_it_does(client):
    """A consumer's deliveries are acked, unacked or returned; in a transaction they stay unacked until the commit."""
    client.receive(publish_frames("q") * 6)
    client.consume("q", "a")
    consumer = client.connection.channels[1].consumers["a"]

    def counts() -> tuple[int, ...]:
        return consumer.delivered, consumer.redelivered, consumer.unacked, consumer.acked, consumer.returned

    assert (6, 0, 6, 0, 0) == counts()
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Basic.Ack, 3, True))
    assert (6, 0, 3, 3, 0) == counts()
    client.send(make(Basic.Reject, 4, False))
    assert (6, 0, 2, 3, 1) == counts()
    client.send(make(Basic.Nack, 5, False, True))
    assert (7, 1, 2, 3, 2) == counts()
    client.send(make(Basic.Recover, True))
    assert (9, 3, 2, 3, 4) == counts()
    client.send(make(Tx.Select))
    client.send(make(Basic.Ack, 0, True))
    assert (9, 3, 2, 3, 4) == counts()
    client.send(make(Tx.Commit))
    assert (9, 3, 0, 5, 4) == counts()


def test_a_consumer_without_acks_acks_nothing(client):
    """Deliveries of a consumer without acks are complete when they are sent."""
    client.receive(publish_frames("q") * 2)
    client.consume("q", "a", no_ack=True)
    consumer = client.connection.channels[1].consumers["a"]

    assert (2, 0, 0) == (consumer.delivered, consumer.unacked, consumer.acked)
