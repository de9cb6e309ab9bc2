"""Rows 82-87 and 95: consumers and their prefetch."""

import contextlib

from conformance.cases import Cases, Session, channel, connection, fill, ok
from conformance.codec import T
from conformance.wire import QuietError

ROWS = Cases()
case = ROWS.case


@case("82", channel(404, "basic.consume", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """Consuming from a queue that does not exist."""
    s.channel().consume(s.q)


@case("83a", connection(530, "basic.consume", "attempt to reuse consumer tag 'ct'"))
def _(s: Session) -> None:
    """Using a consumer tag twice on a channel."""
    opened = s.queue()
    opened.consume(s.q, "ct")
    opened.consume(s.q, "ct")


@case("83b")
def _(s: Session) -> None:
    """A consumer tag may be used on two channels, and again after its cancel."""
    opened = s.queue()
    opened.consume(s.q, "ct")
    opened.client.channel(2).consume(s.q, "ct")
    opened.call("basic.cancel", consumer_tag="ct")
    opened.consume(s.q, "ct")


@case("84", connection(530, "basic.consume", "reached maximum (2) of consumers per channel"), setup="tight")
def _(s: Session) -> None:
    """The consumer limit of a channel."""
    opened = s.queue()
    for tag in ("1", "2", "3"):
        opened.consume(s.q, tag)


_IN_USE = channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use")


@case("85a", _IN_USE)
def _(s: Session) -> None:
    """Consuming from a queue that has an exclusive consumer."""
    opened = s.queue()
    opened.consume(s.q, "1", exclusive=True)
    opened.consume(s.q, "2")


@case("85b", _IN_USE)
def _(s: Session) -> None:
    """An exclusive consumer on a queue that has another consumer."""
    opened = s.queue()
    opened.consume(s.q, "1")
    opened.consume(s.q, "2", exclusive=True)


@case("85c", _IN_USE)
def _(s: Session) -> None:
    """An exclusive consumer on a queue with a single active consumer."""
    opened = s.queue(arguments={"x-single-active-consumer": True})
    opened.consume(s.q, exclusive=True)


@case("85d")
def _(s: Session) -> None:
    """After an exclusive consumer is cancelled, others may consume."""
    opened = s.queue()
    opened.consume(s.q, "1", exclusive=True)
    opened.call("basic.cancel", consumer_tag="1")
    opened.consume(s.q, "2", exclusive=True)


for _letter, _value, _type in (
    ("a", "1", "longstr"),
    ("b", 1.5, "double"),
    ("c", True, "bool"),
    ("d", None, "void"),
):

    def _priority(s: Session, value: object = _value) -> None:
        opened = s.channel()
        opened.consume(opened.queue(s.q), arguments={"x-priority": value})

    case(
        f"86{_letter}",
        channel(
            406,
            "basic.consume",
            f"invalid arg 'x-priority' for queue '{{q}}' in vhost '/': \"expected integer, got {_type}\"",
        ),
        statement=f"consuming with x-priority {_value!r}",
    )(_priority)


@case(
    "86e",
    channel(
        406,
        "basic.consume",
        "invalid arg 'x-stream-offset' for queue '{q}' in vhost '/' of queue type rabbit_classic_queue",
    ),
)
def _(s: Session) -> None:
    """Consuming from a classic queue with an argument of streams."""
    opened = s.channel()
    opened.consume(opened.queue(s.q), arguments={"x-stream-offset": "first"})


@case("86f")
def _(s: Session) -> None:
    """A consumer may have unknown arguments and a negative priority."""
    opened = s.channel()
    opened.consume(opened.queue(s.q), arguments={"x-priority": T("b", -5), "mine": "x"})


@case("87", ok("nosuch"))
def _(s: Session) -> str:
    """Cancelling an unknown consumer tag is answered with that tag."""
    return str(s.channel().call("basic.cancel", consumer_tag="nosuch").consumer_tag)


@case("95", connection(540, "basic.qos", "prefetch_size!=0 (10)"))
def _(s: Session) -> None:
    """basic.qos with a prefetch_size."""
    s.channel().call("basic.qos", prefetch_size=10)


@case("basic.consume-ok-first", ok(["basic.consume-ok", "basic.deliver", "basic.deliver"]))
def _(s: Session) -> list[str]:
    """basic.consume-ok is sent before the first delivery."""
    opened = fill(s, s.channel(), 2)
    opened.send("basic.consume", queue=s.q, consumer_tag="ct")
    return [opened.receive().name for _ in range(3)]


@case("basic.deliver", ok(("ct", 1, False, "amq.direct", "{key}", {"type": "t", "timestamp": 7}, b"body")))
def _(s: Session) -> tuple[object, ...]:
    """basic.deliver has its delivery tag, redelivered flag, exchange, routing key, properties and body."""
    opened = s.queue()
    opened.call("queue.bind", queue=s.q, exchange="amq.direct", routing_key="{key}")
    opened.consume(s.q)
    opened.publish("amq.direct", "{key}", b"body", type="t", timestamp=7)
    got = opened.deliver()
    return (
        got.consumer_tag,
        got.delivery_tag,
        got.redelivered,
        got.exchange,
        got.routing_key,
        got.properties,
        got.body,
    )


@case("basic.server-tag", ok("amq.ctag-NAME"))
def _(s: Session) -> str:
    """A consumer with an empty tag gets a generated one."""
    opened = s.channel()
    return opened.consume(opened.queue(s.q), "")


@case("basic.consume-nowait", ok(("basic.deliver", "given")))
def _(s: Session) -> tuple[str, str]:
    """basic.consume with nowait works and is not answered."""
    opened = fill(s, s.channel(), 1)
    opened.send("basic.consume", queue=s.q, consumer_tag="given", nowait=True)
    got = opened.receive()
    return got.name, got.consumer_tag


@case("basic.cancel-nowait", ok((True, 0)))
def _(s: Session) -> tuple[bool, int]:
    """basic.cancel with nowait works and is not answered."""
    opened = s.queue()
    opened.consume(s.q)
    opened.send("basic.cancel", consumer_tag="ct", nowait=True)
    quiet = opened.quiet()
    return quiet, opened.call("queue.declare", queue=s.q, passive=True).consumer_count


@case("basic.cancel-last", ok(True))
def _(s: Session) -> bool:
    """basic.cancel-ok is sent after the consumer's last delivery."""
    opened = fill(s, s.channel())
    opened.consume(s.q)
    for _ in range(3):
        opened.deliver()
    opened.call("basic.cancel", consumer_tag="ct")
    opened.publish("", s.q, b"4")
    return opened.quiet("basic.deliver")


@case("basic.cancel-keeps-unacked", ok(0))
def _(s: Session) -> int:
    """A cancelled consumer's messages remain unacked on its channel."""
    opened = fill(s, s.channel(), 1)
    opened.consume(s.q)
    tag = opened.deliver().delivery_tag
    opened.call("basic.cancel", consumer_tag="ct")
    opened.send("basic.ack", delivery_tag=tag)
    opened.call("basic.recover", requeue=True)
    return opened.drain(s.q)


@case("basic.cancel-notify", ok(("ct", True)))
def _(s: Session) -> tuple[str, bool]:
    """Deleting a queue cancels its consumers, by basic.cancel with nowait."""
    opened = s.queue()
    opened.consume(s.q)
    s.channel().call("queue.delete", queue=s.q)
    cancel = opened.receive("basic.cancel")
    return cancel.consumer_tag, cancel.nowait


@case("basic.cancel-notify-capability", ok(True))
def _(s: Session) -> bool:
    """A client without the capability consumer_cancel_notify gets no basic.cancel."""
    opened = s.channel(capabilities={})
    opened.queue(s.q)
    opened.consume(s.q)
    opened.client.channel(2).call("queue.delete", queue=s.q)
    return opened.quiet("basic.cancel")


@case("basic.cancel-notify-own", ok({"queue.delete-ok", "basic.cancel"}))
def _(s: Session) -> set[str]:
    """A channel that deletes the queue of its own consumer gets basic.cancel too."""
    opened = s.queue()
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q)
    return {opened.receive().name, opened.receive().name}


@case("basic.round-robin", ok(["1", "2", "3", "1", "2", "3"]))
def _(s: Session) -> list[str]:
    """Messages are delivered to a queue's consumers in turn."""
    opened = s.queue()
    for tag in ("1", "2", "3"):
        opened.consume(s.q, tag, no_ack=True)
    tags = []
    for _ in range(6):
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case("basic.priority", ok(["high", "high", "low"]))
def _(s: Session) -> list[str]:
    """The consumer with the highest priority is served first, until its prefetch is used up."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=2)
    opened.consume(s.q, "low")
    opened.consume(s.q, "high", arguments={"x-priority": 5})
    tags = []
    for _ in range(3):
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case("basic.qos-consumer", ok((3, 1, 1)))
def _(s: Session) -> tuple[int, ...]:
    """A prefetch applies to each consumer that is started later, separately."""
    opened = s.channel()
    for number in range(3):
        name = s.q + str(number)
        opened.queue(name)
        opened.call("basic.qos", prefetch_count=(0, 1, 1)[number])
        opened.consume(name, str(number))
        for _ in range(3):
            opened.publish("", name, b"x")
    tags = []
    with contextlib.suppress(QuietError):
        while True:
            tags.append(opened.deliver(timeout=0.3).consumer_tag)
    return tags.count("0"), tags.count("1"), tags.count("2")


@case("basic.qos-channel", ok(3))
def _(s: Session) -> int:
    """A global prefetch applies to all consumers of the channel together."""
    opened = s.channel()
    opened.call("basic.qos", prefetch_count=3, global_=True)
    for number in range(2):
        opened.queue(s.q + str(number))
        opened.consume(s.q + str(number), str(number))
        for _ in range(3):
            opened.publish("", s.q + str(number), b"x")
    return opened.deliveries()


@case("basic.qos-both", ok((1, 2)))
def _(s: Session) -> tuple[int, ...]:
    """A consumer prefetch and a global prefetch apply together."""
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.call("basic.qos", prefetch_count=2, global_=True)
    opened.consume(s.q, "1")
    first = opened.deliveries()
    opened.consume(s.q, "2")
    return first, first + opened.deliveries()


@case("basic.qos-replaced", ok((1, 5)))
def _(s: Session) -> tuple[int, ...]:
    """A consumer prefetch ends the global one of before."""
    opened = fill(s, s.channel(), 6)
    opened.call("basic.qos", prefetch_count=1, global_=True)
    opened.consume(s.q, "1")
    first = opened.deliveries()
    opened.call("basic.qos", prefetch_count=2)
    return first, opened.deliveries()  # the consumer has no prefetch of its own


@case("basic.qos-replaced-before", ok(5))
def _(s: Session) -> int:
    """A consumer prefetch ends a global one before the consumer, too."""
    opened = fill(s, s.channel(), 6)
    opened.call("basic.qos", prefetch_count=2, global_=True)
    opened.call("basic.qos", prefetch_count=5)
    opened.consume(s.q)
    return opened.deliveries()


@case("basic.qos-raise", ok((1, 2)))
def _(s: Session) -> tuple[int, ...]:
    """Raising the global prefetch allows more deliveries."""
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1, global_=True)
    opened.consume(s.q)
    first = opened.deliveries()
    opened.call("basic.qos", prefetch_count=0, global_=True)
    return first, opened.deliveries()


@case("basic.qos-no-ack", ok(3))
def _(s: Session) -> int:
    """A prefetch does not apply to a consumer with no_ack."""
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, no_ack=True)
    return opened.deliveries()


@case("basic.qos-get", ok(1))
def _(s: Session) -> int:
    """Messages from basic.get do not count in a prefetch."""
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.get(s.q, no_ack=False)
    opened.consume(s.q)
    return opened.deliveries()


@case("basic.qos-ack", ok([1, 2, 3]))
def _(s: Session) -> list[int]:
    """After an ack the next message is delivered."""
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    tags = []
    for _ in range(3):
        tags.append(opened.deliver().delivery_tag)
        opened.send("basic.ack", delivery_tag=tags[-1])
    return tags
