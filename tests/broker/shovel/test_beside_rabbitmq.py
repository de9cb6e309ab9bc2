"""Shovels from and to a real RabbitMQ; and what its own shovels show, say and do, compared with ours."""

import re
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from conformance.brokers import Broker, SetUp, free_port, rabbitmq_server, start_rabbitmq
from services.shovelling import LOCAL, Http, await_true

import leveret

GOOD = {"src-uri": LOCAL, "dest-uri": LOCAL, "src-queue": "a", "dest-queue": "b"}
PLUGINS = "rabbitmq_management,rabbitmq_shovel,rabbitmq_shovel_management"


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[tuple[Broker, Http]]:
    """A RabbitMQ with its shovel plugin, and its API."""
    if rabbitmq_server() is None:
        pytest.skip("no rabbitmq-server on this machine")
    port = free_port()
    lines = (f"management.tcp.port = {port}", "management.tcp.ip = 127.0.0.1")
    broker = start_rabbitmq(SetUp("main", plugins=PLUGINS, lines=lines))
    try:
        http = Http(f"http://guest:guest@127.0.0.1:{port}")
        await_true(lambda: http.request("GET", "whoami")[0] == 200)
        yield broker, http
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def ours() -> Iterator[tuple[leveret.Broker, Http]]:
    with leveret.Broker(management=True) as broker:
        yield broker, Http(broker.management_url)


def url(broker: Broker) -> str:
    """Return the URL of a RabbitMQ."""
    return f"amqp://guest:guest@127.0.0.1:{broker.address[1]}"


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_come_from_rabbitmq_and_go_there(rabbitmq, ours, mode):
    """In their order, with their properties, large ones too."""
    broker, http = ours
    there = url(rabbitmq[0])
    bodies = [str(number).encode() for number in range(2000)] + [b"x" * 3_000_000, b"last"]
    with pika.BlockingConnection(pika.URLParameters(there)) as connection:
        channel = connection.channel()
        channel.queue_declare(f"from-{mode}", durable=True)
        for number, body in enumerate(bodies):
            properties = pika.BasicProperties(delivery_mode=2, headers={"n": number}, priority=1, type="t")
            channel.basic_publish("", f"from-{mode}", body, properties)
        http.shovel("in", src_uri=there, src_queue=f"from-{mode}", dest_queue=f"here-{mode}", ack_mode=mode)
        http.shovel("out", dest_uri=there, src_queue=f"here-{mode}", dest_queue=f"to-{mode}", ack_mode=mode)
        await_true(
            lambda: channel.queue_declare(f"to-{mode}", durable=True).method.message_count == len(bodies)
        )
        got = [channel.basic_get(f"to-{mode}", auto_ack=True) for _ in bodies]
    for name in ("in", "out"):
        http.delete(name)
        http.await_state(name, "")

    assert bodies == [body for _, _, body in got]
    assert [(2, {"n": number}, 1, "t") for number in range(len(bodies))] == [
        (properties.delivery_mode, properties.headers, properties.priority, properties.type)
        for _, properties, _ in got
    ]
    assert 0 == broker.queue(f"here-{mode}").depth


def test_a_restart_of_rabbitmq_is_survived(rabbitmq, ours):
    """Nothing is lost at either side of it, and the shovel says why it waits."""
    broker, http = ours
    there = url(rabbitmq[0])
    http.shovel("s", dest_uri=there, src_queue="q", dest_queue="restarted", reconnect_delay=0.1)
    http.await_state("s", "running")
    for number in range(100):
        broker.publish("", "q", str(number), properties={"delivery_mode": 2})
    rabbitmq[0].control("stop_app")
    assert http.await_state("s", "terminated")["reason"]
    for number in range(100, 200):
        broker.publish("", "q", str(number), properties={"delivery_mode": 2})
    rabbitmq[0].control("start_app")
    http.await_state("s", "running")
    await_true(lambda: not broker.queue("q").depth and not broker.queue("q").unacked)
    with pika.BlockingConnection(pika.URLParameters(there)) as connection:
        channel = connection.channel()
        count = channel.queue_declare("restarted", passive=True).method.message_count
        numbers = [int(channel.basic_get("restarted", auto_ack=True)[2]) for _ in range(count)]
    http.delete("s")

    assert list(range(200)) == sorted(set(numbers))


def test_the_status_of_a_shovel_is_the_same(rabbitmq, ours):
    """Under the same keys, and in the columns of rabbitmqctl; ours adds counts."""
    definitions: tuple[dict[str, Any], ...] = (
        {"src_queue": "a", "dest_queue": "b"},
        {
            "src_exchange": "amq.topic",
            "src_exchange_key": "k",
            "dest_exchange": "amq.direct",
            "dest_exchange_key": "j",
        },
    )
    for definition in definitions:
        found = []
        for _, http in (rabbitmq, ours):
            http.shovel("same", **definition)
            status = http.await_state("same", "running")
            found.append({key: each for key, each in status.items() if key not in {"node", "timestamp"}})
            http.delete("same")
        theirs, same = found
        assert theirs == {key: same.get(key) for key in theirs}
        assert {"blocked_status", "pending", "forwarded", "state_since"} == same.keys() - theirs.keys()


def test_the_headers_of_a_shovel_are_the_same(rabbitmq, ours):
    """Their names, values, types and order."""
    found = []
    for uri, http in ((url(rabbitmq[0]), rabbitmq[1]), (ours[0].url, ours[1])):
        with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
            channel = connection.channel()
            channel.queue_declare("headed", durable=True)
            channel.basic_publish("", "headed", b"m", pika.BasicProperties(headers={"h": 1}))
            common = {"dest_add_forward_headers": True, "dest_add_timestamp_header": True}
            http.shovel("h1", src_queue="headed", dest_queue="headed2", **common)
            http.shovel("h2", src_queue="headed2", dest_queue="headed3", **common)
            await_true(
                lambda channel=channel: (
                    channel.queue_declare("headed3", durable=True).method.message_count == 1
                )
            )
            headers = channel.basic_get("headed3", auto_ack=True)[1].headers
        for name in ("h1", "h2"):
            http.delete(name)
        for entry in headers["x-shovelled"]:
            assert entry.pop("shovelled-by")
        headers["x-shovelled-timestamp"] = type(headers["x-shovelled-timestamp"])
        found.append({**headers, "x-shovelled": [list(entry.items()) for entry in headers["x-shovelled"]]})

    assert found[0] == found[1]


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"src-uri": LOCAL},
        {**GOOD, "src-exchange": "x"},
        {**GOOD, "dest-exchange": "x"},
        {**GOOD, "ack-mode": "foo"},
        {**GOOD, "ack-mode": 5},
        {**GOOD, "reconnect-delay": "x"},
        {**GOOD, "src-prefetch-count": "x"},
        {**GOOD, "bogus": 1, "bogus2": [1, "a"]},
        {**GOOD, "src-delete-after": "x"},
        {**GOOD, "src-delete-after": -1},
        {**GOOD, "src-delete-after": 0.5},
        {**GOOD, "src-delete-after": 5, "ack-mode": "no-ack"},
        {**GOOD, "dest-queue": "q" * 300},
        {**GOOD, "dest-queue": 5},
        {**GOOD, "src-queue": None},
        {**GOOD, "src-uri": 5},
        {**GOOD, "src-uri": [LOCAL, 5]},
        {**GOOD, "src-uri": "foo"},
        {**GOOD, "src-uri": ""},
        {**GOOD, "src-uri": "http://x"},
        {**GOOD, "src-uri": "amqp://h:0"},
        {**GOOD, "src-uri": "amqp://h/a/b"},
        {**GOOD, "src-uri": "amqp://:5"},
        {**GOOD, "src-uri": "amqp://h?heartbeat=x"},
        {**GOOD, "src-uri": "amqp://h?host=x"},
        {**GOOD, "src-uri": "amqps://h?verify=verify_none&depth=x"},
        {**GOOD, "src-uri": "amqp://h/%4"},
        {**GOOD, "src-uri": "amqp:///nosuch"},
        {**GOOD, "dest-publish-properties": 5},
        {**GOOD, "dest-publish-properties": {"bogus": 1}},
        {**GOOD, "dest-publish-properties": {"delivery_mode": "x"}},
        {**GOOD, "dest-publish-properties": {"content_type": 1}},
        {**GOOD, "dest-add-forward-headers": "x"},
        {"src-uri": LOCAL, "dest-uri": LOCAL, "src-address": "a"},
    ],
)
def test_a_definition_is_refused_in_the_same_words(rabbitmq, ours, value):
    """But for the line breaks of Erlang."""
    path, body = "parameters/shovel/%2F/refused", {"value": value}
    theirs, same = (http.request("PUT", path, body) for _, http in (rabbitmq, ours))

    assert (theirs[0], _unbroken(theirs[1])) == (same[0], _unbroken(same[1]))


def _unbroken(body: Any) -> str:
    return re.sub(r"\s+", "", body["reason"])
