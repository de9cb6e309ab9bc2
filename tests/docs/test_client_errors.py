"""The errors of clients on the page about problems of clients are those that the broker sends."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from doubles.fakes import Client, Node, basic_consume, queue_declare
from processes.running import ROOT

from leveret.broker.amqp.commands import Basic, Connection as Wire, make
from leveret.broker.connection.handshake import PROTOCOL_HEADER

PAGE = ROOT / "docs" / "howto" / "client-problems.md"
ROWS = re.findall(r"^\| (\d{3}) `([^|]*)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
CLOSE = re.compile(r'(?:channel|connection)\.close reply_code=(\d+) reply_text="(.*)" class_id=')


def consumer(client: Client, tag: str = "tag", **options: Any) -> Client:
    client.ask(basic_consume("orders", tag, **options))
    return client


def owner(client: Client) -> Client:
    client.declare("mine", exclusive=True)
    return client


def publish(node: Node, exchange: str) -> list[str]:
    """Publish to an exchange that does not exist."""
    client = Client(node)
    client.publish("k", b"x", exchange=exchange)
    return client.sent()


def refused_vhost(node: Node) -> list[str]:
    """Connect to a vhost that does not exist."""
    client = Client(node, connect=False)
    client.receive(PROTOCOL_HEADER)
    client.send(make(Wire.StartOk, {}, "PLAIN", "\0guest\0guest", "en_US"), channel=0)
    client.send(make(Wire.TuneOk, 2047, 131072, 0), channel=0)
    return client.ask(make(Wire.Open, "nosuch", "", False), channel=0)


CAUSES: dict[str, Callable[[Node], list[str]]] = {
    "no queue": lambda node: Client(node).declare("orders.gone", passive=True),
    "no exchange": lambda node: publish(node, "shop"),
    "inequivalent arg 'x-": lambda node: Client(node).declare("limited", durable=True, arguments={"x-max-length": ("signedint", 5)}),
    "inequivalent arg 'd": lambda node: Client(node).declare("limited", arguments={"x-max-length": ("signedint", 10)}),
    "invalid arg": lambda node: Client(node).declare("q", arguments={"x-max-length": ("longstr", "5")}),
    "unknown delivery tag": lambda node: Client(node).ask(make(Basic.Ack, 7, False)),
    "cannot obtain": lambda node: [str(owner(Client(node))), *Client(node).ask(queue_declare("mine", passive=True))],
    "in exclusive use": lambda node: [str(consumer(Client(node), exclusive=True)), *Client(node).ask(basic_consume("orders", "y"))],
    "reserved prefix": lambda node: Client(node).declare("amq.mine"),
    "vhost nosuch": refused_vhost,
    "reuse consumer tag": lambda node: consumer(Client(node)).ask(basic_consume("orders", "tag")),
}  # fmt: skip
"""A part of the text, and what brings it about."""


@pytest.mark.parametrize(("code", "text"), ROWS, ids=lambda each: each[:40])
def test_the_text_is_what_the_broker_sends(code, text):
    """With its code; a queue that does not exist may have another name."""
    node = Node()
    node.administration.topology.declare_queue(None, "/", "orders")
    node.administration.topology.declare_queue(None, "/", "limited", arguments={"x-max-length": 10})
    (cause,) = [make_it for part, make_it in CAUSES.items() if part in text]  # fmt: skip
    sent = cause(node)
    found = [match.groups() for match in map(CLOSE.search, sent) if match]

    assert [(code, text)] == [(number, said.replace("orders.gone", "orders")) for number, said in found]


def test_each_cause_is_on_the_page():
    """And each row has one."""
    assert len(CAUSES) == len(ROWS)
