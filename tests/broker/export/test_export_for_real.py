"""The export of a broker process compared with its clients' counts: undisturbed, after a crash, on a full disk."""

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from select import select
from typing import Any

import pika
import pytest
from conformance.wire import Client
from processes.running import serving

from leveret.broker.export.tables import AREA_MODULUS

NODE = "rabbit@test"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
IMPATIENT = """
import sys
from leveret.broker.export import writer
writer.RETRY_SECONDS = 0.1
give_up = writer.Export._give_up
async def telling(self):
    await give_up(self)
    print("given up", flush=True)
writer.Export._give_up = telling
from leveret.__main__ import main
main()
"""
OBJECTS = {
    "queue_interval": ("vhost", "queue", "since_ms"),
    "exchange_interval": ("vhost", "exchange", "since_ms"),
    "conn_interval": ("conn_id", "since_ms"),
    "node_interval": (),
}


def exported(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of finished files, by table, ordered by time."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in directory.rglob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n")
        rows[path.relative_to(directory).parts[0]] += [json.loads(line) for line in text[:-1].split("\n")]
    for table in rows.values():
        table.sort(key=lambda row: row["mono_us"])
    return rows


def series(rows: dict[str, list[dict[str, Any]]], table: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the rows of each object, ordered by time."""
    found = defaultdict(list)
    for row in rows[table]:
        found[row["boot_id"], *[row[name] for name in OBJECTS[table]]].append(row)
    return found


def total(rows: dict[str, list[dict[str, Any]]], table: str, *columns: str) -> tuple[int, ...]:
    """Return the last values of counters, summed over objects."""
    ends = [each[-1] for each in series(rows, table).values()]
    return tuple(sum(row[column] for row in ends) for column in columns)


def assert_consistent(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Check the invariants of any rows: states and areas add up, and counters never fall."""
    for row in rows["queue_interval"]:
        assert row["ready"] == row["alpha"] + row["beta"] + row["gamma"] + row["delta"]
    for row in rows["exchange_interval"]:
        assert row["pub_in"] == row["routed"] + row["unroutable_returned"] + row["unroutable_dropped"]
    for row in rows["latency_hist"]:
        assert row["count"] == sum(bucket["c"] for bucket in row["b"])
    counters = {
        "queue_interval": ("pub", "delivered", "acked", "requeued"),
        "exchange_interval": ("pub_in", "fanout_sum"),
        "conn_interval": ("published", "confirmed", "delivered", "acked", "recv_bytes"),
        "node_interval": ("published", "confirmed", "delivered", "acked", "cpu_user_us"),
    }
    for table, names in counters.items():
        for each in series(rows, table).values():
            for before, after in pairwise(each):
                assert all(before[name] <= after[name] for name in names)
    for each in series(rows, "queue_interval").values():
        for before, after in pairwise(each):
            grown = {
                name: (after[f"area_{name}"] - before[f"area_{name}"]) % AREA_MODULUS
                for name in ("ready", "unacked", "alpha", "beta", "gamma", "delta")
            }
            assert grown["ready"] == pytest.approx(
                sum(grown[name] for name in ("alpha", "beta", "gamma", "delta")), abs=4
            )
            assert max(grown.values()) < 1_000_000 * (after["mono_us"] - before["mono_us"])


class Load:
    """A client that publishes persistent messages to a fan-out, and takes them from its queues."""

    def __init__(self, address: tuple[str, int], *queues: str) -> None:
        self.address = address
        self.counted: Counter[str] = Counter()
        with self.connection() as connection:
            channel = connection.channel()
            channel.exchange_declare("spread", "fanout", durable=True)
            for queue in queues:
                channel.queue_declare(queue, durable=True)
                channel.queue_bind(queue, "spread")

    def connection(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters(*self.address))

    def publish(self, count: int) -> None:
        with self.connection() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(count):
                channel.basic_publish("spread", str(number), b"x" * 100, PERSISTENT)
                self.counted["published"] += 1

    def consume(self, queue: str, count: int) -> None:
        """Take so many messages with a prefetch of 20, requeue every tenth once, and ack them."""
        with self.connection() as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=20)
            for method, _, _ in channel.consume(queue):
                self.counted["delivered"] += 1
                self.counted["redelivered"] += method.redelivered
                if self.counted["delivered"] % 10 or method.redelivered:
                    channel.basic_ack(method.delivery_tag)
                    self.counted["acked"] += 1
                    count -= 1
                else:
                    channel.basic_nack(method.delivery_tag, requeue=True)
                    self.counted["requeued"] += 1
                if not count:
                    break
            channel.cancel()

    def publish_and_consume(self, queue: str, rounds: int, each: int) -> None:
        """In each round publish some, ack all with the last one, and await all confirms, which depend on the acks."""
        client = Client(self.address, timeout=20.0).login()
        channel = client.channel()
        channel.call("confirm.select")
        channel.consume(queue)
        for round_ in range(1, rounds + 1):
            for _ in range(each):
                channel.publish("spread", "", b"x", delivery_mode=2)
            for _ in range(each):
                last = channel.deliver()
            channel.send("basic.ack", delivery_tag=last.fields["delivery_tag"], multiple=True)
            while channel.receive("basic.ack", "basic.nack").fields["delivery_tag"] < round_ * each:
                pass
        self.counted.update(dict.fromkeys(("published", "delivered", "acked"), rounds * each))
        client.call(0, "connection.close", reply_code=200)
        client.close_socket()


def settings(directory: Path, *more: str) -> list[str]:
    chosen = [f"export.dir={directory}", "export.interval=1s", f"node_name={NODE}", *more]
    return [word for each in chosen for word in ("--set", each)]


def assert_counted(rows: dict[str, list[dict[str, Any]]], load: Load, queues: int) -> None:
    """Check that all tables agree with the client's counts, and that the queues are empty."""
    counted = load.counted
    published = counted["published"]
    expected = published, published, counted["delivered"], counted["acked"]
    columns = "published", "confirmed", "delivered", "acked"
    assert expected == total(rows, "node_interval", *columns)
    expected = tuple(counted[name] for name in ("delivered", "redelivered", "acked", "requeued"))
    assert expected == total(rows, "queue_interval", "delivered", "redelivered", "acked", "requeued")
    assert (published * queues, 0, 0, 0) == total(
        rows, "queue_interval", "pub", "ready", "unacked", "promised"
    )
    assert (published, published * queues) == total(rows, "exchange_interval", "pub_in", "fanout_sum")


def test_sums_are_those_that_clients_counted(tmp_path):
    """After some thousand messages the counters of each table are the client's, and mean times follow from areas."""
    directory = tmp_path / "export"
    with serving(tmp_path, *settings(directory)) as running:
        load = Load(running.address, "a", "b")
        for _ in range(3):
            load.publish(300)
            load.consume("a", 300)
        load.consume("b", 900)
        code, _, err = running.stopped_by(signal.SIGTERM)
    rows = exported(directory)
    ends = {row["queue"]: row for row in rows["queue_interval"]}
    measured = Counter({row["name"]: 0 for row in rows["latency_hist"]})
    times: Counter[str] = Counter()
    for row in rows["latency_hist"]:
        if "residence" == row["metric"]:
            measured[row["name"]] += row["count"]
            times[row["name"]] += row["sum_us"]

    assert (0, "") == (code, err)
    assert_consistent(rows)
    assert_counted(rows, load, 2)
    for queue in ("a", "b"):
        area = ends[queue]["area_ready"] + ends[queue]["area_unacked"]
        assert area / 900 == pytest.approx(times[queue] / measured[queue], rel=0.2)


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_sums_are_right_where_confirms_wait_for_consumers(tmp_path, mode):
    """Confirms that consumers' acks caused are counted as accepted, too."""
    directory = tmp_path / "export"
    with serving(tmp_path, *settings(directory, f"confirm.mode={mode}")) as running:
        load = Load(running.address, "q")
        load.publish_and_consume("q", 30, 50)
        code, _, err = running.stopped_by(signal.SIGTERM)
    rows = exported(directory)

    assert (0, "") == (code, err)
    assert_consistent(rows)
    assert_counted(rows, load, 1)
    assert (1500, 0) == total(rows, "queue_interval", "accepted", "refused")


def test_a_kill_leaves_what_can_be_read(tmp_path):
    """A kill leaves consistent finished files; unfinished ones are finished at the next start, and counters restart."""
    directory = tmp_path / "export"
    with serving(tmp_path, *settings(directory, "export.rotate_interval=1s")) as running:
        load = Load(running.address, "q")
        while not list(directory.rglob("queue_interval-*.jsonl")):
            load.publish(200)
        load.publish(200)
        running.process.kill()
        running.process.wait(15)
    killed, published = exported(directory), load.counted["published"]
    left = list(directory.rglob(".*.tmp"))
    for path in left:  # as if in the middle of a row
        with path.open("ab") as file:
            file.write(b'{"v":1,"ts":')

    assert_consistent(killed)
    assert 0 < total(killed, "node_interval", "published")[0] <= published
    with serving(tmp_path, *settings(directory)) as running:
        load = Load(running.address, "q")
        load.consume("q", published)
        code, _, err = running.stopped_by(signal.SIGTERM)
    rows = exported(directory)

    assert (0, "") == (code, err)
    assert [] == list(directory.rglob(".*.tmp"))
    assert all(path.with_name(path.name[1:-4]).exists() for path in left if path.name.endswith("1.jsonl"))
    assert_consistent(rows)
    assert 2 == len({row["boot_id"] for row in rows["node_interval"]})
    assert (load.counted["delivered"], published) == total(rows, "node_interval", "delivered", "acked")
    assert 0 == rows["node_interval"][-1]["ready"]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of two megabytes."""
    where = tmp_path / "small"
    where.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(where)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a tmpfs")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(path: Path) -> None:
    """Write until there is no space left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def test_a_full_disk_stops_the_export_and_not_the_broker(tmp_path, small_disk):
    """A full disk causes one warning; publishing goes on, and once there is space so does the export, with the gap."""
    directory, filler = small_disk / "export", small_disk / "filler"
    log: list[str] = []

    def wait_for(text: str) -> None:
        for line in running.process.stdout:
            log.append(line)
            if text in line:
                return
        raise AssertionError(f"no line with {text!r}")

    with serving(tmp_path, *settings(directory), program=("-c", IMPATIENT)) as running:
        load = Load(running.address, "q")
        load.publish(100)
        fill(filler)
        while not log:  # rows first fill the rest of a file's last page
            load.publish(100)
            fill(filler)
            if select([running.process.stdout], [], [], 0)[0]:
                wait_for("export failed")
        load.publish(300)
        for _ in range(3):
            wait_for("given up")
        filler.unlink()
        wait_for("export resumed")
        load.consume("q", load.counted["published"])
        code, out, err = running.stopped_by(signal.SIGTERM)
    log += out.splitlines()
    rows = exported(directory)

    assert (0, "") == (code, err)
    assert ["No space left on device"] == [
        line.strip().rpartition("] ")[2] for line in log if "export failed" in line
    ]
    assert_consistent(rows)
    assert_counted(rows, load, 1)
    assert ["export_gap"] == [row["kind"] for row in rows["event"] if "export_gap" == row["kind"]]
    assert 0 < rows["node_interval"][-1]["export_lost"]
