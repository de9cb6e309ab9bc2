"""The first thing a new user tries: ten thousand confirmed messages through all types of exchange."""

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

MESSAGES = 10_000
KINDS = ("topic", "fanout", "direct", "headers")


@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    connection.close()


@pytest.mark.timeout(240)
def test_ten_thousand_confirmed_messages(channel, unique):
    """Confirmed publishes to a topic, a fanout, a direct and a headers exchange are consumed in order, each once."""
    exchanges = {kind: unique(kind) for kind in KINDS}
    queues = {}
    for kind, exchange in exchanges.items():
        channel.exchange_declare(exchange, kind, durable=True)
        queues[kind] = channel.queue_declare(unique(f"{kind}.queue"), durable=True).method.queue
        channel.queue_bind(
            queues[kind], exchange, "orders.*" if kind == "topic" else "orders.eu", {"kind": kind}
        )
    channel.confirm_delivery()
    for number in range(MESSAGES):
        kind = KINDS[number % len(KINDS)]
        properties = pika.BasicProperties(delivery_mode=2, headers={"kind": kind}, message_id=str(number))
        channel.basic_publish(exchanges[kind], "orders.eu", f"{kind} {number}", properties, mandatory=True)

    for start, kind in enumerate(KINDS):
        bodies = []
        for method, properties, body in channel.consume(queues[kind], inactivity_timeout=5):
            assert method is not None
            assert body.decode() == f"{kind} {properties.message_id}"
            bodies.append(int(properties.message_id))
            channel.basic_ack(method.delivery_tag)
            if len(bodies) == MESSAGES // len(KINDS):
                break
        assert 0 == channel.cancel()
        assert list(range(start, MESSAGES, len(KINDS))) == bodies
        assert 0 == channel.queue_delete(queues[kind]).method.message_count
        channel.exchange_delete(exchanges[kind])
