"""pika publishes confirmed persistent messages while the broker is killed again and again; all are consumed.

The script an operator would write to believe us: nothing of the campaigns' own client is in it.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import pika  # noqa: E402
import pika.exceptions  # noqa: E402
from processes.running import Running, free_port  # noqa: E402

QUEUE = "accepted"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
SECONDS = 600.0


class Restarting:
    """A broker on a fixed port that is killed and started again by a thread."""

    def __init__(
        self, home: Path, kills: int, rng: random.Random, confirmed: Callable[[], int], total: int
    ) -> None:
        self.home, self.kills, self.rng = home, kills, rng
        self.confirmed, self.total = confirmed, total
        self.port = free_port()
        self.killed = 0
        self.running = self._start()
        self._thread = threading.Thread(target=self._kill)
        self._thread.start()

    def _start(self) -> Running:
        running = Running(
            self.home,
            "--set",
            "log.connection.level=error",
            "--set",
            f"listeners.tcp.1=127.0.0.1:{self.port}",
        )
        running.wait_for("Server startup complete")
        return running

    def _kill(self) -> None:
        """Kill somewhere in each part of the messages."""
        for number in range(self.kills):
            at = (number + self.rng.uniform(0.2, 0.8)) * self.total / self.kills
            deadline = time.monotonic() + SECONDS
            while self.confirmed() < at and time.monotonic() < deadline:
                time.sleep(0.002)
            self.running.process.kill()
            self.running.process.communicate(timeout=30)
            self.killed += 1
            self.running = self._start()

    def stop(self) -> int:
        """Stop in good order; the exit code."""
        self._thread.join(SECONDS)
        self.running.process.terminate()
        self.running.process.communicate(timeout=30)
        return self.running.process.returncode

    def close(self) -> None:
        """End the broker and the thread."""
        self._thread.join(SECONDS)
        if self.running.process.poll() is None:
            self.running.process.kill()
        self.running.process.communicate(timeout=30)


class Publishing:
    """Publishes numbered messages; one is confirmed when the broker has said so, and sent again if it has not."""

    def __init__(self, total: int, batch: int = 500) -> None:
        self.total, self.batch = total, batch
        self.confirmed = 0
        self.sent = 0

    def run(self, port: int) -> None:
        """Publish all, reconnecting as often as needed."""
        deadline = time.monotonic() + SECONDS
        while self.confirmed < self.total:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.confirmed} of {self.total} confirmed")
            try:
                self._publish(port)
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(0.05)

    def _publish(self, port: int) -> None:
        """Batches, each of which is confirmed as a whole: all numbers up to the last are, none was nacked."""
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        verdicts = {"ack": 0, "nack": 0}

        def note(frame: object) -> None:
            method = frame.method
            if method.NAME == "Basic.Nack":
                verdicts["nack"] += 1
            verdicts["ack"] = (
                max(verdicts["ack"], method.delivery_tag) if method.multiple else verdicts["ack"] + 1
            )

        channel._impl.add_callback(note, [pika.spec.Basic.Ack, pika.spec.Basic.Nack], one_shot=False)
        channel._impl.confirm_delivery(note)
        published = 0
        while self.confirmed < self.total:
            first = self.confirmed
            last = min(first + self.batch, self.total)
            for number in range(first, last):
                channel._impl.basic_publish("", QUEUE, b"%d" % number, PERSISTENT)
                published += 1
                self.sent += 1
            while verdicts["ack"] < published:
                connection.process_data_events(0.2)
            if verdicts["nack"]:
                raise OSError("nacked")
            self.confirmed = last
        connection.close()


def consume(port: int, total: int) -> tuple[set[int], int]:
    """Everything in the queue, acknowledged; the numbers, and how often one came more than once."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1000)
    ready = channel.queue_declare(QUEUE, passive=True).method.message_count
    numbers: set[int] = set()
    twice = 0
    for count, (method, _, body) in enumerate(channel.consume(QUEUE, inactivity_timeout=10), 1):
        if method is None:
            break
        twice += int(body) in numbers
        numbers.add(int(body))
        if count % 500 == 0 or count == ready:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if count == ready:
            break
    connection.close()
    return numbers, twice


def accept(home: Path, messages: int, kills: int, seed: int = 1) -> tuple[bool, str]:
    """Return whether every confirmed message was consumed, and a line that says it."""
    publishing = Publishing(messages)
    broker = Restarting(home, kills, random.Random(seed), lambda: publishing.confirmed, messages)
    began = time.monotonic()
    try:
        publishing.run(broker.port)
        broker._thread.join(SECONDS)
        numbers, twice = consume(broker.port, messages)
        code = broker.stop()
    finally:
        broker.close()
    missing = messages - len(numbers & set(range(messages)))
    line = (
        f"acceptance: {publishing.confirmed} confirmed of {publishing.sent} sent, {broker.killed} kills, "
        f"{len(numbers)} consumed, {missing} missing, {twice} sent twice, exit {code}, {time.monotonic() - began:.1f} s"
    )
    return missing == 0 and broker.killed == kills and code == 0, line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leveret-acceptance-") as home:
        good, line = accept(Path(home), arguments.messages, arguments.kills)
    print(line)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
