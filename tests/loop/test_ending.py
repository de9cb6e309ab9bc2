"""Messages and queues that end, however many at once, do not hold the event loop."""

import time
from pathlib import Path

import pytest
from conformance.wire import Channel
from loop.harness import (
    BAR_MS,
    IS_FULL,
    WAIT_SECONDS,
    Site,
    consume_all,
    cut,
    fill,
    longest_step,
    method,
    publish,
    queues,
    size,
    sync,
)

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def arrive(channel: Channel, queue: str, count: int) -> None:
    """Wait until so many messages are ready in a queue."""
    assert count == channel.ready(queue, count, within=WAIT_SECONDS)


def vanish(channel: Channel, name: str) -> None:
    """Wait until a queue is not there any more, without using it."""
    channel.call("confirm.select")
    deadline = time.monotonic() + WAIT_SECONDS
    returned = False
    while not returned:
        assert time.monotonic() < deadline
        channel.publish("", name, mandatory=True)
        returned = channel.receive("basic.return", "basic.ack").name == "basic.return"
    channel.receive("basic.ack")


def expire(site: Site, count: int, **message: object) -> None:
    """Messages that expire together, out of a durable queue into another."""
    channel = site.channel()
    channel.queue("dead", durable=True)
    channel.queue("q", durable=True, arguments={**DEAD, "x-message-ttl": size(30_000, 5_000)})
    body = b"x" * int(str(message.pop("octets", 1)))
    fill(channel, "q", count, body=body, delivery_mode=2, **message)
    arrive(channel, "dead", count)


def expiry(site: Site) -> None:
    """Expire messages of 3 KB."""
    expire(site, size(60_000, 10_000), octets=3000)


def expiry_of_deaths(site: Site) -> None:
    """Messages that say that they have died eighty times."""
    deaths = [
        {
            "count": 1,
            "reason": "expired",
            "queue": f"q{number}",
            "time": 5,
            "exchange": "e",
            "routing-keys": [f"k{key}" for key in range(25)],
        }
        for number in range(80)
    ]
    expire(site, size(1000, 200), headers={"x-death": deaths})


def expiry_of_headers(site: Site) -> None:
    """Messages of four thousand header fields."""
    expire(site, size(1000, 100), headers={f"field{number}": str(number) for number in range(4000)})


def rejection(site: Site) -> None:
    """Very many messages are rejected at once, and their queue is deleted."""
    channel = site.channel()
    count = size(200_000, 30_000)
    channel.queue("dead")
    channel.queue("q", arguments=DEAD)
    fill(channel, "q", count)
    consume_all(channel, "q")
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    channel.send("queue.delete", queue="q")
    arrive(site.channel(), "dead", count)


def limit_in_transaction(site: Site) -> None:
    """A transaction of far more than the limit allows."""
    channel = site.channel()
    count = size(60_000, 20_000)
    channel.queue("dead")
    channel.queue("q", arguments={**DEAD, "x-max-length": 10})
    channel.call("tx.select")
    channel.client.raw(publish("", "q", b"x") * count)
    channel.call("tx.commit")
    assert 10 == channel.call("queue.declare", queue="q", passive=True).message_count
    arrive(channel, "dead", count - 10)


def deep_queues(site: Site) -> None:
    """Four deep queues are deleted together."""
    channel = site.channel()
    names = [f"q{number}" for number in range(4)]
    for name in names:
        channel.queue(name, durable=True)
        fill(channel, name, size(60_000, 8_000), body=b"x" * 4100, delivery_mode=2)
    for name in names:
        channel.send("queue.delete", queue=name)
    for _ in names:
        channel.receive("queue.delete-ok")


def small_messages(site: Site) -> None:
    """Very many small messages are purged, and as many deleted."""
    channel = site.channel()
    for name in ("purged", "deleted"):
        channel.queue(name)
        fill(channel, name, size(1_000_000, 150_000))
    channel.call("queue.purge", queue="purged")
    channel.call("queue.delete", queue="deleted")


def unacked_messages(site: Site) -> None:
    """A durable queue is deleted while very many of its messages are unacked, then these are acked."""
    channel = site.channel()
    channel.queue("q", durable=True)
    fill(channel, "q", size(1_000_000, 150_000), delivery_mode=2)
    consume_all(channel, "q")
    site.prepared()
    site.channel().call("queue.delete", queue="q")
    channel.send("basic.ack", delivery_tag=0, multiple=True)
    sync(channel)


def requeued_messages(site: Site) -> None:
    """A durable queue is deleted when very many of its messages have come back."""
    channel = site.channel()
    count = size(1_000_000, 150_000)
    channel.queue("q", durable=True)
    fill(channel, "q", count, delivery_mode=2)
    consume_all(channel, "q")
    site.prepared()
    cut(channel.client)
    other = site.channel()
    arrive(other, "q", count)
    other.call("queue.delete", queue="q")


def promises(site: Site) -> None:
    """Queues with very many messages whose publishers wait for consumers are purged and deleted."""
    other = site.channel()
    count = size(300_000, 100_000)
    for method_name in ("queue.purge", "queue.delete"):
        channel = site.channel()
        channel.call("confirm.select")
        channel.queue("q")
        channel.client.raw(publish("", "q", b"x") * count)
        arrive(other, "q", count)
        other.call(method_name, queue="q")
        last = 0
        while last < count:
            nack = channel.receive("basic.nack")
            assert nack.multiple or nack.delivery_tag == last + 1
            last = nack.delivery_tag


def expired_queues(site: Site) -> None:
    """Let thousands of unused queues expire together."""
    channel = site.channel()
    count = size(10_000, 3000)
    names = queues(channel, (f"q{number}" for number in range(count)), arguments={"x-expires": 3000})
    vanish(site.channel(), names[-1])


def exclusive_queues(site: Site) -> None:
    """A connection with thousands of exclusive queues is lost."""
    channel = site.channel()
    names = queues(channel, (f"q{number}" for number in range(size(10_000, 2500))), exclusive=True)
    cut(channel.client)
    vanish(site.channel(), names[-1])


def auto_delete_queues(site: Site) -> None:
    """A channel that consumes from thousands of auto-delete queues is closed."""
    channel = site.channel()
    names = queues(channel, (f"q{number}" for number in range(size(10_000, 3000))), auto_delete=True)
    channel.client.raw(
        b"".join(method("basic.consume", queue=name, consumer_tag=name, nowait=True) for name in names)
    )
    sync(channel)
    channel.call("channel.close", reply_code=200)
    vanish(site.channel(), names[-1])


def consumers(site: Site) -> None:
    """Thousands of consumers with rising priorities join, and are cancelled."""
    channel = site.channel()
    channel.queue("q")
    tags = [f"c{number}" for number in range(size(10_000, 5_000))]
    channel.client.raw(
        b"".join(
            method(
                "basic.consume",
                queue="q",
                consumer_tag=tag,
                nowait=True,
                arguments={"x-priority": number},
            )
            for number, tag in enumerate(tags)
        )
    )
    sync(channel)
    channel.client.raw(publish("", "q", b"x") * 20_000)
    sync(channel)
    channel.client.raw(b"".join(method("basic.cancel", consumer_tag=tag, nowait=True) for tag in tags))
    sync(channel)


def single_active_consumers(site: Site) -> None:
    """The single active consumer is cancelled thousands of times."""
    channel = site.channel()
    channel.queue("q", arguments={"x-single-active-consumer": True})
    tags = [f"c{number}" for number in range(5000)]
    octets = [method("basic.consume", queue="q", consumer_tag=tag, nowait=True) for tag in tags]
    channel.client.raw(b"".join(octets))
    sync(channel)
    channel.client.raw(b"".join(method("basic.cancel", consumer_tag=tag, nowait=True) for tag in tags))
    sync(channel)


CASES = [
    expiry,
    expiry_of_deaths,
    expiry_of_headers,
    rejection,
    limit_in_transaction,
    deep_queues,
    small_messages,
    unacked_messages,
    requeued_messages,
    promises,
    expired_queues,
    exclusive_queues,
    auto_delete_queues,
    consumers,
    single_active_consumers,
]


@pytest.mark.timeout(1200 if IS_FULL else 300)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_ends_holds_nobody(case, tmp_path: Path) -> None:
    """Ends of any number at once keep each step of the loop below the bar."""
    settings = ("confirm.mode=consumer-ack",) if case is promises else ()
    step = longest_step(tmp_path, case, *settings)

    assert step.milliseconds <= BAR_MS, step
