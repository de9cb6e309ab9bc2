"""Rows 104-107: the permissions of a user for names that begin with "own"."""

from conformance.cases import Cases, Outcome, Session, channel, ok

ROWS = Cases()
case = ROWS.case


def _refused(ident: str, method: str, text: str, user: str = "limited", **fields: object) -> None:
    """A case in which `user` calls a method that guest's q- queue, x- exchange, or a missing permission stands against."""

    def script(s: Session) -> None:
        root = s.channel()
        root.queue(s.q)
        root.exchange(s.x, "topic")
        root.exchange("own-" + s.x, "topic")
        root.queue("own-" + s.q)
        root.exchange("own-a-" + s.x, "topic", arguments={"alternate-exchange": s.x})
        mine = s.channel(user)
        named = {
            k: v.replace("{q}", s.q).replace("{x}", s.x) if isinstance(v, str) else v
            for k, v in fields.items()
        }
        arguments = {
            k: v.replace("{q}", s.q).replace("{x}", s.x)
            for k, v in (named.pop("arguments", None) or {}).items()
        }
        if arguments:
            named["arguments"] = arguments
        if method == "basic.publish":
            mine.publish(str(named["exchange"]), str(named.get("routing_key", "k")), b"x")
            mine.sync()
        else:
            mine.call(method, **named)

    expect: Outcome = channel(403, method, f"{text} in vhost '/' refused for user '{user}'")
    case(ident, expect, statement=f"the user {user} may not call {method} with {fields}")(script)


_refused("104a", "queue.declare", "configure access to queue 'new-{q}'", queue="new-{q}")
_refused("104b", "queue.declare", "configure access to queue '{q}'", queue="{q}")
_refused("104c", "queue.delete", "configure access to queue '{q}'", queue="{q}")
_refused(
    "104d", "exchange.declare", "configure access to exchange 'new-{x}'", exchange="new-{x}", type="direct"
)
_refused("104e", "exchange.delete", "configure access to exchange '{x}'", exchange="{x}")
_refused("104f", "queue.delete", "configure access to queue 'nosuch'", queue="nosuch")
_refused(
    "104g",
    "queue.declare",
    "configure access to queue 'new-{q}'",
    queue="new-{q}",
    arguments={"x-queue-mode": "foo"},
)

_refused("105a", "basic.publish", "write access to exchange '{x}'", exchange="{x}")
_refused(
    "105b", "basic.publish", "write access to exchange 'amq.default'", exchange="", routing_key="own-{q}"
)
_refused(
    "105c", "queue.bind", "write access to queue '{q}'", queue="{q}", exchange="own-{x}", routing_key="k"
)
_refused("105d", "exchange.bind", "write access to exchange '{x}'", destination="{x}", source="own-{x}")
_refused(
    "105e", "queue.unbind", "write access to queue '{q}'", queue="{q}", exchange="own-{x}", routing_key="k"
)
_refused("105f", "exchange.declare", "write access to exchange '{x}'", exchange="own-new-{x}", type="direct",
         arguments={"alternate-exchange": "{x}"})  # fmt: skip
_refused(
    "105g",
    "queue.declare",
    "write access to exchange '{x}'",
    queue="own-new-{q}",
    arguments={"x-dead-letter-exchange": "{x}"},
)
_refused("105h", "exchange.declare", "write access to exchange 'own-ae'", user="reader", exchange="own-new-{x}", type="direct",
         arguments={"alternate-exchange": "own-ae"})  # fmt: skip
_refused("105i", "basic.publish", "write access to exchange 'own-{x}'", user="reader", exchange="own-{x}")
_refused("105j", "queue.bind", "write access to queue '{q}'", queue="{q}", exchange="{x}", routing_key="k")

_refused("106a", "basic.get", "read access to queue '{q}'", queue="{q}")
_refused("106b", "basic.consume", "read access to queue '{q}'", queue="{q}")
_refused("106c", "queue.purge", "read access to queue '{q}'", queue="{q}")
_refused(
    "106d", "queue.bind", "read access to exchange '{x}'", queue="own-{q}", exchange="{x}", routing_key="k"
)
_refused("106e", "exchange.bind", "read access to exchange '{x}'", destination="own-{x}", source="{x}")
_refused("106f", "queue.declare", "read access to queue 'own-new-{q}'", user="writer", queue="own-new-{q}",
         arguments={"x-dead-letter-exchange": "own-dlx"})  # fmt: skip
_refused("106g", "exchange.declare", "read access to exchange 'own-new-{x}'", user="writer", exchange="own-new-{x}", type="direct",
         arguments={"alternate-exchange": "own-ae"})  # fmt: skip
_refused(
    "106h", "queue.unbind", "read access to exchange '{x}'", queue="own-{q}", exchange="{x}", routing_key="k"
)
_refused("106i", "basic.get", "read access to queue 'nosuch'", queue="nosuch")


@case("104h", channel(403, "queue.declare", "queue name 'amq.foo' contains reserved prefix 'amq.*'"))
def _(s: Session) -> None:
    """Names are checked before permissions."""
    s.channel("limited").queue("amq.foo")


_refused("104i", "queue.declare", "configure access to queue '{q}'", queue="{q}", passive=True)
_refused("104l", "queue.declare", "configure access to queue 'nosuch'", queue="nosuch", passive=True)
_refused(
    "104m",
    "exchange.declare",
    "configure access to exchange 'amq.topic'",
    exchange="amq.topic",
    type="topic",
    passive=True,
)


@case("104n", ok([0, 0, 0]))
def _(s: Session) -> list[int]:
    """Any one of the three permissions suffices for a passive declare."""
    s.channel().queue(s.q)
    s.channel().queue("own-" + s.q)
    asked = (("reader", s.q), ("writer", s.q), ("limited", "own-" + s.q))
    return [s.channel(user).ready(name) for user, name in asked]


@case("104j", ok(b"x"))
def _(s: Session) -> bytes | None:
    """A user may use the queues and exchanges that its permissions match."""
    mine = s.channel("limited")
    queue, exchange = "own-" + s.q, "own-" + s.x
    mine.queue(queue)
    mine.exchange(exchange)
    mine.call("queue.bind", queue=queue, exchange=exchange, routing_key="k")
    mine.publish(exchange, "k", b"x")
    return mine.get(queue)


@case(
    "104k",
    channel(
        403,
        "queue.declare",
        "configure access to queue 'amq.gen-NAME' in vhost '/' refused for user 'limited'",
    ),
)
def _(s: Session) -> None:
    """Declaring a server-named queue needs a permission for the generated name."""
    s.channel("limited").queue(exclusive=True)


@case(
    "105k",
    channel(
        403, "basic.publish", "write access to exchange 'nosuch' in vhost '/' refused for user 'limited'"
    ),
)
def _(s: Session) -> None:
    """Publishing to a missing exchange without permission is refused with 403, not 404."""
    mine = s.channel("limited")
    mine.publish("nosuch", "k", b"x")
    mine.sync()


@case(
    "105l",
    channel(403, "basic.publish", "write access to exchange '{x}' in vhost '/' refused for user 'limited'"),
)
def _(s: Session) -> None:
    """The permission is checked before whether an exchange is internal."""
    s.channel().exchange(s.x, internal=True)
    mine = s.channel("limited")
    mine.publish(s.x, "k", b"x")
    mine.sync()


def _topic_refused(method: str, key: str, exchange: str, kind: str) -> Outcome:
    where = f"{kind} access to topic '{key}' in exchange '{exchange}' in vhost '/' refused for user 'topical'"
    return channel(403, method, where)


@case("107a", _topic_refused("basic.publish", "other.key", "amq.topic", "write"))
def _(s: Session) -> None:
    """Publishing with a routing key that the topic permissions do not allow."""
    mine = s.channel("topical")
    mine.publish("amq.topic", "own.key", b"x")
    mine.sync()
    mine.publish("amq.topic", "other.key", b"x")
    mine.sync()


@case("107b", _topic_refused("queue.bind", "other.#", "amq.topic", "read"))
def _(s: Session) -> None:
    """Binding a queue with a key that the topic permissions do not allow."""
    mine = s.channel("topical")
    queue = mine.queue(exclusive=True)
    mine.call("queue.bind", queue=queue, exchange="amq.topic", routing_key="own.#")
    mine.call("queue.bind", queue=queue, exchange="amq.topic", routing_key="other.#")


@case("107c", _topic_refused("exchange.bind", "#", "amq.topic", "read"))
def _(s: Session) -> None:
    """Binding an exchange with a key that the topic permissions do not allow."""
    mine = s.channel("topical")
    mine.exchange(s.x, auto_delete=True)
    mine.call("exchange.bind", destination=s.x, source="amq.topic", routing_key="own.#")
    mine.call("exchange.bind", destination=s.x, source="amq.topic", routing_key="#")


@case("107d", _topic_refused("queue.unbind", "#", "amq.topic", "read"))
def _(s: Session) -> None:
    """Unbinding a queue with a key that the topic permissions do not allow."""
    mine = s.channel("topical")
    queue = mine.queue(exclusive=True)
    mine.call("queue.unbind", queue=queue, exchange="amq.topic", routing_key="#")


@case("107e", ok(b"x"))
def _(s: Session) -> bytes | None:
    """Patterns of topic permissions may contain variables for user name and virtual host."""
    mine = s.channel("topical")
    mine.exchange(s.x, "topic", auto_delete=True)
    queue = mine.queue(exclusive=True)
    mine.call("queue.bind", queue=queue, exchange=s.x, routing_key="by topical in /")
    mine.publish(s.x, "of topical in /", b"unbound")
    mine.call("queue.bind", queue=queue, exchange="amq.topic", routing_key="topical.#")
    s.channel().publish("amq.topic", "topical.key", b"x")
    mine.ready(queue, 1)
    return mine.get(queue)


@case("107f", _topic_refused("basic.publish", "of root in /", "{x}", "write"))
def _(s: Session) -> None:
    """A key that does not match a pattern with its variables replaced."""
    mine = s.channel("topical")
    mine.exchange(s.x, "topic", auto_delete=True)
    mine.publish(s.x, "of topical in /", b"x")
    mine.sync()
    mine.publish(s.x, "of root in /", b"x")
    mine.sync()


def _copied(header: str) -> None:
    @case(
        "107i" if header == "CC" else "107j",
        _topic_refused("basic.publish", "other.key", "amq.topic", "write"),
        statement=f"publishing with a key in {header} that the topic permissions do not allow",
    )
    def _(s: Session) -> None:
        mine = s.channel("topical")
        mine.publish("amq.topic", "own.key", b"x", headers={header: ["own.second", "other.key"]})
        mine.sync()


_copied("CC")
_copied("BCC")


@case("107g", ok(2))
def _(s: Session) -> int:
    """Exchanges without a topic permission, and those of other types, accept any key."""
    mine = s.channel("topical")
    queue = mine.queue(exclusive=True)
    mine.exchange(s.x, "topic", auto_delete=True)
    mine.call("queue.bind", queue=queue, exchange=s.x, routing_key="other.#")
    mine.call("queue.bind", queue=queue, exchange="amq.direct", routing_key="other.key")
    mine.publish(s.x, "other.key", b"x")
    mine.publish("amq.direct", "other.key", b"x")
    return mine.ready(queue, 2)


@case(
    "107h",
    channel(
        403, "basic.publish", "write access to exchange 'amq.topic' in vhost '/' refused for user 'limited'"
    ),
)
def _(s: Session) -> None:
    """The permission for the exchange is checked before the topic permissions."""
    mine = s.channel("limited")
    mine.publish("amq.topic", "own.key", b"x")
    mine.sync()
