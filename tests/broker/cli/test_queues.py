"""The commands `leveret pause` and `leveret resume`, on a broker of their own that is killed in between."""

import json

import click
import pika
from click.testing import CliRunner, Result
from processes.running import Running, channel_to, serving

from leveret.broker.cli import entry


def run(running: Running, name: str, *words: str) -> Result:
    group = click.Group(commands={name: entry.load(name)})
    return CliRunner().invoke(group, [name, *words, "--data-dir", str(running.data_dir)])


def states(running: Running) -> dict[str, str]:
    """Return the states of the queues as `leveret ctl` lists them."""
    result = run(running, "ctl", "list_queues", "name", "state", "--formatter", "json")
    return {row["name"]: row["state"] for row in json.loads(result.stdout)}


def test_a_queue_stays_paused_over_a_kill(tmp_path):
    """The command returns when the pause is on disk; after a kill the queue is paused still, with its messages."""
    with serving(tmp_path) as running:
        with channel_to(running.address) as channel:
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            channel.basic_publish("", "orders", b"one", pika.BasicProperties(delivery_mode=2))
            paused = run(running, "pause", "orders")
            missing = run(running, "pause", "none")
        running.process.kill()
        running.process.wait(10)
    with serving(tmp_path) as running, channel_to(running.address) as channel:
        before, empty = states(running), channel.basic_get("orders")
        resumed = run(running, "resume", "orders", "--format", "json")
        (_, _, body) = channel.basic_get("orders")

    assert (0, "queue 'orders' is paused\n") == (paused.exit_code, paused.stdout)
    assert 1 <= missing.exit_code
    assert "no queue 'none' in vhost '/'" in missing.stderr
    assert {"orders": "paused"} == before
    assert (None, None, None) == empty
    assert {"queue": "orders", "vhost": "/", "paused": False} == json.loads(resumed.stdout)
    assert b"one" == body
