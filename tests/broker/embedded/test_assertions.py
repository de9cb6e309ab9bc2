"""Assertions on an embedded broker, and waiting until it is idle."""

import asyncio
import threading
import time

import pika
import pytest

import leveret


@pytest.fixture
def broker():
    """A broker that records everything, with a queue `orders` that is bound to the exchange `events`."""
    with leveret.Broker(record=True) as broker:
        broker.declare("orders", exchange="events", type="topic", routing_key="order.*")
        yield broker


def test_what_was_published(broker):
    """Body, routing key and headers of a message are compared as far as they are given."""
    broker.publish("events", "order.new", "one", headers={"n": 1, "shop": "a"})
    broker.publish("events", "order.new", b"two")

    broker.assert_published("events")
    broker.assert_published("events", times=2)
    broker.assert_published("events", "one", "order.new", {"n": 1}, 1)
    broker.assert_published("events", body=b"two", headers={})
    broker.assert_published("events", routing_key="order.old", times=0)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"body": "three"}, "exchange 'events': no message with body='three' published"),
        ({"times": 1}, "exchange 'events': 2 messages published, expected 1"),
        ({"headers": {"n": 2}}, "exchange 'events': no message with headers={'n': 2} published"),
        ({"body": b"one", "times": 3}, "exchange 'events': 1 message with body=b'one' published, expected 3"),
    ],
)
def test_what_was_published_instead(broker, wanted, told):
    """The error says what was expected, how many messages match, and which there were."""
    broker.publish("events", "order.new", "one", headers={"n": 1})
    broker.publish("events", "order.new", "two")

    with pytest.raises(AssertionError) as caught:
        broker.assert_published("events", **wanted)

    assert told == str(caught.value).splitlines()[0]
    assert "    published: 'events' -> 'order.new' b'one' {'n': 1}" in str(caught.value).splitlines()


def test_only_the_latest_messages_are_listed(broker):
    """The error lists five messages, and the beginning of a long body."""
    for number in range(8):
        broker.publish("events", "order.new", f"{number}" * 300)

    with pytest.raises(AssertionError, match=r"\.\.\. 3 more") as caught:
        broker.assert_published("events", "none")

    assert 1 + 1 + 5 == len(str(caught.value).splitlines())
    assert "7" * 200 in str(caught.value)
    assert "7" * 201 not in str(caught.value)


def test_acknowledged_messages_are_counted(broker, channel):
    """Acknowledged messages of a queue count, delivered ones do not."""
    broker.publish("events", "order.new", "one")
    broker.publish("events", "order.new", "two")
    method, _, _ = channel.basic_get("orders")
    broker.assert_acked("orders", 0)
    channel.basic_ack(method.delivery_tag)
    channel.basic_get("orders", auto_ack=True)
    broker.wait_until_idle()

    with pytest.raises(AssertionError, match=r"^queue 'orders': \d messages acknowledged, expected 7$"):
        broker.assert_acked("orders", 7)
    broker.assert_acked("orders", broker.queue("orders").details["message_stats"]["ack"])
    with pytest.raises(leveret.RefusedError, match="no queue 'other'"):
        broker.assert_acked("other", 0)


def test_messages_that_reach_no_queue(broker):
    """A message that was routed to no queue is named, in whatever exchange it was."""
    broker.publish("events", "order.new", "one")
    broker.assert_no_unroutable()
    broker.publish("events", "invoice", "lost")
    broker.publish("", "nobody", "gone")

    with pytest.raises(AssertionError, match=r"^2 messages have reached no queue") as caught:
        broker.assert_no_unroutable()
    assert "'events' -> 'invoice' b'lost'" in str(caught.value)
    assert "'' -> 'nobody' b'gone'" in str(caught.value)


def test_without_a_record_nothing_is_asserted():
    """Without a record an assertion about it is refused."""
    with leveret.Broker() as broker:
        with pytest.raises(leveret.NotRecordedError):
            broker.assert_published("events", times=0)
        with pytest.raises(leveret.NotRecordedError):
            broker.assert_no_unroutable()


def test_idle_is_when_the_last_ack_has_arrived(broker):
    """The wait ends when a consumer in another thread has acknowledged everything, without a delay."""
    acked = []

    def consume():
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=1)
            for method, _, body in channel.consume("orders", inactivity_timeout=10):
                acked.append(body)
                channel.basic_ack(method.delivery_tag)
                if len(acked) == 50:
                    channel.cancel()
                    break

    for number in range(50):
        broker.publish("events", "order.new", f"{number}")
    consumer = threading.Thread(target=consume)
    consumer.start()
    while not broker.queue("orders").consumers and not acked:
        broker.wait_until_idle()  # without a consumer nothing is on its way
    broker.wait_until_idle(20)

    assert 50 == len(acked)
    broker.assert_acked("orders", 50)
    consumer.join(20)


def test_what_is_not_idle_is_named(broker, channel):
    """An unacknowledged message is on its way; the error names its queue, and comes in time."""
    broker.publish("events", "order.new", "one")
    method, _, _ = channel.basic_get("orders")
    began = time.monotonic()
    with pytest.raises(leveret.NotIdleError, match="queue 'orders' has 1 unacked messages"):
        broker.wait_until_idle(0.2)

    assert 0.15 < time.monotonic() - began < 10
    channel.basic_nack(method.delivery_tag, requeue=True)
    broker.wait_until_idle()
    assert 1 == broker.queue("orders").depth


async def test_in_a_running_loop():
    """`AsyncBroker` has the same assertions as coroutines, and several may wait at once."""
    async with leveret.AsyncBroker(record=True) as broker:
        await broker.declare("orders")
        await broker.publish("", "orders", "one")
        await broker.assert_published("", "one", "orders", times=1)
        await broker.assert_no_unroutable()
        await broker.assert_acked("orders", 0)
        with pytest.raises(AssertionError):
            await broker.assert_acked("orders", 1)
        await asyncio.gather(broker.wait_until_idle(), broker.wait_until_idle())
