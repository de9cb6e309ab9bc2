"""The receiving side of consumers: counts, latencies and acks, whatever the reads."""

import pytest
from hypothesis import given, strategies as st

from leveret.broker.amqp.codec import decode_method, encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import HEARTBEAT, content_frames, unpack_frame
from leveret.broker.amqp.properties import build
from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.frames import Incoming
from leveret.broker.perf.measurement import Tally
from leveret.broker.perf.producer import Confirms, Deliveries, Producer, template

MARK = b"mark"
NOW = 10_000_000


def delivery(
    tag: int,
    due: int = 0,
    *,
    size: int = 12,
    consumer: str = "c",
    key: str = "k",
    redelivered: bool = False,
    mark: bytes = MARK,
    frame_max: int = 4096,
) -> bytes:
    body = (mark + due.to_bytes(8, "big") + bytes(max(0, size - 12)))[:size]
    method = make(Basic.Deliver, consumer, tag, redelivered, "", key)
    return encode_method(1, method) + content_frames(1, frame_max, build(size, delivery_mode=1), body)


def acks(octets: bytes) -> list[tuple[int, bool]]:
    """Tag and multiple of the acks in frames."""
    found, at = [], 0
    while at < len(octets):
        _, _, length = unpack_frame(octets, at)
        method = decode_method(octets, at + 7, at + length + 7)
        assert isinstance(method, Basic.Ack)
        found.append((method.delivery_tag, method.multiple))
        at += length + 8
    return found


shapes = st.fixed_dictionaries(
    {
        "size": st.sampled_from([0, 5, 12, 12, 12, 40, 9000]),
        "consumer": st.sampled_from(["c", "c", "c", "other"]),
        "key": st.sampled_from(["k", "k", "k", "l", "longer"]),
        "redelivered": st.sampled_from([False, False, False, True]),
        "mark": st.sampled_from([MARK, MARK, MARK, b"else"]),
    }
)


@given(st.lists(shapes, max_size=30), st.lists(st.integers(1, 400), max_size=60), st.integers(0, 4))
def test_all_deliveries_count_whatever_the_reads(kinds, cuts, every):
    """Deliveries of any kind, cut into reads anywhere, are counted once, timed if they are of this run, and acked."""
    tally = Tally()
    incoming = Deliveries(tally, MARK, every)
    octets = b"".join(delivery(number, 1000 * number, **kind) for number, kind in enumerate(kinds, 1))
    sent = b""
    for cut in [*cuts, len(octets) or 1]:
        read, octets = octets[:cut], octets[cut:]
        assert [] == incoming.feed(read, NOW)
        sent += incoming.replies()

    own = [kind for kind in kinds if kind["mark"] == MARK and kind["size"] >= 12]
    timed = [number for number, kind in enumerate(kinds, 1) if kind in own]
    assert len(kinds) == tally.received
    assert sum(not kind["redelivered"] for kind in own) == tally.own
    assert sum(NOW // 1000 - number for number in timed) == tally.latency.recent.total
    assert len(timed) == tally.latency.recent.count
    expected = range(every, len(kinds) + 1, every) if every else []
    assert [(tag, every > 1) for tag in expected] == acks(sent)


def test_like_deliveries_are_read_without_parsing_their_frames(monkeypatch):
    """After the first of many deliveries of the same kind, none is parsed frame by frame."""
    tally = Tally()
    incoming = Deliveries(tally, MARK, 1)
    incoming.feed(delivery(1), NOW)
    monkeypatch.setattr(incoming, "content", lambda *_: pytest.fail("parsed frame by frame"))
    incoming.feed(b"".join(delivery(tag) for tag in range(2, 1000)), NOW)

    assert (999, 999) == (tally.received, tally.latency.recent.count)
    assert [(tag, False) for tag in range(1, 1000)] == acks(incoming.replies())


def test_other_methods_are_returned():
    """A method that is neither a delivery nor a confirm is returned with its channel; a heartbeat needs no answer."""
    incoming = Deliveries(Tally(), MARK, 0)
    (received,) = incoming.feed(HEARTBEAT + encode_method(3, make(Basic.QosOk)), NOW)

    assert (3, Basic.QosOk) == (received[0], type(received[1]))
    assert b"" == incoming.replies()
    assert b"" == incoming.replies()


@pytest.mark.parametrize(
    "octets",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\0\0\x09\x01",
        b"\x01\0\0\0\0\0\x01xx",
        b"\x01\0\0\0\0\0\x04\xff\xff\xff\xff\xce",
    ],
)
def test_other_protocols_are_refused(octets):
    """Bytes that are not frames of AMQP 0-9-1 are an error with one line of text."""
    with pytest.raises(UnreachableError):
        Incoming().feed(octets, NOW)


def test_confirms_and_returns_are_counted():
    """Acks, nacks and returns of the broker reach the producer and the counters."""
    tally = Tally()
    incoming = Confirms(tally)
    incoming.producer = Producer([template("", "k", MARK, 12, 0)], tally, window=10)
    incoming.producer.take(0)
    returned = encode_method(1, make(Basic.Return, 312, "NO_ROUTE", "", "k"))
    octets = b"".join(
        (
            encode_method(1, make(Basic.Ack, 3, True)),
            encode_method(1, make(Basic.Nack, 5, False, True)),
            returned + content_frames(1, 0, build(3), b"abc"),
        )
    )

    assert [] == incoming.feed(octets[:30], NOW) + incoming.feed(octets[30:], NOW)
    assert (3, 1, 1, 6) == (tally.confirmed, tally.nacked, tally.returned, incoming.producer.unconfirmed)
