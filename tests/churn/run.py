"""Churns a broker (`make campaign NAME=churn N=1800`); see docs/reliability.md.

A line for each round, the verdict at the end. Exit code 0: no oracle objected. 1: one did; what it said is printed,
with the seed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import uvloop  # noqa: E402
from churn.memory import ALLOWED_GROWTH, MEBI  # noqa: E402
from churn.rounds import churn  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--home", type=Path, help="an existing folder for the data")
    parser.add_argument("--growth", type=float, default=ALLOWED_GROWTH / MEBI, help="MiB after the warm-up")
    arguments = parser.parse_args()
    print(f"churn: {arguments.seconds:.0f} s, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="leveret-churn-", dir=arguments.home) as home:
        verdict = uvloop.run(
            churn(
                Path(home),
                arguments.seconds,
                arguments.seed,
                say=lambda line: print(line, flush=True),
                allowed=arguments.growth * MEBI,
            )
        )
    print("\n".join(verdict.lines()))
    return 1 if verdict.failed else 0


if __name__ == "__main__":
    sys.exit(main())
