"""The command `leveret tail`, on a broker of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread

import click
import pika
import pytest
from click.testing import CliRunner
from processes.running import Running, channel_to, environment, serving

from leveret.broker.cli import entry
from leveret.broker.cli.ctl.client import ApiClient

SECONDS = 30.0


@pytest.fixture
def running(tmp_path) -> Iterator[Running]:
    """A broker with an exchange and a queue."""
    with serving(tmp_path) as running:
        with channel_to(running.address) as channel:
            channel.exchange_declare("events", "topic")
            channel.queue_declare("orders")
            channel.queue_bind("orders", "events", "order.*")
        yield running


class Tailing:
    """A `leveret tail` that has begun. What it prints is read to its end by `rest`."""

    def __init__(self, running: Running, *words: str, is_told: bool = True) -> None:
        command = [sys.executable, "-m", "leveret", "tail", *words, "--data-dir", str(running.data_dir)]
        # a shell that starts the tests in the background lets them, and what they start, ignore it
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        signal.signal(signal.SIGINT, before)
        assert self.process.stderr is not None
        self.begun = self.process.stderr.readline() if is_told else ""

    def rest(self) -> tuple[int, list[str], str]:
        """Wait for its end; returns the exit code, the lines, and the rest of the errors."""
        output, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, output.splitlines(), errors


def ctl(running: Running, *words: str) -> int:
    """Run a command of `leveret ctl`; returns its exit code."""
    return CliRunner().invoke(entry.load("ctl"), ["--data-dir", str(running.data_dir), *words]).exit_code


def publish(running: Running, *messages: tuple[str, str, bytes]) -> None:
    with channel_to(running.address) as channel:
        channel.confirm_delivery()
        for number, (exchange, key, body) in enumerate(messages):
            channel.basic_publish(exchange, key, body, pika.BasicProperties(headers={"n": number}))


def test_messages_are_shown_as_they_are_published(running):
    """Each that matches is a line, bound or not, until there were as many as wanted; the queue has them all."""
    tailing = Tailing(running, "events", "order.#", "-n", "3", "--where", "headers.n != 1")
    publish(
        running,
        ("events", "order.new", b"one"),
        ("events", "order.new", b"not this"),
        ("events", "invoice.new", b"nor this"),
        ("events", "order.eu.new", b"two\n"),
        ("events", "order.x", b"\xff"),
    )
    code, lines, errors = tailing.rest()

    assert "messages of exchange 'events' from now on:\n" == tailing.begun
    assert (0, "") == (code, errors)
    assert [
        "order.new orders 3 one",
        "order.eu.new (no queue) 4 two\\n",
        "order.x orders 1 base64: /w==",
    ] == [" ".join(line.split()[1:]) for line in lines]


def test_the_time_of_a_held_message_is_shown(running):
    """It is beside the queues, in UTC."""
    with channel_to(running.address) as channel:
        channel.queue_declare("later", arguments={"x-allow-hold": True})
        tailing = Tailing(running, "amq.default", "later", "-n", "1")
        properties = pika.BasicProperties(headers={"x-deliver-at": 4_102_444_800_000})
        channel.basic_publish("", "later", b"x", properties)
        _, lines, _ = tailing.rest()

    assert ["later later, held until 2100-01-01T00:00:00Z 1 x"] == [
        " ".join(each.split()[1:]) for each in lines
    ]


def test_it_ends_cleanly_when_it_is_interrupted(running):
    """Ctrl-C ends it with code 0, and the broker forgets it; the default exchange has its publishes, too."""
    tailing = Tailing(running, "amq.default")
    publish(running, ("", "orders", b"one"), ("", "nothing", b"two"))
    assert tailing.process.stdout is not None
    shown = [tailing.process.stdout.readline().split()[1:] for _ in range(2)]
    tailing.process.send_signal(signal.SIGINT)
    code, lines, errors = tailing.rest()

    assert [["orders", "orders", "3", "one"], ["nothing", "(no", "queue)", "3", "two"]] == shown
    assert (0, [], "") == (code, lines, errors)


@pytest.mark.parametrize("words", [(), ("-n", "5"), ("--format", "json")])
def test_a_tail_that_the_broker_ends_has_failed(running, words):
    """The command tells that its virtual host was deleted, to programs as a line, too, and its exit code is 1."""
    assert 0 == ctl(running, "add_vhost", "other")
    tailing = Tailing(running, "amq.topic", "-p", "other", *words, is_told="json" not in words)
    if "json" in words:
        running.wait_for("tails exchange 'amq.topic'")
    assert 0 == ctl(running, "delete_vhost", "other")
    code, lines, errors = tailing.rest()

    assert (1, "ended: virtual host 'other' was deleted\n") == (code, errors)
    assert ([{"end": "virtual host 'other' was deleted"}] if "json" in words else []) == list(
        map(json.loads, lines)
    )


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGTERM, 1, "ended: the broker is stopping"), (signal.SIGKILL, 69, "it is not running")],
)
def test_the_end_of_the_broker_is_told(running, number, code, reason):
    """A stop ends a tail with a reason, and a kill breaks it off; neither is a success."""
    tailing = Tailing(running, "events", "-n", "5")
    running.process.send_signal(number)
    found, lines, errors = tailing.rest()

    assert (code, []) == (found, lines)
    assert reason in errors


def test_an_end_without_a_reason_is_none_that_was_wanted(monkeypatch):
    """A stream that is over before there were as many messages as wanted has failed, also if no line says why."""
    monkeypatch.setattr(ApiClient, "lines", lambda *_path, **_query: iter([b"", b'{"lost":5}']))
    result = CliRunner().invoke(entry.load("tail"), ["events", "-n", "1"])

    assert 1 == result.exit_code
    assert result.stderr.endswith("ended: by the broker, which gave no reason\n")


def test_lines_of_json(running):
    """With --format json each message is a line that programs read."""
    group = click.Group(commands={"tail": entry.load("tail")})
    words = ["tail", "events", "--format", "json", "-n", "1", "--data-dir", str(running.data_dir)]
    results = []
    thread = Thread(target=lambda: results.append(CliRunner().invoke(group, words)))
    thread.start()
    while thread.is_alive():  # until one is published after it has begun
        publish(running, ("events", "order.new", b"one"))
    thread.join(SECONDS)

    (line,) = results[0].stdout.splitlines()
    found = json.loads(line)
    assert ("events", "order.new", ["orders"], "guest", "one") == tuple(
        found[key] for key in ("exchange", "routing_key", "routed_queues", "user", "payload")
    )
    assert {"headers": {"n": 0}} == found["properties"]


@pytest.mark.parametrize(
    ("words", "text"),
    [(["none"], "no exchange 'none' in vhost '/'"), (["events", "--where", "headers."], "where: column")],
)
def test_mistakes_are_told(running, words, text):
    """An exchange that does not exist, and a condition that is none, end it at once."""
    group = click.Group(commands={"tail": entry.load("tail")})
    result = CliRunner().invoke(group, ["tail", *words, "--data-dir", str(running.data_dir)])

    assert 69 == result.exit_code
    assert text in result.stderr
