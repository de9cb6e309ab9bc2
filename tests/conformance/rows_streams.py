"""Rows 90 to 94 and further cases: streams by AMQP 0-9-1."""

import contextlib
from typing import Any

from conformance.cases import Cases, Session, channel, connection, ok
from conformance.codec import T
from conformance.wire import Channel, ClosedError, QuietError

ROWS = Cases()
case = ROWS.case

STREAM = {"x-queue-type": "stream"}
WHAT = "queue '{q}' in vhost '/'"


def _stream(s: Session, count: int = 0, *, prefetch: int = 10, **arguments: object) -> Channel:
    """Declare the case's stream, with so many messages; underscores stand for the hyphens of arguments without `x-`."""
    opened = s.channel()
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    opened.queue(s.q, durable=True, arguments={**STREAM, **named})
    if count:
        opened.put(s.q, *[str(number).encode() for number in range(count)])
    if prefetch:
        opened.call("basic.qos", prefetch_count=prefetch)
    return opened


def _read(opened: Channel, queue: str, most: int = 20, **arguments: object) -> list[tuple[bytes, object]]:
    """Return bodies and offsets of what a consumer gets until nothing comes; it acks each."""
    named = {f"x-stream-{key.replace('_', '-')}": value for key, value in arguments.items()}
    opened.consume(queue, "reader", arguments=named)
    found = []
    while len(found) < most:
        try:
            got = opened.receive("basic.deliver", timeout=0.4)
        except QuietError:
            break
        found.append((got.body, got.properties["headers"].get("x-stream-offset")))
        opened.send("basic.ack", delivery_tag=got.delivery_tag)
    return found


@case("stream.declare", ok((0, 0)))
def _(s: Session) -> tuple[object, ...]:
    """Declaring a stream, and again."""
    opened = _stream(s)
    again = opened.call("queue.declare", queue=s.q, durable=True, arguments=STREAM)
    return again.message_count, again.consumer_count


for _letter, _property, _fields in (
    ("a", "auto-delete", {"durable": True, "auto_delete": True}),
    ("b", "exclusive-owner", {"durable": True, "exclusive": True}),
    ("c", "non-durable", {}),
):

    def _property_case(s: Session, fields: dict[str, bool] = _fields) -> None:
        s.channel().queue(s.q, arguments=STREAM, **fields)

    case(
        f"stream.property-{_property}",
        channel(406, "queue.declare", f"invalid property '{_property}' for {WHAT}"),
        statement=f"declaring a stream with {', '.join(sorted(_fields)) or 'no property'}",
    )(_property_case)

for _name, _value in (
    ("x-expires", 1000),
    ("x-message-ttl", 1000),
    ("x-dead-letter-exchange", "amq.direct"),
    ("x-dead-letter-routing-key", "alone"),
    ("x-max-length", 5),
    ("x-max-priority", 5),
    ("x-overflow", "drop-head"),
    ("x-queue-mode", "lazy"),
    ("x-single-active-consumer", True),
    ("x-delivery-limit", 5),
    ("x-dead-letter-strategy", "at-least-once"),
    ("x-quorum-initial-group-size", 1),
):

    def _foreign(s: Session, name: str = _name, value: object = _value) -> None:
        s.queue(durable=True, arguments={**STREAM, name: value})

    case(
        f"stream.argument-{_name}",
        channel(406, "queue.declare", f"invalid arg '{_name}' for {WHAT} of queue type rabbit_stream_queue"),
        statement=f"declaring a stream with {_name}",
    )(_foreign)

_INVALID = f"invalid arg '{{name}}' for {WHAT}: "
for _name, _value, _fault in (
    ("x-max-length-bytes", 1000, ""),
    ("x-max-length-bytes", -1, _INVALID + "{{value_negative,-1}}"),
    ("x-max-age", "7D", ""),
    ("x-max-age", "12h", ""),
    ("x-max-age", "0s", _INVALID + "invalid_max_age"),
    ("x-max-age", "7d", _INVALID + "invalid_max_age"),
    ("x-max-age", "D", _INVALID + "invalid_max_age"),
    ("x-max-age", 7, _INVALID + "{{unacceptable_type,signedint}}"),
    ("x-stream-max-segment-size-bytes", 1000, ""),
    ("x-stream-max-segment-size-bytes", -1, _INVALID + "{{value_negative,-1}}"),
    ("x-stream-max-segment-size-bytes", "a", _INVALID + '"expected integer, got longstr"'),
    (
        "x-stream-max-segment-size-bytes",
        4_000_000_000,
        "Exceeded max value for x-stream-max-segment-size-bytes",
    ),
    ("x-stream-filter-size-bytes", 32, ""),
    ("x-stream-filter-size-bytes", 300, "Invalid value for x-stream-filter-size-bytes"),
    ("x-initial-cluster-size", 1, ""),
    ("x-initial-cluster-size", 0, _INVALID + "{{value_zero,0}}"),
    ("x-queue-leader-locator", "balanced", ""),
    ("x-queue-leader-locator", "nowhere", _INVALID + "invalid_queue_locator_arg"),
    ("x-unknown", 1, ""),
):

    def _argument(s: Session, name: str = _name, value: object = _value) -> None:
        s.queue(durable=True, arguments={**STREAM, name: value})

    case(
        f"stream.value-{_name}-{_value}",
        channel(406, "queue.declare", _fault.replace("{name}", _name).replace("{{", "{").replace("}}", "}"))
        if _fault
        else ok(),
        statement=f"declaring a stream with {_name} {_value!r}",
    )(_argument)


@case(
    "stream.inequivalent",
    channel(
        406, "queue.declare", f"inequivalent arg 'x-max-age' for {WHAT}: received '2D' but current is '1D'"
    ),
)
def _(s: Session) -> None:
    """Redeclaring a stream with another max-age."""
    _stream(s, max_age="1D").queue(s.q, durable=True, arguments={**STREAM, "x-max-age": "2D"})


@case("90", connection(540, "basic.get", f"basic.get not supported by stream queues {WHAT}"))
def _(s: Session) -> None:
    """basic.get on a stream."""
    _stream(s).call("basic.get", queue=s.q)


@case("91", channel(406, "basic.consume", f"consumer prefetch count is not set for stream {WHAT}"))
def _(s: Session) -> None:
    """Consuming from a stream without a prefetch."""
    _stream(s, prefetch=0).consume(s.q)


@case("92", connection(540, "basic.consume", f"automatic acknowledgement not supported by stream {WHAT}"))
def _(s: Session) -> None:
    """Consuming from a stream with automatic acks."""
    _stream(s).consume(s.q, no_ack=True)


@case("93s", connection(540, "basic.consume", f"{WHAT} does not support global qos"))
def _(s: Session) -> None:
    """Consuming from a stream with a prefetch of the channel."""
    opened = _stream(s)
    opened.call("basic.qos", prefetch_count=10, global_=True)
    opened.consume(s.q)


@case("94", connection(540, "queue.purge", f"queue.purge not supported by stream queues {WHAT}"))
def _(s: Session) -> None:
    """Purging a stream."""
    _stream(s).call("queue.purge", queue=s.q)


_ALL = [(b"0", 0), (b"1", 1), (b"2", 2), (b"3", 3)]
for _name, _value, _found in (
    ("first", "first", _ALL),
    ("last", "last", _ALL[3:]),
    ("next", "next", []),
    ("0", T("l", 0), _ALL),
    ("2", T("l", 2), _ALL[2:]),
    ("int", T("I", 2), _ALL[2:]),
    ("beyond", T("l", 1000), []),
    ("negative", T("l", -2), _ALL[2:]),
    ("time-0", T("T", 0), _ALL),
    ("time-future", T("T", 4_000_000_000), []),
    ("hour", "1h", _ALL),
    ("day", "1D", _ALL),
):

    def _offset(s: Session, value: object = _value) -> list[tuple[bytes, object]]:
        return _read(_stream(s, 4), s.q, offset=value)

    case(f"stream.offset-{_name}", ok(_found), statement=f"reading a stream of four messages from {_name}")(
        _offset
    )

for _name in ("first", "last", "next"):

    def _named_by_octets(s: Session, value: bytes = _name.encode()) -> object:
        _stream(s).consume(s.q, arguments={"x-stream-offset": T("x", value)})

    case(f"stream.offset-octets-{_name}", ok(), statement=f"reading a stream from the byte array {_name}")(
        _named_by_octets
    )

for _name, _value, _term in (
    ("octets", T("x", b"begin"), '{binary,<<"begin">>}'),
    ("octets-age", T("x", b"1h"), '{binary,<<"1h">>}'),
    ("word", "begin", '{longstr,<<"begin">>}'),
    ("empty", "", "{longstr,<<>>}"),
    ("interval-zero", "0h", '{longstr,<<"0h">>}'),
    ("interval", "1x", '{longstr,<<"1x">>}'),
    ("bool", True, "{bool,true}"),
    ("double", 1.5, "{double,1.5}"),
    ("void", None, "{void,undefined}"),
):

    def _wrong(s: Session, value: object = _value) -> list[tuple[bytes, object]]:
        return _read(_stream(s, 4), s.q, offset=value)

    case(
        f"stream.offset-wrong-{_name}",
        channel(
            406,
            "basic.consume",
            f"invalid arg 'x-stream-offset' for {WHAT}: {{invalid_stream_offset_arg,{_term}}}",
        ),
        statement=f"reading a stream from {_value!r}",
    )(_wrong)


@case("stream.default", ok([b"later"]))
def _(s: Session) -> list[bytes]:
    """A consumer without an offset gets what is published later."""
    opened = _stream(s, 2)
    opened.consume(s.q, "reader")
    opened.put(s.q, b"later")
    return [opened.deliver().body]


@case("stream.credit", ok((2, 1, 3)))
def _(s: Session) -> tuple[int, ...]:
    """A consumer gets as many messages as its prefetch, and one for each ack."""
    opened = _stream(s, 10, prefetch=2)
    opened.consume(s.q, "reader", arguments={"x-stream-offset": "first"})
    got = [opened.deliver() for _ in range(2)]
    first = len(got) if opened.quiet("basic.deliver") else -1
    opened.send("basic.ack", delivery_tag=got[0].delivery_tag)
    got.append(opened.deliver())
    second = 1 if opened.quiet("basic.deliver") else -1
    return first, second, len(got)


for _method in ("basic.nack", "basic.reject"):
    for _requeue in (True, False):

        def _negative(s: Session, method: str = _method, requeue: bool = _requeue) -> tuple[object, ...]:
            opened = _stream(s, 4, prefetch=1)
            opened.consume(s.q, "reader", arguments={"x-stream-offset": "first"})
            got = opened.deliver()
            opened.send(method, delivery_tag=got.delivery_tag, requeue=requeue)
            following = opened.deliver()
            return got.body, following.body, following.redelivered

        case(
            f"stream.{_method}-{_requeue}",
            ok((b"0", b"1", False)),
            statement=f"{_method} with requeue {_requeue} makes room for the next message",
        )(_negative)


@case("stream.recover", ok((b"0", b"1", False)))
def _(s: Session) -> tuple[object, ...]:
    """basic.recover gives back nothing to a stream."""
    opened = _stream(s, 4, prefetch=1)
    opened.consume(s.q, "reader", arguments={"x-stream-offset": "first"})
    got = opened.deliver()
    opened.call("basic.recover", requeue=True)
    following = opened.deliver()
    return got.body, following.body, following.redelivered


@case("stream.two-readers", ok(([b"0", b"1"], [b"0", b"1"])))
def _(s: Session) -> tuple[list[bytes], ...]:
    """Two consumers get all messages each."""
    opened = _stream(s, 2)
    other = s.channel()
    other.call("basic.qos", prefetch_count=10)
    return tuple([body for body, _ in _read(each, s.q, offset="first")] for each in (opened, other))


@case("stream.exclusive")
def _(s: Session) -> None:
    """An exclusive consumer of a stream excludes no other."""
    opened = _stream(s)
    opened.consume(s.q, "1", exclusive=True)
    opened.consume(s.q, "2")


@case("stream.counts", ok((3, 0)))
def _(s: Session) -> tuple[int, int]:
    """The messages of a stream are counted, but not in delete-ok."""
    opened = _stream(s, 3)
    return opened.ready(s.q, 3, within=8), opened.call("queue.delete", queue=s.q).message_count


@case("stream.delete-if-empty", ok(0))
def _(s: Session) -> Any:
    """if-empty has no effect on a stream."""
    return _stream(s, 1).call("queue.delete", queue=s.q, if_empty=True).message_count


@case("stream.delete-if-unused", ok((0, True)))
def _(s: Session) -> Any:
    """if-unused has no effect on a stream: its consumer is cancelled."""
    opened = _stream(s)
    opened.consume(s.q)
    return opened.call("queue.delete", queue=s.q, if_unused=True).message_count, _is_gone(s)


def _is_gone(s: Session) -> bool:
    with contextlib.suppress(ClosedError):
        s.channel().call("queue.declare", queue=s.q, passive=True)
        return False
    return True


@case("stream.headers", ok(([("mine", "x"), ("x-stream-offset", 0)], "text/plain")))
def _(s: Session) -> object:
    """A delivery has the headers of the message, and its offset."""
    opened = _stream(s)
    opened.put(s.q, b"a", headers={"mine": "x", "x-stream-offset": "claimed"}, content_type="text/plain")
    opened.consume(s.q, "reader", arguments={"x-stream-offset": "first"})
    got = opened.deliver()
    return sorted(got.properties["headers"].items()), got.properties["content_type"]


def _filtered(s: Session, **arguments: object) -> list[bytes]:
    opened = _stream(s)
    for value in ("a", "b", None, "a"):
        headers = {} if value is None else {"x-stream-filter-value": value}
        opened.put(s.q, (value or "none").encode(), headers=headers)
    # RabbitMQ filters whole chunks; clients filter again
    return [body for body, _ in _read(opened, s.q, offset="first", **arguments)]


@case("stream.filter", ok([b"a", b"a"]), of=("4.3",))
def _(s: Session) -> list[bytes]:
    """A consumer with a filter gets the messages with that value."""
    return _filtered(s, filter="a")


@case("stream.filter-array", ok([b"a", b"b", b"a"]), of=("4.3",))
def _(s: Session) -> list[bytes]:
    """A consumer with two values."""
    return _filtered(s, filter=["a", "b"])


@case("stream.filter-unfiltered", ok([b"a", b"none", b"a"]), of=("4.3",))
def _(s: Session) -> list[bytes]:
    """A consumer that wants messages without a value, too."""
    return _filtered(s, filter="a", match_unfiltered=True)


for _name, _value, _term in (("nothing", [], "[]"), ("numbers", [1], "[{signedint,1}]")):

    def _without_texts(s: Session, value: list[int] = _value) -> None:
        _stream(s).consume(s.q, arguments={"x-stream-filter": value})

    case(
        f"stream.filter-{_name}",
        channel(
            406,
            "basic.consume",
            f"invalid arg 'x-stream-filter' for {WHAT}: {{invalid_stream_filter_arg,{{array,{_term}}}}}",
        ),
        statement=f"consuming from a stream with the filter {_value}",
    )(_without_texts)


for _name, _arguments, _is_valid in (
    ("filter-number", {"x-stream-filter": 5}, True),
    ("filter-mixed", {"x-stream-filter": ["a", 1]}, True),
    ("unfiltered-text", {"x-stream-filter": "a", "x-stream-match-unfiltered": "yes"}, True),
    ("unknown", {"mine": 1}, True),
    ("credit", {"x-credit": {"credit": 1, "drain": False}}, True),
    ("priority", {"x-priority": 5}, False),
    ("failover", {"x-cancel-on-ha-failover": True}, False),
    ("timeout", {"x-consumer-timeout": 1000}, True),
):

    def _consumer(s: Session, arguments: dict[str, object] = _arguments) -> None:
        _stream(s).consume(s.q, arguments=arguments)

    case(
        f"stream.consume-{_name}",
        ok()
        if _is_valid
        else channel(
            406,
            "basic.consume",
            f"invalid arg '{next(iter(_arguments))}' for {WHAT} of queue type rabbit_stream_queue",
        ),
        statement=f"consuming from a stream with {', '.join(_arguments)}",
    )(_consumer)


@case("stream.dead-letter", ok([(b"dead", 0)]))
def _(s: Session) -> list[tuple[bytes, object]]:
    """A stream gets dead letters, and keeps them."""
    opened = _stream(s)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q, "x-message-ttl": 0}
    opened.put(opened.queue(arguments=arguments, exclusive=True), b"dead")
    opened.ready(s.q, 1, within=8)
    return _read(opened, s.q, offset="first")


@case("stream.transient", ok([(b"a", 0)]))
def _(s: Session) -> list[tuple[bytes, object]]:
    """A transient message is kept in a stream, and its expiration has no effect."""
    opened = _stream(s)
    opened.put(s.q, b"a", delivery_mode=1, expiration="1")
    opened.lapse(50)
    return _read(opened, s.q, offset="first")


@case("stream.tx", ok((b"0", b"1", b"in")))
def _(s: Session) -> tuple[object, ...]:
    """A transaction publishes to a stream, and acks its deliveries."""
    opened = _stream(s, 2)
    opened.call("tx.select")
    opened.publish("", s.q, b"in", delivery_mode=2)
    opened.call("tx.commit")
    opened.consume(s.q, "reader", arguments={"x-stream-offset": "first"})
    got = [opened.deliver() for _ in range(3)]
    opened.send("basic.ack", delivery_tag=got[0].delivery_tag)
    opened.call("tx.commit")
    return tuple(each.body for each in got)
