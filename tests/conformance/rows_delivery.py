"""Cases of consumers: the choice among several, and direct replies."""

from conformance.cases import Cases, Session, channel, fill, ok

ROWS = Cases()
case = ROWS.case
REPLY_TO = "amq.rabbitmq.reply-to"


@case("delivery.qos-existing", ok((1, 1)))
def _(s: Session) -> tuple[int, int]:
    """A new prefetch does not affect existing consumers."""
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    first = opened.deliveries()
    opened.call("basic.qos", prefetch_count=3)
    return first, first + opened.deliveries()


@case("delivery.qos-global-existing", ok((2, 0)))
def _(s: Session) -> tuple[int, int]:
    """A global prefetch applies to existing consumers."""
    opened = s.queue()
    opened.consume(s.q)
    opened.call("basic.qos", prefetch_count=2, global_=True)
    for _ in range(5):
        opened.publish("", s.q, b"x")
    return opened.deliveries(), opened.deliveries()


@case("delivery.qos-global-no-ack", ok((["1"], ["2"])))
def _(s: Session) -> tuple[list[str], list[str]]:
    """While the channel's global prefetch is used up, its consumers with no_ack wait too."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=1, global_=True)
    opened.consume(s.q, "1")
    opened.publish("", s.q, b"x")
    before = [opened.deliver().consumer_tag]
    opened.call("basic.consume", queue=s.q, consumer_tag="2", no_ack=True)
    opened.publish("", s.q, b"y")
    if opened.deliveries():
        return before, ["at once"]
    opened.call("basic.cancel", consumer_tag="1")
    opened.send("basic.ack", delivery_tag=1)
    return before, [opened.deliver().consumer_tag]


@case("delivery.qos-other-consumer", ok({"1": 1, "2": 4}))
def _(s: Session) -> dict[str, int]:
    """Messages that exceed one consumer's prefetch are delivered to the other."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q, "1")
    opened.consume(s.q, "2", no_ack=True)
    for _ in range(5):
        opened.publish("", s.q, b"x")
    counts = {"1": 0, "2": 0}
    for _ in range(5):
        counts[opened.deliver().consumer_tag] += 1
    return counts


@case("delivery.cancel-passes-on", ok(["2", "2"]))
def _(s: Session) -> list[str]:
    """After a consumer is cancelled, messages are delivered to the others."""
    opened = s.queue()
    opened.consume(s.q, "1", no_ack=True)
    opened.consume(s.q, "2", no_ack=True)
    opened.call("basic.cancel", consumer_tag="1")
    opened.publish("", s.q, b"x")
    opened.publish("", s.q, b"y")
    return [opened.deliver().consumer_tag, opened.deliver().consumer_tag]


@case("delivery.close-passes-on", ok([("2", b"1", True)]))
def _(s: Session) -> list[tuple[str, bytes, bool]]:
    """Messages of a closed channel are delivered to the remaining consumers."""
    opened = fill(s, s.channel(), 1)
    opened.consume(s.q, "1")
    opened.deliver()
    other = opened.client.channel(2)
    other.consume(s.q, "2")
    opened.call("channel.close", reply_code=200)
    got = other.deliver()
    return [(got.consumer_tag, got.body, got.redelivered)]


@case("delivery.priority-negative", ok(["plain", "plain"]))
def _(s: Session) -> list[str]:
    """A consumer with a negative priority is served last."""
    opened = s.queue()
    opened.consume(s.q, "last", no_ack=True, arguments={"x-priority": -1})
    opened.consume(s.q, "plain", no_ack=True)
    tags = []
    for _ in range(2):
        opened.publish("", s.q, b"x")
        tags.append(opened.deliver().consumer_tag)
    return tags


@case(
    "delivery.exclusive-other-channel",
    channel(403, "basic.consume", "queue '{q}' in vhost '/' in exclusive use"),
)
def _(s: Session) -> None:
    """An exclusive consumer excludes consumers on every other channel."""
    opened = s.queue()
    opened.consume(s.q, "1", exclusive=True)
    s.channel().consume(s.q, "2")


@case("delivery.exclusive-get", ok(b"1"))
def _(s: Session) -> bytes | None:
    """An exclusive consumer does not exclude basic.get."""
    opened = fill(s, s.channel(), 2)
    opened.call("basic.qos", prefetch_count=1)
    opened.get(s.q)
    opened.publish("", s.q, b"1")
    opened.consume(s.q, exclusive=True)
    opened.deliver()
    return s.channel().get(s.q)


@case("delivery.no-local", ok(b"x"))
def _(s: Session) -> bytes:
    """no_local is ignored."""
    opened = s.queue()
    opened.consume(s.q, no_local=True)
    opened.publish("", s.q, b"x")
    return opened.deliver().body


@case(
    "delivery.failover-argument",
    channel(
        406,
        "basic.consume",
        "invalid arg 'x-cancel-on-ha-failover' for queue '{q}' in vhost '/': {unacceptable_type,longstr}",
    ),
)
def _(s: Session) -> None:
    """x-cancel-on-ha-failover must be a boolean."""
    opened = s.channel()
    opened.consume(opened.queue(s.q), arguments={"x-cancel-on-ha-failover": "yes"})


@case("delivery.unacked-not-counted", ok((1, 2)))
def _(s: Session) -> tuple[int, int]:
    """Unacked messages do not count as ready."""
    opened = fill(s, s.channel())
    opened.call("basic.qos", prefetch_count=2)
    opened.consume(s.q)
    opened.deliver()
    opened.deliver()
    before = opened.ready(s.q, 1)
    opened.client.channel(2)
    opened.send("basic.reject", delivery_tag=2, requeue=True)
    opened.deliver()
    return before, opened.ready(s.q, 1) + 1


@case("delivery.empty-body", ok([1, 2]))
def _(s: Session) -> list[int]:
    """An empty body is delivered without a body frame."""
    opened = s.queue()
    opened.publish("", s.q, b"")
    opened.ready(s.q, 1)
    opened.send("basic.get", queue=s.q, no_ack=True)
    kinds = [opened.client.read_frame()[0] for _ in range(2)]
    return kinds if opened.quiet() else [*kinds, -1]


@case("reply.other-channel", channel(406, "basic.publish", "fast reply consumer does not exist"))
def _(s: Session) -> None:
    """A request must be sent on the channel that consumes the replies."""
    opened = s.channel()
    opened.consume(REPLY_TO, no_ack=True)
    other = opened.client.channel(2)
    other.publish("amq.direct", "k", b"x", reply_to=REPLY_TO)
    other.sync()


@case("reply.cancelled", channel(406, "basic.publish", "fast reply consumer does not exist"))
def _(s: Session) -> None:
    """After the reply consumer is cancelled a request is refused."""
    opened = s.channel()
    opened.consume(REPLY_TO, "r", no_ack=True)
    opened.call("basic.cancel", consumer_tag="r")
    opened.publish("amq.direct", "k", b"x", reply_to=REPLY_TO)
    opened.sync()


@case("reply.server-tag", ok(("amq.ctag-", "mine", b"a")))
def _(s: Session) -> tuple[str, str, bytes]:
    """The reply consumer may have a generated tag or one of its own."""
    opened = s.channel()
    generated = opened.consume(REPLY_TO, "", no_ack=True)
    other = opened.client.channel(2)
    other.consume(REPLY_TO, "mine", no_ack=True)
    other.queue(s.q)
    other.publish("", s.q, b"q", reply_to=REPLY_TO)
    name = other.call("basic.get", queue=s.q, no_ack=True).properties["reply_to"]
    opened.publish("", name, b"a")
    got = other.deliver()
    return generated[:9], got.consumer_tag, got.body


@case("reply.gone-declare", ok((404, "NOT_FOUND - no queue 'amq.rabbitmq.reply-to.", True)))
def _(s: Session) -> tuple[int, str, bool]:
    """A passive declare of a reply address whose client has disconnected."""
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    server.ready(s.q, 1)
    name = server.call("basic.get", queue=s.q, no_ack=True).properties["reply_to"]
    client.call("channel.close", reply_code=200)
    server.send("queue.declare", queue=name, passive=True)
    close = server.receive("channel.close")
    return close.reply_code, close.reply_text[:44], close.reply_text.endswith("' in vhost '/'")


@case("reply.mandatory", ok((b"answer", ["queue.declare-ok"])))
def _(s: Session) -> tuple[bytes, list[str]]:
    """A mandatory reply that is delivered is not returned."""
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    server.ready(s.q, 1)
    name = server.call("basic.get", queue=s.q, no_ack=True).properties["reply_to"]
    server.publish("", name, b"answer", mandatory=True)
    server.send("queue.declare", queue=s.q, passive=True)
    names = [server.receive().name]
    if names == ["basic.return"]:
        names.append(server.receive().name)
    return client.deliver().body, names


@case("reply.other-header", ok("mine"))
def _(s: Session) -> str:
    """Other reply_to values are not changed."""
    opened = s.queue()
    opened.publish("", s.q, b"x", reply_to="mine")
    return str(opened.call("basic.get", queue=s.q).properties["reply_to"])


@case("reply.two-replies", ok([b"1", b"2"]))
def _(s: Session) -> list[bytes]:
    """A request may get several replies."""
    client, server = s.channel(), s.channel()
    server.queue(s.q)
    client.consume(REPLY_TO, no_ack=True)
    client.publish("", s.q, b"question", reply_to=REPLY_TO)
    server.ready(s.q, 1)
    name = server.call("basic.get", queue=s.q, no_ack=True).properties["reply_to"]
    server.publish("", name, b"1")
    server.publish("", name, b"2")
    return [client.deliver().body, client.deliver().body]
