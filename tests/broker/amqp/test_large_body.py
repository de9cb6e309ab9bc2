"""Large contents, received and sent."""

import random
import struct

from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import content_frames, reframe, reframed
from leveret.broker.amqp.large_body import LargeBody
from leveret.broker.amqp.properties import build
from leveret.storage.message import Message

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
    """Return the payloads of frames of a channel."""
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
