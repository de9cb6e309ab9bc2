"""Instructions per message of the broker's own code: `make bench-instructions REF=...`.

The cases are those of `bench.hotpath`. Its times scatter by some per cent on a shared machine; instructions, as counted
by valgrind (which must be installed), hardly do. They are not times: a division counts as much as an addition, and a
cache miss as much as a hit. All copies of a message are counted together.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.hotpath import CASES, JUDGED, MOST, ROOT
from bench.revision import revision

COUNTS = (2000, 6000)
"""Numbers of messages: the difference between the two counts excludes the start."""
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def run_case(folder: Path, case: str, count: int, tool: tuple[str, ...] = ()) -> str:
    """Run one case with so many messages on the code in `folder`; return what the tool reports."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
    script = ROOT / "bench" / "hotpath.py"
    command = [*tool, sys.executable, str(script), "--count", str(count), "--once", case]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment)
    return done.stderr


def instructions(folder: Path, case: str) -> float:
    """Return the instructions per message of one case, on the code in `folder`."""
    run_case(
        folder, case, 1
    )  # compiles what was not imported before, which would count for the first number only
    totals = []
    for count in COUNTS:
        report = run_case(folder, case, count, VALGRIND)
        found = re.search(r"I\s+refs:\s+([\d,]+)", report)
        assert found is not None, report
        totals.append(int(found[1].replace(",", "")))
    return (totals[1] - totals[0]) / (COUNTS[1] - COUNTS[0])


def main() -> int:
    """Count and print; return 1 if a judged case has more than `MOST` times another revision's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="REF", required=True, help="a git revision to compare with")
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=[case for case in CASES if case in JUDGED]
    )
    options = parser.parse_args()
    if shutil.which(VALGRIND[0]) is None:
        raise SystemExit("valgrind is not installed")
    print(f"instructions per message; bar {MOST}")
    print(f"{'':38}{'here':>10}{options.against[:10]:>12}{'ratio':>8}  verdict")
    worse = 0
    with revision(options.against) as other:
        for case in options.cases:
            ours, theirs = instructions(ROOT, case), instructions(other, case)
            verdict = "-" if case not in JUDGED else "pass" if ours <= MOST * theirs else "FAIL"
            worse += verdict == "FAIL"
            print(f"{case:38}{ours:10,.0f}{theirs:12,.0f}{ours / theirs:8.4f}  {verdict}", flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
