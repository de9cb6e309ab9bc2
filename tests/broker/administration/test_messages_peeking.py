"""Peeking at a queue: what is shown, and that nothing changes by it, for all kinds of queues."""

import random
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, queue_declare

from leveret.broker.administration import BadRequestError, ForbiddenError, NotFoundError
from leveret.broker.administration.messages import MOST_MESSAGES, Found, MessageView, Wanted
from leveret.broker.amqp.commands import Basic, Exchange, make
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.users import User
from leveret.broker.config.config import StorageConfig
from leveret.broker.queue.queue import Queue

PAGED = StorageConfig(sync=False, check_invariants=True, target_ram_count=0, segment=16)
KINDS: dict[str, tuple[Any, Table]] = {
    "memory": (None, {}),
    "memory, priorities": (None, {"x-max-priority": ("long", 3)}),
    "memory, consumer-ack": (None, {"x-confirm-mode": ("longstr", "consumer-ack")}),
    "memory, light": (None, {"x-confirm-mode": ("longstr", "consumer-ack-light")}),
    "disk": (StorageConfig(sync=False, check_invariants=True), {}),
    "lazy": (StorageConfig(sync=False, check_invariants=True), {"x-queue-mode": ("longstr", "lazy")}),
    "paged": (PAGED, {}),
    "paged, priorities": (PAGED, {"x-max-priority": ("long", 3)}),
    "paged, quorum": (PAGED, {"x-queue-type": ("longstr", "quorum")}),
    "paged, consumer-ack": (PAGED, {"x-confirm-mode": ("longstr", "consumer-ack")}),
    "TTL": (PAGED, {"x-message-ttl": ("long", 60_000)}),
}
ANN = User("ann", "", ("management",))


def peek(node: Node, queue: str = "q", *, reads: bool = True, **wanted: Any) -> list[MessageView]:
    found = part_of(node, queue, reads=reads, **wanted)
    assert ("", True) == (found.following, found.is_complete)
    return found.messages


def part_of(node: Node, queue: str = "q", *, reads: bool = True, **wanted: Any) -> Found:
    """Carry out a part of a search, with its reads."""
    steps = node.administration.messages.peek(None, "/", queue, Wanted(**wanted))
    answer: Any = None
    while True:
        try:
            need = steps.send(answer)
        except StopIteration as stopped:
            return stopped.value
        assert reads or need is None
        answer = None if need is None else need()


@pytest.mark.parametrize("kind", ["memory", "disk", "after a kill"])
def test_messages_of_a_stream_are_found_by_offset_and_time(kind, tmp_path):
    """The time of each is that of its append, exactly, also after the broker was killed; see docs/filters.md."""
    node = Node() if kind == "memory" else DiskNode(tmp_path / "data")
    client = Client(node)
    client.send(queue_declare("s", durable=True, arguments={"x-queue-type": ("longstr", "stream")}))
    for number in range(6):
        client.publish("s", b"%d" % number, delivery_mode=2)
        node.pass_time(1000)
        if isinstance(node, DiskNode):
            node.commit()
    if kind == "after a kill":
        node = node.killed()

    for where, wanted in (
        ("headers.x-stream-offset >= 4", b"45"),
        ("age > 3.5s", b"012"),
        ("age < 2.5s and headers.x-stream-offset < 5", b"4"),
    ):
        assert wanted == b"".join(each.body for each in peek(node, "s", where=where))
    if isinstance(node, DiskNode):
        node.disk.close()


def with_queue() -> tuple[Node, Client]:
    """Return a broker with a queue `q`, and a client."""
    node = Node()
    client = Client(node)
    client.declare("q")
    return node, client


class Scene:
    """A broker with a queue `q`, a client that publishes and takes, and what the client got."""

    def __init__(self, kind: str, tmp_path: Any) -> None:
        config, arguments = KINDS[kind]
        self.node = Node() if config is None else DiskNode(tmp_path, storage=config)
        self.client = Client(self.node)
        self.client.declare("q", durable=True, arguments=arguments)
        self.chance = random.Random(kind)
        self.tags: list[int] = []
        self.got: list[str] = []

    @property
    def queue(self) -> Queue:
        return self.node.vhosts["/"].queues["q"]

    def settle(self) -> None:
        if isinstance(self.node, DiskNode):
            for _ in range(3):
                self.node.commit()
                self.node.read()

    def act(self) -> None:
        """Do one of the things that a client does."""
        chance = self.chance
        what = chance.choice(["publish", "publish", "get", "get", "settle", "time"])
        if what == "publish":
            for _ in range(chance.randrange(1, 12)):
                number = chance.randrange(1000)
                options = {"priority": chance.randrange(4), "delivery_mode": chance.randrange(1, 3)}
                if chance.random() < 0.2:
                    options["expiration"] = str(chance.randrange(1, 5) * 1000)
                headers: Table = {"n": ("long", number % 10)}
                self.client.publish("q", b"%d" % number * chance.choice([1, 200]), headers=headers, **options)
        elif what == "get":
            for _ in range(chance.randrange(1, 6)):
                self.take()
        elif what == "time":
            self.node.pass_time(500)
        elif self.tags:
            tag = self.tags.pop(chance.randrange(len(self.tags)))
            self.client.send(
                make(Basic.Nack, tag, False, True) if chance.random() < 0.7 else make(Basic.Ack, tag, False)
            )
        self.settle()

    def take(self) -> bool:
        """Get a message; returns False if there is none."""
        self.client.send(make(Basic.Get, 0, "q", False))
        self.settle()
        (answer,) = [line for line in self.client.sent() if "basic.get" in line]
        self.got.append(answer)
        if "get-empty" in answer:
            return False
        self.tags.append(max(self.client.connection.channels[1].unacked))
        return True

    def state(self) -> Any:
        """Return all that a queue tells of itself, and the memory of it."""
        backing = self.queue.backing
        counts = (
            self.queue.ready_count,
            backing.unacked_count,
            backing.state_counts(),
            backing.paging_counts(),
        )
        return counts, backing.head_expires(), backing.loading


def scenario(kind: str, tmp_path: Any, *, peeks: bool) -> list[str]:
    """Return what a client gets of a queue, at which somebody looks meanwhile or does not."""
    scene = Scene(kind, tmp_path)
    looks = random.Random(5)
    for _ in range(60):
        scene.act()
        if peeks:
            before = scene.state()
            found = peek(
                scene.node,
                most=looks.choice([1, 5, 1000]),
                from_tail=looks.random() < 0.5,
                where=looks.choice(["", "", "headers.n < 5", "not redelivered", 'routing_key =~ "x"']),
            )
            assert len({each.state for each in found}) <= 2
            assert before == scene.state()
    while scene.take():
        pass
    return scene.got


@pytest.mark.parametrize("kind", KINDS)
def test_a_peek_changes_nothing(kind, tmp_path):
    """A client gets the same messages, in the same order and with the same marks, whether somebody peeks or not."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert scenario(kind, tmp_path / "a", peeks=False) == scenario(kind, tmp_path / "b", peeks=True)


@pytest.mark.parametrize("kind", ["memory", "memory, priorities", "paged"])
def test_a_peek_that_takes_is_caught(kind, tmp_path, monkeypatch):
    """A peek that gets a message and puts it back, as clients have to, is found by the test before."""
    look = Node().administration.messages.peek.__func__

    def taking(peeking: Any, actor: Any, vhost: str, name: str, wanted: Any) -> Any:
        queue = peeking._broker.vhosts[vhost].queues[name]
        if queue.ready_count:
            batch = queue.backing.fetch(1, ack_required=True)
            queue.backing.requeue(batch.seq_ids)
        return (yield from look(peeking, actor, vhost, name, wanted))

    monkeypatch.setattr("leveret.broker.administration.messages.MessageAdministration.peek", taking)
    with pytest.raises(AssertionError):
        test_a_peek_changes_nothing(kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_peek_shows_what_consumers_get(kind, tmp_path):
    """Ready messages are shown in the order and with the marks of their delivery, numbered from the head."""
    scene = Scene(kind, tmp_path)
    for _ in range(40):
        scene.act()
    found = [each for each in peek(scene.node, most=MOST_MESSAGES) if each.state == "ready"]
    tail = [each for each in peek(scene.node, most=3, from_tail=True) if each.state == "ready"]
    small = [
        each for each in peek(scene.node, most=MOST_MESSAGES, where="headers.n == 3") if each.state == "ready"
    ]

    assert list(range(1, scene.queue.ready_count + 1)) == [each.number for each in found]
    assert found[::-1][:3] == tail
    assert [each for each in found if each.headers["n"] == 3] == small
    scene.got.clear()
    while scene.take():
        pass
    now = scene.node.wall_clock()
    taken = [(each.body.decode(), each.redelivered) for each in found if (each.expires or now + 1) > now]
    del scene.got[-1]
    assert len(taken) == len(scene.got)
    for (body, redelivered), answer in zip(taken, scene.got, strict=True):
        assert body[:20] in answer
        assert redelivered is ("redelivered" in answer)


def test_unacked_messages_have_their_consumer_and_the_time_since_their_delivery():
    """An unacked message is shown with the consumer and the channel that have it, and since when."""
    node, client = with_queue()
    client.consume("q", "worker")
    client.publish("q", b"one")
    client.connection.close_overdue(node.now())
    node.clock.now += 90
    node.context.now = node.loop.monotonic()
    client.publish("q", b"two")

    one, two = peek(node)

    assert ("unacked", "worker", b"one") == (one.state, one.consumer, one.body)
    assert one.channel.endswith("(1)")
    assert 89 <= one.unacked_for <= 90
    assert two.unacked_for < 1
    assert [two, one] == peek(node, from_tail=True)
    assert [two] == peek(node, where="size == 3 and redelivered", most=1, from_tail=True)


def delaying(node: Node) -> Client:
    """Return a client after it has declared an exchange that delays, bound to `q`."""
    client = Client(node)
    client.declare("q", durable=True)
    kind: Table = {"x-delayed-type": ("longstr", "direct")}
    client.send(make(Exchange.Declare, 0, "x", "x-delayed-message", False, True, False, False, False, kind))
    for _ in range(2 if isinstance(node, DiskNode) else 0):
        node.commit()  # which the reply to each declaration waits for
    node.administration.topology.bind(None, "/", "x", "q", routing_key="k")
    return client


@pytest.mark.parametrize("on_disk", [False, True])
def test_delayed_messages_have_the_time_at_which_they_are_due(on_disk, tmp_path):
    """Delayed messages that would go to the queue are shown in the order in which they are due, or from the last."""
    node = DiskNode(tmp_path) if on_disk else Node()
    client = delaying(node)
    for number in (3, 1, 2):
        headers: Table = {"x-delay": ("long", 1000 * number)}
        client.publish("k", b"%d" % number, exchange="x", headers=headers)
        client.publish("other", b"0", exchange="x", headers=headers)

    found = peek(node, most=2)

    assert [(b"1", "delayed"), (b"2", "delayed")] == [(each.body, each.state) for each in found]
    assert [1000, 2000] == [each.due - node.wall_clock() for each in found]
    assert [b"3", b"2"] == [each.body for each in peek(node, most=2, from_tail=True)]
    assert [b"2"] == [each.body for each in peek(node, where="headers.x-delay == 2000")]


def test_bodies_are_cut(tmp_path):
    """Of each body so many bytes are returned as are wanted, and of all together a bounded number."""
    node, client = with_queue()
    client.publish("q", b"a" * 300_000, frame_max=131072)
    client.publish("q", b"bc")

    assert [(b"aaa", 300_000), (b"bc", 2)] == [(each.body, each.size) for each in peek(node, octets=3)]
    assert [b"a" * 200_000, b"bc"] == [each.body for each in peek(node, octets=200_000)]
    assert [b"", b""] == [each.body for each in peek(node, octets=0)]


def test_rights_and_arguments():
    """The user needs the permission to read, and gets an error with the column of a wrong condition."""
    node = Node()
    node.users.add(ANN)
    node.users.set_permissions("ann", "/", "", "", "mine.*")
    for name in ("mine", "other"):
        node.administration.topology.declare_queue(None, "/", name)
    looking = node.administration.messages.peek

    assert [] == peek(node, "mine")
    looking(ANN, "/", "mine")
    with pytest.raises(ForbiddenError, match="read access to queue 'other'"):
        looking(ANN, "/", "other")
    with pytest.raises(ForbiddenError, match="Not management user"):
        looking(User("eve", ""), "/", "mine")
    with pytest.raises(NotFoundError, match="no queue 'none'"):
        looking(None, "/", "none")
    with pytest.raises(BadRequestError, match="where: column 6: unexpected '='"):
        looking(None, "/", "mine", Wanted(where="size = 1"))
    for count in (0, 1001):
        with pytest.raises(BadRequestError, match="count must be from 1 to 1000"):
            looking(None, "/", "mine", Wanted(count))
    with pytest.raises(BadRequestError, match="truncate must be"):
        looking(None, "/", "mine", Wanted(octets=-1))


def test_a_queue_that_is_deleted_meanwhile_is_not_found():
    """A peek at a long queue ends with an error when the queue is deleted."""
    node, client = with_queue()
    for _ in range(2000):
        client.publish("q", b"x")
    steps = node.administration.messages.peek(None, "/", "q", Wanted(where="size == 0"))
    next(steps)
    node.administration.topology.delete_queue(None, "/", "q")

    with pytest.raises(NotFoundError, match="was deleted"):
        list(steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("from_tail", [False, True])
def test_a_search_in_parts_finds_the_same(kind, from_tail, tmp_path):
    """A search that ends after each few messages and goes on finds what one in a single part does."""
    scene = Scene(kind, tmp_path)
    for _ in range(60):
        scene.act()
    wanted = {"most": MOST_MESSAGES, "from_tail": from_tail, "where": "headers.n < 7"}
    parts: list[MessageView] = []
    after, count, searched = "", 0, 0
    while True:
        part = part_of(scene.node, **wanted, after=after, effort=5)
        parts += part.messages
        searched += part.searched
        count += 1
        after = part.following
        if not after:
            break

    assert peek(scene.node, **wanted) == parts
    assert searched == scene.queue.ready_count + scene.queue.backing.unacked_count
    assert count > 1
    for wrong in ("x", "delayed.1.1.1", "ready.1.1", "ready.a.b.c", "ready." + "1" * 100 + ".1.1"):
        with pytest.raises(BadRequestError, match="'after' is not a value that a search has returned"):
            part_of(scene.node, after=wrong)


@pytest.mark.parametrize("state", ["ready", "unacked"])
def test_an_answer_has_a_bounded_size(state):
    """Headers and bodies count: a part of a search ends when they are large, and the next ones go on to the same number."""
    node, client = with_queue()
    header: Table = {"large": ("longstr", "x" * 70_000)}
    for number in range(650):
        client.publish("q", b"%d" % number, headers=header)
        if state == "unacked":
            client.send(make(Basic.Get, 0, "q", False))
    bodies: list[bytes] = []
    after, parts = "", 0
    while True:
        part = part_of(node, most=600, after=after, effort=10**6)
        bodies += [each.body for each in part.messages]
        assert len(part.messages) <= 256
        parts += 1
        after = part.following
        if not after:
            break

    assert [b"%d" % number for number in range(600)] == bodies
    assert parts == 3
    assert 600 == len(peek(node, most=600))


def test_a_count_of_deliveries_can_be_asked_for():
    """A condition sees the count of deliveries that consumers get in a header."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments={"x-delivery-limit": ("long", 5)})
    for number in range(2):
        client.publish("q", b"%d" % number)
    client.send(make(Basic.Get, 0, "q", False))
    client.send(make(Basic.Nack, 1, False, True))

    found = peek(node, where="headers.x-delivery-count >= 1")
    assert [(b"0", {"x-delivery-count": 1})] == [(each.body, each.headers) for each in found]
    assert [b"1"] == [each.body for each in peek(node, where="not (headers.x-delivery-count exists)")]


def test_a_search_of_very_many_delayed_messages_is_not_complete():
    """A part of a search considers so many delayed messages, and says that there are others."""
    node = Node()
    client = delaying(node)
    for number in range(300):
        client.publish("k", b"%d" % number, exchange="x", headers={"x-delay": ("long", 1000 + number)})

    found = part_of(node, effort=100, where="size > 5")

    assert ([], False, 256) == (found.messages, found.is_complete, found.searched)
    assert part_of(node, effort=1000, where="size > 5").is_complete


def test_a_long_queue_is_searched_in_short_steps():
    """Each message is a step of its own, because a condition may take milliseconds."""
    node, client = with_queue()
    for _ in range(5000):
        client.publish("q", b"x")
    steps = node.administration.messages.peek(None, "/", "q", Wanted(where="size > 1"))

    assert len(list(steps)) >= 5000


def test_messages_have_an_age(tmp_path):
    """A queue on disk knows within some seconds when its messages came, and a condition can ask for that."""
    node = DiskNode(tmp_path)
    client = Client(node)
    client.declare("q", durable=True)
    node.commit()
    client.publish("q", b"old")
    node.disk.monitor.look(node.now())
    node.clock.now += 100
    client.publish("q", b"new")
    node.disk.monitor.look(node.now())
    client.publish("q", b"newest")

    assert [(b"old", 100), (b"new", 0), (b"newest", 0)] == [(each.body, each.age) for each in peek(node)]
    assert [b"old"] == [each.body for each in peek(node, where="age > 1m")]
    assert [b"new", b"newest"] == [each.body for each in peek(node, where="age < 1m")]


def test_an_age_that_is_not_known():
    """In memory, and so in a new queue, the age is not known and compares false."""
    node, client = with_queue()
    client.publish("q", b"x")

    assert [None] == [each.age for each in peek(node)]
    assert [] == peek(node, where="age >= 0 or age < 0")
