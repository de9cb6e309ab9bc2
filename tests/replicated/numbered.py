"""A client of replicated brokers that publishes numbers, and compares what is there in the end.

The queue takes each number once: the client repeats one until it has seen the confirm, and once to each leader.
"""

import contextlib
import threading
import time

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from processes.postgresql_server import SECONDS
from replicated.cluster import Nodes
from replicated.database import POLL

ATTEMPTS = 10
ONCE = {"x-deduplicate": "message_id", "x-deduplicate-for": 24 * 60 * 60 * 1000}
LOOK_SECONDS = 2.0
"""Time for which a leader is looked for before a publisher sees whether it is to end."""


class Publisher:
    """A client that publishes numbered messages one after the other, and notes those that are confirmed."""

    QUEUE = "ledger"

    def __init__(self, nodes: Nodes, vhost: str = "/") -> None:
        self._nodes = nodes
        self.vhost = vhost
        self._is_over = threading.Event()
        self.confirmed: list[int] = []
        self.sent: list[float] = []
        """Time at which each number was sent for the first time, in seconds of the monotonic clock."""
        self.answered: list[float] = []
        """Time at which the confirm of each number was seen, by the same clock."""
        self.longest_gap = 0.0
        """Seconds between two confirms."""
        self.error: BaseException | None = None
        self.unseen = 0
        """Number of publishes that were repeated because no confirm was seen."""
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="publisher")
        self._thread.start()

    def _run(self) -> None:
        try:
            last = time.monotonic()
            while not self._is_over.is_set():
                try:
                    _, connection = self._nodes.connect(LOOK_SECONDS, self.vhost)
                except TimeoutError:
                    continue
                with contextlib.suppress(AMQPError, OSError):
                    channel = connection.channel()
                    channel.queue_declare(self.QUEUE, durable=True, arguments=ONCE)
                    channel.confirm_delivery()
                    self.unseen += self._number > len(self.confirmed)
                    for number in self.confirmed[-1:]:
                        self._publish(channel, number)
                    while not self._is_over.is_set():
                        self._number = len(self.confirmed) + 1
                        if len(self.sent) < self._number:
                            self.sent.append(time.monotonic())
                        self._publish(channel, self._number)
                        now = time.monotonic()
                        self.answered.append(now)
                        self.confirmed.append(self._number)
                        self.longest_gap = max(self.longest_gap, now - last)
                        last = now
                with contextlib.suppress(Exception):
                    connection.close()
        except BaseException as error:
            self.error = error

    def _publish(self, channel: BlockingChannel, number: int) -> None:
        body = b"%d %s" % (number, b"x" * (number % 50 * 200))
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
        channel.basic_publish("", self.QUEUE, body, properties)

    def goes_on(self, count: int = 20) -> None:
        """Wait until that many more messages are confirmed."""
        goal = len(self.confirmed) + count
        deadline = time.monotonic() + SECONDS
        while len(self.confirmed) < goal:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, f"nothing is confirmed any more in {self.vhost}"
            time.sleep(POLL)

    def end(self) -> None:
        """Publish no more."""
        self._is_over.set()
        self._thread.join(2 * SECONDS)  # it may be looking for the leader
        assert not self._thread.is_alive(), "the publisher does not end"

    def judge(self) -> list[str]:
        """Consume everything; returns what an honest broker would not have done."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(AMQPError, OSError):  # another node leads: from the beginning
                return self._judge()
        raise TimeoutError("no node leads long enough")

    def _judge(self) -> list[str]:
        _, connection = self._nodes.connect(vhost=self.vhost)
        channel = connection.channel()
        count = channel.queue_declare(self.QUEUE, passive=True).method.message_count
        got: list[int] = []
        wrong = []
        while len(got) < count:
            method, _, body = channel.basic_get(self.QUEUE)
            if method is None:
                wrong.append(f"{count} messages were counted, {len(got)} are there")
                break
            got.append(int(body.split()[0]))
        with contextlib.suppress(AMQPError, OSError):
            connection.close()  # nothing is acked: the messages stay
        if missing := sorted(set(self.confirmed) - set(got)):
            wrong.append(f"{len(missing)} confirmed messages are lost, such as {missing[:5]}")
        if len(set(got)) < len(got):
            wrong.append("a message is there twice")
        if got != sorted(got):
            wrong.append("messages are out of order")
        return wrong
