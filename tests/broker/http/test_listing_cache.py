"""Long lists that are given again."""

import pytest

from leveret.broker.http import listing
from leveret.broker.http.listing import LEAST_ROWS, ListCache

MANY = LEAST_ROWS + 1


class Clock:
    """Seconds of the tests."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        """Return them."""
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    """The clock of the cache."""
    return Clock()


@pytest.fixture
def lists(clock) -> ListCache:
    """A cache."""
    return ListCache(clock)


def made(lists: ListCache, clock: Clock, key: str, *pieces: bytes | None, seconds=0.5, rows=MANY) -> bytes:
    """Collect a list that takes so long; returns what is sent."""

    def steps():
        yield from pieces[:1]
        clock.seconds += seconds
        yield from pieces[1:]
        return rows

    return b"".join(piece for piece in lists.collect(key, steps()) if piece)


def found(lists: ListCache, key: str) -> bytes | None:
    """Return a list of the cache; None if it is not there."""
    pieces = lists.find(key)
    return None if pieces is None else b"".join(pieces)


def test_a_list_is_kept_for_five_times_as_long_as_it_took(lists, clock):
    """From when it was begun, and only for the same question."""
    assert b"ab" == made(lists, clock, "key", b"a", None, b"b")
    clock.seconds += 1.9

    assert (b"ab", b"ab", None) == (found(lists, "key"), found(lists, "key"), found(lists, "other"))
    clock.seconds += 0.2
    assert found(lists, "key") is None
    assert (0, 0) == (len(lists), lists.octets)


def test_no_list_is_older_than_the_samples(lists, clock):
    """However long it took."""
    made(lists, clock, "key", b"a", seconds=3.0)
    clock.seconds += 1.9
    assert b"a" == found(lists, "key")
    clock.seconds += 0.2
    assert found(lists, "key") is None


def test_a_short_list_is_made_anew(lists, clock):
    """A client of a small broker sees what it did a moment ago."""
    made(lists, clock, "key", b"a", rows=LEAST_ROWS)

    assert found(lists, "key") is None
    assert 0 == lists.octets


def test_a_list_that_is_not_sent_to_its_end_is_not_kept(lists, clock):
    """Its client has left."""
    pieces = lists.collect("key", (piece for piece in (b"a", b"b")))
    next(pieces)
    assert 1 == lists.octets
    pieces.close()

    assert found(lists, "key") is None
    assert 0 == lists.octets


def test_a_change_drops_all(lists, clock):
    """Whoever reads one goes on, and its octets count until then."""
    made(lists, clock, "key", b"a", b"b")
    reading = lists.find("key")
    assert b"a" == next(reading)
    lists.clear()

    assert found(lists, "key") is None
    assert 2 == lists.octets
    assert [b"b"] == [*reading]
    assert 0 == lists.octets


def test_octets_are_bounded(lists, clock, monkeypatch):
    """The oldest lists go first, and a list that is too long is sent and not kept."""
    monkeypatch.setattr(listing, "MOST_OCTETS", 5)
    made(lists, clock, "first", b"aa")
    made(lists, clock, "second", b"bb")
    assert b"cc" == made(lists, clock, "third", b"cc")
    assert [None, b"bb", b"cc"] == [found(lists, key) for key in ("first", "second", "third")]
    assert b"dddddddd" == made(lists, clock, "long", b"dddd", b"dddd")

    assert found(lists, "long") is None
    assert lists.octets <= 5


def test_the_number_of_lists_is_bounded(lists, clock, monkeypatch):
    """The oldest goes."""
    monkeypatch.setattr(listing, "MOST_LISTS", 2)
    for key in ("first", "second", "third"):
        made(lists, clock, key, b"a")

    assert [None, b"a", b"a"] == [found(lists, key) for key in ("first", "second", "third")]


def test_a_list_made_twice_at_once_counts_once(lists, clock):
    """The later one is kept."""
    made(lists, clock, "key", b"a")
    made(lists, clock, "key", b"bb")

    assert b"bb" == found(lists, "key")
    assert 2 == lists.octets
