"""Confirms of others go on while a client does something large."""

from pathlib import Path

from loop.canary import RATE, times
from loop.harness import Site, run
from loop.test_ending import small_messages


def test_confirms_go_on_beside_a_case(tmp_path: Path):
    """Persistent messages to another durable queue are confirmed during a case, not only after it, and all of them."""
    found = run(tmp_path / "run", small_messages, has_canary=True)

    measured = found.beside
    assert measured is not None
    assert 0 == measured.nacked
    assert measured.published >= RATE * measured.seconds / 2
    assert 0 < measured.meanwhile <= measured.published
    assert 0 < measured.since_sent.p50 <= measured.since_sent.p99 <= measured.since_sent.max
    assert measured.since_sent.p99 <= measured.since_due.p99


def test_confirms_during_the_preparation_do_not_count(tmp_path: Path):
    """A case that says when it is prepared has the confirms of what was published from then on."""

    def case(site: Site) -> None:
        small_messages(site)
        site.prepared()

    found = run(tmp_path / "run", case, has_canary=True)

    assert found.beside is not None
    assert found.beside.seconds < found.seconds / 2
    assert found.beside.published <= RATE * (found.beside.seconds + 1)


def test_percentiles_are_values_that_were_measured():
    """The p99 of a hundred durations is the second longest, that of none is 0."""
    assert (500, 990, 1000) == times([number / 100 for number in range(100, 0, -1)])
    assert (7, 7, 7) == times([0.007])
    assert (0, 0, 0) == times([])
