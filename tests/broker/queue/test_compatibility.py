"""What RabbitMQ 4 changed of queues, in a broker with its profile."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import leveret
from tests.conformance.wire import Channel, Client

PROFILE = {"compatibility.profile": "4.3"}
QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-version": 1},
        {"x-queue-master-locator": "min-masters"},
        {"x-delivery-limit": 3},
        {**QUORUM, "x-delayed-retry-type": "all"},
    ],
    ids=str,
)
def test_import_follows_the_rules_of_arguments(arguments):
    """Definitions with an argument that 4.3 refuses are refused with its profile, and imported without it."""
    document = {"queues": [{"vhost": "/", "name": "q", "durable": True, "arguments": arguments}]}
    with leveret.Broker() as broker:
        broker.import_definitions(document)
    with (
        leveret.Broker(config=PROFILE) as broker,
        pytest.raises(leveret.LeveretError, match=r"x-queue-version|queue_master|x-del"),
    ):
        broker.import_definitions(document)


def test_queues_of_before_stay(tmp_path: Path):
    """A queue of an earlier run keeps an argument that a new one may not have."""
    with leveret.Broker(data_dir=tmp_path) as broker:
        broker.declare("q", durable=True, arguments={"x-delivery-limit": 3})
    with leveret.Broker(data_dir=tmp_path, config=PROFILE) as broker:
        assert ["q"] == broker.queues()


@contextlib.contextmanager
def _channel(broker: leveret.Broker) -> Iterator[Channel]:
    client = Client(("127.0.0.1", broker.port)).login()
    yield client.channel(1)
    client.close_socket()


def _counts(channel: Channel, how: str) -> list[object]:
    """Fetch a message and settle it; the counts in its headers."""
    got = channel.call("basic.get", queue="q")
    channel.send(how, delivery_tag=got.delivery_tag, requeue=True)
    channel.sync()
    headers = got.properties.get("headers", {})
    return [headers.get(name) for name in ("x-acquired-count", "x-delivery-count")]


def test_counts_survive_a_restart(tmp_path: Path):
    """Both counts survive a restart; without the profile only failures are told, and all that comes back is one."""
    with leveret.Broker(data_dir=tmp_path, config=PROFILE) as broker, _channel(broker) as channel:
        channel.queue("q", durable=True, arguments={**QUORUM, "x-delivery-limit": 3})
        channel.put("q", b"x")
        for how in ("basic.nack", "basic.nack", "basic.reject", "basic.nack"):
            last = _counts(channel, how)
        assert [3, 1] == last
    with leveret.Broker(data_dir=tmp_path, config=PROFILE) as broker, _channel(broker) as channel:
        assert [4, 1] == _counts(channel, "basic.nack")
    with leveret.Broker(data_dir=tmp_path) as broker, _channel(broker) as channel:
        assert [None, 1] == _counts(channel, "basic.nack")
        assert [None, 2] == _counts(channel, "basic.nack")
        assert 3 == broker.queue("q").messages[0].headers["x-delivery-count"]
