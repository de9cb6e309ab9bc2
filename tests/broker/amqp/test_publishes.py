"""Publishes in the bytes of a read: found where they are, if they have arrived whole; and large contents."""

import random
import struct
from collections import Counter

import pytest
from doubles.fakes import publish_frames
from hypothesis import given, strategies as st

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import content_frames, reframe, reframed
from leveret.broker.amqp.properties import FLAG_PRIORITY, build
from leveret.broker.amqp.publishes import (
    LargeBody,
    end_of_content,
    equal_contents,
    is_address,
    varied_contents,
    whole_content,
)
from leveret.storage.message import Message

LIMIT = 4096
METHOD = encode_method(1, make(Basic.Publish, 0, "", "q", False, False))


def content(body: bytes, number: int = 1, **properties: object) -> bytes:
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


def test_a_run_whose_expirations_are_no_demand():
    """It has messages with and without one, and ends before one that a decoder has to judge."""
    run = [
        content(b"a", expiration="5"),
        content(b"b", message_id="1"),
        content(b"c", expiration="999999999"),
    ]
    begun = b"".join(METHOD + each for each in run)
    refused = [{"expiration": each} for each in ("", "05", "+5", "-5", "5 ", "1000000000")]
    for last in (*refused, {"expiration": "5", "user_id": "other"}):
        data = begun + METHOD + content(b"d", **last)
        found = varied_contents(
            data, 0, len(data), METHOD, 1, LIMIT, 100, Counter(), persistent=False, expires=True
        )
        assert (run, len(begun)) == found


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


NUMBERS = st.integers(1, 65535)


def frames(number: int, body: bytes, sizes: list[int]) -> list[bytes]:
    """Return body frames of these sizes, the last with the rest."""
    cut, at = [], 0
    for size in sizes:
        cut.append(body[at : at + size])
        at += size
    return [content_frames(number, 0, b"", part)[8:] for part in (*cut, body[at:]) if part]


@given(
    NUMBERS,
    st.binary(max_size=30_000),
    st.lists(st.integers(1, 9000)),
    st.sampled_from([4096, 8192, 1 << 31]),
)
def test_a_body_is_framed_evenly_however_it_came(number, body, sizes, frame_limit):
    """An assembled content is its header frame and the body in the largest allowed frames, up to the declared size."""
    header = build(len(body), delivery_mode=2)
    content = content_frames(number, min(frame_limit, 128 * 1024), header, body)
    large = LargeBody(content_frames(number, 0, header, b""), number, len(body), frame_limit)
    for frame in (*frames(number, body, sizes), *frames(number, b"more", [])):
        large.append(frame)

    assert content == large.content()
    assert [content_frames(number, 0, header, b"")] == large


@given(
    NUMBERS,
    NUMBERS,
    st.integers(0, 30_000).map(lambda size: random.Random(size).randbytes(size)),
    st.lists(st.integers(1, 9000)),
    st.sampled_from([0, 4096, 8192]),
    st.sampled_from([0, 4096, 20_000]),
)
def test_a_body_is_reframed_without_copying_it(before, after, body, sizes, frame_max, more):
    """The frames are the new channel's, no body frame is larger than allowed, and header and body are the same."""
    header = build(len(body)) + bytes(more)
    content = b"".join([content_frames(before, 0, header, b""), *frames(before, body, sizes)])
    octets = b"".join(reframed(content, after, frame_max))
    message = Message(b"", octets, after)

    assert (header, body) == (message.header, message.body)
    assert octets == reframe(octets, after, frame_max)
    first, *rest = payloads_of(octets, after)
    assert header == first
    largest = max([len(part) for part in rest], default=0)
    assert not frame_max or largest + 8 <= frame_max


def payloads_of(octets: bytes, number: int) -> list[bytes]:
    found, at = [], 0
    while at < len(octets):
        _, channel, size = struct.unpack_from(">BHI", octets, at)
        assert number == channel
        assert 0xCE == octets[at + 7 + size]
        found.append(octets[at + 7 : at + 7 + size])
        at += 8 + size
    return found


def test_what_fits_is_passed_on_as_it_is():
    """A content of the same channel number whose frames are small enough is not touched."""
    content = content_frames(7, 4096, build(10_000), bytes(10_000))

    assert reframed(content, 7, 4096)[0] is content
