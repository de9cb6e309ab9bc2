"""The time before which nobody gets a message, as its headers tell it."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.queue.due_time import (
    InvalidDueTimeError,
    due_time,
    sources_of,
    with_passed_delay,
    with_time,
)
from leveret.exchanges.delayed import delay_of, due_headers
from leveret.storage.message import Message

NOW = 1_800_000_000_000
BOTH = sources_of("eta", own=True)


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
    ],
)
def test_a_time_to_come_is_read_from_the_first_header_that_tells_one(headers, due):
    """A message is due at the time that x-deliver-at, x-delay or the named header tells; a time that passed is now."""
    assert due == due_time(headers, NOW, BOTH)


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
        ({"x-delay": ("double", float("inf"))}, "'x-delay': 'inf'"),
        ({"x-delay": ("longstr", "9" * 5000)}, "'x-delay': '999"),
        ({"eta": ("longstr", "tomorrow")}, "'eta': 'tomorrow' is not a time (ISO 8601, or seconds"),
        ({"eta": ("longstr", "")}, "'eta': ''"),
        ({"eta": ("double", float("nan"))}, "'eta': 'nan'"),
        ({"eta": ("table", {})}, "'eta': '{}'"),
    ],
)
def test_a_malformed_time_is_an_error_that_names_header_and_value(headers, text):
    """A header that tells no time raises an error with its name and value."""
    with pytest.raises(InvalidDueTimeError) as caught:
        due_time(headers, NOW, BOTH)
    assert text in str(caught.value)


def test_headers_that_the_queue_does_not_obey_mean_nothing():
    """Without x-allow-hold only the named header is read."""
    headers = {"x-delay": ("longstr", "soon"), "x-deliver-at": ("long", NOW + 1)}
    assert 0 == due_time(headers, NOW, sources_of("eta", own=False))


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
    assert NOW + 5000 == due_time(changed, NOW, BOTH)
    assert 1 == sum(changed[name] != headers[name] for name in headers)


def test_a_time_beyond_the_calendar_is_told_in_milliseconds():
    """ISO 8601 ends with the year 9999."""
    changed = with_time({"eta": ("longstr", "2040-01-01")}, 2**62, sources_of("eta", own=False))
    assert 2**62 == due_time(changed, NOW, sources_of("eta", own=False))


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
