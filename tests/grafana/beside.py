"""One day of work for two brokers, and their metrics afterwards.

Everything in it is deterministic: who publishes, gets, rejects and leaves messages behind, and in which order.
"""

import contextlib
import re
import time
import urllib.request
from collections.abc import Callable, Iterator

import pika
from conformance.brokers import Broker, SetUp, free_port, start_ours, start_rabbitmq
from grafana.exposition import Scraped
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ProbableAuthenticationError, UnroutableError

FAMILIES = (
    "queue_coarse_metrics", "queue_metrics", "queue_consumer_count", "queue_delivery_metrics", "channel_metrics",
    "channel_process_metrics", "channel_exchange_metrics", "channel_queue_metrics",
    "channel_queue_exchange_metrics", "connection_churn_metrics", "connection_coarse_metrics", "connection_metrics",
    "exchange_metrics", "exchange_names", "exchange_bindings", "node_coarse_metrics", "node_metrics",
    "node_persister_metrics", "auth_attempt_metrics", "ra_metrics", "vhost_status",
)  # fmt: skip
"""The groups of metrics that RabbitMQ has."""
OVERVIEW, SINGLE, DETAILED = "/metrics", "/metrics/per-object", "/metrics/detailed?family="
PATHS = (OVERVIEW, SINGLE, *[DETAILED + each for each in FAMILIES])
LEFT = {"work": (5, 2), "left": (3, 0), "dead": (8, 0), "short": (2, 0)}
"""Messages, ready and unacknowledged, that are in queues at the end of the day."""
QUEUES = 6
"""Number of queues at the end; RabbitMQ counts one that was deleted for some seconds more."""
MOST_SECONDS = 20.0
"""Seconds that RabbitMQ's counters may take; it updates them by itself every half second."""


class DayMetrics:
    """Metrics of a broker before the day and after it.

    Attributes:
        before: the answer to `/metrics` before it.
        after: answers after it, by path.

    """

    def __init__(self, before: Scraped, after: dict[str, Scraped]) -> None:
        self.before = before
        self.after = after

    def samples(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Path, name without what details add, and labels of all series."""
        for path, answer in self.after.items():
            for name, labels in answer.samples:
                yield path, plain(name), dict(labels)


def plain(name: str) -> str:
    """The name of a metric without what details add to it."""
    return name.replace("_detailed_", "_", 1)


@contextlib.contextmanager
def working(broker: Broker) -> Iterator[None]:
    """Do a day's work on a broker; connections open at its end stay so for the while."""
    address = pika.ConnectionParameters(*broker.address, heartbeat=0)
    with BlockingConnection(address) as connection:
        channel = connection.channel()
        _topology(channel)
        _publish(channel, connection.channel())
        _get(connection.channel())
        _consume(connection)
        for _ in range(2):
            channel.basic_publish("", "left", b"left")
        transaction = connection.channel()
        transaction.tx_select()
        transaction.basic_publish("", "left", b"never committed")
        with BlockingConnection(address) as other:
            passing = other.channel()
            passing.basic_publish("", "left", b"from a connection that goes")
            passing.queue_declare("left", passive=True)
        wrong = pika.PlainCredentials("guest", "wrong")
        with contextlib.suppress(ProbableAuthenticationError):
            BlockingConnection(pika.ConnectionParameters(*broker.address, credentials=wrong))
        dead = 0
        while dead < sum(LEFT["dead"]):
            dead = channel.queue_declare("dead", passive=True).method.message_count
        yield


def _topology(channel: BlockingChannel) -> None:
    channel.queue_declare("work", durable=True)
    for name in ("left", "dead", "gone", "left"):
        channel.queue_declare(name)
    channel.queue_delete("gone")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("refused", arguments=to_dead)
    channel.queue_declare("short", arguments={"x-max-length": 2, **to_dead})
    channel.queue_declare("late", arguments={"x-message-ttl": 0, **to_dead})
    channel.exchange_declare("both", "fanout")
    channel.exchange_declare("inside", "topic", internal=True)
    channel.exchange_bind("inside", "both")
    for name in ("work", "left"):
        channel.queue_bind(name, "both")


def _publish(channel: BlockingChannel, confirmed: BlockingChannel) -> None:
    """10 to both queues (4 of them confirmed), 6 nowhere, and 10 to queues that do not keep them all."""
    for _ in range(5):
        channel.basic_publish("both", "", b"x" * 100)
    channel.basic_publish("both", "", b"kept", pika.BasicProperties(delivery_mode=2))
    for _ in range(3):
        channel.basic_publish("", "nowhere", b"dropped")
    channel.basic_publish("", "nowhere", b"returned", mandatory=True)
    for key, count in (("refused", 3), ("short", 5), ("late", 2)):
        for _ in range(count):
            channel.basic_publish("", key, b"d")
    confirmed.confirm_delivery()
    for _ in range(4):
        confirmed.basic_publish("both", "", b"c")
    confirmed.basic_publish("", "nowhere", b"dropped, and confirmed")
    with contextlib.suppress(UnroutableError):
        confirmed.basic_publish("", "nowhere", b"returned, and confirmed", mandatory=True)


def _get(channel: BlockingChannel) -> None:
    """Two of `work` and three of `refused` are gone, one came back, and two gets find nothing."""
    for _ in range(4):
        method, _, _ = channel.basic_get("refused")
        if method is not None:
            channel.basic_reject(method.delivery_tag, requeue=False)
    method, _, _ = channel.basic_get("work")
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, _ = channel.basic_get("work")
    channel.basic_ack(method.delivery_tag)
    channel.basic_get("work", auto_ack=True)
    channel.basic_get("late")


def _consume(connection: BlockingConnection) -> None:
    """Consume: one message of `work` is acknowledged and two are not; `left` is read empty."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2)
    tags: list[int] = []
    channel.basic_consume("work", lambda _channel, method, *_: tags.append(method.delivery_tag))
    _until(connection, lambda: len(tags) == 2)
    channel.basic_ack(tags[0])
    _until(connection, lambda: len(tags) == 3)
    eager = connection.channel()
    bodies: list[bytes] = []
    tag = eager.basic_consume("left", lambda *said: bodies.append(said[-1]), auto_ack=True)
    _until(connection, lambda: len(bodies) == 10)
    eager.basic_cancel(tag)


def _until(connection: BlockingConnection, has_happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not has_happened():
        assert time.monotonic() < deadline
        connection.process_data_events(0.1)


def ask(base: str, path: str) -> Scraped:
    with urllib.request.urlopen(base + path, timeout=MOST_SECONDS) as answer:
        return Scraped([answer.read().decode()], others=True)


def _has_counted(answer: Scraped) -> bool:
    """Return whether a broker has counted the acts of its queues and channels."""

    def queues(name: str) -> dict[str, float]:
        return {dict(labels)["queue"]: value for labels, value in answer.values(name).items() if value}

    levels = [{name: both[at] for name, both in LEFT.items() if both[at]} for at in (0, 1)]
    found = [queues(f"rabbitmq_queue_messages_{which}") for which in ("ready", "unacked")]
    acked = sum(answer.values("rabbitmq_channel_messages_acked_total").values())
    uncommitted = sum(answer.values("rabbitmq_channel_messages_uncommitted").values())
    return (levels, 2, 1, QUEUES) == (found, acked, uncommitted, answer.value("rabbitmq_queues"))


def scrape(broker: Broker, base: str) -> DayMetrics:
    """Do a day's work, and ask what came of it."""
    before = ask(base, OVERVIEW)
    with working(broker):
        deadline = time.monotonic() + MOST_SECONDS
        while not _has_counted(ask(base, SINGLE)):
            assert time.monotonic() < deadline, "it does not tell what happened"
            time.sleep(0.05)
        return DayMetrics(before, {path: ask(base, path) for path in PATHS})


def scrape_leveret() -> DayMetrics:
    """Return our broker's metrics."""
    broker = start_ours(SetUp("scraped", ours=(f"prometheus.tcp.port={free_port()}",)))
    try:
        found = re.search(r"started HTTP listener on (\S+)", broker.log())
        assert found, broker.log()
        return scrape(broker, f"http://{found[1]}")
    finally:
        broker.stop()


def scrape_rabbitmq() -> DayMetrics:
    """Return RabbitMQ's metrics."""
    port = free_port()
    lines = (
        f"prometheus.tcp.port = {port}",
        "prometheus.tcp.ip = 127.0.0.1",
        "collect_statistics_interval = 500",
    )
    broker = start_rabbitmq(SetUp("scraped", plugins="rabbitmq_prometheus", lines=lines))
    try:
        return scrape(broker, f"http://127.0.0.1:{port}")
    finally:
        broker.stop()
