"""The rows of definitions: keys, values, and what damage does."""

import typing

import pytest
from hypothesis import given, strategies as st

from leveret.storage.errors import DamagedError
from leveret.storage.store.metadata_rows import (
    BindingRow,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    QueueRow,
    Row,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VHostLimitsRow,
    VHostRow,
    decode,
    encode,
    entity_key,
    relation_key,
)

KINDS = (
    VHostRow, VHostLimitsRow, UserRow, UserLimitsRow, PermissionRow, TopicPermissionRow, ExchangeRow, QueueRow,
    BindingRow, PolicyRow, ParameterRow, GlobalParameterRow,
)  # fmt: skip
MAX_KEY = 511
"""The longest key that LMDB takes."""

_FIELDS = {
    int: st.integers(0, (1 << 64) - 1),
    bytes: st.binary(max_size=300),
    bool: st.booleans(),
    int | float: st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False),
    int | None: st.none() | st.integers(0, 1 << 40),
    list[bytes]: st.lists(st.binary(max_size=20), max_size=4),
}


def any_row(kind: type[Row]) -> st.SearchStrategy[Row]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: _FIELDS[hints[name]] for name in kind.__struct_fields__})


rows = st.one_of([any_row(kind) for kind in KINDS])


@given(rows)
def test_a_row_comes_back(row):
    """Every row can be read from its key and value, with all octets and numbers."""
    assert row == decode(row.key(), encode(row))


@given(rows)
def test_keys_fit(row):
    """Names are bounded so that each row's key fits into LMDB, and the first octet gives the kind."""
    assert len(row.key()) <= MAX_KEY
    assert row.kind == row.key()[:1]


@given(rows, rows)
def test_rows_have_different_keys_or_say_the_same_of_the_same(one, other):
    """A row's key is made of an entity's id or of what identifies a relation, and of nothing else."""
    if one == other:
        assert one.key() == other.key()
    elif one.key() == other.key():
        assert type(one) is type(other)


def test_every_kind_has_a_letter_of_its_own():
    """Kinds are distinguished by the first octet of the key."""
    assert len(KINDS) == len({kind.kind for kind in KINDS})


def test_names_do_not_run_into_each_other():
    """The parts of a key are kept apart: user 'a' in 'bc' is not user 'ab' in 'c'."""
    assert relation_key(b"P", b"a", b"bc") != relation_key(b"P", b"ab", b"c")
    assert PermissionRow(b"u", b"v", b"1", b"2", b"3").key() == PermissionRow(b"u", b"v", b"", b"", b"").key()


def test_a_binding_is_identified_by_its_arguments_identity():
    """A binding's identity depends on its arguments, and not on how they were written."""
    one = BindingRow(1, 2, b"k", b"as written", b"same")

    assert one.key() == BindingRow(1, 2, b"k", b"otherwise", b"same").key()
    assert one.key() != BindingRow(1, 2, b"k", b"as written", b"other").key()
    assert one.key() != BindingRow(2, 1, b"k", b"as written", b"same").key()


@given(rows, st.data())
def test_flipped_bits_are_found(row, data):
    """A value that is not what was written is never taken for a row."""
    value = bytearray(encode(row))
    at = data.draw(st.integers(0, 8 * len(value) - 1))
    value[at // 8] ^= 1 << at % 8

    with pytest.raises(DamagedError):
        decode(row.key(), bytes(value))


@given(rows, st.integers(0, 40))
def test_cut_values_are_found(row, size):
    """The beginning of a value is not a value."""
    with pytest.raises(DamagedError):
        decode(row.key(), encode(row)[: min(size, len(encode(row)) - 1)])


def test_a_row_under_a_foreign_key_is_found():
    """A value that lies where another belongs is refused, and so is an unknown kind."""
    row = QueueRow(7, 1, b"q", False, b"")
    with pytest.raises(DamagedError, match="stored under a wrong key"):
        decode(entity_key(b"Q", 8), encode(row))
    with pytest.raises(DamagedError, match="unknown kind"):
        decode(b"?" + row.key()[1:], encode(row))
    with pytest.raises(DamagedError):
        decode(b"", encode(row))
    with pytest.raises(DamagedError, match="damaged"):
        decode(entity_key(b"E", 7), encode(row))
