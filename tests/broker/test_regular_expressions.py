"""Expressions are RE2's where it is installed, and otherwise those of which the automaton gives the same answers."""

import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from leveret.broker.auth.name_patterns import InvalidPatternError, Patterns
from leveret.broker.automaton import Automaton, ExpressionError, compiled
from leveret.broker.message_filter.message_filter import FilterError, MessageFilter
from leveret.broker.metrics.scrape import UnusablePatternError, pattern

MEMORY = 1 << 20
PIECES = st.sampled_from(
    [
        "a",
        "b",
        "\xe9",
        "(",
        ")",
        "(?:",
        "|",
        "[",
        "]",
        "[^",
        "^",
        "$",
        ".",
        "*",
        "?",
        "{2}",
        "{",
        ",",
        "}",
        "\\",
        "d",
        "-",
    ]
)


@pytest.fixture
def without_re2(monkeypatch):
    """A Python in which google-re2 is not installed."""
    monkeypatch.setitem(sys.modules, "re2", None)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
@given(
    pieces=st.lists(PIECES, max_size=10),
    names=st.lists(st.text("ab\xe9[]{}()|d-", max_size=5), min_size=5),
)
def test_both_engines_give_one_answer(encoding, pieces, names):
    """Whatever the automaton accepts RE2 accepts, too, and both find it in the same texts."""
    pytest.importorskip("re2")
    try:
        ours = Automaton("".join(pieces))
    except ExpressionError:
        return
    theirs = compiled("".join(pieces).encode(encoding), memory=MEMORY, encoding=encoding)
    for name in names:
        assert bool(theirs.search(name.encode(encoding))) == ours.search(name)


@pytest.mark.usefixtures("without_re2")
@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("^ha\\.", b"ha.orders", True),
        ("^ha\\.", b"haorders", False),
        ("^(?!amq\\.).*", b"orders", True),
        ("^(?!amq\\.).*", b"amq.topic", False),
        ("^(orders|invoices)-[0-9]+$", b"invoices-7", True),
        (".*events.*", b"all.events.eu", True),
        ("{username}-.*", b"a.*-q", True),
        ("{username}-.*", b"aa-q", False),
        ("\u00e9.q", "\u00e9-q".encode(), True),
    ],
)
def test_patterns_of_users_need_no_re2(text, name, expected):
    """Patterns as users write them mean the same without google-re2."""
    assert expected == bool(Patterns().compile(text, username="a.*")(name))


@pytest.mark.usefixtures("without_re2")
def test_what_only_re2_makes_safe_is_refused():
    """Permissions, conditions and scrapes refuse it with a text that says what to install; Python's `re` is no way out."""
    advice = r"'\\\\b.*is not supported \(without RE2; to have it: pip install 'leveret\[re2\]'\)"
    with pytest.raises(InvalidPatternError, match=advice):
        Patterns().compile("\\bq")
    with pytest.raises(FilterError, match=advice):
        MessageFilter("routing_key =~ '\\\\bq'")
    with pytest.raises(UnusablePatternError, match=advice):
        pattern("\\bq")


@pytest.mark.usefixtures("without_re2")
def test_a_condition_searches_characters():
    """In conditions `.` is a character of UTF-8, and an invalid octet is one character, without google-re2, too."""
    euro = MessageFilter("routing_key =~ '^.$'").matches

    assert [True, True, False] == [euro(SimpleNamespace(routing_key=key)) for key in ("€", "\udcff", "ab")]


@pytest.mark.usefixtures("without_re2")
def test_a_condition_costs_little():
    """The largest patterns of a condition take a moment for one message, and larger ones are refused."""
    worst = MessageFilter("routing_key =~ '(a|ab|b){62}$'").matches
    began = time.process_time()

    assert not worst(SimpleNamespace(routing_key="ab" * 2047 + "c"))
    assert time.process_time() - began < 2
    with pytest.raises(FilterError, match="too large"):
        MessageFilter("routing_key =~ '(a|ab|b){62}$' and routing_key =~ '^q'")
