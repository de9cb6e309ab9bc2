import json
import math
import random
import shutil

import pytest
from pyspark.testing import assertDataFrameEqual
from samples.made_rows import drawn, quiet
from samples.paper_runs import made_plan, made_run

from bench import paper_plan
from bench.paper_records import Records
from leveret.analytics import confirm_compare
from leveret.analytics.confirm_compare import (
    AGAIN,
    BUSY,
    JOB,
    NACKED,
    NO_COST,
    NOTHING,
    PAPER,
    TOO_SHORT,
    chosen,
    compute,
    cuts,
    measured,
)
from leveret.analytics.job import run
from leveret.analytics.reading import Input, InputError

LINES = ("default", "paper-standard", "consumer-ack", "consumer-ack-light", "rabbitmq")


@pytest.fixture
def sweep(spark, tmp_path):
    """Return a function that records a sweep with the rates that a test gives, and makes an input of it."""

    def make(plan, rate=lambda _trial: 1000.0, **columns):
        records = Records(tmp_path / "sweep")
        records.begin(plan)
        for trial in plan.trials:
            more = {name: value(trial) for name, value in columns.items()}
            records.add(*made_run(plan, trial, rate(trial), **more), trial.number)
        return Input(spark, tmp_path / "sweep", tmp_path / "out")

    return make


def by(rows, *names):
    return {tuple(row[name] for name in names): row for row in rows}


def test_rates_and_speed_ups_are_those_reckoned_by_hand(sweep):
    """Two blocks at 100 and 200, and at 150 and 400 beside: twice 1.5 and 2 is 3, whose root is the speed-up.

    Only the two middle seconds of four count. The interval of the mean is t for one degree of freedom, 12.706, times the
    deviation of 100 and 200, 70.7, through the root of two.
    """
    made_of = {
        ("paper-baseline", 1): 100,
        ("paper-baseline", 2): 200,
        ("consumer-ack", 1): 150,
        ("consumer-ack", 2): 400,
    }
    plan = made_plan(("paper-baseline", "consumer-ack"), queues=(1,), blocks=2)
    made = compute(sweep(plan, lambda trial: float(made_of[trial.line, trial.block])))

    runs = by(made["runs"].collect(), "line", "block")
    (rate, sent) = (
        by(made["speed_ups"].collect(), "line", "baseline", "what")["consumer-ack", "paper-baseline", what]
        for what in ("rate", "published")
    )
    mean = by(made["rates"].collect(), "line")["paper-baseline",]

    assert made_of == {key: row["rate"] for key, row in runs.items()}
    assert {(2.0, 2000.0)} == {(row["seconds"], row["confirm_p50_us"]) for row in runs.values()}
    assert pytest.approx((3**0.5, 550 / 300, 3**0.5)) == (rate["ratio"], rate["by_means"], sent["ratio"])
    half = 12.706 * math.log(2 / 1.5) / 2
    assert pytest.approx((3**0.5 * math.exp(-half), 3**0.5 * math.exp(half))) == (rate["low"], rate["high"])
    assert pytest.approx((150, 150 - 12.706 * 50, 150)) == (
        mean["mean_rate"], mean["low"], mean["mean_published"],
    )  # fmt: skip


def attempts(spark, *disturbed, missing=()):
    """The attempt that counts of a cell of two lines; the first line's attempts were disturbed where it says so."""
    rows = [
        (200, 1, 1, attempt, line, 0.3 if spoiled and line == "a" else 0.0)
        for attempt, spoiled in enumerate(disturbed, 1)
        for line in ("a", "b")
        if (attempt, line) not in missing
    ]
    runs = spark.createDataFrame(
        rows, "window int, queues int, block int, rep int, line string, other double"
    )
    (found,) = chosen(runs).collect()
    return found["attempt"]


def test_the_first_attempt_that_nothing_disturbed_counts(spark):
    """Of a cell that was measured again the first quiet attempt counts, or the last one; an incomplete one does not."""
    assert paper_plan.BUSY == BUSY
    assert [1, 2, 3, 1] == [
        attempts(spark, False),
        attempts(spark, True, False, False),
        attempts(spark, True, True, True),
        attempts(spark, True, False, missing={(2, "b")}),
    ]


def test_another_attempt_is_refused(spark, tmp_path):
    """A run that was measured again is named as such, and nothing is made of it."""
    plan = made_plan(("default",), queues=(1,))
    records = Records(tmp_path / "sweep")
    records.begin(plan)
    for attempt, rate in ((1, 10.0), (2, 1000.0)):
        run = made_run(plan, plan.trials[0], rate, attempt=attempt, other=0.3 if attempt == 1 else 0.0)
        records.add(*run, attempt)

    runs = by(compute(Input(spark, tmp_path / "sweep", tmp_path / "out"))["runs"].collect(), "rep")

    assert {1: AGAIN, 2: None} == {attempt: row["refused"] for (attempt,), row in runs.items()}


def test_the_paper_s_own_table_comes_out_of_its_points(sweep):
    """Runs with the paper's ratios give its improvements back, and its mean over more than three queues."""
    queues = (1, 2, 15, 30)
    plan = made_plan(("default", *PAPER), queues=queues, windows=(50,), blocks=2)
    data = sweep(plan, lambda trial: 900 * trial.block * PAPER.get(trial.line, {}).get(trial.queues, 1))

    made = compute(data)
    found = by(made["speed_ups"].filter("what = 'rate'").collect(), "line", "queues")
    above = by(made["above_three"].filter("what = 'rate'").collect(), "line")

    for line, points in PAPER.items():
        for count, ratio in points.items():
            row = found[line, count]
            assert pytest.approx((ratio, ratio - 1)) == (row["ratio"], row["improvement"])
            assert row["faster"]
        assert pytest.approx((points[15] + points[30]) / 2) == above[line,]["ratio"]


def test_runs_with_nacks_are_refused(sweep):
    """A run in which messages were nacked is named with the reason, and no speed-up is made of it."""
    plan = made_plan(("default", "consumer-ack"), queues=(1, 2), blocks=1)
    data = sweep(plan, nacked=lambda trial: 3.0 if (trial.line, trial.queues) == ("consumer-ack", 2) else 0.0)

    made = compute(data)

    refused = [(row["queues"], row["refused"]) for row in made["runs"].collect() if row["refused"]]
    assert [(2, NACKED)] == refused
    assert [1] == [
        row["queues"]
        for row in made["speed_ups"].collect()
        if (row["line"], row["what"]) == ("consumer-ack", "rate")
    ]


def test_runs_without_a_rate_are_refused(spark, sweep):
    """A run in which nothing came through, and one that is shorter than what does not count, are named as such."""
    data = sweep(
        made_plan(("default", "consumer-ack"), queues=(1,)), lambda trial: float(trial.line == "default")
    )
    tables = [data.table(name) for name in ("bench_run", "bench_sample", "bench_cost")]

    usual = [row["refused"] for row in measured(*tables, (1.0, 1.0)).orderBy("line").collect()]
    short = [row["refused"] for row in measured(*tables, (3.0, 3.0)).collect()]

    assert [NOTHING, None] == usual
    assert [TOO_SHORT] * 2 == short


def test_the_plan_says_what_does_not_count(tmp_path):
    """The ends that are cut are those of the sweep's plan; without one they have a default; a broken plan is reported."""
    assert confirm_compare.CUTS == cuts(None, tmp_path)

    (tmp_path / "plan.json").write_text(json.dumps({"cut_start": 3, "cut_end": 2}))
    assert (3.0, 2.0) == cuts(None, tmp_path)

    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot read .*plan\.json"):
        cuts(None, tmp_path)


def test_costs_are_per_message(sweep):
    """CPU, octets and commits are those of the run over its messages; what was not counted stays empty."""
    data = sweep(made_plan(("default", "consumer-ack"), queues=(1,)))

    row = by(compute(data)["rates"].collect(), "line")["default",]

    assert pytest.approx((50.0, 100.0, 2000.0, 0.01, 0.5)) == (
        row["cpu_us"], row["client_cpu_us"], row["disk_bytes"], row["commits"], row["early"],
    )  # fmt: skip
    assert row["flushes"] is None
    assert (2.0, None, None) == (row["confirm_p50_ms"], row["low"], row["high"])


def test_a_run_whose_cost_is_missing_is_refused(spark, sweep):
    """A run of which no row says what it cost is not left out in silence."""
    data = sweep(made_plan(("default",), queues=(1, 2)))
    costs = data.table("bench_cost").limit(1)

    found = measured(data.table("bench_run"), data.table("bench_sample"), costs, (1.0, 1.0)).collect()

    assert {NO_COST, None} == {row["refused"] for row in found}


def test_what_cannot_be_said_is_said(sweep, tmp_path):
    """Without an optimised line there is no figure, with one block no interval; the page has words for both."""
    page = run(JOB, sweep(made_plan(("default",), queues=(1,))), tmp_path / "out" / JOB.name, quiet)

    without_figure, without_interval = page.facts
    assert without_figure.endswith("so there is no figure.")
    assert without_interval.endswith("no line counts as faster.")


def test_neither_order_nor_files_nor_doing_it_twice_change_the_report(spark, sweep, tmp_path):
    """The page has the paper's figures for each window and the machine, and is the same for lines in any order."""
    plan = made_plan(LINES, queues=(1, 5), windows=(50, 200), blocks=2)
    data = sweep(plan, lambda trial: 1000.0 * (2 if trial.line.startswith("consumer") else 1) + trial.number)
    chance = random.Random(2)
    for name in ("bench_run", "bench_sample", "bench_cost"):
        lines = [
            line
            for path in (tmp_path / "sweep" / name).rglob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        chance.shuffle(lines)
        folder = tmp_path / "other" / name / "dt=2026-01-01" / "hour=00"
        folder.mkdir(parents=True)
        for start in range(3):
            (folder / f"{name}-{start}.jsonl").write_text("".join(f"{line}\n" for line in lines[start::3]))
    shutil.copy(tmp_path / "sweep" / "plan.json", tmp_path / "other")
    result = tmp_path / "out" / JOB.name

    page = run(JOB, data, result, quiet)
    tables = {path.name: spark.read.parquet(str(path)) for path in result.iterdir()}
    first = {name: (table.collect(), table.schema) for name, table in tables.items()}
    again = run(JOB, Input(spark, tmp_path / "other", tmp_path / "out2"), result, quiet)

    assert {"above_three", "rates", "runs", "speed_ups"} == first.keys()
    for name, (rows, schema) in first.items():
        assertDataFrameEqual(spark.read.parquet(str(result / name)), spark.createDataFrame(rows, schema))
    assert drawn(page) == drawn(again)
    figures = [section.name for section in page.sections if section.figure]
    assert [f"figure-{number}-window-{window}" for window in (50, 200) for number in (5, 6)] == figures
    assert all("consumer-ack" in str(section.figure) for section in page.sections if section.figure)
    assert "here: 2 x some, kernel 6" in page.lead
    assert "consumer-ack is faster than paper-standard in 4 of 4 settings" in page.facts[0]
