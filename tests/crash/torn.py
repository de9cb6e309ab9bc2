"""Damaged copies of the data files: flipped bits, zeroed sectors, cut ends, foreign pages.

One broker is given messages of all kinds and killed. Each copy of its data is damaged in one place and opened by a
process of its own, which may end how it likes (an abort counts as refusing). What is demanded: a message that is
served is one that was published to that queue, in order and once; and if any message is missing, the broker said so
in its log, or `leveret store check` finds something wrong with that copy. Damage to what says that messages are
acknowledged may bring those back; they are counted.
"""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from crash.kills import Totals
from crash.ledger import BodyError, Id, Ledger, Violation, make_body, read_body
from crash.link import Link, LostError, publish_frames
from crash.load import fill
from crash.site import Site
from pamqp import commands
from running import ROOT, environment

QUEUES = ("t0", "t1", "t2")
FILES = ("--set", "storage.blob_threshold=65536")
MESSAGES = 150
OPEN_SECONDS = 10.0
CHECK_EVERY = 10
"""Of the copies whose damage is in the log, `store check` looks at one in so many."""
REPORTED = re.compile(r"damaged|corrupt|cannot open|missing", re.IGNORECASE)
KINDS = ("bit", "octet", "sector", "cut", "page", "nulls")


class Opener:
    """Starts brokers quickly: see `zygote.py`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=home,
            env=environment() | {"PYTHONPATH": str(ROOT)},
        )
        self.child = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.child:
            self.end()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def start(self, *words: str) -> None:
        """Start a child; its output goes to `out` and `err` below the home."""
        for name in ("out", "err"):
            (self.home / name).unlink(missing_ok=True)
        line = json.dumps([words, str(self.home / "out"), str(self.home / "err")])
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self.child = int(self.process.stdout.readline())

    def end(self) -> int:
        """Kill the child if it is still alive; its status as of waitpid."""
        try:
            os.kill(self.child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.wait()

    def wait(self) -> int:
        """Wait for the child's end; its status."""
        self.child = 0
        return int(self.process.stdout.readline())

    @property
    def ended(self) -> bool:
        """Whether the child is gone or a zombie."""
        try:
            stat = Path(f"/proc/{self.child}/stat").read_text(encoding="ascii")
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in "ZX"

    def text(self, name: str) -> str:
        """What the child wrote."""
        path = self.home / name
        return path.read_text(errors="replace") if path.exists() else ""


Served = list[tuple[Id | None, bytes]]


async def make_data(site: Site, rng: random.Random) -> tuple[dict[str, Served], dict[str, Served]]:
    """Fill a data directory by a broker that is killed then.

    Returns what each queue has, in order, and what consumers have acknowledged.
    """
    port = site.start(*FILES)
    link = await Link.connect(port)
    watcher = _Watcher(site.ledger)
    await link.open(1, watcher)
    await link.call(commands.Confirm.Select())
    for queue in QUEUES:
        await link.call(commands.Queue.Declare(queue=queue, durable=True))
        await link.call(commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
    kept: dict[str, Served] = {queue: [] for queue in QUEUES}
    acked: dict[str, Served] = {queue: [] for queue in QUEUES}
    watcher.channel = channel = site.ledger.open_channel()
    for number in range(MESSAGES):
        ident = site.ledger.next_id(channel)
        size = 90_000 if number % 50 == 7 else rng.choice([20, 200, 900, 5000])
        body = make_body(ident, fill(size, number))
        queues = QUEUES if number % 5 == 0 else (rng.choice(QUEUES),)
        site.ledger.published(ident, queues, body[-8:])
        exchange, key = ("amq.fanout", "") if len(queues) > 1 else ("", queues[0])
        link.transport.write(publish_frames(key, body, exchange=exchange))
        for queue in queues:
            kept[queue].append((ident, body[-8:]))
        while number % 4 == 0 and site.ledger.undecided(channel) and not link.lost.done():
            await asyncio.sleep(0.001)
    while site.ledger.undecided(channel) and not link.lost.done():
        await asyncio.sleep(0.001)
    # some are gone again, here and there: acked, and known to be on disk by the reply to a declaration
    await link.open(2, watcher)
    for queue in QUEUES:
        tags = []
        for _ in range(20):
            watcher.seen.clear()
            await link.call(commands.Basic.Get(queue=queue), 2)
            tags.append((watcher.seen[0][0], watcher.seen[0][1]))
        for tag, ident in tags[::3]:
            link.settle(2, tag)
            acked[queue] += [each for each in kept[queue] if each[0] == ident]
            kept[queue] = [each for each in kept[queue] if each[0] != ident]
    await link.call(commands.Queue.Declare(queue="t3", durable=True), 2)
    site.kill()
    return kept, acked


class _Watcher:
    """Confirms, and what is delivered."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.channel = 0
        self.seen: list[tuple[int, Id | None, bytes, bool]] = []

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        """Note it."""
        try:
            ident, digest = read_body(body)
        except BodyError:
            ident, digest = None, b""
        self.seen.append((tag, ident, digest, redelivered))

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        """A confirm."""
        self.ledger.verdict(self.channel, number, multiple=multiple, ack=ack)

    def came_back(self, body: bytes) -> None:
        """Nothing is mandatory."""
        raise AssertionError


def damage(folder: Path, rng: random.Random) -> str:
    """Damage one file of a copy in one place; says what was done."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in {"lock.mdb", "leveret.lock"}
    ]
    files = [path for path in files if path.stat().st_size and "paged" not in path.parts]
    main = [path for path in files if path.name == "data.mdb"]
    path = rng.choice(main) if rng.random() < 0.85 else rng.choice(files)
    data = bytearray(path.read_bytes())
    kind = rng.choice(KINDS)
    at = rng.randrange(len(data))
    if kind == "bit":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "octet":
        data[at] = rng.randrange(256)
    elif kind == "sector":
        at -= at % 512
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    elif kind == "cut":
        del data[at:]
    elif kind == "nulls":
        at = len(data) - rng.randrange(min(len(data), 16384))
        data[at:] = bytes(len(data) - at)
    else:
        at -= at % 4096
        other = rng.randrange(0, max(1, len(data) // 4096)) * 4096
        data[at : at + 4096] = data[other : other + len(data[at : at + 4096])]
    path.write_bytes(bytes(data))
    return f"{kind} at {at} of {path.relative_to(folder)}"


async def served(opener: Opener, folder: Path) -> tuple[dict[str, Served] | None, bool]:
    """What a broker serves from a folder, by queue, or None if it refuses to start; and whether it hangs."""
    opener.start(
        "serve",
        "--data-dir",
        str(folder),
        "--set",
        "listeners.tcp.1=127.0.0.1:0",
        "--set",
        "log.connection.level=none",
        *FILES,
    )
    deadline = time.monotonic() + OPEN_SECONDS
    while "Server startup complete" not in (text := opener.text("out")):
        if opener.ended:
            return None, False
        if time.monotonic() > deadline:
            return None, True
        await asyncio.sleep(0.003)
    port = int(re.search(r"started TCP listener on 127\.0\.0\.1:(\d+)", text)[1])
    watchers: dict[str, _Watcher] = {}
    hangs = False
    try:
        link = await Link.connect(port)
        for number, queue in enumerate(QUEUES, 1):
            watcher = _Watcher(Ledger())
            watchers[queue] = watcher
            try:
                await link.open(number, watcher)
                await asyncio.gather(*[_get(link, queue, number) for _ in range(MESSAGES + 10)])
            except LostError:
                if link.lost.done():
                    break
        link.cut()
    except (LostError, OSError):
        pass
    except AssertionError:
        hangs = True
    found = {
        queue: [(ident, digest) for _, ident, digest, _ in watcher.seen]
        for queue, watcher in watchers.items()
    }
    return found, hangs


async def _get(link: Link, queue: str, channel: int) -> None:
    await link.call(commands.Basic.Get(queue=queue, no_ack=True), channel, seconds=OPEN_SECONDS)


def judge(
    kept: dict[str, Served], acked: dict[str, Served], found: dict[str, Served]
) -> tuple[list[str], int, int]:
    """What was served and should not have been; how many messages are missing; how many acked ones came back."""
    wrong, missing, back = [], 0, 0
    for queue, right in kept.items():
        got = found.get(queue, [])
        known = {*right, *acked[queue]}
        if strange := [each for each in got if each not in known]:
            wrong.append(
                f"{queue} served {len(strange)} that were not published to it, the first is {strange[0][0]}"
            )
        if len(set(got)) < len(got):
            wrong.append(f"{queue} served {len(got) - len(set(got))} twice")
        if not strange and got != sorted(got):
            wrong.append(f"{queue} served out of order")
        missing += len(set(right) - set(got))
        back += len(set(acked[queue]) & set(got))
    return wrong, missing, back


async def torn(
    home: Path, count: int, seed: int, *, say: Callable[[str], object] = print, every: int = 500
) -> Totals:
    """Damage `count` copies, one after the other, and open each."""
    rng = random.Random(seed)
    totals = Totals("torn")
    began = time.monotonic()
    site = Site(home)
    try:
        kept, acked = await make_data(site, rng)
    finally:
        site.close()
    totals.counts.update({"confirmed": MESSAGES})
    copy = home / "copy"
    with Opener(home) as opener:
        for number in range(count + 1):  # the first is whole: it shows that all is right with the comparison
            what = _copy(site.data_dir, copy, seed, number)
            found, hangs = await served(opener, copy)
            log = opener.text("out") + opener.text("err")
            status = opener.end()
            totals.cycles += 1
            problems, missing, back = judge(kept, acked, found or {})
            totals.notes["acked messages came back"] += back
            totals.counted += 1
            totals.counts["recovered"] += sum(len(each) for each in (found or {}).values())
            if found is None:
                outcome = "refused" if not os.WIFSIGNALED(status) else "aborted"
            elif missing:
                outcome = "partly served"
            else:
                outcome = "served"
            if hangs:
                problems.append("it does not answer")
            reported = REPORTED.search(log) is not None
            totals.notes["reported in the log"] += reported
            if number == 0 or (outcome == "partly served" and (not reported or number % CHECK_EVERY == 0)):
                _copy(site.data_dir, copy, seed, number)
                said = _check(opener, copy)
                if number == 0 and (said or missing or back or problems):
                    problems.append(f"without damage: {missing} missing, store check says {said!r}")
                if number and not reported and not said:
                    problems.append(f"{missing} missing, and neither the log nor store check says so")
                totals.notes["found by store check"] += bool(said)
            totals.notes[outcome] += 1
            for problem in problems:
                totals.counts["violations"] += 1
                totals.violations.append(Violation("O5", f"copy {number}, {what}: {problem}"))
                say(f"copy {number}, {what}: VIOLATION {problem}")
            if number % every == 0 and number:
                say(f"copy {number}: {dict(totals.notes)}")
    totals.seconds = time.monotonic() - began
    return totals


def _copy(data_dir: Path, copy: Path, seed: int, number: int) -> str:
    """Make copy `number` anew, damaged in the same way each time; says how."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data_dir, copy)
    return damage(copy, random.Random(f"{seed}/{number}")) if number else "nothing"


def _check(opener: Opener, folder: Path) -> str:
    """What `leveret store check` says; empty if it finds nothing."""
    opener.start("store", "check", "--data-dir", str(folder))
    deadline = time.monotonic() + OPEN_SECONDS
    while not opener.ended and time.monotonic() < deadline:
        time.sleep(0.002)
    status = opener.end()
    return "" if status == 0 else f"status {status}: {opener.text('out')}{opener.text('err')}"[:2000]
