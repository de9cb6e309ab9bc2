"""Publishes to any number of queues, keys, exchanges or headers do not hold the event loop."""

import itertools
from pathlib import Path

import pytest
from loop.harness import (
    BAR_MS,
    WAIT_SECONDS,
    Site,
    bind,
    longest_step,
    method,
    publish,
    queues,
    settled,
    size,
    sync,
)


def mesh(site: Site) -> None:
    """Exchanges bound all to all, and messages whose keys were not met before."""
    channel = site.channel()
    count = size(200, 100)
    names = [f"x{number}" for number in range(count)]
    for name in names:
        channel.send("exchange.declare", exchange=name, type="topic", nowait=True)
    for source in names:
        channel.client.raw(
            b"".join(
                method("exchange.bind", source=source, destination=name, routing_key="#", nowait=True)
                for name in names
            )
        )
    sync(channel)
    channel.client.raw(b"".join(publish("x0", f"key{number}") for number in range(size(1000, 200))))
    sync(channel)


def fan_out_distinct(site: Site) -> None:
    """Messages of changing size to many queues."""
    channel = site.channel()
    count = size(2000, 1000)
    names = queues(channel, (f"q{number}" for number in range(count)))
    bind(channel, names, "amq.fanout")
    sent = size(1500, 300)
    channel.client.raw(b"".join(publish("amq.fanout", "", b"x" * (number % 60)) for number in range(sent)))
    assert sent * count == settled(channel, names)


def fan_out_equal(site: Site) -> None:
    """Equal messages to many queues, as many as a read takes."""
    channel = site.channel()
    names = queues(channel, (f"q{number}" for number in range(size(2000, 1000))))
    bind(channel, names, "amq.fanout")
    sent = size(2000, 500)
    channel.client.raw(publish("amq.fanout", "", b"x") * sent)
    assert sent * len(names) == settled(channel, names)


def fan_out_wide(site: Site) -> None:
    """Publish single messages to more queues than a step can reach, also one that expires in each of them."""
    channel = site.channel()
    names = queues(channel, (f"q{number}" for number in range(size(199_000, 15_000))))
    bind(channel, names, "amq.fanout")
    channel.call("confirm.select")
    octets = publish("amq.fanout", "", b"x") + publish("amq.fanout", "", b"x", expiration="3600000")
    channel.client.raw(octets + publish("amq.fanout", "", b"x", headers={"CC": ["another key"]}))
    assert 3 * len(names) == settled(channel, names)


def wide_dead_letters(site: Site) -> None:
    """Dead letters and delayed messages to more queues than a step can reach."""
    channel = site.channel()
    channel.call(
        "exchange.declare", exchange="later", type="x-delayed-message", arguments={"x-delayed-type": "fanout"}
    )
    names = queues(channel, (f"q{number}" for number in range(size(90_000, 15_000))))
    bind(channel, names, "amq.fanout")
    bind(channel, names, "later")
    channel.queue("source", arguments={"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 0})
    channel.client.raw(publish("", "source", b"x") * 3)
    channel.client.raw(publish("later", "", b"x", headers={"x-delay": 1}) * 3)
    for name in (names[0], names[-1]):
        assert 6 == channel.ready(name, 6, within=WAIT_SECONDS)


def many_keys(site: Site) -> None:
    """Publish with as many CC keys as are allowed, to many queues whose pattern matches each of them."""
    channel = site.channel()
    names = queues(channel, (f"q{number}" for number in range(size(2000, 1000))))
    bind(channel, names, "amq.topic", "#")
    keys = [f"k{number}.a" for number in range(1000)]
    channel.client.raw(b"".join(publish("amq.topic", "k", b"x", headers={"CC": keys}) for _ in range(5)))
    assert 5 * len(names) == settled(channel, names)


def many_headers(site: Site) -> None:
    """Header bindings that share a criterion, so that each of them has to be looked at."""
    channel = site.channel()
    names = queues(channel, ("q",))
    count = size(5000, 2000)
    channel.client.raw(
        b"".join(
            method(
                "queue.bind",
                queue="q",
                exchange="amq.headers",
                routing_key="",
                nowait=True,
                arguments={"x-match": "all", "a": "1", "b": str(number)},
            )
            for number in range(count)
        )
    )
    sync(channel)
    sent = size(500, 200)
    channel.client.raw(
        b"".join(publish("amq.headers", "", headers={"a": "1", "b": str(n)}) for n in range(sent))
    )
    assert sent == settled(channel, names)


def many_any_headers(site: Site) -> None:
    """Header bindings of one queue of which each message meets every one, by each of its headers."""
    channel = site.channel()
    names = queues(channel, ("q",))
    shared = {f"h{number}": "1" for number in range(size(1, 16))}
    count = size(990_000, 20_000)
    for start in range(0, count, 10_000):
        bindings = [
            method(
                "queue.bind",
                queue="q",
                exchange="amq.headers",
                routing_key="",
                nowait=True,
                arguments={"x-match": "any", **shared, "own": str(number)},
            )
            for number in range(start, start + 10_000)
        ]
        channel.client.raw(b"".join(bindings))
    sync(channel)
    channel.client.raw(publish("amq.headers", "", headers=shared) * 20)
    assert 20 == settled(channel, names)


def topic_churn(site: Site) -> None:
    """Patterns of many `#`, with a bind before each publish."""
    channel = site.channel()
    queues(channel, ("q", "other"))
    for number in range(size(300, 150)):
        channel.send(
            "queue.bind",
            queue="q",
            exchange="amq.topic",
            routing_key=f"k{number}." + ".".join(["#"] * 50),
            nowait=True,
        )
    sync(channel)
    octets = b"".join(
        method("queue.bind", queue="other", exchange="amq.topic", routing_key=f"o{number}", nowait=True)
        + publish("amq.topic", ".".join(f"k{number}"))
        for number in range(size(400, 100))
    )
    channel.client.raw(octets)
    sync(channel)


def hostile_patterns(site: Site) -> None:
    """Patterns of which very many match any beginning of a key in many ways, and keys that were not met before."""
    channel = site.channel()
    queues(channel, ("q",))
    depth = size(16, 13)
    words = ["".join(each) for each in itertools.product("*a", repeat=depth)]
    for at in range(0, len(words), 4096):
        channel.client.raw(
            b"".join(
                method("queue.bind", queue="q", exchange="amq.topic", routing_key=".".join(word), nowait=True)
                for word in words[at : at + 4096]
            )
        )
    sync(channel)
    keys = [".".join("a" * (depth - 1) + chr(98 + number)) for number in range(size(8, 4))]
    keys.append(".".join("a" * depth))
    channel.client.raw(b"".join(publish("amq.topic", key) for key in keys))
    assert len(keys) == settled(channel, ("q",))


def everything(site: Site) -> None:
    """CC keys through exchanges bound all to all, with headers, to queues with dead letters, in distinct sizes."""
    channel = site.channel()
    count = size(500, 200)
    names = [f"q{number}" for number in range(count)]
    for name in names:
        channel.send(
            "queue.declare",
            queue=name,
            nowait=True,
            arguments={"x-max-length": 1, "x-dead-letter-exchange": "dead"},
        )
    channel.call("exchange.declare", exchange="dead", type="fanout")
    queues(channel, ("letters",))
    bind(channel, ("letters",), "dead")
    exchanges = [f"x{number}" for number in range(30)]
    for exchange in exchanges:
        channel.send("exchange.declare", exchange=exchange, type="topic", nowait=True)
        bind(channel, names, exchange, "#")
    for source in exchanges:
        for target in exchanges:
            channel.send("exchange.bind", source=source, destination=target, routing_key="#", nowait=True)
    sync(channel)
    keys = [f"k{number}.a" for number in range(300)]
    octets = b"".join(
        publish("x0", "k", b"x" * number, headers={"CC": keys, "n": number}) for number in range(size(60, 20))
    )
    channel.client.raw(octets)
    sync(channel)
    died = (size(60, 20) - 1) * count
    assert died == channel.ready("letters", died, within=WAIT_SECONDS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case",
    [
        mesh,
        fan_out_distinct,
        fan_out_equal,
        fan_out_wide,
        wide_dead_letters,
        many_keys,
        many_headers,
        many_any_headers,
        topic_churn,
        hostile_patterns,
        everything,
    ],
    ids=lambda case: case.__name__,
)
def test_publishing_holds_nobody(case, tmp_path: Path):
    """Publishes of all kinds keep each step of the loop below the bar."""
    step = longest_step(tmp_path, case)

    assert step.milliseconds <= BAR_MS, step
