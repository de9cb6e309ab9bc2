"""Rows 88 and 96-98: getting, and settling what was delivered."""

from conformance.cases import Cases, Session, channel, connection, fill, ok

ROWS = Cases()
case = ROWS.case


@case("88", channel(404, "basic.get", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """basic.get from a queue that does not exist."""
    s.channel().get(s.q)


for _letter, _what, _method, _fields in (
    ("a", "acking an unknown delivery tag", "basic.ack", {"delivery_tag": 5}),
    ("b", "rejecting an unknown delivery tag", "basic.reject", {"delivery_tag": 5}),
    ("c", "nacking an unknown delivery tag", "basic.nack", {"delivery_tag": 5}),
    ("d", "acking an unknown delivery tag with multiple", "basic.ack", {"delivery_tag": 5, "multiple": True}),
    (
        "e",
        "nacking an unknown delivery tag with multiple",
        "basic.nack",
        {"delivery_tag": 5, "multiple": True},
    ),
    ("f", "acking tag 0 without multiple", "basic.ack", {"delivery_tag": 0}),
    ("g", "rejecting tag 0", "basic.reject", {"delivery_tag": 0}),
    ("h", "acking the largest possible tag", "basic.ack", {"delivery_tag": 2**64 - 1}),
):

    def _unknown(s: Session, method: str = _method, fields: dict = _fields) -> None:
        opened = s.channel()
        opened.send(method, **fields)
        opened.sync()

    case(
        f"96{_letter}",
        channel(406, _method, f"unknown delivery tag {_fields['delivery_tag']}"),
        statement=_what,
    )(_unknown)


@case("96i", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    """Acking a tag twice."""
    opened = fill(s, s.channel())
    opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=1)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("96j", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    """Acking another channel's tag."""
    opened = fill(s, s.channel())
    opened.get(s.q, no_ack=False)
    other = opened.client.channel(2)
    other.send("basic.ack", delivery_tag=1)
    other.sync()


@case("96k", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    """Acking a delivery of a consumer with no_ack."""
    opened = fill(s, s.channel())
    opened.get(s.q)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("96l")
def _(s: Session) -> None:
    """Tag 0 with multiple settles all deliveries, even if there are none."""
    opened = s.channel()
    opened.send("basic.ack", delivery_tag=0, multiple=True)
    opened.send("basic.nack", delivery_tag=0, multiple=True)
    opened.sync()


@case("96m", channel(406, "basic.ack", "unknown delivery tag 2"))
def _(s: Session) -> None:
    """Acking with multiple a tag that was already acked, while earlier ones are unacked."""
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=2)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.sync()


@case("97a", connection(540, "basic.recover", "requeue=false"))
def _(s: Session) -> None:
    """Recover without requeue."""
    s.channel().call("basic.recover", requeue=False)


@case("97b", connection(540, "basic.recover-async", "requeue=false"))
def _(s: Session) -> None:
    """recover-async without requeue."""
    opened = s.channel()
    opened.send("basic.recover-async", requeue=False)
    opened.sync()


@case(
    "98",
    channel(
        406,
        None,
        "delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. This timeout value can be configured,"
        " see consumers doc guide to learn more",
    ),
    setup="tight",
)
def _(s: Session) -> None:
    """A delivery that is not acknowledged before the consumer timeout."""
    opened = fill(s, s.channel())
    opened.consume(s.q)
    opened.deliver()
    opened.receive("channel.close-ok", timeout=3)


@case("basic.get", ok((1, 0, "basic.get-empty")))
def _(s: Session) -> tuple[object, ...]:
    """basic.get-ok contains the number of remaining ready messages; basic.get-empty follows the last message."""
    opened = fill(s, s.channel(), 2)
    first = opened.call("basic.get", queue=s.q).message_count
    second = opened.call("basic.get", queue=s.q).message_count
    return first, second, opened.call("basic.get", queue=s.q).name


@case("basic.get-tags", ok([1, 2, 3]))
def _(s: Session) -> list[int]:
    """Messages from basic.get and deliveries share one sequence of delivery tags."""
    opened = fill(s, s.channel())
    first = opened.call("basic.get", queue=s.q).delivery_tag
    opened.consume(s.q, no_ack=True)
    return [first, opened.deliver().delivery_tag, opened.deliver().delivery_tag]


@case("basic.ack-multiple", ok([b"3"]))
def _(s: Session) -> list[bytes | None]:
    """An ack with multiple settles all deliveries up to its tag."""
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.call("basic.recover", requeue=True)
    return [opened.get(s.q)]


@case("basic.nack-requeue", ok([(b"1", True), (b"2", True), (b"3", True), (b"4", False)]))
def _(s: Session) -> list[tuple[bytes, bool]]:
    """Nacked messages return to their old positions, marked as redelivered."""
    opened = fill(s, s.channel(), 4)
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.reject", delivery_tag=2, requeue=True)
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    got = [opened.call("basic.get", queue=s.q) for _ in range(4)]
    return [(message.body, message.redelivered) for message in got]


@case("basic.nack-drop", ok(0))
def _(s: Session) -> int:
    """Nack and reject without requeue drop messages."""
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.nack", delivery_tag=2, multiple=True)
    opened.send("basic.reject", delivery_tag=3)
    opened.call("basic.recover", requeue=True)
    return opened.drain(s.q)


@case("basic.recover", ok([b"1", b"2", b"3", b"1", b"2", b"3"]))
def _(s: Session) -> list[bytes]:
    """basic.recover requeues unacked messages and delivers them again, in order."""
    opened = fill(s, s.channel())
    opened.consume(s.q)
    bodies = [opened.deliver().body for _ in range(3)]
    opened.call("basic.recover", requeue=True)
    return bodies + [opened.deliver().body for _ in range(3)]


@case("basic.recover-async", ok((b"1", True)))
def _(s: Session) -> tuple[bytes, bool]:
    """basic.recover-async does the same as basic.recover, without an answer."""
    opened = fill(s, s.channel(), 1)
    opened.get(s.q, no_ack=False)
    opened.send("basic.recover-async", requeue=True)
    got = opened.call("basic.get", queue=s.q)
    return got.body, got.redelivered


@case("basic.requeue-on-drop", ok([(b"1", True), (b"2", True), (b"3", False)]))
def _(s: Session) -> list[tuple[bytes, bool]]:
    """Unacked messages of a lost connection are requeued, marked as redelivered."""
    other = fill(s, s.channel())
    lost = s.channel()
    lost.get(s.q, no_ack=False)
    lost.get(s.q, no_ack=False)
    lost.client.close_socket()
    other.ready(s.q, 3)
    got = [other.call("basic.get", queue=s.q) for _ in range(3)]
    return [(message.body, message.redelivered) for message in got]


@case("basic.no-ack-cancelled", ok(0))
def _(s: Session) -> int:
    """Messages to a consumer with no_ack are removed when they are sent."""
    opened = fill(s, s.channel())
    opened.consume(s.q, no_ack=True)
    for _ in range(3):
        opened.deliver()
    opened.call("channel.close", reply_code=200)
    return opened.client.channel(1).drain(s.q)


@case("basic.ack-across", ok(0))
def _(s: Session) -> int:
    """An ack with multiple covers messages from basic.get and from all consumers of the channel."""
    opened = fill(s, s.channel(), 4)
    opened.get(s.q, no_ack=False)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "1")
    opened.consume(s.q, "2")
    opened.deliver()
    opened.deliver()
    for tag in ("1", "2"):
        opened.call("basic.cancel", consumer_tag=tag)
    opened.send("basic.ack", delivery_tag=3, multiple=True)
    opened.call("basic.recover", requeue=True)
    return opened.drain(s.q) - 1


@case("basic.requeue-consumer", ok([(b"1", False), (b"1", True), (b"2", False)]))
def _(s: Session) -> list[tuple[bytes, bool]]:
    """A rejected message is delivered to the only consumer again before later ones."""
    opened = fill(s, s.channel(), 2)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    got = []
    for requeue in (True, False, False):
        message = opened.deliver()
        got.append((message.body, message.redelivered))
        if requeue:
            opened.send("basic.reject", delivery_tag=message.delivery_tag, requeue=True)
        else:
            opened.send("basic.ack", delivery_tag=message.delivery_tag)
    return got


@case("basic.nack-all", ok([b"1", b"2", b"3"]))
def _(s: Session) -> list[bytes | None]:
    """basic.nack of tag 0 with multiple and requeue requeues everything in order."""
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    return [opened.get(s.q) for _ in range(3)]


@case("basic.channel-close-order", ok([b"1", b"2", b"3"]))
def _(s: Session) -> list[bytes | None]:
    """Messages of a closed channel return to their old positions, before later messages."""
    opened = fill(s, s.channel())
    other = opened.client.channel(2)
    other.get(s.q, no_ack=False)
    other.get(s.q, no_ack=False)
    other.call("channel.close", reply_code=200)
    return [opened.get(s.q) for _ in range(3)]


@case("basic.recover-others", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """basic.recover affects only messages of its own channel."""
    opened = fill(s, s.channel(), 1)
    other = opened.client.channel(2)
    other.get(s.q, no_ack=False)
    opened.call("basic.recover", requeue=True)
    before = opened.drain(s.q)
    other.call("basic.recover", requeue=True)
    return before, opened.drain(s.q)


@case("basic.tags-after-recover", ok([1, 2]))
def _(s: Session) -> list[int]:
    """Delivery tags continue to increase after basic.recover."""
    opened = fill(s, s.channel(), 1)
    opened.consume(s.q)
    first = opened.deliver().delivery_tag
    opened.call("basic.recover", requeue=True)
    return [first, opened.deliver().delivery_tag]


@case("basic.error-requeues", ok((3, True)))
def _(s: Session) -> tuple[int, bool]:
    """After a channel error the channel's unacked deliveries are requeued without waiting for channel.close-ok."""
    opened = fill(s, s.channel())
    other = opened.client.channel(2)
    opened.consume(s.q)
    for _ in range(3):
        opened.deliver()
    opened.send("basic.ack", delivery_tag=99)
    opened.receive("channel.close")
    return other.ready(s.q, 3), other.call("basic.get", queue=s.q).redelivered


@case("basic.error-requeues-gets", ok((3, True)))
def _(s: Session) -> tuple[int, bool]:
    """After a channel error unacked messages from basic.get are requeued before the channel can be opened again."""
    opened = fill(s, s.channel())
    other = opened.client.channel(2)
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=99)
    opened.receive("channel.close")
    opened.send("channel.close-ok")
    opened.call("channel.open")
    return other.ready(s.q, 3), other.call("basic.get", queue=s.q).redelivered
