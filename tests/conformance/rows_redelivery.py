"""Cases of the delivery limit (x-delivery-limit), of quorum queues and, here, of classic ones."""

from conformance.cases import Cases, Session, ok
from conformance.wire import Channel

ROWS = Cases()
case = ROWS.case

QUORUM = {"x-queue-type": "quorum"}


def _queue(s: Session, kind: dict, limit: int | None, *, dead: bool = False) -> Channel:
    opened = s.channel()
    arguments = dict(kind) if limit is None else {**kind, "x-delivery-limit": limit}
    if dead:
        opened.queue(s.q + "-dead")
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, durable=True, arguments=arguments)
    return opened


def _counts(opened: Channel, queue: str, times: int, how: str = "basic.reject") -> list[object]:
    """The x-delivery-count of each of some deliveries, requeued in between."""
    found: list[object] = []
    for _ in range(times):
        got = opened.deliver()
        found.append(got.properties.get("headers", {}).get("x-delivery-count"))
        opened.send(how, delivery_tag=got.delivery_tag, requeue=True)
    return found


for _kind, _arguments in (("quorum", QUORUM), ("classic", {})):

    def _counted(s: Session, kind: dict = _arguments) -> list[object]:
        opened = _queue(s, kind, 5)
        opened.put(s.q, b"1")
        opened.consume(s.q)
        return _counts(opened, s.q, 4)

    case(
        f"redelivery.{_kind}-count",
        ok([None, 1, 2, 3]),
        statement=f"a {_kind} queue with a delivery limit counts redeliveries in x-delivery-count",
    )(_counted)

    def _dropped(s: Session, kind: dict = _arguments) -> tuple[object, ...]:
        opened = _queue(s, kind, 2)
        opened.put(s.q, b"1")
        opened.consume(s.q)
        return _counts(opened, s.q, 3), opened.deliveries(), opened.ready(s.q)

    case(
        f"redelivery.{_kind}-dropped",
        ok(([None, 1, 2], 0, 0)),
        statement=f"a {_kind} queue drops a message that exceeds its delivery limit",
    )(_dropped)

    def _dead(s: Session, kind: dict = _arguments) -> tuple[object, ...]:
        opened = _queue(s, kind, 1, dead=True)
        opened.put(s.q, b"1")
        opened.consume(s.q)
        _counts(opened, s.q, 2)
        opened.ready(s.q + "-dead", 1, within=10)
        headers = opened.call("basic.get", queue=s.q + "-dead", no_ack=True).properties["headers"]
        death = headers["x-death"][0]
        return death["reason"], death["count"], death["queue"] == s.q, headers.get("x-delivery-count")

    case(
        f"redelivery.{_kind}-dead",
        ok(("delivery_limit", 1, True, None)),
        statement=f"a {_kind} queue dead-letters a message that exceeds its delivery limit, with the reason delivery_limit",
    )(_dead)

    def _zero(s: Session, kind: dict = _arguments) -> tuple[object, ...]:
        opened = _queue(s, kind, 0)
        opened.put(s.q, b"1")
        opened.consume(s.q)
        return _counts(opened, s.q, 1), opened.deliveries()

    case(
        f"redelivery.{_kind}-zero",
        ok(([None], 0)),
        statement=f"with a delivery limit of 0 a {_kind} queue delivers a message once",
    )(_zero)

    def _nacked(s: Session, kind: dict = _arguments) -> tuple[object, ...]:
        opened = _queue(s, kind, 1)
        opened.put(s.q, b"1")
        opened.consume(s.q)
        return _counts(opened, s.q, 2, "basic.nack"), opened.deliveries()

    case(
        f"redelivery.{_kind}-nacked",
        ok(([None, 1], 0)),
        statement=f"basic.nack counts towards the delivery limit of a {_kind} queue, like basic.reject",
    )(_nacked)

    def _closed(s: Session, kind: dict = _arguments) -> list[object]:
        opened = _queue(s, kind, 5)
        opened.put(s.q, b"1")
        found: list[object] = []
        for _ in range(3):
            other = s.channel()
            other.consume(s.q)
            got = other.deliver()
            found.append(got.properties.get("headers", {}).get("x-delivery-count"))
            other.call("channel.close", reply_code=200)
        return found

    case(
        f"redelivery.{_kind}-closed",
        ok([None, 1, 2]),
        statement=f"closing a channel counts towards the delivery limit of a {_kind} queue for its unacked messages",
    )(_closed)

    def _got(s: Session, kind: dict = _arguments) -> list[object]:
        opened = _queue(s, kind, 5)
        opened.put(s.q, b"1")
        found: list[object] = []
        for _ in range(3):
            got = opened.call("basic.get", queue=s.q)
            found.append((got.properties.get("headers", {}).get("x-delivery-count"), got.redelivered))
            opened.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
            opened.ready(s.q, 1)
        return found

    case(
        f"redelivery.{_kind}-got",
        ok([(None, False), (1, True), (2, True)]),
        statement=f"basic.get from a {_kind} queue counts towards the delivery limit, and shows x-delivery-count",
    )(_got)

    def _others(s: Session, kind: dict = _arguments) -> list[object]:
        opened = _queue(s, kind, 1)
        opened.put(s.q, b"1", b"2", b"3")
        opened.call("basic.qos", prefetch_count=1)
        opened.consume(s.q)
        found: list[object] = []
        for _ in range(4):
            got = opened.deliver()
            found.append(got.body)
            if got.body == b"1":
                opened.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)
            else:
                opened.send("basic.ack", delivery_tag=got.delivery_tag)
        return sorted(found)

    case(
        f"redelivery.{_kind}-others",
        ok([b"1", b"1", b"2", b"3"]),
        statement=f"a message that exceeds the delivery limit of a {_kind} queue does not affect other messages",
    )(_others)
