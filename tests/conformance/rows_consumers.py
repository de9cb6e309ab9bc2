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


@case("single-active.only", ok(["a", "a", "a"]))
def _(s: Session) -> list[str]:
    """All messages are delivered to the single active consumer."""
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag, no_ack=True)
    return _served(opened, s.q, 3)


@case("single-active.count", ok(3))
def _(s: Session) -> int:
    """Waiting consumers are counted."""
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag)
    return int(opened.call("queue.declare", queue=s.q, passive=True).consumer_count)


@case("single-active.false", ok(["a", "b"]))
def _(s: Session) -> list[str]:
    """x-single-active-consumer may be false."""
    opened = s.queue(arguments={"x-single-active-consumer": False})
    for tag in "ab":
        opened.consume(s.q, tag, no_ack=True)
    return _served(opened, s.q, 2)


@case("single-active.cancel", ok(["a", "b", "c"]))
def _(s: Session) -> list[str]:
    """The oldest waiting consumer becomes active when the active one is cancelled."""
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag, no_ack=True)
    tags = []
    for tag in "abc":
        tags += _served(opened, s.q)
        opened.call("basic.cancel", consumer_tag=tag)
    return tags


@case("single-active.cancel-waiting", ok(["a", "c"]))
def _(s: Session) -> list[str]:
    """Cancelling a waiting consumer changes nothing."""
    opened = _single(s)
    for tag in "abc":
        opened.consume(s.q, tag, no_ack=True)
    opened.call("basic.cancel", consumer_tag="b")
    tags = _served(opened, s.q)
    opened.call("basic.cancel", consumer_tag="a")
    return tags + _served(opened, s.q)


@case("single-active.all-cancelled", ok(["b"]))
def _(s: Session) -> list[str]:
    """After all consumers are cancelled, a new one becomes active."""
    opened = _single(s)
    opened.consume(s.q, "a", no_ack=True)
    opened.call("basic.cancel", consumer_tag="a")
    opened.consume(s.q, "b", no_ack=True)
    return _served(opened, s.q)


@case("single-active.keeps", ok(["a", "high"]))
def _(s: Session) -> list[str]:
    """A later consumer of higher priority does not replace the active one."""
    opened = _single(s)
    opened.consume(s.q, "a", no_ack=True)
    opened.consume(s.q, "high", no_ack=True, arguments={"x-priority": 9})
    tags = _served(opened, s.q)
    opened.call("basic.cancel", consumer_tag="a")
    return tags + _served(opened, s.q)


@case("single-active.priority", ok(list("adbec")))
def _(s: Session) -> list[str]:
    """The waiting consumer of the highest priority becomes active, then the oldest."""
    opened = _single(s)
    for tag, priority in (("a", 0), ("b", 0), ("c", -1), ("d", 5), ("e", 0)):
        opened.consume(s.q, tag, no_ack=True, arguments={"x-priority": T("I", priority)})
    tags = []
    for _ in range(5):
        tags += _served(opened, s.q)
        opened.call("basic.cancel", consumer_tag=tags[-1])
    return tags


@case("single-active.cancel-unacked", ok((["a", "a"], ("b", b"3", False), "none")))
def _(s: Session) -> tuple[object, ...]:
    """Messages that a cancelled active consumer has not acked remain with its channel."""
    opened = _single(s, 2)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    tags = [opened.deliver().consumer_tag for _ in range(2)]
    opened.call("basic.cancel", consumer_tag="a")
    opened.publish("", s.q, b"3")
    got = opened.deliver()
    rest = "none" if opened.quiet("basic.deliver") else "some"
    return tags, (got.consumer_tag, got.body, got.redelivered), rest


@case("single-active.channel-close", ok([(b"1", True), (b"2", True), (b"3", True)]))
def _(s: Session) -> list[tuple[bytes, bool]]:
    """Messages unacked by the active consumer of a closed channel go to the next one, redelivered and in order."""
    opened = _single(s, 3)
    opened.consume(s.q, "a")
    for _ in range(3):
        opened.deliver()
    second = opened.client.channel(2)
    second.consume(s.q, "b")
    opened.call("channel.close", reply_code=200)
    return [(got.body, got.redelivered) for got in (second.deliver() for _ in range(3))]


@case("single-active.connection-lost", ok([(b"1", True), (b"2", True), (b"3", False)]))
def _(s: Session) -> list[tuple[bytes, bool]]:
    """Messages unacked by the active consumer of a lost connection go to the next one, redelivered and in order."""
    first = _single(s, 3)
    first.call("basic.qos", prefetch_count=2)
    first.consume(s.q, "a")
    for _ in range(2):
        first.deliver()
    second = s.channel()
    second.consume(s.q, "b")
    first.client.close_socket()
    return [(got.body, got.redelivered) for got in (second.deliver() for _ in range(3))]


@case("single-active.channel-of-two", ok("other"))
def _(s: Session) -> str:
    """Waiting consumers of the active consumer's channel do not become active when that channel closes."""
    first = _single(s)
    first.consume(s.q, "a")
    first.consume(s.q, "b", arguments={"x-priority": 9})
    second = s.channel()
    second.consume(s.q, "other")
    first.call("channel.close", reply_code=200)
    second.publish("", s.q, b"x")
    return str(second.deliver().consumer_tag)


@case("single-active.prefetch", ok((2, True, ["a"])))
def _(s: Session) -> tuple[object, ...]:
    """If the prefetch of the active consumer is used up, waiting consumers get nothing."""
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


@case("single-active.global-prefetch", ok((["a"], True, ["b"])))
def _(s: Session) -> tuple[object, ...]:
    """A global prefetch applies to the active consumer and to its successor."""
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


@case("single-active.requeue", ok([("a", False), ("a", True), ("a", True)]))
def _(s: Session) -> list[tuple[str, bool]]:
    """Messages that the active consumer requeues are delivered to it again."""
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


@case("single-active.get", ok((b"2", True)))
def _(s: Session) -> tuple[bytes | None, bool]:
    """basic.get is possible while a single active consumer exists."""
    opened = _single(s, 2)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "a")
    opened.deliver()
    return opened.get(s.q), opened.quiet("basic.deliver")


@case("single-active.delete", ok(["a", "b"]))
def _(s: Session) -> list[str]:
    """Deleting the queue cancels the active and the waiting consumers."""
    opened = _single(s)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b")
    s.channel().call("queue.delete", queue=s.q)
    return sorted(opened.receive("basic.cancel").consumer_tag for _ in range(2))


@case("single-active.auto-delete", ok([1, 0]))
def _(s: Session) -> list[int]:
    """An auto-delete queue remains while a consumer is waiting."""
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
    channel(
        406,
        "queue.declare",
        "inequivalent arg 'x-single-active-consumer' for queue '{q}' in vhost '/': received none but current is"
        " the value 'true' of type 'bool'",
    ),
)
def _(s: Session) -> None:
    """x-single-active-consumer is compared when a queue is declared again."""
    _single(s).queue(s.q)


@case(
    "single-active.exclusive-second",
    channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use"),
)
def _(s: Session) -> None:
    """An exclusive consumer is refused if there is a single active consumer."""
    opened = _single(s)
    opened.consume(s.q, "a")
    opened.consume(s.q, "b", exclusive=True)


@case("priority.yields", ok(["high", "low", "low", "high"]))
def _(s: Session) -> list[str]:
    """While the prefetch of a consumer of high priority is used up, lower ones are served."""
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


@case("priority.round-robin", ok(["a", "b", "a", "b"]))
def _(s: Session) -> list[str]:
    """Messages are delivered to consumers of equal priority in turn."""
    opened = s.queue()
    opened.consume(s.q, "none", no_ack=True)
    for tag in "ab":
        opened.consume(s.q, tag, no_ack=True, arguments={"x-priority": 3})
    return _served(opened, s.q, 4)


@case("priority.negative", ok(["a", "a"]))
def _(s: Session) -> list[str]:
    """A consumer with a negative priority comes after one without a priority."""
    opened = s.queue()
    opened.consume(s.q, "below", no_ack=True, arguments={"x-priority": T("I", -1)})
    opened.consume(s.q, "a", no_ack=True)
    return _served(opened, s.q, 2)


@case("priority.widths", ok(["l", "i", "s", "b"]))
def _(s: Session) -> list[str]:
    """x-priority may be an integer of any width."""
    opened = s.queue()
    for tag, kind, priority in (("b", "b", 1), ("s", "s", 2), ("i", "I", 3), ("l", "l", 1 << 40)):
        opened.consume(s.q, tag, no_ack=True, arguments={"x-priority": T(kind, priority)})
    tags = []
    for _ in range(4):
        tags += _served(opened, s.q)
        opened.call("basic.cancel", consumer_tag=tags[-1])
    return tags


@case("priority.backlog", ok("hhhll"))
def _(s: Session) -> str:
    """A backlog is delivered to the consumer of the highest priority first, the rest to the next."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=3)
    opened.consume(s.q, "l")
    opened.consume(s.q, "h", arguments={"x-priority": 10})
    for _ in range(5):
        opened.publish("", s.q, b"x")
    return "".join(opened.deliver().consumer_tag for _ in range(5))


@case("exclusive.served", ok(["a", "a"]))
def _(s: Session) -> list[str]:
    """All messages are delivered to an exclusive consumer."""
    opened = s.queue()
    opened.consume(s.q, "a", exclusive=True, no_ack=True)
    return _served(opened, s.q, 2)


@case(
    "exclusive.other-connection", channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use")
)
def _(s: Session) -> None:
    """An exclusive consumer excludes consumers of other connections."""
    opened = s.queue()
    opened.consume(s.q, "a", exclusive=True)
    s.channel().consume(s.q, "b")


@case("exclusive.get", ok(b"2"))
def _(s: Session) -> bytes | None:
    """basic.get is possible while an exclusive consumer exists."""
    opened = fill(s, s.channel(), 2)
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "a", exclusive=True)
    opened.deliver()
    return s.channel().get(s.q)


@case("exclusive.channel-close", ok(["b"]))
def _(s: Session) -> list[str]:
    """After the channel of an exclusive consumer closes, others may consume."""
    opened = s.queue()
    opened.consume(s.q, "a", exclusive=True)
    second = opened.client.channel(2)
    opened.call("channel.close", reply_code=200)
    second.consume(s.q, "b", no_ack=True)
    return _served(second, s.q)


@case("exclusive.priority", ok(["a"]))
def _(s: Session) -> list[str]:
    """An exclusive consumer may have a priority."""
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


@case("timeout.queue", channel(406, None, _LATE.format(900)), of=("4.3",))
def _(s: Session) -> None:
    """A queue's consumer timeout overrides the broker's."""
    opened = _untold(s, arguments={"x-consumer-timeout": 900})
    opened.consume(s.q)
    opened.publish("", s.q, b"x")
    _wait_for_close(opened)


@case("timeout.consumer", channel(406, None, _LATE.format(800)), of=("4.3",))
def _(s: Session) -> None:
    """A consumer's own timeout overrides its queue's, even if another consumer has an older unacked delivery."""
    opened = _untold(s, arguments={"x-consumer-timeout": 0})
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "patient")
    opened.publish("", s.q, b"1")
    opened.deliver()
    opened.consume(s.q, "hasty", arguments={"x-consumer-timeout": 800})
    opened.publish("", s.q, b"2")
    _wait_for_close(opened)


@case("timeout.requeue", ok((b"1", True, 1)), setup="tight")
def _(s: Session) -> tuple[object, ...]:
    """After a consumer timeout the unacked messages are delivered to others, and the channel's consumers are removed."""
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


@case("timeout.get", channel(406, None, _LATE.format(1000)), setup="tight")
def _(s: Session) -> None:
    """The consumer timeout applies to messages from basic.get too."""
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
        channel(406, "queue.declare", _what),
        statement=f"declaring a queue with x-consumer-timeout {_value!r}",
        of=("4.3",),
    )(_bad_queue_timeout)
    case(
        f"timeout.consumer-{_name}",
        channel(406, "basic.consume", _what),
        statement=f"consuming with x-consumer-timeout {_value!r}",
        of=("4.3",),
    )(_bad_consumer_timeout)
