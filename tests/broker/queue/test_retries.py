"""Delayed retries: messages that come back wait before they are delivered again."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, node_in, set_policy, settle, work

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Queue, make
from leveret.broker.channel.settings import Compatibility
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.queue.settings import Backoff
from leveret.storage.store.check import Check, Finding

ARGUMENTS = {
    "x-delayed-retry-type": ("longstr", "all"),
    "x-delayed-retry-min": ("signedint", 200),
    "x-delayed-retry-max": ("signedint", 500),
}
QUORUM = {"x-queue-type": ("longstr", "quorum")}


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff("all", 200, 500), [200, 400, 500, 500]),
        (Backoff("all", 200, 200), [200, 200, 200, 200]),
        (Backoff("all", 100, 2000, 3), [100, 300, 900, 2000]),
        (Backoff("all", 100, 2000, 1), [100, 100, 100, 100]),
    ],
)
def test_delays_grow(backoff, delays):
    """The delay is a multiple of the minimum, as in RabbitMQ 4.3, or grows by a factor; the maximum bounds it."""
    assert delays == [backoff.delay(times, failed=True) for times in range(1, 5)]
    assert backoff.delay(10**9, failed=True) == backoff.most or backoff.multiplier == 1


def test_jitter_spreads_delays():
    """Delays of messages that failed together are shorter by up to that share, evenly, and no two fall together."""
    backoff = Backoff("all", 1000, 8000, 2, 50)
    delays = sorted([backoff.delay(4, failed=True, seq_id=seq_id) for seq_id in range(100)])
    assert 4000 < delays[0] < 4100
    assert 7900 < delays[-1] <= 8000
    assert all(0 < after - before < 100 for before, after in pairwise(delays))
    assert {1} == {Backoff("all", 1, 1, None, 100).delay(1, failed=True, seq_id=each) for each in range(100)}


def test_types_tell_what_waits():
    """`failed` and `returned` are about how a message came back; a message that never failed waits the minimum."""
    table = [
        [Backoff(kind, 9, 9).delay(0, failed=failed) for failed in (True, False)]
        for kind in ("all", "failed", "returned")
    ]
    assert [[9, 9], [9, 0], [0, 9]] == table


@pytest.fixture(params=["memory", "disk"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with node_in(request.param, tmp_path) as made:
        yield made


def ready(node: Node, *bodies: bytes, **arguments: Any) -> Client:
    """Return a client that has declared a queue with delayed retries and published messages to it."""
    client = Client(node)
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    client.declare("q", durable=True, arguments=ARGUMENTS | given)
    settle(node)
    for body in bodies:
        client.publish("q", body, delivery_mode=2)
    settle(node)
    client.take()
    return client


def queue(node: Node) -> Any:
    return node.vhosts["/"].queues["q"]


def get(client: Client) -> Any:
    """Fetch a message; None if there is none."""
    client.take()
    client.send(make(Basic.Get, 0, "q", False))
    settle(client.node)
    client.node.clock.run()
    (found,) = client.take()
    return found if isinstance(found.method, Basic.GetOk) else None


def reject(client: Client, *, nack: bool = False) -> bytes:
    """Fetch a message and give it back; returns its body."""
    found = get(client)
    tag = found.method.delivery_tag
    client.send(make(Basic.Nack, tag, False, True) if nack else make(Basic.Reject, tag, True))
    settle(client.node)
    return found.body


@pytest.mark.parametrize("kind", [{}, {"x_queue_type": ("longstr", "quorum")}])
def test_a_rejected_message_comes_back_after_its_delay(node, kind):
    """Each retry waits longer, up to the maximum, and not a millisecond less; the message is marked as redelivered."""
    client = ready(node, b"m", **kind)
    for delay in (200, 400, 500, 500):
        reject(client)
        node.pass_time(delay - 1)
        assert get(client) is None
        node.pass_time(1)
        assert 1 == queue(node).ready_count
    assert get(client).method.redelivered


def test_it_waits_where_it_was(node):
    """Others are delivered meanwhile; then it returns to its old place, and counts show where it is."""
    client = ready(node, b"0", b"1", b"2")
    assert b"0" == reject(client)
    assert (2, 0, 1) == (queue(node).ready_count, queue(node).unacked_count, queue(node).held_count)
    assert b"1" == reject(client)
    node.pass_time(200)
    assert [b"0", b"1", b"2"] == [get(client).body for _ in range(3)]


def test_a_closed_channel_counts_as_a_failure(node):
    """With type `failed` a message that its consumer loses waits, too; one that it gives back does not."""
    client = ready(node, b"m", **{"x-delayed-retry-type": ("longstr", "failed")})
    reject(client, nack=True)
    assert 1 == queue(node).ready_count
    get(client)
    client.send(make(Channel.Close, 200, "", 0, 0))
    client.node.clock.run()
    settle(node)
    assert (0, 1) == (queue(node).ready_count, queue(node).held_count)
    node.pass_time(500)
    assert (1, 0) == (queue(node).ready_count, queue(node).held_count)


def test_a_poison_message_is_dead_after_the_sum_of_its_delays(node):
    """With a delivery limit the message leaves for the dead letter exchange when its retries are used up."""
    client = ready(
        node,
        b"m",
        x_delivery_limit=("signedint", 3),
        x_dead_letter_exchange=("longstr", ""),
        x_dead_letter_routing_key=("longstr", "dead"),
    )
    client.declare("dead", durable=True)
    settle(node)
    began = node.wall_clock()
    for delay in (200, 400, 500):
        reject(client)
        node.pass_time(delay)
    reject(client)
    node.run_turn()
    assert 1 == node.vhosts["/"].queues["dead"].ready_count
    assert 1100 == node.wall_clock() - began


def test_a_policy_sets_them(node):
    """Policy keys do the same for a queue that exists, and the maximum is the minimum if it is not given."""
    client = Client(node)
    client.declare("q", durable=True)
    policy = {"delayed-retry-type": "returned", "delayed-retry-min": 100}
    set_policy(node.vhosts["/"].policies, "p", "^q$", policy)
    node.run_turn()
    node.clock.run()
    settle(node)
    client.publish("q", b"m", delivery_mode=2)
    settle(node)
    client.take()
    for _ in range(3):
        reject(client, nack=True)
        node.pass_time(99)
        assert 0 == queue(node).ready_count
        node.pass_time(1)
        assert 1 == queue(node).ready_count


def test_a_type_without_a_minimum_is_warned_of(node, caplog):
    """A back-off that is not obeyed would be a hot loop: the log says what is missing."""
    client = Client(node)
    client.declare("q", durable=True, arguments={"x-delayed-retry-type": ("longstr", "all")})
    assert "x-delayed-retry-type has no effect without x-delayed-retry-min" in caplog.text


def test_purge_and_delete_remove_what_waits(node):
    """A purge removes and counts messages that wait; later ones wait as before."""
    client = ready(node, b"0", b"1")
    reject(client)
    settle(node)
    assert 2 == queue(node).purge()
    client.publish("q", b"2", delivery_mode=2)
    settle(node)
    reject(client)
    assert 1 == queue(node).held_count
    node.pass_time(200)
    assert 1 == queue(node).ready_count
    reject(client)
    client.send(make(Queue.Delete, 0, "q", False, False, False))
    settle(node)
    ready(node)
    node.pass_time(1000)
    assert (0, 0) == (queue(node).ready_count, queue(node).held_count)


def test_a_purge_refuses_what_waits_for_a_consumer(node):
    """The promise of a message that a purge removes while it waits is broken, as that of a ready one is."""
    client = ready(node, x_confirm_mode=("longstr", "consumer-ack"))
    client.send(Confirm.Select())
    client.publish("q", b"0", delivery_mode=2)
    settle(node)
    reject(client)
    client.take()
    assert 1 == queue(node).purge()
    settle(node)
    work(node)
    assert ["1 basic.nack delivery_tag=1 requeue"] == client.sent()


def test_those_over_the_limit_leave_at_once_though_others_wait(node):
    """Of messages that come back together the dead ones do not wait for the others."""
    client = ready(
        node,
        b"old",
        b"new",
        x_delivery_limit=("signedint", 1),
        x_dead_letter_exchange=("longstr", ""),
        x_dead_letter_routing_key=("longstr", "dead"),
    )
    client.declare("dead", durable=True)
    settle(node)
    reject(client)
    node.pass_time(200)
    get(client)
    tag = get(client).method.delivery_tag
    client.send(make(Basic.Nack, tag, True, True))
    settle(node)
    assert 1 == queue(node).held_count
    assert 1 == node.vhosts["/"].queues["dead"].ready_count


def test_a_message_that_its_consumer_gives_back_waits_the_minimum(tmp_path):
    """Returned messages do not make the delay grow where only failures count, as in RabbitMQ 4.3."""
    queues = QueueCompatibility(delivery_count="failures")
    node = DiskNode(tmp_path, compatibility=Compatibility(queues=queues))
    client = ready(node, b"m")
    for _ in range(3):
        reject(client, nack=True)
        node.pass_time(200)
        assert 1 == queue(node).ready_count
    node.disk.close()


def test_an_unused_queue_begins_to_expire_when_nothing_waits(node):
    """x-expires does not delete a queue while messages wait; its time begins with the last retry."""
    client = ready(node, b"m", x_expires=("signedint", 150))
    reject(client)
    node.pass_time(200)
    settle(node)
    node.pass_time(149)
    assert 1 == queue(node).ready_count
    node.pass_time(1)
    settle(node)
    assert "q" not in node.vhosts["/"].queues


@pytest.mark.parametrize("priorities", [{}, {"x_max_priority": ("signedint", 5)}])
def test_after_a_kill_nobody_gets_it_before_its_time(disk_node, priorities):
    """A message that waits when the broker is killed is not delivered early, others are, and it comes once."""
    client = ready(disk_node, b"0", b"1", b"2", **priorities)
    reject(client)
    reject(client)
    again = disk_node.killed()
    client = Client(again)
    client.take()
    found = []
    for _ in range(8):
        client.send(make(Basic.Get, 0, "q", False))
        for _ in range(5):
            settle(again)
            again.clock.run()
        found += [each.body for each in client.take() if isinstance(each.method, Basic.GetOk)]
    assert [b"2"] == found
    assert (0, 1, 2) == (queue(again).ready_count, queue(again).unacked_count, queue(again).held_count)
    again.pass_time(199)
    assert 0 == queue(again).ready_count
    again.pass_time(1)
    assert 2 == queue(again).ready_count
    assert [b"0", b"1"] == [get(client).body for _ in range(2)]
    settle(again)
    again.disk.close()


def test_a_full_queue_loses_nothing_by_a_restart(disk_node):
    """After a restart messages that wait count for the length of the queue once, and not as ready ones, too."""
    client = ready(disk_node, *[b"%d" % number for number in range(5)], x_max_length=("signedint", 5))
    for _ in range(3):
        reject(client)
    again = disk_node.killed()
    for _ in range(3):
        settle(again)
    assert (5, 0) == (queue(again).ready_count, queue(again).held_count)
    again.disk.close()


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_after_a_restart_gets_the_others(disk_node, no_ack):
    """A consumer, with or without acks, gets only what does not wait, and the rest at its time."""
    client = ready(disk_node, *[b"%d" % number for number in range(6)])
    for _ in range(3):
        reject(client)
    again = disk_node.killed()
    client = Client(again)
    client.consume("q", no_ack=no_ack)
    for _ in range(4):
        settle(again)
    assert (3, 0) == (queue(again).held_count, queue(again).ready_count)
    again.pass_time(200)
    assert 0 == queue(again).held_count
    assert (0 if no_ack else 6) == queue(again).unacked_count
    settle(again)
    again.disk.close()
    found: list[Finding] = []
    Check(again.data_dir, found.append).run()
    assert [] == found


def test_a_message_that_is_overdue_after_a_restart_is_there(disk_node):
    """A message that came due while the broker was down is delivered at once."""
    client = ready(disk_node, b"m")
    reject(client)
    disk_node.clock.now += 10
    again = disk_node.killed()
    again.clock.now = disk_node.clock.now
    again.pass_time(0)
    settle(again)
    client = Client(again)
    client.take()
    assert b"m" == get(client).body
    again.disk.close()


def test_what_waits_is_looked_at(node):
    """A look shows a message that waits as held, with its time."""
    from services.api import OPERATOR, Api

    client = ready(node, b"0", b"1")
    reject(client)
    found = Api(node, OPERATOR).get("leveret/queues/%2F/q/messages")["messages"]
    assert [("1", "ready", None), ("0", "held", node.wall_clock() + 200)] == [
        (each["payload"], each["state"], each["due"]) for each in found
    ]
    row = Api(node, OPERATOR).get("queues/%2F/q")
    assert (1, 0, 1) == (row["messages"], row["messages_unacknowledged"], row["messages_delayed"])
