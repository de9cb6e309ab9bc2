"""Rows 20-37: frames and methods at the wrong place or not of this world."""

import struct
from collections.abc import Callable

from conformance.cases import SOCKET, Cases, Outcome, Session, connection, ok
from conformance.codec import BODY, HEADER, HEARTBEAT, METHOD, T, encode_header, encode_method, frame
from conformance.wire import Client

ROWS = Cases()
case = ROWS.case
PUBLISH = encode_method("basic.publish", exchange="amq.fanout", routing_key="k")


def _row(
    ident: str,
    statement: str,
    expect: Outcome,
    send: Callable[[Client], object],
    *,
    on: int = 1,
    fatal: bool = False,
) -> None:
    """A case that sends something on a connection with channel 1 open, then expects an error, or channel `on` to work."""

    def script(s: Session) -> None:
        opened = s.channel()
        send(opened.client)
        if on == 1:
            opened.send("channel.flow", active=True)
        opened.client.receive(on, "channel.flow-ok")

    case(ident, expect, statement=statement, fatal=fatal)(script)


_row("21a", "a content header on channel 0",
     connection(505, None, "type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,0,0,0>>"),
     lambda c: c.frame(HEADER, 0, encode_header(0)))  # fmt: skip
_row("21b", "a body on channel 0", connection(505, None, "type 3, all octets = <<1,2,3>>"),
     lambda c: c.frame(BODY, 0, b"\1\2\3"))  # fmt: skip
_row("21c", "a frame on channel 0 is quoted by its first 16 bytes",
     connection(505, None, "type 3, first 16 octets = <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>"),
     lambda c: c.frame(BODY, 0, bytes(range(17))))  # fmt: skip
_row("21d", "printable bytes are quoted as Erlang prints them",
     connection(505, None, 'type 3, all octets = <<"abc\\n">>'), lambda c: c.frame(BODY, 0, b"abc\n"))  # fmt: skip
_row("21e", "bytes above 127 are quoted as Erlang prints them",
     connection(505, None, 'type 3, all octets = <<"h\xe9">>'), lambda c: c.frame(BODY, 0, "hé".encode()))  # fmt: skip
for _letter, _octets, _shown in (
    ("f", b'a"b\\c', r'"a\"b\\c"'),
    ("g", b"\x1b\x08\x0b\x0c\r\t", r'"\e\b\v\f\r\t"'),
    ("h", b"\x7fabc", "127,97,98,99"),
    ("i", b"\x80abc", "128,97,98,99"),
    ("j", b"a\0", "97,0"),
    ("k", b"\xa0\xff", '"\udca0\udcff"'),
    ("l", b"GET / HTTP/1.1\r\nHost", r'"GET / HTTP/1.1\r\n"'),
    ("m", b"\xc3\xa9\xc3\xa8", '"éè"'),
    ("n", b"\xe2\x82\xac", "226,130,172"),
    ("o", b"", ""),
):

    def _quoted(client: Client, octets: bytes = _octets) -> None:
        client.frame(BODY, 0, octets)

    _row(
        f"21{_letter}",
        f"a frame with the bytes {_octets!r} on channel 0",
        connection(505, None, f"type 3, {'first 16' if len(_octets) > 16 else 'all'} octets = <<{_shown}>>"),
        _quoted,
    )

_row("22a", "a heartbeat frame on a channel other than 0", connection(505, None, "type 8, all octets = <<>>"),
     lambda c: c.frame(HEARTBEAT, 1, b""))  # fmt: skip
_row("22b", "a heartbeat frame with a payload",
     connection(501, None, 'type 8, all octets = <<"x">>: unknown_frame'), lambda c: c.frame(HEARTBEAT, 0, b"x"))  # fmt: skip
_row("23a", "an unknown frame type on a channel",
     connection(501, None, "type 9, all octets = <<1,2>>: unknown_frame"), lambda c: c.frame(9, 1, b"\1\2"))  # fmt: skip
_row("23b", "an unknown frame type on channel 0",
     connection(501, None, "type 9, all octets = <<1,2>>: unknown_frame"), lambda c: c.frame(9, 0, b"\1\2"))  # fmt: skip
_row("23c", "an unknown frame type on a channel that was never opened",
     connection(501, None, "type 9, all octets = <<1,2>>: unknown_frame"), lambda c: c.frame(9, 5, b"\1\2"))  # fmt: skip
_row("24a", "a frame that does not end in the octet 206",
     connection(501, None, "type 1, all octets = <<0,20,0,20,1>>: {invalid_frame_end_marker,207}"),
     lambda c: c.frame(METHOD, 1, encode_method("channel.flow", active=True), end=207), fatal=True)  # fmt: skip
_row("24b", "a long frame that does not end in the octet 206 is quoted by its first 16 bytes",
     connection(501, None,
                "type 3, first 16 octets = <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>: {invalid_frame_end_marker,0}"),
     lambda c: c.frame(BODY, 1, bytes(range(40)), end=0), fatal=True)  # fmt: skip


@case("25a", connection(501, None, "type 3, all octets = <<>>: {frame_too_large,4097,4088}"), fatal=True)
def _(s: Session) -> None:
    """A frame larger than frame_max."""
    client = s.login(frame_max=4096)
    client.channel(1)
    client.frame(BODY, 1, bytes(4097))
    client.receive(1)


@case("25b", ok(4096))
def _(s: Session) -> int:
    """A payload that exceeds the limit of frame_max by up to 8 bytes is accepted."""
    client = s.login(frame_max=4096)
    opened = client.channel(1)
    opened.queue(s.q)
    method = encode_method("basic.publish", exchange="", routing_key=s.q)
    client.raw(frame(METHOD, 1, method) + frame(HEADER, 1, encode_header(4096)) + frame(BODY, 1, bytes(4096)))
    return len(opened.get(s.q) or b"")


@case("25c", SOCKET)
def _(s: Session) -> None:
    """A frame larger than 4096 bytes before connection.tune-ok."""
    client = s.client()
    client.begin()
    client.frame(METHOD, 0, bytes(5000))
    client.receive(0)


@case("25d", ok((4088, 4088, 1824)))
def _(s: Session) -> tuple[int, ...]:
    """The broker's own frames do not exceed the negotiated frame_max."""
    client = s.login(frame_max=4096)
    opened = client.channel(1)
    opened.queue(s.q)
    opened.publish("", s.q, bytes(10000))
    opened.send("basic.get", queue=s.q, no_ack=True)
    frames = [client.read_frame() for _ in range(5)]
    return tuple(len(payload) for kind, _, payload in frames if kind == BODY)


def _content(client: Client, channel: int = 1) -> tuple[list[int], list[int]]:
    """The payload sizes of the header frames and of the body frames that a `basic.get` brings."""
    while struct.unpack_from(">HH", client.read_frame()[2]) != (60, 71):
        continue
    headers, bodies, left = [], [], -1
    while left:
        kind, number, payload = client.read_frame()
        assert number == channel
        if kind == HEADER:
            headers.append(len(payload))
            left = struct.unpack_from(">Q", payload, 4)[0] if left < 0 else left
        else:
            bodies.append(len(payload))
            left -= len(payload)
    return headers, bodies


@case("25e", ok(([20_025], [4088, 4088, 1824])))
def _(s: Session) -> tuple[list[int], list[int]]:
    """A content header larger than the consumer's frame_max is sent in one frame, the body in frames that fit."""
    sender = s.channel()
    sender.queue(s.q)
    sender.publish("", s.q, bytes(10_000), headers={"h": "x" * 20_000})
    reader = s.login(frame_max=4096)
    reader.channel(1).ready(s.q, 1)
    reader.send(1, "basic.get", queue=s.q, no_ack=True)
    return _content(reader)


@case("25f", ok(([20_025], 4088, 3_000_000)))
def _(s: Session) -> tuple[list[int], int, int]:
    """A content header larger than the consumer's frame_max is sent in one frame, also with a large body."""
    sender = s.channel()
    sender.queue(s.q)
    sender.publish("", s.q, bytes(3_000_000), headers={"h": "x" * 20_000})
    reader = s.login(frame_max=4096)
    reader.channel(1).ready(s.q, 1)
    reader.send(1, "basic.get", queue=s.q, no_ack=True)
    headers, bodies = _content(reader)
    return headers, max(bodies), sum(bodies)


@case("25g", ok((1, True, [5])))
def _(s: Session) -> tuple[int, bool, list[int]]:
    """A content header that dead-lettering makes larger than the publisher's frame_max is delivered to the publisher in one frame."""
    client = s.login(frame_max=4096)
    opened = client.channel(1)
    arguments = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": s.q + "2",
        "x-message-ttl": T("I", 0),
    }
    opened.queue(s.q + "2")
    opened.queue(s.q, arguments=arguments)
    opened.publish("", s.q, b"small", headers={"h": "x" * 4000})
    opened.ready(s.q + "2", 1)
    opened.send("basic.get", queue=s.q + "2", no_ack=True)
    headers, bodies = _content(client)
    return len(headers), headers[0] > 4096, bodies


_NOT_HEADER = "expected content header for class 60, got non content header frame instead"
_NOT_BODY = "expected content body, got non content body frame instead"
_NOT_METHOD = "expected method frame, got non method frame instead"
_row("26a", "a method instead of a content header", connection(505, "basic.publish", _NOT_HEADER),
     lambda c: c.frame(METHOD, 1, PUBLISH))  # fmt: skip
_row("26b", "a body frame instead of a content header", connection(505, "basic.publish", _NOT_HEADER),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(BODY, 1, b"x")))  # fmt: skip
_row("27", "a content header of another class than the method's", connection(505, "basic.publish",
     "expected content header for class 60, got one for class 50 instead"),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(HEADER, 1, encode_header(0, 50))))  # fmt: skip
_row("28a", "a method instead of a body frame", connection(505, "basic.publish", _NOT_BODY),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(HEADER, 1, encode_header(5))))  # fmt: skip
_row("28b", "a content header instead of a body frame", connection(505, "basic.publish", _NOT_BODY),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(HEADER, 1, encode_header(5)) * 2))  # fmt: skip
_row("29a", "a content header without basic.publish", connection(505, None, _NOT_METHOD),
     lambda c: c.frame(HEADER, 1, encode_header(0)))  # fmt: skip
_row(
    "29b",
    "a body frame without basic.publish",
    connection(505, None, _NOT_METHOD),
    lambda c: c.frame(BODY, 1, b"x"),
)
_row("29c", "a body frame after an empty message", connection(505, None, _NOT_METHOD),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(HEADER, 1, encode_header(0)) + frame(BODY, 1, b"x")))  # fmt: skip
_row("29d", "a content header after a method without content", connection(505, None, _NOT_METHOD),
     lambda c: c.raw(frame(METHOD, 1, encode_method("basic.ack", multiple=True)) + frame(HEADER, 1, encode_header(0))))  # fmt: skip
_row("30", "body frames with more bytes than announced",
     connection(501, "basic.publish", "content body frame exceeds remaining content size"),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(HEADER, 1, encode_header(2)) + frame(BODY, 1, b"xyz")))  # fmt: skip
_row("31", "an announced body of more than 512 MiB",
     connection(501, "basic.publish", "content body size 536870913 exceeds maximum allowed size 536870912"),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(HEADER, 1, encode_header(536870913))))  # fmt: skip


def _unknown(class_id: int, method_id: int) -> Outcome:
    return Outcome("connection", 503, class_id, method_id, "COMMAND_INVALID - unimplemented method")


_row("32a", "an unknown method of a known class", _unknown(60, 99),
     lambda c: c.frame(METHOD, 1, struct.pack(">HH", 60, 99)))  # fmt: skip
_row("32b", "a method of an unknown class", _unknown(99, 10),
     lambda c: c.frame(METHOD, 1, struct.pack(">HH", 99, 10)))  # fmt: skip
_row("32c", "an unknown method on channel 0", _unknown(10, 99),
     lambda c: c.frame(METHOD, 0, struct.pack(">HH", 10, 99)))  # fmt: skip
_row("32d", "a method frame too short for class and method id",
     connection(501, None, "type 1, all octets = <<0,60>>: unknown_frame"), lambda c: c.frame(METHOD, 1, b"\0\x3c"))  # fmt: skip
_row("33a", "truncated fields on channel 0", connection(541, None, None),
     lambda c: c.frame(METHOD, 0, encode_method("connection.update-secret", new_secret="abc")[:6]))  # fmt: skip
_row("33b", "truncated fields on a channel", connection(501, "queue.declare", "cannot decode <<0,0,1>>"),
     lambda c: c.frame(METHOD, 1, encode_method("queue.declare", queue="q")[:7]))  # fmt: skip
_row("33c", "a field of an unknown type in a table", connection(541, None, None),
     lambda c: c.send(1, "queue.declare", queue="q", arguments={"x": T("?", b"")}))  # fmt: skip
_row("33d", "a table longer than its frame", connection(501, "queue.declare", "cannot decode <<0,0,1,113,0,0,0,0,9>>"),
     lambda c: c.frame(METHOD, 1, encode_method("queue.declare", queue="q")[:-4] + b"\0\0\0\x09"))  # fmt: skip
_row("33e", "extra bytes after the last field", connection(501, "queue.declare", "cannot decode <<0,0,1,113,0,0,0,0,0,120,121,122>>"),
     lambda c: c.frame(METHOD, 1, encode_method("queue.declare", queue="q") + b"xyz"))  # fmt: skip
_row("33f", "a content header with truncated properties", connection(541, None, None),
     lambda c: c.raw(frame(METHOD, 1, PUBLISH) + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 0x8000))))  # fmt: skip
_row("33g", "a content header with a field of an unknown type in its headers", connection(541, None, None),
     lambda c: c.publish(1, "amq.fanout", "k", headers={"x": T("?", b"")}))  # fmt: skip
_row("34", "channel.open on an open channel", connection(504, "channel.open", "second 'channel.open' seen"),
     lambda c: c.send(1, "channel.open"))  # fmt: skip
_OPEN_FIRST = "expected 'channel.open'"
_row("35a", "a method on a channel that was never opened", connection(504, "queue.declare", _OPEN_FIRST),
     lambda c: c.send(2, "queue.declare", queue="q"), on=2)  # fmt: skip
_row("35b", "a publish on a channel that was never opened", connection(504, "basic.publish", _OPEN_FIRST),
     lambda c: c.publish(2, "", "q", b"x"), on=2)  # fmt: skip
_row("35c", "an ack on a channel that was never opened", connection(504, "basic.ack", _OPEN_FIRST),
     lambda c: c.send(2, "basic.ack", delivery_tag=1), on=2)  # fmt: skip


@case("35d", connection(504, "queue.declare", _OPEN_FIRST))
def _(s: Session) -> None:
    """A method on a closed channel."""
    opened = s.channel()
    opened.call("channel.close", reply_code=200)
    opened.call("queue.declare", queue=s.q)


for _letter, _name in (
    ("a", "queue.declare-ok"),
    ("b", "basic.get-empty"),
    ("c", "channel.open-ok"),
    ("d", "basic.consume-ok"),
    ("e", "channel.flow-ok"),
    ("f", "confirm.select-ok"),
):
    _row(f"36{_letter}", f"a client that sends {_name}, a server's method", connection(503, _name, "unimplemented method"),
         lambda c, name=_name: c.send(1, name))  # fmt: skip
_row("36g", "a client that sends basic.deliver, a server's method with content",
     connection(503, "basic.deliver", "unimplemented method"),
     lambda c: c.raw(frame(METHOD, 1, encode_method("basic.deliver", consumer_tag="x"))
                     + frame(HEADER, 1, encode_header(0))))  # fmt: skip
_row("36h", "a method of the class connection on a channel other than 0", connection(503, "connection.close", "unimplemented method"),
     lambda c: c.send(1, "connection.close"))  # fmt: skip
_row("36i", "a method of the class channel on channel 0",
     connection(504, "queue.declare", "unexpected method in connection state running"),
     lambda c: c.send(0, "queue.declare", queue="q"))  # fmt: skip
_row("37a", "channel.flow with active=false", connection(540, "channel.flow", "active=false"),
     lambda c: c.send(1, "channel.flow", active=False))  # fmt: skip
_row(
    "37b", "channel.flow with active=true is answered", ok(), lambda c: c.call(1, "channel.flow", active=True)
)


@case("channel.reopen", ok((1, b"x")))
def _(s: Session) -> tuple[int, bytes]:
    """The number of a closed channel can be opened again and starts afresh."""
    opened = s.queue()
    opened.publish("", s.q, b"x")
    opened.call("basic.get", queue=s.q)
    opened.call("channel.close", reply_code=200)
    again = opened.client.channel(1)
    got = again.call("basic.get", queue=s.q)
    return got.delivery_tag, got.body


@case("channel.requeue-on-close", ok((2, True)))
def _(s: Session) -> tuple[int, bool]:
    """channel.close-ok is sent after the channel's unacked messages are requeued."""
    other, opened = s.channel(), s.channel()
    opened.queue(s.q)
    for body in (b"1", b"2"):
        opened.publish("", s.q, body)
    opened.consume(s.q)
    opened.deliver()
    opened.deliver()
    opened.call("channel.close", reply_code=200)
    return other.ready(s.q, 2), other.call("basic.get", queue=s.q).redelivered


@case("channel.ignore-after-error", ok((True, True)))
def _(s: Session) -> tuple[bool, bool]:
    """After its channel.close the broker ignores methods and content until channel.close-ok."""
    opened = s.channel()
    client = opened.client
    opened.queue(s.q)
    opened.send("queue.declare", queue="amq.forbidden")
    opened.receive("channel.close")
    opened.publish("", s.q, b"lost")
    opened.send("queue.delete", queue=s.q)
    quiet = client.quiet()
    opened.send("channel.close-ok")
    return quiet, client.channel(1).drain(s.q) == 0


@case("channel.close-crossing", ok("channel.close-ok"))
def _(s: Session) -> str:
    """A client's channel.close that crosses the broker's is answered."""
    opened = s.channel()
    opened.send("queue.declare", queue="amq.forbidden")
    opened.receive("channel.close")
    opened.send("channel.close", reply_code=200)
    answer = opened.receive().name
    opened.send("channel.close-ok")
    opened.client.channel(2).sync()
    return answer


@case("channel.error-leaves-others", ok(0))
def _(s: Session) -> int:
    """A channel error does not affect the connection's other channels."""
    opened = s.channel()
    other = opened.client.channel(2)
    opened.send("queue.declare", queue="amq.forbidden")
    opened.receive("channel.close")
    return other.ready(other.queue(s.q))


@case("channel.interleaved", ok((b"one", b"two")))
def _(s: Session) -> tuple[bytes | None, bytes | None]:
    """Content frames of two channels may be interleaved."""
    opened = s.channel()
    client = opened.client
    client.channel(2)
    opened.queue(s.q)
    opened.queue(s.q + "2")
    for number, name in ((1, s.q), (2, s.q + "2")):
        client.frame(METHOD, number, encode_method("basic.publish", routing_key=name))
    for number in (1, 2):
        client.frame(HEADER, number, encode_header(3))
    client.raw(frame(BODY, 1, b"o") + frame(BODY, 2, b"tw") + frame(BODY, 1, b"ne") + frame(BODY, 2, b"o"))
    opened.sync()
    return opened.get(s.q), opened.get(s.q + "2")


@case("channel.empty-body-frame", ok(b"ab"))
def _(s: Session) -> bytes | None:
    """An empty body frame within the body is accepted."""
    opened = s.queue()
    opened.client.raw(
        frame(METHOD, 1, encode_method("basic.publish", routing_key=s.q))
        + frame(HEADER, 1, encode_header(2))
        + frame(BODY, 1, b"")
        + frame(BODY, 1, b"a")
        + frame(BODY, 1, b"")
        + frame(BODY, 1, b"b")
    )
    return opened.get(s.q)


@case("channel.access-request", ok(1))
def _(s: Session) -> int:
    """access.request of AMQP 0-9 is answered with ticket 1."""
    return int(s.channel().call("access.request", realm="/data", active=True).ticket)


@case("channel.close-unasked", connection(503, "channel.close-ok", "unimplemented method"))
def _(s: Session) -> None:
    """An unexpected channel.close-ok."""
    opened = s.channel()
    opened.send("channel.close-ok")
    opened.sync()
