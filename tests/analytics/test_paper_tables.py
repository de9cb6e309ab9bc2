"""The tables and figures of docs/paper-report.md."""

from types import SimpleNamespace

import pytest
from samples.paper_runs import made_plan, made_run, write

from bench.paper_plan import DESIGN, LINES
from bench.paper_tables import figure, page, tables_of, verdict

FACTOR = {"timer": 0.8, "late": 0.5, "tables": 0.9}
SPEED = {"consumer-ack": 1.2, "consumer-ack-light": 1.5, "rabbitmq": 0.25, "rabbitmq-plugins": 0.2}


def speed(line):
    """A line's rate beside the default's."""
    product = SPEED.get(line, 1.0)
    for factor in DESIGN.get(line, ()):
        product *= FACTOR[factor]
    return product


def made(
    spark,
    folder,
    plan,
    rate=lambda trial: 1000.0 * speed(trial.line) / trial.queues,
    keep=lambda _: True,
    **more,
):
    """The tables of a plan with these rates, and the page of them, as cells by title of the section."""
    write(folder, plan, [made_run(plan, trial, rate(trial), **more) for trial in plan.trials if keep(trial)])
    found = tables_of(spark, folder)
    sections, title = {}, ""
    for line in page(plan, found, {5: "figures/a.svg"}):
        if line.startswith("### "):
            title = line.removeprefix("### ")
        sections.setdefault(title, []).append(
            [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else line
        )
    return found, sections


def rows(sections, title):
    """The rows of the table of a section, without its head."""
    return [each for each in sections[title] if isinstance(each, list)][2:]


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory):
    """The page of a small sweep of all lines in six blocks, without any noise."""
    plan = made_plan(lines=tuple(LINES), queues=(1, 2, 15), blocks=6)
    return made(spark, tmp_path_factory.mktemp("whole"), plan)


def test_the_claims_stand_beside_ours_by_the_papers_definition(whole):
    """Each mode has the paper's figure, the ratio of mean rates, the paired ratios to each baseline, and a verdict."""
    found = rows(whole[1], "Beside the paper")

    assert [("1", "3.08"), ("2", "2.01"), ("15", "1.41"), ("1", "3.48"), ("2", "2.16"), ("15", "1.53")] == [
        (row[0], row[2]) for row in found
    ]
    assert [
        "1",
        "`consumer-ack`",
        "3.08",
        "3.33",
        "3.33",
        "3.33 (3.33 to 3.33)",
        "3.00 (3.00 to 3.00)",
        "1.20 (1.20 to 1.20)",
        "4.80 (4.80 to 4.80)",
        "6.00 (6.00 to 6.00)",
        "faster",
    ] == found[0]


def test_the_design_has_its_effects(whole):
    """The cost of each factor is found again, at each queue count."""
    found = {
        (row[0], row[1]): row[2]
        for row in rows(whole[1], "Cost of the timer, the late confirms and the tables")
    }

    for queues in ("1", "2", "15"):
        assert found[queues, "timer"] == "0.80 (0.80 to 0.80)"
        assert found[queues, "late"] == "0.50 (0.50 to 0.50)"
        assert found[queues, "tables"] == "0.90 (0.90 to 0.90)"
        assert found[queues, "timer x late x tables"] == "1.00 (1.00 to 1.00)"


def test_default_and_plugins_are_judged(whole):
    """The default has its ratio to the paper's standard, RabbitMQ's plugins their cost."""
    assert [["1", "2.50 (2.50 to 2.50)", *["1.00 (1.00 to 1.00)"] * 3, "faster"]] == rows(
        whole[1], "The default beside the paper's standard"
    )[:1]
    assert [["15", "0.80 (0.80 to 0.80)", "1.00 (1.00 to 1.00)", "slower"]] == rows(
        whole[1], "RabbitMQ's plugins"
    )[-1:]
    assert ["`consumer-ack`", "`paper-baseline`", "1", *["3.33 (3.33 to 3.33)"] * 2, "1.429"] in rows(
        whole[1], "More than three queues"
    )


def test_the_shape_of_a_line_is_told(spark, tmp_path):
    """A line's greatest point is named, and its shape: it falls, rises, or both, as in the paper's Figure 5."""
    at = {
        "default": {1: 9.0, 2: 8.0, 15: 7.0},
        "consumer-ack": {1: 7.0, 2: 9.0, 15: 8.0},
        "rabbitmq": {1: 7.0, 2: 8.0, 15: 9.0},
    }
    plan = made_plan(lines=tuple(at), queues=(1, 2, 15))
    _, sections = made(spark, tmp_path, plan, lambda trial: at[trial.line][trial.queues])

    assert [["1", "falls"], ["2", "rises to 2 queues, then falls"], ["15", "rises"]] == [
        row[-2:] for row in rows(sections, "Shape of the lines")
    ]


def test_what_was_left_out_is_said_with_the_reason(spark, tmp_path):
    """Runs that were not made are named, as are cells that were measured again and those that count although disturbed."""
    plan = made_plan(lines=("default", "consumer-ack"), queues=(1,), blocks=2)
    first = plan.trials[0]

    _, sections = made(spark, tmp_path, plan, keep=lambda trial: trial.block == 1, other=0.3)
    text = " ".join(each for each in sections[""] if isinstance(each, str))

    assert "Of 4 planned runs 2 count." in text
    assert "Counted although disturbed: 1 cells (block 1 with 1 queues)." in text
    assert "Not measured, because the machine was needed for other work: 2 runs (block 2: " in text
    assert f"sweep, seed {plan.seed}" not in text
    assert "revision abc" in text
    assert "15 January 2027" in text
    assert first.block == 1


def test_few_blocks_are_no_verdict():
    """A verdict needs six blocks; an interval that contains 1 shows no difference."""
    assert [
        "not judged",
        "not judged",
        "faster, of 3 blocks (a verdict needs 6)",
        "slower",
        "no difference shown",
    ] == [
        verdict(each)
        for each in (
            None,
            SimpleNamespace(n=1, low=None, high=None),
            SimpleNamespace(n=3, low=1.1, high=3.0),
            SimpleNamespace(n=6, low=0.7, high=0.9),
            SimpleNamespace(n=6, low=0.9, high=1.1),
        )
    ]


def test_a_figure_has_rates_and_speed_ups(whole):
    """The left panel has the rates of the line and what it is compared with, the right one its ratios and the paper's."""
    left, right = figure("consumer-ack", whole[0]).panels

    old = ["paper-baseline", "paper-standard", "default", "rabbitmq", "rabbitmq-plugins"]
    assert [*old, "consumer-ack"] == [each.label for each in left.series]
    assert [*(f"beside {each}" for each in old), "the paper"] == [each.label for each in right.series]
    assert [1, 2, 15] == left.series[0].x
    assert [1, 2, 15, 30] == right.series[-1].x
