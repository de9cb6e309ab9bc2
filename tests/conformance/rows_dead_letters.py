"""Cases of dead letters: the reasons of dead-lettering, the `x-death` header, and the routing of dead letters.

RabbitMQ 3.10.8 has no `x-last-death-*`: outcomes leave them out, and further cases test them.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from conformance.cases import Cases, Session, channel, ok
from conformance.codec import HEADER, Message, T
from conformance.wire import Channel, QuietError

ROWS = Cases()
case = ROWS.case
RECENT_SECONDS = 60
LAST = ("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange")
FIRST = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")


def _named(s: Session, value: Any) -> Any:
    """Put Q for the case's queue and X for its exchange, wherever in a value, and `now` for recent seconds."""
    if isinstance(value, str):
        return value.replace(s.q, "Q").replace(s.x, "X")
    if isinstance(value, list):
        return [_named(s, item) for item in value]
    if isinstance(value, dict):
        return {
            name: "now" if name == "time" and abs(item - time.time()) < RECENT_SECONDS else _named(s, item)
            for name, item in value.items()
        }
    return value


def death(queue: str = "Q", reason: str = "rejected", **changes: Any) -> dict[str, Any]:
    """Return an entry of x-death for a message published to the default exchange that died just now."""
    usual = {"count": 1, "time": "now", "exchange": "", "routing-keys": ["Q"]}
    fields = {"queue": queue, "reason": reason, **usual, **changes}
    return {name.replace("_", "-"): value for name, value in fields.items()}


def former(queue: str, reason: str) -> dict[str, Any]:
    """An entry of x-death as a client sends it."""
    keys = ["k1", "k2"]
    return {
        "count": T("l", 4),
        "reason": reason,
        "queue": queue,
        "time": T("T", 77),
        "exchange": "old",
        "routing-keys": keys,
    }


def formerly(queue: str, reason: str, count: int = 4) -> dict[str, Any]:
    """Return the entry of `former` as it is seen later."""
    return {**former(queue, reason), "count": count, "time": 77}


def deaths(s: Session, message: Message) -> list[dict[str, Any]]:
    """The history of a dead letter."""
    return _named(s, message.properties["headers"]["x-death"])


def first(s: Session, message: Message) -> list[str | None]:
    """Queue, reason and exchange of the first death."""
    headers = message.properties["headers"]
    return [_named(s, headers.get(name)) for name in FIRST]


def last(s: Session, message: Message) -> list[str | None]:
    """Queue, reason and exchange of the last death."""
    headers = message.properties["headers"]
    return [_named(s, headers.get(name)) for name in LAST]


def own(s: Session, message: Message) -> dict[str, Any]:
    """The headers that are not about deaths."""
    headers = message.properties["headers"]
    return {
        name: _named(s, value) for name, value in headers.items() if name not in {"x-death", *FIRST, *LAST}
    }


def brief(s: Session, message: Message) -> list[tuple[str, str, int]]:
    """The history in short: queue, reason and count of each death."""
    return [(entry["queue"], entry["reason"], entry["count"]) for entry in deaths(s, message)]


def dying(s: Session, opened: Channel, arguments: dict[str, Any] | None = None, **fields: Any) -> str:
    """Declare the case's queue, whose dead letters go through its exchange (fanout) to a queue, which is returned."""
    opened.exchange(s.x, "fanout")
    dead = opened.queue(f"{s.q}-dead")
    opened.call("queue.bind", queue=dead, exchange=s.x)
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x, **(arguments or {})}, **fields)
    return dead


def take(opened: Channel, queue: str, *, no_ack: bool = True) -> Message:
    """The next message of a queue, which may be on its way."""
    deadline = time.monotonic() + 5
    while True:
        message = opened.call("basic.get", queue=queue, no_ack=no_ack)
        if message.name == "basic.get-ok":
            return message
        if time.monotonic() > deadline:
            raise QuietError


def reject(opened: Channel, queue: str) -> None:
    """Get the next message of a queue and reject it."""
    message = take(opened, queue, no_ack=False)
    opened.send("basic.reject", delivery_tag=message.delivery_tag, requeue=False)


def nack(opened: Channel, queue: str) -> None:
    """Deliver the next message of a queue and nack it."""
    opened.consume(queue, "nacker")
    message = opened.deliver()
    opened.send("basic.nack", delivery_tag=message.delivery_tag, requeue=False)
    opened.call("basic.cancel", consumer_tag="nacker")


def nothing(_opened: Channel, _queue: str) -> None:
    """Leave the queue alone."""


def push(opened: Channel, queue: str) -> None:
    """Publish another message, for which there is room only if the first goes."""
    opened.publish("", queue, b"another")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to die: what the queue is declared and the message published with, and what has to be done then."""

    reason: str
    text: str
    arguments: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    kill: Any = nothing
    recorded: dict[str, Any] = field(default_factory=dict)


WAYS = {
    "ttl": Way("expired", "expires by the queue's TTL", {"x-message-ttl": 1}),
    "expiration": Way(
        "expired",
        "expires by its own expiration",
        properties={"expiration": "1"},
        recorded={"original_expiration": "1"},
    ),
    "reject": Way("rejected", "is rejected", kill=reject),
    "nack": Way("rejected", "is nacked", kill=nack),
    "length": Way("maxlen", "is dropped because of x-max-length", {"x-max-length": 1}, kill=push),
    "octets": Way("maxlen", "is dropped because of x-max-length-bytes", {"x-max-length-bytes": 7}, kill=push),
    "refuse": Way(
        "maxlen",
        "is rejected by a full queue with reject-publish-dlx",
        {"x-max-length": 0, "x-overflow": "reject-publish-dlx"},
    ),
}


@dataclass(frozen=True, slots=True)
class Form:
    """Headers of a message before it is dead-lettered, made from the queue and the reason, and those of the dead letter."""

    text: str
    sent: Any
    deaths: Any
    first: Any = None
    own: dict[str, Any] = field(default_factory=dict)


OTHER = {"expired": "rejected", "rejected": "maxlen", "maxlen": "expired"}
MINE = {"x-first-death-queue": "mine", "x-first-death-reason": "own", "x-first-death-exchange": "my"}
FIELDS = {"zeta": "z", "a": 1, "list": [1, "two"], "table": {"b": True}, "B": None, "long": T("l", 5)}

FORMS = {
    "none": Form("without headers", lambda _q, _r: None, lambda r, new: [new], first=lambda r: ["Q", r, ""]),
    "own": Form("with other headers", lambda _q, _r: FIELDS, lambda r, new: [new],
                first=lambda r: ["Q", r, ""], own={**FIELDS, "long": 5}),
    "other": Form("that was dead-lettered by another queue", lambda _q, r: {"x-death": [former("else", r)]},
                  lambda r, new: [new, formerly("else", r)]),
    "reason": Form("that this queue dead-lettered for another reason", lambda q,
                   r: {"x-death": [former(q, OTHER[r])]}, lambda r, new: [new, formerly("Q", OTHER[r])]),
    "again": Form("that this queue dead-lettered for this reason", lambda q, r: {"x-death": [former(q, r)]},
                  lambda r, _new: [formerly("Q", r, 5)]),
    "moved": Form("that this queue, then another, dead-lettered for this reason", lambda q,
                  r: {"x-death": [former("else", r), former(q, r)]}, lambda r,
                  _new: [formerly("Q", r, 5), formerly("else", r)]),
    "first": Form("with x-first-death-* headers", lambda _q, r: {**MINE, "x-death": [former("else", r)]},
                  lambda r, new: [new, formerly("else", r)], first=lambda _r: ["mine", "own", "my"]),
    "text": Form("with an x-death header that is a string", lambda _q, _r: {"x-death": "{once}", "a": 1},
                 lambda r, new: [new], first=lambda r: ["Q", r, ""], own={"a": 1}),
}  # fmt: skip


def _die(s: Session, way: Way, headers: dict[str, Any] | None) -> Message:
    opened = s.channel()
    dead = dying(s, opened, way.arguments)
    opened.consume(dead, no_ack=True)
    more = {} if headers is None else {"headers": headers}
    opened.publish("", s.q, b"body", **way.properties, **more)
    way.kill(opened, s.q)
    message = opened.deliver()
    assert message.body == b"body"
    assert "expiration" not in message.properties
    return message


for _way_name, _way in WAYS.items():
    for _form_name, _form in FORMS.items():

        def _matrix(s: Session, way: Way = _way, form: Form = _form) -> Any:
            message = _die(s, way, form.sent(s.q, way.reason))
            return first(s, message), deaths(s, message), own(s, message)

        case(
            f"dead.{_way_name}.{_form_name}",
            ok(
                (
                    _form.first(_way.reason) if _form.first else [None] * 3,
                    _form.deaths(_way.reason, death(reason=_way.reason, **_way.recorded)),
                    _form.own,
                )
            ),
            statement=f"x-death is correct after a message {_form.text} {_way.text}",
        )(_matrix)


# -- what is written -----------------------------------------------------------------------------------------------


@case("dead.last", ok((["Q", "rejected", ""],) * 2))
def _(s: Session) -> Any:
    """x-last-death-* is written in addition to x-first-death-*."""
    message = _die(s, WAYS["reject"], None)
    return first(s, message), last(s, message)


@case("dead.last-again", ok((["Q", "rejected", ""], ["Q-dead", "rejected", "X"])))
def _(s: Session) -> Any:
    """x-last-death-* changes when the message is dead-lettered again."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x})
    opened.queue(f"{s.q}-dead", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q})
    opened.call("queue.bind", queue=f"{s.q}-dead", exchange=s.x)
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    reject(opened, f"{s.q}-dead")
    message = take(opened, s.q)
    return first(s, message), last(s, message)


@case("dead.types", ok([True] * 6))
def _(s: Session) -> list[bool]:
    """In x-death count is a long, time a timestamp, routing-keys an array of strings, and the rest are strings."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    opened.ready(dead, 1)
    opened.send("basic.get", queue=dead, no_ack=True)
    kind, payload = 0, b""
    while kind != HEADER:
        kind, _, payload = opened.client.read_frame()
    names = (
        b"\x05countl",
        b"\x04timeT",
        b"\x05queueS",
        b"\x06reasonS",
        b"\x08exchangeS",
        b"\x0crouting-keysA",
    )
    return [name in payload for name in names]


@case("dead.expiration-kept", ok((None, [death(original_expiration="60000")])))
def _(s: Session) -> Any:
    """The expiration is removed and recorded as original-expiration whatever the reason."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"body", expiration="60000")
    reject(opened, s.q)
    message = take(opened, dead)
    return message.properties.get("expiration"), deaths(s, message)


@case("dead.expiration-number", ok(["500"]))
def _(s: Session) -> Any:
    """original-expiration is written as a number."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"body", expiration="+0500")
    reject(opened, s.q)
    return [entry["original-expiration"] for entry in deaths(s, take(opened, dead))]


@case("dead.expiration-once", ok([("Q-dead", None), ("Q", "60000")]))
def _(s: Session) -> Any:
    """original-expiration is recorded by the death that removed it, not by later ones."""
    opened = s.channel()
    opened.queue(f"{s.q}-end")
    for name, to in ((s.q, f"{s.q}-dead"), (f"{s.q}-dead", f"{s.q}-end")):
        opened.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to})
    opened.publish("", s.q, b"body", expiration="60000")
    reject(opened, s.q)
    reject(opened, f"{s.q}-dead")
    message = take(opened, f"{s.q}-end")
    return [(entry["queue"], entry.get("original-expiration")) for entry in deaths(s, message)]


@case(
    "dead.chain",
    ok(
        (
            ["Q", "rejected", "amq.fanout"],
            [
                death("Q-2", "rejected", exchange="", routing_keys=["Q-2"]),
                death("Q", "rejected", exchange="amq.fanout", routing_keys=["k"]),
            ],
        )
    ),
)
def _(s: Session) -> Any:
    """Each queue in a chain adds an entry to x-death, the newest first."""
    opened = s.channel()
    opened.queue(f"{s.q}-3")
    for name, to in ((s.q, f"{s.q}-2"), (f"{s.q}-2", f"{s.q}-3")):
        opened.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to})
    opened.call("queue.bind", queue=s.q, exchange="amq.fanout")
    opened.publish("amq.fanout", "k", b"body")
    opened.call("queue.unbind", queue=s.q, exchange="amq.fanout")
    reject(opened, s.q)
    reject(opened, f"{s.q}-2")
    message = take(opened, f"{s.q}-3")
    return first(s, message), deaths(s, message)


@case("dead.order", ok(([("Q", "rejected", 1), ("b", "expired", 4), ("a", "expired", 4)], "Q")))
def _(s: Session) -> Any:
    """A third death does not change the order of the other entries."""
    message = _die(s, WAYS["reject"], {"x-death": [former("b", "expired"), former("a", "expired")]})
    return brief(s, message), _named(s, message.routing_key)


@case("dead.counted-on", ok([death(count=3)]))
def _(s: Session) -> Any:
    """Repeated deaths increase the count; the entry keeps the time, exchange and keys of the first."""
    opened = s.queue(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q})
    opened.publish("", s.q, b"body")
    for _ in range(3):
        reject(opened, s.q)
    return deaths(s, take(opened, s.q))


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in former("else", "expired").items() if key != name}


_ENTRIES: tuple[tuple[str, str, list[Any], int], ...] = (
    ("strings", "strings", ["a", "b"], 0),
    ("empty-table", "an empty table", [{}], 0),
    ("no-queue", "an entry without queue", [_without("queue")], 0),
    ("no-count", "an entry without count", [_without("count")], 0),
    ("no-exchange", "an entry without exchange", [_without("exchange")], 0),
    ("text-count", "a count that is a string", [{**former("else", "expired"), "count": "four"}], 0),
    ("small-count", "a 32-bit count", [{**former("else", "expired"), "count": 4}], 1),
    ("number-time", "a time that is an integer", [{**former("else", "expired"), "time": T("l", 77)}], 1),
)
for _name, _text, _entries, _kept in _ENTRIES:

    def _foreign(s: Session, entries: list[Any] = _entries) -> Any:
        newest, *others = deaths(s, _die(s, WAYS["reject"], {"x-death": entries}))
        return newest, len(others)

    case(
        f"dead.entry-{_name}",
        ok((death(), _kept)),
        statement=f"x-death with {_text} is {'kept' if _kept else 'removed'}",
    )(_foreign)


@case("dead.entry-more", ok([death(), formerly("else", "expired")]))
def _(s: Session) -> Any:
    """Unknown fields of an x-death entry are removed."""
    return deaths(s, _die(s, WAYS["reject"], {"x-death": [{**former("else", "expired"), "more": 1}]}))


@case("dead.entry-none", ok(([None] * 3, [death()])))
def _(s: Session) -> Any:
    """A dead letter that had an empty x-death header gets no x-first-death-* headers."""
    message = _die(s, WAYS["reject"], {"x-death": []})
    return first(s, message), deaths(s, message)


for _name, _value in {
    "table": {"a": 1},
    "void": None,
    "number": 7,
    "bool": True,
    "binary": T("x", b"abc"),
}.items():

    def _malformed(s: Session, value: Any = _value) -> Any:
        message = _die(s, WAYS["ttl"], {"x-death": value})
        return first(s, message), deaths(s, message), own(s, message)

    case(
        f"dead.other.{_name}",
        ok((["Q", "expired", ""], [death(reason="expired")], {})),
        statement=f"an x-death header of the type {_name} is replaced",
    )(_malformed)


@case("dead.first-claimed", ok((["Q", "rejected", ""], [death()])))
def _(s: Session) -> Any:
    """x-first-death-* headers sent by a client are overwritten."""
    message = _die(s, WAYS["reject"], MINE)
    return first(s, message), deaths(s, message)


PROPERTIES = {
    "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 7,
    "correlation_id": "c", "reply_to": "r", "message_id": "m", "timestamp": 12345, "type": "t", "user_id": "guest",
    "app_id": "a", "cluster_id": "cl",
}  # fmt: skip


@case("dead.properties", ok(PROPERTIES))
def _(s: Session) -> Any:
    """All other properties are unchanged."""
    opened = s.channel()
    dead = dying(s, opened, durable=True)
    opened.publish("", s.q, b"body", **PROPERTIES, expiration="5")
    properties = dict(take(opened, dead).properties)
    del properties["headers"]
    return properties


for _name, _size in {"empty": 0, "one-frame": 1000, "frames": 300_000}.items():

    def _body(s: Session, size: int = _size) -> Any:
        opened = s.channel()
        dead = dying(s, opened)
        body = bytes(range(250)) * (size // 250)
        opened.publish("", s.q, body)
        reject(opened, s.q)
        return take(opened, dead).body == body

    case(f"dead.body-{_name}", ok(True), statement=f"a body of {_size} bytes is unchanged")(_body)


@case("dead.not-redelivered", ok(False))
def _(s: Session) -> Any:
    """A dead letter is not marked as redelivered."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    return take(opened, dead).redelivered


@case("dead.address", ok(("X", "Q")))
def _(s: Session) -> Any:
    """A dead letter has the dead letter exchange as its exchange and keeps its routing key."""
    message = _die(s, WAYS["reject"], None)
    return _named(s, message.exchange), _named(s, message.routing_key)


# -- cycles --------------------------------------------------------------------------------------------------------

_ROUND = {"x-message-ttl": 1}


for _name in ("ttl", "expiration", "length", "octets", "refuse"):

    def _itself(s: Session, way: Way = WAYS[_name]) -> Any:
        opened = s.channel()
        dead = dying(s, opened, way.arguments)
        opened.call("queue.bind", queue=s.q, exchange=s.x)
        opened.consume(dead, no_ack=True)
        opened.publish("", s.q, b"body", **way.properties)
        way.kill(opened, s.q)
        message = opened.deliver()
        again = not opened.quiet("basic.deliver")
        left = opened.call("queue.delete", queue=s.q).message_count
        return brief(s, message), again, left

    case(
        f"dead.cycle.{_name}",
        ok(([("Q", WAYS[_name].reason, 1)], False, 1 if WAYS[_name].kill is push else 0)),
        statement=f"a message that {WAYS[_name].text} is dead-lettered to other queues, not to its own",
    )(_itself)


@case("dead.cycle.reject", ok([("Q", "rejected", 2)]))
def _(s: Session) -> Any:
    """A rejected message returns to its own queue, each time it is rejected."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.call("queue.bind", queue=s.q, exchange=s.x)
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    reject(opened, s.q)
    take(opened, dead)
    return brief(s, take(opened, dead))


def _ring(s: Session, opened: Channel, *arguments: dict[str, Any]) -> str:
    """Queues whose dead letters go to the next, of the last to the first; a queue that has copies of those.

    They are called Q-0, Q-1 and so on.
    """
    witness = opened.queue(f"{s.q}-witness")
    last = len(arguments) - 1
    for number, more in enumerate(arguments):
        opened.exchange(f"{s.x}-{number}", "fanout")
        exchange = {"x-dead-letter-exchange": f"{s.x}-{number}"}
        opened.queue(f"{s.q}-{number}", arguments={**exchange, **more})
    for number in range(len(arguments)):
        to = 0 if number == last else number + 1
        opened.call("queue.bind", queue=f"{s.q}-{to}", exchange=f"{s.x}-{number}")
    opened.call("queue.bind", queue=witness, exchange=f"{s.x}-{last}")
    opened.consume(witness, no_ack=True)
    return witness


def _retried(s: Session, *arguments: dict[str, Any], rejects_at: int, times: int) -> list[object]:
    """Return the dead letters that the witness of a ring gets while one queue has its message rejected again and again."""
    opened = s.channel()
    _ring(s, opened, *arguments)
    opened.publish("", f"{s.q}-0", b"body")
    seen = []
    for _ in range(times):
        reject(opened, f"{s.q}-{rejects_at}")
        seen.append(brief(s, opened.deliver()))
    return seen


@case("dead.cycle.two", ok(([("Q-1", "expired", 1), ("Q-0", "expired", 1)], True)))
def _(s: Session) -> Any:
    """A message that expires in two queues in turn is not dead-lettered to the first one again."""
    opened = s.channel()
    _ring(s, opened, _ROUND, _ROUND)
    opened.publish("", f"{s.q}-0", b"body")
    return brief(s, opened.deliver()), opened.quiet("basic.deliver")


@case("dead.cycle.three", ok(([("Q-2", "maxlen", 1), ("Q-1", "expired", 1), ("Q-0", "expired", 1)], True)))
def _(s: Session) -> Any:
    """A cycle of three queues by TTL and x-max-length ends before the first queue."""
    opened = s.channel()
    _ring(s, opened, _ROUND, _ROUND, {"x-max-length": 0})
    opened.publish("", f"{s.q}-0", b"body")
    return brief(s, opened.deliver()), opened.quiet("basic.deliver")


@case("dead.cycle.two-rejected", ok([[("Q-1", "rejected", n), ("Q-0", "expired", n)] for n in (1, 2, 3)]))
def _(s: Session) -> Any:
    """A retry cycle of TTL and reject does not end."""
    return _retried(s, _ROUND, {}, rejects_at=1, times=3)


@case("dead.cycle.reject-then-ttl", ok([[("Q-1", "expired", n), ("Q-0", "rejected", n)] for n in (1, 2)]))
def _(s: Session) -> Any:
    """A retry cycle of reject and TTL does not end."""
    return _retried(s, {}, _ROUND, rejects_at=0, times=2)


@case("dead.cycle.reject-before", ok(([("Q-0", "expired", 1), ("Q", "rejected", 1)], True)))
def _(s: Session) -> Any:
    """A reject before a message entered a cycle does not keep the cycle going."""
    opened = s.channel()
    _ring(s, opened, _ROUND)
    opened.queue(s.q, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{s.q}-0"})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    return brief(s, opened.deliver()), opened.quiet("basic.deliver")


@case("dead.cycle.default-exchange", ok((0, [("Q", "expired", 1)])))
def _(s: Session) -> Any:
    """A message that expires and is dead-lettered to its own queue by the default exchange is dropped."""
    opened = s.channel()
    dead = opened.queue(f"{s.q}-dead")
    opened.queue(s.q, arguments={**_ROUND, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q})
    opened.publish("", s.q, b"body")
    opened.ready(s.q, 0)
    # another one goes the same way with a copy that is seen: then the first is gone for sure
    opened.call("queue.delete", queue=s.q)
    opened.queue(s.q, arguments={**_ROUND, "x-dead-letter-exchange": ""})
    opened.publish("", s.q, b"body", headers={"CC": [dead]})
    took = [take(opened, dead), take(opened, dead)]
    return opened.ready(s.q), brief(s, next(m for m in took if "x-death" in m.properties["headers"]))


for _reason in ("expired", "rejected"):

    def _claimed(s: Session, reason: str = _reason) -> bool:
        opened = s.channel()
        dead = dying(s, opened, _ROUND)
        opened.publish("", s.q, b"body", headers={"x-death": [former(dead, reason)]})
        opened.publish("", s.q, b"marker")
        return take(opened, dead).body == b"body"

    case(
        f"dead.cycle.claimed-{_reason}",
        ok(True),
        statement=f"cycle detection ignores an x-death header sent by a client: {_reason} in the target queue",
    )(_claimed)


# -- keys ----------------------------------------------------------------------------------------------------------


KEYS = ("bcc", "cc", "dlrk", "k")


def _taken(s: Session, opened: Channel) -> dict[str, Message]:
    answers = {key: opened.call("basic.get", queue=f"{s.q}.{key}", no_ack=True) for key in KEYS}
    return {key: answer for key, answer in answers.items() if answer.name == "basic.get-ok"}


def _keys(s: Session, arguments: dict[str, Any], headers: dict[str, Any]) -> Any:
    """Reject a message: the keys its letter is routed by, the one it shows, the recorded ones, its headers."""
    opened = s.channel()
    opened.exchange(s.x)
    for key in KEYS:
        opened.queue(f"{s.q}.{key}")
        opened.call("queue.bind", queue=f"{s.q}.{key}", exchange=s.x, routing_key=key)
    opened.exchange(f"{s.x}.in")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x, **arguments})
    opened.call("queue.bind", queue=s.q, exchange=f"{s.x}.in", routing_key="k")
    opened.publish(f"{s.x}.in", "k", b"body", headers=headers)
    reject(opened, s.q)
    deadline = time.monotonic() + 5
    took: dict[str, Message] = {}
    while not took and time.monotonic() < deadline:
        took = _taken(s, opened)
    took |= _taken(s, opened)  # what has come to one queue has come to all now
    message = next(iter(took.values()))
    recorded = [entry["routing-keys"] for entry in deaths(s, message)]
    return sorted(took), message.routing_key, recorded, own(s, message)


_DLRK = {"x-dead-letter-routing-key": "dlrk"}
_CC, _BCC = {"CC": ["cc", "other"]}, {"BCC": ["bcc"]}

for _ident, _text, _arguments, _headers, _expected in (
    ("key", "the message's routing key", {}, {}, (["k"], "k", [["k"]], {})),
    ("dlrk", "x-dead-letter-routing-key", _DLRK, {}, (["dlrk"], "dlrk", [["k"]], {})),
    ("cc", "the message's routing key and those in CC", {}, _CC, (["cc", "k"], "k", [["k", "cc", "other"]], _CC)),
    ("cc-empty", "the message's routing key if CC is empty", {}, {"CC": []}, (["k"], "k", [["k"]], {"CC": []})),
    ("cc-mixed", "the message's routing key and the strings in CC", {}, {"CC": [1, "cc", None]},
     (["cc", "k"], "k", [["k", "cc"]], {"CC": [1, "cc", None]})),
    ("cc-dlrk", "x-dead-letter-routing-key, and CC is removed", _DLRK, _CC, (["dlrk"], "dlrk", [["k", "cc", "other"]], {})),
    ("bcc", "the message's routing key, not by BCC", {}, _BCC, (["k"], "k", [["k"]], {})),
    ("bcc-dlrk", "x-dead-letter-routing-key, not by BCC", _DLRK, _BCC, (["dlrk"], "dlrk", [["k"]], {})),
    ("cc-bcc", "the message's routing key and those in CC, not by BCC", {}, _CC | _BCC,
     (["cc", "k"], "k", [["k", "cc", "other"]], _CC)),
    ("cc-bcc-dlrk", "x-dead-letter-routing-key alone, not by CC or BCC", _DLRK, _CC | _BCC,
     (["dlrk"], "dlrk", [["k", "cc", "other"]], {})),
):  # fmt: skip

    def _routed(
        s: Session, arguments: dict[str, Any] = _arguments, headers: dict[str, Any] = _headers
    ) -> Any:
        return _keys(s, arguments, headers)

    case(f"dead.keys.{_ident}", ok(_expected), statement=f"dead letters are routed by {_text}")(_routed)


@case("dead.keys.empty", ok(("", [["Q"]])))
def _(s: Session) -> Any:
    """An empty x-dead-letter-routing-key is used as a key."""
    opened = s.channel()
    dead = dying(s, opened, {"x-dead-letter-routing-key": ""})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    message = take(opened, dead)
    return message.routing_key, [entry["routing-keys"] for entry in deaths(s, message)]


@case("dead.keys.twice", ok(([["dlrk"], ["k", "cc"]], {})))
def _(s: Session) -> Any:
    """After x-dead-letter-routing-key was applied, the next death records only that key."""
    opened = s.channel()
    opened.exchange(s.x, "direct")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x, "x-dead-letter-routing-key": "dlrk"})
    opened.queue(f"{s.q}-2", arguments={"x-dead-letter-exchange": s.x + "-2"})
    opened.exchange(s.x + "-2", "fanout")
    opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key="k")
    opened.call("queue.bind", queue=f"{s.q}-2", exchange=s.x, routing_key="dlrk")
    opened.queue(f"{s.q}-3")
    opened.call("queue.bind", queue=f"{s.q}-3", exchange=s.x + "-2")
    opened.publish(s.x, "k", b"body", headers={"CC": ["cc"]})
    reject(opened, s.q)
    reject(opened, f"{s.q}-2")
    message = take(opened, f"{s.q}-3")
    return [entry["routing-keys"] for entry in deaths(s, message)], own(s, message)


@case("dead.keys.cc-again", ok([["k", "cc"], ["k", "cc"]]))
def _(s: Session) -> Any:
    """CC is used each time a message is dead-lettered."""
    opened = s.channel()
    opened.exchange(s.x, "direct")
    opened.exchange(s.x + "-2", "direct")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x + "-2"})
    opened.queue(f"{s.q}-2", arguments={"x-dead-letter-exchange": s.x + "-2"})
    opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key="k")
    opened.call("queue.bind", queue=f"{s.q}-2", exchange=s.x + "-2", routing_key="cc")
    opened.publish(s.x, "k", b"body", headers={"CC": ["cc"]})
    reject(opened, s.q)
    reject(opened, f"{s.q}-2")
    message = take(opened, f"{s.q}-2")
    return [entry["routing-keys"] for entry in deaths(s, message)]


# -- where dead letters go -----------------------------------------------------------------------------------------


def _marked(s: Session, opened: Channel, dead: str, queue: str | None = None) -> bytes:
    """Let a second message die in a queue: the first that comes to `dead`, which is another if the former was lost."""
    opened.publish("", queue or s.q, b"marker")
    reject(opened, queue or s.q)
    return take(opened, dead).body


@case("dead.missing", ok(b"marker"))
def _(s: Session) -> Any:
    """Dead letters are dropped while the exchange does not exist, and routed once it does."""
    opened = s.queue(arguments={"x-dead-letter-exchange": s.x})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    opened.ready(s.q, 0)
    dead = opened.queue(f"{s.q}-dead")
    opened.exchange(s.x, "fanout")
    opened.call("queue.bind", queue=dead, exchange=s.x)
    return _marked(s, opened, dead)


@case("dead.deleted", ok((b"1", b"marker")))
def _(s: Session) -> Any:
    """Dead letters are dropped after the dead letter exchange is deleted."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"1")
    reject(opened, s.q)
    seen = take(opened, dead).body
    opened.call("exchange.delete", exchange=s.x)
    opened.publish("", s.q, b"2")
    reject(opened, s.q)
    opened.drain(s.q)
    opened.exchange(s.x, "fanout")
    opened.call("queue.bind", queue=dead, exchange=s.x)
    return seen, _marked(s, opened, dead)


@case("dead.missing-ttl", ok((0, 0)))
def _(s: Session) -> Any:
    """Expired messages are dropped if the dead letter exchange does not exist."""
    opened = s.queue(arguments={"x-dead-letter-exchange": s.x, "x-message-ttl": 0})
    for _ in range(3):
        opened.publish("", s.q, b"body")
    opened.sync()
    return opened.drain(s.q), opened.call("queue.delete", queue=s.q).message_count


@case("dead.default", ok(("", "Q-dead")))
def _(s: Session) -> Any:
    """The default exchange routes dead letters to the queue that x-dead-letter-routing-key names."""
    opened = s.channel()
    dead = opened.queue(f"{s.q}-dead")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    message = take(opened, dead)
    return message.exchange, _named(s, message.routing_key)


@case("dead.default-key", ok((["Q"], [["Q-dead"]])))
def _(s: Session) -> Any:
    """Without x-dead-letter-routing-key the default exchange routes dead letters by the message's own key."""
    opened = s.channel()
    dead = opened.queue(f"{s.q}-dead")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": ""})
    opened.call("queue.bind", queue=s.q, exchange="amq.direct", routing_key=dead)
    opened.publish("amq.direct", dead, b"body")
    reject(opened, s.q)
    found = deaths(s, take(opened, dead))
    return [entry["queue"] for entry in found], [entry["routing-keys"] for entry in found]


@case("dead.unbound", ok(b"marker"))
def _(s: Session) -> Any:
    """Dead letters are dropped if the exchange has no binding."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    opened.drain(s.q)
    dead = opened.queue(f"{s.q}-dead")
    opened.call("queue.bind", queue=dead, exchange=s.x)
    return _marked(s, opened, dead)


@case("dead.alternate", ok(("X", ["Q"])))
def _(s: Session) -> Any:
    """Dead letters that the exchange cannot route go to its alternate exchange."""
    opened = s.channel()
    opened.exchange(s.x + "-else", "fanout")
    opened.exchange(s.x, "direct", arguments={"alternate-exchange": s.x + "-else"})
    dead = opened.queue(f"{s.q}-dead")
    opened.call("queue.bind", queue=dead, exchange=s.x + "-else")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    message = take(opened, dead)
    return _named(s, message.exchange), [entry["queue"] for entry in deaths(s, message)]


@case("dead.several", ok([[("Q", "expired", 1)]] * 3))
def _(s: Session) -> Any:
    """Dead letters are routed to several queues, one copy each."""
    opened = s.channel()
    dead = dying(s, opened, {"x-message-ttl": 1})
    for number in range(2):
        opened.queue(f"{s.q}-{number}")
        opened.call("queue.bind", queue=f"{s.q}-{number}", exchange=s.x)
    opened.publish("", s.q, b"body")
    return [brief(s, take(opened, name)) for name in (dead, f"{s.q}-0", f"{s.q}-1")]


@case("dead.exchanges", ok(("X", "k")))
def _(s: Session) -> Any:
    """Dead letters follow exchange-to-exchange bindings."""
    opened = s.channel()
    opened.exchange(s.x, "topic")
    opened.exchange(s.x + "-2", "direct")
    opened.call("exchange.bind", destination=s.x + "-2", source=s.x, routing_key="#")
    dead = opened.queue(f"{s.q}-dead")
    opened.call("queue.bind", queue=dead, exchange=s.x + "-2", routing_key="k")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x, "x-dead-letter-routing-key": "k"})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    message = take(opened, dead)
    return _named(s, message.exchange), message.routing_key


@case("dead.internal", ok(b"body"))
def _(s: Session) -> Any:
    """The dead letter exchange may be internal."""
    opened = s.channel()
    opened.exchange(s.x, "fanout", internal=True)
    dead = opened.queue(f"{s.q}-dead")
    opened.call("queue.bind", queue=dead, exchange=s.x)
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x})
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    return take(opened, dead).body


@case("dead.headers", ok([True, False]))
def _(s: Session) -> Any:
    """A headers exchange routes dead letters by the message's headers."""
    opened = s.channel()
    opened.exchange(s.x, "headers")
    for number, value in enumerate(("yes", "no")):
        opened.queue(f"{s.q}-{number}")
        arguments = {"x-match": "all", "wanted": value}
        opened.call("queue.bind", queue=f"{s.q}-{number}", exchange=s.x, arguments=arguments)
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x})
    opened.publish("", s.q, b"body", headers={"wanted": "yes"})
    reject(opened, s.q)
    take(opened, f"{s.q}-0")
    return [True, opened.get(f"{s.q}-1") is not None]


@case("dead.mandatory", ok(True))
def _(s: Session) -> Any:
    """A mandatory message that is dead-lettered is not returned."""
    opened = s.queue(arguments={"x-dead-letter-exchange": "amq.direct", "x-message-ttl": 0})
    opened.publish("", s.q, b"body", mandatory=True)
    opened.sync()
    return opened.quiet("basic.return")


@case("dead.target-ttl", ok([("Q-dead", "expired"), ("Q", "rejected")]))
def _(s: Session) -> Any:
    """Dead letters are subject to the TTL of the queue they are routed to."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    end = opened.queue(f"{s.q}-end")
    opened.queue(s.q, arguments={"x-dead-letter-exchange": s.x})
    opened.queue(f"{s.q}-dead", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "amq.fanout"})
    opened.call("queue.bind", queue=f"{s.q}-dead", exchange=s.x)
    opened.call("queue.bind", queue=end, exchange="amq.fanout")
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    message = take(opened, end)
    opened.call("queue.unbind", queue=end, exchange="amq.fanout")
    return [(entry["queue"], entry["reason"]) for entry in deaths(s, message)]


@case("dead.no-dlx", ok([0, 0]))
def _(s: Session) -> Any:
    """A queue without a dead letter exchange drops messages."""
    opened = s.queue()
    opened.publish("", s.q, b"body")
    reject(opened, s.q)
    opened.publish("", s.q, b"body", expiration="0")
    opened.sync()
    return [opened.drain(s.q), opened.call("queue.delete", queue=s.q).message_count]


# -- who dies, and who does not ------------------------------------------------------------------------------------


@case("dead.get-ack", ok(b"marker"))
def _(s: Session) -> Any:
    """Acked messages are not dead-lettered."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"body")
    opened.send("basic.ack", delivery_tag=take(opened, s.q, no_ack=False).delivery_tag)
    return _marked(s, opened, dead)


@case("dead.no-ack", ok(b"marker"))
def _(s: Session) -> Any:
    """Messages delivered with no_ack are not dead-lettered."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"body")
    take(opened, s.q)
    return _marked(s, opened, dead)


@case("dead.requeue", ok((True, None)))
def _(s: Session) -> Any:
    """Requeued messages are not dead-lettered and get no x-death."""
    opened = s.channel()
    dying(s, opened)
    opened.publish("", s.q, b"body")
    tag = take(opened, s.q, no_ack=False).delivery_tag
    opened.send("basic.reject", delivery_tag=tag, requeue=True)
    message = take(opened, s.q)
    return message.redelivered, message.properties.get("headers")


@case("dead.purge", ok((1, b"marker")))
def _(s: Session) -> Any:
    """Purged messages are not dead-lettered."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.publish("", s.q, b"body")
    count = opened.call("queue.purge", queue=s.q).message_count
    return count, _marked(s, opened, dead)


@case("dead.delete", ok((1, True)))
def _(s: Session) -> Any:
    """Messages of a deleted queue are not dead-lettered."""
    opened = s.channel()
    opened.consume(dying(s, opened), no_ack=True)
    opened.publish("", s.q, b"body")
    count = opened.call("queue.delete", queue=s.q).message_count
    return count, opened.quiet("basic.deliver")


@case("dead.expires", ok(True))
def _(s: Session) -> Any:
    """Messages of a queue that expires are not dead-lettered."""
    opened = s.channel()
    opened.consume(dying(s, opened, {"x-expires": 50}), no_ack=True)
    opened.publish("", s.q, b"body")
    return opened.quiet("basic.deliver", timeout=0.4)


@case("dead.close", ok((True, None)))
def _(s: Session) -> Any:
    """Unacked messages of a closed channel are requeued, not dead-lettered."""
    opened, other = s.channel(), s.channel()
    dying(s, other)
    other.publish("", s.q, b"body")
    take(opened, s.q, no_ack=False)
    opened.call("channel.close")
    message = take(other, s.q)
    return message.redelivered, message.properties.get("headers")


@case("dead.multiple", ok([b"1", b"2", b"3"]))
def _(s: Session) -> Any:
    """A nack with multiple dead-letters several messages, in order."""
    opened = s.channel()
    dead = dying(s, opened)
    tag = 0
    for number in b"123":
        opened.publish("", s.q, bytes((number,)))
        tag = take(opened, s.q, no_ack=False).delivery_tag
    opened.send("basic.nack", delivery_tag=tag, multiple=True, requeue=False)
    return [take(opened, dead).body for _ in range(3)]


@case("dead.ttl-order", ok([b"1", b"2", b"3"]))
def _(s: Session) -> Any:
    """Messages that expire together are dead-lettered in order."""
    opened = s.channel()
    dead = dying(s, opened, {"x-message-ttl": 20})
    for number in b"123":
        opened.publish("", s.q, bytes((number,)))
    return [take(opened, dead).body for _ in range(3)]


@case("dead.length-order", ok(([b"1", b"2"], [b"3", b"4"])))
def _(s: Session) -> Any:
    """A full queue with drop-head dead-letters the oldest messages."""
    opened = s.channel()
    dead = dying(s, opened, {"x-max-length": 2})
    for number in b"1234":
        opened.publish("", s.q, bytes((number,)))
    gone = [take(opened, dead).body for _ in range(2)]
    return gone, [take(opened, s.q).body for _ in range(2)]


@case("dead.refuse-order", ok(([b"3", b"4"], [b"1", b"2"])))
def _(s: Session) -> Any:
    """A full queue with reject-publish-dlx dead-letters the newest messages."""
    opened = s.channel()
    dead = dying(s, opened, {"x-max-length": 2, "x-overflow": "reject-publish-dlx"})
    for number in b"1234":
        opened.publish("", s.q, bytes((number,)))
    gone = [take(opened, dead).body for _ in range(2)]
    return gone, [take(opened, s.q).body for _ in range(2)]


@case("dead.refuse-plain", ok((b"1", b"marker")))
def _(s: Session) -> Any:
    """Messages rejected with reject-publish are not dead-lettered."""
    opened = s.channel()
    dead = dying(s, opened, {"x-max-length": 1, "x-overflow": "reject-publish"})
    for number in b"12":
        opened.publish("", s.q, bytes((number,)))
    opened.sync()
    return take(opened, s.q).body, _marked(s, opened, dead)


@case("dead.behind", ok((True, b"2")))
def _(s: Session) -> Any:
    """An expired message is dead-lettered when it becomes the head."""
    opened = s.channel()
    dead = dying(s, opened)
    opened.consume(dead, no_ack=True)
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2", expiration="1")
    before = opened.quiet("basic.deliver")
    opened.get(s.q)
    return before, opened.deliver().body


@case("dead.unacked", ok((True, [("Q", "expired", 1)])))
def _(s: Session) -> Any:
    """An unacked message that has expired is dead-lettered when it is requeued."""
    opened = s.channel()
    dead = dying(s, opened, {"x-message-ttl": 500})
    opened.consume(dead, no_ack=True)
    opened.publish("", s.q, b"body")
    tag = take(opened, s.q, no_ack=False).delivery_tag
    before = opened.quiet("basic.deliver", timeout=0.7)
    opened.send("basic.reject", delivery_tag=tag, requeue=True)
    return before, brief(s, opened.deliver())


@case("dead.ttl-zero", ok([("Q", "expired", 1)]))
def _(s: Session) -> Any:
    """With a TTL of 0 a message that no consumer takes at once is dead-lettered."""
    opened = s.channel()
    dead = dying(s, opened, {"x-message-ttl": 0})
    opened.publish("", s.q, b"body")
    return brief(s, take(opened, dead))


@case("dead.ttl-zero-consumer", ok((b"body", True)))
def _(s: Session) -> Any:
    """With a TTL of 0 a message that a consumer takes at once is delivered."""
    opened, other = s.channel(), s.channel()
    other.consume(dying(s, opened, {"x-message-ttl": 0}), no_ack=True)
    opened.consume(s.q, no_ack=True)
    opened.publish("", s.q, b"body")
    return opened.deliver().body, other.quiet("basic.deliver")


@case("dead.tx", ok((True, [("Q", "rejected", 1)])))
def _(s: Session) -> Any:
    """Messages rejected in a transaction are dead-lettered when it is committed."""
    opened, other = s.channel(), s.channel()
    other.consume(dying(s, opened), no_ack=True)
    opened.publish("", s.q, b"body")
    opened.call("tx.select")
    reject(opened, s.q)
    before = other.quiet("basic.deliver")
    opened.call("tx.commit")
    return before, brief(s, other.deliver())


@case("dead.tx-rollback", ok(True))
def _(s: Session) -> Any:
    """Messages rejected in a transaction that is rolled back are not dead-lettered."""
    opened, other = s.channel(), s.channel()
    other.consume(dying(s, opened), no_ack=True)
    opened.publish("", s.q, b"body")
    opened.call("tx.select")
    reject(opened, s.q)
    opened.call("tx.rollback")
    return other.quiet("basic.deliver")


for _name, _cause, _way, _answer in (
    ("ttl", "x-message-ttl", {"x-message-ttl": 0}, "basic.ack"),
    ("length", "x-max-length", {"x-max-length": 0}, "basic.ack"),
    ("refuse", "reject-publish-dlx", {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}, "basic.nack"),
):
    for _durable in (False, True):

        def _confirmed(
            s: Session, arguments: dict[str, Any] = _way, *, durable: bool = _durable
        ) -> tuple[str, bytes]:
            opened = s.channel()
            dead = dying(s, opened, arguments, durable=durable)
            opened.call("confirm.select")
            opened.publish("", s.q, b"body", delivery_mode=2 if durable else 1)
            return opened.receive("basic.ack", "basic.nack").name, take(opened, dead).body

        _kind = "persistent" if _durable else "transient"
        case(
            f"dead.confirm-{_name}-{_kind}",
            ok((_answer, b"body")),
            statement=f"a {_kind} message that is dead-lettered at once because of {_cause} is confirmed by {_answer}",
        )(_confirmed)


@case("dead.durable", ok((2, [("Q", "rejected", 1)])))
def _(s: Session) -> Any:
    """A persistent message dead-lettered from a durable queue to another remains persistent."""
    opened = s.channel()
    opened.exchange(s.x, "fanout", durable=True)
    dead = opened.queue(f"{s.q}-dead", durable=True)
    opened.call("queue.bind", queue=dead, exchange=s.x)
    opened.queue(s.q, durable=True, arguments={"x-dead-letter-exchange": s.x})
    opened.call("confirm.select")
    opened.publish("", s.q, b"body", delivery_mode=2)
    opened.receive("basic.ack")
    reject(opened, s.q)
    message = take(opened, dead)
    return message.properties["delivery_mode"], brief(s, message)


@case("dead.many", ok((1000, 0)))
def _(s: Session) -> Any:
    """A thousand messages expire and are dead-lettered."""
    opened = s.channel()
    dead = dying(s, opened, {"x-message-ttl": 50})
    opened.consume(dead, no_ack=True)
    for _ in range(1000):
        opened.publish("", s.q, b"body")
    for _ in range(1000):
        opened.deliver()
    return 1000, opened.ready(s.q)


@case("dead.dlx-declared-late", channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """The dead letter exchange need not exist when a queue is declared, and is not created by it."""
    opened = s.queue(arguments={"x-dead-letter-exchange": s.x})
    opened.exchange(s.x, "fanout", passive=True)
