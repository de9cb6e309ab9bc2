import itertools
import math
import random

import pytest
from samples.made_rows import Made, histogram, row, run_twice

from leveret.analytics.histograms import QUANTILES
from leveret.analytics.latency import JOB, compute
from leveret.analytics.objective import DEFAULT
from leveret.analytics.reading import InputError
from leveret.analytics.series import BINS_S, MOST_BINS, bin_seconds

KINDS = (("confirm", "standard", 9.0), ("confirm", "consumer-ack", 10.0), ("deliver", "", 6.0))


def made(seconds=60, queues=3, seed=1):
    """Rows of a node and its queues every five seconds, and all samples by (metric, mode)."""
    chance = random.Random(seed)
    rows, samples = [], {}
    for second in range(0, seconds, 5):
        for metric, mode, centre in KINDS:
            whole = []
            for queue in range(queues):
                values = [round(chance.lognormvariate(centre, 1)) for _ in range(20)]
                whole += values
                names = {"scope": "queue", "vhost": "/", "name": f"q{queue}", "metric": metric, "mode": mode}
                rows.append(row("latency_hist", second, **names, **histogram(values)))
                samples.setdefault((f"q{queue}", metric, mode), []).extend(values)
            rows.append(
                row("latency_hist", second, scope="node", metric=metric, mode=mode, **histogram(whole))
            )
            samples.setdefault((metric, mode), []).extend(whole)
    return rows, samples


ROWS, SAMPLES = made()
LATE = [DEFAULT.us // 2] * 995 + [DEFAULT.us * 2] * 5


@pytest.fixture(scope="module")
def tables(spark):
    """Return the job's tables of a minute, with a metric of which 5 in 1,000 samples are above the objective."""
    late = row("latency_hist", scope="node", metric="late", **histogram(LATE))
    made = compute(Made(spark, {"latency_hist": [*ROWS, late]}))
    return {
        name: made[name].collect()
        for name in ("by_mode", "by_queue", "by_time", "curves", "heat", "objective")
    }


def agrees(found, values):
    """Assert that a row has the quantiles of these samples, to the bucket."""
    ordered = sorted(values)
    for name, thousandths in QUANTILES.items():
        true = ordered[math.ceil(len(ordered) * thousandths / 1000) - 1]
        assert true <= found[f"{name}_us"] <= true * 33 / 32
    assert (len(values), ordered[0], ordered[-1]) == (found["count"], found["min_us"], found["max_us"])
    assert pytest.approx(sum(values) / len(values)) == found["mean_us"]


def test_quantiles_by_mode_and_by_queue_are_those_of_the_samples(tables):
    """For the node and for each queue, merged histograms have the quantiles that all samples sorted have; each once."""
    modes = {(found["metric"], found["mode"]): found for found in tables["by_mode"]}
    queues = {(found["name"], found["metric"], found["mode"]): found for found in tables["by_queue"]}

    assert SAMPLES.keys() | {("late", "")} == modes.keys() | queues.keys()
    for key, values in SAMPLES.items():
        agrees(modes[key] if len(key) == 2 else queues[key], values)


def test_times_are_cut_so_that_a_figure_can_show_them(tables, spark):
    """A short record has a point for each interval, a long one a point for several."""
    month = 30 * 24 * 3600

    assert BINS_S[0] == bin_seconds(0) == Made(spark, {"latency_hist": ROWS}).bin_seconds("latency_hist")
    assert 12 == len({found["time"] for found in tables["by_time"]})
    assert month / MOST_BINS <= bin_seconds(month) == 4 * 3600


def test_the_curve_ends_with_all_samples(tables):
    """The share up to a value rises with it, to 1."""
    curve = [found["share"] for found in tables["curves"] if found["metric"] == "deliver"]

    assert sorted(curve) == curve
    assert 1.0 == curve[-1]


def test_the_objective_is_burnt_by_what_takes_longer(tables):
    """Samples above the objective, 5 of 1,000, use up five times the allowed share."""
    (found,) = [each for each in tables["objective"] if each["metric"] == "late"]

    assert pytest.approx((0.005, 5.0)) == (found["above"], found["burn"])


def test_every_sample_is_somewhere_on_the_map(tables):
    """The rectangles of the map do not overlap, and have all samples of the node."""
    cells = tables["heat"]

    assert len(LATE) + sum(len(values) for key, values in SAMPLES.items() if len(key) == 2) == sum(
        cell["count"] for cell in cells
    )
    for metric in ("confirm", "deliver"):
        for time in {cell["time"] for cell in cells}:
            ends = sorted(
                (c["low_us"], c["end_us"]) for c in cells if (c["metric"], c["time"]) == (metric, time)
            )
            assert all(low < end for low, end in ends)
            assert all(end <= low for (_, end), (low, _) in itertools.pairwise(ends))


def test_the_latency_of_messages_is_that_of_all_queues(spark):
    """The time from publish to delivery, which brokers measure for queues only, is told of all of them, beside a node's."""
    rows = [
        row("latency_hist", scope="queue", name=name, metric="deliver", **histogram([value]))
        for name, value in (("a", 10), ("b", 20))
    ]
    rows.append(row("latency_hist", scope="node", metric="confirm", **histogram([5])))
    rows.append(row("latency_hist", scope="queue", name="a", metric="confirm", **histogram([5])))

    found = compute(Made(spark, {"latency_hist": rows}))["by_mode"].collect()

    assert [("confirm", 1, 5), ("deliver", 2, 20)] == [
        (each["metric"], each["count"], each["max_us"]) for each in found
    ]


def test_another_scheme_is_refused(spark):
    """Buckets of a scheme that is not known are not guessed at."""
    made = row("latency_hist", scope="node", metric="confirm", **(histogram([1]) | {"scheme": "ll6"}))

    with pytest.raises(InputError, match="ll6"):
        compute(Made(spark, {"latency_hist": [made]}))


def test_neither_order_nor_files_nor_doing_it_twice_change_the_report(data, tmp_path):
    """The page has figures for each metric, says the percentiles in words, and is the same for shuffled lines.

    What users ask for, the time from publish to delivery, comes first; a metric that was within the objective all the
    time has a sentence and no figure of its burn rate.
    """
    page = run_twice(JOB, {"latency_hist": ROWS}, data, tmp_path / "latency")
    most = {
        metric: max(map(max, (v for key, v in SAMPLES.items() if key[0] == metric)))
        for metric in ("confirm", "deliver")
    }
    missed = {metric for metric, value in most.items() if value > DEFAULT.us * 33 / 32}

    assert {f"{metric}-{kind}" for metric in most for kind in ("quantiles", "heat")} | {
        f"{metric}-burn" for metric in missed
    } == {section.name for section in page.sections if section.figure}
    assert "Message latency, publish to delivery: percentiles" == page.sections[0].title
    assert (missed != most.keys()) == any(fact.startswith("Within the objective") for fact in page.facts)
    assert any(fact.startswith("Confirm (consumer-ack): 50 % within ") for fact in page.facts)
