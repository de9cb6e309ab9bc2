"""pika: what its users rely on."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pika.exceptions
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingChannel

Connect = Callable[..., pika.BlockingConnection]

EVERY_HEADER_TYPE = {
    "none": None,
    "true": True,
    "false": False,
    "int": -7,
    "int32": 2**31 - 1,
    "long": -(2**63),
    "decimal": Decimal("12.34"),
    "text": "Zürich",
    "empty": "",
    "time": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "list": [1, "two", [3, None], {"four": False}],
    "table": {"deep": {"deeper": {"deepest": [1, 2, 3]}}},
}


@pytest.fixture
def connect(amqp_url: str) -> Iterator[Connect]:
    """Open connections that are closed when the test is over."""
    opened = []

    def opener(**options: object) -> pika.BlockingConnection:
        parameters = pika.URLParameters(amqp_url)
        for name, value in options.items():
            setattr(parameters, name, value)
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1]

    yield opener
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Connect) -> BlockingChannel:
    return connect().channel()


def declare(channel: BlockingChannel, **options: object) -> str:
    return channel.queue_declare("", exclusive=True, **options).method.queue


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """The bodies that are ready now."""
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(got[2])
    return bodies


def ready(channel: BlockingChannel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).method.message_count


def closes_channel(code: int, text: str, action: Callable[[], object]) -> None:
    """Check that the broker closes the channel with that code and a text that starts like this."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        action()
    assert code == caught.value.reply_code
    assert text == caught.value.reply_text[: len(text)]


def test_the_server_looks_like_rabbitmq(connect):
    """Clients find RabbitMQ's product name, a version it has had and all of its capabilities."""
    properties = connect()._impl.server_properties
    assert "RabbitMQ" == properties["product"]
    assert (3, 8) <= tuple(map(int, properties["version"].split(".")[:2])) < (4, 0)
    assert {
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    } == {name for name, value in properties["capabilities"].items() if value is True}


def test_heartbeats_keep_an_idle_connection(connect):
    """A connection with a heartbeat of one second is open after being idle for longer than it tolerates silence."""
    connection = connect(heartbeat=1)
    connection.process_data_events(time_limit=3.2)
    assert connection.is_open
    assert 1 == connection._impl.params.heartbeat
    assert connection.channel().is_open


def test_wrong_password_is_refused(connect):
    """A wrong password is answered with 403, which pika raises as an authentication error."""
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match=r"403.*ACCESS_REFUSED"):
        connect(credentials=pika.PlainCredentials("guest", "wrong"))


def test_unknown_vhost_is_refused(connect):
    """A virtual host that does not exist is answered with 530."""
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*NOT_ALLOWED"):
        connect(virtual_host="no such vhost")


def test_confirms_and_returns(channel, unique):
    """Confirmed publishes return when accepted, and raise with the message when mandatory and unroutable."""
    queue = declare(channel)
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", queue, str(number), mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish(
            "", unique("nowhere"), b"body", pika.BasicProperties(message_id="7"), mandatory=True
        )
    (returned,) = caught.value.messages
    assert (312, "NO_ROUTE", "") == (
        returned.method.reply_code,
        returned.method.reply_text,
        returned.method.exchange,
    )
    assert ("7", b"body") == (returned.properties.message_id, returned.body)
    channel.basic_publish("", unique("nowhere"), b"dropped")
    assert [str(number).encode() for number in range(50)] == drain(channel, queue)


def test_returns_without_confirms(channel, unique):
    """A mandatory message without a queue comes back on a channel without confirms too."""
    returned = []
    channel.add_on_return_callback(
        lambda _channel, method, _properties, body: returned.append((method.reply_code, body))
    )
    channel.basic_publish("amq.direct", unique("nowhere"), b"back", mandatory=True)
    channel.queue_declare("", exclusive=True)  # its answer comes after the return
    channel.connection.process_data_events()
    assert [(312, b"back")] == returned


def test_consume_in_order_with_prefetch(channel):
    """No more than the prefetch count is unacknowledged, and order is kept."""
    queue, seen = declare(channel), []
    channel.basic_qos(prefetch_count=3)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", queue, str(number))
    channel.basic_consume(queue, lambda _channel, method, _properties, body: seen.append((method, body)))
    for taken in range(3, 10, 3):
        while len(seen) < taken:
            channel.connection.process_data_events(time_limit=5)
        assert 10 - taken == ready(channel, queue)
        assert taken == len(seen)
        channel.basic_ack(seen[-1][0].delivery_tag, multiple=True)
    while len(seen) < 10:
        channel.connection.process_data_events(time_limit=5)
    assert [str(number).encode() for number in range(10)] == [body for _method, body in seen]
    assert list(range(1, 11)) == [method.delivery_tag for method, _body in seen]


def test_cancel_and_consume_generator(channel):
    """`cancel` on the generator gives unseen messages back."""
    queue = declare(channel)
    channel.confirm_delivery()
    for number in range(6):
        channel.basic_publish("", queue, str(number))
    for method, _properties, body in channel.consume(queue, inactivity_timeout=5):
        channel.basic_ack(method.delivery_tag)
        if body == b"2":
            break
    channel.cancel()
    assert [b"3", b"4", b"5"] == drain(channel, queue)


def test_get(channel):
    """`basic.get` returns how many messages remain, and nothing on an empty queue."""
    queue = declare(channel)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    channel.basic_publish("", queue, b"2")
    method, _properties, body = channel.basic_get(queue)
    assert (1, False, "", queue, b"1") == (
        method.message_count,
        method.redelivered,
        method.exchange,
        method.routing_key,
        body,
    )
    assert b"2" == channel.basic_get(queue)[2]
    assert (None, None, None) == channel.basic_get(queue)


def test_recover(channel):
    """`basic.recover` gives all unacknowledged messages back."""
    queue = declare(channel)
    channel.basic_publish("", queue, b"1")
    assert not channel.basic_get(queue)[0].redelivered
    channel.basic_recover(requeue=True)
    assert channel.basic_get(queue)[0].redelivered


def test_transactions(channel):
    """Publishes and acks count from the commit on; a rollback forgets both."""
    queue = declare(channel)
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    assert 0 == ready(channel, queue)
    channel.tx_commit()
    assert 1 == ready(channel, queue)
    tag = channel.basic_get(queue)[0].delivery_tag
    channel.basic_ack(tag)
    channel.tx_rollback()
    channel.basic_ack(tag)
    channel.tx_commit()
    channel.basic_recover(requeue=True)
    assert 0 == ready(channel, queue)


def test_consumer_cancel_notification(connect, unique):
    """Deleting a queue notifies its consumers."""
    connection, queue, cancelled = connect(), unique("deleted"), []
    channel = connection.channel()
    channel.queue_declare(queue)
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    connection.channel().queue_delete(queue)
    while not cancelled:
        connection.process_data_events(time_limit=5)
    assert [tag] == cancelled
    assert channel.is_open


@pytest.mark.parametrize(
    ("code", "text", "action"),
    [
        (404, "NOT_FOUND - no queue 'missing' in vhost '/'", lambda channel: channel.queue_declare("missing", passive=True)),
        (406, "PRECONDITION_FAILED - inequivalent arg 'type'", lambda channel: channel.exchange_declare("amq.direct", "fanout", durable=True)),
        (403, "ACCESS_REFUSED", lambda channel: channel.queue_declare("amq.mine")),
    ],
)  # fmt: skip
def test_channel_errors(connect, code, text, action):
    """A mistake closes the channel with RabbitMQ's code and words, and the connection lives on."""
    connection = connect()
    channel = connection.channel()
    closes_channel(code, text, lambda: action(channel))
    assert channel.is_closed
    assert connection.channel().is_open


def test_publish_to_missing_exchange(connect, unique):
    """Publishing to an exchange that does not exist closes the channel."""
    channel = connect().channel()
    channel.confirm_delivery()
    closes_channel(404, "NOT_FOUND - no exchange", lambda: channel.basic_publish(unique("missing"), "", b"x"))


def test_reconnect_after_connection_error(connect, unique):
    """After an error of the connection a new one finds queue and message, the latter redelivered."""
    connection, queue = connect(), unique("survivor")
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"kept", pika.BasicProperties(delivery_mode=2))
    channel.basic_get(queue)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        channel.basic_qos(prefetch_size=1)
    assert 540 == caught.value.reply_code
    channel = connect().channel()
    method, _properties, body = next(channel.consume(queue, inactivity_timeout=5))
    assert (True, b"kept") == (method.redelivered, body)
    channel.queue_delete(queue)


def test_direct_reply_to(connect, unique):
    """A request names `amq.rabbitmq.reply-to`, and the answer comes without any queue for it."""
    client, server, requests, answers = connect().channel(), connect().channel(), unique("requests"), []
    server.queue_declare(requests, exclusive=True)

    def answer(_channel: object, _method: object, properties: pika.BasicProperties, body: bytes) -> None:
        server.basic_publish(
            "",
            properties.reply_to,
            body.upper(),
            pika.BasicProperties(correlation_id=properties.correlation_id),
        )

    server.basic_consume(requests, answer, auto_ack=True)
    client.basic_consume(
        "amq.rabbitmq.reply-to",
        lambda _channel, _method, properties, body: answers.append((properties.correlation_id, body)),
        auto_ack=True,
    )
    for number in range(3):
        client.basic_publish(
            "",
            requests,
            f"hello {number}",
            pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)),
        )
        while len(answers) <= number:
            server.connection.process_data_events(time_limit=0.01)
            client.connection.process_data_events(time_limit=0.01)
    assert [("0", b"HELLO 0"), ("1", b"HELLO 1"), ("2", b"HELLO 2")] == answers


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 5_000_000])
def test_body_sizes(channel, size):
    """Bodies of no frame, one frame, just more than one and many frames come back as they were."""
    queue = declare(channel)
    body = (uuid.uuid4().bytes * (size // 16 + 1))[:size]
    channel.confirm_delivery()
    channel.basic_publish("", queue, body)
    assert [body] == drain(channel, queue)


def test_small_frames(connect):
    """A client may agree on the smallest frames and still send and get large bodies."""
    channel = connect(frame_max=4096).channel()
    queue, body = declare(channel), bytes(range(256)) * 400
    channel.basic_publish("", queue, body)
    assert [body] == drain(channel, queue)


def test_headers_of_every_type(channel):
    """Headers of every type that pika writes come back equal."""
    queue = declare(channel)
    channel.basic_publish("", queue, b"", pika.BasicProperties(headers=EVERY_HEADER_TYPE))
    received = channel.basic_get(queue, auto_ack=True)[1].headers
    received["time"] = received["time"].replace(tzinfo=UTC)
    assert EVERY_HEADER_TYPE == received


def test_every_property(channel):
    """All properties of a message come back, also with others absent."""
    queue = declare(channel)
    properties = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {"k": "v"},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "correlation",
        "reply_to": "reply",
        "expiration": "60000",
        "message_id": "id",
        "timestamp": 1_700_000_000,
        "type": "kind",
        "user_id": "guest",
        "app_id": "tests",
        "cluster_id": "cluster",
    }
    channel.basic_publish("", queue, b"", pika.BasicProperties(**properties))
    assert pika.BasicProperties(**properties) == channel.basic_get(queue, auto_ack=True)[1]
    for name, value in properties.items():
        channel.basic_publish("", queue, b"", pika.BasicProperties(**{name: value}))
        assert pika.BasicProperties(**{name: value}) == channel.basic_get(queue, auto_ack=True)[1]


def test_unicode_names(channel, unique):
    """Names and keys are any UTF-8."""
    queue, exchange, key = unique("очередь"), unique("交換"), "ключ.🐇"
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, exchange, "*.🐇")
    channel.basic_publish(exchange, key, "тело".encode())
    method, _properties, body = channel.basic_get(queue, auto_ack=True)
    assert (exchange, key, "тело") == (method.exchange, method.routing_key, body.decode())


def test_threads(connect, unique):
    """Threads with connections of their own share a queue."""
    queue, count = unique("shared"), 200
    connect().channel().queue_declare(queue)

    def publish(number: int) -> None:
        channel = connect().channel()
        channel.confirm_delivery()
        for serial in range(count):
            channel.basic_publish("", queue, f"{number}.{serial}")

    def consume(_number: int) -> list[str]:
        channel, bodies = connect().channel(), []
        for method, _properties, body in channel.consume(queue, inactivity_timeout=1):
            if method is None:
                break
            bodies.append(body.decode())
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
        return bodies

    with ThreadPoolExecutor(8) as pool:
        consumed = [pool.submit(consume, number) for number in range(4)]
        list(pool.map(publish, range(4)))
        bodies = [future.result() for future in consumed]
    expected = {f"{number}.{serial}" for number in range(4) for serial in range(count)}
    assert expected == {body for part in bodies for body in part}
    assert len(expected) == sum(map(len, bodies))
    for part in bodies:
        for number in range(4):
            serials = [int(body.split(".")[1]) for body in part if body.startswith(f"{number}.")]
            assert sorted(serials) == serials
    connect().channel().queue_delete(queue)


def test_callbacks_from_other_threads(connect):
    """`add_callback_threadsafe` publishes from a thread that does not own the connection."""
    connection, seen = connect(), []
    channel = connection.channel()
    queue = declare(channel)
    channel.basic_consume(
        queue, lambda _channel, _method, _properties, body: seen.append(body), auto_ack=True
    )

    def work() -> None:
        connection.add_callback_threadsafe(lambda: channel.basic_publish("", queue, b"from a thread"))

    thread = threading.Thread(target=work)
    thread.start()
    while not seen:
        connection.process_data_events(time_limit=5)
    thread.join()
    assert [b"from a thread"] == seen


def test_update_secret(connect):
    """A new secret is accepted, and the connection goes on."""
    connection = connect()
    connection.update_secret("guest", "rotation")
    assert connection.channel().is_open


async def test_asyncio_connection(amqp_url):
    """The asynchronous adapter publishes with confirms and consumes."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    confirmed, consumed = [], []
    count = 500

    def on_channel(channel: pika.channel.Channel) -> None:
        def on_queue(frame: pika.frame.Method) -> None:
            queue = frame.method.queue
            channel.basic_consume(queue, on_message, auto_ack=True)
            channel.confirm_delivery(on_confirm, callback=lambda _frame: publish(queue))

        def publish(queue: str) -> None:
            for number in range(count):
                channel.basic_publish("", queue, str(number).encode())

        channel.queue_declare("", exclusive=True, callback=on_queue)

    def on_message(_channel: object, _method: object, _properties: object, body: bytes) -> None:
        consumed.append(int(body))
        finish()

    def on_confirm(frame: pika.frame.Method) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        first = (
            (confirmed[-1] if confirmed else 0) + 1 if frame.method.multiple else frame.method.delivery_tag
        )
        confirmed.extend(range(first, frame.method.delivery_tag + 1))
        finish()

    def finish() -> None:
        if len(consumed) == count and len(confirmed) == count:
            connection.close()

    connection = AsyncioConnection(
        pika.URLParameters(amqp_url),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_open_error_callback=lambda _connection, error: done.set_exception(error),
        on_close_callback=lambda _connection, _reason: done.set_result(None),
    )
    await asyncio.wait_for(done, 30)
    assert list(range(count)) == consumed
    assert list(range(1, count + 1)) == sorted(confirmed)
