"""Tails: which messages they are told of, and what they keep for a reader."""

import pytest
from doubles.fakes import Client, publish_frames
from hypothesis import given, strategies as st

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue as Wire, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.vhost import tail as module
from leveret.broker.vhost.tail import Tail


@pytest.fixture
def client() -> Client:
    client = Client()
    client.declare("q")
    for name, kind, arguments in (
        ("x", "topic", {}),
        ("before", "fanout", {}),
        ("alternate", "direct", {"alternate-exchange": ("longstr", "x")}),
        ("h", "headers", {}),
    ):
        client.send(make(Exchange.Declare, 0, name, kind, False, False, False, False, False, arguments))
    client.send(make(Exchange.Bind, 0, "x", "before", "", False, {}))
    client.send(make(Exchange.Bind, 0, "x", "h", "", False, {"k": ("longstr", "v")}))
    client.send(make(Wire.Bind, 0, "q", "x", "a.*", False, {}))
    client.take()
    return client


def tail(client: Client, exchange: str = "x", pattern: str = "#") -> Tail:
    vhost = client.node.vhosts["/"]
    made = Tail(vhost.router, exchange, pattern, client.node.wall_clock)
    vhost.taps.add_tail(made)
    return made


def taken(made: Tail) -> list[tuple[bytes, list[str]] | int]:
    """Take everything: body and queues of messages, and numbers of lost ones."""
    found: list[tuple[bytes, list[str]] | int] = []
    while (item := made.take()) is not None:
        found.append(item if isinstance(item, int) else (item.message.body, item.queues))
    return found


def test_publishes_to_the_exchange_are_kept(client):
    """All are, also those that no queue gets, on channels that have published before, until the tail is removed."""
    client.publish("a.b", b"before", exchange="x")
    made = tail(client)
    client.receive(publish_frames("a.b", b"one", exchange="x") * 2)
    client.publish("z", b"unroutable", exchange="x")
    client.publish("q", b"other exchange")
    client.node.vhosts["/"].taps.remove_tail(made)
    client.publish("a.b", b"after", exchange="x")

    assert [(b"one", ["q"]), (b"one", ["q"]), (b"unroutable", [])] == taken(made)
    assert 5 == client.node.vhosts["/"].queues["q"].ready_count


def test_other_exchanges_are_not_concerned(client):
    """The publishes to an exchange that does not lead to the tailed one keep their fast path."""
    tapping, router = client.node.vhosts["/"].taps, client.node.vhosts["/"].router
    tail(client)

    for name, concerned in (("", False), ("amq.topic", False), ("before", True), ("alternate", True)):
        assert concerned is bool(tapping.on(router.get(name)))


def test_messages_from_other_exchanges_are_kept(client):
    """Those that come by a binding between exchanges or as to an alternate exchange, and no others."""
    made = tail(client)
    client.publish("a.b", b"bound", exchange="before")
    client.publish("a.b", b"alternate", exchange="alternate")
    client.publish("a.b", b"header", exchange="h", headers={"k": ("longstr", "v")})
    client.publish("a.b", b"no header", exchange="h")

    assert [(b"bound", ["q"]), (b"alternate", ["q"]), (b"header", ["q"])] == taken(made)


def test_the_default_exchange_is_tailed(client):
    """It has no bindings, and messages to a queue that does not exist are kept, too."""
    made = tail(client, "")
    client.publish("q", b"one")
    client.publish("none", b"two")

    assert [(b"one", ["q"]), (b"two", [])] == taken(made)


def test_the_time_of_a_held_message_is_told(client):
    """It is the time until which a queue holds it; a queue that holds none of its messages tells no time."""
    client.declare("later", arguments={"x-allow-hold": ("bool", True)})
    made = tail(client, "")
    for queue in ("later", "q"):
        client.publish(queue, b"x", headers={"x-delay": ("long", 5000)})
    client.publish("later", b"x")

    dues = [item.due for item in iter(made.take, None) if not isinstance(item, int)]
    assert [client.node.wall_clock() + 5000, None, None] == dues
    assert 1 == client.node.vhosts["/"].queues["later"].held_count


def test_dead_letters_are_kept(client):
    """They come by the dead letter exchange, with the key of the queue."""
    letters: Table = {
        "x-dead-letter-exchange": ("longstr", "x"),
        "x-dead-letter-routing-key": ("longstr", "a.dead"),
    }
    client.declare("dying", arguments=letters)
    made, other = tail(client, pattern="*.dead"), tail(client, pattern="*.other")
    client.publish("dying", b"letter")
    client.send(make(Basic.Get, 0, "dying", False))
    client.send(make(Basic.Reject, 1, False))
    client.node.run_turn()

    item = made.take()
    assert not isinstance(item, int)
    assert item is not None
    assert (b"letter", ["q"], "", 0) == (item.message.body, item.queues, item.user, item.channel)
    assert other.take() is None


def test_all_keys_of_a_message_may_match(client):
    """The pattern is compared with the routing key and with those of CC and BCC, as an exchange does."""
    made = tail(client, pattern="order.#")
    for key, headers in (
        ("order", {}),
        ("order.new.eu", {}),
        ("invoice", {}),
        ("invoice", {"CC": ("array", [("longstr", "order.cc")])}),
        ("invoice", {"BCC": ("array", [("longstr", "order.bcc")])}),
    ):
        client.publish(key, key.encode(), exchange="x", headers=headers)

    assert [b"order", b"order.new.eu", b"invoice", b"invoice"] == [body for body, _ in taken(made)]  # type: ignore[misc]


def test_confirms_and_transactions_work_as_ever(client):
    """Publishers get their confirms, and what is published in a transaction is shown when it is published."""
    made = tail(client)
    client.ask(make(Confirm.Select, False))
    client.receive(publish_frames("a.b", b"one", exchange="x") * 3)
    assert ["1 basic.ack delivery_tag=3 multiple"] == client.sent()
    other = Client(client.node, port=50001)
    other.ask(Tx.Select())
    other.publish("a.b", b"tx", exchange="x")
    assert [(b"one", ["q"])] * 3 + [(b"tx", ["q"])] == taken(made)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=12), most=st.integers(1, 8))
def test_what_does_not_fit_is_counted_where_it_is_missing(steps, most):
    """Messages and losses together are what was published, in order, however fast the reader is; memory is bounded."""
    client = Client()
    made = tail(client, "amq.fanout")
    found: list[int | None] = []
    number = 0

    def read(count: int) -> None:
        for _ in range(count):
            item = made.take()
            if item is None:
                return
            found.extend([None] * item if isinstance(item, int) else [int(item.message.body)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_WAITING", most)
        for publishes, count in steps:
            if publishes:
                for _ in range(count):
                    client.publish("", b"%d" % number, exchange="amq.fanout")
                    number += 1
                assert len(made._items) <= most + 1
            else:
                read(count)
        read(1000)
    assert number == len(found)
    assert all(each in {None, at} for at, each in enumerate(found))
    assert (0, 0) == (made._octets, len(made._items))


def test_large_contents_are_bounded_too(client, monkeypatch):
    """No more than so many bytes wait; a single message above that is kept."""
    monkeypatch.setattr(module, "MOST_OCTETS", 1000)
    made = tail(client)
    for _ in range(3):
        client.publish("z", b"x" * 2000, exchange="x")

    assert [(b"x" * 2000, []), 2] == taken(made)


def test_a_reader_is_woken_once(client):
    """The callback is called when something is there, at once if something is there already."""
    made = tail(client)
    calls: list[str] = []
    made.when_there(lambda: calls.append("first"))
    assert [] == calls
    client.receive(publish_frames("a.b", b"", exchange="x") * 2)
    assert ["first"] == calls
    made.when_there(lambda: calls.append("second"))
    assert ["first", "second"] == calls
