"""A pika publisher who wants confirms, and a broker for which consumers answer."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingChannel
from processes.running import serving

SECONDS = 20
MODE = ("--set", "confirm.mode=consumer-ack")
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Publisher:
    """A channel in confirm mode of a connection of its own.

    Args:
        address: the broker's.

    Attributes:
        confirms: names of methods and delivery tags, in the order of arrival.

    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.confirms: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.connection = AsyncioConnection(
            pika.ConnectionParameters(*address),
            on_open_callback=lambda opened: opened.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _connection, error: self._ready.set_exception(error),
            on_close_callback=lambda _connection, _reason: self.closed.set_result(None),
        )

    def _opened(self, channel: pika.channel.Channel) -> None:
        self.channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._ready.set_result(None))

    def _on_confirm(self, frame: pika.frame.Method) -> None:
        self.confirms.put_nowait((frame.method.NAME, frame.method.delivery_tag))

    async def ready(self) -> None:
        """Wait until it may publish."""
        await asyncio.wait_for(self._ready, SECONDS)

    async def round_trip(self) -> None:
        """Wait for an answer of the broker: all it sent before has come by then."""
        answered = asyncio.get_running_loop().create_future()
        self.channel.exchange_declare("amq.fanout", passive=True, callback=answered.set_result)
        await asyncio.wait_for(answered, SECONDS)

    async def next_confirm(self) -> tuple[str, int]:
        return await asyncio.wait_for(self.confirms.get(), SECONDS)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[tuple[str, int]]:
    with serving(tmp_path_factory.mktemp("broker"), *MODE) as running:
        yield running.address


class Consumer:
    """A channel that consumes, on a connection of its own.

    Args:
        address: the broker's.

    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(*address))
        self.channel: BlockingChannel = self.connection.channel()
        self.tags: list[int] = []
        """Tags of the deliveries."""

    def consume(self, queue: str, **options: object) -> None:
        """Declare a durable queue, bound to the fanout exchange, and consume. It goes with this consumer."""
        self.channel.queue_declare(queue, durable=True, auto_delete=True, **options)
        self.channel.queue_bind(queue, "amq.fanout")
        self.channel.basic_consume(queue, lambda _channel, method, *_: self.tags.append(method.delivery_tag))

    async def delivered(self, count: int) -> None:
        """Wait until so many messages have come in all."""
        while len(self.tags) < count:
            await asyncio.to_thread(self.connection.process_data_events, SECONDS)

    def ack(self, tag: int, **options: bool) -> None:
        """Ack, and wait until the broker has that."""
        self.channel.basic_ack(tag, **options)
        self.channel.exchange_declare("amq.fanout", passive=True)


@pytest.fixture
def consumer(address) -> Iterator[Consumer]:
    """A consumer that consumes nothing yet."""
    made = Consumer(address)
    with closing(made.connection):
        yield made


@pytest.fixture
async def publisher(address) -> AsyncIterator[Publisher]:
    made = Publisher(address)
    await made.ready()
    yield made
    made.connection.close()
    await asyncio.wait_for(made.closed, SECONDS)


async def test_no_confirm_before_the_ack(publisher, consumer):
    """A message that was delivered is not confirmed, one whose consumer has acked it is."""
    consumer.consume("q")
    publisher.channel.basic_publish("", "q", b"1", PERSISTENT)
    await consumer.delivered(1)
    await publisher.round_trip()
    assert publisher.confirms.empty()

    consumer.ack(1)

    assert ("Basic.Ack", 1) == await publisher.next_confirm()


async def test_two_queues_answer_both(publisher, consumer):
    """A message that went to two queues is confirmed when it was acked in the second one."""
    consumer.consume("q")
    consumer.consume("r")
    publisher.channel.basic_publish("amq.fanout", "", b"1", PERSISTENT)
    await consumer.delivered(2)
    consumer.ack(consumer.tags[0])
    await publisher.round_trip()
    assert publisher.confirms.empty()

    consumer.ack(consumer.tags[1])

    assert ("Basic.Ack", 1) == await publisher.next_confirm()
    await publisher.round_trip()
    assert publisher.confirms.empty()


async def test_a_queue_that_is_standard_beside_it(publisher, consumer):
    """A queue of a consumer-ack broker may ask to be confirmed by the disk."""
    consumer.consume("q", arguments={"x-confirm-mode": "standard"})
    publisher.channel.basic_publish("", "q", b"1", PERSISTENT)

    assert ("Basic.Ack", 1) == await publisher.next_confirm()
    await consumer.delivered(1)


async def test_the_broker_gives_it_up(publisher, consumer):
    """A message that is purged before anybody consumed it is nacked."""
    consumer.channel.queue_declare("given up", durable=True)
    publisher.channel.basic_publish("", "given up", b"1", PERSISTENT)
    await publisher.round_trip()
    assert publisher.confirms.empty()

    consumer.channel.queue_purge("given up")

    assert ("Basic.Nack", 1) == await publisher.next_confirm()


async def test_a_stop_keeps_what_was_not_confirmed(tmp_path):
    """Persistent messages that nobody has consumed are there after a stop, in order, and were never confirmed."""
    with serving(tmp_path, *MODE) as running:
        publisher = Publisher(running.address)
        await publisher.ready()
        publisher.channel.queue_declare("q", durable=True)
        for number in range(600):
            publisher.channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        publisher.channel.basic_publish("", "q", b"transient")
        await publisher.round_trip()
        code, _, err = await asyncio.to_thread(running.stopped_by, signal.SIGTERM)
        await asyncio.wait_for(publisher.closed, SECONDS)
    assert (0, "") == (code, err)
    assert publisher.confirms.empty()

    with (
        serving(tmp_path, *MODE) as running,
        closing(pika.BlockingConnection(pika.ConnectionParameters(*running.address))) as connection,
    ):
        channel = connection.channel()
        count = channel.queue_declare("q", passive=True).method.message_count
        found = [channel.basic_get("q", auto_ack=True) for _ in range(count)]

    assert [(number, False) for number in range(600)] == [
        (int(body), method.redelivered) for method, _, body in found
    ]
