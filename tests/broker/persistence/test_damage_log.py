"""Unreadable data are logged, counted, and found by `leveret store check`."""

import re
import signal
import urllib.request
from pathlib import Path

import pika
import pytest
from processes.running import Running, serving, watched

from leveret.broker.cli.store import read
from leveret.broker.persistence.data_store import DamageLog
from leveret.storage.damage import BODY, KINDS, RECORD, Damages

PERSISTENT = pika.BasicProperties(delivery_mode=2)
BLOB = ("--set", "storage.blob_threshold=65536")


def test_one_line_a_second_and_queue():
    """The first damage in a queue is logged with its position, more are counted, at most one line a second."""
    damages = Damages()
    log = DamageLog(damages, {})
    for position in range(5):
        damages.note((7, position), RECORD)
    damages.note((8, 3), BODY)
    first = list(log.lines(10.0))
    damages.note((7, 9), BODY)
    soon, later = list(log.lines(10.5)), list(log.lines(11.0))

    ids = "damaged data of an unknown queue (id {}): {}"
    assert ids.format(7, "message damaged and skipped (position 0, record); and 4 more") == first[0]
    assert ids.format(8, "message body damaged, message skipped (position 3, body)") == first[1]
    assert ([], 1) == (soon, len(later))
    assert {RECORD: 5, BODY: 2} == damages.counts


def spoil(data_dir: Path, kind: str) -> None:
    """Damage one message of the queue."""
    if kind in {"missing_file", "file"}:
        (path,) = (data_dir / "blobs").iterdir()
        octets = path.read_bytes()
        path.unlink()
        if kind == "file":
            path.write_bytes(octets[:-5] + b"?" + octets[-4:])
        return
    path = data_dir / "store" / "data.mdb"
    old = b"small" if kind == "record" else b"y" * 5000
    octets = path.read_bytes()
    assert old in octets
    path.write_bytes(octets.replace(old, b"?" + old[1:]))


def damaged_total(address: str) -> dict[str, int]:
    """Return the counter by kind, without zeros."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    found = {
        kind: int(float(value))
        for kind, value in re.findall(r'leveret_damaged_total{kind="(.*)"} (.*)', page)
    }
    assert set(KINDS) == found.keys()
    return {kind: count for kind, count in found.items() if count}


@pytest.mark.parametrize("kind", ["missing_file", "file", "record", "body"])
def test_damage_is_reported(tmp_path, kind):
    """A message that cannot be read is dropped, logged with queue and position, and counted."""
    with serving(tmp_path, *BLOB) as running:
        with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as client:
            channel = client.channel()
            channel.confirm_delivery()
            channel.queue_declare("damaged", durable=True)
            for body in (b"one", b"small", b"y" * 5000, b"x" * 100_000):
                channel.basic_publish("", "damaged", body, PERSISTENT)
        running.stopped_by(signal.SIGTERM)
    spoil(running.data_dir, kind)
    findings, _ = read(running.data_dir)
    metrics = watched()
    with Running(tmp_path, *BLOB, *metrics) as running:
        address = re.search(r"HTTP listener on (\S+)", running.wait_for("started HTTP listener"))[1]
        running.wait_for("Server startup complete")
        with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as client:
            channel = client.channel()
            got = 0
            while channel.basic_get("damaged", auto_ack=True)[0] is not None:
                got += 1
            line = running.wait_for("damaged data of queue 'damaged' in vhost '/'")
            counted = damaged_total(address)
        code, _, err = running.stopped_by(signal.SIGTERM)

    assert (3, 0, "") == (got, code, err)
    assert {True} == {each["damage"] for each in findings}
    assert re.search(rf"\(position \d+, {kind}\)", line)
    assert {kind: 1} == counted
