"""Records the messages of `amq.rabbitmq.event` about a script of clients and an operator, in lines.

`events.txt` has those of RabbitMQ 3.10; `python tests/conformance/events.py` records RabbitMQ's again.
"""

import contextlib
import json
import re
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pika
from conformance.brokers import Broker, SetUp, free_port, start_rabbitmq
from conformance.codec import BODY, HEADER, METHOD, decode_method
from conformance.wire import Channel, Client, ClosedError, QuietError
from processes.commands import execute

from leveret.broker.amqp.properties import Properties

RECORD = Path(__file__).with_name("events.txt")
EXCHANGE = "amq.rabbitmq.event"
SECONDS = 60.0
QUIET_SECONDS = 1.0
"""RabbitMQ's events come from several processes: so long nothing more comes before a step is over."""
PLUGINS = "rabbitmq_event_exchange,rabbitmq_management"


class Watcher(Client):
    """A client that reads all events, with the types of their headers."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, SECONDS)
        self.login()
        channel = self.channel(1)
        channel.queue("events", exclusive=True)
        channel.call("queue.bind", queue="events", exchange=EXCHANGE, routing_key="#", arguments={})
        self.declaring = self.channel(2)
        channel.consume("events", no_ack=True)
        self.number = 0

    def event(self, timeout: float) -> tuple[str, Properties]:
        """Return the routing key and the properties of the next event; raises QuietError."""
        key = ""
        deadline = time.monotonic() + timeout
        while True:
            kind, channel, payload = self.read_frame(max(0.0, deadline - time.monotonic()))
            if channel != 1:
                continue
            if kind == METHOD:
                method = decode_method(1, payload)
                assert EXCHANGE == method.exchange
                key = method.routing_key
            elif kind == HEADER:
                assert b"\0" * 8 == payload[4:12], "an event has a body"
                return key, Properties(payload)
            else:
                assert kind != BODY

    def seen(self, expected: int | None) -> list[tuple[str, Properties]]:
        """Return the events up to now: so many, or all that come until it is quiet."""
        found: list[tuple[str, Properties]] = []
        deadline = time.monotonic() + SECONDS
        while (expected is None or len(found) < expected) and time.monotonic() < deadline:
            try:
                found.append(self.event(QUIET_SECONDS if expected is None else SECONDS))
            except QuietError:
                break
        self.number += 1
        end = f"end {self.number}"
        self.declaring.send("exchange.declare", exchange=end, type="direct", durable=False, nowait=True)
        while time.monotonic() < deadline:
            key, properties = self.event(SECONDS)
            if key == "exchange.created" and (properties.headers or {})["name"] == ("longstr", end):
                return found
            found.append((key, properties))
        raise AssertionError("no event of the exchange at the end")


class Session:
    """Clients and an operator of a broker, with the number of its port of the API."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self._port = port
        self.clients: list[Client] = []

    def client(self, user: str = "guest", vhost: str = "/", password: str | None = None) -> Client:
        """Return a client that has logged in."""
        client = self.broker.client(SECONDS)
        self.clients.append(client)
        return client.login(user, user if password is None else password, vhost)

    def channel(self) -> Channel:
        """Return a channel of a new client."""
        return self.client().channel(1)

    def close(self, client: Client) -> None:
        """Close a connection in order."""
        client.call(0, "connection.close", reply_code=200, reply_text="bye", class_id=0, method_id=0)
        client.close_socket()

    def ctl(self, *words: str) -> None:
        """Run a command of the operator."""
        if self.broker.kind == "rabbitmq":
            self.broker.control(*words)
            return
        command = [
            sys.executable,
            "-m",
            "leveret",
            "ctl",
            "--data-dir",
            str(self.broker.home / "data"),
            *words,
        ]
        execute(command, check=True, timeout=SECONDS)

    def api(self, method: str, path: str, body: object = None, login: str = "guest:guest") -> int:
        """Send a request to the API; returns its status."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Basic {b64encode(login.encode()).decode()}",
                "content-type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


def connected(session: Session) -> None:
    """Connect, open channels, and close one and the connection."""
    client = session.client()
    client.channel(1).call("channel.close", reply_code=200)
    client.channel(2)
    session.close(client)


def refused(session: Session) -> None:
    """Log in with a wrong password, by an unknown name, to unknown and forbidden virtual hosts."""
    for user, vhost, password in (
        ("guest", "/", "wrong"), ("missing", "/", "missing"), ("guest", "missing", "guest"), ("nobody", "/", "nobody"),
    ):  # fmt: skip
        with contextlib.suppress(ClosedError):
            session.client(user, vhost, password)
        session.clients[-1].close_socket()


def declared(session: Session) -> None:
    """Declare exchanges and queues of each kind, and again."""
    channel = session.channel()
    channel.exchange("x", "topic", durable=True)
    channel.exchange("x", "topic", durable=True)
    channel.exchange("e2e", "fanout", auto_delete=True, internal=False)
    channel.exchange("alternate", "direct", arguments={"alternate-exchange": "x", "other": 7})
    channel.queue("q", durable=True, arguments={"x-max-length": 10, "x-other": "text", "x-list": [1, "two"]})
    channel.queue("q", durable=True, arguments={"x-max-length": 10, "x-other": "text", "x-list": [1, "two"]})
    channel.queue("temporary", auto_delete=True)
    channel.queue("own", exclusive=True)
    channel.queue("")


def bound(session: Session) -> None:
    """Bind and unbind, in both classes, twice."""
    channel = Channel(session.clients[-1], 1)
    for _ in range(2):
        channel.call("queue.bind", queue="q", exchange="x", routing_key="a.#", arguments={"k": "v", "n": 1})
    channel.call("queue.bind", queue="q", exchange="e2e", routing_key="")
    channel.call("exchange.bind", destination="x", source="e2e", routing_key="k")
    channel.call("queue.unbind", queue="q", exchange="x", routing_key="a.#", arguments={"k": "v", "n": 1})
    channel.call("queue.unbind", queue="q", exchange="x", routing_key="missing")


def consumed(session: Session) -> None:
    """Consume in several ways; cancel; publish, get and ack, of which nothing is told."""
    channel = Channel(session.clients[-1], 1)
    channel.call("basic.qos", prefetch_count=5)
    channel.consume("q", "first", arguments={"x-priority": 3})
    channel.consume("own", "second", no_ack=True)
    channel.consume("q", "third")
    channel.consume("temporary", "fourth", exclusive=True)
    channel.call("basic.cancel", consumer_tag="first")
    channel.publish("", "q", b"body")
    channel.deliver()
    channel.send("basic.ack", delivery_tag=1)
    channel.sync()


def reply_to(session: Session) -> None:
    """Consume and cancel a direct reply-to queue."""
    channel = session.clients[-1].channel(2)
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    channel.call("basic.cancel", consumer_tag="replies")
    channel.call("channel.close", reply_code=200)


def ended(session: Session) -> None:
    """Close a connection with consumers, an exclusive queue, and an auto-delete queue."""
    session.close(session.clients[-1])


def lost(session: Session) -> None:
    """Drop a socket with an exclusive queue and a consumer."""
    channel = session.channel()
    channel.queue("own", exclusive=True)
    channel.consume("own", "ct")
    channel.client.close_socket()


def failed(session: Session) -> None:
    """Cause errors of a channel, and of a connection."""
    channel = session.channel()
    with contextlib.suppress(ClosedError):
        channel.queue("missing", passive=True)
    channel.send("channel.close-ok")
    other = channel.client.channel(2)
    with contextlib.suppress(ClosedError):
        other.call("exchange.declare", exchange="z", type="unknown")
    channel.client.send(0, "connection.close-ok")
    with contextlib.suppress(ClosedError):
        channel.client.receive(0, "basic.ack")
    channel.client.close_socket()


def deleted(session: Session) -> None:
    """Delete what was declared."""
    channel = session.channel()
    channel.call("queue.purge", queue="q")
    channel.call("queue.delete", queue="q")
    channel.call("queue.delete", queue="missing")
    channel.call("exchange.delete", exchange="alternate")
    channel.call("exchange.delete", exchange="x")
    channel.call("exchange.delete", exchange="missing")
    session.close(channel.client)


def expired(session: Session) -> None:
    """Let queues expire."""
    channel = session.channel()
    channel.queue("brief", arguments={"x-expires": 200})
    channel.queue("durable", durable=True, arguments={"x-expires": 200})


def declared_by_api(session: Session) -> None:
    """Declare, bind and delete by the API."""
    api = session.api
    api("PUT", "exchanges/%2F/api-x", {"type": "fanout", "durable": True, "arguments": {"k": "v"}})
    api("PUT", "queues/%2F/api-q", {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}})
    api("POST", "bindings/%2F/e/api-x/q/api-q", {"routing_key": "rk", "arguments": {"n": 1}})
    api("POST", "bindings/%2F/e/api-x/e/amq.direct", {"routing_key": "rk"})
    api("DELETE", "queues/%2F/api-q/contents")
    api("DELETE", "exchanges/%2F/api-x")
    api("DELETE", "queues/%2F/api-q")


def policies(session: Session) -> None:
    """Set policies that apply to a queue, change, and clear them."""
    api = session.api
    api("PUT", "queues/%2F/policed", {"durable": True})
    policy = {
        "pattern": "^policed",
        "definition": {"max-length": 5, "overflow": "reject-publish"},
        "priority": 3,
    }
    api("PUT", "policies/%2F/p", {**policy, "apply-to": "queues"})
    api("PUT", "policies/%2F/p", {"pattern": "^policed", "definition": {"max-length": 6}})
    api("PUT", "operator-policies/%2F/op", {"pattern": "^policed", "definition": {"expires": 500000}})
    api("DELETE", "operator-policies/%2F/op")
    api("DELETE", "policies/%2F/p")
    api("PUT", "policies/%2F/bad", {"pattern": "^policed", "definition": {"max-length": -6}})
    api("DELETE", "queues/%2F/policed")


def parameters(session: Session) -> None:
    """Set and clear global parameters, and limits."""
    api = session.api
    api("PUT", "global-parameters/g", {"name": "g", "value": {"a": 1, "l": [1, "x"], "t": {"b": True}}})
    api("PUT", "global-parameters/g", {"name": "g", "value": "text"})
    api("DELETE", "global-parameters/g")
    api("PUT", "vhost-limits/other/max-queues", {"value": 100})
    api("PUT", "vhost-limits/other/max-connections", {"value": 100})
    api("DELETE", "vhost-limits/other/max-queues")
    api("DELETE", "vhost-limits/other/max-connections")
    api("PUT", "user-limits/nobody/max-channels", {"value": 100})
    api("DELETE", "user-limits/nobody/max-channels")


def users(session: Session) -> None:
    """Create, change and delete a user and its permissions."""
    api = session.api
    api("PUT", "users/alice", {"password": "one two", "tags": "monitoring,other"})
    api("PUT", "users/alice", {"password": "three", "tags": "monitoring"})
    api("PUT", "users/bob", {"password": "one two", "tags": ""})
    for patterns in (
        {"configure": "^a", "write": ".*", "read": ""},
        {"configure": "", "write": "", "read": ""},
    ):
        api("PUT", "permissions/%2F/alice", patterns)
    api("PUT", "topic-permissions/%2F/alice", {"exchange": "amq.topic", "write": "^a", "read": "^b"})
    api("PUT", "topic-permissions/other/alice", {"exchange": "amq.topic", "write": "^a", "read": "^b"})
    api("DELETE", "topic-permissions/%2F/alice")
    api("DELETE", "permissions/%2F/alice")
    api("DELETE", "permissions/%2F/alice")
    api("PUT", "permissions/%2F/bob", {"configure": "", "write": "", "read": ""})
    api("PUT", "topic-permissions/%2F/bob", {"exchange": "amq.topic", "write": "^a", "read": "^b"})
    api("DELETE", "users/alice")
    api("DELETE", "users/alice")
    api("POST", "users/bulk-delete", {"users": ["bob"]})


def vhosts(session: Session) -> None:
    """Create a virtual host, use it, and delete it with everything in it."""
    api = session.api
    api("PUT", "vhosts/v", {"description": "of mine", "tags": "a,b"})
    api("PUT", "vhosts/v", {"description": "changed", "tags": "a"})
    api("PUT", "permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    api("PUT", "queues/v/q", {"durable": True})
    api("POST", "bindings/v/e/amq.topic/q/q", {"routing_key": "rk"})
    api("PUT", "policies/v/p", {"pattern": "z", "definition": {"max-length": 5}})
    api("PUT", "topic-permissions/v/guest", {"exchange": "amq.topic", "write": "^a", "read": "^b"})
    api("DELETE", "vhosts/v")


def ended_by_an_operator(session: Session) -> None:
    """Close a connection by the API, and one by the deletion of its user."""
    client = session.client()
    client.channel(1)
    name = "%3A".join(str(each) for each in client.socket.getsockname())
    peer = "%3A".join(str(each) for each in client.socket.getpeername())
    deadline = time.monotonic() + SECONDS
    while session.api("DELETE", f"connections/{name}%20-%3E%20{peer}") != 204 and time.monotonic() < deadline:
        time.sleep(0.2)
    with contextlib.suppress(ClosedError):
        client.receive(0, "basic.ack")
    client.send(0, "connection.close-ok")
    with contextlib.suppress(ClosedError):
        client.receive(0, "basic.ack")
    client.close_socket()


def named(session: Session) -> None:
    """Connect with a name of the client's own, and by AMQPLAIN."""
    parameters = pika.ConnectionParameters(
        *session.broker.address, client_properties={"connection_name": "mine", "n": 7, "l": [1, "two", True]}
    )
    connection = pika.BlockingConnection(parameters)
    connection.channel()
    connection.close()


def alarmed(session: Session) -> None:
    """Raise and clear the memory alarm."""
    session.ctl("set_vm_memory_high_watermark", "absolute", "1000000")
    session.ctl("set_vm_memory_high_watermark", "0.8")


def requested(session: Session) -> None:
    """Log in to the API, rightly and wrongly, and send a message by it."""
    session.api("GET", "whoami")
    session.api("GET", "whoami", login="guest:wrong")
    session.api("GET", "whoami", login="nobody:nobody")
    properties: dict[str, Any] = {}
    session.api(
        "POST",
        "exchanges/%2F/amq.direct/publish",
        {"properties": properties, "routing_key": "k", "payload": "p", "payload_encoding": "string"},
    )


def commanded(session: Session) -> None:
    """Run commands of an operator on the broker's host."""
    ctl = session.ctl
    ctl("add_user", "carol", "one two")
    ctl("set_user_tags", "carol", "management")
    ctl("change_password", "carol", "three")
    ctl("clear_password", "carol")
    ctl("set_permissions", "carol", ".*", "", "^r")
    ctl("clear_permissions", "carol")
    ctl("set_topic_permissions", "carol", "amq.topic", "^a", "^b")
    ctl("clear_topic_permissions", "carol")
    ctl("set_user_limits", "carol", '{"max-channels": 5}')
    ctl("clear_user_limits", "carol", "all")
    ctl("authenticate_user", "guest", "guest")
    ctl("delete_user", "carol")
    ctl("add_vhost", "w")
    ctl("set_vhost_limits", "-p", "w", '{"max-queues": 5}')
    ctl("clear_vhost_limits", "-p", "w")
    ctl("delete_vhost", "w")
    ctl("set_policy", "p", "^z", '{"max-length": 7}', "--priority", "2", "--apply-to", "queues")
    ctl("clear_policy", "p")
    ctl("set_operator_policy", "p", "^z", '{"max-length": 7}')
    ctl("clear_operator_policy", "p")
    ctl("set_global_parameter", "g", "5")
    ctl("clear_global_parameter", "g")


STEPS: tuple[Callable[[Session], None], ...] = (
    connected, refused, declared, bound, consumed, reply_to, ended, lost, failed, deleted, expired, ended, declared_by_api,
    policies, parameters, users, vhosts, ended_by_an_operator, named, requested, commanded, alarmed,
)  # fmt: skip


def line(key: str, properties: Properties, port: int) -> str:
    """Return an event in a line, without what differs from run to run; process ids are names, as ours."""
    headers = properties.headers
    assert headers is not None
    kind, milliseconds = headers.pop("timestamp_in_ms")
    assert ("long", milliseconds // 1000, 2) == (kind, properties.timestamp, properties.delivery_mode)
    text = json.dumps(headers, sort_keys=True)
    text = _PID.sub('"PID"', text)
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return f"{key} {text.replace(str(port), 'PORT')}"  # at last: a time may have the same digits


_PID = re.compile(r'"<[^"]*>"|"<?[^ "]* -> [^ "]*( [(]\d+[)])?"|"<[^"]*> [(]1[)]"')
_VARYING = (
    (re.compile(r'"[^ "]*@localhost"'), '"NODE"'),
    (re.compile(r"amq[.]gen-[-\w]{22}"), "amq.gen-NAME"),
    (re.compile(r'("peer_port": \["long", )\d+'), r"\1PORT"),
    (re.compile(r'("connected_at": \["long", )\d+'), r"\1TIME"),
    # of Python and of pika
    (re.compile(r'(<<\\"(?:platform|version)\\">>,longstr,<<\\")[^\\]*'), r"\1VERSION"),
)


def record(broker: Broker, port: int, expected: Sequence[int] | None) -> list[str]:
    """Run the script; returns the lines of all steps in alphabetical order, each after the name of its step.

    Args:
        broker: the broker.
        port: its port of the API.
        expected: number of events of each step; None to wait until it is quiet.

    """
    watcher = Watcher(broker.address)
    watcher.seen(None)
    session = Session(broker, port)
    lines = []
    for number, step in enumerate(STEPS):
        step(session)
        found = watcher.seen(None if expected is None else expected[number])
        told = sorted(line(*each, broker.address[1]) for each in found)
        lines += [f"-- {step.__name__}", *[each for each in told if not each.startswith("node.node.")]]
    watcher.close_socket()
    for client in session.clients:
        client.close_socket()
    return lines


def main() -> None:
    """Record RabbitMQ's lines."""
    port = free_port()
    lines = (
        f"management.tcp.port = {port}",
        "management.tcp.ip = 127.0.0.1",
        "collect_statistics_interval = 1000",
    )
    broker = start_rabbitmq(SetUp("main", plugins=PLUGINS, lines=lines))
    try:
        RECORD.write_text("\n".join(record(broker, port, None)) + "\n", encoding="utf-8")
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
