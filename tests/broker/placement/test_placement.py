"""The process of each virtual host."""

import pytest

from leveret.broker.placement.placement import Placement, PlacementError


def test_the_process_with_the_fewest() -> None:
    """A new virtual host gets the process that has the fewest, and keeps it; one that was deleted counts no more."""
    placement = Placement(2, {})
    placement.found(1, ["a", "b"])

    assert [2, 2, 1] == [placement.place(name) for name in ("c", "d", "e")]
    assert 2 == placement.place("c")
    assert 1 == placement.remove("a")
    placement.remove("b")
    assert 1 == placement.place("f")
    assert {"e", "f"} == placement.vhosts(1)
    assert placement.remove("unknown") is None


def test_pins() -> None:
    """A virtual host with a pin gets that process."""
    placement = Placement(3, {"orders": 3})

    assert 3 == placement.place("orders")
    assert 1 == placement.place("other")


def test_data_stay_where_they_are() -> None:
    """A pin does not move data, and a virtual host is in one process only."""
    placement = Placement(2, {"orders": 2})

    with pytest.raises(PlacementError, match="data are in process 1"):
        placement.found(1, ["orders"])
    placement.found(1, ["a"])
    with pytest.raises(PlacementError, match="in the processes 1 and 2"):
        placement.found(2, ["a"])
