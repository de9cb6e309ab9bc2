"""What is measured of a queue, beside what its messages went through."""

from collections.abc import Callable

import pytest
from fakes import Client, Node
from hypothesis import given, settings, strategies as st

from broker.amqp.commands import Basic, Confirm, make
from broker.config import ExportConfig
from broker.histogram import Histogram
from broker.meters import (
    MOST_EVENTS,
    SAMPLE_EVERY,
    WATCHED_CONFIRMS,
    Events,
    Happening,
    Latencies,
    QueueMeter,
)

MS = 1_000_000


class Backing:
    def __init__(self) -> None:
        self.ready_count = self.unacked_count = 0


class Line:
    """A queue whose messages leave in order: numbers of those that are ready, and of those that are unacked."""

    def __init__(self) -> None:
        self.now = 0
        self.latencies = Latencies()
        self.backing = self.store = Backing()
        self.published = 0
        self.ready: list[int] = []
        self.unacked: list[int] = []
        self.came: dict[int, int] = {}
        self.waited: dict[int, int] = {}
        self.stayed: dict[int, int] = {}
        self.areas = [0, 0]
        self.meter = QueueMeter(0, 0)

    def turn(self, publish: int, deliver: int, ack: int, milliseconds: int) -> None:
        """What a turn does, and the time until the next one."""
        for _ in range(publish):
            self.published += 1
            self.ready.append(self.published)
            self.came[self.published] = self.now
        for _ in range(min(deliver, len(self.ready))):
            number = self.ready.pop(0)
            self.unacked.append(number)
            self.waited[number] = self.now - self.came[number]
        for _ in range(min(ack, len(self.unacked))):
            number = self.unacked.pop(0)
            self.stayed[number] = self.now - self.came[number]
        self.backing.ready_count, self.backing.unacked_count = len(self.ready), len(self.unacked)
        self.meter.ran(self, self)
        self.latencies.settle(self.now)
        self.areas[0] += len(self.ready) * milliseconds * MS
        self.areas[1] += len(self.unacked) * milliseconds * MS
        self.now += milliseconds * MS


TURNS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 50)), max_size=60
)


@given(TURNS)
def test_areas_are_messages_times_time(turns):
    """At any look the areas are what a clock beside every message has added up."""
    line = Line()
    for turn in turns:
        line.turn(*turn)
    line.meter.look(line, line.now)

    assert line.areas == [line.meter.ready, line.meter.unacked]


@given(TURNS)
def test_watched_messages_are_timed_exactly(turns):
    """Where messages leave in order, each measured time is that of some message, and of the right kind."""
    line = Line()
    for turn in turns:
        line.turn(*turn)
    line.turn(0, 10_000, 10_000, 0)
    deliver, residence, _ = line.meter.take()

    for measured, exact in ((deliver, line.waited), (residence, line.stayed)):
        times = [value // 1000 for value in exact.values()]
        assert measured.count <= len(times)
        assert min(times, default=0) <= measured.least
        assert measured.greatest <= max(times, default=0)
        assert (measured.count > 0) is (line.published > 0)


def test_one_message_in_a_few_is_watched():
    """Of a steady stream every 16th is measured, and of a turn one."""
    line = Line()
    for _ in range(160):
        line.turn(1, 1, 1, 1)

    assert 160 // SAMPLE_EVERY == line.meter.take()[0].count


def test_a_long_queue_is_watched_more_thinly():
    """No more than a bounded number is watched at once, and later ones when these have left."""
    line = Line()
    for _ in range(10_000):
        line.turn(SAMPLE_EVERY, 0, 0, 0)
    line.turn(0, 200_000, 200_000, 0)
    first = line.meter.take()[0].count
    line.turn(1, 1, 1, 0)

    assert (64, 1) == (first, line.meter.take()[0].count)


def test_an_ack_is_timed_from_its_own_delivery():
    """What counts is when that message was acked, whatever was acked before it."""
    meter, latencies = QueueMeter(0, 0), Latencies()
    meter.delivered(7, 1 * MS)
    meter.delivered(8, 2 * MS)
    meter.settled([8], latencies)
    latencies.settle(5 * MS)
    meter.settled([6, 7], latencies)
    latencies.settle(9 * MS)

    assert (1, 8000) == (meter.ack.count, meter.ack.total)


def test_a_delivery_that_came_back_is_not_timed():
    """A requeue is no ack; the next delivery is watched instead."""
    meter, latencies = QueueMeter(0, 0), Latencies()
    meter.delivered(7, 1 * MS)
    meter.came_back({7: None})
    meter.delivered(9, 2 * MS)
    meter.settled([7, 9], latencies)
    latencies.settle(5 * MS)

    assert (1, 3000) == (meter.ack.count, meter.ack.total)


def test_what_ends_is_settled_once():
    """`settle` records what ended, and nothing twice."""
    latencies, histogram = Latencies(), Histogram()
    latencies.ended(histogram, 1 * MS)

    assert latencies.is_ending
    latencies.settle(3 * MS)
    latencies.settle(4 * MS)
    assert (False, 1, 2000) == (latencies.is_ending, histogram.count, histogram.total)


def test_too_many_events_are_counted_only():
    """What nobody fetches does not grow without a bound."""
    events = Events()
    for number in range(MOST_EVENTS + 5):
        events.add(Happening(number, 0, "k", "", "", {}))

    assert (5, MOST_EVENTS, 0) == (events.lost, len(events.take()), len(events.take()))


@pytest.fixture
def node(tmp_path) -> Node:
    """A broker that measures."""
    return Node(export=ExportConfig(dir=tmp_path))


def test_queues_measure_only_where_somebody_wants_to_know(node):
    """A broker without an export has no meters and keeps no events."""
    quiet = Client(Node())
    for client in (quiet, Client(node)):
        client.declare("q")

    assert quiet.node.vhosts["/"].queues["q"].meter is None
    assert quiet.node.turn.events is None
    assert node.vhosts["/"].queues["q"].meter is not None


def test_a_queue_of_the_broker_is_measured(node):
    """Messages that wait and then are delivered and acked leave their times and areas behind."""
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
    queue.meter.look(queue, node.monotonic())

    assert (1 * 100 + 2 * 200) * MS == queue.meter.ready
    assert 2 * 50 * MS == queue.meter.unacked
    assert [300_000, 350_000, 50_000] == [histogram.total for histogram in queue.meter.take()]


def confirmed_after(node: Node, arguments: dict, between: Callable[[Client], object]) -> dict[str, list[int]]:
    """What was measured of confirms: publish to a queue, do something, and see."""
    client = Client(node)
    client.declare("q", arguments=arguments)
    client.send(make(Confirm.Select, False))
    client.publish("q")
    between(client)
    latencies = node.turn.latencies.confirm
    return {mode: [latency.recent.count, latency.recent.total] for mode, latency in latencies.items()}


def test_a_confirm_is_timed_by_mode():
    """A standard confirm of a transient message takes no time; one on consumer ack as long as the consumer."""

    def consume(client: Client) -> None:
        client.node.pass_time(40)
        client.consume("q")
        client.node.pass_time(60)
        client.send(Basic.Ack(1, False))

    standard = confirmed_after(Node(), {}, lambda _: None)
    awaited = confirmed_after(Node(), {"x-confirm-mode": ("longstr", "consumer-ack")}, consume)

    assert {"standard": [1, 0], "consumer-ack": [0, 0], "consumer-ack-light": [0, 0]} == standard
    assert {"standard": [0, 0], "consumer-ack": [1, 100_000], "consumer-ack-light": [0, 0]} == awaited


@settings(max_examples=20)
@given(st.lists(st.integers(1, 40), max_size=20))
def test_confirms_are_watched_one_in_a_few(runs):
    """One of 16 numbers is watched at most, one of a turn at most, and never more than a few at once."""
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

        assert len(channel.watched) <= min(WATCHED_CONFIRMS, 1 + published // SAMPLE_EVERY)
    client.consume("q", no_ack=True)

    assert [] == channel.watched
