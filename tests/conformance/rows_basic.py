"""Rows 73-98 and 110: publishing, consuming, getting and settling."""

import contextlib

from conformance.cases import Cases, Session, channel, connection, ok
from conformance.wire import Channel, QuietError, T

ROWS = Cases()
case = ROWS.case
REPLY_TO = "amq.rabbitmq.reply-to"


def _three(s: Session, opened: Channel, count: int = 3) -> Channel:
    """A queue with the messages 1 to `count`."""
    opened.queue(s.q)
    for number in range(1, count + 1):
        opened.publish("", s.q, str(number).encode())
    opened.ready(s.q, count)
    return opened


@case(
    "73a",
    "publishing to an exchange that does not exist",
    channel(404, "basic.publish", "no exchange '{x}' in vhost '/'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.publish(s.x, "k", b"x")
    opened.sync()


@case(
    "73b",
    "the error comes when the whole content has come, and confirms nothing",
    ok((True, "channel.close")),
)
def _(s: Session) -> tuple[bool, str]:
    opened = s.channel()
    opened.call("confirm.select")
    opened.client.send(1, "basic.publish", exchange=s.x)
    quiet = opened.quiet()
    opened.client.raw(bytes.fromhex("02 0001 0000000e 003c 0000 0000000000000000 0000 ce"))
    return quiet, opened.receive("channel.close", "basic.ack").name


@case(
    "74",
    "publishing to an internal exchange",
    channel(403, "basic.publish", "cannot publish to internal exchange '{x}' in vhost '/'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.publish(opened.exchange(s.x, internal=True), "k", b"x")
    opened.sync()


@case("75", "publishing with immediate", connection(540, "basic.publish", "immediate=true"))
def _(s: Session) -> None:
    opened = s.channel()
    opened.publish("amq.direct", "k", b"x", immediate=True)
    opened.sync()


@case(
    "76a",
    "a message larger than the limit",
    channel(406, "basic.publish", "message size 1001 is larger than configured max size 1000"),
    setup="tight",
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.publish("amq.direct", "k", bytes(1001))
    opened.sync()


@case("76b", "a message of the limit's size", setup="tight")
def _(s: Session) -> None:
    opened = s.channel()
    opened.publish("amq.direct", "k", bytes(1000))
    opened.sync()


for _letter, _value, _text in (
    ("a", "abc", "no_integer"),
    ("b", "5ms", '{leftover_string,"ms"}'),
    ("c", "-1", "{value_negative,-1}"),
    ("d", "315360000001", "{value_too_large,315360000001}"),
    ("e", "", "no_integer"),
    ("f", "1.5", '{leftover_string,".5"}'),
):

    def _expiration(s: Session, value: str = _value) -> None:
        opened = s.channel()
        opened.publish("amq.direct", "k", b"x", expiration=value)
        opened.sync()

    case(
        f"77{_letter}",
        f"publishing with the expiration {_value!r}",
        channel(406, "basic.publish", f"invalid expiration '{_value}': {_text}"),
    )(_expiration)

for _letter, _value in (("p", "0"), ("q", "315360000000"), ("r", "+5"), ("s", "007")):

    def _expires(s: Session, value: str = _value) -> None:
        opened = s.channel()
        opened.publish("amq.direct", "k", b"x", expiration=value)
        opened.sync()

    case(f"77{_letter}", f"publishing with the expiration {_value!r} is allowed")(_expires)


@case(
    "78a",
    "publishing as another user",
    channel(406, "basic.publish", "user_id property set to 'other' but authenticated user was 'guest'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.publish("amq.direct", "k", b"x", user_id="other")
    opened.sync()


@case("78b", "an impersonator may publish as another user, everyone as oneself")
def _(s: Session) -> None:
    opened = s.channel("impersonator")
    opened.publish("amq.direct", "k", b"x", user_id="other")
    opened.sync()
    opened = s.channel()
    opened.publish("amq.direct", "k", b"x", user_id="guest")
    opened.sync()


for _letter, _headers, _text in (
    ("a", {"CC": "q"}, '{unacceptable_type_in_header,"CC",longstr}'),
    ("b", {"BCC": 1}, '{unacceptable_type_in_header,"BCC",signedint}'),
    ("d", {"CC": None}, '{unacceptable_type_in_header,"CC",void}'),
):

    def _copies(s: Session, headers: dict = _headers) -> None:
        opened = s.channel()
        opened.publish("amq.direct", "k", b"x", headers=headers)
        opened.sync()

    case(
        f"79{_letter}",
        f"publishing with the headers {_headers}",
        channel(406, "basic.publish", f"invalid message: {_text}"),
    )(_copies)


@case("79e", "what is not a string in an array of copies is passed over", ok(1))
def _(s: Session) -> int:
    opened = s.channel()
    opened.queue(s.q)
    opened.publish("amq.direct", "k", b"x", headers={"CC": [5, None, s.q]})
    opened.publish("", "nosuch", b"x", headers={"CC": [5, None, s.q]})
    return opened.drain(s.q)


@case(
    "80",
    "replying by way of direct reply-to without a consumer for the reply",
    channel(406, "basic.publish", "fast reply consumer does not exist"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.publish("amq.direct", "k", b"x", reply_to=REPLY_TO)
    opened.sync()


@case(
    "81a",
    "consuming direct replies with acknowledgements",
    channel(406, "basic.consume", "reply consumer cannot acknowledge"),
)
def _(s: Session) -> None:
    s.channel().consume(REPLY_TO)


@case(
    "81b",
    "a second consumer of direct replies on a channel",
    channel(406, "basic.consume", "reply consumer already set"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.consume(REPLY_TO, "1", no_ack=True)
    opened.consume(REPLY_TO, "2", no_ack=True)


@case(
    "82",
    "consuming from a queue that does not exist",
    channel(404, "basic.consume", "no queue '{q}' in vhost '/'"),
)
def _(s: Session) -> None:
    s.channel().consume(s.q)


@case(
    "83a",
    "using a consumer tag twice",
    connection(530, "basic.consume", "attempt to reuse consumer tag 'ct'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.queue(s.q)
    opened.consume(s.q, "ct")
    opened.consume(s.q, "ct")


@case("83b", "using a consumer tag on two channels, and again after its cancel")
def _(s: Session) -> None:
    opened = s.channel()
    opened.queue(s.q)
    opened.consume(s.q, "ct")
    opened.client.channel(2).consume(s.q, "ct")
    opened.call("basic.cancel", consumer_tag="ct")
    opened.consume(s.q, "ct")


@case(
    "84",
    "a channel's limit on consumers",
    connection(530, "basic.consume", "reached maximum (2) of consumers per channel"),
    setup="tight",
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.queue(s.q)
    for tag in ("1", "2", "3"):
        opened.consume(s.q, tag)


_IN_USE = channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use")


@case("85a", "consuming beside an exclusive consumer", _IN_USE)
def _(s: Session) -> None:
    opened = s.channel()
    opened.queue(s.q)
    opened.consume(s.q, "1", exclusive=True)
    opened.consume(s.q, "2")


@case("85b", "consuming exclusively beside another consumer", _IN_USE)
def _(s: Session) -> None:
    opened = s.channel()
    opened.queue(s.q)
    opened.consume(s.q, "1")
    opened.consume(s.q, "2", exclusive=True)


@case(
    "85c",
    "consuming exclusively from a queue with a single active consumer",
    _IN_USE,
    later="single active consumer",
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.queue(s.q, arguments={"x-single-active-consumer": True})
    opened.consume(s.q, exclusive=True)


@case("85d", "an exclusive consumer leaves room after its cancel")
def _(s: Session) -> None:
    opened = s.channel()
    opened.queue(s.q)
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
        f"consuming with the priority {_value!r}",
        channel(
            406,
            "basic.consume",
            f"invalid arg 'x-priority' for queue '{{q}}' in vhost '/': \"expected integer, got {_type}\"",
        ),
    )(_priority)


@case(
    "86e",
    "an argument of streams on a classic queue",
    channel(
        406,
        "basic.consume",
        "invalid arg 'x-stream-offset' for queue '{q}' in vhost '/' of queue type rabbit_classic_queue",
    ),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.consume(opened.queue(s.q), arguments={"x-stream-offset": "first"})


@case("86f", "a consumer may have arguments the broker does not know, and a negative priority")
def _(s: Session) -> None:
    opened = s.channel()
    opened.consume(opened.queue(s.q), arguments={"x-priority": T("b", -5), "mine": "x"})


@case("87", "cancelling a tag that does not exist is answered with it", ok("nosuch"))
def _(s: Session) -> str:
    return str(s.channel().call("basic.cancel", consumer_tag="nosuch").consumer_tag)


@case(
    "88",
    "basic.get from a queue that does not exist",
    channel(404, "basic.get", "no queue '{q}' in vhost '/'"),
)
def _(s: Session) -> None:
    s.channel().get(s.q)


@case("95", "a prefetch in octets", connection(540, "basic.qos", "prefetch_size!=0 (10)"))
def _(s: Session) -> None:
    s.channel().call("basic.qos", prefetch_size=10)


for _letter, _what, _method, _fields in (
    ("a", "acking a tag never sent", "basic.ack", {"delivery_tag": 5}),
    ("b", "rejecting a tag never sent", "basic.reject", {"delivery_tag": 5}),
    ("c", "nacking a tag never sent", "basic.nack", {"delivery_tag": 5}),
    ("d", "acking all up to a tag never sent", "basic.ack", {"delivery_tag": 5, "multiple": True}),
    ("e", "nacking all up to a tag never sent", "basic.nack", {"delivery_tag": 5, "multiple": True}),
    ("f", "acking tag 0 alone", "basic.ack", {"delivery_tag": 0}),
    ("g", "rejecting tag 0", "basic.reject", {"delivery_tag": 0}),
    ("h", "acking the largest tag", "basic.ack", {"delivery_tag": 2**64 - 1}),
):

    def _unknown(s: Session, method: str = _method, fields: dict = _fields) -> None:
        opened = s.channel()
        opened.send(method, **fields)
        opened.sync()

    case(f"96{_letter}", _what, channel(406, _method, f"unknown delivery tag {_fields['delivery_tag']}"))(
        _unknown
    )


@case("96i", "acking a tag twice", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    opened = _three(s, s.channel())
    opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=1)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("96j", "acking another channel's tag", channel(406, "basic.ack", "unknown delivery tag 1"))
def _(s: Session) -> None:
    opened = _three(s, s.channel())
    opened.get(s.q, no_ack=False)
    other = opened.client.channel(2)
    other.send("basic.ack", delivery_tag=1)
    other.sync()


@case(
    "96k",
    "acking what was delivered without acknowledgements",
    channel(406, "basic.ack", "unknown delivery tag 1"),
)
def _(s: Session) -> None:
    opened = _three(s, s.channel())
    opened.get(s.q)
    opened.send("basic.ack", delivery_tag=1)
    opened.sync()


@case("96l", "tag 0 with multiple settles all, also when there is nothing")
def _(s: Session) -> None:
    opened = s.channel()
    opened.send("basic.ack", delivery_tag=0, multiple=True)
    opened.send("basic.nack", delivery_tag=0, multiple=True)
    opened.sync()


@case(
    "96m",
    "acking up to a tag that was acked already, with others open before it",
    channel(406, "basic.ack", "unknown delivery tag 2"),
)
def _(s: Session) -> None:
    opened = _three(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=2)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.sync()


@case("97a", "recover without requeue", connection(540, "basic.recover", "requeue=false"))
def _(s: Session) -> None:
    s.channel().call("basic.recover", requeue=False)


@case("97b", "recover-async without requeue", connection(540, "basic.recover-async", "requeue=false"))
def _(s: Session) -> None:
    opened = s.channel()
    opened.send("basic.recover-async", requeue=False)
    opened.sync()


@case(
    "98",
    "a delivery that is not acknowledged in time",
    channel(
        406,
        None,
        "delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. This timeout value can be configured,"
        " see consumers doc guide to learn more",
    ),
    setup="tight",
    later="consumer timeout",
)
def _(s: Session) -> None:
    opened = _three(s, s.channel())
    opened.consume(s.q)
    opened.deliver()
    opened.receive("channel.close-ok", timeout=5)


@case(
    "110a",
    "an unroutable mandatory message is returned whole",
    ok((312, "NO_ROUTE", "amq.direct", "nowhere", b"body", {"headers": {"a": 1}, "priority": 3})),
)
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.publish("amq.direct", "nowhere", b"body", mandatory=True, headers={"a": 1}, priority=3)
    back = opened.receive("basic.return")
    return back.reply_code, back.reply_text, back.exchange, back.routing_key, back.body, back.properties


@case("110b", "the return comes before the confirm", ok(("basic.return", "basic.ack")))
def _(s: Session) -> tuple[str, str]:
    opened = s.channel()
    opened.call("confirm.select")
    opened.publish("amq.direct", "nowhere", b"body", mandatory=True)
    return opened.receive().name, opened.receive().name


@case("110c", "an unroutable message that is not mandatory is dropped, and confirmed", ok((1, True)))
def _(s: Session) -> tuple[int, bool]:
    opened = s.channel()
    opened.call("confirm.select")
    opened.publish("", "nosuch-queue", b"body")
    return opened.receive("basic.ack").delivery_tag, opened.quiet("basic.return")


# --- sentences of the feature tables -------------------------------------------------------------------------------------


@case(
    "basic.consume-ok-first",
    "consume-ok comes before the first delivery",
    ok(["basic.consume-ok", "basic.deliver", "basic.deliver"]),
)
def _(s: Session) -> list[str]:
    opened = _three(s, s.channel(), 2)
    opened.send("basic.consume", queue=s.q, consumer_tag="ct")
    return [opened.receive().name for _ in range(3)]


@case(
    "basic.deliver",
    "a delivery has its tag, flag, exchange, key, properties and body",
    ok(("ct", 1, False, "amq.direct", "{key}", {"type": "t", "timestamp": 7}, b"body")),
)
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.queue(s.q)
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


_PROPERTIES = {
    "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 9, "correlation_id": "c",
    "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": 2**40, "type": "t", "user_id": "guest",
    "app_id": "a", "cluster_id": "x",
    "headers": {"bool": True, "int": -5, "long": T("l", 2**40), "double": 1.5, "text": "é", "array": [1, "a", None],
                "table": {"in": {"deep": False}}, "none": None, "time": T("T", 5), "octets": T("x", b"\0\1"),
                "byte": T("b", -1), "short": T("s", -2), "float": T("f", 0.5), "decimal": T("D", (2, 314)),
                "ubyte": T("B", 200), "ushort": T("u", 60000), "uint": T("i", 4000000000)},
}  # fmt: skip


@case(
    "basic.properties",
    "all fourteen properties and all types of table values arrive as they were sent",
    ok(True),
)
def _(s: Session) -> bool:
    opened = s.channel()
    opened.queue(s.q)
    opened.publish("", s.q, b"x", **_PROPERTIES)

    def plain(value: object) -> object:
        if isinstance(value, T):
            return plain(value.value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    return bool(opened.call("basic.get", queue=s.q).properties == plain(_PROPERTIES))


@case("basic.big-body", "a body of many frames arrives whole", ok(True))
def _(s: Session) -> bool:
    opened = s.channel()
    opened.queue(s.q)
    body = bytes(range(256)) * 2000
    opened.publish("", s.q, body)
    return opened.get(s.q) == body


@case("basic.server-tag", "an empty consumer tag gets a generated one", ok("amq.ctag-NAME"))
def _(s: Session) -> str:
    opened = s.channel()
    return opened.consume(opened.queue(s.q), "")


@case("basic.consume-nowait", "a nowait consume answers nothing and works", ok(("basic.deliver", "given")))
def _(s: Session) -> tuple[str, str]:
    opened = _three(s, s.channel(), 1)
    opened.send("basic.consume", queue=s.q, consumer_tag="given", nowait=True)
    got = opened.receive()
    return got.name, got.consumer_tag


@case("basic.cancel-nowait", "a nowait cancel answers nothing and works", ok((True, 0)))
def _(s: Session) -> tuple[bool, int]:
    opened = s.channel()
    opened.queue(s.q)
    opened.consume(s.q)
    opened.send("basic.cancel", consumer_tag="ct", nowait=True)
    quiet = opened.quiet()
    return quiet, opened.call("queue.declare", queue=s.q, passive=True).consumer_count


@case("basic.cancel-last", "cancel-ok comes after the consumer's last delivery", ok(True))
def _(s: Session) -> bool:
    opened = _three(s, s.channel())
    opened.consume(s.q)
    for _ in range(3):
        opened.deliver()
    opened.call("basic.cancel", consumer_tag="ct")
    opened.publish("", s.q, b"4")
    return opened.quiet("basic.deliver")


@case("basic.cancel-keeps-unacked", "a cancelled consumer's unacked messages stay the channel's", ok(0))
def _(s: Session) -> int:
    opened = _three(s, s.channel(), 1)
    opened.consume(s.q)
    tag = opened.deliver().delivery_tag
    opened.call("basic.cancel", consumer_tag="ct")
    opened.send("basic.ack", delivery_tag=tag)
    opened.call("basic.recover", requeue=True)
    return opened.drain(s.q)


@case("basic.cancel-notify", "a queue's deletion cancels its consumers, with nowait set", ok(("ct", True)))
def _(s: Session) -> tuple[str, bool]:
    opened = s.channel()
    opened.queue(s.q)
    opened.consume(s.q)
    s.channel().call("queue.delete", queue=s.q)
    cancel = opened.receive("basic.cancel")
    return cancel.consumer_tag, cancel.nowait


@case(
    "basic.cancel-notify-capability",
    "a client without the capability is not told of its consumer's end",
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
    "a channel that deletes its own consumer's queue is told too",
    ok({"queue.delete-ok", "basic.cancel"}),
)
def _(s: Session) -> set[str]:
    opened = s.channel()
    opened.queue(s.q)
    opened.consume(s.q)
    opened.send("queue.delete", queue=s.q)
    return {opened.receive().name, opened.receive().name}


@case("basic.round-robin", "consumers of a queue take turns", ok(["1", "2", "3", "1", "2", "3"]))
def _(s: Session) -> list[str]:
    opened = s.channel()
    opened.queue(s.q)
    for tag in ("1", "2", "3"):
        opened.consume(s.q, tag, no_ack=True)
    tags = []
    for _ in range(6):
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case(
    "basic.priority",
    "a consumer of a higher priority comes first, until it is full",
    ok(["high", "high", "low"]),
)
def _(s: Session) -> list[str]:
    opened = s.channel()
    opened.queue(s.q)
    opened.call("basic.qos", prefetch_count=2)
    opened.consume(s.q, "low")
    opened.consume(s.q, "high", arguments={"x-priority": 5})
    tags = []
    for _ in range(3):
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case("basic.qos-consumer", "a prefetch holds for consumers started later, each for itself", ok((3, 1, 1)))
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


@case("basic.qos-channel", "a global prefetch holds for all the channel's consumers together", ok(3))
def _(s: Session) -> int:
    opened = s.channel()
    opened.call("basic.qos", prefetch_count=3, global_=True)
    for number in range(2):
        opened.queue(s.q + str(number))
        opened.consume(s.q + str(number), str(number))
        for _ in range(3):
            opened.publish("", s.q + str(number), b"x")
    return _deliveries(opened)


@case("basic.qos-both", "both prefetches hold", ok((1, 2)))
def _(s: Session) -> tuple[int, ...]:
    opened = _three(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.call("basic.qos", prefetch_count=2, global_=True)
    opened.consume(s.q, "1")
    first = _deliveries(opened)
    opened.consume(s.q, "2")
    return first, first + _deliveries(opened)


@case("basic.qos-raise", "a raised global prefetch lets more messages come", ok((1, 2)))
def _(s: Session) -> tuple[int, ...]:
    opened = _three(s, s.channel())
    opened.call("basic.qos", prefetch_count=1, global_=True)
    opened.consume(s.q)
    first = _deliveries(opened)
    opened.call("basic.qos", prefetch_count=0, global_=True)
    return first, _deliveries(opened)


@case("basic.qos-no-ack", "a prefetch does not hold for a consumer without acknowledgements", ok(3))
def _(s: Session) -> int:
    opened = _three(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, no_ack=True)
    return _deliveries(opened)


@case("basic.qos-get", "a get does not count in a prefetch", ok(1))
def _(s: Session) -> int:
    opened = _three(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.get(s.q, no_ack=False)
    opened.consume(s.q)
    return _deliveries(opened)


@case("basic.qos-ack", "an ack makes room for the next message", ok([1, 2, 3]))
def _(s: Session) -> list[int]:
    opened = _three(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    tags = []
    for _ in range(3):
        tags.append(opened.deliver().delivery_tag)
        opened.send("basic.ack", delivery_tag=tags[-1])
    return tags


def _deliveries(opened: Channel) -> int:
    """How many deliveries come until it is quiet."""
    count = 0
    while not opened.quiet("basic.deliver", timeout=0.15):
        count += 1
    return count


@case(
    "basic.get",
    "get-ok tells how many messages remain ready, get-empty comes after the last",
    ok((1, 0, "basic.get-empty")),
)
def _(s: Session) -> tuple[object, ...]:
    opened = _three(s, s.channel(), 2)
    first = opened.call("basic.get", queue=s.q).message_count
    second = opened.call("basic.get", queue=s.q).message_count
    return first, second, opened.call("basic.get", queue=s.q).name


@case("basic.get-tags", "gets and deliveries number their tags in one row", ok([1, 2, 3]))
def _(s: Session) -> list[int]:
    opened = _three(s, s.channel())
    first = opened.call("basic.get", queue=s.q).delivery_tag
    opened.consume(s.q, no_ack=True)
    return [first, opened.deliver().delivery_tag, opened.deliver().delivery_tag]


@case("basic.ack-multiple", "an ack with multiple settles all up to its tag", ok([b"3"]))
def _(s: Session) -> list[bytes | None]:
    opened = _three(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.ack", delivery_tag=2, multiple=True)
    opened.call("basic.recover", requeue=True)
    return [opened.get(s.q)]


@case(
    "basic.nack-requeue",
    "nacked messages go back to their places, marked as redelivered",
    ok([(b"1", True), (b"2", True), (b"3", True), (b"4", False)]),
)
def _(s: Session) -> list[tuple[bytes, bool]]:
    opened = _three(s, s.channel(), 4)
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.reject", delivery_tag=2, requeue=True)
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    got = [opened.call("basic.get", queue=s.q) for _ in range(4)]
    return [(message.body, message.redelivered) for message in got]


@case("basic.nack-drop", "nack and reject without requeue drop", ok(0))
def _(s: Session) -> int:
    opened = _three(s, s.channel())
    for _ in range(3):
        opened.get(s.q, no_ack=False)
    opened.send("basic.nack", delivery_tag=2, multiple=True)
    opened.send("basic.reject", delivery_tag=3)
    opened.call("basic.recover", requeue=True)
    return opened.drain(s.q)


@case(
    "basic.recover",
    "recover requeues what is unacked and delivers it again, in order",
    ok([b"1", b"2", b"3", b"1", b"2", b"3"]),
)
def _(s: Session) -> list[bytes]:
    opened = _three(s, s.channel())
    opened.consume(s.q)
    bodies = [opened.deliver().body for _ in range(3)]
    opened.call("basic.recover", requeue=True)
    return bodies + [opened.deliver().body for _ in range(3)]


@case("basic.recover-async", "recover-async does the same without an answer", ok((b"1", True)))
def _(s: Session) -> tuple[bytes, bool]:
    opened = _three(s, s.channel(), 1)
    opened.get(s.q, no_ack=False)
    opened.send("basic.recover-async", requeue=True)
    got = opened.call("basic.get", queue=s.q)
    return got.body, got.redelivered


@case(
    "basic.requeue-on-drop",
    "a connection that is lost gives its unacked messages back, marked as redelivered",
    ok([(b"1", True), (b"2", True), (b"3", False)]),
)
def _(s: Session) -> list[tuple[bytes, bool]]:
    other = _three(s, s.channel())
    lost = s.channel()
    lost.get(s.q, no_ack=False)
    lost.get(s.q, no_ack=False)
    lost.client.close_socket()
    other.ready(s.q, 3)
    got = [other.call("basic.get", queue=s.q) for _ in range(3)]
    return [(message.body, message.redelivered) for message in got]


@case("basic.cc", "CC and BCC add keys; BCC is taken out, CC stays", ok(({"CC": ["b"], "x": 1}, [1, 1, 1])))
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.exchange(s.x)
    for key in ("a", "b", "c"):
        opened.queue(s.q + key)
        opened.call("queue.bind", queue=s.q + key, exchange=s.x, routing_key=key)
    opened.publish(s.x, "a", b"x", headers={"CC": ["b"], "BCC": ["c"], "x": 1})
    got = opened.call("basic.get", queue=s.q + "c")
    return got.properties["headers"], [opened.drain(s.q + "a"), opened.drain(s.q + "b"), 1]


@case(
    "basic.cc-default", "CC through the default exchange, and a repeated key, make one copy each", ok((1, 1))
)
def _(s: Session) -> tuple[int, int]:
    opened = s.channel()
    opened.queue(s.q)
    opened.queue(s.q + "2")
    opened.publish("", s.q, b"x", headers={"CC": [s.q, s.q + "2"]})
    return opened.drain(s.q), opened.drain(s.q + "2")


@case(
    "basic.reply-to",
    "a request by direct reply-to is answered on the channel that asked",
    ok((True, b"answer", True)),
)
def _(s: Session) -> tuple[object, ...]:
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    name = server.deliver().properties["reply_to"]
    server.publish("", name, b"answer")
    got = client.deliver()
    return name.startswith(REPLY_TO + "."), got.body, got.routing_key == name


@case("basic.reply-to-declare", "the server may ask whether the client is still there", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    name = server.deliver().properties["reply_to"]
    answer = server.call("queue.declare", queue=name, passive=True)
    return answer.message_count, answer.consumer_count


@case(
    "basic.reply-to-gone",
    "a reply to a client that is gone is dropped, and returned if mandatory",
    ok((312, "NO_ROUTE")),
)
def _(s: Session) -> tuple[int, str]:
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    name = server.deliver().properties["reply_to"]
    client.call("channel.close", reply_code=200)
    server.publish("", name, b"answer", mandatory=True)
    back = server.receive("basic.return")
    return back.reply_code, back.reply_text


@case("basic.reply-to-declare-plain", "declaring the pseudo-queue itself", ok((REPLY_TO, 0, 1)))
def _(s: Session) -> tuple[object, ...]:
    answer = s.channel().call("queue.declare", queue=REPLY_TO, passive=True)
    return answer.queue, answer.message_count, answer.consumer_count


@case(
    "basic.reply-to-get",
    "getting from the pseudo-queue",
    channel(404, "basic.get", "no queue 'amq.rabbitmq.reply-to' in vhost '/'"),
)
def _(s: Session) -> None:
    s.channel().get(REPLY_TO)


@case("basic.no-ack-cancelled", "messages to a consumer without acknowledgements are gone when sent", ok(0))
def _(s: Session) -> int:
    opened = _three(s, s.channel())
    opened.consume(s.q, no_ack=True)
    for _ in range(3):
        opened.deliver()
    opened.call("channel.close", reply_code=200)
    return opened.client.channel(1).drain(s.q)


@case(
    "basic.default-exchange",
    "the default exchange routes by queue name without regard to bindings",
    ok((1, 0)),
)
def _(s: Session) -> tuple[int, int]:
    opened = s.channel()
    opened.queue(s.q)
    opened.publish("", s.q, b"x")
    count = opened.drain(s.q)
    opened.call("queue.delete", queue=s.q)
    opened.publish("", s.q, b"x")
    opened.queue(s.q)
    return count, opened.drain(s.q)
