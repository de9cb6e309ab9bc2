"""Distribution of messages: a queue against a model that delivers one message at a time."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from checks.growth import growth
from checks.internals import ready_messages
from doubles.fakes import Client, Driver, Node, basic_consume, parse, publish_frames
from hypothesis import example, given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Tx, make
from leveret.broker.amqp.fastpath import content_frames, shortstr
from leveret.broker.amqp.properties import build
from leveret.broker.channel.channel import Channel
from leveret.broker.queue.consumer import Consumer
from leveret.broker.queue.queue import RUN_BUDGET, Queue, RunListener
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.vhost import VHost
from leveret.storage.message import Message


def host(turn: Turn, vhost: VHost | None = None, limit: int = 1 << 20) -> Any:
    """Return the parts of a connection that a channel needs."""
    driver = Driver()
    outbox = Outbox(turn, driver, limit)
    driver.connection = SimpleNamespace(outbox=outbox, sent=0)  # type: ignore[assignment]

    def run_in_slices(_number: int, steps: Iterator[None], _reply: bytes) -> None:
        for _ in steps:
            pass

    return SimpleNamespace(
        vhost=vhost or VHost("/", turn, NodeContext()),
        outbox=outbox,
        frame_max=131072,
        driver=driver,
        notifies_cancel=True,
        name="127.0.0.1:1 -> 127.0.0.1:5672",
        user=SimpleNamespace(name="guest"),
        run_in_slices=run_in_slices,
    )


def message(number: int, size: int = 0) -> Message:
    body = b"%d" % number + b" " * size
    return Message(shortstr("") + shortstr("q"), content_frames(9, 0, build(len(body)), body), 9)


def received(driver: Driver) -> list[tuple[str, int, bool, int]]:
    """Return consumer, delivery tag, redelivered and number of the deliveries since the last call."""
    octets, driver.octets = bytes(driver.octets), bytearray()
    return [
        (item.method.consumer_tag, item.method.delivery_tag, item.method.redelivered, int(item.body))
        for item in parse(octets)
    ]


class Spec(NamedTuple):
    channel: int
    no_ack: bool
    prefetch: int
    priority: int


class Bench:
    """A queue with its consumers and, in parallel, the model."""

    def __init__(self, specs: list[Spec], global_prefetch: list[int]) -> None:
        self.turn = Turn()
        vhost = VHost("/", self.turn, NodeContext())
        self.queue = vhost.create_queue(
            "q", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
        )
        self.hosts = [host(self.turn, vhost) for _ in global_prefetch]
        self.channels = [Channel(number + 1, each) for number, each in enumerate(self.hosts)]
        self.model = Model(global_prefetch)
        self.count = 0
        for channel, prefetch in zip(self.channels, global_prefetch, strict=True):
            channel.global_prefetch = prefetch
        for number, spec in enumerate(specs):
            tag = f"c{number}"
            channel = self.channels[spec.channel]
            consumer = Consumer(
                tag,
                self.queue,
                channel,
                no_ack=spec.no_ack,
                prefetch_count=spec.prefetch,
                priority=spec.priority,
            )
            channel.consumers[tag] = consumer
            self.queue.add_consumer(consumer)
            self.model.add(tag, spec)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.queue.inbox.append(message(self.count))
            self.model.inbox.append(self.count)
            self.count += 1
        self.queue.touch()

    def settle(self, channel: int, at: int, *, multiple: bool, requeue: bool) -> None:
        tags = list(self.channels[channel].unacked)
        if not tags:
            return
        tag = tags[at % len(tags)]
        settled = tags[: at % len(tags) + 1] if multiple else [tag]
        if requeue:
            self.channels[channel].reject(tag, multiple=multiple, outcome=True)
        else:
            self.channels[channel].ack(tag, multiple=multiple)
        self.model.settle(channel, settled, requeue=requeue)

    def limit(self, channel: int, prefetch: int) -> None:
        self.channels[channel].global_prefetch = self.model.global_prefetch[channel] = prefetch
        self.channels[channel].wake_consumers()
        self.model.wake_channel(channel)

    def pause(self, paused: bool) -> None:
        if paused:
            self.queue.pause()
        else:
            self.queue.unpause()
        self.model.pause(paused)

    def cancel(self, at: int) -> None:
        if not self.queue.consumers:
            return
        consumer = list(self.queue.consumers)[at % len(self.queue.consumers)]
        consumer.channel.cancel(consumer)  # type: ignore[attr-defined]
        self.model.cancel(consumer.tag)

    def run(self) -> None:
        self.turn.run()
        self.model.run()
        outboxes, self.turn.outboxes = self.turn.outboxes, []
        for outbox in outboxes:
            outbox.flush()
        for number, each in enumerate(self.hosts):
            assert self.model.delivered[number] == received(each.driver)
            self.model.delivered[number] = []
        assert self.model.ready == [int(each.body) for each in ready_messages(self.queue.backing)]  # type: ignore[attr-defined]
        rotation = [each.tag for each in self.queue.consumers.ready if not each.cancelled]
        assert [each.tag for each in self.model.rotation] == rotation


class Taker:
    def __init__(self, tag: str, spec: Spec) -> None:
        self.tag = tag
        self.spec = spec
        self.unacked = 0
        self.parked = True


class Model:
    """A model in which each message goes to the head of the rotation, which moves to the end of its priority."""

    def __init__(self, global_prefetch: list[int]) -> None:
        self.global_prefetch = list(global_prefetch)
        self.consumers: dict[str, Taker] = {}
        self.rotation: list[Taker] = []
        self.ready: list[int] = []
        self.redelivered: set[int] = set()
        self.inbox: list[int] = []
        self.acked = False
        self.tags = [0 for _ in global_prefetch]
        self.unacked: list[dict[int, tuple[Taker, int]]] = [{} for _ in global_prefetch]
        self.delivered: list[list[tuple[str, int, bool, int]]] = [[] for _ in global_prefetch]
        self.is_paused = False
        self.held_back: dict[str, Taker] = {}

    def add(self, tag: str, spec: Spec) -> None:
        self.consumers[tag] = Taker(tag, spec)
        self.wake([self.consumers[tag]])

    def has_room(self, taker: Taker) -> bool:
        spec = taker.spec
        limit = self.global_prefetch[spec.channel]
        if limit and len(self.unacked[spec.channel]) >= limit:
            return False  # consumers without acks wait, too, as in RabbitMQ
        return spec.no_ack or not spec.prefetch or taker.unacked < spec.prefetch

    def wake(self, takers: list[Taker]) -> None:
        for taker in takers:
            if taker.parked and self.consumers.get(taker.tag) is taker and self.has_room(taker):
                taker.parked = False
                if self.is_paused:
                    taker.parked = True
                    self.held_back[taker.tag] = taker
                else:
                    self.join(taker)

    def wake_channel(self, channel: int) -> None:
        """Wake all consumers of a channel, another one first each time."""
        takers = [each for each in self.consumers.values() if each.spec.channel == channel]
        self.wake(takers)
        for each in takers[:1]:
            self.consumers[each.tag] = self.consumers.pop(each.tag)

    def join(self, taker: Taker) -> None:
        at = len(self.rotation)
        while at and self.rotation[at - 1].spec.priority < taker.spec.priority:
            at -= 1
        self.rotation.insert(at, taker)

    def settle(self, channel: int, tags: list[int], *, requeue: bool) -> None:
        records = [self.unacked[channel].pop(tag) for tag in tags]
        for taker, _ in records:
            taker.unacked -= 1
        if requeue:
            if self.inbox or self.acked:
                self.run()
            self.ready = sorted(self.ready + [number for _, number in records])
            self.redelivered |= {number for _, number in records}
        else:
            self.acked = True
        if self.global_prefetch[channel]:
            self.wake_channel(channel)
        else:
            self.wake(list(dict.fromkeys(taker for taker, _ in records)))

    def pause(self, paused: bool) -> None:
        """Hold all consumers back, or let them join again in the order in which they would have."""
        if paused is self.is_paused:
            return
        self.is_paused = paused
        if paused:
            for taker in self.rotation:
                taker.parked = True
                self.held_back[taker.tag] = taker
            self.rotation = []
        else:
            takers, self.held_back = list(self.held_back.values()), {}
            self.wake(takers)

    def cancel(self, tag: str) -> None:
        taker = self.consumers.pop(tag)
        self.held_back.pop(tag, None)
        if taker in self.rotation:
            self.rotation.remove(taker)

    def run(self) -> None:
        self.acked = False
        self.ready += self.inbox
        self.inbox = []
        while self.ready and self.rotation:
            taker = self.rotation.pop(0)
            if self.has_room(taker):
                self.deliver(taker, self.ready.pop(0))
            if self.has_room(taker):
                self.join(taker)
            else:
                taker.parked = True

    def deliver(self, taker: Taker, number: int) -> None:
        channel = taker.spec.channel
        self.tags[channel] += 1
        tag = self.tags[channel]
        self.delivered[channel].append((taker.tag, tag, number in self.redelivered, number))
        if not taker.spec.no_ack:
            taker.unacked += 1
            self.unacked[channel][tag] = (taker, number)


specs = st.builds(
    Spec,
    st.integers(0, 3),
    st.booleans() | st.just(False),
    st.integers(0, 4),
    st.sampled_from((0, 0, 0, 1, 2)),
)
alike = st.lists(st.tuples(st.booleans() | st.just(False), st.integers(0, 4)), min_size=2, max_size=4).map(
    lambda consumers: [Spec(channel, *each, 0) for channel, each in enumerate(consumers)]
)
"""Consumers that may be served in one stride, or the first of them: each has a channel of its own."""
operations = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 12)),
    st.tuples(st.just("ack"), st.integers(0, 3), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("requeue"), st.integers(0, 3), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("limit"), st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 4)),
    st.tuples(st.just("pause"), st.booleans()),
    st.just(("run",)),
)


@settings(max_examples=400)
@given(
    specs=alike | st.lists(specs, min_size=1, max_size=5),
    global_prefetch=st.lists(st.sampled_from((0, 0, 1, 3)), min_size=4, max_size=4),
    script=st.lists(operations, min_size=3, max_size=40),
)
def test_messages_are_handed_out_one_at_a_time_in_rotation(specs, global_prefetch, script):
    """Consumers get the same messages in strides or singly as if each went to the head of the rotation."""
    bench = Bench(specs, global_prefetch)
    for kind, *arguments in (*script, ("run",)):
        if kind == "publish":
            bench.publish(*arguments)
        elif kind in ("ack", "requeue"):
            channel, at, multiple = arguments
            bench.settle(channel, at, multiple=multiple, requeue=kind == "requeue")
        elif kind == "limit":
            bench.limit(*arguments)
        elif kind == "cancel":
            bench.cancel(*arguments)
        elif kind == "pause":
            bench.pause(*arguments)
        else:
            bench.run()


@settings(max_examples=50)
@given(
    counts=st.lists(st.integers(1, 700), min_size=1, max_size=6),
    prefetches=st.lists(st.sampled_from((0, 1, 7, 300)), min_size=1, max_size=3),
    share=st.booleans(),
)
@example(counts=[125, 224, 540, 540], prefetches=[0], share=False)  # many are acked, a piece at a time
def test_many_messages_keep_their_order(counts, prefetches, share):
    """Each consumer's messages are in order, and none is lost or duplicated, whatever the lengths of the runs."""
    specs = [Spec(0 if share else number, False, limit, 0) for number, limit in enumerate(prefetches)]
    bench = Bench(specs, [0, 0, 0, 0])
    for count in counts:
        bench.publish(count)
        bench.run()
        for channel in range(4):
            bench.settle(channel, 10_000 // 3, multiple=True, requeue=False)
        bench.run()


def make_queue(turn: Turn) -> Queue:
    return VHost("/", turn, NodeContext()).create_queue(
        "q", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
    )


def consume(queue: Queue, each: Any, *, no_ack: bool = True, number: int = 1, priority: int = 0) -> Consumer:
    """Add a consumer on a channel of its own."""
    channel = Channel(number, each)
    consumer = Consumer(f"c{number}", queue, channel, no_ack=no_ack, priority=priority)
    channel.consumers[consumer.tag] = consumer
    queue.add_consumer(consumer)
    return consumer


def test_few_messages_look_at_few_consumers(monkeypatch):
    """A queue with fewer messages than consumers serves the first of them without asking for all, and then the next."""
    turn = Turn()
    queue = make_queue(turn)
    each = host(turn, limit=1 << 30)
    consumers = [consume(queue, each, no_ack=False, number=number) for number in range(1, 6)]
    consumers[3].limit = 1
    monkeypatch.setattr(type(queue.consumers), "_are_alike", lambda _: pytest.fail("asked for all"))
    delivered = []
    for count in (2, 3, 3, 3):
        for _ in range(count):
            queue.put(message(count))
        turn.run()
        delivered.append([consumer.delivered for consumer in consumers])
    assert [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [2, 2, 2, 1, 1], [3, 3, 2, 1, 2]] == delivered
    assert consumers[3].parked


def test_messages_are_kept_for_consumers_that_ack_beside_others_that_do_not():
    """Consumers with and without automatic acks are not served together: only those that ack have unacked messages."""
    turn = Turn()
    queue = make_queue(turn)
    each = host(turn, limit=1 << 30)
    for number, no_ack in enumerate((True, False, False, True), 1):
        consume(queue, each, no_ack=no_ack, number=number)
    for count in (3, 3, 2):
        for _ in range(count):
            queue.put(message(count))
        turn.run()
    assert 4 == queue.backing.unacked_count


def test_a_queue_delivers_no_more_than_its_budget_in_one_run():
    """A long backlog is delivered in several runs, each of which reports that work is left."""
    turn = Turn()
    queue = make_queue(turn)
    queue.backing.publish([message(number) for number in range(2 * RUN_BUDGET + 10)])
    each = host(turn, limit=1 << 30)
    consume(queue, each)
    turn.run()

    assert [queue] == turn.unfinished
    assert RUN_BUDGET == queue.delivered
    turn.resume_unfinished()
    turn.run()
    assert [queue] == turn.unfinished
    turn.resume_unfinished()
    turn.run()
    assert [] == turn.unfinished
    assert 2 * RUN_BUDGET + 10 == queue.delivered


def test_a_full_outbox_parks_its_consumers():
    """A connection that is not written to gets a bounded amount and is parked until it drains; others go on."""
    turn = Turn()
    queue = make_queue(turn)
    slow, fast = host(turn, limit=3000), host(turn)
    consume(queue, slow)
    queue.backing.publish([message(number, 1000) for number in range(300)])
    queue.run()

    assert slow.outbox.full
    assert 256 >= queue.delivered
    assert [] == list(queue.consumers.ready)
    before = queue.delivered
    consumer = consume(queue, fast)
    queue.run()
    assert [consumer] == list(queue.consumers.ready)
    assert 300 == queue.delivered > before
    slow.outbox.flush()
    assert not slow.outbox.full
    assert 2 == len(queue.consumers.ready)


def test_large_messages_go_in_smaller_steps():
    """Large messages are delivered in smaller steps, which are bounded in bytes."""
    turn = Turn()
    queue = make_queue(turn)
    each = host(turn, limit=100_000)
    queue.largest = 1 << 20
    consume(queue, each)
    queue.backing.publish([message(number, 1 << 20) for number in range(5)])
    queue.run()

    assert 1 == queue.delivered


def test_two_queues_share_one_outbox():
    """A queue whose consumer finds its outbox filled by another queue keeps its messages in order."""
    turn = Turn()
    first, second = make_queue(turn), make_queue(turn)
    each = host(turn, limit=1000)
    consume(first, each)
    consume(second, each, number=2)
    first.inbox.append(message(0, 2000))
    second.inbox += [message(1), message(2)]
    first.touch()
    second.touch()
    turn.run()

    assert (1, 0) == (first.delivered, second.delivered)
    assert 2 == second.ready_count
    each.outbox.flush()
    turn.run()
    assert 2 == second.delivered


def test_a_lowered_global_prefetch_holds_back_what_is_waiting():
    """Consumers without room after a channel limit is lowered get nothing, and no message is lost."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.declare("other")
    for tag in "ab":
        client.consume("q", tag)
    client.receive(publish_frames("q") * 3)
    client.ask(make(Basic.Qos, 0, 1, True))
    client.receive(publish_frames("q") * 4)

    assert [] == client.sent()
    assert 4 == node.vhosts["/"].queues["q"].ready_count
    client.send(make(Basic.Ack, 3, True))
    assert 1 == len(client.sent())
    assert 3 == node.vhosts["/"].queues["q"].ready_count


def test_queues_share_a_channel_prefetch():
    """Two queues whose consumers share one channel limit both make progress, however fast the other is refilled."""
    client = Client()
    for name in ("a", "b"):
        client.declare(name)
        client.receive(publish_frames(name) * 20)
    client.ask(make(Basic.Qos, 0, 1, True))
    client.send(basic_consume("a", "a"))
    client.send(basic_consume("b", "b"))
    taken = [item.method.routing_key for item in client.take() if item.header]
    for tag in range(1, 20):
        client.send(make(Basic.Ack, tag, False))
        taken += [item.method.routing_key for item in client.take()]

    assert 20 == len(taken)
    assert 8 <= taken.count("a") <= 12


def test_a_deleted_queue_takes_nothing_back():
    """Requeueing into a deleted queue does nothing."""
    queue = make_queue(Turn())
    queue.backing.publish([message(0)])
    batch = queue.get(no_ack=False)
    assert batch is not None
    queue.delete()
    queue.requeue(batch.seq_ids)

    assert 0 == queue.ready_count


def test_idle_queues_share_their_empty_lists():
    """A queue without consumers owns no lists of them, before its first and after its last."""
    turn = Turn()
    queue, other = make_queue(turn), make_queue(turn)
    consumer = consume(queue, host(turn))

    assert [consumer] == list(queue.consumers)
    queue.remove_consumer(consumer)
    assert queue.consumers.ready is other.consumers.ready
    assert (0, 0) == (len(queue.consumers), len(queue.consumers.ready))


def test_the_empty_table_that_idle_queues_share_is_immutable():
    """A listener that is added without `add_listener` raises an exception instead of being added to all queues."""
    queue = make_queue(Turn())
    listener = RunListener()
    with pytest.raises(TypeError):
        queue.run_listeners[listener] = None
    queue.remove_listener(listener)  # of an idle queue: nothing happens
    queue.add_listener(listener)
    queue.remove_listener(listener)

    assert queue.run_listeners is make_queue(Turn()).run_listeners


def test_listeners_are_notified_of_runs_and_of_the_end():
    """A listener is called after each run and at the deletion, until it is removed."""

    class Listener(RunListener):
        def __init__(self) -> None:
            self.heard: list[int] = []

        def queue_ran(self, queue: Queue) -> None:
            self.heard.append(queue.backing.ready_count)

    queue = make_queue(Turn())
    first, second = Listener(), Listener()
    queue.add_listener(first)
    queue.add_listener(second)
    queue.inbox.append(message(0))
    queue.run()
    queue.remove_listener(second)
    queue.delete()

    assert ([1, 0], [1]) == (first.heard, second.heard)


def test_many_that_wait_for_a_queue_come_and_go_in_time_that_is_linear() -> None:
    """The time to begin and end each of thousands of publishers' pauses does not grow."""

    def waiting(count: int) -> Callable[[], None]:
        queue = make_queue(Turn())
        listeners = [RunListener() for _ in range(count)]

        def wait() -> None:
            for listener in listeners:
                queue.add_listener(listener)
            for listener in listeners:
                queue.remove_listener(listener)

        return wait

    assert growth(waiting) < 9


def test_what_a_transaction_has_acked_counts_until_its_commit() -> None:
    """An ack in a transaction frees the channel's prefetch at the commit, whatever else wakes the consumer."""
    client = Client()
    client.declare("q")
    client.send(make(Tx.Select))
    client.send(make(Basic.Qos, 0, 2, True))
    client.consume("q")
    client.receive(publish_frames("q", b"1") * 5)
    client.send(make(Tx.Commit))
    client.sent()
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Basic.Qos, 0, 2, True))

    assert ["1 basic.qos-ok"] == client.sent()
    client.send(make(Tx.Commit))
    assert ["deliver", "tx.commit-ok"] == [
        "deliver" if "deliver" in line else line[2:] for line in client.sent()
    ]
