import itertools
import math
import random

import pytest
from made_rows import histogram, row
from pyspark.testing import assertDataFrameEqual

from analytics.histograms import QUANTILES
from analytics.job import run
from analytics.latency import JOB, OBJECTIVE_US, compute
from analytics.reading import InputError
from analytics.series import BINS_S, bin_seconds

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
    chance.shuffle(rows)
    return rows, samples


def agrees(found, values):
    """Whether a row has the quantiles of these samples, to the bucket."""
    ordered = sorted(values)
    for name, thousandths in QUANTILES.items():
        true = ordered[math.ceil(len(ordered) * thousandths / 1000) - 1]
        assert true <= found[f"{name}_us"] <= true * 33 / 32
    assert (len(values), ordered[0], ordered[-1]) == (found["count"], found["min_us"], found["max_us"])
    assert pytest.approx(sum(values) / len(values)) == found["mean_us"]


def test_quantiles_by_mode_and_by_queue_are_those_of_the_samples(data):
    """For the node and for each queue, merged histograms have the quantiles that all samples sorted have."""
    rows, samples = made()
    tables = compute(data({"latency_hist": rows}, files=3))

    modes = {(found["metric"], found["mode"]): found for found in tables["by_mode"].collect()}
    queues = {
        (found["name"], found["metric"], found["mode"]): found for found in tables["by_queue"].collect()
    }

    assert samples.keys() == modes.keys() | queues.keys()
    for key, values in samples.items():
        agrees(modes[key] if len(key) == 2 else queues[key], values)


def test_a_node_s_rows_are_not_added_to_those_of_its_queues(data):
    """A sample is in a row of the node and in one of its queue; it counts once."""
    rows, samples = made(seconds=5)
    tables = compute(data({"latency_hist": rows}))

    assert {key: len(values) for key, values in samples.items() if len(key) == 2} == {
        (found["metric"], found["mode"]): found["count"] for found in tables["by_mode"].collect()
    }


def test_times_are_cut_so_that_a_figure_can_show_them(data):
    """A short record has a point for each interval, a long one a point for several."""
    short = data({"latency_hist": made(60)[0]}).table("latency_hist")
    (step,) = {bin_seconds(short)}
    tables = compute(data({"latency_hist": made(60)[0]}))

    assert BINS_S[0] == step
    assert 12 == tables["by_time"].select("time").distinct().count()


def test_the_curve_ends_with_all_samples(data):
    """The share up to a value rises with it, to 1."""
    tables = compute(data({"latency_hist": made()[0]}))
    curve = [
        found["share"] for found in tables["curves"].orderBy("us").collect() if found["metric"] == "deliver"
    ]

    assert sorted(curve) == curve
    assert 1.0 == curve[-1]


def test_the_objective_is_burnt_by_what_takes_longer(data):
    """Of 1,000 samples 5 above the objective use up five times what may be."""
    values = [OBJECTIVE_US // 2] * 995 + [OBJECTIVE_US * 2] * 5
    made = row("latency_hist", scope="node", metric="confirm", mode="standard", **histogram(values))

    (found,) = compute(data({"latency_hist": [made]}))["objective"].collect()

    assert pytest.approx((0.005, 5.0)) == (found["above"], found["burn"])


def test_every_sample_is_somewhere_on_the_map(data):
    """The rectangles of the map do not overlap, and have all samples of the node."""
    rows, samples = made()
    cells = compute(data({"latency_hist": rows}))["heat"].collect()

    assert sum(len(values) for key, values in samples.items() if len(key) == 2) == sum(
        cell["count"] for cell in cells
    )
    for metric in ("confirm", "deliver"):
        for time in {cell["time"] for cell in cells}:
            ends = sorted(
                (c["low_us"], c["end_us"]) for c in cells if (c["metric"], c["time"]) == (metric, time)
            )
            assert all(low < end for low, end in ends)
            assert all(end <= low for (_, end), (low, _) in itertools.pairwise(ends))


def test_another_scheme_is_refused(data):
    """Buckets of a scheme that is not known are not guessed at."""
    made = row("latency_hist", scope="node", metric="confirm", **(histogram([1]) | {"scheme": "ll6"}))

    with pytest.raises(InputError, match="ll6"):
        compute(data({"latency_hist": [made]}))


def test_neither_order_nor_files_change_the_result(data, tmp_path, spark):
    """The same rows shuffled into several files give the same tables."""
    rows, _ = made()
    here = {name: table.collect() for name, table in compute(data({"latency_hist": rows})).items()}
    random.Random(9).shuffle(rows)
    there = compute(data({"latency_hist": rows}, files=4))

    for name, table in there.items():
        expected = spark.createDataFrame(here[name], table.schema)
        assertDataFrameEqual(table, expected)


def test_the_report_shows_each_metric(data, tmp_path):
    """The page has three figures for each metric and says the percentiles in words; doing it twice changes nothing."""
    made_data = data({"latency_hist": made()[0]})

    page = run(JOB, made_data, tmp_path / "out" / "latency", lambda _text: None)
    again = run(JOB, made_data, tmp_path / "out" / "latency", lambda _text: None)

    assert {
        f"{metric}-{kind}" for metric in ("confirm", "deliver") for kind in ("quantiles", "burn", "heat")
    } == {section.name for section in page.sections if section.figure}
    assert any(fact.startswith("confirm (consumer-ack): half within ") for fact in page.facts)
    assert page == again
