"""Rows 99-103: publisher confirms and transactions."""

from conformance.cases import Cases, Session, channel, fill, ok
from conformance.codec import METHOD, encode_method, frame

ROWS = Cases()
case = ROWS.case


@case(
    "99",
    "tx.select on a channel in confirm mode",
    channel(406, "tx.select", "cannot switch from confirm to tx mode"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("confirm.select")
    opened.call("tx.select")


@case(
    "100",
    "confirm.select on a transactional channel",
    channel(406, "confirm.select", "cannot switch from tx to confirm mode"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("tx.select")
    opened.call("confirm.select")


@case("101a", "tx.commit without tx.select", channel(406, "tx.commit", "channel is not transactional"))
def _(s: Session) -> None:
    s.channel().call("tx.commit")


@case("101b", "tx.rollback without tx.select", channel(406, "tx.rollback", "channel is not transactional"))
def _(s: Session) -> None:
    s.channel().call("tx.rollback")


@case("102", "a method while a commit waits for the disk", ok())
def _(s: Session) -> None:
    opened = s.queue(durable=True)
    opened.call("tx.select")
    opened.publish("", s.q, bytes(10000), delivery_mode=2)
    opened.client.raw(
        frame(METHOD, 1, encode_method("tx.commit"))
        + frame(METHOD, 1, encode_method("queue.declare", queue=s.q, durable=True))
    )
    opened.receive("queue.declare-ok")


@case(
    "103",
    "a commit with a message that a full queue rejects",
    channel(406, "tx.commit", "partial tx completion"),
)
def _(s: Session) -> None:
    opened = s.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    opened.call("tx.commit")


@case(
    "confirm.numbering",
    "publishes are numbered from 1, and each is confirmed exactly once",
    ok([1, 2, 3, 4, 5]),
)
def _(s: Session) -> list[int]:
    opened = s.queue()
    opened.publish("", s.q, b"before")
    opened.call("confirm.select")
    for number in range(5):
        opened.publish("", s.q if number % 2 else "nosuch-queue", b"x")
    covered: list[int] = []
    while len(covered) < 5:
        ack = opened.receive("basic.ack")
        first = min(set(range(1, 6)) - set(covered)) if ack.multiple else ack.delivery_tag
        covered += [n for n in range(first, ack.delivery_tag + 1) if n not in covered]
    return sorted(covered)


@case("confirm.select-twice", "a second confirm.select does not reset the numbering", ok([1, 2]))
def _(s: Session) -> list[int]:
    opened = s.queue()
    tags = []
    for _ in range(2):
        opened.call("confirm.select")
        opened.publish("", s.q, b"x")
        tags.append(int(opened.receive("basic.ack").delivery_tag))
    return tags


@case("confirm.nowait", "confirm.select with nowait works and is not answered", ok(("basic.ack", 1)))
def _(s: Session) -> tuple[str, int]:
    opened = s.queue()
    opened.send("confirm.select", nowait=True)
    opened.publish("", s.q, b"x")
    got = opened.receive()
    return got.name, got.delivery_tag


@case("confirm.persistent", "a persistent message to a durable queue is confirmed", ok(1))
def _(s: Session) -> int:
    opened = s.queue(durable=True)
    opened.call("confirm.select")
    opened.publish("", s.q, b"x", delivery_mode=2)
    return int(opened.receive("basic.ack").delivery_tag)


@case("confirm.fanout", "a message to several queues is confirmed once", ok((1, True)))
def _(s: Session) -> tuple[int, bool]:
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for number in range(3):
        opened.queue(s.q + str(number))
        opened.call("queue.bind", queue=s.q + str(number), exchange=s.x)
    opened.call("confirm.select")
    opened.publish(s.x, "", b"x")
    return opened.receive("basic.ack").delivery_tag, opened.quiet()


@case(
    "confirm.deleted-queue",
    "a message whose queue is deleted before the confirm is confirmed",
    ok({"basic.ack", "queue.delete-ok"}),
)
def _(s: Session) -> set[str]:
    opened = s.queue(durable=True)
    opened.call("confirm.select")
    opened.publish("", s.q, b"x", delivery_mode=2)
    opened.send("queue.delete", queue=s.q)
    return {opened.receive().name, opened.receive().name}


@case("confirm.per-channel", "each channel has its own numbering", ok((1, 1)))
def _(s: Session) -> tuple[int, int]:
    one = s.channel()
    one.queue(s.q)
    two = one.client.channel(2)
    one.call("confirm.select")
    two.call("confirm.select")
    one.publish("", s.q, b"x")
    two.publish("", s.q, b"x")
    return one.receive("basic.ack").delivery_tag, two.receive("basic.ack").delivery_tag


@case(
    "confirm.nack-overflow", "publishes that a full queue rejects are nacked", ok(("basic.ack", "basic.nack"))
)
def _(s: Session) -> tuple[str, str]:
    opened = s.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    opened.call("confirm.select")
    opened.publish("", s.q, b"1")
    first = opened.receive().name
    opened.publish("", s.q, b"2")
    return first, opened.receive().name


@case("tx.commit", "publishes of a transaction are routed when it is committed", ok((0, 2)))
def _(s: Session) -> tuple[int, int]:
    opened = s.queue()
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    before = opened.drain(s.q)
    opened.call("tx.commit")
    return before, opened.drain(s.q)


@case("tx.rollback", "publishes of a transaction are discarded when it is rolled back", ok(0))
def _(s: Session) -> int:
    opened = s.queue()
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.call("tx.rollback")
    opened.call("tx.commit")
    return opened.drain(s.q)


@case("tx.ack-commit", "acks of a transaction take effect when it is committed", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    plain, opened = s.channel(), s.channel()
    plain.queue(s.q)
    plain.publish("", s.q, b"1")
    plain.ready(s.q, 1)
    opened.call("tx.select")
    tag = opened.call("basic.get", queue=s.q).delivery_tag
    opened.send("basic.ack", delivery_tag=tag)
    before = plain.drain(s.q)
    opened.call("tx.commit")
    opened.call("channel.close", reply_code=200)
    return before, plain.drain(s.q)


@case(
    "tx.ack-rollback",
    "a rollback discards acks: the messages remain unacked, and can be acked again",
    ok((0, 1)),
)
def _(s: Session) -> tuple[int, int]:
    plain, opened = s.channel(), s.channel()
    plain.queue(s.q)
    plain.publish("", s.q, b"1")
    plain.ready(s.q, 1)
    opened.call("tx.select")
    tag = opened.call("basic.get", queue=s.q).delivery_tag
    opened.send("basic.ack", delivery_tag=tag)
    opened.call("tx.rollback")
    before = plain.drain(s.q)
    opened.call("channel.close", reply_code=200)
    return before, plain.ready(s.q, 1)


@case("tx.close", "closing a channel rolls back its open transaction", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    plain, opened = s.channel(), s.channel()
    plain.queue(s.q)
    plain.queue(s.q + "2")
    plain.publish("", s.q + "2", b"1")
    plain.ready(s.q + "2", 1)
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.send("basic.ack", delivery_tag=opened.call("basic.get", queue=s.q + "2").delivery_tag)
    opened.call("channel.close", reply_code=200)
    return plain.drain(s.q), plain.ready(s.q + "2", 1)


@case(
    "tx.mandatory",
    "an unroutable mandatory message of a transaction is returned before tx.commit-ok",
    ok(("basic.return", "tx.commit-ok")),
)
def _(s: Session) -> tuple[str, str]:
    opened = s.channel()
    opened.call("tx.select")
    opened.publish("amq.direct", "nowhere", b"x", mandatory=True)
    opened.send("tx.commit")
    return opened.receive().name, opened.receive().name


@case(
    "tx.unknown-exchange",
    "a publish to a missing exchange fails at once in a transaction too",
    channel(404, "basic.publish", "no exchange '{x}' in vhost '/'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("tx.select")
    opened.publish(s.x, "k", b"x")
    opened.sync()


@case(
    "tx.ack-unknown",
    "an unknown delivery tag fails at once in a transaction too",
    channel(406, "basic.ack", "unknown delivery tag 9"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("tx.select")
    opened.send("basic.ack", delivery_tag=9)
    opened.sync()


@case("tx.select-twice", "a second tx.select is answered too", ok("tx.select-ok"))
def _(s: Session) -> str:
    opened = s.channel()
    opened.call("tx.select")
    return opened.call("tx.select").name


@case("tx.requeue", "a requeue in a transaction takes effect when it is committed", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    plain, opened = s.channel(), s.channel()
    plain.queue(s.q)
    plain.publish("", s.q, b"1")
    plain.ready(s.q, 1)
    opened.call("tx.select")
    tag = opened.call("basic.get", queue=s.q).delivery_tag
    opened.send("basic.nack", delivery_tag=tag, requeue=True)
    opened.sync()
    before = plain.drain(s.q)
    opened.call("tx.commit")
    return before, plain.ready(s.q, 1)


@case(
    "tx.order", "publishes and acks of one transaction take effect together, in order", ok((b"2", b"3", None))
)
def _(s: Session) -> tuple[bytes | None, ...]:
    opened = s.queue()
    opened.publish("", s.q, b"1")
    opened.call("tx.select")
    got = opened.call("basic.get", queue=s.q)
    opened.publish("", s.q, b"2")
    opened.send("basic.ack", delivery_tag=got.delivery_tag)
    opened.publish("", s.q, b"3")
    opened.call("tx.commit")
    return opened.get(s.q), opened.get(s.q), opened.get(s.q)


@case(
    "tx.queue-gone",
    "a commit for a queue that was deleted and declared again fails, after all else was done",
    ok(("PRECONDITION_FAILED - partial tx completion", 0, 1)),
)
def _(s: Session) -> tuple[str, int, int]:
    opened, other = s.channel(), s.channel()
    for name in (s.q, s.q + "-other"):
        opened.queue(name)
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q + "-other", b"2")
    opened.call("basic.qos", prefetch_count=1)  # so that all is published
    other.call("queue.delete", queue=s.q)
    other.queue(s.q)
    opened.send("tx.commit")
    answer = opened.receive("tx.commit-ok", "channel.close")
    text = str(answer.reply_text) if answer.name == "channel.close" else ""
    return text, other.ready(s.q, 0 if text else 1), other.ready(s.q + "-other", 1)


@case(
    "tx.ack-multiple",
    "an ack with multiple in a transaction settles all deliveries up to its tag",
    ok((0, 1)),
)
def _(s: Session) -> tuple[int, int]:
    plain, opened = fill(s, s.channel()), s.channel()
    opened.call("tx.select")
    for _ in range(3):
        opened.call("basic.get", queue=s.q)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.call("tx.commit")
    before = plain.drain(s.q)
    opened.call("channel.close", reply_code=200)
    return before, plain.ready(s.q, 1)


@case(
    "tx.ack-twice",
    "acking a tag twice in one transaction",
    channel(406, "basic.ack", "unknown delivery tag 1"),
)
def _(s: Session) -> None:
    opened = fill(s, s.channel())
    opened.call("tx.select")
    opened.call("basic.get", queue=s.q)
    opened.send("basic.ack", delivery_tag=1)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("tx.rollback-then-ack", "after a rollback the same tag can be acked and committed", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    plain, opened = fill(s, s.channel(), 1), s.channel()
    opened.call("tx.select")
    opened.call("basic.get", queue=s.q)
    opened.send("basic.ack", delivery_tag=1)
    opened.call("tx.rollback")
    opened.send("basic.ack", delivery_tag=1)
    opened.call("tx.commit")
    before = plain.drain(s.q)
    opened.call("channel.close", reply_code=200)
    return before, plain.drain(s.q)


@case(
    "tx.empty",
    "an empty transaction can be committed and rolled back",
    ok(("tx.commit-ok", "tx.rollback-ok")),
)
def _(s: Session) -> tuple[str, str]:
    opened = s.channel()
    opened.call("tx.select")
    return opened.call("tx.commit").name, opened.call("tx.rollback").name


@case(
    "confirm.error-uncounted",
    "a publish that causes a channel error does not affect the confirms of earlier ones",
    ok(["basic.ack", "channel.close"]),
)
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.call("confirm.select")
    opened.publish("", s.q, b"x")
    first = opened.receive().name
    opened.publish("nosuch-exchange", "k", b"x")
    return [first, opened.receive("channel.close", "basic.ack").name]


@case(
    "confirm.consumed",
    "a message that is delivered to a consumer at once is confirmed",
    ok({"basic.ack", "basic.deliver"}),
)
def _(s: Session) -> set[str]:
    opened = s.queue()
    opened.consume(s.q)
    opened.call("confirm.select")
    opened.publish("", s.q, b"x")
    return {opened.receive().name, opened.receive().name}


@case("confirm.reply", "a direct reply-to reply is confirmed", ok(("basic.ack", b"answer")))
def _(s: Session) -> tuple[str, bytes]:
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", s.q, b"question", reply_to="amq.rabbitmq.reply-to")
    name = server.deliver().properties["reply_to"]
    server.call("confirm.select")
    server.publish("", name, b"answer")
    return server.receive("basic.ack").name, client.deliver().body
