"""Byte limits and delivery limits after a restart, seen by clients: processes, signals, a real disk."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from processes.running import Running

STARTED = "Server startup complete"
FILES = ("--set", "storage.blob_threshold=65536")
PERSISTENT = pika.BasicProperties(delivery_mode=2)
LARGE = pika.BasicProperties(delivery_mode=2, headers={"h": "x" * 500})
CELERY = pika.BasicProperties(
    delivery_mode=2,
    priority=0,
    content_type="application/json",
    content_encoding="utf-8",
    correlation_id="d" * 36,
    reply_to="r" * 36,
    headers={
        "lang": "py",
        "task": "tasks.add",
        "id": "i" * 36,
        "root_id": "i" * 36,
        "argsrepr": "(1, 2)",
        "kwargsrepr": "{}",
        "origin": "gen1@host",
        "retries": 0,
        "timelimit": [None, None],
    },
)
REJECT = {"x-overflow": "reject-publish"}
CASES: dict[str, tuple[pika.BasicProperties, dict[str, object], list[int], int, int]] = {
    # properties, arguments, sizes of the bodies, how many are acked (every other one), octets that are left to the limit
    "headers": (LARGE, {}, [10] * 500, 0, 15_000),
    "celery": (CELERY, {}, [200] * 500, 0, 100_000),
    "dead neighbours": (PERSISTENT, {}, [1000] * 80, 40, 0),
    "reject": (LARGE, REJECT, [10] * 500, 0, 500),
    "reject, dead neighbours": (PERSISTENT, REJECT, [1000] * 80, 40, 700),
    "apart": (LARGE, {}, [5000, 10, 70_000, 3, 4096, 0] * 5, 10, 900),
    "priorities": (LARGE, {"x-max-priority": 5}, [10, 200] * 50, 20, 100),
    "quorum": (LARGE, {"x-queue-type": "quorum"}, [10, 3000] * 30, 20, 100),
    "lazy": (LARGE, {"x-queue-mode": "lazy"}, [10, 300] * 50, 20, 100),
}
"""Headers are up to fifty times larger than bodies, so a limit that counted them would drop all."""


class Started:
    """A broker with a disk, and a channel in confirm mode to it."""

    def __init__(self, running: Running) -> None:
        self.running = running
        running.wait_for(STARTED)
        host, port = running.address
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.confirm_delivery()
        self.filling: BlockingChannel = self.connection.channel()
        """A channel that publishes without waiting for each confirm."""

    def end(self, number: signal.Signals) -> None:
        """Stop the broker by a signal while its clients are connected."""
        self.running.stopped_by(number)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError):
            self.connection.close()

    def put(self, queue: str, octets: int, properties: pika.BasicProperties = PERSISTENT) -> bool:
        """Publish a message with a body of so many bytes; returns whether it was confirmed."""
        try:
            self.channel.basic_publish("", queue, bytes(octets), properties)
        except pika.exceptions.NackError:
            return False
        return True

    def make_safe(self) -> None:
        """Commit everything so far: a durable declaration is answered after the commit."""
        self.channel.queue_declare("until it is safe", durable=True)
        self.channel.queue_delete("until it is safe")

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def get(self, queue: str) -> tuple[int, object]:
        """Get a message that must exist: its tag and its delivery count."""
        method, properties, _ = self.channel.basic_get(queue)
        while method is None:  # it is being read
            method, properties, _ = self.channel.basic_get(queue)
        return method.delivery_tag, (properties.headers or {}).get("x-delivery-count", 0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Return a function that starts a broker, each time on the same data; the last one is ended after the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Started:
            running = Running(tmp_path, *FILES, *arguments)
            stack.callback(stop, running)
            started = Started(running)
            stack.callback(started.close)
            return started

        yield start


def stop(running: Running) -> None:
    """End a broker that is still alive."""
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def fill(broker: Started, name: str, limit: int | None) -> int:
    """Declare a queue of `CASES`, publish and ack as the case says; returns how many messages are left."""
    properties, arguments, sizes, acked, _ = CASES[name]
    limits = {} if limit is None else {"x-max-length-bytes": limit}
    broker.channel.queue_declare(name, durable=True, arguments={**arguments, **limits})
    for size in sizes:
        broker.filling.basic_publish("", name, bytes(size), properties)
    broker.filling.queue_declare(name, passive=True)
    if acked:
        tags = [broker.get(name)[0] for _ in range(2 * acked)]
        for tag in tags[::2]:
            broker.channel.basic_ack(tag)
        for tag in tags[1::2]:
            broker.channel.basic_nack(tag, requeue=True)
    broker.make_safe()
    return len(sizes) - acked


def limit_of(name: str) -> int:
    """Return a limit that the messages of `fill` do not exceed."""
    return sum(CASES[name][2]) + CASES[name][4]


def room_of(name: str) -> int:
    """Return the bytes of bodies for which a queue of `CASES` then has room."""
    _, _, sizes, acked, room = CASES[name]
    return sum(sizes[: 2 * acked : 2]) + room


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_limits_of_octets_are_exact_after_a_restart(start, end):
    """A queue within its limit loses nothing, and is full at exactly so many bytes of bodies, whatever its history."""
    first = start()
    left = {name: fill(first, name, limit_of(name)) for name in CASES}
    assert left == {name: first.count(name) for name in CASES}
    first.end(end)
    second = start()

    assert left == {name: second.count(name) for name in CASES}
    for name, (_, arguments, *_) in CASES.items():
        rejects, room = "x-overflow" in arguments, room_of(name)
        assert not rejects or not second.put(name, room + 1)
        assert second.put(name, room), name
        assert left[name] + 1 == second.count(name), name
        assert second.put(name, 1) is not rejects
        assert second.count(name) <= left[name] + 1, name


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_policy_that_comes_with_the_start_counts_bodies(start, tmp_path, end):
    """A byte limit imported at a start drops only the messages of a queue that exceed it."""
    first = start()
    left = fill(first, "headers", None)
    fill(first, "dead neighbours", None)
    first.end(end)
    policies = [
        {"vhost": "/", "name": name[:4], "pattern": f"^{name}$", "priority": 0, "apply-to": "queues",
         "definition": {"max-length-bytes": octets}}
        for name, octets in (("headers", 5000), ("dead neighbours", 20_500))
    ]  # fmt: skip
    (tmp_path / "policies.json").write_text(json.dumps({"policies": policies}))
    second = start("--set", f"load_definitions={tmp_path / 'policies.json'}")

    assert (left, 20) == (second.count("headers"), second.count("dead neighbours"))


LIMITED: dict[str, dict[str, object]] = {
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 2},
    "classic": {"x-delivery-limit": 2},
    "priorities": {"x-delivery-limit": 2, "x-max-priority": 5},
}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_delivery_counts_go_on_after_a_restart(start, end):
    """A message is delivered as often as its limit allows, with its delivery count, across any number of restarts."""
    broker = start()
    for queue, arguments in LIMITED.items():
        broker.channel.queue_declare(queue, durable=True, arguments=arguments)
        for _ in range(3):
            broker.put(queue, 10)
    counts = []
    for number in range(3):
        for queue in LIMITED:
            (tag, count), (other, _) = broker.get(queue), broker.get(queue)
            counts.append(count)
            broker.channel.basic_nack(tag, requeue=True)
            broker.channel.basic_nack(other, requeue=True)
        if number < 2:
            broker.make_safe()
            broker.end(end)
            broker = start()

    assert [0, 0, 0, 1, 1, 1, 2, 2, 2] == counts
    assert [1, 1, 1] == [broker.count(queue) for queue in LIMITED]
