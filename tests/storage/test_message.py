"""A message is read from the frames it arrived in."""

from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import content_frames, reframe, reframed
from leveret.broker.amqp.properties import build
from leveret.storage.message import MOST_RECORDED, Message


@given(
    channel=st.integers(1, 65535),
    frame_max=st.just(0) | st.integers(9, 60),
    body=st.binary(max_size=200),
    content_type=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)
def test_header_and_body_are_found_in_the_frames(channel, frame_max, body, content_type):
    """Header, body and body size are those published, however many frames they came in."""
    header = build(len(body), content_type=content_type)
    message = Message(b"\x00\x01q", content_frames(channel, frame_max, header, body), channel)

    assert (header, body, len(body)) == (message.header, message.body, message.body_size)


def test_a_message_keeps_what_it_was_given():
    """Address, content and channel number are kept as they are, without copies."""
    address, content = b"\x00\x01q", content_frames(7, 0, build(4), b"body")
    message = Message(address, content, 7)

    assert message.address is address
    assert message.content is content
    assert 7 == message.channel_id


def test_a_dead_letter_knows_how_often_it_died():
    """The number of deaths survives another header and a way through bytes; no content of a client has one."""
    message = Message(b"\x00\x01q", content_frames(7, 0, build(4), b"body"), 7)
    letter = message.dead_letter(b"\x00\x01d", build(4, content_type="t"), 3)
    again = letter.with_header(build(4))
    stored = Message(again.address, again.content, again.content[1] << 8 | again.content[2])

    assert [0, 3, 3, 3] == [each.deaths for each in (message, letter, again, stored)]
    assert MOST_RECORDED == letter.dead_letter(b"", letter.header, 1000).deaths
    assert reframe(content_frames(7, 0, build(4), b"body"), 9, 0) == reframe(stored.content, 9, 0)
    assert [reframe(stored.content, 9, 0)] == [b"".join(reframed(stored.content, 9, 0))]
    assert (b"\x00\x01d", b"body", 4) == (letter.address, letter.body, letter.body_size)
