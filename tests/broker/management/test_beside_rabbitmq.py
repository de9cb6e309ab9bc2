"""Objects of the API compared with those of a real RabbitMQ after the same work: keys and JSON types of each.

`ABSENT` lists what only RabbitMQ has, with the reason; one that is not listed fails here. The first tests need no
RabbitMQ: they compare counts and rates with the traffic of pika.
"""

import json
import time
import urllib.request
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

import pika
import pytest
from conformance.brokers import Broker, SetUp, free_port, rabbitmq_server, start_ours, start_rabbitmq

SECONDS = 60.0
"""Time for samples to appear."""
PUBLISHED = 60
PATHS = (
    "overview",
    "nodes",
    "queues",
    "queues/%2F/q",
    "queues/%2F/fetched",
    "queues/%2F/replicated",
    "queues/%2F/q?lengths_age=10&lengths_incr=5&msg_rates_age=10&msg_rates_incr=5",
    "queues?disable_stats=true&enable_queue_totals=true",
    "queues?page=1&page_size=2",
    "exchanges",
    "exchanges/%2F/x",
    "exchanges/%2F/x/bindings/source",
    "bindings",
    "bindings/%2F/e/x/q/q",
    "connections",
    "channels",
    "consumers",
    "vhosts",
    "connections/{connection}",
    "connections/{connection}/channels",
    "channels/{channel}",
    "nodes/{node}",
    "nodes/{node}/memory",
    "nodes/{node}/memory/relative",
)
ABSENT = {
    "*.listeners[].socket_opts*": "options of Erlang's sockets",
    "*.idle_since": "there after a while only, in both",
    "*open_files.*": "by name of the node",
    "*cluster_state.*": "by name of the node",
    "*.applications[]*": "of Erlang",
    "*.config_files[]": "no file was given to ours",
    "*.message_stats.disk_*": "RabbitMQ counts them where messages have paged",
    "*_details.samples[]*": "RabbitMQ may have had time for a sample that is not there yet, or not",
    "*_details.avg*": "with fewer than two samples there is none",
}
"""Patterns of paths that RabbitMQ has and we may not have."""


class Http:
    """The API of a running broker."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/"
        self._headers = {"authorization": f"Basic {b64encode(b'guest:guest').decode()}"}

    def get(self, path: str) -> Any:
        """Return the body of a GET."""
        request = urllib.request.Request(self._base + path, headers=self._headers)
        with urllib.request.urlopen(request, timeout=20) as response:
            return json.load(response)

    def await_value(self, path: str, *keys: str, least: float) -> None:
        """Wait until a value is at least as large."""
        deadline = time.monotonic() + SECONDS
        while True:
            value = self.get(path)
            for key in keys:
                value = value.get(key, {})
            if value and value >= least:
                return
            assert time.monotonic() < deadline, (path, keys, value)
            time.sleep(0.2)


@contextmanager
def worked_on(kind: str) -> Iterator[tuple[Http, Broker]]:
    """Start a broker and work on it; its clients are connected meanwhile."""
    port = free_port()
    settings = (f"management.tcp.port={port}", "collect_statistics_interval=1000", "prometheus.tcp.port=0")
    setup = SetUp(
        "management",
        settings,
        plugins="rabbitmq_management",
        lines=(f"management.tcp.port = {port}", "collect_statistics_interval = 1000"),
    )
    broker = start_ours(setup) if kind == "ours" else start_rabbitmq(setup)
    try:
        with work(broker.address) as connections:
            http = Http(port)
            http.await_value("queues/%2F/q", "message_stats", "publish", least=PUBLISHED)
            http.await_value("overview", "message_stats", "get", least=1)
            http.await_value("exchanges/%2F/x", "message_stats", "publish_in", least=PUBLISHED)
            for connection in connections:
                connection.process_data_events(0)
            yield http, broker
    finally:
        broker.stop()


@contextmanager
def work(address: tuple[str, int]) -> Iterator[list[Any]]:
    """Declare, publish, consume and fetch; the connections are open meanwhile."""
    parameters = [
        pika.ConnectionParameters(*address, client_properties={"connection_name": name})
        for name in ("publisher", "consumer")
    ]
    publisher, consumer = (pika.BlockingConnection(each) for each in parameters)
    try:
        channel = publisher.channel()
        channel.exchange_declare("x", "topic", durable=True)
        channel.exchange_declare("y", "fanout", durable=True)
        channel.queue_declare("q", durable=True, arguments={"x-max-length": 1000})
        channel.queue_declare("fetched", durable=True)
        channel.queue_declare("own", exclusive=True)
        channel.queue_declare("replicated", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind("q", "x", "a.#", arguments={"n": 1, "l": [1], "t": "x"})
        channel.exchange_bind("y", "x", "b")
        channel.confirm_delivery()
        settling = consumer.channel()
        settling.basic_qos(prefetch_count=10)
        settling.basic_consume("q", lambda c, m, _p, _b: c.basic_ack(m.delivery_tag), consumer_tag="tag")
        for number in range(PUBLISHED):
            channel.basic_publish("x", "a.b", b"hello", pika.BasicProperties(delivery_mode=2))
            if not number % 10:
                channel.basic_publish("", "fetched", b"hello")
                channel.basic_publish("", "replicated", b"hello")
                channel.basic_publish("x", "nowhere", b"dropped")
            consumer.process_data_events(0)
        channel.basic_get("fetched")
        channel.basic_get("fetched", auto_ack=True)
        channel.basic_get("own")
        deadline = time.monotonic() + SECONDS
        while channel.queue_declare("q", passive=True).method.message_count:
            consumer.process_data_events(0.05)
            assert time.monotonic() < deadline
        consumer.process_data_events(0.2)
        yield [publisher, consumer]
    finally:
        for each in (publisher, consumer):
            if each.is_open:
                each.close()


def documents(http: Http) -> dict[str, Any]:
    connection = next(each for each in http.get("connections") if each["user_provided_name"] == "consumer")
    names = {
        "connection": quote(connection["name"], safe=""),
        "channel": quote(f"{connection['name']} (1)", safe=""),
        "node": quote(http.get("overview")["node"], safe=""),
    }
    return {path: http.get(path.format(**names)) for path in PATHS}


def shape(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the JSON type of each value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from shape(inner, f"{path}.{key}")
    elif isinstance(value, list):
        yield path, "array"
        for inner in value:
            yield from shape(inner, f"{path}[]")
    else:
        kinds = {int: "number", float: "number", bool: "boolean", str: "string", type(None): "null"}
        yield path, kinds[type(value)]


def shapes(value: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path, kind in shape(value):
        found[path].add(kind)
    return found


@pytest.fixture(scope="module")
def ours() -> Iterator[Http]:
    with worked_on("ours") as (http, _broker):
        yield http


def test_counts_are_those_of_the_traffic(ours):
    """Queues, channels, exchanges, connections and the overview count what pika has done."""
    queue = ours.get("queues/%2F/q")["message_stats"]
    assert (PUBLISHED, PUBLISHED, PUBLISHED) == (queue["publish"], queue["deliver"], queue["ack"])
    fetched = ours.get("queues/%2F/fetched")
    assert (6, 1, 1, 2, 0) == tuple(
        fetched["message_stats"][key] for key in ("publish", "get", "get_no_ack", "deliver_get", "ack")
    )
    assert (5, 4, 1) == tuple(
        fetched[key] for key in ("messages", "messages_ready", "messages_unacknowledged")
    )
    assert 1 == ours.get("queues/%2F/own")["message_stats"]["get_empty"]
    exchange = ours.get("exchanges/%2F/x")["message_stats"]
    assert (PUBLISHED + 6, PUBLISHED) == (exchange["publish_in"], exchange["publish_out"])
    total = ours.get("overview")["message_stats"]
    assert (PUBLISHED + 18, PUBLISHED + 18, 6, 0) == tuple(
        total[key] for key in ("publish", "confirm", "drop_unroutable", "return_unroutable")
    )
    assert {PUBLISHED + 18, 0} == {each["message_stats"]["publish"] for each in ours.get("channels")}
    ours.await_value("vhosts/%2F", "message_stats", "publish", least=PUBLISHED + 18)
    assert PUBLISHED + 18 == ours.get("vhosts/%2F")["message_stats"]["publish"]


def test_rates_are_those_of_the_traffic(ours):
    """While somebody publishes, queue, exchange, channel, connection and overview have rates; then they fall to 0."""
    address = next(each for each in ours.get("overview")["listeners"] if each["protocol"] == "amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", address["port"]))
    channel = connection.channel()
    channel.queue_declare("rated")
    rates = [0.0]
    deadline = time.monotonic() + SECONDS
    began = time.monotonic()
    count = 0
    while not (rates[-1] and time.monotonic() - began > 3):
        for _ in range(20):
            channel.basic_publish("", "rated", b"x")
            count += 1
        connection.process_data_events(0.05)
        rates.append(ours.get("queues/%2F/rated")["message_stats"]["publish_details"]["rate"])
        assert time.monotonic() < deadline
    mean = count / (time.monotonic() - began)
    assert mean / 4 <= max(rates) <= mean * 4
    assert 0 < ours.get("overview")["message_stats"]["publish_details"]["rate"]
    assert 0 < ours.get("exchanges/%2F/amq.default")["message_stats"]["publish_in_details"]["rate"]
    assert 0 < max(each["recv_oct_details"]["rate"] for each in ours.get("connections"))
    assert 0 < max(
        each["message_stats"]["publish_details"]["rate"]
        for each in ours.get("channels")
        if "publish_details" in each["message_stats"]
    )
    while ours.get("queues/%2F/rated")["message_stats"]["publish_details"]["rate"]:
        assert time.monotonic() < deadline
        connection.process_data_events(0.1)
    connection.close()


@pytest.mark.skipif(rabbitmq_server() is None, reason="needs rabbitmq-server")
def test_every_key_of_rabbitmq_is_there_with_its_type(ours):
    """Each object has all the keys that RabbitMQ's has, with the same JSON types."""
    with worked_on("rabbitmq") as (theirs, _broker):
        expected = documents(theirs)
    found = documents(ours)
    problems = []
    for path in PATHS:
        have = shapes(found[path])
        for key, kinds in shapes(expected[path]).items():
            name = f"{path} {key}"
            if any(fnmatchcase(name, pattern) for pattern in ABSENT):
                continue
            if key not in have:
                problems.append(f"{name}: {kinds} is missing")
            elif not kinds & have[key]:
                problems.append(f"{name}: {kinds}, ours {have[key]}")

    assert not problems, "\n".join(problems)
