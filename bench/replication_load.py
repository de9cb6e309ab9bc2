"""Load on replicated nodes, and looks at them, for `bench.replication`."""

import argparse
import contextlib
import json
import os
import random
import signal
import string
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from pamqp import commands
from replicated.cluster import Cluster, probed
from replicated.database import Database

from bench.brokers import BrokerError
from bench.bulk import Bulk, BulkError, chunks

ATTEMPT_SECONDS = 0.1
QUICK_SECONDS = 0.02
PATIENCE = 120.0
SNAPSHOT_PATIENCE = 900.0
BODY = 1500
LOG_FILES = 64
"""Files of PostgreSQL's log of 16 MB each, twice as many as a server keeps for its standbys."""
FLOOD, FLOOD_BEGUN = 10_000_000, 2000
"""Messages of a flood at most, all without waiting for confirms; and confirms from which it counts as begun."""


def caught_up(cluster: Cluster) -> None:
    """Wait until all waiting nodes have the whole log.

    Raises:
        BrokerError: one has not, for two minutes.

    """
    deadline = time.monotonic() + PATIENCE
    waiting = cluster.nodes.waiting()
    while waiting:
        if time.monotonic() > deadline:
            message = f"{waiting} are not caught up"
            raise BrokerError(message)
        if _has_all(cluster.nodes.probes[waiting[-1]]):
            waiting.pop()
        else:
            time.sleep(0.02)


def _has_all(port: int) -> bool:
    """Return whether a waiting node is ready, and behind by no entry."""
    try:
        status, _ = probed(port, "/readyz?role=member")
        _, metrics = probed(port, "/metrics")
    except OSError:
        return False
    return status == 200 and "\nleveret_replication_lag_batches 0\n" in metrics


def filled(cluster: Cluster, count: int, size: int) -> float:
    """Store persistent messages; returns the rate."""
    client = Bulk(cluster.nodes.ports[cluster.nodes.leader()])
    client.declare("stored")
    rate = client.fill("stored", client.ready_messages("stored"), count, size, persistent=True, window=20_000)
    client.close()
    return rate


def next_confirm(ports: Sequence[int], pause: float = ATTEMPT_SECONDS) -> float:
    """Try all addresses each `pause` seconds until a message is confirmed; returns the time."""
    deadline = time.monotonic() + PATIENCE
    while (began := time.monotonic()) < deadline:
        for port in ports:
            try:
                client = Bulk(port, patience=5.0)
                client.declare("probe")
                client.fill("probe", 0, 1, 100, persistent=True)
                client.close()
            except (OSError, BulkError):
                continue
            return time.monotonic()
        time.sleep(max(0.0, began + pause - time.monotonic()))
    message = "nothing is confirmed any more"
    raise BrokerError(message)


class Flood(threading.Thread):
    """A client that publishes as fast as the leader reads, until that closes it."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._client = Bulk(port)
        self._client.declare("flood")
        self.start()

    def run(self) -> None:
        """Publish."""
        with contextlib.suppress(OSError, BulkError):
            self._client.fill("flood", 0, FLOOD, BODY, persistent=True, window=FLOOD)
        self._client.close()

    @property
    def is_under_way(self) -> bool:
        """True once the leader confirms."""
        return self._client.confirmed > FLOOD_BEGUN


def flooded(cluster: Cluster, _: argparse.Namespace) -> Callable[[], object]:
    """Publish as fast as the leader reads."""
    flood = Flood(cluster.nodes.ports[cluster.nodes.leader()])
    deadline = time.monotonic() + PATIENCE
    while not flood.is_under_way:
        if time.monotonic() > deadline or not flood.is_alive():
            raise BrokerError("nothing of the flood is confirmed")
        time.sleep(0.02)
    return flood.join


def _of_text() -> Callable[[int], bytes]:
    """Return a source of JSON with words, names, times and numbers, which zlib makes less than half as long."""
    chance = random.Random(1)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(3, 9))) for _ in range(500)]
    orders = [
        {
            "id": chance.getrandbits(64),
            "customer": chance.choice(words),
            "amount": chance.random() * 1000,
            "at": f"2026-11-{chance.randint(1, 28):02}T{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:00Z",
            "note": " ".join(chance.choices(words, k=60)),
        }
        for _ in range(4000)
    ]
    text = "".join(map(json.dumps, orders)).encode()

    def some(size: int) -> bytes:
        at = chance.randrange(len(text) - size)
        return text[at : at + size]

    return some


FILLINGS: dict[str, Callable[[], Callable[[int], bytes] | None]] = {
    "text": _of_text,
    "random": lambda: os.urandom,
    "letter": lambda: None,
}
"""Contents of messages: JSON, bytes that nothing compresses, or one letter again and again."""


def promised(cluster: Cluster, options: argparse.Namespace) -> Callable[[], object]:
    """Publish what is written at a stop only, and wait until the leader has it."""
    client = Bulk(cluster.nodes.ports[cluster.nodes.leader()])
    client.call(commands.Queue.Delete(queue="promised"))
    mode = {"x-confirm-mode": "consumer-ack"}
    client.call(commands.Queue.Declare(queue="promised", durable=True, arguments=mode))
    client.call(commands.Confirm.Select())
    count = options.unlogged_mebibytes * (1 << 20) // BODY
    filling = FILLINGS[options.contents]()
    for octets, _ in chunks("promised", 0, count, BODY, persistent=True, filling=filling):
        client.socket.sendall(octets)
    deadline = time.monotonic() + PATIENCE
    while client.ready_messages("promised") < count:
        if time.monotonic() > deadline:
            raise BrokerError("the leader does not have what was published")
        time.sleep(0.02)
    closing = threading.Thread(target=_closed_by_leader, args=(client,))
    closing.start()
    return closing.join


def _closed_by_leader(client: Bulk) -> None:
    """Close a connection as soon as the leader does."""
    with contextlib.suppress(OSError, BulkError):
        client.reply()
    client.close()


def reuse_log_files(database: Database) -> None:
    """Have servers use files of their logs again, as those in use for long do: new ones are filled with zeroes."""
    primary = database.primary
    for _ in range(LOG_FILES):
        database.sql(primary, "select pg_logical_emit_message(false, 'bench', '')", "select pg_switch_wal()")
    database.sql(primary, "checkpoint")
    for name in database.standbys:
        database.position(name)  # once it has replayed that
        database.sql(name, "checkpoint")


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so.

    Raises:
        BrokerError: it is not, for the time a snapshot may take.

    """
    deadline = time.monotonic() + SNAPSHOT_PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise BrokerError("the snapshot is not complete")
        time.sleep(0.1)


def confirm_p99(cluster: Cluster, until: Callable[[], bool]) -> float:
    """Return the 99th percentile of confirms of a steady client, in milliseconds, which runs until something is so."""
    port = cluster.nodes.ports[cluster.nodes.leader()]
    words = [
        sys.executable,
        "-m",
        "leveret",
        "perf",
        "--uri",
        f"amqp://127.0.0.1:{port}",
        "--json",
        "--persistent",
    ]
    words += ["--rate", "1000", "--size", str(BODY), "--confirm", "100", "--seconds", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
        try:
            wait_until(lambda: client.poll() is not None or until())
        finally:
            client.send_signal(signal.SIGINT)
            out, _ = client.communicate(timeout=PATIENCE)
    return float(json.loads(out)["confirm_latency_us"]["p99"]) / 1000
