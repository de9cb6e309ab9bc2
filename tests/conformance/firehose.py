"""Records what the firehose shows of a script of a client, in lines; `firehose.txt` has those of RabbitMQ 3.10.

`python tests/conformance/firehose.py` records RabbitMQ's again.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
from conformance.brokers import Broker, SetUp, start_rabbitmq
from processes.commands import execute

RECORD = Path(__file__).with_name("firehose.txt")
SECONDS = 20.0
FULL = pika.BasicProperties(
    content_type="text/plain",
    content_encoding="utf8",
    headers={"s": "v", "n": 7, "l": [1, "two"], "t": {"x": True}},
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    reply_to="r",
    expiration="1000000",
    message_id="m",
    timestamp=5_000_000_000,
    type="t",
    user_id="guest",
    app_id="a",
    cluster_id="cl",
)


def switch(broker: Broker, *, is_on: bool) -> None:
    """Switch the firehose of the first virtual host on or off, as an operator does."""
    word = "trace_on" if is_on else "trace_off"
    if broker.kind == "rabbitmq":
        broker.control(word)
        return
    command = [sys.executable, "-m", "leveret", "ctl", "--data-dir", str(broker.home / "data"), word]
    execute(command, check=True, timeout=SECONDS)


class Session:
    """A client that does something, and another one that has a queue with all traces."""

    def __init__(self, broker: Broker) -> None:
        parameters = pika.ConnectionParameters(*broker.address)
        self.connection = pika.BlockingConnection(parameters)
        self._watcher = pika.BlockingConnection(parameters)
        self.channel = self.connection.channel()
        self.traces = self._watcher.channel()
        self.traces.queue_declare("traces", exclusive=True)
        self.traces.queue_bind("traces", "amq.rabbitmq.trace", "#")
        self.number = 0

    def close(self) -> None:
        self.connection.close()
        self._watcher.close()

    def seen(self) -> Iterator[str]:
        """Yield what is traced up to now: a publish at the end shows that no more is to come."""
        self.number += 1
        end = f"end {self.number}"
        self.channel.basic_publish("amq.fanout", end, b"")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            method, properties, body = self.traces.basic_get("traces", auto_ack=True)
            if method is None:
                self.connection.process_data_events(0.01)
                continue
            if properties.headers["routing_keys"] == [end]:
                return
            yield line(method, properties, body)
        raise AssertionError("no trace of the publish at the end")

    def deliveries(self, queue: str, count: int) -> list[Any]:
        """Consume, and return so many deliveries, unacked."""
        found: list[Any] = []
        tag = self.channel.basic_consume(queue, lambda *delivery: found.append(delivery[1]))
        deadline = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < deadline:
            self.connection.process_data_events(0.05)
        assert count == len(found)
        self.channel.basic_cancel(tag)
        return found


def line(method: Any, properties: pika.BasicProperties, body: bytes) -> str:
    """Return a trace in a line, without what differs from run to run."""
    assert {"headers"} == {name for name, value in vars(properties).items() if value is not None}
    headers = dict(properties.headers)
    assert "@" in headers.pop("node")
    assert " -> " in headers.pop("connection")
    reply_to = headers["properties"].get("reply_to", "")
    if reply_to.startswith("amq.rabbitmq.reply-to."):
        headers["properties"]["reply_to"] = "ADDRESS"
    shown = json.dumps(headers, default=lambda _: "TIME").replace("amq.rabbitmq.reply-to.", "ADDRESS.")
    if "ADDRESS." in shown:
        shown = (
            shown[: shown.index("ADDRESS.")] + "ADDRESS" + shown[shown.index('"', shown.index("ADDRESS.")) :]
        )
    return f"{method.exchange} {method.routing_key} {shown} {body.decode()}"


def published(session: Session) -> None:
    """Publish in each way in which a route is found."""
    channel = session.channel
    channel.basic_publish("x", "a.b", b"full", FULL)
    channel.basic_publish("x", "z", b"unroutable")
    channel.basic_publish("x", "z", b"mandatory", mandatory=True)
    channel.basic_publish("", "r", b"default")
    channel.basic_publish("e2e", "a.e", b"by another exchange")
    channel.basic_publish("alternate", "a.e", b"by the alternate exchange")
    channel.basic_publish("h", "a.e", b"by headers", pika.BasicProperties(headers={"k": "v"}))
    channel.basic_publish("x", "a.cc", b"copies", pika.BasicProperties(headers={"CC": ["r", "a.x"]}))
    channel.basic_publish("x", "a.bcc", b"blind", pika.BasicProperties(headers={"BCC": ["a.y"]}))


def delivered(session: Session) -> None:
    """Take messages by a consumer, return one, and take it again."""
    found = session.deliveries("q", 5)
    session.channel.basic_nack(found[0].delivery_tag, requeue=True)
    (again,) = session.deliveries("q", 1)
    session.channel.basic_ack(again.delivery_tag, multiple=True)


def got(session: Session) -> None:
    """Take messages by basic.get, with and without ack, and one again."""
    channel = session.channel
    method, _, _ = channel.basic_get("r")
    channel.basic_reject(method.delivery_tag, requeue=True)
    channel.basic_get("r", auto_ack=True)
    channel.queue_purge("r")
    channel.basic_get("r")


def died(session: Session) -> None:
    """Let a message die, and take the dead letter."""
    channel = session.channel
    channel.basic_publish("", "d", b"letter")
    method, _, _ = channel.basic_get("d")
    channel.basic_reject(method.delivery_tag, requeue=False)
    session.deliveries("q", 1)
    channel.basic_recover(requeue=True)
    channel.queue_purge("q")


def transactional(session: Session) -> None:
    """Publish in transactions, one of which is rolled back."""
    channel = session.connection.channel()
    channel.tx_select()
    for body in (b"committed", b"rolled back"):
        channel.basic_publish("", "r", body)
        channel.tx_commit() if body == b"committed" else channel.tx_rollback()
    session.channel.queue_purge("r")


def replied(session: Session) -> None:
    """Ask with a direct reply-to address, and answer."""
    channel = session.connection.channel()
    answers: list[Any] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *delivery: answers.append(delivery), auto_ack=True)
    channel.basic_publish("", "r", b"question", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    deadline = time.monotonic() + SECONDS
    found = None
    while found is None and time.monotonic() < deadline:
        found, properties, _ = session.channel.basic_get("r", auto_ack=True)
    session.channel.basic_publish("", properties.reply_to, b"answer")
    while not answers and time.monotonic() < deadline:
        session.connection.process_data_events(0.05)
    channel.close()


def refused(session: Session) -> None:
    """Publish to an exchange that does not exist, and to the trace exchange."""
    for exchange in ("missing", "amq.rabbitmq.trace"):
        channel = session.connection.channel()
        channel.basic_publish(exchange, "k", b"refused")
        deadline = time.monotonic() + SECONDS
        while channel.is_open and time.monotonic() < deadline:
            session.connection.process_data_events(0.05)
        assert not channel.is_open


def its_own(session: Session) -> None:
    """Take traces from a queue that is bound to the trace exchange and to another one."""
    channel = session.channel
    channel.queue_declare("both", exclusive=True)
    channel.queue_bind("both", "amq.rabbitmq.trace", "deliver.#")
    channel.queue_bind("both", "x", "both")
    channel.basic_publish("x", "both", b"both")
    session.deliveries("both", 2)
    channel.queue_delete("both")


STEPS: tuple[Callable[[Session], None], ...] = (
    published, delivered, got, died, transactional, replied, refused, its_own,
)  # fmt: skip


def record(broker: Broker) -> list[str]:
    """Run the script; returns the lines of all steps, each after the name of its step."""
    session = Session(broker)
    channel = session.channel
    channel.exchange_declare("x", "topic")
    channel.exchange_declare("h", "headers")
    channel.exchange_declare("e2e", "fanout")
    channel.exchange_bind("x", "e2e")
    channel.exchange_declare("alternate", "direct", arguments={"alternate-exchange": "x"})
    for name in ("q", "r"):
        channel.queue_declare(name, exclusive=True)
    letters = {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "a.dead"}
    channel.queue_declare("d", exclusive=True, arguments=letters)
    channel.queue_bind("q", "x", "a.#")
    channel.queue_bind("r", "h", "", {"k": "v"})
    channel.basic_publish("x", "a.b", b"before it is on")
    channel.queue_declare("q", passive=True)
    channel.queue_purge("q")
    switch(broker, is_on=True)
    lines = []
    try:
        for step in STEPS:
            step(session)
            lines += [f"-- {step.__name__}", *session.seen()]
    finally:
        switch(broker, is_on=False)
    channel.basic_publish("x", "a.b", b"after it is off")
    channel.queue_declare("q", passive=True)
    method, _, _ = session.traces.basic_get("traces")
    lines.append(f"-- off: {'nothing' if method is None else method.routing_key}")
    for name in ("x", "h", "e2e", "alternate"):
        channel.exchange_delete(name)
    session.close()
    return lines


def main() -> None:
    """Record RabbitMQ's lines."""
    broker = start_rabbitmq(SetUp("main"))
    try:
        RECORD.write_text("\n".join(record(broker)) + "\n", encoding="utf-8")
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
