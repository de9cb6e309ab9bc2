"""Kill the broker at random moments under load, start it on the same data, and judge what comes back.

The load is that of `load`, and beside it, unless it is not wanted, those of `moves`, messages that expire, overflow,
are rejected, delayed or sorted by priority, and of `pipeline`, transactions. Messages in the queues without consumers pile up over some cycles, so a cycle also shows that what an earlier one
stored is still there; every few cycles everything is taken out and compared.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crash import moves, pipeline, punching
from crash.journeys import Journeys
from crash.ledger import MANY, Ledger, Violation
from crash.link import Link
from crash.load import QUEUES, STALL_SECONDS, Load, declare, drain
from crash.loopdisk import LoopDisk
from crash.site import Site, depths, until
from processes.running import BROKER

LEAST_OWED = 100
"""Confirmed unacked messages that a broker must have for its kill to count."""
LEAST_OPEN = 1
"""Messages that must wait for a commit for its kill to count."""
DRAIN_EVERY = 4
WARM_SECONDS = 20.0
NOTED = ("moved", "delayed")
"""Figures that are printed of messages that move."""
VARIANTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("as shipped", ()),
    ("files", ("--set", "storage.blob_threshold=65536")),
    ("paging", ("--set", "storage.target_ram_count=50", "--set", "msg_store_io_batch_size=16")),
    ("stored", ("--set", "queue_index_embed_msgs_below=0")),
)
"""Settings that take turns: large bodies in files of their own; nearly nothing in memory; all bodies apart."""
HOLES = "holes"
"""Name of a variant that also makes holes of all free pages, all the time (`crash.punching`)."""
LITTLE = "little at a time"
"""Name of a variant whose publishers wait for confirms so often that commits are small, and logged."""
LITTLE_WINDOW = 3
EVERY: tuple[tuple[str, Sequence[str]], ...] = (*VARIANTS, (HOLES, ()), (LITTLE, ()))


@dataclass
class Totals:
    """Outcome of a campaign: its figures and violations."""

    name: str
    cycles: int = 0
    counted: int = 0
    """Cycles that count: enough was at stake."""
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    seconds: float = 0.0
    slowest_start: float = 0.0
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, ledger: Ledger) -> None:
        """Take over what a ledger found."""
        self.counts.update(ledger.counts)
        self.violations += ledger.violations

    def broke(self, oracle: str, text: str) -> None:
        """Note a violation that no ledger has."""
        self.counts["violations"] += 1
        self.violations.append(Violation(oracle, text))

    @property
    def failed(self) -> bool:
        """True if an oracle objected."""
        return self.counts["violations"] > 0

    def lines(self) -> Iterator[str]:
        yield (
            f"{self.name}: {self.cycles} cycles, {self.counted} counted, in {self.seconds:.0f} s: {tally(self.counts)}, "
            f"slowest start {self.slowest_start:.2f} s"
        )
        if self.notes:
            yield f"{self.name}: " + ", ".join(f"{count} {what}" for what, count in self.notes.items())
        yield from (f"VIOLATION {violation}" for violation in self.violations[:40])
        yield f"{self.name}: {self.counts['violations']} violations"


@contextmanager
def campaign(name: str, site: Site) -> Iterator[Totals]:
    """Yield the totals of a campaign; in the end they have what the ledger found, and no broker is left."""
    totals = Totals(name)
    began = time.monotonic()
    try:
        yield totals
    except AssertionError as error:
        site.ledger.broke("O1", f"the broker does not start or answer any more: {error}")
    finally:
        site.close()
    totals.add(site.ledger)
    totals.seconds = time.monotonic() - began


def tally(counts: Counter[str]) -> str:
    """Return the figures that every campaign reports, as text."""
    return (
        f"{counts['confirmed']} confirmed, {counts['recovered']} recovered, {counts['lost']} lost, "
        f"{counts['unmarked']} duplicates without redelivered, {counts['disordered']} out of order"
    )


def since(counts: Counter[str], before: Counter[str]) -> Counter[str]:
    """Return the counts since `before` was copied."""
    return Counter({name: count - before[name] for name, count in counts.items()})


class Mix:
    """The load, and those of messages that move, and of transactions, beside it."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.moving: moves.Moving | None = None
        self.transacting: pipeline.Pipeline | None = None

    async def open(self, port: int) -> None:
        for each in self.parts:
            await each.open(port)

    def start(self) -> None:
        for each in self.parts:
            each.start()

    @property
    def parts(self) -> list[Load | moves.Moving | pipeline.Pipeline]:
        return [each for each in (self.load, self.moving, self.transacting) if each is not None]

    @property
    def outstanding(self) -> int:
        """Messages without a verdict."""
        return sum(each.outstanding for each in self.parts)

    async def died(self) -> None:
        """Take in what the broker had sent before it died."""
        await asyncio.gather(*[each.died() for each in self.parts])


class Cycles:
    """Runs of one broker after another on the same data.

    Args:
        site: the data directory.
        rng: what decides.
        stall: seconds without a delivery after which draining a queue is given up.
        moving: what the broker has to know for messages that move; nothing for none of them, nor transactions.
        longest: milliseconds that a message is delayed at most.

    """

    def __init__(
        self,
        site: Site,
        rng: random.Random,
        stall: float = STALL_SECONDS,
        moving: Collection[str] = (),
        longest: int = moves.LONGEST,
    ) -> None:
        self.site, self.rng, self.stall, self.moving = site, rng, stall, moving
        self.longest = longest
        self.journeys = Journeys(site.ledger)
        self.book = pipeline.Book(site.ledger)
        self.declared = False
        self.port = 0

    async def begin(self, *arguments: str, drain_now: bool, **options: Any) -> dict[str, int]:
        """Start, compare the depths, drain if wanted; returns the depths that were found."""
        site = self.site
        self.port = site.start(*arguments, **options)
        ready: dict[str, int] = {}
        if self.declared:
            link = await Link.connect(self.port)
            ready = await depths(site, link, QUEUES)
            await link.close()
            if drain_now:
                await drain(site.ledger, self.port, ready, stall=self.stall)
                if self.moving:
                    await moves.drain(self.journeys, self.port, features=self.moving, stall=self.stall)
                    await pipeline.judge(self.book, self.port)
        if len(ready) < len(QUEUES):
            await declare(self.port)
            if self.moving:
                await moves.declare(self.port, self.moving)
                await pipeline.declare(self.port)
            self.declared = True
        return ready

    def load(self, window: int = 150) -> Mix:
        """Return the load for the broker; little at a time nothing moves, as whole commits would all the time."""
        load = Mix(Load(self.site.ledger, self.rng, window))
        if self.moving and window > LITTLE_WINDOW:
            load.moving = moves.Moving(self.journeys, self.rng, window, self.moving, self.longest)
            load.transacting = pipeline.Pipeline(self.book, self.rng)
        return load

    async def load_until(self, window: int = 150, settle: float | None = None) -> tuple[Mix, bool]:
        """Put load on the broker and return at a random moment, and whether a fault now would count."""
        load = self.load(window)
        await load.open(self.port)
        load.start()
        await asyncio.sleep(self.rng.uniform(0.005, 0.5) if settle is None else settle)
        ledger = self.site.ledger
        enough = await until(lambda: ledger.owed() >= LEAST_OWED, WARM_SECONDS, 0.02)
        return load, enough and load.outstanding >= LEAST_OPEN

    async def finish(self, *arguments: str) -> None:
        """Take everything out, stop the broker in good order, and look at its data."""
        await self.begin(*arguments, drain_now=True)
        await asyncio.sleep(0)
        self.site.finish()
        self.stopped()

    def died(self) -> None:
        """Note in the books that the broker was killed."""
        self.journeys.died()
        self.site.ledger.died()

    def stopped(self) -> None:
        """Note in the books that the broker was stopped."""
        self.journeys.stopped()
        self.site.ledger.stopped()


async def kills(
    home: Path,
    count: int,
    seed: int,
    *,
    say: Callable[[str], object] = print,
    settings: Sequence[str] = (),
    variants: Sequence[tuple[str, Sequence[str]]] = EVERY,
    disk: LoopDisk | None = None,
    enough: int = MANY,
    stall: float = STALL_SECONDS,
    moving: Collection[str] = moves.FEATURES,
    **options: Any,
) -> Totals:
    """Kill a broker `count` times; kills that do not count come on top, a tenth of them at most.

    Args:
        home: where its data go.
        count: how many kills.
        seed: what decides over all that is random.
        say: prints a line.
        settings: words for every start.
        variants: more words, which take turns.
        disk: cut this disk's power first; `home` is on it.
        enough: give up after so many violations.
        stall: seconds without a delivery after which draining a queue is given up.
        moving: what the broker has to know for messages that move; nothing for none of them, nor transactions.
        options: for `Site`.

    """
    rng = random.Random(seed)
    site = Site(home, *settings, **options)
    shipped = site.program
    cycles = Cycles(site, rng, stall, moving)
    with campaign("crash" if disk is None else "powercut", site) as totals:
        while totals.counted < count and totals.cycles < count + count // 10 + 5:
            before = Counter(site.ledger.counts)
            name, variant = variants[totals.cycles % len(variants)]
            site.program = punching.PROGRAM if name == HOLES and shipped is BROKER else shipped
            ready = await cycles.begin(*variant, drain_now=totals.cycles % DRAIN_EVERY == 0)
            load, counts = await cycles.load_until(*[LITTLE_WINDOW] * (name == LITTLE))
            owed, outstanding = site.ledger.owed() + cycles.journeys.owed(), load.outstanding
            if disk is not None:
                disk.cut()
            site.kill()
            await load.died()
            cycles.died()
            if disk is not None:
                disk.restore()
            totals.cycles += 1
            totals.counted += counts
            totals.slowest_start = max(totals.slowest_start, site.ready_after)
            say(
                f"{'kill' if disk is None else 'cut'} {totals.cycles}{'' if counts else ' (does not count)'}, {name}: "
                f"start {site.ready_after:.2f} s with {sum(ready.values())} ready, "
                f"ended with {owed} owed and {outstanding} open: {tally(since(site.ledger.counts, before))}"
            )
            if site.ledger.counts["violations"] >= enough:
                break
        else:
            if totals.counted < count:
                site.ledger.broke(
                    "O10", f"only {totals.counted} of {totals.cycles} count: the broker is too slow"
                )
            await cycles.finish()
            check_store(site)
    totals.notes["given back"] = site.given_back
    totals.notes["starts with a redo log"] = site.replayed
    totals.notes.update({name: cycles.journeys.counts[name] for name in NOTED if moving})
    return totals


def check_store(site: Site) -> None:
    """`leveret store check` has to find nothing."""
    if problem := site.check():
        site.ledger.broke("store", problem[:2000])
