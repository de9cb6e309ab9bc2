"""Damaged copies of the data files: flipped bits, zeroed sectors, cut ends, foreign pages, files that are missing.

One broker is given messages of all kinds and killed; a second one is started on its data and stopped. Each copy of
what one of the two has left is damaged in one place and opened by a process of its own, which may end how it likes (an abort counts as refusing). What is demanded: a message that is
served is one that was published to that queue, in order and once; and if any message is missing, the broker said so
in its log, or `leveret store check` finds something wrong with that copy; the same if a queue's count is not what it
serves, and of a process that ended by a signal `store check` has to say that the store is damaged. Damage to what says
that messages are acknowledged may bring those back; they are counted. So is damage without any effect: most of a
data file is pages that nothing refers to any more.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from crash.kills import Totals
from crash.ledger import BodyError, Id, Ledger, make_body, read_body
from crash.link import Link, LostError, publish_frames
from crash.load import fill
from crash.site import Site, until
from pamqp import commands
from processes.running import ROOT, UNWATCHED, deadline, environment, leash

from leveret.storage.store.lmdb_file import DataFile

SOCKETS = shutil.ignore_patterns("ctl.sock")
"""Of a broker that was killed; it cannot be copied, and the next one makes its own."""
QUEUES = ("t0", "t1", "t2", "counted")
COUNTED = "counted"
"""Counts deliveries; its messages lie in a few blocks whose bitmaps, with all these counts, have pages of their own."""
COUNTED_BLOCKS, COUNTED_MESSAGES = 2, 400
FILES = ("--set", "storage.blob_threshold=65536")
MESSAGES = 150
OPEN_SECONDS = 10.0
DECIDE_SECONDS = 60.0
CHECK_EVERY = 10
"""Share of the copies with logged damage that `store check` looks at: one in so many."""
REPORTED = re.compile(r"damaged|corrupt|cannot open|missing", re.IGNORECASE)
KINDS = ("bit", "octet", "sector", "cut", "page", "value", "nulls", "emptied", "removed")
_PAGE = 4096
_LOGGED = 10 * _PAGE
"""Bytes of a redo log of which flips are tried: the rest is empty."""
_LARGE_VALUE = b"\4\0"
"""LMDB's flags of a page that begins a value with pages of its own."""
_KINDS_OF_PAGES = (b"\1\0", b"\2\0", _LARGE_VALUE)


class Opener:
    """Starts brokers quickly: see `zygote.py`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [*leash(), sys.executable, str(Path(__file__).with_name("zygote.py"))],
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
        with deadline(self.process, OPEN_SECONDS):
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
        self.child = self._number()

    def end(self) -> int:
        """Kill the child if it is still alive; its status as of waitpid."""
        with suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)
        return self.wait()

    def stop(self) -> int:
        """Stop the child in good order, or kill it if it takes too long; its status as of waitpid."""
        with suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGTERM)
        latest = time.monotonic() + OPEN_SECONDS
        while not self.ended and time.monotonic() < latest:
            time.sleep(0.002)
        return self.end()

    def wait(self) -> int:
        """Wait for the child's end; its status."""
        self.child = 0
        return self._number()

    def _number(self) -> int:
        """The next number that the process writes."""
        with deadline(self.process, OPEN_SECONDS):
            line = self.process.stdout.readline()
        assert line, "the process that starts brokers has ended, or did not answer"
        return int(line)

    @property
    def ended(self) -> bool:
        """Return whether the child is gone or a zombie."""
        try:
            stat = Path(f"/proc/{self.child}/stat").read_text(encoding="ascii")
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in "ZX"

    def text(self, name: str) -> str:
        path = self.home / name
        return path.read_text(errors="replace") if path.exists() else ""


Served = list[tuple[Id | None, bytes]]
Damage = Callable[[Path, random.Random], str]
"""Damages a copy in one place, and says how."""


async def make_data(site: Site, rng: random.Random) -> tuple[dict[str, Served], dict[str, Served]]:
    """Fill a data directory by a broker that is killed then.

    Returns what each queue has, in order, and what consumers have acknowledged.
    """
    port = site.start(*FILES)
    link = await Link.connect(port)
    watcher = _Watcher(site.ledger)
    await link.open(1, watcher)
    await link.call(commands.Confirm.Select())
    plain = QUEUES[:3]
    for queue in plain:
        await link.call(commands.Queue.Declare(queue=queue, durable=True))
        await link.call(commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
    kept: dict[str, Served] = {queue: [] for queue in QUEUES}
    acked: dict[str, Served] = {queue: [] for queue in QUEUES}
    watcher.channel = channel = site.ledger.open_channel()
    for number in range(MESSAGES):
        ident = site.ledger.next_id(channel)
        size = 90_000 if number % 50 == 7 else rng.choice([20, 200, 900, 5000])
        body = make_body(ident, fill(size, number))
        queues = plain if number % 5 == 0 else (rng.choice(plain),)
        site.ledger.published(ident, queues, body[-8:])
        exchange, key = ("amq.fanout", "") if len(queues) > 1 else ("", queues[0])
        link.transport.write(publish_frames(key, body, exchange=exchange))
        for queue in queues:
            kept[queue].append((ident, body[-8:]))
        if number % 4 == 0:
            await _decided(site, link, channel)
    await _decided(site, link, channel)
    # some are gone again, here and there: acked, and known to be on disk by the reply to a declaration
    await link.open(2, watcher)
    for queue in plain:
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
    await _fill_counted(site, link, watcher, kept[COUNTED], acked[COUNTED])
    site.kill()
    return kept, acked


async def _fill_counted(site: Site, link: Link, watcher: "_Watcher", kept: Served, acked: Served) -> None:
    """Publish transactions, a block each, and give back what is not acknowledged, which is others in each block."""
    await link.call(
        commands.Queue.Declare(queue=COUNTED, durable=True, arguments={"x-delivery-limit": 100}), 2
    )
    await link.open(3, watcher)
    await link.call(commands.Tx.Select(), 3)
    channel = site.ledger.open_channel()
    for _ in range(COUNTED_BLOCKS):
        for number in range(COUNTED_MESSAGES):
            ident = site.ledger.next_id(channel)
            body = make_body(ident, fill(20, number))
            site.ledger.published(ident, (COUNTED,), body[-8:])
            link.transport.write(publish_frames(COUNTED, body, channel=3))
            kept.append((ident, body[-8:]))
        await link.call(commands.Tx.Commit(), 3)
    watcher.seen.clear()
    await link.call_often(
        commands.Basic.Get(queue=COUNTED), 2, COUNTED_BLOCKS * COUNTED_MESSAGES, seconds=DECIDE_SECONDS
    )
    assert len(kept) == len(watcher.seen)
    for place, (tag, *_) in enumerate(watcher.seen):
        block, number = divmod(place, COUNTED_MESSAGES)
        if number // 10 % COUNTED_BLOCKS == block:
            link.settle(2, tag)
            acked.append(kept[place])
    kept[:] = [each for each in kept if each not in set(acked)]
    await link.call(commands.Basic.Recover(requeue=True), 2)
    await link.call(commands.Queue.Declare(queue="t4", durable=True), 2)
    await link.call(commands.Queue.Declare(queue="t5", durable=True), 2)


async def _decided(site: Site, link: Link, channel: int) -> None:
    """Wait until every publish has its verdict."""
    decided = await until(
        lambda: not site.ledger.undecided(channel) or link.lost.done(), DECIDE_SECONDS, 0.001
    )
    assert decided, f"no verdicts within {DECIDE_SECONDS} s"


class _Watcher:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.channel = 0
        self.seen: list[tuple[int, Id | None, bytes, bool]] = []

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        try:
            ident, digest = read_body(body)
        except BodyError:
            ident, digest = None, b""
        self.seen.append((tag, ident, digest, redelivered))

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        self.ledger.verdict(self.channel, number, multiple=multiple, ack=ack)

    def came_back(self, body: bytes) -> None:
        """Fail: no message is mandatory."""
        raise AssertionError


def damage(folder: Path, rng: random.Random) -> str:
    """Damage one file of a copy in one place, or as a whole; says what was done."""
    path = _some_file(folder, rng, 0.85)
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
    elif kind == "emptied":
        data.clear()
    elif kind == "nulls":
        at = len(data) - rng.randrange(min(len(data), 16384))
        data[at:] = bytes(len(data) - at)
    elif kind == "value" and len(pages := _large_values(data)) > 1:
        at, other = rng.sample(pages, 2)
        data[at : at + _PAGE] = data[other : other + _PAGE]
    else:
        at -= at % 4096
        other = rng.randrange(0, max(1, len(data) // 4096)) * 4096
        data[at : at + 4096] = data[other : other + len(data[at : at + 4096])]
    if kind == "removed":
        path.unlink()
    else:
        path.write_bytes(bytes(data))
    return f"{kind} at {at} of {path.relative_to(folder)}"


def _some_file(folder: Path, rng: random.Random, share: float) -> Path:
    """Return the store's data file, in so many of all cases, or any file that has octets."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    return folder / "store" / "data.mdb" if rng.random() < share else rng.choice(files)


def _large_values(data: bytes | bytearray) -> list[int]:
    """Return the pages of an LMDB file that begin a large value: that of a block or of a body, apart from its key."""
    return [
        at
        for at in range(0, len(data), _PAGE)
        if int.from_bytes(data[at : at + 8], "little") == at // _PAGE
        and data[at + 10 : at + 12] == _LARGE_VALUE
    ]


@dataclass
class Opened:
    """Outcome of a broker that was started on a copy."""

    served: dict[str, Served] | None = None
    """Deliveries by queue; None if it did not start."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of messages that it reported for each queue."""
    hangs: bool = False


def flip(folder: Path, rng: random.Random) -> str:
    """Turn one bit of a copy round, mostly one of the store; says which."""
    path = _some_file(folder, rng, 0.85)
    most = _LOGGED if path.name == "redo.log" else path.stat().st_size
    at, bit = rng.randrange(most), rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        octet = file.read(1)[0]
        file.seek(at)
        file.write(bytes([octet ^ 1 << bit]))
    return f"bit {bit} at {at} of {path.relative_to(folder)}"


def exchange(folder: Path, rng: random.Random) -> str:
    """Put a page of a copy's store in place of another of its kind, or both in each other's; says which.

    One of them is in use, the other may be one that was. Mostly each place keeps the number that LMDB gives its page,
    so that only what is in the page is wrong: as if a number that refers to it had changed.
    """
    path = folder / "store" / "data.mdb"
    with DataFile(path) as file:
        used = {first for first, _ in file.used_pages()}
    data = bytearray(path.read_bytes())
    kinds: dict[bytes, list[int]] = {}
    for at in range(2 * _PAGE, len(data) - _PAGE + 1, _PAGE):
        flags = data[at + 10 : at + 12]
        if int.from_bytes(data[at : at + 8], "little") == at // _PAGE and flags in _KINDS_OF_PAGES:
            kinds.setdefault(bytes(data[at + 10 : at + (16 if flags == _LARGE_VALUE else 12)]), []).append(at)
    usable = [pages for pages in kinds.values() if len(pages) > 1 and used & {at // _PAGE for at in pages}]
    pages = rng.choice(usable)
    one = rng.choice([at for at in pages if at // _PAGE in used])
    other = rng.choice([at for at in pages if at != one])
    is_value = data[one + 10 : one + 12] == _LARGE_VALUE
    size = _PAGE * int.from_bytes(data[one + 12 : one + 16], "little") if is_value else _PAGE
    both, keeps = rng.random() < 0.5, rng.random() < 0.8
    start = 8 * keeps
    found = bytes(data[one + start : one + size]), bytes(data[other + start : other + size])
    data[one + start : one + size] = found[1]
    if both:
        data[other + start : other + size] = found[0]
    path.write_bytes(bytes(data))
    what = "page" if keeps else "page with its number"
    return f"{what} {other // _PAGE} {'and' if both else 'in place of'} {one // _PAGE} of {path.relative_to(folder)}"


async def served(opener: Opener, folder: Path, most: int) -> Opened:
    """Start a broker on a folder and take out all that it serves; `most` is more than any queue has."""
    opener.start(*_serve(folder))
    latest = time.monotonic() + OPEN_SECONDS
    while "Server startup complete" not in (text := opener.text("out")):
        if opener.ended:
            return Opened()
        if time.monotonic() > latest:
            return Opened(hangs=True)
        await asyncio.sleep(0.003)
    port = int(re.search(r"started TCP listener on 127\.0\.0\.1:(\d+)", text)[1])
    watchers: dict[str, _Watcher] = {}
    counts: dict[str, int] = {}
    hangs = False
    link: Link | None = None
    try:
        link = await Link.connect(port)
        for number, queue in enumerate(QUEUES, 1):
            watcher = _Watcher(Ledger())
            watchers[queue] = watcher
            try:
                await link.open(number, watcher)
                declared = await link.call(commands.Queue.Declare(queue=queue, passive=True), number)
                counts[queue] = declared.message_count
                get = commands.Basic.Get(queue=queue, no_ack=True)
                await link.call_often(get, number, most, seconds=OPEN_SECONDS)
            except LostError:
                if link.lost.done():
                    break
    except (LostError, OSError):
        pass
    except AssertionError:
        hangs = True
    finally:
        if link is not None:
            link.cut()
            await link.gone()
    found = {
        queue: [(ident, digest) for _, ident, digest, _ in watcher.seen]
        for queue, watcher in watchers.items()
    }
    return Opened(found, counts, hangs)


def _serve(folder: Path) -> Sequence[str]:
    """The command line of a broker on a folder."""
    return (
        "serve",
        "--data-dir",
        str(folder),
        "--set",
        "listeners.tcp.1=127.0.0.1:0",
        "--set",
        "log.connection.level=none",
        *UNWATCHED,
        *FILES,
    )


def judge(
    kept: dict[str, Served], acked: dict[str, Served], found: dict[str, Served]
) -> tuple[list[str], int, int]:
    """Return what should not have been served, the number of missing messages, and of acked ones that came back."""
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
    home: Path,
    count: int,
    seed: int,
    *,
    say: Callable[[str], object] = print,
    every: int = 500,
    damage: Damage = damage,
    name: str = "torn",
) -> Totals:
    """Damage `count` copies, one after the other, and open each.

    Args:
        home: where the data go.
        count: how many copies are damaged.
        seed: what decides over all that is random.
        say: prints a line.
        every: how many copies there are to a line.
        damage: damages a copy, and says how.
        name: the campaign's.

    """
    rng = random.Random(seed)
    totals = Totals(name)
    began = time.monotonic()
    site = Site(home)
    try:
        kept, acked = await make_data(site, rng)
    finally:
        site.close()
    totals.counts.update({"confirmed": MESSAGES + COUNTED_BLOCKS * COUNTED_MESSAGES})
    most = max(len(kept[queue]) + len(acked[queue]) for queue in QUEUES) + 10
    copy, stopped = home / "copy", home / "stopped"
    with Opener(home) as opener:
        shutil.copytree(site.data_dir, stopped, ignore=SOCKETS)
        await stop_cleanly(opener, stopped)
        for number in range(
            count + 2
        ):  # the first two are whole: they show that all is right with the comparison
            left = stopped if number % 2 else site.data_dir
            what = _copy(left, copy, seed, number, damage)
            opened = await served(opener, copy, most)
            found = opened.served or {}
            problems, missing, back = judge(kept, acked, found)
            miscounted = [
                f"{queue} said {said} and served {len(found.get(queue, ()))}"
                for queue, said in opened.counts.items()
                if said != len(found.get(queue, ()))
            ]
            unlike = bool(missing or miscounted) and opened.served is not None
            # what it knows to be damaged it logs once a second, and when it is stopped
            status = opener.stop() if unlike else opener.end()
            log = opener.text("out") + opener.text("err")
            aborted = os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL
            totals.cycles += 1
            totals.notes["acked messages came back"] += back
            totals.counted += 1
            totals.counts["recovered"] += sum(map(len, found.values()))
            if opened.hangs:
                problems.append("it does not answer")
            reported = REPORTED.search(log) is not None
            totals.notes["reported in the log"] += reported
            is_reported = reported and not aborted
            if aborted:
                outcome = "aborted"
            elif opened.served is None:
                outcome = "refused"
            elif missing:
                outcome = "partly served"
            elif back or miscounted or reported:
                outcome = "served with an effect"
            else:
                outcome = "served without effect"
            if number <= 1 or ((unlike or aborted) and (not is_reported or number % CHECK_EVERY == 0)):
                _copy(left, copy, seed, number, damage)
                said = check(opener, copy)
                if number <= 1 and (said or missing or back or problems or miscounted):
                    problems.append(
                        f"without damage: {missing} missing, {miscounted}, store check says {said!r}"
                    )
                if number > 1 and not is_reported and not said:
                    lack = f"{missing} missing, {miscounted}, ended by signal {status if aborted else 'none'}"
                    problems.append(f"{lack}, and neither the log nor store check says so")
                totals.notes["found by store check"] += bool(said)
            totals.notes[outcome] += 1
            for problem in problems:
                totals.broke("O5", f"copy {number}, {what}: {problem}")
                say(f"copy {number}, {what}: VIOLATION {problem}")
            if number % every == 0 and number:
                say(f"copy {number}: {dict(totals.notes)}")
    totals.seconds = time.monotonic() - began
    return totals


def _copy(data_dir: Path, copy: Path, seed: int, number: int, damage: Damage) -> str:
    """Make copy `number` again, damaged in the same way each time; says how."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data_dir, copy, ignore=SOCKETS)
    return damage(copy, random.Random(f"{seed}/{number}")) if number > 1 else "nothing"


async def stop_cleanly(opener: Opener, folder: Path) -> None:
    opener.start(*_serve(folder))
    latest = time.monotonic() + OPEN_SECONDS
    while "Server startup complete" not in opener.text("out"):
        assert not opener.ended, opener.text("err")
        assert time.monotonic() < latest, "it does not start"
        await asyncio.sleep(0.003)
    assert 0 == opener.stop(), opener.text("err")


def check(opener: Opener, folder: Path) -> str:
    """Return the findings of `leveret store check`; empty if there are none."""
    opener.start("store", "check", "--data-dir", str(folder))
    latest = time.monotonic() + OPEN_SECONDS
    while not opener.ended and time.monotonic() < latest:
        time.sleep(0.002)
    status = opener.end()
    return "" if status == 0 else f"status {status}: {opener.text('out')}{opener.text('err')}"[:2000]
