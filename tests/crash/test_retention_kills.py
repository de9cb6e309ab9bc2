"""Kills of a broker that retains: each confirmed message is in its queue, retained or among the latest acks."""

import contextlib
import random
import threading

import pika
import pika.exceptions
import pytest
from processes.running import serving

from leveret.broker.embedded.synchronous import Broker

KILLS = 3
RETAIN = {"x-retain-for": 3_600_000}
BODY = b"%08d" + b"x" * 100
LARGE = 50
"""Every message of such a number has a body that is stored apart from its record."""
Address = tuple[str, int]


def publish(address: Address, numbers: list[int], confirmed: set[int]) -> None:
    """Publish messages of further numbers until the broker ends; note those that it confirms."""
    with contextlib.suppress(pika.exceptions.AMQPError, OSError):
        connection = pika.BlockingConnection(pika.ConnectionParameters(*address))
        channel = connection.channel()
        channel.confirm_delivery()
        while True:
            numbers[0] = number = numbers[0] + 1
            body = BODY % number * (1 if number % LARGE else 100)
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
            confirmed.add(number)


def consume(address: Address, acked: set[int]) -> None:
    """Ack messages until the broker ends, some of them together; note their numbers."""
    with contextlib.suppress(pika.exceptions.AMQPError, OSError):
        connection = pika.BlockingConnection(pika.ConnectionParameters(*address))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        delivered = []
        for method, _, body in channel.consume("q"):
            delivered.append(int(body[:8]))
            if method.delivery_tag % 3 == 0:
                acked.update(delivered)
                channel.basic_ack(method.delivery_tag, multiple=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [{}, {"x-max-priority": 2}, {"x-queue-type": "quorum"}])
def test_confirmed_messages_are_in_their_queue_or_retained(tmp_path, kind):
    """After kills confirmed messages are in their queue, retained, or acked after all that are retained; none twice."""
    confirmed: set[int] = set()
    acked: set[int] = set()
    missing: set[int] = set()
    numbers = [0]
    chance = random.Random(7)
    retained: list[int] = []
    for _ in range(KILLS):
        with serving(tmp_path) as running:
            with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as connection:
                connection.channel().queue_declare("q", durable=True, arguments={**RETAIN, **kind})
            threads = [
                threading.Thread(target=publish, args=(running.address, numbers, confirmed)),
                threading.Thread(target=consume, args=(running.address, acked)),
            ]
            for thread in threads:
                thread.start()
            threads[1].join(chance.uniform(0.3, 1.0))
            running.process.kill()
            for thread in threads:
                thread.join()
        with Broker(data_dir=running.data_dir) as broker:
            broker.declare("check")
            ready = [int(message.body[:8]) for message in broker.queue("q").messages]
            broker.queue("q").replay("check")
            retained = [int(message.body[:8]) for message in broker.queue("check").messages]
            broker.queue("check").delete()

        lost = confirmed - {*ready, *retained} - missing
        assert lost <= acked
        assert not lost or min(lost) > max(retained, default=0)
        missing |= lost
        assert set() == {*ready} & {*retained}
        assert len(retained) == len({*retained})

    assert len(retained) > KILLS
