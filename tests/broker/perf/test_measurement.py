"""Intervals and rates of a run, and their texts."""

from leveret.broker.client.options import Product
from leveret.broker.perf.load import Load
from leveret.broker.perf.measurement import (
    HEADER_EVERY,
    NANOSECONDS,
    Flow,
    Measurement,
    Report,
    Tally,
    percentiles,
)


def test_an_interval_has_the_rates_since_the_last():
    """An interval counts what happened since the one before it, divided by its length."""
    tally = Tally()
    measurement = Measurement(tally, 0)
    tally.sent, tally.received = 1000, 900
    tally.latency.record(50, 900)
    first = measurement.interval(NANOSECONDS)
    tally.sent, tally.received, tally.confirmed = 1500, 1500, 7
    second = measurement.interval(3 * NANOSECONDS // 2)

    assert (1.0, 1000.0, 900.0, 0.0) == (first.second, first.sent, first.received, first.confirmed)
    assert (1.5, 1000.0, 1200.0, 14.0) == (second.second, second.sent, second.received, second.confirmed)
    assert (900, 50, None) == (first.latency_us.count, first.latency_us.p99, second.latency_us)
    assert [first, second] == measurement.intervals


def test_rates_end_with_the_measured_time():
    """Messages that arrive after the producers have stopped count, but not for the rates."""
    tally = Tally()
    measurement = Measurement(tally, 0)
    tally.sent, tally.received = 1000, 600
    measurement.end(2 * NANOSECONDS)
    tally.received = 1000

    assert (Flow(1000, 500.0), Flow(1000, 300.0), Flow(0, 0.0)) == measurement.flows()
    assert 2.0 == measurement.seconds()


def test_the_time_of_blocked_connections_is_counted_once():
    """Connections that are blocked at the same time count once, and mark the intervals in which they were."""
    measurement = Measurement(Tally(), 0)
    assert measurement.interval(NANOSECONDS).blocked is None
    measurement.block("low on memory", 2 * NANOSECONDS)
    measurement.block("low on memory", 3 * NANOSECONDS)
    assert "low on memory" == measurement.interval(4 * NANOSECONDS).blocked
    measurement.unblock(5 * NANOSECONDS)
    assert measurement.is_blocked
    measurement.unblock(6 * NANOSECONDS)

    assert "low on memory" == measurement.interval(7 * NANOSECONDS).blocked
    assert measurement.interval(8 * NANOSECONDS).blocked is None
    assert 4.0 == measurement.blocked_seconds(9 * NANOSECONDS)
    assert not measurement.is_blocked


def test_percentiles_are_at_most_a_32nd_too_high():
    """The percentiles of many durations are at least those of the sorted durations, and at most a 32nd more."""
    tally = Tally()
    durations = [number * number for number in range(1, 2001)]
    for duration in durations:
        tally.latency.record(duration)
    found = percentiles(tally.latency.whole())

    assert (2000, 1, 4_000_000) == (found.count, found.min, found.max)
    assert sum(durations) / 2000 == found.mean
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99), (0.999, found.p999)):
        exact = durations[int(2000 * share) - 1]
        assert exact <= value <= exact * 33 / 32


def test_the_columns_line_up_and_are_those_of_the_load():
    """Each line is as wide as its header, which is repeated; columns that the load has no values for are absent."""
    tally = Tally()
    measurement = Measurement(tally, 0)
    report = Report(Load(confirm=5, producers=2, rate=100))
    lines = []
    for second in range(1, HEADER_EVERY + 2):
        tally.sent += 1_234_567
        tally.confirm_latency.record(123)
        lines += report.interval(measurement.interval(second * NANOSECONDS))

    assert {0, 80} == {len(line) for line in lines}
    assert 2 == sum("confirmed" in line for line in lines)
    assert "1,234,567" in lines[2]
    assert lines[2].endswith("-        -         0.12     0.12")
    only_sent = Report(Load(consumers=0)).interval(measurement.interval(30 * NANOSECONDS))
    assert ["time", "sent"] == only_sent[0].split()


def test_the_first_line_describes_the_load():
    """Before the run stands what runs where."""
    load = Load(confirm=5, producers=2, consumers=1, rate=100, prefetch=7, ack_every=0, persistent=True)

    described = (
        "2 producers, 1 consumer, 1 queue, 12 bytes, persistent, at most 5 unconfirmed, no acks, prefetch 7, "
        "100 msg/s for each producer"
    )

    assert ["Leveret 1 at amqp://h", described, ""] == Report(load).begin(Product("Leveret", "1"), "amqp://h")
