"""Cases of queues with priorities."""

from typing import Any

from conformance.cases import Cases, Session, channel, ok
from conformance.wire import Channel

ROWS = Cases()
case = ROWS.case


def declare(s: Session, highest: int = 10, **arguments: Any) -> Channel:
    """The case's queue with that many priorities, on a new channel."""
    opened = s.channel()
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    opened.queue(s.q, arguments={"x-max-priority": highest, **named})
    return opened


def put(s: Session, opened: Channel, *messages: tuple[str, int | None], **properties: Any) -> None:
    """Publish bodies with their priorities, in this order, and wait until they are ready."""
    before = int(opened.call("queue.declare", queue=s.q, passive=True).message_count)
    for body, priority in messages:
        given = {} if priority is None else {"priority": priority}
        opened.publish("", s.q, body.encode(), **given, **properties)
    opened.ready(s.q, before + len(messages))


def take(s: Session, opened: Channel, count: int = 99, *, no_ack: bool = True) -> list[str]:
    """The bodies of the next messages, those redelivered with a star."""
    bodies = []
    for _ in range(count):
        got = opened.call("basic.get", queue=s.q, no_ack=no_ack)
        if got.name != "basic.get-ok":
            break
        bodies.append(got.body.decode() + "*" * got.redelivered)
    return bodies


def delivered(opened: Channel, count: int) -> list[str]:
    """The bodies of the next deliveries."""
    found = [opened.deliver() for _ in range(count)]
    return [each.body.decode() + "*" * each.redelivered for each in found]


@case("priorities.order", ok(["c", "b", "e", "a", "d"]))
def _(s: Session) -> list[str]:
    """Messages of the highest priority come first, and the oldest within a priority."""
    opened = declare(s)
    put(s, opened, ("a", 1), ("b", 5), ("c", 10), ("d", 1), ("e", 5))
    return take(s, opened)


@case("priorities.none", ok(["d", "a", "b", "c"]))
def _(s: Session) -> list[str]:
    """A message without a priority has priority 0."""
    opened = declare(s)
    put(s, opened, ("a", None), ("b", 0), ("c", None), ("d", 1))
    return take(s, opened)


@case("priorities.clamp", ok(["b", "c", "d", "a"]))
def _(s: Session) -> list[str]:
    """A priority above the queue's maximum counts as the maximum."""
    opened = declare(s, 5)
    put(s, opened, ("a", 4), ("b", 5), ("c", 255), ("d", 6))
    return take(s, opened)


@case("priorities.property-kept", ok([200, None]))
def _(s: Session) -> list[int | None]:
    """The priority property is delivered as it was sent."""
    opened = declare(s, 5)
    put(s, opened, ("a", 200), ("b", None))
    got = [opened.call("basic.get", queue=s.q, no_ack=True) for _ in range(2)]
    return [each.properties.get("priority") for each in got]


@case("priorities.zero", ok(["a", "b", "c"]))
def _(s: Session) -> list[str]:
    """A queue with x-max-priority 0 ignores priorities."""
    opened = declare(s, 0)
    put(s, opened, ("a", 1), ("b", 5), ("c", 0))
    return take(s, opened)


@case("priorities.plain", ok(["a", "b", "c"]))
def _(s: Session) -> list[str]:
    """A queue without x-max-priority ignores priorities."""
    opened = s.queue()
    put(s, opened, ("a", 1), ("b", 5), ("c", 0))
    return take(s, opened)


@case("priorities.most", ok(["254", "253", "128", "1", "0"]))
def _(s: Session) -> list[str]:
    """x-max-priority may be 255, which makes 256 priorities."""
    opened = declare(s, 255)
    put(s, opened, *((str(number), number) for number in (0, 128, 254, 1, 253)))
    return take(s, opened)


@case("priorities.other-properties", ok(["b", "d", "c", "a"]))
def _(s: Session) -> list[str]:
    """The priority is found after other properties."""
    opened = declare(s)
    rest = {"content_type": "text/plain", "content_encoding": "utf-8", "headers": {"a": "b" * 300}}
    put(s, opened, ("a", 1), ("b", 9), delivery_mode=2, **rest)
    put(s, opened, ("c", 4), ("d", 8), headers={}, correlation_id="x", app_id="y")
    return take(s, opened)


@case("priorities.later", ok([["b"], ["c", "a"]]))
def _(s: Session) -> list[list[str]]:
    """A later message of a higher priority comes first."""
    opened = declare(s)
    put(s, opened, ("a", 1), ("b", 2))
    first = take(s, opened, 1)
    put(s, opened, ("c", 3))
    return [first, take(s, opened)]


@case("priorities.long", ok(["b", "a"]))
def _(s: Session) -> list[str]:
    """Messages with bodies of several frames are ordered too."""
    opened = declare(s)
    put(s, opened, ("a" * 300_000, 1), ("b" * 300_000, 2))
    return [body[0] for body in take(s, opened)]


@case("priorities.durable", ok(["b", "d", "a", "c"]))
def _(s: Session) -> list[str]:
    """Persistent messages in a durable queue are ordered by priority too."""
    opened = s.queue(durable=True, arguments={"x-max-priority": 3})
    put(s, opened, ("a", 1), ("b", 3), delivery_mode=2)
    put(s, opened, ("c", 1), ("d", 3))
    bodies = take(s, opened)
    opened.call("queue.delete", queue=s.q)
    return bodies


@case("priorities.lazy", ok(["c", "a", "b"]))
def _(s: Session) -> list[str]:
    """A lazy queue supports priorities."""
    opened = declare(s, x_queue_mode="lazy")
    put(s, opened, ("a", 1), ("b", 1), ("c", 2))
    return take(s, opened)


@case("priorities.fanout", ok([["b", "a"], ["a", "b"]]))
def _(s: Session) -> list[list[str]]:
    """A message is ordered by priority in one queue and by age in another."""
    opened = declare(s)
    plain = opened.queue(exclusive=True)
    for name in (s.q, plain):
        opened.call("queue.bind", queue=name, exchange="amq.fanout", routing_key="")
    opened.publish("amq.fanout", "", b"a", priority=1)
    opened.publish("amq.fanout", "", b"b", priority=2)
    opened.ready(s.q, 2)
    opened.ready(plain, 2)
    first = take(s, opened)
    return [first, [str(opened.get(plain), "ascii") for _ in range(2)]]


@case("priorities.transaction", ok(["b", "c", "a"]))
def _(s: Session) -> list[str]:
    """Messages of a transaction are ordered."""
    opened = declare(s)
    other = opened.client.channel(2)
    other.call("tx.select")
    for body, priority in ((b"a", 0), (b"b", 7), (b"c", 3)):
        other.publish("", s.q, body, priority=priority)
    other.call("tx.commit")
    opened.ready(s.q, 3)
    return take(s, opened)


@case("priorities.counts", ok((3, 1, 2, 2)))
def _(s: Session) -> tuple[int, int, int, int]:
    """Message counts include all priorities."""
    opened = declare(s)
    put(s, opened, ("a", 1), ("b", 2), ("c", 3))
    before = opened.ready(s.q, 3)
    take(s, opened, 2, no_ack=False)
    left = opened.ready(s.q, 1)
    opened.send("basic.nack", delivery_tag=2, multiple=False, requeue=True)
    again = opened.ready(s.q, 2)
    return before, left, again, int(opened.call("queue.delete", queue=s.q).message_count)


@case("priorities.purge", ok((2, ["c*"])))
def _(s: Session) -> tuple[int, list[str]]:
    """A purge removes messages of every priority, but not unacked ones."""
    opened = declare(s)
    put(s, opened, ("a", 1), ("b", 2), ("c", 3))
    take(s, opened, 1, no_ack=False)
    purged = int(opened.call("queue.purge", queue=s.q).message_count)
    opened.send("basic.reject", delivery_tag=1, requeue=True)
    opened.ready(s.q, 1)
    return purged, take(s, opened)


@case("priorities.requeue", ok(["d", "a*", "b", "c"]))
def _(s: Session) -> list[str]:
    """A requeued message returns to its old position within its priority."""
    opened = declare(s)
    put(s, opened, ("a", 2), ("b", 2))
    take(s, opened, 1, no_ack=False)
    put(s, opened, ("c", 1), ("d", 3))
    opened.send("basic.reject", delivery_tag=1, requeue=True)
    opened.ready(s.q, 4)
    return take(s, opened)


@case("priorities.requeue-all", ok(["e", "d*", "b*", "a*", "c"]))
def _(s: Session) -> list[str]:
    """Messages requeued together are ordered by priority, before messages of equal priority that were not delivered."""
    opened = declare(s)
    put(s, opened, ("a", 1), ("b", 2), ("c", 1), ("d", 3))
    take(s, opened, 3, no_ack=False)
    put(s, opened, ("e", 9))
    opened.send("basic.nack", delivery_tag=3, multiple=True, requeue=True)
    opened.ready(s.q, 5)
    return take(s, opened)


@case("priorities.close", ok(["b*", "a", "c"]))
def _(s: Session) -> list[str]:
    """Messages of a closed channel return to their old positions."""
    opened = declare(s)
    put(s, opened, ("a", 1), ("b", 2), ("c", 1), ("d", 2))
    other = opened.client.channel(2)
    take(s, other, 2, no_ack=False)
    other.send("basic.ack", delivery_tag=2)
    other.call("channel.close", reply_code=200)
    opened.ready(s.q, 3)
    return take(s, opened)


@case("priorities.recover", ok(["c*", "b*", "a*"]))
def _(s: Session) -> list[str]:
    """Recovered messages are delivered in the order of their priorities."""
    opened = declare(s)
    opened.consume(s.q)
    for body, priority in ((b"a", 1), (b"b", 2), (b"c", 3)):
        opened.publish("", s.q, body, priority=priority)
    delivered(opened, 3)
    opened.call("basic.recover", requeue=True)
    return delivered(opened, 3)


@case("priorities.idle", ok(["a", "b", "c"]))
def _(s: Session) -> list[str]:
    """An idle consumer gets messages in the order of their arrival."""
    opened = declare(s)
    opened.consume(s.q)
    for body, priority in ((b"a", 1), (b"b", 2), (b"c", 3)):
        opened.publish("", s.q, body, priority=priority)
    return delivered(opened, 3)


@case("priorities.backlog", ok(["c", "b", "d", "a"]))
def _(s: Session) -> list[str]:
    """A new consumer gets the backlog by priority."""
    opened = declare(s)
    put(s, opened, ("a", 1), ("b", 2), ("c", 3), ("d", 2))
    opened.consume(s.q, no_ack=True)
    return delivered(opened, 4)


@case("priorities.prefetch", ok(["a", "d", "c", "b"]))
def _(s: Session) -> list[str]:
    """With a prefetch of 1, the message of the highest priority that is ready follows each ack."""
    opened = declare(s)
    opened.call("basic.qos", prefetch_count=1)
    put(s, opened, ("a", 1))
    opened.consume(s.q)
    bodies = delivered(opened, 1)
    put(s, opened, ("b", 1), ("c", 5), ("d", 9))
    for tag in (1, 2, 3):
        opened.send("basic.ack", delivery_tag=tag)
        bodies += delivered(opened, 1)
    return bodies


@case("priorities.two-consumers", ok(["f", "e", "d", "c", "b", "a"]))
def _(s: Session) -> list[str]:
    """Several consumers get the backlog by priority."""
    opened = declare(s)
    put(s, opened, *((body, number) for number, body in enumerate("abcdef")))
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "1")
    opened.consume(s.q, "2")
    bodies = delivered(opened, 2)
    for tag in (1, 2, 3, 4):
        opened.send("basic.ack", delivery_tag=tag)
        bodies += delivered(opened, 1)
    return bodies


@case("priorities.single-active", ok(["c", "b", "a"]))
def _(s: Session) -> list[str]:
    """A single active consumer gets the backlog by priority."""
    opened = declare(s, x_single_active_consumer=True)
    put(s, opened, ("a", 1), ("b", 2), ("c", 3))
    opened.consume(s.q, no_ack=True)
    return delivered(opened, 3)


for _letter, _first, _then, _text in (
    ("a", {"x-max-priority": 5}, {"x-max-priority": 6}, "received '6' but current is '5'"),
    ("b", {"x-max-priority": 5}, {}, "received none but current is the value '5' of type 'signedint'"),
    ("c", {}, {"x-max-priority": 5}, "received the value '5' of type 'signedint' but current is none"),
    ("d", {}, {"x-max-priority": 0}, "received the value '0' of type 'signedint' but current is none"),
):

    def _redeclared(s: Session, first: dict = _first, then: dict = _then) -> None:
        opened = s.queue(arguments=first)
        opened.queue(s.q, arguments=then)

    case(
        f"priorities.redeclare-{_letter}",
        channel(
            406, "queue.declare", f"inequivalent arg 'x-max-priority' for queue '{{q}}' in vhost '/': {_text}"
        ),
        statement=f"a queue declared with {_first or 'no x-max-priority'}, then with {_then or 'no x-max-priority'}",
    )(_redeclared)


@case("priorities.max-length", ok(["c", "a"]))
def _(s: Session) -> list[str]:
    """A full queue drops the message of the highest priority first."""
    opened = declare(s, x_max_length=2)
    put(s, opened, ("a", 1), ("b", 5))
    opened.publish("", s.q, b"c", priority=3)
    opened.sync()
    return take(s, opened)


@case("priorities.max-length-newest", ok(["b", "a"]))
def _(s: Session) -> list[str]:
    """A full queue may drop the message that was just published, if its priority is the highest."""
    opened = declare(s, x_max_length=2)
    put(s, opened, ("a", 1), ("b", 5))
    opened.publish("", s.q, b"c", priority=9)
    opened.sync()
    return take(s, opened)


@case("priorities.max-length-bytes", ok(["a" * 10, "b" * 10]))
def _(s: Session) -> list[str]:
    """A queue above x-max-length-bytes drops the message of the highest priority first."""
    opened = declare(s, x_max_length_bytes=25)
    put(s, opened, ("a" * 10, 1), ("b" * 10, 1))
    opened.publish("", s.q, b"c" * 10, priority=9)
    opened.sync()
    return take(s, opened)


@case("priorities.max-length-dead-letters", ok((["b", "a"], [b"c"])))
def _(s: Session) -> tuple[list[str], list[bytes | None]]:
    """Messages that a full queue drops are dead-lettered."""
    opened = s.channel()
    dead = opened.queue(exclusive=True)
    more = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    opened.queue(s.q, arguments={"x-max-priority": 9, "x-max-length": 2, **more})
    put(s, opened, ("a", 1), ("b", 5))
    opened.publish("", s.q, b"c", priority=9)
    opened.ready(dead, 1)
    return take(s, opened), [opened.get(dead)]


@case("priorities.reject-publish", ok((["basic.ack", "basic.nack"], ["a"])))
def _(s: Session) -> tuple[list[str], list[str]]:
    """A full queue with reject-publish rejects messages of high priority too."""
    opened = declare(s, x_max_length=1, x_overflow="reject-publish")
    opened.call("confirm.select")
    replies = []
    for body, priority in ((b"a", 1), (b"b", 9)):
        opened.publish("", s.q, body, priority=priority)
        replies.append(opened.receive("basic.ack", "basic.nack").name)
    return replies, take(s, opened)


def _counted_later(s: Session, opened: Channel, expected: int) -> int:
    """Return the number of ready messages once those that expire within 100 ms have."""
    opened.quiet("basic.deliver", timeout=0.4)
    return opened.ready(s.q, expected)


@case("priorities.expiry-behind", ok((2, ["b"])))
def _(s: Session) -> tuple[int, list[str]]:
    """An expired message behind a head that has not expired remains until it becomes the head."""
    opened = declare(s)
    put(s, opened, ("a", 1), expiration="100")
    put(s, opened, ("b", 5))
    return _counted_later(s, opened, 2), take(s, opened)


@case("priorities.expiry-head", ok((1, ["a"])))
def _(s: Session) -> tuple[int, list[str]]:
    """An expired message at the head is removed."""
    opened = declare(s)
    put(s, opened, ("a", 1))
    put(s, opened, ("b", 5), expiration="100")
    return _counted_later(s, opened, 1), take(s, opened)


@case("priorities.expiry-across", ok((1, ["c"])))
def _(s: Session) -> tuple[int, list[str]]:
    """After an expired head, expired messages of lower priorities are removed too."""
    opened = declare(s)
    put(s, opened, ("a", 5), ("b", 3), expiration="100")
    put(s, opened, ("c", 1))
    return _counted_later(s, opened, 1), take(s, opened)


@case("priorities.ttl", ok(0))
def _(s: Session) -> int:
    """A queue's TTL applies to every priority."""
    opened = declare(s, x_message_ttl=100)
    put(s, opened, ("a", 5), ("b", 3), ("c", 1))
    return _counted_later(s, opened, 0)


@case("priorities.ttl-zero", ok((["a"], 0)))
def _(s: Session) -> tuple[list[str], int]:
    """With a TTL of 0 messages reach only a consumer that can take them at once."""
    opened = declare(s, x_message_ttl=0)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    opened.publish("", s.q, b"a", priority=1)
    got = delivered(opened, 1)
    opened.publish("", s.q, b"b", priority=2)
    opened.sync()
    return got, opened.ready(s.q, 0)


def _dead_lettering(s: Session, opened: Channel, **more: Any) -> str:
    """The case's queue with priorities, and one with priorities behind it that its dead letters go to."""
    dead = opened.queue(exclusive=True, arguments={"x-max-priority": 10})
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    opened.queue(s.q, arguments={"x-max-priority": 10, **to, **more})
    return dead


def _dead(opened: Channel, dead: str, count: int) -> list[tuple[bytes, int | None, str]]:
    opened.ready(dead, count)
    got = [opened.call("basic.get", queue=dead, no_ack=True) for _ in range(count)]
    return [
        (each.body, each.properties.get("priority"), each.properties["headers"]["x-first-death-reason"])
        for each in got
    ]


@case(
    "priorities.dead-letters", ok([(b"b", 20, "rejected"), (b"c", 3, "rejected"), (b"a", None, "rejected")])
)
def _(s: Session) -> list[tuple[bytes, int | None, str]]:
    """Dead letters keep their priority."""
    opened = s.channel()
    dead = _dead_lettering(s, opened)
    put(s, opened, ("a", None), ("b", 20), ("c", 3))
    take(s, opened, 3, no_ack=False)
    opened.send("basic.nack", delivery_tag=3, multiple=True, requeue=False)
    return _dead(opened, dead, 3)


@case("priorities.dead-letters-expired", ok([(b"b", 7, "expired"), (b"a", 2, "expired")]))
def _(s: Session) -> list[tuple[bytes, int | None, str]]:
    """Expired messages that are dead-lettered keep their priority."""
    opened = s.channel()
    dead = _dead_lettering(s, opened, **{"x-message-ttl": 100})
    put(s, opened, ("a", 2), ("b", 7))
    return _dead(opened, dead, 2)


@case("priorities.dead-letters-order", ok([b"b", b"c", b"a"]))
def _(s: Session) -> list[bytes | None]:
    """Expired messages are dead-lettered by priority."""
    opened = s.channel()
    dead = opened.queue(exclusive=True)
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 200}
    opened.queue(s.q, arguments={"x-max-priority": 10, **to})
    for body, priority in ((b"a", 1), (b"b", 5), (b"c", 3)):
        opened.publish("", s.q, body, priority=priority)
    opened.ready(s.q, 3)
    opened.quiet("basic.deliver", timeout=0.5)
    opened.ready(dead, 3)
    return [opened.get(dead) for _ in range(3)]
