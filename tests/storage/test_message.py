"""A message is read from the frames it arrived in."""

from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import build
from leveret.storage.message import Message


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
