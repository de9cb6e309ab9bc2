"""Rows 39-48: exchanges."""

from conformance.cases import Cases, Session, channel, ok

ROWS = Cases()
case = ROWS.case


DEFAULT = "operation not permitted on the default exchange"


@case(
    "39a", "an unknown exchange type", channel(406, "exchange.declare", "unknown exchange type 'x-nothing'")
)
def _(s: Session) -> None:
    s.channel().exchange(s.x, "x-nothing")


@case(
    "39b",
    "declaring an x-delayed-message exchange without x-delayed-type",
    channel(406, "exchange.declare", "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
)
def _(s: Session) -> None:
    s.channel().exchange(s.x, "x-delayed-message")


@case("39c", "an empty exchange type", channel(406, "exchange.declare", "invalid exchange type ''"))
def _(s: Session) -> None:
    s.channel().exchange(s.x, "")


@case("40a", "declaring the default exchange", channel(403, "exchange.declare", DEFAULT))
def _(s: Session) -> None:
    s.channel().exchange("")


@case("40b", "deleting the default exchange", channel(403, "exchange.delete", DEFAULT))
def _(s: Session) -> None:
    s.channel().call("exchange.delete", exchange="")


@case("40c", "binding a queue to the default exchange", channel(403, "queue.bind", DEFAULT))
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q, exclusive=True), exchange="", routing_key="k")


@case("40d", "unbinding a queue from the default exchange", channel(403, "queue.unbind", DEFAULT))
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("queue.unbind", queue=opened.queue(s.q, exclusive=True), exchange="", routing_key=s.q)


@case("40e", "binding an exchange to the default exchange", channel(403, "exchange.bind", DEFAULT))
def _(s: Session) -> None:
    s.channel().call("exchange.bind", destination="amq.direct", source="")


@case("40f", "binding the default exchange to another", channel(403, "exchange.bind", DEFAULT))
def _(s: Session) -> None:
    s.channel().call("exchange.bind", destination="", source="amq.direct")


@case("40g", "unbinding the default exchange", channel(403, "exchange.unbind", DEFAULT))
def _(s: Session) -> None:
    s.channel().call("exchange.unbind", destination="amq.direct", source="")


@case("40h", "declaring the default exchange passively", channel(403, "exchange.declare", DEFAULT))
def _(s: Session) -> None:
    s.channel().exchange("", passive=True)


@case(
    "41a",
    "a new exchange with a reserved name",
    channel(403, "exchange.declare", "exchange name 'amq.foo' contains reserved prefix 'amq.*'"),
)
def _(s: Session) -> None:
    s.channel().exchange("amq.foo")


@case("41b", "declaring a predeclared exchange again as it is")
def _(s: Session) -> None:
    s.channel().exchange("amq.topic", "topic", durable=True)


@case(
    "41c",
    "the predeclared exchanges exist",
    ok(["amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"]),
)
def _(s: Session) -> list[str]:
    opened = s.channel()
    return [
        opened.exchange(f"amq.{kind}", passive=True)
        for kind in ("direct", "fanout", "headers", "match", "topic")
    ]


@case(
    "42a",
    "deleting a predeclared exchange",
    channel(403, "exchange.delete", "deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
)
def _(s: Session) -> None:
    s.channel().call("exchange.delete", exchange="amq.direct")


@case(
    "42b",
    "deleting an exchange with a reserved name that does not exist",
    channel(403, "exchange.delete", "deletion of system exchange 'amq.nosuch' in vhost '/' not allowed"),
)
def _(s: Session) -> None:
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
        f"an exchange declared with {_first or 'defaults'}, then with {_second or 'defaults'}",
        channel(406, "exchange.declare", f"inequivalent arg {_text}"),
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
        f"an exchange declared with the arguments {_before}, then with {_after}",
        channel(406, "exchange.declare", _AE + _text),
    )(_alternate)


@case("44d", "arguments of an exchange other than alternate-exchange are not compared")
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x, arguments={"x-mine": 1})
    opened.exchange(s.x, arguments={"x-mine": 2, "other": "x"})


@case(
    "45a",
    "an alternate exchange that is a number",
    channel(
        406,
        "exchange.declare",
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange '{x}' in vhost '/'",
    ),
)
def _(s: Session) -> None:
    s.channel().exchange(s.x, arguments={"alternate-exchange": 1})


@case(
    "45b",
    "an alternate exchange of the type void",
    channel(
        406,
        "exchange.declare",
        "invalid type 'void' for arg 'alternate-exchange' in exchange '{x}' in vhost '/'",
    ),
)
def _(s: Session) -> None:
    s.channel().exchange(s.x, arguments={"alternate-exchange": None})


@case(
    "45c",
    "an alternate exchange of a wrong type, for an existing exchange with other arguments",
    channel(
        406,
        "exchange.declare",
        "inequivalent arg 'alternate-exchange' for exchange '{x}' in vhost '/': received the value '1' of type 'signedint' but current is none",
    ),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x)
    opened.exchange(s.x, arguments={"alternate-exchange": 1})


@case(
    "46",
    "a passive declare of an exchange that does not exist",
    channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"),
)
def _(s: Session) -> None:
    s.channel().exchange(s.x, passive=True)


@case("46b", "a passive declare does not compare properties or arguments")
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x)
    opened.exchange(s.x, "nonsense", passive=True, durable=True, arguments={"alternate-exchange": "x"})


@case(
    "47a",
    "deleting an exchange that has bindings, with if-unused",
    channel(406, "exchange.delete", "exchange '{x}' in vhost '/' in use"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("exchange.delete", exchange=s.x, if_unused=True)


@case("47b", "an exchange that is only the destination of bindings counts as unused")
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("exchange.bind", destination=s.x, source="amq.direct", routing_key="k")
    opened.call("exchange.delete", exchange=s.x, if_unused=True)


@case("47c", "an exchange that has bindings can be deleted, which deletes its bindings", ok(True))
def _(s: Session) -> bool:
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("exchange.delete", exchange=s.x)
    opened.exchange(s.x)
    opened.publish(s.x, "k", b"x")
    return opened.drain(s.q) == 0


@case("48", "deleting an exchange that does not exist is answered", ok("exchange.delete-ok"))
def _(s: Session) -> str:
    return s.channel().call("exchange.delete", exchange=s.x, if_unused=True).name
