"""The pages on finding out what is wrong: each command prints what the page shows, beside a broker in that state.

A block `console` has commands and what they print; a block `text` has lines of the log. `...` stands for anything. The
set-up of a heading brings the broker into its state.
"""

import ast
import contextlib
import re
import shlex
import signal
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pika
import pytest
from click.testing import CliRunner
from conformance.brokers import free_port
from processes.commands import execute
from processes.running import ROOT, Running, command

from leveret.broker.cli.ctl.main import ctl

PAGES = [
    ROOT / "docs" / "howto" / f"{name}.md"
    for name in ("troubleshooting", "client-problems", "start-problems")
]
SECONDS = 20.0
"""Time for an output to become that of the page, and for a line of the log."""
BODY = b"order" * 20


class Block(NamedTuple):
    """Commands and what each prints, or lines of the log."""

    is_log: bool
    commands: list[tuple[str, list[str]]]
    lines: list[str]


def blocks() -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {}
    heading = ""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for part in re.finditer(r"^#+ ([^\n]+)$|^```(console|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if part[1]:
            heading = part[1]
            continue
        lines = part[3].splitlines()
        commands: list[tuple[str, list[str]]] = []
        for line in lines:
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif commands:
                commands[-1][1].append(line)
        found.setdefault(heading, []).append(Block(part[2] == "text", commands, lines))
    return found


BLOCKS = blocks()


class Place:
    """A directory with a broker, which may have been stopped.

    Args:
        tmp_path: where its data directory is.
        settings: keys of its configuration.

    """

    def __init__(self, tmp_path: Path, *settings: str) -> None:
        self.tmp_path = tmp_path
        self.code = 0
        """Exit code of the last command but those of `leveret ctl`."""
        self.serve_dir = tmp_path / "data"
        """The data directory of `leveret serve` on the page."""
        self.management, self.metrics = free_port(), free_port()
        ports = (f"management.tcp.port={self.management}", f"prometheus.tcp.port={self.metrics}")
        enabled = ("management.enabled=true", "prometheus.enabled=true")
        words = [word for each in (*ports, *enabled, *settings) for word in ("--set", each)]
        self._words = words
        self._ending = contextlib.ExitStack()
        self.start()
        self.running.wait_for("Server startup complete")
        self.port = self.running.address[1]

    def start(self) -> None:
        self.running = self._ending.enter_context(Running(self.tmp_path, *self._words, is_judged=False))

    def stop(self) -> None:
        self.running.stopped_by(signal.SIGTERM)

    def close(self) -> None:
        self._ending.close()

    def connection(self) -> pika.BlockingConnection:
        made = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))
        self._ending.callback(end, made)
        return made

    def run(self, line: str) -> str:
        """Run a command of the page; returns what it prints, in the page's names."""
        words = shlex.split(line)
        if words[0] == "curl":
            text = self._fetched(words)
        elif words[:2] == ["leveret", "ctl"]:
            text = CliRunner().invoke(ctl, ["--data-dir", str(self.running.data_dir), *words[2:]]).output
        else:
            text, self.code = self._ended([word.replace("5672", str(self.port)) for word in words[1:]])
        return self._shown(text)

    def _ended(self, words: list[str]) -> tuple[str, int]:
        if words[0] == "serve":
            words += ["--data-dir", str(self.serve_dir), "--set", "management.enabled=false"]
            words += ["--set", "prometheus.tcp.port=0"]
        else:
            words += ["--data-dir", str(self.running.data_dir)]
        done = execute(command(*words), cwd=self.tmp_path)
        return done.stdout + done.stderr, done.returncode

    def _fetched(self, words: list[str]) -> str:
        url = words[-1].replace("15672", str(self.management)).replace("15692", str(self.metrics))
        request = urllib.request.Request(url)
        if "-u" in words:
            login = b64encode(words[words.index("-u") + 1].encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return str(answer.read().decode())

    def _shown(self, text: str) -> str:
        text = text.replace(str(self.running.data_dir), "/var/lib/leveret")
        text = re.sub(r"\b(rabbit|leveret)@[\w-]+(\.[\w-]+)*", "rabbit@host", text)
        for port, usual in ((self.management, "15672"), (self.metrics, "15692"), (self.port, "5672")):
            text = text.replace(f"{port}", usual)
        return text


def end(connection: pika.BlockingConnection) -> None:
    """Close a connection, unless the broker has."""
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


def pattern(lines: list[str]) -> str:
    """Return the regular expression for lines of the page, in which spaces do not matter."""
    words = " ".join(" ".join(lines).split())
    return ".*?".join(r"\s+".join(map(re.escape, part.split(" "))) for part in words.split("..."))


def fits(lines: list[str], text: str) -> bool:
    return re.fullmatch(pattern(lines), " ".join(text.split()), re.DOTALL) is not None


# -- the states --------------------------------------------------------------------------------------------------------


def published(place: Place, count: int = 50, **arguments: object) -> pika.BlockingConnection:
    """Publish messages to `orders`, which are on disk at the return; returns the connection."""
    connection = place.connection()
    channel = connection.channel()
    channel.queue_declare("orders", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", "orders", BODY, pika.BasicProperties(delivery_mode=2))
    return connection


def consuming(place: Place) -> None:
    """Have a consumer that acknowledges nothing."""
    published(place).close()
    connection = place.connection()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume("orders", lambda *_: None)
    connection.process_data_events(0)


def short_of_memory(place: Place) -> None:
    """Raise the memory alarm, and have a publisher that is blocked by it."""
    channel = published(place).channel()
    place.run("leveret ctl set_vm_memory_high_watermark absolute 1MB")
    channel.basic_publish("", "orders", BODY)


def refused(place: Place) -> None:
    """Have a user, whose login is refused."""
    place.run("leveret ctl add_user shop-app first")
    login = pika.PlainCredentials("shop-app", "wrong")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", place.port, credentials=login))


def missing(place: Place) -> None:
    """Publish messages without a route, and others that expire."""
    channel = place.connection().channel()
    channel.exchange_declare("events", "direct", durable=True)
    channel.queue_declare("lost", durable=True)
    arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "lost"}
    channel.queue_declare("orders", durable=True, arguments=arguments)
    channel.queue_bind("orders", "events", "order.new")
    for key in ("order.new", "order.changed", "order.changed", "order.new", "order.changed"):
        channel.basic_publish("events", key, BODY, pika.BasicProperties(delivery_mode=2))


def damaged(place: Place) -> None:
    """Stop the broker, and damage the messages that are stored."""
    published(place).close()
    place.stop()
    path = place.running.data_dir / "store" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(BODY, b"spoil" * 20))


def started_damaged(place: Place) -> None:
    """Start the broker again after that, and fetch a message."""
    damaged(place)
    place.start()
    place.running.wait_for("Server startup complete")
    place.port = place.running.address[1]
    place.connection().channel().basic_get("orders")


def lost_log(place: Place) -> None:
    """Kill the broker after some small commits, and lose its redo log."""
    channel = place.connection().channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "orders", b"x", pika.BasicProperties(delivery_mode=2))
    place.running.stopped_by(signal.SIGKILL)
    (place.running.data_dir / "store" / "redo.log").unlink()


def cut_off(place: Place) -> None:
    """Stop the broker, and cut off its file."""
    place.stop()
    path = place.running.data_dir / "store" / "data.mdb"
    path.write_bytes(path.read_bytes()[:20000])


def elsewhere(place: Place) -> None:
    """Start further brokers on a directory of their own."""
    place.serve_dir = place.tmp_path / "other"


STATES: dict[str, Callable[[Place], object]] = {
    "The broker does not run": Place.stop,
    "The broker runs": lambda place: None,
    "A login is refused": refused,
    "Memory": short_of_memory,
    "Disk": lambda place: place.run("leveret ctl set_disk_free_limit 100TB"),
    "A queue grows": lambda place: published(place).close(),
    "Consumers get nothing": consuming,
    "Messages stay unacknowledged": consuming,
    "The consumer timeout": consuming,
    "Messages are missing": missing,
    "Confirms are slow": published,
    "The store is damaged": started_damaged,
    "With the broker stopped": damaged,
    "The port is taken": elsewhere,
    "The data directory is in use": lambda place: None,
    "A key of the configuration is wrong": elsewhere,
    "The redo log is lost": lost_log,
    "The data file is cut off": cut_off,
}
"""The set-up of each heading."""
SETTINGS = {
    "A login is refused": ("auth.failure_delay=0ms",),
    "The consumer timeout": ("consumer_timeout=1000",),
    "Messages are missing": ("collect_statistics_interval=1000",),
}
CODES = {
    "With the broker stopped": 65,
    "The port is taken": 69,
    "The data directory is in use": 73,
    "A key of the configuration is wrong": 78,
    "The redo log is lost": 65,
    "The data file is cut off": 65,
}
"""Exit codes of the commands of a heading, as the table of the page has them."""


@pytest.mark.parametrize("heading", BLOCKS)
def test_commands_print_what_the_page_shows(tmp_path, heading):
    """And the log has the lines that it shows."""
    with contextlib.closing(Place(tmp_path, *SETTINGS.get(heading, ()))) as place:
        STATES[heading](place)
        for block in BLOCKS[heading]:
            if block.is_log:
                for line in block.lines:
                    place.running.wait_for(max(line.split("..."), key=len).strip(), SECONDS)
            for line, expected in block.commands:
                text = place.run(line)
                until = time.monotonic() + SECONDS
                while not fits(expected, text) and time.monotonic() < until:
                    time.sleep(0.1)
                    text = place.run(line)
                assert fits(expected, text), (line, expected, text)
        assert place.code == CODES.get(heading, 0)


def test_the_page_has_no_state_without_commands():
    """Each set-up belongs to a heading."""
    assert BLOCKS.keys() == STATES.keys()


def test_lines_of_the_log_exist():
    """Each line of the log in the table at the head of the page is a text of the broker."""
    table = PAGES[0].read_text(encoding="utf-8").partition("## When it breaks")[2].partition("\n\nNo line")[0]
    shown = [line for row in table.splitlines()[4:] for line in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    texts = " ".join(
        node.value
        for folder in ("broker", "storage", "confirm")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )

    assert len(shown) > 15
    assert [] == [line for line in shown for part in line.split("...") if part.strip(" ':") not in texts]
