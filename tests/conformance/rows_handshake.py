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
        HEADER_AND_CLOSE,
        statement=f"a client that starts with {_what} gets the protocol header of AMQP 0-9-1, and the socket is closed",
    )(_header(_octets))


@case("1h", ok("connection.start"))
def _(s: Session) -> str:
    """The protocol header of AMQP 0-9 is accepted."""
    client = s.client()
    client.raw(b"AMQP\x01\x01\x00\x09")
    return client.receive(0).name


@case("1i", ok("connection.start"))
def _(s: Session) -> str:
    """A protocol header sent byte by byte is accepted."""
    client = s.client()
    for octet in PROTOCOL_HEADER:
        client.raw(bytes([octet]))
    return client.receive(0).name


@case("2a", ok(b""), setup="tight")
def _(s: Session) -> bytes:
    """A connection that sends nothing is closed when the handshake timeout expires."""
    return s.client().read_rest()


@case("2b", SOCKET, setup="tight")
def _(s: Session) -> None:
    """A connection that does not answer connection.start is closed when the handshake timeout expires."""
    client = s.client()
    client.begin()
    client.receive(0)


@case("2c", SOCKET, setup="tight")
def _(s: Session) -> None:
    """A connection that does not send connection.open is closed when the handshake timeout expires."""
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.receive(0)


@case("3a", REFUSED)
def _(s: Session) -> None:
    """A wrong password is refused with 403 if the client has the capability authentication_failure_close."""
    client = s.client()
    client.begin()
    client.start_ok("guest", "wrong")
    client.receive(0, "connection.tune")


@case("3b", REFUSED)
def _(s: Session) -> None:
    """An unknown user is refused with the same text as a wrong password."""
    client = s.client()
    client.begin()
    client.start_ok("stranger", "guest")
    client.receive(0, "connection.tune")


@case(
    "3c",
    connection(
        403,
        None,
        "Login was refused using authentication mechanism AMQPLAIN. For details see the broker logfile.",
    ),
)
def _(s: Session) -> None:
    """A refused AMQPLAIN login names the mechanism in the reply text."""
    client = s.client()
    client.begin()
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05wrong"
    client.start_ok(mechanism="AMQPLAIN", response=response)
    client.receive(0, "connection.tune")


@case("3d", REFUSED)
def _(s: Session) -> None:
    """A blank password is refused."""
    client = s.client()
    client.begin()
    client.start_ok("guest", "")
    client.receive(0, "connection.tune")


@case("4", SOCKET)
def _(s: Session) -> None:
    """A wrong password closes the socket if the client lacks the capability authentication_failure_close."""
    client = s.client()
    client.begin()
    client.start_ok("guest", "wrong", capabilities={})
    client.receive(0, "connection.tune")


@case("5", REFUSED, outside=True)
def _(s: Session) -> None:
    """The user guest may connect from the loopback interface only."""
    client = s.client()
    client.begin()
    client.start_ok()
    client.receive(0, "connection.tune")


@case("6", SOCKET)
def _(s: Session) -> None:
    """An unknown mechanism closes the socket without a method."""
    client = s.client()
    client.begin()
    client.start_ok(mechanism="X")
    client.receive(0, "connection.tune")


@case("7", SOCKET)
def _(s: Session) -> None:
    """A mechanism that is known but not enabled closes the socket without a method."""
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
        SOCKET,
        statement=f"a malformed {_mechanism} response {_response!r} closes the socket without a method",
    )(_malformed)


for _id, _what, _changes in (
    ("9", "a frame_max below 4096", {"frame_max": 1024}),
    ("10a", "channel_max 0", {"channel_max": 0}),
    ("10b", "a channel_max above the offered one", {"channel_max": 2048}),
    ("10c", "a frame_max above the offered one", {"frame_max": 131073}),
    ("10d", "frame_max 0", {"frame_max": 0}),
):

    def _tune(s: Session, changes: dict[str, int] = _changes) -> None:
        s.login(**changes)

    case(
        _id,
        SOCKET,
        statement=f"connection.tune-ok with {_what} closes the socket (the reason is only logged)",
    )(_tune)


@case("11a", connection(530, "connection.open", "vhost nosuch not found"))
def _(s: Session) -> None:
    """Opening a virtual host that does not exist."""
    s.login(virtual_host="nosuch")


@case("12a", connection(530, "connection.open", "access to vhost 'other' refused for user 'limited'"))
def _(s: Session) -> None:
    """Opening a virtual host without permissions."""
    s.login("limited", "other")


@case("12b", connection(530, "connection.open", "access to vhost '/' refused for user 'nobody'"))
def _(s: Session) -> None:
    """A user without any permissions cannot open the default virtual host."""
    s.login("nobody")


@case(
    "14",
    connection(
        530,
        "connection.open",
        "access to vhost 'conns' refused for user 'root': connection limit (1) is reached",
    ),
)
def _(s: Session) -> None:
    """The connection limit of a virtual host."""
    s.login("root", "conns")
    s.login("root", "conns")


@case(
    "15",
    connection(
        530, "connection.open", "connection refused for user 'conncap': user connection limit (1) is reached"
    ),
)
def _(s: Session) -> None:
    """The connection limit of a user."""
    s.login("conncap")
    s.login("conncap")


@case(
    "16",
    connection(530, "connection.open", "connection refused: node connection limit (2) is reached"),
    setup="tight",
)
def _(s: Session) -> None:
    """The connection limit of the node."""
    s.login()
    s.login()
    s.login()


@case("20a", SOCKET)
def _(s: Session) -> None:
    """A frame on a channel before connection.start-ok closes the socket."""
    client = s.client()
    client.begin()
    client.send(1, "channel.open")
    client.receive(1, "channel.open-ok")


@case("20b", connection(505, None, "type 1, all octets = <<0,20,0,10,0>>"))
def _(s: Session) -> None:
    """A frame on a channel before connection.open."""
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.send(1, "channel.open")
    client.receive(1, "channel.open-ok")


@case("20c", SOCKET)
def _(s: Session) -> None:
    """A frame on a channel right after connection.start-ok."""
    client = s.client()
    client.begin()
    client.start_ok()
    client.send(1, "channel.open")
    client.receive(0, "connection.tune")
    client.receive(1, "channel.open-ok")


@case("connection.tune", ok((2047, 131072, 60)))
def _(s: Session) -> tuple[int, int, int]:
    """The server offers 2047 channels, frames of 131072 bytes and a heartbeat of 60 s."""
    client = s.client()
    client.begin()
    client.start_ok()
    tune = client.receive(0, "connection.tune")
    return tune.channel_max, tune.frame_max, tune.heartbeat


@case("connection.capabilities", ok(
        [
            "authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify",
            "consumer_priorities", "direct_reply_to", "exchange_exchange_bindings", "per_consumer_qos",
            "publisher_confirms",
        ]
    ))  # fmt: skip
def _(s: Session) -> list[str]:
    """The server announces nine capabilities."""
    client = s.client()
    client.begin()
    capabilities = client.start["server_properties"]["capabilities"]
    return sorted(name for name, value in capabilities.items() if value is True)


@case("connection.server-properties", ok(([], "RabbitMQ", ["AMQPLAIN", "PLAIN"], "en_US", 0, 9)))
def _(s: Session) -> tuple[object, ...]:
    """connection.start contains the server properties that clients rely on, and both mechanisms."""
    client = s.client()
    client.begin()
    start = client.start
    wanted = {"capabilities", "cluster_name", "copyright", "information", "platform", "product", "version"}
    properties = start["server_properties"]
    missing = sorted(wanted - set(properties))
    return (
        missing,
        properties["product"],
        sorted(start["mechanisms"].split()),  # RabbitMQ's order is that of a hash table
        start["locales"],
        start["version_major"],
        start["version_minor"],
    )


@case("connection.amqplain")
def _(s: Session) -> None:
    """A client can log in with AMQPLAIN."""
    client = s.client()
    client.begin()
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    client.start_ok(mechanism="AMQPLAIN", response=response)
    client.tune_ok()
    client.open()


@case(
    "connection.close-early",
    connection(504, "connection.close", "unexpected method in connection state opening"),
)
def _(s: Session) -> None:
    """connection.close between connection.tune-ok and connection.open is refused."""
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.call(0, "connection.close", reply_code=200, reply_text="bye")


@case("connection.pipelined", ok("connection.open-ok"))
def _(s: Session) -> str:
    """A client may send its whole handshake before it reads anything."""
    client = s.client()
    client.raw(PROTOCOL_HEADER)
    client.start_ok()
    client.send(0, "connection.tune-ok", channel_max=10, frame_max=8192, heartbeat=0)
    client.send(0, "connection.open", virtual_host="/")
    return client.receive(0, "connection.open-ok").name
