"""Cases of queues that expire (x-expires).

Whether such a queue still exists is asked by mandatory publishes: unlike a passive declare they do not count as a use.
"""

import time
from collections.abc import Callable

from conformance.cases import Cases, Session, channel, ok
from conformance.wire import Channel, ClosedError

ROWS = Cases()
case = ROWS.case

SOON = 50
PATIENCE = 10.0

Touch = Callable[[Channel, str], object]


def _alive(opened: Channel, queue: str) -> bool:
    """Return whether a message for the queue finds it."""
    opened.publish("", queue, mandatory=True)
    opened.sync()
    return opened.quiet("basic.return", timeout=0.001)


def _ends(opened: Channel, queue: str) -> bool:
    """Return whether the queue expires in time."""
    deadline = time.monotonic() + PATIENCE
    while _alive(opened, queue):
        if time.monotonic() > deadline:
            return False
        time.sleep(SOON / 4000)
    return True


def _outlives(s: Session, touch: Touch, **declare: object) -> bool:
    """Return whether a queue outlives its time twice while it is touched more often than that.

    Where the machine was too slow to touch it in time the queue gets a longer one.
    """
    for expires in (2 * SOON, 10 * SOON, 50 * SOON):
        opened, queue = s.channel(), f"{s.q}-{expires}"
        last = start = time.monotonic()
        longest = 0.0
        opened.queue(queue, arguments={"x-expires": expires}, **declare)
        try:
            while last < start + 2.5 * expires / 1000:
                time.sleep(expires / 6000)
                touch(opened, queue)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
            if _alive(opened, queue):
                return True
        except ClosedError:
            longest = max(longest, time.monotonic() - last)
        if longest < expires / 1250:
            return False
    return False


def _ends_under(s: Session, touch: Touch) -> bool:
    """Return whether a queue goes although this is done to it again and again."""
    opened, side = s.channel(), s.channel()
    opened.queue(s.q, arguments={"x-expires": 2 * SOON})
    deadline = time.monotonic() + PATIENCE
    while _alive(side, s.q):
        try:
            touch(opened, s.q)
        except ClosedError as error:
            return error.close is not None and error.close.reply_code == 404
        if time.monotonic() > deadline:
            return False
        time.sleep(SOON / 4000)
    return True


def _declare(**fields: object) -> Touch:
    def touch(opened: Channel, queue: str) -> None:
        expires = int(queue.rpartition("-")[2])
        arguments = {} if fields.get("passive") else {"x-expires": expires}
        if fields.get("nowait"):
            opened.send("queue.declare", queue=queue, arguments=arguments, **fields)
            opened.sync()
        else:
            opened.call("queue.declare", queue=queue, arguments=arguments, **fields)

    return touch


def _get(opened: Channel, queue: str) -> None:
    opened.call("basic.get", queue=queue, no_ack=True)


def _consume(opened: Channel, queue: str) -> None:
    opened.consume(queue)
    opened.call("basic.cancel", consumer_tag="ct")


def _get_some(opened: Channel, queue: str) -> None:
    opened.put(queue, b"x")
    opened.call("basic.get", queue=queue, no_ack=True)


for _letter, _what, _touch in (
    ("declare", "declaring the queue again", _declare()),
    ("passive", "a passive declare of the queue", _declare(passive=True)),
    ("get-empty", "basic.get from an empty queue", _get),
    ("get", "basic.get of a message", _get_some),
    ("consume", "starting and cancelling a consumer", _consume),
):

    def _kept(s: Session, touch: Touch = _touch) -> bool:
        return _outlives(s, touch)

    case(f"expires.{_letter}", ok(True), statement=f"{_what} counts as use and restarts x-expires")(_kept)


def _publish(opened: Channel, queue: str) -> None:
    opened.put(queue, b"x")


def _purge(opened: Channel, queue: str) -> None:
    opened.call("queue.purge", queue=queue)


def _bind(opened: Channel, queue: str) -> None:
    opened.call("queue.bind", queue=queue, exchange="amq.direct", routing_key=queue)
    opened.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key=queue)


for _letter, _what, _touch in (
    ("publish", "publishing to the queue", _publish),
    ("purge", "purging the queue", _purge),
    ("bind", "binding and unbinding the queue", _bind),
):

    def _not_kept(s: Session, touch: Touch = _touch) -> bool:
        return _ends_under(s, touch)

    case(f"expires.{_letter}", ok(True), statement=f"{_what} does not count as use: the queue expires")(
        _not_kept
    )


def _short(s: Session, **declare: object) -> Channel:
    return s.queue(arguments={"x-expires": SOON}, **declare)


@case("expires.unused", channel(404, "queue.declare", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """A queue that nobody uses expires."""
    opened = _short(s)
    _ends(opened, s.q)
    opened.queue(s.q, passive=True)


@case("expires.durable", ok((True, 0)))
def _(s: Session) -> tuple[bool, int]:
    """A durable queue expires, with its persistent messages."""
    opened = _short(s, durable=True)
    opened.put(s.q, b"1", b"2", delivery_mode=2)
    gone = _ends(opened, s.q)
    return gone, opened.call("queue.declare", queue=s.q, durable=True).message_count


@case("expires.server-named", ok(True))
def _(s: Session) -> bool:
    """A server-named queue expires."""
    opened = s.channel()
    return _ends(opened, opened.queue(arguments={"x-expires": SOON}))


@case("expires.exclusive", ok(True))
def _(s: Session) -> bool:
    """An exclusive queue expires while its connection is open."""
    return _ends(_short(s, exclusive=True), s.q)


@case("expires.auto-delete", ok(True))
def _(s: Session) -> bool:
    """An auto-delete queue expires without ever having had a consumer."""
    return _ends(_short(s, auto_delete=True), s.q)


@case("expires.consumer", ok((True, True)))
def _(s: Session) -> tuple[bool, bool]:
    """A queue with a consumer does not expire, even if no messages arrive."""
    opened = s.queue(arguments={"x-expires": 6 * SOON})
    opened.consume(s.q)
    opened.lapse(9 * SOON)
    before = _alive(opened, s.q)
    opened.call("basic.cancel", consumer_tag="ct")
    return before, _ends(opened, s.q)


for _letter, _what in (
    ("channel", "the channel of the last consumer closes"),
    ("connection", "the connection of the last consumer closes"),
    ("socket", "the connection of the last consumer is lost"),
):

    def _left(s: Session, how: str = _letter) -> bool:
        opened, other = s.channel(), s.channel()
        opened.queue(s.q, arguments={"x-expires": 6 * SOON})
        opened.consume(s.q)
        other.sync()
        if how == "socket":
            opened.client.close_socket()
        else:
            opened.client.call(1 if how == "channel" else 0, f"{how}.close", reply_code=200)
        return _ends(other, s.q)

    case(f"expires.consumer-{_letter}", ok(True), statement=f"x-expires starts when {_what}")(_left)


@case("expires.consumer-one-of-two", ok(True))
def _(s: Session) -> bool:
    """A queue does not expire while it has one consumer left."""
    opened = s.queue(arguments={"x-expires": 6 * SOON})
    opened.consume(s.q, "1")
    opened.consume(s.q, "2")
    opened.call("basic.cancel", consumer_tag="1")
    opened.lapse(9 * SOON)
    return _alive(opened, s.q)


@case("expires.unacked", ok(True))
def _(s: Session) -> bool:
    """A queue with unacked messages expires; their later acks are accepted."""
    opened = s.queue(arguments={"x-expires": 10 * SOON})
    opened.put(s.q, b"1", b"2")
    first = opened.call("basic.get", queue=s.q).delivery_tag
    gone = _ends(opened, s.q)
    opened.send("basic.ack", delivery_tag=first)
    opened.sync()
    return gone


@case("expires.unacked-nack", ok((True, 0)))
def _(s: Session) -> tuple[bool, int]:
    """Messages requeued to an expired queue are dropped."""
    opened = s.queue(arguments={"x-expires": 10 * SOON})
    opened.put(s.q, b"1")
    tag = opened.call("basic.get", queue=s.q).delivery_tag
    gone = _ends(opened, s.q)
    opened.send("basic.nack", delivery_tag=tag, requeue=True)
    opened.queue(s.q)
    return gone, opened.drain(s.q)


@case("expires.no-dead-letters", ok((True, 0)))
def _(s: Session) -> tuple[bool, int]:
    """Messages of a queue that expires are not dead-lettered."""
    opened = s.channel()
    opened.queue(s.q + "-dead")
    arguments = {
        "x-expires": SOON,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": s.q + "-dead",
    }
    opened.queue(s.q, arguments=arguments)
    opened.put(s.q, b"1", b"2")
    return _ends(opened, s.q), opened.drain(s.q + "-dead")


@case("expires.bindings", ok((True, "NO_ROUTE", "NO_ROUTE")))
def _(s: Session) -> tuple[object, ...]:
    """The bindings of a queue that expires are deleted."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.queue(s.q, arguments={"x-expires": 10 * SOON})
    opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key="k")
    gone = _ends(opened, s.q)
    opened.publish(s.x, "k", b"x", mandatory=True)
    first = opened.receive("basic.return").reply_text
    opened.queue(s.q)
    opened.publish(s.x, "k", b"x", mandatory=True)
    return gone, first, opened.receive("basic.return").reply_text


@case("expires.auto-delete-exchange", channel(404, "exchange.declare", "no exchange '{x}' in vhost '/'"))
def _(s: Session) -> None:
    """An auto-delete exchange is deleted when its last bound queue expires."""
    opened = s.channel()
    opened.exchange(s.x, auto_delete=True)
    opened.queue(s.q, arguments={"x-expires": 10 * SOON})
    opened.call("queue.bind", queue=s.q, exchange=s.x, routing_key="k")
    _ends(opened, s.q)
    opened.exchange(s.x, passive=True)


@case("expires.declared-anew", ok((True, True)))
def _(s: Session) -> tuple[bool, bool]:
    """After a queue has expired, its name can be declared with other arguments, without x-expires."""
    opened = _short(s, durable=True)
    gone = _ends(opened, s.q)
    opened.queue(s.q, arguments={"x-max-length": 5})
    opened.lapse(2 * SOON)
    return gone, _alive(opened, s.q)


@case("expires.deleted", ok(True))
def _(s: Session) -> bool:
    """A queue declared again after its deletion has its own x-expires."""
    opened = s.queue(arguments={"x-expires": 4 * SOON})
    opened.call("queue.delete", queue=s.q)
    opened.queue(s.q)
    opened.lapse(6 * SOON)
    return _alive(opened, s.q)


@case("expires.ttl", ok((0, True)))
def _(s: Session) -> tuple[int, bool]:
    """Messages of a queue with x-expires may expire before the queue."""
    opened = s.queue(arguments={"x-expires": 8 * SOON, "x-message-ttl": SOON})
    opened.put(s.q, b"1")
    return opened.ready(s.q, within=PATIENCE), _ends(opened, s.q)


@case("expires.confirmed", ok({"basic.ack"}))
def _(s: Session) -> set[str]:
    """Messages to a queue that is about to expire are confirmed."""
    opened = _short(s, durable=True)
    answers: set[str] = set()
    while _alive(opened, s.q):
        answers.update(opened.put(s.q, b"x", delivery_mode=2))
    return answers or {"basic.ack"}


@case("expires.many", ok(0))
def _(s: Session) -> int:
    """A hundred queues expire, each at its own time."""
    opened = s.channel()
    names = [opened.queue(f"{s.q}-{n}", arguments={"x-expires": SOON + n % 3}) for n in range(100)]
    return sum(not _ends(opened, name) for name in names)
