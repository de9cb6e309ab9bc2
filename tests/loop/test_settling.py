"""Ends of many deliveries or channels at once do not hold the event loop."""

from pathlib import Path

import pytest
from conformance.wire import Channel
from loop.harness import BAR_MS, Site, consume_all, cut, fill, longest_step, method, queues, size, sync


def delivered(site: Site) -> Channel:
    """A channel with very many unacked deliveries."""
    channel = site.channel()
    queues(channel, ("q",))
    fill(channel, "q", size(1_000_000, 100_000))
    consume_all(channel, "q")
    return channel


def ready(site: Site) -> int:
    """Wait until all messages are back in their queue; returns how many those are."""
    channel = site.channel()
    wanted, found = size(1_000_000, 100_000), -1
    while found < wanted:
        found = channel.call("queue.declare", queue="q", passive=True).message_count
    return found


def deliver(site: Site) -> None:
    """Deliver all; the broker stops before anything is settled."""
    delivered(site)


def ack_all(site: Site) -> None:
    channel = delivered(site)
    channel.send("basic.ack", delivery_tag=0, multiple=True)
    sync(channel)
    channel.call("queue.delete", queue="q")


def nack_all(site: Site) -> None:
    """Requeue all deliveries by one method, of a consumer that takes no more."""
    channel = delivered(site)
    channel.call("basic.cancel", consumer_tag="c")
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    sync(channel)
    assert size(1_000_000, 100_000) == ready(site)


def reject_all(site: Site) -> None:
    """Reject all deliveries by one method, without a dead letter exchange."""
    channel = delivered(site)
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    sync(channel)
    assert channel.call("queue.delete", queue="q").message_count == 0


def recover(site: Site) -> None:
    """Requeue all deliveries by `basic.recover`."""
    channel = delivered(site)
    channel.call("basic.cancel", consumer_tag="c")
    channel.call("basic.recover", requeue=True)
    assert size(1_000_000, 100_000) == ready(site)


def close_channel(site: Site) -> None:
    channel = delivered(site)
    channel.call("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    assert size(1_000_000, 100_000) == ready(site)


def close_connection(site: Site) -> None:
    channel = delivered(site)
    channel.client.call(0, "connection.close", reply_code=200, reply_text="", class_id=0, method_id=0)
    assert size(1_000_000, 100_000) == ready(site)


def lose_connection(site: Site) -> None:
    cut(delivered(site).client)
    assert size(1_000_000, 100_000) == ready(site)


def commit_acks(site: Site) -> None:
    channel = delivered(site)
    channel.call("tx.select")
    channel.send("basic.ack", delivery_tag=0, multiple=True)
    channel.call("tx.commit")
    assert channel.call("queue.delete", queue="q").message_count == 0


def roll_back_acks(site: Site) -> None:
    """Acks for all deliveries in a transaction that is rolled back: they can be acked again."""
    channel = delivered(site)
    channel.call("tx.select")
    channel.send("basic.ack", delivery_tag=0, multiple=True)
    channel.call("tx.rollback")
    channel.send("basic.ack", delivery_tag=1)
    channel.send("basic.ack", delivery_tag=size(1_000_000, 100_000))
    channel.call("tx.commit")


def many_channels(site: Site) -> None:
    """A connection with as many channels as there can be is lost."""
    client = site.client(channel_max=0)
    count = size(65_535, 10_000)
    client.raw(b"".join(method("channel.open", number) for number in range(1, count + 1)))
    for number in range(1, count + 1):
        client.receive(number, "channel.open-ok")
    cut(client)
    sync(site.channel())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [
        deliver,
        ack_all,
        nack_all,
        reject_all,
        recover,
        close_channel,
        close_connection,
        lose_connection,
        commit_acks,
        roll_back_acks,
    ],
    ids=lambda case: case.__name__,
)
def test_settling_holds_nobody(case, tmp_path: Path):
    """Settling and requeueing any number of deliveries at once keeps each step of the loop below the bar."""
    step = longest_step(tmp_path, case)

    assert step.milliseconds <= BAR_MS, step


@pytest.mark.timeout(900)
def test_closing_many_channels_holds_nobody(tmp_path: Path):
    """Closing a connection with all its channels keeps each step of the loop below the bar."""
    step = longest_step(tmp_path, many_channels, "channel_max=0")

    assert step.milliseconds <= BAR_MS, step
