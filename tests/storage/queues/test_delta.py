"""The positions of a delta from which messages were withdrawn."""

import pytest
from hypothesis import given, strategies as st

from leveret.storage.queues.delta import NO_GAPS, Gaps


@given(positions=st.sets(st.integers(0, 20_000)), before=st.integers(0, 20_000))
def test_gaps_are_a_set(positions, before):
    """Gaps hold what was added and, once they may be forgotten, at least those behind the given position."""
    gaps = Gaps()
    for position in positions:
        gaps.add(position)
    copy = gaps.copy()
    gaps.forget_before(before)

    assert bool(positions) is bool(copy)
    assert all(position in copy for position in positions)
    assert all((position in gaps) for position in positions if position >= before)
    assert not any(position in gaps for position in range(before, before + 50) if position not in positions)


def test_the_shared_set_stays_empty():
    """Nothing can be added to the set that all queues share."""
    with pytest.raises(TypeError):
        NO_GAPS.add(1)
    assert not NO_GAPS
