import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import brokers, latency_parts, open_loop, rpc
from bench.bulk import BulkError
from bench.endpoint import Endpoint
from bench.open_loop import Consumer, Load, Producer, percentile


def producer(first: int, step: int, interval: float) -> Producer:
    """Return a producer without a connection."""
    made = Producer.__new__(Producer)
    made.first, made.step, made.interval = first, step, interval
    made.unsent, made.oldest, made.singles, made.times, made.rest = b"", 0, set(), [], b""
    return made


def ack(tag: int, *, multiple: bool) -> bytes:
    return struct.pack(">BHIHHQ?B", 1, 1, 13, 60, 80, tag, multiple, 0xCE)


def test_confirms_are_counted_once_each():
    """Single and multiple confirms in any order give each message one time, from when it was due."""
    one = producer(1, 2, 0.1)
    octets = ack(3, multiple=False) + ack(2, multiple=True) + ack(5, multiple=False) + ack(5, multiple=True)
    one.rest = octets[:30]
    one.note_confirms(1.0)
    one.rest += octets[30:]
    one.note_confirms(2.0)

    assert {1, 3, 5, 7, 9} == {number for number, _ in one.times}
    assert 5 == len(one.times)
    assert [pytest.approx(1.0 - 0.5)] == [took for number, took in one.times if number == 5]
    assert (5, set()) == (one.oldest, one.singles)


def test_a_refused_message_ends_the_run():
    """Anything but a confirm is an error, because no figure would be right."""
    one = producer(0, 1, 0.1)
    one.rest = b"\x01\x00\x01\x00\x00\x00\x04\x00\x14\x00\x28\xce"
    with pytest.raises(BulkError, match="not a confirm"):
        one.note_confirms(1.0)


def delivery(tag: int, due: float, size: int) -> bytes:
    body = struct.pack(">d", due) + bytes(size - 8)
    method = b"\x00\x3c\x00\x3c\x03tag" + struct.pack(">Q", tag) + b"\x00\x00\x01q"
    header = struct.pack(">HHQHB", 60, 0, size, 0x1000, 2)
    return b"".join(
        struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"
        for kind, payload in ((1, method), (2, header), (3, body))
    )


class Sink:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: deque[bytes] = deque()

    def sendall(self, octets: bytes) -> None:
        self.sent.append(octets)


@pytest.mark.parametrize("cut", [1, 7, 30, 100, 1000])
def test_deliveries_are_timed_and_acknowledged(cut):
    """Each delivery has one time, however the stream is cut, and everything that was read is acknowledged."""
    one = Consumer.__new__(Consumer)
    one.rest, one.times, one.socket = b"", [], Sink()  # type: ignore[assignment]
    octets = (
        delivery(1, 0.5, 20) + delivery(2, 0.7, 8) + b"\x08\x00\x00\x00\x00\x00\x00\xce" + delivery(3, 0.9, 8)
    )
    for at in range(0, len(octets), cut):
        one.rest += octets[at : at + cut]
        one.note_deliveries(1.0)

    assert [0.5, 0.7, 0.9] == [due for due, _ in one.times]
    assert [pytest.approx(0.5), pytest.approx(0.3), pytest.approx(0.1)] == [took for _, took in one.times]
    assert ack(3, multiple=True) == one.socket.sent[-1]  # type: ignore[attr-defined]


def test_a_share_of_nothing_is_infinite():
    """Without a message no percentile is within a limit."""
    assert float("inf") == percentile([], 50.0)
    assert (1.0, 3.0) == (percentile([1.0, 2.0, 3.0], 0.0), percentile([1.0, 2.0, 3.0], 99.0))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A broker in its own process."""
    folder: Path = tmp_path_factory.mktemp("broker")
    broker = brokers.start("leveret", folder)
    try:
        yield Endpoint(broker.port)
    finally:
        broker.stop()


def test_a_load_comes_back_complete(place):
    """Every message after the warm-up has a time to its delivery and one to its confirm, over all connections."""
    load = Load(200.0, 0.5, producers=2, consumers=2, queues=3, size=100)
    found = open_loop.run(place, load)

    assert 0 == found.missing
    assert 100 == len(found.delivered) == len(found.confirmed)
    assert found.delivered == sorted(found.delivered)


def test_calls_come_back_to_their_caller(place):
    """Round trips by direct reply-to are counted and timed."""
    rate, times = rpc.round_trips(place, outstanding=3, seconds=0.3)

    assert rate > 0
    assert times == sorted(times)


def test_awaited_confirms_are_timed(place, tmp_path):
    """Each confirm awaited has a time, and so has each way of a bare program; two flushes take longer than the first."""
    bare = latency_parts.bare_flushes(tmp_path, 100, count=5)

    assert latency_parts.confirms_one_by_one(place, 100, 0.2)
    assert all(first <= both for first, both in zip(bare.one, bare.two, strict=True))
    assert [5, 5, 5] == [len(each) for each in (bare.two, bare.log, bare.lmdb)]
    assert all(took > 0 for took in (*bare.log, *bare.lmdb))


def test_idle_connections_stay_while_they_are_needed(place):
    """The connections are open in the block, and a process of their own ends with it."""
    with latency_parts.idle_connections(place, 5):
        assert open_loop.run(place, Load(100.0, 0.1, size=8)).missing == 0
