import random

import pytest
from made_rows import row
from pyspark.testing import assertDataFrameEqual

from analytics.generate import queue_interval, write
from analytics.job import run
from analytics.paging import JOB, STATES, compute
from analytics.reading import Input


def simulated(seed, *, messages=3000, empty_end=True):
    """A queue in which messages wait a random time: its rows every five seconds, and the waits by brute force."""
    chance, now = random.Random(seed), 0.0
    stays = []
    for _ in range(messages):
        now += chance.expovariate(20)
        stays.append((now, now + chance.expovariate(0.5)))
    end = max(leave for _, leave in stays) if empty_end else now
    last = int(end // 5) * 5 + (5 if empty_end else 0)
    rows = []
    for second in range(0, last + 5, 5):
        inside = [(a, b) for a, b in stays if a <= second]
        ready = sum(b > second for _, b in inside)
        area = round(sum(min(b, second) - a for a, b in inside) * 1_000_000)
        rows.append(
            row(
                "queue_interval",
                second,
                queue="q",
                ready=ready,
                alpha=ready,
                pub=len(inside),
                delivered=len(inside) - ready,
                area_ready=area,
                area_alpha=area // 2,
                area_gamma=area - area // 2,
            )
        )
    return rows, stays, last


@pytest.mark.parametrize("seed", [1, 2])
def test_little_s_law_is_exact_from_empty_to_empty(data, seed):
    """The wait by Little's law is the mean of the waits, reckoned one by one, where a queue begins and ends empty."""
    rows, stays, _ = simulated(seed)

    (found,) = compute(data({"queue_interval": rows}))["queues"].collect()

    true_ms = 1000 * sum(leave - come for come, leave in stays) / len(stays)
    assert pytest.approx(true_ms, rel=1e-6) == found["little_ms"]
    assert 0 == found["boundary"]
    assert pytest.approx((0.5, 0.0, 0.5, 0.0), abs=1e-6) == tuple(found[f"share_{state}"] for state in STATES)


def test_what_waits_at_the_ends_is_told(data):
    """Where messages are left at the end, how many is told as a share of those that left."""
    rows, _, _ = simulated(3, empty_end=False)

    (found,) = compute(data({"queue_interval": rows}))["queues"].collect()

    assert pytest.approx(rows[-1]["ready"] / (rows[-1]["pub"] - rows[-1]["ready"])) == found["boundary"]


def test_the_measured_wait_stands_beside_it(data):
    """Samples of the queue's deliveries give the wait to compare with, and the gap."""
    rows, stays, _ = simulated(4)
    waits = [round((leave - come) * 1_000_000) for come, leave in stays]
    hist = row(
        "latency_hist", 5, scope="queue", name="q", metric="deliver", count=len(waits), sum_us=sum(waits),
        min_us=min(waits), max_us=max(waits),
    )  # fmt: skip
    other = row("latency_hist", 5, scope="queue", name="q", metric="ack", count=1, sum_us=10**9)

    (found,) = compute(data({"queue_interval": rows, "latency_hist": [hist, other]}))["queues"].collect()

    assert len(waits) == found["samples"]
    assert found["gap"] < 0.01


def test_moves_are_per_second_and_thrashing_per_publish(data):
    """Changes of state are told as rates, what was read back from disk per publish."""
    rows = [
        row("queue_interval", 0, pub=0),
        row("queue_interval", 10, pub=100, t_ag=50, t_to_delta=30, t_from_delta=20),
    ]

    (found,) = compute(data({"queue_interval": rows}))["queues"].collect()

    assert (5.0, 3.0, 2.0, 0.2) == (
        found["t_ag_per_s"], found["t_to_delta_per_s"], found["t_from_delta_per_s"], found["thrash"],
    )  # fmt: skip


def test_a_level_that_did_not_change_is_spread_over_its_time(data):
    """Seven messages that lay for a minute without a row were there in every part of the minute."""
    rows = [
        row("queue_interval", 0, queue="still", ready=7, alpha=7),
        row(
            "queue_interval",
            60,
            queue="still",
            ready=7,
            alpha=7,
            area_ready=7 * 60 * 10**6,
            area_alpha=7 * 60 * 10**6,
        ),
    ]

    found = compute(data({"queue_interval": rows}))["residence"].collect()

    assert [7.0] * 12 == [pytest.approx(each["alpha"]) for each in found]


def test_totals_are_since_the_start(data):
    """What the page counts is all that was published into queues since they were made, by mode."""
    rows = [
        row("queue_interval", 5 * n, queue="q", mode="consumer-ack", pub=100 + n, acked=90) for n in range(3)
    ]
    rows.append(row("queue_interval", 5, queue="p", mode="standard", pub=10))

    found = compute(data({"queue_interval": rows}))["totals"].collect()

    assert [("consumer-ack", 102, 90), ("standard", 10, 0)] == sorted(
        (each["mode"], each["pub"], each["acked"]) for each in found
    )


def test_generated_queues_are_where_their_formulas_put_them(spark, tmp_path):
    """Of made-up queues a third is in alpha and two thirds in gamma, and Little's wait is level over rate."""
    write(queue_interval(spark, 5000), "queue_interval", tmp_path, parquet=True)

    for found in compute(Input(spark, tmp_path, tmp_path / "out"))["queues"].collect():
        number = int(found["queue"][1:])
        level, rate = 3 * (number % 10), 10 + number % 7
        assert pytest.approx(level) == found["mean_ready"]
        assert pytest.approx(1000 * level / rate) == found["little_ms"]
        if level:
            assert pytest.approx((1 / 3, 2 / 3)) == (found["share_alpha"], found["share_gamma"])


def test_order_does_not_matter_and_the_report_is_the_same_twice(data, tmp_path):
    """Shuffled lines in several files give the same tables, and a second run the same page."""
    rows, _, _ = simulated(5, messages=500)
    here = compute(data({"queue_interval": rows}))
    expected = {name: table.collect() for name, table in here.items()}
    random.Random(1).shuffle(rows)
    made = data({"queue_interval": rows}, files=3)
    for name, table in compute(made).items():
        assertDataFrameEqual(table, made.spark.createDataFrame(expected[name], table.schema))

    first = run(JOB, made, tmp_path / "out" / "paging", lambda _text: None)
    assert first == run(JOB, made, tmp_path / "out" / "paging", lambda _text: None)
    assert {"states-0", "fullest"} == {section.name for section in first.sections if section.figure}
