"""Random walks through a broker in each confirm mode (`make campaign NAME=confirm-properties`); see docs/confirms.md.

A line for each walk: messages, verdicts, seconds. Exit code 0: no oracle objected. 1: one did; what it said is printed,
and the seed is in the line.
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from promises.walk import MODES, run  # noqa: E402

MEMORY = Path("/dev/shm")


def line(mode: str, seed: int, counts: dict[str, int], seconds: float) -> str:
    decided = counts["ack"] + counts["nack"]
    return (
        f"{mode:18}  seed {seed}: {counts['published']:,} messages, {counts['copies']:,} copies, "
        f"{counts['deliveries']:,} deliveries, {counts['given back']:,} given back, "
        f"{counts['dead letters']:,} dead letters; {decided:,} verdicts: {counts['ack']:,} acks, "
        f"{counts['nack']:,} nacks; {counts['outstanding']:,} outstanding, {counts['violations']:,} violations; "
        f"{seconds:.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="in each walk")
    parser.add_argument("--seed", type=int, default=1, help="of the first walk in each mode")
    parser.add_argument("--walks", type=int, default=1, help="in each mode, with one seed after the other")
    parser.add_argument("--mode", choices=MODES, action="append", help="may be given again; all by default")
    parser.add_argument("--timeout", type=float, default=0.0, help="confirm.timeout, in seconds")
    parser.add_argument("--checked", action="store_true", help="check the invariants of queues; slow")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    failed = False
    for seed in range(arguments.seed, arguments.seed + arguments.walks):
        for mode in arguments.mode or MODES:
            started = time.monotonic()
            with tempfile.TemporaryDirectory(
                prefix="leveret-promises-", dir=MEMORY if MEMORY.is_dir() else None
            ) as home:
                ledger = run(
                    Path(home),
                    mode,
                    seed,
                    arguments.messages,
                    timeout=arguments.timeout,
                    checked=arguments.checked,
                )
            print(line(mode, seed, ledger.counts, time.monotonic() - started), flush=True)
            for violation in ledger.violations:
                failed = True
                print(f"  {violation}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
