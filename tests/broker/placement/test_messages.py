"""Messages between the front and its processes."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.placement.messages import (
    AnyMessage,
    Begin,
    BrokenStreamError,
    Changed,
    Handed,
    Left,
    Placed,
    Ready,
    Removed,
    Stream,
    encode,
)
from leveret.storage.store.metadata_rows import VHostRow

VHOST = VHostRow(7, b"a\xff", b"text", [b"tag"], b"quorum", True)
MESSAGES: list[AnyMessage] = [
    Begin([(b"U1", b"value"), (b"P2", None)], [VHOST]),
    Changed([(b"U1", None)]),
    Placed(VHOST),
    Removed(b"a\xff"),
    Handed(9, b"u", b"v", "PLAIN", b"\0\0\0\0", [b"c"], 4096, 0, 60, ("::1", 1), ("::1", 5672), b"\x01rest"),
    Ready([b"a\xff"]),
    Left(9),
]


@given(st.lists(st.sampled_from(MESSAGES)), st.lists(st.integers(1, 60), min_size=1))
def test_messages_arrive_however_they_are_cut(sent: list[AnyMessage], sizes: list[int]) -> None:
    """The messages of a stream are those that were sent, however its reads divide it."""
    octets = b"".join(map(encode, sent))
    stream, found, at, number = Stream(), list[AnyMessage](), 0, 0
    while at < len(octets):
        size = sizes[number % len(sizes)]
        found += stream.take(octets[at : at + size])
        at, number = at + size, number + 1

    assert found == sent


@pytest.mark.parametrize("octets", [b"\xff\xff\xff\xff", b"\0\0\0\x02\x91\xc0"])
def test_what_is_no_message(octets: bytes) -> None:
    """A length without sense, and a message of an unknown kind, end a stream."""
    with pytest.raises(BrokenStreamError):
        list(Stream().take(octets))
