"""Feeds of topics."""

import json

import pytest

from leveret.broker.http import feeds
from leveret.broker.http.feeds import PIECE, SHARE, Feed, Topic


class Source:
    """Rows that a test changes."""

    def __init__(self, columns=("name", "value")) -> None:
        self.rows: dict[str, object] = {}
        self.topic = Topic("queues", None, self.read, columns)
        self.feed = Feed(self.topic, lambda: 1234)

    def read(self):
        for name, value in self.rows.items():
            yield name, (name, value) if self.topic.columns else value
            yield None

    def sample(self) -> None:
        for _ in self.feed.sample():
            pass


@pytest.fixture
def source() -> Source:
    """A topic without rows yet."""
    return Source()


def told(pieces) -> list[dict]:
    events = [event for event in pieces if event is not None]
    assert all(event.startswith(b"event: queues\ndata: ") and event.endswith(b"\n\n") for event in events)
    return [json.loads(event.partition(b"data: ")[2]) for event in events]


def test_a_new_watcher_is_told_everything(source):
    """With the names of the columns, and the time."""
    source.rows = {"a": 1, "b": 2}
    source.sample()

    whole = {"columns": ["name", "value"], "rows": [["a", 1], ["b", 2]], "gone": [], "at": 1234}
    assert [whole] == told(source.feed.since(0))
    assert [whole] == told(source.feed.since(0))


def test_then_what_has_changed(source):
    """Changed and new rows, and the keys of those that are gone; an empty event says that time has passed."""
    source.rows = {"a": 1, "b": 2}
    source.sample()
    source.rows = {"a": 3, "c": 4}
    source.sample()
    source.sample()

    first, second = (
        {"rows": [["a", 3], ["c", 4]], "gone": ["b"], "at": 1234},
        {"rows": [], "gone": [], "at": 1234},
    )
    assert [first, second] == told(source.feed.since(1))
    assert [second] == told(source.feed.since(2))
    assert [] == told(source.feed.since(3))


def test_many_rows_come_in_pieces(source):
    """Of which only the last has the time."""
    source.rows = {f"q{number:04}": number for number in range(2 * PIECE + 1)}
    source.sample()
    events = told(source.feed.since(0))

    assert [PIECE, PIECE, 1] == [len(event["rows"]) for event in events]
    assert [False, False, True] == ["at" in event for event in events]
    assert [True, False, False] == ["columns" in event for event in events]
    assert sorted(source.rows) == [row[0] for event in events for row in event["rows"]]


def test_who_is_too_slow_is_told_everything(source, monkeypatch):
    """Events are kept up to a number of octets: a slow watcher costs none."""
    monkeypatch.setattr(feeds, "EVENTS_OCTETS", 300)
    for number in range(100):
        source.rows = {"a": number, "b": "x" * 50}
        source.sample()

    assert "columns" in told(source.feed.since(1))[0]
    assert [{"rows": [["a", 99]], "gone": [], "at": 1234}] == told(source.feed.since(99))
    assert 300 >= sum(len(event) for _, some in source.feed._events for event in some)


def test_an_object_is_told_as_it_is():
    """A topic without columns has one row."""
    source = Source(columns=())
    source.rows = {"": {"messages": 5}}
    source.sample()

    assert [{"messages": 5}] == told(source.feed.since(0))


def test_passes_take_a_bounded_share_of_the_time(source):
    """An expensive topic is sampled less often."""
    source.feed.passed(100.0, 0.001)
    assert 101.0 == source.feed.due
    source.feed.passed(100.0, 0.5)
    assert 100.0 + 0.5 * SHARE == source.feed.due
