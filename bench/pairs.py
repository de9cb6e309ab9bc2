"""Compares Leveret with another revision under PerfTest: `python -m bench.pairs` or `make bench-pairs REF=...`.

Each pair starts both revisions with empty data directories, and runs one workload against one and then against the
other, the next pair in the other order, so that a slow minute of the machine affects both. A pair during which other
processes used more of the machine than `--quiet` is reported and repeated. The result is the median of a workload's
ratios, this revision over the other, and the geometric mean of these medians.

Two processes of the *same* revision differed by a tenth in the median of eight pairs (paper-1q), and one process kept
its lead: so each pair has processes of its own.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import geometric_mean, median

from bench import brokers, compare, perftest
from bench.results import Report
from bench.revision import revision
from bench.workloads import WORKLOADS

JUDGED = ("persist-1500", "paper-1q", "autoack-12", "confirm-ack-12", "fan-1x5")
WORKLOAD_BAR = 0.95
MEAN_BAR = 0.98
PATIENCE = 3

Measure = Callable[[brokers.Broker, int], compare.Run]
"""Runs one workload against a broker; the number is that of the pair."""
Start = Callable[[], AbstractContextManager[tuple[brokers.Broker, brokers.Broker]]]
"""Starts this revision and the other one, and stops them at the end of the block."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 0 if all bars were cleared, 1 if not, 2 if something could not run."""
    options = parser().parse_args(arguments)
    try:
        folder = perftest.fetch(options.perf_test)
        with revision(options.against) as root:
            return compared(options, folder, lambda: both(root))
    except (brokers.BrokerError, perftest.PerfTestError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


@contextmanager
def both(root: Path) -> Iterator[tuple[brokers.Broker, brokers.Broker]]:
    """Run this revision and that in the checkout `root`, each with an empty data directory."""
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as scratch, ExitStack() as running:
        started = []
        for name, checkout in (("here", brokers.ROOT), ("there", root)):
            directory = Path(scratch, name)
            directory.mkdir()
            started.append(brokers.start("leveret", directory, root=checkout))
            running.callback(started[-1].stop)
        yield started[0], started[1]


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(prog="python -m bench.pairs", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--against", metavar="REF", required=True, help="a git revision to compare with")
    made.add_argument(
        "--workload",
        nargs="+",
        choices=WORKLOADS,
        default=list(JUDGED),
        metavar="NAME",
        help=f"default: {', '.join(JUDGED)}",
    )
    made.add_argument("--pairs", type=int, default=6, help="pairs of each workload (default 6)")
    made.add_argument("--seconds", type=int, default=7, help="length of one run (default 7)")
    made.add_argument("--warm-up", type=int, default=compare.WARM_UP, help="first seconds that do not count")
    made.add_argument(
        "--quiet",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help=f"repeat a pair, up to {PATIENCE} times, beside which others took more of the machine (default 10)",
    )
    made.add_argument("--perf-test", default=perftest.VERSION, metavar="VERSION", help="PerfTest's version")
    return made


def compared(options: argparse.Namespace, folder: Path, start: Start) -> int:
    """Run all pairs and print them with their medians; returns 0 if all bars were cleared, else 1."""
    print(f"this revision beside {options.against}; {options.pairs} pairs, {options.seconds} s a run\n")
    print(f"{'workload':<16}{'here':>10}{'there':>10}{'ratio':>8}{'CPU':>8}{'other %':>9}")
    found = {}
    for name in options.workload:

        def measure(broker: brokers.Broker, number: int, name: str = name) -> compare.Run:
            return compare.run_once(WORKLOADS[name], broker, number, options, folder)

        found[name] = ratios(measure, start, options.pairs, options.quiet)
    print()
    report = Report("pairs")
    medians = {name: median(each) for name, each in found.items()}
    for name, ratio in medians.items():
        report.line(f"{name}: median of {len(found[name])} ratios", ratio, "", least=WORKLOAD_BAR)
    report.line("geometric mean of the medians", geometric_mean(medians.values()), "", least=MEAN_BAR)
    return 1 if report.missed else 0


def ratios(measure: Measure, start: Start, pairs: int, quiet: float) -> list[float]:
    """Measure `pairs` pairs, each at most `PATIENCE` times until undisturbed; returns this revision over the other."""
    kept = []
    for number in range(1, pairs + 1):
        for attempt in range(1, PATIENCE + 1):
            with start() as (here, there):
                order = (here, there) if number % 2 else (there, here)
                runs = {id(broker): measure(broker, number) for broker in order}
                ours, theirs = runs[id(here)], runs[id(there)]
            other = max(ours.other, theirs.other)
            is_disturbed = other > quiet
            ratio = ours.counted / max(theirs.counted, 1.0)
            cost = ours.cpu_us / max(theirs.cpu_us, 1e-9)
            again = is_disturbed and attempt < PATIENCE
            remark = "  disturbed, run again" if again else "  disturbed" if is_disturbed else ""
            print(
                f"{ours.workload:<16}{ours.counted:>10,.0f}{theirs.counted:>10,.0f}"
                f"{ratio:>8.3f}{cost:>8.3f}{other:>9.0f}{remark}",
                flush=True,
            )
            if not again:
                kept.append(ratio)
                break
    return kept


if __name__ == "__main__":
    sys.exit(main())
