"""A real client against a publish limit: it is slowed down, and nothing is lost."""

import time

import pika
from processes.running import serving

RATE = 200
COUNT = 700
LEAST_SECONDS = (COUNT - RATE) / RATE / 2
"""Half of what the limit asks for beyond the first second: what is read at once, and the clock of a busy machine."""


def test_a_fast_publisher_is_slowed_down(tmp_path):
    """It takes as long as the limit says, and every message is confirmed, in its order, and consumed meanwhile."""
    with serving(tmp_path, "--set", f"connection_max_publish_rate={RATE}") as running:
        host, port = running.address
        with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            began = time.monotonic()
            for number in range(COUNT):
                channel.basic_publish("", "q", b"%05d" % number)
            channel.queue_declare("q", passive=True)  # answered after everything before it was read
            seconds = time.monotonic() - began
            bodies = [channel.basic_get("q", auto_ack=True)[2] for _ in range(COUNT)]

    assert [b"%05d" % number for number in range(COUNT)] == bodies
    assert seconds > LEAST_SECONDS


def test_acks_beside_a_paced_publisher_are_taken_at_once(tmp_path):
    """A consumer on another connection has taken and acked everything before the publisher has been read."""
    with serving(tmp_path, "--set", f"connection_max_publish_rate={RATE}") as running:
        parameters = pika.ConnectionParameters(*running.address)
        with pika.BlockingConnection(parameters) as paced, pika.BlockingConnection(parameters) as other:
            publisher, consumer = paced.channel(), other.channel()
            publisher.queue_declare("paced")
            consumer.queue_declare("q")
            for _ in range(RATE):
                consumer.basic_publish("", "q", b"")
            for _ in range(COUNT):
                publisher.basic_publish("", "paced", b"")
            for _, (method, _, _) in zip(
                range(RATE), consumer.consume("q", inactivity_timeout=60), strict=False
            ):
                consumer.basic_ack(method.delivery_tag)
            consumer.cancel()
            unacked = consumer.queue_declare("q", passive=True).method.message_count
            arrived = consumer.queue_declare("paced", passive=True).method.message_count

    assert 0 == unacked
    assert arrived < COUNT
