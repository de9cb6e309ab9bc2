"""A start that fails leaves the data as the last clean stop left them."""

import signal
import socket
import time
from pathlib import Path

import pika
import pytest
from processes.running import Running, finished, serving

from leveret.broker.cli.store import read

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def filled(tmp_path: Path) -> None:
    """The data of a broker that was stopped cleanly, with undelivered messages, some of which expire."""
    with serving(tmp_path) as running:
        with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as client:
            channel = client.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            channel.queue_declare("short", durable=True)
            for _ in range(10):
                channel.basic_publish("", "q", b"kept", PERSISTENT)
                channel.basic_publish(
                    "", "short", b"x", pika.BasicProperties(delivery_mode=2, expiration="1")
                )
            channel.basic_publish("", "short", b"kept", PERSISTENT)
        assert 0 == running.stopped_by(signal.SIGTERM)[0]
    time.sleep(0.01)  # lets messages expire by the wall clock, which no test can set


def start(tmp_path: Path, *arguments: str) -> int:
    """Return the exit code of a broker that does not start."""
    words = ("serve", "--data-dir", str(tmp_path / "data"), *arguments)
    return finished(*words, cwd=tmp_path, seconds=60).returncode


@pytest.mark.parametrize("what", ["port", "metrics", "definitions", "several definitions"])
def test_a_start_that_fails_keeps_the_clean_stop(tmp_path, what):
    """A taken port or an invalid definitions file leaves the last stop clean for the next start."""
    filled(tmp_path)
    bad = tmp_path / "definitions"
    bad.mkdir()
    (bad / "2.json").write_text('{"queues": [{"name": 1}]}')
    (bad / "1.json").write_text('{"vhosts": [{"name": "new"}]}')
    free = ("--set", "listeners.tcp.1=127.0.0.1:0")
    off = ("--set", "prometheus.enabled=false")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = {
            "port": (*off, "--set", f"listeners.tcp.1=127.0.0.1:{port}"),
            "metrics": (
                *free,
                "--set",
                f"prometheus.tcp.port={port}",
                "--set",
                "prometheus.tcp.ip=127.0.0.1",
            ),
            "definitions": (*off, *free, "--set", f"load_definitions={bad / '2.json'}"),
            "several definitions": (*off, *free, "--set", f"load_definitions={bad}"),
        }
        code = start(tmp_path, *words[what])
    findings, stats = read(tmp_path / "data")
    with serving(tmp_path) as running:
        with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as client:
            channel = client.channel()
            got = [channel.basic_get(name) for name in ("q",) * 10 + ("short",)]
        running.stopped_by(signal.SIGTERM)

    assert (65 if "definitions" in what else 69) == code
    assert ([], True) == (findings, stats["clean"])
    assert [(False, b"kept")] * 11 == [(method.redelivered, body) for method, _, body in got]


def test_a_kill_while_starting_keeps_the_clean_stop(tmp_path):
    """A broker killed before clients may connect has delivered nothing, so no message is redelivered."""
    filled(tmp_path)
    program = "from leveret.broker.server.server import Server\nimport os\n"
    program += "async def fail(*_): os._exit(9)\nServer._start_disk = fail\nfrom leveret.__main__ import main\nmain()\n"
    with Running(tmp_path, program=("-c", program)) as running:
        assert 9 == running.process.wait(timeout=30)
    assert read(tmp_path / "data")[1]["clean"]


def test_a_kill_after_the_start_does_not(tmp_path):
    """A broker killed once clients could connect did not stop cleanly, whatever it wrote."""
    filled(tmp_path)
    with serving(tmp_path):
        pass
    assert not read(tmp_path / "data")[1]["clean"]
