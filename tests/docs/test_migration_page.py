"""The page about the migration from RabbitMQ: its program and its commands, with a real RabbitMQ and clients at work.

A publisher numbers its messages and waits for each confirm, a consumer acks each; both are switched while they work.
"""

import contextlib
import json
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner
from conformance.brokers import Broker, SetUp, rabbitmq_server, start_rabbitmq
from processes.commands import execute
from processes.running import ROOT, Running, serving
from services.shovelling import await_true

from leveret.broker.cli.ctl.main import ctl
from leveret.broker.cli.migrate import migrate

PAGE = ROOT / "docs" / "howto" / "migrate-from-rabbitmq.md"
OLD = "guest:guest@old:5672"
SECONDS = 30.0
QUEUE = "orders"
AT_LEAST = 100
"""Messages in each phase."""
FILES = {
    "rabbitmq.conf": "listeners.tcp.default = 5672\n",
    "advanced.config": "[].\n",
    "enabled_plugins": "[rabbitmq_management].\n",
}
"""Files of the RabbitMQ, which the page has the reader copy."""


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page in a language, without the indentation of lists."""
    found = re.findall(
        rf"^( *)```{language}\n(.*?)^ *```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [
        "\n".join(line.removeprefix(indent) for line in text.splitlines()) + "\n" for indent, text in found
    ]


class Publisher(threading.Thread):
    """Publishes numbers, one after the other, to the broker it is told to.

    Attributes:
        confirmed: number of messages so far; their bodies are 0, 1 and so on.
        longest: most seconds between two confirms.

    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url: str | None = url
        self.confirmed = 0
        self.longest = 0.0

    def run(self) -> None:
        """Publish until there is no URL."""
        latest = time.monotonic()
        while (url := self.url) is not None:
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                while url == self.url:
                    properties = pika.BasicProperties(delivery_mode=2, headers={"n": self.confirmed})
                    channel.basic_publish("", QUEUE, str(self.confirmed), properties, mandatory=True)
                    self.confirmed += 1
                    now = time.monotonic()
                    self.longest = max(self.longest, now - latest)
                    latest = now
                    connection.sleep(0.001)


class Consumer(threading.Thread):
    """Consumes at a broker until it is told to stop; what it has not acked returns to the queue."""

    def __init__(self, url: str, received: list[int]) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._received = received
        self._stops = threading.Event()
        self.start()

    def run(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.05):
                if method is not None:
                    self._received.append(int(body))
                    channel.basic_ack(method.delivery_tag)
                if self._stops.is_set():
                    return

    def stop(self) -> None:
        self._stops.set()
        self.join(SECONDS)


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[Broker]:
    """A RabbitMQ with a queue."""
    if rabbitmq_server() is None:
        pytest.skip("no rabbitmq-server on this machine")
    broker = start_rabbitmq(SetUp("main"))
    try:
        with pika.BlockingConnection(pika.URLParameters(url(broker.address))) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        yield broker
    finally:
        broker.stop()


def url(address: tuple[str, int]) -> str:
    """Return the URL of a broker."""
    return f"amqp://guest:guest@{address[0]}:{address[1]}"


class Reader:
    """Somebody who follows the page, in a directory of their own.

    Args:
        folder: the directory.
        rabbitmq: the other broker.
        running: the broker of ours.

    """

    def __init__(self, folder: Path, rabbitmq: Broker, running: Running) -> None:
        self._folder = folder
        self._rabbitmq = rabbitmq
        self._data_dir = running.data_dir
        (program,) = blocks("python")
        (folder / "shovels.py").write_text(program)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        self._lines = [line for text in blocks("sh") for line in text.splitlines()]

    def follow(self, beginning: str) -> str:
        """Run the commands of the page that begin so; returns what the last one prints."""
        chosen = [line for line in self._lines if line.startswith(beginning)]
        assert chosen, beginning
        for line in chosen:
            out = self.run(line)
        return out

    def run(self, line: str) -> str:
        command, _, target = line.replace(OLD, url(self._rabbitmq.address).removeprefix("amqp://")).partition(
            " > "
        )
        words = shlex.split(command)
        if words[0] == "leveret":
            group = {"ctl": ctl, "migrate": migrate}[words[1]]
            options = ["--data-dir", str(self._data_dir)] if group is ctl else []
            with contextlib.chdir(self._folder):
                result = CliRunner().invoke(group, [*options, *words[2:]])
            assert 0 == result.exit_code, (line, result.output)
            out = result.stdout
        elif words[0] == "rabbitmqctl":
            out = self._rabbitmq.control(*words[1:-1], str(self._folder / words[-1]))
        else:
            assert "python" == words[0], line
            out = execute([sys.executable, *words[1:]], cwd=self._folder, check=True).stdout
        if target:
            (self._folder / target).write_text(out)
        return out

    def states(self) -> set[str]:
        return {each["state"] for each in json.loads(self.run("leveret ctl shovel_status --formatter json"))}

    def delete_shovels(self) -> None:
        """Run what `sh delete.sh` would."""
        self.follow("python shovels.py definitions.json amqp://guest:guest@old:5672 delete")
        for line in (self._folder / "delete.sh").read_text().splitlines():
            self.run(line)
        await_true(lambda: not self.states())


def depth(address: tuple[str, int]) -> int:
    with pika.BlockingConnection(pika.URLParameters(url(address))) as connection:
        return int(connection.channel().queue_declare(QUEUE, passive=True).method.message_count)


def test_a_migration_and_the_way_back_lose_nothing(tmp_path, rabbitmq):
    """The clients are switched while they work, nothing is lost or doubled, and no publish waits for long."""
    received: list[int] = []
    publisher = Publisher(url(rabbitmq.address))

    def await_some() -> None:
        """Wait until as many more messages are published and received."""
        published, consumed = publisher.confirmed + AT_LEAST, len(received) + AT_LEAST
        await_true(lambda: publisher.confirmed >= published and len(received) >= consumed)

    with serving(tmp_path) as running:
        reader = Reader(tmp_path, rabbitmq, running)
        publisher.start()
        consumer = Consumer(url(rabbitmq.address), received)
        await_some()
        reader.follow("rabbitmqctl export_definitions")
        reader.follow("leveret migrate check")
        reader.follow("leveret ctl import_definitions new/")
        for shovels, target in (
            ("python shovels.py definitions.json amqp://guest:guest@old:5672 > ", running.address),
            ("python shovels.py definitions.json amqp://guest:guest@old:5672 back", rabbitmq.address),
        ):
            reader.follow(shovels)
            reader.run("leveret ctl import_definitions shovels.json")
            await_true(lambda: reader.states() == {"running"}, reader.states)
            await_some()
            consumer.stop()
            consumer = Consumer(url(target), received)
            await_some()
            publisher.url = url(target)
            await_some()
            origin = rabbitmq.address if target is running.address else running.address
            await_true(lambda origin=origin: depth(origin) == 0)
            reader.delete_shovels()
        publisher.url = None
        publisher.join(SECONDS)
        await_true(lambda: len(received) >= publisher.confirmed)
        consumer.stop()

    assert list(range(publisher.confirmed)) == sorted(received)
    assert publisher.longest < 5
