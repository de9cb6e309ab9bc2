import json
import random
import shutil

import pytest
from made_rows import drawn, quiet
from paper_runs import made_plan, made_run
from pyspark.testing import assertDataFrameEqual

from bench import paper_report
from bench.paper_records import BenchCost, BenchRun, BenchSample, Records
from leveret.analytics import confirm_compare
from leveret.analytics.confirm_compare import (
    JOB,
    NACKED,
    NO_COST,
    NOTHING,
    PAPER,
    PAPER_ABOVE_THREE,
    TOO_SHORT,
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
    """Rows by the values of some columns."""
    return {tuple(row[name] for name in names): row for row in rows}


def test_rates_and_speed_ups_are_those_of_the_printed_report(sweep, tmp_path):
    """Records of a whole sweep give the means, ratios and intervals that `bench.paper` prints of them."""
    plan = made_plan(LINES, queues=(1, 2, 5, 8), windows=(50, 200), blocks=3)
    chance = random.Random(1)
    data = sweep(plan, lambda trial: 1000 * trial.queues * chance.lognormvariate(0, 0.3))
    records = Records(tmp_path / "sweep")
    expected = paper_report.results(
        plan, *(records.read(kind) for kind in (BenchRun, BenchSample, BenchCost))
    )

    made = compute(data)
    runs = by(made["runs"].collect(), "run_id")
    found = by(made["speed_ups"].collect(), "window", "queues", "line", "baseline")

    assert len(expected) == len(runs) == len(plan.trials)
    for result in expected:
        row = runs[result.run.run_id,]
        assert pytest.approx(result.steady.counted) == row["rate"]
        assert (result.steady.seconds, result.steady.confirm_p50_us) == (
            row["seconds"],
            row["confirm_p50_us"],
        )
    for window, queues in plan.cells():
        here = [each for each in expected if (each.cost.window, each.run.queues) == (window, queues)]
        for line in LINES:
            for baseline in ("default", "paper-standard"):
                if line != baseline:
                    ratio = paper_report.speed_up(line, baseline, here)
                    row = found[window, queues, line, baseline]
                    assert pytest.approx((ratio.mean, ratio.low, ratio.high)) == (
                        row["ratio"],
                        row["low"],
                        row["high"],
                    )


def test_the_paper_s_own_table_comes_out_of_its_points(sweep):
    """Runs with the paper's ratios give its improvements back, and its mean over more than three queues."""
    queues = (1, 2, 15, 30)
    plan = made_plan(("default", *PAPER), queues=queues, windows=(50,), blocks=2)
    data = sweep(plan, lambda trial: 900 * trial.block * PAPER.get(trial.line, {}).get(trial.queues, 1))

    made = compute(data)
    found = by(made["speed_ups"].collect(), "line", "queues")
    above = by(made["above_three"].collect(), "line")

    for line, points in PAPER.items():
        for count, ratio in points.items():
            row = found[line, count]
            assert pytest.approx((ratio, ratio - 1)) == (row["ratio"], row["improvement"])
            assert row["faster"]
        assert pytest.approx((points[15] + points[30]) / 2) == above[line,]["ratio"]
    assert {
        line: {queues: round(ratio, 2) for queues, ratio in points.items()} for line, points in PAPER.items()
    } == {
        line: {queues: points[queues] for queues in PAPER[line]}
        for line, points in paper_report.PAPER.items()
    }
    assert paper_report.PAPER_ABOVE_THREE == PAPER_ABOVE_THREE


def test_runs_with_nacks_are_refused(sweep):
    """A run in which messages were nacked is named with the reason, and no speed-up is made of it."""
    plan = made_plan(("default", "consumer-ack"), queues=(1, 2), blocks=1)
    data = sweep(plan, nacked=lambda trial: 3.0 if (trial.line, trial.queues) == ("consumer-ack", 2) else 0.0)

    made = compute(data)

    refused = [(row["queues"], row["refused"]) for row in made["runs"].collect() if row["refused"]]
    assert [(2, NACKED)] == refused
    assert [1] == [row["queues"] for row in made["speed_ups"].collect() if row["line"] == "consumer-ack"]


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
