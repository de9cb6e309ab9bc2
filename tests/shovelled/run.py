"""Kills both ends of a shovel (`make campaign NAME=shovel N=100`); see docs/reliability.md.

Half of the kills with the shovel in the broker that messages come from, half with it in the other. Exit code 1 if a
confirmed message was lost, or the order was not kept.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from shovelled.kills import killed  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=100, help="kills")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    arguments = parser.parse_args()
    failed = 0
    for runs_at_source, kills in ((True, arguments.n // 2), (False, arguments.n - arguments.n // 2)):
        with tempfile.TemporaryDirectory(prefix="leveret-shovel-") as home:
            verdict = killed(Path(home), kills, arguments.seed, runs_at_source=runs_at_source)
        place = "source" if runs_at_source else "destination"
        print(
            f"shovel in the {place}, seed {arguments.seed}: kills={kills} confirmed={verdict.confirmed} "
            f"lost={len(verdict.lost)} late={len(verdict.late)} duplicates={verdict.duplicates}",
            flush=True,
        )
        if not verdict.is_good:
            print(f"lost: {verdict.lost[:20]}\nlate: {verdict.late[:20]}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
