"""Accepted patterns, and a lookahead at the start that means what it does in other dialects."""

import re

import pytest
from hypothesis import given, strategies as st

from leveret.broker.auth.name_patterns import MAX_OCTETS, InvalidPatternError, Patterns

LOOKAHEADS = (
    "^(?!amq\\.).*",
    "^(?!amq\\.|sys)",
    "^(?=a).*b$",
    "^(?!(a|b)c)[a-c]+$",
    "^(?![)b]c)a",
    "^(?!\\)b)[]a)b]+",
    "^(?!a[^])]b)",
    "^(?!)a",
    "^(?=)a",
    "^(?!a$).*",
    "^(?!a)(b|c)$",
)


@pytest.mark.parametrize("pattern", LOOKAHEADS)
@given(name=st.text("abc.)]amqsy", max_size=6))
def test_a_lookahead_at_the_start(pattern, name):
    """A lookahead at the start, positive or negative, matches exactly as in Python's `re`."""
    octets = name.encode()

    assert (re.search(pattern.encode(), octets) is not None) == bool(Patterns().compile(pattern)(octets))


PIECES = (
    "a",
    "b",
    "(",
    ")",
    "|",
    "[",
    "]",
    "[^",
    "\\(",
    "\\)",
    "\\[",
    "\\]",
    "\\|",
    "$",
    ".",
    "*",
    "(?:",
    "(?!",
)


@given(
    sign=st.sampled_from("=!"),
    pieces=st.lists(st.sampled_from(PIECES), max_size=10),
    names=st.lists(st.text("ab()[]|", max_size=5), min_size=5),
)
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_a_lookahead_is_never_misread(sign, pieces, names):
    """A lookahead that is accepted, whatever it contains, means what it means to Python's `re`."""
    pattern = f"^(?{sign}{''.join(pieces)}"
    try:
        search = Patterns().compile(pattern)
    except InvalidPatternError:
        return
    theirs = re.compile(pattern.encode())
    for name in names:
        assert (theirs.search(name.encode()) is not None) == bool(search(name.encode()))


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "^(?!a)b|c",  # the lookahead is for one alternative only
        "^(?!a)b)|(c",
        "a(?!b)",
        "(?!a)b",
        "^(?!a)(?!b)c",
        "^(?=a)(a+)\\1$",
        "^(?!a",
        "^(?<=a)b",
        "^(a)\\1$",
        "(a{1,1000}){1,1000}$",
        "^(?!\\Qa)\\E)b",
    ],
)
def test_what_re2_refuses_is_an_error(pattern):
    """Other syntax that RE2 lacks, and patterns it finds too large, are refused with a text that names the pattern."""
    with pytest.raises(InvalidPatternError) as caught:
        Patterns().compile(pattern)

    assert str(caught.value).startswith(f"invalid regular expression '{pattern}': RE2: ")


def test_patterns_end_somewhere():
    """A pattern above 1 KiB of UTF-8 before variables are filled in is refused, and cut in the text."""
    for pattern in ("a" * MAX_OCTETS, "ü" * (MAX_OCTETS // 2)):
        assert Patterns().compile(pattern)(pattern.encode())
    assert Patterns().compile("{vhost}" * 100, vhost="v" * 255)(b"v" * 25500)
    for pattern in ("a" * (MAX_OCTETS + 1), "ü" * (MAX_OCTETS // 2 + 1)):
        with pytest.raises(InvalidPatternError) as caught:
            Patterns(python=True).compile(pattern)
        assert f"...': it is {len(pattern.encode())} bytes long" in str(caught.value)
        assert len(str(caught.value)) < 400


def test_variables_are_literal():
    """A name that is filled in has no special characters, wherever it stands."""
    search = Patterns().compile("^(?!{username}[.]x)({username}|all)[.]", username="a.*")

    assert [True, False, False, True] == [
        bool(search(name)) for name in (b"a.*.y", b"a.*.x", b"abc.y", b"all.x")
    ]


def test_python_may_take_the_rest(caplog):
    """With `compatibility.python_patterns` a pattern that RE2 refuses is accepted, with a warning that names it."""
    patterns = Patterns(python=True)

    assert patterns.compile("^(a)\\1$")(b"aa")
    assert (
        "pattern '^(a)\\1$' is matched by Python's re, which may take exponential time (RE2: " in caplog.text
    )
    caplog.clear()
    assert patterns.compile("^(?!a)b")(b"b")
    assert "" == caplog.text
    with pytest.raises(InvalidPatternError, match=r"^invalid regular expression '\(': missing"):
        patterns.compile("(")


def test_a_stored_pattern_that_cannot_be_used_matches_nothing(caplog):
    """An unusable stored pattern is logged with its owner and the remedy, and is no error."""
    search = Patterns().stored("^(a)\\1$", "policy 'p' in vhost '/'")

    assert not search(b"aa")
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "policy 'p' in vhost '/': invalid regular expression '^(a)\\1$': RE2: "
    )
    assert record.getMessage().endswith(
        "It matches nothing until it is replaced or compatibility.python_patterns is set to true"
    )
    assert Patterns(python=True).stored("^(a)\\1$", "it")(b"aa")
