"""Replays copy acked messages, chosen by the time of their acks, and never what has expired."""

from collections.abc import Iterator
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, node_in, queue_declare
from samples.retained import (
    HOUR,
    RETAIN,
    ack,
    commit,
    consume,
    consume_together,
    declare,
    get,
    publish,
    queue,
    read,
    ready,
    retained,
)  # fmt: skip

from leveret.broker.administration.access import BadRequestError, ForbiddenError, NotFoundError
from leveret.broker.administration.transfers import EVERYTHING, Chosen
from leveret.broker.amqp.commands import Queue as Wire, make
from leveret.broker.transfer.destinations import REPLAYED
from leveret.broker.transfer.retry import headers_of
from leveret.broker.transfer.transfer import Transfer


@pytest.fixture(params=["memory", "disk"])
def node(request, tmp_path) -> Iterator[Node]:
    """A broker in memory, and one with a disk, with a queue that retains and another one."""
    with node_in(request.param, tmp_path / "data") as made:
        client = Client(made)
        declare(client)
        client.send(queue_declare("to", durable=True))
        commit(made)
        yield made


def result(node: Node, number: int) -> dict[str, Any]:
    for _ in range(1000):
        node.clock.run()
        read(node)
        found = node.administration.transfers.transfer(None, number)
        if found["ended"] is not None:
            return found
        commit(node)
        node.pass_time(10)
    raise AssertionError(found)


def replay(node: Node, to: str = "to", chosen: Chosen = EVERYTHING, **times: int) -> dict[str, Any]:
    return result(
        node, node.administration.transfers.start_replay(None, "/", "q", to, chosen=chosen, **times)
    )


def now(node: Node) -> int:
    """Return the time in milliseconds since the epoch."""
    return node.context.clock()


def test_a_replay_copies_with_a_mark(node):
    """The copies have the header with the name of the queue, and all else as it was; the retained messages stay."""
    consume(Client(node), b"1", b"2", headers={"n": ("signedint", 1)}, message_id="m")
    found = replay(node)

    assert ("replay", "done", 2, 2, {}) == tuple(
        found[key] for key in ("action", "state", "messages", "done", "causes")
    )
    assert [b"1", b"2"] == ready(node, "to") == retained(node)
    message = queue(node, "to").backing.head_message()
    assert message is not None
    assert {"n": 1, REPLAYED: "q"} == headers_of(message)
    assert b"\0\1q" == message.address


def test_times_condition_and_limit_choose(node):
    """Only messages acked from `since` on and before `until` that meet the condition are copied, up to the limit."""
    client = Client(node)
    times = []
    for number in range(6):
        times.append(now(node))
        consume(client, b"%d" % number, headers={"n": ("signedint", number)})
        commit(node)
        node.pass_time(1000)

    assert 6 == replay(node, chosen=Chosen(is_dry=True))["done"]
    assert [] == ready(node, "to")
    assert 3 == replay(node, since=times[1], until=times[4])["done"]
    assert [b"1", b"2", b"3"] == ready(node, "to")
    assert 1 == replay(node, since=times[1] + 1, chosen=Chosen("headers.n != 3", limit=1))["done"]
    assert [b"1", b"2", b"3", b"2"] == ready(node, "to")


def test_nothing_past_its_retention_is_replayed(node):
    """A message whose retention is over is not replayed, even if it is still there."""
    client = Client(node)
    consume(client, b"old")
    commit(node)
    node.pass_time(1000)
    consume(client, b"new")
    commit(node)
    node.clock.now += (HOUR - 1000) / 1000  # no timer has run
    backing = queue(node).retained.backing
    assert 2 == backing.ready_count

    found = replay(node)
    assert (2, 1) == (found["examined"], found["done"])
    assert [b"new"] == ready(node, "to")


def test_messages_of_a_record_past_its_retention_are_not_replayed(monkeypatch, node):
    """Messages acked together whose retention is over are not replayed; a replay that looked at none of them would."""
    client = Client(node)
    consume_together(client, b"1", b"2", b"3")
    commit(node)
    node.clock.now += HOUR / 1000  # no timer has run

    found = replay(node)
    assert (3, 0) == (found["examined"], found["done"])
    monkeypatch.setattr(Transfer, "_has_expired", lambda transfer, peeked: False)
    consume_together(client, b"4", b"5")
    commit(node)
    node.clock.now += HOUR / 1000
    assert 0 < replay(node)["done"]


def test_single_messages_of_a_record_are_chosen(node):
    """Condition and limit of a replay are those of single messages, also of such that were acked together."""
    client = Client(node)
    for number in range(4):
        publish(client, b"%d" % number, headers={"n": ("signedint", number)})
    tags = [get(client) for _ in range(4)]
    ack(client, tags[-1], multiple=True)

    assert 2 == replay(node, chosen=Chosen("headers.n > 1", limit=3))["done"]
    assert 1 == replay(node, chosen=Chosen(limit=1))["done"]
    assert [b"2", b"3", b"0"] == ready(node, "to")
    if isinstance(node, DiskNode):
        commit(node)
        found = node.killed()
        assert (4, 4) == (queue(found).retained.ready_count, replay(found)["messages"])
        found.disk.close()


def test_what_expires_while_a_replay_waits_is_not_replayed(node):
    """A replay that is slow because of its rate leaves out what expires meanwhile."""
    consume(Client(node), b"1", b"2", b"3", b"4")
    node.pass_time(HOUR - 1500)
    found = replay(node, chosen=Chosen(rate=1))

    assert ("done", 2) == (found["state"], found["done"])
    assert [b"1", b"2"] == ready(node, "to")


def test_an_expired_message_is_never_replayed(node):
    """A message that has expired in its queue, and one that has an expiration of its own, never come back."""
    client = Client(node)
    declare(client, "short", message_ttl=("signedint", 100))
    publish(client, b"expired", key="short")
    publish(client, b"own", expiration="100")
    node.pass_time(100)
    consume(client, b"own too", expiration="100000")
    node.pass_time(100_000)
    for name in ("q", "short"):
        number = node.administration.transfers.start_replay(None, "/", name, "to")
        assert 0 == result(node, number)["done"]

    assert [] == ready(node, "to")


def test_a_replay_goes_through_an_exchange_or_into_its_own_queue(node):
    """Destinations are those of copies, and also the queue itself; what cannot be routed is counted."""
    client = Client(node)
    client.send(make(Wire.Bind, 0, "to", "amq.topic", "again.#", False, {}))
    commit(node)
    consume(client, b"1")

    assert 1 == replay(node, "exchange:amq.topic/again.q")["done"]
    assert [b"1"] == ready(node, "to")
    assert {"unroutable": 1} == replay(node, "exchange:amq.topic/other")["causes"]
    assert 1 == replay(node, "q")["done"]
    assert [b"1"] == ready(node) == retained(node)


def test_wrong_wishes_are_refused(node):
    """A queue that retains nothing, times in the wrong order, a missing destination: each has its reason."""
    transfers = node.administration.transfers
    with pytest.raises(BadRequestError, match="retains no messages: it needs x-retain-for"):
        transfers.start_replay(None, "/", "to", "q")
    with pytest.raises(BadRequestError, match="'until' must be later than 'since'"):
        transfers.start_replay(None, "/", "q", "to", since=5, until=5)
    with pytest.raises(NotFoundError, match="no queue 'none'"):
        transfers.start_replay(None, "/", "q", "none")
    with pytest.raises(NotFoundError, match="no queue 'none'"):
        transfers.start_replay(None, "/", "none", "to")
    with pytest.raises(BadRequestError, match="where: column"):
        transfers.start_replay(None, "/", "q", "to", chosen=Chosen("n ="))
    users = node.administration.users
    users.put(None, "ann", password="ann", tags=["management"])
    users.set_permissions(None, "/", "ann", configure="", write="^other$", read="^q$")
    with pytest.raises(ForbiddenError):
        transfers.start_replay(node.users.get("ann"), "/", "q", "to")


def test_a_replay_ends_with_the_retention(node):
    """A replay fails, with the reason, when its queue is deleted or retains nothing any more."""
    client = Client(node)
    consume(client, b"1", b"2", b"3")
    started = node.administration.transfers.start_replay(None, "/", "q", "to", chosen=Chosen(rate=1))
    node.clock.run()
    client.send(make(Wire.Delete, 0, "q", False, False, False))
    commit(node)
    node.pass_time(2000)
    found = result(node, started)

    assert ("failed", "queue 'q' retains no messages any more") == (found["state"], found["error"])


def test_the_explanation_of_a_queue_has_what_it_retains(node):
    """`explain queue` says how much is retained, since when, and why something is not."""
    client = Client(node)
    consume(client, b"12345")
    consume(client, b"1", expiration="1000")
    steps = node.administration.explaining.queue(None, "/", "q")
    found: Any = None
    while found is None:
        try:
            next(steps)
        except StopIteration as stopped:
            found = stopped.value

    assert {"messages": 1, "bytes": 36, "skipped": {"own expiration": 1}} == {
        key: found["retention"][key] for key in ("messages", "bytes", "skipped")
    }
    assert now(node) == found["retention"]["oldest"]
    assert [
        line
        for line in found["lines"]
        if line.startswith("retains 1 acked message with 36 bytes, acked since")
    ]
    assert "  1 acked message not retained: own expiration" in found["lines"]
    assert f"  retain-for = {RETAIN['x-retain-for'][1]}   from argument x-retain-for" in found["lines"]
