"""Checks and replies of method handlers that the scenarios do not cover."""

from typing import Any

import pytest
from doubles.fakes import Client, Node, queue_declare

from leveret.broker.amqp.commands import Basic, Exchange, Queue, make
from leveret.broker.channel.settings import Compatibility
from leveret.broker.config.config import UserConfig
from leveret.broker.methods import HANDLERS
from leveret.broker.vhost.vhost import Metadata

LOCKED: Any = {"x-match": ("longstr", "sometimes")}


@pytest.fixture
def client() -> Client:
    """A client with a queue `q` and an exchange `x`."""
    made = Client()
    made.declare("q")
    made.send(declare("x"))
    made.sent()
    return made


def declare(
    name: str, kind: str = "direct", *, passive: bool = False, nowait: bool = False, **arguments: Any
) -> Any:
    return make(Exchange.Declare, 0, name, kind, passive, False, False, False, nowait, arguments)


def bind(queue: str, exchange: str, key: str = "", *, nowait: bool = False, arguments: Any = None) -> Any:
    return make(Queue.Bind, 0, queue, exchange, key, nowait, arguments or {})


def unbind(queue: str, exchange: str, key: str = "") -> Any:
    return make(Queue.Unbind, 0, queue, exchange, key, {})


def test_handlers_are_named_after_the_wire():
    """Each handler is named `class_method` for the method it handles."""
    names = {
        method.name.replace(".", "_").lower(): handler.__name__.replace("_", "")
        for method, handler in HANDLERS.items()
    }

    assert [] == [(name, handler) for name, handler in names.items() if name.replace("_", "") != handler]


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (declare("none", passive=True), "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (declare("", passive=True), "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (declare("y", "odd"), "PRECONDITION_FAILED - unknown exchange type 'odd'"),
        (declare("x", "fanout"), "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/'"),
        (declare("amq.mine"), "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"),
        (make(Exchange.Delete, 0, "amq.direct", False, False), "ACCESS_REFUSED - deletion of system exchange"),
        (make(Exchange.Delete, 0, "", False, False), "ACCESS_REFUSED - operation not permitted on the default"),
        (bind("q", "none"), "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (bind("none", "x"), "NOT_FOUND - no queue 'none' in vhost '/'"),
        (bind("q", ""), "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (bind("q", "amq.headers", arguments=LOCKED), "PRECONDITION_FAILED - Invalid x-match field value"),
        (bind("amq.rabbitmq.reply-to.a", "x"), "ACCESS_REFUSED - cannot bind or unbind to a volatile"),
        (queue_declare("amq.mine"), "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"),
        (queue_declare("none", passive=True), "NOT_FOUND - no queue 'none' in vhost '/'"),
        (make(Queue.Purge, 0, "none", False), "NOT_FOUND - no queue 'none' in vhost '/'"),
        (make(Basic.Consume, 0, "none", "", False, False, False, False, {}), "NOT_FOUND - no queue 'none' in vhost"),
    ],
)  # fmt: skip
def test_refusals(client, method, text):
    """A refused method closes the channel with RabbitMQ's text."""
    (sent,) = client.ask(method)

    assert "1 channel.close" in sent
    assert text in sent


def test_declaring_again_changes_nothing(client):
    """An equal or passive declaration is answered and keeps bindings and messages."""
    client.ask(bind("q", "x", "k"))
    client.publish("k", b"body", exchange="x")

    assert ["1 exchange.declare-ok"] == client.ask(declare("x"))
    assert ["1 exchange.declare-ok"] == client.ask(declare("x", passive=True))
    assert ["1 queue.declare-ok queue=q message_count=1"] == client.declare("q")
    client.publish("k", b"body", exchange="x")
    assert ["1 queue.declare-ok queue=q message_count=2"] == client.declare("q")


def test_an_empty_name_is_the_last_declared_queue(client):
    """An empty name is the last declared queue, in a bind without key also the key; without such a queue it is 404."""
    assert ["1 queue.bind-ok"] == client.ask(bind("", "x"))
    client.publish("q", b"body", exchange="x")
    assert ["1 queue.purge-ok message_count=1"] == client.ask(make(Queue.Purge, 0, "", False))
    assert ["1 queue.unbind-ok"] == client.ask(unbind("", "x"))
    client.publish("q", b"body", exchange="x")
    assert ["1 queue.purge-ok"] == client.ask(make(Queue.Purge, 0, "", False))

    other = Client(client.node, port=50001)
    assert "NOT_FOUND - no previously declared queue" in other.ask(make(Basic.Get, 0, "", False))[-1]


def test_unbinding_what_is_not_bound_succeeds(client):
    """An unbind succeeds even if the binding, the exchange or the queue does not exist."""
    for method in (unbind("q", "x", "never"), unbind("q", "none"), unbind("none", "x")):
        assert ["1 queue.unbind-ok"] == client.ask(method)


def test_a_locked_queue_keeps_its_bindings(client):
    """Another connection can neither bind an exclusive queue nor unbind it."""
    client.declare("mine", exclusive=True)
    client.ask(bind("mine", "x", "k"))
    for port, method in enumerate((bind("mine", "x", "l"), unbind("mine", "x", "k")), 50001):
        other = Client(client.node, port=port)

        assert (
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine'" in other.ask(method)[-1]
        )


def test_deleting_can_be_conditional(client):
    """`if_unused` and `if_empty` are 406 if not met; deleting an object that does not exist succeeds."""
    assert ["1 queue.delete-ok"] == client.ask(make(Queue.Delete, 0, "none", True, True, False))
    client.publish("q")
    assert (
        "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
        in (client.ask(make(Queue.Delete, 0, "q", False, True, False))[-1])
    )
    other = Client(client.node, port=50001)
    other.consume("q", no_ack=True)
    assert (
        "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
        in (other.ask(make(Queue.Delete, 0, "q", True, False, False))[-1])
    )


def test_without_wait_there_is_no_answer(client):
    """A method with `nowait` takes effect without a reply."""
    for method in (
        declare("y", nowait=True),
        bind("q", "y", nowait=True),
        make(Basic.Consume, 0, "q", "c", False, True, False, True, {}),
        make(Basic.Cancel, "c", True),
        make(Queue.Purge, 0, "q", True),
        make(Queue.Delete, 0, "q", False, False, True),
        make(Exchange.Delete, 0, "y", False, True),
    ):
        assert [] == client.ask(method)

    assert [] == list(client.node.vhosts["/"].queues)
    assert client.node.vhosts["/"].router.get("y") is None


def test_a_consumer_tag_is_used_once(client):
    """A consumer tag in use is 530; an empty one is replaced by a tag of the broker's."""
    client.consume("q", "c")
    (sent,) = client.ask(make(Basic.Consume, 0, "q", "", False, True, False, False, {}))
    assert "1 basic.consume-ok consumer_tag=amq.ctag-" in sent

    assert "NOT_ALLOWED - attempt to reuse consumer tag 'c'" in client.consume("q", "c")[-1]


def test_recover_async_gives_no_answer(client):
    """`basic.recover-async`, which is deprecated, requeues without a reply."""
    client.publish("q", b"body")
    client.ask(make(Basic.Get, 0, "q", False))

    assert [] == client.ask(make(Basic.RecoverAsync, True))
    assert 1 == client.node.vhosts["/"].queues["q"].ready_count


def test_names_lose_their_line_ends(client):
    """Carriage returns and line feeds are removed from names, as by RabbitMQ."""
    assert ["1 queue.declare-ok queue=ab"] == client.declare("a\r\nb")


def test_hashes_in_topic_keys_can_be_limited():
    """A binding key with more `#` than allowed is 406 under RabbitMQ 4.3's rule."""
    client = Client(Node(compatibility=Compatibility(topic_max_hash=2)))
    client.declare("q")

    assert ["1 queue.bind-ok"] == client.ask(bind("q", "amq.topic", "#.a.#"))
    assert (
        "Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, at most 2 are allowed"
        in (client.ask(bind("q", "amq.topic", "#.a.#.b.#"))[0])
    )


def test_a_dead_letter_exchange_takes_its_permissions():
    """A dead-letter exchange takes read on the queue and write on the exchange; so does an alternate exchange."""
    user = UserConfig("me", "me", (), {"/": (".*", "^mine", ".*")})
    for method in (
        queue_declare("q", arguments={"x-dead-letter-exchange": ("longstr", "theirs")}),
        declare("x", **{"alternate-exchange": ("longstr", "theirs")}),
    ):
        client = Client(Node(users=(user,)), user="me")

        assert (
            "ACCESS_REFUSED - write access to exchange 'theirs' in vhost '/' refused for user 'me'"
            in (client.ask(method)[0])
        )


def test_a_vhosts_default_type_is_that_of_its_queues(client):
    """A queue declared without a type gets the vhost's default and keeps it, and can be redeclared without one."""
    vhost = client.node.vhosts["/"]
    vhost.metadata = Metadata(default_queue_type="quorum")
    client.declare("durable", durable=True)
    client.declare("passing")

    assert ("quorum", "classic") == (vhost.queues["durable"].type, vhost.queues["passing"].type)
    assert ["1 queue.declare-ok queue=durable"] == client.declare("durable", durable=True)
    vhost.metadata = Metadata()
    assert "inequivalent arg 'x-queue-type'" in client.declare("durable", durable=True)[0]


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        (
            "3.13",
            "Its use is not permitted per the configuration (overriding the default, which is permitted):",
        ),
        ("4.3", "By default, this feature is not permitted anymore."),
    ],
)
def test_who_denies_a_deprecated_feature_is_told(profile, reason):
    """In 3.13 only the configuration denies transient queues that are not exclusive; in 4.3 the release does."""
    switches = Compatibility(profile=profile, transient_nonexcl_queues="denied")
    (closed,) = Client(Node(compatibility=switches)).declare("q")

    assert f"Feature `transient_nonexcl_queues` is deprecated.\n{reason}\n" in closed
