"""Every method a broker sends, octet for octet: scripts, and the octets RabbitMQ answers them with (octets-*.txt).

The tables are a record of facts: `run.py --write` asks a RabbitMQ and writes its; test_octets.py compares ours with
them, and `make conformance` asks both again. What differs from run to run is replaced by something of the same length.
"""

import hashlib
import re
import struct
from collections.abc import Callable
from typing import Any

from conformance.brokers import Broker
from conformance.codec import (
    BODY,
    HEADER,
    METHOD,
    SPECS,
    Message,
    Reader,
    T,
    encode_header,
    encode_method,
    frame,
    shortstr,
    table,
)
from conformance.explained import explanation
from conformance.peers import OF_MACHINE, Peer
from conformance.wire import Channel, Client, ClosedError, QuietError

REPLY_TO = "amq.rabbitmq.reply-to"
EVERY_PROPERTY: dict[str, Any] = {
    "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 1, "priority": 3, "correlation_id": "c",
    "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": 1700000000, "type": "t", "user_id": "guest",
    "app_id": "a", "cluster_id": "cl",
}  # fmt: skip
EVERY_FIELD: dict[str, Any] = {
    "bool": T("t", True), "byte": T("b", -5), "unsignedbyte": T("B", 200), "short": T("s", -300),
    "unsignedshort": T("u", 60000), "signedint": T("I", -70000), "unsignedint": T("i", 4000000000),
    "long": T("l", -(2**40)), "float": T("f", 1.5), "double": T("d", 0.1), "decimal": T("D", (2, 314)),
    "longstr": T("S", "text"), "binary": T("x", b"\x00\xff"), "timestamp": T("T", 1700000000), "void": T("V", None),
    "array": T("A", [T("I", 1), T("S", "two"), T("A", [])]), "table": T("F", {"inner": T("l", 1)}),
}  # fmt: skip


class Recorder(Client):
    """A client that keeps every frame it reads."""

    def __init__(self, address: tuple[str, int], timeout: float = 10.0) -> None:
        """Connect; nothing is kept yet."""
        super().__init__(address, timeout)
        self.frames: list[tuple[int, int, bytes]] = []

    def read_frame(self, timeout: float | None = None) -> tuple[int, int, bytes]:
        """Read the next frame and keep it."""
        found = super().read_frame(timeout)
        self.frames.append(found)
        return found


class RecordedSession:
    """Environment of a script: recorded clients of one broker."""

    def __init__(self, name: str, broker: Broker) -> None:
        """Queue and exchange are named after the script, so that they are the same on every broker."""
        self.broker = broker
        self.q, self.x = f"octets-{name}", f"octets-{name}"
        self.clients: list[Recorder] = []

    def client(self) -> Recorder:
        """A new socket, nothing sent."""
        client = Recorder(self.broker.address)
        self.clients.append(client)
        return client

    def channel(self, user: str = "guest", **rest: Any) -> Channel:
        """Channel 1 of a new connection; the handshake is not recorded."""
        client = self.client()
        client.login(user, user, **rest)
        opened = client.channel(1)
        client.frames.clear()
        return opened

    def lines(self) -> list[str]:
        """The frames that the clients have read, one line each."""
        return [line(*each) for client in self.clients for each in client.frames]


Script = Callable[[RecordedSession], Any]
SCRIPTS: dict[str, tuple[str, Script]] = {}
"""Scripts by name, each with the set-up of its broker."""


def script(name: str, setup: str = "main") -> Callable[[Script], Script]:
    """Add a script under a name."""

    def add(function: Script) -> Script:
        SCRIPTS[name] = setup, function
        return function

    return add


_GENERATED = re.compile(rb"(amq\.gen-|amq\.ctag-)[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-])")
_TIME = re.compile(rb"\x04timeT.{8}", re.DOTALL)
_REPLY = re.compile(rb".(amq\.rabbitmq\.reply-to\.g1h[A-Za-z0-9+/]+=*\.[A-Za-z0-9+/]{22}==)", re.DOTALL)


def mask(payload: bytes) -> bytes:
    """A payload with what differs from run to run replaced: generated names, times, direct reply-to addresses."""
    payload = _GENERATED.sub(lambda found: found[1] + b"N" * 22, payload)
    payload = _TIME.sub(b"\x04timeT" + b"\0" * 8, payload)
    return _REPLY.sub(b"\x0eREPLY-TO.B64.B64", payload)


def line(kind: int, channel: int, payload: bytes) -> str:
    """One frame as the record has it: the name of what it is, and all its octets but the end octet."""
    name = {HEADER: "header", BODY: "body"}.get(kind, "heartbeat")
    if kind == METHOD:
        name = SPECS[struct.unpack_from(">HH", payload)].name
    if kind == HEADER:
        payload = _as_newest(payload)
    elif name == "connection.start":
        payload = _start(payload)
    elif name == "basic.nack":  # RabbitMQ sets `multiple` also for a single number, if nothing below is open
        payload = payload[:-1] + bytes([payload[-1] & 2])
    payload = mask(payload)
    shown = payload.hex() if len(payload) < 1000 else hashlib.sha256(payload).hexdigest()
    return f"{name}: {frame(kind, channel, payload)[:7].hex()} {shown}"


def _start(payload: bytes) -> bytes:
    """connection.start without the properties, which are each broker's own, its mechanisms in the alphabet's order.

    4.3 offers ANONYMOUS, too (case connection.server-properties).
    """
    (size,) = struct.unpack_from(">I", payload, 6)
    reader = Reader(payload[10 + size :])
    mechanisms = " ".join(sorted({*reader.longstr().split()} - {"ANONYMOUS"})).encode()
    octets = struct.pack(">I", len(mechanisms)) + mechanisms
    return payload[:6] + b"\0\0\0\0" + octets + reader.data[reader.at :]


def _as_newest(payload: bytes) -> bytes:
    """A content header with the deaths in its table as RabbitMQ 3.10 and 3.13 both write them.

    3.13 adds x-last-death-*, and writes an original-expiration at the front of its entry instead of at the end.
    """
    if b"x-death" not in payload:
        return payload
    reader = Reader(payload)
    reader.take(12)
    flags = reader.number(">H")
    for _ in range((flags >> 14).bit_count()):  # content type and encoding stand before the table
        reader.shortstr()
    start = reader.at
    fields = _fields(reader.take(reader.number(">I")))
    fields = {name: value for name, value in fields.items() if not name.startswith("x-last-death-")}
    entry = _fields(fields["x-death"][10:])  # the only one: A, its length, F, its length
    entry |= {name: entry.pop(name) for name in ("original-expiration",) if name in entry}
    inside = _joined(entry)
    fields["x-death"] = struct.pack(">cIcI", b"A", len(inside) + 5, b"F", len(inside)) + inside
    return payload[:start] + table(_joined(fields)) + payload[reader.at :]


def _fields(octets: bytes) -> dict[str, bytes]:
    """The fields of a table with the octets of their values, tags included."""
    reader, found = Reader(octets), {}
    while reader.at < len(octets):
        name, start = reader.shortstr(), reader.at
        reader.value()
        found[name] = octets[start : reader.at]
    return found


def _joined(fields: dict[str, bytes]) -> bytes:
    return b"".join(shortstr(name) + value for name, value in fields.items())


def record(broker: Broker, name: str) -> list[str]:
    """Run one script against a broker; the frames it answered with, and the error that ended the script if one did."""
    session = RecordedSession(name, broker)
    try:
        SCRIPTS[name][1](session)
    except (ClosedError, QuietError) as error:
        return [*session.lines(), f"# {type(error).__name__}"]
    else:
        return session.lines()
    finally:
        for client in session.clients:
            client.close_socket()


def expected(peer: Peer, name: str) -> list[str]:
    """Return what ours answers a script with in the profile of a peer: if a difference is explained, as without one."""
    return read(OF_MACHINE if explanation(f"octets.{name}", peer.name) else peer)[name]


def read(peer: Peer) -> dict[str, list[str]]:
    """The recorded answers, by script."""
    found: dict[str, list[str]] = {}
    if not peer.octets.exists():
        return found
    for text in peer.octets.read_text(encoding="ascii").splitlines():
        if text.startswith("[") and text.endswith("]"):
            found[text[1:-1]] = lines = []
        elif text and found:
            lines.append(text)
    return found


def write(peer: Peer, answers: dict[str, list[str]]) -> None:
    """Replace the record by these answers of a RabbitMQ."""
    parts = [
        f"# What RabbitMQ {peer.version} answers, octet for octet: run.py --write. Frame header, payload (the SHA-256 of a long one).\n"
    ]
    for name, lines in answers.items():
        parts.append(f"[{name}]\n" + "".join(f"{each}\n" for each in lines))
    peer.octets.write_text("\n".join(parts), encoding="ascii")


# --- connection and channel --------------------------------------------------------------------------------------------


@script("handshake")
def _handshake(s: RecordedSession) -> None:
    """start, tune, open-ok, channel.open-ok, close-ok."""
    client = s.client()
    client.login()
    client.channel(1)
    client.channel(65)
    client.call(0, "connection.update-secret", new_secret="guest", reason="r")
    client.call(1, "channel.close", reply_code=200)
    client.call(0, "connection.close", reply_code=200, reply_text="bye")


@script("login-refused")
def _login_refused(s: RecordedSession) -> None:
    client = s.client()
    client.begin()
    client.start_ok("guest", "wrong")
    client.receive(0, "connection.close")


@script("vhost-unknown")
def _vhost_unknown(s: RecordedSession) -> None:
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.send(0, "connection.open", virtual_host="nowhere")
    client.receive(0, "connection.close")


@script("connection-errors")
def _connection_errors(s: RecordedSession) -> None:
    for number, method, fields in (
        (9, "basic.qos", {}),
        (1, "basic.qos", {"prefetch_size": 1}),
        (1, "channel.flow", {"active": False}),
        (1, "channel.open", {}),
    ):
        opened = s.channel()
        opened.client.send(number, method, **fields)
        opened.client.receive(0, "connection.close")


@script("heartbeat")
def _heartbeat(s: RecordedSession) -> None:
    client = s.client()
    client.login(heartbeat=1)
    client.frames.clear()
    client.read_frame()


@script("blocked", "short")
def _blocked(s: RecordedSession) -> None:
    opened = s.channel()
    for short in (("memory",), ("disk",), ("memory", "disk")):
        s.broker.short_of(*short)
        try:
            for _ in range(60):
                opened.publish("amq.direct", "nowhere", b"x")
                if not opened.client.quiet(0, "connection.blocked", timeout=0.1):
                    break
        finally:
            s.broker.short_of()
        opened.client.receive(0, "connection.unblocked")


@script("channel")
def _channel(s: RecordedSession) -> None:
    opened = s.channel()
    opened.call("channel.flow", active=True)
    opened.call("access.request", realm="/data", active=True, read=True, write=True)
    opened.send("queue.declare", queue="octets-none", passive=True)
    opened.client.receive(1, "channel.close")
    opened.send("channel.close-ok")
    opened.call("channel.open")
    opened.send("basic.ack", delivery_tag=7)
    opened.client.receive(1, "channel.close")


# --- exchanges and queues ----------------------------------------------------------------------------------------------


@script("exchange")
def _exchange(s: RecordedSession) -> None:
    opened = s.channel()
    for durable in (False, True):
        opened.exchange(s.x, durable=durable)
        opened.exchange(s.x + "2", "topic", durable=durable)
        opened.call("exchange.bind", destination=s.x, source=s.x + "2", routing_key="k")
        opened.call("exchange.unbind", destination=s.x, source=s.x + "2", routing_key="k")
        opened.call("exchange.delete", exchange=s.x)
        opened.call("exchange.delete", exchange=s.x + "2")
    opened.call("exchange.declare", exchange="amq.topic", type="topic", passive=True)


@script("queue")
def _queue(s: RecordedSession) -> None:
    opened = s.channel()
    for durable in (False, True):
        opened.queue(s.q, durable=durable)
        opened.call("queue.bind", queue=s.q, exchange="amq.direct", routing_key="k")
        opened.put(s.q, b"1", b"2")
        opened.call("queue.declare", queue=s.q, passive=True)
        opened.call("queue.purge", queue=s.q)
        opened.put(s.q, b"1")
        opened.call("queue.unbind", queue=s.q, exchange="amq.direct", routing_key="k")
        opened.call("queue.delete", queue=s.q)
        opened.call("queue.delete", queue=s.q)
    opened.queue(exclusive=True)


@script("reply-codes")
def _reply_codes(s: RecordedSession) -> None:
    opened = s.channel()
    other = s.channel()
    other.queue(s.q, exclusive=True)
    for method, fields in (
        ("queue.declare", {"queue": s.q}),
        ("queue.declare", {"queue": "amq.own"}),
        ("queue.bind", {"queue": s.q, "exchange": "octets-none"}),
        ("exchange.declare", {"exchange": "amq.direct", "type": "fanout", "durable": True}),
        ("exchange.delete", {"exchange": "amq.direct"}),
        ("basic.consume", {"queue": "octets-none"}),
        ("basic.get", {"queue": "octets-none"}),
    ):
        opened.send(method, **fields)
        opened.client.receive(1, "channel.close")
        opened.send("channel.close-ok")
        opened.call("channel.open")


# --- consuming ---------------------------------------------------------------------------------------------------------


@script("consume")
def _consume(s: RecordedSession) -> None:
    opened = s.channel()
    opened.queue(s.q)
    opened.call("basic.qos", prefetch_count=1)
    opened.call("basic.qos", prefetch_count=10, global_=True)
    opened.put(s.q, b"1", b"")
    tag = opened.consume(s.q, "")
    opened.deliver()
    opened.send("basic.ack", delivery_tag=1)
    opened.deliver()
    opened.call("basic.recover", requeue=True)
    opened.deliver()
    opened.call("basic.cancel", consumer_tag=tag)
    opened.call("basic.cancel", consumer_tag="unknown")


@script("consume-own-tag")
def _consume_own_tag(s: RecordedSession) -> None:
    opened, other = s.channel(), s.channel()
    opened.queue(s.q)
    opened.consume(s.q, "tag")
    other.call("queue.delete", queue=s.q)
    opened.receive("basic.cancel")


@script("get")
def _get(s: RecordedSession) -> None:
    opened = s.channel()
    opened.queue(s.q)
    opened.put(s.q, b"1", b"", b"3")
    for _ in range(3):
        opened.call("basic.get", queue=s.q)
    opened.send("basic.reject", delivery_tag=1, requeue=True)
    opened.call("basic.get", queue=s.q, no_ack=True)
    opened.call("basic.get", queue=s.q)


@script("frames")
def _frames(s: RecordedSession) -> None:
    """Bodies in several frames, and of the frame size that the reader has agreed."""
    small = s.channel(frame_max=8192)
    small.queue(s.q)
    opened = s.channel()
    opened.put(s.q, b"x" * 8184, b"x" * 8185, b"y" * 18000)
    for _ in range(3):
        small.call("basic.get", queue=s.q, no_ack=True)


# --- content -----------------------------------------------------------------------------------------------------------


@script("properties")
def _properties(s: RecordedSession) -> None:
    opened = s.channel()
    opened.queue(s.q)
    opened.publish("", s.q, b"all", **EVERY_PROPERTY, headers=EVERY_FIELD)
    opened.publish("", s.q, b"empty table", headers={})
    opened.publish("", s.q, b"none")
    for _ in range(3):
        _when_there(opened, s.q, no_ack=True)


@script("copies")
def _copies(s: RecordedSession) -> None:
    """CC stays, BCC is taken away, and the rest of the table is as it was."""
    opened = s.channel()
    opened.queue(s.q)
    keys = {"CC": T("A", [T("S", "a")]), "BCC": T("A", [T("S", "b")])}
    opened.put(s.q, b"cc", headers={**EVERY_FIELD, "CC": keys["CC"]}, content_type="c")
    opened.put(s.q, b"bcc", headers={**EVERY_FIELD, **keys}, content_type="c")
    opened.put(s.q, b"only", headers={"BCC": keys["BCC"]})
    for _ in range(3):
        opened.call("basic.get", queue=s.q, no_ack=True)


@script("deaths")
def _deaths(s: RecordedSession) -> None:
    """The headers of dead letters: rejected, expired, over a length; with and without headers of their own."""
    opened = s.channel()
    opened.queue(s.q)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q}
    for reason, arguments in (
        ("rejected", {}),
        ("expired", {"x-message-ttl": 1}),
        ("maxlen", {"x-max-length": 0}),
    ):
        opened.queue(f"{s.q}-{reason}", arguments={**dead, **arguments})
        for properties in ({}, {"expiration": "50000", "headers": EVERY_FIELD, "content_type": "c"}):
            opened.publish("", f"{s.q}-{reason}", reason.encode(), **properties)
            if reason == "rejected":
                got = _when_there(opened, f"{s.q}-{reason}")
                opened.send("basic.reject", delivery_tag=got.delivery_tag)
            opened.ready(s.q, 1)
            _forget_declares(opened)
            opened.call("basic.get", queue=s.q, no_ack=True)


def _forget_declares(opened: Channel) -> None:
    """Forget the answers of waiting: how many there are depends on time."""
    client = _recorder(opened)
    client.frames[:] = [each for each in client.frames if not line(*each).startswith("queue.declare-ok")]


def _recorder(opened: Channel) -> Recorder:
    assert isinstance(opened.client, Recorder)
    return opened.client


def _when_there(opened: Channel, queue: str, **fields: Any) -> Message:
    """A message of a queue that is on its way there; what was answered before is forgotten."""
    while (got := opened.call("basic.get", queue=queue, **fields)).name == "basic.get-empty":
        _recorder(opened).frames.pop()
    return got


@script("deliveries")
def _deliveries(s: RecordedSession) -> None:
    """The delivery count of a quorum queue."""
    opened = s.channel()
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 3}
    opened.queue(s.q, durable=True, arguments=arguments)
    opened.put(s.q, b"plain")
    opened.put(s.q, b"headers", headers={"a": T("s", 1)})
    _recorder(opened).frames.clear()
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    for tag in range(1, 7):
        opened.deliver()
        opened.send(
            "basic.reject" if tag % 3 else "basic.ack",
            delivery_tag=tag,
            **({"requeue": True} if tag % 3 else {}),
        )
    opened.call("basic.cancel", consumer_tag="ct")
    opened.call("queue.delete", queue=s.q)


# --- publishing --------------------------------------------------------------------------------------------------------


@script("returns")
def _returns(s: RecordedSession) -> None:
    opened = s.channel()
    opened.publish("amq.direct", "nowhere", b"1", mandatory=True, **EVERY_PROPERTY)
    opened.receive("basic.return")
    opened.publish("", "nowhere", b"", mandatory=True)
    opened.receive("basic.return")
    opened.call("tx.select")
    opened.publish("amq.direct", "nowhere", b"3", mandatory=True)
    opened.call("tx.commit")
    opened.call("tx.rollback")


@script("confirms")
def _confirms(s: RecordedSession) -> None:
    opened = s.channel()
    opened.call("confirm.select")
    opened.queue(s.q, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for count in range(3):
        opened.publish("", s.q, str(count).encode())
        opened.receive("basic.ack", "basic.nack")
    _recorder(opened).frames.clear()
    opened.publish("", s.q, b"nack")
    opened.receive("basic.nack")
    opened.call("queue.purge", queue=s.q)
    opened.publish("", s.q, b"ack")
    opened.receive("basic.ack")


@script("unroutable")
def _unroutable(s: RecordedSession) -> None:
    """Confirms of what has no queue: one by one, each before the next method is looked at."""
    opened = s.channel()
    opened.call("confirm.select")
    opened.exchange(s.x)
    client = opened.client
    for mandatory in ((False,) * 5, (True,) * 3, (True, False, True, False)):
        burst = b"".join(_publish(s.x, "nowhere", b"1", mandatory=each) for each in mandatory)
        client.raw(burst)
        for _ in mandatory:
            opened.receive("basic.ack")
    client.raw(_publish(s.x, "nowhere", b"", mandatory=False) * 2 + _method("exchange.delete", exchange=s.x))
    opened.receive("exchange.delete-ok")


def _asked(s: RecordedSession) -> tuple[Channel, Channel, str]:
    """Send a question; returns the channel that asked, that which has the question, and the address of the answer."""
    opened, server = s.channel(), s.channel()
    server.queue(s.q)
    opened.consume(REPLY_TO, "replies", no_ack=True)
    opened.publish("", s.q, b"question", reply_to=REPLY_TO)
    address = _when_there(server, s.q, no_ack=True).properties["reply_to"]
    return opened, server, address


@script("direct-reply-to")
def _direct_reply_to(s: RecordedSession) -> None:
    opened, server, address = _asked(s)
    server.call("queue.declare", queue=address, passive=True)
    server.publish("", address, b"answer")
    opened.deliver()
    opened.call("basic.cancel", consumer_tag="replies")


@script("direct-reply-late")
def _direct_reply_late(s: RecordedSession) -> None:
    opened, server, address = _asked(s)
    opened.call("basic.cancel", consumer_tag="replies")
    server.publish("", address, b"late", mandatory=True)
    server.receive("basic.return")


def _method(name: str, **fields: Any) -> bytes:
    return frame(METHOD, 1, encode_method(name, **fields))


def _publish(exchange: str, key: str, body: bytes, *, mandatory: bool) -> bytes:
    content = frame(HEADER, 1, encode_header(len(body))) + (frame(BODY, 1, body) if body else b"")
    return _method("basic.publish", exchange=exchange, routing_key=key, mandatory=mandatory) + content


@script("transactions")
def _transactions(s: RecordedSession) -> None:
    opened = s.channel()
    opened.queue(s.q, durable=True)
    opened.call("tx.select")
    opened.publish("", s.q, b"1", delivery_mode=2)
    opened.call("tx.commit")
    opened.call("tx.rollback")


# --- the order of answers: a method's `-ok` beside the asynchronous methods about its effect -------------------------


def _missing(opened: Channel, queue: str) -> None:
    """Show that a queue does not exist, and open the channel again."""
    opened.send("queue.declare", queue=queue, passive=True)
    opened.client.receive(1, "channel.close")
    opened.send("channel.close-ok")
    opened.call("channel.open")


@script("order-delete")
def _order_delete(s: RecordedSession) -> None:
    """A queue is deleted by its own consumer: delete-ok, then cancel, and nothing for what is said of it later."""
    opened = s.channel()
    for options in ({}, {"durable": True}, {"exclusive": True}, {"auto_delete": True}):
        opened.queue(s.q, **options)
        opened.put(s.q, b"1", b"2")
        opened.call("basic.qos", prefetch_count=1)
        opened.consume(s.q)
        opened.deliver()
        opened.send("queue.delete", queue=s.q)
        opened.receive("queue.delete-ok")
        opened.receive("basic.cancel")
        opened.call("basic.cancel", consumer_tag="ct")
        opened.send("basic.recover", requeue=True)  # the delivery's queue is gone
        opened.receive("basic.recover-ok")
        opened.sync()
    opened.queue(s.q)
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q, if_unused=True)
    opened.receive("channel.close")
    opened.send("channel.close-ok")
    opened.call("channel.open")
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q, nowait=True)
    opened.receive("basic.cancel")
    opened.sync()


@script("order-delete-others")
def _order_delete_others(s: RecordedSession) -> None:
    """Consumers of other connections and of the owner's other channel hear of a deletion by cancel alone."""
    owner, other = s.channel(), s.channel()
    owner.queue(s.q)
    other.consume(s.q)
    owner.call("queue.delete", queue=s.q)
    other.receive("basic.cancel")
    other.sync()
    owner.queue(s.q, exclusive=True)
    beside = owner.client.channel(2)
    beside.consume(s.q)
    owner.send("queue.delete", queue=s.q, nowait=True)
    beside.receive("basic.cancel")
    beside.sync()


@script("order-exclusive-end")
def _order_exclusive_end(s: RecordedSession) -> None:
    """An exclusive queue is deleted before its owner's close-ok, without a basic.cancel for the owner's consumer."""
    owner, other = s.channel(), s.channel()
    owner.queue(s.q, exclusive=True)
    owner.consume(s.q)
    owner.publish("", s.q, b"1")
    owner.deliver()
    other.send("queue.declare", queue=s.q, passive=True)
    other.receive("channel.close")
    other.send("channel.close-ok")
    other.call("channel.open")
    owner.call("channel.close", reply_code=200)  # it outlives its channels
    owner.call("channel.open")
    owner.consume(s.q)
    owner.deliver()
    owner.client.call(0, "connection.close", reply_code=200, reply_text="")
    _missing(other, s.q)


@script("order-auto-delete")
def _order_auto_delete(s: RecordedSession) -> None:
    """An auto-delete queue is deleted with its last consumer: cancel-ok or close-ok is sent, and no basic.cancel."""
    opened, other = s.channel(), s.channel()
    opened.queue(s.q, auto_delete=True)
    opened.put(s.q, b"1")
    opened.consume(s.q, "a")
    opened.deliver()
    opened.consume(s.q, "b")
    opened.call("basic.cancel", consumer_tag="a")
    opened.call("queue.declare", queue=s.q, passive=True, auto_delete=True)
    opened.call("basic.cancel", consumer_tag="b")
    _missing(opened, s.q)
    opened.queue(s.q, auto_delete=True)
    opened.consume(s.q)
    opened.call("channel.close", reply_code=200)
    _missing(other, s.q)
    opened.call("channel.open")
    opened.queue(s.q, auto_delete=True)
    opened.consume(s.q)
    opened.client.call(0, "connection.close", reply_code=200, reply_text="")
    _missing(other, s.q)


@script("order-purge")
def _order_purge(s: RecordedSession) -> None:
    """purge-ok counts ready messages within the limit; requeued messages are subject to the limit."""
    opened = s.channel()
    for arguments in (
        {"x-max-length": 2},
        {"x-max-length": 2, "x-overflow": "reject-publish"},
        {"x-max-length-bytes": 2},
    ):
        opened.queue(s.q, arguments=arguments)
        opened.put(s.q, b"1", b"2", b"3", b"4")
        tag = opened.call("basic.get", queue=s.q).delivery_tag
        opened.put(s.q, b"5", b"6")
        opened.call("queue.purge", queue=s.q)
        opened.call("queue.purge", queue=s.q)
        opened.call("basic.get", queue=s.q)
        opened.put(s.q, b"7", b"8")
        opened.send("basic.nack", delivery_tag=tag, requeue=True)
        opened.call("basic.get", queue=s.q, no_ack=True)
        opened.call("queue.purge", queue=s.q)
        opened.call("queue.delete", queue=s.q)


@script("order-commit")
def _order_commit(s: RecordedSession) -> None:
    """A commit returns what has no queue, in order, before commit-ok; a rollback returns nothing."""
    opened = s.channel()
    opened.queue(s.q)
    opened.put(s.q, b"held")
    opened.call("tx.select")
    opened.call("basic.get", queue=s.q)
    for body in (b"1", b"2"):
        opened.publish("", s.q, body, mandatory=True)
        opened.publish("amq.direct", "nowhere", body, mandatory=True)
    opened.send("basic.nack", delivery_tag=1, multiple=True, requeue=True)
    opened.call("tx.rollback")
    opened.publish("amq.direct", "nowhere", b"3", mandatory=True)
    opened.publish("", s.q, b"4", mandatory=True)
    opened.publish("", "nowhere", b"5", mandatory=True)
    opened.publish("", "nowhere", b"6")
    opened.send("basic.ack", delivery_tag=1)
    opened.call("tx.commit")
    for _ in range(2):
        opened.call("basic.get", queue=s.q, no_ack=True)
