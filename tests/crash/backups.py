"""Back up the broker at random moments under load, start another on the copy, and judge what it has.

A backup is one moment between its beginning and its end, so the copy is judged as the data of a broker that was killed
then: what was confirmed and unacknowledged at the beginning, and still is at the end, must be in it; what was published,
delivered or acknowledged between the two may be there or not. The load goes on beside the backup, and the original is
judged as in every campaign: nothing may be lost there either.

Some backups are interrupted: by `kill -9` of the broker, after which no copy may be there under its name and the next
backup must be made, or of the command, after which there is no copy or a whole one.
"""

import asyncio
import contextlib
import copy
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from crash.kills import VARIANTS, Cycles, Mix, Totals, check_store, since, tally
from crash.ledger import Copy, Id, Ledger, Place
from crash.link import Link, LostError
from crash.load import QUEUES, drain
from crash.site import Site, depths, until
from pamqp import commands
from processes.running import command, environment

RATES = ("0", "20MB", "50MB", "10MB")
"""Limits of speed, some of which are below what the load writes."""
WINDOW = 10
"""Messages of each publisher without a verdict, few, so that the data stay small."""
MOST_OCTETS = 40_000_000
"""Growth of the data file during one backup from which nothing is published any more: deletions go on."""
SETTINGS = ("--set", "debug.slow_step=200ms")
"""Brokers live for a minute with a backlog, beside others that are judged: the collector's steps take longer then."""
BACKUP_SECONDS = 240.0
LEFT_SECONDS = 60.0
"""Time in which the broker must give up the backup of a command that was killed."""
PER_BROKER = 5
"""Backups of one broker before another variant starts on the same data."""
KILL_BROKER, KILL_COMMAND = 2, 7
"""Of ten cycles, those whose broker or command is killed."""

Sure = set[tuple[str, Id]]


class Made:
    """Durable queues that come and go while the backups are made.

    Args:
        port: the broker's.

    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.number = 0
        self.going = True
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Declare queues, and delete those before the last five."""
        link = await Link.connect(self.port)
        await link.open(1)
        with contextlib.suppress(LostError):
            while self.going:
                self.number += 1
                name = f"made.{self.port}.{self.number}"
                await link.call(commands.Queue.Declare(queue=name, durable=True))
                self.there.add(name)
                if len(self.there) > 5:
                    oldest = min(self.there, key=_number_of)
                    self.there.discard(oldest)
                    await link.call(commands.Queue.Delete(queue=oldest))
                    self.gone.add(oldest)
                await asyncio.sleep(0.02)
            await link.close()

    def start(self) -> None:
        self.task = asyncio.ensure_future(self.run())

    async def stop(self) -> None:
        """End, if the broker is gone too."""
        self.going = False
        if self.task is not None:
            await self.task


def _number_of(name: str) -> int:
    return int(name.rpartition(".")[2])


def sure(ledger: Ledger) -> Sure:
    """Return the copies that the broker must have on disk now."""
    return {
        (queue, ident)
        for queue, copies in ledger._queues.items()
        for ident, each in copies.items()
        if _is_owed(each)
    }


def _is_owed(each: Copy) -> bool:
    return each.place in {Place.WAITING, Place.HELD} and each.safe and each.publication.persistent


def gone(ledger: Ledger) -> Sure:
    """Return the copies that cannot come back."""
    return {
        (queue, ident)
        for queue, copies in ledger._queues.items()
        for ident, each in copies.items()
        if each.place is Place.GONE
    }


def forked(ledger: Ledger, owed: Sure, lost: Sure) -> Ledger:
    """Return the ledger of a copy that began with these copies on disk, and these gone, and ends now."""
    fork = copy.deepcopy(ledger)
    fork.counts, fork.violations = Counter(), []
    for queue, copies in fork._queues.items():
        for ident, each in copies.items():
            key = queue, ident
            if not (key in lost or (key in owed and _is_owed(each))):
                each.place, each.why = Place.DOUBTFUL, ""
    fork.died()
    return fork


class Backups:
    """Backups of a broker under load.

    Args:
        home: where its data go, and the copies.
        rng: what decides.
        say: prints a line.
        settings: words for every start.
        allowance: seconds that a start may take beside the recovery.

    """

    def __init__(
        self,
        home: Path,
        rng: random.Random,
        say: Callable[[str], object],
        settings: Sequence[str] = (),
        allowance: float = 2.0,
    ) -> None:
        self.rng, self.say = rng, say
        (home / "original").mkdir()
        self.home = home
        self.allowance = allowance
        self.site = Site(home / "original", *SETTINGS, *settings, allowance=allowance)
        self.cycles = Cycles(self.site, rng)
        self.totals = Totals("backup")
        self.variant: tuple[str, Sequence[str]] = VARIANTS[0]
        self.copies = 0

    @property
    def dest(self) -> Path:
        """The next backup: the data directory of another site."""
        return self.home / f"copy{self.copies}" / "data"

    async def start(self) -> None:
        """Start the broker with the next variant, and take everything out."""
        self.variant = VARIANTS[self.totals.cycles // PER_BROKER % len(VARIANTS)]
        await self.cycles.begin(*self.variant[1], drain_now=True)

    async def stop(self) -> None:
        """Stop the broker in good order."""
        await asyncio.to_thread(self.site.finish)
        self.cycles.stopped()

    async def cycle(self) -> bool:
        """Make a backup and judge it; returns whether the broker still runs."""
        number = self.totals.cycles
        self.totals.cycles += 1
        ledger = self.site.ledger
        self.copies += 1
        self.dest.parent.mkdir()
        load = self.cycles.load(WINDOW)
        made = Made(self.cycles.port)
        await load.open(self.cycles.port)
        load.start()
        made.start()
        await until(lambda: ledger.owed() >= 300, 20.0, 0.02)
        await asyncio.sleep(self.rng.uniform(0.05, 1.5))
        is_killed = number % 10 == KILL_BROKER
        rate = RATES[number % len(RATES)] if not is_killed and number % 10 != KILL_COMMAND else "3MB"
        before = self._size()
        owed, lost = sure(ledger), gone(ledger)
        there, deleted = set(made.there), set(made.gone)
        began = time.monotonic()
        process = subprocess.Popen(
            command("store", "backup", "--data-dir", str(self.site.data_dir), "--rate", rate, str(self.dest)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )
        if is_killed or number % 10 == KILL_COMMAND:
            await until(lambda: self.partial.exists() or process.poll() is not None, 30.0)
            await asyncio.sleep(self.rng.uniform(0, 0.5))
        if is_killed:
            await self._kill_broker(process, load, made)
            return False
        limit = asyncio.ensure_future(self._limit(load, before))
        if number % 10 == KILL_COMMAND:
            process.kill()
            process.communicate()
            await until(lambda: not self.partial.exists(), LEFT_SECONDS, 0.05)
        else:
            await asyncio.to_thread(self._finish, process)
        limit.cancel()
        seconds = time.monotonic() - began
        fork = forked(ledger, owed, lost)
        there &= made.there
        await made.stop()
        grown = self._size() - before
        for part in load.parts:
            await part.quiet()
        if self.partial.exists():
            ledger.broke("backup", f"{self.partial} is left behind")
        if not self.dest.exists():
            if number % 10 != KILL_COMMAND:
                ledger.broke("backup", "there is no copy")
            self.totals.counts["abandoned"] += 1
            self.say(f"backup {number}, {self.variant[0]}: the command was killed, no copy")
            return True
        await self._judge(fork, len(owed), there, deleted)
        self.say(
            f"backup {number}, {self.variant[0]}: at {rate} in {seconds:.1f} s, {len(owed)} owed at its beginning, "
            f"the file grew {grown} octets: {tally(fork.counts)}"
        )
        return True

    @property
    def partial(self) -> Path:
        """The directory of an unfinished backup."""
        return self.dest.with_name("data.partial")

    def _size(self) -> int:
        return (self.site.data_dir / "store" / "data.mdb").stat().st_size

    async def _limit(self, load: Mix, before: int) -> None:
        """Stop the publishers once the file has grown much."""
        while self._size() - before < MOST_OCTETS:
            await asyncio.sleep(0.05)
        for publisher in load.load.publishers:
            publisher.stop()

    def _finish(self, process: "subprocess.Popen[str]") -> None:
        try:
            out, _ = process.communicate(timeout=BACKUP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        if process.returncode:
            self.site.ledger.broke("backup", f"exit code {process.returncode}: {out[-500:]}")

    async def _kill_broker(self, process: "subprocess.Popen[str]", load: Mix, made: Made) -> None:
        """Kill the broker; the command must fail, and no copy have its name."""
        self.site.kill()
        await load.died()
        await made.stop()
        self.cycles.died()
        await asyncio.to_thread(process.communicate, timeout=60)
        if self.dest.exists() and process.returncode:
            self.site.ledger.broke("backup", "the broker was killed, and there is a copy")
        if not process.returncode:
            self.say("the backup was done before the kill")
        done = subprocess.run(
            command("store", "backup", "--data-dir", str(self.site.data_dir), str(self.dest)),
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
        if done.returncode and not self.dest.exists():
            self.site.ledger.broke("backup", f"of the killed broker: exit {done.returncode}: {done.stderr}")
        fork = copy.deepcopy(self.site.ledger)
        fork.counts, fork.violations = Counter(), []
        if not process.returncode:
            return
        await self._judge(fork, fork.owed(), set(), set())
        self.say(
            f"backup {self.totals.cycles - 1}, {self.variant[0]}: of a killed broker: {tally(fork.counts)}"
        )

    async def _judge(self, fork: Ledger, owed: int, there: set[str], deleted: set[str]) -> None:
        """Check the copy, start a broker on it, and compare."""
        site = Site(self.dest.parent, *self.site.arguments, allowance=self.allowance)
        site.ledger = fork
        try:
            await asyncio.to_thread(check_store, site)
            port = await asyncio.to_thread(site.start, *self.variant[1])
            link = await Link.connect(port)
            ready = await depths(site, link, QUEUES)
            await self._compare_queues(link, site, there, deleted)
            await link.close()
            await drain(fork, port, ready, receipts="")
            await asyncio.to_thread(site.finish)
            await asyncio.to_thread(check_store, site)
        except AssertionError as error:
            fork.broke("O1", f"no broker starts on the copy: {error}")
        finally:
            site.close()
        self.totals.counted += owed > 0
        self.totals.add(fork)
        if fork.counts["violations"] == 0:
            shutil.rmtree(self.dest.parent)

    async def _compare_queues(self, link: Link, site: Site, there: set[str], deleted: set[str]) -> None:
        """Compare the queues that were declared or deleted before the backup began."""
        found = set()
        for number, name in enumerate(sorted(there | deleted), 2000):
            await link.open(number)
            try:
                await link.call(commands.Queue.Declare(queue=name, passive=True), number)
            except LostError:
                if link.lost.done():
                    raise
                continue
            found.add(name)
        for name in there - found:
            site.ledger.broke("definitions", f"{name} was declared before the backup and is not in it")
        for name in deleted & found:
            site.ledger.broke("definitions", f"{name} was deleted before the backup and is in it")


async def backups(
    home: Path,
    count: int,
    seed: int,
    *,
    say: Callable[[str], object] = print,
    allowance: float = 2.0,
) -> Totals:
    """Make `count` backups, and judge each."""
    rng = random.Random(seed)
    run = Backups(home, rng, say, allowance=allowance)
    totals, site = run.totals, run.site
    began = time.monotonic()
    is_running = False
    try:
        while totals.cycles < count:
            if not is_running:
                await run.start()
            is_running = await run.cycle()
            if is_running and totals.cycles % PER_BROKER == 0:
                await run.stop()
                is_running = False
        if is_running:
            await run.stop()
        await run.cycles.finish()
        await asyncio.to_thread(check_store, site)
    except AssertionError as error:
        site.ledger.broke("O1", f"the broker does not start any more: {error}")
    finally:
        site.close()
    original = since(site.ledger.counts, Counter())
    totals.counts["confirmed"] += original["confirmed"]
    totals.counts["lost"] += original["lost"]
    totals.counts["violations"] += original["violations"]
    totals.violations += site.ledger.violations
    totals.notes["judged copies"] = totals.counted
    totals.seconds = time.monotonic() - began
    return totals
