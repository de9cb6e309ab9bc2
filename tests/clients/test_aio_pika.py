"""aio-pika: what its users rely on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    AuthenticationError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    InvalidFrameError,
    ProbableAuthenticationError,
    PublishError,
)
from aio_pika.patterns import RPC, Master
from aiormq.exceptions import (
    ChannelAccessRefused,
    ConnectionNotAllowed,
    ConnectionNotImplemented,
)

HEADERS = {
    "none": None,
    "bool": True,
    "small": 1,
    "negative": -129,
    "long": 2**40,
    "double": 2.5,
    "decimal": Decimal("1.25"),
    "text": "Grüße",
    "time": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "list": [1, "two", {"three": 3}],
    "table": {"deep": {"deeper": True}},
}


@pytest.fixture
async def connection(amqp_url: str) -> AsyncIterator[AbstractConnection]:
    async with await aio_pika.connect(amqp_url) as opened:
        yield opened


@pytest.fixture
async def channel(connection: AbstractConnection) -> AsyncIterator[AbstractChannel]:
    """A channel with confirms, as aio-pika opens it by default."""
    async with connection.channel() as opened:
        yield opened


async def send(channel: AbstractChannel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        await channel.default_exchange.publish(aio_pika.Message(body), queue)


async def drain(queue: AbstractQueue) -> list[bytes]:
    """The bodies that are ready now."""
    bodies = []
    while (message := await queue.get(fail=False, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


class Proxy:
    """Passes octets on to the broker until asked to drop all its connections."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection(*self.target)
        self.writers += [writer, back_writer]
        for source, sink in ((reader, back_writer), (back_reader, writer)):
            self.tasks.add(asyncio.create_task(self.pump(source, sink)))

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while octets := await source.read(65536):
                sink.write(octets)
                await sink.drain()
        sink.close()

    def drop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def stop(self) -> None:
        self.server.close()
        self.drop()
        await asyncio.gather(*self.tasks)


async def test_wrong_password(amqp_url):
    """A wrong password is an authentication error."""
    with pytest.raises((AuthenticationError, ProbableAuthenticationError)):
        await aio_pika.connect(amqp_url.replace("guest:guest", "guest:wrong"))


async def test_unknown_vhost(amqp_url):
    """A virtual host that does not exist is refused with 530."""
    with pytest.raises((ConnectionNotAllowed, InvalidFrameError), match=r"Connection.Close|NOT_ALLOWED"):
        await aio_pika.connect(f"{amqp_url}/missing")


async def test_confirms(channel):
    """A hundred publishes at once are all confirmed."""
    queue = await channel.declare_queue(exclusive=True)
    answers = await asyncio.gather(
        *(
            channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
            for number in range(100)
        )
    )
    assert {"Basic.Ack"} == {answer.name for answer in answers}
    assert [b"%d" % number for number in range(100)] == await drain(queue)


async def test_mandatory(connection, unique):
    """A mandatory message without a queue raises where asked to, and is handed to callbacks otherwise."""
    async with connection.channel(on_return_raises=True) as channel:
        with pytest.raises((DeliveryError, PublishError)):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), unique("nowhere"))
    async with connection.channel() as channel:
        returned = asyncio.get_running_loop().create_future()
        channel.return_callbacks.add(lambda _channel, message: returned.set_result(message))
        await channel.default_exchange.publish(aio_pika.Message(b"back"), unique("nowhere"))
        assert b"back" == (await asyncio.wait_for(returned, 5)).body


async def test_iterator(channel):
    """The queue iterator yields in order, and what it had fetched too much goes back when it ends."""
    queue = await channel.declare_queue(exclusive=True)
    await send(channel, queue.name, *(b"%d" % number for number in range(10)))
    seen = []
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                seen.append(message.body)
            if len(seen) == 4:
                break
    assert [b"0", b"1", b"2", b"3"] == seen
    assert [b"%d" % number for number in range(4, 10)] == await drain(queue)


async def test_prefetch(channel):
    """With a prefetch count of two only two messages are being worked on."""
    await channel.set_qos(prefetch_count=2)
    queue = await channel.declare_queue(exclusive=True)
    arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    tag = await queue.consume(arrived.put)
    await send(channel, queue.name, *(b"%d" % number for number in range(5)))
    first, second = await arrived.get(), await arrived.get()
    assert 3 == (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count
    assert arrived.empty()
    await second.ack(multiple=True)
    assert (b"0", b"2") == (first.body, (await asyncio.wait_for(arrived.get(), 5)).body)
    await queue.cancel(tag)


async def test_process_requeues_on_failure(channel):
    """`process(requeue=True)` gives the message back when the handler fails."""
    queue = await channel.declare_queue(exclusive=True)
    await send(channel, queue.name, b"1")
    with pytest.raises(ZeroDivisionError):
        async with (await queue.get()).process(requeue=True):
            _ = 1 / 0
    assert (await queue.get(no_ack=True)).redelivered


async def publish_and_fail(channel: AbstractChannel, queue: str) -> None:
    """A transaction that does not come to its end."""
    async with channel.transaction():
        await send(channel, queue, b"2")
        raise ZeroDivisionError


async def test_transactions(connection):
    """A transaction publishes at its end, and nothing when it fails."""
    async with connection.channel(publisher_confirms=False) as channel:
        queue = await channel.declare_queue(exclusive=True)
        async with channel.transaction():
            await send(channel, queue.name, b"1")
            assert (
                0 == (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count
            )
        with pytest.raises(ZeroDivisionError):
            await publish_and_fail(channel, queue.name)
        assert [b"1"] == await drain(queue)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (ChannelNotFoundEntity, lambda channel: channel.get_queue("missing")),
        (ChannelNotFoundEntity, lambda channel: channel.get_exchange("missing")),
        (
            ChannelPreconditionFailed,
            lambda channel: channel.declare_exchange("amq.direct", "fanout", durable=True),
        ),
        (ChannelAccessRefused, lambda channel: channel.declare_queue("amq.mine")),
        (ChannelAccessRefused, lambda channel: channel.exchange_delete("amq.direct")),
    ],
)
async def test_channel_errors(connection, error, action):
    """Each code of a closed channel becomes aio-pika's own exception, and the connection lives on."""
    channel = await connection.channel()
    with pytest.raises(error):
        await action(channel)
    assert channel.is_closed
    async with connection.channel() as other:
        assert (await other.declare_queue(exclusive=True)).name.startswith("amq.gen-")


async def test_connection_error(amqp_url):
    """A prefetch size is not implemented, which costs the connection."""
    connection = await aio_pika.connect(amqp_url)
    channel = await connection.channel()
    with pytest.raises(ConnectionNotImplemented):
        await channel.set_qos(prefetch_size=1)
    await connection.close()


async def test_headers_and_properties(channel):
    """Headers of every type and all properties come back as they were sent."""
    queue = await channel.declare_queue(exclusive=True)
    properties = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "priority": 3,
        "correlation_id": "correlation",
        "reply_to": "reply",
        "message_id": "id",
        "timestamp": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        "type": "kind",
        "app_id": "tests",
        "user_id": "guest",
        "expiration": 60,
        "delivery_mode": aio_pika.DeliveryMode.PERSISTENT,
    }
    await channel.default_exchange.publish(aio_pika.Message(b"x", headers=HEADERS, **properties), queue.name)
    message = await queue.get(no_ack=True)
    assert HEADERS == dict(message.headers)
    assert properties == {name: getattr(message, name) for name in properties}


async def test_unicode_keys(channel):
    """Keys are any UTF-8; the names of queues are kept to ASCII by the client itself."""
    queue = await channel.declare_queue(exclusive=True)
    await queue.bind("amq.topic", "*.兎")
    exchange = await channel.get_exchange("amq.topic")
    await exchange.publish(aio_pika.Message(b"x"), "ключ.兎")
    assert "ключ.兎" == (await queue.get(no_ack=True)).routing_key


async def test_rpc_pattern(connection):
    """The RPC pattern calls a function, and its failures come back."""
    async with connection.channel() as channel:
        rpc = await RPC.create(channel)

        async def multiply(*, x: int, y: int) -> int:
            await asyncio.sleep(0)
            return x * y

        await rpc.register("test.multiply", multiply, auto_delete=True)
        assert [number * 7 for number in range(20)] == await asyncio.gather(
            *(rpc.proxy.test.multiply(x=number, y=7) for number in range(20))
        )
        with pytest.raises(TypeError):
            await rpc.call("test.multiply", kwargs={"x": 1})
        await rpc.unregister(multiply)
        await rpc.close()


async def test_master_pattern(connection, unique):
    """The master pattern hands tasks to workers."""
    async with connection.channel() as channel:
        master, done = Master(channel), asyncio.Queue()

        async def task(*, number: int) -> None:
            await done.put(number)

        name = unique("tasks")
        worker = await master.create_worker(name, task, auto_delete=True)
        for number in range(10):
            await master.create_task(name, {"number": number})
        assert set(range(10)) == {await asyncio.wait_for(done.get(), 5) for _ in range(10)}
        await worker.close()


async def test_direct_reply_to(connection, unique):
    """Answers come over `amq.rabbitmq.reply-to` without a queue."""
    async with connection.channel() as client, connection.channel() as server:
        requests = await server.declare_queue(unique("requests"), exclusive=True)

        async def answer(message: AbstractIncomingMessage) -> None:
            await server.default_exchange.publish(aio_pika.Message(message.body.upper()), message.reply_to)

        await requests.consume(answer, no_ack=True)
        answers: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        replies = await client.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await replies.consume(answers.put, no_ack=True)
        request = aio_pika.Message(b"hello", reply_to="amq.rabbitmq.reply-to")
        await client.default_exchange.publish(request, requests.name)
        assert b"HELLO" == (await asyncio.wait_for(answers.get(), 5)).body


async def test_robust_connection(host_and_port, unique):
    """After its connection was lost a robust client is back with queue, binding, prefetch and consumer."""
    proxy = Proxy(*host_and_port)
    await proxy.start()
    connection = await aio_pika.connect_robust(
        f"amqp://guest:guest@127.0.0.1:{proxy.port}/", reconnect_interval=0.1
    )
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=5)
    exchange = await channel.declare_exchange(unique("exchange"), "direct", auto_delete=True)
    queue = await channel.declare_queue(unique("queue"), exclusive=True)
    await queue.bind(exchange, "key")
    arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    await queue.consume(arrived.put)
    await exchange.publish(aio_pika.Message(b"before"), "key")
    await (await asyncio.wait_for(arrived.get(), 5)).ack()

    restored = asyncio.Event()
    connection.reconnect_callbacks.add(lambda *_: restored.set())
    proxy.drop()
    await asyncio.wait_for(restored.wait(), 20)
    await channel.ready()
    await exchange.publish(aio_pika.Message(b"after"), "key")
    assert b"after" == (await asyncio.wait_for(arrived.get(), 5)).body
    await connection.close()
    await proxy.stop()
