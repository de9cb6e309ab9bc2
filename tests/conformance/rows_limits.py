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
    ("length-named", "a full queue with drop-head drops its head", {"x-max-length": 3, "x-overflow": "drop-head"}, FIVE, [b"3", b"4", b"5"]),
    ("length-one", "a queue with x-max-length 1 keeps the last message", {"x-max-length": 1}, FIVE, [b"5"]),
    ("length-zero", "a queue with x-max-length 0 keeps no message", {"x-max-length": 0}, FIVE, []),
    ("length-lazy", "a full lazy queue drops its head", {"x-max-length": 2, "x-queue-mode": "lazy"}, FIVE, [b"4", b"5"]),
    ("length-wide", "x-max-length may be a 64-bit integer", {"x-max-length": T("l", 2)}, FIVE, [b"4", b"5"]),
    ("length-huge", "x-max-length may be larger than any queue", {"x-max-length": T("l", 2**62)}, FIVE, list(FIVE)),
    ("overflow-alone", "x-overflow without a maximum length has no effect", {"x-overflow": "reject-publish"}, FIVE, list(FIVE)),
    ("octets", "a queue above x-max-length-bytes drops its head", {"x-max-length-bytes": 10}, (b"1234", b"5678", b"90ab"), [b"5678", b"90ab"]),
    ("octets-equal", "a queue of exactly x-max-length-bytes drops nothing", {"x-max-length-bytes": 8}, (b"1234", b"5678"), [b"1234", b"5678"]),
    ("octets-big", "a message larger than x-max-length-bytes is dropped, with all before it", {"x-max-length-bytes": 8}, (b"1", b"2", bytes(9)), []),
    ("octets-several", "one message may cause several others to be dropped", {"x-max-length-bytes": 8}, (b"1", b"2", b"3", b"1234567"), [b"3", b"1234567"]),
    ("octets-zero", "a queue with x-max-length-bytes 0 keeps empty messages", {"x-max-length-bytes": 0}, (b"", b"x", b"", b""), [b"", b""]),
    ("both-length", "the limit that is exceeded first applies: x-max-length", {"x-max-length": 2, "x-max-length-bytes": 100}, FIVE, [b"4", b"5"]),
    ("both-octets", "the limit that is exceeded first applies: x-max-length-bytes", {"x-max-length": 4, "x-max-length-bytes": 3}, FIVE, [b"3", b"4", b"5"]),
    ("reject", "a full queue with reject-publish keeps its messages", {"x-max-length": 3, **REJECT}, FIVE, [b"1", b"2", b"3"]),
    ("reject-dlx", "a full queue with reject-publish-dlx and no dead letter exchange keeps its messages", {"x-max-length": 3, "x-overflow": "reject-publish-dlx"}, FIVE, [b"1", b"2", b"3"]),
    ("reject-zero", "a queue with x-max-length 0 and reject-publish rejects all messages", {"x-max-length": 0, **REJECT}, FIVE, []),
    ("reject-octets", "messages that would exceed x-max-length-bytes are rejected", {"x-max-length-bytes": 10, **REJECT}, (b"1234", b"5678", b"90ab", b"cd"), [b"1234", b"5678", b"cd"]),
    ("reject-octets-big", "only the message that is larger than x-max-length-bytes is rejected", {"x-max-length-bytes": 8, **REJECT}, (b"1", bytes(9), b"2"), [b"1", b"2"]),
    ("reject-both", "messages that would exceed either limit are rejected", {"x-max-length": 3, "x-max-length-bytes": 4, **REJECT}, (b"12", b"345", b"3", b"4", b"5"), [b"12", b"3", b"4"]),
):  # fmt: skip

    def _holds(s: Session, arguments: dict = _arguments, sent: tuple = _sent) -> list[bytes]:
        opened = s.queue(arguments=arguments)
        for body in sent:
            opened.publish("", s.q, body)
        return _bodies(opened, s.q)

    case(f"limit.{_letter}", ok(_left), statement=_what)(_holds)

    def _answers(s: Session, arguments: dict = _arguments, sent: tuple = _sent) -> list[str]:
        opened = s.queue(durable=True, arguments=arguments)
        return opened.put(s.q, *sent, delivery_mode=2)

    if "x-overflow" in _arguments and _letter != "length-named":
        _confirms = [NACK if body not in _left or _letter == "reject-zero" else ACK for body in _sent]
        case(
            f"limit.{_letter}-confirms",
            ok(_confirms),
            statement=f"{_what}; rejected messages are nacked, others acked",
        )(_answers)
    elif _letter in {"length", "length-zero", "octets-big"}:
        case(
            f"limit.{_letter}-confirms",
            ok([ACK] * len(_sent)),
            statement=f"{_what}; all messages are acked, dropped ones too",
        )(_answers)


@case("limit.nack-burst", ok((list(range(1, 41)), list(range(41, 101)))))
def _(s: Session) -> tuple[list[int], list[int]]:
    """Each publish of a burst is confirmed exactly once, by an ack or a nack."""
    opened = _queue(s, max_length=40, overflow="reject-publish")
    opened.call("confirm.select")
    for _ in range(100):
        opened.publish("", s.q, b"x")
    confirms: dict[int, str] = {}
    while len(confirms) < 100:
        answer = opened.receive(ACK, NACK)
        low = 1 if answer.multiple else answer.delivery_tag
        confirms.update({n: answer.name for n in range(low, answer.delivery_tag + 1) if n not in confirms})
    return [n for n in sorted(confirms) if confirms[n] == ACK], [
        n for n in sorted(confirms) if confirms[n] == NACK
    ]


@case("limit.properties", ok([b"1", b"2"]))
def _(s: Session) -> list[bytes]:
    """Properties and headers do not count in x-max-length-bytes."""
    opened = _queue(s, max_length_bytes=2)
    for body in (b"1", b"2"):
        opened.publish("", s.q, body, headers={"long": "x" * 1000}, content_type="y" * 200)
    return _bodies(opened, s.q)


@case("limit.zero-consumer", ok((b"1", 0)))
def _(s: Session) -> tuple[bytes, int]:
    """A queue with x-max-length 0 delivers messages to a waiting consumer."""
    opened = _queue(s, max_length=0)
    opened.consume(s.q)
    opened.publish("", s.q, b"1")
    return opened.deliver().body, opened.drain(s.q)


@case("limit.zero-reject-consumer", ok([NACK]))
def _(s: Session) -> list[str]:
    """A queue with x-max-length 0 and reject-publish rejects messages even if a consumer is waiting."""
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.consume(s.q)
    return opened.put(s.q, b"1")


@case("limit.consumed", ok([str(n).encode() for n in range(20)]))
def _(s: Session) -> list[bytes]:
    """Messages that are delivered at once do not fill a queue."""
    opened = _queue(s, max_length=2)
    opened.consume(s.q, no_ack=True)
    bodies = []
    for number in range(20):
        opened.publish("", s.q, str(number).encode())
        bodies.append(opened.deliver().body)
    return bodies


@case("limit.unacked", ok([b"3", b"4"]))
def _(s: Session) -> list[bytes]:
    """Unacked messages do not count in x-max-length."""
    opened = _unacked(s, b"1", b"2", max_length=2)
    opened.put(s.q, b"3", b"4")
    return _bodies(opened, s.q)


@case("limit.unacked-octets", ok([b"34"]))
def _(s: Session) -> list[bytes]:
    """Unacked messages do not count in x-max-length-bytes."""
    opened = _unacked(s, b"12", max_length_bytes=3)
    opened.put(s.q, b"34")
    return _bodies(opened, s.q)


@case("limit.unacked-reject", ok(([ACK, ACK, NACK], [b"2", b"3"])))
def _(s: Session) -> tuple[list[str], list[bytes]]:
    """Unacked messages do not count with reject-publish either."""
    opened = _unacked(s, b"1", max_length=2, overflow="reject-publish")
    return opened.put(s.q, b"2", b"3", b"4"), _bodies(opened, s.q)


@case("limit.requeue", ok([b"3", b"4"]))
def _(s: Session) -> list[bytes]:
    """Messages requeued to a full queue are dropped first."""
    opened = _unacked(s, b"1", b"2", max_length=2)
    opened.put(s.q, b"3", b"4")
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    return _bodies(opened, s.q)


@case("limit.requeue-one", ok([b"2", b"3"]))
def _(s: Session) -> list[bytes]:
    """If there is room for one requeued message, it keeps its old position."""
    opened = _unacked(s, b"1", b"2", max_length=2)
    opened.put(s.q, b"3")
    opened.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    return _bodies(opened, s.q)


@case("limit.requeue-octets", ok([b"34"]))
def _(s: Session) -> list[bytes]:
    """Requeued messages that exceed x-max-length-bytes cause the head to be dropped."""
    opened = _unacked(s, b"12", max_length_bytes=3)
    opened.put(s.q, b"34")
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    return _bodies(opened, s.q)


@case("limit.requeue-reject", ok([b"1", b"2"]))
def _(s: Session) -> list[bytes]:
    """Messages requeued to a full queue with reject-publish are kept, above the limit."""
    opened = _unacked(s, b"1", max_length=1, overflow="reject-publish")
    opened.put(s.q, b"2")
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    return _bodies(opened, s.q)


@case("limit.requeue-closed", ok([b"3", b"4"]))
def _(s: Session) -> list[bytes]:
    """Messages that a closing channel requeues to a full queue are dropped first."""
    opened, other = _unacked(s, b"1", b"2", max_length=2), s.channel()
    opened.put(s.q, b"3", b"4")
    opened.call("channel.close", reply_code=200)
    other.ready(s.q, 2)
    return _bodies(other, s.q)


@case("limit.requeue-consumer", ok([b"1", b"2"]))
def _(s: Session) -> list[bytes]:
    """A requeued message that is delivered at once does not count in the limit."""
    opened = _unacked(s, b"1", max_length=1)
    opened.put(s.q, b"2")
    opened.consume(s.q, no_ack=True)
    bodies = [opened.deliver().body]
    opened.send("basic.nack", delivery_tag=1, requeue=True)
    return sorted([*bodies, opened.deliver().body])


@case("limit.requeue-zero", ok((b"1", 0)))
def _(s: Session) -> tuple[bytes, int]:
    """A message requeued to a queue with x-max-length 0 is dropped, even if a consumer is waiting."""
    opened = _queue(s, max_length=0)
    opened.consume(s.q)
    opened.put(s.q, b"1")
    got = opened.deliver()
    opened.send("basic.nack", delivery_tag=got.delivery_tag, requeue=True)
    return got.body, opened.deliveries()


@case("limit.expired", ok(([b"3"], ["maxlen", "expired"])))
def _(s: Session) -> tuple[object, ...]:
    """A full queue drops its head before it checks for expired messages."""
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
    ("get", "basic.get", "basic.get"),
    ("purge", "a purge", "queue.purge"),
):

    def _room(s: Session, method: str = _method) -> tuple[list[str], list[str]]:
        opened = _queue(s, max_length=1, overflow="reject-publish")
        first = opened.put(s.q, b"1", b"2")
        opened.call(method, queue=s.q)
        return first, opened.put(s.q, b"3", b"4")

    case(
        f"limit.room-{_letter}",
        ok(([ACK, NACK], [ACK, NACK])),
        statement=f"after {_what}, a full queue with reject-publish accepts messages again",
    )(_room)


@case("limit.room-expired", ok(([ACK, NACK], 0, [ACK])))
def _(s: Session) -> tuple[object, ...]:
    """After messages expire, a queue with reject-publish accepts others."""
    opened = _queue(s, max_length=1, overflow="reject-publish")
    first = opened.put(s.q, b"1", expiration="600") + opened.put(s.q, b"2")
    return first, opened.ready(s.q, within=10), opened.put(s.q, b"3")


@case("limit.drop-expired", ok((1, b"3")))
def _(s: Session) -> tuple[object, ...]:
    """After a full queue drops its head, expired messages behind it are removed."""
    opened = _queue(s, max_length=2)
    opened.put(s.q, b"1")
    opened.put(s.q, b"2", expiration="30")
    opened.put(s.q, b"3")
    return opened.ready(s.q, 1, within=10), opened.get(s.q)


@case("limit.silent", ok((True, [b"1"])))
def _(s: Session) -> tuple[bool, list[bytes]]:
    """Publishers without confirms are not notified of rejected messages."""
    opened = _queue(s, max_length=1, overflow="reject-publish")
    for body in FIVE:
        opened.publish("", s.q, body, mandatory=True)
    quiet = opened.quiet()
    return quiet, _bodies(opened, s.q)


@case("limit.not-returned", ok([ACK, NACK]))
def _(s: Session) -> list[str]:
    """A rejected mandatory message is nacked, not returned."""
    opened = _queue(s, max_length=1, overflow="reject-publish")
    opened.call("confirm.select")
    names = []
    for body in (b"1", b"2"):
        opened.publish("", s.q, body, mandatory=True)
        names.append(opened.receive().name)
    return names


@case("limit.several", ok(([ACK, NACK, NACK], [b"1"], [b"1", b"2", b"3"])))
def _(s: Session) -> tuple[object, ...]:
    """A message that one of several queues rejects is nacked, and stored in the others."""
    opened = _queue(s, max_length=1, overflow="reject-publish")
    opened.queue(s.q + "-wide")
    opened.exchange(s.x, "fanout")
    for name in (s.q, s.q + "-wide"):
        opened.call("queue.bind", queue=name, exchange=s.x)
    answers = opened.put("", b"1", b"2", b"3", exchange=s.x)
    return answers, _bodies(opened, s.q), _bodies(opened, s.q + "-wide")


@case("limit.several-durable", ok(([ACK, NACK], [b"1", b"2"])))
def _(s: Session) -> tuple[object, ...]:
    """A persistent message that one of several durable queues rejects is nacked, and stored in the others."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for name, arguments in (("a", {}), ("b", {"x-max-length": 1, **REJECT}), ("c", {})):
        opened.queue(s.q + name, durable=True, arguments=arguments)
        opened.call("queue.bind", queue=s.q + name, exchange=s.x)
    answers = opened.put("", b"1", b"2", exchange=s.x, delivery_mode=2)
    return answers, _bodies(opened, s.q + "c")


@case("limit.several-reject", ok(([NACK], True)))
def _(s: Session) -> tuple[object, ...]:
    """A message that two queues reject is nacked once."""
    opened = s.channel()
    opened.exchange(s.x, "fanout")
    for name in ("a", "b"):
        opened.queue(s.q + name, arguments={"x-max-length": 0, **REJECT})
        opened.call("queue.bind", queue=s.q + name, exchange=s.x)
    opened.call("confirm.select")
    opened.publish(s.x, "", b"x")
    return [opened.receive().name], opened.quiet()


@case("limit.publisher-consumes", ok(([NACK, ACK], b"2")))
def _(s: Session) -> tuple[object, ...]:
    """A nack does not affect the channel: it can still publish and consume."""
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.queue(s.q + "-other")
    opened.consume(s.q + "-other")
    answers = opened.put(s.q, b"1") + opened.put(s.q + "-other", b"2")
    return answers, opened.deliver().body


@case("limit.cc", ok(([NACK], [b"2"])))
def _(s: Session) -> tuple[object, ...]:
    """A message with CC that a full queue rejects is nacked, and stored in the other queue."""
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.queue(s.q + "-other")
    return opened.put(s.q + "-other", b"2", headers={"CC": [s.q]}), _bodies(opened, s.q + "-other")


@case("limit.dlx-rejected", ok(([ACK, NACK, NACK], [b"2", b"3"], "maxlen")))
def _(s: Session) -> tuple[object, ...]:
    """A message rejected with reject-publish-dlx is dead-lettered and nacked."""
    opened = s.channel()
    opened.queue(s.q + "-dead")
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, arguments={"x-max-length": 1, "x-overflow": "reject-publish-dlx", **dlx})
    answers = opened.put(s.q, b"1", b"2", b"3")
    opened.ready(s.q + "-dead", 2)
    first = opened.call("basic.get", queue=s.q + "-dead", no_ack=True)
    reason = first.properties["headers"]["x-first-death-reason"]
    return answers, [first.body, opened.get(s.q + "-dead")], reason


@case("limit.reject-no-dlx", ok(([ACK, NACK, NACK], 0)))
def _(s: Session) -> tuple[object, ...]:
    """Messages rejected with reject-publish are not dead-lettered."""
    opened = s.channel()
    opened.queue(s.q + "-dead")
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, arguments={"x-max-length": 1, **REJECT, **dlx})
    answers = opened.put(s.q, b"1", b"2", b"3")
    opened.sync()
    return answers, opened.drain(s.q + "-dead")


@case("limit.dropped-dead", ok([b"1", b"2", b"3"]))
def _(s: Session) -> list[bytes]:
    """Messages that a full queue drops are dead-lettered in order."""
    opened = s.channel()
    opened.queue(s.q + "-dead")
    dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": s.q + "-dead"}
    opened.queue(s.q, arguments={"x-max-length": 2, **dlx})
    opened.put(s.q, *FIVE)
    opened.ready(s.q + "-dead", 3)
    return _bodies(opened, s.q + "-dead")


@case("limit.transaction", ok((True, [b"1"])))
def _(s: Session) -> tuple[object, ...]:
    """After a failed commit to a full queue, the messages accepted before remain."""
    opened, other = _queue(s, max_length=1, overflow="reject-publish"), s.channel()
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    opened.send("tx.commit")
    closed = opened.receive("channel.close").reply_code == 406
    opened.send("channel.close-ok")
    other.ready(s.q, 1)
    return closed, _bodies(other, s.q)


@case("limit.transaction-drop", ok([b"2"]))
def _(s: Session) -> list[bytes]:
    """A commit to a full queue with drop-head succeeds."""
    opened = _queue(s, max_length=1)
    opened.call("tx.select")
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    opened.call("tx.commit")
    return _bodies(opened, s.q)


@case("limit.transaction-several", channel(406, "tx.commit", "partial tx completion"))
def _(s: Session) -> None:
    """A commit fails if one of several queues rejects a message."""
    opened = _queue(s, max_length=0, overflow="reject-publish")
    opened.queue(s.q + "-wide", durable=True)
    opened.call("tx.select")
    opened.publish("", s.q + "-wide", b"1", delivery_mode=2)
    opened.publish("", s.q, b"2")
    opened.call("tx.commit")


@case("limit.thousand", ok([str(n).encode() for n in range(990, 1000)]))
def _(s: Session) -> list[bytes]:
    """Of a thousand messages the last ten remain."""
    opened = _queue(s, max_length=10)
    for number in range(1000):
        opened.publish("", s.q, str(number).encode())
    return _bodies(opened, s.q)


@case("limit.persistent", ok(([ACK] * 5, [b"4", b"5"])))
def _(s: Session) -> tuple[object, ...]:
    """Of persistent messages the last remain, and all are confirmed."""
    opened = s.queue(durable=True, arguments={"x-max-length": 2})
    return opened.put(s.q, *FIVE, delivery_mode=2), _bodies(opened, s.q)


@case("limit.count", ok(3))
def _(s: Session) -> int:
    """A passive declare counts the messages within the limit."""
    opened = _queue(s, max_length=3)
    opened.put(s.q, *FIVE)
    return opened.ready(s.q, 3)


@case("limit.reply", ok(b"answer"))
def _(s: Session) -> bytes:
    """Direct reply-to replies are not subject to the limits of queues."""
    client, server = s.channel(), _queue(s, max_length=1)
    server.consume(s.q, no_ack=True)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("", s.q, b"question", reply_to="amq.rabbitmq.reply-to")
    server.publish("", server.deliver().properties["reply_to"], b"answer")
    return client.deliver().body


@case("limit.redeclared", ok([b"4", b"5"]))
def _(s: Session) -> list[bytes]:
    """A queue declared again with the limit as another integer type keeps its limit."""
    opened = _queue(s, max_length=2)
    opened.queue(s.q, arguments={"x-max-length": T("l", 2)})
    for body in FIVE:
        opened.publish("", s.q, body)
    return _bodies(opened, s.q)
