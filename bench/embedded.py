"""Times and memory of a broker as a library: `make bench NAME=embedded`.

Medians of twenty runs: the import in an interpreter of its own each, start and stop in this process, in memory. The
memory is that of this process (VmRSS) over 200 brokers, each with a client that publishes and gets a message, after the
first twenty. Quiet processors are assumed.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pika

import leveret

ROOT = Path(__file__).parent.parent
RUNS = 20
CYCLES = (20, 200)
"""Brokers before the first measurement of memory, and between the two."""
BARS = {"import": 0.35, "start": 0.015, "stop": 0.010}
"""Maximum medians in seconds."""
GROWTH = 5.0
"""Maximum growth of memory in MB."""
_IMPORT = "import time; began = time.perf_counter(); import leveret; leveret.Broker; print(time.perf_counter() - began)"


def import_seconds() -> float:
    """Return the time of an import of `leveret.Broker` in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def life() -> tuple[float, float]:
    """Return the times of a start and a stop, in seconds."""
    broker = leveret.Broker()
    began = time.perf_counter()
    broker.start()
    started = time.perf_counter()
    broker.stop()
    return started - began, time.perf_counter() - started


def cycle() -> None:
    """Run a broker for one client and one message."""
    with (
        leveret.Broker() as broker,
        pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
    ):
        channel = connection.channel()
        channel.queue_declare("orders")
        channel.basic_publish("", "orders", b"x" * 100)
        assert channel.basic_get("orders")[2]


def resident() -> float:
    """Return the memory of this process in MB; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    (line,) = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1000


def growth() -> float:
    """Return the growth of memory in MB."""
    for _ in range(CYCLES[0]):
        cycle()
    before = resident()
    for _ in range(CYCLES[1]):
        cycle()
    return resident() - before


def main() -> int:
    """Print the figures; returns 1 if one of them is above its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs per median")
    runs = parser.parse_args().runs
    lives = [life() for _ in range(runs)]
    found = {
        "import": statistics.median(import_seconds() for _ in range(runs)),
        "start": statistics.median(start for start, _ in lives),
        "stop": statistics.median(stop for _, stop in lives),
    }
    passes = True
    for name, seconds in found.items():
        passes &= seconds <= BARS[name]
        print(f"{name:<28} {1000 * seconds:8.2f} ms   at most {1000 * BARS[name]:.0f}")
    grown = growth()
    print(f"{f'growth over {CYCLES[1]} brokers':<28} {grown:8.2f} MB   at most {GROWTH:.0f}")
    return 0 if passes and grown <= GROWTH else 1


if __name__ == "__main__":
    raise SystemExit(main())
