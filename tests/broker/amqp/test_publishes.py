"""Publishes in the bytes of a read: found where they are, if they have arrived whole."""

from collections import Counter

import pytest
from fakes import publish_frames
from hypothesis import given, strategies as st

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import FLAG_PRIORITY, build
from leveret.broker.amqp.publishes import (
    end_of_content,
    equal_contents,
    is_address,
    varied_contents,
    whole_content,
)

LIMIT = 4096
METHOD = encode_method(1, make(Basic.Publish, 0, "", "q", False, False))


def content(body: bytes, number: int = 1, **properties: object) -> bytes:
    """Return the frames of a content, with a body of one frame."""
    return content_frames(number, 0, build(len(body), **properties), body)


@given(body=st.binary(max_size=40), before=st.binary(max_size=9), cut=st.integers(0, 120))
def test_a_content_is_found_when_all_of_it_is_there(body: bytes, before: bytes, cut: int):
    """A content of one header frame and at most one body frame is found with its ends, size and flags."""
    octets = content(body, priority=3)
    data = before + octets + b"next"
    size = max(len(before), len(data) - cut)
    header = len(content(b"", priority=3))
    found = whole_content(data, len(before), size, 1, LIMIT)

    if size < len(before) + len(octets):
        assert found is None
    else:
        end = len(before) + header
        assert (end, len(before) + len(octets), len(body), FLAG_PRIORITY) == found


@pytest.mark.parametrize(
    ("octets", "number", "limit"),
    [
        (content(b"body", 2), 1, LIMIT),
        (content(b"x" * 100), 1, 99),
        (content(b"body")[:-1] + b"\x00", 1, LIMIT),
        (content(b"")[:-1] + b"\x00", 1, LIMIT),
        (b"\x03" + content(b"body")[1:], 1, LIMIT),
        (content_frames(1, 10, build(4), b"body"), 1, LIMIT),
    ],
    ids=[
        "another channel",
        "too large",
        "end of the body",
        "end of the header",
        "no header",
        "two body frames",
    ],
)
def test_other_frames_are_left_to_others(octets: bytes, number: int, limit: int):
    """Frames that are wrong, of another channel or only parts of a body are no whole content."""
    assert whole_content(octets + bytes(30), 0, len(octets) + 30, number, limit) is None


@given(bodies=st.lists(st.binary(min_size=5, max_size=5), max_size=5), rest=st.binary(max_size=70))
def test_a_run_of_equal_publishes(bodies: list[bytes], rest: bytes):
    """Publishes that differ in the bytes of their bodies only are found up to the first other one."""
    publishes = [publish_frames("q", body) for body in bodies]
    one = publish_frames("q", b"12345")
    prefix, head = one[:-6], len(METHOD)
    data = b"".join(publishes) + rest
    contents, end = equal_contents(data, 0, len(data), prefix, len(one), head)

    assert [each[head:] for each in publishes] == contents[: len(bodies)]
    assert len(contents) * len(one) == end


def test_a_run_of_publishes_whose_properties_differ():
    """The run ends before a publish that asks something of the broker, is persistent or may come again."""
    first = [content(b"a", message_id="1"), content(b"", message_id="22"), content(b"ccc", timestamp=3)]
    begun = b"".join(METHOD + each for each in first)
    sizes: Counter[int] = Counter()
    for last in (
        content(b"d", message_id="4", expiration="5"),
        content(b"d", message_id="4", delivery_mode=2),
        content(b"d", priority=4),
        content(b"x" * 101, message_id="4"),
        content(b"d", message_id="4")[:-1],
    ):
        sizes.clear()
        data = begun + METHOD + last
        found = varied_contents(data, 0, len(data), METHOD, 1, LIMIT, 100, sizes, persistent=False)
        assert (first, len(begun)) == found
        assert Counter({1: 1, 0: 1, 3: 1}) == sizes
    data = METHOD + content(b"d", message_id="4", delivery_mode=2)
    found = varied_contents(data, 0, len(data), METHOD, 1, LIMIT, 100, sizes, persistent=True)
    assert ([data[len(METHOD) :]], len(data)) == found


def test_the_end_of_the_first_content_frame():
    """The first header or body frame ends what is executed during an alarm; without one nothing does."""
    data = METHOD + content(b"body") + METHOD

    assert len(METHOD) + len(content(b"")) == end_of_content(data, 0)
    assert len(METHOD) * 2 == end_of_content(METHOD * 2, 0)
    assert len(METHOD) + 9 == end_of_content(data[: len(METHOD) + 9], 0)


@pytest.mark.parametrize(
    ("octets", "expected"),
    [(b"\x00\x00", True), (b"\x01a\x02bc", True), (b"", False), (b"\x00", False), (b"\x01a\x02b", False)],
)
def test_an_address_is_two_short_strings(octets: bytes, expected: bool):
    """Octets are an address if two short strings take all of them."""
    assert expected is is_address(octets)
