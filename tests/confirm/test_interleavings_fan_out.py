"""Results of one message in several queues of all modes, and the publisher's verdicts."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, Sent, set_policy

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, make

STANDARD, CONSUMER_ACK, LIGHT = "standard", "consumer-ack", "consumer-ack-light"
MODES = (STANDARD, CONSUMER_ACK, LIGHT)
ACK, REJECT, NO_ACK, PURGE, DELETE = "ack", "reject", "no-ack", "purge", "delete"
CONSUMED = (ACK, REJECT, NO_ACK)
OUTCOMES = (*CONSUMED, PURGE, DELETE)
KEPT, BROKEN = ["ack 1"], ["nack 1"]
PUBLISHER, OTHER = 1, 2
"""Numbers of the channels."""


class World:
    """One broker and one client; each script has an exchange and queues of its own."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = Client(node)
        self.client.send(Channel.Open(), OTHER)
        self.client.send(make(Confirm.Select, False))
        self.scripts = 0
        self.confirms: list[str] = []

    def send(self, method: Any, channel: int = OTHER) -> list[Sent]:
        """Send a method and return its answers; confirms are noted."""
        self.client.send(method, channel)
        return self.look()

    def look(self) -> list[Sent]:
        left = []
        for item in self.client.take():
            if item.method.name in {"Basic.Ack", "Basic.Nack"}:
                multiple = " multiple" * item.method.multiple
                self.confirms.append(f"{item.method.name[6:].lower()} {item.method.delivery_tag}{multiple}")
            else:
                left.append(item)
        return left

    def commit(self) -> None:
        if isinstance(self.node, DiskNode):
            self.node.commit()

    def begin(self, *modes: str, **properties: Any) -> list[str]:
        """Publish the first message of a channel to a queue of each mode; returns the queues."""
        self.scripts += 1
        exchange = f"x{self.scripts}"
        self.send(make(Exchange.Declare, 0, exchange, "fanout", False, False, False, False, False, {}))
        names = [f"{exchange}-{number}" for number in range(len(modes))]
        for name, mode in zip(names, modes, strict=True):
            self.client.declare(name, durable=True, arguments={"x-confirm-mode": ("longstr", mode)})
            self.commit()
            for key in ("", "again"):  # a queue that is bound twice has one copy
                self.send(make(Queue.Bind, 0, name, exchange, key, False, {}))
        self.commit()
        self.send(make(Channel.Close, 200, "", 0, 0), PUBLISHER)
        self.send(Channel.Open(), PUBLISHER)
        self.send(make(Confirm.Select, False), PUBLISHER)
        self.look()
        self.confirms.clear()
        self.client.publish(exchange=exchange, body=b"1", **properties)
        self.look()
        return names

    def do(self, outcome: str, name: str) -> None:
        """Apply an outcome to the copy in one queue, which is there whatever became of others."""
        if outcome in CONSUMED:
            (got,) = self.send(make(Basic.Get, 0, name, outcome == NO_ACK))
            assert b"1" == got.body
            if outcome == ACK:
                self.send(make(Basic.Ack, got.method.delivery_tag, False))
            elif outcome == REJECT:
                self.send(make(Basic.Reject, got.method.delivery_tag, False))
        elif outcome == PURGE:
            (reply,) = self.send(make(Queue.Purge, 0, name, False))
            assert 1 == reply.method.message_count
        else:
            self.delete(name)

    def delete(self, name: str) -> None:
        self.client.send(make(Queue.Delete, 0, name, False, False, False), OTHER)
        self.commit()
        self.look()


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    yield World(Node())
    assert [] == [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[World]:
    node = DiskNode(tmp_path / "data")
    yield World(node)
    node.disk.close()


def check_every_order(world: World, modes: Sequence[str], outcomes: Sequence[str]) -> None:
    """The verdict comes with the first negative result of a queue that awaits its consumers, or with the last result."""
    for order in permutations(range(len(modes))):
        names = world.begin(*modes)
        left = {number for number, mode in enumerate(modes) if mode != STANDARD}
        expected = [] if left else KEPT
        assert expected == world.confirms
        for number in order:
            world.do(outcomes[number], names[number])
            if number in left:
                left.remove(number)
                if not expected and outcomes[number] not in CONSUMED:
                    expected = BROKEN
                elif not expected and not left:
                    expected = KEPT
            assert expected == world.confirms, (modes, outcomes, order, number)
        for name in names:
            world.delete(name)
        assert expected == world.confirms


@pytest.mark.parametrize("modes", list(product(MODES, repeat=2)), ids=" ".join)
def test_two_queues(world: World, modes: tuple[str, ...]) -> None:
    """Any two results in either order: all have to be positive; after the first that is not no other counts."""
    for outcomes in product(OUTCOMES, repeat=2):
        check_every_order(world, modes, outcomes)


@pytest.mark.parametrize("modes", list(product(MODES, repeat=3)), ids=" ".join)
def test_three_queues(world: World, modes: tuple[str, ...]) -> None:
    """Acks and discards by three queues in any order."""
    for outcomes in product((ACK, PURGE), repeat=3):
        check_every_order(world, modes, outcomes)


def test_five_queues(world: World) -> None:
    """Acks by five queues of all modes in any order: the last of those that await their consumers decides."""
    check_every_order(world, (LIGHT, STANDARD, CONSUMER_ACK, CONSUMER_ACK, LIGHT), (ACK,) * 5)


@pytest.mark.parametrize("first", ["commit", ACK, PURGE])
@pytest.mark.parametrize("mode", [CONSUMER_ACK, LIGHT])
def test_the_disk_of_one_queue_and_the_consumer_of_another(disk: World, mode: str, first: str) -> None:
    """A persistent message is confirmed when it is on disk for the one queue and acked in the other, in either order."""
    names = disk.begin(STANDARD, mode, delivery_mode=2)
    if first == "commit":
        disk.commit()
        disk.look()
        assert [] == disk.confirms
        disk.do(ACK, names[1])
        assert KEPT == disk.confirms
    else:
        if first == ACK:
            disk.do(ACK, names[1])
        else:
            disk.send(make(Queue.Purge, 0, names[1], False))  # its reply waits for the commit
        assert ([] if first == ACK else BROKEN) == disk.confirms
        disk.commit()
        disk.look()
        assert (KEPT if first == ACK else BROKEN) == disk.confirms
        disk.do(ACK, names[0])
        assert 1 == len(disk.confirms)


@pytest.mark.parametrize("mode", [CONSUMER_ACK, LIGHT])
def test_no_room_on_the_disk_of_one_queue(disk: World, mode: str) -> None:
    """A commit without room is a nack; what the consumer of the other queue says comes too late."""
    names = disk.begin(STANDARD, mode, delivery_mode=2)
    disk.node.fail()  # type: ignore[attr-defined]
    disk.look()

    assert BROKEN == disk.confirms
    disk.do(ACK, names[1])
    disk.commit()
    disk.look()
    assert BROKEN == disk.confirms


@pytest.mark.parametrize("mode", [CONSUMER_ACK, LIGHT])
def test_nothing_is_written_for_consumers_that_are_awaited(disk: World, mode: str) -> None:
    """A persistent message that only queues of these modes get is no work for the disk."""
    disk.begin(mode, mode, delivery_mode=2)

    assert not disk.node.disk.journal.has_work  # type: ignore[attr-defined]


@pytest.mark.parametrize("modes", list(product(MODES, repeat=2)), ids=" ".join)
def test_an_alternate_exchange(world: World, modes: tuple[str, ...]) -> None:
    """Queues behind an alternate exchange are waited for as others are."""
    for outcomes in product((ACK, PURGE), repeat=2):
        names = world.begin(*modes)
        alternate = {"alternate-exchange": ("longstr", f"x{world.scripts}")}
        world.send(make(Exchange.Declare, 0, "main", "direct", False, False, True, False, False, alternate))
        world.send(make(Queue.Bind, 0, names[0], "main", "known", False, {}))
        world.send(make(Queue.Purge, 0, names[0], False))
        world.send(make(Queue.Purge, 0, names[1], False))
        world.confirms.clear()
        world.client.publish("unknown", b"1", exchange="main", mandatory=True)
        world.look()
        awaited = [outcome for outcome, mode in zip(outcomes, modes, strict=True) if mode != STANDARD]

        assert ([] if awaited else ["ack 2"]) == world.confirms
        for outcome, name in zip(outcomes, names, strict=True):
            world.do(outcome, name)
        assert ["nack 2" if PURGE in awaited else "ack 2"] == world.confirms
        world.confirms.clear()
        world.client.publish("known", b"1", exchange="main")
        world.do(outcomes[0], names[0])
        assert ["nack 3" if modes[0] != STANDARD and outcomes[0] == PURGE else "ack 3"] == world.confirms
        world.send(make(Exchange.Delete, 0, "main", False, False))
        for name in names:
            world.delete(name)


@pytest.mark.parametrize("mode", MODES)
def test_an_exchange_without_queues_behind_it(world: World, mode: str) -> None:
    """A message that no queue gets is confirmed at once in every mode, and returned before if it is mandatory."""
    names = world.begin(mode)
    world.do(ACK, names[0])
    world.delete(names[0])
    world.confirms.clear()
    exchange = f"x{world.scripts}"
    world.client.publish(exchange=exchange, body=b"2")

    assert ["1 basic.ack delivery_tag=2"] == world.client.sent()
    world.client.publish(exchange=exchange, body=b"3", mandatory=True)
    assert ["basic.return", "basic.ack"] == [line.split()[1] for line in world.client.sent()]


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("delivery_mode", [1, 2])
@pytest.mark.parametrize("mode", [CONSUMER_ACK, LIGHT])
def test_a_standard_queue_that_refuses(world: World, mode: str, delivery_mode: int, outcome: str) -> None:
    """A full standard queue that refuses is one nack, whatever the consumers of other queues answer."""
    names = world.begin(STANDARD, mode)
    for name in names:
        world.send(make(Queue.Purge, 0, name, False))
    set_policy(
        world.node.vhosts["/"].policies,
        "full",
        f"^{names[0]}$",
        {"max-length": 0, "overflow": "reject-publish"},
    )
    world.node.run_turn()
    world.look()
    world.confirms.clear()
    world.client.publish(exchange=f"x{world.scripts}", body=b"1", delivery_mode=delivery_mode)
    world.look()

    assert ["nack 2"] == world.confirms
    world.do(outcome, names[1])
    assert ["nack 2"] == world.confirms
