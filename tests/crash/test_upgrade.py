"""Data that version 0.1.0 itself has written: used as they are, refused by it afterwards, whole after kills."""

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from repository import git
from running import Running

from bench.revision import revision

OLD = "d5a6fdb"
"""The last revision of format 1."""
STARTED = "Server startup complete"
MESSAGES = 300
KILLS = 4
REFUSED = "have format 2 (needs leveret 0.2.0 or newer), this version knows 1"
PROPERTIES = pika.BasicProperties(delivery_mode=2, headers={"h": "x" * 300})


def has_old() -> bool:
    """Return whether that revision is there: a shallow clone does not have it."""
    return git("cat-file", "-e", f"{OLD}^{{commit}}") is not None


@contextlib.contextmanager
def connected(running: Running) -> Iterator[BlockingChannel]:
    """A channel to a broker that has started; the broker may be killed meanwhile."""
    running.wait_for(STARTED)
    host, port = running.address
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


@pytest.mark.skipif(not has_old(), reason=f"revision {OLD} is not in this clone")
@pytest.mark.timeout(180)
def test_data_of_version_0_1_0_survive_the_upgrade_and_kills(tmp_path):
    """Every confirmed message of the old broker is there once, in order, whenever the new one is killed; the old refuses."""
    with revision(OLD) as folder:
        old: dict[str, Any] = {
            "before": ("/usr/bin/env", f"PYTHONPATH={folder}"),
            "program": ("-m", "broker"),
        }
        with Running(tmp_path, **old) as running, connected(running) as channel:
            channel.confirm_delivery()
            limits = {"x-max-length-bytes": 10 * MESSAGES}
            channel.queue_declare("q", durable=True, arguments=limits)
            for number in range(MESSAGES):
                channel.basic_publish("", "q", b"%010d" % number, PROPERTIES)
            running.stopped_by(signal.SIGKILL)
        chance = random.Random(1)
        for _ in range(KILLS):  # during the start, at any moment of it
            with Running(tmp_path) as started:
                time.sleep(chance.uniform(0.2, 1.5))
                started.stopped_by(signal.SIGKILL)
        taken = []
        for _ in range(2):
            with Running(tmp_path) as started, connected(started) as channel:
                for _ in range(MESSAGES // 4):
                    method, _, body = channel.basic_get("q")
                    while method is None:
                        method, _, body = channel.basic_get("q")
                    taken.append(int(body))
                    channel.basic_ack(method.delivery_tag)
                channel.queue_declare("acks are safe", durable=True)
                channel.queue_delete("acks are safe")
                started.stopped_by(signal.SIGKILL)
        with Running(tmp_path) as started, connected(started) as channel:
            left = channel.queue_declare("q", passive=True).method.message_count
            started.stopped_by(signal.SIGTERM)
        with Running(tmp_path, **old) as running:
            _, err = running.process.communicate(timeout=60)

    assert list(range(MESSAGES // 4 * 2)) == taken
    assert MESSAGES - len(taken) == left
    assert (65, f"leveret: the data in {tmp_path / 'data'} {REFUSED}\n") == (
        running.process.returncode,
        err,
    )
