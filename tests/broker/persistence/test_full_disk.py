"""A full disk, and a broken one, under a broker process."""

import contextlib
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from conformance.wire import Client, ClosedError
from processes.running import Running, serving

from leveret.broker.cli.store import read

MEGABYTES = 48
BROKEN = """
import os, sys
from pathlib import Path
from leveret.storage.store.environment import Environment
from leveret.__main__ import main
write, trigger = Environment.write, Path(sys.argv[1])
def failing(self, batch, entry=None):
    if trigger.exists():
        {error}
    return write(self, batch, entry)
Environment.write = failing
Environment.begin_log = lambda self, batch: None
sys.argv[1:] = sys.argv[2:]
from leveret.broker.server import shutdown
shutdown.STOP_SECONDS = 60
main()
"""


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    where = tmp_path / "small"
    where.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(where)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a tmpfs")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


class Publisher:
    """A publisher of persistent messages, one by one, that counts the outcomes."""

    def __init__(self, address: tuple[str, int], octets: int) -> None:
        self.client = Client(address, timeout=20.0).login()
        self.channel = self.client.channel()
        self.channel.call("queue.declare", queue="q", durable=True)
        self.channel.call("confirm.select")
        self.body = b"x" * octets
        self.verdicts: Counter[str] = Counter()
        self.open = self.sent = 0

    def publish(self) -> str:
        """Publish one unless one is open; returns the broker's next reply to it or event of the connection."""
        if not self.open:
            self.channel.publish("", "q", self.body, delivery_mode=2)
            self.sent += 1
            self.open = 1
        answer = self.client.receive(
            None, "basic.ack", "basic.nack", "connection.blocked", "connection.unblocked"
        )
        if answer.name.startswith("basic."):
            self.open = 0
            self.verdicts[answer.name] += 1
        return answer.fields["reason"] if answer.name == "connection.blocked" else answer.name

    def until(self, *names: str) -> str:
        """Publish until one of these outcomes."""
        while (answer := self.publish()) not in names:
            pass
        return answer


def drained(address: tuple[str, int]) -> int:
    """Consume until the queue is empty; returns how many messages there were."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters(*address))) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)
        count = 0
        for method, _, body in channel.consume("q", inactivity_timeout=1.0):
            if body is None:
                break
            channel.basic_ack(method.delivery_tag)
            count += 1
        channel.cancel()
        return count


@pytest.mark.parametrize("limit", ["16MiB", "0"])
def test_a_full_disk_is_left_behind(tmp_path, small_disk, limit):
    """At a limit or a failed commit publishers are blocked and consumers drain; then publishing goes on."""
    arguments = ("--set", f"disk_free_limit.absolute={limit}", "--data-dir", str(small_disk / "data"))
    with serving(tmp_path, *arguments) as running:
        publisher = Publisher(running.address, 20_000)
        reason = publisher.until("low on disk")
        running.wait_for("disk alarm raised")
        before = publisher.verdicts["basic.ack"]
        got = drained(running.address)
        unblocked = publisher.until("connection.unblocked")
        while publisher.verdicts["basic.ack"] < before + 100:
            publisher.publish()
        rest = drained(running.address)
        publisher.client.close_socket()
        code, out, err = running.stopped_by(signal.SIGTERM)

    findings, stats = read(small_disk / "data")
    assert ([], 0, True) == (findings, stats["messages"], stats["clean"])
    assert ("low on disk", "connection.unblocked") == (reason, unblocked)
    assert (0, "") == (code, err)
    assert "disk alarm cleared" in out
    assert before >= 100
    assert got > before / 2
    acked, nacked = publisher.verdicts["basic.ack"], publisher.verdicts["basic.nack"]
    assert publisher.sent >= got + rest >= acked
    if limit != "0":
        assert 0 == nacked


def test_a_disk_without_room_to_page_goes_on(tmp_path, small_disk):
    """Persistent messages use the space that consumers freed in the file; transient ones stay in memory meanwhile."""
    arguments = ("--set", "disk_free_limit.absolute=0", "--data-dir", str(small_disk / "data"))
    with serving(tmp_path, *arguments) as running:
        parameters = pika.ConnectionParameters(*running.address)
        with contextlib.closing(pika.BlockingConnection(parameters)) as client:
            channel = client.channel()
            channel.queue_declare("q", durable=True)
            channel.queue_declare("lazy", durable=True, arguments={"x-queue-mode": "lazy"})
            channel.confirm_delivery()
            persistent = pika.BasicProperties(delivery_mode=2)
            for _ in range(400):
                channel.basic_publish("", "q", bytes(20_000), persistent)
            channel.queue_purge("q")
            with contextlib.suppress(OSError), (small_disk / "others").open("wb", 0) as file:
                while True:
                    file.write(bytes(1 << 20))
            bodies = [b"%d" % number * 2000 for number in range(100)]
            for body in bodies:
                channel.basic_publish("", "lazy", body)
            running.wait_for("disk full: transient messages stay in memory")
            for number in range(100):
                channel.basic_publish("", "q", b"%d" % number, persistent)
            (small_disk / "others").unlink()
            running.wait_for("disk has space again: paging of transient messages resumed")
            got = [channel.basic_get("lazy", auto_ack=True)[2] for _ in bodies]
        stored = drained(running.address)
        code, out, err = running.stopped_by(signal.SIGTERM)

    assert bodies == got
    assert 100 == stored
    assert (0, "") == (code, err)
    assert "alarm raised" not in out


@pytest.mark.parametrize(
    "error",
    [
        "raise OSError(5, 'Input/output error')",
        "import lmdb; raise lmdb.Error('mdb_txn_commit: Input/output error')",
    ],
)
def test_a_broken_disk_ends_the_broker(tmp_path, error):
    """After a commit that fails for another reason than space nothing is confirmed, and the exit code is 74."""
    trigger = tmp_path / "broken"
    program = ("-c", BROKEN.format(error=error), str(trigger))
    with serving(tmp_path, program=program) as running:
        connection = pika.BlockingConnection(pika.ConnectionParameters(*running.address))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", "q", b"good", properties)
        trigger.touch()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            channel.basic_publish("", "q", b"lost", properties)
        code = running.process.wait(15)
        log = running.process.stdout.read()

    assert 74 == code
    assert "storage failed, stopping immediately" in log
    with serving(tmp_path) as running:
        assert 1 == drained(running.address)
        assert 0 == running.stopped_by(signal.SIGTERM)[0]


def test_a_stop_on_a_full_disk_is_prompt(tmp_path):
    """Blocked publishers are closed cleanly, and writes that failed are logged."""
    few = 20  # messages that sockets hold if the broker stops reading at once
    trigger = tmp_path / "broken"
    error = "from leveret.storage.errors import DiskFullError; raise DiskFullError('no room')"
    program = ("-c", BROKEN.format(error=error), str(trigger))
    with serving(tmp_path, program=program) as running:
        publisher = Publisher(running.address, 20_000)
        client = publisher.client
        trigger.touch()
        for _ in range(few):
            publisher.channel.publish("", "q", publisher.body, delivery_mode=2)
        running.wait_for("disk alarm raised")
        publisher.channel.publish("", "q", publisher.body, delivery_mode=2)
        assert "low on disk" == client.receive(None, "connection.blocked").fields["reason"]
        running.process.send_signal(signal.SIGTERM)
        assert 320 == client.receive(None, "connection.close").fields["reply_code"]
        client.send(0, "connection.close-ok")
        with contextlib.closing(client.socket), pytest.raises(ClosedError, match="socket"):
            client.receive(None, "nothing")
        code = running.process.wait(15)
        out, err = running.process.communicate(timeout=30)

    assert (0, "") == (code, err)
    lost = re.search(r"disk full at shutdown: messages=(\d+) definitions=0 not written", out)
    assert 0 < int(lost[1]) <= few + 1
    assert "did not close" not in out
    with serving(tmp_path) as running:
        assert 0 == drained(running.address)
        assert 0 == running.stopped_by(signal.SIGTERM)[0]


def test_a_stop_that_finds_no_room_for_promises_says_how_many_are_lost(tmp_path):
    """Unacked consumer-ack messages are not retried without end at a stop, and their publishers get no confirm."""
    trigger = tmp_path / "broken"
    error = "from leveret.storage.errors import DiskFullError; raise DiskFullError('no room')"
    program = ("-c", BROKEN.format(error=error), str(trigger))
    with serving(tmp_path, "--set", "confirm.mode=consumer-ack", program=program) as running:
        with contextlib.closing(
            pika.BlockingConnection(pika.ConnectionParameters(*running.address))
        ) as client:
            channel = client.channel()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"not promised", pika.BasicProperties(delivery_mode=2))
            channel.tx_select()
            channel.tx_commit()
            other = client.channel()
            other._impl.confirm_delivery(ack_nack_callback=lambda _: None)
            for _ in range(5):
                other._impl.basic_publish("", "q", b"promised", pika.BasicProperties(delivery_mode=2))
            assert 6 == other.queue_declare("q", passive=True).method.message_count
        trigger.touch()
        running.process.send_signal(signal.SIGTERM)
        assert 0 == running.process.wait(15)
        out, err = running.process.communicate(timeout=30)

    assert "" == err
    assert "disk full at shutdown: messages=6 not written" in out
    with serving(tmp_path) as running:
        assert 1 == drained(running.address)
        assert 0 == running.stopped_by(signal.SIGTERM)[0]


def test_an_unknown_format_is_refused(tmp_path):
    """Data of a later format stop the start with 65 and both formats, and stay unchanged."""
    import lmdb

    with serving(tmp_path) as running:
        running.stopped_by(signal.SIGTERM)
    with lmdb.open(str(running.data_dir / "store"), max_dbs=16) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(b"format", b"3 (needs leveret 9.9 or newer)", db=meta)
    before = (running.data_dir / "store" / "data.mdb").read_bytes()
    with Running(tmp_path) as running:
        _, err = running.process.communicate(timeout=15)

    assert 65 == running.process.returncode
    text = "has format 3 (needs leveret 9.9 or newer), this version reads format 2"
    assert f"leveret: the data in {running.data_dir} {text}\n" == err
    assert before == (running.data_dir / "store" / "data.mdb").read_bytes()
