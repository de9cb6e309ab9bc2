"""Cases of queues in RabbitMQ 4.3, with its switches on: only our broker is asked, the answers are those of 4.3.6."""

import contextlib
import itertools

from conformance.cases import Cases, Session, channel, connection, ok
from conformance.codec import T
from conformance.wire import Channel, QuietError

ROWS = Cases(setup="switched", of=("4.3",))
case = ROWS.case

QUORUM = {"x-queue-type": "quorum"}
_WRONG = "invalid arg '{}' for queue '{{q}}' in vhost '/'"


_LOCATOR = connection(
    541,
    "queue.declare",
    "Feature `queue_master_locator` is deprecated.\nBy default, this feature is not permitted anymore.\nThe feature will be "
    "removed from a future major RabbitMQ version, regardless of the configuration; actual version to be determined.\n"
    "To con...",
)
_REFUSED = (
    ("version-1", {"x-queue-version": 1}, "x-queue-version", ": \"unsupported queue version '1'\""),
    ("version-text", {"x-queue-version": "1"}, "x-queue-version", ': "expected integer, got longstr"'),
    ("limit-classic", {"x-delivery-limit": 3}, "x-delivery-limit", " of queue type rabbit_classic_queue"),
    ("limit-text", {"x-delivery-limit": "3"}, "x-delivery-limit", " of queue type rabbit_classic_queue"),
    (
        "limit-before-locator",
        {"x-queue-master-locator": "a", "x-delivery-limit": 1},
        "x-delivery-limit",
        " of queue type rabbit_classic_queue",
    ),
    (
        "retry-classic",
        {"x-delayed-retry-type": "all"},
        "x-delayed-retry-type",
        " of queue type rabbit_classic_queue",
    ),
    (
        "locator-quorum",
        {**QUORUM, "x-queue-master-locator": "min-masters"},
        "x-queue-master-locator",
        " of queue type rabbit_quorum_queue",
    ),
    (
        "priority-quorum",
        {**QUORUM, "x-max-priority": 5},
        "x-max-priority",
        " of queue type rabbit_quorum_queue",
    ),
)
for _label, _arguments, _key, _fault in _REFUSED:

    def _refused(s: Session, arguments: dict[str, object] = _arguments) -> None:
        s.queue(durable=True, arguments=arguments)

    case(
        f"queues.4.{_label}",
        channel(406, "queue.declare", _WRONG.format(_key) + _fault),
        statement=f"with 4.3's rules a queue with {_arguments} is refused",
    )(_refused)

for _label, _value in (("text", "min-masters"), ("number", 5)):

    def _located(s: Session, value: object = _value) -> None:
        s.queue(durable=True, arguments={"x-queue-master-locator": value})

    case(
        f"queues.4.locator-{_label}",
        _LOCATOR,
        statement=f"with 4.3's rules a queue with x-queue-master-locator {_value!r} closes the connection",
    )(_located)

for _label, _arguments in (
    ("version-2", {"x-queue-version": 2}),
    ("lazy", {"x-queue-mode": "lazy"}),
    ("in-memory", {**QUORUM, "x-max-in-memory-length": 1}),
):

    def _accepted(s: Session, arguments: dict[str, object] = _arguments) -> None:
        s.queue(durable=True, arguments=arguments)

    case(f"queues.4.{_label}", statement=f"with 4.3's rules a queue with {_arguments} is accepted")(_accepted)


@case("queues.4.redeclare-limit")
def _(s: Session) -> None:
    """With 4.3's rules a redeclaration of a classic queue may have an x-delivery-limit, which has no meaning there."""
    opened = s.queue(durable=True)
    opened.queue(s.q, durable=True, arguments={"x-delivery-limit": 1})


@case(
    "queues.4.redeclare-retry",
    channel(
        406,
        "queue.declare",
        "inequivalent arg 'x-delayed-retry-type' for queue '{q}' in vhost '/': received the value 'all' of type 'longstr' "
        "but current is none",
    ),
)
def _(s: Session) -> None:
    """With 4.3's rules a redeclaration of a quorum queue must have the same x-delayed-retry-type."""
    opened = s.queue(durable=True, arguments=QUORUM)
    opened.queue(s.q, durable=True, arguments={**QUORUM, "x-delayed-retry-type": "all"})


for _key, _value, _fault in (
    ("type", "some", ": invalid_delayed_retry_type"),
    ("min", 0, ": {value_zero,0}"),
    ("max", "1", ': "expected integer, got longstr"'),
):

    def _retried(s: Session, key: str = _key, value: object = _value) -> None:
        s.queue(durable=True, arguments={**QUORUM, f"x-delayed-retry-{key}": value})

    case(
        f"queues.4.retry-{_key}",
        channel(
            406,
            "queue.declare",
            _WRONG.format(f"x-delayed-retry-{_key}") + _fault,
        ),
        statement=f"an x-delayed-retry-{_key} that means nothing is refused, where RabbitMQ 4.3 delivers at once",
    )(_retried)


def _quorum(s: Session, **arguments: object) -> Channel:
    """Declare the case's queue as a quorum queue; underscores stand for the hyphens of arguments without `x-`."""
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return s.queue(durable=True, arguments={**QUORUM, **named})


_COUNTS = ("x-acquired-count", "x-delivery-count")


def _returned(opened: Channel, queue: str, times: int, how: str = "basic.reject") -> list[list[object]]:
    """Give a message back up to that many times; the counts in the headers of each of its deliveries."""
    opened.put(queue, b"x")
    opened.consume(queue)
    seen: list[list[object]] = []
    with contextlib.suppress(QuietError):
        while len(seen) < times:
            got = opened.deliver(timeout=0.5 if seen else None)
            seen.append([got.properties.get("headers", {}).get(name) for name in _COUNTS])
            opened.send(how, delivery_tag=got.delivery_tag, requeue=True)
    return seen


for _how, _seen in (
    ("reject", [[None, None], [1, 1], [2, 2], [3, 3]]),
    ("nack", [[None, None], [1, None], [2, None], [3, None], [4, None]]),
):

    def _given_back(s: Session, how: str = f"basic.{_how}") -> list[list[object]]:
        return _returned(_quorum(s, delivery_limit=3), s.q, 5, how)

    case(
        f"queues.4.{_how}-counts",
        ok(_seen),
        statement=f"in 4.3 basic.{_how} counts in x-acquired-count"
        + (", in x-delivery-count and for the limit" if _how == "reject" else " only"),
    )(_given_back)


def _shown(opened: Channel) -> list[object]:
    """The counts of the next delivery."""
    headers = opened.deliver().properties.get("headers", {})
    return [headers.get(name) for name in _COUNTS]


@case("queues.4.recover-counts", ok([[None, None], [1, None], [2, None]]))
def _(s: Session) -> list[list[object]]:
    """In 4.3 basic.recover and a nack of several count as given back."""
    opened = _quorum(s)
    opened.put(s.q, b"x")
    opened.consume(s.q)
    seen = [_shown(opened)]
    opened.call("basic.recover", requeue=True)
    seen.append(_shown(opened))
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    seen.append(_shown(opened))
    return seen


for _end in ("channel", "connection", "cancel"):

    def _lost(s: Session, end: str = _end) -> list[list[object]]:
        _quorum(s).put(s.q, b"x")
        seen = []
        for _ in range(3):
            other = s.channel()
            other.consume(s.q)
            seen.append(_shown(other))
            if end == "cancel":
                other.call("basic.cancel", consumer_tag="ct")
            if end == "connection":
                other.client.close_socket()
            else:
                other.call("channel.close", reply_code=200)
        return seen

    case(
        f"queues.4.lost-{_end}",
        ok([[None, None], [1, 1], [2, 2]]),
        statement=f"in 4.3 a message counts as failed if its consumer is lost ({_end})",
    )(_lost)


@case("queues.4.get-counts", ok([[None, None], [1, 1], [2, 1]]))
def _(s: Session) -> list[list[object]]:
    """In 4.3 basic.get shows both counts too, and none at first."""
    opened = _quorum(s)
    opened.put(s.q, b"x")
    seen = []
    for how in ("basic.reject", "basic.nack", "basic.ack"):
        got = opened.call("basic.get", queue=s.q)
        seen.append([got.properties.get("headers", {}).get(name) for name in _COUNTS])
        opened.send(how, delivery_tag=got.delivery_tag, **({} if how == "basic.ack" else {"requeue": True}))
        opened.ready(s.q, how != "basic.ack")
    return seen


@case("queues.4.transaction-counts", ok([[1, None], [2, 1]]))
def _(s: Session) -> list[list[object]]:
    """In 4.3 a nack in a transaction is given back when it is committed, and a reject fails."""
    opened = _quorum(s)
    opened.put(s.q, b"x")
    opened.call("tx.select")
    opened.consume(s.q)
    seen = []
    for how in ("basic.nack", "basic.reject"):
        opened.send(how, delivery_tag=opened.deliver().delivery_tag if not seen else 2, requeue=True)
        opened.call("tx.commit")
        seen.append(_shown(opened))
    return seen


@case("queues.4.claimed-counts", ok([[9, 7], [1, 1]]))
def _(s: Session) -> list[list[object]]:
    """In 4.3 the counts that a client writes are passed on, and replaced by the first redelivery."""
    opened = _quorum(s, delivery_limit=2)
    opened.put(s.q, b"x", headers={"x-acquired-count": 9, "x-delivery-count": 7})
    opened.consume(s.q)
    first = opened.deliver()
    opened.send("basic.reject", delivery_tag=first.delivery_tag, requeue=True)
    return [[first.properties["headers"].get(name) for name in _COUNTS], _shown(opened)]


@case("queues.4.classic-counts", ok([[None, None], [None, None]]))
def _(s: Session) -> list[list[object]]:
    """In 4.3 a classic queue counts nothing."""
    return _returned(s.queue(durable=True), s.q, 2)


@case("queues.4.default-limit", ok((21, "delivery_limit")))
def _(s: Session) -> tuple[int, object]:
    """With 4.3's default limit a quorum queue delivers a message 21 times, then dead-letters it."""
    dead = s.channel()
    dead.queue(s.q + "-dead", durable=True)
    opened = _quorum(s, dead_letter_exchange="", dead_letter_routing_key=s.q + "-dead")
    count = len(_returned(opened, s.q, 30))
    dead.ready(s.q + "-dead", 1)
    headers = dead.call("basic.get", queue=s.q + "-dead", no_ack=True).properties["headers"]
    return count, headers["x-death"][0]["reason"]


for _limit, _count in ((-1, 25), (-7, 25), (0, 1), (2, 3), (22, 23)):

    def _limited(s: Session, limit: int = _limit) -> int:
        return len(_returned(_quorum(s, delivery_limit=limit), s.q, 25))

    case(
        f"queues.4.limit-{_limit}",
        ok(_count),
        statement=f"with an x-delivery-limit of {_limit} a quorum queue delivers a message "
        + ("for ever" if _limit < 0 else f"{_count} times"),
    )(_limited)


def _claim(queue: str, reason: str, count: int) -> dict[str, object]:
    """An entry of x-death, as clients write it."""
    return {
        "count": T("l", count),
        "reason": reason,
        "queue": queue,
        "time": T("T", 10),
        "exchange": "",
        "routing-keys": [queue],
    }


def _dead(s: Session, *claims: tuple[str, str, int], ways: int = 1, **more: object) -> tuple[object, ...]:
    """Let a message with such claims die in queues one after the other; its entries of x-death, and other headers."""
    opened = s.channel()
    names = [s.q + str(number) for number in range(ways)] + [s.q]
    opened.queue(names[-1], durable=True)
    for name, following in itertools.pairwise(names):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following, "x-message-ttl": 1}
        opened.queue(name, durable=True, arguments=arguments)
    headers = {"x-death": [_claim(s.q + queue, *rest) for queue, *rest in claims], **more}
    opened.put(names[0], b"x", headers=headers)
    opened.ready(s.q, 1, within=3)
    found = opened.call("basic.get", queue=s.q, no_ack=True).properties["headers"]
    deaths = [
        (death["queue"].removeprefix(s.q), death["reason"], death["count"]) for death in found["x-death"]
    ]
    rest = {key: str(value).removeprefix(s.q) for key, value in found.items() if key.endswith("-death-queue")}
    return deaths, rest


_FIRST = {"x-first-death-queue": "0", "x-last-death-queue": "0"}
for _label, _claims, _ways, _expected in (
    ("same", [("0", "expired", 5)], 1, ([("0", "expired", 1)], _FIRST)),
    ("other", [("z", "rejected", 5)], 1, ([("0", "expired", 1)], _FIRST)),
    (
        "twice",
        [("1", "expired", 5), ("z", "rejected", 3)],
        2,
        ([("1", "expired", 1), ("0", "expired", 1)], _FIRST | {"x-last-death-queue": "1"}),
    ),
):

    def _claimed(s: Session, claims: list[tuple[str, str, int]] = _claims, ways: int = _ways) -> object:
        return _dead(s, *claims, ways=ways, **{"x-first-death-queue": "foo"})

    case(
        f"queues.4.claimed-death-{_label}",
        ok(_expected),
        statement=f"since 4.0 an x-death that a client sends is replaced by the broker's ({_label})",
    )(_claimed)


def _in_order(s: Session, *priorities: int | None, **arguments: object) -> list[bytes | None]:
    """Put messages with these priorities into a quorum queue, and fetch them; each one's body is its priority."""
    opened = _quorum(s, **arguments)
    for priority in priorities:
        opened.put(s.q, str(priority).encode(), **({} if priority is None else {"priority": priority}))
    left = opened.ready(s.q, len(priorities))
    return [opened.get(s.q) for _ in range(left)]


for _label, _given, _more, _expected in (
    ("all", (0, 3, 9, 4, 31, 1), {}, b"31 9 4 3 1 0"),
    ("most", (30, 31, 32, 255, 40), {}, b"31 32 255 40 30"),
    ("none", (None, 4, 5, 3, None, 4, 0), {}, b"5 None 4 None 4 3 0"),
    ("overflow", (1, 5, 3, 9, 0), {"max_length": 2}, b"1 0"),
):

    def _ordered(
        s: Session, given: tuple[int | None, ...] = _given, more: dict[str, object] = _more
    ) -> list[bytes | None]:
        return _in_order(s, *given, **more)

    case(
        f"queues.4.priorities-{_label}",
        ok(_expected.split()),
        statement=f"in 4.3 a quorum queue delivers by priority ({_label})",
    )(_ordered)


@case("queues.4.priorities-expire", ok([[b"3", b"4", b"5"], [b"1", b"2"]]))
def _(s: Session) -> list[list[bytes | None]]:
    """In 4.3 the head of each priority of a quorum queue expires, the most urgent priority first."""
    dead = s.channel()
    dead.queue(f"{s.q}-dead", exclusive=True)
    opened = _quorum(s, dead_letter_exchange="", dead_letter_routing_key=f"{s.q}-dead")
    for body, priority, expiration in (
        (b"1", 9, None), (b"3", 5, "1"), (b"2", 5, None), (b"x", 5, "1"), (b"4", 1, "1"), (b"5", 1, "1"),
    ):  # fmt: skip
        opened.put(s.q, body, priority=priority, **({} if expiration is None else {"expiration": expiration}))
    expired = [dead.get(f"{s.q}-dead") for _ in range(dead.ready(f"{s.q}-dead", 3, within=8))]
    return [expired, [opened.get(s.q), opened.get(s.q)]]


def _after_two_came_back(s: Session, opened: Channel, how: str) -> list[bytes | None]:
    """Return the bodies of four messages in their order, after a consumer got two and gave them back."""
    opened.call("basic.qos", prefetch_count=2)
    opened.consume(s.q)
    tags = [opened.deliver().delivery_tag for _ in range(2)]
    opened.call("basic.cancel", consumer_tag="ct")
    for tag in tags:
        opened.send(how, delivery_tag=tag, requeue=True)
    return [opened.get(s.q) for _ in range(opened.ready(s.q, 4))]


@case("queues.4.priorities-requeued", ok([b"9", b"5", b"5", b"1"]))
def _(s: Session) -> list[bytes | None]:
    """In 4.3 requeued messages of a quorum queue keep their priority."""
    opened = _quorum(s)
    for priority in (1, 5, 5, 9):
        opened.put(s.q, str(priority).encode(), priority=priority)
    return _after_two_came_back(s, opened, "basic.nack")


@case("queues.4.priorities-requeued-low", ok([b"9", b"1", b"1"]))
def _(s: Session) -> list[bytes | None]:
    """In 4.3 a requeued message of a quorum queue is behind those of a higher priority."""
    opened = _quorum(s)
    opened.put(s.q, b"1", priority=1)
    tag = opened.call("basic.get", queue=s.q).delivery_tag
    opened.put(s.q, b"9", priority=9)
    opened.put(s.q, b"1", priority=1)
    opened.send("basic.nack", delivery_tag=tag, requeue=True)
    return [opened.get(s.q) for _ in range(opened.ready(s.q, 3))]


for _how in ("nack", "reject"):

    def _back(s: Session, how: str = f"basic.{_how}") -> list[bytes | None]:
        opened = _quorum(s)
        opened.put(s.q, b"1", b"2", b"3", b"4")
        return _after_two_came_back(s, opened, how)

    case(
        f"queues.4.order-{_how}",
        ok([b"1", b"2", b"3", b"4"]),
        statement=f"in 4.3 messages that come back in order by basic.{_how} are before the waiting ones",
    )(_back)


for _label, _bound, _sent, _count in (
    ("integer-float", 1, T("d", 1.0), 0),
    ("zeros", T("d", 0.0), T("d", -0.0), 0),
    ("same-zeros", T("d", -0.0), T("d", -0.0), 1),
    ("integers", T("I", 5), T("l", 5), 1),
    ("floats", T("f", 1.5), T("d", 1.5), 1),
    ("time", T("T", 1), 1, 1),
    ("boolean", 1, True, 0),
    ("arrays", [1], [T("d", 1.0)], 0),
):

    def _compared(s: Session, bound: object = _bound, sent: object = _sent) -> int:
        opened = s.queue(durable=True)
        opened.call("queue.bind", queue=s.q, exchange="amq.headers", arguments={"h": bound, "for": s.q})
        opened.put("", b"x", exchange="amq.headers", headers={"h": sent, "for": s.q})
        return opened.ready(s.q)

    case(
        f"headers.4.{_label}",
        ok(_count),
        statement=f"in 4.3 a headers exchange compares numbers exactly ({_label})",
    )(_compared)
