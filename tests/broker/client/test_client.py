"""The client's side of a connection, with a broker that means harm."""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from doubles.hostile_broker import LOGIN, SECONDS, START, Hostile, outcome

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Connection, Queue, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.client.client import PIECE, SILENT_TICKS, Client
from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.frames import Incoming
from leveret.broker.client.options import Options, negotiated
from leveret.broker.client.sockets import connected
from leveret.broker.client.uri import Address
from leveret.broker.shovel.forwarding import Deliveries, Forwarding

GIANT = b"\x01\x00\x00\xff\xff\xff\xff\x00"
DELIVERY = encode_method(1, make(Basic.Deliver, "c", 1, False, "", "q"))


@pytest.mark.parametrize("stage", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    "octets",
    [GIANT, HEARTBEAT * 2000, encode_method(0, make(Queue.PurgeOk, 1)), b"\x01\x00\x00\x00\x00\x00\x00\xce"],
    ids=["a frame of 4 GiB", "heartbeats", "another method", "a method without a number"],
)
async def test_harm_ends_the_connection_at_each_stage(stage, octets):
    """Before the login, between its steps, and after it; the reason is told, and no error of our own."""
    reason = await outcome(Hostile(*LOGIN[:stage], octets))

    assert any(part in reason for part in ("the server sent", "the server sends", "the broker sent")), reason


async def test_frames_are_as_large_as_negotiated():
    """One that is larger than the client has offered ends the connection."""
    body = b"\x03\x00\x01" + (5000).to_bytes(4, "big") + bytes(5000) + b"\xce"

    assert "more than the 4096" in await outcome(Hostile(*LOGIN, body), options=Options(frame_max=4096))


async def test_a_reply_is_the_one_that_was_asked_for():
    """Another method instead of it is an error that names both."""
    reason = await outcome(Hostile(START, encode_method(0, make(Connection.OpenOk, ""))))

    assert "the broker sent connection.openok instead of connection.tune" == reason


async def test_a_login_ends_in_time():
    """A broker that says nothing is given up, also one that says it octet by octet."""
    reason = await outcome(Hostile(START[:1]), options=Options(seconds=0.2))

    assert "did not reply in 0.2 s" in reason


async def test_a_name_is_looked_up_in_time(monkeypatch):
    """A resolver that does not answer is given up, and does not take a thread that others need."""
    resolver = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolver.wait(SECONDS))
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    try:
        with pytest.raises(
            UnreachableError, match=r"cannot connect to \S*nowhere\S*: no address found in 0.1 s"
        ):
            await connected(Address("nowhere", 5672), 0.1)
    finally:
        resolver.set()


PIECE_FRAME = b"\x03\x00\x01" + (PIECE - 8).to_bytes(4, "big") + bytes(PIECE - 8) + b"\xce"
"""A body frame that is processed at once."""


class Slow(Incoming):
    """A receiving side that needs time for each piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = 0

    def content(self, kind: int, data: bytes, at: int, end: int, now: int) -> None:
        self.pieces += 1
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass


async def attached(incoming: Incoming) -> tuple[Client, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    theirs.send(encode_method(1, make(Channel.OpenOk, "")))
    client = await Client.attach(ours, incoming)
    incoming.frame_max = 131_072
    return client, theirs


async def test_a_read_that_takes_long_is_done_in_slices():
    """Others have their turn between two pieces of it, the socket is not read meanwhile, and nothing is lost."""
    incoming = Slow()
    client, theirs = await attached(incoming)
    client.data_received(PIECE_FRAME * 4)
    at_once = incoming.pieces
    client.data_received(PIECE_FRAME)

    assert 1 <= at_once < 4
    assert at_once == incoming.pieces
    async with asyncio.timeout(SECONDS):
        while incoming.pieces < 5:
            await asyncio.sleep(0)
    theirs.close()
    await client.abort()


async def test_a_broker_stops_and_resumes_a_channel():
    """By channel.flow, which is answered: nothing is to be published between the two."""
    client, theirs = await attached(Incoming())
    told: list[str | None] = []
    client.on_blocked = told.append
    theirs.recv(4096)
    for active in (False, True):
        client.data_received(encode_method(1, make(Channel.Flow, active)))
        assert encode_method(1, make(Channel.FlowOk, active)) == theirs.recv(4096)

    assert ["channel.flow", None] == told
    assert not client.failed.done()
    theirs.close()
    await client.abort()


async def test_a_pause_holds_what_was_read():
    """The rest of a read waits until the client reads again, and is then processed before anything else."""
    incoming = Slow()
    client, theirs = await attached(incoming)
    client.on_ready = client.pause_reading
    client.data_received(PIECE_FRAME * 3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert 1 == incoming.pieces
    client.on_ready = lambda: None
    client.resume_reading()
    async with asyncio.timeout(SECONDS):
        while incoming.pieces < 3:
            await asyncio.sleep(0)
    theirs.close()
    await client.abort()


async def test_undemanded_deliveries_are_refused():
    """Before a consumer was asked for there is nothing to deliver."""
    forwarding = Forwarding("on-confirm", "", "q")

    assert "basic.deliver unasked" in await outcome(Hostile(*LOGIN, DELIVERY * 100), Deliveries(forwarding))
    assert b"" == forwarding.take_publishes()


class Noting(Client):
    """A connection that notes what is written, and that it was ended as its broker is silent."""

    def __init__(self) -> None:
        super().__init__(Incoming())
        self.written: list[bytes] = []
        self.wrote, self.silent = asyncio.Event(), asyncio.Event()
        self._transport = SimpleNamespace(abort=self.silent.set)

    def write(self, octets: bytes) -> None:
        self.written.append(octets)
        self.wrote.set()


async def test_heartbeats_are_sent():
    """Twice in an interval; nothing after the end of the connection."""
    connection = Noting()
    connection.beat(0.005, 0)
    await asyncio.wait_for(connection.wrote.wait(), SECONDS)
    connection.connection_lost(None)
    count = len(connection.written)
    await asyncio.sleep(0.02)

    assert [HEARTBEAT] * count == connection.written
    assert not connection.silent.is_set()


async def test_frames_do_not_put_off_heartbeats():
    """A heartbeat is sent at each half interval, although frames were sent since the last one."""
    connection = Noting()
    connection.beat(0.001, 0)
    while not connection.silent.is_set():
        connection.wrote.clear()
        waiting = [asyncio.create_task(each.wait()) for each in (connection.wrote, connection.silent)]
        await asyncio.wait(waiting, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        connection.written.append(b"frames")

    assert SILENT_TICKS - 1 == connection.written.count(HEARTBEAT)


async def test_a_silent_broker_is_noticed():
    """After two intervals, and once: the connection has ended."""
    connection = Noting()
    connection.beat(0.001, 0)
    await asyncio.wait_for(connection.silent.wait(), SECONDS)

    assert SILENT_TICKS - 1 == len(connection.written)
    with pytest.raises(UnreachableError, match="missed heartbeats from the broker"):
        await connection.failed


async def test_a_connection_that_is_not_read_is_not_silent():
    """Nobody can know."""
    connection = Noting()
    connection.is_paused = True
    connection.beat(0.001, 0)
    while len(connection.written) < 3 * SILENT_TICKS:
        connection.wrote.clear()
        await asyncio.wait_for(connection.wrote.wait(), SECONDS)
    connection.connection_lost(None)

    assert not connection.silent.is_set()


def test_a_limit_of_zero_is_none():
    """Otherwise the lower of both applies."""
    assert [5, 3, 3, 0] == [negotiated(*each) for each in ((5, 0), (0, 3), (7, 3), (0, 0))]
