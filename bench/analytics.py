"""How the jobs of `leveret analyze` grow: seconds and peak memory for tables of 10^6, 10^7, ... made-up rows.

    make bench-analytics                              # 10^6 and 10^7 rows
    make bench-analytics ARGS="--rows 100000000 --parquet --jobs latency paging --memory 6g"

Each job runs in a process of its own, Spark's start included (about 5 s, measured with 1,000 rows and told beside it).
Memory is the greatest sum of resident sizes of all its processes, looked at five times a second. The exponent is that
of seconds, without the start, over rows: 1 is proportional.
"""

import argparse
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = {
    "latency": "latency_hist",
    "paging": "queue_interval",
    "health": "queue_interval",
    "anomalies": "queue_interval",
}
LOOK_SECONDS = 0.2
SMALL = 1000


def resident(session: int) -> int:
    """Octets that the processes of a session have in memory."""
    octets = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                octets += int((path / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return octets


def timed(*command: str) -> tuple[float, int]:
    """Seconds and peak octets of a command that must succeed."""
    begun, peak = time.monotonic(), 0
    with subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(LOOK_SECONDS)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{process.stderr.read()}")
    return time.monotonic() - begun, peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--jobs", nargs="+", choices=TABLE, default=list(TABLE))
    parser.add_argument("--parquet", action="store_true", help="what `compact` writes, instead of lines")
    parser.add_argument("--memory", default="2g", help="of Spark's driver")
    options = parser.parse_args()
    form = ["--parquet"] if options.parquet else []
    print(
        f"{os.cpu_count()} cores, Spark's memory {options.memory}, {'Parquet' if options.parquet else 'JSON Lines'}"
    )
    print(f"{'job':<10}{'rows':>13}{'input MB':>10}{'seconds':>9}{'peak MB':>9}{'exponent':>10}")
    taken: dict[tuple[str, int], float] = {}
    for rows in [SMALL, *options.rows]:
        for job in options.jobs:
            with tempfile.TemporaryDirectory() as folder:
                timed("analytics.generate", TABLE[job], "--output", folder, "--rows", str(rows), *form)
                size = sum(
                    path.stat().st_size
                    for path in Path(folder, TABLE[job]).rglob(f"{'*.parquet' if form else '*.jsonl'}")
                )
                seconds, peak = timed(
                    "analytics", job, "--input", folder, "--output", f"{folder}/report", "--quiet",
                    "--conf", f"spark.driver.memory={options.memory}",
                )  # fmt: skip
            start = taken.get((job, SMALL), 0.0)
            taken[job, rows] = seconds
            before = [each for name, each in taken if name == job and SMALL < each < rows]
            exponent = ""
            if before and taken[job, before[-1]] > start:
                grown = (seconds - start) / (taken[job, before[-1]] - start)
                exponent = f"{math.log(grown) / math.log(rows / before[-1]):.2f}"
            print(
                f"{job:<10}{rows:>13,}{size / 1e6:>10,.1f}{seconds:>9,.1f}{peak / 1e6:>9,.0f}{exponent:>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
