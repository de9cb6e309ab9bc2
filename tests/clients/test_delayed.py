"""Delayed messages with pika, and a broker of their own that may be killed."""

import signal
import time
from pathlib import Path
from statistics import median

import pika
import pytest
from processes.running import Running

DAY = 86_400_000


def started(tmp_path: Path) -> Running:
    """A broker that clients may connect to."""
    broker = Running(tmp_path)
    broker.wait_for("startup complete")
    return broker


def connect(broker: Running) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(*broker.address, heartbeat=0))


def declare(channel, inner: str = "direct") -> None:
    """A durable exchange that delays, and a durable queue bound to it."""
    channel.exchange_declare("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": inner})
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "d", "k")


def publish(channel, delay: int, body: bytes, **options) -> None:
    """Publish a persistent message with a delay in ms."""
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay}, **options)
    channel.basic_publish("d", "k", body, properties)


def received(channel, count: int) -> list[tuple[bytes, object, float]]:
    """The next messages: body, the header `x-delay`, and when they came (epoch ms)."""
    found = []
    for method, properties, body in channel.consume("q", auto_ack=True, inactivity_timeout=10):
        if method is None:
            break
        found.append((body, properties.headers["x-delay"], time.time() * 1000))
        if len(found) == count:
            break
    channel.cancel()
    return found


def anonymous_memory(broker: Running) -> int:
    """Octets of memory that belong to no file."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def test_messages_come_in_time_beside_many_that_are_pending(tmp_path):
    """Twenty thousand pending messages cost little memory, and others are neither early nor late beside them."""
    with started(tmp_path) as broker:
        connection = connect(broker)
        channel = connection.channel()
        declare(channel)
        publish(channel, DAY, b"first")
        before = anonymous_memory(broker)
        for number in range(20_000):
            publish(channel, DAY + number * 7919 % 20_000, bytes(100))
        channel.confirm_delivery()
        publish(channel, DAY, b"last")
        grown = anonymous_memory(broker) - before
        channel = connection.channel()
        for number in range(100):
            delay = 1000 + number * 37 % 500
            publish(channel, delay, str(time.time() * 1000 + delay).encode())
        found = received(channel, 100)
        connection.close()
        assert 100 == len(found)
        late = sorted(at - float(body) for body, _, at in found)
        assert late[0] > -1
        assert median(late) < 250
        assert grown < 40 << 20


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_confirmed_comes_after_the_broker_was_ended(tmp_path, end):
    """A delayed message overdue at the start comes at once and in order, the rest when due; the header gives the delay."""
    with started(tmp_path) as broker:
        connection = connect(broker)
        channel = connection.channel()
        declare(channel)
        channel.confirm_delivery()
        began = time.time() * 1000
        for delay in (3000, 200, 100, 300):
            publish(channel, delay, str(delay).encode())
        connection.close()
        broker.process.send_signal(end)
        broker.process.wait(15)
    while time.time() * 1000 < began + 300:
        time.sleep(0.01)
    with started(tmp_path) as broker:
        connection = connect(broker)
        found = received(connection.channel(), 4)
        connection.close()
        assert [(b"100", -100), (b"200", -200), (b"300", -300), (b"3000", -3000)] == [
            each[:2] for each in found
        ]
        assert found[-1][2] > began + 2999


def test_deleting_the_exchange_drops_what_is_pending(tmp_path):
    """A new exchange of the same name has none of the pending messages."""
    with started(tmp_path) as broker:
        connection = connect(broker)
        channel = connection.channel()
        declare(channel)
        channel.confirm_delivery()
        publish(channel, 200, b"old")
        channel.exchange_delete("d")
        declare(channel)
        publish(channel, 400, b"new")
        assert [(b"new", -400)] == [each[:2] for each in received(channel, 1)]
        connection.close()


def test_an_exchange_without_a_type_behind_is_refused(tmp_path):
    """The plugin's text, for clients that look at it."""
    with started(tmp_path) as broker:
        connection = connect(broker)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            connection.channel().exchange_declare("d", "x-delayed-message")
        text = "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type"
        assert (406, text) == (caught.value.reply_code, caught.value.reply_text)
        connection.close()
