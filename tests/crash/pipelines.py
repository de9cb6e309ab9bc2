"""Kill the broker under transactions that take inputs and publish outputs, and judge where each input is.

The load is `pipeline`, alone and at its worst. In turns:

    kill    at random, with bodies in files of their own, or as shipped
    slow    the same while each flush takes some milliseconds, which strace adds: much is neither written nor answered
    full    a file system of 48 MB is filled while the load goes on, then killed, and emptied before the next start
    cut     the power of the disk is cut

Some kills wait until a transaction with a very large output, or one of 20,000 to 50,000 inputs, is being committed.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crash.diskfull import fill
from crash.kills import Totals, check_store, since
from crash.ledger import MANY
from crash.loopdisk import LoopDisk, MemoryDisk, why_no_power_cuts, why_no_small_disks
from crash.pipeline import FILES, FRESH, HUGE, LINES, ONCE, Book, Line, Pipeline, declare, judge
from crash.site import Site
from crash.tracer import slowed, why_not

KILL, SLOW, FULL, CUT = KINDS = ("kill", "slow", "full", "cut")
ALLOWANCE_SECONDS = 60.0
"""For a start: other campaigns judge it."""
SLOW_MILLISECONDS = (5, 15, 30)
SMALL_MEGABYTES = 48
ROOMS = (0, 50_000, 300_000, 1_000_000)
"""Octets that a full disk has left."""
WAIT_SECONDS = 40.0
"""Seconds until a large transaction is being committed; else the cycle goes on without."""
ALL_LINES = (*LINES, HUGE)
NOTED = ("committed", "refused", "repeated", "whole without an answer")


def possible_kinds() -> list[str]:
    """Return what can be done on this machine."""
    missing = {SLOW: why_not(), FULL: why_no_small_disks(), CUT: why_no_power_cuts()}
    return [kind for kind in KINDS if not missing.get(kind)]


class _Place:
    """A data directory and what is known of it."""

    def __init__(self, home: Path, disk: LoopDisk | None = None, **options: Any) -> None:
        self.site = Site(
            home, "--set", "disk_free_limit.absolute=0", **{"allowance": ALLOWANCE_SECONDS, **options}
        )
        self.book = Book(self.site.ledger)
        self.disk = disk
        self.starts = 0

    async def begin(self, *arguments: str, before: Sequence[str] = ()) -> int:
        """Start, and judge what is there; returns the port."""
        port = self.site.start(*arguments, before=before)
        await declare(port, ALL_LINES)
        if self.starts:
            await judge(self.book, port, ALL_LINES)
        self.starts += 1
        return port

    def die(self) -> None:
        """Kill the broker, after the power is cut if there is a disk for that."""
        if self.disk is not None:
            self.disk.cut()
        self.site.kill()

    async def finish(self) -> None:
        """Judge for the last time, stop in good order, and look at the data."""
        await self.begin()
        self.site.finish()
        check_store(self.site)


async def _cycle(
    place: _Place, kind: str, rng: random.Random, shapes: Sequence[Sequence[Line]], *, huge: bool
) -> tuple[str, bool]:
    """Run one cycle; returns what was done, and whether something was at stake."""
    site, words = place.site, FILES if rng.random() < 0.7 else ()
    before: Sequence[str] = ()
    text = "files" if words else "as shipped"
    if kind == SLOW:
        delay = rng.choice(SLOW_MILLISECONDS)
        text += f", {delay} ms"
        before = slowed(delay, log=site.home / "strace.out")
    port = await place.begin(*words, before=before)
    large = next(line for line in LINES if line.name == "tx.large")
    lines: Sequence[Line] = (*LINES, HUGE) if huge else rng.choice(shapes)
    load = Pipeline(place.book, rng, lines)
    await load.open(port)
    load.start()
    await asyncio.sleep(rng.uniform(0.05, 0.3))
    if kind == FULL:
        text += f", {_fill(site.home / 'filler', rng.choice(ROOMS))} octets left"
        await asyncio.sleep(rng.uniform(0.1, 0.6))
    awaited = HUGE if huge else rng.choice([None, None, large])
    if awaited in lines:
        text += f", {awaited.name} commits" * await load.committing(awaited, WAIT_SECONDS)
    await asyncio.sleep(rng.uniform(0.0, 0.12))
    committing = sum(worker.committing.is_set() for worker in load.consumers)
    owed = sum(place.book.waiting().values())
    place.die()
    await load.died()
    if place.disk is not None:
        place.disk.restore()
    return f"{text}: {owed} owed, {committing} committing", committing > 0


def _fill(path: Path, room: int) -> int:
    """Fill a file system, but for so many octets; returns them."""
    fill(path)
    with path.open("r+b") as file:
        file.truncate(max(0, path.stat().st_size - room))
    return room


async def pipelines(
    home: Path,
    count: int,
    seed: int,
    *,
    kinds: Sequence[str] | None = None,
    say: Callable[[str], object] = print,
    enough: int = MANY,
    huge_every: int = 4,
    shapes: Sequence[Sequence[Line]] = (LINES, FRESH, ONCE),
    **options: Any,
) -> Totals:
    """Kill a broker `count` times under transactions; kills that do not count come on top.

    Args:
        home: where the data go.
        count: how many kills.
        seed: what decides over all that is random.
        kinds: they take turns; all that are possible here by default.
        say: prints a line.
        enough: give up after so many violations.
        shapes: lines of which one are the load of a cycle, at random, if that is not all.
        huge_every: every how-manieth cycle of a kind has transactions of 20,000 inputs and more; 0 for none.
        options: for `Site`.

    """
    rng = random.Random(seed)
    kinds = possible_kinds() if kinds is None else kinds
    totals = Totals("pipeline")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        places: dict[str, _Place] = {}
        try:
            while totals.counted < count and totals.cycles < 2 * count + 5:
                kind = kinds[totals.cycles % len(kinds)]
                turn = totals.cycles // len(kinds)
                huge = bool(huge_every) and turn % huge_every == huge_every - 1 and kind != FULL
                place = places.get(kind) or _placed(home, kind, stack, **options)
                places[kind] = place
                before = Counter(place.site.ledger.counts)
                what, counts = await _cycle(place, kind, rng, shapes, huge=huge)
                if kind == FULL:
                    (place.site.home / "filler").unlink()
                    await place.finish()
                totals.cycles += 1
                totals.counted += counts
                totals.notes[kind] += counts
                found = since(place.site.ledger.counts, before)
                say(
                    f"kill {totals.cycles}{'' if counts else ' (does not count)'}, {kind}, {what}: "
                    + ", ".join(
                        f"{found[name]} {name}"
                        for name in ("confirmed", *NOTED, "recovered", "lost", "violations")
                    )
                )
                if sum(each.site.ledger.counts["violations"] for each in places.values()) >= enough:
                    break
            for kind, place in places.items():
                if kind != FULL:
                    await place.finish()
        except AssertionError as error:
            totals.counts["violations"] += 1
            say(f"VIOLATION O10: {error}")
        finally:
            for place in places.values():
                place.site.close()
        for place in places.values():
            totals.add(place.site.ledger)
            totals.notes.update({name: place.site.ledger.counts[name] for name in NOTED})
            totals.slowest_start = max(totals.slowest_start, place.site.ready_after)
    totals.seconds = time.monotonic() - began
    return totals


def _placed(home: Path, kind: str, stack: contextlib.ExitStack, **options: Any) -> _Place:
    """Return a data directory for a kind of fault."""
    folder = home / kind
    folder.mkdir()
    if kind == CUT:
        disk = stack.enter_context(LoopDisk(folder))
        return _Place(disk.mount_point, disk, **options)
    if kind == FULL:
        return _Place(stack.enter_context(MemoryDisk(folder, SMALL_MEGABYTES)).mount_point, **options)
    return _Place(folder, **options)
