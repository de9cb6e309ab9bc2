"""Runs a campaign: `make campaign NAME=crash`, `make campaign NAME=crash MODE=consumer-ack`, `answered`, `backup`, `transfers-killed`, `powercut`, `crash-points`, `faults`, `pipeline`, `torn`, `flips`, `exchange`, `whole-files`, `mutants`; see docs/reliability.md.

One line for each cycle, totals at the end. Exit code 0: no oracle objected. 1: one did; what it said is printed, with
the seed. 2: the campaign cannot be run here, and why.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import uvloop  # noqa: E402
from crash import (  # noqa: E402
    answers,
    backups,
    consumer_acks,
    faults,
    kills,
    loopdisk,
    pipelines,
    points,
    powercuts,
    promises,
    torn,
    tracer,
    transfers,
    whole_files,
)
from crash.kills import Totals  # noqa: E402
from crash.move_points import Moves  # noqa: E402
from crash.mutants import run as mutants  # noqa: E402

MEMORY = Path("/dev/shm")
DEFAULTS = {
    "answered": 100,
    "backup": 50,
    "transfers": 100,
    "points": 100,
    "faults": 200,
    "pipeline": 300,
    "torn": 20_000,
    "flips": 10_000,
    "exchange": 1000,
    "whole-files": len(whole_files.cases()),
    "control": 1,
}

LINES = {"points": 4, "torn": 0, "flips": 0, "exchange": 0, **dict.fromkeys(promises.MODES, 1.5)}
"""Printed for each one of the number; 0 for a hundred in all."""


class Progress:
    """Prints lines as they come, each with how far the campaign is."""

    def __init__(self, total: int) -> None:
        self.total, self.began, self.lines = total, time.monotonic(), 0

    def __call__(self, line: str) -> None:
        """Print a line."""
        self.lines += 1
        seconds = time.monotonic() - self.began
        left = seconds / self.lines * (self.total - self.lines)
        print(f"[{self.lines}/{self.total} {seconds:.0f} s, {max(0, left):.0f} s left] {line}", flush=True)


def crash(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Kill the broker with `kill -9` at random."""
    return uvloop.run(kills.kills(home, count, seed, say=say))


def answered(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Kill the broker right after its answers to changes."""
    return answers.answers(home, count, seed, say=say)


def backup(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Make backups beside the load, and start a broker on each."""
    return uvloop.run(backups.backups(home, count, seed, say=say))


def carry(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Kill the broker in the middle of transfers, so often for each kind."""
    return uvloop.run(transfers.transfers(home, count, seed, say=say))


def consumer_ack(home: Path, count: int, seed: int, say: Callable[[str], object], *, mode: str) -> Totals:
    """`kill -9` at random where consumers answer for messages, and stops at work."""
    return uvloop.run(consumer_acks.consumer_acks(home, count, seed, mode, say=say))


def powercut(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Power cuts at random, after a control that must lose something."""
    control = home / "control"
    control.mkdir()
    lost = uvloop.run(powercuts.control(control, seed, say=print))
    shutil.rmtree(control)
    if not lost.counts["O1"]:
        print("the control lost nothing: the power cuts prove nothing")
        lost.counts["violations"] += 1
        return lost
    print(f"control without flushing: {lost.counts['O1']} objections of O1, as it must be")
    return uvloop.run(powercuts.powercuts(home, count, seed, say=say))


def crash_points(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Every flush and every write of `count` workloads of each kind, then every flush with the power cut."""
    numbers = range(seed, seed + count)
    kinds = (points.Workload, Moves)
    runs = [uvloop.run(points.points(home, numbers, say=say, kind=kind)) for kind in kinds]
    if reason := loopdisk.why_no_power_cuts():
        print(f"no power cuts: {reason}")
    else:
        for kind in kinds:
            with loopdisk.LoopDisk(home) as disk:
                runs.append(
                    uvloop.run(
                        points.points(
                            disk.mount_point, numbers, say=say, calls=("fdatasync",), disk=disk, kind=kind
                        )
                    )
                )
    *others, last = runs
    for totals in others:
        print("\n".join(totals.lines()))
        last.counts.update(totals.counts)
        last.violations += totals.violations
    return last


def fail(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Run on a disk that fails."""
    return uvloop.run(faults.faults(home, count, seed, say=say))


def transact(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Kill the broker under transactions."""
    return uvloop.run(pipelines.pipelines(home, count, seed, say=say))


def tear(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Start on damaged copies."""
    return uvloop.run(torn.torn(home, count, seed, say=say, every=max(1, count // 100)))


def flip(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Copies whose store has a bit turned round."""
    every = max(1, count // 100)
    return uvloop.run(torn.torn(home, count, seed, say=say, every=every, damage=torn.flip, name="flips"))


def whole(home: Path, _count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Copies of which one file is missing, or another one, once each; writes the table."""
    totals, outcomes = uvloop.run(whole_files.whole_files(home, whole_files.cases(), seed, say=say))
    whole_files.write(outcomes)
    return totals


def exchange(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Copies whose store has pages in each other's place."""
    every = max(1, count // 100)
    return uvloop.run(
        torn.torn(home, count, seed, say=say, every=every, damage=torn.exchange, name="exchange")
    )


CAMPAIGNS: dict[str, tuple[Callable[..., Totals], Callable[[], str], str]] = {
    "crash": (crash, str, ""),
    "answered": (answered, str, ""),
    "backup": (backup, str, ""),
    "transfers": (carry, str, ""),
    **{mode: (partial(consumer_ack, mode=mode), str, "") for mode in promises.MODES},
    "powercut": (powercut, loopdisk.why_no_power_cuts, ""),
    "points": (crash_points, tracer.why_not, ""),
    "faults": (fail, tracer.why_not, ""),
    "pipeline": (transact, str, ""),
    "torn": (tear, str, "memory"),
    "flips": (flip, str, "memory"),
    "exchange": (exchange, str, "memory"),
    "whole-files": (whole, str, "memory"),
}


def main() -> int:
    """Run one campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", choices=[*CAMPAIGNS, "mutants"])
    parser.add_argument("-n", "--number", type=int, help="how many cycles (workloads, copies)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--home", type=Path, help="an existing folder for the data, on the disk to be tested")
    parser.add_argument("--only", help="one mutant")
    arguments = parser.parse_args()
    if arguments.campaign == "mutants":
        return mutants.run_all(arguments.only)
    campaign, why_not, where = CAMPAIGNS[arguments.campaign]
    if reason := why_not():
        print(f"{arguments.campaign}: {reason}")
        return 2
    count = arguments.number or DEFAULTS.get(arguments.campaign, 1000)
    print(f"{arguments.campaign}: {count}, seed {arguments.seed}", flush=True)
    folder = arguments.home or (MEMORY if where == "memory" and MEMORY.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="leveret-crash-", dir=folder) as home:
        lines = int(count * LINES.get(arguments.campaign, 1)) or 100
        totals = campaign(Path(home), count, arguments.seed, Progress(lines))
    print("\n".join(totals.lines()))
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
