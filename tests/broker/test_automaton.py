"""The automaton finds what Python's `re` finds, in linear time, and refuses what is not in its language."""

import re
import time

import pytest
from hypothesis import given, strategies as st

from leveret.broker.automaton import MOST_POSITIONS, Automaton, ExpressionError

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "é",
        "-",
        ".",
        "\\.",
        "\\d",
        "\\W",
        "\\w",
        "[ab]",
        "[^a]",
        "[a-c.^]",
        "[\\d_-]",
        "\\-",
        " ",
        "\n",
    ]
)
TIMES = st.sampled_from(["*", "+", "?", "*?", "{2}", "{0}", "{0,2}", "{1,}", "{2,3}?"])


def grown(inner):
    """Return expressions that are made of smaller ones."""
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | st.tuples(inner, TIMES).map(lambda two: f"({two[0]}){two[1]}")
    )


INNER = st.recursive(ATOMS | st.just(""), grown, max_leaves=12)


@given(
    start=st.sampled_from(["", "^", "(?i)", "(?s)^", "(?:^|a)"]),
    inner=INNER,
    end=st.sampled_from(["", "$", "($|b)"]),
    texts=st.lists(st.text("abcAé-.1_ \n", max_size=8), min_size=8, max_size=8),
)
def test_it_finds_what_re_finds(start, inner, end, texts):
    """For any expression of the language and any text the answer is that of Python's `re`, where `$` is the end only."""
    ours = Automaton(start + inner + end)
    theirs = re.compile(start + inner + end.replace("$", r"\Z"), re.ASCII)

    for text in texts:
        assert (theirs.search(text) is not None) == ours.search(text)


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        ")",
        "a)b",
        "*a",
        "a**",
        "^*",
        "a{3,2}",
        "a{,2}",
        "a{",
        "a++",
        "(?=a)",
        "(?!a)b",
        "(?<n>a)",
        "(a)\\1",
        "\\bq",
        "\\pL",
        "\\Qa\\E",
        "[[:alpha:]]",
        "[]a]",
        "[z-a]",
        "[a--b]",
        "[a",
        "^^a",
        "a$b",
        "(?x)a b",
        "((a{100}){100}){100}",
        "(" * 51 + "a" + ")" * 51,
    ],
)
def test_what_others_read_differently_is_refused(expression):
    """Syntax that is no regular language, that dialects read differently, or that grows too large, is an error."""
    with pytest.raises(ExpressionError):
        Automaton(expression)


@pytest.mark.parametrize(
    "expression", ["^(a*)*$", "^(a|a)*$", "^(a|aa)+$", "(.*)(.*)(.*)(.*)b$", "(?:a?){500}a{500}$"]
)
def test_no_text_takes_long(expression):
    """Expressions for which a matcher that backtracks takes longer than anyone waits are answered in a moment."""
    ours = Automaton(expression)
    began = time.process_time()

    assert not ours.search("a" * 254 + "c")
    assert time.process_time() - began < 2


def test_a_large_expression_ends():
    """An expression has as many positions as there is room for, and one more is refused."""
    assert MOST_POSITIONS == Automaton("a" * MOST_POSITIONS).positions
    with pytest.raises(ExpressionError, match=f"more than {MOST_POSITIONS} characters"):
        Automaton("a" * MOST_POSITIONS + "b")
    assert Automaton("((((){1000}){1000}){1000}){1000}").search("")


def test_a_matcher_remembers_little():
    """However many different characters and sets of positions come, what is remembered is bounded."""
    ours = Automaton("[^x].{12}y")
    for start in range(0, 0x8000, 250):
        ours.search("".join(map(chr, range(start, start + 250))))

    assert max(len(ours._masks), len(ours._after)) <= 1024
