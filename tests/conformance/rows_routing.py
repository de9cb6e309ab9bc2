"""Cases of exchanges: routing, and their life."""

from conformance.cases import Cases, Session, channel, ok
from conformance.codec import T

ROWS = Cases()
case = ROWS.case


def _routed(s: Session, kind: str, bindings: list, publishes: list) -> list[list[int]]:
    """Return, for each publish (key, headers), the numbers of the bindings (key, arguments) it went to."""
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


@case("exchange.direct", ok([[0, 1], [2], [], [3]]))
def _(s: Session) -> list:
    """A direct exchange routes to every queue whose binding key equals the routing key."""
    bindings = [("a", {}), ("a", {}), ("b", {}), ("", {})]
    return _routed(s, "direct", bindings, [("a", None), ("b", None), ("c", None), ("", None)])


@case("exchange.fanout", ok([[0, 1], [0, 1]]))
def _(s: Session) -> list:
    """A fanout exchange ignores routing keys."""
    return _routed(s, "fanout", [("a", {}), ("b", {})], [("a", None), ("zz", None)])


@case(
    "exchange.topic",
    ok([[0, 3, 5, 7, 8], [3, 4, 5, 6, 7], [3, 9], [1, 3, 5, 10], [2, 3, 7], [3, 5, 7, 11], [3, 7]]),
)
def _(s: Session) -> list:
    """A topic exchange matches words, * and #, including empty words and the empty key."""
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
    ok([[0, 1, 2, 4, 5, 7, 9], [1, 2, 4, 5, 7, 9], [3, 4, 5, 7], [5, 7], [5, 7], [5, 7, 9]]),
)
def _(s: Session) -> list:
    """A headers exchange supports all four values of x-match, x- headers, presence only, and bindings without arguments."""
    published = [{"a": 1, "b": "two"}, {"a": 1}, {"x-k": "v"}, {}, None, {"a": "1"}]
    return _routed(s, "headers", _HEADER_BINDINGS, [("", headers) for headers in published])


@case("exchange.headers-number-types", ok([[0, 1, 2], [0, 1, 2], [], [0, 1, 2]]))
def _(s: Session) -> list:
    """Header values compare as Erlang terms: 5, 5 as a longer integer and 5.0 are equal, "5" is different."""
    bindings = [("", {"n": 5}), ("", {"n": T("l", 5)}), ("", {"n": 5.0})]
    published = [{"n": 5}, {"n": T("l", 5)}, {"n": "5"}, {"n": 5.0}]
    return _routed(s, "headers", bindings, [("", headers) for headers in published])


@case("exchange.one-copy", ok(1))
def _(s: Session) -> int:
    """A queue with several matching bindings gets one copy."""
    opened = s.queue()
    for key in ("a.*", "a.#", "#"):
        opened.call("queue.bind", queue=s.q, exchange="amq.topic", routing_key=f"{s.q}.{key}")
    opened.publish("amq.topic", f"{s.q}.a.b", b"x")
    return opened.drain(s.q)


@case("exchange.to-exchange", ok((1, 0)))
def _(s: Session) -> tuple[int, int]:
    """Messages follow exchange-to-exchange bindings, and cycles terminate."""
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


@case("exchange.alternate", ok((b"lost", True)))
def _(s: Session) -> tuple[bytes | None, bool]:
    """An alternate exchange gets messages that no queue matched; mandatory considers both exchanges."""
    opened = s.channel()
    opened.exchange(s.x + "ae", "fanout")
    opened.exchange(s.x, arguments={"alternate-exchange": s.x + "ae"})
    opened.queue(s.q)
    opened.call("queue.bind", queue=s.q, exchange=s.x + "ae")
    opened.publish(s.x, "nowhere", b"lost", mandatory=True)
    return opened.get(s.q), opened.quiet("basic.return")


@case("exchange.alternate-missing", ok("NO_ROUTE"))
def _(s: Session) -> str:
    """If the alternate exchange does not exist, an unroutable message is dropped, or returned if mandatory."""
    opened = s.channel()
    opened.exchange(s.x, arguments={"alternate-exchange": "nosuch-exchange"})
    opened.publish(s.x, "nowhere", b"x", mandatory=True)
    return str(opened.receive("basic.return").reply_text)


@case("exchange.internal", ok(1))
def _(s: Session) -> int:
    """An internal exchange routes messages from other exchanges."""
    opened = s.channel()
    opened.exchange(s.x, "fanout", internal=True)
    opened.call("exchange.bind", source="amq.direct", destination=s.x, routing_key=s.x)
    opened.queue(s.q)
    opened.call("queue.bind", queue=s.q, exchange=s.x)
    opened.publish("amq.direct", s.x, b"x")
    return opened.drain(s.q)


@case("exchange.auto-delete", channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """An auto-delete exchange is deleted with its last binding as a source, but not before it has had one."""
    opened = s.channel()
    opened.exchange(s.x, auto_delete=True)
    opened.exchange(s.x, passive=True)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("queue.unbind", queue=s.q, exchange=s.x, routing_key="k")
    opened.exchange(s.x, passive=True)


@case("exchange.auto-delete-by-queue", channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """An auto-delete exchange is deleted when its last bound queue is deleted."""
    opened = s.channel()
    opened.exchange(s.x, auto_delete=True)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x, routing_key="k")
    opened.call("queue.delete", queue=s.q)
    opened.exchange(s.x, passive=True)


@case("exchange.bind-identity", ok((1, 1, 0)))
def _(s: Session) -> tuple[int, ...]:
    """Bindings are identified by key and arguments; unbind must match both."""
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


@case("exchange.nowait", ok((True, True)))
def _(s: Session) -> tuple[bool, bool]:
    """Declare, bind, unbind and delete with nowait work and are not answered."""
    opened = s.queue()
    opened.send("exchange.declare", exchange=s.x, type="fanout", nowait=True)
    opened.send("exchange.bind", source="amq.direct", destination=s.x, routing_key=s.x, nowait=True)
    opened.send("queue.bind", queue=s.q, exchange=s.x, nowait=True)
    opened.publish("amq.direct", s.x, b"x")
    routed = opened.drain(s.q) == 1
    opened.send("exchange.unbind", source="amq.direct", destination=s.x, routing_key=s.x, nowait=True)
    opened.send("exchange.delete", exchange=s.x, nowait=True)
    return routed, opened.quiet()


@case("exchange.nowait-error", channel(406, "exchange.declare", "unknown exchange type 'x-nothing'"))
def _(s: Session) -> None:
    """A declare with nowait still reports its error."""
    opened = s.channel()
    opened.send("exchange.declare", exchange=s.x, type="x-nothing", nowait=True)
    opened.sync()


@case("exchange.cr-lf", ok("exchange.declare-ok"))
def _(s: Session) -> str:
    """Line breaks are removed from names."""
    opened = s.channel()
    opened.exchange(s.x + "\r\n")
    return opened.call("exchange.declare", exchange=s.x, type="direct", passive=True).name


@case("exchange.long-name", ok(1))
def _(s: Session) -> int:
    """A name may have 255 bytes of UTF-8."""
    opened = s.channel()
    name = "é" * 127 + "x"
    opened.exchange(name, "fanout")
    opened.queue(name, exclusive=True)
    opened.call("queue.bind", queue=name, exchange=name, routing_key=name)
    opened.publish(name, name, b"x")
    return opened.drain(name)


@case("exchange.changes-seen", ok([0, 1, 0, 1, 0, 0, 1]))
def _(s: Session) -> list[int]:
    """Every change of bindings applies from the next publish on."""
    opened = s.channel()
    opened.exchange(s.x, "topic")
    opened.queue(s.q)
    counts = []

    def publish() -> None:
        opened.publish(s.x, "a.b", b"x")
        counts.append(opened.drain(s.q))

    publish()
    opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key="a.*")
    publish()
    opened.call("queue.unbind", queue=s.q, exchange=s.x, routing_key="a.*")
    publish()
    opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key="#")
    publish()
    opened.call("exchange.delete", exchange=s.x)
    opened.exchange(s.x, "fanout")
    publish()
    opened.call("queue.delete", queue=s.q)
    opened.queue(s.q)
    publish()
    opened.call("queue.bind", queue=s.q, exchange=s.x)
    publish()
    return counts


@case("exchange.changes-seen-others", ok([1, 0, 1]))
def _(s: Session) -> list[int]:
    """Binding changes by another connection apply too."""
    opened, other = s.channel(), s.channel()
    opened.queue(s.q)
    counts = []
    for change in ("none", "delete", "declare"):
        if change == "delete":
            other.call("queue.delete", queue=s.q)
        if change == "declare":
            other.queue(s.q)
        opened.publish("", s.q, b"x", mandatory=True)
        if change == "delete":
            counts.append(0 if opened.receive("basic.return").reply_code == 312 else 9)
        else:
            counts.append(opened.drain(s.q))
    return counts


@case("exchange.recreated", channel(404, "basic.publish", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """After an exchange is deleted a publish fails, also for a client that published to it before."""
    opened, other = s.channel(), s.channel()
    opened.exchange(s.x)
    opened.publish(s.x, "k", b"x")
    opened.sync()
    other.call("exchange.delete", exchange=s.x)
    opened.publish(s.x, "k", b"x")
    opened.sync()


@case("exchange.auto-delete-source", channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """An auto-delete exchange is deleted with its last binding to another exchange."""
    opened = s.channel()
    opened.exchange(s.x, auto_delete=True)
    opened.exchange(s.x + "2")
    opened.call("exchange.bind", source=s.x, destination=s.x + "2", routing_key="k")
    opened.call("exchange.delete", exchange=s.x + "2")
    opened.exchange(s.x, passive=True)


@case("exchange.auto-delete-destination")
def _(s: Session) -> None:
    """An auto-delete exchange is not deleted with its last binding as a destination."""
    opened = s.channel()
    opened.exchange(s.x, auto_delete=True)
    opened.call("exchange.bind", source="amq.direct", destination=s.x, routing_key="k")
    opened.call("exchange.unbind", source="amq.direct", destination=s.x, routing_key="k")
    opened.exchange(s.x, passive=True)


@case("exchange.delete-nowait-error", channel(406, "exchange.delete", "exchange '{x}' in vhost '/' in use"))
def _(s: Session) -> None:
    """A delete with nowait still reports its error."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x)
    opened.send("exchange.delete", exchange=s.x, if_unused=True, nowait=True)
    opened.sync()


@case("exchange.self-bind", ok(1))
def _(s: Session) -> int:
    """An exchange may be bound to itself."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    opened.call("exchange.bind", source=s.x, destination=s.x)
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x)
    opened.publish(s.x, "", b"x")
    return opened.drain(s.q)


@case("exchange.alternate-chain", ok("NO_ROUTE"))
def _(s: Session) -> str:
    """Alternate exchanges can be chained, and a cycle of them terminates."""
    opened = s.channel()
    opened.exchange(s.x + "1", arguments={"alternate-exchange": s.x + "2"})
    opened.exchange(s.x + "2", arguments={"alternate-exchange": s.x + "1"})
    opened.publish(s.x + "1", "k", b"x", mandatory=True)
    return str(opened.receive("basic.return").reply_text)


@case("exchange.alternate-behind", ok(1))
def _(s: Session) -> int:
    """An exchange reached through a binding uses its own alternate exchange."""
    opened = s.channel()
    opened.exchange(s.x + "ae", "fanout")
    opened.exchange(s.x + "inner", arguments={"alternate-exchange": s.x + "ae"})
    opened.exchange(s.x, "fanout")
    opened.call("exchange.bind", source=s.x, destination=s.x + "inner")
    opened.call("queue.bind", queue=opened.queue(s.q), exchange=s.x + "ae")
    opened.publish(s.x, "nowhere", b"x")
    return opened.drain(s.q)


@case("exchange.return-origin", ok(("", "nosuch-queue")))
def _(s: Session) -> tuple[str, str]:
    """A returned message names the exchange it was published to."""
    opened = s.channel()
    opened.publish("", "nosuch-queue", b"x", mandatory=True)
    back = opened.receive("basic.return")
    return back.exchange, back.routing_key


@case("exchange.headers-values", ok([[0], [1], [2], [3], [4]]))
def _(s: Session) -> list:
    """Header values of many types are compared."""
    values = [{"a": True}, {"a": "x"}, {"a": [1, "b"]}, {"a": {"in": 1}}, {"a": T("T", 77)}]
    return _routed(s, "headers", [("", value) for value in values], [("", value) for value in values])
