"""Memory after a peak: unused memory is returned to the system."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance.codec import encode_header, encode_method, frame
from conformance.wire import Channel, Client
from processes.running import Running

COUNT = 60_000
AT_ONCE = 200
SECONDS = 30.0
LOAD_SECONDS = 30.0
"""Seconds to add where the broker has to wait for a processor."""
KEPT = 0.4
"""The share that may be kept: 0.19 to 0.26 are with `malloc_trim`, in arenas of Python's that a few objects hold; 0.9 without."""
SMALL_OCTETS = 70_000_000
"""Bytes that may be in use after many small messages: a single object keeps its whole megabyte."""

BROKERS = 3


def in_use(running: Running) -> int:
    """Return the bytes of memory that the broker has for itself."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def take(client: Client, count: int, body: bytes) -> None:
    """Read deliveries of that many messages, without decoding them."""
    size = len(frame(1, 1, encode_method("basic.deliver", consumer_tag="c", delivery_tag=1, redelivered=False,
                                         exchange="", routing_key="q")))  # fmt: skip
    left = count * (size + len(frame(2, 1, encode_header(len(body)))) + len(body) + 8)
    client.socket.settimeout(60)
    while left > 0:
        left -= len(client.socket.recv(1 << 20))


@contextmanager
def peak(tmp_path, count: int, body: bytes) -> Iterator[tuple[Running, Channel, Channel, int, int]]:
    """A broker with so many unacked messages; its publisher, its consumer, bytes in use before and with them."""
    words = ("--set", "log.console.level=error", "--set", "log.file=broker.log")
    with Running(tmp_path, *words, is_forked=False) as running:
        deadline = time.monotonic() + 30
        log = running.data_dir / "log" / "broker.log"
        while not log.exists() or "Server startup complete" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        port = int(log.read_text().partition("started TCP listener on 127.0.0.1:")[2].split()[0])
        publisher = Client(("127.0.0.1", port), timeout=60.0).login().channel()
        consumer = Client(("127.0.0.1", port), timeout=60.0).login().channel()
        publisher.queue("q")
        consumer.consume("q", "c")
        before = in_use(running)
        method = encode_method("basic.publish", exchange="", routing_key="q")
        one = frame(1, 1, method) + frame(2, 1, encode_header(len(body))) + frame(3, 1, body)
        for _ in range(count // AT_ONCE):
            publisher.client.raw(one * AT_ONCE)
            take(consumer.client, AT_ONCE, body)
        yield running, publisher, consumer, before, in_use(running)
        publisher.client.socket.close()
        consumer.client.socket.close()


def waited(running: Running) -> float:
    """Return the seconds in which the broker's threads together were ready to run and had no processor."""
    tasks = Path(f"/proc/{running.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def falls_to(running: Running, wanted: float) -> int:
    """Return the bytes in use once they are as few as wanted, or after half a minute without waits for a processor."""
    since, already = time.monotonic(), waited(running)
    while in_use(running) > wanted:
        seconds = time.monotonic() - since
        if seconds - min(waited(running) - already, LOAD_SECONDS) > SECONDS:
            break
        time.sleep(0.5)
    return in_use(running)


def in_one_of_some(is_given_back: Callable[[Path], bool], folder: Path) -> bool:
    """Return whether one of three brokers returns its memory: how much a few objects keep depends on where they lie."""
    for number in range(BROKERS):
        (folder / str(number)).mkdir()
        if is_given_back(folder / str(number)):
            return True
    return False


@pytest.mark.timeout(420)
def test_memory_of_a_peak_is_given_back(tmp_path):
    """Most of 120 MB of unacked messages is returned half a minute after these are gone."""

    def is_given_back(folder: Path) -> bool:
        with peak(folder, COUNT, b"x" * 2000) as (running, publisher, consumer, before, most):
            publisher.call("queue.delete", queue="q")
            publisher.client.socket.close()
            consumer.client.socket.close()
            assert most - before > 60 << 20
            wanted = before + KEPT * (most - before)
            return falls_to(running, wanted) <= wanted

    assert in_one_of_some(is_given_back, tmp_path)


@pytest.mark.timeout(420)
def test_memory_of_many_small_messages_is_given_back(tmp_path):
    """At most 70 MB are in use half a minute after 300,000 messages of 20 bytes were acked."""

    def is_given_back(folder: Path) -> bool:
        with peak(folder, 300_000, b"x" * 20) as (running, _, consumer, _, most):
            consumer.send("basic.ack", delivery_tag=0, multiple=True)
            consumer.sync()
            assert most > 110 << 20
            return falls_to(running, SMALL_OCTETS) <= SMALL_OCTETS

    assert in_one_of_some(is_given_back, tmp_path)
