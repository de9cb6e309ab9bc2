"""A disk that fails: killed inside a system call, EIO, and no room, injected by strace or on a small file system.

    kind             what happens                                 what is demanded beside the ledger's oracles
    kill-fdatasync   killed on entering a thread's k-th call      -
    kill-pwrite      the same, anywhere in writing pages          -
    kill-io_submit   the same, before a small commit is written   -
    eio-fdatasync    the call fails with EIO                      the broker exits with 74, or does not start
    eio-pwrite       the same for a page of the data file         the same
    eio-fsync        the same for a body in a file of its own     the same
    enospc           pages find no room for a while               the broker lives, and confirms again afterwards
    enospc-root      single pages and root pages find none        the same
    full             a file system of 48 MB is filled             nacks; consumers drain it; publishing resumes
    alarm            the same with a limit above                  publishers are blocked; the same

After each the broker is started as it is, nothing that was confirmed may be missing, and `store check` may find
nothing.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from crash import moves, pipeline
from crash.kills import DRAIN_EVERY, LITTLE_WINDOW, Cycles, Mix, Totals, campaign, check_store, since, tally
from crash.link import Link, LostError
from crash.load import CONSUMED, KEPT, Publisher, declare, drain
from crash.loopdisk import MemoryDisk, why_no_small_disks
from crash.site import Site, depths, until
from crash.tracer import EIO, ENOSPC, KILL, inject, injected, why_not

FILES = ("--set", "storage.blob_threshold=65536")
INJECTED = (
    "kill-fdatasync",
    "eio-fdatasync",
    "kill-pwrite",
    "kill-io_submit",
    "eio-pwrite",
    "enospc",
    "enospc-root",
    "eio-fsync",
)
ON_SMALL_DISKS = ("full", "alarm")
SMALL_MEGABYTES = 48
STALL_SECONDS = 30.0
"""Seconds without any progress after which a broker counts as stalled."""
FILLS = 4
"""Fillings of a disk at most until it refuses a publisher: the batch that finds no room may be that of others."""
STARTUP_CALLS = 12
"""Calls of the main thread before the writer's thread begins, at most."""


class _Injection:
    """Faults that strace injects in one cycle."""

    def __init__(self, kind: str, rng: random.Random, data_file: Path, log: Path) -> None:
        self.kind, self.log = kind, log
        self.deadly = not kind.startswith("enospc")
        self.fails = kind.startswith("eio")
        late = rng.random() < 0.9  # else it may strike while the broker starts
        if kind.endswith("fdatasync"):
            when = rng.randint(STARTUP_CALLS, 40) if late else rng.randint(1, STARTUP_CALLS)
            self.words = inject("fdatasync", KILL if kind[0] == "k" else EIO, str(when), log=log)
        elif kind == "kill-io_submit":
            self.words = inject("io_submit", KILL, str(rng.randint(1, 60)), log=log)
        elif kind == "eio-fsync":
            self.words = inject("fsync", EIO, str(rng.randint(3, 5)), log=log)
        elif kind == "enospc":
            # not pwrite64, which also writes the root pages: these are there from the beginning
            first = rng.randint(5, 40)
            when = f"{first}..{first + rng.randint(0, 20)}"
            self.words = inject("writev", ENOSPC, when, log=log, path=data_file)
        elif kind == "enospc-root":  # as where the file system copies what is written
            first = rng.randint(20, 80)
            when = f"{first}..{first + rng.randint(0, 20)}"
            self.words = inject("pwrite64", ENOSPC, when, log=log, path=data_file)
        else:
            when = rng.randint(40, 400) if late else rng.randint(1, 20)
            self.words = inject(
                "pwrite64,writev", KILL if kind[0] == "k" else EIO, str(when), log=log, path=data_file
            )


async def _run_cycle(cycles: Cycles, kind: str) -> tuple[str, bool]:
    """Run one cycle on existing data; return the fault, and whether it occurred."""
    site, rng = cycles.site, cycles.rng
    fault = _Injection(kind, rng, site.data_dir / "store" / "data.mdb", site.home / "strace.out")
    fault.log.unlink(missing_ok=True)
    try:
        cycles.port = site.start(*FILES, before=fault.words)
    except AssertionError as error:
        cycles.stopped()  # nobody was connected, and the mark of the clean stop before may be there still
        if fault.deadly and site.exit_code:
            return f"did not start, exit {site.exit_code}", True
        site.ledger.broke("O10", f"{kind}: {error}")
        return "did not start", False
    load = cycles.load(*[LITTLE_WINDOW] * (kind == "kill-io_submit"))
    try:
        await load.open(cycles.port)
    except (LostError, OSError):
        pass
    else:
        load.start()
        ended = await until(lambda: site.running.process.poll() is not None, 8.0 if fault.deadly else 1.0)
        if not ended and not fault.deadly:
            await _goes_on(site, kind, fault)
    hit = site.running.process.poll() is not None
    if hit:
        code = site.ended()
    else:
        site.kill()
        code = 0
    await _lost(load)
    cycles.died()
    if not hit:
        return ("went on" if injected(fault.log) else "was not reached"), bool(injected(fault.log))
    if fault.fails and code != os.EX_IOERR:
        site.ledger.broke("O8", f"{kind}: exit {code} instead of {os.EX_IOERR}: {site.errors[-500:]}")
    return f"exit {code}", True


async def _lost(load: Mix) -> None:
    """Wait for the connections that were made."""
    for part in load.parts:
        for publisher in part.publishers:
            publisher.stop()
        for each in (*part.publishers, *part.consumers):
            if hasattr(each, "link"):
                await each.link.gone()
    for consumer in load.load.consumers:
        await asyncio.gather(*consumer.tasks)
    if load.transacting is not None:
        await load.transacting.worked()


async def _goes_on(site: Site, kind: str, fault: _Injection) -> None:
    """After a disk that was full for a while everything goes on, in the same process."""
    if not await until(lambda: injected(fault.log) > 0, 2.0):
        return
    counts = site.ledger.counts
    enough = counts["confirmed"] + 500
    if not await until(
        lambda: counts["confirmed"] >= enough,
        STALL_SECONDS,
        0.02,
        progress=lambda: (injected(fault.log), counts["confirmed"]),  # each retry uses up some of the faults
    ):
        site.ledger.broke("O10", f"{kind}: publishing does not resume")


async def _fill(
    home: Path, kind: str, rng: random.Random, moving: Collection[str], **options: Any
) -> tuple[Site, str]:
    """Fill a small disk, drain it, publish again, all in one process; then kill and compare."""
    limit = "12MB" if kind == "alarm" else "0"
    with MemoryDisk(home, SMALL_MEGABYTES) as disk:
        site = Site(disk.mount_point, "--set", f"disk_free_limit.absolute={limit}", **options)
        cycles = Cycles(site, rng, moving=frozenset(moving) - {moves.DELETIONS})
        cycles.journeys.may_be_full = True
        try:
            what = await _fill_and_drain(cycles, kind)
            site.kill()
            cycles.died()
            if what == "failed":
                return site, what
            cycles.declared = True
            await cycles.finish()
            check_store(site)
        except (AssertionError, LostError) as error:
            site.ledger.broke("O10", f"{kind}: {error}")
            what = "failed"
        finally:
            site.close()
    return site, what


class _Filler(Publisher):
    """Publishes to the queues without consumers, persistent, 1 to 4 KB."""

    def choose(self) -> tuple[str, str, tuple[str, ...], int, bool]:
        """Return exchange, routing key, queues, size and persistence of the next message."""
        queue = KEPT[int(self.rng.random() * 4)]
        return "", queue, (queue,), 1000 + int(self.rng.random() * 3000), True


async def _fill_and_drain(cycles: Cycles, kind: str) -> str:
    site, rng = cycles.site, cycles.rng
    port = site.start()
    await declare(port)
    await pipeline.declare(port)
    ledger = site.ledger
    moving = None
    if cycles.moving:
        await moves.declare(port, cycles.moving)
        moving = moves.Moving(cycles.journeys, rng, 20, cycles.moving)
        await moving.open(port)
        moving.start()
    fillers = [_Filler(ledger, random.Random(rng.random()), 100) for _ in range(4)]
    for filler in fillers:
        await filler.open(port)
    link = await Link.connect(port)
    for _ in range(FILLS):
        if not await _fill_once(site, port, kind, fillers, link):
            return "failed"
        confirmed = ledger.counts["confirmed"]
        nacked = sum(filler.nacked for filler in fillers)
        if nacked or kind != "full":
            break
    else:
        ledger.broke("O4", f"{kind}: nothing was nacked")
    for filler in fillers:
        filler.start()
    enough = ledger.counts["confirmed"] + 1000
    if not await until(
        lambda: ledger.counts["confirmed"] >= enough,
        STALL_SECONDS,
        0.02,
        progress=lambda: ledger.counts["confirmed"],
    ):
        ledger.broke("O10", f"{kind}: publishing does not resume")
        return "failed"
    for filler in fillers:
        await filler.quiet()
        await filler.link.close()
    if moving is not None:
        await moving.quiet()
    await link.close()
    return f"{confirmed} confirmed, {nacked} nacked, resumed"


async def _fill_once(site: Site, port: int, kind: str, fillers: Sequence[_Filler], link: Link) -> bool:
    """Fill the disk until all publishers are blocked, and drain it until none is; return whether that comes to an end."""

    def is_full() -> bool:
        return all(filler.link.blocked or filler.link.lost.done() for filler in fillers)

    def decided() -> int:
        return site.ledger.counts["confirmed"] + sum(filler.nacked for filler in fillers)

    for filler in fillers:
        filler.start()
    if not await until(is_full, STALL_SECONDS, 0.02, progress=decided):
        site.ledger.broke("O10", f"{kind}: publishers are not blocked")
    for filler in fillers:
        filler.stop()
    await asyncio.sleep(0.1)
    await _drain_while_blocked(site, port, link)
    if not await until(lambda: not any(filler.link.blocked for filler in fillers), STALL_SECONDS, 0.02):
        site.ledger.broke("O10", f"{kind}: the alarm does not clear")
        return False
    return True


async def _drain_while_blocked(site: Site, port: int, link: Link) -> None:
    """Take out everything but what the broker was sent and does not read."""
    deadline, left = time.monotonic() + STALL_SECONDS, -1
    while time.monotonic() < deadline:
        ready = await depths(site, link, [*KEPT, *CONSUMED])
        if sum(ready.values()) == 0:
            return
        if sum(ready.values()) != left:
            deadline, left = time.monotonic() + STALL_SECONDS, sum(ready.values())
        await drain(site.ledger, port, ready, receipts="", whole=False)
    site.ledger.broke("O10", "a blocked broker cannot be drained")


async def faults(
    home: Path,
    count: int,
    seed: int,
    *,
    kinds: Sequence[str] | None = None,
    say: Callable[[str], object] = print,
    enough: int = 100,
    moving: Collection[str] = moves.FEATURES,
    **options: Any,
) -> Totals:
    """Let the disk fail `count` times; `kinds` take turns, by default all that are possible here.

    It is given up after `enough` violations. `moving` is that of `Cycles`, the options are for `Site`.
    """
    rng = random.Random(seed)
    if kinds is None:
        kinds = [*(() if why_not() else INJECTED), *(() if why_no_small_disks() else ON_SMALL_DISKS)]
    site = Site(home, **options)
    cycles = Cycles(site, rng, moving=moving)
    cycles.journeys.may_be_full = True
    with campaign("faults", site) as totals:
        if any(kind in INJECTED for kind in kinds):
            await cycles.begin(drain_now=False)
            site.stop()
            cycles.stopped()
        while totals.counted < count and totals.cycles < 3 * count + 5:
            kind = kinds[totals.cycles % len(kinds)]
            totals.cycles += 1
            if kind in INJECTED:
                before = Counter(site.ledger.counts)
                what, hit = await _run_cycle(cycles, kind)
                drain_now = totals.cycles % DRAIN_EVERY == 0
                ready = await cycles.begin(drain_now=drain_now)
                site.finish()
                cycles.stopped()
                check_store(site)
                counts = since(site.ledger.counts, before)
                what += f", {sum(ready.values())} ready"
            else:
                other, what = await _fill(home, kind, rng, moving, **options)
                totals.add(other.ledger)
                counts, hit = other.ledger.counts, what != "failed"
            totals.counted += hit
            totals.notes[kind] += hit
            say(f"fault {totals.cycles}, {kind}: {what}: {tally(counts)}")
            if totals.counts["violations"] + site.ledger.counts["violations"] >= enough:
                break
        if cycles.declared:
            await cycles.finish()
            check_store(site)
    return totals
