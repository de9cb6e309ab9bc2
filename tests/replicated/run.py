"""Seeds of the simulation of replication (`make campaign NAME=replication-simulation`); see docs/adr/0044.

First, every planted bug must be caught within 2,000 seeds; then all seeds must pass without one. Exit code 1: a bug was
not caught, or a seed failed; `--seed SEED --seeds 1` repeats it.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from replicated.logs import Logs  # noqa: E402
from replicated.planted import BUGS, BUGS_OF_LOGS, planted  # noqa: E402
from replicated.world import World, walk  # noqa: E402

MOST = 2000
"""Seeds within which a planted bug must be caught."""
EVERY = 2000
"""Seeds between two lines."""


def caught(bug, world) -> tuple[int, str] | None:
    """Return the first seed that catches a planted bug, and what it says; None if none does."""
    with planted(bug):
        for seed in range(1, MOST + 1):
            try:
                walk(seed, world)
            except AssertionError as error:
                return seed, str(error)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="the first; the next one has the next")
    parser.add_argument("--logs", action="store_true", help="several logs, whose virtual hosts move")
    parser.add_argument("--no-bugs", action="store_true", help="only the seeds")
    arguments = parser.parse_args()
    missed = failed = 0
    world, bugs = (Logs, BUGS_OF_LOGS) if arguments.logs else (World, BUGS)
    for bug in () if arguments.no_bugs or arguments.seeds == 1 else bugs:
        found = caught(bug, world)
        missed += found is None
        print(f"{bug.__name__}: {f'seed {found[0]}: {found[1]}' if found else 'NOT CAUGHT'}", flush=True)
    counts: Counter[str] = Counter()
    began = time.process_time()
    for number in range(1, arguments.seeds + 1):
        seed = arguments.seed + number - 1
        try:
            counts.update(walk(seed, world))
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
        if number % EVERY == 0 or number == arguments.seeds:
            told = ", ".join(f"{count} {name}" for name, count in counts.items())
            print(f"{number} seeds, {failed} failed: {told}; {time.process_time() - began:.0f} s", flush=True)
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
