"""Drains send nothing on a channel that they have closed: later deliveries go back to their queue."""

import asyncio

import pytest
from crash import moves
from crash.journeys import Journeys, Way
from crash.ledger import Ledger, make_body
from crash.link import Link
from crash.load import drain
from pamqp import commands

READY = 2


class LateLink:
    """A connection whose broker has sent one message more when it reads `channel.close`."""

    header = bytes.fromhex("003c 0000 0000000000000000 0000")

    def __init__(self, bodies):
        self.bodies = bodies
        self.lost = asyncio.get_running_loop().create_future()
        self.tag = 0
        self.closed = False
        self.settled = []
        """The tags of acks, and of those that came after `channel.close`."""
        self.late = []

    async def open(self, number, watcher=None):
        """Open the only channel; those who ask for depths have none that counts."""
        del number
        if watcher is not None:
            self.watcher = watcher

    async def call(self, method, channel=1, *, seconds=30.0):
        del seconds, channel
        if isinstance(method, commands.Basic.Consume):
            asyncio.get_running_loop().call_soon(self.deliver, READY)
        elif isinstance(method, commands.Channel.Close) and not self.closed:
            self.closed = True
            self.deliver(1)
        return commands.Queue.DeclareOk("q", 0, 0)

    def deliver(self, count):
        """Send so many messages."""
        for _ in range(count):
            self.tag += 1
            self.watcher.delivery(self.tag, self.bodies[self.tag - 1], redelivered=False)

    def settle(self, channel, tag, *, multiple=False, requeue=None):
        del channel, multiple, requeue
        (self.late if self.closed else self.settled).append(tag)

    async def close(self):
        """End the connection."""


def published(ledger, *observers):
    """Return the bodies of confirmed messages to a queue, one more than are ready; `observers` gets the publications."""
    channel = ledger.open_channel()
    bodies = []
    for _ in range(READY + 1):
        ident = ledger.next_id(channel)
        bodies.append(make_body(ident, b""))
        publication = ledger.published(ident, () if observers else ("q",), bodies[-1][-8:])
        for tell in observers:
            tell(publication, (Way("q"),))
    return channel, bodies


async def test_a_drain_acks_nothing_behind_its_close(monkeypatch):
    """RabbitMQ answers such an ack with 504, and so do we: the message is ready again."""
    ledger = Ledger()
    channel, bodies = published(ledger)
    ledger.verdict(channel, READY + 1, multiple=True, ack=True)
    link = LateLink(bodies)

    async def connect(port):
        return link

    monkeypatch.setattr(Link, "connect", connect)

    assert READY + 1 == await drain(ledger, 0, {"q": READY}, receipts="", whole=False)

    assert [] == link.late
    assert [READY] == link.settled
    assert 1 == ledger.owed("q")
    assert [] == ledger.violations


@pytest.mark.timeout(10)
async def test_a_drain_of_moves_acks_nothing_behind_its_close():
    """A drained station of messages that move acks no delivery behind its close."""
    ledger = Ledger()
    journeys = Journeys(ledger)
    channel, bodies = published(ledger, journeys.published)
    for publication in ledger.verdict(channel, READY + 1, multiple=True, ack=True):
        journeys.decided(publication, ack=True)
    link = LateLink(bodies)
    drainer = moves.Drainer(journeys, "q", link, READY)
    await drainer.consume(1)

    await drainer.finish(5.0)

    assert [] == link.late
    assert [READY] == link.settled
    assert READY + 1 == drainer.delivered
    assert [] == ledger.violations
