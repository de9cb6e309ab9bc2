"""Erlang terms as texts."""

import pytest

from leveret.broker.auth.backends.erlang_terms import DEEPEST, Atom, parsed


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
        ('"ä, {x} #"', "ä, {x} #"),
        ('{for,\n [{permission, write, "%"}]}', ("for", [("permission", "write", "%")])),
    ],
)
def test_a_term_is_read(text, term):
    """Atoms, strings, binaries, tuples and lists are read, with any space between them."""
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
        ('"open', "this is no term of Erlang that a query has, at character 1"),
        ("X", "this is no term of Erlang that a query has, at character 1"),
        ("{a, 1}", "this is no term of Erlang that a query has, at character 5"),
        ("a b", "there is more after the term, at character 3"),
        ("[" * (DEEPEST + 2), f"terms are nested more than {DEEPEST} deep"),
    ],
)
def test_what_is_no_term_is_an_error(text, problem):
    """The error says what is wrong, and at which character."""
    with pytest.raises(ValueError, match=r".") as caught:
        parsed(text)

    assert problem == str(caught.value)
