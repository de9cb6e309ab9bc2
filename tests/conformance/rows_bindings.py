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
        channel(404, _method, _text),
        statement=f"{_method} with {_fields}, where no queue {{q}} and no exchange {{x}} exist",
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

    case(f"69{_letter}", statement=f"unbinding {_what} that does not exist is answered")(_unbind)


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
        channel(406, "queue.bind", _text),
        statement=f"binding to a headers exchange with x-match {_value!r}",
    )(_xmatch)


@case("70e")
def _(s: Session) -> None:
    """x-match is ignored by other exchange types."""
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q), exchange="amq.direct", arguments={"x-match": "foo"})


@case("70f", channel(406, "exchange.bind", f'Invalid x-match field value <<"foo">>; {_XMATCH}'))
def _(s: Session) -> None:
    """Binding an exchange to a headers exchange with an invalid x-match."""
    s.channel().call(
        "exchange.bind", destination="amq.fanout", source="amq.headers", arguments={"x-match": "foo"}
    )


@case("71", ok(True))
def _(s: Session) -> bool:
    """A topic binding key may contain any number of # words."""
    opened = s.channel()
    opened.call("queue.bind", queue=opened.queue(s.q), exchange="amq.topic", routing_key="a.#.b.#.#")
    opened.publish("amq.topic", "a.x.b", b"x")
    return opened.drain(s.q) == 1


_VOLATILE = "cannot bind or unbind to a volatile (direct reply-to) queue"


@case("72a", channel(403, "queue.bind", _VOLATILE))
def _(s: Session) -> None:
    """Binding a direct reply-to address."""
    s.channel().call("queue.bind", queue="amq.rabbitmq.reply-to.a", exchange="amq.direct", routing_key="k")


@case("72b", channel(403, "queue.unbind", _VOLATILE))
def _(s: Session) -> None:
    """Unbinding a direct reply-to address."""
    s.channel().call("queue.unbind", queue="amq.rabbitmq.reply-to.a", exchange="amq.direct", routing_key="k")


@case("72c", channel(404, "queue.bind", "no queue 'amq.rabbitmq.reply-to' in vhost '/'"))
def _(s: Session) -> None:
    """Binding the pseudo-queue of direct reply-to."""
    s.channel().call("queue.bind", queue="amq.rabbitmq.reply-to", exchange="amq.direct", routing_key="k")


@case("72d")
def _(s: Session) -> None:
    """Unbinding the pseudo-queue of direct reply-to, which changes nothing."""
    s.channel().call("queue.unbind", queue="amq.rabbitmq.reply-to", exchange="amq.direct", routing_key="k")
