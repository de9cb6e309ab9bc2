"""Figures of a queue that need a look at its messages: how many are persistent, and the timestamp of the next."""

import random
from math import inf
from pathlib import Path

import pytest
from doubles.fakes import Client, DiskNode, Node
from services.api import Api

from leveret.broker.amqp.commands import Basic, make
from leveret.storage.journal.blocks import Entry
from leveret.storage.queues.memory_monitor import MemoryMonitor

PRIORITY = {"x-max-priority": ("long", 5)}


@pytest.fixture
def node(tmp_path: Path):
    """A broker with a data directory."""
    made = DiskNode(tmp_path)
    yield made
    made.disk.close()


def figures(node: Node, name: str) -> tuple[int, int, int, int]:
    """Return messages and bytes of a queue, and those that are persistent."""
    found = Api(node).get(f"queues/%2F/{name}")
    keys = "messages", "messages_persistent", "message_bytes", "message_bytes_persistent"
    count, persistent, octets, persistent_octets = (found[key] for key in keys)
    return count, persistent, octets, persistent_octets


@pytest.mark.parametrize("arguments", [{}, PRIORITY], ids=["classic", "priority"])
def test_persistent_messages_are_counted(node, arguments):
    """Ready and unacked ones, in memory, on disk only, and after a restart; transient ones are not."""
    client = Client(node)
    client.declare("q", durable=True, arguments=arguments)
    node.commit()
    for number in range(10):
        client.publish("q", b"x" * 100, delivery_mode=2 if number % 2 else 1)
    before = figures(node, "q")
    client.consume("q")
    node.run_turn()
    unacked = figures(node, "q")
    client.connection.lost()
    node.commit()
    after = figures(node, "q")

    assert (10, 5) == before[:2] == unacked[:2] == after[:2]
    assert before[2] // 2 == before[3] > 0


def test_persistent_messages_survive(node):
    """After a restart only they are there, on disk, and all of their bytes are persistent."""
    client = Client(node)
    client.declare("q", durable=True)
    node.commit()
    for number in range(200):
        client.publish("q", b"x" * 100, delivery_mode=2 if number % 4 else 1)
    node.commit()
    count = figures(node, "q")[:2]
    again = node.killed()
    survived = figures(again, "q")
    again.disk.close()

    assert (200, 150) == count
    assert (150, 150) == survived[:2]
    assert survived[2] == survived[3]


def test_queues_that_end_with_the_broker_have_none(node):
    """Neither a transient queue nor a queue without messages."""
    client = Client(node)
    client.declare("transient")
    client.declare("empty", durable=True)
    node.commit()
    client.publish("transient", b"x", delivery_mode=2)

    assert (1, 0, 0) == (*figures(node, "transient")[:2], figures(node, "transient")[3])
    assert (0, 0, 0, 0) == figures(node, "empty")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("arguments", [{}, PRIORITY], ids=["classic", "priority"])
def test_the_timestamp_of_the_next_message(node, durable, arguments):
    """It is that of the message which is delivered next; null without a timestamp or a message."""
    client = Client(node)
    client.declare("q", durable=durable, arguments=arguments)
    node.commit()

    def shown() -> object:
        return Api(node).get("queues/%2F/q?columns=head_message_timestamp")["head_message_timestamp"]

    found = [shown()]
    for timestamp in (1_700_000_001, None, 1_700_000_003):
        more = {} if timestamp is None else {"timestamp": timestamp}
        client.publish("q", b"x", delivery_mode=2, **more)
    for _ in range(3):
        found.append(shown())
        client.send(make(Basic.Get, 0, "q", False))
        node.run_turn()
    found.append(shown())

    assert [None, 1_700_000_001, None, 1_700_000_003, None] == found
    client.connection.lost()
    node.run_turn()
    assert 1_700_000_001 == shown()


class Recount:
    """Figures of a queue in the management API, and the same counted again in its parts."""

    def __init__(self, node: DiskNode, name: str) -> None:
        self.told = Api(node).get(f"queues/%2F/{name}")
        queue = node.vhosts["/"].queues[name].backing
        self.queue = queue
        self.entries = [*queue.q3, *queue.q2]
        self.ready = [*(item for _, item in queue.returned), *queue.q4, *self.entries, *queue.q1]
        self.unacked = [*queue._unacked.values(), *queue._unacked_out.values()]

    @staticmethod
    def octets(items: list) -> int:
        return sum(item.size if isinstance(item, Entry) else len(item.content) for item in items)

    def check(self) -> None:
        queue, told, status = self.queue, self.told, self.told["backing_queue_status"]
        delta = ["delta", queue.delta.start, queue.delta.count, queue.delta.paged, queue.delta.stop]
        assert {
            "q1": len(queue.q1),
            "q2": len(queue.q2),
            "q3": len(queue.q3),
            "q4": len(queue.q4) + len(queue.returned),
            "delta": delta if queue.delta.count else ["delta", "undefined", 0, 0, "undefined"],
            "len": told["messages_ready"],
            "next_seq_id": queue.next_seq,
            "avg_ack_egress_rate": queue.rates.acked,
        }.items() <= status.items()
        assert (
            told["messages_ready"]
            == sum(status[part] for part in ("q1", "q2", "q3", "q4")) + status["delta"][2]
        )
        ready, unacked = self.octets(self.ready) + queue.delta.octets, self.octets(self.unacked)
        assert (ready, unacked) == (told["message_bytes_ready"], told["message_bytes_unacknowledged"])
        assert (
            ready + unacked
            == told["message_bytes"]
            == told["message_bytes_ram"] + told["message_bytes_paged_out"]
        )


@pytest.mark.parametrize("seed", range(4))
def test_the_sub_queues_are_told_as_they_are(tmp_path: Path, seed: int) -> None:
    """After each step the API's sub-queues, range of the delta and bytes are those of a recount."""
    chance = random.Random(seed)
    node = DiskNode(tmp_path)
    node.disk.pager.segment, node.disk.pager.io_batch = 16, 4
    client = Client(node)
    client.declare("q", durable=True)
    node.commit()
    queue = node.vhosts["/"].queues["q"].backing
    seen = set()
    for _ in range(120):
        step = chance.choice(["publish", "publish", "get", "get", "settle", "target", "commit"])
        if step == "publish":
            for _ in range(chance.randint(1, 30)):
                client.publish("q", bytes(100), delivery_mode=chance.choice([1, 2]))
        elif step == "get":
            for _ in range(chance.randint(1, 15)):
                client.send(make(Basic.Get, 0, "q", False))
        elif step == "settle" and (tags := sorted(client.connection.channels[1].unacked)):
            client.send(make(Basic.Nack, chance.choice(tags), True, chance.random() < 0.5))
        elif step == "target":
            queue.set_ram_target(chance.choice([0, 5, 20, inf]), 1 << 40)
        if step == "commit":
            node.commit()
        while node.disk.loads:
            node.read()
        recount = Recount(node, "q")
        recount.check()
        status = recount.told["backing_queue_status"]
        reads = (
            queue.transitions["from_delta"] if queue.transitions and "from_delta" in queue.transitions else 0
        )
        delivered = node.vhosts["/"].queues["q"].delivered
        assert pytest.approx(reads / max(1, delivered)) == recount.told["disk_reads_per_delivered"]
        seen |= {part for part in ("q1", "q2", "q3", "q4") if status[part]} | (
            {"delta"} if status["delta"][2] else set()
        )
    node.disk.close()

    assert {"q1", "q2", "q3", "q4", "delta"} == seen


def test_rates_of_the_unacked_are_told(node):
    """Messages that go straight to a consumer count as published, fetched, unacked and acked."""
    client = Client(node)
    client.declare("q")
    client.consume("q", no_ack=False)
    monitor = MemoryMonitor(node.disk.pager, 1 << 30)
    queue = node.vhosts["/"].queues["q"].backing
    for second in range(60):
        for _ in range(10):
            client.publish("q", b"x")
        if second:
            client.send(make(Basic.Ack, 0, True))
        monitor.look(float(second))
    status = Api(node).get("queues/%2F/q")["backing_queue_status"]

    rates = [status[f"avg_{name}_rate"] for name in ("ingress", "egress", "ack_ingress", "ack_egress")]
    assert pytest.approx([10] * 4, rel=0.01) == rates
    assert 600 == status["next_seq_id"] == status["next_deliver_seq_id"] == queue.next_seq
