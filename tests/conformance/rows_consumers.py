"""Distribution among several consumers: single active, by priority, exclusive; and the limit of a delivery's time."""

import time
from typing import Any

from conformance.cases import Cases, Session, channel, fill, ok
from conformance.codec import T
from conformance.wire import Channel

ROWS = Cases()
case = ROWS.case

SINGLE = {"x-single-active-consumer": True}


def _single(s: Session, count: int = 0) -> Channel:
    """Declare the case's queue with a single active consumer, and put the messages 1 to `count` into it."""
    opened = s.queue(arguments=SINGLE)
    for number in range(1, count + 1):
        opened.publish("", s.q, str(number).encode())
    opened.ready(s.q, count)
    return opened


def _served(opened: Channel, queue: str, count: int = 1) -> list[str]:
    """Publish messages one by one; return the tag of the consumer that got each."""
    tags = []
    for _ in range(count):
        opened.publish("", queue, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case("single-active.only", "all messages are delivered to the single active consumer", ok(["a", "a", "a"]))
def _(s: Session) -> list[str]:
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag, no_ack=True)
    return _served(opened, s.q, 3)


@case("single-active.count", "waiting consumers are counted", ok(3))
def _(s: Session) -> int:
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag)
    return int(opened.call("queue.declare", queue=s.q, passive=True).consumer_count)


@case("single-active.false", "x-single-active-consumer may be false", ok(["a", "b"]))
def _(s: Session) -> list[str]:
    opened = s.queue(arguments={"x-single-active-consumer": False})
    for tag in "ab":
        opened.consume(s.q, tag, no_ack=True)
    return _served(opened, s.q, 2)


@case(
    "single-active.cancel",
    "when the active consumer is cancelled, the oldest waiting one becomes active",
    ok(["a", "b", "c"]),
)
def _(s: Session) -> list[str]:
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag, no_ack=True)
    tags = []
    for tag in "abc":
        tags += _served(opened, s.q)
        opened.call("basic.cancel", consumer_tag=tag)
    return tags


@case("single-active.cancel-waiting", "cancelling a waiting consumer changes nothing", ok(["a", "c"]))
def _(s: Session) -> list[str]:
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag, no_ack=True)
    opened.call("basic.cancel", consumer_tag="b")
    tags = _served(opened, s.q)
    opened.call("basic.cancel", consumer_tag="a")
    return tags + _served(opened, s.q)


@case("single-active.all-cancelled", "after all consumers are cancelled, a new one becomes active", ok(["b"]))
def _(s: Session) -> list[str]:
    opened = _single(s)
    opened.consume(s.q, "a", no_ack=True)
    opened.call("basic.cancel", consumer_tag="a")
    opened.consume(s.q, "b", no_ack=True)
    return _served(opened, s.q)


@case(
    "single-active.keeps",
    "a later consumer of higher priority does not replace the active one",
    ok(["a", "high"]),
)
def _(s: Session) -> list[str]:
    opened = _single(s)
    opened.consume(s.q, "a", no_ack=True)
    opened.consume(s.q, "high", no_ack=True, arguments={"x-priority": 9})
    tags = _served(opened, s.q)
    opened.call("basic.cancel", consumer_tag="a")
    return tags + _served(opened, s.q)


@case(
    "single-active.priority",
    "the waiting consumer of the highest priority becomes active, then the oldest",
    ok(list("adbec")),
)
def _(s: Session) -> list[str]:
    opened = _single(s)
    for tag, priority in (("a", 0), ("b", 0), ("c", -1), ("d", 5), ("e", 0)):
        opened.consume(s.q, tag, no_ack=True, arguments={"x-priority": T("I", priority)})
    tags = []
    for _ in range(5):
        tags += _served(opened, s.q)
        opened.call("basic.cancel", consumer_tag=tags[-1])
    return tags


@case(
    "single-active.cancel-unacked",
    "messages that a cancelled active consumer has not acked remain with its channel",
    ok((["a", "a"], ("b", b"3", False), "none")),
)
def _(s: Session) -> tuple[object, ...]:
    opened = _single(s, 2)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    tags = [opened.deliver().consumer_tag for _ in range(2)]
    opened.call("basic.cancel", consumer_tag="a")
    opened.publish("", s.q, b"3")
    got = opened.deliver()
    rest = "none" if opened.quiet("basic.deliver") else "some"
    return tags, (got.consumer_tag, got.body, got.redelivered), rest


@case(
    "single-active.channel-close",
    "messages unacked by the active consumer of a closed channel go to the next one, redelivered and in order",
    ok([(b"1", True), (b"2", True), (b"3", True)]),
)
def _(s: Session) -> list[tuple[bytes, bool]]:
    opened = _single(s, 3)
    opened.consume(s.q, "a")
    for _ in range(3):
        opened.deliver()
    second = opened.client.channel(2)
    second.consume(s.q, "b")
    opened.call("channel.close", reply_code=200)
    return [(got.body, got.redelivered) for got in (second.deliver() for _ in range(3))]


@case(
    "single-active.connection-lost",
    "messages unacked by the active consumer of a lost connection go to the next one, redelivered and in order",
    ok([(b"1", True), (b"2", True), (b"3", False)]),
)
def _(s: Session) -> list[tuple[bytes, bool]]:
    first = _single(s, 3)
    first.call("basic.qos", prefetch_count=2)
    first.consume(s.q, "a")
    for _ in range(2):
        first.deliver()
    second = s.channel()
    second.consume(s.q, "b")
    first.client.close_socket()
    return [(got.body, got.redelivered) for got in (second.deliver() for _ in range(3))]


@case(
    "single-active.channel-of-two",
    "when the channel of the active consumer closes, waiting consumers of that channel do not become active",
    ok("other"),
)
def _(s: Session) -> str:
    first = _single(s)
    first.consume(s.q, "a")
    first.consume(s.q, "b", arguments={"x-priority": 9})
    second = s.channel()
    second.consume(s.q, "other")
    first.call("channel.close", reply_code=200)
    second.publish("", s.q, b"x")
    return str(second.deliver().consumer_tag)


@case(
    "single-active.prefetch",
    "if the prefetch of the active consumer is used up, waiting consumers get nothing",
    ok((2, True, ["a"])),
)
def _(s: Session) -> tuple[object, ...]:
    opened = _single(s)
    opened.call("basic.qos", prefetch_count=2)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    for _ in range(4):
        opened.publish("", s.q, b"x")
    tags = [opened.deliver(), opened.deliver()]
    quiet = opened.quiet("basic.deliver")
    opened.send("basic.ack", delivery_tag=tags[0].delivery_tag)
    return len(tags), quiet, [opened.deliver().consumer_tag]


@case(
    "single-active.global-prefetch",
    "a global prefetch applies to the active consumer and to its successor",
    ok((["a"], True, ["b"])),
)
def _(s: Session) -> tuple[object, ...]:
    opened = _single(s)
    opened.call("basic.qos", prefetch_count=1, global_=True)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    opened.publish("", s.q, b"x")
    got = opened.deliver()
    opened.call("basic.cancel", consumer_tag="a")
    opened.publish("", s.q, b"x")
    quiet = opened.quiet("basic.deliver")
    opened.send("basic.ack", delivery_tag=got.delivery_tag)
    return [got.consumer_tag], quiet, [opened.deliver().consumer_tag]


@case(
    "single-active.requeue",
    "messages that the active consumer requeues are delivered to it again",
    ok([("a", False), ("a", True), ("a", True)]),
)
def _(s: Session) -> list[tuple[str, bool]]:
    opened = _single(s, 1)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    seen = []
    for method in ("basic.nack", "basic.reject", ""):
        got = opened.deliver()
        seen.append((got.consumer_tag, got.redelivered))
        if method:
            opened.send(method, delivery_tag=got.delivery_tag, requeue=True)
    return seen


@case("single-active.get", "basic.get is possible while a single active consumer exists", ok((b"2", True)))
def _(s: Session) -> tuple[bytes | None, bool]:
    opened = _single(s, 2)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "a")
    opened.deliver()
    return opened.get(s.q), opened.quiet("basic.deliver")


@case(
    "single-active.delete", "deleting the queue cancels the active and the waiting consumers", ok(["a", "b"])
)
def _(s: Session) -> list[str]:
    opened = _single(s)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    s.channel().call("queue.delete", queue=s.q)
    return sorted(opened.receive("basic.cancel").consumer_tag for _ in range(2))


@case("single-active.auto-delete", "an auto-delete queue remains while a consumer is waiting", ok([1, 0]))
def _(s: Session) -> list[int]:
    opened = s.queue(auto_delete=True, arguments=SINGLE)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    opened.call("basic.cancel", consumer_tag="a")
    left = [int(opened.call("queue.declare", queue=s.q, passive=True).consumer_count)]
    opened.call("basic.cancel", consumer_tag="b")
    time.sleep(0.2)  # RabbitMQ 4.3 has answered before the queue is gone
    return [*left, int(opened.call("queue.declare", queue=s.q, auto_delete=True).consumer_count)]


@case(
    "single-active.redeclare",
    "x-single-active-consumer is compared when a queue is declared again",
    channel(
        406,
        "queue.declare",
        "inequivalent arg 'x-single-active-consumer' for queue '{q}' in vhost '/': received none but current is"
        " the value 'true' of type 'bool'",
    ),
)
def _(s: Session) -> None:
    _single(s).queue(s.q)


@case(
    "single-active.exclusive-second",
    "an exclusive consumer is refused if there is a single active consumer",
    channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use"),
)
def _(s: Session) -> None:
    opened = _single(s)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b", exclusive=True)


@case(
    "priority.yields",
    "while the prefetch of a consumer of high priority is used up, lower ones are served",
    ok(["high", "low", "low", "high"]),
)
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "high", arguments={"x-priority": 1})
    opened.call("basic.qos", prefetch_count=0)
    opened.consume(s.q, "low")
    tags = []
    for number in range(4):
        opened.publish("", s.q, b"x")
        got = opened.deliver()
        tags.append(got.consumer_tag)
        if number == 0:
            full = got.delivery_tag
        if number == 2:
            opened.send("basic.ack", delivery_tag=full)
            opened.sync()
    return tags


@case(
    "priority.round-robin",
    "messages are delivered to consumers of equal priority in turn",
    ok(["a", "b", "a", "b"]),
)
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.consume(s.q, "none", no_ack=True)
    for tag in "ab":
        opened.consume(s.q, tag, no_ack=True, arguments={"x-priority": 3})
    return _served(opened, s.q, 4)


@case(
    "priority.negative",
    "a consumer with a negative priority comes after one without a priority",
    ok(["a", "a"]),
)
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.consume(s.q, "below", no_ack=True, arguments={"x-priority": T("I", -1)})
    opened.consume(s.q, "a", no_ack=True)
    return _served(opened, s.q, 2)


@case("priority.widths", "x-priority may be an integer of any width", ok(["l", "i", "s", "b"]))
def _(s: Session) -> list[str]:
    opened = s.queue()
    for tag, kind, priority in (("b", "b", 1), ("s", "s", 2), ("i", "I", 3), ("l", "l", 1 << 40)):
        opened.consume(s.q, tag, no_ack=True, arguments={"x-priority": T(kind, priority)})
    tags = []
    for _ in range(4):
        tags += _served(opened, s.q)
        opened.call("basic.cancel", consumer_tag=tags[-1])
    return tags


@case(
    "priority.backlog",
    "a backlog is delivered to the consumer of the highest priority first, the rest to the next",
    ok("hhhll"),
)
def _(s: Session) -> str:
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=3)
    opened.consume(s.q, "l")
    opened.consume(s.q, "h", arguments={"x-priority": 10})
    for _ in range(5):
        opened.publish("", s.q, b"x")
    return "".join(opened.deliver().consumer_tag for _ in range(5))


@case("exclusive.served", "all messages are delivered to an exclusive consumer", ok(["a", "a"]))
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.consume(s.q, "a", exclusive=True, no_ack=True)
    return _served(opened, s.q, 2)


@case(
    "exclusive.other-connection",
    "an exclusive consumer excludes consumers of other connections",
    channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use"),
)
def _(s: Session) -> None:
    opened = s.queue()
    opened.consume(s.q, "a", exclusive=True)
    s.channel().consume(s.q, "b")


@case("exclusive.get", "basic.get is possible while an exclusive consumer exists", ok(b"2"))
def _(s: Session) -> bytes | None:
    opened = fill(s, s.channel(), 2)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "a", exclusive=True)
    opened.deliver()
    return s.channel().get(s.q)


@case(
    "exclusive.channel-close",
    "after the channel of an exclusive consumer closes, others may consume",
    ok(["b"]),
)
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.consume(s.q, "a", exclusive=True)
    second = opened.client.channel(2)
    opened.call("channel.close", reply_code=200)
    second.consume(s.q, "b", no_ack=True)
    return _served(second, s.q)


@case("exclusive.priority", "an exclusive consumer may have a priority", ok(["a"]))
def _(s: Session) -> list[str]:
    opened = s.queue()
    opened.consume(s.q, "a", exclusive=True, no_ack=True, arguments={"x-priority": 4})
    return _served(opened, s.q)


_LATE = (
    "delivery acknowledgement on channel 1 timed out. Timeout value used: {} ms. This timeout value can be configured,"
    " see consumers doc guide to learn more"
)


def _untold(s: Session, **fields: Any) -> Channel:
    opened = s.channel(capabilities={"consumer_cancel_notify": False})
    opened.queue(s.q, **fields)
    return opened


def _wait_for_close(opened: Channel) -> None:
    opened.receive("channel.close-ok", timeout=5)


@case(
    "timeout.queue",
    "a queue's consumer timeout overrides the broker's",
    channel(406, None, _LATE.format(900)),
    of=("4.3",),
)
def _(s: Session) -> None:
    opened = _untold(s, arguments={"x-consumer-timeout": 900})
    opened.consume(s.q)
    opened.publish("", s.q, b"x")
    _wait_for_close(opened)


@case(
    "timeout.consumer",
    "a consumer's own timeout overrides its queue's, even if another consumer has an older unacked delivery",
    channel(406, None, _LATE.format(800)),
    of=("4.3",),
)
def _(s: Session) -> None:
    opened = _untold(s, arguments={"x-consumer-timeout": 0})
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "patient")
    opened.publish("", s.q, b"1")
    opened.deliver()
    opened.consume(s.q, "hasty", arguments={"x-consumer-timeout": 800})
    opened.publish("", s.q, b"2")
    _wait_for_close(opened)


@case(
    "timeout.requeue",
    "after a consumer timeout the unacked messages are delivered to others, and the channel's consumers are removed",
    ok((b"1", True, 1)),
    setup="tight",
)
def _(s: Session) -> tuple[object, ...]:
    first = s.login().channel(1)
    first.queue(s.q, arguments={"x-single-active-consumer": True})
    first.consume(s.q, "late")
    first.publish("", s.q, b"1")
    first.deliver()
    second = s.login().channel(1)
    second.consume(s.q, "next")
    got = second.deliver(timeout=5)
    second.send("basic.ack", delivery_tag=got.delivery_tag)
    return got.body, got.redelivered, second.call("queue.declare", queue=s.q, passive=True).consumer_count


@case(
    "timeout.get",
    "the consumer timeout applies to messages from basic.get too",
    channel(406, None, _LATE.format(1000)),
    setup="tight",
)
def _(s: Session) -> None:
    opened = fill(s, s.channel(), 1)
    opened.get(s.q, no_ack=False)
    _wait_for_close(opened)


for _name, _value, _fault in (
    ("string", "1s", '"expected integer, got longstr"'),
    ("negative", -1, "{value_negative,-1}"),
):

    def _bad_queue_timeout(s: Session, value: object = _value) -> None:
        s.channel().queue(s.q, arguments={"x-consumer-timeout": value})

    def _bad_consumer_timeout(s: Session, value: object = _value) -> None:
        opened = s.channel()
        opened.consume(opened.queue(s.q), arguments={"x-consumer-timeout": value})

    _what = f"invalid arg 'x-consumer-timeout' for queue '{{q}}' in vhost '/': {_fault}"
    case(
        f"timeout.queue-{_name}",
        f"declaring a queue with x-consumer-timeout {_value!r}",
        channel(406, "queue.declare", _what),
        of=("4.3",),
    )(_bad_queue_timeout)
    case(
        f"timeout.consumer-{_name}",
        f"consuming with x-consumer-timeout {_value!r}",
        channel(406, "basic.consume", _what),
        of=("4.3",),
    )(_bad_consumer_timeout)
