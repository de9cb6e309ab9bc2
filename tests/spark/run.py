"""Kills driver, executors, Python workers and broker of a query that copies a stream: `make campaign NAME=spark`.

A publisher fills the stream meanwhile, again where it has seen no confirm. In the end each confirmed message is in the
stream, and each message of the stream is in the queue once, which drops what comes with an id again. With `--to stream`
that is a stream, too.
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pika
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from services.spark_cluster import STARTING, standalone  # noqa: E402 - needs the path

from bench import brokers  # noqa: E402
from leveret.analytics import java  # noqa: E402
from leveret.spark.connection import Consumer  # noqa: E402
from leveret.spark.messages import body_of  # noqa: E402
from leveret.spark.options import Given  # noqa: E402

STREAM, QUEUE = "in", "out"
DEDUPLICATED = {"x-deduplicate": "message_id", "x-deduplicate-for": 86_400_000}
OF_STREAMS = {"x-queue-type": "stream"}
FIRST = {"x-stream-offset": ("longstr", "first")}
LIMIT = 200
"""Messages of a micro-batch."""
RATE = 20
"""Messages a second."""
PATIENCE = 240
REST = 900
"""Seconds for what is left in the stream after the last kill."""
KINDS = ("driver", "executor", "python", "broker")


class Broker:
    """A broker of its own directory that is killed and started again at its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = brokers.free_port()
        folder.mkdir()
        self.start()

    @property
    def uri(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        self.running = brokers.start("leveret", self.folder, [f"listeners.tcp.1=127.0.0.1:{self.port}"])

    def stop(self) -> None:
        self.running.stop()

    def restart(self) -> None:
        self.running.kill()
        self.start()


class Publisher(threading.Thread):
    """Publishes numbers to the stream, each until it is confirmed."""

    def __init__(self, uri: str) -> None:
        super().__init__(daemon=True)
        self.uri = uri
        self.confirmed = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                self.publish()
            time.sleep(0.2)

    def publish(self) -> None:
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(f"{self.uri}%2F"))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.stopping.is_set():
                body = b"%d" % self.confirmed
                channel.basic_publish("", STREAM, body, pika.BasicProperties(delivery_mode=2))
                self.confirmed += 1
                connection.sleep(1 / RATE)


def declare(uri: str, queue: str, arguments: dict[str, object]) -> None:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(f"{uri}%2F"))) as connection:
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)


def bodies(uri: str, queue: str, arguments: dict[str, tuple[str, object]]) -> collections.Counter[bytes]:
    found: collections.Counter[bytes] = collections.Counter()
    with Consumer(Given({"uri": uri}).broker(), queue, 10_000, arguments) as consumer:
        while taken := consumer.take(5_000, 5).contents:
            found.update(map(body_of, taken))
            consumer.ack(consumer.taken)
    return found


class Driver:
    """The query, started again where it has ended."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.words = words
        self.log = log
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, ROOT / "tests" / "spark" / "job.py", *self.words],
                stdout=output, stderr=output, cwd=self.log.parent, env=environment(), start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the driver with its Java and its Python processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def environment() -> dict[str, str]:
    home = java.find(os.environ).home
    return os.environ | {
        "JAVA_HOME": str(java.home_for_spark(java.probe(home), os.environ)), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(ROOT),
    }  # fmt: skip


def children(workers: list[subprocess.Popen[bytes]], word: str) -> list[psutil.Process]:
    """Return the processes below the workers of the cluster that have a word in their command."""
    found = []
    for worker in workers:
        for child in psutil.Process(worker.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(word in each for each in child.cmdline()):
                    found.append(child)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--source", choices=("leveret", "rabbitmq-4.3"), default="leveret", help="the broker with the stream"
    )
    parser.add_argument("--to", choices=("queue", "stream"), default="queue", help="what the query writes to")
    parser.add_argument(
        "--control", action="store_true", help="a queue that drops nothing: there must be repeats"
    )
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    os.environ["PYTHONPATH"] = str(ROOT)  # of the executors' Python
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        broker = Broker(folder / "broker")
        stack.callback(broker.stop)
        source = broker.uri
        if chosen.source != "leveret":
            peer = stack.enter_context(brokers.running([chosen.source]))[chosen.source]
            source = f"amqp://guest:guest@127.0.0.1:{peer.port}/"
        to_stream = chosen.to == "stream"
        declare(source, STREAM, OF_STREAMS)
        arguments: dict[str, object] = {} if chosen.control else {**DEDUPLICATED}
        declare(broker.uri, QUEUE, arguments | (OF_STREAMS if to_stream else {}))
        publisher = Publisher(source)
        publisher.start()
        commits = folder / "checkpoint" / "commits"
        master, workers = stack.enter_context(standalone(folder, python=sys.executable))
        words = [source, STREAM, broker.uri, QUEUE, str(folder / "checkpoint"), str(LIMIT)]
        driver = Driver([master, *words], folder / "driver.log")
        stack.callback(driver.kill)

        def done() -> int:
            return max((int(each.name) for each in commits.glob("[0-9]*")), default=-1)

        def wait_for_work(after: int) -> None:
            end = time.monotonic() + PATIENCE
            while done() <= after:
                if driver.process.poll() is not None:
                    driver.start()
                if time.monotonic() > end:
                    sys.exit(f"no batch after {after}: {driver.log.read_text()[-5000:]}")
                time.sleep(0.1)

        wait_for_work(-1)
        for number in range(chosen.kills):
            kind = KINDS[number % len(KINDS)]
            time.sleep(chance.uniform(0, 2))
            before = done()
            match kind:
                case "driver":
                    driver.kill()
                    driver.start()
                case "broker":
                    broker.restart()
                case _:
                    word = "CoarseGrainedExecutorBackend" if kind == "executor" else "pyspark.daemon"
                    found = children(workers, word)
                    for each in chance.sample(found, min(1, len(found))):
                        each.kill()
            wait_for_work(before + 1)
            print(
                f"kill {number + 1} of {chosen.kills}: {kind}, batch {done()}, {publisher.confirmed} published",
                flush=True,
            )
        publisher.stopping.set()
        publisher.join(STARTING)
        driver.kill()
        rest = Driver(["--rest", "local[2]", *words], folder / "rest.log")
        if rest.process.wait(REST):
            sys.exit(rest.log.read_text()[-5000:])
        expected = bodies(source, STREAM, FIRST)
        found, batches = bodies(broker.uri, QUEUE, FIRST if to_stream else {}), done()
    lost = sum((expected - found).values())
    twice = sum((found - expected).values())
    unknown = sum(b"%d" % each not in expected for each in range(publisher.confirmed))
    print(
        f"{publisher.confirmed} messages confirmed, {expected.total()} in the stream, {unknown} of those missing; "
        f"{chosen.kills} kills, {driver.starts} starts of the driver, {batches} batches; "
        f"in the {chosen.to} {found.total()}: {lost} lost, {twice} twice"
    )
    sys.exit(bool(lost or unknown or chosen.control != bool(twice)))


if __name__ == "__main__":
    main()
