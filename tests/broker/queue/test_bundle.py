"""Bundles give back the messages that were put into them."""

from hypothesis import given, strategies as st

from leveret.broker.queue.bundle import bundle_length, bundled, is_bundle, unbundled
from leveret.storage.message import Message, Persistent, body_octets

BODIES = st.binary(max_size=300)
ADDRESSES = st.binary(min_size=2, max_size=40)
CHANNELS = st.integers(1, 65535)


def message(address: bytes, body: bytes, channel: int) -> Message:
    """Return a message with a header without properties and one frame."""
    number = channel.to_bytes(2, "big")
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + b"\0\0"
    content = b"\2" + number + len(header).to_bytes(4, "big") + header + b"\xce"
    content += b"\3" + number + len(body).to_bytes(4, "big") + body + b"\xce"
    return Message(address, content, channel)


MESSAGES = st.lists(st.builds(message, ADDRESSES, BODIES, CHANNELS), min_size=1, max_size=20)


def fields(found: Message) -> tuple[bytes, bytes, int]:
    """Return all that a message has."""
    return found.address, found.content, found.channel_id


@given(MESSAGES, st.booleans())
def test_a_bundle_gives_back_its_messages(messages, is_saved):
    """The messages of a bundle are those it was made of, in their order, with the sum of their sizes as its own."""
    bundle = bundled(messages, is_saved=is_saved)

    assert is_bundle(bundle)
    assert is_saved is isinstance(bundle, Persistent)
    assert [fields(each) for each in messages] == [fields(each) for each in unbundled(bundle)]
    assert len(messages) == bundle_length(bundle)
    assert sum(len(each.body) for each in messages) == bundle.body_size == body_octets(bundle.content)


@given(ADDRESSES, BODIES, CHANNELS)
def test_a_message_alone_is_no_bundle(address, body, channel):
    """A message that a client can publish is not taken for a bundle."""
    alone = message(address, body, channel)

    assert not is_bundle(alone)
    assert [alone] == unbundled(alone)
    assert 1 == bundle_length(alone)
