"""Hashes and jumps are Erlang's, with values that Erlang/OTP 25 has printed."""

import pytest

from leveret.exchanges.erlang_hash import jump, phash2

HASHES = [
    ("", 13708901),
    ("a", 112802447),
    ("hello", 47480723),
    ("abcdefghijkl", 15432855),
    ("abcdefghijklmnopqrstuvwxyz0123456789", 115604188),
    (["a"], 53691870),
    ([""], 38220213),
    (["a", "bb", "c" * 16], 113484695),
    (None, 45914356),
    (True, 506293),
    (False, 7111573),
    (1.5, 10380315),
    (0.0, 20875736),
    (-0.0, 20875736),
    (3.14e300, 18596090),
]


@pytest.mark.parametrize(("term", "expected"), HASHES)
def test_hash_of_a_term(term, expected):
    """A text is hashed as a binary, None as the atom undefined."""
    assert expected == phash2(term)


def test_other_terms_have_no_hash():
    """A term that Erlang would hash in another way is an error, not another hash."""
    with pytest.raises(TypeError):
        phash2(5)


def test_a_jump_stays_within_the_buckets():
    """Every key has one of the buckets, the only one if there is one."""
    assert {0} == {jump(key, 1) for key in range(100)}
    assert set(range(7)) == {jump(key, 7) for key in range(500)}


def test_one_more_bucket_takes_keys_from_all_and_moves_no_other():
    """A key stays where it is or goes to the new bucket, in proportion."""
    keys = range(2000)
    for buckets in range(1, 12):
        before, after = ([jump(key, count) for key in keys] for count in (buckets, buckets + 1))
        moved = [new for old, new in zip(before, after, strict=True) if old != new]
        assert {buckets} == set(moved)
        assert 0.7 < len(moved) * (buckets + 1) / len(keys) < 1.3
