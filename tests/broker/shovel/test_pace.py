"""The rests of a shovel."""

from hypothesis import given, strategies as st

from leveret.broker.shovel.pace import BESIDE_NS, FACTOR, MOST_NS, OwnReads, Pace

MS = 1_000_000


class Reading:
    """A connection from which something was read so often."""

    def __init__(self, reads):
        self.reads = reads


def test_a_shovel_alone_does_not_rest():
    """However much the loop has worked."""
    pace = Pace(used=0, reads=7)

    assert [0, 0] == [pace.rest(5 * MS, 7, MS), pace.rest(90 * MS, 7, 2 * MS)]


def test_beside_others_it_rests_for_a_multiple_of_the_work():
    """Counted from its last step on."""
    pace = Pace(used=10 * MS, reads=0)

    assert round(FACTOR * MS) == pace.rest(11 * MS, 1, 0)
    assert round(FACTOR * 1.5 * MS) == pace.rest(12 * MS + MS // 2, 2, 0)


def test_it_rests_for_a_while_after_the_last_read_of_others():
    """A client that sends something now and then does not find the loop full either."""
    pace = Pace()
    pace.rest(MS, 1, 0)

    assert pace.rest(2 * MS, 1, BESIDE_NS - 1) > 0
    assert pace.rest(3 * MS, 1, BESIDE_NS) == 0
    assert pace.rest(4 * MS, 2, BESIDE_NS) > 0


def test_reads_of_shovels_are_no_others():
    """A read from a connection of any shovel counts as such, once, also when that has ended."""
    own, first, second = OwnReads(), Reading(2), Reading(0)
    own.add(first)
    own.add(second)
    second.reads = 5
    found = [own.total()]
    for _ in range(2):
        own.remove(first)
        found.append(own.total())
    second.reads = 6

    assert [7, 7, 7, 8] == [*found, own.total()]


@given(st.lists(st.integers(0, 10**10), max_size=20))
def test_a_rest_is_never_long(works):
    """Others may use all of the loop, and the shovel still goes on."""
    pace, used = Pace(), 0
    for number, work in enumerate(works, 1):
        used += work

        assert pace.rest(used, number, number) <= FACTOR * MOST_NS
