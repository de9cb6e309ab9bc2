"""The time before which nobody gets a message, as its headers tell it."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.queue.due_time import (
    InvalidDueTimeError,
    due_times,
    sources_of,
    with_passed_delay,
    with_time,
)
from leveret.exchanges.delayed import delay_of, due_headers
from leveret.storage.message import Message

HEADER_LIKE = "\x07x-delayI\0\0\0\5"
NOW = 1_800_000_000_000
BOTH = sources_of("eta", own=True)


def due_of(headers, sources=BOTH):
    """Return the time of a message that has these headers among other properties."""
    header = build(7, headers=headers, content_type="a", correlation_id=HEADER_LIKE, delivery_mode=2)
    message = Message(b"", content_frames(1, 4096, header, HEADER_LIKE.encode()), 1)
    return next(due_times([message], NOW, sources))


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ({}, 0),
        ({"x-deliver-at": ("timestamp", 1_800_000_001)}, 1_800_000_001_000),
        ({"x-deliver-at": ("long", NOW + 5)}, NOW + 5),
        ({"x-deliver-at": ("long", NOW)}, 0),
        ({"x-deliver-at": ("signedint", -5)}, 0),
        ({"x-deliver-at": ("void", None), "x-delay": ("signedint", 7)}, NOW + 7),
        ({"x-deliver-at": ("long", 2**63 - 1)}, 2**63 - 1),
        ({"x-delay": ("long", 2**32 + 1)}, NOW + 2**32 + 1),
        ({"x-delay": ("longstr", "250")}, NOW + 250),
        ({"x-delay": ("double", 1.9)}, NOW + 1),
        ({"x-delay": ("signedint", 0)}, 0),
        ({"x-delay": ("signedint", -250)}, 0),
        ({"x-deliver-at": ("long", NOW + 5), "x-delay": ("long", 1)}, NOW + 5),
        ({"eta": ("void", None)}, 0),
        ({"eta": ("longstr", "2030-01-01T00:00:00.123456+00:00")}, 1_893_456_000_124),
        ({"eta": ("longstr", "2030-01-01T01:00:00+01:00")}, 1_893_456_000_000),
        ({"eta": ("longstr", "2030-01-01T00:00:00Z")}, 1_893_456_000_000),
        ({"eta": ("longstr", "2030-01-01T00:00:00")}, 1_893_456_000_000),
        ({"eta": ("longstr", "1893456000.5")}, 1_893_456_000_500),
        ({"eta": ("longstr", "1893456000.1230001")}, 1_893_456_000_123),
        ({"eta": ("double", 1893456000.1231)}, 1_893_456_000_124),
        ({"eta": ("long", 1_893_456_000)}, 1_893_456_000_000),
        ({"eta": ("long", 1_893_456_000_001)}, 1_893_456_000_001),
        ({"eta": ("timestamp", 1_893_456_000)}, 1_893_456_000_000),
        ({"eta": ("longstr", "1999-01-01T00:00:00Z")}, 0),
        ({"x-delay": ("long", 9), "eta": ("longstr", "soon")}, NOW + 9),
        ({"a": ("longstr", HEADER_LIKE)}, 0),
        ({"a": ("table", {"x-delay": ("signedint", 5)})}, 0),
        ({"a": ("longstr", HEADER_LIKE * 2), "b": ("void", None), "x-delay": ("signedint", 7)}, NOW + 7),
        ({"a": ("table", {"x-delay": ("signedint", 5)}), "x-delay": ("signedint", 7)}, NOW + 7),
    ],
)
def test_a_time_to_come_is_read_from_the_first_header_that_tells_one(headers, due):
    """A message is due at the time that x-deliver-at, x-delay or the named header tells; a time that passed is now."""
    assert due == due_of(headers)


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (
            {"x-deliver-at": ("longstr", "1800000001000")},
            "'x-deliver-at': '1800000001000' is not a timestamp",
        ),
        ({"x-deliver-at": ("timestamp", 2**62)}, f"'x-deliver-at': '{2**62}' is not a time of 63 bits"),
        ({"x-delay": ("longstr", "soon")}, "'x-delay': 'soon' is not a number of milliseconds"),
        ({"x-delay": ("bool", True)}, "'x-delay': 'True'"),
        ({"x-delay": ("longstr", "9" * 5000)}, "'x-delay': '999"),
        ({"eta": ("longstr", "tomorrow")}, "'eta': 'tomorrow' is not a time (ISO 8601, or seconds"),
        ({"eta": ("longstr", "")}, "'eta': ''"),
        ({"eta": ("table", {})}, "'eta': '{}'"),
    ],
)
def test_a_malformed_time_is_an_error_that_names_header_and_value(headers, text):
    """A header that tells no time raises an error with its name and value."""
    with pytest.raises(InvalidDueTimeError) as caught:
        due_of(headers)
    assert text in str(caught.value)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "x-delay", "x-deliver-at"]),
            st.sampled_from(
                [("signedint", 5), ("signedint", 6), ("long", 5), ("long", NOW + 1), ("void", None)]
            ),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_messages_of_one_run_have_the_times_that_each_has_alone(tables):
    """The time of a message is its own, whatever is known from the message before."""
    messages = [Message(b"", content_frames(1, 4096, build(0, headers=each), b""), 1) for each in tables]
    assert [next(due_times([each], NOW, BOTH)) for each in messages] == list(due_times(messages, NOW, BOTH))


def test_a_header_behind_the_delay_comes_first_in_any_message_of_a_run():
    """Two messages that are alike up to their delays differ in the header that follows, which comes first."""
    tables = [
        {"x-delay": ("signedint", 5), name: ("long", NOW + 9)} for name in ("y-deliver-at", "x-deliver-at")
    ]
    messages = [Message(b"", content_frames(1, 4096, build(0, headers=each), b""), 1) for each in tables]
    assert [NOW + 5, NOW + 9] == list(due_times(messages, NOW, BOTH))


def test_a_name_that_is_too_long_for_a_header_names_none():
    """A queue may name a header of more than 255 octets, which no message has."""
    assert 0 == due_of({"a" * 255: ("long", NOW + 1)}, sources_of("a" * 256, own=False))
    assert NOW + 1 == due_of({"a" * 255: ("long", NOW + 1)}, sources_of("a" * 255, own=False))


def test_headers_that_the_queue_does_not_obey_mean_nothing():
    """Without x-allow-hold only the named header is read."""
    headers = {"x-delay": ("longstr", "soon"), "x-deliver-at": ("long", NOW + 1)}
    assert 0 == due_of(headers, sources_of("eta", own=False))


@pytest.mark.parametrize(
    "headers",
    [
        {"x-deliver-at": ("timestamp", 1_900_000_000)},
        {"x-deliver-at": ("long", 1_900_000_000_000), "eta": ("longstr", "2040-01-01")},
        {"eta": ("longstr", "2040-01-01T00:00:00.123456+00:00")},
        {"eta": ("longstr", "1900000000")},
        {"eta": ("longstr", "1900000000000")},
        {"eta": ("signedint", 1_900_000_000)},
        {"eta": ("long", 1_900_000_000_000)},
        {"eta": ("timestamp", 1_900_000_000)},
        {"eta": ("double", 1_900_000_000.5)},
    ],
)
def test_another_time_is_told_in_the_form_of_the_old_one(headers):
    """The header that tells the time gets the new one, in its form, and others stay."""
    changed = with_time(headers, NOW + 5000, BOTH)
    assert NOW + 5000 == due_of(changed)
    assert 1 == sum(changed[name] != headers[name] for name in headers)


def test_a_time_beyond_the_calendar_is_told_in_milliseconds():
    """ISO 8601 ends with the year 9999."""
    changed = with_time({"eta": ("longstr", "2040-01-01")}, 2**62, sources_of("eta", own=False))
    assert 2**62 == due_of(changed, sources_of("eta", own=False))


def test_a_header_that_tells_no_time_stays():
    """Neither a delay nor a header without a value, or with one that is no time, is changed."""
    for headers in ({"x-delay": ("long", 5)}, {"eta": ("void", None)}, {"eta": ("array", [])}, {}):
        assert headers is with_time(headers, NOW, BOTH)


def passed(header: bytes) -> Properties:
    """Return the properties of a message whose delay has passed; its body stays."""
    message = with_passed_delay(Message(b"", content_frames(1, 4096, header, b"\x07x-delayI"), 1))
    assert b"\x07x-delayI" == message.body
    return Properties(message.header)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (("signedint", 5), ("signedint", -5)),
        (("longstr", "5"), ("signedint", -5)),
        (("long", 2**31), ("long", -(2**31))),
        (("long", -5), ("long", -5)),
        (("longstr", "soon"), ("longstr", "soon")),
    ],
)
def test_a_delay_that_is_over_is_negated(field, told):
    """A message whose delay is over has it negated, so that it is not held again elsewhere."""
    header = build(0, headers={"a": ("bool", True), "x-delay": field})
    assert {"a": ("bool", True), "x-delay": told} == passed(header).headers


FIELDS = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(lambda number: ("signedint", number)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: ("long", number)),
    st.sampled_from([("longstr", "5"), ("longstr", "\x07x-delayI\0\0\0\5"), ("void", None)]),
)


@given(
    st.dictionaries(st.sampled_from(["a", "x-delay", "x-delayI", "\x07x-delayI"]), FIELDS),
    st.sampled_from([None, "\x07x-delayI\0\0\0\5"]),
)
def test_nothing_but_the_delay_is_negated(headers, other):
    """Another header, a property or a body that looks like a delay stays."""
    header = build(3, headers=headers, correlation_id=other, delivery_mode=2)
    told = passed(header)
    assert (due_headers(headers) if delay_of(headers) else headers) == (told.headers or {})
    assert other == told.correlation_id
