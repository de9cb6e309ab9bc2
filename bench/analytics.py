"""Scaling of the jobs of `leveret analyze`: seconds and peak memory for tables of 10^6, 10^7, ... generated rows.

    make bench NAME=analytics                         # 10^6 and 10^7 rows, from Parquet
    make bench NAME=analytics ARGS="--lines"          # from JSON Lines, as the export writes them
    make bench NAME=analytics ARGS="--rows 100000000 --jobs latency paging health --memory 6g"
    make bench NAME=analytics ARGS="--rows 100000000 --jobs health --input made"  # existing tables

Each table that a job reads has this number of rows; for `confirm-compare` it is the samples, of at most 800 runs.
`compact` always reads JSON Lines, those of the table with the shortest lines: 10^8 of another would not fit on a disk.
`validate` reads the table with the most counters, in either form.

Each job runs in a process of its own, including Spark's start. `cpu s` is the CPU time of all its processes, which is
more reliable than the seconds if other programs run; memory is the greatest sum of their resident sizes, sampled five
times a second. The exponent is that of `cpu s` over rows, minus the time of the job for 1,000 rows: 1 is proportional.
"""

import argparse
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TABLES = {
    "latency": ("latency_hist",),
    "paging": ("queue_interval",),
    "health": ("queue_interval",),
    "anomalies": ("queue_interval",),
    "validate": ("queue_interval",),
    "routing": ("exchange_interval", "topic_pattern"),
    "capacity": ("node_interval",),
    "churn": ("event",),
    "confirm-compare": ("bench_run", "bench_cost", "bench_sample"),
    "compact": ("latency_hist",),
}
LINES_ONLY = {"compact"}
LOOK_SECONDS = 0.2
SMALL = 1000


class Taken(NamedTuple):
    """Resources used by a command."""

    seconds: float
    cpu: float
    octets: int


def look(session: int, ticks: dict[str, int]) -> int:
    """Return the resident memory in bytes of a session's processes; their CPU time so far is stored in `ticks`."""
    octets = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks[path.name] = int(fields[11]) + int(fields[12])
                octets += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return octets


def timed(*command: str) -> Taken:
    """Run a command that must succeed, and return its resources."""
    begun, peak, ticks = time.monotonic(), 0, dict[str, int]()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, start_new_session=True, stderr=errors
        ) as process,
    ):
        while process.poll() is None:
            peak = max(peak, look(process.pid, ticks))
            time.sleep(LOOK_SECONDS)
        if process.returncode != 0:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read()}")
    return Taken(time.monotonic() - begun, sum(ticks.values()) / os.sysconf("SC_CLK_TCK"), peak)


def provide(folder: Path, tables: Sequence[str], rows: int, suffix: str, made: Path | None) -> float:
    """Put tables into a folder, existing ones as links; return their size in MB."""
    lacking = []
    for table in tables:
        if made is not None and any((made / table).rglob(f"*.{suffix}")):
            (folder / table).symlink_to((made / table).resolve())
        else:
            lacking.append(table)
    if lacking:
        form = ["--parquet"] if suffix == "parquet" else []
        timed("bench.generate", *lacking, "--output", str(folder), "--rows", str(rows), *form)
    files = [path for table in tables for path in (folder / table).resolve().rglob(f"*.{suffix}")]
    return sum(path.stat().st_size for path in files) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--jobs", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument(
        "--lines", action="store_true", help="what the export writes, not what `compact` does"
    )
    parser.add_argument("--memory", default="2g", help="of Spark's driver")
    parser.add_argument(
        "--input", type=Path, help="directory of tables that have the most rows asked for; others are made"
    )
    options = parser.parse_args()
    memory = ["--conf", f"spark.driver.memory={options.memory}"]
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for job in options.jobs:
        suffix = "jsonl" if options.lines or job in LINES_ONLY else "parquet"
        groups.setdefault((TABLES[job], suffix), []).append(job)
    print(f"{os.cpu_count()} cores, Spark's memory {options.memory}")
    print(
        f"{'job':<16}{'input':>8}{'rows':>13}{'input MB':>10}{'seconds':>9}{'cpu s':>9}{'peak MB':>9}{'exponent':>10}"
    )
    taken: dict[tuple[str, int], float] = {}
    for rows in [SMALL, *options.rows]:
        made = options.input if rows == max(options.rows) else None
        for (tables, suffix), jobs in groups.items():
            with tempfile.TemporaryDirectory() as folder:
                size = provide(Path(folder), tables, rows, suffix, made)
                for job in jobs:
                    where = ["--input", folder, "--output", f"{folder}/report"]
                    run = timed("analytics", job, *where, "--quiet", *memory)
                    start = taken.get((job, SMALL), 0.0)
                    taken[job, rows] = run.cpu
                    before = [each for name, each in taken if name == job and SMALL < each < rows]
                    exponent = ""
                    if before and run.cpu > start and taken[job, before[-1]] > start:
                        grown = (run.cpu - start) / (taken[job, before[-1]] - start)
                        exponent = f"{math.log(grown) / math.log(rows / before[-1]):.2f}"
                    print(
                        f"{job:<16}{suffix:>8}{rows:>13,}{size:>10,.1f}{run.seconds:>9,.1f}{run.cpu:>9,.1f}"
                        f"{run.octets / 1e6:>9,.0f}{exponent:>10}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
