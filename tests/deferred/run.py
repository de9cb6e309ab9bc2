"""Random walks through a broker whose steps end early (`make campaign NAME=deferred`); see docs/reliability.md.

Exit code 0: every walk ended as it must. 1: some did not; what was wrong is printed with the seed, with which
`--seed SEED --walks 1` repeats the walk.
"""

import argparse
import faulthandler
import logging
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from deferred.pipeline import walk_pipeline  # noqa: E402
from deferred.walk import walk  # noqa: E402

MOST_SECONDS = 120.0
"""Time after which a walk that does not end is ended with the process, on a busy machine too."""
EVERY = 500
"""Walks between two lines."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=2000)
    parser.add_argument("--seconds", type=float, help="how long instead of how many")
    parser.add_argument("--seed", type=int, default=1, help="of the first walk; the next one has the next")
    arguments = parser.parse_args()
    logging.getLogger("leveret").propagate = False
    counts: Counter[str] = Counter()
    walks = violations = longest = 0
    began = time.monotonic()
    while (
        walks < arguments.walks if arguments.seconds is None else time.monotonic() < began + arguments.seconds
    ):
        seed = arguments.seed + walks
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        try:
            found = walk(seed)
            found.update(walk_pipeline(seed))
        except Exception:
            violations += 1
            print(f"seed {seed}:\n{traceback.format_exc()}", flush=True)
        else:
            longest = max(longest, found.pop("longest line"))
            counts += found
        walks += 1
        if not walks % EVERY:
            print(f"[{walks} walks to seed {seed}, {time.monotonic() - began:.0f} s]", flush=True)
    faulthandler.cancel_dump_traceback_later()
    counted = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    print(f"deferred: {walks:,} walks, {violations} violations, {counted}; up to {longest} deferred at once")
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
