"""Recent history exchanges: what they keep, and who gets it when."""

from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, StoringNode

from leveret.broker.amqp.commands import Basic, Exchange, Queue, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.vhost import recent_history as module

NO_STORE = "x-recent-history-no-store"


def declare(client: Client, name: str = "x", kind: str = "x-recent-history", **arguments: Any) -> list[str]:
    """Declare a durable exchange; arguments as typed fields."""
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    return client.ask(make(Exchange.Declare, 0, name, kind, False, True, False, False, False, table))


def bind(client: Client, queue: str = "q", key: str = "", source: str = "x") -> None:
    client.send(make(Queue.Bind, 0, queue, source, key, False, {}))


def bodies(client: Client, queue: str = "q") -> str:
    """Fetch all messages of a queue; their bodies, joined."""
    found = ""
    while True:
        client.send(make(Basic.Get, 0, queue, True))
        (got,) = client.take()
        if got.body is None or not isinstance(got.method, Basic.GetOk):
            return found
        found += got.body.decode()


@pytest.fixture
def client() -> Client:
    """A client, an exchange that keeps three messages, and two queues."""
    client = Client()
    declare(client, x_recent_history_length=("signedint", 3))
    for name in "qr":
        client.declare(name)
    client.take()
    return client


def publish(client: Client, letters: str, exchange: str = "x", **options: Any) -> None:
    for letter in letters:
        client.publish("k", letter.encode(), exchange=exchange, **options)


def test_a_new_binding_gets_the_last_messages(client):
    """The queue gets them oldest first, once for each binding, beside what it gets as by a fanout."""
    publish(client, "abcde")
    bind(client)
    client.take()
    assert "cde" == bodies(client)
    bind(client)
    client.take()
    assert "" == bodies(client)
    bind(client, key="another")
    publish(client, "f")
    client.take()
    assert "cdef" == bodies(client)
    client.send(make(Queue.Unbind, 0, "q", "x", "another", {}))
    bind(client, key="another")
    client.take()
    assert "def" == bodies(client)


def test_a_message_says_that_it_is_not_to_be_kept(client):
    """The header is obeyed if it is true, no other value counts."""
    publish(client, "a")
    publish(client, "b", headers={NO_STORE: ("bool", True)})
    publish(client, "c", headers={NO_STORE: ("bool", False)})
    publish(client, "d", headers={NO_STORE: ("longstr", "true")})
    bind(client)
    client.take()
    assert "acd" == bodies(client)


def test_messages_from_other_exchanges_are_kept(client):
    """Messages that come by a binding, to an alternate exchange or as dead letters are, once; others are not."""
    declare(client, "f", "fanout")
    declare(client, "d", "direct", alternate_exchange=("longstr", "x"))
    client.send(make(Exchange.Bind, 0, "x", "f", "", False, {}))
    letters: Table = {"x-dead-letter-exchange": ("longstr", "x"), "x-max-length": ("signedint", 0)}
    client.declare("dying", arguments=letters)
    publish(client, "a", "f")
    publish(client, "b", "d")
    client.publish("dying", b"c")
    client.publish("q", b"z")
    bind(client, "r")
    client.take()
    assert "abc" == bodies(client, "r")


def test_a_message_is_kept_by_the_exchange_that_chance_has_chosen(client):
    """Behind a random exchange each history has the messages that went its way."""
    declare(client, "y")
    declare(client, "choice", "x-random")
    for name, queue in (("x", "q"), ("y", "r")):
        client.send(make(Exchange.Bind, 0, name, "choice", "", False, {}))
        bind(client, queue, source=name)
    publish(client, "abcdefgh", "choice")
    client.declare("late")
    bind(client, "late")
    bind(client, "late", source="y")
    client.take()
    there = {name: bodies(client, name) for name in "qr"}
    assert there["q"][-3:] + there["r"] == bodies(client, "late")


def test_a_rolled_back_publish_was_routed(client):
    """A transaction's messages are kept when they are published, as in RabbitMQ."""
    client.send(make(Tx.Select))
    publish(client, "ab")
    client.send(make(Tx.Rollback))
    other = Client(client.node)
    bind(other)
    other.take()
    assert "ab" == bodies(other)


def test_a_bound_exchange_routes_them(client):
    """By their keys, headers and CC; those without a queue are dropped."""
    declare(client, "d", "direct")
    bind(client, "q", "copy", "d")
    publish(client, "a")
    publish(client, "b", headers={"CC": ("array", [("longstr", "copy")])})
    client.send(make(Exchange.Bind, 0, "d", "x", "", False, {}))
    client.take()
    assert "b" == bodies(client)


def test_due_messages_are_kept():
    """A delayed message is kept behind its exchange when it is due; the type itself cannot be delayed."""
    node = Node()
    client = Client(node)
    declare(client)
    declare(client, "late", "x-delayed-message", x_delayed_type=("longstr", "fanout"))
    client.send(make(Exchange.Bind, 0, "x", "late", "", False, {}))
    publish(client, "a", "late", headers={"x-delay": ("signedint", 1000)})
    client.declare("q")
    bind(client)
    client.take()
    assert "" == bodies(client)
    node.pass_time(1000)
    client.declare("r")
    bind(client, "r")
    client.take()
    assert "a" == bodies(client, "r")
    (closed,) = declare(client, "no", "x-delayed-message", x_delayed_type=("longstr", "x-recent-history"))
    assert "'x-recent-history' can't be used for 'x-delayed-type'" in closed


def test_a_full_queue_refuses_what_it_has_no_room_for(client):
    """The limits of the queue hold."""
    publish(client, "abc")
    limits: Table = {"x-max-length": ("signedint", 2), "x-overflow": ("longstr", "reject-publish")}
    client.declare("full", arguments=limits)
    bind(client, "full")
    client.take()
    assert "ab" == bodies(client, "full")


def test_memory_is_bounded(client, monkeypatch, caplog):
    """Messages beyond an exchange's share of a virtual host are forgotten, the oldest first; the log says so once."""
    monkeypatch.setattr(module, "MOST_OCTETS", 4000)
    history = client.node.vhosts["/"].histories.by_name["x"]
    publish(client, "a")
    for letter in (b"b", b"c", b"d"):
        client.publish("k", letter * 1700, exchange="x")
    assert 2 == history.count
    assert 3400 < history.octets < 4000
    declare(client, "y")
    client.publish("k", b"e" * 1900, exchange="x")
    assert 1 == history.count
    client.publish("k", b"f" * 5000, exchange="x")
    assert (0, 0) == (history.count, history.octets)
    (record,) = [each for each in caplog.messages if "keeps fewer" in each]
    assert "exchange 'x' in vhost '/' keeps fewer than its last 3 messages: they exceed 4000 bytes" == record


def test_a_deleted_exchange_forgets_them(client):
    """One that is declared again under its name is empty, and publishes are on the fast path again."""
    publish(client, "abc")
    client.send(make(Exchange.Delete, 0, "x", False, False))
    vhost = client.node.vhosts["/"]
    assert {} == vhost.histories.by_name
    assert () == vhost.taps.tails
    declare(client)
    bind(client)
    client.take()
    assert "" == bodies(client)


def test_a_persistent_message_is_stored_by_the_queue(tmp_path):
    """A durable queue has it after a restart; the exchange is there with its length, and has forgotten its messages."""
    client = Client(DiskNode(tmp_path))
    declare(client, x_recent_history_length=("signedint", 1))
    client.node.commit()
    for name in "qr":
        client.declare(name, durable=True)
        client.node.commit()
    publish(client, "ab", delivery_mode=2)
    bind(client)
    client.node.commit()
    node = client.node.killed()
    bind(Client(node), "r")
    node.commit()
    queues = node.vhosts["/"].queues
    assert [1, 0] == [queues[name].ready_count for name in "qr"]
    assert 1 == node.vhosts["/"].router.get("x").length


def test_a_restart_sends_nothing_again():
    """A restored binding is not new."""
    client = Client(StoringNode())
    declare(client)
    client.node.commit()
    client.declare("q", durable=True)
    client.node.commit()
    publish(client, "a")
    bind(client)
    client.node.commit()
    client.take()
    assert "a" == bodies(client)
    node = client.node.restarted()
    assert "" == bodies(Client(node))
    assert 0 == node.vhosts["/"].histories.by_name["x"].count


def test_the_operator_binds_and_sees_how_much_is_kept(client):
    """A binding by the API gets the messages; each figure is shown for this type only."""
    publish(client, "ab")
    node = client.node
    history = node.vhosts["/"].histories.by_name["x"]
    assert (2, True) == (history.count, history.octets > 0)
    node.administration.topology.bind(None, "/", "x", "q")
    node.run_turn()
    assert "ab" == bodies(client)
