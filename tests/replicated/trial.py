"""One cluster under the load and the books of the crash campaigns, cycle after cycle; see `cycles`.

All of the load is on the node that leads when a cycle begins, and all its connections end in each cycle: because of the
nemesis, or because the leader is told to stop afterwards. To the books that is a crash of the broker. Beside them
a client publishes numbers to whichever node leads, all the time, so that a new leader has work before the old one is
back.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

from crash.kills import Cycles, Mix, since
from crash.ledger import Ledger
from crash.link import LostError
from crash.moves import LONG_HOLD
from crash.site import BAD_LINE
from replicated.cluster import Cluster, Nodes
from replicated.nemeses import ENDS, Field, Nemesis, done_to
from replicated.numbered import Publisher

ATTEMPTS = 5
"""Attempts to begin a cycle, of which each needs a leader that stays one."""
WINDOW = 50
"""Messages of each publisher that have no verdict yet, at most."""
DRAIN_EVERY = 3
STALL_SECONDS = 20.0
NOTES = {
    "snapshots": re.compile("putting a snapshot into the database"),
    "restored": re.compile("the copy was made from the snapshot"),
    "leaderships": re.compile("this node leads, epoch"),
}
"""Texts that are counted in the logs of the nodes."""


class ReplicatedSite:
    """A cluster in place of a broker with its data directory (`crash.site.Site`), for `crash.kills.Cycles`."""

    def __init__(self, nodes: Nodes) -> None:
        self.ledger = Ledger()
        self._nodes = nodes
        self.leader = ""

    def start(self, *_arguments: str, **_options: Any) -> int:
        self.leader = self._nodes.leader()
        return self._nodes.ports[self.leader]


class Trial:
    """A cluster, its load and its books.

    Args:
        cluster: with ways that can be cut.
        moving: kinds of messages that move, as in `crash.moves`.

    """

    def __init__(self, cluster: Cluster, moving: Collection[str] = ()) -> None:
        self.cluster = cluster
        self.site = ReplicatedSite(cluster.nodes)
        self.publishers = [Publisher(cluster.nodes, vhost) for vhost in cluster.nodes.vhosts]
        self._random = random.Random()
        site: Any = self.site
        self._cycles = Cycles(site, self._random, STALL_SECONDS, moving, LONG_HOLD)
        self._count = 0
        self._read: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()

    async def cycle(self, chosen: tuple[Nemesis, ...], seed: str) -> dict[str, Any]:
        self._random.seed(seed)
        began = time.monotonic()
        ledger = self.site.ledger
        counts, wrong = Counter(ledger.counts), len(ledger.violations)
        notes = Counter(self._notes)
        objections: list[str] = []
        gaps: dict[str, float] = {}
        led: list[str] = []
        try:
            load = await self._begin()
            led = self.cluster.nodes.led(self.site.leader)
            for each in self.publishers:
                each.longest_gap = 0.0
            field = Field(self.cluster, self.site.leader, self.publishers, self._random, objections)
            await asyncio.to_thread(done_to, field, chosen)
            for each in self.publishers:
                await asyncio.to_thread(each.goes_on)
            gaps = {each.vhost: round(each.longest_gap, 2) for each in self.publishers}
            await self._end(load)
            if nacked := sum(each.nacked for each in load.load.publishers):
                objections.append(f"{nacked} publishes were nacked")
        except (AssertionError, OSError, TimeoutError) as error:
            objections.append(f"O10: {type(error).__name__}: {error}"[:2000])
        self._cycles.died()
        self._count += 1
        objections += self._read_logs()
        outlived = [self._cycles.journeys.counts[f"outlived {queue}"] for queue in ("held.due", "held.kept")]
        self._notes["held through a takeover"] = sum(outlived)
        objections += map(str, ledger.violations[wrong:])
        return {
            "nemeses": [each.name for each in chosen],
            "seconds": round(time.monotonic() - began, 1),
            "gap": max(gaps.values(), default=0.0),
            "leader": self.site.leader,
            "takeovers": {vhost: gaps[vhost] for vhost in led if vhost in gaps},
            "numbers": sum(len(each.confirmed) for each in self.publishers),
            "repeated": sum(each.unseen for each in self.publishers),
            "counts": since(ledger.counts, counts),
            "notes": since(self._notes, notes),
            "wrong": objections,
        }

    async def _begin(self) -> Mix:
        """Compare what is there, and put load on the leader."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._begun()
            except (LostError, ConnectionError):
                self._cycles.died()
        return await self._begun()

    async def _begun(self) -> Mix:
        await self._cycles.begin(drain_now=self._count % DRAIN_EVERY == 0)
        load = self._cycles.load(WINDOW)
        try:
            await load.open(self._cycles.port)
        except (LostError, OSError):
            for part in load.parts:
                for each in (*part.publishers, *part.consumers):
                    if (link := getattr(each, "link", None)) is not None:
                        link.cut()
            raise
        load.start()
        await asyncio.sleep(self._random.uniform(0.05, 0.8))
        return load

    async def _end(self, load: Mix) -> None:
        """Wait until the load has lost the node that led; tell it to stop if it leads on."""
        links = [link for part in load.parts for link in part.links]
        if not any(link.lost.done() for link in links):
            nodes, leader = self.cluster.nodes, self.site.leader
            code = await asyncio.to_thread(nodes.end, leader)
            if code not in ENDS:
                self.site.ledger.broke("O10", f"{leader} ended with {code}")
            nodes.start(leader)
        await load.died()

    def _read_logs(self) -> list[str]:
        """Read what the nodes have logged since the last time; returns lines that no log may have."""
        found = []
        for name, log in self.cluster.nodes.logs():
            text = log[self._read[name] :]
            self._read[name] += len(text)
            for note, pattern in NOTES.items():
                self._notes[note] += len(pattern.findall(text))
            if bad := BAD_LINE.search(text):
                found.append(f"O8: {name} says: {text[bad.start() : bad.start() + 2000]}")
        return found

    async def finish(self) -> list[str]:
        """Take everything out and compare it; returns what is wrong."""
        wrong = len(self.site.ledger.violations)
        objections: list[str] = []
        try:
            for each in self.publishers:
                await asyncio.to_thread(each.end)
            for attempt in range(ATTEMPTS):
                try:
                    await self._cycles.begin(drain_now=True)
                    break
                except (LostError, ConnectionError):
                    if attempt == ATTEMPTS - 1:
                        raise
                    self._cycles.died()
            for each in self.publishers:
                objections += [f"{each.vhost}: {said}" for said in await asyncio.to_thread(each.judge)]
            objections += await asyncio.to_thread(self.cluster.nodes.misplaced)
        except (AssertionError, OSError, TimeoutError) as error:
            objections.append(f"O10: {type(error).__name__}: {error}"[:2000])
        for each in self.publishers:
            if each.error is not None:
                objections.append(f"the publisher of {each.vhost} ended: {each.error}")
        return [*objections, *map(str, self.site.ledger.violations[wrong:])]
