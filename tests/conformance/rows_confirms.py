"""Rows 99-103: publisher confirms and transactions."""

from conformance.cases import Cases, Session, channel, fill, ok
from conformance.codec import METHOD, encode_method, frame

ROWS = Cases()
case = ROWS.case


@case("99", channel(406, "tx.select", "cannot switch from confirm to tx mode"))
def _(s: Session) -> None:
    """tx.select on a channel in confirm mode."""
    opened = s.channel()
    opened.call("confirm.select")
    opened.call("tx.select")


@case("100", channel(406, "confirm.select", "cannot switch from tx to confirm mode"))
def _(s: Session) -> None:
    """confirm.select on a transactional channel."""
    opened = s.channel()
    opened.call("tx.select")
    opened.call("confirm.select")


@case("101a", channel(406, "tx.commit", "channel is not transactional"))
def _(s: Session) -> None:
    """tx.commit without tx.select."""
    s.channel().call("tx.commit")


@case("101b", channel(406, "tx.rollback", "channel is not transactional"))
def _(s: Session) -> None:
    """tx.rollback without tx.select."""
    s.channel().call("tx.rollback")


@case("102", ok())
def _(s: Session) -> None:
    """A method while a commit waits for the disk."""
    opened = s.queue(durable=True)
    opened.call("tx.select")
    opened.publish("", s.q, bytes(10000), delivery_mode=2)
    opened.client.raw(
        frame(METHOD, 1, encode_method("tx.commit"))
        + frame(METHOD, 1, encode_method("queue.declare", queue=s.q, durable=True))
    )
    opened.receive("queue.declare-ok")


@case("103", channel(406, "tx.commit", "partial tx completion"))
def _(s: Session) -> None:
    """A commit with a message that a full queue rejects."""
    opened = s.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    opened.call("tx.commit")


@case("confirm.numbering", ok([1, 2, 3, 4, 5]))
def _(s: Session) -> list[int]:
    """Publishes are numbered from 1, and each is confirmed exactly once."""
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


@case("confirm.select-twice", ok([1, 2]))
def _(s: Session) -> list[int]:
    """A second confirm.select does not reset the numbering."""
    opened = s.queue()
    tags = []
    for _ in range(2):
        opened.call("confirm.select")
        opened.publish("", s.q, b"x")
        tags.append(int(opened.receive("basic.ack").delivery_tag))
    return tags


@case("confirm.nowait", ok(("basic.ack", 1)))
def _(s: Session) -> tuple[str, int]:
    """confirm.select with nowait works and is not answered."""
    opened = s.queue()
    opened.send("confirm.select", nowait=True)
    opened.publish("", s.q, b"x")
    got = opened.receive()
    return got.name, got.delivery_tag


@case("confirm.persistent", ok(1))
def _(s: Session) -> int:
    """A persistent message to a durable queue is confirmed."""
    opened = s.queue(durable=True)
    opened.call("confirm.select")
    opened.publish("", s.q, b"x", delivery_mode=2)
    return int(opened.receive("basic.ack").delivery_tag)


@case("confirm.fanout", ok((1, True)))
def _(s: Session) -> tuple[int, bool]:
    """A message to several queues is confirmed once."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for number in range(3):
        opened.queue(s.q + str(number))
        opened.call("queue.bind", queue=s.q + str(number), exchange=s.x)
    opened.call("confirm.select")
    opened.publish(s.x, "", b"x")
    return opened.receive("basic.ack").delivery_tag, opened.quiet()


@case("confirm.deleted-queue", ok({"basic.ack", "queue.delete-ok"}))
def _(s: Session) -> set[str]:
    """A message whose queue is deleted before the confirm is confirmed."""
    opened = s.queue(durable=True)
    opened.call("confirm.select")
    opened.publish("", s.q, b"x", delivery_mode=2)
    opened.send("queue.delete", queue=s.q)
    return {opened.receive().name, opened.receive().name}


@case("confirm.per-channel", ok((1, 1)))
def _(s: Session) -> tuple[int, int]:
    """Each channel has its own numbering."""
    one = s.channel()
    one.queue(s.q)
    two = one.client.channel(2)
    one.call("confirm.select")
    two.call("confirm.select")
    one.publish("", s.q, b"x")
    two.publish("", s.q, b"x")
    return one.receive("basic.ack").delivery_tag, two.receive("basic.ack").delivery_tag


@case("confirm.nack-overflow", ok(("basic.ack", "basic.nack")))
def _(s: Session) -> tuple[str, str]:
    """Publishes that a full queue rejects are nacked."""
    opened = s.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    opened.call("confirm.select")
    opened.publish("", s.q, b"1")
    first = opened.receive().name
    opened.publish("", s.q, b"2")
    return first, opened.receive().name


@case("tx.commit", ok((0, 2)))
def _(s: Session) -> tuple[int, int]:
    """Publishes of a transaction are routed when it is committed."""
    opened = s.queue()
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    before = opened.drain(s.q)
    opened.call("tx.commit")
    return before, opened.drain(s.q)


@case("tx.rollback", ok(0))
def _(s: Session) -> int:
    """Publishes of a transaction are discarded when it is rolled back."""
    opened = s.queue()
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.call("tx.rollback")
    opened.call("tx.commit")
    return opened.drain(s.q)


@case("tx.ack-commit", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """Acks of a transaction take effect when it is committed."""
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


@case("tx.ack-rollback", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """A rollback discards acks: the messages remain unacked, and can be acked again."""
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


@case("tx.close", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """Closing a channel rolls back its open transaction."""
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


@case("tx.mandatory", ok(("basic.return", "tx.commit-ok")))
def _(s: Session) -> tuple[str, str]:
    """An unroutable mandatory message of a transaction is returned before tx.commit-ok."""
    opened = s.channel()
    opened.call("tx.select")
    opened.publish("amq.direct", "nowhere", b"x", mandatory=True)
    opened.send("tx.commit")
    return opened.receive().name, opened.receive().name


@case("tx.unknown-exchange", channel(404, "basic.publish", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """A publish to a missing exchange fails at once in a transaction too."""
    opened = s.channel()
    opened.call("tx.select")
    opened.publish(s.x, "k", b"x")
    opened.sync()


@case("tx.ack-unknown", channel(406, "basic.ack", "unknown delivery tag 9"))
def _(s: Session) -> None:
    """An unknown delivery tag fails at once in a transaction too."""
    opened = s.channel()
    opened.call("tx.select")
    opened.send("basic.ack", delivery_tag=9)
    opened.sync()


@case("tx.select-twice", ok("tx.select-ok"))
def _(s: Session) -> str:
    """A second tx.select is answered too."""
    opened = s.channel()
    opened.call("tx.select")
    return opened.call("tx.select").name


@case("tx.requeue", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """A requeue in a transaction takes effect when it is committed."""
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


@case("tx.order", ok((b"2", b"3", None)))
def _(s: Session) -> tuple[bytes | None, ...]:
    """Publishes and acks of one transaction take effect together, in order."""
    opened = s.queue()
    opened.publish("", s.q, b"1")
    opened.call("tx.select")
    got = opened.call("basic.get", queue=s.q)
    opened.publish("", s.q, b"2")
    opened.send("basic.ack", delivery_tag=got.delivery_tag)
    opened.publish("", s.q, b"3")
    opened.call("tx.commit")
    return opened.get(s.q), opened.get(s.q), opened.get(s.q)


@case("tx.queue-gone", ok(("PRECONDITION_FAILED - partial tx completion", 0, 1)))
def _(s: Session) -> tuple[str, int, int]:
    """A commit for a queue that was deleted and declared again fails, after all else was done."""
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


@case("tx.ack-multiple", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """An ack with multiple in a transaction settles all deliveries up to its tag."""
    plain, opened = fill(s, s.channel()), s.channel()
    opened.call("tx.select")
    for _ in range(3):
        opened.call("basic.get", queue=s.q)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.call("tx.commit")
    before = plain.drain(s.q)
    opened.call("channel.close", reply_code=200)
    return before, plain.ready(s.q, 1)


@case("tx.ack-twice", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    """Acking a tag twice in one transaction."""
    opened = fill(s, s.channel())
    opened.call("tx.select")
    opened.call("basic.get", queue=s.q)
    opened.send("basic.ack", delivery_tag=1)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("tx.rollback-then-ack", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """After a rollback the same tag can be acked and committed."""
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


@case("tx.empty", ok(("tx.commit-ok", "tx.rollback-ok")))
def _(s: Session) -> tuple[str, str]:
    """An empty transaction can be committed and rolled back."""
    opened = s.channel()
    opened.call("tx.select")
    return opened.call("tx.commit").name, opened.call("tx.rollback").name


@case("confirm.error-uncounted", ok(["basic.ack", "channel.close"]))
def _(s: Session) -> list[str]:
    """A publish that causes a channel error does not affect the confirms of earlier ones."""
    opened = s.queue()
    opened.call("confirm.select")
    opened.publish("", s.q, b"x")
    first = opened.receive().name
    opened.publish("nosuch-exchange", "k", b"x")
    return [first, opened.receive("channel.close", "basic.ack").name]


@case("confirm.consumed", ok({"basic.ack", "basic.deliver"}))
def _(s: Session) -> set[str]:
    """A message that is delivered to a consumer at once is confirmed."""
    opened = s.queue()
    opened.consume(s.q)
    opened.call("confirm.select")
    opened.publish("", s.q, b"x")
    return {opened.receive().name, opened.receive().name}


@case("confirm.reply", ok(("basic.ack", b"answer")))
def _(s: Session) -> tuple[str, bytes]:
    """A direct reply-to reply is confirmed."""
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", s.q, b"question", reply_to="amq.rabbitmq.reply-to")
    name = server.deliver().properties["reply_to"]
    server.call("confirm.select")
    server.publish("", name, b"answer")
    return server.receive("basic.ack").name, client.deliver().body
