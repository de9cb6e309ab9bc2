"""Rows 1-22 and 38, 108: from the protocol header to a running connection, and its end."""

from conformance.cases import SOCKET, Cases, Session, connection, ok
from conformance.wire import METHOD, PROTOCOL_HEADER, encode_method

ROWS = Cases()
case = ROWS.case
REFUSED = connection(
    403,
    None,
    "Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
)
HEADER_AND_CLOSE = ok(PROTOCOL_HEADER)


def _header(octets: bytes):
    def script(s: Session) -> bytes:
        client = s.client()
        client.raw(octets)
        return client.read_rest()

    return script


for _letter, _what, _octets in (
    ("a", "protocol 0-8", b"AMQP\x00\x00\x08\x00"),
    ("b", "AMQP 1.0", b"AMQP\x00\x01\x00\x00"),
    ("c", "AMQP 1.0 with SASL", b"AMQP\x03\x01\x00\x00"),
    ("d", "an HTTP request", b"GET / HTTP/1.1\r\n\r\n"),
    ("e", "a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("f", "protocol 0-10", b"AMQP\x01\x01\x00\x0a"),
    ("g", "protocol 0-9-2", b"AMQP\x00\x00\x09\x02"),
):
    case(
        f"1{_letter}",
        f"a client that begins with {_what} gets the header the broker speaks and a close",
        HEADER_AND_CLOSE,
    )(_header(_octets))


@case("1h", "the header of AMQP 0-9 is accepted", ok("connection.start"))
def _(s: Session) -> str:
    client = s.client()
    client.raw(b"AMQP\x01\x01\x00\x09")
    return client.receive(0).name


@case("1i", "a header sent octet by octet is accepted", ok("connection.start"))
def _(s: Session) -> str:
    client = s.client()
    for octet in PROTOCOL_HEADER:
        client.raw(bytes([octet]))
    return client.receive(0).name


@case("2a", "a connection that sends nothing is dropped at the handshake timeout", ok(b""), setup="tight")
def _(s: Session) -> bytes:
    return s.client().read_rest()


@case(
    "2b",
    "a connection that never answers connection.start is dropped at the handshake timeout",
    SOCKET,
    setup="tight",
)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.receive(0)


@case(
    "2c",
    "a connection that never opens a virtual host is dropped at the handshake timeout",
    SOCKET,
    setup="tight",
)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.receive(0)


@case("3a", "a wrong password is refused with 403 when the client understands that", REFUSED)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok("guest", "wrong")
    client.receive(0, "connection.tune")


@case("3b", "an unknown user is refused with the same text", REFUSED)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok("stranger", "guest")
    client.receive(0, "connection.tune")


@case(
    "3c",
    "AMQPLAIN is named in its refusal",
    connection(
        403,
        None,
        "Login was refused using authentication mechanism AMQPLAIN. For details see the broker logfile.",
    ),
)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05wrong"
    client.start_ok(mechanism="AMQPLAIN", response=response)
    client.receive(0, "connection.tune")


@case("3d", "a blank password is refused", REFUSED)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok("guest", "")
    client.receive(0, "connection.tune")


@case(
    "4",
    "a wrong password drops the socket when the client does not know authentication_failure_close",
    SOCKET,
)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok("guest", "wrong", capabilities={})
    client.receive(0, "connection.tune")


@case("5", "guest may connect from the loopback interface only", REFUSED, outside=True)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok()
    client.receive(0, "connection.tune")


@case("6", "an unknown mechanism drops the socket without a method", SOCKET)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok(mechanism="X")
    client.receive(0, "connection.tune")


@case("7", "a mechanism that is known but not enabled drops the socket without a method", SOCKET)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok(mechanism="EXTERNAL", response=b"")
    client.receive(0, "connection.tune")


for _letter, _mechanism, _response in (
    ("a", "PLAIN", b"guest"),
    ("b", "PLAIN", b"\0guest"),
    ("c", "AMQPLAIN", b"guest"),
    ("d", "AMQPLAIN", b"\x05LOGINS\x00\x00\x00\x05guest"),
):

    def _malformed(s: Session, mechanism: str = _mechanism, response: bytes = _response) -> None:
        client = s.client()
        client.begin()
        client.start_ok(mechanism=mechanism, response=response)
        client.receive(0, "connection.tune")

    case(
        f"8{_letter}",
        f"a malformed {_mechanism} response {_response!r} drops the socket without a method",
        SOCKET,
    )(_malformed)

for _id, _what, _changes in (
    ("9", "a frame_max below 4096", {"frame_max": 1024}),
    ("10a", "no limit on channels", {"channel_max": 0}),
    ("10b", "more channels than offered", {"channel_max": 2048}),
    ("10c", "larger frames than offered", {"frame_max": 131073}),
    ("10d", "no limit on frames", {"frame_max": 0}),
):

    def _tune(s: Session, changes: dict[str, int] = _changes) -> None:
        s.login(**changes)

    case(_id, f"tune-ok with {_what} drops the socket (the reason is in the log only)", SOCKET)(_tune)


@case(
    "11a",
    "opening a virtual host that does not exist",
    connection(530, "connection.open", "vhost nosuch not found"),
)
def _(s: Session) -> None:
    s.login(virtual_host="nosuch")


@case(
    "12a",
    "opening a virtual host without permissions",
    connection(530, "connection.open", "access to vhost 'other' refused for user 'limited'"),
)
def _(s: Session) -> None:
    s.login("limited", "other")


@case(
    "12b",
    "a user without any permissions cannot open the default virtual host",
    connection(530, "connection.open", "access to vhost '/' refused for user 'nobody'"),
)
def _(s: Session) -> None:
    s.login("nobody")


@case(
    "14",
    "a virtual host's limit on connections",
    connection(
        530,
        "connection.open",
        "access to vhost 'conns' refused for user 'root': connection limit (1) is reached",
    ),
)
def _(s: Session) -> None:
    s.login("root", "conns")
    s.login("root", "conns")


@case(
    "15",
    "a user's limit on connections",
    connection(
        530, "connection.open", "connection refused for user 'conncap': user connection limit (1) is reached"
    ),
)
def _(s: Session) -> None:
    s.login("conncap")
    s.login("conncap")


@case(
    "16",
    "the node's limit on connections",
    connection(530, "connection.open", "connection refused: node connection limit (2) is reached"),
    setup="tight",
)
def _(s: Session) -> None:
    s.login()
    s.login()
    s.login()


@case(
    "17",
    "more channels than negotiated",
    connection(530, None, "number of channels opened (2) has reached the negotiated channel_max (2)"),
)
def _(s: Session) -> None:
    client = s.login(channel_max=2)
    for number in (1, 2, 3):
        client.channel(number)


@case("17b", "any channel numbers may be used up to the negotiated count", ok())
def _(s: Session) -> None:
    client = s.login(channel_max=2)
    client.channel(7)
    client.channel(65535)


@case(
    "18",
    "a user's limit on channels",
    connection(
        530,
        None,
        "number of channels opened for user 'chancap' has reached the maximum allowed user limit of (1)",
    ),
)
def _(s: Session) -> None:
    client = s.login("chancap")
    client.channel(1)
    client.channel(2)


_RUNNING = "unexpected method in connection state running"
for _id, _name in (
    ("19a", "connection.open"),
    ("19b", "connection.start-ok"),
    ("19c", "connection.tune-ok"),
    ("19d", "connection.secure-ok"),
    ("19e", "connection.tune"),
):

    def _again(s: Session, name: str = _name) -> None:
        client = s.login()
        client.send(0, name)
        client.receive(0, "connection.open-ok")

    case(_id, f"a {_name} on a running connection", connection(504, _name, _RUNNING))(_again)


@case("20a", "a channel's frame before connection.start-ok drops the socket", SOCKET)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.send(1, "channel.open")
    client.receive(1, "channel.open-ok")


@case(
    "20b",
    "a channel's frame before connection.open",
    connection(505, None, "type 1, all octets = <<0,20,0,10,0>>"),
)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.send(1, "channel.open")
    client.receive(1, "channel.open-ok")


@case(
    "20c",
    "a channel's frame right after start-ok",
    SOCKET,
)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok()
    client.send(1, "channel.open")
    client.receive(0, "connection.tune")
    client.receive(1, "channel.open-ok")


@case(
    "38",
    "SIGTERM closes every connection with 320 and its reason, and the broker exits with 0",
    connection(320, None, "broker forced connection closure with reason 'shutdown'"),
    setup="ending",
    fatal=True,
)
def _(s: Session) -> None:
    opened = s.channel()
    s.broker.terminate()
    try:
        opened.receive(timeout=15)
    finally:
        opened.client.close_socket()
        assert s.broker.exit_code() in s.broker.good_exits


@case("108", "a new secret is taken note of where users' passwords decide", ok("connection.update-secret-ok"))
def _(s: Session) -> str:
    return s.login().call(0, "connection.update-secret", new_secret="guest", reason="rotation").name


@case("connection.heartbeat", "heartbeats are exchanged at the negotiated interval", ok(8), setup="tight")
def _(s: Session) -> int:
    client = s.login(heartbeat=1)
    return client.read_frame(timeout=2)[0]


@case(
    "connection.heartbeat-missed",
    "a client that falls silent for two intervals is dropped",
    SOCKET,
    setup="tight",
)
def _(s: Session) -> None:
    s.login(heartbeat=1).receive(0)


@case(
    "connection.tune",
    "the server offers 2047 channels, frames of 131072 octets and a heartbeat of 60 s",
    ok((2047, 131072, 60)),
)
def _(s: Session) -> tuple[int, int, int]:
    client = s.client()
    client.begin()
    client.start_ok()
    tune = client.receive(0, "connection.tune")
    return tune.channel_max, tune.frame_max, tune.heartbeat


@case(
    "connection.capabilities",
    "the server announces its nine capabilities",
    ok(
        [
            "authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify",
            "consumer_priorities", "direct_reply_to", "exchange_exchange_bindings", "per_consumer_qos",
            "publisher_confirms",
        ]
    ),
)  # fmt: skip
def _(s: Session) -> list[str]:
    client = s.client()
    client.begin()
    capabilities = client.start["server_properties"]["capabilities"]
    return sorted(name for name, value in capabilities.items() if value is True)


@case(
    "connection.server-properties",
    "connection.start has the properties clients look at, and both mechanisms",
    ok(([], "RabbitMQ", "PLAIN AMQPLAIN", "en_US", 0, 9)),
)
def _(s: Session) -> tuple[object, ...]:
    client = s.client()
    client.begin()
    start = client.start
    wanted = {"capabilities", "cluster_name", "copyright", "information", "platform", "product", "version"}
    properties = start["server_properties"]
    missing = sorted(wanted - set(properties))
    return (
        missing,
        properties["product"],
        start["mechanisms"],
        start["locales"],
        start["version_major"],
        start["version_minor"],
    )


@case("connection.amqplain", "AMQPLAIN logs in")
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    client.start_ok(mechanism="AMQPLAIN", response=response)
    client.tune_ok()
    client.open()


@case("connection.close", "connection.close is answered")
def _(s: Session) -> None:
    client = s.login()
    client.call(0, "connection.close", reply_code=200, reply_text="bye")


@case(
    "connection.close-early",
    "connection.close between tune-ok and open",
    connection(504, "connection.close", "unexpected method in connection state opening"),
)
def _(s: Session) -> None:
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.call(0, "connection.close", reply_code=200, reply_text="bye")


@case(
    "connection.close-exclusive-first",
    "exclusive queues are gone when close-ok of their connection arrives",
    ok(0),
)
def _(s: Session) -> int:
    other = s.channel()
    first = s.channel()
    first.queue(s.q, exclusive=True)
    first.client.call(0, "connection.close", reply_code=200)
    other.queue(s.q, exclusive=True)
    return other.ready(s.q)


@case(
    "connection.ignore-after-close",
    "after connection.close the broker answers nothing but close-ok",
    ok((b"",)),
)
def _(s: Session) -> tuple[bytes]:
    client = s.login()
    client.send(0, "connection.open")
    client.receive(0, "connection.close")
    client.frame(METHOD, 1, encode_method("channel.open"))
    client.send(0, "connection.close-ok")
    return (client.read_rest(),)


@case(
    "connection.close-crossing",
    "connection.close of a client that crosses the broker's is answered",
    ok("connection.close-ok"),
)
def _(s: Session) -> str:
    client = s.login()
    client.send(0, "connection.open")
    client.receive(0, "connection.close")
    client.send(0, "connection.close", reply_code=200)
    return client.receive(0).name


@case(
    "connection.pipelined",
    "a client may send its whole handshake before reading anything",
    ok("connection.open-ok"),
)
def _(s: Session) -> str:
    client = s.client()
    client.raw(PROTOCOL_HEADER)
    client.start_ok()
    client.send(0, "connection.tune-ok", channel_max=10, frame_max=8192, heartbeat=0)
    client.send(0, "connection.open", virtual_host="/")
    return client.receive(0, "connection.open-ok").name


@case(
    "connection.close-ok-unasked",
    "a close-ok nobody asked for",
    connection(504, "connection.close-ok", _RUNNING),
)
def _(s: Session) -> None:
    client = s.login()
    client.send(0, "connection.close-ok")
    client.receive(0, "connection.open-ok")


@case(
    "connection.blocked",
    "a publisher is told of a memory alarm when it publishes, not before",
    ok((True, "low on memory")),
    setup="alarmed",
    later="memory alarms",
)
def _(s: Session) -> tuple[bool, str]:
    channel = s.channel()
    quiet = channel.client.quiet(0)
    channel.publish("amq.direct", "nowhere", b"x")
    return quiet, channel.client.receive(0, "connection.blocked").reason


@case(
    "connection.blocked-silent",
    "a client without the capability is not told of an alarm",
    ok(True),
    setup="alarmed",
)
def _(s: Session) -> bool:
    channel = s.channel(capabilities={})
    channel.publish("amq.direct", "nowhere", b"x")
    return channel.client.quiet(0, timeout=0.5)


@case(
    "connection.blocked-others",
    "a connection that does not publish works on during an alarm",
    ok(1),
    setup="alarmed",
)
def _(s: Session) -> int:
    channel = s.channel()
    channel.queue(s.q)
    channel.consume(s.q)
    return int(channel.call("queue.declare", queue=s.q, passive=True).consumer_count)
