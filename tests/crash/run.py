"""Runs a campaign: `make campaign NAME=crash`, `make campaign NAME=crash MODE=consumer-ack`, `answered`, `backup`, `transfers-killed`, `powercut`, `crash-points`, `faults`, `pipeline`, `torn`, `flips`, `exchange`, `whole-files`, `mutants`; see docs/reliability.md.

One line for each cycle, totals at the end. Exit code 0: no oracle objected. 1: one did; what it said is printed, with
the seed. 2: the campaign cannot be run here, and why.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

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
        self.lines += 1
        seconds = time.monotonic() - self.began
        left = seconds / self.lines * (self.total - self.lines)
        print(f"[{self.lines}/{self.total} {seconds:.0f} s, {max(0, left):.0f} s left] {line}", flush=True)


def _run(campaign: Callable[..., Coroutine[Any, Any, Totals]], *more: object) -> Callable[..., Totals]:
    """Return a campaign that is run to its end, with more arguments behind its seed."""

    def run(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
        return uvloop.run(campaign(home, count, seed, *more, say=say))

    return run


def _torn(**options: Any) -> Callable[..., Totals]:
    """Return a campaign of damaged copies, which prints a hundred lines."""

    def run(home: Path, count: int, seed: int, say: Callable[[str], object]) -> Totals:
        return uvloop.run(torn.torn(home, count, seed, say=say, every=max(1, count // 100), **options))

    return run


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


def whole(home: Path, _count: int, seed: int, say: Callable[[str], object]) -> Totals:
    """Copies of which one file is missing, or another one, once each; writes the table."""
    totals, outcomes = uvloop.run(whole_files.whole_files(home, whole_files.cases(), seed, say=say))
    whole_files.write(outcomes)
    return totals


CAMPAIGNS: dict[str, tuple[Callable[..., Totals], Callable[[], str], str]] = {
    "crash": (_run(kills.kills), str, ""),
    "answered": (answers.answers, str, ""),
    "backup": (_run(backups.backups), str, ""),
    "transfers": (_run(transfers.transfers), str, ""),
    **{mode: (_run(consumer_acks.consumer_acks, mode), str, "") for mode in promises.MODES},
    "powercut": (powercut, loopdisk.why_no_power_cuts, ""),
    "points": (crash_points, tracer.why_not, ""),
    "faults": (_run(faults.faults), tracer.why_not, ""),
    "pipeline": (_run(pipelines.pipelines), str, ""),
    "torn": (_torn(), str, "memory"),
    "flips": (_torn(damage=torn.flip, name="flips"), str, "memory"),
    "exchange": (_torn(damage=torn.exchange, name="exchange"), str, "memory"),
    "whole-files": (whole, str, "memory"),
}


def main() -> int:
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
        totals = campaign(Path(home), count, arguments.seed, say=Progress(lines))
    print("\n".join(totals.lines()))
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
