"""Priority queues from the wire to the disk: real data, and commits when a test says so."""

import gc
import shutil
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, basic_consume, queue_declare

from leveret.broker.amqp.commands import Basic, Queue, make
from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence.data_store import paging
from leveret.storage.queues.priority_queue import PriorityQueue
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.recovery import saved_rows


@pytest.fixture
def node(tmp_path):
    node = DiskNode(tmp_path / "data")
    yield node
    node.disk.close()


def declare(client: Client, name: str = "q", highest: int = 10, **arguments: Any) -> None:
    table = {"x-max-priority": ("signedint", highest), **arguments}
    client.send(queue_declare(name, durable=True, arguments=table))
    if isinstance(client.node, DiskNode):
        client.node.commit()
    client.sent()


def backing(node: Node, name: str = "q") -> Any:
    return node.vhosts["/"].queues[name].backing


def take(client: Client, name: str = "q") -> list[str]:
    """Return the bodies of all ready messages, those redelivered with a star."""
    found = []
    while True:
        answer = client.ask(make(Basic.Get, 0, name, True))
        while not answer:
            client.node.commit()
            client.node.read()
            answer = client.sent()
        if answer == ["1 basic.get-empty"]:
            return found
        found.append(answer[0].rpartition(" ")[2].strip("'") + "*" * ("redelivered" in answer[0]))


def fill(client: Client) -> None:
    for body, priority in (("a", 1), ("b", 200), ("c", 0), ("d", 5), ("e", 10)):
        client.publish("q", body.encode(), delivery_mode=2, priority=priority)
    client.publish("q", b"f", delivery_mode=2)
    client.publish("q", b"t", priority=7)


def restart(node: DiskNode, client: Client, how: str) -> DiskNode:
    node.commit()
    if how == "restarted":
        client.connection.lost()
        node.run_turn()
    return getattr(node, how)()


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_priorities_survive(tmp_path, how):
    """Persistent messages survive a stop and a crash, ordered by priority, then by age."""
    node = DiskNode(tmp_path)
    client = Client(node)
    declare(client)
    fill(client)
    node = restart(node, client, how)

    mark = "" if how == "restarted" else "*"
    assert [body + mark for body in "bedacf"] == take(Client(node))
    node.disk.close()


@pytest.mark.parametrize("lazy", [False, True])
def test_levels_follow_the_mode_of_their_queue(node, lazy):
    """All levels of a lazy queue keep their messages on disk, and deliver them in order."""
    client = Client(node)
    declare(client, **({"x-queue-mode": ("longstr", "lazy")} if lazy else {}))
    fill(client)
    node.commit()

    assert lazy is not any(level.ram_msg_count for level in backing(node).levels.values())
    assert list("betdacf") == take(client)


def test_levels_share_what_a_queue_may_have_in_memory(node):
    """A queue with many priorities may use no more memory than another until the memory monitor checks."""
    client = Client(node)
    declare(client)
    fill(client)
    limits = [level.ram_limit for level in backing(node).levels.values()]

    assert [node.disk.pager.ram_limit // 5] * 5 == limits


def test_a_fixed_target_holds_for_every_level(tmp_path):
    """A configured target of queues applies to each level."""
    config = StorageConfig(sync=False, target_ram_count=3)
    node = DiskNode(tmp_path, storage=config)
    client = Client(node)
    declare(client)
    fill(client)

    assert {3} == {level.target_ram_count for level in backing(node).levels.values()}
    node.disk.close()


@pytest.mark.parametrize("highest", [None, 0])
def test_a_queue_without_priorities_is_a_plain_one(node, highest):
    """A queue without the argument, or with a highest priority of 0, is a plain one."""
    client = Client(node)
    if highest is None:
        client.send(queue_declare("q", durable=True))
    else:
        declare(client, highest=highest)

    assert isinstance(backing(node), VariableQueue)


def test_without_a_disk_there_are_priorities_too():
    """Queues in memory have levels in memory."""
    node = Node()
    client = Client(node)
    declare(client)
    fill(client)

    assert isinstance(backing(node), PriorityQueue)
    assert list("betdacf") == take(client)


def test_a_deleted_priority_queue_is_freed_at_once(node):
    """A deleted priority queue leaves nothing to the garbage collector, in memory or on disk."""
    client = Client(node)
    declare(client)
    fill(client)
    node.commit()
    queue = node.vhosts["/"].queues["q"]
    parts = {id(part): type(part) for part in (queue, queue.backing, *queue.backing.levels.values())}
    del queue
    gc.collect()
    gc.disable()
    try:
        client.send(make(Queue.Delete, 0, "q", False, False, False))
        node.commit()
        left = [each for each in gc.get_objects() if parts.get(id(each)) is type(each)]
    finally:
        gc.enable()

    assert [] == left
    assert [] == list(node.disk.environment.rows("blocks"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_check_of_the_store_knows_levels(tmp_path, node, clean):
    """Levels are not reported as unknown queues, and are counted with their queue."""
    client = Client(node)
    declare(client)
    fill(client)
    node.commit()
    if clean:
        node.disk.environment.save(saved_rows(paging([backing(node)])))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    findings: list[Finding] = []
    stats = Check(tmp_path / "copy", findings.append).run()

    assert [] == findings
    assert stats is not None
    assert [("q", 6, 4)] == [(queue.name, queue.messages, queue.blocks) for queue in stats.queues]


def page_out(node: DiskNode, name: str = "q") -> None:
    """Page out all bodies, those of unacked messages too."""
    for _ in range(2):
        node.commit()
        for level in backing(node, name).levels.values():
            level.set_ram_target(0, 0)
    node.commit()


def settle_down(node: DiskNode) -> None:
    while node.disk.loads or node.disk.journal.has_work:
        node.read()
        node.commit()


def test_a_consumer_is_served_while_levels_are_read(node):
    """A consumer gets everything, level after level, though none of it is in memory at first."""
    client = Client(node)
    declare(client, **{"x-queue-mode": ("longstr", "lazy")})
    for number in range(600):
        client.publish("q", b"%d" % number, delivery_mode=2, priority=number % 7)
    node.commit()
    client.send(basic_consume("q", "tag", no_ack=True))
    assert node.disk.loads
    settle_down(node)

    found = [int(item.body) for item in client.take() if item.body]
    assert sorted(range(600), key=lambda number: (-(number % 7), number)) == found


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_messages_expire_after_a_restart(tmp_path, how):
    """A message in a level expires after a restart too, when it is at the head."""
    node = DiskNode(tmp_path)
    client = Client(node)
    declare(client)
    for body, priority, rest in (
        ("a", 1, {}),
        ("b", 5, {"expiration": "100"}),
        ("c", 3, {"expiration": "900"}),
    ):
        client.publish("q", body.encode(), delivery_mode=2, priority=priority, **rest)
    node = restart(node, client, how)
    node.pass_time(500)
    settle_down(node)
    node.run_turn()
    assert 2 == node.vhosts["/"].queues["q"].ready_count
    node.pass_time(500)
    settle_down(node)
    node.run_turn()

    assert ["a"] == [body.rstrip("*") for body in take(Client(node))]
    node.disk.close()


def test_rejected_messages_are_read_from_every_level(node):
    """Dead letters whose bodies were paged out keep their priority and the order of their rejection."""
    client = Client(node)
    declare(client, "dead")
    to = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}
    declare(client, **to)
    fill(client)
    client.send(basic_consume("q", "tag"))
    node.commit()
    page_out(node)
    client.send(make(Basic.Nack, 0, True, False))
    assert node.disk.loads
    settle_down(node)
    node.run_turn()
    settle_down(node)

    assert (0, 0) == (backing(node).ready_count, backing(node).unacked_count)
    client.sent()
    assert list("betdacf") == take(client, "dead")


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_dead_letters_of_levels_are_neither_lost_nor_doubled(tmp_path, how):
    """Messages dropped by a full queue are in the other queue after a restart, once, and the rest stay in place."""
    node = DiskNode(tmp_path)
    client = Client(node)
    declare(client, "dead")
    to = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}
    declare(client, **{"x-max-length": ("signedint", 3)}, **to)
    fill(client)
    node = restart(node, client, how)

    client = Client(node)
    found = [[body.rstrip("*") for body in take(client, name)] for name in ("q", "dead")]
    assert [["a", "c", "f"], ["b", "e", "d"]] == found
    node.disk.close()
