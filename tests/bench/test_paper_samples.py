"""PerfTest's per-second lines."""

import pytest
from hypothesis import given, strategies as st

from bench.paper_samples import RATES, Sample, SampleError, has_steady, merged, parse, total

TITLES = (
    "id,time (s),published (msg/s),returned (msg/s),confirmed (msg/s),nacked (msg/s),received (msg/s),"
    "min consumer latency (µs),median consumer latency (µs),75th p. consumer latency (µs),"
    "95th p. consumer latency (µs),99th p. consumer latency (µs),min confirm latency (µs),"
    "median confirm latency (µs),75th p. confirm latency (µs),95th p. confirm latency (µs),"
    "99th p. confirm latency (µs)\n"
)
RECORDED = (
    TITLES
    + "t,1.001,6516,,6073,0,6183,1730,39511,82038,145504,231408,3114,27275,45787,93773,107114\n"
    + "t,2.003,14110,,13847,0,14113,820,18513,26935,41379,50278,2427,35772,50215,68580,90298\n"
    + "t,3.003,11000,,11697,2,11463,2520,20434,34227,71509,112292,1331,16082,24385,92309,145293\n"
)


def made(spans, rate=100.0, median=5):
    """Samples that begin and end at these times, everything at one rate."""
    return [Sample(since, until, dict.fromkeys(RATES, rate), {"c_p50": median}) for since, until in spans]


def test_what_perf_test_wrote_is_read():
    """Rates and percentiles are found by the titles, in microseconds; an empty column counts nothing."""
    samples = parse(RECORDED)

    assert [(0.0, 1.001), (1.001, 2.003), (2.003, 3.003)] == [(each.since, each.t_s) for each in samples]
    assert {
        "published": 14110.0,
        "confirmed": 13847.0,
        "returned": 0.0,
        "nacked": 0.0,
        "received": 14113.0,
    } == samples[1].rates
    assert {
        "c_p50": 35772,
        "c_p75": 50215,
        "c_p95": 68580,
        "c_p99": 90298,
        "l_p50": 18513,
        "l_p75": 26935,
        "l_p95": 41379,
        "l_p99": 50278,
    } == samples[1].latencies
    assert total(samples, "published") == round(6516 * 1.001 + 14110 * 1.002 + 11000)


def test_a_line_that_was_cut_off_or_has_no_length_is_left_out():
    """Half a line is no sample, nor is a rate over next to no time."""
    assert parse(RECORDED) == parse(RECORDED + "t,4.0,12,,1")
    assert parse(RECORDED) == parse(RECORDED + "t,3.01,999999,,999999,0,999999" + ",0" * 10 + "\n")
    assert [] == parse(TITLES)


@pytest.mark.parametrize(
    "text", ["", "nothing\n1\n", TITLES + "t,soon" + ",1" * 15 + "\n", TITLES + "t,1.0,2\n"]
)
def test_other_text_is_refused(text):
    """Missing columns and what is no number are an error, not zeros."""
    with pytest.raises(SampleError, match="cannot be read"):
        parse(text)


def test_one_perf_test_is_left_as_it_is():
    """A single PerfTest's own lines are recorded."""
    assert parse(RECORDED) == merged([parse(RECORDED)])


def test_seconds_of_two_are_added_and_their_worse_latency_taken():
    """An interval of two seconds is spread over both."""
    both = merged([made([(0, 1), (1, 2)], 100.0, 7), made([(0, 2)], 50.0, 9)])

    assert [(0.0, 1.0, 150.0), (1.0, 2.0, 150.0)] == [
        (each.since, each.t_s, each.rates["received"]) for each in both
    ]
    assert [7, 9] == [each.latencies["c_p50"] for each in both]
    assert both[0].latencies["l_p99"] == 0


spans = st.lists(st.floats(0.1, 2.5), min_size=1, max_size=8)


@given(st.lists(spans, min_size=2, max_size=3), st.floats(0.0, 1e5))
def test_putting_together_loses_no_message(lengths, rate):
    """The counts of all are what they were apart."""
    parts = []
    for each in lengths:
        at, times = 0.0, []
        for length in each:
            times.append((at, at + length))
            at += length
        parts.append(made(times, rate))

    expected = sum(sample.rates["received"] * sample.seconds for part in parts for sample in part)
    found = sum(sample.rates["received"] * sample.seconds for sample in merged(parts))
    assert found == pytest.approx(expected)


def test_warm_up_and_end_do_not_count():
    """A run counts if messages of all kinds came through between its warm-up and its end."""
    some, nothing = dict.fromkeys(RATES, 1.0), dict.fromkeys(RATES, 0.0)

    def at(second, rates):
        return [Sample(t, t + 1.0, rates if t == second else nothing, {}) for t in range(12)]

    found = [second for second in range(12) if has_steady(at(second, some), 10, 2.0, 1.0)]

    assert list(range(2, 9)) == found
    assert not has_steady(at(5, some | {"confirmed": 0.0}), 10, 2.0, 1.0)
    assert not has_steady([], 10, 5.0, 2.0)
