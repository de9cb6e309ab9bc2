"""Terms of Erlang as text."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.erlang_terms import DEEPEST, Atom, parsed, parsed_several, written


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("{constant, true}", ("constant", "true")),
        (" { constant,true } . ", ("constant", "true")),
        ("[]", []),
        ("{}", ()),
        ("{'and', [{a, \"b\"},{c}]}", ("and", [("a", "b"), ("c",)])),
        (r'"a\"b\\c\n"', 'a"b\\c\n'),
        (r"'it\'s'", "it's"),
        ('<<"name">>', "name"),
        ("[0, -12, 0.4, 1.5e3]", [0, -12, 0.4, 1500.0]),
        ("% first\n[a, % second, 'x'\n b].\n% last", ["a", "b"]),
        ('"ä, {x} #"', "ä, {x} #"),
        ('{for,\n [{permission, write, "%"}]}', ("for", [("permission", "write", "%")])),
    ],
)
def test_a_term_is_read(text, term):
    """Atoms, strings, binaries, numbers, tuples and lists are read, with any space and comments between them."""
    assert term == parsed(text)


def test_atoms_are_no_strings():
    """An atom is distinct from a string with the same text, a tuple from a list."""
    found = parsed("[constant, \"constant\", 'x y', {a}]")

    assert [True, False, True] == [isinstance(each, Atom) for each in found[:3]]
    assert isinstance(found, list)
    assert isinstance(found[3], tuple)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a term is missing at the end"),
        ("{a", "a comma or } is missing at character 3"),
        ("{a,}", "a term is missing at character 4"),
        ("{a b}", "a comma or } is missing at character 4"),
        ("[a}", "a comma or ] is missing at character 3"),
        ('"open', "this is no term of Erlang that is known here, at character 1"),
        ("X", "this is no term of Erlang that is known here, at character 1"),
        ("{a, #b}", "this is no term of Erlang that is known here, at character 5"),
        ("a b", "there is more after the term, at character 3"),
        ("[" * (DEEPEST + 2), f"terms are nested more than {DEEPEST} deep"),
    ],
)
def test_what_is_no_term_is_an_error(text, problem):
    """The error says what is wrong, and at which character."""
    with pytest.raises(ValueError, match=r".") as caught:
        parsed(text)

    assert problem == str(caught.value)


def test_several_terms_follow_each_other():
    """Terms with nothing but space between them are read one by one, as in the arguments of Erlang."""
    assert ["key", [("a", 1)], "text"] == parsed_several('key [{a, 1}] "text"')


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
_TERMS = st.recursive(
    st.one_of(_TEXTS, _TEXTS.map(Atom), st.integers(), st.floats(-1e6, 1e6).map(lambda each: round(each, 3))),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)


@given(_TERMS)
def test_a_term_that_is_written_is_read_again(term):
    """A written term is read as the same term, with atoms and strings, tuples and lists kept apart."""
    found = parsed(written(term))

    assert term == found
    assert written(term) == written(found)
