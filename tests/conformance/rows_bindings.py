"""Rows 68-72: bindings."""

from conformance.cases import Cases, Session, channel, ok

ROWS = Cases()
case = ROWS.case


for _letter, _method, _fields, _text in (
    ("a", "queue.bind", {"queue": "{q}", "exchange": "amq.direct"}, "no queue '{q}' in vhost '/'"),
    ("b", "queue.bind", {"queue": "real", "exchange": "{x}"}, "no exchange '{x}' in vhost '/'"),
    ("c", "queue.bind", {"queue": "{q}", "exchange": "{x}"}, "no exchange '{x}' in vhost '/'"),
    ("d", "exchange.bind", {"destination": "amq.direct", "source": "{x}"}, "no exchange '{x}' in vhost '/'"),
    ("e", "exchange.bind", {"destination": "{x}", "source": "amq.direct"}, "no exchange '{x}' in vhost '/'"),
    ("f", "exchange.bind", {"destination": "d-{x}", "source": "{x}"}, "no exchange '{x}' in vhost '/'"),
):

    def _missing(s: Session, method: str = _method, fields: dict = _fields) -> None:
        opened = s.channel()
        opened.queue("real")
        names = {key: value.replace("{q}", s.q).replace("{x}", s.x) for key, value in fields.items()}
        opened.call(method, routing_key="k", **names)

    case(
        f"68{_letter}",
        f"{_method} with {_fields}, where no queue {{q}} and no exchange {{x}} exist",
        channel(404, _method, _text),
    )(_missing)


for _letter, _what, _method, _fields in (
    ("a", "a binding", "queue.unbind", {"queue": "real", "exchange": "amq.direct"}),
    ("b", "a queue", "queue.unbind", {"queue": "nosuch-queue", "exchange": "amq.direct"}),
    ("c", "an exchange", "queue.unbind", {"queue": "real", "exchange": "nosuch-exchange"}),
    (
        "d",
        "an exchange-to-exchange binding",
        "exchange.unbind",
        {"destination": "amq.fanout", "source": "amq.direct"},
    ),
    (
        "e",
        "a destination exchange",
        "exchange.unbind",
        {"destination": "nosuch-exchange", "source": "amq.direct"},
    ),
    ("f", "a source exchange", "exchange.unbind", {"destination": "amq.fanout", "source": "nosuch-exchange"}),
):

    def _unbind(s: Session, method: str = _method, fields: dict = _fields) -> None:
        opened = s.channel()
        opened.queue("real")
        opened.call(method, routing_key="nosuch-key", **fields)

    case(f"69{_letter}", f"unbinding {_what} that does not exist is answered")(_unbind)


_XMATCH = "expected all, any, all-with-x, or any-with-x"


for _letter, _value, _text in (
    ("a", "foo", f'Invalid x-match field value <<"foo">>; {_XMATCH}'),
    ("b", 1, "Invalid x-match field type signedint (value 1); expected longstr"),
    ("c", True, "Invalid x-match field type bool (value true); expected longstr"),
    ("d", "ALL", f'Invalid x-match field value <<"ALL">>; {_XMATCH}'),
):

    def _xmatch(s: Session, value: object = _value) -> None:
        opened = s.channel()
        opened.call(
            "queue.bind", queue=opened.queue(s.q), exchange="amq.headers", arguments={"x-match": value}
        )

    case(
        f"70{_letter}",
        f"binding to a headers exchange with x-match {_value!r}",
        channel(406, "queue.bind", _text),
    )(_xmatch)


@case("70e", "x-match is ignored by other exchange types")
def _(s: Session) -> None:
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q), exchange="amq.direct", arguments={"x-match": "foo"})


@case(
    "70f",
    "binding an exchange to a headers exchange with an invalid x-match",
    channel(406, "exchange.bind", f'Invalid x-match field value <<"foo">>; {_XMATCH}'),
)
def _(s: Session) -> None:
    s.channel().call(
        "exchange.bind", destination="amq.fanout", source="amq.headers", arguments={"x-match": "foo"}
    )


@case("71", "a topic binding key may contain any number of # words", ok(True))
def _(s: Session) -> bool:
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q), exchange="amq.topic", routing_key="a.#.b.#.#")
    opened.publish("amq.topic", "a.x.b", b"x")
    return opened.drain(s.q) == 1


_VOLATILE = "cannot bind or unbind to a volatile (direct reply-to) queue"


@case("72a", "binding a direct reply-to address", channel(403, "queue.bind", _VOLATILE))
def _(s: Session) -> None:
    s.channel().call("queue.bind", queue="amq.rabbitmq.reply-to.a", exchange="amq.direct", routing_key="k")


@case("72b", "unbinding a direct reply-to address", channel(403, "queue.unbind", _VOLATILE))
def _(s: Session) -> None:
    s.channel().call("queue.unbind", queue="amq.rabbitmq.reply-to.a", exchange="amq.direct", routing_key="k")


@case(
    "72c",
    "binding the pseudo-queue of direct reply-to",
    channel(404, "queue.bind", "no queue 'amq.rabbitmq.reply-to' in vhost '/'"),
)
def _(s: Session) -> None:
    s.channel().call("queue.bind", queue="amq.rabbitmq.reply-to", exchange="amq.direct", routing_key="k")


@case("72d", "unbinding the pseudo-queue of direct reply-to, which changes nothing")
def _(s: Session) -> None:
    s.channel().call("queue.unbind", queue="amq.rabbitmq.reply-to", exchange="amq.direct", routing_key="k")
