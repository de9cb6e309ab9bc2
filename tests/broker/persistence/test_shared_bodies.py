"""Bodies shared by many queues in a broker process: their memory and disk space, and their removal."""

import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from conformance.wire import Client
from processes.running import Running

MB = 1_000_000
ROWS = [(10, 100_000), (20, 100_000), (100, 3_000), (5, 31_000)]
"""Numbers of messages, and bytes of each."""
LOOKS = 7.0
"""Seconds in which the memory monitor checks at least twice."""
TABLES = ("blocks", "acks", "bodies", "refs", "sweeps")


class Fanned:
    """A broker, and a client that has declared queues which are all bound to one exchange."""

    def __init__(self, running: Running, queues: int, *, durable: bool, arguments: dict[str, object]) -> None:
        running.wait_for("Server startup complete")
        self.running = running
        self.client = Client(running.address, timeout=60.0).login()
        self.channel = channel = self.client.channel()
        for number in range(queues):
            names = {"queue": f"q{number}", "nowait": True}
            self.client.send(channel.number, "queue.declare", durable=durable, arguments=arguments, **names)
            self.client.send(channel.number, "queue.bind", exchange="amq.fanout", routing_key="", **names)
        channel.call("confirm.select")
        self.memory, self.disk = running.resident_memory(), self.on_disk()

    def on_disk(self) -> int:
        files = self.running.data_dir.rglob("*.*")
        return sum(path.stat().st_blocks * 512 for path in files if path.is_file())

    def publish(self, count: int, size: int, *, persistent: bool) -> None:
        """Publish to all of the queues, and wait for all confirms."""
        for number in range(count):
            self.channel.publish("amq.fanout", "", bytes([number]) * size, delivery_mode=1 + persistent)
        left = count
        while left > 0:
            ack = self.client.receive(self.channel.number, "basic.ack")
            left = count - ack.fields["delivery_tag"]

    def peak(self, seconds: float) -> tuple[float, float]:
        """Return the peak increase of memory and of disk space, in megabytes, within so many seconds."""
        memory = disk = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            memory = max(memory, self.running.resident_memory())
            disk = max(disk, self.on_disk())
            time.sleep(0.05)  # between two samples
        return (memory - self.memory) / MB, (disk - self.disk) / MB

    def consume(self, queues: Iterable[int], count: int) -> list[list[bytes]]:
        """Return the first and last byte of all bodies of some queues, consumed one queue after the other."""
        found = []
        for number in queues:
            tag = f"c{number}"
            names = {"queue": f"q{number}", "consumer_tag": tag}
            self.channel.call("basic.consume", no_ack=True, arguments={}, **names)
            bodies = [self.client.receive(self.channel.number, "basic.deliver").body for _ in range(count)]
            self.channel.call("basic.cancel", consumer_tag=tag)
            found.append([body[:1] + body[-1:] for body in bodies])
        return found

    def rows(self, environment: str) -> int:
        """Return the numbers of messages, bodies and references on disk."""
        path = str(self.running.data_dir / environment)
        with lmdb.open(path, readonly=True, create=False, max_dbs=16, map_size=1 << 40) as env:
            tables = [env.open_db(name.encode(), create=False) for name in TABLES]
            with env.begin() as txn:
                return sum(txn.stat(table)["entries"] for table in tables)


def measure(
    folder: Path, count: int, size: int, *arguments: str, persistent: bool, queues: int
) -> tuple[float, float]:
    """Return the megabytes of memory and disk used by some messages to all of the queues."""
    with Running(folder, *arguments) as running:
        fanned = Fanned(running, queues, durable=persistent, arguments={})
        with closing(fanned.client.socket):
            fanned.publish(count, size, persistent=persistent)
            return fanned.peak(LOOKS)


@pytest.mark.parametrize("persistent", [False, True], ids=["transient", "persistent"])
def test_a_body_in_many_queues_counts_once(tmp_path: Path, persistent: bool) -> None:
    """Messages that 500 queues hold take their own size, and an entry in each queue."""
    memory, disk = measure(tmp_path, 10, 100_000, persistent=persistent, queues=500)

    assert memory <= 40
    assert disk <= 10


@pytest.mark.parametrize("arguments", [{}, {"x-message-ttl": 3_600_000}], ids=["plain", "expiring"])
def test_a_body_in_many_queues_is_paged_once(tmp_path: Path, arguments: dict[str, object]) -> None:
    """A transient body is paged once for all queues if memory is short, and removed with its last message."""
    count, size, queues = 40, 30_000, 50
    with Running(tmp_path, "--set", "storage.ram_limit=1MiB") as running:
        fanned = Fanned(running, queues, durable=False, arguments=arguments)
        with closing(fanned.client.socket):
            fanned.publish(count, size, persistent=False)
            for _ in range(5):  # a busy machine pages later
                memory, disk = fanned.peak(LOOKS)
                if disk > 0.5:
                    break
            assert memory <= 40
            assert 0.5 < disk <= 10
            found = fanned.consume(range(queues), count)
            assert [[bytes([number]) * 2 for number in range(count)]] * queues == found
            until = time.monotonic() + 20
            while fanned.rows("paged") and time.monotonic() < until:
                time.sleep(0.05)  # deletions are committed a little later

            assert 0 == fanned.rows("paged")


if __name__ == "__main__":  # python -m tests.broker.test_shared_bodies [ARGUMENT...]
    for rows in ROWS:
        for is_persistent in (False, True):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
                taken = measure(Path(name), *rows, *sys.argv[1:], persistent=is_persistent, queues=2000)
            print(*rows, "persistent" if is_persistent else "transient", "MB of memory, disk:", *taken)
