"""Tables with more levels or values than the broker takes: refused with the limit, but for what the broker added itself."""

import logging

import pytest
from doubles.fakes import Client, Node
from hypothesis import given, strategies as st

from leveret.broker.amqp.commands import Basic, Channel, Exchange, Queue, make
from leveret.broker.amqp.properties import OWN_HEADERS, Properties
from leveret.broker.amqp.tables import MAX_APART, MAX_DEPTH, MAX_ENTRIES, Table, count_values, encode_value

VALUES = "a table may have at most 4096 values, nested ones included"
LEVELS = "a table may have at most 32 levels"


def wide(count: int) -> Table:
    return {f"h{number}": ("bool", True) for number in range(count)}


def deep(levels: int) -> Table:
    table: Table = {}
    for _ in range(levels - 1):
        table = {"t": ("table", table)}
    return table


REFUSED = [(wide(MAX_ENTRIES + 1), VALUES), (deep(MAX_DEPTH + 1), LEVELS)]
TAKEN = [{"a": ("array", [("void", None)] * (MAX_ENTRIES - 1))}, deep(MAX_DEPTH)]
METHODS = {
    "queue.declare": lambda table: make(Queue.Declare, 0, "q", False, False, False, False, False, table),
    "queue.bind": lambda table: make(Queue.Bind, 0, "q", "amq.direct", "k", False, table),
    "exchange.declare": lambda table: make(
        Exchange.Declare, 0, "x", "direct", False, False, False, False, False, table
    ),
    "basic.consume": lambda table: make(Basic.Consume, 0, "q", "", False, True, False, False, table),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("table", "text"), REFUSED, ids=["wide", "deep"])
def test_arguments_that_are_too_large_close_the_channel(caplog, method, table, text):
    """The channel is closed with 406, the limit is in the text and in the log, and the connection goes on."""
    client = Client()
    with caplog.at_level(logging.ERROR):
        (answer,) = client.ask(METHODS[method](table))

    assert f'1 channel.close reply_code=406 reply_text="PRECONDITION_FAILED - {text}"' in answer
    assert text in caplog.text
    client.send(Channel.CloseOk())
    assert ["1 channel.open-ok"] == client.ask(Channel.Open())


@pytest.mark.parametrize(("table", "text"), REFUSED, ids=["wide", "deep"])
def test_headers_that_are_too_large_close_the_channel(caplog, table, text):
    """A publish with such headers is refused with 406 and the limit, in one read or in several."""
    client = Client()
    client.declare("q")
    with caplog.at_level(logging.ERROR):
        client.publish("q", b"1", headers=table)
        (answer,) = client.sent()

    assert f'1 channel.close reply_code=406 reply_text="PRECONDITION_FAILED - headers: {text}"' in answer
    assert text in caplog.text


@pytest.mark.parametrize("table", TAKEN, ids=["wide", "deep"])
def test_what_is_within_the_limits_is_taken(table):
    """As many values and levels as the text names are taken."""
    client = Client()
    assert ["1 queue.declare-ok queue=q"] == [
        text.split(" message")[0] for text in client.declare("q", arguments=table)
    ]
    client.publish("q", b"1", headers=table)
    assert [] == client.sent()


@pytest.mark.parametrize("count", [4000, MAX_ENTRIES - 1, MAX_ENTRIES])
def test_what_was_delivered_can_be_published_again(count):
    """The headers of a dead letter, however wide, are taken back: those that the broker added do not count."""
    node = Node()
    client = Client(node)
    route: Table = {"x-dead-letter-exchange": ("longstr", "")}
    client.declare("dead")
    for name, following in (("a", "b"), ("b", "dead")):
        client.declare(
            name,
            arguments={
                **route,
                "x-dead-letter-routing-key": ("longstr", following),
                "x-message-ttl": ("signedint", 1),
            },
        )
    headers = wide(count)
    for attempt in (1, 2, 3):
        client.publish("a", b"1", headers=headers)
        node.pass_time(10)
        node.pass_time(10)
        client.send(make(Basic.Get, 0, "dead", True))
        answer = client.take()[-1]
        assert answer.header, answer
        headers = Properties(answer.header).headers or {}
        assert [attempt] * 2 == [death["count"][1] for _, death in headers["x-death"][1]]


def test_headers_of_the_brokers_names_have_a_bound_too():
    """A client cannot send any number of values under the broker's names."""
    for name in sorted(OWN_HEADERS):
        client = Client(Node())
        items = ("array", [("void", None)] * (MAX_APART - 1))
        client.publish("", b"1", headers={name: items})
        assert [] == client.sent()
        client.publish("", b"1", headers={name: ("array", [("void", None)] * MAX_APART)})
        assert VALUES in client.sent()[0]


@given(
    st.recursive(
        st.just(("void", None)),
        lambda inner: st.one_of(
            st.tuples(st.just("array"), st.lists(inner, max_size=4)),
            st.tuples(st.just("table"), st.dictionaries(st.text("abc", max_size=2), inner, max_size=4)),
        ),
    )
)
def test_values_are_counted(field):
    """An encoded value counts as its parts and itself."""

    def count(each):
        kind, value = each
        parts = value if kind == "array" else value.values() if kind == "table" else ()
        return 1 + sum(map(count, parts))

    assert count(field) == count_values(encode_value(field))
