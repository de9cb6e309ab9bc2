"""Rows 73-81 and 110: publishing."""

from conformance.cases import Cases, Session, channel, connection, ok
from conformance.codec import T

ROWS = Cases()
case = ROWS.case
REPLY_TO = "amq.rabbitmq.reply-to"


@case("73a", channel(404, "basic.publish", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """Publishing to an exchange that does not exist."""
    opened = s.channel()
    opened.publish(s.x, "k", b"x")
    opened.sync()


@case("73b", ok((True, "channel.close")))
def _(s: Session) -> tuple[bool, str]:
    """A missing exchange is reported when the whole content has arrived, and nothing is confirmed."""
    opened = s.channel()
    opened.call("confirm.select")
    opened.client.send(1, "basic.publish", exchange=s.x)
    quiet = opened.quiet()
    opened.client.raw(bytes.fromhex("02 0001 0000000e 003c 0000 0000000000000000 0000 ce"))
    return quiet, opened.receive("channel.close", "basic.ack").name


@case("74", channel(403, "basic.publish", "cannot publish to internal exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """Publishing to an internal exchange."""
    opened = s.channel()
    opened.publish(opened.exchange(s.x, internal=True), "k", b"x")
    opened.sync()


@case("75", connection(540, "basic.publish", "immediate=true"))
def _(s: Session) -> None:
    """Publishing with the flag immediate."""
    opened = s.channel()
    opened.publish("amq.direct", "k", b"x", immediate=True)
    opened.sync()


@case(
    "76a",
    channel(406, "basic.publish", "message size 1001 is larger than configured max size 1000"),
    setup="tight",
)
def _(s: Session) -> None:
    """A message larger than max_message_size."""
    opened = s.channel()
    opened.publish("amq.direct", "k", bytes(1001))
    opened.sync()


@case("76b", setup="tight")
def _(s: Session) -> None:
    """A message of exactly max_message_size is accepted."""
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
        channel(406, "basic.publish", f"invalid expiration '{_value}': {_text}"),
        statement=f"publishing with the expiration {_value!r}",
    )(_expiration)


for _letter, _value in (("p", "0"), ("q", "315360000000"), ("r", "+5"), ("s", "007")):

    def _expires(s: Session, value: str = _value) -> None:
        opened = s.channel()
        opened.publish("amq.direct", "k", b"x", expiration=value)
        opened.sync()

    case(f"77{_letter}", statement=f"the expiration {_value!r} is accepted")(_expires)


@case(
    "78a", channel(406, "basic.publish", "user_id property set to 'other' but authenticated user was 'guest'")
)
def _(s: Session) -> None:
    """Publishing with another user's name in user_id."""
    opened = s.channel()
    opened.publish("amq.direct", "k", b"x", user_id="other")
    opened.sync()


@case("78b")
def _(s: Session) -> None:
    """user_id may be one's own name; users with the tag impersonator may use any."""
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
        channel(406, "basic.publish", f"invalid message: {_text}"),
        statement=f"publishing with the headers {_headers}",
    )(_copies)


@case("79e", ok(1))
def _(s: Session) -> int:
    """Values in a CC or BCC array that are not strings are ignored."""
    opened = s.queue()
    opened.publish("amq.direct", "k", b"x", headers={"CC": [5, None, s.q]})
    opened.publish("", "nosuch", b"x", headers={"CC": [5, None, s.q]})
    return opened.drain(s.q)


@case("80", channel(406, "basic.publish", "fast reply consumer does not exist"))
def _(s: Session) -> None:
    """Publishing a direct reply-to request without a reply consumer."""
    opened = s.channel()
    opened.publish("amq.direct", "k", b"x", reply_to=REPLY_TO)
    opened.sync()


@case("81a", channel(406, "basic.consume", "reply consumer cannot acknowledge"))
def _(s: Session) -> None:
    """Consuming from amq.rabbitmq.reply-to with acknowledgements."""
    s.channel().consume(REPLY_TO)


@case("81b", channel(406, "basic.consume", "reply consumer already set"))
def _(s: Session) -> None:
    """A second consumer of amq.rabbitmq.reply-to on a channel."""
    opened = s.channel()
    opened.consume(REPLY_TO, "1", no_ack=True)
    opened.consume(REPLY_TO, "2", no_ack=True)


@case("110a", ok((312, "NO_ROUTE", "amq.direct", "nowhere", b"body", {"headers": {"a": 1}, "priority": 3})))
def _(s: Session) -> tuple[object, ...]:
    """An unroutable mandatory message is returned with its properties and body."""
    opened = s.channel()
    opened.publish("amq.direct", "nowhere", b"body", mandatory=True, headers={"a": 1}, priority=3)
    back = opened.receive("basic.return")
    return back.reply_code, back.reply_text, back.exchange, back.routing_key, back.body, back.properties


@case("110b", ok(("basic.return", "basic.ack")))
def _(s: Session) -> tuple[str, str]:
    """basic.return is sent before the confirm."""
    opened = s.channel()
    opened.call("confirm.select")
    opened.publish("amq.direct", "nowhere", b"body", mandatory=True)
    return opened.receive().name, opened.receive().name


@case("110c", ok((1, True)))
def _(s: Session) -> tuple[int, bool]:
    """An unroutable message that is not mandatory is dropped and confirmed."""
    opened = s.channel()
    opened.call("confirm.select")
    opened.publish("", "nosuch-queue", b"body")
    return opened.receive("basic.ack").delivery_tag, opened.quiet("basic.return")


_PROPERTIES = {
    "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 9, "correlation_id": "c",
    "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": 2**40, "type": "t", "user_id": "guest",
    "app_id": "a", "cluster_id": "x",
    "headers": {"bool": True, "int": -5, "long": T("l", 2**40), "double": 1.5, "text": "é", "array": [1, "a", None],
                "table": {"in": {"deep": False}}, "none": None, "time": T("T", 5), "octets": T("x", b"\0\1"),
                "byte": T("b", -1), "short": T("s", -2), "float": T("f", 0.5), "decimal": T("D", (2, 314)),
                "ubyte": T("B", 200), "ushort": T("u", 60000), "uint": T("i", 4000000000)},
}  # fmt: skip


@case("basic.properties", ok(True))
def _(s: Session) -> bool:
    """All fourteen properties and all field types arrive unchanged."""
    opened = s.queue()
    opened.publish("", s.q, b"x", **_PROPERTIES)

    def plain(value: object) -> object:
        if isinstance(value, T):
            return plain(value.value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    return bool(opened.call("basic.get", queue=s.q).properties == plain(_PROPERTIES))


@case("basic.big-body", ok(True))
def _(s: Session) -> bool:
    """A body of many frames arrives unchanged."""
    opened = s.queue()
    body = bytes(range(256)) * 2000
    opened.publish("", s.q, body)
    return opened.get(s.q) == body


@case("basic.cc", ok(({"CC": ["b"], "x": 1}, [1, 1, 1])))
def _(s: Session) -> tuple[object, ...]:
    """CC and BCC add routing keys; BCC is removed from the message, CC is kept."""
    opened = s.channel()
    opened.exchange(s.x)
    for key in ("a", "b", "c"):
        opened.queue(s.q + key)
        opened.call("queue.bind", queue=s.q + key, exchange=s.x, routing_key=key)
    opened.publish(s.x, "a", b"x", headers={"CC": ["b"], "BCC": ["c"], "x": 1})
    got = opened.call("basic.get", queue=s.q + "c")
    return got.properties["headers"], [opened.drain(s.q + "a"), opened.drain(s.q + "b"), 1]


@case("basic.cc-default", ok((1, 1)))
def _(s: Session) -> tuple[int, int]:
    """A message published to the default exchange with CC, or with a repeated key, is stored once in each queue."""
    opened = s.queue()
    opened.queue(s.q + "2")
    opened.publish("", s.q, b"x", headers={"CC": [s.q, s.q + "2"]})
    return opened.drain(s.q), opened.drain(s.q + "2")


@case("basic.reply-to", ok((True, b"answer", True)))
def _(s: Session) -> tuple[object, ...]:
    """A direct reply-to reply is delivered on the channel that sent the request."""
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    name = server.deliver().properties["reply_to"]
    server.publish("", name, b"answer")
    got = client.deliver()
    return name.startswith(REPLY_TO + "."), got.body, got.routing_key == name


@case("basic.reply-to-declare", ok((0, 1)))
def _(s: Session) -> tuple[int, int]:
    """A passive declare of a reply address tells whether the client is still connected."""
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    server.consume(s.q, no_ack=True)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    name = server.deliver().properties["reply_to"]
    answer = server.call("queue.declare", queue=name, passive=True)
    return answer.message_count, answer.consumer_count


@case("basic.reply-to-gone", ok((312, "NO_ROUTE")))
def _(s: Session) -> tuple[int, str]:
    """A reply to a client that has disconnected is dropped, or returned if mandatory."""
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


@case("basic.reply-to-declare-plain", ok((REPLY_TO, 0, 1)))
def _(s: Session) -> tuple[object, ...]:
    """Declaring the pseudo-queue amq.rabbitmq.reply-to."""
    answer = s.channel().call("queue.declare", queue=REPLY_TO, passive=True)
    return answer.queue, answer.message_count, answer.consumer_count


@case("basic.reply-to-get", channel(404, "basic.get", "no queue 'amq.rabbitmq.reply-to' in vhost '/'"))
def _(s: Session) -> None:
    """basic.get from the pseudo-queue amq.rabbitmq.reply-to."""
    s.channel().get(REPLY_TO)


@case("basic.default-exchange", ok((1, 0)))
def _(s: Session) -> tuple[int, int]:
    """The default exchange routes by queue name, whatever bindings exist."""
    opened = s.queue()
    opened.publish("", s.q, b"x")
    count = opened.drain(s.q)
    opened.call("queue.delete", queue=s.q)
    opened.publish("", s.q, b"x")
    opened.queue(s.q)
    return count, opened.drain(s.q)
