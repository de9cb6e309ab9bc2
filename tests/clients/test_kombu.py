"""kombu and py-amqp, which Celery stands on: what their users rely on."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from decimal import Decimal

import amqp
import pytest
from amqp.exceptions import (
    AccessRefused,
    AMQPNotImplementedError,
    NotFound,
    PreconditionFailed,
)
from kombu import Connection, Consumer, Exchange, Producer, Queue, pools
from kombu.mixins import ConsumerProducerMixin
from kombu.pidbox import Mailbox
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)
from kombu.utils.limits import TokenBucket

# kombu 5.x on recent Pythons warns about its own use of the standard library
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:kombu.*", "ignore::DeprecationWarning:amqp.*"
)

Connect = Callable[..., Connection]


@pytest.fixture
def connect(amqp_url: str) -> Iterator[Connect]:
    """Open connections that are closed when the test is over."""
    opened = []

    def opener(password: str = "guest", vhost: str = "/", **options: object) -> Connection:
        url = amqp_url.replace("amqp:", "pyamqp:").replace("guest:guest", f"guest:{password}")
        opened.append(Connection(f"{url}/{vhost}", **options))
        return opened[-1]

    yield opener
    for connection in opened:
        connection.release()


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect(transport_options={"confirm_publish": True})


def exclusive(connection: Connection, name: str, **options: object) -> Queue:
    queue = Queue(name, exclusive=True, durable=False, **options)(connection.default_channel)
    queue.declare()
    return queue


def drain(queue: Queue) -> list[object]:
    """The bodies that are ready now."""
    bodies = []
    while (message := queue.get(no_ack=True)) is not None:
        bodies.append(message.payload)
    return bodies


def test_global_prefetch_is_recognised(connection):
    """Kombu takes the server for a RabbitMQ in which `global` means the channel."""
    assert connection.connect() is not None
    assert not connection.qos_semantics_matches_spec


def test_capabilities_are_negotiated(connect, host_and_port):
    """py-amqp announces what the server announced: cancel notices, blocked notices and clear login failures."""
    with amqp.Connection("{}:{}".format(*host_and_port)) as connection:
        connection.connect()
        assert {"consumer_cancel_notify", "connection.blocked", "authentication_failure_close"} == set(
            connection.client_properties["capabilities"]
        )
        assert connection.server_capabilities["basic.nack"]


def test_wrong_password(connect):
    """A wrong password is refused."""
    with pytest.raises(AccessRefused, match="ACCESS_REFUSED - Login was refused"):
        connect("wrong").connect()


def test_unknown_vhost(connect):
    """A virtual host that does not exist is refused."""
    with pytest.raises(amqp.exceptions.NotAllowed, match="NOT_ALLOWED - vhost missing not found"):
        connect(vhost="missing").connect()


def test_heartbeat(connect):
    """Heartbeats flow both ways while the client drains."""
    connection = connect(heartbeat=3)
    connection.connect()
    for _ in range(5):
        connection.heartbeat_check(rate=2)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=1.4)
    assert connection.connected
    assert 3 == connection.get_heartbeat_interval()
    assert connection.connection.bytes_recv > connection.connection.prev_recv - 1


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_exchanges(connection, unique, kind, compression):
    """A producer and a consumer meet at every type of exchange, with compressed bodies too."""
    exchange = Exchange(unique(kind), kind, durable=False, auto_delete=True)
    queue = exclusive(
        connection, unique("queue"), exchange=exchange, routing_key="key", binding_arguments={"k": "v"}
    )
    Producer(connection).publish(
        {"hello": "wörld"},
        exchange=exchange,
        routing_key="key",
        headers={"k": "v"},
        declare=[exchange],
        serializer="json",
        compression=compression,
    )
    seen = []

    def take(body: object, message: object) -> None:
        seen.append(body)
        message.ack()

    with Consumer(connection, queue, callbacks=[take]):
        connection.drain_events(timeout=5)
        assert queue.get() is None
    assert [{"hello": "wörld"}] == seen


def test_confirms_and_returns(connection, unique):
    """Confirmed publishes are accepted in order; mandatory unroutable ones come back."""
    queue, returned = exclusive(connection, unique("queue")), []
    producer = Producer(connection, on_return=lambda error, *_: returned.append(error.reply_code))
    for number in range(50):
        producer.publish(number, routing_key=queue.name, mandatory=True)
    assert list(range(50)) == drain(queue)
    producer.publish("x", routing_key=unique("nowhere"), mandatory=True)
    assert [312] == returned


def test_simple_queue(connection, unique):
    """The simple interface puts, gets, counts and clears."""
    with connection.SimpleQueue(unique("simple"), queue_opts={"exclusive": True, "durable": False}) as queue:
        for number in range(5):
            queue.put({"number": number})
        assert 5 == queue.qsize()
        message = queue.get(timeout=5)
        assert {"number": 0} == message.payload
        message.ack()
        for number in range(1, 5):
            assert {"number": number} == queue.get(timeout=5).payload
        assert 0 == queue.clear()
        with pytest.raises(queue.Empty):
            queue.get(block=False)


def test_transactions(connect, unique):
    """py-amqp's transactions count from their commit."""
    connection = connect()
    queue, channel = exclusive(connection, unique("queue")), connection.default_channel
    channel.tx_select()
    for body, finish in (("1", channel.tx_commit), ("2", channel.tx_rollback)):
        channel.basic_publish(amqp.Message(body), routing_key=queue.name)
        finish()
    assert ["1"] == drain(queue)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (NotFound, lambda channel: channel.queue_declare("missing", passive=True)),
        (NotFound, lambda channel: channel.basic_get("missing")),
        (NotFound, lambda channel: channel.exchange_declare("missing", "direct", passive=True)),
        (PreconditionFailed, lambda channel: channel.exchange_declare("amq.direct", "fanout", durable=True)),
        (AccessRefused, lambda channel: channel.queue_declare("amq.mine")),
        (AccessRefused, lambda channel: channel.exchange_delete("amq.topic")),
        (AccessRefused, lambda channel: channel.queue_bind("any", "")),
    ],
)
def test_channel_errors(connect, error, action):
    """Each code of a closed channel becomes py-amqp's exception, and the connection lives on."""
    connection = connect()
    with pytest.raises(error):
        action(connection.channel())
    assert connection.channel().is_open


def test_connection_error_and_reconnection(connect, unique):
    """An error of the connection is recoverable: `ensure` connects again and repeats the publish."""
    connection = connect()
    with pytest.raises(AMQPNotImplementedError):
        connection.channel().basic_qos(1, 0, a_global=False)
    assert not connection.connected

    connection = connect(transport_options={"confirm_publish": True})
    name, failures = unique("queue"), []
    queue = Queue(name, durable=True)(connection.default_channel)
    queue.declare()
    producer = Producer(connection)
    connection.connection.sock.shutdown(socket.SHUT_RDWR)
    publish = connection.ensure(
        producer,
        producer.publish,
        errback=lambda error, _wait: failures.append(error),
        max_retries=3,
        interval_start=0,
    )
    publish("again", routing_key=name)
    assert failures
    queue = Queue(name, durable=True)(connection.default_channel)
    assert ["again"] == drain(queue)
    queue.delete()


def test_headers_and_properties(connection, unique):
    """Headers of every type and all properties come back as they were sent."""
    queue = exclusive(connection, unique("queue"))
    headers = {
        "none": None,
        "bool": True,
        "int": -5,
        "long": 2**40,
        "double": 0.5,
        "decimal": Decimal("12.5"),
        "text": "Grüße",
        "time": datetime(2024, 2, 29, 12, 30, 15),  # noqa: DTZ001 - py-amqp reads UTC without a zone
        "list": [1, "two", [3]],
        "table": {"deep": {"deeper": 1}},
    }
    properties = {
        "delivery_mode": 1,
        "priority": 4,
        "correlation_id": "correlation",
        "reply_to": "reply",
        "expiration": "60000",
        "message_id": "id",
        "type": "kind",
        "user_id": "guest",
        "app_id": "tests",
    }
    connection.default_channel.basic_publish(
        amqp.Message("body", application_headers=headers, **properties), routing_key=queue.name
    )
    message = queue.get(no_ack=True)
    assert headers == message.headers
    assert properties == {name: message.properties[name] for name in properties}


def test_unicode_names(connection, unique):
    """Names and keys are any UTF-8."""
    exchange = Exchange(unique("交換"), "topic", durable=False, auto_delete=True)
    queue = exclusive(connection, unique("очередь"), exchange=exchange, routing_key="*.兎")
    Producer(connection).publish("x", exchange=exchange, routing_key="ключ.兎")
    assert "ключ.兎" == queue.get(no_ack=True).delivery_info["routing_key"]


def test_pools(amqp_url, unique):
    """Producers and connections from the global pools are used again."""
    name, template = unique("queue"), Connection(amqp_url)
    for number in range(10):
        with pools.producers[template].acquire(block=True) as producer:
            producer.publish(number, routing_key=name, declare=[Queue(name, durable=True)])
    with pools.connections[template].acquire(block=True) as connection:
        queue = Queue(name)(connection.default_channel)
        assert list(range(10)) == drain(queue)
        queue.delete()
    pools.reset()
    template.release()


def test_consumer_mixin(connect, unique):
    """A service on the mixin answers requests over direct reply-to or a queue of the client."""
    name = unique("requests")

    class Service(ConsumerProducerMixin):
        restart_limit = TokenBucket(10)

        def __init__(self, connection: Connection) -> None:
            self.connection = connection

        def get_consumers(self, consumer: type[Consumer], channel: object) -> list[Consumer]:
            return [consumer([Queue(name, auto_delete=True, durable=False)], on_message=self.answer)]

        def on_consume_ready(self, connection: Connection, *_rest: object, **_options: object) -> None:
            for reply_to in (answers.name, "amq.rabbitmq.reply-to"):
                Producer(client).publish(
                    "hello", routing_key=name, reply_to=reply_to, correlation_id=reply_to
                )

        def answer(self, message: object) -> None:
            self.producer.publish(
                message.payload.upper(),
                routing_key=message.properties["reply_to"],
                correlation_id=message.properties["correlation_id"],
            )
            message.ack()
            seen.append(message.properties["reply_to"])
            self.should_stop = len(seen) == 2

    seen: list[str] = []
    received: list[tuple[str, str]] = []
    client = connect()
    answers = exclusive(client, unique("answers"))

    def take(body: str, message: object) -> None:
        received.append((message.properties["correlation_id"], body))

    direct = Queue("amq.rabbitmq.reply-to", no_declare=True)
    channel = client.default_channel
    with Consumer(channel, [answers, direct], callbacks=[take], no_ack=True, auto_declare=False):
        with suppress(socket.timeout):
            Service(connect()).run(timeout=5)
        while len(received) < 2:
            client.drain_events(timeout=5)
    assert {(answers.name, "HELLO"), ("amq.rabbitmq.reply-to", "HELLO")} == set(received)
    assert seen[1].startswith("amq.rabbitmq.reply-to.")


def test_mailbox(connect, unique):
    """Remote control reaches its node and the answer comes back."""
    mailbox, server, client = Mailbox(unique("mailbox"), type="fanout"), connect(), connect()
    node = mailbox.Node("node", channel=server.default_channel, state=None)
    node.handlers["double"] = lambda _state, number: number * 2
    consumer = node.listen()
    serving = threading.Thread(target=server.drain_events, kwargs={"timeout": 10})
    serving.start()
    assert [{"node": 42}] == mailbox(client).multi_call("double", {"number": 21}, timeout=10, limit=1)
    serving.join()
    consumer.cancel()


def test_delayed_delivery(connection, unique):
    """Tasks of Celery wait in the broker: in queues that pass on to the next what has expired."""
    prefix, channel = unique("delayed"), connection.default_channel
    declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum", prefix)
    queue = Queue(
        unique("q"),
        Exchange(unique("e"), type="topic"),
        "tasks",
        queue_arguments={"x-queue-type": "quorum"},
    )(channel)
    queue.declare()
    bind_queue_to_native_delayed_delivery_exchange(connection, queue, prefix)
    started, producer = time.monotonic(), Producer(channel)
    for seconds in (3, 1):
        key = calculate_routing_key(seconds, "tasks")
        producer.publish(seconds, exchange=level_name(27, prefix), routing_key=key, delivery_mode=2)
    arrived = []

    def take(seconds: int, message: object) -> None:
        assert seconds <= time.monotonic() - started
        arrived.append((seconds, len(message.headers["x-death"])))
        message.ack()

    with Consumer(channel, [queue], callbacks=[take]):
        while len(arrived) < 2:
            connection.drain_events(timeout=10)
    assert [(1, 1), (3, 2)] == arrived

    for level in range(28):
        channel.queue_delete(level_name(level, prefix))
        channel.exchange_delete(level_name(level, prefix))
    channel.exchange_delete(f"{prefix}_celery_delayed_delivery")
    channel.queue_delete(queue.name)
    channel.exchange_delete(queue.exchange.name)
