"""The follower: the time by which its copy is behind."""

from leveret.broker.replication.follower import MARKS, Lag


def test_it_counts_from_the_oldest_entry_that_is_not_applied():
    """Entries that were seen a moment later count as seen then."""
    lag = Lag()
    lag.note(3, 10.0)
    lag.note(4, 10.05)
    lag.note(9, 12.0)

    assert 3.0 == lag.seconds(13.0)
    lag.applied(3)
    assert 1.0 == lag.seconds(13.0)
    lag.applied(9)
    assert 0.0 == lag.seconds(13.0)


def test_an_end_that_is_applied_does_not_count():
    """Also one that is seen after it was applied, as by a leader."""
    lag = Lag()
    lag.applied(5)
    lag.note(5, 1.0)

    assert 0.0 == lag.seconds(2.0)


def test_it_takes_bounded_memory():
    """A copy that is behind for hours is behind since the same time."""
    lag = Lag()
    for number in range(2 * MARKS):
        lag.note(number + 1, float(number))

    assert 2.0 * MARKS == lag.seconds(2.0 * MARKS)
