"""Looking at an embedded broker, and acting on it, without a client."""

import asyncio
from collections.abc import Iterator

import pika
import pytest

import leveret


@pytest.fixture(params=["memory", "disk"])
def broker(request, tmp_path) -> Iterator[leveret.Broker]:
    with leveret.Broker(data_dir=tmp_path if request.param == "disk" else None) as broker:
        yield broker


def test_messages_are_seen_without_being_taken(broker, channel):
    """A look shows bodies, properties, headers and address of the messages, and changes neither order nor flags."""
    channel.queue_declare("orders", durable=True)
    properties = pika.BasicProperties(
        content_type="text/plain", delivery_mode=2, headers={"n": 1, "x": [True, "y"]}
    )
    channel.basic_publish("", "orders", b"one", properties)
    channel.basic_publish("", "orders", b"two")
    queue = broker.queue("orders")
    while queue.depth < 2:  # a publish has no reply: the client is still sending
        channel.connection.process_data_events()

    for _ in range(2):
        one, two = queue.messages
        assert (b"one", {"n": 1, "x": [True, "y"]}) == (one.body, one.headers)
        assert {"content_type": "text/plain", "delivery_mode": 2} == one.properties
        assert ("", "orders", "ready", False) == (one.exchange, one.routing_key, one.state, one.redelivered)
        assert (b"two", {}, {}, []) == (two.body, two.properties, two.headers, two.deaths)
    method, _, body = channel.basic_get("orders")
    assert (b"one", False) == (body, method.redelivered)


def test_unacked_messages_name_consumer_and_channel(broker, channel):
    """An unacked message is shown with the consumer and the channel that have it, and it would come back redelivered."""
    broker.declare("orders")
    for body in ("one", "two", "three"):
        broker.publish("", "orders", body)
    channel.basic_qos(prefetch_count=1)
    got = []
    channel.basic_consume("orders", lambda *delivery: got.append(delivery[3]), consumer_tag="worker")
    while not got:
        channel.connection.process_data_events(1)

    two, three, one = broker.queue("orders").messages

    assert [b"two", b"three", b"one"] == [two.body, three.body, one.body]
    assert ("unacked", "worker", True) == (one.state, one.consumer, one.redelivered)
    assert [f"{row['name']} (1)" for row in broker.connections] == [one.channel]
    assert (2, 1) == (broker.queue("orders").depth, broker.queue("orders").unacked)
    assert ["worker"] == [row["consumer_tag"] for row in broker.queue("orders").consumers]
    assert [b"two"] == [
        message.body for message in broker.queue("orders").peek(1) if message.state == "ready"
    ]


def test_deaths_of_dead_letters(broker, channel):
    """A dead letter is shown with its history."""
    broker.declare("dead")
    broker.declare("orders", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    broker.publish("", "orders", "one")
    method, _, _ = channel.basic_get("orders")
    channel.basic_reject(method.delivery_tag, requeue=False)
    while not broker.queue("dead").depth:
        channel.connection.process_data_events()

    (letter,) = broker.queue("dead").messages

    assert [("orders", "rejected", 1)] == [
        (each["queue"], each["reason"], each["count"]) for each in letter.deaths
    ]
    assert "orders" == letter.headers["x-first-death-queue"]


def test_delayed_messages_are_seen_where_they_will_arrive(broker):
    """A delayed message is shown by its exchange, and by the queue that it will be routed to."""
    broker.declare(exchange="later", type="x-delayed-message", arguments={"x-delayed-type": "topic"})
    broker.declare("orders", exchange="later", routing_key="order.*")
    broker.declare("others", exchange="later", routing_key="other.*")
    broker.publish("later", "order.new", "two", headers={"x-delay": 900_000})
    broker.publish("later", "order.new", "one", headers={"x-delay": 600_000})

    found = broker.delayed("later")

    assert [b"one", b"two"] == [message.body for message in found]
    assert found == broker.queue("orders").messages
    assert {"delayed"} == {message.state for message in found}
    assert 240_000 <= found[1].due - found[0].due <= 300_000
    assert [] == broker.queue("others").messages
    assert 0 == broker.queue("orders").depth


def test_paged_messages_are_seen(tmp_path):
    """Messages of which memory has nothing are read for a look, and the broker serves clients meanwhile."""
    config = {"queue_index_embed_msgs_below": 100, "storage.target_ram_count": 0}
    with leveret.Broker(data_dir=tmp_path, config=config) as broker:
        broker.declare("orders")
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(3000):
                body = b"%d" % number + bytes(150 * (number % 2))
                mode = pika.BasicProperties(delivery_mode=1 + number % 3 // 2)
                channel.basic_publish("", "orders", body, mode)
            for _ in range(3):
                channel.basic_get("orders", auto_ack=True)

        bodies = [message.body.rstrip(b"\0") for message in broker.queue("orders").messages]

        assert [b"%d" % number for number in range(3, 3000)] == bodies
        assert 2997 == broker.queue("orders").depth


def test_definitions_are_plain_values(broker):
    """The definitions of the broker can be exported from one and imported into another."""
    broker.declare("orders", exchange="events", type="topic", routing_key="order.#")
    found = broker.definitions

    with leveret.Broker() as other:
        other.import_definitions(found)
        other.publish("events", "order.new", "one", mandatory=True)
        assert [b"one"] == [message.body for message in other.queue("orders").messages]
        assert ["orders"] == other.queues()


def test_a_publish_waits_for_its_confirm(broker):
    """A publish returns when a client would get its confirm, and raises if it is nacked, or if nothing was reached."""
    broker.declare("short", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    broker.publish("", "short", b"one", properties={"delivery_mode": 2}, mandatory=True)

    with pytest.raises(leveret.NackedError, match="refused the message"):
        broker.publish("", "short", b"two")
    with pytest.raises(leveret.UnroutableError, match="no queue for exchange '' and routing key 'nowhere'"):
        broker.publish("", "nowhere", b"three", mandatory=True)
    broker.publish("", "nowhere", b"four")
    with pytest.raises(leveret.RefusedError, match="no exchange 'events' in vhost '/'"):
        broker.publish("events", "x", b"five")
    with pytest.raises(TypeError, match="int"):
        broker.publish("", "short", 5)
    with pytest.raises(
        leveret.RefusedError, match="invalid properties: 'delivery_mode' cannot have the type str"
    ):
        broker.publish("", "short", b"", properties={"delivery_mode": "2"})
    with pytest.raises(leveret.RefusedError, match="invalid properties: no property 'colour'"):
        broker.publish("", "short", b"six", properties={"colour": "red"})
    assert [b"one"] == [message.body for message in broker.queue("short").messages]


def test_a_queue_can_be_purged_and_deleted(broker):
    """A purge drops the ready messages; an operation on a queue that does not exist says so."""
    broker.declare("orders")
    broker.publish("", "orders", "one")

    assert 1 == broker.purge("orders")
    assert [] == broker.queue("orders").messages
    assert 0 == broker.queue("orders").delete()
    for work in (broker.queue("orders").purge, lambda: broker.queue("orders").messages):
        with pytest.raises(leveret.RefusedError, match="no queue 'orders' in vhost '/'"):
            work()


def test_connections_are_closed_with_a_reason(broker, channel):
    """Clients are disconnected with 320 and the reason."""
    assert 1 == broker.close_connections(reason="maintenance")

    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        channel.queue_declare("orders")
    assert (320, "CONNECTION_FORCED - maintenance") == caught.value.args


def test_a_view_of_another_vhost(broker):
    """A view of a virtual host has a URL for it, and sees only what is in it."""
    definitions = broker.definitions
    definitions["vhosts"].append({"name": "shop"})
    definitions["permissions"].append(
        {"user": "guest", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}
    )
    broker.import_definitions(definitions)
    shop = broker.vhost_view("shop")
    with pika.BlockingConnection(pika.URLParameters(shop.url)) as connection:
        connection.channel().queue_declare("orders")

        assert ["orders"] == shop.queues()
        assert [] == broker.queues()
        assert (1, 0) == (len(shop.connections), len(broker.connections))


async def test_an_async_broker_has_the_same_as_coroutines():
    """In an event loop the same is looked at and done by coroutines."""
    async with leveret.AsyncBroker() as broker:
        await broker.declare("orders", exchange="events", type="topic", routing_key="order.#")
        await broker.publish("events", "order.new", "one", mandatory=True)
        queue = broker.queue("orders")

        assert [b"one"] == [message.body for message in await queue.messages()]
        assert (1, 0, []) == (await queue.depth(), await queue.unacked(), await queue.consumers())
        assert ["orders"] == await broker.queues()
        assert 1 == await broker.purge("orders")


async def test_a_look_at_many_messages_lets_others_run():
    """During a look at very many messages the event loop serves others."""
    async with leveret.AsyncBroker() as broker:
        await broker.declare("orders")
        for number in range(20_000):
            await broker.publish("", "orders", b"%d" % number, confirm=False)
        looking = asyncio.ensure_future(broker.queue("orders").messages())
        rounds = 0
        while not looking.done():
            await asyncio.sleep(0)
            rounds += 1

        assert 20_000 == len(looking.result())
        assert rounds > 5


def test_a_closed_broker_can_be_looked_at_no_more():
    """A look at a broker that has stopped is an error, not a wait."""
    with leveret.Broker() as broker:
        queue = broker.queue("orders")
    with pytest.raises(leveret.ClosedBrokerError):
        _ = queue.messages


def test_a_queue_is_paused_and_resumed():
    """The views of both brokers pause a queue; a paused one is idle, whatever it has for its consumers."""
    with leveret.Broker() as broker:
        broker.declare("orders")
        broker.queue("orders").pause()
        broker.publish("", "orders", "one")
        assert "paused" == broker.queue("orders").details["state"]
        broker.queue("orders").resume()
        assert "paused" != broker.queue("orders").details["state"]

    async def main() -> None:
        async with leveret.AsyncBroker() as broker:
            await broker.declare("orders")
            await broker.queue("orders").pause()
            assert "paused" == (await broker.queue("orders").details())["state"]
            await broker.queue("orders").resume()
            assert "paused" != (await broker.queue("orders").details())["state"]

    asyncio.run(main())
