"""Very many bindings do not hold the event loop when they go, or when messages follow them."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from conformance.wire import Channel
from loop.harness import BAR_MS, IS_FULL, Site, longest_step, method, size, sync

PER_WRITE = 2000


def bind_all(channel: Channel, exchange: str, keys: Iterable[str]) -> None:
    """Bind the queue q with many keys."""
    octets = []
    for key in keys:
        octets.append(method("queue.bind", queue="q", exchange=exchange, routing_key=key, nowait=True))
        if len(octets) == PER_WRITE:
            channel.client.raw(b"".join(octets))
            octets.clear()
    channel.client.raw(b"".join(octets))
    sync(channel)


def queue_of_bindings(site: Site) -> None:
    """A durable queue with very many bindings to durable exchanges is deleted."""
    channel = site.channel()
    channel.queue("q", durable=True)
    count = size(250_000, 25_000)
    bind_all(channel, "amq.topic", (f"k.{number}.#" for number in range(count)))
    bind_all(channel, "amq.direct", (f"k{number}" for number in range(count)))
    channel.call("queue.delete", queue="q")


def exchange_of_bindings(site: Site) -> None:
    """A durable exchange with very many bindings is deleted."""
    channel = site.channel()
    channel.queue("q", durable=True)
    channel.call("exchange.declare", exchange="x", type="topic", durable=True)
    bind_all(channel, "x", (f"k.{number}.#" for number in range(size(300_000, 50_000))))
    channel.call("exchange.delete", exchange="x")


def headers_of_bindings(site: Site) -> None:
    """A headers exchange with very many bindings is deleted."""
    channel = site.channel()
    channel.queue("q")
    channel.call("exchange.declare", exchange="x", type="headers")
    count = size(200_000, 25_000)
    for begin in range(0, count, PER_WRITE):
        channel.client.raw(
            b"".join(
                method(
                    "queue.bind", queue="q", exchange="x", nowait=True, arguments={"a": "1", "b": str(number)}
                )
                for number in range(begin, begin + PER_WRITE)
            )
        )
    sync(channel)
    channel.call("exchange.delete", exchange="x")


@pytest.mark.timeout(1200 if IS_FULL else 300)
@pytest.mark.parametrize(
    "case",
    [queue_of_bindings, exchange_of_bindings, headers_of_bindings],
    ids=lambda case: case.__name__,
)
def test_bindings_hold_nobody(case, tmp_path: Path) -> None:
    """Removals of any number of bindings at once keep each step of the loop below the bar."""
    step = longest_step(tmp_path, case)

    assert step.milliseconds <= BAR_MS, step
