"""Reproduces the experiment of the paper about confirms on consumer ack: `python -m bench.paper`.

Per queue two producers of two channels and three consumers of three, 1,500 bytes, persistent, confirms and acks; 1 to
30 queues. Leveret's three modes and RabbitMQ take turns in random order inside blocks, each run with a broker of its
own in a fresh directory. Speed-ups are paired ratios with 95 % intervals, next to the paper's. A sweep may be stopped
at any time and continued with `--resume DIR`; `--into DIR` begins it or continues it, and `--for SECONDS` does a part.
What other programs disturbed is measured again at the end, twice at most, then counted and marked.
`--short` takes 10 minutes, `--blocks 6` makes a verdict of it.
"""

import argparse
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from bench import perftest
from bench.paper_plan import (
    BUSY,
    DESIGN_QUEUES,
    LINES,
    PAPER_LINES,
    QUEUES,
    SHORT_QUEUES,
    WINDOWS,
    Done,
    Plan,
    Trial,
    remaining,
    shuffled,
)
from bench.paper_records import BenchCost, BenchRun, BenchSample, Records, RecordsError
from bench.paper_run import TrialError, git_revision, measure
from bench.results import RESULTS

PRESETS = {
    "full": {"queues": QUEUES, "seconds": 60, "cut_start": 15.0, "cut_end": 5.0, "blocks": 6},
    "short": {"queues": SHORT_QUEUES, "seconds": 30, "cut_start": 8.0, "cut_end": 2.0, "blocks": 1},
    "sweep": {"queues": QUEUES, "seconds": 12, "cut_start": 5.0, "cut_end": 1.0, "blocks": 6},
    "paper": {"queues": QUEUES, "seconds": 600, "cut_start": 15.0, "cut_end": 5.0, "blocks": 3},
}
OVERHEAD = 8.0
"""Assumed seconds of a run besides its load, until one has been measured."""
MARGIN = 1.3
"""Factor on the usual time of a run, below which none is begun: RabbitMQ takes longer than Leveret to start."""
BAR = 24

Measure = Callable[
    [Plan, Trial, Path, Callable[[float], None], int], tuple[BenchRun, list[BenchSample], BenchCost]
]


def main(arguments: Sequence[str] | None = None, measured: Measure = measure) -> int:
    """Start or continue a sweep and print its report.

    Returns:
        0; 1 if a verdict is against us; 2 if a run or everything failed; 130 or 143 if it was stopped.
    """
    command = parser()
    options = command.parse_args(arguments)
    if (options.resume or options.report) and (more := given(options)):
        command.error(f"the sweep is done as it was planned; to be left out: {', '.join(more)}")
    stamp = time.strftime("paper-%Y%m%dT%H%M%SZ", time.gmtime())
    records = Records(options.report or options.resume or options.into or options.out or RESULTS / stamp)
    # If the sweep is interrupted, its broker and load generators end with it.
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.report:
            return show(records, records.plan())
        if not options.resume and not (options.into and records.exists):
            plan = planned(command, options)
            perftest.fetch(plan.perf_test)  # a plan that cannot run leaves no directory
            records.begin(plan)
        plan = records.plan()
        folder = perftest.fetch(plan.perf_test)
        if (now := git_revision()) != plan.git:
            print(f"the sweep began with revision {plan.git}, this is {now}")
        with records.held():
            records.tidy()
            print(f"into {records.directory}", flush=True)
            failed, left = sweep(plan, records, folder, measured, options.seconds_at_most)
    except (RecordsError, perftest.PerfTestError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; to go on: python -m bench.paper --resume {records.directory}", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, previous)
    if left:
        print(f"{left} run(s) left; to go on: python -m bench.paper --resume {records.directory}")
        return 2 if failed else 0
    print()
    return max(show(records, plan), 2 if failed else 0)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m bench.paper", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    length = made.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="1, 2, 15 and 30 queues, 30 s each")
    length.add_argument(
        "--paper-length", action="store_true", help="three blocks of ten minutes each, as in the paper"
    )
    length.add_argument(
        "--sweep", action="store_true", help="12 s each, six blocks, and the 2^3 design: `make paper-sweep`"
    )
    made.add_argument("--queues", type=numbers, metavar="N,N", help=f"queue counts (default {spelt(QUEUES)})")
    made.add_argument(
        "--windows",
        type=numbers,
        metavar="N,N",
        help=f"publisher windows (default 200; a report: {spelt(WINDOWS)})",
    )
    made.add_argument(
        "--lines",
        type=line_names,
        metavar="NAME,NAME",
        help=f"what is compared (default {spelt(PAPER_LINES)})",
    )
    made.add_argument(
        "--design", type=numbers, metavar="N,N", help="queue counts of the 2^3 design (default none)"
    )
    made.add_argument(
        "--blocks", type=positive, help="how often everything is run (default 6, short 1); a verdict needs 6"
    )
    made.add_argument("--seconds", type=positive, help="length of a run (default 60, short 30)")
    made.add_argument(
        "--cut-start", type=float, metavar="SECONDS", help="not counted at the start (default 15, short 8)"
    )
    made.add_argument(
        "--cut-end", type=float, metavar="SECONDS", help="not counted at the end (default 5, short 2)"
    )
    made.add_argument("--seed", type=int, help="of the random order (default: any)")
    made.add_argument(
        "--perf-test", metavar="VERSION", help=f"PerfTest's version (default {perftest.VERSION})"
    )
    made.add_argument(
        "--out", type=Path, metavar="DIR", help="a directory for the records (default: one in bench/results)"
    )
    made.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the sweep in this directory, as it was planned"
    )
    made.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="begin a sweep in this directory, or go on with the one there",
    )
    made.add_argument(
        "--for",
        type=positive,
        dest="seconds_at_most",
        metavar="SECONDS",
        help="begin no run that would end later than this",
    )
    made.add_argument(
        "--report", type=Path, metavar="DIR", help="measure nothing, print what is in this directory"
    )
    return made


def spelt(values: Sequence[object] | dict[str, object]) -> str:
    """Return values as they are written on the command line."""
    return ",".join(map(str, values))


def positive(text: str) -> int:
    """Parse a number above 0.

    Raises:
        ValueError: it is none.
    """
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def numbers(text: str) -> list[int]:
    """Parse comma-separated numbers above 0, each once.

    Raises:
        ValueError: one is none.
    """
    return sorted({positive(each) for each in text.split(",")})


def line_names(text: str) -> list[str]:
    """Parse comma-separated names of lines.

    Raises:
        argparse.ArgumentTypeError: a name is unknown.
    """
    names = text.split(",")
    if unknown := [name for name in names if name not in LINES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(LINES)}")
    return [name for name in LINES if name in names]


def given(options: argparse.Namespace) -> list[str]:
    """Return the options of the command line that belong to a plan."""
    others = {"resume", "report", "seconds_at_most"}
    names = [
        name
        for name, value in vars(options).items()
        if value is not None and value is not False and name not in others
    ]
    return [f"--{name.replace('_', '-')}" for name in sorted(names)]


def planned(command: argparse.ArgumentParser, options: argparse.Namespace) -> Plan:
    """Return the plan of the command line; ends the program if it is invalid."""
    named = [name for name in ("short", "sweep", "paper_length") if getattr(options, name)]
    preset = PRESETS[named[0].removesuffix("_length") if named else "full"]
    chosen = {
        name: value if getattr(options, name) is None else getattr(options, name)
        for name, value in preset.items()
    }
    seconds, cut_start, cut_end = chosen["seconds"], chosen["cut_start"], chosen["cut_end"]
    if cut_start < 0 or cut_end < 0 or cut_start + cut_end > seconds - 1:
        command.error(
            f"of {seconds} s, {cut_start:g} s at the start and {cut_end:g} s at the end leave nothing to count"
        )
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    return Plan(
        sweep=f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{seed:08x}",
        seed=seed,
        seconds=seconds,
        cut_start=cut_start,
        cut_end=cut_end,
        perf_test=options.perf_test or perftest.VERSION,
        git=git_revision(),
        blocks=chosen["blocks"],
        trials=shuffled(
            seed,
            options.lines or list(PAPER_LINES),
            chosen["queues"],
            options.windows or [200],
            chosen["blocks"],
            design=options.design or (DESIGN_QUEUES if options.sweep else ()),
        ),
    )


def sweep(
    plan: Plan, records: Records, folder: Path, measured: Measure, seconds_at_most: float | None = None
) -> tuple[int, int]:
    """Run and record what is not recorded yet; returns the numbers of failures and of runs left for another time.

    `--resume` repeats failures, too. With `seconds_at_most` no run is begun that would end later.
    """
    done = records.done(plan)
    failed: set[tuple[int, int]] = set()
    began = time.monotonic()
    progress = Progress(len(done) + len(remaining(plan, done)), len(done), plan.seconds, sys.stdout)
    while waiting := [each for each in remaining(plan, done) if (each[0].number, each[1]) not in failed]:
        trial, attempt = waiting[0]
        now = time.monotonic()
        if seconds_at_most is not None and now - began + progress.each * MARGIN > seconds_at_most:
            return len(failed), len(waiting)
        progress.total = progress.done + len(waiting)
        again = f", attempt {attempt}" if attempt > 1 else ""
        what = f"block {trial.block}, {trial.queues} queue(s), -c {trial.window}, {trial.line}{again}"
        try:
            run, samples, cost = measured(
                plan, trial, folder, lambda elapsed, what=what: progress.tick(what, elapsed), attempt
            )
        except TrialError as error:
            failed.add((trial.number, attempt))
            progress.finished(f"{what}: FAILED: {error}", time.monotonic() - now)
            continue
        records.add(run, samples, cost, trial.number)
        done.add(Done(trial.number, attempt, cost.other > BUSY))
        rate = cost.messages / plan.seconds
        disturbed = f", DISTURBED ({cost.other:.0%} went to other programs)" if cost.other > BUSY else ""
        progress.finished(f"{what}: {rate:,.0f} msg/s, warm-up included{disturbed}", time.monotonic() - now)
    return len(failed), 0


class Progress:
    """A progress bar with the time left: redrawn on a terminal, a line per run otherwise.

    Args:
        total: runs of the whole plan.
        done: number of runs recorded already.
        seconds: the load of each.
        sink: the output stream.
    """

    __slots__ = ("_sink", "_terminal", "_took", "done", "seconds", "total")

    def __init__(self, total: int, done: int, seconds: int, sink: TextIO) -> None:
        self.total, self.done, self.seconds = total, done, seconds
        self._sink, self._terminal = sink, sink.isatty()
        self._took: list[float] = []

    @property
    def each(self) -> float:
        """The seconds that a run takes, broker included: the mean so far, or a guess."""
        return sum(self._took) / len(self._took) if self._took else self.seconds + OVERHEAD

    def bar(self, elapsed: float = 0.0) -> str:
        """Return the bar, `elapsed` seconds into a run."""
        each = self.each
        share = (self.done + min(elapsed / each, 0.99)) / self.total if self.total else 1.0
        left = max(0, round((self.total - self.done) * each - elapsed))
        filled = int(share * BAR)
        clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
        return f"[{'#' * filled}{'.' * (BAR - filled)}] {self.done}/{self.total} {share:4.0%}, {clock} left"

    def tick(self, what: str, elapsed: float) -> None:
        """Redraw the bar during a run."""
        if self._terminal:
            self._sink.write(f"\r{self.bar(elapsed)}  {what}\x1b[K")
            self._sink.flush()

    def finished(self, what: str, took: float) -> None:
        """Print the result of a run that took `took` seconds, including the broker."""
        self._took.append(took)
        self.done += 1
        before, after = ("\r", "\x1b[K") if self._terminal else ("", "")
        self._sink.write(f"{before}{self.bar()}  {what}{after}\n")
        self._sink.flush()


def show(records: Records, plan: Plan) -> int:
    """Print the report of the recorded runs; 1 if a verdict is against us, else 0."""
    # Loading Spark takes a second, and measuring does not need it.
    from bench.paper_report import report  # noqa: PLC0415
    from bench.paper_tables import tables_of  # noqa: PLC0415
    from leveret.analytics.reading import InputError  # noqa: PLC0415
    from leveret.analytics.session import session  # noqa: PLC0415

    with session("local[2]", light=True) as spark:
        try:
            text, good = report(plan, tables_of(spark, records.directory))
        except InputError:
            text, good = ["no run is recorded"], True
    print("\n".join(text), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
