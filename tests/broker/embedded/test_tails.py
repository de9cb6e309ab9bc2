"""Following an exchange of an embedded broker."""

import asyncio
import threading

import pytest

import leveret
from leveret.broker.embedded.errors import RefusedError

SECONDS = 10.0


def test_messages_come_as_they_are_published():
    """From `with` on, those that match, whether a queue gets them or not; nothing is recorded for that."""
    with leveret.Broker() as broker:
        broker.declare("orders", exchange="events", type="topic", routing_key="order.*")
        broker.publish("events", "order.new", "before")
        with broker.tail("events", "order.#", where="headers.n != 2") as tail:
            for number, key in enumerate(("order.new", "invoice.new", "order.new", "order.eu.new")):
                broker.publish("events", key, str(number), headers={"n": number})
            first, second = tail.next(SECONDS), next(iter(tail))
            assert first is not None
            assert [(b"0", ("orders",)), (b"3", ())] == [(each.body, each.queues) for each in (first, second)]
            assert ("published", "order.new", {"n": 0}) == (first.state, first.routing_key, first.headers)
            assert (None, 0) == (tail.next(0.01), tail.lost)
        broker.publish("events", "order.new", "after")
        assert tail.next(0.01) is None
        with pytest.raises(RefusedError, match="no exchange 'none'"), broker.tail("none"):
            pass
        with pytest.raises(RefusedError, match="where: column"), broker.tail("", where="x ="):
            pass


def test_a_loop_ends_with_its_broker():
    """A thread that waits for messages gets the end of the loop when the broker stops."""
    found: list[bytes] = []
    begun = threading.Event()
    broker = leveret.Broker()
    broker.start()

    def follow() -> None:
        with broker.tail("") as tail:
            begun.set()
            found.extend(message.body for message in tail)

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(SECONDS)
    broker.publish("", "q", "one")
    while not found and thread.is_alive():
        broker.publish("", "q", "more")
    broker.stop()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_in_the_loop_of_the_application():
    """An asynchronous broker has the same, for `async with` and `async for`."""

    async def main() -> None:
        async with leveret.AsyncBroker() as broker, broker.tail("", "q.*") as tail:
            for number in range(3):
                await broker.publish("", f"q.{number}", str(number))
            bodies = []
            async with asyncio.timeout(SECONDS):
                async for message in tail:
                    bodies.append(message.body)
                    if len(bodies) == 3:
                        break
            assert [b"0", b"1", b"2"] == bodies
            assert await tail.next(0.01) is None

    asyncio.run(main())
