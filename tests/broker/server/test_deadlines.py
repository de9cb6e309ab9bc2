"""Deadlines that run by the server's ticks: never early, and little late, although each tick is late and others share it."""

from collections.abc import Callable

import pytest
from doubles.fakes import Client, Node
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Channel, Confirm, Connection as Wire, make
from leveret.broker.scheduling.timer_wheel import TICK_SECONDS

STEP = 0.05
"""Longest step of the event loop between two ticks, in seconds."""
PER_TICK = 2 * TICK_SECONDS + STEP + 1e-6
"""Lateness of what a connection is woken for: rounded up to a tick, and one more of them that is late."""
PER_ROUND = 2 * 12 * (TICK_SECONDS + STEP)
"""Lateness of what is looked for in rounds over all connections: one marks what is new, another one finds it overdue."""

Ended = Callable[[], bool]


def _is_closed(client: Client) -> bool:
    return client.driver.closed is not None


def handshake(node: Node, seconds: int) -> Ended:
    """A client that says nothing."""
    client = Client(node, connect=False)
    node.loop.ticks.schedule(client.connection, node.now() + seconds)
    return lambda: _is_closed(client)


def close_of_broker(node: Node, seconds: int) -> Ended:
    """A client that does not answer our close."""
    client = Client(node, heartbeat=seconds)
    client.ask(Channel.Open())
    return lambda: _is_closed(client)


def close_of_client(node: Node, seconds: int) -> Ended:
    """A client that does not close its socket after close-ok."""
    client = Client(node, heartbeat=seconds)
    client.ask(make(Wire.Close, 200, "", 0, 0), 0)
    return lambda: _is_closed(client)


def consumer_timeout(node: Node, seconds: int) -> Ended:
    """A client that does not ack."""
    client = Client(node)
    client.declare("q", arguments={"x-consumer-timeout": ("signedint", seconds * 1000)})
    client.consume("q")
    client.publish("q")
    client.sent()
    return lambda: any("basic.cancel" in each for each in client.sent())


def confirm_timeout(node: Node, seconds: int) -> Ended:
    """A client whose message nobody acks."""
    assert node.config.confirm_timeout == seconds
    client = Client(node)
    client.declare("awaited", arguments={"x-confirm-mode": ("longstr", "consumer-ack")})
    client.send(make(Confirm.Select, False))
    client.publish("awaited")
    client.sent()
    return lambda: any("basic.nack" in each for each in client.sent())


@pytest.mark.parametrize(
    ("begin", "late"),
    [
        (handshake, PER_TICK),
        (close_of_broker, PER_TICK),
        (close_of_client, PER_TICK),
        (consumer_timeout, PER_ROUND),
        (confirm_timeout, PER_ROUND),
    ],
)
@settings(max_examples=15)
@given(
    seconds=st.integers(1, 30),
    others=st.integers(0, 45),
    begins=st.floats(0, 2),
    steps=st.lists(st.floats(0, STEP), min_size=1, max_size=20),
)
def test_a_deadline_is_kept(begin, late, seconds, others, begins, steps):
    """A timeout ends what it is for after its seconds, whenever they begin and however many connections there are."""
    node = Node(handshake_timeout=seconds, confirm_timeout=float(seconds))
    for number in range(others):
        Client(node, heartbeat=1 + number)
    for number in range(round(begins / TICK_SECONDS)):
        _tick(node, steps[number % len(steps)])
    node.clock.now += begins % TICK_SECONDS
    began, has_ended, number = node.now(), begin(node, seconds), 0
    while not has_ended():
        _tick(node, steps[number % len(steps)])
        number += 1
        assert node.now() - began <= seconds + late

    assert seconds <= node.now() - began


def _tick(node: Node, step: float) -> None:
    """Let the loop be busy for so long after a tick is due, then carry it out."""
    node.clock.now += TICK_SECONDS + step
    node.run_timeouts(node.now())
    node.run_turn()
