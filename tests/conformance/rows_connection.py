"""Rows 17-19, 38 and 108: a running connection, and its end."""

from conformance.cases import SOCKET, Cases, Session, connection, fill, ok
from conformance.codec import HEARTBEAT, METHOD, encode_method

ROWS = Cases()
case = ROWS.case


@case("17", connection(530, None, "number of channels opened (2) has reached the negotiated channel_max (2)"))
def _(s: Session) -> None:
    """Opening more channels than negotiated."""
    client = s.login(channel_max=2)
    for number in (1, 2, 3):
        client.channel(number)


@case("17b", ok())
def _(s: Session) -> None:
    """A client may use any channel numbers, as long as no more channels are open than negotiated."""
    client = s.login(channel_max=2)
    client.channel(7)
    client.channel(65535)


@case(
    "18",
    connection(
        530,
        None,
        "number of channels opened for user 'chancap' has reached the maximum allowed user limit of 1",
    ),
)
def _(s: Session) -> None:
    """The channel limit of a user."""
    client = s.login("chancap")
    client.channel(1)
    client.channel(2)


@case(
    "18b",
    connection(
        530, None, "number of channels opened on node 'NODE' has reached the maximum allowed limit of 3"
    ),
    setup="tight",
)
def _(s: Session) -> None:
    """The channel limit of the node."""
    client = s.login()
    for number in (1, 2, 3, 4):
        client.channel(number)


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

    case(_id, connection(504, _name, _RUNNING), statement=f"{_name} on an open connection")(_again)


@case(
    "38",
    connection(320, None, "broker forced connection closure with reason 'shutdown'"),
    setup="ending",
    fatal=True,
)
def _(s: Session) -> None:
    """SIGTERM closes every connection with 320 and its reply text, and the broker exits with 0."""
    opened = s.channel()
    s.broker.terminate()
    try:
        opened.receive(timeout=15)
    finally:
        opened.client.close_socket()
        assert s.broker.exit_code() in s.broker.good_exits


@case("108", ok("connection.update-secret-ok"))
def _(s: Session) -> str:
    """connection.update-secret is accepted for users with passwords."""
    return s.login().call(0, "connection.update-secret", new_secret="guest", reason="rotation").name


@case("connection.heartbeat", ok((8, 8)), setup="tight")
def _(s: Session) -> tuple[int, int]:
    """After other frames, too, a heartbeat comes before a whole interval has passed."""
    client = s.login(heartbeat=1)
    client.call(1, "channel.open")
    return client.read_frame(timeout=1)[0], client.read_frame(timeout=1)[0]


@case("connection.heartbeat-missed", SOCKET, setup="tight")
def _(s: Session) -> None:
    """A client that sends nothing for two heartbeat intervals is disconnected."""
    s.login(heartbeat=1).receive(0)


@case("connection.close")
def _(s: Session) -> None:
    """connection.close is answered."""
    client = s.login()
    client.call(0, "connection.close", reply_code=200, reply_text="bye")


@case("connection.close-exclusive-first", ok(0))
def _(s: Session) -> int:
    """Exclusive queues are deleted before connection.close-ok is sent."""
    other = s.channel()
    first = s.channel()
    first.queue(s.q, exclusive=True)
    first.client.call(0, "connection.close", reply_code=200)
    other.queue(s.q, exclusive=True)
    return other.ready(s.q)


@case("connection.ignore-after-close", ok((b"",)))
def _(s: Session) -> tuple[bytes]:
    """After connection.close the broker ignores everything except connection.close-ok."""
    client = s.login()
    client.send(0, "connection.open")
    client.receive(0, "connection.close")
    client.frame(METHOD, 1, encode_method("channel.open"))
    client.send(0, "connection.close-ok")
    return (client.read_rest(),)


@case("connection.close-crossing", ok("connection.close-ok"))
def _(s: Session) -> str:
    """A client's connection.close that crosses the broker's is answered."""
    client = s.login()
    client.send(0, "connection.open")
    client.receive(0, "connection.close")
    client.send(0, "connection.close", reply_code=200)
    return client.receive(0).name


@case("connection.close-ok-unasked", connection(504, "connection.close-ok", _RUNNING))
def _(s: Session) -> None:
    """An unexpected connection.close-ok."""
    client = s.login()
    client.send(0, "connection.close-ok")
    client.receive(0, "connection.open-ok")


@case("connection.blocked", ok((True, "low on memory")), setup="alarmed")
def _(s: Session) -> tuple[bool, str]:
    """A publisher is notified of a memory alarm when it publishes, not before."""
    channel = s.channel()
    quiet = channel.client.quiet(0)
    channel.publish("amq.direct", "nowhere", b"x")
    return quiet, channel.client.receive(0, "connection.blocked", timeout=1).reason


@case("connection.blocked-disk", ok("low on disk"), setup="full")
def _(s: Session) -> str:
    """A publisher is notified of a disk alarm."""
    channel = s.channel()
    channel.publish("amq.direct", "nowhere", b"x")
    return str(channel.client.receive(0, "connection.blocked", timeout=1).reason)


@case("connection.blocked-both", ok(("low on disk & memory", True)), setup="strained")
def _(s: Session) -> tuple[str, bool]:
    """connection.blocked is sent once and names all active alarms."""
    channel = s.channel()
    channel.publish("amq.direct", "nowhere", b"x")
    return channel.client.receive(0, "connection.blocked", timeout=1).reason, channel.client.quiet(0)


@case("connection.blocked-silent", ok(True), setup="alarmed")
def _(s: Session) -> bool:
    """A client without the capability connection.blocked is not notified of an alarm."""
    channel = s.channel(capabilities={})
    channel.publish("amq.direct", "nowhere", b"x")
    return channel.client.quiet(0, timeout=0.5)


@case("connection.blocked-others", ok(1), setup="alarmed")
def _(s: Session) -> int:
    """A connection that does not publish continues to work during an alarm."""
    channel = s.channel()
    channel.queue(s.q)
    channel.consume(s.q)
    return int(channel.call("queue.declare", queue=s.q, passive=True).consumer_count)


@case(
    "connection.tune-twice",
    connection(504, "connection.tune-ok", "unexpected method in connection state opening"),
)
def _(s: Session) -> None:
    """A second connection.tune-ok before connection.open."""
    client = s.client()
    client.begin()
    client.start_ok()
    client.tune_ok()
    client.send(0, "connection.tune-ok", channel_max=10, frame_max=4096)
    client.receive(0, "connection.open-ok")


@case("connection.open-early", SOCKET)
def _(s: Session) -> None:
    """connection.open before connection.tune-ok closes the socket."""
    client = s.client()
    client.begin()
    client.start_ok()
    client.receive(0, "connection.tune")
    client.open()


@case("connection.empty-vhost", connection(530, "connection.open", "vhost  not found"))
def _(s: Session) -> None:
    """Opening a virtual host with an empty name."""
    s.login(virtual_host="")


@case("connection.authzid", SOCKET)
def _(s: Session) -> None:
    """PLAIN with an authorization identity closes the socket."""
    client = s.client()
    client.begin()
    client.start_ok(response=b"someone\0guest\0guest")
    client.tune_ok()
    client.open()


@case("connection.capabilities-odd", SOCKET)
def _(s: Session) -> None:
    """Client capabilities that are not a table count as no capabilities."""
    client = s.client()
    client.begin()
    client.send(
        0,
        "connection.start-ok",
        client_properties={"capabilities": 5},
        mechanism="PLAIN",
        response=b"\0guest\0wrong",
    )
    client.receive(0, "connection.tune")


@case("connection.locale", ok("connection.tune"))
def _(s: Session) -> str:
    """Any locale is accepted."""
    client = s.client()
    client.begin()
    client.send(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="xx_YY")
    return client.receive(0).name


@case("connection.heartbeat-early", ok())
def _(s: Session) -> None:
    """A heartbeat during the handshake is accepted."""
    client = s.client()
    client.begin()
    client.frame(HEARTBEAT, 0, b"")
    client.start_ok()
    client.frame(HEARTBEAT, 0, b"")
    client.tune_ok()
    client.open()


@case("connection.channel-zero-open", connection(504, "channel.open", _RUNNING))
def _(s: Session) -> None:
    """channel.open on channel 0."""
    client = s.login()
    client.send(0, "channel.open")
    client.receive(0, "channel.open-ok")


@case("connection.close-many", ok((3, True)))
def _(s: Session) -> tuple[int, bool]:
    """connection.close with open channels, consumers and unacked messages requeues the messages."""
    other = fill(s, s.channel())
    opened = s.channel()
    opened.consume(s.q)
    for _ in range(3):
        opened.deliver()
    opened.client.channel(2)
    opened.client.call(0, "connection.close", reply_code=200)
    return other.ready(s.q, 3), other.call("basic.get", queue=s.q).redelivered


@case("connection.small-frames", ok(9000))
def _(s: Session) -> int:
    """A client may negotiate the smallest frame_max and a single channel."""
    opened = s.channel(frame_max=4096, channel_max=1)
    opened.queue(s.q)
    opened.publish("", s.q, bytes(9000))
    return len(opened.get(s.q) or b"")


@case("connection.text-limit", ok((255, "NOT_FOUND - no queue 'nnn", True)))
def _(s: Session) -> tuple[int, str, bool]:
    """A reply text is truncated to the length of a short string."""
    opened = s.channel()
    opened.send("queue.declare", queue="n" * 255, passive=True)
    text = opened.receive("channel.close").reply_text
    return len(text), text[:25], text.endswith("...")


@case("connection.name-octets", ok("NOT_FOUND - no queue 'it's \"é\"\x00' in vhost '/'"))
def _(s: Session) -> str:
    """Names may contain any bytes, also quotes; only line breaks are removed."""
    opened = s.channel()
    opened.send("queue.declare", queue='it\'s "é"\n\x00', passive=True)
    return str(opened.receive("channel.close").reply_text)


@case("connection.error-once", ok(["channel.close", "channel.close-ok"]))
def _(s: Session) -> list[str]:
    """After two errors in a row on a channel only the first is reported."""
    opened = s.channel()
    opened.send("queue.declare", queue="amq.one")
    opened.send("queue.declare", queue="amq.two")
    opened.send("channel.close", reply_code=200)
    return [opened.receive().name, opened.receive().name]


@case("connection.error-last", ok(True))
def _(s: Session) -> bool:
    """After a connection error, frames that other channels still send are ignored."""
    opened = s.channel()
    other = opened.client.channel(2)
    other.queue(s.q)
    opened.send("basic.qos", prefetch_size=1)
    opened.client.receive(0, "connection.close")
    other.send("queue.declare", queue=s.q)
    opened.client.send(0, "connection.close-ok")
    return opened.client.read_rest() == b""


@case("connection.blocked-stops", ok((True, 0)), setup="alarmed")
def _(s: Session) -> tuple[bool, int]:
    """A blocked connection is not read any further; connections that do not publish continue to work."""
    opened, other = s.channel(), s.channel()
    other.queue(s.q)
    opened.publish("amq.direct", "nowhere", b"x")
    opened.client.receive(0, "connection.blocked", timeout=1)
    opened.send("queue.delete", queue=s.q)
    return opened.quiet(), other.ready(s.q)
