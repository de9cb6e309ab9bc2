"""Throttling of failed logins."""

from leveret.broker.auth import login_throttle
from leveret.broker.auth.login_throttle import FORGET_SECONDS, LoginThrottle, RefusalLog, shown


def test_each_failure_doubles_the_delay():
    """The delay doubles with each failure of an address with a name, up to eight times the first."""
    found = LoginThrottle()

    assert [1, 2, 4, 8, 8] == [found.failed("a", "name", 100.0 + number) for number in range(5)]
    assert [1, 1] == [found.failed("b", "name", 105.0), found.failed("a", "other", 105.0)]


def test_failures_are_forgotten():
    """A success, or some minutes without a failure, resets the failures; above the limit the oldest are forgotten."""
    found = LoginThrottle()
    for number in range(3):
        found.failed("a", "name", 100.0 + number)
    found.succeeded("a", "name")
    assert [1, 2] == [found.failed("a", "name", 103.0) for _ in range(2)]
    assert 1 == found.failed("a", "name", 104.0 + FORGET_SECONDS)
    for number in range(login_throttle.REMEMBERED):
        found.failed("b", f"name{number}", 105.0 + FORGET_SECONDS)

    assert 2 == found.failed("b", "name1", 106.0 + FORGET_SECONDS)
    assert 1 == found.failed("a", "name", 106.0 + FORGET_SECONDS)


def test_the_log_has_a_line_a_second_and_address():
    """One refusal per second and address is logged, and the next line has the number of the suppressed ones."""
    found = RefusalLog()

    assert [True, False, False] == [found.admit("a", 100.0 + number / 10) for number in range(3)]
    assert found.admit("b", 100.2)
    assert [] == list(found.take_suppressed(100.9))
    assert [("a", 2)] == list(found.take_suppressed(101.0))
    assert [] == list(found.take_suppressed(103.0))
    assert not found.admit("a", 101.5)
    assert found.admit("a", 102.5)


def test_long_names_are_cut():
    """A name of any length is logged in a short line, which has its length."""
    assert "name" == shown("name")
    assert f"{'x' * 128}... (8000 characters)" == shown("x" * 8000)
