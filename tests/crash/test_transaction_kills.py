"""Kills of a broker with slow flushes amid transactions: each confirmed input, or its output, is there."""

import contextlib
import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pika
import pika.exceptions
import pytest
from crash.tracer import inject, why_not
from running import Running

from leveret.broker.embedded.thread_broker import Broker

KILLS = 3
PUBLISHERS = 4
LEAST = 3
"""Transactions that are answered before a kill."""
SLOW = "delay_enter=30000"
"""Each flush takes 30 ms longer."""
PERSISTENT = pika.BasicProperties(delivery_mode=2)
SIZES = (8, 8, 8, 3000, 100_000)
"""Bytes of outputs; the largest goes to a file of its own."""
Address = tuple[str, int]
Channel = pika.adapters.blocking_connection.BlockingChannel


def work(address: Address, begin: Callable[[Channel], object]) -> threading.Thread:
    """Run a client in a thread until the broker ends."""

    def run() -> None:
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            begin(pika.BlockingConnection(pika.ConnectionParameters(*address)).channel())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def make_noise(channel: Channel) -> None:
    """Have large commits under way all the time."""
    channel.tx_select()
    while True:
        for _ in range(50):
            channel.basic_publish("", "noise", b"", PERSISTENT)
        channel.tx_commit()


class Inputs:
    """Publishes inputs, and moves them to `out` in transactions."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.answered: set[int] = set()
        """Inputs whose transactions were answered."""
        self.some_answered = threading.Semaphore(0)
        self._numbers = itertools.count(1)
        self._chance = random.Random(5)

    def publish(self, channel: Channel) -> None:
        """Publish inputs one by one, and note those that are confirmed."""
        channel.confirm_delivery()
        while True:
            number = next(self._numbers)
            channel.basic_publish("", "in", b"%08d" % number, PERSISTENT)
            self.confirmed.add(number)

    def transact(self, channel: Channel) -> None:
        """End some inputs in each transaction, and publish as many outputs."""
        channel.tx_select()
        taken: list[int] = []
        for method, _, body in channel.consume("in"):
            taken.append(int(body))
            size = self._chance.choice(SIZES)
            channel.basic_publish("", "out", body.ljust(size), PERSISTENT)
            channel.basic_ack(method.delivery_tag)
            if len(taken) >= 1 + method.delivery_tag % 3:
                channel.tx_commit()
                self.answered.update(taken)
                taken.clear()
                self.some_answered.release()


@pytest.mark.timeout(180)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("mode", ["standard", "consumer-ack", "consumer-ack-light"])
def test_confirmed_inputs_are_in_their_queue_or_their_outputs_are(tmp_path: Path, mode: str) -> None:
    """After kills amid transactions each confirmed input is in one of the two queues, and none in both."""
    inputs = Inputs()
    before = inject("fdatasync", SLOW, "1+", log=tmp_path / "strace.log")
    settings = ("--set", "storage.blob_threshold=65536")
    arguments = {"x-confirm-mode": mode}
    for _ in range(KILLS):
        with Running(tmp_path, *settings, before=before) as running:
            running.wait_for("Server startup complete")
            with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as connection:
                channel = connection.channel()
                channel.queue_declare("in", durable=True, arguments=arguments)
                for name in ("out", "noise"):
                    channel.queue_declare(name, durable=True)
            clients = (make_noise, *[inputs.publish] * PUBLISHERS, inputs.transact)
            threads = [work(running.address, client) for client in clients]
            for _ in range(LEAST):
                assert inputs.some_answered.acquire(timeout=30)
            threads[0].join(random.uniform(0.0, 0.2))
            running.process.kill()
            for thread in threads:
                thread.join()
        with Broker(data_dir=running.data_dir) as broker:
            left = [int(message.body) for message in broker.queue("in").messages]
            done = [int(message.body) for message in broker.queue("out").messages]

        assert len(left) + len(done) == len({*left, *done})
        assert set() == inputs.confirmed - {*left, *done}
        assert set() == inputs.answered - {*done}
