"""Producers without sockets: frames, pacing, windows, confirms and their latencies."""

import pytest
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.codec import decode_method
from leveret.broker.amqp.fastpath import unpack_frame
from leveret.broker.amqp.properties import Properties
from leveret.broker.perf.measurement import NANOSECONDS, Tally
from leveret.broker.perf.producer import BATCH, Producer, Schedule, template

MARK = b"mark"
MILLISECOND = 1_000_000


def one(size: int = 12, **options: bool):
    return template("e", "k", MARK, size, 131_072, **options)


def messages(octets: bytes) -> list[tuple[str, bool, int | None, bytes]]:
    """Routing key, mandatory bit, delivery mode and body of each message in frames."""
    found, at = [], 0
    while at < len(octets):
        kind, channel, length = unpack_frame(octets, at)
        start, at = at + 7, at + length + 8
        assert (1, 0xCE) == (channel, octets[at - 1])
        if kind == 1:
            method = decode_method(octets, start, at - 1)
            found.append([method.routing_key, method.mandatory, None, b"", 0])
        elif kind == 2:
            properties = Properties(octets[start : at - 1])
            found[-1][2], found[-1][4] = properties.delivery_mode, properties.body_size
        else:
            found[-1][3] += octets[start : at - 1]
    assert all(len(message[3]) == message[4] for message in found)
    return [tuple(message[:4]) for message in found]


def due_of(body: bytes) -> int:
    assert body.startswith(MARK)
    return int.from_bytes(body[4:12], "big")


@pytest.mark.parametrize("size", [12, 13, 1000, 5000])
@pytest.mark.parametrize("frame_max", [0, 4096, 131_072])
def test_a_message_is_what_was_asked_for(size, frame_max):
    """The frames of a message have its key, flags and a body of the size, which begins with mark and due time."""
    made = template("e", "k", MARK, size, frame_max, persistent=True, mandatory=True)
    producer = Producer([made], Tally())

    key, mandatory, mode, body = messages(producer.take(42))[0]

    assert ("k", True, 2, size) == (key, mandatory, mode, len(body))
    assert 42 == due_of(body)


def test_a_transient_message_has_delivery_mode_1():
    """Messages are neither persistent nor mandatory if that was not asked for."""
    assert [("k", False, 1)] * BATCH == [
        message[:3] for message in messages(Producer([one()], Tally()).take(1))
    ]


def test_several_keys_are_used_in_rotation():
    """A producer of several queues sends to each in turn, over the ends of batches too."""
    producer = Producer([template("", key, MARK, 12, 0) for key in "abc"], Tally())
    octets = producer.take(1) + producer.take(2)

    assert ["abc"[number % 3] for number in range(2 * BATCH)] == [message[0] for message in messages(octets)]


def test_large_messages_are_sent_one_at_a_time():
    """A batch is bounded in bytes too."""
    assert 1 == len(messages(Producer([one(100_000)], Tally()).take(1)))


@settings(max_examples=40)
@given(
    st.floats(min_value=0.5, max_value=200_000),
    st.floats(min_value=0.1, max_value=5),
    st.lists(st.integers(0, 300 * MILLISECOND), max_size=30),
)
def test_a_paced_producer_sends_just_what_is_due(rate, seconds, steps):
    """At any time a paced producer that may write has sent the messages due by then, with their due times."""
    schedule = Schedule(rate, 1000, seconds)
    tally = Tally()
    producer = Producer([one()], tally, schedule=schedule)
    now = 1000
    for step in steps:
        while octets := producer.take(now):
            dues = [due_of(body) for *_, body in messages(octets)]
            first = producer.sent - len(dues)
            assert [schedule.due(number) for number in range(first, producer.sent)] == dues
            assert max(dues) <= now
        assert schedule.count(now) == producer.sent == tally.sent
        wait = producer.wait(now)
        assert (wait is None) == (producer.sent == schedule.total)
        assert wait != 0
        now += step


def test_the_number_of_messages_is_rate_times_seconds():
    """A schedule has as many messages as the rate and the duration say, the last of them due before the end."""
    schedule = Schedule(500, 0, 2)

    assert 1000 == schedule.total == schedule.count(10 * NANOSECONDS)
    assert schedule.due(999) < 2 * NANOSECONDS


def test_a_run_that_is_interrupted_sends_what_was_due():
    """A schedule that ends early keeps what was due by then, and its producer reports the rest as unsent."""
    producer = Producer([one()], Tally(), schedule=Schedule(100, 0, 0))
    producer.take(0)
    producer.schedule.end(95 * MILLISECOND)

    assert 9 == producer.unsent
    assert 9 == len(messages(producer.take(NANOSECONDS)))
    assert (0, None) == (producer.unsent, producer.wait(NANOSECONDS))


def test_latencies_count_from_the_due_time():
    """After a pause of a second, every message that was due in it has its share of the second in its latencies."""
    tally = Tally()
    producer = Producer([one()], tally, window=10_000, schedule=Schedule(1000, 0, 1))
    while producer.take(NANOSECONDS):
        pass
    producer.settle(1000, NANOSECONDS, multiple=True, acked=True)
    histogram = tally.confirm_latency.recent

    assert (1000, 1000) == (producer.sent, histogram.count)
    assert 1_000_000 == histogram.greatest == tally.send_delay.greatest
    assert 500_000 == pytest.approx(histogram.percentile(0.5), rel=0.04)
    assert 500_500_000 == histogram.total == tally.send_delay.total


def test_a_window_limits_unconfirmed_messages():
    """A producer has at most so many unconfirmed messages, and waits for confirms then."""
    tally = Tally()
    producer = Producer([one()], tally, window=5)

    assert 5 == len(messages(producer.take(0)))
    assert (b"", None, 5) == (producer.take(1), producer.wait(1), producer.unconfirmed)
    producer.settle(2, 2000, multiple=True, acked=True)
    assert (3, 0) == (producer.unconfirmed, producer.wait(2))
    assert 2 == len(messages(producer.take(3)))
    assert (2, 7) == (tally.confirmed, tally.sent)


confirms = st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=30)


@given(st.integers(1, 50), confirms)
def test_every_message_is_settled_once(count, events):
    """Acks and nacks in any order, single or multiple, repeated or for unknown numbers, settle each message at most once."""
    tally = Tally()
    producer = Producer([one()], tally, window=count)
    producer.take(0)
    waiting = set(range(1, count + 1))
    acked = nacked = 0
    for number, multiple, is_ack in events:
        producer.settle(number, 5000, multiple=multiple, acked=is_ack)
        gone = {each for each in waiting if not number or each <= number} if multiple else waiting & {number}
        waiting -= gone
        acked, nacked = acked + len(gone) * is_ack, nacked + len(gone) * (not is_ack)

    assert (acked, nacked, len(waiting)) == (tally.confirmed, tally.nacked, producer.unconfirmed)
    assert acked == tally.confirm_latency.recent.count
    assert {5} >= set(tally.confirm_latency.recent.counts)
