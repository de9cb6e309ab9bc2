"""Cost of a round of `leveret analyze --follow` as a function of the history: the same new rows after ever more.

    make bench NAME=following
    make bench NAME=following ARGS="--rows 10000 10000000 --jobs health paging --rounds 5"

The history is that of 100 queues, five seconds apart, as it is after it was read and folded. A round reads one new
file with `NEW` intervals of all queues, and makes the reports of the jobs. The first round is not counted. Time is
that of the processor, in Python and Java: other programs disturb it less.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bench import generate
from leveret.analytics.folding import fold
from leveret.analytics.follow import FOLLOWED, Follower
from leveret.analytics.locations import url
from leveret.analytics.running import analyse
from leveret.analytics.schemas import tables
from leveret.analytics.session import session

TABLE = "queue_interval"
QUEUES = 100
NEW = 12
"""Intervals of a new file."""


def quiet(_text: str) -> None:
    """Tell nothing."""


def cpu_seconds() -> float:
    """Return the processor time of this process and its Java so far."""
    ticks = 0
    for path in (Path("/proc/self"), *(Path("/proc", child) for child in _children())):
        fields = (path / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def rounds(history: int, jobs: list[str], number: int) -> tuple[list[float], int]:
    """Return the processor seconds of each round after so many rows, and the number of rows that a round reads."""
    generate.QUEUES = QUEUES  # type: ignore[misc]
    intervals = history // QUEUES
    seconds = []
    with tempfile.TemporaryDirectory() as place, session(progress=False) as spark:
        source, output = Path(place, "in"), Path(place, "out")
        folder = source / TABLE / "dt=2027-01-15" / "hour=08"
        folder.mkdir(parents=True)
        made = generate.queue_interval(spark, (intervals + NEW * (number + 2)) * QUEUES)
        number_of = (F.col("ts") - generate.START_MS) / generate.INTERVAL_MS

        def write(file: int) -> None:
            first = intervals + NEW * file
            rows = made.filter((number_of >= first) & (number_of < first + NEW))
            lines = [row[0] for row in rows.select(F.to_json(F.struct("*"))).collect()]
            (folder / f"{TABLE}-{file}-0.jsonl").write_text("".join(f"{line}\n" for line in lines))

        follower = Follower(spark, source, output)
        write(0)
        follower.catch_up([TABLE])
        past = made.filter(number_of < intervals)
        old = fold(past, tables()[TABLE], generate.START_MS + intervals * generate.INTERVAL_MS)
        rows = output / FOLLOWED / "rows" / TABLE
        # As if the first batch had been the last of the history.
        new = spark.read.schema(tables()[TABLE].schema).parquet(url(rows / "batch=0"))
        old.unionByName(new).write.parquet(url(rows / f"folded-0-{history + NEW * QUEUES}"))
        for file in range(1, number + 2):
            write(file)
            begun = cpu_seconds()
            data = follower.catch_up([TABLE])
            analyse(jobs, data, output, quiet)
            seconds.append(cpu_seconds() - begun)
        return seconds[1:], data.seen[TABLE].rows


def main() -> None:
    """Print the median round of each history, and its ratio to that of the first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 10_000_000])
    parser.add_argument("--jobs", nargs="+", default=["health", "paging"])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    first = None
    for history in chosen.rows:
        seconds, read = rounds(history, chosen.jobs, chosen.rounds)
        middle = statistics.median(seconds)
        first = first or middle
        each = " ".join(f"{one:.1f}" for one in seconds)
        sys.stdout.write(
            f"{history:>12,} rows: {middle:6.2f} s of CPU a round ({each}), reads {read:,} rows, "
            f"{middle / first:.2f} x\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
