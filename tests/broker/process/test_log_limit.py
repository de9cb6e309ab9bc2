"""Limits on lines of the log that clients can cause."""

from leveret.broker.process import shares
from leveret.broker.process.shares import LogLimit


def test_the_log_has_some_lines_a_second_and_key():
    """As many lines of a key as may be are logged within a second, and the next one has the number of the others."""
    for most in (1, 3):
        found = LogLimit(most)

        assert [True] * most + [False] * 2 == [found.admit("a", 100.0 + n / 10) for n in range(most + 2)]
        assert found.admit("b", 100.2)
        assert [] == list(found.take_suppressed(100.9))
        assert [("a", 2)] == list(found.take_suppressed(101.0))
        assert [] == list(found.take_suppressed(103.0))
        assert [True] * (most - 1) + [False] == [found.admit("a", 101.5) for _ in range(most)]
        assert found.admit("a", 102.5)


def test_few_keys_are_remembered(monkeypatch):
    """Beyond a number of keys the oldest are forgotten."""
    monkeypatch.setattr(shares, "REMEMBERED", 2)
    found = LogLimit()
    assert all(found.admit(key, 100.0) for key in "abc")

    assert [False, True] == [found.admit(key, 100.5) for key in "ca"]
