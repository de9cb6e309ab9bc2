"""Throttling of failed logins."""

import pytest

from leveret.broker.auth import login_throttle
from leveret.broker.auth.login_throttle import (
    FORGET_SECONDS,
    LoginSources,
    LoginThrottle,
    TooManyFailuresError,
    shown,
)


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


def test_long_names_are_cut():
    """A name of any length is logged in a short line, which has its length."""
    assert "name" == shown("name")
    assert f"{'x' * 128}... (8000 characters)" == shown("x" * 8000)


# -- failures of an address -------------------------------------------------------------------------------------------

ADDRESS = "192.0.2.1"


def failing(count: int, address: str = ADDRESS, now: float = 0.0) -> LoginThrottle:
    """Return a throttle after so many failed logins of an address."""
    throttle = LoginThrottle(10, 60.0)
    for number in range(count):
        throttle.failed(address, f"user{number}", now)
    return throttle


def test_an_address_is_blocked_after_too_many_failures():
    """For the rest of the period after the last failure that counts, whatever names were tried."""
    assert 0.0 == failing(9).blocked_for(ADDRESS, "ann", 0.0)
    throttle = failing(10)
    assert 60.0 == throttle.blocked_for(ADDRESS, "ann", 0.0)
    assert 1.0 == throttle.blocked_for(ADDRESS, "ann", 59.0)
    assert 0.0 == throttle.blocked_for(ADDRESS, "ann", 60.0)
    assert 0.0 == throttle.blocked_for("192.0.2.2", "ann", 0.0)
    with pytest.raises(
        TooManyFailuresError, match="user 'ann' - too many logins from this address have failed"
    ):
        throttle.check(ADDRESS, "ann", lambda: 0.0)


def test_attempts_while_it_is_blocked_do_not_prolong_that():
    """A client that goes on with an old password would otherwise keep its whole host out for ever."""
    throttle = failing(10)
    for second in range(59):
        throttle.failed(ADDRESS, "old", float(second))

    assert 0.0 == throttle.blocked_for(ADDRESS, "ann", 60.0)


def test_failures_that_are_far_apart_do_not_count_together():
    """Ten in a period do, not ten in a day."""
    throttle = LoginThrottle(10, 60.0)
    for number in range(100):
        throttle.failed(ADDRESS, "ann", number * 10.0)
        assert 0.0 == throttle.blocked_for(ADDRESS, "ann", number * 10.0)


def test_who_has_logged_in_is_let_through_until_a_password_is_wrong():
    """One client with an old password does not keep the others on its host out, and nobody can guess that way."""
    throttle = LoginThrottle(10, 60.0)
    throttle.succeeded(ADDRESS, "ann")
    for _ in range(10):
        throttle.failed(ADDRESS, "bob", 0.0)
    assert 0.0 == throttle.blocked_for(ADDRESS, "ann", 1.0)
    throttle.failed(ADDRESS, "ann", 1.0)

    assert 0.0 < throttle.blocked_for(ADDRESS, "ann", 1.0)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_this_host_is_never_blocked(address):
    """Its address may be that of a proxy, and so of all clients."""
    assert 0.0 == failing(100, address).blocked_for(address, "ann", 0.0)


def test_a_network_of_ipv6_is_one_address():
    """A host there has as many addresses as it wants."""
    throttle = LoginThrottle(10, 60.0)
    for number in range(10):
        throttle.failed(f"2001:db8::{number:x}", "ann", 0.0)

    assert 0.0 < throttle.blocked_for("2001:db8::ffff", "ann", 0.0)
    assert 0.0 == throttle.blocked_for("2001:db8:0:1::1", "ann", 0.0)


def test_few_sources_are_counted():
    """The latest ones, with short names."""
    sources = LoginSources()
    for number in range(login_throttle.SOURCES + 1):
        sources.count(ADDRESS, str(number), "http", ok=False)
    sources.count(ADDRESS, "5" + "x" * 10_000, "http", ok=True)
    rows = dict(sources.rows())

    assert login_throttle.SOURCES == len(rows)
    assert (ADDRESS, "0", "http") not in rows
    assert max(len(name) for _, name, _ in rows) < 200
