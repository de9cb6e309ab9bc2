"""Moving, copying, discarding and retrying messages of an embedded broker."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pika
import pytest

import leveret
from leveret.broker.embedded.errors import ClosedBrokerError, RefusedError
from leveret.broker.persistence.data_store import DataStore
from leveret.broker.transfer.transfer import Transfer
from leveret.storage.journal.journal import Journal
from leveret.storage.queues.variable_queue import VariableQueue


@pytest.fixture(params=["memory", "disk"])
def broker(request, tmp_path) -> Iterator[leveret.Broker]:
    """A running broker with ten messages in a queue."""
    with leveret.Broker(data_dir=tmp_path if request.param == "disk" else None) as broker:
        broker.declare("orders")
        broker.declare("others")
        for number in range(10):
            broker.publish("", "orders", str(number), headers={"n": number})
        yield broker


def bodies(broker: leveret.Broker, queue: str) -> list[bytes]:
    return [message.body for message in broker.queue(queue).messages]


def test_messages_are_moved_copied_and_discarded(broker):
    """The methods of a queue return when the transfer is over, with its result."""
    orders = broker.queue("orders")

    assert 3 == orders.move("others", where="headers.n < 3")["done"]
    assert 2 == orders.copy("others", limit=2)["done"]
    assert 5 == orders.discard(where="headers.n >= 5")["done"]
    assert {"unroutable": 2} == orders.move("exchange:amq.topic/none")["causes"]
    assert [b"3", b"4"] == bodies(broker, "orders")
    assert [b"0", b"1", b"2", b"3", b"4"] == bodies(broker, "others")
    with pytest.raises(RefusedError, match="no queue 'none'"):
        orders.move("none")
    with pytest.raises(RefusedError, match="where: column 3"):
        orders.discard(where="n = 1")


def test_dead_letters_are_retried(broker):
    """Messages that are no dead letters stay."""
    assert {"no x-death": 10} == broker.queue("orders").retry()["causes"]


def test_acked_messages_are_replayed(broker):
    """A replay copies what was acked since a time, and before another one."""
    broker.declare("work", arguments={"x-retain-for": 3_600_000})
    began = datetime.now(UTC)
    for number in range(3):
        broker.publish("", "work", str(number), headers={"n": number})
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for _ in range(3):
            channel.basic_get("work", auto_ack=True)
    work = broker.queue("work")

    assert 2 == work.replay("others", since=began, where="headers.n > 0")["done"]
    assert 0 == work.replay("others", until=began)["done"]
    assert 3 == work.replay("others", limit=5)["done"]
    assert [b"1", b"2", b"0", b"1", b"2"] == bodies(broker, "others")
    assert {"n": 1, "x-leveret-replayed": "work"} == broker.queue("others").messages[0].headers
    with pytest.raises(RefusedError, match="retains no messages"):
        broker.queue("orders").replay("others")


def test_in_the_loop_of_the_application():
    """An asynchronous broker has the same methods."""

    async def main() -> None:
        async with leveret.AsyncBroker() as broker:
            await broker.declare("orders")
            await broker.declare("others")
            await broker.publish("", "orders", "one")
            queue = broker.queue("orders")
            assert 1 == (await queue.copy("others"))["done"]
            assert 1 == (await queue.move("others"))["done"]
            await broker.declare("work", arguments={"x-retain-for": 3_600_000})
            assert 0 == (await broker.queue("work").replay("others"))["done"]
            assert {"no x-death": 2} == (await broker.queue("others").retry())["causes"]
            assert 2 == (await broker.queue("others").discard())["done"]

    asyncio.run(main())


@pytest.mark.parametrize("call", ["move", "messages", "declare"])
async def test_a_kill_ends_the_calls_that_wait(tmp_path, monkeypatch, call):
    """Whoever waits for a broker that is killed, for a transfer, a read or the disk, gets ClosedBrokerError."""
    broker = leveret.AsyncBroker(data_dir=tmp_path)
    await broker.start()
    for queue in ("orders", "others"):
        await broker.declare(queue)
    await broker.publish("", "orders", "0")
    orders = broker.queue("orders")
    calls = {
        "move": lambda: orders.move("others"),
        "messages": lambda: orders.messages(where="headers.n == 1"),
        "declare": lambda: broker.declare("more"),
    }
    monkeypatch.setattr(Transfer, "_go_on", lambda _: None)
    monkeypatch.setattr(Journal, "when_safe", lambda *_: None)
    monkeypatch.setattr(DataStore, "run_read", lambda *_: None)
    monkeypatch.setattr(VariableQueue, "portion", lambda *_, **__: (yield lambda: None))
    waiting = asyncio.create_task(calls[call]())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    await broker.kill()

    with pytest.raises(ClosedBrokerError, match="stopped during the call"):
        await asyncio.wait_for(waiting, 10)


async def test_a_call_that_is_given_up_harms_nobody(tmp_path):
    """A broker goes on after a caller has stopped waiting for the disk."""
    async with leveret.AsyncBroker(data_dir=tmp_path) as broker:
        for number in range(20):
            waiting = asyncio.create_task(broker.declare(f"q{number}"))
            await asyncio.sleep(0)
            waiting.cancel()
        await broker.declare("last")

        assert "last" in await broker.queues()
