import pytest
from hypothesis import given, strategies as st

from leveret.exchanges.errors import InvalidXMatch
from leveret.exchanges.headers import HeadersExchange


def unbind_all(exchange, destination) -> int:
    """Remove all bindings to a destination; how many there were."""
    bound = exchange.detach(destination)
    return 0 if bound is None else len(list(exchange.sweep(destination, bound)))


MATCHES = [
    # arguments, headers, whether RabbitMQ 3.13 routes
    ({}, {}, True),
    ({}, {"a": ("signedint", 1)}, True),
    ({"x-match": ("longstr", "any")}, {"a": ("signedint", 1)}, False),
    ({"x-match": ("longstr", "all")}, {}, True),
    ({"a": ("signedint", 1)}, {"a": ("signedint", 1)}, True),
    ({"a": ("signedint", 1)}, {"a": ("signedint", 2)}, False),
    ({"a": ("signedint", 1)}, {}, False),
    ({"a": ("signedint", 1)}, {"a": ("long", 1)}, True),
    ({"a": ("byte", 1)}, {"a": ("timestamp", 1)}, True),
    ({"a": ("signedint", 1)}, {"a": ("double", 1.0)}, True),
    ({"a": ("float", 1.5)}, {"a": ("double", 1.5)}, True),
    ({"a": ("bool", True)}, {"a": ("signedint", 1)}, False),
    ({"a": ("bool", True)}, {"a": ("bool", True)}, True),
    ({"a": ("longstr", "x")}, {"a": ("binary", b"x")}, True),
    ({"a": ("longstr", "\udcff")}, {"a": ("binary", b"\xff")}, True),
    ({"a": ("longstr", "1")}, {"a": ("signedint", 1)}, False),
    ({"a": ("decimal", (1, 15))}, {"a": ("decimal", (1, 15))}, True),
    ({"a": ("decimal", (1, 15))}, {"a": ("decimal", (2, 150))}, False),
    ({"a": ("void", None)}, {"a": ("signedint", 5)}, True),
    ({"a": ("void", None)}, {"a": ("void", None)}, True),
    ({"a": ("void", None)}, {}, False),
    ({"a": ("signedint", 5)}, {"a": ("void", None)}, False),
    ({"a": ("array", [("long", 1)])}, {"a": ("array", [("long", 1)])}, True),
    ({"a": ("array", [("long", 1)])}, {"a": ("array", [("byte", 1)])}, False),
    ({"a": ("table", {"b": ("long", 1)})}, {"a": ("table", {"b": ("long", 1)})}, True),
    (
        {"a": ("table", {"b": ("long", 1), "c": ("long", 2)})},
        {"a": ("table", {"c": ("long", 2), "b": ("long", 1)})},
        False,
    ),
    # several criteria
    ({"a": ("long", 1), "b": ("long", 2)}, {"a": ("long", 1), "b": ("long", 2), "c": ("long", 3)}, True),
    ({"a": ("long", 1), "b": ("long", 2)}, {"a": ("long", 1)}, False),
    ({"x-match": ("longstr", "any"), "a": ("long", 1), "b": ("long", 2)}, {"b": ("long", 2)}, True),
    ({"x-match": ("longstr", "any"), "a": ("long", 1), "b": ("long", 2)}, {"b": ("long", 3)}, False),
    ({"x-match": ("longstr", "any"), "a": ("void", None)}, {"a": ("long", 3)}, True),
    # x- arguments
    ({"x-b": ("long", 1)}, {}, True),
    ({"x-match": ("longstr", "any"), "x-b": ("long", 1)}, {"x-b": ("long", 1)}, False),
    ({"x-match": ("longstr", "all-with-x"), "x-b": ("long", 1)}, {}, False),
    ({"x-match": ("longstr", "all-with-x"), "x-b": ("long", 1)}, {"x-b": ("long", 1)}, True),
    ({"x-match": ("longstr", "any-with-x"), "x-b": ("long", 1)}, {"x-b": ("long", 1)}, True),
    ({"x-match": ("longstr", "any-with-x")}, {"x-match": ("longstr", "any-with-x")}, False),
    ({"x-match": ("longstr", "all-with-x")}, {}, True),
]


@pytest.mark.parametrize(("arguments", "headers", "expected"), MATCHES)
def test_match(arguments, headers, expected):
    """Arguments meet headers as in RabbitMQ, and unbinding leaves nothing."""
    exchange = HeadersExchange("x")
    assert exchange.bind("q", "", arguments)
    assert (["q"] if expected else []) == list(exchange.match("ignored", headers))
    assert (["q"] if expected else []) == list(exchange.match("ignored", lambda: headers))
    assert exchange.unbind("q", "", arguments)
    assert exchange._criteria == exchange._index == exchange._any == {}


def test_bindings_that_want_any_argument_lead_to_their_destinations_together():
    """A million bindings of one queue that share an argument are one destination to find, until the last is gone."""
    exchange = HeadersExchange("x")
    shared, count = ("a", ("binary", "1")), 100
    tables = [
        {"x-match": ("longstr", "any"), "a": ("longstr", "1"), "b": ("long", number)}
        for number in range(count)
    ]
    for table in tables:
        assert exchange.bind("q", "", table)
    assert exchange.bind("other", "", tables[0])
    found = {"shared": exchange._any[shared], "own": exchange.match("", {"b": ("short", 7)})}
    for number, table in enumerate(tables):
        assert "q" in exchange.match("", {"a": ("longstr", "1")}), number
        assert exchange.unbind("q", "", table)

    assert {"shared": ("q", "other"), "own": ("q",)} == found
    assert ("other",) == exchange.match("", {"a": ("longstr", "1")})


def test_no_headers_at_all():
    """A message without headers is one with none."""
    exchange = HeadersExchange("x")
    exchange.bind("q", "")
    exchange.bind("r", "", {"a": ("void", None)})
    assert list(exchange.match("", None)) == ["q"]


def test_equal_values_of_different_types_are_two_bindings():
    """Binding identity looks at types where matching does not, so the second binding stays when the first goes."""
    exchange = HeadersExchange("x")
    assert exchange.bind("q", "", {"a": ("long", 1)})
    assert exchange.bind("q", "", {"a": ("byte", 1)})
    assert exchange.bind("q", "other key", {"a": ("byte", 1)})
    for key, kind in (("", "long"), ("", "byte"), ("other key", "byte")):
        assert list(exchange.match("", {"a": ("short", 1)})) == ["q"]
        assert exchange.unbind("q", key, {"a": (kind, 1)})
    assert list(exchange.match("", {"a": ("short", 1)})) == []


def test_several_matches_are_united():
    """A destination that several bindings lead to is found once; unbinding one destination leaves the other."""
    exchange = HeadersExchange("x")
    exchange.bind("q", "", {"a": ("long", 1)})
    exchange.bind("q", "", {"b": ("long", 1)})
    exchange.bind("r", "", {"b": ("long", 1)})
    headers = {"a": ("long", 1), "b": ("long", 1)}
    assert sorted(exchange.match("", headers)) == ["q", "r"]
    assert unbind_all(exchange, "q") == 2
    assert list(exchange.match("", headers)) == ["r"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (("longstr", "foo"), 'value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        (("longstr", ""), "value <<>>; expected all, any, all-with-x, or any-with-x"),
        (("longstr", 'a"b\\c'), 'value <<"a\\"b\\\\c">>; expected all, any, all-with-x, or any-with-x'),
        (("longstr", "\udcff"), "value <<255>>; expected all, any, all-with-x, or any-with-x"),
        (("longstr", "é"), 'value <<"é"/utf8>>; expected all, any, all-with-x, or any-with-x'),
        (("signedint", 1), "type signedint (value 1); expected longstr"),
        (("bool", True), "type bool (value true); expected longstr"),
        (("void", None), "type void (value undefined); expected longstr"),
        (("double", 1.5), "type double (value 1.5); expected longstr"),
        (("decimal", (1, 15)), "type decimal (value {1,15}); expected longstr"),
        (("binary", b"xy"), 'type binary (value <<"xy">>); expected longstr'),
        (
            ("array", [("signedint", 1), ("longstr", "x")]),
            'type array (value [{signedint,1},{longstr,<<"x">>}]); expected longstr',
        ),
        (("table", {"a": ("signedint", 1)}), 'type table (value [{<<"a">>,signedint,1}]); expected longstr'),
    ],
)
def test_invalid_x_match(field, text):
    """An x-match that is none of the four words is refused with RabbitMQ's text, and nothing is bound."""
    exchange = HeadersExchange("x")
    with pytest.raises(InvalidXMatch) as caught:
        exchange.bind("q", "", {"x-match": field})
    assert f"Invalid x-match field {text}" == str(caught.value)
    assert field == (caught.value.field_type, caught.value.value)
    assert not exchange.in_use


VALUE = st.sampled_from(
    [("void", None), ("long", 1), ("byte", 1), ("long", 2), ("bool", True), ("longstr", "1")]
)
FORM = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])
HEADERS = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d"]), VALUE)


def naive_match(form, arguments, headers):
    """Say what RabbitMQ 3.13 says, one argument after another."""

    def met(name, kind, value):
        if name not in headers:
            return False
        other_kind, other = headers[name]
        return kind == "void" or ((kind == "bool") == (other_kind == "bool") and value == other)

    counted = [
        met(name, *field)
        for name, field in arguments.items()
        if not name.startswith("x-") or (form is not None and form.endswith("-with-x"))
    ]
    return any(counted) if form is not None and form.startswith("any") else all(counted)


@given(
    bindings=st.lists(st.tuples(FORM, HEADERS), max_size=30),
    kept=st.lists(st.booleans(), min_size=30, max_size=30),
    messages=st.lists(HEADERS, min_size=1, max_size=5),
)
def test_many_bindings_match_like_one_by_one(bindings, kept, messages):
    """Bindings that share the index are each found exactly when they alone would match, however many they are."""
    exchange = HeadersExchange("x")
    tables = [
        arguments | ({} if form is None else {"x-match": ("longstr", form)}) for form, arguments in bindings
    ]
    for number, table in enumerate(tables):
        assert exchange.bind(number, "", table)
        assert exchange.bind(-1, "", table) == (table not in tables[:number])
    for number in [-1, *(number for number in range(len(tables)) if not kept[number])]:
        unbind_all(exchange, number)
    for headers in messages:
        expected = [
            number
            for number, (form, arguments) in enumerate(bindings)
            if kept[number] and naive_match(form, arguments, headers)
        ]
        assert expected == sorted(set(exchange.match("", headers)))
    for number in range(len(tables)):
        unbind_all(exchange, number)
    assert exchange._criteria == exchange._index == exchange._any == {}
