"""Rows 39-48: exchanges."""

from conformance.cases import Cases, Session, channel, ok

ROWS = Cases()
case = ROWS.case


DEFAULT = "operation not permitted on the default exchange"


@case("39a", channel(406, "exchange.declare", "unknown exchange type 'x-nothing'"))
def _(s: Session) -> None:
    """An unknown exchange type."""
    s.channel().exchange(s.x, "x-nothing")


@case(
    "39b",
    channel(406, "exchange.declare", "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
)
def _(s: Session) -> None:
    """Declaring an x-delayed-message exchange without x-delayed-type."""
    s.channel().exchange(s.x, "x-delayed-message")


@case("39c", channel(406, "exchange.declare", "invalid exchange type ''"))
def _(s: Session) -> None:
    """An empty exchange type."""
    s.channel().exchange(s.x, "")


@case("40a", channel(403, "exchange.declare", DEFAULT))
def _(s: Session) -> None:
    """Declaring the default exchange."""
    s.channel().exchange("")


@case("40b", channel(403, "exchange.delete", DEFAULT))
def _(s: Session) -> None:
    """Deleting the default exchange."""
    s.channel().call("exchange.delete", exchange="")


@case("40c", channel(403, "queue.bind", DEFAULT))
def _(s: Session) -> None:
    """Binding a queue to the default exchange."""
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q, exclusive=True), exchange="", routing_key="k")


@case("40d", channel(403, "queue.unbind", DEFAULT))
def _(s: Session) -> None:
    """Unbinding a queue from the default exchange."""
    opened = s.channel()
    opened.call("queue.unbind", queue=opened.queue(s.q, exclusive=True), exchange="", routing_key=s.q)


@case("40e", channel(403, "exchange.bind", DEFAULT))
def _(s: Session) -> None:
    """Binding an exchange to the default exchange."""
    s.channel().call("exchange.bind", destination="amq.direct", source="")


@case("40f", channel(403, "exchange.bind", DEFAULT))
def _(s: Session) -> None:
    """Binding the default exchange to another."""
    s.channel().call("exchange.bind", destination="", source="amq.direct")


@case("40g", channel(403, "exchange.unbind", DEFAULT))
def _(s: Session) -> None:
    """Unbinding the default exchange."""
    s.channel().call("exchange.unbind", destination="amq.direct", source="")


@case("40h", channel(403, "exchange.declare", DEFAULT))
def _(s: Session) -> None:
    """Declaring the default exchange passively."""
    s.channel().exchange("", passive=True)


@case("41a", channel(403, "exchange.declare", "exchange name 'amq.foo' contains reserved prefix 'amq.*'"))
def _(s: Session) -> None:
    """A new exchange with a reserved name."""
    s.channel().exchange("amq.foo")


@case("41b")
def _(s: Session) -> None:
    """Declaring a predeclared exchange again as it is."""
    s.channel().exchange("amq.topic", "topic", durable=True)


@case("41c", ok(["amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"]))
def _(s: Session) -> list[str]:
    """The predeclared exchanges exist."""
    opened = s.channel()
    return [
        opened.exchange(f"amq.{kind}", passive=True)
        for kind in ("direct", "fanout", "headers", "match", "topic")
    ]


@case(
    "42a",
    channel(403, "exchange.delete", "deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
)
def _(s: Session) -> None:
    """Deleting a predeclared exchange."""
    s.channel().call("exchange.delete", exchange="amq.direct")


@case(
    "42b",
    channel(403, "exchange.delete", "deletion of system exchange 'amq.nosuch' in vhost '/' not allowed"),
)
def _(s: Session) -> None:
    """Deleting an exchange with a reserved name that does not exist."""
    s.channel().call("exchange.delete", exchange="amq.nosuch")


for _letter, _first, _second, _text in (
    ("a", {}, {"kind": "topic"}, "'type' for exchange '{x}' in vhost '/': received 'topic' but current is 'direct'"),
    ("b", {"durable": True}, {}, "'durable' for exchange '{x}' in vhost '/': received 'false' but current is 'true'"),
    ("c", {}, {"auto_delete": True}, "'auto_delete' for exchange '{x}' in vhost '/': received 'true' but current is 'false'"),
    ("d", {}, {"internal": True}, "'internal' for exchange '{x}' in vhost '/': received 'true' but current is 'false'"),
    ("e", {}, {"kind": "fanout", "durable": True}, "'type' for exchange '{x}' in vhost '/': received 'fanout' but current is 'direct'"),
    ("f", {}, {"durable": True, "auto_delete": True}, "'durable' for exchange '{x}' in vhost '/': received 'true' but current is 'false'"),
):  # fmt: skip

    def _differ(s: Session, first: dict = _first, second: dict = _second) -> None:
        opened = s.channel()
        opened.exchange(s.x, **first)
        opened.exchange(s.x, **second)

    case(
        f"43{_letter}",
        channel(406, "exchange.declare", f"inequivalent arg {_text}"),
        statement=f"an exchange declared with {_first or 'defaults'}, then with {_second or 'defaults'}",
    )(_differ)


_AE = "inequivalent arg 'alternate-exchange' for exchange '{x}' in vhost '/': received "


for _letter, _before, _after, _text in (
    ("a", {}, {"alternate-exchange": "ae2"}, "the value 'ae2' of type 'longstr' but current is none"),
    ("b", {"alternate-exchange": "ae1"}, {"alternate-exchange": "ae2"},
     "'ae2' but current is 'ae1'"),
    ("c", {"alternate-exchange": "ae1"}, {}, "none but current is the value 'ae1' of type 'longstr'"),
):  # fmt: skip

    def _alternate(s: Session, before: dict = _before, after: dict = _after) -> None:
        opened = s.channel()
        opened.exchange(s.x, arguments=before)
        opened.exchange(s.x, arguments=after)

    case(
        f"44{_letter}",
        channel(406, "exchange.declare", _AE + _text),
        statement=f"an exchange declared with the arguments {_before}, then with {_after}",
    )(_alternate)


@case("44d")
def _(s: Session) -> None:
    """Arguments of an exchange other than alternate-exchange are not compared."""
    opened = s.channel()
    opened.exchange(s.x, arguments={"x-mine": 1})
    opened.exchange(s.x, arguments={"x-mine": 2, "other": "x"})


@case(
    "45a",
    channel(
        406,
        "exchange.declare",
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange '{x}' in vhost '/'",
    ),
)
def _(s: Session) -> None:
    """An alternate exchange that is a number."""
    s.channel().exchange(s.x, arguments={"alternate-exchange": 1})


@case(
    "45b",
    channel(
        406,
        "exchange.declare",
        "invalid type 'void' for arg 'alternate-exchange' in exchange '{x}' in vhost '/'",
    ),
)
def _(s: Session) -> None:
    """An alternate exchange of the type void."""
    s.channel().exchange(s.x, arguments={"alternate-exchange": None})


@case(
    "45c",
    channel(
        406,
        "exchange.declare",
        "inequivalent arg 'alternate-exchange' for exchange '{x}' in vhost '/': received the value '1' of type 'signedint' but current is none",
    ),
)
def _(s: Session) -> None:
    """An alternate exchange of a wrong type, for an existing exchange with other arguments."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.exchange(s.x, arguments={"alternate-exchange": 1})


@case("46", channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """A passive declare of an exchange that does not exist."""
    s.channel().exchange(s.x, passive=True)


@case("46b")
def _(s: Session) -> None:
    """A passive declare does not compare properties or arguments."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.exchange(s.x, "nonsense", passive=True, durable=True, arguments={"alternate-exchange": "x"})


@case("47a", channel(406, "exchange.delete", "exchange '{x}' in vhost '/' in use"))
def _(s: Session) -> None:
    """Deleting an exchange that has bindings, with if-unused."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("exchange.delete", exchange=s.x, if_unused=True)


@case("47b")
def _(s: Session) -> None:
    """An exchange that is only the destination of bindings counts as unused."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("exchange.bind", destination=s.x, source="amq.direct", routing_key="k")
    opened.call("exchange.delete", exchange=s.x, if_unused=True)


@case("47c", ok(True))
def _(s: Session) -> bool:
    """An exchange that has bindings can be deleted, which deletes its bindings."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("exchange.delete", exchange=s.x)
    opened.exchange(s.x)
    opened.publish(s.x, "k", b"x")
    return opened.drain(s.q) == 0


@case("48", ok("exchange.delete-ok"))
def _(s: Session) -> str:
    """Deleting an exchange that does not exist is answered."""
    return s.channel().call("exchange.delete", exchange=s.x, if_unused=True).name
