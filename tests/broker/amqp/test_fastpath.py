"""Hand-packed frames equal those of the codec and of pamqp."""

import pamqp.body
import pamqp.frame
import pamqp.heartbeat
from hypothesis import given, strategies as st
from pamqp import commands

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import (
    HEARTBEAT,
    content_frames,
    deliver_head,
    pack_confirm,
    pack_get_ok,
    pack_return,
    pack_tag,
    reframe,
    shortstr,
)
from leveret.broker.amqp.properties import build

channels = st.integers(1, 65535)
tags = st.integers(1, (1 << 63) - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
octets = st.binary(max_size=255)
bodies = st.binary(max_size=200)


def text(some: bytes) -> str:
    return some.decode("utf-8", "surrogateescape")


@given(octets)
def test_shortstr(some):
    """A short string is its length and its octets, whatever they are."""
    assert bytes([len(some)]) + some == shortstr(text(some))


@given(channels, tags, st.booleans())
def test_confirms_equal_those_of_pamqp(channel, tag, multiple):
    """`basic.ack` and `basic.nack` to a publisher are octet for octet pamqp's."""
    assert pamqp.frame.marshal(commands.Basic.Ack(tag, multiple), channel) == pack_confirm(
        channel, tag, multiple=multiple, ack=True
    )
    nack = commands.Basic.Nack(tag, multiple, requeue=True)
    assert pamqp.frame.marshal(nack, channel) == pack_confirm(channel, tag, multiple=multiple, ack=False)


@given(channels, octets, tags, octets, octets)
def test_delivers_equal_those_of_the_codec(channel, consumer_tag, tag, exchange, key):
    """The parts around a delivery tag make the codec's `basic.deliver`, and its redelivered form by one octet."""
    address = shortstr(text(exchange)) + shortstr(text(key))
    head, tail = deliver_head(channel, text(consumer_tag), len(address)), b"\x00" + address + b"\xce"
    names_of = (text(exchange), text(key))

    fresh = make(Basic.Deliver, text(consumer_tag), tag, False, *names_of)
    assert encode_method(channel, fresh) == head + pack_tag(tag) + tail
    again = make(Basic.Deliver, text(consumer_tag), tag, True, *names_of)
    assert encode_method(channel, again) == head + pack_tag(tag) + b"\x01" + tail[1:]


@given(channels, names, tags, st.text("azAZ09-_.:", max_size=60), names)
def test_delivers_equal_those_of_pamqp(channel, consumer_tag, tag, exchange, key):
    """A `basic.deliver` with names that pamqp can write is octet for octet pamqp's."""
    address = shortstr(exchange) + shortstr(key)
    head, tail = deliver_head(channel, consumer_tag, len(address)), b"\x00" + address + b"\xce"
    method = make(commands.Basic.Deliver, consumer_tag, tag, False, exchange, key)

    assert pamqp.frame.marshal(method, channel) == head + pack_tag(tag) + tail


@given(channels, tags, st.booleans(), octets, octets, st.integers(0, 0xFFFFFFFF))
def test_get_oks_equal_those_of_the_codec(channel, tag, redelivered, exchange, key, count):
    """`basic.get-ok` equals the codec's."""
    address = shortstr(text(exchange)) + shortstr(text(key))
    method = make(Basic.GetOk, tag, redelivered, text(exchange), text(key), count)

    assert encode_method(channel, method) == pack_get_ok(
        channel, tag, address, count, redelivered=redelivered
    )


@given(channels, st.integers(0, 65535), octets, octets, octets)
def test_returns_equal_those_of_the_codec(channel, code, reason, exchange, key):
    """`basic.return` equals the codec's if the text needs no cutting."""
    address = shortstr(text(exchange)) + shortstr(text(key))
    method = make(Basic.Return, code, text(reason), text(exchange), text(key))

    assert encode_method(channel, method) == pack_return(channel, code, text(reason), address)


def test_heartbeat_equals_that_of_pamqp():
    """A heartbeat equals pamqp's."""
    assert pamqp.frame.marshal(pamqp.heartbeat.Heartbeat(), 0) == HEARTBEAT


def unpack(content: bytes) -> tuple[list[int], int, bytes, list[bytes]]:
    """Channels, the longest frame, header payload and body frames of a content, by pamqp's own reading."""
    numbers, longest, header, chunks = [], 0, b"", []
    while content:
        count, channel, item = pamqp.frame.unmarshal(content)
        numbers.append(channel)
        longest = max(longest, count)
        if isinstance(item, pamqp.body.ContentBody):
            chunks.append(item.value)
        else:
            assert not chunks
            header = content[7 : count - 1]
        content = content[count:]
    return numbers, longest, header, chunks


@given(channels, st.just(0) | st.integers(22, 220), bodies)
def test_content_is_cut_to_the_frame_size(channel, frame_max, body):
    """A content is its header and the fewest body frames that `frame_max` allows; an empty body has none."""
    header = build(len(body))
    numbers, longest, read, chunks = unpack(content_frames(channel, frame_max, header, body))

    assert (header, body) == (read, b"".join(chunks))
    assert {channel} == set(numbers)
    assert not frame_max or longest <= frame_max
    step = frame_max - 8 if frame_max else 1 << 30
    assert -(-len(body) // step) == len(chunks)


@given(channels, st.just(0) | st.integers(9, 220), channels, st.just(0) | st.integers(22, 220), bodies)
def test_reframing_changes_nothing_but_frames(channel, frame_max, other, other_max, body):
    """Reframed content has the same header and body, the new channel, and no frame above the new limit."""
    header = build(len(body))
    before = content_frames(channel, frame_max, header, body)
    after = reframe(before, other, other_max)
    numbers, longest, read, chunks = unpack(after)

    assert (header, body) == (read, b"".join(chunks))
    assert {other} == set(numbers)
    assert not other_max or longest <= other_max


@given(channels, st.integers(22, 220), channels, st.integers(9, 220), bodies)
def test_a_content_header_is_never_split(channel, frame_max, other, other_max, body):
    """A header that exceeds `frame_max` is one frame nevertheless, and only body frames are cut to fit."""
    header = build(len(body), content_type="x" * 250)
    content = content_frames(channel, frame_max, header, body)
    numbers, longest, read, chunks = unpack(reframe(content, other, other_max))

    assert (header, body) == (read, b"".join(chunks))
    assert {other} == set(numbers)
    assert len(header) + 8 == longest
    assert max(map(len, chunks), default=0) + 8 <= other_max


@given(channels, st.integers(22, 220), channels, bodies)
def test_reframing_keeps_frames_that_fit(channel, frame_max, other, body):
    """Frames that fit are only renumbered, so that their boundaries stay those of the publisher."""
    header = build(len(body))

    assert content_frames(other, frame_max, header, body) == reframe(
        content_frames(channel, frame_max, header, body), other, frame_max
    )
