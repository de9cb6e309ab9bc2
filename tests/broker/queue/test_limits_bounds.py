"""Queue limits are bounded in memory and time: no state of deleted objects, and no turn without end."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, hurry, publish_frames

from leveret.broker.amqp.commands import Basic, Queue as Wire, make
from leveret.broker.queue.settings import QueueSettings


def test_deleted_queues_leave_no_timer() -> None:
    """A deleted queue's expiry timer is removed, also if a delivery is settled afterwards."""
    client = Client()
    client.declare("q", arguments={"x-expires": ("signedint", 86_400_000)})
    client.publish("q", b"1")
    client.consume("q")
    client.send(make(Wire.Delete, 0, "q", False, False, False))
    client.send(make(Basic.Ack, 1, False))

    assert 0 == len(client.node.context.timers)


def test_exclusive_queues_leave_no_timer() -> None:
    """An exclusive queue's timer is removed when its connection ends and requeues unacked messages."""
    client = Client()
    client.declare("q", exclusive=True, arguments={"x-expires": ("signedint", 86_400_000)})
    client.publish("q", b"1")
    client.consume("q")
    client.connection.lost()
    client.node.run_turn()

    assert 0 == len(client.node.context.timers)


def test_counts_of_returns_go_with_their_messages() -> None:
    """Delivery counts of messages that were purged, dropped or taken without an ack are removed."""
    client = Client()
    arguments = {"x-delivery-limit": ("signedint", 9), "x-max-length": ("signedint", 2)}
    client.declare("q", arguments=arguments)
    queue = client.node.vhosts["/"].queues["q"]
    for end in ("purge", "drop", "get"):
        for body in (b"1", b"2"):
            client.publish("q", body)
        client.send(make(Basic.Get, 0, "q", False))
        client.send(make(Basic.Get, 0, "q", False))
        client.send(make(Basic.Nack, 0, True, True))
        if end == "drop":
            client.publish("q", b"3")
            client.publish("q", b"4")
        if end == "get":
            client.send(make(Basic.Get, 0, "q", True))
            client.send(make(Basic.Get, 0, "q", True))
        client.send(make(Wire.Purge, 0, "q", False))

        assert queue.limits is not None
        assert {} == queue.limits.deliveries.counts()


def test_a_timer_set_with_a_limit_in_bytes_leaves_older_messages_counted() -> None:
    """A byte limit and an expiry that come together leave no older message out of the bytes of the limit."""
    client = Client()
    client.declare("q")
    queue = client.node.vhosts["/"].queues["q"]
    client.receive(publish_frames("q", b"12345") * 3000)
    client.node.run_turn()
    queue.configure(QueueSettings(max_octets=10**9, expires=60_000))
    queue.touch()
    client.node.turn.run()  # which sets the timer before the sizes are counted
    while client.node.turn.slices:
        client.node.turn.slices.run()
        client.node.turn.run()

    assert queue.limits is not None
    assert 15_000 == queue.limits.octets


def test_dropping_what_a_new_limit_does_not_allow_takes_several_turns() -> None:
    """A byte limit set on a long queue is applied in several turns, so that others go on."""
    client = Client()
    client.declare("q")
    queue = client.node.vhosts["/"].queues["q"]
    client.receive(publish_frames("q", b"12345") * 3000)
    hurry(client.node, looks=8)
    queue.configure(QueueSettings(max_octets=10))
    client.node.run_turn()

    assert 1000 <= queue.backing.ready_count
    client.node.clock.run()
    assert 2 == queue.backing.ready_count


KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "priorities": {"x-max-priority": ("signedint", 5)},
    "quorum": {"x-queue-type": ("longstr", "quorum"), "x-delivery-limit": ("signedint", 3)},
    "consumer-ack": {"x-confirm-mode": ("longstr", "consumer-ack")},
    "retained": {"x-retain-for": ("signedint", 60_000)},
}


class LimitWalk:
    """A queue whose byte limit comes and goes while it is used, and messages are unacked."""

    def __init__(self, node: Node, arguments: dict[str, Any], seed: int) -> None:
        self.node = node
        self.client = Client(node)
        self.client.declare("q", durable=True, arguments=arguments)
        self.queue = node.vhosts["/"].queues["q"]
        self.chance = random.Random(seed)
        self.paging = isinstance(node, DiskNode)

    def step(self) -> str:
        """Do one thing; returns its name."""
        chance, client = self.chance, self.client
        step = chance.choice(
            ["publish", "publish", "get", "get", "get", "nack", "reject", "ack", "limit", "page"]
        )
        if step == "publish":
            for _ in range(chance.randint(1, 6)):
                client.publish("q", bytes(chance.randint(0, 99)), delivery_mode=chance.choice([1, 2]))
        elif step == "get":
            client.send(make(Basic.Get, 0, "q", chance.random() < 0.1))
        elif step == "limit":
            most = chance.choice([None, 100, 300, 2000])
            overflow = chance.choice(["drop-head", "reject-publish"])
            self.queue.configure(replace(self.queue.settings, max_octets=most, overflow=overflow))
            self.queue.touch()
        elif step == "page" and self.paging:
            self.node.commit()
            for store in list(self.node.disk.pager.active):
                store.set_ram_target(chance.choice([0, 3, 1 << 40]), 1 << 40)
            self.node.commit()
        elif step != "page" and (tags := sorted(client.connection.channels[1].unacked)):
            tag, multiple = chance.choice(tags), chance.random() < 0.3
            if step == "ack":
                client.send(make(Basic.Ack, tag, multiple))
            elif step == "nack":
                client.send(make(Basic.Nack, tag, multiple, True))
            else:
                client.send(make(Basic.Reject, tag, chance.random() < 0.5))
        self.node.clock.run()
        while self.paging and self.node.disk.loads:
            self.node.read()
        return step


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_disk", [True, False], ids=["disk", "memory"])
def test_the_octets_of_a_limited_queue_are_those_of_its_ready_messages(
    tmp_path: Path, on_disk: bool, kind: str, seed: int
) -> None:
    """Whatever is unacked, paged or requeued when a byte limit comes: its count is the sum of the ready bodies."""
    node = DiskNode(tmp_path) if on_disk else Node()
    walk = LimitWalk(node, KINDS[kind], seed)
    limited = 0
    for number in range(150):
        step = walk.step()
        queue = walk.queue
        if queue.limits is not None and queue.settings.max_octets is not None:
            limited += 1
            assert sum(queue.backing.ready_octets()) == queue.limits.octets == queue.limits.length._octets, (
                f"{number} {step}"
            )
    if on_disk:
        node.disk.close()

    assert limited > 20


def test_octets_are_known_again_when_nothing_is_left() -> None:
    """Messages unacked when a limit is set do not distort its count permanently, whatever is dropped."""
    client = Client()
    client.declare("q")
    queue = client.node.vhosts["/"].queues["q"]
    client.publish("q", b"12345")
    client.send(make(Basic.Get, 0, "q", False))
    queue.configure(QueueSettings(max_octets=10, overflow="reject-publish"))
    client.node.vhosts["/"].router.generation += 1
    client.send(make(Basic.Reject, 1, True))
    client.send(make(Basic.Get, 0, "q", True))
    for _ in range(3):
        client.publish("q", b"67890")

    assert 2 == queue.ready_count
