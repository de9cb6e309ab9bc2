"""Sampled latencies of a queue, compared with a model of what its messages went through."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from doubles.fakes import Client, DiskNode, Node, publish_frames
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Confirm, make
from leveret.broker.config.config import ExportConfig, StorageConfig
from leveret.broker.counters.histogram import Histogram
from leveret.broker.counters.sampling import (
    MOST_EVENTS,
    SAMPLE_EVERY,
    WATCHED_CONFIRMS,
    WATCHED_MESSAGES,
    BrokerEvent,
    Events,
    Latencies,
    QueueMeter,
)

MS = 1_000_000


class Backing:
    def __init__(self) -> None:
        self.ready_count = self.unacked_count = 0

    def state_counts(self) -> tuple[int, int, int, int]:
        return self.ready_count, 0, 0, 0


class Line:
    """A queue whose messages leave in order: numbers of the ready ones and of the unacked ones."""

    def __init__(self) -> None:
        self.now = 0
        self.latencies = Latencies()
        self.backing = Backing()
        self.published = 0
        self.ready: list[int] = []
        self.unacked: list[int] = []
        self.came: dict[int, int] = {}
        self.waited: dict[int, int] = {}
        self.stayed: dict[int, int] = {}
        self.areas = [0, 0]
        self.meter = QueueMeter(0, 0)

    def turn(self, publish: int, deliver: int, ack: int, milliseconds: int, busy: int = 0) -> None:
        """Publish, deliver and ack in one turn that takes `busy`, then wait until the next one."""
        for _ in range(publish):
            self.published += 1
            self.ready.append(self.published)
            self.came[self.published] = self.now
        self.areas[0] += len(self.ready) * busy * MS
        self.areas[1] += len(self.unacked) * busy * MS
        for _ in range(min(deliver, len(self.ready))):
            number = self.ready.pop(0)
            self.unacked.append(number)
            self.waited[number] = self.now + busy * MS - self.came[number]
        for _ in range(min(ack, len(self.unacked))):
            number = self.unacked.pop(0)
            self.stayed[number] = self.now + busy * MS - self.came[number]
        self.backing.ready_count, self.backing.unacked_count = len(self.ready), len(self.unacked)
        self.meter.ran(self, self)
        self.now += busy * MS
        self.latencies.settle(self.now)
        self.areas[0] += len(self.ready) * milliseconds * MS
        self.areas[1] += len(self.unacked) * milliseconds * MS
        self.now += milliseconds * MS


def test_what_comes_back_is_ready_from_the_turn_s_beginning():
    """An area is never decreased, so that those of the states add up to it."""
    line = Line()
    line.turn(10, 10, 0, 5)
    before = line.meter.ready
    line.ready, line.unacked = line.unacked, []
    line.turn(0, 0, 0, 0, busy=3)
    line.meter.update(line, line.now)

    assert before + 10 * 3 * MS == line.meter.ready


TURNS = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 50), st.integers(0, 3)
    ),
    max_size=60,
)


@given(TURNS)
def test_areas_are_messages_times_time(turns):
    """The areas always equal the sum of the times that every message has spent."""
    line = Line()
    for turn in turns:
        line.turn(*turn)
    line.meter.update(line, line.now)

    assert line.areas == [line.meter.ready, line.meter.unacked]


@given(TURNS)
def test_watched_messages_are_timed_exactly(turns):
    """Each measured time is that of some message, and of the right kind, if messages leave in order."""
    line = Line()
    for turn in turns:
        line.turn(*turn)
    line.turn(0, 10_000, 10_000, 0)
    deliver, residence, _ = line.meter.take()

    for measured, exact in ((deliver, line.waited), (residence, line.stayed)):
        times = [value // 1000 for value in exact.values()]
        assert measured.count <= len(times)
        assert len(times) - measured.count < SAMPLE_EVERY + 40  # those after the last one that was watched
        assert min(times, default=0) <= measured.least
        assert measured.greatest <= max(times, default=0)
        assert (measured.count > 0) is (line.published > 0)


def test_one_message_in_a_few_is_watched():
    """One in a few messages of a steady stream is measured, and one of a turn."""
    line = Line()
    for _ in range(10 * SAMPLE_EVERY):
        line.turn(1, 1, 1, 1)

    deliver = line.meter.take()[0]
    assert 9 * SAMPLE_EVERY + 1 == deliver.count  # each counts for all since the one before
    assert 0 == deliver.total


def test_a_long_queue_is_watched_more_thinly():
    """A bounded number of messages is watched at once, spread over the whole queue."""
    line = Line()
    turns = 2_000
    for _ in range(turns):
        line.turn(SAMPLE_EVERY, 0, 0, 1)
        assert len(line.meter._waiting) <= WATCHED_MESSAGES
    apart = [b[0] - a[0] for a, b in pairwise(line.meter._waiting)]
    most = turns * SAMPLE_EVERY
    for _ in range(turns):
        line.turn(0, SAMPLE_EVERY, SAMPLE_EVERY, 1)
    deliver = line.meter.take()[0]

    assert max(apart) <= 4 * most / WATCHED_MESSAGES
    assert most == pytest.approx(deliver.count, rel=0.06)
    assert 1000 * turns == pytest.approx(deliver.total / deliver.count, rel=0.01)  # all waited as long
    line.turn(most, most, most, 0)
    line.meter.take()
    line.turn(SAMPLE_EVERY, SAMPLE_EVERY, SAMPLE_EVERY, 0)
    assert line.meter.take()[0].count > 0  # it is watched closely again


@pytest.mark.parametrize(("rate", "burst"), [(1, 1), (3, 100), (30, 5), (0, 400)])
def test_mean_times_agree_with_areas(rate, burst):
    """Little's law holds for all arrivals: the mean number of ready messages is their rate times their mean wait."""
    line, chance = Line(), Random(rate)
    for _ in range(20_000):
        come = chance.choice((0, 2 * rate)) + (burst if chance.random() < 0.01 else 0)
        line.turn(come, chance.randrange(2 * rate + burst // 20 + 3), 1_000, 1, chance.randrange(3))
    line.turn(0, 10**6, 10**6, 0)
    line.meter.update(line, line.now)
    deliver, residence, _ = line.meter.take()

    assert line.meter.ready / line.published == pytest.approx(1000 * deliver.total / deliver.count, rel=0.05)
    areas = line.meter.ready + line.meter.unacked
    assert areas / line.published == pytest.approx(1000 * residence.total / residence.count, rel=0.05)


def test_an_ack_is_timed_from_its_own_delivery():
    """An ack is timed from the delivery of its own message, whatever was acked before it."""
    meter, latencies = QueueMeter(0, 0), Latencies()
    meter.delivered(7, 1 * MS)
    meter.delivered(8, 2 * MS)
    meter.settled([8], latencies)
    latencies.settle(5 * MS)
    meter.settled([6, 7], latencies)
    latencies.settle(9 * MS)

    assert (3, 3 * 8000) == (meter.ack.count, meter.ack.total)  # it counts for all that were settled so far


def test_a_delivery_that_came_back_is_not_timed():
    """A requeue is not an ack; the next delivery is watched instead."""
    meter, latencies = QueueMeter(0, 0), Latencies()
    meter.delivered(7, 1 * MS)
    meter.requeued({7: None})
    meter.delivered(9, 2 * MS)
    meter.settled([7, 9], latencies)
    latencies.settle(5 * MS)

    assert (2, 2 * 3000) == (meter.ack.count, meter.ack.total)


def test_what_ends_is_settled_once():
    """`settle` records each ended message once."""
    latencies, histogram = Latencies(), Histogram()
    latencies.ended(histogram, 1 * MS)

    assert latencies.is_ending
    latencies.settle(3 * MS)
    latencies.settle(4 * MS)
    assert (False, 1, 2000) == (latencies.is_ending, histogram.count, histogram.total)


def test_too_many_events_are_counted_only():
    """Events that nobody fetches are counted only, above a bound."""
    events = Events()
    for number in range(MOST_EVENTS + 5):
        events.add(BrokerEvent(number, 0, "k", "", "", {}))

    assert (5, MOST_EVENTS, 0) == (events.lost, len(events.take()), len(events.take()))


@pytest.fixture
def node(tmp_path) -> Node:
    """A broker with sampling enabled."""
    return Node(export=ExportConfig(dir=tmp_path))


def test_a_queue_of_the_broker_is_measured(node):
    """Messages that wait, are delivered and acked are recorded in the latencies and areas."""
    client = Client(node)
    client.declare("q")
    client.publish("q")
    node.pass_time(100)
    client.publish("q")
    node.pass_time(200)
    client.consume("q")
    node.pass_time(50)
    client.send(Basic.Ack(2, True))
    queue = node.vhosts["/"].queues["q"]
    queue.meter.update(queue, node.loop.monotonic())

    assert (1 * 100 + 2 * 200) * MS == queue.meter.ready
    assert 2 * 50 * MS == queue.meter.unacked
    deliver, residence, ack = queue.meter.take()
    assert [300_000, 350_000] == [deliver.total, residence.total]
    assert (2, 50_000) == (ack.count, ack.total / ack.count)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-max-length": ("signedint", 9)},
        {"x-max-length": ("signedint", 9), "x-confirm-mode": ("longstr", "consumer-ack-light")},
    ],
)
def test_a_rejected_delivery_counts_once(node, arguments):
    """A timed ack stands for all that were settled, however a queue removes what was rejected."""
    client = Client(node)
    client.send(make(Confirm.Select, False))
    client.declare("q", arguments=arguments)
    for _ in range(4):
        client.publish("q")
    client.consume("q")
    for tag in (1, 2, 3):
        client.send(Basic.Reject(tag, False))
    client.send(Basic.Ack(4, False))

    assert 4 == node.vhosts["/"].queues["q"].meter.take()[2].count


def test_what_is_let_go_counts_once(tmp_path):
    """A dead letter stored elsewhere was settled when it was rejected, or never; its original is not counted."""
    storage = StorageConfig(
        sync=False, blob_threshold=50
    )  # of such a body the original stays until its copy is safe
    node = DiskNode(tmp_path / "data", storage=storage, export=ExportConfig(dir=tmp_path))
    client = Client(node)
    dying = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}
    for name, arguments in (("q", dying), ("dead", {})):
        client.declare(name, durable=True, arguments=arguments)
        node.commit()
    for _ in range(4):
        client.publish("q", b"x" * 60, delivery_mode=2)
    node.write_files()
    client.consume("q")
    for tag in (1, 2, 3):
        client.send(Basic.Reject(tag, False))
    node.run_turn()
    node.write_files()
    client.send(Basic.Ack(4, False))
    counts = node.vhosts["/"].queues["q"].tally
    node.disk.close()

    assert (3, 0) == (counts.rejected, counts.discarded)
    assert 4 == node.vhosts["/"].queues["q"].meter.take()[2].count


def confirmed_after(node: Node, arguments: dict, between: Callable[[Client], object]) -> dict[str, list[int]]:
    """Return the measured confirm times of a publish to a queue, followed by `between`."""
    client = Client(node)
    client.declare("q", arguments=arguments)
    client.send(make(Confirm.Select, False))
    client.publish("q")
    between(client)
    latencies = node.context.latencies.confirm
    return {mode: [latency.recent.count, latency.recent.total] for mode, latency in latencies.items()}


def test_a_confirm_is_timed_by_mode():
    """A standard confirm of a transient message takes no time, one on consumer ack as long as the consumer."""

    def consume(client: Client) -> None:
        client.node.pass_time(40)
        client.consume("q")
        client.node.pass_time(60)
        client.send(Basic.Ack(1, False))

    standard = confirmed_after(Node(), {}, lambda _: None)
    awaited = confirmed_after(Node(), {"x-confirm-mode": ("longstr", "consumer-ack")}, consume)

    assert {"standard": [1, 0], "consumer-ack": [0, 0], "consumer-ack-light": [0, 0]} == standard
    assert {"standard": [0, 0], "consumer-ack": [1, 100_000], "consumer-ack-light": [0, 0]} == awaited


def test_many_numbers_that_wait_are_watched_more_thinly():
    """A few of the waiting confirms are watched and stand for all; one that comes later stands for itself."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments={"x-confirm-mode": ("longstr", "consumer-ack")})
    client.send(make(Confirm.Select, False))
    channel = client.connection.channels[1]
    for _ in range(3000):
        client.publish("q")
        assert len(channel.confirm_times.watched) <= WATCHED_CONFIRMS
        node.pass_time(1)
    client.consume("q")
    for number in range(1, 3001):
        client.send(Basic.Ack(number, False))
    slow = node.context.latencies.confirm["consumer-ack"].take()
    for _ in range(SAMPLE_EVERY):
        client.publish("q")
        client.send(Basic.Ack(channel.delivery_tag, False))
    fast = node.context.latencies.confirm["consumer-ack"].take()

    assert 3000 * 3 / 4 <= slow.count <= 3000
    assert 1_500_000 == pytest.approx(slow.total / slow.count, rel=0.25)  # the first waited for three seconds
    assert (SAMPLE_EVERY, 0) == (fast.count, fast.total)


def test_numbers_of_one_read_are_timed_at_all_their_places():
    """The mean of fifty publishes of one read, confirmed one by one, is the mean of all of them."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments={"x-confirm-mode": ("longstr", "consumer-ack")})
    client.send(make(Confirm.Select, False))
    client.consume("q")
    channel = client.connection.channels[1]
    for _ in range(60):
        client.receive(publish_frames("q", b"body") * 50)
        for tag in range(channel.delivery_tag - 49, channel.delivery_tag + 1):
            node.pass_time(1)
            client.send(Basic.Ack(tag, False))
    found = node.context.latencies.confirm["consumer-ack"].take()

    assert 60 * 50 == found.count
    assert 25_500 == pytest.approx(found.total / found.count, rel=0.05)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 40), max_size=20))
def test_confirms_are_watched_one_in_a_few(runs):
    """At most one of 16 numbers is watched, at most one of a turn, and never more than a few at once."""
    node = Node()
    client = Client(node)
    client.declare("q", arguments={"x-confirm-mode": ("longstr", "consumer-ack")})
    client.send(make(Confirm.Select, False))
    channel = client.connection.channels[1]
    published = 0
    for count in runs:
        for _ in range(count):
            client.publish("q")
        published += count

        assert len(channel.confirm_times.watched) <= min(WATCHED_CONFIRMS, 1 + published // SAMPLE_EVERY)
    client.consume("q", no_ack=True)

    assert [] == channel.confirm_times.watched
