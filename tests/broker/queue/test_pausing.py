"""Queues whose deliveries an operator pauses: nothing is delivered, lost or reordered, and everything else goes on."""

import random
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from doubles.fakes import Client, DiskNode, Node, queue_declare
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.queue.consumer_rotation import ConsumerRotation
from leveret.broker.queue.queue import Queue

KINDS: dict[str, Table] = {
    "classic": {},
    "quorum": {"x-queue-type": ("longstr", "quorum")},
    "lazy": {"x-queue-mode": ("longstr", "lazy")},
    "priority": {"x-max-priority": ("signedint", 2)},
    "single active": {"x-single-active-consumer": ("bool", True)},
    "limited": {"x-max-length": ("signedint", 1000), "x-message-ttl": ("signedint", 1_000_000)},
    "consumer-ack": {"x-confirm-mode": ("longstr", "consumer-ack")},
    "consumer-ack-light": {"x-confirm-mode": ("longstr", "consumer-ack-light")},
}


def pause(node: Node, name: str = "q", *, paused: bool = True) -> None:
    node.administration.topology.set_queue_paused(None, "/", name, paused=paused)
    node.run_turn()


def queue_of(node: Node, name: str = "q") -> Queue:
    return node.vhosts["/"].queues[name]


def bodies(client: Client) -> list[bytes]:
    """Return the bodies of the deliveries since the last call."""
    return [item.body for item in client.take() if isinstance(item.method, Basic.Deliver)]


def test_consumers_of_a_paused_queue_get_nothing():
    """Publishes go on and are kept in order; acks are taken; after the resume all are delivered in order."""
    client = Client()
    client.declare("q")
    client.consume("q")
    client.publish("q", b"before")
    assert [b"before"] == bodies(client)
    pause(client.node)
    for number in range(5):
        client.publish("q", b"%d" % number)
    client.send(make(Basic.Ack, 1, False))

    assert [] == bodies(client)
    assert (5, 0) == (queue_of(client.node).ready_count, queue_of(client.node).unacked_count)
    pause(client.node)
    pause(client.node, paused=False)
    assert [b"0", b"1", b"2", b"3", b"4"] == bodies(client)
    pause(client.node, paused=False)
    client.publish("q", b"after")
    assert [b"after"] == bodies(client)


def test_what_is_requeued_meanwhile_is_delivered_first():
    """Messages that return to a paused queue, one by one or with their channel, return to their places."""
    client, other = Client(), None
    client.declare("q")
    client.consume("q")
    for number in range(4):
        client.publish("q", b"%d" % number)
    pause(client.node)
    client.publish("q", b"4")
    client.send(make(Basic.Nack, 2, False, True))
    client.connection.lost()
    client.node.run_turn()
    other = Client(client.node, port=50001)
    other.consume("q", "other")

    assert [] == bodies(other)
    assert 5 == queue_of(client.node).ready_count
    pause(client.node, paused=False)
    assert [b"0", b"1", b"2", b"3", b"4"] == bodies(other)


def test_a_get_finds_nothing():
    """A client that polls finds the queue empty; the queue keeps the message (`management/test_queues_pause` gets it)."""
    client = Client()
    client.declare("q")
    client.publish("q", b"one")
    pause(client.node)

    assert ["1 basic.get-empty"] == client.ask(make(Basic.Get, 0, "q", False))
    pause(client.node, paused=False)
    assert "one" in client.ask(make(Basic.Get, 0, "q", True))[0]


def test_a_paused_queue_loses_its_time_as_ever():
    """Expiry, the maximum length and dead letters go on, and a queue whose client polls is not unused."""
    client = Client()
    client.declare("dead")
    arguments: Table = {
        "x-message-ttl": ("signedint", 100),
        "x-max-length": ("signedint", 2),
        "x-expires": ("signedint", 1000),
        "x-dead-letter-exchange": ("longstr", ""),
        "x-dead-letter-routing-key": ("longstr", "dead"),
    }
    client.declare("q", arguments=arguments)
    pause(client.node)
    for number in range(3):
        client.publish("q", b"%d" % number)
    assert (2, 1) == (queue_of(client.node).ready_count, queue_of(client.node, "dead").ready_count)
    client.node.pass_time(150)
    assert (0, 3) == (queue_of(client.node).ready_count, queue_of(client.node, "dead").ready_count)
    client.node.pass_time(800)
    client.ask(make(Basic.Get, 0, "q", False))
    client.node.pass_time(800)
    assert "q" in client.node.vhosts["/"].queues
    client.node.pass_time(300)
    assert "q" not in client.node.vhosts["/"].queues


def test_the_single_active_consumer_and_priorities_are_kept():
    """While a queue is paused its active consumer may change; after the resume the order of the consumers is theirs."""
    client = Client()
    client.declare("single", arguments=KINDS["single active"])
    client.declare("q")
    for tag in "ab":
        client.consume("single", tag)
    for tag, level in (("low", 0), ("high", 5)):
        client.consume("q", tag, arguments={"x-priority": ("signedint", level)})
    pause(client.node, "single")
    pause(client.node)
    client.send(make(Basic.Cancel, "a", False))
    client.consume("single", "c")
    client.take()
    for name in ("single", "q"):
        client.publish(name, b"")
        pause(client.node, name, paused=False)

    assert ["b", "high"] == [item.method.consumer_tag for item in client.take()]


def test_consumers_that_come_and_go_leave_nothing():
    """A queue that is paused for long keeps no consumer that has gone."""
    client = Client()
    client.declare("q")
    client.consume("q", "stays")
    pause(client.node)
    for number in range(20):
        client.consume("q", f"c{number}")
        client.send(make(Basic.Cancel, f"c{number}", False))

    assert ["stays"] == [each.tag for each in queue_of(client.node).consumers._held_back]
    client.send(make(Basic.Cancel, "stays", False))
    assert not queue_of(client.node).consumers._held_back


def test_publishers_are_not_slowed_down_for_a_paused_queue():
    """Flow control waits for consumers of a backlog, but not for those that are held back."""
    client = Client()
    client.declare("q")
    queue = queue_of(client.node)
    pause(client.node)
    assert float("inf") == queue.no_pause_until
    pause(client.node, paused=False)
    assert 0 == queue.no_pause_until


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_publishers_get_their_confirms_after_the_pause(mode):
    """With confirms on consumer ack, publishers wait for what is held back, and for nothing else."""
    client, publisher = Client(), None
    client.declare("q", arguments=KINDS[mode])
    client.consume("q")
    publisher = Client(client.node, port=50001)
    publisher.ask(make(Confirm.Select, False))
    publisher.publish("q", b"one")
    pause(client.node)
    publisher.publish("q", b"two")
    client.send(make(Basic.Ack, 1, False))

    assert ["1 basic.ack delivery_tag=1"] == publisher.sent()
    pause(client.node, paused=False)
    assert [b"one", b"two"] == bodies(client)
    client.send(make(Basic.Ack, 2, False))
    assert ["1 basic.ack delivery_tag=2"] == publisher.sent()


def test_a_durable_queue_stays_paused_over_a_kill(tmp_path):
    """The pause is on disk with its commit; a resume, a deletion and a new declaration are, too."""
    node = DiskNode(tmp_path)
    client = Client(node)
    for name in ("q", "resumed", "again", "late"):
        client.send(queue_declare(name, durable=True, arguments=KINDS["limited"]))
        node.commit()
    for name in ("q", "resumed", "again"):
        pause(node, name)
    node.commit()
    pause(node, "resumed", paused=False)
    client.send(make(Wire.Delete, 0, "again", False, False, False))
    node.commit()
    client.send(queue_declare("again", durable=True))
    node.commit()
    pause(node, "late")
    node = node.killed()

    paused = {name: queue.is_paused for name, queue in node.vhosts["/"].queues.items()}
    assert {"q": True, "resumed": False, "again": False, "late": False} == paused
    assert KINDS["limited"] == queue_of(node).arguments
    node = node.restarted()
    assert queue_of(node).is_paused
    node.disk.close()


class Script:
    """A publisher with confirms and two consumers of one durable queue, and what is known of each message.

    Args:
        data_dir: an empty folder.
        kind: the kind of the queue.
        seed: of the decisions.

    """

    def __init__(self, data_dir: Path, kind: str, seed: int) -> None:
        self.node = DiskNode(data_dir)
        self.kind = kind
        self.random = random.Random(seed)
        self.count = 0
        self.is_paused = False
        self.kept: set[int] = set()
        """Messages that are on disk, and not acked there."""
        self.acked: set[int] = set()
        self.connect()
        self.publisher.send(queue_declare("q", durable=True, arguments=KINDS[kind]))
        self.node.commit()

    def connect(self) -> None:
        self.publisher = Client(self.node)
        self.consumers = [Client(self.node, port=50001 + number) for number in range(2)]
        self.has: list[dict[int, int]] = [{}, {}]
        self.wants = [False, False]

    def publish(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            level = self.random.randrange(3)
            self.publisher.publish("q", b"%d" % self.count, delivery_mode=2, priority=level)
            self.count += 1
        if self.random.random() < 0.7:
            self.commit()

    def commit(self) -> None:
        self.node.commit()
        if not self.kind.startswith("consumer-ack"):
            self.kept = set(range(self.count)) - self.acked

    def consume(self) -> None:
        at = self.random.randrange(2)
        client = self.consumers[at]
        if self.wants[at]:
            client.send(make(Basic.Cancel, "c", False))
        else:
            client.send(make(Basic.Qos, 0, self.random.choice([0, 1, 3]), False))
            client.consume("q", "c")
            # the delivery of what was ready before is in what `consume` returned, so it must be none
        self.wants[at] = not self.wants[at]

    def look(self) -> None:
        """Take what was delivered; while the queue is paused that must be nothing."""
        for client, has in zip(self.consumers, self.has, strict=True):
            items = [item for item in client.take() if isinstance(item.method, Basic.Deliver)]
            assert not (self.is_paused and items), "delivered while paused"
            for item in items:
                number = int(item.body)
                assert number not in self.acked
                assert not any(number in other.values() for other in self.has), "delivered twice"
                has[item.method.delivery_tag] = number

    def settle(self) -> None:
        at = self.random.randrange(2)
        if not self.has[at]:
            return
        tag = self.random.choice(list(self.has[at]))
        number = self.has[at].pop(tag)
        if self.random.random() < 0.5:
            self.consumers[at].send(make(Basic.Ack, tag, False))
            self.acked.add(number)
        else:
            self.consumers[at].send(make(Basic.Nack, tag, False, True))

    def pause(self) -> None:
        self.is_paused = not self.is_paused
        pause(self.node, paused=self.is_paused)
        self.commit()

    def lose(self) -> None:
        at = self.random.randrange(2)
        self.consumers[at].connection.lost()
        self.node.run_turn()
        self.consumers[at] = Client(self.node, port=50001 + at)
        self.has[at], self.wants[at] = {}, False

    def kill(self) -> None:
        self.look()
        self.node = self.node.killed()
        self.acked -= self.kept & self.acked  # an ack that was not committed is forgotten
        self.count_after_kill()
        self.connect()

    def count_after_kill(self) -> None:
        left = {int(message.body) for message in drained(self.node)}
        assert left >= self.kept, "lost by a kill"
        self.acked = set(range(self.count)) - left
        assert queue_of(self.node).is_paused is self.is_paused

    def run(self, steps: int) -> None:
        actions = [self.publish, self.publish, self.consume, self.settle, self.settle, self.settle]
        actions += [self.pause, self.pause, self.lose, self.kill]
        for _ in range(steps):
            self.random.choice(actions)()
            self.look()
        self.finish()

    def finish(self) -> None:
        """Resume, and take all that is left: each once, and in order but for priorities."""
        for at in range(2):
            self.lose_all(at)
        self.is_paused = False
        pause(self.node, paused=False)
        reader = Client(self.node, port=50009)
        reader.send(make(Basic.Consume, 0, "q", "end", False, True, False, False, {}))
        for _ in range(50):
            self.node.commit()
            self.node.read()
        items = [item for item in reader.take() if isinstance(item.method, Basic.Deliver)]
        found = [int(item.body) for item in items]
        assert sorted(set(range(self.count)) - self.acked) == sorted(found)
        if self.kind == "priority":
            ranks = [(-(Properties(item.header).priority or 0), int(item.body)) for item in items]
            assert sorted(ranks) == ranks
        else:
            assert sorted(found) == found
        self.node.disk.close()

    def lose_all(self, at: int) -> None:
        self.consumers[at].connection.lost()
        self.node.run_turn()


def drained(node: DiskNode) -> list[Any]:
    """Return the messages of the queue without taking them."""
    steps = queue_of(node).backing.peek()
    answer = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stopped:
            return [peeked.message for peeked in (*stopped.value.ready, *stopped.value.unacked)]
        answer = None if wanted is None else wanted()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 30))
def test_pauses_lose_and_reorder_nothing(kind, seed):
    """Whatever happens beside pauses, kills included, each message is delivered until its ack, in order, once."""
    with TemporaryDirectory() as folder:
        script = Script(Path(folder), kind, seed)
        if kind.startswith("consumer-ack"):
            script.kill = lambda: None  # type: ignore[method-assign] # its messages are in memory only
        script.run(60)


def run_some() -> None:
    for seed in range(10):
        with TemporaryDirectory() as folder:
            Script(Path(folder), "classic", seed).run(60)


@contextmanager
def forgetful():
    """Plant an error: consumers that come while the queue is paused are forgotten."""

    def forget(rotation: ConsumerRotation, consumer: Any) -> bool:
        del consumer
        return not rotation.is_paused

    with patch.object(ConsumerRotation, "rejoin", forget):
        yield


@contextmanager
def leaking():
    """Plant an error: consumers that come while the queue is paused are served."""

    def rejoin(rotation: ConsumerRotation, consumer: Any) -> bool:
        rotation.ready.append(consumer)
        return True

    with patch.object(ConsumerRotation, "rejoin", rejoin):
        yield


@pytest.mark.parametrize(("error", "message"), [(forgetful, "^"), (leaking, "delivered while paused")])
def test_errors_that_are_planted_are_found(error, message):
    """The model fails if a consumer is forgotten, or served in spite of the pause."""
    with pytest.raises(AssertionError, match=message), error():
        run_some()
