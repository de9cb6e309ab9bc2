"""Kills of the brokers at both ends of a shovel, beside a publisher; a ledger judges what has arrived.

Theory. One publisher sends numbers in order, each after the confirm of the one before, and the same one again if it got
none. A shovel with on-confirm moves them from broker A to broker B, and runs in one of the two. Both are killed at
random moments and started again on their data. At the end every confirmed number is in the queue at B; some are there
twice, because the shovel or the publisher could not know; and those that come for the first time are in order: one
shovel keeps it.
"""

import itertools
import json
import random
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

import pika
from click.testing import CliRunner
from pika.exceptions import AMQPError
from processes.running import Running, free_port

from leveret.broker.cli.ctl.main import ctl

DRAIN_SECONDS = 120.0
LONGEST_LIFE = 0.4
"""Most seconds between two kills."""
RETRY_SECONDS = 0.02


class Verdict(NamedTuple):
    """The outcome.

    Attributes:
        confirmed: numbers that A has confirmed to the publisher.
        lost: those that are not at B.
        late: numbers whose first copy came after that of a larger one.
        duplicates: further copies at B.

    """

    confirmed: int
    lost: list[int]
    late: list[int]
    duplicates: int

    @property
    def is_good(self) -> bool:
        """True if nothing was lost, and the order kept."""
        return not self.lost and not self.late


def judged(confirmed: list[int], arrived: list[int]) -> Verdict:
    seen: set[int] = set()
    late, largest = [], -1
    for number in arrived:
        if number in seen:
            continue
        seen.add(number)
        if number < largest:
            late.append(number)
        largest = max(largest, number)
    return Verdict(len(confirmed), sorted(set(confirmed) - seen), late, len(arrived) - len(seen))


class Side:
    """One of the brokers, always on the same port and data."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self._home = home
        self.port = free_port()
        self._running: Running | None = None
        self.start()

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    def start(self) -> None:
        self._running = Running(self._home, "--set", f"listeners.tcp.1=127.0.0.1:{self.port}")
        self._running.wait_for("Server startup complete")
        self._reader = threading.Thread(target=self._read, args=(self._running.process.stdout,), daemon=True)
        self._reader.start()

    @staticmethod
    def _read(log: IO[str]) -> None:
        """Read the log, which would block the broker otherwise."""
        with log:
            log.read()

    def kill(self) -> None:
        """End it with SIGKILL."""
        running = self._running
        if running is not None:
            running.process.kill()
            running.process.wait(30)
            self._reader.join(30)
            running.process.stderr.close()

    def _ctl(self, *words: str) -> str:
        result = CliRunner().invoke(ctl, ["--data-dir", str(self._home / "data"), *words])
        assert 0 == result.exit_code, result.output
        return result.stdout

    def shovel(self, **definition: str | float) -> None:
        """Set a shovel; `_` stands for `-`."""
        value = {key.replace("_", "-"): each for key, each in definition.items()}
        self._ctl("set_parameter", "shovel", "s", json.dumps(value))

    def messages(self, queue: str) -> int:
        """Return the number of messages of a queue, ready and unacked."""
        found = json.loads(self._ctl("list_queues", "--formatter", "json", "name", "messages"))
        return next((each["messages"] for each in found if each["name"] == queue), 0)


class Publisher(threading.Thread):
    """Sends numbers, one after the other, until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.confirmed: list[int] = []
        self.stops = threading.Event()

    def run(self) -> None:
        while not self.stops.is_set():
            try:
                with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
                    channel = connection.channel()
                    channel.queue_declare("a", durable=True)
                    channel.confirm_delivery()
                    while not self.stops.is_set():
                        number = len(self.confirmed)
                        channel.basic_publish(
                            "", "a", str(number), pika.BasicProperties(delivery_mode=2), mandatory=True
                        )
                        self.confirmed.append(number)
            except (AMQPError, OSError):
                time.sleep(RETRY_SECONDS)


def killed(home: Path, kills: int, seed: int, *, runs_at_source: bool) -> Verdict:
    """Kill the brokers so many times, and return the verdict.

    Args:
        home: an empty folder.
        kills: number of kills, of one broker each.
        seed: of what is killed when.
        runs_at_source: whether the shovel runs in the broker that messages come from.

    """
    chance = random.Random(seed)
    sides = source, destination = Side(home / "a"), Side(home / "b")
    publisher = Publisher(source.url)
    try:
        common = {"src_queue": "a", "dest_queue": "b"}
        if runs_at_source:
            source.shovel(src_uri="amqp://", dest_uri=destination.url, reconnect_delay=0.1, **common)
        else:
            destination.shovel(src_uri=source.url, dest_uri="amqp://", reconnect_delay=0.1, **common)
        publisher.start()
        for _ in range(kills):
            time.sleep(chance.random() * LONGEST_LIFE)
            side = chance.choice(sides)
            side.kill()
            side.start()
        publisher.stops.set()
        publisher.join(DRAIN_SECONDS)
        deadline = time.monotonic() + DRAIN_SECONDS
        while source.messages("a"):  # unacked ones, too
            assert time.monotonic() < deadline, source.messages("a")
            time.sleep(RETRY_SECONDS)
        return judged(publisher.confirmed, _drained(destination.url, destination.messages("b")))
    finally:
        publisher.stops.set()
        for side in sides:
            side.kill()


def _drained(url: str, count: int) -> list[int]:
    """Return the numbers in the queue of the destination, which has so many messages."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        found = connection.channel().consume("b", auto_ack=True, inactivity_timeout=DRAIN_SECONDS)
        return [int(body) for _, _, body in itertools.islice(found, count)]
