"""Rows 82-87 and 95: consumers and their prefetch."""

import contextlib

from conformance.cases import Cases, Session, channel, connection, fill, ok
from conformance.codec import T
from conformance.wire import QuietError

ROWS = Cases()
case = ROWS.case


@case(
    "82",
    "consuming from a queue that does not exist",
    channel(404, "basic.consume", "no queue '{q}' in vhost '/'"),
)
def _(s: Session) -> None:
    s.channel().consume(s.q)


@case(
    "83a",
    "using a consumer tag twice on a channel",
    connection(530, "basic.consume", "attempt to reuse consumer tag 'ct'"),
)
def _(s: Session) -> None:
    opened = s.queue()
    opened.consume(s.q, "ct")
    opened.consume(s.q, "ct")


@case("83b", "a consumer tag may be used on two channels, and again after its cancel")
def _(s: Session) -> None:
    opened = s.queue()
    opened.consume(s.q, "ct")
    opened.client.channel(2).consume(s.q, "ct")
    opened.call("basic.cancel", consumer_tag="ct")
    opened.consume(s.q, "ct")


@case(
    "84",
    "the consumer limit of a channel",
    connection(530, "basic.consume", "reached maximum (2) of consumers per channel"),
    setup="tight",
)
def _(s: Session) -> None:
    opened = s.queue()
    for tag in ("1", "2", "3"):
        opened.consume(s.q, tag)


_IN_USE = channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use")


@case("85a", "consuming from a queue that has an exclusive consumer", _IN_USE)
def _(s: Session) -> None:
    opened = s.queue()
    opened.consume(s.q, "1", exclusive=True)
    opened.consume(s.q, "2")


@case("85b", "an exclusive consumer on a queue that has another consumer", _IN_USE)
def _(s: Session) -> None:
    opened = s.queue()
    opened.consume(s.q, "1")
    opened.consume(s.q, "2", exclusive=True)


@case("85c", "an exclusive consumer on a queue with a single active consumer", _IN_USE)
def _(s: Session) -> None:
    opened = s.queue(arguments={"x-single-active-consumer": True})
    opened.consume(s.q, exclusive=True)


@case("85d", "after an exclusive consumer is cancelled, others may consume")
def _(s: Session) -> None:
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
        f"consuming with x-priority {_value!r}",
        channel(
            406,
            "basic.consume",
            f"invalid arg 'x-priority' for queue '{{q}}' in vhost '/': \"expected integer, got {_type}\"",
        ),
    )(_priority)


@case(
    "86e",
    "consuming from a classic queue with an argument of streams",
    channel(
        406,
        "basic.consume",
        "invalid arg 'x-stream-offset' for queue '{q}' in vhost '/' of queue type rabbit_classic_queue",
    ),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.consume(opened.queue(s.q), arguments={"x-stream-offset": "first"})


@case("86f", "a consumer may have unknown arguments and a negative priority")
def _(s: Session) -> None:
    opened = s.channel()
    opened.consume(opened.queue(s.q), arguments={"x-priority": T("b", -5), "mine": "x"})


@case("87", "cancelling an unknown consumer tag is answered with that tag", ok("nosuch"))
def _(s: Session) -> str:
    return str(s.channel().call("basic.cancel", consumer_tag="nosuch").consumer_tag)


@case("95", "basic.qos with a prefetch_size", connection(540, "basic.qos", "prefetch_size!=0 (10)"))
def _(s: Session) -> None:
    s.channel().call("basic.qos", prefetch_size=10)


@case(
    "basic.consume-ok-first",
    "basic.consume-ok is sent before the first delivery",
    ok(["basic.consume-ok", "basic.deliver", "basic.deliver"]),
)
def _(s: Session) -> list[str]:
    opened = fill(s, s.channel(), 2)
    opened.send("basic.consume", queue=s.q, consumer_tag="ct")
    return [opened.receive().name for _ in range(3)]


@case(
    "basic.deliver",
    "basic.deliver has its delivery tag, redelivered flag, exchange, routing key, properties and body",
    ok(("ct", 1, False, "amq.direct", "{key}", {"type": "t", "timestamp": 7}, b"body")),
)
def _(s: Session) -> tuple[object, ...]:
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


@case("basic.server-tag", "a consumer with an empty tag gets a generated one", ok("amq.ctag-NAME"))
def _(s: Session) -> str:
    opened = s.channel()
    return opened.consume(opened.queue(s.q), "")


@case(
    "basic.consume-nowait",
    "basic.consume with nowait works and is not answered",
    ok(("basic.deliver", "given")),
)
def _(s: Session) -> tuple[str, str]:
    opened = fill(s, s.channel(), 1)
    opened.send("basic.consume", queue=s.q, consumer_tag="given", nowait=True)
    got = opened.receive()
    return got.name, got.consumer_tag


@case("basic.cancel-nowait", "basic.cancel with nowait works and is not answered", ok((True, 0)))
def _(s: Session) -> tuple[bool, int]:
    opened = s.queue()
    opened.consume(s.q)
    opened.send("basic.cancel", consumer_tag="ct", nowait=True)
    quiet = opened.quiet()
    return quiet, opened.call("queue.declare", queue=s.q, passive=True).consumer_count


@case("basic.cancel-last", "basic.cancel-ok is sent after the consumer's last delivery", ok(True))
def _(s: Session) -> bool:
    opened = fill(s, s.channel())
    opened.consume(s.q)
    for _ in range(3):
        opened.deliver()
    opened.call("basic.cancel", consumer_tag="ct")
    opened.publish("", s.q, b"4")
    return opened.quiet("basic.deliver")


@case("basic.cancel-keeps-unacked", "a cancelled consumer's messages remain unacked on its channel", ok(0))
def _(s: Session) -> int:
    opened = fill(s, s.channel(), 1)
    opened.consume(s.q)
    tag = opened.deliver().delivery_tag
    opened.call("basic.cancel", consumer_tag="ct")
    opened.send("basic.ack", delivery_tag=tag)
    opened.call("basic.recover", requeue=True)
    return opened.drain(s.q)


@case(
    "basic.cancel-notify",
    "deleting a queue cancels its consumers, by basic.cancel with nowait",
    ok(("ct", True)),
)
def _(s: Session) -> tuple[str, bool]:
    opened = s.queue()
    opened.consume(s.q)
    s.channel().call("queue.delete", queue=s.q)
    cancel = opened.receive("basic.cancel")
    return cancel.consumer_tag, cancel.nowait


@case(
    "basic.cancel-notify-capability",
    "a client without the capability consumer_cancel_notify gets no basic.cancel",
    ok(True),
)
def _(s: Session) -> bool:
    opened = s.channel(capabilities={})
    opened.queue(s.q)
    opened.consume(s.q)
    opened.client.channel(2).call("queue.delete", queue=s.q)
    return opened.quiet("basic.cancel")


@case(
    "basic.cancel-notify-own",
    "a channel that deletes the queue of its own consumer gets basic.cancel too",
    ok({"queue.delete-ok", "basic.cancel"}),
)
def _(s: Session) -> set[str]:
    opened = s.queue()
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q)
    return {opened.receive().name, opened.receive().name}


@case(
    "basic.round-robin",
    "messages are delivered to a queue's consumers in turn",
    ok(["1", "2", "3", "1", "2", "3"]),
)
def _(s: Session) -> list[str]:
    opened = s.queue()
    for tag in ("1", "2", "3"):
        opened.consume(s.q, tag, no_ack=True)
    tags = []
    for _ in range(6):
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case(
    "basic.priority",
    "the consumer with the highest priority is served first, until its prefetch is used up",
    ok(["high", "high", "low"]),
)
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=2)
    opened.consume(s.q, "low")
    opened.consume(s.q, "high", arguments={"x-priority": 5})
    tags = []
    for _ in range(3):
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case(
    "basic.qos-consumer",
    "a prefetch applies to each consumer that is started later, separately",
    ok((3, 1, 1)),
)
def _(s: Session) -> tuple[int, ...]:
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


@case("basic.qos-channel", "a global prefetch applies to all consumers of the channel together", ok(3))
def _(s: Session) -> int:
    opened = s.channel()
    opened.call("basic.qos", prefetch_count=3, global_=True)
    for number in range(2):
        opened.queue(s.q + str(number))
        opened.consume(s.q + str(number), str(number))
        for _ in range(3):
            opened.publish("", s.q + str(number), b"x")
    return opened.deliveries()


@case("basic.qos-both", "a consumer prefetch and a global prefetch apply together", ok((1, 2)))
def _(s: Session) -> tuple[int, ...]:
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.call("basic.qos", prefetch_count=2, global_=True)
    opened.consume(s.q, "1")
    first = opened.deliveries()
    opened.consume(s.q, "2")
    return first, first + opened.deliveries()


@case("basic.qos-replaced", "a consumer prefetch ends the global one of before", ok((1, 5)))
def _(s: Session) -> tuple[int, ...]:
    opened = fill(s, s.channel(), 6)
    opened.call("basic.qos", prefetch_count=1, global_=True)
    opened.consume(s.q, "1")
    first = opened.deliveries()
    opened.call("basic.qos", prefetch_count=2)
    return first, opened.deliveries()  # the consumer has no prefetch of its own


@case("basic.qos-replaced-before", "a consumer prefetch ends a global one before the consumer, too", ok(5))
def _(s: Session) -> int:
    opened = fill(s, s.channel(), 6)
    opened.call("basic.qos", prefetch_count=2, global_=True)
    opened.call("basic.qos", prefetch_count=5)
    opened.consume(s.q)
    return opened.deliveries()


@case("basic.qos-raise", "raising the global prefetch allows more deliveries", ok((1, 2)))
def _(s: Session) -> tuple[int, ...]:
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1, global_=True)
    opened.consume(s.q)
    first = opened.deliveries()
    opened.call("basic.qos", prefetch_count=0, global_=True)
    return first, opened.deliveries()


@case("basic.qos-no-ack", "a prefetch does not apply to a consumer with no_ack", ok(3))
def _(s: Session) -> int:
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, no_ack=True)
    return opened.deliveries()


@case("basic.qos-get", "messages from basic.get do not count in a prefetch", ok(1))
def _(s: Session) -> int:
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.get(s.q, no_ack=False)
    opened.consume(s.q)
    return opened.deliveries()


@case("basic.qos-ack", "after an ack the next message is delivered", ok([1, 2, 3]))
def _(s: Session) -> list[int]:
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    tags = []
    for _ in range(3):
        tags.append(opened.deliver().delivery_tag)
        opened.send("basic.ack", delivery_tag=tags[-1])
    return tags
