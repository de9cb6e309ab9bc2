"""Time to the first answer of `leveret analyze all` for a day of one node, and to the next ones.

    make bench NAME=first_answer                         # makes build/day, then five cold runs and five of a server
    make bench NAME=first_answer ARGS="--tables queue_interval node_interval"
    make bench NAME=first_answer ARGS="--times 1 --input build/demo/export"    # the hour of `make demo-export`

The day has 30 queues, 30 connections and 4 exchanges whose rows are written every two seconds, as by a broker of
`export.interval=2s` in which everything changes all the time: the most rows that such a node can write. One queue's
consumer is too slow for an hour, and one is gone in the end. `cold` is a command of its own, `unchanged` the same
again, `asked again` one that a running `--serve` answers, after a file with new rows has come. A cold one has its
processor time beside the wall time, with that of its Java.
"""

import argparse
import contextlib
import ctypes
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from leveret.analytics.schemas import tables

ROOT = Path(__file__).parent.parent
START = datetime(2026, 11, 24, tzinfo=UTC)
SECONDS = 24 * 3600
STEP = 2
QUEUES = 30
CONNECTIONS = 30
EXCHANGES = 4
FILE_SECONDS = 60
READY_SECONDS = 120
PR_SET_CHILD_SUBREAPER = 36
EMPTY: Mapping[str, Any] = {"integer": 0, "long": 0, "double": 0.0, "string": "", "boolean": False}
DEFAULT_TABLES = (
    "queue_interval",
    "node_interval",
    "exchange_interval",
    "conn_interval",
    "latency_hist",
    "event",
)


def blank(table: str) -> dict[str, Any]:
    """Return a row of zeros."""
    made: dict[str, Any] = {}
    for column in tables()[table].columns:
        kind = column.type
        made[column.name] = EMPTY[kind] if isinstance(kind, str) else ({} if kind["type"] == "map" else [])
    return made | {"v": 1, "node": "rabbit@day", "boot_id": "day"}


def queue_rows(second: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of all queues at a second of the day."""
    base = blank("queue_interval")
    since = round(START.timestamp() * 1000)
    for number in range(QUEUES):
        rate = 1 + number % 7 + (second // 3600 % 24) // 6
        came = rate * second
        ready, consumers = (second + number) % 3, 2
        if number == 3:  # slow for an hour from noon on, and an hour to recover
            ready += max(0, min(second - 12 * 3600, 14 * 3600 - second)) // 2
        if number == 5 and second > 20 * 3600:
            ready, consumers = ready + rate * (second - 20 * 3600), 0
        done = came - ready
        area = second * 1_000_000
        yield base | {
            "vhost": "/", "queue": f"work.{number}", "since_ms": since, "type": "classic", "durable": True,
            "mode": "standard", "ready": ready, "alpha": ready, "unacked": number % 4, "consumers": consumers,
            "capacity": 1.0, "target_ram": -1.0, "pub": came, "delivered": done + number % 4, "acked": done,
            "area_ready": area, "area_alpha": area, "area_unacked": number % 4 * area,
        }  # fmt: skip


def node_rows(second: int) -> Iterator[dict[str, Any]]:
    """Yield the row of the node."""
    came = sum((1 + number % 7) * second for number in range(QUEUES))
    yield blank("node_interval") | {
        "connections": CONNECTIONS, "channels": CONNECTIONS, "queues": QUEUES, "consumers": 2 * QUEUES,
        "mem_used": 10**8 + second % 3600 * 1000, "mem_limit": 10**9, "disk_free": 10**11 - second * 1000,
        "disk_limit": 10**9, "published": came, "confirmed": came, "delivered": came, "acked": came,
        "cpu_user_us": came * 40 + second * 10_000, "cpu_sys_us": came * 10, "loop_lag_p99_us": 2000,
    }  # fmt: skip


def exchange_rows(second: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the exchanges."""
    base = blank("exchange_interval")
    for number in range(EXCHANGES):
        came = (number + 1) * 10 * second
        yield base | {
            "vhost": "/", "exchange": f"shop.{number}", "since_ms": round(START.timestamp() * 1000),
            "type": "topic", "bindings": 8, "pub_in": came, "routed": came, "fanout_sum": came * 2,
            "route_lookups": came // 10,
        }  # fmt: skip


def connection_rows(second: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the connections."""
    base = blank("conn_interval")
    for number in range(CONNECTIONS):
        count = (1 + number % 7) * second
        yield base | {
            "conn_id": f"127.0.0.1:{40_000 + number} -> 127.0.0.1:5672",
            "since_ms": round(START.timestamp() * 1000), "user": "guest", "vhost": "/", "state": "running",
            "channels": 1, "recv_bytes": count * 500, "sent_bytes": count * 30, "published": count,
            "confirmed": count,
        }  # fmt: skip


def latency_rows(second: int) -> Iterator[dict[str, Any]]:
    """Yield the histograms of the node and of the queues."""
    base = blank("latency_hist") | {"scheme": "ll5", "vhost": "/", "mode": "standard"}
    for number in range(-3, QUEUES):
        low = 200 + (second // STEP + number) % 40
        what = {"scope": "queue", "name": f"work.{number}", "metric": "deliver"}
        if number < 0:
            what = {"scope": "node", "name": "", "metric": ("confirm", "deliver", "commit")[number]}
        bucket = 32 * (low.bit_length() - 5) + (low >> (low.bit_length() - 6))
        yield base | what | {
            "count": 3, "sum_us": 3 * low, "min_us": low, "max_us": low, "b": [{"i": bucket, "c": 3}],
        }  # fmt: skip


def event_rows(second: int) -> Iterator[dict[str, Any]]:
    """Yield a few events: the start, and connections of one client that come and go."""
    base = blank("event")
    if second == STEP:
        yield base | {"kind": "start", "name": "0.2.0"}
    if second % 600 == 0:
        kind = "connection_opened" if second % 1200 else "connection_closed"
        yield base | {
            "kind": kind,
            "name": str(second // 1200),
            "detail": {"peer": "127.0.0.1", "user": "guest"},
        }


ROWS = {
    "queue_interval": queue_rows,
    "node_interval": node_rows,
    "exchange_interval": exchange_rows,
    "conn_interval": connection_rows,
    "latency_hist": latency_rows,
    "event": event_rows,
}


def write_file(folder: Path, table: str, first: int) -> int:
    """Write the file of a minute of a table, as the broker does; return its number of rows."""
    encode = msgspec.json.Encoder().encode
    start_ms = round(START.timestamp() * 1000)
    lines = []
    for second in range(first + STEP, first + FILE_SECONDS + 1, STEP):
        now = {"ts": start_ms + second * 1000, "mono_us": second * 1_000_000}
        lines += [encode(row | now) for row in ROWS[table](second)]
    if lines:
        at = datetime.fromtimestamp(START.timestamp() + first, UTC)
        place = folder / table / f"dt={at:%Y-%m-%d}" / f"hour={at:%H}" / "node=rabbit@day"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{table}-{start_ms + first * 1000}-1.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return len(lines)


def make(folder: Path, names: Sequence[str]) -> None:
    """Write the day, unless it is there."""
    for name in names:
        if not (folder / name).exists():
            unfinished = folder / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            rows = sum(write_file(unfinished, name, first) for first in range(0, SECONDS, FILE_SECONDS))
            (unfinished / name).rename(folder / name)
            (folder / f"{name}.rows").write_text(str(rows))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "leveret", "analyze", *words]


def timed(*words: str) -> float:
    """Run a command that must succeed; return its seconds."""
    begun = time.monotonic()
    done = subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return time.monotonic() - begun


def cold(output: Path, words: Sequence[str]) -> tuple[float, float]:
    """Run a command that finds nothing kept; return its seconds, and those of processors, its Java's included."""
    shutil.rmtree(output, ignore_errors=True)
    before = of_children()
    wall = timed(*words)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return wall, of_children() - before


def adopt() -> None:
    """Become the parent of a Java when the command that started it ends, so that its processor time is counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def of_children() -> float:
    """Return the processor time of children that have ended, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def server(*words: str) -> Iterator[None]:
    """Run a server, which is ready when it has answered its first request."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command(*words, "--serve", "--listen", "127.0.0.1:0"), cwd=ROOT, stderr=errors
        )
        try:
            end = time.monotonic() + READY_SECONDS
            while "is ready" not in (errors.seek(0), errors.read())[1]:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit("the server did not start")
                time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def told(name: str, wall: Sequence[float], used: Sequence[float] = ()) -> None:
    processors = f"processors {' '.join(f'{each:.1f}' for each in used)}   " if used else ""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"{name:<14}{statistics.median(wall):>8.1f} s   {' '.join(f'{each:.1f}' for each in wall)}   "
        f"{processors}load {load}",
        flush=True,
    )


def day(options: argparse.Namespace, folder: Path) -> None:
    """Make the day, unless it is there, and have it in a folder of our own, into which new rows are written."""
    options.into.mkdir(parents=True, exist_ok=True)
    make(options.into, options.tables)
    for name in options.tables:
        shutil.copytree(options.into / name, folder / name, copy_function=os.link)
    rows = {name: int((options.into / f"{name}.rows").read_text()) for name in options.tables}
    print(f"{', '.join(f'{name} {count:,}' for name, count in rows.items())}; {sum(rows.values()):,} rows")


def change(options: argparse.Namespace, folder: Path, number: int) -> None:
    """Add a minute to the day; an export that is not ours gets a file that looks newer."""
    if options.input is not None:
        next(folder.rglob("*.jsonl")).touch()
        return
    for name in options.tables:
        write_file(folder, name, SECONDS + number * FILE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--into", type=Path, default=ROOT / "build" / "day", help="where the day is, or is made"
    )
    parser.add_argument("--input", type=Path, help="an export instead of the day, such as build/demo/export")
    parser.add_argument("--tables", nargs="+", choices=ROWS, default=DEFAULT_TABLES)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=("make", "cold", "again"), default=("cold", "again"))
    options = parser.parse_args()
    adopt()
    with tempfile.TemporaryDirectory(prefix="leveret-day-") as place:
        folder = Path(place) / "in"
        if options.input is None:
            day(options, folder)
        else:
            shutil.copytree(options.input, folder)
        size = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
        print(f"{size / 1e6:,.0f} MB, {os.cpu_count()} cores")
        output = Path(place) / "out"
        words = ["all", "--input", str(folder), "--output", str(output)]
        if "cold" in options.parts:
            told("cold", *zip(*[cold(output, words) for _ in range(options.times)], strict=True))
            told("unchanged", [timed(*words) for _ in range(options.times)])
        if "again" in options.parts:
            with server("--input", str(folder), "--output", str(output)):
                taken = []
                for number in range(1 + options.times):
                    change(options, folder, number)
                    taken.append(timed(*words))
                told("first asked", taken[:1])  # its session has compiled nothing yet
                told("asked again", taken[1:])


if __name__ == "__main__":
    main()
