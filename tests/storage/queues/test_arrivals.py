"""Marks of when the messages of a queue came."""

from math import inf

from hypothesis import given, strategies as st

from leveret.storage.queues.arrivals import MARKS, Arrivals


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=600),
)
def test_an_age_is_never_overestimated(steps):
    """A message came before the time that is told, and not long before, relative to how long the queue has existed."""
    arrivals = Arrivals()
    published = first = 0
    came: dict[int, float] = {}
    now = 0.0
    for count, taken in steps:
        now += 1
        for seq_id in range(published, published + count):
            came[seq_id] = now
        published += count
        first = min(published, first + taken)
        arrivals.mark(now, published, first)
    assert len(arrivals._times) <= MARKS
    for seq_id in range(first, published):
        before = arrivals.before(seq_id)
        assert came[seq_id] <= before <= came[seq_id] + 1 + now / (MARKS / 8)
    assert arrivals.before(published) == inf


def test_marks_of_messages_that_have_left_are_dropped():
    """A queue with much traffic and a short backlog keeps few marks."""
    arrivals = Arrivals()
    for second in range(100_000):
        arrivals.mark(second, second * 10, max(0, second * 10 - 100))

    assert len(arrivals._times) < 20
    assert 99_995 <= arrivals.before(999_960) <= 99_997


def test_a_message_from_before_the_first_mark_is_at_least_that_old():
    """A message that was there at the start came before the first mark."""
    arrivals = Arrivals()
    arrivals.mark(5.0, 1000, 10)

    assert 5.0 == arrivals.before(10)
