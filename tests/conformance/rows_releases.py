"""Cases that RabbitMQ 3 and 4 answer differently; each is written as Leveret answers without a profile."""

import time

from conformance.cases import SOCKET, Cases, Session, channel, connection, ok
from conformance.codec import T
from conformance.wire import Channel

ROWS = Cases()
case = ROWS.case

QUORUM = {"x-queue-type": "quorum"}
MANY = 26
"""Deliveries after which a message has no limit."""


def _quorum(s: Session, **arguments: object) -> Channel:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return s.queue(durable=True, arguments={**QUORUM, **named})


def _returned(opened: Channel, queue: str, method: str, most: int = MANY) -> int:
    """Put a message back again and again; how often it was delivered until it was gone, at most `most`."""
    opened.put(queue, b"x")
    opened.consume(queue)
    for count in range(most):
        if opened.quiet("basic.deliver", timeout=0 if opened.client._inbox else 0.5):
            return count
        opened.send(method, delivery_tag=count + 1, requeue=True)
    return most


# --- connections -------------------------------------------------------------------------------------------------------


for _octets in (6_000, 8_200):

    def _long_password(s: Session, size: int = _octets) -> None:
        client = s.client()
        client.begin()
        client.start_ok("guest", "x" * size)
        client.receive(0, "connection.tune", timeout=12)

    case(
        f"release.password-{_octets}",
        connection(
            403,
            None,
            "Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        )
        if _octets < 8192
        else SOCKET,
        statement=f"a password of {_octets:,} bytes in connection.start-ok",
    )(_long_password)


@case("release.anonymous", SOCKET)
def _(s: Session) -> None:
    """A login with the mechanism ANONYMOUS."""
    client = s.client()
    client.begin()
    client.start_ok(mechanism="ANONYMOUS", response=b"")
    client.tune_ok()
    client.open()


@case("release.size", ok(1))
def _(s: Session) -> int:
    """A message of 17 MiB can be published."""
    opened = s.queue(durable=True)
    opened.publish("", s.q, bytes(17 * 2**20))
    return opened.ready(s.q, 1, within=10)


# --- prefetch ----------------------------------------------------------------------------------------------------------


def _shared(s: Session, *limits: int) -> list[int]:
    """Deliveries to two consumers after each of some global limits."""
    opened = s.channel()
    opened.call("basic.qos", prefetch_count=limits[0], global_=True)
    for number in range(2):
        name = opened.queue(s.q + str(number), durable=True)
        opened.put(name, *[b"x"] * 4)
        opened.consume(name, str(number))
    counts = [opened.deliveries()]
    for limit in limits[1:]:
        opened.call("basic.qos", prefetch_count=limit, global_=True)
        counts.append(opened.deliveries())
    return counts


@case("release.qos", ok([2]))
def _(s: Session) -> list[int]:
    """A global prefetch is shared by two consumers."""
    return _shared(s, 2)


@case("release.qos-raised", ok([2, 3]))
def _(s: Session) -> list[int]:
    """A global prefetch that is raised while consumers wait."""
    return _shared(s, 2, 5)


# --- arguments of queues -----------------------------------------------------------------------------------------------


for _name, _value in (
    ("queue-version", 1),
    ("queue-version", 2),
    ("queue-mode", "lazy"),
    ("queue-master-locator", "client-local"),
    ("quorum-target-group-size", 3),
    ("consumer-timeout", 60_000),
    ("consumer-disconnected-timeout", 60_000),
):

    def _argument(s: Session, name: str = _name, value: object = _value) -> None:
        s.queue(durable=True, arguments={f"x-{name}": value})

    case(
        f"release.classic-{_name}-{_value}", statement=f"declaring a classic queue with x-{_name} {_value!r}"
    )(_argument)

for _name, _value in (
    ("delivery-limit", -1),
    ("delivery-limit", -2),
    ("consumer-timeout", 60_000),
    ("consumer-timeout", 0),
    ("quorum-target-group-size", 3),
    ("consumer-disconnected-timeout", 60_000),
):

    def _argument_of_quorum(s: Session, name: str = _name, value: object = _value) -> None:
        s.queue(durable=True, arguments={**QUORUM, f"x-{name}": value})

    case(f"release.quorum-{_name}-{_value}", statement=f"declaring a quorum queue with x-{_name} {_value!r}")(
        _argument_of_quorum
    )


# --- quorum queues -----------------------------------------------------------------------------------------------------


@case(
    "release.limit",
    ok(MANY),
    statement=f"a quorum queue without a delivery limit: deliveries of a rejected message, up to {MANY}",
)
def _(s: Session) -> int:
    return _returned(_quorum(s), s.q, "basic.reject")


@case(
    "release.no-limit",
    ok(MANY),
    statement=f"a quorum queue with x-delivery-limit -1: deliveries, up to {MANY}",
)
def _(s: Session) -> int:
    return _returned(_quorum(s, delivery_limit=-1), s.q, "basic.reject")


for _method in ("basic.nack", "basic.reject", "basic.recover"):

    def _limited(s: Session, method: str = _method) -> int:
        opened = _quorum(s, delivery_limit=3)
        if method != "basic.recover":
            return _returned(opened, s.q, method)
        opened.put(s.q, b"x")
        opened.consume(s.q)
        for count in range(10):
            if opened.quiet("basic.deliver", timeout=0.5):
                return count
            opened.call("basic.recover", requeue=True)
        return 10

    case(
        f"release.limit-{_method.partition('.')[2]}",
        ok(4),
        statement=f"a quorum queue with a delivery limit of 3: deliveries of a message that is returned by {_method}",
    )(_limited)


@case("release.counts", ok([(None, None), (1, None), (2, None), (3, None)]))
def _(s: Session) -> list[tuple[object, object]]:
    """x-delivery-count and x-acquired-count after reject, nack and the end of a channel."""
    opened = _quorum(s, delivery_limit=10)
    opened.put(s.q, b"x")
    found = []
    for how in ("basic.reject", "basic.nack", "", ""):
        opened = s.channel()
        got = opened.call("basic.get", queue=s.q)
        headers = got.properties.get("headers") or {}
        found.append((headers.get("x-delivery-count") or None, headers.get("x-acquired-count")))
        if how:
            opened.send(how, delivery_tag=got.delivery_tag, requeue=True)
        opened.call("channel.close", reply_code=200)
        s.channel().ready(s.q, 1)
    return found


@case("release.priorities", ok([b"0", b"3", b"9", b"4", b"31", b"1"]))
def _(s: Session) -> list[bytes | None]:
    """Messages of several priorities in a quorum queue."""
    opened = _quorum(s)
    for priority in (0, 3, 9, 4, 31, 1):
        opened.put(s.q, str(priority).encode(), priority=priority)
    return [opened.get(s.q) for _ in range(6)]


@case("release.priorities-above", ok([b"31", b"40", b"none", b"255", b"4"]))
def _(s: Session) -> list[bytes | None]:
    """Messages of priorities that a quorum queue does not have, and of none."""
    opened = _quorum(s)
    for priority in (31, 40, None, 255, 4):
        properties = {} if priority is None else {"priority": priority}
        opened.put(s.q, str(priority or "none").encode(), **properties)
    return [opened.get(s.q) for _ in range(5)]


@case("release.delayed-retry", ok(False))
def _(s: Session) -> bool:
    """x-delayed-retry-type on a quorum queue: whether a rejected message is there again at once."""
    opened = _quorum(s, delayed_retry_type="all", delayed_retry_min=700)
    opened.put(s.q, b"x")
    got = opened.call("basic.get", queue=s.q)
    began = time.monotonic()
    opened.send("basic.reject", delivery_tag=got.delivery_tag, requeue=True)
    while opened.get(s.q) is None and time.monotonic() - began < 3:
        time.sleep(0.02)
    return time.monotonic() - began < 0.5


# --- consumer timeouts -------------------------------------------------------------------------------------------------

_LATE = (
    "delivery acknowledgement on channel 1 timed out. Timeout value used: {} ms. This timeout value can be configured,"
    " see consumers doc guide to learn more"
)


def _after_timeout(s: Session, arguments: dict[str, object], **capabilities: bool) -> tuple[str, str, int]:
    """The method that tells a consumer that it is late, the channel's answer then, and the number of ready messages."""
    client = s.login(capabilities=capabilities or None)
    opened = client.channel(1)
    opened.queue(s.q, durable=True, arguments=arguments)
    opened.put(s.q, b"x")
    opened.consume(s.q)
    opened.deliver()
    told = opened.receive("basic.cancel", timeout=5)
    return told.name, opened.call("channel.flow", active=True).name, opened.ready(s.q, 1)


@case("release.timeout-classic", channel(406, None, _LATE.format(1000)), setup="tight")
def _(s: Session) -> tuple[str, str, int]:
    """The consumer timeout and a classic queue."""
    return _after_timeout(s, {})


@case("release.timeout-quorum", channel(406, None, _LATE.format(1000)), setup="tight")
def _(s: Session) -> tuple[str, str, int]:
    """The consumer timeout and a quorum queue."""
    return _after_timeout(s, QUORUM)


@case("release.timeout-argument", ok(("basic.cancel", "channel.flow-ok", 1)), of=("4.3",))
def _(s: Session) -> tuple[str, str, int]:
    """The consumer timeout of a quorum queue's argument."""
    return _after_timeout(s, {**QUORUM, "x-consumer-timeout": 1100})


@case("release.timeout-untold", channel(406, None, _LATE.format(1100)), of=("4.3",))
def _(s: Session) -> tuple[str, str, int]:
    """The consumer timeout of a quorum queue, and a client without consumer_cancel_notify."""
    return _after_timeout(s, {**QUORUM, "x-consumer-timeout": 1100}, consumer_cancel_notify=False)


# --- exchanges ---------------------------------------------------------------------------------------------------------


for _type in (
    "x-local-random",
    "x-modulus-hash",
    "x-consistent-hash",
    "x-random",
    "x-recent-history",
):

    def _exchange(s: Session, kind: str = _type) -> None:
        s.channel().exchange(s.x, kind, durable=True)

    case(f"release.exchange-{_type[2:]}", statement=f"declaring an exchange of type {_type}")(_exchange)


@case("release.cycle", ok(2))
def _(s: Session) -> int:
    """A client's x-death and the count of a message that is dead-lettered."""
    opened = s.channel()
    opened.queue(s.q + "-dead", durable=True)
    opened.queue(
        s.q,
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"},
    )
    claimed = T("A", [T("F", {
        "count": T("l", 1), "reason": T("S", "rejected"), "queue": T("S", s.q), "time": T("T", 1_700_000_000),
        "exchange": T("S", ""), "routing-keys": T("A", [T("S", s.q)]),
    })])  # fmt: skip
    opened.put(s.q, b"x", headers={"x-death": claimed})
    got = opened.call("basic.get", queue=s.q)
    opened.send("basic.reject", delivery_tag=got.delivery_tag, requeue=False)
    opened.ready(s.q + "-dead", 1)
    dead = opened.call("basic.get", queue=s.q + "-dead", no_ack=True).properties["headers"]["x-death"]
    return int(dead[0]["count"])


@case("release.interceptors", ok([(True, True, "node"), (True, True, "client")]), setup="intercepted")
def _(s: Session) -> list[object]:
    """Message interceptors add times and the node to each publish, and replace what a client has written where they may."""
    opened, seen = s.queue(), []
    headers = {"timestamp_in_ms": T("l", 5), "x-routed-by": "client"}
    for properties in ({}, {"timestamp": 5, "headers": headers}):
        opened.put(s.q, b"x", **properties)
        got = opened.call("basic.get", queue=s.q, no_ack=True).properties
        found = got.get("headers", {})
        times = got.get("timestamp", 0), found.get("timestamp_in_ms", 0) / 1000
        node = "node" if "@" in found.get("x-routed-by", "") else found.get("x-routed-by")
        seen.append((*[abs(at - time.time()) < 60 for at in times], node))
    return seen


@case("release.transaction")
def _(s: Session) -> None:
    """A transaction with 10,001 publishes."""
    opened = s.queue(durable=True)
    opened.call("tx.select")
    for _ in range(10_001):
        opened.publish("", s.q, b"x")
    opened.call("tx.commit")
