"""Queues in a broker with the profile 4.3, and in one that had it before."""

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
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 5},
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
        assert {"x-acquired-count": 5, "x-delivery-count": 1} == broker.queue("q").messages[0].headers
    with leveret.Broker(data_dir=tmp_path) as broker, _channel(broker) as channel:
        assert [None, 1] == _counts(channel, "basic.nack")
        assert [None, 2] == _counts(channel, "basic.nack")
        assert 3 == broker.queue("q").messages[0].headers["x-delivery-count"]


def _put(channel: Channel, *priorities: int | None) -> None:
    for priority in priorities:
        channel.put("q", str(priority).encode(), **({} if priority is None else {"priority": priority}))


def _bodies(channel: Channel, count: int) -> list[str]:
    return [(channel.get("q") or b"").decode() for _ in range(count)]


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_priorities_begin_and_end_with_the_profile(tmp_path: Path, *, is_clean: bool) -> None:
    """Messages stored without priorities have the default one with the profile; those with others stay without it."""
    with leveret.Broker(data_dir=tmp_path) as broker, _channel(broker) as channel:
        channel.queue("q", durable=True, arguments=QUORUM)
        _put(channel, 0, 9, None)
        if not is_clean:
            broker.kill()
    with leveret.Broker(data_dir=tmp_path, config=PROFILE) as broker, _channel(broker) as channel:
        _put(channel, 5, 3, 4)
        assert ["5", "0"] == _bodies(channel, 2)
        _put(channel, 31, 0)
        if not is_clean:
            broker.kill()
    with leveret.Broker(data_dir=tmp_path) as broker, _channel(broker) as channel:
        assert 6 == channel.ready("q", 6)
        _put(channel, 31)
        assert ["31", "9", "None", "4"] == _bodies(channel, 4)
        channel.queue("committed", durable=True)
        if not is_clean:
            broker.kill()
    with leveret.Broker(data_dir=tmp_path) as broker, _channel(broker) as channel:
        assert ["31", "3", "0", ""] == _bodies(channel, 4)
        channel.call("queue.delete", queue="q")
    with leveret.Broker(data_dir=tmp_path) as broker:
        assert ["committed"] == broker.queues()


def test_levels_of_a_queue_without_priorities(tmp_path: Path) -> None:
    """A quorum queue with messages of earlier priorities counts returns, and gives them back in their order."""
    with leveret.Broker(data_dir=tmp_path, config=PROFILE) as broker, _channel(broker) as channel:
        channel.queue("q", durable=True, arguments=QUORUM)
        _put(channel, 1, 9)
        assert [None, None] == _counts(channel, "basic.reject")
    with leveret.Broker(data_dir=tmp_path) as broker, _channel(broker) as channel:
        assert [None, 1] == _counts(channel, "basic.nack")
        assert [None, 2] == _counts(channel, "basic.nack")
        assert ["9", "1"] == _bodies(channel, 2)
