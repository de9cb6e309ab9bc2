"""A hostile source: nothing but contents of deliveries gets to the destination."""

import struct

import pytest
from hypothesis import example, given, settings, strategies as st

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Queue, make
from leveret.broker.amqp.fastpath import content_frames, pack_confirm, unpack_frame, unpack_header
from leveret.broker.amqp.properties import build
from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.frames import MOST_UNASKED
from leveret.broker.shovel.definition import ON_CONFIRM
from leveret.broker.shovel.forwarding import MOST_GAPS, Deliveries, Forwarding, Settlements

METHOD, HEADER, BODY = 1, 2, 3
DELIVER = encode_method(1, make(Basic.Deliver, "c", 1, False, "", "q"))
DELETE = encode_method(1, make(Queue.Delete, 0, "precious", False, False, False))


def framed(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def announced(size: int) -> bytes:
    return framed(HEADER, 1, build(size, app_id="app"))


def source() -> tuple[Forwarding, Deliveries]:
    """A shovel's forwarding, and the receiving side of its source, which has a consumer."""
    forwarding = Forwarding(ON_CONFIRM, "", "q")
    receiving = Deliveries(forwarding)
    receiving.is_consuming = True
    receiving.frame_max = 131_072
    return forwarding, receiving


def check(octets: bytes, publish: bytes) -> None:
    """Assert that octets are publishes as we encode them, with contents on channel 1 and bodies as announced."""
    at, missing = 0, 0
    expected = METHOD
    while at < len(octets):
        kind, channel, size = unpack_frame(octets, at)
        frame = octets[at : at + size + 8]
        assert (expected, 1, 0xCE) == (kind, channel, frame[-1])
        if kind == METHOD:
            assert publish == frame
            expected = HEADER
        else:
            missing = unpack_header(frame, 0)[4] if kind == HEADER else missing - size
            assert missing >= 0
            expected = BODY if missing else METHOD
        at += len(frame)


PARTS = st.one_of(
    st.just(DELIVER),
    st.just(DELETE),
    st.integers(0, 60).map(announced),
    st.builds(
        framed, st.sampled_from([0, 1, 2, 3, 4, 8]), st.sampled_from([0, 1, 1, 2]), st.binary(max_size=40)
    ),
    st.binary(max_size=60).map(lambda body: content_frames(1, 0, build(len(body)), body)),
    st.binary(max_size=20),
)
PUBLISH = encode_method(1, make(Basic.Publish, 0, "", "q", False, False))


@settings(deadline=None, max_examples=400)
@example([DELIVER, announced(len(DELETE) - 8), DELETE], 1 << 16)
@example([DELIVER, announced(len(DELETE)), framed(BODY, 1, DELETE)], 1 << 16)
@example([DELIVER, announced(4), framed(BODY, 2, b"four")], 1 << 16)
@example([DELIVER, framed(HEADER, 1, b"short"), DELETE], 1 << 16)
@given(st.lists(PARTS, max_size=8), st.integers(1, 80))
def test_only_contents_of_deliveries_are_passed_on(parts, cut):
    """Whatever the source sends, however it is cut: no method, no other channel, no more than was announced."""
    forwarding, receiving = source()
    octets = b"".join(parts)
    try:
        for at in range(0, len(octets), cut):
            receiving.feed(octets[at : at + cut], 0)
    except UnreachableError:
        pass

    check(forwarding.take_publishes(), PUBLISH)


@pytest.mark.parametrize(
    "address", [b"", b"\xff", b"\x05exch", b"\x00\xffkey", b"\x00\x03keyand"], ids=lambda each: each.hex()
)
def test_lengths_in_a_delivery_end_with_it(address):
    """The names of exchange and key are neither read from what follows, nor leave anything over."""
    _, receiving = source()
    fields = struct.pack(">I", Basic.Deliver.index) + b"\x01c" + struct.pack(">QB", 1, 0) + address

    with pytest.raises(UnreachableError):
        receiving.feed(framed(METHOD, 1, fields) + content_frames(1, 0, build(1), b"x"), 0)


def test_bodies_come_in_pieces_of_some_size():
    """Thousands of pieces with next to nothing in them have a limit per second."""
    _, receiving = source()
    pieces = framed(BODY, 1, b"x") * (MOST_UNASKED + 1)

    with pytest.raises(UnreachableError, match="unasked"):
        receiving.feed(DELIVER + announced(1 << 20) + pieces, 0)


def test_a_frame_of_a_body_is_no_larger_than_negotiated():
    """Also if it arrives complete: the destination would end the connection."""
    _, receiving = source()
    receiving.frame_max = 4096

    with pytest.raises(UnreachableError, match="more than the 4096"):
        receiving.feed(DELIVER + announced(5000) + framed(BODY, 1, bytes(5000)), 0)


def destination() -> tuple[Forwarding, Settlements]:
    """A shovel's forwarding with many messages under way, and the receiving side of its destination."""
    forwarding = Forwarding(ON_CONFIRM, "", "q")
    for tag in range(1, MOST_GAPS + 10):
        forwarding.begin(tag, b"\x00\x01q")
    forwarding.take_publishes()
    return forwarding, Settlements(forwarding)


def test_confirms_that_confirm_nothing_have_a_limit():
    """A destination that confirms the same message again and again is left."""
    forwarding, receiving = destination()
    confirm = pack_confirm(1, 1, multiple=False, ack=True)

    with pytest.raises(UnreachableError, match="unasked"):
        receiving.feed(confirm * (MOST_UNASKED + 2), 0)
    assert 1 == forwarding.settled


def test_confirms_out_of_order_have_a_limit():
    """A destination that never confirms the first message is left before the numbers of the others fill the memory."""
    forwarding, receiving = destination()
    with pytest.raises(UnreachableError, match="none before them"):
        receiving.feed(
            b"".join(pack_confirm(1, tag, multiple=False, ack=True) for tag in range(2, MOST_GAPS + 5)), 0
        )

    assert MOST_GAPS == forwarding.settled
