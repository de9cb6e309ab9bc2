"""Rows 59, 60, 89 and 93: quorum queues, as far as a single broker has them."""

import contextlib

from conformance.cases import Cases, Session, channel, connection, ok
from conformance.codec import T
from conformance.wire import Channel, QuietError

ROWS = Cases()
case = ROWS.case

QUORUM = {"x-queue-type": "quorum"}


def _quorum(s: Session, opened: Channel | None = None, **arguments: object) -> Channel:
    """Declare the case's queue as a quorum queue; underscores stand for the hyphens of arguments without `x-`."""
    opened = opened or s.channel()
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    opened.queue(s.q, durable=True, arguments={**QUORUM, **named})
    return opened


@case(
    "59a", channel(406, "queue.declare", "Cannot declare a server-named queue for type rabbit_quorum_queue")
)
def _(s: Session) -> None:
    """Declaring a server-named quorum queue."""
    s.channel().queue("", durable=True, arguments=QUORUM)


@case(
    "59b", channel(406, "queue.declare", "Cannot declare a server-named queue for type rabbit_stream_queue")
)
def _(s: Session) -> None:
    """Declaring a server-named stream."""
    s.channel().queue("", durable=True, arguments={"x-queue-type": "stream"})


for _letter, _property, _fields in (
    ("a", "auto-delete", {"durable": True, "auto_delete": True}),
    ("b", "exclusive-owner", {"durable": True, "exclusive": True}),
    ("c", "non-durable", {}),
    ("d", "auto-delete", {"exclusive": True, "auto_delete": True}),
    ("e", "exclusive-owner", {"exclusive": True}),
):

    def _property_case(s: Session, fields: dict[str, bool] = _fields) -> None:
        s.channel().queue(s.q, arguments=QUORUM, **fields)

    case(
        f"60{_letter}",
        channel(406, "queue.declare", f"invalid property '{_property}' for queue '{{q}}' in vhost '/'"),
        statement=f"declaring a quorum queue with {', '.join(sorted(_fields)) or 'no property'}",
    )(_property_case)

for _letter, _name, _value in (
    ("g", "x-max-priority", 5),
    ("h", "x-queue-mode", "lazy"),
    ("i", "x-queue-version", 2),
    ("j", "x-queue-master-locator", "min-masters"),
    ("k", "x-max-age", "1D"),
    ("l", "x-stream-max-segment-size-bytes", 1000),
    ("m", "x-initial-cluster-size", 1),
):

    def _foreign(s: Session, name: str = _name, value: object = _value) -> None:
        s.channel().queue(s.q, durable=True, arguments={**QUORUM, name: value})

    case(
        f"57{_letter}",
        channel(
            406,
            "queue.declare",
            f"invalid arg '{_name}' for queue '{{q}}' in vhost '/' of queue type rabbit_quorum_queue",
        ),
        statement=f"declaring a quorum queue with {_name}, an argument of other queue types",
    )(_foreign)

for _name, _label, _value, _fault in (
    ("expires", "zero", 0, "{value_zero,0}"),
    ("message-ttl", "negative", -1, "{value_negative,-1}"),
    ("dead-letter-routing-key", "alone", "k", "routing_key_but_no_dlx_defined"),
    ("dead-letter-strategy", "other", "often", "invalid_dlx_strategy"),
    ("dead-letter-strategy", "number", 1, "{unacceptable_type,signedint}"),
    ("max-length", "string", "1", '"expected integer, got longstr"'),
    ("max-in-memory-length", "negative", -1, "{value_negative,-1}"),
    ("max-in-memory-bytes", "negative", -1, "{value_negative,-1}"),
    ("overflow", "other", "drop-tail", "invalid_overflow"),
    ("single-active-consumer", "number", 1, "{unacceptable_type,signedint}"),
    ("quorum-initial-group-size", "zero", 0, "{value_zero,0}"),
    ("quorum-initial-group-size", "negative", -1, "{value_negative,-1}"),
    ("queue-leader-locator", "other", "nearest", "invalid_queue_locator_arg"),
    ("queue-leader-locator", "number", 1, "{unacceptable_type,signedint}"),
):

    def _wrong(s: Session, name: str = _name, value: object = _value) -> None:
        s.channel().queue(s.q, durable=True, arguments={**QUORUM, f"x-{name}": value})

    case(
        f"quorum.{_name}-{_label}",
        channel(406, "queue.declare", f"invalid arg 'x-{_name}' for queue '{{q}}' in vhost '/': {_fault}"),
        statement=f"declaring a quorum queue with x-{_name} {_value!r}",
    )(_wrong)


@case("quorum.arguments", ok(0))
def _(s: Session) -> int:
    """All arguments of quorum queues are accepted."""
    opened = _quorum(
        s,
        expires=100_000,
        message_ttl=100_000,
        dead_letter_exchange="",
        dead_letter_routing_key="k",
        dead_letter_strategy="at-least-once",
        max_length=100,
        max_length_bytes=100_000,
        max_in_memory_length=10,
        max_in_memory_bytes=100,
        overflow="reject-publish",
        single_active_consumer=True,
        quorum_initial_group_size=1,
        delivery_limit=3,
        queue_leader_locator="client-local",
    )
    return int(opened.call("queue.declare", queue=s.q, passive=True).message_count)


@case("quorum.redeclare")
def _(s: Session) -> None:
    """A quorum queue may be declared again with the same arguments."""
    opened = _quorum(s, delivery_limit=3)
    _quorum(s, opened, delivery_limit=T("l", 3))


_SAID = "inequivalent arg '{}' for queue '{{q}}' in vhost '/': received {} but current is {}"
for _label, _first, _second, _difference in (
    ("without-type", QUORUM, {}, ("x-queue-type", "none", "the value 'quorum' of type 'longstr'")),
    ("as-classic", QUORUM, {"x-queue-type": "classic"}, ("x-queue-type", "'classic'", "'quorum'")),
    ("unnamed-classic", {}, QUORUM, ("x-queue-type", "the value 'quorum' of type 'longstr'", "none")),
    ("named-classic", {"x-queue-type": "classic"}, QUORUM, ("x-queue-type", "'quorum'", "'classic'")),
    (
        "other-limit",
        {**QUORUM, "x-delivery-limit": 3},
        {**QUORUM, "x-delivery-limit": 4},
        ("x-delivery-limit", "'4'", "'3'"),
    ),
    (
        "no-limit",
        {**QUORUM, "x-delivery-limit": 3},
        QUORUM,
        ("x-delivery-limit", "none", "the value '3' of type 'signedint'"),
    ),
    (
        "two",
        QUORUM,
        {**QUORUM, "x-delivery-limit": 4, "x-max-length": 3},
        ("x-max-length", "the value '3' of type 'signedint'", "none"),
    ),
):

    def _again(s: Session, first: dict[str, object] = _first, second: dict[str, object] = _second) -> None:
        opened = s.queue(durable=True, arguments=first)
        opened.queue(s.q, durable=True, arguments=second)

    case(
        f"quorum.redeclare-{_label}",
        channel(406, "queue.declare", _SAID.format(*_difference)),
        statement=f"a queue declared with {_first or 'no arguments'}, then with {_second or 'no arguments'}",
    )(_again)


@case("93a", connection(540, "basic.consume", "queue '{q}' in vhost '/' does not support global qos"))
def _(s: Session) -> None:
    """Consuming from a quorum queue on a channel with a global prefetch."""
    opened = _quorum(s)
    opened.call("basic.qos", prefetch_count=5, global_=True)
    opened.consume(s.q)


@case("93b", ok(b"1"))
def _(s: Session) -> bytes | None:
    """A global prefetch of 0 is allowed, and basic.get is allowed despite a global prefetch."""
    opened = _quorum(s)
    opened.call("basic.qos", prefetch_count=5, global_=True)
    opened.publish("", s.q, b"1")
    opened.ready(s.q, 1)
    got = opened.get(s.q)
    opened.call("basic.qos", prefetch_count=0, global_=True)
    opened.consume(s.q)
    return got


@case(
    "89",
    channel(
        405,
        "basic.get",
        "cannot obtain access to locked queue '{q}' in vhost '/'. basic.get operations are not supported by quorum queues"
        " with single active consumer",
    ),
)
def _(s: Session) -> None:
    """basic.get from a quorum queue with a single active consumer."""
    opened = _quorum(s, single_active_consumer=True)
    opened.get(s.q)


@case("quorum.single-active", ok(["a", "b"]))
def _(s: Session) -> list[str]:
    """A quorum queue delivers to its single active consumer, then to its successor."""
    opened = _quorum(s, single_active_consumer=True)
    tags = []
    for tag in "ab":
        opened.consume(s.q, tag, no_ack=True)
    for tag in "ab":
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
        opened.call("basic.cancel", consumer_tag=tag)
    return tags


@case("quorum.exclusive-consumer", ok("b"))
def _(s: Session) -> str:
    """An exclusive consumer of a quorum queue does not exclude others."""
    opened = _quorum(s)
    opened.consume(s.q, "a", exclusive=True)
    return opened.consume(s.q, "b", exclusive=True)


@case("quorum.exclusive-single", ok("b"))
def _(s: Session) -> str:
    """An exclusive consumer on a quorum queue with a single active consumer."""
    opened = _quorum(s, single_active_consumer=True)
    opened.consume(s.q, "a", exclusive=True)
    return opened.consume(s.q, "b", exclusive=True)


@case(
    "quorum.consume-argument",
    channel(
        406,
        "basic.consume",
        "invalid arg 'x-cancel-on-ha-failover' for queue '{q}' in vhost '/' of queue type rabbit_quorum_queue",
    ),
)
def _(s: Session) -> None:
    """Consuming from a quorum queue with an argument of mirrored queues."""
    _quorum(s).consume(s.q, arguments={"x-cancel-on-ha-failover": True})


@case(
    "quorum.consume-offset",
    channel(
        406,
        "basic.consume",
        "invalid arg 'x-stream-offset' for queue '{q}' in vhost '/' of queue type rabbit_quorum_queue",
    ),
)
def _(s: Session) -> None:
    """Consuming from a quorum queue with an argument of streams."""
    _quorum(s).consume(s.q, arguments={"x-stream-offset": "first"})


@case("quorum.fifo", ok(([b"1", b"2", b"3"], 0)))
def _(s: Session) -> tuple[object, ...]:
    """Messages are delivered in order, and acked, rejected and counted as in a classic queue."""
    opened = _quorum(s)
    opened.call("confirm.select")
    for number in (b"1", b"2", b"3"):
        opened.publish("", s.q, number, delivery_mode=2)
    opened.consume(s.q)
    got = [opened.deliver() for _ in range(3)]
    opened.send("basic.ack", delivery_tag=got[-1].delivery_tag, multiple=True)
    return [each.body for each in got], opened.call("queue.delete", queue=s.q).message_count


@case("quorum.redelivered", ok((True, b"1")))
def _(s: Session) -> tuple[object, ...]:
    """Messages that a closed channel had not acked are delivered again, marked as redelivered."""
    opened = _quorum(s)
    opened.publish("", s.q, b"1", delivery_mode=2)
    opened.consume(s.q)
    opened.deliver()
    second = opened.client.channel(2)
    second.consume(s.q, "b")
    opened.call("channel.close", reply_code=200)
    got = second.deliver()
    return got.redelivered, got.body


@case("quorum.requeue-order", ok([b"1", b"2", b"3", b"4"]))
def _(s: Session) -> list[bytes | None]:
    """Requeued messages return to their old positions."""
    opened = _quorum(s)
    for number in range(1, 5):
        opened.publish("", s.q, str(number).encode(), delivery_mode=2)
    opened.ready(s.q, 4)
    opened.call("basic.qos", prefetch_count=2)
    opened.consume(s.q)
    tags = [opened.deliver().delivery_tag for _ in range(2)]
    opened.call("basic.cancel", consumer_tag="ct")
    for tag in tags:
        opened.send("basic.nack", delivery_tag=tag, requeue=True)
    opened.ready(s.q, 4)
    return [opened.get(s.q) for _ in range(4)]


for _condition in ("if-unused", "if-empty"):

    def _deleted(s: Session, condition: str = _condition) -> None:
        _quorum(s).call("queue.delete", queue=s.q, **{condition.replace("-", "_"): True})

    case(
        f"quorum.delete-{_condition}",
        connection(
            540,
            "queue.delete",
            f"cannot delete queue '{{q}}' in vhost '/'. queue.delete operations with {_condition} flag set are not supported by quorum queues",
        ),
        statement=f"a quorum queue is not deleted with {_condition}",
    )(_deleted)


@case("quorum.purge", ok((2, None)))
def _(s: Session) -> tuple[object, ...]:
    """A purge removes ready messages."""
    opened = _quorum(s)
    for _ in range(2):
        opened.publish("", s.q, b"x", delivery_mode=2)
    opened.ready(s.q, 2)
    return opened.call("queue.purge", queue=s.q).message_count, opened.get(s.q)


def _returned(opened: Channel, times: int) -> list[tuple[bool, object]]:
    """Give a message back up to that many times; the flag and the count of each of its deliveries."""
    seen: list[tuple[bool, object]] = []
    with contextlib.suppress(QuietError):
        while len(seen) < times:
            got = opened.deliver(timeout=0.5 if seen else None)
            seen.append((got.redelivered, got.properties.get("headers", {}).get("x-delivery-count")))
            opened.send(
                ("basic.nack", "basic.reject")[len(seen) % 2], delivery_tag=got.delivery_tag, requeue=True
            )
    return seen


for _limit, _seen in ((2, [(False, None), (True, 1), (True, 2)]), (0, [(False, None)])):

    def _limited(s: Session, limit: int = _limit) -> list[tuple[bool, object]]:
        opened = _quorum(s, delivery_limit=limit)
        opened.publish("", s.q, b"x", delivery_mode=2)
        opened.consume(s.q)
        return _returned(opened, 5)

    case(
        f"quorum.delivery-limit-{_limit}",
        ok(_seen),
        statement=f"with a delivery limit of {_limit} a quorum queue delivers a message {_limit + 1} times, and counts redeliveries",
    )(_limited)


@case("quorum.delivery-count", ok([(False, None), (True, 1), (True, 2), (True, 3)]))
def _(s: Session) -> list[tuple[bool, object]]:
    """A quorum queue without a delivery limit counts redeliveries too."""
    opened = _quorum(s)
    opened.publish("", s.q, b"x", delivery_mode=2)
    opened.consume(s.q)
    return _returned(opened, 4)
