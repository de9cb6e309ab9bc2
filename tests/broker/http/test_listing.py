"""Lists: sorted, in pages, in columns, in steps; and those that are kept for a moment."""

import gc
import json
import time

import pytest

from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.http import listing
from leveret.broker.http.call import Listing
from leveret.broker.http.errors import ApiError
from leveret.broker.http.listing import LEAST_ROWS, PIECE, ListCache, encode_listing

PATTERNS = Patterns()
MANY = 100_000
STEP_SECONDS = 0.002
ROWS = [{"vhost": "/", "name": f"q{at}", "deep": {"n": at % 3}} for at in range(7)]


def listed(query=None, rows=ROWS, **settings):
    pieces = encode_listing(Listing(rows, **settings), query or {}, PATTERNS)
    return json.loads(b"".join(piece for piece in pieces if piece))


def names(query=None, **settings):
    found = listed(query, **settings)
    return [item["name"] for item in (found["items"] if isinstance(found, dict) else found)]


def test_a_page_has_its_place_in_the_list():
    """The keys are in RabbitMQ's order."""
    found = listed({"page": "2", "page_size": "3"})

    assert ["q3", "q4", "q5"] == [item["name"] for item in found.pop("items")]
    assert [
        ("total_count", 7),
        ("item_count", 3),
        ("filtered_count", 7),
        ("page", 2),
        ("page_size", 3),
        ("page_count", 3),
    ] == list(found.items())


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"page": "1", "name": "Q1"}, ["q1"]),
        ({"page": "1", "name": "^q[23]$"}, []),
        ({"page": "1", "name": "^Q[23]$", "use_regex": "true"}, ["q2", "q3"]),
        ({"name": "q1"}, [row["name"] for row in ROWS]),
        ({"page": "1", "pagination": "false", "name": "q1"}, ["q1"]),
        ({"page": "1", "name": "none"}, []),
    ],
)
def test_names_are_filtered_on_pages_only(query, found):
    """By a part of the name or a pattern, in any case; other parameters do not matter."""
    assert found == names(query)


@pytest.mark.parametrize(
    ("query", "error", "reason"),
    [
        ({"page": "x"}, "bad_request", "Pagination parameters are invalid"),
        ({"page": "1", "page_size": "1.5"}, "bad_request", "Pagination parameters are invalid"),
        ({"page": "0"}, "invalid_pagination_parameters", "Invalid pagination parameters"),
        ({"page": "-1"}, "invalid_pagination_parameters", "Invalid pagination parameters"),
        ({"page": "1", "page_size": "501"}, "invalid_pagination_parameters", "Invalid pagination parameters"),
        ({"page": "2"}, "page_out_of_range", "Page out of range, page: 2 page size: 100, len: 7"),
        ({"page": "1", "name": "(", "use_regex": "true"}, "bad_request", "Pagination parameters are invalid"),
        ({"page": "1", "name": "x" * 1025, "use_regex": "true"}, "bad_request", "more than 1024 characters"),
        (
            {"page": "1", "name": "x", "use_regex": "maybe"},
            "bad_request",
            "not_boolean",
        ),
    ],
)
def test_invalid_pages_are_refused(query, error, reason):
    """With RabbitMQ's errors."""
    with pytest.raises(ApiError) as caught:
        listed(query)

    assert (400, error) == (caught.value.status, caught.value.body["error"])
    assert reason in caught.value.body["reason"]


def test_the_first_page_of_nothing_is_empty():
    """It is there, although there are no pages."""
    found = listed({"page": "1"}, rows=[])

    assert (0, 0, []) == (found["total_count"], found["page_count"], found["items"])


def test_values_of_all_types_are_sorted():
    """Numbers and what is missing first, then words, objects, lists, texts; equal ones keep their order."""
    values = ["b", 2, None, True, [1], {"a": 1}, "a", 1.5, False, -1]
    rows = [{"name": str(at), **({} if value is None else {"x": value})} for at, value in enumerate(values)]

    found = [values[int(name)] for name in names({"sort": "x"}, rows=rows)]
    assert [-1, None, 1.5, 2, False, True, {"a": 1}, [1], "a", "b"] == found
    assert list(reversed(found)) == [
        values[int(name)] for name in names({"sort": "x", "sort_reverse": "true"}, rows=rows)
    ]


def test_equal_values_are_in_the_order_of_the_list():
    """By name, upwards and downwards, as by RabbitMQ, whichever object was created first."""
    rows = [{"name": name, "n": name == "f"} for name in "cafbed"]

    assert [*"abcdef"] == names({"sort": "n"}, rows=rows, sort=("name",))
    assert [*"fedcba"] == names({"sort": "n", "sort_reverse": "true"}, rows=rows, sort=("name",))


def test_lists_are_sorted_by_paths():
    """An empty `sort` is the order of the list; a path that is not there is no error."""
    assert ["q0", "q3", "q6", "q1", "q4", "q2", "q5"] == names({"sort": "deep.n"})
    assert [row["name"] for row in ROWS] == names({"sort": ""}) == names({"sort": "deep.n.x.y"})
    assert ["b", "a"] == names(rows=[{"name": "b"}, {"name": "a"}], sort=())


def test_columns_go_down_into_objects_and_lists():
    """Keys that are not there are left out."""
    rows = [{"name": "a", "n": {"x": 1, "y": 2}, "list": [{"k": 1, "l": 2}, {"l": 3}]}]

    assert [{"n": {"y": 2}, "list": [{"k": 1}, {}]}] == listed(
        {"columns": "n.y,list.k,none,name.x.z"}, rows=rows
    ) or [{"n": {"y": 2}, "list": [{"k": 1}, {}], "name": "a"}] == listed(
        {"columns": "n.y,list.k,none,name.x.z"}, rows=rows
    )
    assert [{"name": "a"}] == listed({"columns": "name"}, rows=rows)


def test_only_what_is_asked_for_is_computed():
    """Sort keys for all rows, and items for the page and its columns only."""
    computed = {"name": 0, "costly": 0, "never": 0}

    def field(name):
        def compute(row):
            computed[name] += 1
            return row

        return compute

    fields = {name: field(name) for name in computed}
    query = {"page": "1", "page_size": "2", "sort": "costly", "columns": "name"}
    found = listed(query, rows=range(10), fields=fields)

    assert [{"name": 0}, {"name": 1}] == found["items"]
    assert {"costly": 10, "never": 0} == {key: computed[key] for key in ("costly", "never")}
    assert computed["name"] <= 22  # a sort key of those with equal costs, too


def test_names_that_are_not_text_are_told():
    """The answer is JSON that every reader takes, with RabbitMQ's sentence for a name that is not UTF-8."""
    assert "Not UTF-8, base64 is: /w==" == listed(rows=[{"name": "\udcff"}])[0]["name"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"sort": "name"},
        {"page": "1000"},
        {"page": "3", "name": "9$", "use_regex": "true", "sort": "name"},
    ],
)
def test_a_hundred_thousand_rows_are_listed_in_short_steps(query):
    """No step takes more than two milliseconds of processor time, and pieces are of 64 KiB."""
    fields = {"name": lambda at: f"q{at * 7919 % MANY:06}", "value": lambda at: at}
    pieces = encode_listing(Listing(range(MANY), fields, sort=("value",)), query, PATTERNS)
    longest = []
    largest = 0
    gc.disable()
    try:
        while True:
            before = time.thread_time()
            piece = next(pieces, b"")
            longest.append(time.thread_time() - before)
            if piece == b"":
                break
            largest = max(largest, len(piece or b""))
    finally:
        gc.enable()

    longest.sort()
    interrupted = len(longest) // 1000 + 1  # by the system
    assert longest[-interrupted - 1] <= STEP_SECONDS, longest[-interrupted - 5 :]
    assert largest <= PIECE + 1000


CACHED = LEAST_ROWS + 1


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lists(clock) -> ListCache:
    return ListCache(clock)


def made(lists: ListCache, clock: Clock, key: str, *pieces: bytes | None, seconds=0.5, rows=CACHED) -> bytes:
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
