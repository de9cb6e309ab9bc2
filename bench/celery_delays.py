"""Celery's tasks with an ETA: what a worker and other tasks pay for them: `make bench NAME=celery_delays`.

The table has one row for each broker. Leveret is measured with the policy `hold-until-header = eta`, and without it;
the clients are the same. In this order:

1. An immediate task behind four tasks with an ETA, of a worker with a prefetch count of 4. Celery raises the count by
   one for each task that it keeps until its ETA, with `basic.qos` per channel. A broker that treats it per consumer
   delivers nothing more until the first ETA.
2. Many tasks with ETAs between a minute and an hour: the memory of the worker before and after, and how long an
   immediate task takes then, more than on an empty broker.
3. Leveret with the policy only: tasks are published, broker and worker are killed while all of them are held, and
   started again. Each task has to run once. The last time `consumer_timeout` is shorter than the ETA.

    make bench NAME=celery_delays
    make bench NAME=celery_delays ARGS="--peer rabbitmq-4.3=amqp://guest:guest@127.0.0.1:5673 --peer redis=redis://127.0.0.1"
"""

import argparse
import contextlib
import importlib.util
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from celery import Celery
from kombu.exceptions import OperationalError

from bench import brokers
from bench.results import Report

ROOT = Path(__file__).parent.parent
PREFETCH = 4
SLACK = 120.0
"""Time beyond the ETA after which a task that has not run is an error, in seconds."""
IMMEDIATE = 50
"""Immediate tasks of which the median is taken."""
LATER_MS = 10.0
WORKER_GROWTH = 8.0
"""MB by which the memory of a worker may grow, whatever the number of tasks: its own buffers."""
ETA = 6.0
"""Seconds of the tasks that are held during a kill."""
TIMEOUT_MS = 2000
POLICY = '{"hold-until-header": "eta"}'
HELD = "leveret, held"

app = Celery("celery_delays", broker=os.environ.get("CELERY_DELAYS_URL"))
app.conf.update(
    task_default_queue=os.environ.get("CELERY_DELAYS_QUEUE", "celery"),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_concurrency=1,
    worker_prefetch_multiplier=PREFETCH,
    broker_connection_retry_on_startup=True,
)


@app.task(name="note")
def note(path: str, line: str) -> None:
    """Append a line and the time to a file."""
    with Path(path).open("a") as file:
        file.write(f"{line} {time.time():.6f}\n")


@contextlib.contextmanager
def worker(url: str, queue: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of one process; one that is not killed is asked to end."""
    words = ("-A", "bench.celery_delays", "worker", "--pool", "solo", "-l", "ERROR", "--without-mingle")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *words],
            cwd=ROOT,
            env={**os.environ, "CELERY_DELAYS_URL": url, "CELERY_DELAYS_QUEUE": queue},
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def resident(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MB."""
    (line,) = [
        each
        for each in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if each.startswith("VmRSS")
    ]
    return int(line.split()[1]) / 1024


class Tasks:
    """The tasks of one queue, which write into one file.

    Args:
        url: the broker.
        folder: where the file is.
        confirms: whether each publish waits until it is confirmed; others may be lost with the broker.
    """

    def __init__(self, url: str, folder: Path, *, confirms: bool = True) -> None:
        self.url = url
        self.queue = f"celery_delays.{uuid.uuid4().hex[:8]}"
        self.path = folder / self.queue
        self.log = folder / f"{self.queue}.log"
        self.path.touch()
        self._client = Celery(broker=url)
        if url.startswith("amqp") and confirms:
            self._client.conf.broker_transport_options = {"confirm_publish": True}
        self.connect()

    def connect(self) -> None:
        """Connect the publisher, once more after a broker was killed."""
        self._connection = self._client.connection_for_write()
        self._producer = self._client.amqp.Producer(self._connection)

    def send(self, line: str, countdown: float = 0.0) -> None:
        """Publish a task that notes a line."""
        self._client.send_task(
            "note", (str(self.path), line), queue=self.queue, countdown=countdown, producer=self._producer
        )

    def close(self) -> None:
        """Close the connection of the publisher."""
        with contextlib.suppress(OSError):
            self._connection.release()

    def noted(self) -> dict[str, float]:
        """Return the lines that tasks have noted, with their times."""
        return dict(self._lines())

    def times(self) -> Counter[str]:
        """Return how often each line was noted."""
        return Counter(line for line, _ in self._lines())

    def _lines(self) -> list[tuple[str, float]]:
        rows = [row.split() for row in self.path.read_text().splitlines()]
        return [(line, float(at)) for line, at in rows]

    def wait(self, lines: Sequence[str], seconds: float) -> dict[str, float]:
        """Return what was noted once all of these lines are there."""
        deadline = time.monotonic() + seconds
        while not set(lines) <= (found := self.noted()).keys():
            if time.monotonic() > deadline:
                missing = len(set(lines) - found.keys())
                raise TimeoutError(f"{missing} of {len(lines)} tasks have not run within {seconds:.0f} s")
            time.sleep(0.01)
        return found

    def immediate(self, prefix: str) -> float:
        """Return the median of the milliseconds until immediate tasks run, one after the other."""
        took = []
        for number in range(IMMEDIATE):
            began, line = time.time(), f"{prefix}{number}"
            self.send(line)
            took.append(1000 * (self.wait([line], SLACK)[line] - began))
        return statistics.median(took)


def behind(url: str, folder: Path, eta: float) -> float:
    """Return the seconds that an immediate task waits behind tasks with an ETA of that many seconds."""
    tasks = Tasks(url, folder)
    with worker(url, tasks.queue, tasks.log):
        tasks.send("up")
        tasks.wait(["up"], SLACK)
        for number in range(PREFETCH):
            tasks.send(f"later{number}", eta)
        time.sleep(1.0)  # the worker has them
        began = time.time()
        tasks.send("now")
        waited = tasks.wait(["now"], eta + SLACK)["now"] - began
    tasks.close()
    return waited


def many(url: str, folder: Path, count: int) -> tuple[float, float, float, float]:
    """Publish tasks with ETAs between a minute and an hour.

    Returns the worker's memory before and after in MB, and the milliseconds of an immediate task before and after,
    infinite if it has not run within `SLACK`.
    """
    tasks, rng = Tasks(url, folder, confirms=False), random.Random(1)
    with worker(url, tasks.queue, tasks.log) as process:
        tasks.send("up")
        tasks.wait(["up"], SLACK)
        idle, empty = resident(process), tasks.immediate("empty")
        etas = {}
        for number in range(count):
            line, countdown = f"later{number}", rng.uniform(60, 3600)
            etas[line] = time.time() + countdown
            tasks.send(line, countdown)
        time.sleep(10.0)  # the worker has what it wants
        try:
            loaded = tasks.immediate("loaded")
        except TimeoutError:  # the worker has to take all tasks before it
            loaded = math.inf
        full = resident(process)
        early = [line for line, at in tasks.noted().items() if at < etas.get(line, 0)]
        if early:
            raise AssertionError(f"{len(early)} tasks have run before their ETA")
    tasks.close()
    return idle, full, empty, loaded


def kills(folder: Path, rounds: int, count: int, report: Report) -> None:
    """Kill broker and worker while tasks are held; each has to run once. The last time the broker has a timeout."""
    subject = started(folder)
    port = f"listeners.tcp.1=127.0.0.1:{subject.port}"
    tasks, lines = Tasks(f"amqp://guest:guest@127.0.0.1:{subject.port}//", folder), []
    early = 0
    try:
        for number in range(rounds + 1):
            is_last = number == rounds
            if is_last:
                subject.stop()
                subject = brokers.start("leveret", folder, [port, f"consumer_timeout={TIMEOUT_MS}"])
                tasks.connect()
            more = {f"{number}/{each}": ETA + each / count for each in range(count)}
            began = time.time()
            with worker(tasks.url, tasks.queue, tasks.log) as process:
                for line, eta in more.items():
                    tasks.send(line, eta)
                if not is_last:
                    process.kill()
                    subject.kill()
            if not is_last:
                subject = brokers.start("leveret", folder, [port])
                tasks.connect()
            with worker(tasks.url, tasks.queue, tasks.log):
                found = tasks.wait([*more], SLACK)
            early += sum([found[line] < began + eta for line, eta in more.items()])
            lines += more
    finally:
        subject.stop()
    times = tasks.times()
    report.fact(
        f"{len(lines)} tasks, {rounds} kills of broker and worker: none is lost",
        holds=all(map(times.get, lines)),
    )
    report.fact("none has run twice", holds=max(times.values()) == 1)
    report.fact("none has run before its ETA", holds=not early)
    text = tasks.log.read_text(errors="replace")
    report.fact(
        f"ETAs live beyond a consumer_timeout of {TIMEOUT_MS} ms", holds="PRECONDITION_FAILED" not in text
    )


def fault(url: str) -> str:
    """Return why Celery's client cannot reach a broker; empty if it can."""
    if url.startswith("redis") and not importlib.util.find_spec("redis"):  # kombu would find a None
        return "the Python package redis is not installed"
    try:
        with Celery(broker=url).connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
    except (OSError, OperationalError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def started(folder: Path) -> brokers.Broker:
    """Start a broker whose queues hold tasks until their ETA."""
    subject = brokers.start("leveret", folder)
    words = ("-m", "leveret", "ctl", "set_policy", "--apply-to", "queues", "hold", "^celery_delays", POLICY)
    subprocess.run(
        [sys.executable, *words],
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "LEVERET_DATA_DIR": str(folder / "data")},
    )
    return subject


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [" | ".join(row) for row in (names, ["---"] * len(names), *rows)]
    return "\n".join([f"| {line} |" for line in lines])


def main() -> None:
    """Print a table, and the bars of what Leveret holds; the exit code is 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--eta", type=float, default=20.0, help="seconds of the first four tasks (default 20)"
    )
    parser.add_argument(
        "--tasks", type=int, default=100_000, help="tasks of the second part (default 100,000)"
    )
    parser.add_argument("--kills", type=int, default=20, help="kills of the third part (default 20)")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=URL", help="another running broker"
    )
    arguments = parser.parse_args()
    peers = dict(each.split("=", 1) for each in arguments.peer)
    for name, url in peers.items():
        if reason := fault(url):
            parser.error(f"no connection to the peer {name} at {url}: {reason}")
    report, rows = Report("celery_delays"), []
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        places = [folder / each for each in ("held", "plain", "killed")]
        for place in places:
            place.mkdir()
        urls = {}
        for name, subject in ((HELD, started(places[0])), ("leveret", brokers.start("leveret", places[1]))):
            stack.callback(subject.stop)
            urls[name] = f"amqp://guest:guest@127.0.0.1:{subject.port}//"
        urls |= peers
        for name, url in urls.items():
            wait = behind(url, folder, arguments.eta)
            idle, full, empty, loaded = many(url, folder, arguments.tasks)
            figures = (f"{wait:.2f}", f"{idle:.0f}", f"{full:.0f}", f"{empty:.1f}", f"{loaded:.1f}")
            rows.append((name, *figures))
            print(f"{name}: {', '.join(figures)}", flush=True)
            if name == HELD:
                report.line("the worker's memory grows by", full - idle, "MB", most=WORKER_GROWTH)
                report.line("an immediate task is later by", loaded - empty, "ms", most=LATER_MS)
        kills(places[2], arguments.kills, 50, report)
    few = f"behind {PREFETCH} with an ETA of {arguments.eta:g} s, s"
    with_many = f"with {arguments.tasks:,} ETAs"
    names = ("broker", few, "worker, MB", f"{with_many}, MB", "immediate task, ms", f"{with_many}, ms")
    print(table(names, rows))
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
