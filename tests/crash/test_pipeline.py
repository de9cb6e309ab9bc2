"""Places where each input of a transaction may be, and a short form of `make campaign NAME=pipeline`."""

import pytest
import uvloop
from crash.judged import SEED, passed
from crash.ledger import Ledger
from crash.pipeline import Book
from crash.pipelines import CUT, KILL, SLOW, pipelines, possible_kinds

ALLOWANCE = 10.0
"""Seconds for a start: other tests run beside these."""
IN = "in"


@pytest.fixture
def book():
    """Three inputs, 1 and 2 confirmed, and a transaction with the first two."""
    book = Book(Ledger())
    numbers = [book.published(IN) for _ in range(3)]
    book.confirmed(numbers[:2])
    book.began(numbers[:2])
    return book


@pytest.mark.parametrize(
    ("found", "outputs", "committed", "oracles"),
    [
        ([1, 2, 3], [], False, []),
        ([3], [(1, 1), (1, 2)], True, []),
        ([], [(1, 1), (1, 2)], False, []),
        ([1, 3], [], False, ["T1"]),
        ([1, 2], [(1, 1), (1, 2)], False, ["T2"]),
        ([1, 1, 2], [], False, ["T2"]),
        ([], [(1, 1), (1, 1), (1, 2)], True, ["T2", "T4"]),
        ([1, 2, 4], [], False, ["T2"]),
        ([1, 2], [], True, ["T3"]),
        ([2], [(1, 1)], False, ["T4"]),
        ([], [(1, 1), (1, 2), (2, 3)], True, ["T2"]),
    ],
)
def test_an_input_is_in_its_queue_or_answered_with_its_whole_transaction(
    book, found, outputs, committed, oracles
):
    """Lost inputs, those in two places, answers that are gone, and parts of a transaction are objected to."""
    if committed:
        book.committed(1)

    book.judge({IN: found}, outputs)

    assert oracles == sorted({violation.oracle for violation in book.ledger.violations})


def test_what_was_answered_does_not_come_back(book):
    """An input whose output was taken out is in no queue afterwards, and what was found in one is owed."""
    book.judge({IN: [3]}, [(1, 1), (1, 2)])
    book.judge({IN: [1]}, [])

    assert ["T2", "T1"] == [violation.oracle for violation in book.ledger.violations]


@pytest.mark.timeout(240)
def test_transactions_are_whole_after_kills(tmp_path):
    """Killed while transactions are committed, with slow flushes and with power cuts: each input is in one place."""
    kinds = [kind for kind in possible_kinds() if kind in {KILL, SLOW, CUT}]
    totals = uvloop.run(
        pipelines(tmp_path, len(kinds), SEED, kinds=kinds, say=str, huge_every=0, allowance=ALLOWANCE)
    )
    passed(totals)
    assert len(kinds) == totals.counted
    assert totals.counts["committed"] > 10
