"""Golden transcripts: what clients send and what they are sent, as text that reads like documentation.

A transcript is a file of blocks. Above the rule of a block stand commands, below it what they led to:

    a 1 basic.publish routing_key=q mandatory 'hello'
    ----
    a < 1 basic.ack delivery_tag=1

A command is a client, a channel and a method with its fields as the specification names them; bits are just named,
tables written `key:value,...`, with `|` between the items of a list. What is no field of a publish is a property; the
body stands in quotes. What one client sends within a block arrives in one read. Besides there are `connect a`,
`lost a`, and `queues`, which shows what is in them.

A transcript that begins with `disk` plays on a data directory. What was noted is committed by `commit`; `full` is a
commit that finds no room, `read` reads what queues wait for, `stop` and `kill` end the broker in two ways, and the next one starts on what is on disk.

`REWRITE_SCENARIOS=1 pytest tests/scenarios` writes the files again: read the difference before you commit it.
"""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.internals import ready_messages
from doubles.fakes import Client, DiskNode, Node, publish_frames, wire_name

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx, make
from leveret.broker.vhost.direct_reply_to import REPLY_PREFIX
from leveret.storage.queues.memory_queue import MemoryQueue

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))
RULE = "----"
METHODS = {
    wire_name(method): method
    for group in (Basic, Channel, Confirm, Connection, Exchange, Queue, Tx)
    for method in vars(group).values()
    if hasattr(method, "frame_id")
}
NUMBERS = {"octet", "short", "long", "longlong"}
ALL_OF_A_TOKEN = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")


def test_there_are_scenarios():
    """The transcripts are found."""
    assert 10 <= len(SCENARIOS)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path, monkeypatch, tmp_path):
    """The clients of a transcript are sent what it says."""
    counter = itertools.count(1)
    monkeypatch.setattr("secrets.token_urlsafe", lambda _: f"random-{next(counter)}")
    monkeypatch.setattr(
        "leveret.broker.vhost.direct_reply_to.reply_address",
        lambda *_: f"{REPLY_PREFIX}random-{next(counter)}",
    )
    written = path.read_text(encoding="utf-8")
    played = play(written, tmp_path)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(played, encoding="utf-8")

    assert written == played


def play(text: str, data_dir: Path) -> str:
    """The transcript as it turns out."""
    session = Session(data_dir)
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.split("\n")
        if RULE in commands:
            del commands[commands.index(RULE) :]
        if all(line.startswith("#") for line in commands):
            blocks.append("\n".join(commands))
            continue
        outcome = session.run([line for line in commands if not line.startswith("#")])
        blocks.append("\n".join([*commands, RULE, *outcome]))
    session.end()
    return "\n\n".join(blocks) + "\n"


class Session:
    """The broker of a transcript, and its clients by name.

    Args:
        data_dir: where a broker may keep its data.

    """

    def __init__(self, data_dir: Path) -> None:
        self.node = Node()
        self.data_dir = data_dir
        self.clients: dict[str, Client] = {}

    def end(self) -> None:
        if isinstance(self.node, DiskNode):
            self.node.disk.close()

    def run(self, commands: list[str]) -> list[str]:
        outcome: list[str] = []
        parsed = [ALL_OF_A_TOKEN.findall(line) for line in commands]
        for name, group in itertools.groupby(parsed, key=lambda words: words[0]):
            lines = list(group)
            if name == "connect":
                for words in lines:
                    self.clients[words[1]] = Client(self.node, port=50000 + len(self.clients))
            elif name == "lost":
                for words in lines:
                    self.clients.pop(words[1]).connection.lost()
                self.node.finish_turn()
            elif name == "queues":
                outcome += self.queues()
            elif name == "disk":
                self.node = DiskNode(self.data_dir)
            elif name in {"commit", "full", "read", "stop", "kill"}:
                self.play_disk(name)
            else:
                self.clients[name].receive(b"".join(frames(words[1:]) for words in lines))
        for name, client in self.clients.items():
            outcome += [f"{name} < {line}" for line in client.sent()]
            if client.driver.closed is not None:
                outcome.append(f"{name} closed")
        return outcome

    def play_disk(self, command: str) -> None:
        node = self.node
        assert isinstance(node, DiskNode)
        if command == "commit":
            node.commit()
        elif command == "full":
            node.fail()
        elif command == "read":
            node.read()
        else:
            if command == "stop":
                for client in self.clients.values():
                    client.connection.lost()
            self.clients.clear()
            self.node = node.restarted() if command == "stop" else node.killed()

    def queues(self) -> Iterator[str]:
        for queue in self.node.vhosts["/"].queues.values():
            unacked, consumers = queue.unacked_count, queue.consumer_count
            ready: object = queue.ready_count
            if isinstance(queue.backing, MemoryQueue):
                ready = f"[{' '.join(message.body.decode() for message in ready_messages(queue.backing))}]"
            yield f"{queue.name}: ready={ready} unacked={unacked} consumers={consumers}"


def frames(words: list[str]) -> bytes:
    number, name, *rest = words
    method = METHODS[name]
    options: dict[str, Any] = {}
    body = b""
    for word in rest:
        if word.startswith("'"):
            body = word[1:-1].encode()
        else:
            key, _, value = word.partition("=")
            options[key] = value.strip('"') if "=" in word else True
    if method is Basic.Publish:
        return publish_frames(
            options.pop("routing_key", ""),
            body,
            channel=int(number),
            **{
                key: READERS.get(key, str)(value) if value is not True else True
                for key, value in options.items()
            },
        )
    values = []
    for slot in method.__slots__:
        kind = method.amqp_type(slot)
        value = options.pop(slot.rstrip("_"), None)
        if kind == "bit":
            values.append(bool(value))
        elif kind == "table":
            values.append(table(value or ""))
        elif kind in NUMBERS:
            values.append(int(value or 0))
        else:
            values.append(value or "")
    assert not options, f"no such field: {options}"
    return encode_method(int(number), make(method, *values))


def table(text: str) -> dict[str, tuple[str, object]]:
    """A typed table from `key:value,key:value`."""
    items = [item.partition(":") for item in text.split(",") if item]
    return {key: field(value) for key, _, value in items}


def field(text: str) -> tuple[str, object]:
    if "|" in text:
        return "array", [field(item) for item in text.split("|") if item]
    return ("signedint", int(text)) if text.isdigit() else ("longstr", text)


READERS: dict[str, Any] = {"headers": table, "delivery_mode": int, "priority": int, "timestamp": int}
