"""Order of answers: a method's `-ok` and the asynchronous methods that it causes."""

from conformance.cases import Cases, Session, fill, ok
from conformance.wire import Channel

ROWS = Cases()
case = ROWS.case


def received(opened: Channel, count: int) -> tuple[str, ...]:
    """Return the next methods on a channel."""
    found = [opened.receive() for _ in range(count)]
    return tuple(f"{each.name} {each.fields.get('consumer_tag', '')}".strip() for each in found)


@case("order.delete-own-consumer", ok(("queue.delete-ok", "basic.cancel ct")))
def _(s: Session) -> tuple[str, ...]:
    """queue.delete-ok is sent before basic.cancel for the channel's own consumer."""
    opened = s.queue()
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q)
    return received(opened, 2)


@case("order.delete-own-durable", ok(("queue.delete-ok", "basic.cancel ct")))
def _(s: Session) -> tuple[str, ...]:
    """With a durable queue, queue.delete-ok is sent before basic.cancel for the channel's own consumer."""
    opened = s.queue(durable=True)
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q)
    return received(opened, 2)


@case("order.delete-own-exclusive", ok(("queue.delete-ok", "basic.cancel ct")))
def _(s: Session) -> tuple[str, ...]:
    """With an exclusive queue, queue.delete-ok is sent before basic.cancel for the channel's own consumer."""
    opened = s.queue(exclusive=True)
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q)
    return received(opened, 2)


@case(
    "order.delete-own-consumers",
    ok(("queue.delete-ok", "basic.cancel a", "basic.cancel b", "basic.cancel c")),
)
def _(s: Session) -> tuple[str, ...]:
    """queue.delete-ok is sent before basic.cancel for several consumers of the channel."""
    opened = s.queue()
    for tag in ("b", "a", "c"):
        opened.consume(s.q, tag)
    opened.send("queue.delete", queue=s.q)
    first, *others = received(opened, 4)
    return (first, *sorted(others))


@case("order.delete-nowait", ok(("basic.cancel ct", "channel.flow-ok")))
def _(s: Session) -> tuple[str, ...]:
    """After queue.delete with nowait, basic.cancel is sent before the answer to the next method."""
    opened = s.queue()
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q, nowait=True)
    opened.receive("basic.cancel")
    opened.send("channel.flow", active=True)
    return ("basic.cancel ct", *received(opened, 1))


@case("order.auto-delete-cancel", ok(("basic.cancel-ok ct", True)))
def _(s: Session) -> tuple[object, ...]:
    """A consumer whose cancel deletes its queue gets basic.cancel-ok and no basic.cancel."""
    opened = s.queue(auto_delete=True)
    opened.consume(s.q)
    opened.send("basic.cancel", consumer_tag="ct")
    return (*received(opened, 1), opened.quiet())


@case("order.exclusive-owner-other-channel", ok(("queue.delete-ok", "basic.cancel ct")))
def _(s: Session) -> tuple[str, ...]:
    """Another channel of its owner gets basic.cancel when an exclusive queue is deleted."""
    opened = s.queue(exclusive=True)
    other = opened.client.channel(2)
    other.consume(s.q)
    opened.send("queue.delete", queue=s.q)
    return (*received(opened, 1), *received(other, 1))


@case("order.tx-commit-returns", ok(("basic.return", "basic.return", "tx.commit-ok")))
def _(s: Session) -> tuple[str, ...]:
    """Unroutable messages of a transaction are returned before tx.commit-ok."""
    opened = s.channel()
    opened.call("tx.select")
    for body in (b"1", b"2"):
        opened.publish("", s.q, body, mandatory=True)
    opened.send("tx.commit")
    return received(opened, 3)


@case("order.tx-commit-deliveries", ok(("basic.deliver ct", "tx.commit-ok")))
def _(s: Session) -> tuple[str, ...]:
    """Messages of a transaction are delivered to the channel's own consumer before tx.commit-ok."""
    opened = s.queue()
    opened.consume(s.q, no_ack=True)
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.send("tx.commit")
    return received(opened, 2)


@case("order.purge-limited", ok(("queue.purge-ok", 2)))
def _(s: Session) -> tuple[object, ...]:
    """queue.purge-ok counts only messages within the limit."""
    opened = s.queue(arguments={"x-max-length": 2})
    opened.put(s.q, b"1", b"2", b"3", b"4")
    purged = opened.call("queue.purge", queue=s.q)
    return purged.name, purged.message_count


@case("order.purge-dead-letters", ok((1, [b"1"])))
def _(s: Session) -> tuple[object, ...]:
    """Messages rejected before a purge are dead-lettered, purged messages are not."""
    opened = s.channel()
    opened.queue(f"{s.q}-dead")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{s.q}-dead"})
    opened.put(s.q, b"1", b"2")
    tag = opened.call("basic.get", queue=s.q).delivery_tag
    opened.send("basic.reject", delivery_tag=tag, requeue=False)
    purged = opened.call("queue.purge", queue=s.q).message_count
    opened.ready(f"{s.q}-dead", 1)
    return purged, [opened.get(f"{s.q}-dead") for _ in range(opened.ready(f"{s.q}-dead", 1))]


@case("order.delete-dead-letters", ok((1, [b"1", b"2", b"3"])))
def _(s: Session) -> tuple[object, ...]:
    """Messages rejected before queue.delete are dead-lettered in order, ready messages are not."""
    opened = s.channel()
    dead = opened.queue(f"{s.q}-dead")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    opened.put(s.q, b"1", b"2", b"3", b"4")
    for _ in range(3):
        tag = opened.call("basic.get", queue=s.q).delivery_tag
    opened.send("basic.nack", delivery_tag=tag, multiple=True, requeue=False)
    count = opened.call("queue.delete", queue=s.q).message_count
    return count, [opened.get(dead) for _ in range(opened.ready(dead, 3))]


@case("order.auto-delete-dead-letters", ok([b"1", b"2", b"3"]))
def _(s: Session) -> list[bytes | None]:
    """Messages rejected by the last consumer of an auto-delete queue are dead-lettered in order."""
    opened = s.channel()
    dead = opened.queue(f"{s.q}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    opened.queue(s.q, auto_delete=True, arguments=arguments)
    opened.put(s.q, b"1", b"2", b"3")
    opened.consume(s.q)
    for _ in range(3):
        tag = opened.deliver().delivery_tag
    opened.send("basic.nack", delivery_tag=tag, multiple=True, requeue=False)
    opened.call("basic.cancel", consumer_tag="ct")
    return [opened.get(dead) for _ in range(opened.ready(dead, 3))]


@case("order.delete-unacked", ok((0, 0)))
def _(s: Session) -> tuple[int, int]:
    """A message rejected after its queue is deleted is not dead-lettered."""
    opened = s.channel()
    dead = opened.queue(f"{s.q}-dead")
    fill_arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    opened.queue(s.q, arguments=fill_arguments)
    opened.put(s.q, b"1")
    tag = opened.call("basic.get", queue=s.q).delivery_tag
    count = opened.call("queue.delete", queue=s.q).message_count
    opened.send("basic.reject", delivery_tag=tag, requeue=False)
    opened.sync()
    return count, opened.ready(dead, 0)


@case("order.tx-commit-limit", ok((3, b"18", 17)))
def _(s: Session) -> tuple[object, ...]:
    """A commit that exceeds x-max-length drops and dead-letters the oldest messages."""
    opened = s.channel()
    dead = opened.queue(f"{s.q}-dead")
    arguments = {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    opened.queue(s.q, arguments=arguments)
    opened.call("tx.select")
    for number in range(1, 21):
        opened.publish("", s.q, str(number).encode())
    opened.call("tx.commit")
    count = opened.ready(s.q, 3)
    return count, opened.get(s.q), opened.ready(dead, 17)


@case("order.tx-global-prefetch", ok((2, True, 1)))
def _(s: Session) -> tuple[object, ...]:
    """Acks in a transaction make room in a global prefetch when they are committed."""
    opened = fill(s, s.channel(), 4)
    opened.call("tx.select")
    opened.call("basic.qos", prefetch_count=2, global_=True)
    opened.consume(s.q)
    tags = [opened.deliver().delivery_tag for _ in range(2)]
    opened.send("basic.ack", delivery_tag=tags[0])
    opened.call("basic.qos", prefetch_count=2, global_=True)
    waits = opened.quiet("basic.deliver")
    opened.call("tx.commit")
    return len(tags), waits, opened.deliveries()
