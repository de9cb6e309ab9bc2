import datetime as dt
import struct

import pytest
from hypothesis import given, settings, strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from leveret.broker.amqp import properties, tables
from leveret.broker.amqp.errors import InvalidExpiration, MalformedProperties
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import (
    Properties,
    build,
    checked,
    expiration,
    has_delivery_mode,
    headers_in,
    is_persistent,
    message_ids,
    with_long,
)

NAMES = [
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
]  # fmt: skip

name_text = st.text(min_size=1, max_size=30)
VALUES = {
    **dict.fromkeys(NAMES, name_text),
    "headers": st.dictionaries(
        name_text, st.one_of(st.booleans(), st.integers(0, 2**40), name_text), max_size=3
    ),
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(0, 255),
    "timestamp": st.integers(0, 2**32 - 1),
}
values = st.fixed_dictionaries({}, optional=VALUES)


def pamqp_payload(body_size, given_values):
    mapping = {("message_type" if name == "type" else name): value for name, value in given_values.items()}
    if "timestamp" in mapping:
        mapping["timestamp"] = dt.datetime.fromtimestamp(mapping["timestamp"], dt.UTC)
    made = Basic.Properties.__new__(Basic.Properties)
    for name in Basic.Properties.__slots__:
        setattr(made, name, mapping.get(name))
    return ContentHeader(0, body_size, made).marshal()


def plain_values(read):
    return {
        name: tables.plain(value) if name == "headers" else value for name, value in read.present().items()
    }


@settings(max_examples=200)
@given(values, st.integers(0, 2**63))
def test_agrees_with_pamqp(given_values, body_size):
    """A content header written by pamqp is read back, and accepted."""
    payload = pamqp_payload(body_size, given_values)
    read = properties.Properties(payload)
    assert given_values == plain_values(read)
    assert body_size == read.body_size
    assert given_values == plain_values(properties.checked(payload))


def framed(payload):
    return struct.pack(">BHI", 2, 1, len(payload)) + payload + b"\xce"


@settings(max_examples=300)
@given(values, st.integers(0, 2**63))
def test_the_priority_is_found_in_the_frames(given_values, body_size):
    """The reader for priority queues finds the same priority as the full parser, and 0 without one."""
    payload = pamqp_payload(body_size, given_values)

    assert (properties.Properties(payload).priority or 0) == properties.priority(framed(payload) + b"body")


@pytest.mark.parametrize("words", [[], [0x0001], [0x0001, 0x0001]])
def test_the_priority_is_found_behind_more_flag_words(words):
    """Flag words without a property are skipped."""
    flags = [0x1800 | bool(words), *words[1:], *([0] if words else [])]
    payload = struct.pack(f">HHQ{len(flags)}H", 60, 0, 4, *flags) + b"\x02\x07"

    assert 7 == properties.Properties(payload).priority == properties.priority(framed(payload))


@settings(max_examples=200)
@given(values, values, st.sets(st.sampled_from(NAMES)))
def test_replace_writes_as_pamqp(before, changes, removed):
    """Replacing and removing properties gives the octets that pamqp writes for the result."""
    read = properties.Properties(pamqp_payload(5, before))
    after = {name: value for name, value in {**before, **changes}.items() if name not in removed}
    typed = {name: tables.typed(value) if name == "headers" else value for name, value in changes.items()}
    if "headers" not in changes and read.headers is not None:
        typed["headers"] = read.headers
    payload = read.replace(**{**typed, **dict.fromkeys(removed)})
    assert after == plain_values(properties.Properties(payload))
    if "headers" not in changes or "headers" in removed:  # pamqp picks other integer types than `typed`
        assert pamqp_payload(5, after) == payload


@given(values)
def test_replacing_nothing_changes_nothing(given_values):
    """Untouched properties keep their octets."""
    payload = pamqp_payload(5, given_values)
    assert payload == properties.Properties(payload).replace()


@settings(max_examples=300)
@given(st.integers(0, 0xFFFF), st.binary(max_size=60))
def test_arbitrary_lists_raise_nothing_else(word, octets):
    """Arbitrary flags and octets are properties or MalformedProperties, and `checked` agrees with the class."""
    payload = struct.pack(">HHQH", 60, 0, 0, word) + octets
    try:
        read = properties.Properties(payload)
        read.present()
    except MalformedProperties:
        with pytest.raises(MalformedProperties):
            properties.checked(payload)
    else:
        properties.checked(payload)


def header(word, octets=b""):
    return struct.pack(">HHQH", 60, 0, 0, word) + octets


@settings(max_examples=100)
@given(values, name_text, name_text)
def test_a_reply_address_is_replaced_in_place(before, old, new):
    """Another reply address gives the same bytes as replacing that property among all, and is read back."""
    payload = pamqp_payload(5, {**before, "reply_to": old})
    read = properties.Properties(payload)

    assert old == read.reply_to
    assert read.replace(reply_to=new) == read.with_reply_to(new)
    assert properties.Properties(pamqp_payload(5, {})).reply_to is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        header(0)[:13],
        header(0x8000),
        header(0x8000, b"\x02a"),
        header(0, b"abc"),
        header(0x2000, b"\0\0"),
        header(0x2000, b"\0\0\0\x04\x01aZx"),
        header(0x2000, b"\0\0\0\x0b\x01ad\x7f\xf8\0\0\0\0\0\0"),
        header(0x0040, b"\0" * 7),
        header(0x0001),
        header(0x0001, b"\0\x04\0"),
        header(0x0001, b"\0\x01" * 3 + b"\0\0"),
    ],
)
def test_malformed(payload):
    """A list that is cut off, too long, not a table or announced without end is refused."""
    with pytest.raises(MalformedProperties):
        properties.checked(payload)


def test_empty_flag_words_may_follow():
    """Further flag words without a property are skipped; `replace` drops them."""
    payload = header(0x1001, b"\0\x01\0\x01\0\0\x02")
    assert properties.checked(payload).delivery_mode == 2
    assert header(0x1000, b"\x02") == properties.Properties(payload).replace()


def test_any_octets_survive():
    """A property that is not UTF-8 is read, and stays as it is when another is replaced."""
    read = properties.Properties(header(0x8400, b"\x01\xff\x02ab"))
    assert read.content_type == "\udcff"
    assert header(0x8400, b"\x01\xff\x01c") == read.replace(correlation_id="c")
    assert header(0x8000, b"\x01\xff") == read.replace(correlation_id=None)


def test_build():
    """A header can be built from nothing."""
    payload = properties.build(3, delivery_mode=2, headers={"a": ("long", 1)}, type="t", timestamp=2**63)
    read = properties.Properties(payload)
    assert read.body_size == 3
    assert read.present() == {
        "headers": {"a": ("long", 1)},
        "delivery_mode": 2,
        "timestamp": 2**63,
        "type": "t",
    }


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"nonsense": 1}, TypeError),
        ({"type": "x" * 256}, ValueError),
        ({"priority": 256}, ValueError),
        ({"timestamp": -1}, ValueError),
    ],
)
def test_replace_refuses(changes, error):
    """Unknown names and values that do not fit are refused."""
    with pytest.raises(error):
        properties.Properties(header(0)).replace(**changes)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("0", 0), ("5", 5), ("+5", 5), ("-0", 0), ("315360000000", 315360000000)]
)
def test_expirations(text, milliseconds):
    """Integers from 0 to ten years are expirations in milliseconds."""
    assert milliseconds == properties.parse_expiration(text)


# The reasons are rabbit_basic:parse_expiration's, printed by ~p.
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_integer"),
        ("abc", "no_integer"),
        (" 5", "no_integer"),
        ("+", "no_integer"),
        ("--1", "no_integer"),
        ("\u0663", "no_integer"),
        ("10ms", '{leftover_string,"ms"}'),
        ("5 ", '{leftover_string," "}'),
        ("1.5", '{leftover_string,".5"}'),
        ("5\u0640", "{leftover_string,[217,128]}"),
        ("10\x01\udcff", "{leftover_string,[1,255]}"),
        ("-1", "{value_negative,-1}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_bad_expirations(text, reason):
    """An invalid expiration is refused with RabbitMQ's reason."""
    with pytest.raises(InvalidExpiration) as caught:
        properties.parse_expiration(text)
    assert reason == str(caught.value)


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_a_delivery_mode_is_found_in_the_frames(mode):
    """A message has a delivery mode if its properties have one, whatever the others are."""
    properties = {} if mode is None else {"delivery_mode": mode}
    for others in ({}, {"headers": {"n": ("signedint", 1)}, "priority": 3}, {"expiration": "5"}):
        frames = content_frames(1, 4096, build(0, **properties, **others), b"")

        assert (mode is not None) is has_delivery_mode(frames)


@given(values)
def test_whether_a_message_is_persistent_is_found_in_the_frames(given_values):
    """The frames tell what the properties tell, and where the headers are."""
    header = pamqp_payload(0, given_values)
    frames = content_frames(1, 131_072, header, b"")
    assert (Properties(header).delivery_mode == 2) is is_persistent(frames)
    start, stop = headers_in(frames)
    headers = tables.decode_table(frames, start, stop)[0] if start < stop else None
    assert Properties(header).headers == headers


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"content_type": "text/plain", "message_id": "x-stream-offset"},
        {"content_encoding": "gzip", "headers": {}, "delivery_mode": 2},
        {"headers": {"a": ("longstr", "b")}, "app_id": "c"},
        {"headers": {"x-stream-offset": ("longstr", "claimed"), "a": ("bool", True)}, "content_type": "a"},
    ],
)
def test_a_number_is_added_to_the_headers(values):
    """Everything else stays, and a header of the same name goes."""
    header = build(5, **values)
    frame = b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
    before, after = with_long(frame, b"x-stream-offset")
    made = before + (1 << 40).to_bytes(8, "big") + after

    assert made[:3] == frame[:3]
    assert int.from_bytes(made[3:7], "big") == len(made) - 8
    found = Properties(made[7:-1])
    checked(made[7:-1])
    expected = {**values, "headers": {**values.get("headers", {}), "x-stream-offset": ("long", 1 << 40)}}
    assert found.present() == expected
    assert found.body_size == 5


@given(
    st.lists(
        st.sampled_from(["content_type", "content_encoding", "correlation_id", "reply_to", "type"]),
        unique=True,
    )
)
def test_ids_and_expirations_of_contents_are_those_of_their_headers(names):
    """Whatever properties come before it, an id or an expiration is found in the frames as in the header."""
    for text in ("", "7", "é" * 20):
        for more in (
            {},
            {"headers": {"a": ("longstr", "b")}},
            {"priority": 3, "delivery_mode": 2, "expiration": "12"},
        ):
            header = build(3, message_id=text, **dict.fromkeys(names, "some text"), **more)
            content = content_frames(1, 4096, header, b"abc")
            assert [text.encode()] == message_ids([content])
            if "expiration" in more:
                assert b"12" == expiration(content)
            assert text == (Properties(header).message_id or "")
    assert [b""] == message_ids([content_frames(1, 4096, build(3, priority=1), b"abc")])
