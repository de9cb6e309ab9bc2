"""Bounds of what a broker sends: a frame, what is kept of it, and what nobody has asked for."""

import struct
import time
import tracemalloc

import pytest

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Connection, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.frames import FIRST_FRAME_MAX, MOST_UNASKED, Incoming

SECOND = 1_000_000_000
BODY = 3


def head(size: int) -> bytes:
    return struct.pack(">BHI", BODY, 1, size)


@pytest.mark.parametrize("frame_max", [FIRST_FRAME_MAX, 4096, 131_072])
@pytest.mark.parametrize(("over", "is_taken"), [(0, True), (1, False), (2**32 - 1, False)])
def test_a_frame_that_is_too_large_is_refused_at_its_head(frame_max, over, is_taken):
    """None of its octets is waited for: before the login, and beyond what was negotiated."""
    incoming = Incoming()
    incoming.frame_max = frame_max
    octets = head(min(frame_max + over, 2**32 - 1)) + b"x"

    if is_taken:
        assert [] == incoming.feed(octets, 0)
    else:
        with pytest.raises(UnreachableError, match="more than the"):
            incoming.feed(octets, 0)


def test_a_frame_in_many_pieces_takes_linear_time():
    """Ten times as large a frame in pieces of two octets takes about ten times as long, and is kept once."""

    def seconds(size: int) -> float:
        incoming = Incoming()
        incoming.frame_max = size
        octets = head(size) + bytes(size)
        pieces = [octets[at : at + 2] for at in range(0, len(octets), 2)]
        began = time.process_time()
        for piece in pieces:
            incoming.feed(piece, 0)
        return time.process_time() - began

    assert min(seconds(1_000_000) for _ in range(3)) <= 40 * min(seconds(100_000) for _ in range(3))
    tracemalloc.start()
    seconds(131_072)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 131_072 * 60  # of which most are the pieces of this test


@pytest.mark.parametrize(
    "frame", [HEARTBEAT, encode_method(0, make(Connection.Unblocked))], ids=["heartbeats", "methods"]
)
def test_what_nobody_has_asked_for_has_a_limit_per_second(frame):
    """As many as a broker in order never sends are taken each second, and no more."""
    incoming = Incoming()
    for second in range(3):
        incoming.feed(frame * MOST_UNASKED, second * SECOND)
        assert b"" == incoming.replies()

    with pytest.raises(UnreachableError, match="frames a second unasked"):
        incoming.feed(frame * (MOST_UNASKED + 1), 3 * SECOND)


def test_a_reply_is_not_unasked():
    """A client that asks thousands of questions a second gets its replies."""
    incoming = Incoming()
    for _ in range(10 * MOST_UNASKED):
        incoming.expect()
        incoming.feed(encode_method(0, make(Connection.OpenOk, "")), 0)


def test_large_methods_count_by_their_size():
    """Tables cost time to read: a broker does not send megabytes of them a second."""
    incoming = Incoming()
    incoming.frame_max = 131_072
    payload = struct.pack(">I", 0x000A000A) + bytes(100_000)
    frame = struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce"

    with pytest.raises(UnreachableError):
        incoming.feed(frame * 10, 0)


@pytest.mark.parametrize("kind", [0, 4, 7, 9, 255])
def test_an_unknown_type_of_frame_is_refused(kind):
    """Also behind one that is known."""
    with pytest.raises(UnreachableError):
        Incoming().feed(HEARTBEAT + struct.pack(">BHI", kind, 1, 0) + b"\xce", 0)
