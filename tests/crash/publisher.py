"""Base of `load` and `moves`: publishers that keep a window of messages on their way, and their crowd."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Protocol

from crash.ledger import Ledger, Publication
from crash.link import Link
from pamqp import commands


class Windowed:
    """A publisher with a connection of its own; it keeps its window full until `stop`.

    A subclass says what it publishes (`more`) and hears of each verdict (`decided`).

    Args:
        ledger: takes the observations.
        rng: what decides.
        window: messages that have no verdict yet, at most.

    """

    def __init__(self, ledger: Ledger, rng: random.Random, window: int) -> None:
        self.ledger, self.rng, self.window = ledger, rng, window
        self.channel = ledger.open_channel()
        self.link: Link
        self.going = False
        self.out = 0
        """Messages published without a verdict."""

    async def open(self, port: int) -> None:
        """Connect, in confirm mode."""
        self.link = await Link.connect(port)
        await self.link.open(1, self)
        await self.link.call(commands.Confirm.Select())
        self.link.on_writable = self.refill

    def start(self) -> None:
        """Publish until `stop`."""
        self.going = True
        self.refill()

    def stop(self) -> None:
        self.going = False

    def has_room(self) -> bool:
        """Return whether one more may be on its way."""
        return self.out < self.window

    def refill(self) -> None:
        """Publish while the window has room."""
        link = self.link
        frames: list[bytes] = []
        while self.going and link.writable and not link.lost.done() and self.has_room():
            frames.append(self.more())
        if frames:
            link.transport.write(b"".join(frames))

    def more(self) -> bytes:
        """The octets of one more message, which the books know from now on and `out` counts."""
        raise NotImplementedError

    def decided(self, publication: Publication, *, ack: bool) -> None:
        raise NotImplementedError

    async def quiet(self, seconds: float = 30.0) -> None:
        """Stop, and wait until everything has its verdict."""
        self.stop()
        deadline = time.monotonic() + seconds
        while self.out and not self.link.lost.done() and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self.ledger.quiet(self.channel)

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        """Publishers consume nothing."""
        raise AssertionError

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        for publication in self.ledger.verdict(self.channel, number, multiple=multiple, ack=ack):
            self.out -= 1
            self.decided(publication, ack=ack)
        if self.going:
            self.refill()

    def came_back(self, body: bytes) -> None:
        """Fail: no message is mandatory, unless a subclass says so."""
        raise AssertionError


class Connected(Protocol):
    link: Link

    async def open(self, port: int) -> None:
        """Connect."""


class Crowd:
    """Publishers and consumers against one port; a subclass makes them."""

    publishers: Sequence[Windowed]
    consumers: Sequence[Connected]

    async def open(self, port: int) -> None:
        await asyncio.gather(*[each.open(port) for each in (*self.publishers, *self.consumers)])

    def start(self) -> None:
        for publisher in self.publishers:
            publisher.start()

    @property
    def outstanding(self) -> int:
        """Messages without a verdict."""
        return sum(publisher.out for publisher in self.publishers)

    @property
    def links(self) -> list[Link]:
        return [each.link for each in (*self.publishers, *self.consumers)]

    async def died(self) -> None:
        """Take in what the broker had sent before it died."""
        for publisher in self.publishers:
            publisher.stop()
        await asyncio.gather(*[link.gone() for link in self.links])
