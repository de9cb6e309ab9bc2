"""Rows 50-67: queues and their arguments."""

from conformance.cases import Cases, Session, channel, ok
from conformance.codec import T

ROWS = Cases()
case = ROWS.case


LOCKED = (
    "cannot obtain exclusive access to locked queue '{q}' in vhost '/'. It could be originally declared on another "
    "connection or the exclusive property value does not match that of the original declaration."
)


NONE_YET = "no previously declared queue"


def _shown(value: object) -> str:
    """The value of an argument, as a statement shows it."""
    return "unset" if value is None else str(value.value if isinstance(value, T) else value)


@case("50a", channel(403, "queue.declare", "queue name 'amq.foo' contains reserved prefix 'amq.*'"))
def _(s: Session) -> None:
    """Declaring a new queue with a reserved name."""
    s.channel().queue("amq.foo")


@case("50b", channel(403, "queue.declare", "queue name 'amq.gen-NAME' contains reserved prefix 'amq.*'"))
def _(s: Session) -> None:
    """Declaring a server-named queue again by its name."""
    opened = s.channel()
    opened.queue(opened.queue(exclusive=True), exclusive=True)


@case("50c", ok("amq.gen-NAME"))
def _(s: Session) -> str:
    """A passive declare of a server-named queue by its name is allowed."""
    opened = s.channel()
    return opened.queue(opened.queue(exclusive=True), passive=True)


@case("50d", channel(404, "queue.declare", "no queue 'amq.foo' in vhost '/'"))
def _(s: Session) -> None:
    """A passive declare of a reserved name."""
    s.channel().queue("amq.foo", passive=True)


for _letter, _first, _second, _text in (
    ("a", {"durable": True}, {}, "'durable' for queue '{q}' in vhost '/': received 'false' but current is 'true'"),
    ("b", {}, {"durable": True}, "'durable' for queue '{q}' in vhost '/': received 'true' but current is 'false'"),
    ("c", {}, {"auto_delete": True}, "'auto_delete' for queue '{q}' in vhost '/': received 'true' but current is 'false'"),
    ("d", {}, {"durable": True, "auto_delete": True, "arguments": {"x-expires": 1000}},
     "'durable' for queue '{q}' in vhost '/': received 'true' but current is 'false'"),
    ("e", {}, {"auto_delete": True, "arguments": {"x-expires": 60000}},
     "'auto_delete' for queue '{q}' in vhost '/': received 'true' but current is 'false'"),
):  # fmt: skip

    def _differ(s: Session, first: dict = _first, second: dict = _second) -> None:
        opened = s.queue(**first)
        opened.queue(s.q, **second)

    case(
        f"51{_letter}",
        channel(406, "queue.declare", f"inequivalent arg {_text}"),
        statement=f"a queue declared with {_first or 'defaults'}, then with {_second or 'defaults'}",
    )(_differ)


for _letter, _name, _before, _after, _text in (
    ("a", "x-message-ttl", None, 2000, "the value '2000' of type 'signedint' but current is none"),
    ("b", "x-message-ttl", T("l", 1000), 2000,
     "'2000' but current is '1000'"),
    ("c", "x-message-ttl", 1000, None, "none but current is the value '1000' of type 'signedint'"),
    ("d", "x-expires", 60000, T("s", 6000), "'6000' but current is '60000'"),
    ("e", "x-max-length", 5, T("i", 6), "'6' but current is '5'"),
    ("f", "x-max-length-bytes", None, T("B", 7), "the value '7' of type 'unsignedbyte' but current is none"),
    ("g", "x-dead-letter-exchange", None, "dlx", "the value 'dlx' of type 'longstr' but current is none"),
    ("h", "x-max-priority", 5, T("b", 7), "'7' but current is '5'"),
    ("i", "x-overflow", "drop-head", "reject-publish",
     "'reject-publish' but current is 'drop-head'"),
    ("j", "x-single-active-consumer", True, False, "'false' but current is 'true'"),
    ("k", "x-queue-mode", "lazy", "default", "'default' but current is 'lazy'"),
):  # fmt: skip

    def _argument(s: Session, name: str = _name, before: object = _before, after: object = _after) -> None:
        opened = s.queue(arguments={} if before is None else {name: before})
        opened.queue(s.q, arguments={} if after is None else {name: after})

    _words = f"inequivalent arg '{_name}' for queue '{{q}}' in vhost '/': received {_text}"
    case(
        f"52{_letter}",
        channel(406, "queue.declare", _words),
        statement=f"a queue declared with {_name} {_shown(_before)}, then with {_shown(_after)}",
    )(_argument)


for _letter, _what, _before, _after in (
    ("p", "integers of different types are equal", {"x-message-ttl": 1000}, {"x-message-ttl": T("l", 1000)}),
    ("q", "x-queue-type classic equals no type", {}, {"x-queue-type": "classic"}),
    ("r", "unknown arguments are not compared", {"x-mine": 1}, {"x-mine": 2, "other": "a"}),
    (
        "s",
        "the order of arguments is ignored",
        {"x-expires": 60000, "x-message-ttl": 5},
        {"x-message-ttl": 5, "x-expires": 60000},
    ),
):

    def _equal(s: Session, before: dict = _before, after: dict = _after) -> None:
        opened = s.queue(arguments=before)
        opened.queue(s.q, arguments=after)

    case(f"52{_letter}", statement=f"for a queue that is declared again, {_what}")(_equal)


for _letter, _method, _fields in (
    ("a", "queue.declare", {"queue": "{q}", "exclusive": True}),
    ("b", "queue.declare", {"queue": "{q}"}),
    ("c", "queue.declare", {"queue": "{q}", "passive": True}),
    ("d", "basic.consume", {"queue": "{q}"}),
    ("e", "basic.get", {"queue": "{q}"}),
    ("f", "queue.bind", {"queue": "{q}", "exchange": "amq.direct"}),
    ("g", "queue.unbind", {"queue": "{q}", "exchange": "amq.direct", "routing_key": "bound"}),
    ("h", "queue.purge", {"queue": "{q}"}),
    ("i", "queue.delete", {"queue": "{q}"}),
):

    def _locked(s: Session, method: str = _method, fields: dict = _fields) -> None:
        owner = s.channel()
        owner.queue(s.q, exclusive=True)
        owner.call("queue.bind", queue=s.q, exchange="amq.direct", routing_key="bound")
        s.channel().call(
            method, **{k: v.replace("{q}", s.q) if isinstance(v, str) else v for k, v in fields.items()}
        )

    case(
        f"53{_letter}",
        channel(405, _method, LOCKED),
        statement=f"{_method} with {_fields} for another connection's exclusive queue",
    )(_locked)


@case("53k")
def _(s: Session) -> None:
    """Unbinding another connection's exclusive queue is answered if there is no such binding."""
    s.channel().queue(s.q, exclusive=True)
    s.channel().call("queue.unbind", queue=s.q, exchange="amq.direct", routing_key="k")


@case("52t")
def _(s: Session) -> None:
    """Argument values that are equal count as equal regardless of their types."""
    opened = s.queue(arguments={"x-max-length": T("u", 5)})
    opened.queue(s.q, arguments={"x-max-length": T("l", 5)})


@case("53j", ok(1))
def _(s: Session) -> int:
    """Publishing to another connection's exclusive queue is allowed."""
    owner = s.channel()
    owner.queue(s.q, exclusive=True)
    other = s.channel()
    other.publish("", s.q, b"x")
    other.sync()
    return owner.ready(s.q, 1)


@case("54a", channel(405, "queue.declare", LOCKED))
def _(s: Session) -> None:
    """The owner declares its exclusive queue as not exclusive."""
    opened = s.queue(exclusive=True)
    opened.queue(s.q)


@case("54b", channel(405, "queue.declare", LOCKED))
def _(s: Session) -> None:
    """A queue that is not exclusive is declared exclusive."""
    opened = s.queue()
    opened.queue(s.q, exclusive=True)


@case("54c")
def _(s: Session) -> None:
    """An exclusive queue declared as durable is equivalent to one that is not."""
    opened = s.queue(exclusive=True, durable=True)
    opened.queue(s.q, exclusive=True)


@case("54d", channel(405, "queue.declare", LOCKED))
def _(s: Session) -> None:
    """Exclusive is compared before durable."""
    opened = s.queue(durable=True)
    opened.queue(s.q, exclusive=True, auto_delete=True)


@case("55", channel(404, "queue.declare", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """A passive declare of a queue that does not exist."""
    s.channel().queue(s.q, passive=True)


for _letter, _arguments, _text in (
    ("a", {"x-message-ttl": -1}, "'x-message-ttl' for queue '{q}' in vhost '/': {value_negative,-1}"),
    ("b", {"x-message-ttl": "5"}, "'x-message-ttl' for queue '{q}' in vhost '/': \"expected integer, got longstr\""),
    ("c", {"x-expires": 0}, "'x-expires' for queue '{q}' in vhost '/': {value_zero,0}"),
    ("d", {"x-expires": -5}, "'x-expires' for queue '{q}' in vhost '/': {value_negative,-5}"),
    ("e", {"x-expires": 5.0}, "'x-expires' for queue '{q}' in vhost '/': \"expected integer, got double\""),
    ("f", {"x-message-ttl": 315360000001}, "'x-message-ttl' for queue '{q}' in vhost '/': {value_too_large,315360000001}"),
    ("g", {"x-expires": 315360000001}, "'x-expires' for queue '{q}' in vhost '/': {value_too_large,315360000001}"),
    ("h", {"x-max-priority": 300}, "'x-max-priority' for queue '{q}' in vhost '/': {max_value_exceeded,300}"),
    ("i", {"x-max-priority": -1}, "'x-max-priority' for queue '{q}' in vhost '/': {value_negative,-1}"),
    ("j", {"x-max-priority": True}, "'x-max-priority' for queue '{q}' in vhost '/': \"expected integer, got bool\""),
    ("k", {"x-overflow": "foo"}, "'x-overflow' for queue '{q}' in vhost '/': invalid_overflow"),
    ("l", {"x-overflow": 1}, "'x-overflow' for queue '{q}' in vhost '/': {unacceptable_type,signedint}"),
    ("m", {"x-dead-letter-routing-key": "k"}, "'x-dead-letter-routing-key' for queue '{q}' in vhost '/': routing_key_but_no_dlx_defined"),
    ("n", {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": 1},
     "'x-dead-letter-routing-key' for queue '{q}' in vhost '/': {unacceptable_type,signedint}"),
    ("o", {"x-max-length": -1}, "'x-max-length' for queue '{q}' in vhost '/': {value_negative,-1}"),
    ("p", {"x-max-length": "a"}, "'x-max-length' for queue '{q}' in vhost '/': \"expected integer, got longstr\""),
    ("q", {"x-max-length-bytes": -1}, "'x-max-length-bytes' for queue '{q}' in vhost '/': {value_negative,-1}"),
    ("r", {"x-queue-type": "foo"}, "'x-queue-type' for queue '{q}' in vhost '/': \"unsupported queue type 'foo'\""),
    ("s", {"x-queue-type": 1}, "'x-queue-type' for queue '{q}' in vhost '/': {unacceptable_type,signedint}"),
    ("t", {"x-single-active-consumer": 1}, "'x-single-active-consumer' for queue '{q}' in vhost '/': {unacceptable_type,signedint}"),
    ("u", {"x-queue-mode": "foo"}, "'x-queue-mode' for queue '{q}' in vhost '/': \"unsupported queue mode 'foo'\""),
    ("v", {"x-queue-version": 3}, "'x-queue-version' for queue '{q}' in vhost '/': \"unsupported queue version '3'\""),
    ("w", {"x-message-ttl": None}, "'x-message-ttl' for queue '{q}' in vhost '/': \"expected integer, got void\""),
    ("x", {"x-max-length": [1]}, "'x-max-length' for queue '{q}' in vhost '/': \"expected integer, got array\""),
    ("y", {"x-max-length": {"a": 1}}, "'x-max-length' for queue '{q}' in vhost '/': \"expected integer, got table\""),
    ("z", {"x-queue-mode": 5}, "'x-queue-mode' for queue '{q}' in vhost '/': {unacceptable_type,signedint}"),
    ("A", {"x-max-length": T("f", 1.5)}, "'x-max-length' for queue '{q}' in vhost '/': \"expected integer, got float\""),
    ("B", {"x-max-length": T("D", (1, 5))}, "'x-max-length' for queue '{q}' in vhost '/': \"expected integer, got decimal\""),
    ("C", {"x-max-length": T("T", 5)}, "'x-max-length' for queue '{q}' in vhost '/': \"expected integer, got timestamp\""),
    ("D", {"x-max-length": T("x", b"ab")}, "'x-max-length' for queue '{q}' in vhost '/': \"expected integer, got binary\""),
    ("E", {"x-queue-version": "1"}, "'x-queue-version' for queue '{q}' in vhost '/': \"expected integer, got longstr\""),
):  # fmt: skip

    def _invalid(s: Session, arguments: dict = _arguments) -> None:
        s.channel().queue(s.q, arguments=arguments)

    case(
        f"56{_letter}",
        channel(406, "queue.declare", f"invalid arg {_text}"),
        statement=f"declaring a queue with {_arguments}",
    )(_invalid)


for _letter, _arguments in (
    ("1", {"x-message-ttl": 0}),
    ("2", {"x-message-ttl": 315360000000}),
    ("3", {"x-max-priority": 255}),
    ("4", {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}),
    ("5", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"}),
    ("6", {"x-queue-mode": "lazy", "x-queue-version": 2}),
    ("7", {"x-single-active-consumer": True}),
    ("8", {"x-queue-master-locator": "min-masters"}),
    ("9", {"x-anything": [1, {"a": None}], "y": T("T", 5)}),
):

    def _valid(s: Session, arguments: dict = _arguments) -> None:
        s.channel().queue(s.q, exclusive=True, arguments=arguments)

    case(f"56.{_letter}", statement=f"a queue may be declared with {_arguments}")(_valid)


for _letter, _name, _value in (
    ("b", "x-quorum-initial-group-size", 3),
    ("c", "x-max-age", "1D"),
    ("d", "x-stream-max-segment-size-bytes", 1000),
    ("e", "x-dead-letter-strategy", "at-least-once"),
    ("f", "x-initial-cluster-size", 1),
):

    def _foreign(s: Session, name: str = _name, value: object = _value) -> None:
        s.channel().queue(s.q, arguments={name: value})

    case(
        f"57{_letter}",
        channel(
            406,
            "queue.declare",
            f"invalid arg '{_name}' for queue '{{q}}' in vhost '/' of queue type rabbit_classic_queue",
        ),
        statement=f"declaring a classic queue with {_name}, an argument of other queue types",
    )(_foreign)


@case("57a")
def _(s: Session) -> None:
    """A classic queue may have a delivery limit."""
    s.channel().queue(s.q, arguments={"x-delivery-limit": 5})


@case(
    "58",
    channel(
        406,
        "queue.declare",
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{q}' in vhost '/'",
    ),
)
def _(s: Session) -> None:
    """A dead letter exchange that is a number."""
    s.channel().queue(s.q, arguments={"x-dead-letter-exchange": 1})


@case(
    "62",
    channel(406, "queue.declare", "cannot declare queue '{q}': queue limit in vhost 'queues' (1) is reached"),
)
def _(s: Session) -> None:
    """The queue limit of a virtual host."""
    opened = s.channel("root", "queues")
    opened.queue(s.q + "-first", exclusive=True)
    opened.queue(s.q + "-first", exclusive=True)
    opened.queue(s.q)


@case("63", ok(0))
def _(s: Session) -> int:
    """Deleting a queue that does not exist is answered."""
    return int(s.channel().call("queue.delete", queue=s.q, if_unused=True, if_empty=True).message_count)


@case("64", channel(406, "queue.delete", "queue '{q}' in vhost '/' in use"))
def _(s: Session) -> None:
    """Deleting a queue that has a consumer, with if-unused."""
    opened = s.channel()
    opened.consume(opened.queue(s.q))
    opened.call("queue.delete", queue=s.q, if_unused=True)


@case("65a", channel(406, "queue.delete", "queue '{q}' in vhost '/' not empty"))
def _(s: Session) -> None:
    """Deleting a queue that has a message, with if-empty."""
    opened = s.channel()
    opened.publish("", opened.queue(s.q), b"x")
    opened.call("queue.delete", queue=s.q, if_empty=True)


@case("65b", channel(406, "queue.delete", "queue '{q}' in vhost '/' not empty"))
def _(s: Session) -> None:
    """if-empty is checked before if-unused."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    opened.publish("", s.q, b"1")
    opened.publish("", s.q, b"2")
    opened.deliver()
    opened.call("queue.delete", queue=s.q, if_empty=True, if_unused=True)


@case("65c", ok(0))
def _(s: Session) -> int:
    """A queue with only unacked messages counts as empty, and queue.delete-ok counts ready messages."""
    opened = s.channel()
    opened.publish("", opened.queue(s.q), b"x")
    opened.get(s.q, no_ack=False)
    return int(opened.call("queue.delete", queue=s.q, if_empty=True).message_count)


for _letter, _method, _fields, _text in (
    ("a", "queue.bind", {"exchange": "amq.direct", "routing_key": "k"}, NONE_YET),
    ("b", "queue.unbind", {"exchange": "amq.direct", "routing_key": "k"}, NONE_YET),
    ("c", "queue.purge", {}, NONE_YET),
    ("d", "queue.delete", {}, NONE_YET),
    ("e", "basic.consume", {}, NONE_YET),
    ("f", "basic.get", {}, NONE_YET),
    ("g", "queue.declare", {"passive": True}, "no queue '' in vhost '/'"),
    ("h", "queue.bind", {"exchange": "amq.direct"}, NONE_YET),
):

    def _unnamed(s: Session, method: str = _method, fields: dict = _fields) -> None:
        s.channel().call(method, **fields)

    case(
        f"67{_letter}",
        channel(404, _method, _text),
        statement=f"{_method} with {_fields} and an empty queue name, before the channel has declared a queue",
    )(_unnamed)
