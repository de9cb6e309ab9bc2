"""Cases of policies: their keys, precedence over arguments and operator policies, and what they apply to.

The policies themselves are in policies.py; they are there before the queues are.
"""

import time

from conformance.cases import Cases, Session, channel, ok
from conformance.wire import Channel

ROWS = Cases("policy.", setup="policed")
case = ROWS.case
FOUR = (b"1", b"2", b"3", b"4")
LAST_TWO = [b"3", b"4"]
ACK, NACK = "basic.ack", "basic.nack"
PATIENCE = 10.0
QUORUM = {"x-queue-type": "quorum"}


def bodies(opened: Channel, queue: str) -> list[bytes]:
    """Return all bodies of a queue."""
    found = []
    while (body := opened.get(queue)) is not None:
        found.append(body)
    return found


def dead_letters(s: Session, opened: Channel) -> str:
    """Declare the queue for the case's dead letters; its name."""
    return opened.queue(f"{s.q}-dead")


for _name, _what, _arguments, _left in (
    ("length", "a policy sets a maximum length", {}, LAST_TWO),
    ("length-octets", "a policy sets a maximum length in bytes", {}, LAST_TWO),
    ("length-argument", "the smaller maximum length of argument and policy applies: the policy's", {"x-max-length": 3}, LAST_TWO),
    ("length-smaller", "the smaller maximum length of argument and policy applies: the argument's", {"x-max-length": 1}, [b"4"]),
    ("length-operator", "an operator policy lowers the maximum length of a policy", {}, LAST_TWO),
    ("length-operator-larger", "an operator policy does not raise the maximum length of a policy", {}, LAST_TWO),
    ("length-operator-alone", "an operator policy applies without a policy", {}, LAST_TWO),
    ("length-operator-argument", "an operator policy lowers the maximum length of an argument", {"x-max-length": 3}, LAST_TWO),
    ("reject", "a policy sets reject-publish", {}, [b"1", b"2"]),
    ("overflow-argument", "the argument x-overflow overrides a policy's overflow", {"x-overflow": "reject-publish"}, [b"1", b"2"]),
    ("overflow-alone", "a policy's overflow applies to the maximum length of an argument", {"x-max-length": 2}, [b"1", b"2"]),
    ("lazy", "a queue that is lazy by policy keeps all messages", {}, list(FOUR)),
    ("priority", "only the policy of the highest priority applies; policies are not merged", {}, list(FOUR)),
    ("priority-negative", "the priority of a policy may be negative", {}, LAST_TWO),
    ("exchanges", "a policy that applies to exchanges does not apply to queues", {}, list(FOUR)),
    ("quorum-only", "a policy with a key that only quorum queues support does not apply to a classic queue at all", {}, list(FOUR)),
    ("stream-only", "a policy with a key that only streams support does not apply to a classic queue", {}, list(FOUR)),
    ("delivery-limit", "a policy with delivery-limit applies to a classic queue too", {}, LAST_TWO),
    ("mirrors", "a policy with mirroring keys applies to a classic queue, and mirroring has no effect", {}, LAST_TWO),
):  # fmt: skip

    def _holds(s: Session, arguments: dict = _arguments) -> list[bytes]:
        opened = s.queue(durable=True, arguments=arguments)
        opened.put(s.q, *FOUR)
        return bodies(opened, s.q)

    _of = ("3.10",) if _name == "mirrors" else ("3.10", "4.3")  # 4 refuses such a policy
    case(_name, ok(_left), statement=_what, of=_of)(_holds)


for _name, _what, _fields, _queue in (
    ("exclusive", "a policy applies to exclusive queues", {"exclusive": True}, "q-policy-exclusive"),
    ("transient", "a policy applies to transient queues", {}, "a queue in the MIDDLE"),
    ("server-named", "a policy applies to server-named queues", {"exclusive": True}, ""),
    ("any-case", "the pattern of a policy may ignore case", {}, "queue of Any Case"),
):

    def _is_for(s: Session, fields: dict = _fields, queue: str = _queue) -> list[bytes]:
        opened = s.channel()
        named = opened.queue(queue, **fields)
        opened.put(named, *FOUR)
        found = bodies(opened, named)
        opened.call("queue.delete", queue=named)
        return found

    case(_name, ok(LAST_TWO), statement=_what)(_is_for)


@case("elsewhere", ok(list(FOUR)))
def _(s: Session) -> list[bytes]:
    """A policy applies only to its own virtual host."""
    opened = s.queue()
    opened.put(s.q, *FOUR)
    return bodies(opened, s.q)


@case("deleted", ok(LAST_TWO))
def _(s: Session) -> list[bytes]:
    """A policy applies again to a queue that was deleted and declared again."""
    opened = s.queue()
    opened.call("queue.delete", queue=s.q)
    opened.queue(s.q)
    opened.put(s.q, *FOUR)
    return bodies(opened, s.q)


@case("reject-confirms", ok([ACK, ACK, NACK, NACK]))
def _(s: Session) -> list[str]:
    """Publishes rejected because of a policy are nacked."""
    opened = s.channel()
    opened.queue("q-policy-reject", durable=True)
    opened.call("queue.purge", queue="q-policy-reject")
    return opened.put("q-policy-reject", *FOUR)


@case("reject-dlx", ok(([b"1", b"2"], LAST_TWO)))
def _(s: Session) -> tuple[list[bytes], list[bytes]]:
    """Publishes rejected because of a policy can be dead-lettered."""
    opened = s.channel()
    dead = dead_letters(s, opened)
    opened.queue(s.q)
    opened.put(s.q, *FOUR)
    return bodies(opened, s.q), bodies(opened, dead)


for _name, _what, _arguments in (
    ("ttl", "a policy sets a message TTL", {}),
    ("ttl-argument", "the shorter message TTL of argument and policy applies: the argument's", {"x-message-ttl": 30}),
    ("ttl-smaller", "the shorter message TTL of argument and policy applies: the policy's", {"x-message-ttl": 600_000}),
    ("ttl-operator", "an operator policy shortens the message TTL of a policy", {}),
):  # fmt: skip

    def _expires(s: Session, arguments: dict = _arguments) -> int:
        opened = s.queue(arguments=arguments)
        opened.put(s.q, *FOUR)
        return opened.ready(s.q, 0, within=PATIENCE)

    case(_name, ok(0), statement=_what)(_expires)


for _name, _what, _arguments in (
    ("expires", "a policy makes an unused queue expire", {}),
    (
        "expires-argument",
        "an argument may make an unused queue expire earlier than the policy",
        {"x-expires": 50},
    ),
    (
        "expires-operator",
        "an operator policy may make an unused queue expire earlier than the argument",
        {"x-expires": 600_000},
    ),
):

    def _ends(s: Session, arguments: dict = _arguments) -> bool:
        opened = s.queue(arguments=arguments)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            opened.publish("", s.q, mandatory=True)
            opened.sync()
            if not opened.quiet("basic.return", timeout=0.01):
                return True
        return False

    case(_name, ok(True), statement=_what)(_ends)


@case("redeclare", ok(2))
def _(s: Session) -> int:
    """A policy is not considered when a queue is declared again."""
    opened = s.queue()
    opened.put(s.q, *FOUR)
    return opened.call("queue.declare", queue=s.q).message_count


@case(
    "redeclare-argument",
    channel(
        406,
        "queue.declare",
        "inequivalent arg 'x-max-length' for queue 'q-policy-redeclare' in vhost '/': received the value '2' of type "
        "'signedint' but current is none",
    ),
)
def _(s: Session) -> None:
    """A policy's value does not count as an argument when a queue is declared again."""
    opened = s.channel()
    opened.queue("q-policy-redeclare")
    opened.call("queue.declare", queue="q-policy-redeclare", arguments={"x-max-length": 2})


# -- dead letters ------------------------------------------------------------------------------------------------------


for _name, _what, _arguments in (
    ("dead", "a policy sets dead letter exchange and routing key", {}),
    (
        "dead-argument",
        "an argument overrides a policy's dead letter exchange",
        {"x-dead-letter-exchange": ""},
    ),
    (
        "dead-key-argument",
        "an argument overrides a policy's dead letter routing key",
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q-policy-dead-key-argument-dead"},
    ),
):

    def _dies(s: Session, arguments: dict = _arguments) -> tuple[list[bytes], str]:
        opened = s.channel()
        dead = dead_letters(s, opened)
        opened.queue(s.q, arguments=arguments)
        opened.put(s.q, b"1")
        opened.send(
            "basic.reject", delivery_tag=opened.call("basic.get", queue=s.q).delivery_tag, requeue=False
        )
        opened.ready(dead, 1, within=PATIENCE)
        message = opened.call("basic.get", queue=dead, no_ack=True)
        return [message.body], message.properties["headers"]["x-death"][0]["reason"]

    case(_name, ok(([b"1"], "rejected")), statement=_what)(_dies)


@case("dead-key", ok("q-policy-dead-key"))
def _(s: Session) -> str:
    """A dead letter keeps its routing key if the policy sets none."""
    opened = s.channel()
    dead = opened.queue("", exclusive=True)
    opened.call("queue.bind", queue=dead, exchange="amq.fanout")
    opened.queue(s.q)
    opened.put(s.q, b"1")
    opened.send("basic.reject", delivery_tag=opened.call("basic.get", queue=s.q).delivery_tag, requeue=False)
    opened.ready(dead, 1, within=PATIENCE)
    return opened.call("basic.get", queue=dead, no_ack=True).routing_key


@case("dead-gone", ok(0))
def _(s: Session) -> int:
    """A dead letter is dropped if the exchange set by the policy does not exist."""
    opened = s.queue()
    opened.put(s.q, b"1")
    opened.send("basic.reject", delivery_tag=opened.call("basic.get", queue=s.q).delivery_tag, requeue=False)
    return opened.ready(s.q, 0)


# -- quorum queues -----------------------------------------------------------------------------------------------------


for _name, _what, _left in (
    ("quorum", "a policy with a key of quorum queues applies to a quorum queue", 2),
    (
        "quorum-classic-only",
        "a policy with a key that only classic queues support does not apply to a quorum queue",
        4,
    ),
    ("quorum-only-operator", "an operator policy applies to a quorum queue too", 1),
):

    def _quorum(s: Session, left: int = _left) -> int:
        opened = s.queue(durable=True, arguments=QUORUM)
        opened.put(s.q, *FOUR, delivery_mode=2)
        return opened.ready(s.q, left, within=PATIENCE)

    case(_name, ok(_left), statement=_what)(_quorum)


@case("quorum-limit", ok("delivery_limit"))
def _(s: Session) -> str:
    """A policy sets the delivery limit of a quorum queue."""
    opened = s.channel()
    dead = dead_letters(s, opened)
    opened.queue(s.q, durable=True, arguments=QUORUM)
    opened.put(s.q, b"1", delivery_mode=2)
    for _ in range(2):
        opened.ready(s.q, 1, within=PATIENCE)
        tag = opened.call("basic.get", queue=s.q).delivery_tag
        opened.send("basic.reject", delivery_tag=tag, requeue=True)
    opened.ready(dead, 1, within=PATIENCE)
    message = opened.call("basic.get", queue=dead, no_ack=True)
    return message.properties["headers"]["x-death"][0]["reason"]


# -- alternate exchanges -----------------------------------------------------------------------------------------------


for _name, _what, _arguments, _count in (
    ("alternate", "a policy sets an alternate exchange", {}, 1),
    ("alternate-argument", "an argument overrides a policy's alternate exchange", {"alternate-exchange": "amq.direct"}, 0),
    ("alternate-queues", "a policy that applies to queues does not apply to exchanges", {}, 0),
    ("alternate-gone", "an alternate exchange that does not exist routes nothing", {}, 0),
):  # fmt: skip

    def _routes(s: Session, arguments: dict = _arguments, count: int = _count) -> int:
        opened = s.channel()
        opened.exchange(s.x, arguments=arguments)
        queue = opened.queue("", exclusive=True)
        opened.call("queue.bind", queue=queue, exchange="amq.fanout")
        opened.put("nowhere", b"1", exchange=s.x)
        return opened.ready(queue, count)

    case(_name, ok(_count), statement=_what)(_routes)


for _name, _what, _exchange, _count in (
    (
        "alternate-predeclared",
        "a policy can set an alternate exchange for a predeclared exchange",
        "amq.headers",
        1,
    ),
    ("alternate-default", "a policy does not apply to the default exchange", "", 0),
):

    def _predeclared(s: Session, exchange: str = _exchange, count: int = _count) -> int:
        opened = s.channel()
        queue = opened.queue("", exclusive=True)
        opened.call("queue.bind", queue=queue, exchange="amq.fanout")
        opened.put("nowhere", b"1", exchange=exchange)
        return opened.ready(queue, count)

    case(_name, ok(_count), statement=_what)(_predeclared)
