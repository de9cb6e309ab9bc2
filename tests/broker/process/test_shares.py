"""Places that many share."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.process.shares import Shares, origin


@pytest.mark.parametrize(
    ("host", "stands_for"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_an_ipv6_network_is_one_origin(host, stands_for):
    """An IPv4 address is one origin, mapped or not, and so is an IPv6 /64 network."""
    assert stands_for == origin(host)


@given(
    most=st.integers(1, 6),
    share=st.integers(1, 6),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from("abc"))),
)
def test_places_are_limited_in_all_and_for_each_owner(most, share, steps):
    """A place is granted exactly while some are left and the owner has fewer than its share; otherwise somebody yields.

    That is who has most, after which the place is granted.
    """
    places = Shares(most, share)
    taken: list[str] = []
    for takes, who in steps:
        if takes:
            may = len(taken) < most and taken.count(who) < share
            yielding = places.yielding(who)
            assert may is (yielding is None)
            if yielding is not None:
                after = {each: taken.count(each) + (each == who) for each in "abc"}
                assert yielding == who if after[who] > share else after[yielding] == max(after.values())
            assert may == places.acquire(who)
            taken += [who] * may
        elif who in taken:
            taken.remove(who)
            places.release(who)

        assert (len(taken), len(taken) >= most) == (len(places), places.is_full)


def test_one_owner_has_a_quarter_and_an_address_three():
    """Users share by quarters; an address may be that of many clients, and leaves a quarter to others."""
    assert [(16, 4), (2, 1)] == [(each.most, each.share) for each in (Shares(16), Shares(2))]
    assert [12, 1] == [Shares.of_addresses(most).share for most in (16, 1)]
