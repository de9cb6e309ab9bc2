"""Work that a stopping broker completes."""

import signal
from pathlib import Path

from conformance.wire import Channel, Client
from processes.running import serving

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
COUNT = 20_000


def rejected(channel: Channel, name: str, **options: object) -> None:
    """Reject all messages of a queue at once, and wait until the broker has received that."""
    channel.queue(name, arguments=DEAD, **options)
    for number in range(COUNT):
        channel.publish("", name, b"%d" % number, delivery_mode=2)
    channel.consume(name)
    for _ in range(COUNT):
        channel.deliver()
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    channel.call("basic.qos", prefetch_count=0)


def test_a_stop_waits_for_dead_letters(tmp_path: Path) -> None:
    """Messages rejected before SIGTERM are dead-lettered, though their queues and connections end with the stop."""
    with serving(tmp_path) as broker:
        client = Client(broker.address, 30.0).login()
        channel = client.channel()
        channel.queue("dead", durable=True)
        rejected(channel, "mine", exclusive=True)
        broker.process.send_signal(signal.SIGTERM)
        client.receive(0, "connection.close")
        client.close_socket()
        broker.process.communicate(timeout=60)
    with serving(tmp_path) as broker:
        client = Client(broker.address, 30.0).login()
        channel = client.channel()
        ready = channel.ready("dead", COUNT, within=30)
        first = channel.get("dead")
        client.close_socket()

        assert (COUNT, b"0") == (ready, first)
        broker.process.send_signal(signal.SIGTERM)
        broker.process.communicate(timeout=60)
