"""Cases of messages that expire.

The scripts wait for each effect; TTLs are either some milliseconds, or so long that they do not elapse on the slowest
machine.
"""

from conformance.cases import Cases, Session, channel, fill, ok
from conformance.codec import T
from conformance.wire import Channel

ROWS = Cases()
case = ROWS.case

SOON = 30
LONG = 600_000
PATIENCE = 10.0


def _ttl(s: Session, milliseconds: int, **rest: object) -> Channel:
    return s.queue(arguments={"x-message-ttl": milliseconds}, **rest)


def _gone(opened: Channel, queue: str, left: int = 0) -> int:
    """Return the number of ready messages when expiry has had its time."""
    return opened.ready(queue, left, within=PATIENCE)


def _put(opened: Channel, queue: str, *messages: tuple[bytes, int | None]) -> None:
    """Publish bodies, each with its expiration, and wait until the queue has (or had) them."""
    for body, expiration in messages:
        opened.put(queue, body, **({} if expiration is None else {"expiration": str(expiration)}))


for _letter, _arguments, _properties, _what in (
    ("queue", {"x-message-ttl": SOON}, {}, "a message expires when the TTL of its queue has elapsed"),
    ("message", {}, {"expiration": str(SOON)}, "a message expires when its own TTL has elapsed"),
    ("smaller-own", {"x-message-ttl": LONG}, {"expiration": str(SOON)}, "the shorter TTL applies: the message's"),
    ("smaller-queue", {"x-message-ttl": SOON}, {"expiration": str(LONG)}, "the shorter TTL applies: the queue's"),
    ("width-byte", {"x-message-ttl": T("b", SOON)}, {}, "x-message-ttl may be an 8-bit integer"),
    ("width-short", {"x-message-ttl": T("s", SOON)}, {}, "x-message-ttl may be a 16-bit integer"),
    ("width-long", {"x-message-ttl": T("l", SOON)}, {}, "x-message-ttl may be a 64-bit integer"),
    ("lazy", {"x-message-ttl": SOON, "x-queue-mode": "lazy"}, {}, "messages of a lazy queue expire"),
):  # fmt: skip

    def _expires(
        s: Session, arguments: dict = _arguments, properties: dict = _properties
    ) -> tuple[int, object]:
        opened = s.queue(arguments=arguments)
        opened.put(s.q, b"1", b"2", **properties)
        return _gone(opened, s.q), opened.get(s.q)

    case(f"ttl.{_letter}", ok((0, None)), statement=_what)(_expires)


for _letter, _arguments, _properties, _what in (
    ("long-queue", {"x-message-ttl": 315360000000}, {}, "a message with the longest possible TTL of a queue does not expire"),
    ("long-message", {}, {"expiration": "315360000000"}, "a message with the longest possible expiration does not expire"),
    ("long-both", {"x-message-ttl": LONG}, {"expiration": str(LONG)}, "a message remains while neither TTL has elapsed"),
):  # fmt: skip

    def _stays(
        s: Session, arguments: dict = _arguments, properties: dict = _properties
    ) -> tuple[object, object]:
        opened = s.queue(arguments=arguments)
        opened.put(s.q, b"1", **properties)
        opened.lapse(SOON)
        got = opened.call("basic.get", queue=s.q, no_ack=True)
        return got.body, got.properties.get("expiration")

    case(f"ttl.{_letter}", ok((b"1", _properties.get("expiration"))), statement=_what)(_stays)


@case("ttl.invalid-unrouted", channel(406, "basic.publish", "invalid expiration 'x': no_integer"))
def _(s: Session) -> None:
    """An invalid expiration is refused even if the message is unroutable."""
    opened = s.channel()
    opened.publish("amq.fanout", "", b"x", expiration="x")
    opened.sync()


for _letter, _arguments, _expiration in (("queue", {"x-message-ttl": 0}, None), ("message", {}, 0)):

    def _zero(s: Session, arguments: dict = _arguments, expiration: int | None = _expiration) -> object:
        opened = s.queue(arguments=arguments)
        _put(opened, s.q, (b"1", expiration))
        return opened.get(s.q)

    case(
        f"ttl.zero-{_letter}",
        ok(),
        statement=f"with a TTL of 0 of the {_letter}, a message expires at once if no consumer is waiting",
    )(_zero)

    def _zero_taken(s: Session, arguments: dict = _arguments, expiration: int | None = _expiration) -> object:
        opened = s.queue(arguments=arguments)
        opened.consume(s.q)
        _put(opened, s.q, (b"1", expiration))
        return opened.deliver().body

    case(
        f"ttl.zero-{_letter}-consumer",
        ok(b"1"),
        statement=f"with a TTL of 0 of the {_letter}, a waiting consumer gets the message",
    )(_zero_taken)

    def _zero_full(s: Session, arguments: dict = _arguments, expiration: int | None = _expiration) -> object:
        opened = s.queue(arguments=arguments)
        opened.call("basic.qos", prefetch_count=1)
        opened.consume(s.q)
        _put(opened, s.q, (b"1", expiration), (b"2", expiration), (b"3", expiration))
        got = opened.deliver()
        left = _gone(opened, s.q)
        opened.send("basic.ack", delivery_tag=got.delivery_tag)
        return got.body, left, opened.deliveries()

    case(
        f"ttl.zero-{_letter}-full",
        ok((b"1", 0, 0)),
        statement=f"with a TTL of 0 of the {_letter}, messages above a consumer's prefetch expire",
    )(_zero_full)

    def _zero_requeued(
        s: Session, arguments: dict = _arguments, expiration: int | None = _expiration
    ) -> object:
        opened = s.queue(arguments=arguments)
        opened.consume(s.q)
        _put(opened, s.q, (b"1", expiration))
        opened.lapse(5)
        opened.send("basic.reject", delivery_tag=opened.deliver().delivery_tag, requeue=True)
        return opened.deliveries(), opened.drain(s.q)

    case(
        f"ttl.zero-{_letter}-requeued",
        ok((0, 0)),
        statement=f"with a TTL of 0 of the {_letter}, a requeued message expires even if a consumer is waiting",
    )(_zero_requeued)

    def _zero_confirmed(
        s: Session, arguments: dict = _arguments, expiration: int | None = _expiration
    ) -> str:
        opened = s.queue(durable=True, arguments=arguments)
        opened.call("confirm.select")
        properties = {} if expiration is None else {"expiration": str(expiration)}
        opened.publish("", s.q, b"1", delivery_mode=2, mandatory=True, **properties)
        return opened.receive().name

    case(
        f"ttl.zero-{_letter}-confirmed",
        ok("basic.ack"),
        statement=f"with a TTL of 0 of the {_letter}, a message is confirmed and not returned",
    )(_zero_confirmed)


@case("ttl.head", ok((3, 2, None)))
def _(s: Session) -> tuple[object, ...]:
    """Messages expire only at the head of a queue: those behind a message that has not expired still count."""
    opened = s.queue()
    _put(opened, s.q, (b"1", None), (b"2", SOON), (b"3", SOON))
    opened.lapse(2 * SOON)
    before = opened.ready(s.q, 3)
    opened.get(s.q, no_ack=False)
    return before, before - 1 - opened.ready(s.q), opened.get(s.q)


@case("ttl.head-longer", ok((2, 0)))
def _(s: Session) -> tuple[int, int]:
    """An expired message behind one with a longer TTL remains until that one is removed."""
    opened = s.queue()
    _put(opened, s.q, (b"1", LONG), (b"2", SOON))
    opened.lapse(2 * SOON)
    before = opened.ready(s.q, 2)
    opened.get(s.q)
    return before, opened.drain(s.q)


@case("ttl.head-then", ok((1, b"2")))
def _(s: Session) -> tuple[object, ...]:
    """The message behind an expired head is delivered next."""
    opened = s.queue()
    _put(opened, s.q, (b"1", SOON), (b"2", None))
    return _gone(opened, s.q, 1), opened.get(s.q)


@case("ttl.head-several", ok((1, b"4")))
def _(s: Session) -> tuple[object, ...]:
    """Each message expires in time if those before it have expired."""
    opened = s.queue()
    _put(opened, s.q, (b"1", SOON), (b"2", 2 * SOON), (b"3", SOON // 2), (b"4", None))
    return _gone(opened, s.q, 1), opened.get(s.q)


@case("ttl.get-count", ok((b"1", 0)))
def _(s: Session) -> tuple[object, ...]:
    """The message count of basic.get-ok excludes expired messages behind the one delivered."""
    opened = s.queue()
    _put(opened, s.q, (b"1", None), (b"2", SOON), (b"3", SOON))
    opened.lapse(2 * SOON)
    got = opened.call("basic.get", queue=s.q, no_ack=True)
    return got.body, got.message_count


@case("ttl.get-order", ok([b"1", b"3", b"5"]))
def _(s: Session) -> list[bytes | None]:
    """basic.get skips expired messages and preserves the order of the others."""
    opened = s.queue()
    _put(opened, s.q, (b"1", None), (b"2", SOON), (b"3", None), (b"4", SOON), (b"5", LONG))
    opened.lapse(2 * SOON)
    return [opened.get(s.q) for _ in range(3)]


@case("ttl.consumer-order", ok([b"1", b"3", b"5"]))
def _(s: Session) -> list[bytes]:
    """Consumers get messages that have not expired, in order."""
    opened = s.queue()
    _put(opened, s.q, (b"1", None), (b"2", SOON), (b"3", None), (b"4", SOON), (b"5", LONG))
    opened.lapse(2 * SOON)
    opened.consume(s.q, no_ack=True)
    return [opened.deliver().body for _ in range(3)]


@case("ttl.consumer-late", ok(0))
def _(s: Session) -> int:
    """A consumer that starts when all messages have expired gets none."""
    opened = s.queue()
    _put(opened, s.q, (b"1", SOON), (b"2", SOON))
    opened.lapse(2 * SOON)
    opened.consume(s.q)
    return opened.deliveries()


@case("ttl.prefetch-behind", ok(([b"1", b"4"], 0)))
def _(s: Session) -> tuple[list[bytes], int]:
    """Messages that expire while a consumer's prefetch is used up are not delivered later."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    _put(opened, s.q, (b"1", None), (b"2", SOON), (b"3", SOON), (b"4", None))
    bodies = []
    for _ in range(2):
        got = opened.deliver()
        bodies.append(got.body)
        opened.lapse(2 * SOON)
        opened.send("basic.ack", delivery_tag=got.delivery_tag)
    return bodies, opened.deliveries()


@case("ttl.unacked", ok(0))
def _(s: Session) -> int:
    """An unacked message does not expire."""
    opened = _ttl(s, SOON)
    opened.consume(s.q)
    opened.put(s.q, b"1")
    got = opened.deliver()
    opened.lapse(2 * SOON)
    opened.send("basic.ack", delivery_tag=got.delivery_tag)
    opened.sync()
    return opened.drain(s.q)


for _letter, _arguments, _expiration in (
    ("queue", {"x-message-ttl": 2 * SOON}, None),
    ("message", {}, 2 * SOON),
):

    def _requeued(s: Session, arguments: dict = _arguments, expiration: int | None = _expiration) -> object:
        opened = s.queue(arguments=arguments)
        opened.consume(s.q)
        _put(opened, s.q, (b"1", expiration))
        got = opened.deliver()
        opened.lapse(3 * SOON)
        opened.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
        return opened.deliveries(), opened.ready(s.q)

    case(
        f"ttl.requeued-{_letter}",
        ok((0, 0)),
        statement=f"a message requeued after the TTL of the {_letter} has elapsed expires at once",
    )(_requeued)


@case("ttl.requeued-in-time", ok((True, "600000")))
def _(s: Session) -> tuple[object, ...]:
    """A message requeued before it expires is ready again, with its expiration."""
    opened = _ttl(s, LONG)
    opened.put(s.q, b"1", expiration=str(LONG))
    opened.send("basic.reject", delivery_tag=opened.call("basic.get", queue=s.q).delivery_tag, requeue=True)
    got = opened.call("basic.get", queue=s.q, no_ack=True)
    return got.redelivered, got.properties["expiration"]


@case("ttl.requeued-counts-on", ok(0))
def _(s: Session) -> int:
    """A requeued message expires when its original TTL has elapsed."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    _put(opened, s.q, (b"1", 2 * SOON))
    got = opened.deliver()
    opened.call("basic.cancel", consumer_tag="ct")
    opened.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
    return _gone(opened, s.q)


@case("ttl.requeued-before", ok((2, b"1", None)))
def _(s: Session) -> tuple[object, ...]:
    """A requeued message that has not expired delays the expiry of those behind it."""
    opened, other = s.channel(), s.channel()
    opened.queue(s.q)
    _put(opened, s.q, (b"1", None))
    opened.call("tx.select")
    got = opened.call("basic.get", queue=s.q)
    opened.publish("", s.q, b"2", expiration=str(4 * SOON))
    opened.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
    opened.call("tx.commit")
    other.lapse(5 * SOON)
    return other.ready(s.q, 2), other.get(s.q), other.get(s.q)


@case("ttl.recover", ok([b"2"]))
def _(s: Session) -> list[bytes]:
    """basic.recover delivers again only messages that have not expired."""
    opened = s.queue()
    opened.consume(s.q)
    _put(opened, s.q, (b"1", SOON), (b"2", None))
    opened.deliver()
    opened.deliver()
    opened.lapse(2 * SOON)
    opened.call("basic.recover", requeue=True)
    return [opened.deliver().body]


@case("ttl.channel-closed", ok((0, None)))
def _(s: Session) -> tuple[object, ...]:
    """Messages requeued by the end of a channel expire too."""
    opened, other = s.channel(), s.channel()
    opened.queue(s.q)
    opened.consume(s.q)
    _put(opened, s.q, (b"1", SOON), (b"2", SOON))
    opened.deliver()
    opened.deliver()
    other.lapse(2 * SOON)
    opened.call("channel.close", reply_code=200)
    return _gone(other, s.q), other.get(s.q)


@case("ttl.purge-count", ok((3, 0)))
def _(s: Session) -> tuple[int, int]:
    """A purge counts expired messages behind the head."""
    opened = s.queue()
    _put(opened, s.q, (b"1", None), (b"2", SOON), (b"3", SOON))
    opened.lapse(2 * SOON)
    return opened.call("queue.purge", queue=s.q).message_count, opened.drain(s.q)


@case("ttl.purge-none", ok(0))
def _(s: Session) -> int:
    """A purge after all messages have expired counts none."""
    opened = _ttl(s, SOON)
    _put(opened, s.q, (b"1", None), (b"2", None))
    _gone(opened, s.q)
    return int(opened.call("queue.purge", queue=s.q).message_count)


@case("ttl.purged-timer", ok((0, b"long")))
def _(s: Session) -> tuple[object, ...]:
    """After a purge, later messages expire in time."""
    opened = s.queue()
    _put(opened, s.q, (b"1", SOON))
    opened.call("queue.purge", queue=s.q)
    _put(opened, s.q, (b"2", SOON))
    left = _gone(opened, s.q)
    _put(opened, s.q, (b"long", LONG))
    opened.lapse(SOON)
    return left, opened.get(s.q)


@case("ttl.delete-count", ok(2))
def _(s: Session) -> int:
    """queue.delete-ok counts expired messages behind the head."""
    opened = s.queue()
    _put(opened, s.q, (b"1", None), (b"2", SOON))
    opened.lapse(2 * SOON)
    return int(opened.call("queue.delete", queue=s.q).message_count)


@case("ttl.if-empty", ok(0))
def _(s: Session) -> int:
    """A queue whose messages have all expired is empty."""
    opened = _ttl(s, SOON)
    _put(opened, s.q, (b"1", None))
    _gone(opened, s.q)
    return int(opened.call("queue.delete", queue=s.q, if_empty=True).message_count)


@case("ttl.persistent", ok((0, None)))
def _(s: Session) -> tuple[object, ...]:
    """Persistent messages of a durable queue expire."""
    opened = _ttl(s, SOON, durable=True)
    opened.put(s.q, b"1", b"2", delivery_mode=2)
    return _gone(opened, s.q), opened.get(s.q)


@case("ttl.mixed", ok([b"3", b"4"]))
def _(s: Session) -> list[bytes | None]:
    """Persistent and transient messages expire in the order of their publishing."""
    opened = s.queue(durable=True)
    for number, (mode, expiration) in enumerate(((2, SOON), (1, SOON), (2, LONG), (1, LONG)), 1):
        opened.put(s.q, str(number).encode(), delivery_mode=mode, expiration=str(expiration))
    _gone(opened, s.q, 2)
    return [opened.get(s.q), opened.get(s.q)]


@case("ttl.big", ok((0, True)))
def _(s: Session) -> tuple[object, ...]:
    """Messages with bodies of many frames expire."""
    opened = _ttl(s, SOON, durable=True)
    opened.put(s.q, bytes(300_000), delivery_mode=2)
    opened.put(s.q, bytes(300_000))
    return _gone(opened, s.q), opened.get(s.q) is None


@case("ttl.thousand", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """A thousand messages expire, and a later one expires in time."""
    opened = _ttl(s, SOON)
    for _ in range(999):
        opened.publish("", s.q, b"x")
    opened.sync()
    opened.put(s.q, b"last")
    first = _gone(opened, s.q)
    opened.put(s.q, b"later")
    return first, _gone(opened, s.q)


@case("ttl.fanout", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """Each queue applies its own TTL to a message."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for number, time in enumerate((SOON, LONG)):
        opened.queue(s.q + str(number), arguments={"x-message-ttl": time})
        opened.call("queue.bind", queue=s.q + str(number), exchange=s.x)
    opened.put("", b"x", exchange=s.x)
    return _gone(opened, s.q + "0"), opened.ready(s.q + "1", 1)


@case("ttl.fanout-message", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """A message's expiration applies in each of its queues."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for number in range(2):
        opened.queue(s.q + str(number))
        opened.call("queue.bind", queue=s.q + str(number), exchange=s.x)
    opened.put("", b"x", exchange=s.x, expiration=str(SOON))
    return _gone(opened, s.q + "0"), _gone(opened, s.q + "1")


@case("ttl.property-kept", ok(["600000", "000600000"]))
def _(s: Session) -> list[object]:
    """The expiration property is delivered as it was sent."""
    opened = _ttl(s, LONG)
    opened.consume(s.q, no_ack=True)
    opened.publish("", s.q, b"1", expiration="600000")
    opened.publish("", s.q, b"2", expiration="000600000")
    return [opened.deliver().properties["expiration"] for _ in range(2)]


@case("ttl.transaction", ok((0, b"1")))
def _(s: Session) -> tuple[object, ...]:
    """The TTL of a message starts when its transaction is committed."""
    opened = s.queue()
    opened.consume(s.q)
    other = opened.client.channel(2)
    opened.call("tx.select")
    opened.publish("", s.q, b"1", expiration=str(SOON))
    other.lapse(2 * SOON)
    before = opened.deliveries()
    opened.call("tx.commit")
    return before, opened.deliver().body


@case("ttl.transaction-ack", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """Messages published in a transaction expire, and messages acked in it are removed."""
    opened, other = s.channel(), s.channel()
    opened.queue(s.q)
    _put(opened, s.q, (b"1", LONG))
    opened.call("tx.select")
    got = opened.call("basic.get", queue=s.q)
    opened.publish("", s.q, b"2", expiration=str(SOON))
    opened.send("basic.ack", delivery_tag=got.delivery_tag)
    opened.call("tx.commit")
    first = _gone(other, s.q)
    return first, other.drain(s.q)


@case("ttl.confirmed", ok([1, 2, 3]))
def _(s: Session) -> list[int]:
    """Messages that expire are confirmed like others."""
    opened = _ttl(s, SOON, durable=True)
    opened.call("confirm.select")
    tags = []
    for _ in range(3):
        opened.publish("", s.q, b"x", delivery_mode=2)
        tags.append(opened.receive("basic.ack", "basic.nack").delivery_tag)
    return tags


@case("ttl.redelivered-flag", ok(False))
def _(s: Session) -> bool:
    """A message that was never delivered is not marked as redelivered when others before it have expired."""
    opened = s.queue()
    _put(opened, s.q, (b"1", SOON), (b"2", None))
    _gone(opened, s.q, 1)
    return bool(opened.call("basic.get", queue=s.q, no_ack=True).redelivered)


@case("ttl.passive-consumers", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """Expiry does not affect consumers."""
    opened = _ttl(s, SOON)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    opened.put(s.q, b"1", b"2", b"3")
    opened.deliver()
    left = _gone(opened, s.q)
    return left, opened.call("queue.declare", queue=s.q, passive=True).consumer_count


@case("ttl.reply", ok(b"answer"))
def _(s: Session) -> bytes:
    """A direct reply-to reply with an expiration of 0 is delivered."""
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", s.q, b"question", reply_to="amq.rabbitmq.reply-to", expiration="0")
    server.publish("", server.deliver().properties["reply_to"], b"answer", expiration="0")
    return client.deliver().body


@case("ttl.exclusive", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """Messages of exclusive and of auto-delete queues expire."""
    opened = _ttl(s, SOON, exclusive=True)
    opened.queue(s.q + "2", auto_delete=True, arguments={"x-message-ttl": SOON})
    opened.put(s.q, b"x")
    opened.put(s.q + "2", b"x")
    return _gone(opened, s.q), _gone(opened, s.q + "2")


@case("ttl.redeclare", ok((1, 0)))
def _(s: Session) -> tuple[int, int]:
    """A queue declared again keeps its TTL and its messages."""
    opened = _ttl(s, LONG)
    opened.put(s.q, b"1")
    count = opened.call("queue.declare", queue=s.q, arguments={"x-message-ttl": LONG}).message_count
    opened.get(s.q)
    _put(opened, s.q, (b"2", SOON))
    opened.call("queue.declare", queue=s.q, arguments={"x-message-ttl": LONG})
    return count, _gone(opened, s.q)


@case("ttl.cc", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """A message with CC expires in each queue."""
    opened = _ttl(s, LONG)
    opened.queue(s.q + "2")
    opened.put(s.q, b"x", headers={"CC": [s.q + "2"]}, expiration=str(SOON))
    return _gone(opened, s.q), _gone(opened, s.q + "2")


@case("ttl.no-ack-burst", ok(100))
def _(s: Session) -> int:
    """A consumer with no_ack gets all messages before they expire."""
    opened = _ttl(s, 0)
    opened.consume(s.q, no_ack=True)
    for _ in range(100):
        opened.publish("", s.q, b"x")
    return sum(1 for _ in range(100) if opened.deliver())


@case("ttl.fill", ok((3, 0)))
def _(s: Session) -> tuple[int, int]:
    """Messages without a TTL remain while those of other queues expire."""
    opened = fill(s, s.channel())
    opened.queue(s.q + "2", arguments={"x-message-ttl": SOON})
    opened.put(s.q + "2", b"x")
    gone = _gone(opened, s.q + "2")
    return opened.ready(s.q, 3), gone
