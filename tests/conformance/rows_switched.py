"""Cases of RabbitMQ 4 that only a 4.3 can be asked about, with the switches of 4 on in ours."""

from conformance.cases import SOCKET, Cases, Session, channel, connection, ok

ROWS = Cases()
case = ROWS.case


@case("9 of 4.1", SOCKET, setup="switched", of=("4.3",))
def _(s: Session) -> None:
    """connection.tune-ok with a frame_max below 8192 closes the socket."""
    s.login(frame_max=4096)


@case(
    "61a",
    connection(
        541,
        "queue.declare",
        "Feature `transient_nonexcl_queues` is deprecated.\nBy default, this feature is not permitted anymore.\nThe feature "
        "will be removed from a future major RabbitMQ version, regardless of the configuration; actual version to be "
        "determined.\nTo...",
    ),
    setup="switched",
    of=("4.3",),
    profiles=("4.3",),  # the text of 3.13 is that of Debian's 4.3.6
)
def _(s: Session) -> None:
    """Declaring a queue that is neither durable nor exclusive."""
    s.channel().queue(s.q)


@case("61b", setup="switched", of=("4.3",))
def _(s: Session) -> None:
    """Durable queues and exclusive queues can be declared."""
    opened = s.queue(durable=True)
    opened.queue(s.q + "2", exclusive=True)


@case(
    "71 of 4.3",
    channel(406, "queue.bind", "Topic binding key 'a.#.b.#.#' uses 3 '#' wildcards, at most 2 are allowed"),
    setup="switched",
    of=("4.3",),
)
def _(s: Session) -> None:
    """A topic binding key with more than two # words."""
    opened = s.channel()
    opened.call(
        "queue.bind", queue=opened.queue(s.q, durable=True), exchange="amq.topic", routing_key="a.#.b.#.#"
    )


@case("71 of 4.3, two", setup="switched", of=("4.3",))
def _(s: Session) -> None:
    """A topic binding key with two # words."""
    opened = s.channel()
    opened.call(
        "queue.bind", queue=opened.queue(s.q, durable=True), exchange="amq.topic", routing_key="#.a.#"
    )


@case("qos of 4.3", ok(2), setup="switched", of=("4.3",))
def _(s: Session) -> int:
    """A global prefetch applies to each consumer separately."""
    opened = s.channel()
    opened.call("basic.qos", prefetch_count=1, global_=True)
    for number in range(2):
        name = opened.queue(s.q + str(number), durable=True)
        opened.consume(name, str(number))
        for _ in range(3):
            opened.publish("", name, b"x")
    return opened.deliveries()


@case("passive of 3", ok((0, "exchange.declare-ok")), setup="switched", of=())
def _(s: Session) -> tuple[int, str]:
    """With `compatibility.passive_declare = open` a passive declare needs no permission."""
    s.channel().queue(s.q, durable=True)
    mine = s.channel("limited")
    answer = mine.call("exchange.declare", exchange="amq.topic", type="topic", passive=True)
    return mine.ready(s.q), answer.name


@case(
    "39 of 4.3",
    channel(406, "queue.bind", "The binding key must not exceed 10000"),
    setup="switched",
    of=("4.3",),
)
def _(s: Session) -> None:
    """A binding of an x-consistent-hash exchange with a weight above 10000."""
    opened = s.channel()
    opened.exchange(s.x, "x-consistent-hash")
    queue = opened.queue(s.q, exclusive=True)
    opened.call("queue.bind", queue=queue, exchange=s.x, routing_key="10000")
    opened.call("queue.bind", queue=queue, exchange=s.x, routing_key="10001")
