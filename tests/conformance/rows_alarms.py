"""Alarms that come and go while clients are connected, and the methods that announce them."""

from collections.abc import Iterator
from contextlib import contextmanager

from conformance.cases import Cases, Session, ok
from conformance.codec import encode_header, encode_method, frame
from conformance.wire import Channel, QuietError

ROWS = Cases()
case = ROWS.case

WAIT = 3.0
"""Seconds within which either broker has noticed."""
BLOCKED = ("connection.blocked", "connection.unblocked")


@contextmanager
def short_of(s: Session, *resources: str) -> Iterator[None]:
    """Make these short inside the block."""
    s.broker.short_of(*resources)
    try:
        yield
    finally:
        s.broker.short_of()


def notice(opened: Channel, timeout: float = WAIT) -> str:
    """Return the next method about blocking; "nothing" if none comes."""
    try:
        message = opened.client.receive(0, *BLOCKED, timeout=timeout)
    except QuietError:
        return "nothing"
    return str(message.reason) if message.name == "connection.blocked" else "unblocked"


def noticed(s: Session) -> None:
    """Wait until the broker blocks publishers."""
    publishing(s)


def publishing(s: Session) -> Channel:
    """A client that has just been blocked because it published."""
    opened = s.channel()
    for _ in range(30):
        opened.publish("amq.direct", "nowhere", b"x")
        if not opened.client.quiet(0, "connection.blocked", timeout=0.1):
            return opened
    raise QuietError


def free(s: Session) -> None:
    """Wait until the broker lets publishers publish."""
    opened = s.channel()
    opened.publish("amq.direct", "nowhere", b"x")
    if not opened.client.quiet(0, "connection.blocked", timeout=0.3):
        opened.client.receive(0, "connection.unblocked", timeout=WAIT)


def blocked(s: Session) -> Channel:
    """Return a channel of a client that is blocked now, inside of `short_of`, and has been sent so."""
    opened = s.channel()
    noticed(s)
    opened.publish("amq.direct", "nowhere", b"x")
    opened.client.receive(0, "connection.blocked", timeout=WAIT)
    return opened


def published(s: Session) -> Channel:
    """A client that has published while nothing was short."""
    free(s)
    opened = s.channel()
    opened.publish("amq.direct", "nowhere", b"x")
    opened.sync()
    return opened


@case("alarm.earlier", ok("nothing"), setup="short")
def _(s: Session) -> str:
    """A client that published before an alarm is not notified unless it publishes again."""
    opened = published(s)
    with short_of(s, "memory"):
        noticed(s)
        return notice(opened, 0.5)


@case("alarm.never", ok(("nothing", "low on memory")), setup="short")
def _(s: Session) -> tuple[str, str]:
    """A client that has never published is notified when it publishes."""
    free(s)
    opened = s.channel()
    with short_of(s, "memory"):
        noticed(s)
        before = notice(opened, 0.5)
        opened.publish("amq.direct", "nowhere", b"x")
        return before, notice(opened)


@case("alarm.cleared", ok(("unblocked", 6)), setup="short")
def _(s: Session) -> tuple[str, int]:
    """A blocked client gets connection.unblocked when the alarm clears, and its pending publishes are confirmed."""
    opened = s.channel()
    opened.call("confirm.select")
    with short_of(s, "memory"):
        noticed(s)
        opened.publish("amq.direct", "nowhere", b"x")
        opened.client.receive(0, "connection.blocked", timeout=WAIT)
        for _ in range(5):
            opened.publish("amq.direct", "nowhere", b"x")
    last = 0
    said = notice(opened)
    while last < 6:
        last = opened.receive("basic.ack", timeout=WAIT).delivery_tag
    return said, last


@case("alarm.again", ok(("nothing", "nothing", "nothing", "low on memory", "unblocked")), setup="short")
def _(s: Session) -> tuple[str, ...]:
    """A client that published before is notified of the next alarm when it publishes again."""
    opened = published(s)
    said = []
    with short_of(s, "memory"):
        noticed(s)
        said.append(notice(opened, 0.3))
    free(s)
    said.append(notice(opened, 0.3))
    with short_of(s, "memory"):
        noticed(s)
        said.append(notice(opened, 0.3))
        opened.publish("amq.direct", "nowhere", b"x")
        said.append(notice(opened))
    said.append(notice(opened))
    return tuple(said)


@case("alarm.second", ok(("nothing", "nothing", "unblocked")), setup="short")
def _(s: Session) -> tuple[str, ...]:
    """A client that is already blocked is not notified of a second alarm."""
    free(s)
    said = []
    with short_of(s, "memory"):
        opened = blocked(s)
        s.broker.short_of("memory", "disk")
        said.append(notice(opened, 1.0))
        s.broker.short_of("disk")
        said.append(notice(opened, 1.0))
    said.append(notice(opened))
    return tuple(said)


@case("alarm.order", ok("low on disk & memory"), setup="short")
def _(s: Session) -> str:
    """connection.blocked names both alarms, the disk first."""
    free(s)
    opened = s.channel()
    with short_of(s, "disk", "memory"):
        noticed(s)
        opened.client.quiet(0, timeout=1.0)
        opened.publish("amq.direct", "nowhere", b"x")
        return notice(opened)


@case("alarm.disk", ok(("nothing", "nothing")), setup="short")
def _(s: Session) -> tuple[str, str]:
    """A client that does not publish is not notified of a disk alarm."""
    opened = published(s)
    with short_of(s, "disk"):
        noticed(s)
        said = notice(opened, 0.3)
    free(s)
    return said, notice(opened, 0.3)


@case("alarm.untold", ok((True, True)), setup="short")
def _(s: Session) -> tuple[bool, bool]:
    """A client without the capability is not notified; it is not read during the alarm, and continues afterwards."""
    free(s)
    opened = s.channel(capabilities={})
    with short_of(s, "memory"):
        noticed(s)
        opened.publish("amq.direct", "nowhere", b"x")
        opened.client.quiet(timeout=0.3)
        opened.send("exchange.declare", exchange="amq.direct", type="direct", passive=True)
        quiet = opened.client.quiet(timeout=0.7)
    return quiet, opened.receive("exchange.declare-ok", timeout=WAIT).name == "exchange.declare-ok"


@case("alarm.consumes", ok((b"1", True, b"2")), setup="short")
def _(s: Session) -> tuple[bytes, bool, bytes]:
    """Consumers of a blocked connection get deliveries; its acks are processed after the alarm."""
    free(s)
    opened, other = s.channel(), s.channel()
    opened.queue(s.q)
    opened.call("basic.qos", prefetch_count=1)
    opened.call("basic.consume", queue=s.q)
    other.publish("", s.q, b"1")
    other.publish("", s.q, b"2")
    other.sync()
    delivered = opened.receive("basic.deliver")
    with short_of(s, "memory"):
        noticed(s)
        opened.publish("amq.direct", "nowhere", b"x")
        opened.client.receive(0, "connection.blocked", timeout=WAIT)
        opened.send("basic.ack", delivery_tag=delivered.delivery_tag)
        waits = opened.quiet("basic.deliver", timeout=0.7)
    return delivered.body, waits, opened.receive("basic.deliver", timeout=WAIT).body


@case("alarm.heartbeats", ok((True, "unblocked")), setup="short")
def _(s: Session) -> tuple[bool, str]:
    """A blocked client gets heartbeats, and is not disconnected for missing its own."""
    free(s)
    with short_of(s, "memory"):
        opened = s.channel(heartbeat=1)
        opened.client.frame(8, 0, b"")
        noticed(s)
        opened.publish("amq.direct", "nowhere", b"x")
        opened.client.receive(0, "connection.blocked", timeout=WAIT)
        beats = [opened.client.read_frame(timeout=3)[0] for _ in range(4)]
    return beats == [8] * 4, notice(opened)


@case("alarm.parts", ok(["nothing", "low on memory", "nothing", "nothing", "unblocked"]), setup="short")
def _(s: Session) -> list[str]:
    """A publish blocks the connection when its content header has arrived, not before."""
    free(s)
    opened = s.channel()
    said = []
    with short_of(s, "memory"):
        noticed(s)
        opened.send("basic.publish", exchange="amq.direct", routing_key="nowhere")
        said.append(notice(opened, 0.5))
        opened.client.frame(2, 1, encode_header(4))
        said.append(notice(opened, 0.5))
        opened.client.frame(3, 1, b"ab")
        said.append(notice(opened, 0.5))
        opened.client.frame(3, 1, b"cd")
        said.append(notice(opened, 0.5))
    said.append(notice(opened, 0.5))
    return said


@case("alarm.read", ok((1, "unblocked", 7)), setup="short")
def _(s: Session) -> tuple[int, str, int]:
    """Nothing after the first content header is processed during an alarm, even if it arrived in the same read."""
    free(s)
    opened, other = s.channel(), s.channel()
    opened.queue(s.q)
    publish = frame(1, 1, encode_method("basic.publish", exchange="", routing_key=s.q))
    empty = publish + frame(2, 1, encode_header(0))
    whole = publish + frame(2, 1, encode_header(4)) + frame(3, 1, b"body")
    with short_of(s, "memory"):
        noticed(s)
        opened.client.raw(empty * 3)
        other.client.raw(whole * 4)
        for each in (opened, other):
            each.client.receive(0, "connection.blocked", timeout=WAIT)
        third = s.channel()
        third.client.quiet(timeout=0.5)
        ready = third.ready(s.q, 1)
    said = notice(opened)
    return ready, said, third.ready(s.q, 7, within=WAIT)


@case("alarm.close", ok((True, "connection.close-ok")), setup="short")
def _(s: Session) -> tuple[bool, str]:
    """A blocked client's connection.close is answered when the alarm clears."""
    free(s)
    with short_of(s, "memory"):
        opened = blocked(s)
        opened.client.send(0, "connection.close", reply_code=200)
        quiet = opened.client.quiet(0, timeout=0.7)
    return quiet, opened.client.receive(0, "connection.close-ok", timeout=WAIT).name


@case("alarm.newcomer", ok(("nothing", "low on memory", "unblocked", 1)), setup="short")
def _(s: Session) -> tuple[str, str, str, int]:
    """A client that connects during an alarm may declare and consume, and is blocked when it publishes."""
    free(s)
    with short_of(s, "memory"):
        noticed(s)
        opened = s.queue()
        before = notice(opened, 0.3)
        opened.publish("", s.q, b"x")
        said = notice(opened)
    return before, said, notice(opened), opened.ready(s.q, 1)


@case("alarm.transaction", ok((True, 1)), setup="short")
def _(s: Session) -> tuple[bool, int]:
    """A transaction with publishes is committed when the alarm clears."""
    free(s)
    opened = s.queue()
    opened.call("tx.select")
    with short_of(s, "memory"):
        noticed(s)
        opened.publish("", s.q, b"x")
        opened.client.receive(0, "connection.blocked", timeout=WAIT)
        opened.send("tx.commit")
        quiet = opened.client.quiet(1, timeout=0.7)
    opened.receive("tx.commit-ok", timeout=WAIT)
    return quiet, opened.ready(s.q, 1)
