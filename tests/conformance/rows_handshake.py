"""Rows 1-16 and 20: from the protocol header to a running connection."""

from conformance.cases import SOCKET, Cases, Session, connection, ok
from conformance.codec import PROTOCOL_HEADER

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
