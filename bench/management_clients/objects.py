"""The objects that clients are asked about: the same on each broker, with messages and connections in a known state."""

import contextlib
import threading
import time
from collections.abc import Iterator

import pika

from bench.management_clients.api import EVERYTHING, ask, await_that, quoted

VHOST = "shop"
QUEUES: dict[str, dict[str, object]] = {
    "orders.new": {"durable": True},
    "orders.paid": {"durable": True, "arguments": {"x-max-length": 50, "x-max-length-bytes": 100_000}},
    "orders.replicated": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    "a/b": {"durable": False},
    "rates": {"durable": False},
}
WAITING = {"orders.new": 25, "orders.paid": 12, "orders.replicated": 7, "a/b": 0}
"""Messages of each queue when all is done, except `rates`."""
PUBLISHED = {"orders.new": 35, "orders.paid": 12, "orders.replicated": 7, "a/b": 0}
ACKED, UNACKED = 10, 5
BODY = b"x" * 100
RATE = 20
"""Messages a second through the queue `rates`."""


@contextlib.contextmanager
def made() -> Iterator[None]:
    """Make all objects, and keep connections and a steady flow of messages for the duration of a `with` block.

    Raises:
        TimeoutError: the broker's statistics do not show them after half a minute.
    """
    ask("PUT", f"vhosts/{VHOST}", {})
    ask("PUT", f"permissions/{VHOST}/guest", EVERYTHING)
    ask("PUT", f"exchanges/{VHOST}/orders", {"type": "topic", "durable": True})
    ask("PUT", f"exchanges/{VHOST}/audit", {"type": "fanout", "durable": True, "internal": True})
    ask("POST", f"bindings/{VHOST}/e/orders/e/audit", {"routing_key": "#", "arguments": {}})
    for name, body in QUEUES.items():
        ask("PUT", f"queues/{VHOST}/{quoted(name)}", body)
        ask("POST", f"bindings/{VHOST}/e/orders/q/{quoted(name)}", {"routing_key": name, "arguments": {}})
    policy = {"pattern": "^orders", "definition": {"max-length": 1000}, "priority": 3, "apply-to": "queues"}
    ask("PUT", f"policies/{VHOST}/short", policy)
    parameters = pika.ConnectionParameters(port=5672, virtual_host=VHOST)
    with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name, count in PUBLISHED.items():
            for _ in range(count):
                channel.basic_publish("orders", name, BODY, pika.BasicProperties(delivery_mode=2))
        for _ in range(ACKED):
            found, _, _ = channel.basic_get("orders.new")
            channel.basic_ack(found.delivery_tag)
        channel.basic_qos(prefetch_count=UNACKED)
        channel.basic_consume("orders.new", lambda *_: None, consumer_tag="waits")
        with flowing(parameters):
            await_that(shown)
            yield


@contextlib.contextmanager
def flowing(parameters: pika.ConnectionParameters) -> Iterator[None]:
    """Publish and consume `RATE` messages a second for the duration of a `with` block."""
    ended = threading.Event()

    def flow() -> None:
        with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            channel.basic_consume("rates", lambda *_: None, auto_ack=True, consumer_tag="drains")
            due = time.monotonic()
            while not ended.is_set():
                channel.basic_publish("orders", "rates", BODY)
                due += 1 / RATE
                connection.sleep(max(0, due - time.monotonic()))

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


def shown() -> bool:
    """Tell whether the statistics show all messages, and a rate that has settled."""
    queues = {each["name"]: each for each in ask("GET", f"queues/{VHOST}")}
    rates = queues["rates"].get("message_stats", {})
    return (
        all(queues[name].get("messages") == count for name, count in WAITING.items())
        and all("idle_since" in queues[name] for name in ("orders.new", "orders.paid", "a/b"))
        and queues["orders.new"].get("messages_unacknowledged") == UNACKED
        and all(
            queues[name].get("message_stats", {}).get("publish") == count
            for name, count in PUBLISHED.items()
            if count
        )
        and all(
            abs(rates.get(f"{key}_details", {}).get("rate", 0) - RATE) < RATE / 2
            for key in ("publish", "deliver_get")
        )
    )
