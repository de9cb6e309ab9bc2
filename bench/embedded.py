"""Times and memory of a broker as a library: `make bench NAME=embedded`.

Medians of twenty runs, in memory: the import, and the import with a first start, each in a new interpreter, in seconds
of the processor and by the clock, which other work slows down; start and stop in this process. The modules are
compiled before, as pip does when it installs, also where the environment says that bytecode is not to be written. The
memory is that of a process of its own (VmRSS) over 200 brokers, after the first twenty, each with a client that
publishes and gets a message.
"""

import argparse
import os
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
BARS = {"import": 0.25, "first start": 0.25, "first start, by the clock": 0.25, "start": 0.005, "stop": 0.010}
"""Maximum medians in seconds."""
GROWTH = 5.0
"""Maximum growth of memory in MB."""
_TIMED = "import time; began = time.{0}(); import leveret; leveret.Broker{1}; print(time.{0}() - began)"


def interpreted(program: str) -> float:
    """Return the number that a program prints in a new interpreter, with modules that are compiled already."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def new_interpreters(program: str, runs: int) -> float:
    """Return the median that a program prints; a first run, which compiles, does not count."""
    return statistics.median([interpreted(program) for _ in range(runs + 1)][1:])


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
    """Return the growth of memory in MB, in a process that does nothing else."""
    return interpreted("from bench import embedded; print(embedded.grown())")


def grown() -> float:
    """Return the growth of this process in MB."""
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
        "import": new_interpreters(_TIMED.format("process_time", ""), runs),
        "first start": new_interpreters(_TIMED.format("process_time", "().start()"), runs),
        "first start, by the clock": new_interpreters(_TIMED.format("perf_counter", "().start()"), runs),
        "start": statistics.median(start for start, _ in lives),
        "stop": statistics.median(stop for _, stop in lives),
    }
    passes = True
    for name, seconds in found.items():
        passes &= seconds <= BARS[name]
        print(f"{name:<28} {1000 * seconds:8.2f} ms   at most {1000 * BARS[name]:.0f}")
    more = growth()
    print(f"{f'growth over {CYCLES[1]} brokers':<28} {more:8.2f} MB   at most {GROWTH:.0f}")
    return 0 if passes and more <= GROWTH else 1


if __name__ == "__main__":
    raise SystemExit(main())
