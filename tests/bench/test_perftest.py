"""Figures that are read from PerfTest's report."""

from bench.perftest import added, parse

REPORT = """\
id: test-1, time 1.000 s, sent: 900 msg/s, received: 890 msg/s
id: test-1, time 2.000 s, sent: 1000 msg/s, received: 980 msg/s, confirmed: 990 msg/s
id: test-1, sending rate avg: 950 msg/s
id: test-1, receiving rate avg: 935 msg/s
id: test-1, consumer latency min/median/75th/95th/99th 100/200/300/400/500 µs
id: test-1, confirm latency min/median/75th/95th/99th 1/2/3/4/5 ms
"""


def test_latencies_of_consumers_and_of_confirms_are_told_apart():
    """Median and 99th percentile of each are in microseconds, in whatever unit PerfTest writes them."""
    found = parse(REPORT, 1)

    assert (200.0, 500.0) == (found.median_latency_us, found.p99_latency_us)
    assert (2000.0, 5000.0) == (found.median_confirm_us, found.p99_confirm_us)
    assert 1000.0 == found.sent


def test_without_confirms_there_is_no_latency_of_them():
    """A run without confirms has none, alone and added to one that has."""
    plain = parse(
        "\n".join(line for line in REPORT.splitlines() if "confirm" not in line or "time" in line), 1
    )

    assert plain.median_confirm_us is None
    assert 5000.0 == added([plain, parse(REPORT, 1)]).p99_confirm_us
