"""Celery's tasks with an ETA: how long an immediate task waits behind them: `make bench NAME=celery_delays`.

One worker with a prefetch count of 4 has four tasks with an ETA; then an immediate task is published. Celery raises the
prefetch count by one for each task that it keeps until its ETA, with `basic.qos` per channel. A broker that
treats it per consumer delivers nothing more until the first ETA. Medians of some runs, brokers in turn.

    make bench NAME=celery_delays
    make bench NAME=celery_delays ARGS="--peer rabbitmq-4.3=amqp://guest:guest@127.0.0.1:5673 --peer redis=redis://127.0.0.1"
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from celery import Celery

import leveret

ROOT = Path(__file__).parent.parent
PREFETCH = 4
SLACK = 60.0
"""Time beyond the ETA after which a task that has not run is an error, in seconds."""

app = Celery("celery_delays", broker=os.environ.get("CELERY_DELAYS_URL"))
app.conf.update(
    task_default_queue=os.environ.get("CELERY_DELAYS_QUEUE", "celery"),
    worker_concurrency=1,
    worker_prefetch_multiplier=PREFETCH,
    broker_connection_retry_on_startup=True,
)


@app.task(name="touch")
def touch(path: str) -> None:
    """Create a file."""
    Path(path).touch()


@contextlib.contextmanager
def worker(url: str, queue: str) -> Iterator[None]:
    """Run a worker of one process."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "bench.celery_delays",
            "worker",
            "--pool",
            "solo",
            "-l",
            "ERROR",
        ],
        cwd=ROOT,
        env={**os.environ, "CELERY_DELAYS_URL": url, "CELERY_DELAYS_QUEUE": queue},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def waited(path: Path, seconds: float) -> float:
    """Return the time until a file is there."""
    began = time.monotonic()
    while not path.exists():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"no task has run within {seconds:.0f} s")
        time.sleep(0.005)
    return time.monotonic() - began


def measure(url: str, folder: Path, eta: float) -> float:
    """Return the seconds that an immediate task waits behind tasks with an ETA of that many seconds."""
    queue = f"celery_delays.{uuid.uuid4().hex[:8]}"
    paths = [folder / f"{queue}.{number}" for number in range(PREFETCH + 2)]
    with worker(url, queue), Celery(broker=url) as client:

        def publish(path: Path, countdown: float = 0.0) -> None:
            client.send_task("touch", (str(path),), queue=queue, countdown=countdown)

        publish(paths[0])
        waited(paths[0], SLACK)  # the worker is up
        for path in paths[1:-1]:
            publish(path, eta)
        time.sleep(1.0)  # the worker has them
        publish(paths[-1])
        return waited(paths[-1], eta + SLACK)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--eta", type=float, default=20.0, help="seconds until the delayed tasks (default 20)"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each broker (default 3)")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=URL", help="another running broker"
    )
    arguments = parser.parse_args()
    folder = ROOT / "build" / "celery-delays"
    folder.mkdir(parents=True, exist_ok=True)
    with leveret.Broker() as broker:
        brokers = {"leveret": broker.url, **dict(each.split("=", 1) for each in arguments.peer)}
        found: dict[str, list[float]] = {name: [] for name in brokers}
        for _ in range(arguments.runs):
            for name, url in brokers.items():
                found[name].append(measure(url, folder, arguments.eta))
    print(
        f"| broker | an immediate task behind {PREFETCH} with an ETA of {arguments.eta:g} s waits, s | runs |"
    )
    print("|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times):.2f} | {', '.join(f'{each:.2f}' for each in times)} |")


if __name__ == "__main__":
    main()
