"""The rotation of a queue's consumers, and the single active consumer; `test_queue` compares deliveries with a model."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from checks.growth import growth
from doubles.fakes import Client, publish_frames
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Channel as ChannelMethods, Queue as Wire, make
from leveret.broker.queue.consumer_rotation import ConsumerRotation
from leveret.broker.queue.queue import Queue


class Consumer:
    exclusive = parked = cancelled = False

    def __init__(self, rotation: ConsumerRotation, tag: str, priority: int = 0) -> None:
        self._rotation = rotation
        self.tag = tag
        self.priority = priority
        self.outbox = SimpleNamespace(parked={})

    def wake(self) -> None:
        if self.parked and not self.cancelled:
            self.parked = False
            self._rotation.rejoin(self)  # type: ignore[arg-type]


def single(client: Client, *tags: str) -> Queue:
    """Return a queue with a single active consumer, and these consumers."""
    client.declare("q", arguments={"x-single-active-consumer": ("bool", True)})
    for tag in tags:
        client.consume("q", tag)
    return client.node.vhosts["/"].queues["q"]


def test_one_of_several_consumers_is_active():
    """Only the active consumer is in the rotation and gets messages; the next of its priority follows it."""
    client = Client()
    queue = single(client, "a", "b")
    client.consume("q", "high", arguments={"x-priority": ("signedint", 1)})
    client.receive(publish_frames("q") * 3)

    assert ["a", "a", "a"] == [item.method.consumer_tag for item in client.take()]
    assert ["a"] == [each.tag for each in queue.consumers.ready]
    assert ["single_active", "waiting", "waiting"] == [
        queue.consumers.activity_status(each) for each in queue.consumers
    ]
    for tag in ("high", "b"):
        assert queue.consumers.active is not None
        client.send(make(Basic.Cancel, queue.consumers.active.tag, False))
        assert tag == queue.consumers.active.tag
        assert [tag] == [each.tag for each in queue.consumers if queue.consumers.is_active(each)]
    client.send(make(Basic.Cancel, "b", False))
    assert queue.consumers.active is None


def test_what_the_active_consumer_leaves_goes_to_the_next():
    """A channel that closes leaves its unacked messages to a consumer that waited."""
    client = Client()
    single(client, "a")
    client.receive(publish_frames("q", b"1") + publish_frames("q", b"2"))
    other = Client(client.node, port=50001)
    other.consume("q", "b")
    client.sent()
    client.connection.lost()
    client.node.run_turn()

    assert [("b", True, b"1"), ("b", True, b"2")] == [
        (item.method.consumer_tag, item.method.redelivered, item.body) for item in other.take()
    ]


def test_a_waiting_consumer_is_not_woken():
    """Acks and drained outboxes of a consumer that is not active change nothing."""
    client = Client()
    queue = single(client, "a", "b")
    client.send(make(Basic.Get, 0, "q", False))
    for consumer in queue.consumers:
        consumer.wake()

    assert ["a"] == [each.tag for each in queue.consumers.ready]


def test_a_deleted_queue_has_no_active_consumer():
    """None of the consumers of a deleted queue becomes active in between."""
    client = Client()
    queue = single(client, "a", "b")
    client.send(make(Wire.Delete, 0, "q", False, False, False))

    assert (None, [], 0) == (queue.consumers.active, list(queue.consumers.ready), queue.consumer_count)


def test_capacity_is_the_share_of_time_in_which_consumers_have_room():
    """The capacity is 1 while no message waits for a consumer, falls while one does, and is 0 without consumers."""
    client = Client()
    client.declare("q")
    queue = client.node.vhosts["/"].queues["q"]

    def after(samples: int) -> float:
        for _ in range(samples):
            queue.sample_capacity()
        return round(queue.consumer_capacity, 1)

    assert 0.0 == after(5)
    client.send(make(Basic.Qos, 0, 1, False))
    client.consume("q", "a")
    client.publish("q")
    assert 1.0 == after(5)
    client.publish("q")
    assert 0.5 == after(5)
    assert 0.0 == after(30)
    client.send(make(Basic.Ack, 1, False))
    assert 0.5 == after(5)
    client.send(make(Basic.Cancel, "a", False))
    assert 0.0 == after(0)
    client.consume("q", "b")
    assert 1.0 == after(0)


@settings(max_examples=150)
@given(
    script=st.lists(
        st.one_of(
            st.tuples(st.just("consume"), st.integers(1, 3), st.integers(-1, 2)),
            st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("close"), st.integers(1, 3), st.just(0)),
            st.tuples(st.just("publish"), st.integers(1, 3), st.just(0)),
            st.tuples(st.sampled_from(("ack", "nack")), st.integers(1, 3), st.just(0)),
        ),
        max_size=40,
    )
)
def test_one_consumer_is_served_whoever_comes_and_goes(script):
    """The active consumer stays until it leaves, and is followed by the first of the highest priority."""
    publisher = Client()
    clients = [Client(publisher.node, port=50001 + number) for number in range(3)]
    for client in clients:
        client.send(make(Basic.Qos, 0, 2, False))
    queue = single(publisher)
    present: list[tuple[str, int, int]] = []  # tag, channel, priority; in the order of their coming
    active = ""
    published = acked = 0
    for at, (kind, number, priority) in enumerate((*script, ("publish", 1, 0))):
        client = clients[number % 3]
        if kind == "consume":
            arguments = {"x-priority": ("signedint", priority)}
            client.consume("q", f"c{at}", arguments=arguments)
            present.append((f"c{at}", number % 3, priority))
        elif kind == "cancel" and present:
            tag, channel, _ = present.pop(number % len(present))
            clients[channel].send(make(Basic.Cancel, tag, False))
        elif kind == "close":
            client.send(make(ChannelMethods.Close, 200, "", 0, 0))
            client.send(ChannelMethods.Open())
            client.send(make(Basic.Qos, 0, 2, False))
            present = [each for each in present if each[1] != number % 3]
        elif kind == "publish":
            publisher.receive(publish_frames("q") * number)
            published += number
        elif kind in ("ack", "nack"):
            unacked = client.connection.channels[1].unacked
            if kind == "ack":
                acked += len(unacked)
                client.send(make(Basic.Ack, 0, True))
            else:
                client.send(make(Basic.Nack, 0, True, True))
        if active not in [tag for tag, _, _ in present]:
            heirs = sorted(present, key=lambda each: -each[2])
            active = heirs[0][0] if heirs else ""
        publisher.node.run_turn()

        consumer = queue.consumers.active
        assert active == ("" if consumer is None else consumer.tag)
        assert len(present) == queue.consumer_count
        assert published == acked + queue.ready_count + queue.unacked_count
        assert {consumer} >= {each for each in queue.consumers.ready if not each.cancelled}
        assert consumer is None or not queue.ready_count or consumer.unacked == 2


def test_consumers_are_served_by_priority_then_age():
    """A consumer joins the rotation after those of its priority, and before those of lower ones."""
    rotation = ConsumerRotation()
    for tag, priority in (("a", 0), ("b", 2), ("c", -1), ("d", 1), ("e", 2), ("f", 0)):
        rotation.add(Consumer(rotation, tag, priority))  # type: ignore[arg-type]

    assert list("bedafc") == [each.tag for each in rotation.ready]
    assert list("abcdef") == [each.tag for each in rotation]


def test_a_suspended_rotation_is_empty_until_it_is_resumed_as_often():
    """Consumers wait outside a suspended rotation, those added meanwhile too; those that leave do not come back."""
    rotation = ConsumerRotation()
    consumers = {tag: Consumer(rotation, tag) for tag in "abc"}
    for tag in "ab":
        rotation.add(consumers[tag])  # type: ignore[arg-type]
    rotation.suspend()
    rotation.suspend()
    rotation.add(consumers["c"])  # type: ignore[arg-type]
    rotation.remove(consumers["a"])  # type: ignore[arg-type]

    assert ([], False, True) == (list(rotation.ready), rotation.resume(), rotation.is_suspended)
    assert (True, False) == (rotation.resume(), rotation.is_suspended)
    assert ["b", "c"] == [each.tag for each in rotation.ready]


def test_the_empty_tables_that_rotations_share_are_immutable():
    """A write without a check raises an exception instead of adding a consumer to all queues without any."""
    rotation = ConsumerRotation()
    consumer = Consumer(rotation, "a")
    for write in (
        lambda: rotation.rejoin(consumer),  # type: ignore[arg-type]
        lambda: rotation._consumers.update({consumer: None}),  # type: ignore[dict-item]
        lambda: rotation._held_back.update({consumer: None}),  # type: ignore[dict-item]
        lambda: rotation._waiting.append((0, 1, consumer)),  # type: ignore[arg-type]
    ):
        with pytest.raises(AttributeError):
            write()
    rotation.suspend()
    rotation.resume()

    assert ([], []) == (list(ConsumerRotation()), list(ConsumerRotation().ready))


@pytest.mark.parametrize("step", [1, -1])
def test_consumers_of_many_priorities_join_in_time_that_is_linear(step: int) -> None:
    """The time to add each of thousands of consumers does not grow, whatever the order of their priorities."""

    def joining(count: int) -> Callable[[], None]:
        rotation = ConsumerRotation()
        consumers = [Consumer(rotation, f"c{number}", number * step % 9973) for number in range(count)]

        def join() -> None:
            for consumer in consumers:
                rotation.add(consumer)  # type: ignore[arg-type]

        return join

    assert growth(joining) < 9


def test_single_active_consumers_follow_each_other_in_time_that_is_linear() -> None:
    """The time to replace each of thousands of active consumers by the next does not grow."""

    def leaving(count: int) -> Callable[[], None]:
        rotation = ConsumerRotation(single_active=True)
        consumers = [Consumer(rotation, f"c{number}") for number in range(count)]
        for consumer in consumers:
            rotation.add(consumer)  # type: ignore[arg-type]

        def leave() -> None:
            for consumer in consumers:
                assert rotation.is_active(consumer)  # type: ignore[arg-type]
                rotation.remove(consumer)  # type: ignore[arg-type]

        return leave

    assert growth(leaving) < 9


def test_waiting_consumers_that_have_left_are_forgotten() -> None:
    """Consumers that come and go while another is active leave no state behind."""
    rotation = ConsumerRotation(single_active=True)
    rotation.add(Consumer(rotation, "active"))  # type: ignore[arg-type]
    for number in range(1000):
        consumer = Consumer(rotation, f"c{number}", number)
        rotation.add(consumer)  # type: ignore[arg-type]
        rotation.remove(consumer)  # type: ignore[arg-type]

    assert len(rotation._waiting) < 10


def test_the_single_active_consumer_is_followed_by_priority_and_age() -> None:
    """The waiting consumer of the highest priority follows, of several the oldest; cancelled ones do not count."""
    rotation = ConsumerRotation(single_active=True)
    consumers = {
        tag: Consumer(rotation, tag, priority)
        for tag, priority in (("first", 0), ("low", -1), ("a", 5), ("b", 5), ("left", 9))
    }
    for consumer in consumers.values():
        rotation.add(consumer)  # type: ignore[arg-type]
    rotation.remove(consumers["left"])  # type: ignore[arg-type]
    followed = []
    while rotation.active is not None:
        followed.append(rotation.active.tag)
        rotation.remove(rotation.active)

    assert ["first", "a", "b", "low"] == followed
