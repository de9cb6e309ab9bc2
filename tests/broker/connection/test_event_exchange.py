"""The event exchange: when it publishes, what it costs, its bounds; `conformance` has its messages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, StoringNode, basic_consume, hurry, queue_declare, work

from leveret.broker.amqp.commands import Basic, Queue as Wire, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.config.sections import EventsConfig
from leveret.broker.connection import event_exchange
from leveret.broker.connection.event_exchange import (
    EVENTS,
    EXCHANGE,
    LARGEST,
    LEFT_OUT,
    address_term,
    bounded,
    field,
)
from leveret.broker.http.dispatch import _handled
from leveret.broker.tls.certificate import Peer


def opened(node: Node) -> Node:
    node._open_event_exchange()
    return node


@pytest.fixture
def client() -> Client:
    """A client of a broker with an event exchange, with a queue that is not bound to it."""
    client = Client(opened(Node(events=EventsConfig(enabled=True))))
    client.declare("events")
    client.take()
    return client


def bind(client: Client, key: str) -> None:
    client.send(make(Wire.Bind, 0, "events", EXCHANGE, key, False, {}))
    client.take()


def told(client: Client) -> list[tuple[str, dict[str, Any]]]:
    """Return the routing keys and the headers of the events in the queue."""
    work(client.node)
    client.take()
    client.send(basic_consume("events", "watcher", no_ack=True))
    work(client.node)
    found = [each for each in client.take() if isinstance(each.method, Basic.Deliver)]
    client.send(make(Basic.Cancel, "watcher", False))
    client.take()
    return [
        (
            each.method.routing_key,
            {key: value for key, (_, value) in (Properties(each.header).headers or {}).items()},
        )
        for each in found
    ]


def test_there_is_none_unless_it_is_configured() -> None:
    """A broker with the default configuration has no event exchange, and nothing takes its events."""
    node = opened(Node())

    assert node.context.feed is None
    assert EXCHANGE not in node.vhosts["/"].router.exchanges


def test_it_is_declared_in_the_vhost_of_the_configuration() -> None:
    """The exchange is a durable internal topic exchange; its vhost is created if there is none."""
    node = opened(Node(events=EventsConfig(enabled=True, vhost="watched")))

    exchange = node.vhosts["watched"].router.exchanges[EXCHANGE]
    assert ("topic", True, True, False) == (
        exchange.type, exchange.durable, exchange.internal, exchange.auto_delete,
    )  # fmt: skip
    assert EXCHANGE not in node.vhosts["/"].router.exchanges


def test_an_event_is_a_message(client: Client) -> None:
    """A declaration leads to one message, with the acting user, to the queue that is bound for it."""
    bind(client, "queue.*")

    client.declare("q")

    ((key, headers),) = told(client)
    assert ("queue.created", "q", "/", "guest") == (
        key, headers["name"], headers["vhost"], headers["user_who_performed_action"],
    )  # fmt: skip


def test_what_the_broker_does_by_itself_has_its_own_actor(client: Client) -> None:
    """The user of a method is the actor of nothing that happens after it."""
    bind(client, "queue.#")
    client.declare("q")
    told(client)

    vhost = client.node.vhosts["/"]
    vhost.delete_queue(vhost.queues["q"])

    assert {"rmq-internal"} == {headers["user_who_performed_action"] for _, headers in told(client)}


def test_an_event_that_cannot_be_routed_is_not_described(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither without bindings nor with others is a message made, or its headers computed."""
    described: list[object] = []
    for kind, (key, _) in EVENTS.items():
        monkeypatch.setitem(EVENTS, kind, (key, lambda event: described.append(event) or {}))
    feed = client.node.context.feed
    assert feed is not None

    client.declare("q")
    bind(client, "vhost.created")
    described.clear()
    client.declare("r")

    assert [] == described
    assert not feed.has_input


def test_what_waits_is_bounded(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of events that happen in one step as many as may wait are published; the others are counted and logged."""
    bind(client, "queue.#")
    monkeypatch.setattr(event_exchange, "MOST_WAITING", 5)
    feed = client.node.context.feed
    assert feed is not None

    for number in range(12):
        client.node.vhosts["/"].create_queue(
            f"q{number}", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
        )
    found = told(client)

    assert [f"q{number}" for number in range(5)] == [headers["name"] for _, headers in found]
    assert 7 == feed.lost
    assert "dropped 7 events, because 5 events or 16 MiB of them waited to be published" in caplog.text


def test_publishing_ends_with_the_step(client: Client) -> None:
    """However many events wait, a step publishes a share of them, and the following ones the rest, in order."""
    bind(client, "queue.#")
    hurry(client.node, looks=3)

    for number in range(50):
        client.node.vhosts["/"].create_queue(
            f"q{number}", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
        )
    client.node.run_turn()
    feed = client.node.context.feed
    assert feed is not None
    assert feed.has_input

    assert [f"q{number}" for number in range(50)] == [headers["name"] for _, headers in told(client)]


def test_a_queue_that_takes_events_keeps_to_its_limit() -> None:
    """A queue nobody consumes from holds no more events than its max-length allows."""
    client = Client(opened(Node(events=EventsConfig(enabled=True))))
    client.send(queue_declare("events", arguments={"x-max-length": ("signedint", 3)}))
    client.take()
    bind(client, "queue.#")

    for number in range(20):
        client.declare(f"q{number}")

    assert ["q17", "q18", "q19"] == [headers["name"] for _, headers in told(client)]


def test_a_restored_object_is_no_event() -> None:
    """A start tells nothing of what an earlier run has left, and finds the exchange with its bindings."""
    node = StoringNode(events=EventsConfig(enabled=True))
    client = Client(opened(node))
    client.send(queue_declare("events", durable=True))
    node.commit()
    client.send(make(Wire.Bind, 0, "events", EXCHANGE, "#", False, {}))
    work(node)
    node.commit()

    again = opened(node.restarted())
    work(again)

    queue = again.vhosts["/"].queues["events"]
    assert 0 == queue.ready_count
    assert again.vhosts["/"].router.exchanges[EXCHANGE].in_use


def test_events_in_a_durable_queue_survive(tmp_path: Path) -> None:
    """Events are persistent messages: a durable queue has them after a crash, once they are committed."""
    node = DiskNode(tmp_path, events=EventsConfig(enabled=True))
    client = Client(opened(node))
    client.send(queue_declare("events", durable=True))
    node.commit()
    client.send(make(Wire.Bind, 0, "events", EXCHANGE, "queue.created", False, {}))
    node.commit()
    for number in range(3):
        client.declare(f"q{number}")
    work(node)
    node.commit()

    queue = node.killed().vhosts["/"].queues["events"]

    assert 3 == queue.ready_count


def test_secrets_are_not_published(client: Client) -> None:
    """Neither passwords, hashes nor URIs with a login are in any header."""
    bind(client, "#")
    node = client.node
    node.administration.users.put(None, "alice", password="canary", tags=())
    node.administration.policies.set_parameter(
        None, "/", "shovel", "s",
        {"src-uri": "amqp://a:canary@host", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "r"},
    )  # fmt: skip
    node.directory.global_parameters.set("mail_password", "canary")

    found = told(client)

    assert {"user.created", "parameter.set"} <= {key for key, _ in found}
    assert "canary" not in str(found)
    assert node.users.get("alice").password_hash not in str(found)


def test_steps_keep_their_actor_to_themselves(client: Client) -> None:
    """A job that acts for a user does so in its own steps only, and passes values and results through."""
    context = client.node.context
    seen = []

    def steps() -> Any:
        seen.append((context.actor, (yield 1)))
        seen.append((context.actor, (yield 2)))
        return "result"

    acting = context.acting("alice", steps())

    assert 1 == next(acting)
    assert "rmq-internal" == context.actor
    assert 2 == acting.send("a")
    with pytest.raises(StopIteration) as end:
        acting.send("b")
    assert "result" == end.value.value
    assert [("alice", "a"), ("alice", "b")] == seen
    assert "rmq-internal" == context.actor


@pytest.mark.parametrize(
    ("host", "term"),
    [
        ("127.0.0.1", "{127,0,0,1}"),
        ("::1", "{0,0,0,0,0,0,0,1}"),
        ("fe80::1%eth0", "{65152,0,0,0,0,0,0,1}"),
        ("somewhere", "somewhere"),
    ],
)
def test_addresses_are_erlang_terms(host: str, term: str) -> None:
    """An address is a tuple of its parts, as RabbitMQ prints it."""
    assert term == address_term(host)


def test_values_have_rabbitmqs_types() -> None:
    """Numbers have 64 bits, and an empty object is an empty array."""
    assert ("table", {
        "b": ("bool", True), "n": ("long", 1 << 40), "f": ("double", 0.5), "t": ("longstr", "x"), "e": ("array", []),
        "l": ("array", [("long", 1)]),
    }) == field({"b": True, "n": 1 << 40, "f": 0.5, "t": "x", "e": {}, "l": [1]})  # fmt: skip


def test_a_connection_with_tls_has_its_facts(client: Client) -> None:
    """The event of a connection has the protocol and the parts of the cipher suite."""
    bind(client, "connection.created")
    connection = client.connection
    connection.tls = Peer("TLSv1.3", "TLS_AES_256_GCM_SHA384")

    client.node.context.tell("connection_opened", "/", connection.name, connection)

    ((_, headers),) = told(client)

    assert (True, "tlsv1.3", "aes_256_gcm") == (
        headers["ssl"],
        headers["ssl_protocol"],
        headers["ssl_cipher"],
    )


def levels(count: int) -> Any:
    """Return a value of JSON with so many levels."""
    value: Any = 1
    for _ in range(count):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [1 << 70, {"k" * 300: 1}, float("nan"), ["x" * 500] * 1000, [True] * 5000, levels(40), levels(2000)],
    ids=["integer", "name", "nan", "large", "many", "deep", "deepest"],
)
def test_what_a_header_cannot_hold_is_left_out(client: Client, value: Any) -> None:
    """The event of a value that AMQP cannot represent, or clients could not take, comes without the value."""
    bind(client, "parameter.set")

    client.node.context.tell("parameter_set", "", "g", "global", value)

    ((_, headers),) = told(client)
    left_out = [("longstr", LEFT_OUT)] if isinstance(value, list) else LEFT_OUT
    assert ("g", left_out) == (headers["name"], headers["value"])


def test_an_array_that_is_too_large_stays_an_array() -> None:
    """A program that reads the arguments of an event finds an array in any case."""
    assert ("array", [("longstr", LEFT_OUT)]) == bounded(("array", [("longstr", "x" * LARGEST)]))
    assert ("longstr", LEFT_OUT) == bounded(("longstr", "x" * (LARGEST + 1)))
    assert ("longstr", "x" * 1000) == bounded(("longstr", "x" * 1000))


def test_an_error_in_an_event_does_not_reach_the_change(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A declaration whose event cannot be made succeeds; the log has the reason, and nothing is said of a number that waits."""

    def failing(event: object) -> Any:
        raise KeyError(event)

    bind(client, "queue.#")
    monkeypatch.setitem(EVENTS, "queue_created", ("queue.created", failing))

    assert ["1 queue.declare-ok queue=q"] == client.declare("q")

    assert [] == told(client)
    feed = client.node.context.feed
    assert feed is not None
    assert (0, 1) == (feed.lost, feed.failed)
    assert "internal error: the event 'queue.created' of 'q' is lost" in caplog.text
    assert "waited to be published" not in caplog.text


def test_steps_within_steps_leave_the_actor_as_it_was(client: Client) -> None:
    """A job that is begun within a step of another user's does not end the time of that user."""
    context = client.node.context
    seen = []

    def inner() -> Any:
        seen.append(context.actor)
        yield

    def outer() -> Any:
        next(context.acting("bob", inner()))
        seen.append(context.actor)
        yield

    next(context.acting("alice", outer()))

    assert ["bob", "alice", "rmq-internal"] == [*seen, context.actor]


def test_a_request_that_waits_does_not_act(client: Client) -> None:
    """The user of a request of several steps is the actor in these, and nobody is between them."""
    context = client.node.context
    seen = []

    def steps() -> Any:
        seen.append(context.actor)
        yield None
        seen.append(context.actor)
        return None

    def handler(_call: object) -> Any:
        seen.append(context.actor)
        return steps()

    call = SimpleNamespace(broker=client.node, actor=client.node.users.get("guest"))
    handled = _handled(SimpleNamespace(handler=handler), call)  # type: ignore[arg-type]
    seen.extend(context.actor for _ in handled)

    assert ["guest", "guest", "rmq-internal", "guest"] == seen
    assert "rmq-internal" == context.actor


def test_a_vhost_that_is_created_again_has_the_exchange() -> None:
    """The exchange is deleted with its vhost, and comes back with the next one of that name."""
    node = opened(Node(events=EventsConfig(enabled=True, vhost="watched")))
    node.directory.remove_vhost(node.vhosts["watched"])
    work(node)

    router = node.directory.add_vhost("watched").router

    vhost = node.vhosts["watched"]
    queue = vhost.create_queue("events", durable=False, exclusive_owner=None, auto_delete=False, arguments={})
    router.bind(EXCHANGE, queue, "queue.deleted")
    vhost.create_queue("q", durable=False, exclusive_owner=None, auto_delete=False, arguments={})
    vhost.delete_queue(vhost.queues["q"])
    work(node)
    assert 1 == queue.ready_count
