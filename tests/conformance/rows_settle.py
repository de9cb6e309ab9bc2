"""Rows 88 and 96-98: getting, and settling what was delivered."""

from conformance.cases import Cases, Session, channel, connection, fill, ok

ROWS = Cases()
case = ROWS.case


@case(
    "88",
    "basic.get from a queue that does not exist",
    channel(404, "basic.get", "no queue '{q}' in vhost '/'"),
)
def _(s: Session) -> None:
    s.channel().get(s.q)


for _letter, _what, _method, _fields in (
    ("a", "acking a tag never sent", "basic.ack", {"delivery_tag": 5}),
    ("b", "rejecting a tag never sent", "basic.reject", {"delivery_tag": 5}),
    ("c", "nacking a tag never sent", "basic.nack", {"delivery_tag": 5}),
    ("d", "acking all up to a tag never sent", "basic.ack", {"delivery_tag": 5, "multiple": True}),
    ("e", "nacking all up to a tag never sent", "basic.nack", {"delivery_tag": 5, "multiple": True}),
    ("f", "acking tag 0 alone", "basic.ack", {"delivery_tag": 0}),
    ("g", "rejecting tag 0", "basic.reject", {"delivery_tag": 0}),
    ("h", "acking the largest tag", "basic.ack", {"delivery_tag": 2**64 - 1}),
):

    def _unknown(s: Session, method: str = _method, fields: dict = _fields) -> None:
        opened = s.channel()
        opened.send(method, **fields)
        opened.sync()

    case(f"96{_letter}", _what, channel(406, _method, f"unknown delivery tag {_fields['delivery_tag']}"))(
        _unknown
    )


@case("96i", "acking a tag twice", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    opened = fill(s, s.channel())
    opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=1)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("96j", "acking another channel's tag", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    opened = fill(s, s.channel())
    opened.get(s.q, no_ack=False)
    other = opened.client.channel(2)
    other.send("basic.ack", delivery_tag=1)
    other.sync()


@case(
    "96k",
    "acking what was delivered without acknowledgements",
    channel(406, "basic.ack", "unknown delivery tag 1"),
)
def _(s: Session) -> None:
    opened = fill(s, s.channel())
    opened.get(s.q)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("96l", "tag 0 with multiple settles all, also when there is nothing")
def _(s: Session) -> None:
    opened = s.channel()
    opened.send("basic.ack", delivery_tag=0, multiple=True)
    opened.send("basic.nack", delivery_tag=0, multiple=True)
    opened.sync()


@case(
    "96m",
    "acking up to a tag that was acked already, with others open before it",
    channel(406, "basic.ack", "unknown delivery tag 2"),
)
def _(s: Session) -> None:
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=2)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.sync()


@case("97a", "recover without requeue", connection(540, "basic.recover", "requeue=false"))
def _(s: Session) -> None:
    s.channel().call("basic.recover", requeue=False)


@case("97b", "recover-async without requeue", connection(540, "basic.recover-async", "requeue=false"))
def _(s: Session) -> None:
    opened = s.channel()
    opened.send("basic.recover-async", requeue=False)
    opened.sync()


@case(
    "98",
    "a delivery that is not acknowledged in time",
    channel(
        406,
        None,
        "delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. This timeout value can be configured,"
        " see consumers doc guide to learn more",
    ),
    setup="tight",
)
def _(s: Session) -> None:
    opened = fill(s, s.channel())
    opened.consume(s.q)
    opened.deliver()
    opened.receive("channel.close-ok", timeout=3)


@case(
    "basic.get",
    "get-ok tells how many messages remain ready, get-empty comes after the last",
    ok((1, 0, "basic.get-empty")),
)
def _(s: Session) -> tuple[object, ...]:
    opened = fill(s, s.channel(), 2)
    first = opened.call("basic.get", queue=s.q).message_count
    second = opened.call("basic.get", queue=s.q).message_count
    return first, second, opened.call("basic.get", queue=s.q).name


@case("basic.get-tags", "gets and deliveries number their tags in one row", ok([1, 2, 3]))
def _(s: Session) -> list[int]:
    opened = fill(s, s.channel())
    first = opened.call("basic.get", queue=s.q).delivery_tag
    opened.consume(s.q, no_ack=True)
    return [first, opened.deliver().delivery_tag, opened.deliver().delivery_tag]


@case("basic.ack-multiple", "an ack with multiple settles all up to its tag", ok([b"3"]))
def _(s: Session) -> list[bytes | None]:
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.call("basic.recover", requeue=True)
    return [opened.get(s.q)]


@case(
    "basic.nack-requeue",
    "nacked messages go back to their places, marked as redelivered",
    ok([(b"1", True), (b"2", True), (b"3", True), (b"4", False)]),
)
def _(s: Session) -> list[tuple[bytes, bool]]:
    opened = fill(s, s.channel(), 4)
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.reject", delivery_tag=2, requeue=True)
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    got = [opened.call("basic.get", queue=s.q) for _ in range(4)]
    return [(message.body, message.redelivered) for message in got]


@case("basic.nack-drop", "nack and reject without requeue drop", ok(0))
def _(s: Session) -> int:
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.nack", delivery_tag=2, multiple=True)
    opened.send("basic.reject", delivery_tag=3)
    opened.call("basic.recover", requeue=True)
    return opened.drain(s.q)


@case(
    "basic.recover",
    "recover requeues what is unacked and delivers it again, in order",
    ok([b"1", b"2", b"3", b"1", b"2", b"3"]),
)
def _(s: Session) -> list[bytes]:
    opened = fill(s, s.channel())
    opened.consume(s.q)
    bodies = [opened.deliver().body for _ in range(3)]
    opened.call("basic.recover", requeue=True)
    return bodies + [opened.deliver().body for _ in range(3)]


@case("basic.recover-async", "recover-async does the same without an answer", ok((b"1", True)))
def _(s: Session) -> tuple[bytes, bool]:
    opened = fill(s, s.channel(), 1)
    opened.get(s.q, no_ack=False)
    opened.send("basic.recover-async", requeue=True)
    got = opened.call("basic.get", queue=s.q)
    return got.body, got.redelivered


@case(
    "basic.requeue-on-drop",
    "a connection that is lost gives its unacked messages back, marked as redelivered",
    ok([(b"1", True), (b"2", True), (b"3", False)]),
)
def _(s: Session) -> list[tuple[bytes, bool]]:
    other = fill(s, s.channel())
    lost = s.channel()
    lost.get(s.q, no_ack=False)
    lost.get(s.q, no_ack=False)
    lost.client.close_socket()
    other.ready(s.q, 3)
    got = [other.call("basic.get", queue=s.q) for _ in range(3)]
    return [(message.body, message.redelivered) for message in got]


@case("basic.no-ack-cancelled", "messages to a consumer without acknowledgements are gone when sent", ok(0))
def _(s: Session) -> int:
    opened = fill(s, s.channel())
    opened.consume(s.q, no_ack=True)
    for _ in range(3):
        opened.deliver()
    opened.call("channel.close", reply_code=200)
    return opened.client.channel(1).drain(s.q)


@case("basic.ack-across", "an ack with multiple covers gets and all consumers of the channel", ok(0))
def _(s: Session) -> int:
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


@case(
    "basic.requeue-consumer",
    "a rejected message comes back to the only consumer before later ones",
    ok([(b"1", False), (b"1", True), (b"2", False)]),
)
def _(s: Session) -> list[tuple[bytes, bool]]:
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


@case(
    "basic.nack-all",
    "nack of tag 0 with multiple and requeue gives everything back in order",
    ok([b"1", b"2", b"3"]),
)
def _(s: Session) -> list[bytes | None]:
    opened = fill(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    return [opened.get(s.q) for _ in range(3)]


@case(
    "basic.channel-close-order",
    "messages of a closed channel go back to their places before others",
    ok([b"1", b"2", b"3"]),
)
def _(s: Session) -> list[bytes | None]:
    opened = fill(s, s.channel())
    other = opened.client.channel(2)
    other.get(s.q, no_ack=False)
    other.get(s.q, no_ack=False)
    other.call("channel.close", reply_code=200)
    return [opened.get(s.q) for _ in range(3)]


@case("basic.recover-others", "recover touches its own channel's messages only", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    opened = fill(s, s.channel(), 1)
    other = opened.client.channel(2)
    other.get(s.q, no_ack=False)
    opened.call("basic.recover", requeue=True)
    before = opened.drain(s.q)
    other.call("basic.recover", requeue=True)
    return before, opened.drain(s.q)


@case("basic.tags-after-recover", "delivery tags go on counting after recover", ok([1, 2]))
def _(s: Session) -> list[int]:
    opened = fill(s, s.channel(), 1)
    opened.consume(s.q)
    first = opened.deliver().delivery_tag
    opened.call("basic.recover", requeue=True)
    return [first, opened.deliver().delivery_tag]


@case(
    "basic.error-requeues",
    "a channel that is closed for an error gives back what its consumers had, without waiting for close-ok",
    ok((3, True)),
)
def _(s: Session) -> tuple[int, bool]:
    opened = fill(s, s.channel())
    other = opened.client.channel(2)
    opened.consume(s.q)
    for _ in range(3):
        opened.deliver()
    opened.send("basic.ack", delivery_tag=99)
    opened.receive("channel.close")
    return other.ready(s.q, 3), other.call("basic.get", queue=s.q).redelivered


@case(
    "basic.error-requeues-gets",
    "what a channel that is closed for an error had got is back when the channel opens again",
    ok((3, True)),
)
def _(s: Session) -> tuple[int, bool]:
    opened = fill(s, s.channel())
    other = opened.client.channel(2)
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=99)
    opened.receive("channel.close")
    opened.send("channel.close-ok")
    opened.call("channel.open")
    return other.ready(s.q, 3), other.call("basic.get", queue=s.q).redelivered
