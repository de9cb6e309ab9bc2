"""Runs all campaigns to their full counts (`make campaigns`), and writes what they found into docs/reliability.md.

A campaign is cut into pieces, each a process with a seed of its own. What a piece did is kept in `build/campaigns`, its
log beside it: an interrupted run goes on with the first piece that is not there, and a revision's results stay until
they are deleted. Pieces run side by side, as most of a cycle is waiting for a broker to start or for the disk.

Exit code 0: all pieces are done, and no oracle objected. 1: one did, or a piece failed: its log says what, and its name
has the seed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from processes.running import children, leash  # noqa: E402
from samples.made_tables import checked_out, put_between_marks  # noqa: E402

KEPT = ROOT / "build" / "campaigns"
PAGE = ROOT / "docs" / "reliability.md"
STALL_SECONDS = 900.0
"""A piece that writes nothing for so long is killed."""
SKIPPED = 2
"""Exit code of a campaign that cannot be run on this machine."""
_COUNTED = re.compile(r"(?<![\w.])(\d[\d,]*) ([a-z][a-z-]*(?: [a-z][a-z-]*)*)")
CRASHED = ("confirmed", "recovered", "lost", "duplicates without redelivered", "out of order")


@dataclass(frozen=True)
class Campaign:
    """One campaign.

    Args:
        name: as in the table.
        total: how much of it there is: cycles, copies, sessions, examples, messages, runs.
        piece: how much one process does.
        words: the command line of a piece, given how much it does and its number, from 0.
        shown: the counts of a piece's report that are printed.

    """

    name: str
    total: int
    piece: int
    words: Callable[[int, int], Sequence[str]]
    shown: tuple[str, ...]


def _crash(name: str) -> Callable[[int, int], Sequence[str]]:
    return lambda count, number: ("tests/crash/run.py", name, "-n", str(count), "--seed", str(1000 + number))


def _fuzz(count: int, number: int) -> Sequence[str]:
    return ("tests/fuzz/run.py", "--seed", str(1 + number), "--cases", str(count))


def _promises(count: int, number: int) -> Sequence[str]:
    return ("tests/promises/run.py", "--seed", str(1 + number), "--messages", str(count))


def _churn(_count: int, number: int) -> Sequence[str]:
    return ("tests/churn/run.py", "--seconds", "1800", "--seed", str(1 + number))


def _deferred(count: int, number: int) -> Sequence[str]:
    return ("tests/deferred/run.py", "--seed", str(1_000_000 * (1 + number)), "--walks", str(count))


CAMPAIGNS = (
    Campaign("crash", 1000, 50, _crash("crash"), CRASHED),
    Campaign("consumer-ack", 1000, 50, _crash("consumer-ack"), ("stops", *CRASHED)),
    Campaign("consumer-ack-light", 1000, 50, _crash("consumer-ack-light"), ("stops", *CRASHED)),
    Campaign("powercut", 1000, 50, _crash("powercut"), CRASHED),
    Campaign("answered", 100, 20, _crash("answered"), ("cycles", "changes answered")),
    Campaign("backup", 50, 10, _crash("backup"), CRASHED),
    Campaign("transfers", 100, 20, _crash("transfers"), CRASHED),
    Campaign("points", 100, 5, _crash("points"), ("cycles", *CRASHED)),
    Campaign("faults", 200, 20, _crash("faults"), CRASHED),
    Campaign(
        "pipeline", 300, 20, _crash("pipeline"), ("confirmed", "committed", "recovered", "lost", "violations")
    ),
    Campaign(
        "torn",
        20_000,
        500,
        _crash("torn"),
        ("served without effect", "served with an effect", "partly served", "refused", "aborted"),
    ),
    Campaign(
        "flips",
        10_000,
        500,
        _crash("flips"),
        (
            "served without effect",
            "served with an effect",
            "partly served",
            "refused",
            "aborted",
            "reported in the log",
        ),
    ),
    Campaign(
        "exchange",
        1000,
        100,
        _crash("exchange"),
        (
            "served without effect",
            "served with an effect",
            "partly served",
            "refused",
            "aborted",
            "reported in the log",
        ),
    ),
    Campaign(
        "disk-full", 20, 1, lambda _count, _number: ("tests/crash/diskfull.py",), ("confirmed", "drained")
    ),
    Campaign("fuzz", 2_000_000, 20_000, _fuzz, ("mutated sessions", "mutations", "problems")),
    Campaign(
        "model",
        50_000,
        500,
        lambda count, _number: ("tests/storage/queues/test_variable_queue.py", str(count), "100"),
        ("examples of at most",),
    ),
    Campaign(
        "confirm-properties",
        1_000_000,
        50_000,
        _promises,
        ("messages", "verdicts", "acks", "nacks", "outstanding"),
    ),
    Campaign("deferred", 20_000, 1000, _deferred, ("walks", "published", "violations")),
    Campaign("churn", 2, 1, _churn, ("rounds", *CRASHED[:1], "lost", "twice", "out of order")),
)


@dataclass(frozen=True)
class Piece:
    """One process of a campaign: how much it does, and its number from 0."""

    campaign: Campaign
    number: int
    count: int

    def kept(self, folder: Path, suffix: str) -> Path:
        """The file for its result or its log."""
        return folder / self.campaign.name / f"{self.number:04}-{self.count}{suffix}"


def pieces(campaign: Campaign, total: int) -> list[Piece]:
    """A campaign up to `total`, in pieces."""
    starts = range(0, total, campaign.piece)
    return [Piece(campaign, number, min(campaign.piece, total - at)) for number, at in enumerate(starts)]


def counts_of(log: str) -> Counter[str]:
    """Return the figures of a report, by the words behind each number; progress lines do not belong to it."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        if not line.startswith(("[", "copy ", "kill ", "stop ", "cut ", "VIOLATION")):
            for number, words in _COUNTED.findall(line):
                found[words] += int(number.replace(",", ""))
    return found


def run(piece: Piece, folder: Path, revision: str, *, stall: float = STALL_SECONDS) -> dict[str, Any]:
    """Run one piece and keep what it did; a piece that is interrupted keeps nothing."""
    log, result = piece.kept(folder, ".log"), piece.kept(folder, ".json")
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    words = [*leash(), sys.executable, "-u", *piece.campaign.words(piece.count, piece.number)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
        )
        size, grew = 0, began
        while process.poll() is None:
            time.sleep(0.05)
            if (now := log.stat().st_size) != size:
                size, grew = now, time.monotonic()
            elif time.monotonic() > grew + stall:
                output.write(f"\nkilled: nothing was written for {stall} s\n".encode())
                for pid in (*children(process.pid), process.pid):
                    os.kill(pid, signal.SIGKILL)
                process.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    kept = {
        "campaign": piece.campaign.name,
        "count": piece.count,
        "exit": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "revision": revision,
        "counts": counts_of(text),
    }
    waiting = result.with_suffix(".new")
    waiting.write_text(json.dumps(kept), encoding="utf-8")
    waiting.replace(result)
    return kept


def results(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*/*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def table(folder: Path, campaigns: Sequence[Campaign] = CAMPAIGNS) -> str:
    """The table of what all kept pieces did together."""
    kept = list(results(folder))
    lines = [
        "| campaign | done | found | failed | seconds for each | date | revision |",
        "|---|---|---|---|---|---|---|",
    ]
    for campaign in campaigns:
        own = [each for each in kept if each["campaign"] == campaign.name and each["exit"] != SKIPPED]
        if not own:
            continue
        done = sum(each["count"] for each in own)
        counts: Counter[str] = Counter()
        for each in own:
            counts.update(each["counts"])
        found = ", ".join(f"{counts[what]:,} {what}" for what in campaign.shown)
        failed = sum(each["exit"] != 0 for each in own)
        seconds = sum(each["seconds"] for each in own) / done
        dates = sorted({each["date"] for each in own})
        revisions = ", ".join(sorted({f"`{each['revision']}`" for each in own}))
        lines.append(
            f"| {campaign.name} | {done:,} of {campaign.total:,} | {found} | {failed} of {len(own)} pieces | "
            f"{seconds:.3g} | {' to '.join(dict.fromkeys((dates[0], dates[-1])))} | {revisions} |"
        )
    return "\n".join(lines) + "\n"


def write(page: Path, text: str) -> None:
    page.write_text(put_between_marks(page.read_text(encoding="utf-8"), "campaigns", text), encoding="utf-8")


def run_all(waiting: Sequence[Piece], folder: Path, revision: str, jobs: int) -> bool:
    """Run pieces, `jobs` at a time; whether all were good."""
    todo, lock, good = deque(waiting), threading.Lock(), []

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                piece = todo.popleft()
            kept = run(piece, folder, revision)
            good.append(kept["exit"] in {0, SKIPPED})
            what = {0: "done", SKIPPED: "cannot be run here"}.get(kept["exit"], f"FAILED with {kept['exit']}")
            line = f"{piece.campaign.name} {piece.number} ({piece.count:,}): {what}, {kept['seconds']} s, {len(todo)} to go"
            print(line, flush=True)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return all(good)


def main() -> int:
    """Run what is not done yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "wanted",
        nargs="*",
        metavar="NAME[=COUNT]",
        help="campaigns, with how much of each; all in full by default",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--again", action="store_true", help="repeat pieces that failed")
    parser.add_argument("--write", action="store_true", help="only write the table")
    options = parser.parse_args()
    totals = {name: int(count or 0) for name, _, count in (each.partition("=") for each in options.wanted)}
    if unknown := set(totals) - {each.name for each in CAMPAIGNS}:
        parser.error(f"no such campaign: {', '.join(sorted(unknown))}")
    good = True
    if not options.write:
        chosen = [each for each in CAMPAIGNS if not totals or each.name in totals]
        waiting = [
            piece
            for each in chosen
            for piece in pieces(each, totals.get(each.name) or each.total)
            if not _is_done(piece, KEPT, again=options.again)
        ]
        print(f"{len(waiting)} pieces, {options.jobs} at a time; what they do is kept in {KEPT}", flush=True)
        good = run_all(waiting, KEPT, checked_out(), options.jobs)
    write(PAGE, table(KEPT))
    return 0 if good and all(each["exit"] in {0, SKIPPED} for each in results(KEPT)) else 1


def _is_done(piece: Piece, folder: Path, *, again: bool) -> bool:
    path = piece.kept(folder, ".json")
    if not path.exists():
        return False
    return not again or json.loads(path.read_text(encoding="utf-8"))["exit"] == 0


if __name__ == "__main__":
    sys.exit(main())
