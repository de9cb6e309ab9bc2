"""Short form of `make campaign NAME=answered`, and its model."""

import random

import pytest
from crash.answered_state import Change
from crash.answers import answers
from crash.changes import ADMINISTRATOR, KINDS, Changes
from crash.judged import SEED, passed
from crash.mutants.run import program

pytestmark = pytest.mark.timeout(240)
KILLS = 6
ALLOWANCE = 10.0
"""Seconds for a start: other tests run beside these."""


def test_what_was_answered_is_there_after_a_kill(tmp_path):
    """Users, rights, policies, limits, queues, bindings and messages are as the last answers said."""
    totals = answers(tmp_path, KILLS, SEED, say=str, allowance=ALLOWANCE)
    passed(totals)

    assert KILLS == totals.counted
    assert totals.notes["changes answered"] > KILLS


def test_an_answer_before_the_disk_is_caught(tmp_path):
    """The campaign objects to a broker that answers at once."""
    totals = answers(
        tmp_path, KILLS, SEED, say=str, program=program("answer_before_disk"), allowance=ALLOWANCE, enough=1
    )

    assert totals.counted < KILLS
    assert {"answered"} == {violation.oracle for violation in totals.violations}


def test_every_kind_of_change_can_be_made():
    """Each is possible in a random walk of the model, and refers to what there is."""
    state = {("user", ADMINISTRATOR): ("", "guest", "{}"), ("vhost", "/"): ""}
    rng = random.Random(SEED)
    changes = Changes(rng, state)
    made: dict[str, Change] = {}
    for _ in range(2000):
        kind = rng.choice(KINDS)
        change = changes.made(kind)
        if change is not None:
            made[kind] = change
            change.apply(state)
            assert ("vhost", "/") in state
            assert ("user", ADMINISTRATOR) in state

    assert {*KINDS} == made.keys()
