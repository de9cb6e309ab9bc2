"""A promise against the list of what was said about its copies."""

from itertools import product

import pytest
from hypothesis import given, strategies as st

from leveret.confirm.promise import Promise

KEPT, BROKEN = True, False


class Channel:
    """Notes a publisher's verdicts."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, bool]] = []

    def accepted(self, seq_no: int) -> None:
        self.outcomes.append((seq_no, KEPT))

    def refused(self, seq_no: int) -> None:
        self.outcomes.append((seq_no, BROKEN))


def due(seq_no: int, copies: int, results: list[bool]) -> list[tuple[int, bool]]:
    """Return the verdicts that the publisher must have by now."""
    if BROKEN in results:
        return [(seq_no, BROKEN)]
    return [(seq_no, KEPT)] if len(results) == copies else []


@pytest.mark.parametrize("copies", range(1, 6))
def test_every_order_of_results(copies: int) -> None:
    """A promise has one verdict: at the first refused copy, else at the last accepted one, and none after it."""
    for results in product((KEPT, BROKEN), repeat=copies):
        channel = Channel()
        promise = Promise(channel, 7, copies)
        for count, result in enumerate(results, 1):
            (promise.accepted if result is KEPT else promise.refused)()

            assert due(7, copies, list(results[:count])) == channel.outcomes


@given(
    copies=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    data=st.data(),
)
def test_promises_of_one_channel_do_not_know_each_other(copies: list[int], data: st.DataObject) -> None:
    """Results of many promises in any order decide each number once, by its own results."""
    channel = Channel()
    promises = [Promise(channel, number, count) for number, count in enumerate(copies, 1)]
    results: list[list[bool]] = [[] for _ in copies]
    copy_of = [number for number, count in enumerate(copies) for _ in range(count)]
    for number in data.draw(st.permutations(copy_of)):
        result = data.draw(st.sampled_from([KEPT, KEPT, BROKEN]))
        before = list(channel.outcomes)
        # the number is for callers with many publishers, a promise knows its own
        seq_no = data.draw(st.sampled_from([0, 99]))
        (promises[number].accepted if result is KEPT else promises[number].refused)(seq_no)
        decided = bool(due(0, copies[number], results[number]))
        results[number].append(result)
        now = due(number + 1, copies[number], results[number])

        assert before + (now if not decided else []) == channel.outcomes
    assert list(range(1, len(copies) + 1)) == sorted(number for number, _ in channel.outcomes)


def test_a_copy_that_becomes_two_is_waited_for() -> None:
    """A result that joins a promise, such as that of a dead letter, is one more to wait for."""
    channel = Channel()
    promise = Promise(channel, 3, 1)
    promise.open += 1
    promise.accepted()

    assert [] == channel.outcomes
    promise.accepted()
    assert [(3, KEPT)] == channel.outcomes


def test_a_broken_promise_keeps_nobody_alive() -> None:
    """A nacked publisher is released, however long the other copies stay."""
    promise = Promise(Channel(), 3, 2)
    promise.refused()

    assert promise.publisher is None
