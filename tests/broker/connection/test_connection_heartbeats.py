"""The silence of both sides of a connection with heartbeats, by the server's own timer wheel."""

from itertools import pairwise

import pytest
from doubles.fakes import Client, Driver, Node
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Channel, Connection as Wire, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.connection.handshake import PROTOCOL_HEADER
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS

STEP = 0.05
"""Longest step of the event loop between two ticks, in seconds."""


class _Timed(Driver):
    """A driver that notes when it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def flush(self) -> None:
        if self.connection.outbox.frames:
            self.times.append(self.connection.node.now())
        super().flush()


class _Client(Client):
    driver: _Timed
    driver_class = _Timed


def tick(node: Node, step: float) -> None:
    """Let the loop be busy for so long after a tick is due, then carry it out."""
    node.clock.now += TICK_SECONDS + step
    node.run_timeouts(node.now())
    node.run_turn()


@settings(max_examples=60)
@given(
    heartbeats=st.lists(st.sampled_from([1, 2, 3, 10, 60]), min_size=1, max_size=4),
    traffic=st.lists(st.floats(0, 4), max_size=12),
    steps=st.lists(st.floats(0, STEP), min_size=1, max_size=20),
    begins=st.floats(0, TICK_SECONDS),
)
def test_the_broker_is_never_silent_for_an_interval(heartbeats, traffic, steps, begins):
    """It sends something at each half interval, at most two ticks and one step late, whatever else it sent and when."""
    node = Node()
    node.clock.now += begins
    clients = [_Client(node, heartbeat=each) for each in heartbeats]
    for client in clients:
        began, asked = node.now(), [began * client.connection.heartbeat for began in sorted(traffic)]
        for number in range(int(4 * client.connection.heartbeat / TICK_SECONDS)):
            while asked and began + asked[0] <= node.now():
                asked.pop(0)
                client.ask(Channel.Open(), 2)
                client.ask(make(Channel.Close, 200, "", 0, 0), 2)
            for each in clients:
                each.receive(HEARTBEAT)
            tick(node, steps[number % len(steps)])

    for client in clients:
        times = [*client.driver.times, node.now()]
        longest = max(later - sooner for sooner, later in pairwise(times))
        assert longest <= client.connection.heartbeat / 2 + 2 * TICK_SECONDS + STEP + 1e-6
        assert longest < client.connection.heartbeat


@settings(max_examples=60)
@given(
    heartbeat=st.sampled_from([1, 2, 10]),
    last=st.floats(0, 3),
    steps=st.lists(st.floats(0, STEP), min_size=1, max_size=20),
)
def test_a_client_may_be_silent_for_two_intervals(heartbeat, last, steps):
    """A client is disconnected two to three intervals after its last octet, and gets heartbeats until then."""
    node = Node()
    client = _Client(node, heartbeat=heartbeat)
    last = node.now() + last * heartbeat
    number = heard = 0
    while client.driver.closed is None:
        if node.now() <= last:
            client.receive(HEARTBEAT)
            heard = node.now()
        tick(node, steps[number % len(steps)])
        number += 1
        assert number < 10_000

    assert 2 * heartbeat <= node.now() - heard <= 3 * heartbeat
    assert node.now() - client.driver.times[-1] < heartbeat


@pytest.mark.parametrize("seconds", [0, 1, 4, 60])
def test_heartbeats_begin_with_tune_ok(seconds):
    """A client whose access to a vhost takes long to decide gets heartbeats meanwhile; its time is limited as before."""
    node = Node(handshake_timeout=10)
    client = _Client(node, connect=False)
    node.loop.ticks.schedule(client.connection, node.now() + 10)
    client.receive(PROTOCOL_HEADER)
    client.send(make(Wire.StartOk, {}, "PLAIN", "\0guest\0guest", "en_US"), channel=0)
    client.receive(encode_method(0, make(Wire.TuneOk, 2047, 131072, seconds)))
    began, _ = node.now(), client.sent()
    while client.driver.closed is None:
        tick(node, 0)
        assert node.now() - client.driver.times[-1] <= (seconds or 60) / 2 + 0.2 + 1e-6

    assert 10 <= node.now() - began <= 10.2 + 1e-6
    assert {"0 heartbeat"} >= set(client.sent())
