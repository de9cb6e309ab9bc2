"""Flower, Celery's web page: what its page of the broker shows comes from the management API."""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from processes.running import free_port

HERE = Path(__file__).parent
SECONDS = 40
CELL = re.compile(r"<td[^>]*>\s*(.*?)\s*</td>", re.DOTALL)


@contextmanager
def flower(amqp_url: str, api: str, queue: str, log: Path) -> Iterator[str]:
    port = free_port()
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "celery", "-A", "celery_tasks", "flower",
                "--address=127.0.0.1", f"--port={port}", f"--broker-api={api}",
            ],
            cwd=HERE, stdout=sink, stderr=sink,
            env=os.environ | {"CELERY_TEST_URL": amqp_url, "CELERY_TEST_QUEUE": queue},
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        finally:
            process.kill()
            process.wait()


def row(url: str, name: str) -> list[str]:
    """Return the cells of a queue's row in the page of the broker; nothing while there is none."""
    try:
        with urllib.request.urlopen(f"{url}/broker", timeout=SECONDS) as answer:
            page = answer.read().decode()
    except urllib.error.URLError:
        return []
    found = re.search(f'<tr id="{re.escape(name)}">(.*?)</tr>', page, re.DOTALL)
    return CELL.findall(found[1]) if found else []


@pytest.mark.skipif("LEVERET_TEST_AMQP_URL" in os.environ, reason="another broker is tested")
def test_the_page_of_the_broker_shows_a_queue_and_its_messages(managed, tmp_path):
    """Ready and unacknowledged ones, and the consumers."""
    amqp_url, http_url = managed
    api = f"{http_url.replace('//', '//guest:guest@')}/api/"
    with (
        pika.BlockingConnection(pika.URLParameters(f"{amqp_url}/%2F")) as connection,
        flower(f"{amqp_url}//", api, "orders", tmp_path / "flower.log") as url,
    ):
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        for _ in range(3):
            channel.basic_publish("", "orders", b"task")
        channel.basic_get("orders")
        expected = ["orders", "3", "1", "2", "0"]

        deadline = time.monotonic() + SECONDS
        while (cells := row(url, "orders"))[:5] != expected and time.monotonic() < deadline:
            connection.process_data_events(0.1)

        assert expected == cells[:5], (tmp_path / "flower.log").read_text()
