"""AMQPStorm: what its users rely on."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal

import amqpstorm
import pytest
from amqpstorm import AMQPChannelError, AMQPConnectionError, AMQPMessageError, Channel, Connection, Message

Connect = Callable[..., Connection]


@pytest.fixture
def connect(host_and_port: tuple[str, int]) -> Iterator[Connect]:
    """Open connections that are closed when the test is over."""
    opened = []

    def opener(password: str = "guest", **options: object) -> Connection:
        opened.append(Connection(host_and_port[0], "guest", password, port=host_and_port[1], **options))
        return opened[-1]

    yield opener
    for connection in opened:
        connection.close()


@pytest.fixture
def channel(connect: Connect) -> Channel:
    return connect().channel()


def declare(channel: Channel) -> str:
    return channel.queue.declare(exclusive=True)["queue"]


def drain(channel: Channel, queue: str) -> list[str]:
    """The bodies that are ready now."""
    bodies = []
    while (message := channel.basic.get(queue, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


def test_wrong_password(connect):
    """A wrong password is refused."""
    with pytest.raises(AMQPConnectionError, match="ACCESS_REFUSED"):
        connect("wrong")


def test_unknown_vhost(connect):
    """A virtual host that does not exist is refused."""
    with pytest.raises(AMQPConnectionError, match="NOT_ALLOWED"):
        connect(virtual_host="missing")


def test_heartbeat(connect):
    """An idle connection with a short heartbeat stays open."""
    connection = connect(heartbeat=1)
    threading.Event().wait(2.5)
    connection.check_for_errors()
    assert connection.channel().is_open


def test_confirms(channel, unique):
    """Publishing with confirms returns True, and raises what is mandatory and unroutable."""
    queue = declare(channel)
    channel.confirm_deliveries()
    assert [True] * 50 == [channel.basic.publish(str(number), queue, mandatory=True) for number in range(50)]
    with pytest.raises(AMQPMessageError) as caught:
        channel.basic.publish("x", unique("nowhere"), mandatory=True)
    assert 312 == caught.value.error_code
    assert [str(number) for number in range(50)] == drain(channel, queue)


def test_consume_with_prefetch(channel):
    """A prefetch count of one delivers one message after the other, in order."""
    queue, seen = declare(channel), []
    for number in range(20):
        channel.basic.publish(str(number), queue)
    channel.basic.qos(1)

    def take(message: Message) -> None:
        seen.append(message.body)
        message.ack()
        if len(seen) == 20:
            channel.stop_consuming()

    channel.basic.consume(take, queue)
    channel.start_consuming()
    assert [str(number) for number in range(20)] == seen


def test_inbound_generator(channel):
    """`build_inbound_messages` yields what is there and ends when it is empty."""
    queue = declare(channel)
    for number in range(5):
        channel.basic.publish(str(number), queue)
    tag = channel.basic.consume(queue=queue, no_ack=True)
    bodies = []
    for message in channel.build_inbound_messages():
        bodies.append(message.body)
        if len(bodies) == 5:
            break
    assert ["0", "1", "2", "3", "4"] == bodies
    assert {"consumer_tag": tag} == channel.basic.cancel(tag)


def publish_and_fail(channel: Channel, queue: str) -> None:
    """A transaction that does not come to its end."""
    with channel.tx:
        channel.basic.publish("rolled back", queue)
        raise ZeroDivisionError


def test_transactions(channel):
    """A transaction counts from its commit; leaving it by an error rolls it back."""
    queue = declare(channel)
    with channel.tx:
        channel.basic.publish("committed", queue)
        assert 0 == channel.queue.declare(queue, passive=True)["message_count"]
    with pytest.raises(ZeroDivisionError):
        publish_and_fail(channel, queue)
    assert ["committed"] == drain(channel, queue)


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (404, lambda channel: channel.queue.declare("missing", passive=True)),
        (404, lambda channel: channel.basic.get("missing")),
        (404, lambda channel: channel.basic.consume(print, "missing")),
        (406, lambda channel: channel.exchange.declare("amq.direct", "fanout", durable=True)),
        (403, lambda channel: channel.queue.declare("amq.mine")),
        (403, lambda channel: channel.exchange.delete("amq.topic")),
    ],
)
def test_channel_errors(connect, code, action):
    """A closed channel carries RabbitMQ's code, and may be opened again."""
    channel = connect().channel()
    with pytest.raises(AMQPChannelError) as caught:
        action(channel)
    assert code == caught.value.error_code
    channel.open()
    assert declare(channel).startswith("amq.gen-")


def test_connection_error(connect):
    """A prefetch size is not implemented, which costs the connection."""
    connection = connect()
    channel = connection.channel()
    with pytest.raises(AMQPConnectionError) as caught:
        channel.basic.qos(prefetch_size=1)
    assert 540 == caught.value.error_code
    connection.open()
    assert connection.channel().is_open


def test_headers_and_properties(channel):
    """Headers of every type and all properties come back as they were sent."""
    queue = declare(channel)
    headers = {
        "none": None,
        "bool": True,
        "int": -3,
        "long": 2**40,
        "decimal": Decimal("1.5"),
        "text": "Grüße",
        "list": [1, "two"],
        "table": {"deep": {"deeper": 1}},
    }
    properties = {
        "content_type": "text/plain",
        "headers": headers,
        "delivery_mode": 2,
        "priority": 1,
        "correlation_id": "correlation",
        "reply_to": "reply",
        "message_id": "id",
        "message_type": "kind",
        "timestamp": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        "user_id": "guest",
        "app_id": "tests",
    }
    Message.create(channel, "тело", properties).publish(queue)
    message = channel.basic.get(queue, no_ack=True)
    assert "тело" == message.body
    for name, value in properties.items():
        received = message.properties[name]
        assert value == (received.replace(tzinfo=UTC) if name == "timestamp" else received)


def test_threads(connect):
    """Threads publish and consume over channels of one connection."""
    connection = connect()
    queue = declare(connection.channel())
    seen: list[str] = []

    def publish(number: int) -> None:
        channel = connection.channel()
        channel.confirm_deliveries()
        for serial in range(50):
            channel.basic.publish(f"{number}.{serial}", queue)

    def consume() -> None:
        channel = connection.channel()

        def take(message: Message) -> None:
            seen.append(message.body)
            message.ack()
            if len(seen) == 200:
                channel.stop_consuming()

        channel.basic.consume(take, queue)
        channel.start_consuming()

    threads = [threading.Thread(target=consume)]
    threads += [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {f"{number}.{serial}" for number in range(4) for serial in range(50)} == set(seen)
    assert 200 == len(seen)


def test_uri_connection(amqp_url):
    """The address as a URI works too."""
    with amqpstorm.UriConnection(f"{amqp_url}/%2F?heartbeat=10") as connection:
        assert "RabbitMQ" == connection.server_properties["product"]


def test_direct_reply_to(connect, unique):
    """Answers come over `amq.rabbitmq.reply-to` without a queue."""
    client, server, requests = connect().channel(), connect().channel(), unique("requests")
    server.queue.declare(requests, exclusive=True)
    client.basic.consume(queue="amq.rabbitmq.reply-to", no_ack=True)
    client.basic.publish("hello", requests, properties={"reply_to": "amq.rabbitmq.reply-to"})
    while (request := server.basic.get(requests, no_ack=True)) is None:
        pass
    server.basic.publish(request.body.upper(), request.reply_to)
    assert "HELLO" == next(iter(client.build_inbound_messages())).body
