"""Cases of full queues (x-max-length, x-max-length-bytes, x-overflow)."""

from conformance.cases import Cases, Session, channel, ok
from conformance.codec import T
from conformance.wire import Channel

ROWS = Cases()
case = ROWS.case

REJECT = {"x-overflow": "reject-publish"}
ACK, NACK = "basic.ack", "basic.nack"


def _queue(s: Session, _name: str = "", /, **arguments: object) -> Channel:
    opened = s.channel()
    opened.queue(
        s.q + _name, arguments={"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    )
    return opened


def _unacked(s: Session, *bodies: bytes, **arguments: object) -> Channel:
    """A queue from which these messages were taken."""
    opened = _queue(s, **arguments)
    opened.put(s.q, *bodies)
    for _ in bodies:
        opened.get(s.q, no_ack=False)
    return opened


def _bodies(opened: Channel, queue: str) -> list[bytes]:
    bodies = []
    while (body := opened.get(queue)) is not None:
        bodies.append(body)
    return bodies


FIVE = (b"1", b"2", b"3", b"4", b"5")

for _letter, _what, _arguments, _sent, _left in (
    ("length", "a full queue drops its head", {"x-max-length": 3}, FIVE, [b"3", b"4", b"5"]),
    ("length-named", "so does one that is told to", {"x-max-length": 3, "x-overflow": "drop-head"}, FIVE, [b"3", b"4", b"5"]),
    ("length-one", "a queue of one message holds the last", {"x-max-length": 1}, FIVE, [b"5"]),
    ("length-zero", "a queue for no message holds none", {"x-max-length": 0}, FIVE, []),
    ("length-lazy", "a full lazy queue drops its head", {"x-max-length": 2, "x-queue-mode": "lazy"}, FIVE, [b"4", b"5"]),
    ("length-wide", "the limit may be a long integer", {"x-max-length": T("l", 2)}, FIVE, [b"4", b"5"]),
    ("length-huge", "the limit may be beyond all queues", {"x-max-length": T("l", 2**62)}, FIVE, list(FIVE)),
    ("overflow-alone", "an overflow without a limit does nothing", {"x-overflow": "reject-publish"}, FIVE, list(FIVE)),
    ("octets", "a queue full of octets drops its head", {"x-max-length-bytes": 10}, (b"1234", b"5678", b"90ab"), [b"5678", b"90ab"]),
    ("octets-equal", "the limit itself is not too much", {"x-max-length-bytes": 8}, (b"1234", b"5678"), [b"1234", b"5678"]),
    ("octets-big", "a message bigger than its queue goes, with all before it", {"x-max-length-bytes": 8}, (b"1", b"2", bytes(9)), []),
    ("octets-several", "one message may drive out several", {"x-max-length-bytes": 8}, (b"1", b"2", b"3", b"1234567"), [b"3", b"1234567"]),
    ("octets-zero", "a queue for no octets holds empty messages", {"x-max-length-bytes": 0}, (b"", b"x", b"", b""), [b"", b""]),
    ("both-length", "of both limits the first that is passed counts: messages", {"x-max-length": 2, "x-max-length-bytes": 100}, FIVE, [b"4", b"5"]),
    ("both-octets", "of both limits the first that is passed counts: octets", {"x-max-length": 4, "x-max-length-bytes": 3}, FIVE, [b"3", b"4", b"5"]),
    ("reject", "a full queue that rejects keeps what it has", {"x-max-length": 3, **REJECT}, FIVE, [b"1", b"2", b"3"]),
    ("reject-dlx", "so does one that dead-letters what it rejects, without an exchange for it", {"x-max-length": 3, "x-overflow": "reject-publish-dlx"}, FIVE, [b"1", b"2", b"3"]),
    ("reject-zero", "a queue for no message rejects all", {"x-max-length": 0, **REJECT}, FIVE, []),
    ("reject-octets", "octets that would be too many are rejected", {"x-max-length-bytes": 10, **REJECT}, (b"1234", b"5678", b"90ab", b"cd"), [b"1234", b"5678", b"cd"]),
    ("reject-octets-big", "what is bigger than the queue is rejected alone", {"x-max-length-bytes": 8, **REJECT}, (b"1", bytes(9), b"2"), [b"1", b"2"]),
    ("reject-both", "either limit rejects", {"x-max-length": 3, "x-max-length-bytes": 4, **REJECT}, (b"12", b"345", b"3", b"4", b"5"), [b"12", b"3", b"4"]),
):  # fmt: skip

    def _holds(s: Session, arguments: dict = _arguments, sent: tuple = _sent) -> list[bytes]:
        opened = s.channel()
        opened.queue(s.q, arguments=arguments)
        for body in sent:
            opened.publish("", s.q, body)
        return _bodies(opened, s.q)

    case(f"limit.{_letter}", _what, ok(_left))(_holds)

    def _answers(s: Session, arguments: dict = _arguments, sent: tuple = _sent) -> list[str]:
        opened = s.channel()
        opened.queue(s.q, durable=True, arguments=arguments)
        return opened.put(s.q, *sent, delivery_mode=2)

    if "x-overflow" in _arguments and _letter != "length-named":
        _told = [NACK if body not in _left or _letter == "reject-zero" else ACK for body in _sent]
        case(
            f"limit.{_letter}-confirms",
            f"{_what}; what is rejected is nacked, what is not is acked",
            ok(_told),
        )(_answers)
    elif _letter in {"length", "length-zero", "octets-big"}:
        case(
            f"limit.{_letter}-confirms", f"{_what}; all is confirmed, what goes too", ok([ACK] * len(_sent))
        )(_answers)


@case(
    "limit.nack-burst",
    "in a burst each publish has its answer once",
    ok((list(range(1, 41)), list(range(41, 101)))),
)
def _(s: Session) -> tuple[list[int], list[int]]:
    opened = _queue(s, max_length=40, overflow="reject-publish")
    opened.call("confirm.select")
    for _ in range(100):
        opened.publish("", s.q, b"x")
    told: dict[int, str] = {}
    while len(told) < 100:
        answer = opened.receive(ACK, NACK)
        low = 1 if answer.multiple else answer.delivery_tag
        told.update({n: answer.name for n in range(low, answer.delivery_tag + 1) if n not in told})
    return [n for n in sorted(told) if told[n] == ACK], [n for n in sorted(told) if told[n] == NACK]


@case("limit.properties", "properties and headers are no octets of the limit", ok([b"1", b"2"]))
def _(s: Session) -> list[bytes]:
    opened = _queue(s, max_length_bytes=2)
    for body in (b"1", b"2"):
        opened.publish("", s.q, body, headers={"long": "x" * 1000}, content_type="y" * 200)
    return _bodies(opened, s.q)


@case("limit.zero-consumer", "a queue for no message gives what comes to a waiting consumer", ok((b"1", 0)))
def _(s: Session) -> tuple[bytes, int]:
    opened = _queue(s, max_length=0)
    opened.consume(s.q)
    opened.publish("", s.q, b"1")
    return opened.deliver().body, opened.drain(s.q)


@case("limit.zero-reject-consumer", "a queue that rejects does not ask whether a consumer waits", ok([NACK]))
def _(s: Session) -> list[str]:
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.consume(s.q)
    return opened.put(s.q, b"1")


@case("limit.consumed", "what consumers take makes no queue full", ok([str(n).encode() for n in range(20)]))
def _(s: Session) -> list[bytes]:
    opened = _queue(s, max_length=2)
    opened.consume(s.q, no_ack=True)
    bodies = []
    for number in range(20):
        opened.publish("", s.q, str(number).encode())
        bodies.append(opened.deliver().body)
    return bodies


@case("limit.unacked", "unacked messages do not count", ok([b"3", b"4"]))
def _(s: Session) -> list[bytes]:
    opened = _unacked(s, b"1", b"2", max_length=2)
    opened.put(s.q, b"3", b"4")
    return _bodies(opened, s.q)


@case("limit.unacked-octets", "octets of unacked messages do not count", ok([b"34"]))
def _(s: Session) -> list[bytes]:
    opened = _unacked(s, b"12", max_length_bytes=3)
    opened.put(s.q, b"34")
    return _bodies(opened, s.q)


@case(
    "limit.unacked-reject",
    "a queue whose messages are unacked does not reject",
    ok(([ACK, ACK, NACK], [b"2", b"3"])),
)
def _(s: Session) -> tuple[list[str], list[bytes]]:
    opened = _unacked(s, b"1", max_length=2, overflow="reject-publish")
    return opened.put(s.q, b"2", b"3", b"4"), _bodies(opened, s.q)


@case("limit.requeue", "what comes back to a full queue goes first", ok([b"3", b"4"]))
def _(s: Session) -> list[bytes]:
    opened = _unacked(s, b"1", b"2", max_length=2)
    opened.put(s.q, b"3", b"4")
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    return _bodies(opened, s.q)


@case(
    "limit.requeue-one",
    "one that comes back where there is room for it stays, at its place",
    ok([b"2", b"3"]),
)
def _(s: Session) -> list[bytes]:
    opened = _unacked(s, b"1", b"2", max_length=2)
    opened.put(s.q, b"3")
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    return _bodies(opened, s.q)


@case("limit.requeue-octets", "octets that come back drive out the head", ok([b"34"]))
def _(s: Session) -> list[bytes]:
    opened = _unacked(s, b"12", max_length_bytes=3)
    opened.put(s.q, b"34")
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    return _bodies(opened, s.q)


@case(
    "limit.requeue-reject",
    "what comes back to a full queue that rejects is taken, above the limit",
    ok([b"1", b"2"]),
)
def _(s: Session) -> list[bytes]:
    opened = _unacked(s, b"1", max_length=1, overflow="reject-publish")
    opened.put(s.q, b"2")
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    return _bodies(opened, s.q)


@case("limit.requeue-closed", "what a closed channel gives back to a full queue goes first", ok([b"3", b"4"]))
def _(s: Session) -> list[bytes]:
    opened, other = _unacked(s, b"1", b"2", max_length=2), s.channel()
    opened.put(s.q, b"3", b"4")
    opened.call("channel.close", reply_code=200)
    other.ready(s.q, 2)
    return _bodies(other, s.q)


@case("limit.requeue-consumer", "what comes back and finds a consumer need not fit", ok([b"1", b"2"]))
def _(s: Session) -> list[bytes]:
    opened = _unacked(s, b"1", max_length=1)
    opened.put(s.q, b"2")
    opened.consume(s.q, no_ack=True)
    bodies = [opened.deliver().body]
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    return sorted([*bodies, opened.deliver().body])


@case(
    "limit.requeue-zero",
    "what comes back to a queue for no message is gone, though a consumer waits",
    ok((b"1", 0)),
)
def _(s: Session) -> tuple[bytes, int]:
    opened = _queue(s, max_length=0)
    opened.consume(s.q)
    opened.put(s.q, b"1")
    got = opened.deliver()
    opened.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
    return got.body, opened.deliveries()


@case(
    "limit.expired", "a queue makes room before it looks who has expired", ok(([b"3"], ["maxlen", "expired"]))
)
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.queue(s.q + "-dead")
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, arguments={"x-max-length": 1, **dlx})
    opened.put(s.q, b"1")
    opened.put(s.q, b"2", expiration="0")
    opened.put(s.q, b"3")
    opened.ready(s.q + "-dead", 2)
    got = [opened.call("basic.get", queue=s.q + "-dead", no_ack=True) for _ in range(2)]
    return _bodies(opened, s.q), [message.properties["headers"]["x-death"][0]["reason"] for message in got]


for _letter, _what, _method in (
    ("get", "a get", "basic.get"),
    ("purge", "a purge", "queue.purge"),
):

    def _room(s: Session, method: str = _method) -> tuple[list[str], list[str]]:
        opened = _queue(s, max_length=1, overflow="reject-publish")
        first = opened.put(s.q, b"1", b"2")
        opened.call(method, queue=s.q)
        return first, opened.put(s.q, b"3", b"4")

    case(
        f"limit.room-{_letter}",
        f"{_what} makes room in a queue that rejects",
        ok(([ACK, NACK], [ACK, NACK])),
    )(_room)


@case("limit.room-expired", "expired messages make room in a queue that rejects", ok(([ACK, NACK], 0, [ACK])))
def _(s: Session) -> tuple[object, ...]:
    opened = _queue(s, max_length=1, overflow="reject-publish")
    first = opened.put(s.q, b"1", expiration="600") + opened.put(s.q, b"2")
    return first, opened.ready(s.q, within=10), opened.put(s.q, b"3")


@case("limit.drop-expired", "what is dropped does not hold up what expires behind it", ok((1, b"3")))
def _(s: Session) -> tuple[object, ...]:
    opened = _queue(s, max_length=2)
    opened.put(s.q, b"1")
    opened.put(s.q, b"2", expiration="30")
    opened.put(s.q, b"3")
    return opened.ready(s.q, 1, within=10), opened.get(s.q)


@case("limit.silent", "publishers without confirms are not told of rejects, and go on", ok((True, [b"1"])))
def _(s: Session) -> tuple[bool, list[bytes]]:
    opened = _queue(s, max_length=1, overflow="reject-publish")
    for body in FIVE:
        opened.publish("", s.q, body, mandatory=True)
    quiet = opened.quiet()
    return quiet, _bodies(opened, s.q)


@case("limit.not-returned", "a rejected mandatory message is nacked, not returned", ok([ACK, NACK]))
def _(s: Session) -> list[str]:
    opened = _queue(s, max_length=1, overflow="reject-publish")
    opened.call("confirm.select")
    names = []
    for body in (b"1", b"2"):
        opened.publish("", s.q, body, mandatory=True)
        names.append(opened.receive().name)
    return names


@case("limit.several", "a message that one of its queues rejects is nacked, and is in the others",
      ok(([ACK, NACK, NACK], [b"1"], [b"1", b"2", b"3"])))  # fmt: skip
def _(s: Session) -> tuple[object, ...]:
    opened = _queue(s, max_length=1, overflow="reject-publish")
    opened.queue(s.q + "-wide")
    opened.exchange(s.x, "fanout")
    for name in (s.q, s.q + "-wide"):
        opened.call("queue.bind", queue=name, exchange=s.x)
    answers = opened.put("", b"1", b"2", b"3", exchange=s.x)
    return answers, _bodies(opened, s.q), _bodies(opened, s.q + "-wide")


@case(
    "limit.several-durable",
    "so it is with persistent messages in durable queues",
    ok(([ACK, NACK], [b"1", b"2"])),
)
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for name, arguments in (("a", {}), ("b", {"x-max-length": 1, **REJECT}), ("c", {})):
        opened.queue(s.q + name, durable=True, arguments=arguments)
        opened.call("queue.bind", queue=s.q + name, exchange=s.x)
    answers = opened.put("", b"1", b"2", exchange=s.x, delivery_mode=2)
    return answers, _bodies(opened, s.q + "c")


@case("limit.several-reject", "a message that two queues reject is nacked once", ok(([NACK], True)))
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for name in ("a", "b"):
        opened.queue(s.q + name, arguments={"x-max-length": 0, **REJECT})
        opened.call("queue.bind", queue=s.q + name, exchange=s.x)
    opened.call("confirm.select")
    opened.publish(s.x, "", b"x")
    return [opened.receive().name], opened.quiet()


@case(
    "limit.publisher-consumes",
    "a nack does not disturb the channel: it may publish and consume on",
    ok(([NACK, ACK], b"2")),
)
def _(s: Session) -> tuple[object, ...]:
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.queue(s.q + "-other")
    opened.consume(s.q + "-other")
    answers = opened.put(s.q, b"1") + opened.put(s.q + "-other", b"2")
    return answers, opened.deliver().body


@case("limit.cc", "a message by CC to a full queue is nacked, and is in the other", ok(([NACK], [b"2"])))
def _(s: Session) -> tuple[object, ...]:
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.queue(s.q + "-other")
    return opened.put(s.q + "-other", b"2", headers={"CC": [s.q]}), _bodies(opened, s.q + "-other")


@case("limit.dlx-rejected", "with reject-publish-dlx what is rejected is dead-lettered, and nacked all the same",
      ok(([ACK, NACK, NACK], [b"2", b"3"], "maxlen")))  # fmt: skip
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.queue(s.q + "-dead")
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, arguments={"x-max-length": 1, "x-overflow": "reject-publish-dlx", **dlx})
    answers = opened.put(s.q, b"1", b"2", b"3")
    opened.ready(s.q + "-dead", 2)
    first = opened.call("basic.get", queue=s.q + "-dead", no_ack=True)
    reason = first.properties["headers"]["x-first-death-reason"]
    return answers, [first.body, opened.get(s.q + "-dead")], reason


@case("limit.reject-no-dlx", "with reject-publish nothing is dead-lettered", ok(([ACK, NACK, NACK], 0)))
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.queue(s.q + "-dead")
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, arguments={"x-max-length": 1, **REJECT, **dlx})
    answers = opened.put(s.q, b"1", b"2", b"3")
    opened.sync()
    return answers, opened.drain(s.q + "-dead")


@case("limit.dropped-dead", "what a full queue drops is dead-lettered in order", ok([b"1", b"2", b"3"]))
def _(s: Session) -> list[bytes]:
    opened = s.channel()
    opened.queue(s.q + "-dead")
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, arguments={"x-max-length": 2, **dlx})
    opened.put(s.q, *FIVE)
    opened.ready(s.q + "-dead", 3)
    return _bodies(opened, s.q + "-dead")


@case("limit.transaction", "a commit that a full queue refuses leaves what it took", ok((True, [b"1"])))
def _(s: Session) -> tuple[object, ...]:
    opened, other = _queue(s, max_length=1, overflow="reject-publish"), s.channel()
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    opened.send("tx.commit")
    closed = opened.receive("channel.close").reply_code == 406
    opened.send("channel.close-ok")
    other.ready(s.q, 1)
    return closed, _bodies(other, s.q)


@case("limit.transaction-drop", "a commit to a full queue that drops is answered", ok([b"2"]))
def _(s: Session) -> list[bytes]:
    opened = _queue(s, max_length=1)
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    opened.call("tx.commit")
    return _bodies(opened, s.q)


@case(
    "limit.transaction-several",
    "a commit fails if one of several queues refuses",
    channel(406, "tx.commit", "partial tx completion"),
)
def _(s: Session) -> None:
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.queue(s.q + "-wide", durable=True)
    opened.call("tx.select")
    opened.publish("", s.q + "-wide", b"1", delivery_mode=2)
    opened.publish("", s.q, b"2")
    opened.call("tx.commit")


@case(
    "limit.thousand",
    "of a thousand messages the last ten stay",
    ok([str(n).encode() for n in range(990, 1000)]),
)
def _(s: Session) -> list[bytes]:
    opened = _queue(s, max_length=10)
    for number in range(1000):
        opened.publish("", s.q, str(number).encode())
    return _bodies(opened, s.q)


@case(
    "limit.persistent",
    "of persistent messages the last stay, and all are confirmed",
    ok(([ACK] * 5, [b"4", b"5"])),
)
def _(s: Session) -> tuple[object, ...]:
    opened = s.channel()
    opened.queue(s.q, durable=True, arguments={"x-max-length": 2})
    return opened.put(s.q, *FIVE, delivery_mode=2), _bodies(opened, s.q)


@case("limit.count", "a passive declare counts up to the limit", ok(3))
def _(s: Session) -> int:
    opened = _queue(s, max_length=3)
    opened.put(s.q, *FIVE)
    return opened.ready(s.q, 3)


@case("limit.reply", "a reply to a client goes past the limits of queues", ok(b"answer"))
def _(s: Session) -> bytes:
    client, server = s.channel(), _queue(s, max_length=1)
    server.consume(s.q, no_ack=True)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", s.q, b"question", reply_to="amq.rabbitmq.reply-to")
    server.publish("", server.deliver().properties["reply_to"], b"answer")
    return client.deliver().body


@case("limit.redeclared", "a queue declared again has its limit, however it is written", ok([b"4", b"5"]))
def _(s: Session) -> list[bytes]:
    opened = _queue(s, max_length=2)
    opened.queue(s.q, arguments={"x-max-length": T("l", 2)})
    for body in FIVE:
        opened.publish("", s.q, body)
    return _bodies(opened, s.q)
