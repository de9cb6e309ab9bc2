"""Churn: everything comes and goes for a long time, nothing is lost or comes twice, and memory does not grow.

A run is a row of rounds. In each the loads of `crash.load` and `crash.moves` publish for a moment, at full speed, while
consumers of moving messages die and come again; then publishing stops, every queue is drained, the ledger judges, and
the process is looked at: it has nothing to keep at that moment, so what it has more than in an earlier round it has not
given back. The actors of `actors` go on all the time.

Judged beside the oracles of the ledger and of the journeys:

    O7   after the warm-up the fitted lines of RssAnon, and of VmRSS without the data file, rise by no more than
         `memory.ALLOWED_GROWTH`, that of the data file by no more than `memory.ALLOWED_STORED`, and no file stays open
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from churn.actors import ACTORS, Actor, Delaying
from churn.governed import PROGRAM
from churn.memory import ALLOWED_GROWTH, ALLOWED_STORED, MEBI, Growth, Sample, growth, judged, sample
from crash import load as plain, moves
from crash.journeys import Journeys
from crash.kills import check_store
from crash.ledger import Ledger, Violation
from crash.link import Link, LostError
from crash.site import BAD_LINE, STOP_SECONDS, Site, depths

ENOUGH = 20
"""Violations after which a run ends."""
PUBLISHING = 1.0
"""Seconds of each round in which the loads publish."""
RESTING = 2.0
"""Seconds after a round in which only the actors are at work, so that a run leaves a machine some air."""
WINDOW = 40
SPARE_FILES = 5
"""Descriptors that may be open at the end more than at the beginning of what is judged."""
FOLLOWING = 30
"""Lines of the log that are kept from a bad one on."""
ABORTED = 3
"""Consumers that die in each round."""


@dataclass
class Verdict:
    """Outcome of a churn: its figures, violations and samples."""

    seconds: float = 0.0
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    """Number of acts of each actor."""
    latest: float = 0.0
    """Seconds by which a delayed message came late, at most, and in the middle."""
    typical: float = 0.0

    @property
    def failed(self) -> bool:
        """True if an oracle objected."""
        return self.counts["violations"] > 0

    def lines(self) -> Iterator[str]:
        counts = self.counts
        yield (
            f"churn: {self.rounds} rounds in {self.seconds:.0f} s: {counts['confirmed']} confirmed, {counts['lost']} lost, "
            f"{counts['duplicates']} twice, {counts['unmarked']} without redelivered, {counts['disordered']} out of order, "
            f"{counts['early']} early"
        )
        yield "churn: " + ", ".join(f"{name} {count}" for name, count in sorted(self.times.items()))
        yield f"churn: delayed messages late by {self.typical * 1000:.0f} ms (median), {self.latest * 1000:.0f} ms (most)"
        if self.samples:
            first, last, rise = self.samples[0], self.samples[-1], self.rise
            for name, begin, end, rose in (
                ("RssAnon", first.anonymous, last.anonymous, rise.anonymous),
                ("VmRSS", first.resident, last.resident, rise.rest + rise.stored),
                ("data file", first.stored, last.stored, rise.stored),
            ):
                yield (
                    f"churn: {name} {begin / MEBI:.1f} to {end / MEBI:.1f} MiB, after the warm-up the fitted line rises by "
                    f"{rose / MEBI:+.2f} MiB"
                )
            yield f"churn: {last.files} files open"
        yield from (f"VIOLATION {violation}" for violation in self.violations[:40])
        yield f"churn: {counts['violations']} violations"

    @property
    def rise(self) -> Growth:
        """The growth after the warm-up."""
        return growth(judged(self.samples))


class Log(Thread):
    """Reads what a broker logs, so that it never waits for a reader; remembers what is bad."""

    def __init__(self, site: Site) -> None:
        super().__init__(name="log")
        self.process = site.running.process
        self.bad: list[str] = []

    def run(self) -> None:
        """Read the log to its end."""
        following = 0
        for line in self.process.stdout:
            if BAD_LINE.search(line):
                following = FOLLOWING
            if following:
                self.bad.append(line)
                following -= 1

    def end(self) -> None:
        """Ask the broker to stop, and read to the end."""
        self.process.terminate()
        self.join(STOP_SECONDS)


class Churn:
    """A run of the churn.

    Args:
        site: the broker's data directory.
        rng: what decides.
        features: what the broker knows.
        allowed: octets that memory may grow after the warm-up.

    """

    def __init__(
        self,
        site: Site,
        rng: random.Random,
        features: Collection[str] = moves.FEATURES,
        allowed: float = ALLOWED_GROWTH,
    ) -> None:
        self.site, self.rng, self.features, self.allowed = site, rng, features, allowed
        self.ledger = site.ledger
        self.journeys = Journeys(self.ledger)
        self.verdict = Verdict()
        self.late: list[float] = []
        self.port = 0
        self.log: Log

    async def run(self, seconds: float, say: Callable[[str], object]) -> Verdict:
        """Churn for so long after the start, then drain everything and judge."""
        self.port = self.site.start()
        self.log = Log(self.site)
        self.log.start()
        await plain.declare(self.port)
        await moves.declare(self.port, self.features)
        actors = self._actors()
        tasks = [asyncio.create_task(actor.run()) for actor in actors]
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds and self.ledger.counts["violations"] < ENOUGH:
                await self._round()
                now = sample(
                    self.site.pid,
                    time.monotonic() - began,
                    self.site.data_dir / "store" / "data.mdb",
                )
                self.verdict.samples.append(now)
                say(
                    f"{now.seconds:.0f} s, round {self.verdict.rounds}: {self.ledger.counts['confirmed']} confirmed, "
                    f"RssAnon {now.anonymous / MEBI:.1f}, VmRSS {now.resident / MEBI:.1f} MiB, {now.files} files, "
                    f"{now.stored / MEBI:.1f} MiB stored, "
                    f"{self.ledger.counts['violations']} violations"
                )
        finally:
            for actor in actors:
                actor.going = False
            await asyncio.gather(*tasks)
        for actor in actors:
            self.verdict.times[type(actor).__name__] += actor.times
        self._judge_memory()
        self.log.end()
        if self.log.bad:
            self.ledger.broke("O8", f"the broker says: {''.join(self.log.bad)[:2000]}")
        self.verdict.seconds = time.monotonic() - began
        return self.verdict

    def _actors(self) -> Sequence[Actor]:
        return [
            actor(self.ledger, self.port, random.Random(self.rng.random()), number, self.site.home)
            for number, actor in enumerate(ACTORS)
            if moves.DELAYED in self.features or actor is not Delaying
        ]

    async def _round(self) -> None:
        """Publish, have consumers die, stop, drain, judge."""
        load = plain.Load(self.ledger, self.rng, WINDOW)
        moving = moves.Moving(self.journeys, self.rng, WINDOW, self.features)
        await load.open(self.port)
        await moving.open(self.port)
        load.start()
        moving.start()
        for _ in range(ABORTED):
            await asyncio.sleep(PUBLISHING / ABORTED)
            await moving.replace(self.rng.randrange(len(moving.consumers)), self.port)
        await moving.quiet()
        await load.quiet()
        self.late += [late for worker in moving.consumers for late in worker.late]
        link = await Link.connect(self.port)
        ready = await depths(self.site, link, plain.QUEUES)
        await link.close()
        await plain.drain(self.ledger, self.port, ready)
        await moves.drain(self.journeys, self.port, features=self.features)
        self.verdict.rounds += 1
        await asyncio.sleep(RESTING)

    def _judge_memory(self) -> None:
        measured = judged(self.verdict.samples)
        if not measured:
            return
        rise = self.verdict.rise
        for name, rose, allowed in (
            ("RssAnon", rise.anonymous, self.allowed),
            ("VmRSS without the data file", rise.rest, self.allowed),
            ("the data file", rise.stored, max(self.allowed, ALLOWED_STORED)),
        ):
            if rose > allowed:
                self.ledger.broke(
                    "O7",
                    f"{name} rose by {rose / MEBI:.1f} MiB, fitted over the last "
                    f"{measured[-1].seconds - measured[0].seconds:.0f} s",
                )
        if measured[-1].files > measured[0].files + SPARE_FILES:
            self.ledger.broke("O7", f"{measured[0].files} files were open, and {measured[-1].files} are")


async def churn(
    home: Path,
    seconds: float,
    seed: int,
    *,
    say: Callable[[str], object] = print,
    settings: Sequence[str] = (),
    features: Collection[str] = moves.FEATURES,
    allowed: float = ALLOWED_GROWTH,
    allowance: float = 2.0,
) -> Verdict:
    """Churn a broker of its own in a process of its own.

    Args:
        home: an existing folder for its data.
        seconds: how long; the last round is finished.
        seed: what decides over all that is random.
        say: prints a line.
        settings: more words for the broker.
        features: what it knows.
        allowed: octets that its memory may grow after the warm-up.
        allowance: seconds that its start may take.

    """
    site = Site(home, *settings, program=PROGRAM, allowance=allowance, is_forked=False)
    ledger: Ledger = site.ledger
    campaign = Churn(site, random.Random(seed), features, allowed)
    try:
        await campaign.run(seconds, say)
        site.finish()  # it was asked to already
        check_store(site)
    except (AssertionError, LostError, OSError) as error:
        ledger.broke("O10", f"the churn ended early: {error!r}")
    finally:
        site.close()
    verdict = campaign.verdict
    verdict.counts.update(ledger.counts)
    verdict.violations += ledger.violations
    if campaign.late:
        verdict.latest, verdict.typical = max(campaign.late), sorted(campaign.late)[len(campaign.late) // 2]
    return verdict
