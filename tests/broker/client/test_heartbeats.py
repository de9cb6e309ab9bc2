"""Heartbeats of a client: sent whatever else is, and missed when nothing comes."""

import asyncio

from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.client.heartbeats import SILENT_TICKS, Heartbeats
from leveret.broker.client.options import negotiated

SECONDS = 30.0


class Connection:
    """A connection that notes what is written."""

    def __init__(self) -> None:
        self.reads = 0
        self.is_paused = False
        self.written: list[bytes] = []
        self.wrote = asyncio.Event()

    def write(self, octets: bytes) -> None:
        """Note frames."""
        self.written.append(octets)
        self.wrote.set()


async def test_heartbeats_are_sent():
    """Twice in an interval; nothing after the stop."""
    connection, silent = Connection(), asyncio.Event()
    heartbeats = Heartbeats(connection, 0.01, silent.set)
    await asyncio.wait_for(connection.wrote.wait(), SECONDS)
    heartbeats.stop()

    assert {HEARTBEAT} == set(connection.written)
    assert not silent.is_set()


async def test_frames_do_not_put_off_heartbeats():
    """A heartbeat is sent at each half interval, although frames were sent since the last one."""
    connection, silent = Connection(), asyncio.Event()
    Heartbeats(connection, 0.002, silent.set)
    while not silent.is_set():
        connection.wrote.clear()
        waiting = [asyncio.create_task(each.wait()) for each in (connection.wrote, silent)]
        await asyncio.wait(waiting, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        connection.written.append(b"frames")

    assert SILENT_TICKS - 1 == connection.written.count(HEARTBEAT)


async def test_a_silent_broker_is_noticed():
    """After two intervals, and once."""
    connection, silent = Connection(), asyncio.Event()
    Heartbeats(connection, 0.002, silent.set)
    await asyncio.wait_for(silent.wait(), SECONDS)

    assert SILENT_TICKS - 1 == len(connection.written)


async def test_a_connection_that_is_not_read_is_not_silent():
    """Nobody can know."""
    connection, silent = Connection(), asyncio.Event()
    connection.is_paused = True
    heartbeats = Heartbeats(connection, 0.002, silent.set)
    while len(connection.written) < 3 * SILENT_TICKS:
        connection.wrote.clear()
        await asyncio.wait_for(connection.wrote.wait(), SECONDS)
    heartbeats.stop()

    assert not silent.is_set()


def test_a_limit_of_zero_is_none():
    """Otherwise the lower of both applies."""
    assert [5, 3, 3, 0] == [negotiated(*each) for each in ((5, 0), (0, 3), (7, 3), (0, 0))]
