"""Cases of the exchange types that RabbitMQ has in plugins or since 4.0: hashes, chance, a recent history."""

import time
from typing import Any

from conformance.cases import Cases, Session, channel, ok
from conformance.wire import Channel

ROWS = Cases(setup="types")
case = ROWS.case


KEYS = [f"key-{number}" for number in range(40)]
HASHED = "cbbbbbccaaacaccccacbbbbcacaabbacabccaaab"
TIMES = "bcbcccaaabaaabcabbbaabacbcbcbbbcaacbcaab"


def _bound(s: Session, kind: str, *keys: str, **arguments: Any) -> Channel:
    """Declare an exchange with queues that end with a, b and so on, bound with these keys."""
    opened = s.channel()
    opened.exchange(s.x, kind, arguments=arguments)
    for letter, key in zip("abcd", keys, strict=False):
        opened.queue(s.q + letter, exclusive=True)
        opened.call("queue.bind", queue=s.q + letter, exchange=s.x, routing_key=key)
    return opened


def _places(s: Session, opened: Channel, count: int, queues: str = "abc") -> str:
    """Return the letters of the queues of numbered messages."""
    found: dict[int, str] = {}
    deadline = time.monotonic() + 5
    while len(found) < count and time.monotonic() < deadline:
        for letter in queues:
            while (body := opened.get(s.q + letter)) is not None:
                found[int(body)] = found.get(int(body), "") + letter
    return "".join(found.get(number, "-") for number in range(count))


@case("39 hash 1", ok(HASHED))
def _(s: Session) -> str:
    """Keys of an x-consistent-hash exchange go to known queues, whatever CC says."""
    opened = _bound(s, "x-consistent-hash", "1", "1", "1")
    for number, key in enumerate(KEYS):
        opened.publish(s.x, key, str(number).encode(), headers={"CC": [f"copy-{number}"]})
    return _places(s, opened, len(KEYS))


@case("39 hash 2", ok(HASHED + "bb"))
def _(s: Session) -> str:
    """So do message ids."""
    opened = _bound(s, "x-consistent-hash", "1", "1", "1", **{"hash-property": "message_id"})
    for number, key in enumerate(KEYS):
        opened.publish(s.x, "k", str(number).encode(), message_id=key)
    for number in range(40, 42):
        opened.publish(s.x, f"missing {number}", str(number).encode())
    return _places(s, opened, 42)


@case("39 hash 3", ok(TIMES))
def _(s: Session) -> str:
    """And timestamps."""
    opened = _bound(s, "x-consistent-hash", "1", "1", "1", **{"hash-property": "timestamp"})
    for number in range(40):
        opened.publish(s.x, "k", str(number).encode(), timestamp=number * 1000)
    return _places(s, opened, 40)


@case("39 hash 4", channel(406, "exchange.declare", "hash-header and hash-property are mutually exclusive"))
def _(s: Session) -> None:
    """An x-consistent-hash exchange hashes a header or a property."""
    _bound(s, "x-consistent-hash", **{"hash-header": "h", "hash-property": "message_id"})


@case("39 hash 5", channel(406, "exchange.declare", "Unsupported property: app_id"))
def _(s: Session) -> None:
    """Not every property can be hashed."""
    _bound(s, "x-consistent-hash", **{"hash-property": "app_id"})


@case("39 hash 6", channel(406, "queue.bind", 'The binding key must be an integer: <<"5 ">>'))
def _(s: Session) -> None:
    """The key of a binding to an x-consistent-hash exchange is its weight."""
    _bound(s, "x-consistent-hash", "+05", "5 ")


@case("39 hash 7", channel(406, "queue.bind", "The binding key must be greater than 0"))
def _(s: Session) -> None:
    """A weight is at least 1."""
    _bound(s, "x-consistent-hash", "0")


@case(
    "39 hash 8", ok(["cbbbbbccaaacaccccacbbbbcacaabbacabccaaab", "cccccccaaaaaaaacaaccccccacaaccacacacaaac"])
)
def _(s: Session) -> list[str]:
    """A second binding of a queue does not count, a removed queue gives its buckets up."""
    opened = _bound(s, "x-consistent-hash", "1", "1", "1")
    opened.call("queue.bind", queue=s.q + "a", exchange=s.x, routing_key="5")
    found = []
    for removed in "", "b":
        if removed:
            opened.call("queue.unbind", queue=s.q + removed, exchange=s.x, routing_key="1")
        for number, key in enumerate(KEYS):
            opened.publish(s.x, key, str(number).encode())
        found.append(_places(s, opened, len(KEYS)))
    return found


@case("39 random 1", ok((200, ["a", "b", "c"])))
def _(s: Session) -> Any:
    """An x-random exchange chooses one queue for each message."""
    opened = _bound(s, "x-random", "", "", "k")
    for number in range(200):
        opened.publish(s.x, "k", str(number).encode(), headers={"CC": ["k", "l"]})
    found = _places(s, opened, 200)
    return len(found), sorted(set(found))


@case("39 modulus 1", ok((3, True)))
def _(s: Session) -> Any:
    """An x-modulus-hash exchange sends all messages of a key to one queue."""
    opened = _bound(s, "x-modulus-hash", "", "", "")
    for number in range(80):
        opened.publish(s.x, f"key-{number // 2}", str(number).encode())
    found = _places(s, opened, 80)
    return len(set(found)), found[::2] == found[1::2]


@case("39 history 1", ok([[b"2", b"3"], [], [b"2", b"3"]]))
def _(s: Session) -> Any:
    """A queue gets the last messages of an x-recent-history exchange with each new binding."""
    opened = _bound(s, "x-recent-history", **{"x-recent-history-length": 2})
    opened.queue(s.q, exclusive=True)
    for number in range(4):
        opened.publish(s.x, "k", str(number).encode())
    opened.publish(s.x, "k", b"no", headers={"x-recent-history-no-store": True})
    found = []
    for key in ("", "", "another"):
        opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key=key)
        time.sleep(0.1)
        there = []
        while (body := opened.get(s.q)) is not None:
            there.append(body)
        found.append(there)
    return found


@case(
    "39 history 2",
    channel(
        406,
        "exchange.declare",
        "Invalid argument 0, 'x-recent-history-length' must be a positive integer",
    ),
)
def _(s: Session) -> None:
    """The length of a history is positive."""
    _bound(s, "x-recent-history", **{"x-recent-history-length": 0})


@case(
    "39 history 3",
    channel(
        406,
        "exchange.declare",
        "Invalid argument <<\"5\">>, 'x-recent-history-length' must be a positive integer",
    ),
)
def _(s: Session) -> None:
    """The length of a history is an integer."""
    _bound(s, "x-recent-history", **{"x-recent-history-length": "5"})


@case("39 local of 4.0", channel(406, "queue.bind", "Non empty binding 'k' key not permitted"), of=("4.3",))
def _(s: Session) -> None:
    """A binding to an x-local-random exchange has no key."""
    _bound(s, "x-local-random", "", "k")


@case("39 local of 4.0, two", channel(406, "exchange.bind", "Destination not found"), of=("4.3",))
def _(s: Session) -> None:
    """Its destination is no exchange."""
    _bound(s, "x-local-random").call("exchange.bind", destination="amq.direct", source=s.x)


@case(
    "39 local of 4.0, three",
    channel(406, "queue.bind", "Queue type rabbit_quorum_queue not valid for this exchange type"),
    of=("4.3",),
)
def _(s: Session) -> None:
    """Nor a quorum queue."""
    opened = _bound(s, "x-local-random")
    opened.queue(s.q, durable=True, arguments={"x-queue-type": "quorum"})
    opened.call("queue.bind", queue=s.q, exchange=s.x)
