"""Erlang's hash of terms, compared with values that `erlang:phash2(Term, 1 bsl 32)` of OTP 25 has returned."""

from typing import Any

import pytest

from leveret.broker.management.exchanges import location, properties_key
from leveret.exchanges.erlang_hash import Atom, term_hash

LONG, TABLE = Atom("long"), Atom("table")
HASHES: list[tuple[Any, int]] = [
    ([], 3468870702),
    (Atom("a"), 97),
    ([Atom("a")], 1634476877),
    ((), 221703996),
    ((1,), 1318488075),
    ([[]], 499070068),
    (-1, 1117813597),
    (300000000, 2061434444),
    (-300000000, 999989672),
    (18446744073709551616, 2519041713),
    (1152921504606846976, 1373980788),
    (-9223372036854775808, 1736826119),
    (0.0, 423528920),
    (b"", 147926629),
    (b"abcdefghijklmnop", 3491374364),
    ((b"", Atom("a")), 143347056),
    ([(b"a", Atom("longstr"), b"x")], 2894735898),
    ([(b"a", Atom("bool"), True)], 1802062121),
    ([(b"a", LONG, 5000000000)], 2342884039),
    ([(b"a", LONG, -5)], 3595994557),
    ([(b"a", Atom("signedint"), 1)], 2926729778),
    ([(b"a", Atom("double"), 1.5)], 3398307074),
    ([(b"a", Atom("array"), [(Atom("longstr"), b"two"), (LONG, 300)])], 954366304),
    ([(b"t", TABLE, [(b"q", LONG, 7)])], 1022131681),
    ([(b"t", TABLE, [])], 2638679353),
    ([(b"v", Atom("void"), Atom("undefined"))], 3233508068),
    ((Atom("decimal"), (2, 1234)), 3984642049),
]


@pytest.mark.parametrize(("term", "expected"), HASHES)
def test_a_term_has_the_hash_that_erlang_gives_it(term, expected):
    """Each kind of term in the arguments of a binding is mixed as in Erlang."""
    assert expected == term_hash(term)


def test_the_key_of_a_binding_is_that_of_rabbitmq():
    """Arguments are hashed in the order of their names, whatever the order in which they were given."""
    arguments: Any = {
        "z": ("long", 1),
        "a": ("longstr", "x"),
        "b": ("bool", True),
        "d": ("double", 1.5),
        "l": ("array", [("long", 1), ("longstr", "two"), ("long", 300)]),
        "t": ("table", {"q": ("long", 7)}),
        "big": ("long", 5000000000),
        "neg": ("long", -5),
    }

    assert "k~vya11Q" == properties_key("k", arguments)
    assert "k~rIoqGg" == properties_key("k", {"a": ("longstr", "x")})
    assert "~" == properties_key("", {})
    assert "a+b%7Ec%2Fd" == properties_key("a b~c/d", {})
    assert "t1/a%2Bb%257Ec%252Fd" == location("t1", "a+b%7Ec%2Fd")
