"""Rows 39-48 and 68-72: exchanges and bindings."""

from conformance.cases import Cases, Session, channel, ok
from conformance.wire import T

ROWS = Cases()
case = ROWS.case
DEFAULT = "operation not permitted on the default exchange"


@case("39a", "an unknown exchange type", channel(406, "exchange.declare", "unknown exchange type 'foo'"))
def _(s: Session) -> None:
    s.channel().exchange(s.x, "foo")


@case(
    "39b",
    "an exchange type that is another class's name",
    channel(406, "exchange.declare", "unknown exchange type 'x-delayed-message'"),
)
def _(s: Session) -> None:
    s.channel().exchange(s.x, "x-delayed-message")


@case("39c", "an empty exchange type", channel(406, "exchange.declare", "unknown exchange type ''"))
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
    "deleting an exchange of a reserved name that does not exist",
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
        f"an exchange declared with {_first or 'defaults'} and again with {_second or 'defaults'}",
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
        f"an exchange declared with arguments {_before} and again with {_after}",
        channel(406, "exchange.declare", _AE + _text),
    )(_alternate)


@case("44d", "other arguments of an exchange are not compared")
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
    "an alternate exchange that is void",
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
    "an alternate exchange of a wrong type, on an exchange that exists with other arguments",
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


@case("46b", "a passive declare compares nothing")
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x)
    opened.exchange(s.x, "nonsense", passive=True, durable=True, arguments={"alternate-exchange": "x"})


@case(
    "47a",
    "deleting a bound exchange if unused",
    channel(406, "exchange.delete", "exchange '{x}' in vhost '/' in use"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("exchange.delete", exchange=s.x, if_unused=True)


@case("47b", "an exchange that is only a destination counts as unused")
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("exchange.bind", destination=s.x, source="amq.direct", routing_key="k")
    opened.call("exchange.delete", exchange=s.x, if_unused=True)


@case("47c", "a bound exchange can be deleted, and its bindings with it", ok(True))
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


for _letter, _method, _fields, _text in (
    ("a", "queue.bind", {"queue": "{q}", "exchange": "amq.direct"}, "no queue '{q}' in vhost '/'"),
    ("b", "queue.bind", {"queue": "real", "exchange": "{x}"}, "no exchange '{x}' in vhost '/'"),
    ("c", "queue.bind", {"queue": "{q}", "exchange": "{x}"}, "no exchange '{x}' in vhost '/'"),
    ("d", "exchange.bind", {"destination": "amq.direct", "source": "{x}"}, "no exchange '{x}' in vhost '/'"),
    ("e", "exchange.bind", {"destination": "{x}", "source": "amq.direct"}, "no exchange '{x}' in vhost '/'"),
    ("f", "exchange.bind", {"destination": "d-{x}", "source": "{x}"}, "no exchange '{x}' in vhost '/'"),
):

    def _missing(s: Session, method: str = _method, fields: dict = _fields) -> None:
        opened = s.channel()
        opened.queue("real")
        names = {key: value.replace("{q}", s.q).replace("{x}", s.x) for key, value in fields.items()}
        opened.call(method, routing_key="k", **names)

    case(
        f"68{_letter}",
        f"{_method} of {_fields}, where what is in braces does not exist",
        channel(404, _method, _text),
    )(_missing)

for _letter, _what, _method, _fields in (
    ("a", "a binding", "queue.unbind", {"queue": "real", "exchange": "amq.direct"}),
    ("b", "a queue", "queue.unbind", {"queue": "nosuch-queue", "exchange": "amq.direct"}),
    ("c", "an exchange", "queue.unbind", {"queue": "real", "exchange": "nosuch-exchange"}),
    ("d", "a binding of exchanges", "exchange.unbind", {"destination": "amq.fanout", "source": "amq.direct"}),
    (
        "e",
        "a destination exchange",
        "exchange.unbind",
        {"destination": "nosuch-exchange", "source": "amq.direct"},
    ),
    ("f", "a source exchange", "exchange.unbind", {"destination": "amq.fanout", "source": "nosuch-exchange"}),
):

    def _unbind(s: Session, method: str = _method, fields: dict = _fields) -> None:
        opened = s.channel()
        opened.queue("real")
        opened.call(method, routing_key="nosuch-key", **fields)

    case(f"69{_letter}", f"unbinding {_what} that does not exist is answered")(_unbind)

_XMATCH = "expected all, any, all-with-x, or any-with-x"
for _letter, _value, _text in (
    ("a", "foo", f'Invalid x-match field value <<"foo">>; {_XMATCH}'),
    ("b", 1, "Invalid x-match field type signedint (value 1); expected longstr"),
    ("c", True, "Invalid x-match field type bool (value true); expected longstr"),
    ("d", "ALL", f'Invalid x-match field value <<"ALL">>; {_XMATCH}'),
):

    def _xmatch(s: Session, value: object = _value) -> None:
        opened = s.channel()
        opened.call(
            "queue.bind", queue=opened.queue(s.q), exchange="amq.headers", arguments={"x-match": value}
        )

    case(
        f"70{_letter}",
        f"binding to a headers exchange with x-match {_value!r}",
        channel(406, "queue.bind", _text),
    )(_xmatch)


@case("70e", "x-match of other exchange types means nothing")
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q), exchange="amq.direct", arguments={"x-match": "foo"})


@case(
    "70f",
    "binding an exchange to a headers exchange with a bad x-match",
    channel(406, "exchange.bind", f'Invalid x-match field value <<"foo">>; {_XMATCH}'),
)
def _(s: Session) -> None:
    s.channel().call(
        "exchange.bind", destination="amq.fanout", source="amq.headers", arguments={"x-match": "foo"}
    )


@case("71", "a topic binding key may have any number of # words", ok(True))
def _(s: Session) -> bool:
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q), exchange="amq.topic", routing_key="a.#.b.#.#")
    opened.publish("amq.topic", "a.x.b", b"x")
    return opened.drain(s.q) == 1


_VOLATILE = "cannot bind or unbind to a volatile (direct reply-to) queue"


@case("72a", "binding the pseudo-queue of direct reply-to", channel(403, "queue.bind", _VOLATILE))
def _(s: Session) -> None:
    s.channel().call("queue.bind", queue="amq.rabbitmq.reply-to", exchange="amq.direct", routing_key="k")


@case("72b", "unbinding the pseudo-queue of direct reply-to", channel(403, "queue.unbind", _VOLATILE))
def _(s: Session) -> None:
    s.channel().call("queue.unbind", queue="amq.rabbitmq.reply-to", exchange="amq.direct", routing_key="k")


# --- sentences of the feature tables -------------------------------------------------------------------------------------


def _routed(s: Session, kind: str, bindings: list, publishes: list) -> list[list[int]]:
    """For each publish (key, headers), the numbers of the bindings (key, arguments) it went to."""
    opened = s.channel()
    opened.exchange(s.x, kind)
    for number, (key, arguments) in enumerate(bindings):
        opened.queue(f"{s.q}-{number}", exclusive=True)
        opened.call("queue.bind", queue=f"{s.q}-{number}", exchange=s.x, routing_key=key, arguments=arguments)
    result = []
    for key, headers in publishes:
        opened.publish(s.x, key, b"x", **({} if headers is None else {"headers": headers}))
        hits = []
        for number in range(len(bindings)):
            while opened.get(f"{s.q}-{number}") is not None:
                hits.append(number)
        result.append(hits)
    return result


@case(
    "exchange.direct",
    "a direct exchange routes to every queue bound by an equal key",
    ok([[0, 1], [2], [], [3]]),
)
def _(s: Session) -> list:
    bindings = [("a", {}), ("a", {}), ("b", {}), ("", {})]
    return _routed(s, "direct", bindings, [("a", None), ("b", None), ("c", None), ("", None)])


@case("exchange.fanout", "a fanout exchange ignores keys", ok([[0, 1], [0, 1]]))
def _(s: Session) -> list:
    return _routed(s, "fanout", [("a", {}), ("b", {})], [("a", None), ("zz", None)])


@case(
    "exchange.topic",
    "a topic exchange's words, stars and hashes, with empty words and the empty key",
    ok([[0, 3, 5, 7, 8], [3, 4, 5, 6, 7], [3, 9], [1, 3, 5, 10], [2, 3, 7], [3, 5, 7, 11], [3, 7]]),
)
def _(s: Session) -> list:
    keys = ["a.b", "*", ".", "#", "a.*.c", "a.#", "#.c", "*.#.*", "*.b", "", "a", "a.."]
    published = ["a.b", "a.b.c", "", "a", ".", "a..", "x.y.z"]
    return [
        sorted(set(hits))
        for hits in _routed(s, "topic", [(key, {}) for key in keys], [(k, None) for k in published])
    ]


_HEADER_BINDINGS = [
    ("", {"x-match": "all", "a": 1, "b": "two"}),
    ("", {"x-match": "any", "a": 1, "b": "two"}),
    ("", {"a": 1}),
    ("", {"x-match": "all-with-x", "x-k": "v"}),
    ("", {"x-match": "any-with-x", "x-k": "v", "a": 1}),
    ("", {"x-match": "all", "x-k": "v"}),
    ("", {"x-match": "any", "x-k": "v"}),
    ("", {}),
    ("", {"x-match": "any"}),
    ("", {"a": None}),
]


@case(
    "exchange.headers",
    "the four forms of x-match, x- headers, presence only, and bindings without arguments",
    ok([[0, 1, 2, 4, 5, 7, 9], [1, 2, 4, 5, 7, 9], [3, 4, 5, 7], [5, 7], [5, 7], [5, 7, 9]]),
)
def _(s: Session) -> list:
    published = [{"a": 1, "b": "two"}, {"a": 1}, {"x-k": "v"}, {}, None, {"a": "1"}]
    return _routed(s, "headers", _HEADER_BINDINGS, [("", headers) for headers in published])


@case(
    "exchange.headers-number-types",
    'header values compare as Erlang terms: 5, a longer 5 and 5.0 are equal, "5" is not',
    ok([[0, 1, 2], [0, 1, 2], [], [0, 1, 2]]),
)
def _(s: Session) -> list:
    bindings = [("", {"n": 5}), ("", {"n": T("l", 5)}), ("", {"n": 5.0})]
    published = [{"n": 5}, {"n": T("l", 5)}, {"n": "5"}, {"n": 5.0}]
    return _routed(s, "headers", bindings, [("", headers) for headers in published])


@case("exchange.one-copy", "a queue bound twice gets one copy", ok(1))
def _(s: Session) -> int:
    opened = s.channel()
    opened.queue(s.q)
    for key in ("a.*", "a.#", "#"):
        opened.call("queue.bind", queue=s.q, exchange="amq.topic", routing_key=f"{s.q}.{key}")
    opened.publish("amq.topic", f"{s.q}.a.b", b"x")
    return opened.drain(s.q)


@case("exchange.to-exchange", "bindings of exchanges route on, and cycles end", ok((1, 0)))
def _(s: Session) -> tuple[int, int]:
    opened = s.channel()
    for name in ("1", "2", "3"):
        opened.exchange(s.x + name, "fanout")
    for source, destination in (("1", "2"), ("2", "3"), ("3", "1")):
        opened.call("exchange.bind", source=s.x + source, destination=s.x + destination)
    opened.queue(s.q)
    opened.call("queue.bind", queue=s.q, exchange=s.x + "3")
    opened.publish(s.x + "1", "k", b"x")
    before = opened.drain(s.q)
    opened.call("queue.purge", queue=s.q)
    opened.call("exchange.unbind", source=s.x + "2", destination=s.x + "3")
    opened.publish(s.x + "1", "k", b"x")
    return before, opened.drain(s.q)


@case(
    "exchange.alternate",
    "an alternate exchange gets what found no queue, and mandatory holds over both",
    ok((b"lost", True)),
)
def _(s: Session) -> tuple[bytes | None, bool]:
    opened = s.channel()
    opened.exchange(s.x + "ae", "fanout")
    opened.exchange(s.x, arguments={"alternate-exchange": s.x + "ae"})
    opened.queue(s.q)
    opened.call("queue.bind", queue=s.q, exchange=s.x + "ae")
    opened.publish(s.x, "nowhere", b"lost", mandatory=True)
    return opened.get(s.q), opened.quiet("basic.return")


@case(
    "exchange.alternate-missing",
    "a missing alternate exchange loses the message, or returns it",
    ok("NO_ROUTE"),
)
def _(s: Session) -> str:
    opened = s.channel()
    opened.exchange(s.x, arguments={"alternate-exchange": "nosuch-exchange"})
    opened.publish(s.x, "nowhere", b"x", mandatory=True)
    return str(opened.receive("basic.return").reply_text)


@case("exchange.internal", "an internal exchange routes what other exchanges send it", ok(1))
def _(s: Session) -> int:
    opened = s.channel()
    opened.exchange(s.x, "fanout", internal=True)
    opened.call("exchange.bind", source="amq.direct", destination=s.x, routing_key=s.x)
    opened.queue(s.q)
    opened.call("queue.bind", queue=s.q, exchange=s.x)
    opened.publish("amq.direct", s.x, b"x")
    return opened.drain(s.q)


@case(
    "exchange.auto-delete",
    "an auto-delete exchange goes with its last binding as a source, not before it had one",
    channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x, auto_delete=True)
    opened.exchange(s.x, passive=True)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("queue.unbind", queue=s.q, exchange=s.x, routing_key="k")
    opened.exchange(s.x, passive=True)


@case(
    "exchange.auto-delete-by-queue",
    "an auto-delete exchange goes when its last queue is deleted",
    channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.exchange(s.x, auto_delete=True)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("queue.delete", queue=s.q)
    opened.exchange(s.x, passive=True)


@case("exchange.bind-identity", "bindings differ by key and arguments; unbind needs the same", ok((1, 1, 0)))
def _(s: Session) -> tuple[int, ...]:
    opened = s.channel()
    opened.exchange(s.x)
    opened.queue(s.q)
    counts = []
    for arguments in ({}, {"v": 1}, {"v": 1}):
        opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key="k", arguments=arguments)
    for arguments in (None, {}, {"v": 1}):
        if arguments is not None:
            opened.call("queue.unbind", queue=s.q, exchange=s.x, routing_key="k", arguments=arguments)
        opened.publish(s.x, "k", b"x")
        counts.append(int(opened.call("queue.purge", queue=s.q).message_count))
    return tuple(counts)


@case(
    "exchange.nowait",
    "the nowait forms of declare, bind, unbind and delete answer nothing and work",
    ok((True, True)),
)
def _(s: Session) -> tuple[bool, bool]:
    opened = s.channel()
    opened.queue(s.q)
    opened.send("exchange.declare", exchange=s.x, type="fanout", nowait=True)
    opened.send("exchange.bind", source="amq.direct", destination=s.x, routing_key=s.x, nowait=True)
    opened.send("queue.bind", queue=s.q, exchange=s.x, nowait=True)
    opened.publish("amq.direct", s.x, b"x")
    routed = opened.drain(s.q) == 1
    opened.send("exchange.unbind", source="amq.direct", destination=s.x, routing_key=s.x, nowait=True)
    opened.send("exchange.delete", exchange=s.x, nowait=True)
    return routed, opened.quiet()


@case(
    "exchange.nowait-error",
    "a nowait declare still reports its error",
    channel(406, "exchange.declare", "unknown exchange type 'foo'"),
)
def _(s: Session) -> None:
    opened = s.channel()
    opened.send("exchange.declare", exchange=s.x, type="foo", nowait=True)
    opened.sync()


@case("exchange.cr-lf", "line ends are stripped from names", ok("exchange.declare-ok"))
def _(s: Session) -> str:
    opened = s.channel()
    opened.exchange(s.x + "\r\n")
    return opened.call("exchange.declare", exchange=s.x, type="direct", passive=True).name


@case("exchange.long-name", "a name of 255 octets of UTF-8 works", ok(1))
def _(s: Session) -> int:
    opened = s.channel()
    name = "é" * 127 + "x"
    opened.exchange(name, "fanout")
    opened.queue(name, exclusive=True)
    opened.call("queue.bind", queue=name, exchange=name, routing_key=name)
    opened.publish(name, name, b"x")
    return opened.drain(name)
