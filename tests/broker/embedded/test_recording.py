"""Recording of what was published to exchanges."""

from collections.abc import Iterator

import pika
import pytest

import leveret
from leveret.broker.embedded import recording


@pytest.fixture
def broker() -> Iterator[leveret.Broker]:
    with leveret.Broker(record=True) as broker:
        yield broker


@pytest.fixture
def channel(broker) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """A client's channel in confirm mode."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def bodies(broker: leveret.Broker, exchange: str) -> list[bytes]:
    return [message.body for message in broker.published(exchange)]


def test_publishes_are_recorded_in_order(broker, channel):
    """A record has what clients have published to an exchange, in order, with the queues that it was routed to."""
    broker.declare("orders", exchange="events", type="topic", routing_key="order.#")
    for number in range(5):
        channel.basic_publish(
            "events", f"order.{number}", b"%d" % number, pika.BasicProperties(headers={"n": number})
        )
    channel.basic_publish("events", "other", b"lost")
    channel.basic_publish("", "orders", b"direct")

    found = broker.published("events")

    assert [b"0", b"1", b"2", b"3", b"4", b"lost"] == [message.body for message in found]
    assert [("orders",)] * 5 + [()] == [message.queues for message in found]
    assert ("events", "order.3", {"n": 3}, "published") == (
        found[3].exchange,
        found[3].routing_key,
        found[3].headers,
        found[3].state,
    )
    assert [b"direct"] == bodies(broker, "")
    assert [] == broker.published("amq.topic")
    assert 6 == broker.queue("orders").depth


def test_equal_publishes_are_all_recorded(broker, channel):
    """Publishes that a connection handles together, because they are equal, are recorded one by one."""
    broker.declare("orders")
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        fast = connection.channel()
        for _ in range(1000):
            fast.basic_publish("", "orders", b"same")
        fast.queue_declare("orders", passive=True)  # replied to after they have arrived

    assert [b"same"] * 1000 == bodies(broker, "")
    assert 1000 == broker.queue("orders").depth


def test_a_record_begins_when_it_is_asked_for():
    """An exchange is recorded from `record` on, also for a client that has published to it before; others are not."""
    with leveret.Broker() as broker:
        broker.declare("orders", exchange="events", routing_key="new")
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("events", "new", b"before")
            broker.record("events")
            channel.basic_publish("events", "new", b"after")
            channel.basic_publish("", "orders", b"elsewhere")

            assert [b"after"] == bodies(broker, "events")
            with pytest.raises(leveret.NotRecordedError, match=r"record\('amq.topic'\)"):
                broker.published("amq.topic")
            broker.forget_published()
            channel.basic_publish("events", "new", b"unrecorded")
            with pytest.raises(leveret.NotRecordedError):
                broker.published("events")
            assert 4 == broker.queue("orders").depth


def test_a_record_has_the_queue_that_chance_has_chosen(broker, channel):
    """A message to a random exchange is recorded with the queue that it is in, also one of a transaction."""
    names = ("a", "b", "c")
    channel.exchange_declare("lots", "x-random")
    for name in names:
        broker.declare(name, exchange="lots")
    for number in range(30):
        channel.basic_publish("lots", "k", b"%d" % number)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        transaction = connection.channel()
        transaction.tx_select()
        for number in range(30, 60):
            transaction.basic_publish("lots", "k", b"%d" % number)
        transaction.tx_commit()

    recorded = {message.body: message.queues for message in broker.published("lots")}

    assert 60 == len(recorded)
    for name in names:
        there = {message.body for message in broker.queue(name).messages}
        assert there
        assert there == {body for body, queues in recorded.items() if queues == (name,)}


def test_dead_letters_are_recorded(broker, channel):
    """A dead letter is recorded at the exchange that it is published to, with its history."""
    broker.declare("dead", exchange="dlx", routing_key="orders")
    broker.declare("orders", arguments={"x-dead-letter-exchange": "dlx"})
    channel.basic_publish("", "orders", b"one")
    method, _, _ = channel.basic_get("orders")
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare("orders", passive=True)

    (letter,) = broker.published("dlx")

    assert (b"one", ("dead",)) == (letter.body, letter.queues)
    assert ["rejected"] == [death["reason"] for death in letter.deaths]
    assert letter.deaths == broker.queue("dead").messages[0].deaths


def test_messages_are_recorded_where_they_pass(broker, channel):
    """A message is recorded at exchanges that it reaches by bindings between exchanges, and at alternate ones."""
    broker.declare(exchange="archive", type="fanout")
    broker.declare(exchange="strays", type="fanout")
    broker.declare(exchange="events", type="topic", arguments={"alternate-exchange": "strays"})
    channel.exchange_bind("archive", "events", "order.*")
    channel.basic_publish("events", "order.new", b"kept")
    channel.basic_publish("events", "other", b"stray")

    assert [b"kept", b"stray"] == bodies(broker, "events")
    assert [b"kept"] == bodies(broker, "archive")
    assert [b"stray"] == bodies(broker, "strays")


def test_transactions_are_recorded_by_their_commit(broker):
    """Publishes of a transaction are recorded when it is committed, and not if it is rolled back."""
    broker.declare("orders")
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("", "orders", b"one")
        channel.tx_rollback()
        channel.basic_publish("", "orders", b"two")
        assert [] == bodies(broker, "")
        channel.tx_commit()

        assert [b"two"] == bodies(broker, "")


def test_what_fails_is_not_recorded(broker, channel):
    """A publish that closes the channel is not recorded."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.basic_publish("nowhere", "x", b"one")

    assert [] == broker.published("nowhere")


def test_own_publishes_are_recorded(broker):
    """Publishes without a client are recorded, too."""
    broker.publish("amq.topic", "x", b"one")

    assert [b"one"] == bodies(broker, "amq.topic")


def test_a_record_forgets_the_oldest_messages(broker, monkeypatch):
    """A broker records so many messages and so many bytes at most; `published` has the latest ones."""
    monkeypatch.setattr(recording, "MOST_MESSAGES", 5)
    monkeypatch.setattr(recording, "MOST_OCTETS", 100)
    other = broker.vhost_view("other")
    broker.import_definitions({"vhosts": [{"name": "other"}]})
    for number in range(4):
        broker.publish("amq.topic", "x", f"{number}")
        other.publish("amq.topic", "x", f"other {number}")

    assert [b"2", b"3"] == bodies(broker, "amq.topic")
    assert [b"other 1", b"other 2", b"other 3"] == bodies(other, "amq.topic")

    broker.publish("amq.topic", "x", b"x" * 90)
    assert [b"3", b"x" * 90] == bodies(broker, "amq.topic")
    assert [b"other 3"] == bodies(other, "amq.topic")

    other.forget_published()  # makes room for the others
    broker.publish("amq.topic", "x", b"y" * 10)
    assert [b"x" * 90, b"y" * 10] == bodies(broker, "amq.topic")
    broker.publish("amq.topic", "x", b"z" * 101)
    assert [] == bodies(broker, "amq.topic")


def test_an_assertion_says_what_a_record_has_forgotten(broker, monkeypatch):
    """An assertion whose answer may depend on forgotten messages is an error; one that does not is not."""
    monkeypatch.setattr(recording, "MOST_MESSAGES", 3)
    for number in range(5):
        broker.publish("amq.topic", "x", f"{number}")

    broker.assert_published("amq.topic", "4")
    with pytest.raises(leveret.NotRecordedError, match=r"'amq\.topic': the first 2 messages are no longer"):
        broker.assert_published("amq.topic", "0")
    with pytest.raises(leveret.NotRecordedError):
        broker.assert_published("amq.topic", times=3)
    with pytest.raises(AssertionError, match="3 messages published, expected 2"):
        broker.assert_published("amq.topic", times=2)
    with pytest.raises(AssertionError, match="3 messages have reached no queue"):
        broker.assert_no_unroutable()
    broker.declare("all", exchange="amq.topic", routing_key="#")
    for number in range(3):
        broker.publish("amq.topic", "x", f"{number}")
    with pytest.raises(leveret.NotRecordedError, match="the first 5 messages"):
        broker.assert_no_unroutable()
    broker.forget_published()
    broker.assert_no_unroutable()


def test_an_ordinary_server_has_no_recording_classes():
    """Channels and virtual hosts of a server that is not embedded know nothing of a recorder."""
    from leveret.broker.channel.channel import Channel
    from leveret.broker.server.server import Server
    from leveret.broker.vhost.vhost import VHost

    assert (Channel, VHost) == (Server.channel_class, Server.vhost_class)
