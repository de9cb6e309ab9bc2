"""A large table is a dict by number, in parts of which none is ever large."""

import pytest
from hypothesis import given, settings, strategies as st

from leveret.storage.large_table import FEW, MANY, LargeTable, fitting, large

NUMBERS = st.integers(0, 40_000)


@settings(max_examples=50)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.tuples(NUMBERS, st.integers(1, 6000))),
            st.tuples(st.just("pop"), st.tuples(NUMBERS, st.integers(1, 6000))),
            st.tuples(st.just("last"), st.integers(1, 3000)),
        ),
        max_size=8,
    )
)
def test_a_large_table_has_what_a_dict_has(steps):
    """A large table has the entries that a dict would have, and knows how many, after any changes."""
    table: LargeTable[str] = LargeTable()
    model: dict[int, str] = {}
    for verb, what in steps:
        if verb == "add":
            new = [(number, str(number)) for number in range(what[0], sum(what))]
            table.update(new)
            model.update(new)
        elif verb == "pop":
            for number in range(what[0], sum(what), 3):
                assert model.pop(number, None) == table.pop(number, None)
        else:
            for _ in range(min(what, len(model))):
                number, value = table.popitem()
                assert value == model.pop(number)

    assert model == dict(table.items())
    assert len(model) == len(table) == len(list(table.values()))
    assert sorted(model) == sorted(table)
    for _ in table.sort():
        pass
    assert sorted(model) == list(table)


def test_one_entry_can_be_asked_for():
    """Entries are found, put in and taken out by their numbers; what is not there is a `KeyError`."""
    table = LargeTable({5: "a", 9000: "b"})
    table[7] = "c"
    del table[9000]

    assert ("a", "c", None) == (table[5], table.get(7), table.get(9000))
    assert [True, False, False] == [number in table for number in (5, 9000, 70_000)]
    with pytest.raises(KeyError):
        table.pop(70_000)
    with pytest.raises(KeyError):
        _ = table[9000]
    table.clear()
    assert not table
    with pytest.raises(KeyError):
        table.popitem()


def test_a_table_is_a_dict_as_long_as_it_is_small():
    """A table that grows over a limit becomes large, and a dict again when few entries are left; it keeps its entries."""
    small = dict.fromkeys(range(MANY), 0)
    assert small is fitting(small)
    small[MANY] = 0
    grown = fitting(small)
    assert (LargeTable, MANY + 1, grown) == (type(grown), len(grown), fitting(grown))
    assert grown is large(grown)
    for number in range(MANY + 2 - FEW):
        del grown[number]
    shrunk = fitting(grown)

    assert (dict, FEW - 1) == (type(shrunk), len(shrunk))


def test_few_entries_that_stay_keep_little():
    """Parts with few entries left are no larger than those need, and parts without any are gone."""
    table = LargeTable(dict.fromkeys(range(100_000), 0))
    full = max(part.__sizeof__() for part in table._parts.values())
    for number in range(90_000):
        if number % 2000 or number >= 50_000:
            del table[number]
    kept = [part.__sizeof__() for part in table._parts.values() if len(part) < 64]

    assert 12 == len(kept)  # of 25
    assert max(kept) < full / 20
