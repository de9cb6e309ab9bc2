"""Bundles give back the messages that were put into them."""

from hypothesis import given, strategies as st

from leveret.broker.queue.bundle import (
    ALONE_OCTETS,
    are_alike,
    are_small,
    bundle_length,
    bundled,
    bundles_of_alike,
    is_bundle,
    record_octets,
    unbundled,
)
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


@given(st.integers(1, 40), ADDRESSES, BODIES, CHANNELS, st.integers(1, 5), st.booleans())
def test_messages_that_are_alike_are_bundled_together(count, address, body, channel, most, is_saved):
    """Messages with the same address and header are in as few bundles as their size permits, in their order."""
    messages = [message(address, number.to_bytes(2, "big") + body, channel) for number in range(count)]
    bundles = bundles_of_alike(messages, most * record_octets(messages[0]), is_saved=is_saved)

    assert -(-count // most) == len(bundles)
    assert all(is_bundle(each) and is_saved is isinstance(each, Persistent) for each in bundles)
    assert [fields(each) for each in messages] == [fields(one) for each in bundles for one in unbundled(each)]
    assert count == sum(map(bundle_length, bundles))
    assert count * len(messages[0].body) == sum(each.body_size for each in bundles)


def test_messages_that_differ_are_not_alike():
    """Messages with another address, size, channel or type need another way."""
    one = message(b"ab", b"body", 1)
    persistent = Persistent(one.address, one.content, 1, None, 0, 1)
    differing = (
        message(b"cd", b"body", 1),
        message(b"ab", b"bodies", 1),
        message(b"ab", b"body", 2),
        persistent,
    )

    assert are_alike([one, message(b"ab", b"BODY", 1)])
    assert not any(are_alike([one, other]) for other in differing)


def test_messages_too_large_for_bundles_are_not_small():
    """A bundle takes messages up to its own size, and up to the size from which copying costs too much."""
    one = message(b"ab", b"body", 1)
    large = message(b"ab", bytes(ALONE_OCTETS), 1)

    assert are_small([one, one], record_octets(one))
    assert not are_small([one, one], record_octets(one) - 1)
    assert not are_small([large], 10 * ALONE_OCTETS)
