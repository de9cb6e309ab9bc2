"""The measurements that the field makes once a broker."""

import pytest

from bench import brokers, field_cases
from bench.client import Confirms
from bench.endpoint import endpoint


@pytest.mark.parametrize(("name", "few"), [("requeue", 0.2), ("expiry", 0.1), ("backlog", 0.0)])
def test_cases_are_measured(name, few, monkeypatch):
    """A case returns rates of messages."""
    monkeypatch.setattr(field_cases, "REQUEUE_SECONDS", few)
    monkeypatch.setattr(field_cases, "TTL_SECONDS", few)
    monkeypatch.setattr(field_cases, "EXPIRING", 2000)
    monkeypatch.setattr(field_cases, "BACKLOG", 2000)

    with brokers.alone() as broker:
        assert field_cases.CASES[name].measure(endpoint(broker.port)).endswith("/s")


def test_confirms_count_in_any_order():
    """Each message counts once, also if later ones are confirmed before those that a multiple confirm has."""
    confirms = Confirms()

    found = [confirms.add(*each) for each in [(1, False), (4, False), (3, True), (6, False), (5, False)]]

    assert [1, 2, 4, 5, 6] == found
    assert 9 == confirms.add(9, True)
