"""Crash points for messages that move: a small workload of `moves`, killed at every k-th fdatasync or pwrite64.

A move deletes a message where it was and stores its copies elsewhere in one commit, so it is the commits around moves
that are broken here: steps publish a few messages at random, let time pass so that they expire or are due, and take what has
arrived, which is acknowledged, rejected or given back. `points` runs it, as its own workload.
"""

import asyncio
import random
from collections.abc import Collection

from crash import moves
from crash.journeys import Journeys
from crash.link import Link, LostError
from crash.moves import Mover, Worker
from crash.site import Site, until
from pamqp import commands

VERDICT_SECONDS = 60.0

TAKEN = (
    "reject.work",
    "retry.work",
    "limit.work",
    "chain.dead",
    "drop.dead",
    "later.due",
    "level.work",
    "level.kept",
    "each.dead",
    "fan.one",
)
"""Stations that steps take messages from."""
LONGEST = 200
"""Milliseconds that anything is delayed, or expires after."""
FIRST_GETTER = 10
"""Channel of the first `basic.get`; the others follow."""


class Moves:
    """A run of the workload, against one broker.

    Args:
        site: its ledger takes the observations.
        number: which workload; the same number is the same steps, as far as time allows.
        steps: how many.
        features: what the broker knows.

    """

    def __init__(
        self, site: Site, number: int, steps: int, features: Collection[str] = moves.FEATURES
    ) -> None:
        self.site, self.steps, self.features = site, steps, features
        self.journeys = Journeys(site.ledger)
        self.rng = random.Random(number)
        self.declared = False
        self.mover: Mover
        self.getters: dict[str, _Getter] = {}

    async def run(self, port: int) -> bool:
        """Do all steps; False if the broker died on the way."""
        try:
            await moves.declare(port, self.features)
            self.declared = True
            self.mover = Mover(
                self.journeys, self.rng, choice=moves.lanes(self.features), large=0.03, longest=LONGEST
            )
            await self.mover.open(port)
            names = {queue.name for queue in moves.queues(self.features)}
            for number, station in enumerate(TAKEN, FIRST_GETTER):
                if station in names:
                    await self._getter(number, station)
            for _ in range(self.steps):
                await self._step()
            await self.mover.link.close()
        except (LostError, OSError):
            if hasattr(self, "mover") and hasattr(self.mover, "link"):
                await self.mover.link.gone()
            return False
        return True

    async def _getter(self, number: int, station: str) -> None:
        getter = _Getter(self.journeys, station, self.rng, receipts=1)
        getter.link, getter.number = self.mover.link, number
        await getter.link.open(number, getter)
        await getter.link.call(commands.Confirm.Select(), number)
        getter.channel = self.journeys.ledger.open_channel()
        self.getters[station] = getter

    async def _step(self) -> None:
        self.mover.link.check()
        what = self.rng.choices(("publish", "wait", "take"), (5, 2, 5))[0]
        if what == "publish":
            mover = self.mover
            lane = self.rng.choice(mover.lanes)
            count = 50 if lane.key == "drop.short" else self.rng.randint(1, 8)
            mover.link.transport.write(b"".join([mover.one(lane) for _ in range(count)]))
            decided = await until(lambda: not mover.out or mover.link.lost.done(), VERDICT_SECONDS, 0.001)
            mover.link.check()
            assert decided, f"no verdicts within {VERDICT_SECONDS} s"
        elif what == "wait":
            await asyncio.sleep(self.rng.choice((0.01, 0.05, 0.12)))
        else:
            await self.getters[self.rng.choice(list(self.getters))].take(self.rng.randint(1, 10))

    def died(self) -> None:
        """Note in the books that the broker was killed."""
        self.journeys.died()
        self.site.ledger.died()

    async def compare(self, port: int) -> None:
        """Compare a broker that was started after the fault with what was promised."""
        if self.declared:
            link = await Link.connect(port)
            for queue in moves.queues(self.features):
                try:
                    await moves.depth(link, queue.name)
                except LostError:
                    self.site.ledger.missing(queue.name)
            await link.close()
        await moves.declare(port, self.features)
        await moves.drain(self.journeys, port, features=self.features)


class _Getter(Worker):
    """Takes what basic.get brings, and settles it."""

    async def take(self, count: int) -> None:
        """Get so many at most; ack them, reject them, or give them back, at random."""
        for _ in range(count):
            await self.link.call(commands.Basic.Get(queue=self.station), self.number)
        self.link.check()
        if not self.held:
            return
        tags = list(self.held)
        roll = self.rng.random()
        if self.station == "limit.work" or (roll < 0.15 and self.station != "fan.one"):
            for tag in tags:
                self.requeue(tag)
            await self.link.call(commands.Basic.Qos(prefetch_count=0), self.number)
        else:
            rejected = self.station in {"reject.work", "retry.work"} and roll < 0.7
            record = self.journeys.rejected if rejected else self.journeys.acked
            self.settle(tags[-1], record, multiple=True)

    def handle(self, tag: int, *_: object, redelivered: bool) -> None:
        """Hold the message."""
