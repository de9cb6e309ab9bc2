"""Definitions as JSON: values, types and texts."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.administration.definitions_document import (
    DefinitionsError,
    Document,
    as_object,
    as_words,
    encoded,
    json_text,
    plain_arguments,
    read_document,
    table_of,
    where,
)
from leveret.broker.scheduling.time_slices import at_once

JSON = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=20), JSON, max_size=5))
def test_arguments_survive_the_way_and_back(arguments):
    """Arguments that JSON can express come back unchanged."""
    assert arguments == plain_arguments(table_of(arguments))


def test_types_of_arguments():
    """Integers become long and other numbers double, as with RabbitMQ."""
    assert {
        "i": ("long", 5),
        "f": ("double", 5.0),
        "b": ("bool", True),
        "s": ("longstr", "s"),
        "a": ("array", [("long", 1), ("array", [])]),
        "t": ("table", {"x": ("bool", False)}),
    } == table_of({"i": 5, "f": 5.0, "b": True, "s": "s", "a": [1, []], "t": {"x": False}})


def nested(levels: int) -> dict[str, object]:
    return {"x": nested(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": None}, "argument 'a': null"),
        ({"a": 2**63}, "argument 'a': 9223372036854775808"),
        ({"a" * 256: 1}, "invalid arguments: field name of 256 octets"),
        (nested(33), "invalid arguments: a table may have at most 32 levels"),
        ({"a": [1] * 5000}, "invalid arguments: a table may have at most 4096 values"),
    ],
)
def test_what_is_no_argument(arguments, text):
    """Arguments that could not be stored and read again are refused."""
    with pytest.raises(DefinitionsError, match=text):
        table_of(arguments)


def test_what_json_has_nothing_like():
    """Values that JSON has no type for are written as RabbitMQ writes them."""
    table = {
        "v": ("void", None),
        "d": ("decimal", (2, 314)),
        "o": ("binary", b"\xff"),
        "s": ("longstr", "\udcff"),
        "t": ("timestamp", 5),
    }
    sentence = "Not UTF-8, base64 is: /w=="

    assert {"v": "undefined", "d": 2.314, "o": sentence, "s": sentence, "t": 5} == plain_arguments(table)
    assert "text ü" == json_text("text ü")


def test_pairs_for_objects_and_words_for_lists():
    """Objects written as pairs and lists written as words, as by RabbitMQ's tools and older versions, are read."""
    assert {"a": 1, "b": [2]} == as_object([["a", 1], ["b", [2]]])
    assert ([], [1], {"a": 1}, "x") == tuple(as_object(value) for value in ([], [1], {"a": 1}, "x"))
    assert ["a", "b"] == as_words(" a, b,,") == as_words(["a", "b"])


def read(octets: bytes) -> tuple[Document, list[str]]:
    """Read definitions, running all steps; returns them and the unknown keys."""
    document, problems, unknown, _ = at_once(read_document(octets))
    assert [] == problems
    return document, unknown


def test_an_empty_document():
    """Empty definitions are written with all known sections, and no others."""
    document, unknown = read(b'{"description": "mine", "more": 1}')

    assert (document, []) == read(encoded(document))
    assert ["more"] == unknown


def test_where_an_entry_is():
    """An error names an entry by its section and index, and by the name and vhost it gives."""
    assert "queues[3] (name 'q', vhost 'v')" == where("queues", 3, {"vhost": "v", "name": "q", "durable": 1})
    assert "queues[3]" == where("queues", 3, "q") == where("queues", 3, {"name": 5})
