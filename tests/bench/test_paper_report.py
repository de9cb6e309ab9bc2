"""The report of a sweep."""

import pytest
from paper_runs import made_plan, made_run

from bench.paper_report import report, results, shown, speed_up
from bench.paper_stats import Ratio

RATES = {
    "default": 1000.0,
    "paper-standard": 500.0,
    "consumer-ack": 1500.0,
    "consumer-ack-light": 2000.0,
    "rabbitmq": 250.0,
}


def reported(plan, made):
    """The report of runs that `made_run` made, and whether no verdict is against us."""
    runs, samples, costs = zip(*made, strict=True)
    text, good = report(plan, results(plan, runs, [row for rows in samples for row in rows], costs))
    return "\n".join(text), good


def row(text, queues, line):
    """The cells of a line of the table."""
    return next(each.split() for each in text.splitlines() if each.split()[:2] == [str(queues), line])


def test_each_line_has_its_speed_up_over_both_baselines_beside_the_papers():
    """One block: ratios without an interval, saying so, and both baselines named."""
    plan = made_plan(lines=list(RATES), queues=(1, 2, 8))

    text, good = reported(plan, [made_run(plan, trial, RATES[trial.line]) for trial in plan.trials])

    for expected in (
        "1 consumer-ack-light 1 2,000 2.00 [one pair] 4.00 [one pair] 3.48",
        "2 consumer-ack 1 1,500 1.50 [one pair] 3.00 [one pair] 2.01",
        "8 rabbitmq 1 250 0.25 [one pair] 0.50 [one pair] -",
        "1 default 1 1,000 - 2.00 [one pair] -",
    ):
        queues, line, *cells = expected.split()
        assert cells == row(text, queues, line)[2 : len(cells) + 2]
    assert {"default", "paper-standard"} == {
        each.split()[0] for each in text.splitlines() if "BASELINE" in each
    }
    assert "storage.commit_interval=200ms storage.early_confirm=false" in text
    assert good


def test_a_message_costs_what_the_records_say():
    """Confirm in ms, CPU in us, octets, commits, flushes, early confirms, the disk's flushes: each per message, or a dash."""
    plan = made_plan(lines=["default"], queues=(1,))

    text, _ = reported(
        plan, [made_run(plan, plan.trials[0], counters={"commits": 40, "early": 2000, "flushes": 80})]
    )

    assert "2.0 50.0 100.0 2,000 0.01000 0.02000 0.50000 -" == " ".join(row(text, 1, "default")[-8:])


def test_blocks_are_paired_and_six_of_them_judged():
    """Six blocks give an interval and a verdict for each of the modes."""
    plan = made_plan(lines=["default", "consumer-ack", "consumer-ack-light"], queues=(15,), blocks=6)
    factor = {"default": 1.0, "consumer-ack": 1.3, "consumer-ack-light": 0.9}

    text, good = reported(plan, [made_run(plan, t, 1000.0 * t.block * factor[t.line]) for t in plan.trials])

    assert row(text, 15, "consumer-ack")[4:7] == ["1.30", "[1.30,", "1.30]"]
    assert row(text, 15, "consumer-ack")[7:9] == ["-", "1.41"]
    verdicts = [each.split(maxsplit=4) for each in text.splitlines() if each.startswith("  -c")]
    assert [
        "consumer-ack        1.30 [1.30, 1.30]     holds",
        "consumer-ack-light  0.90 [0.90, 0.90]     DOES NOT HOLD",
    ] == [each[4] for each in verdicts]
    assert not good


def test_fewer_blocks_are_not_judged():
    """One block is no verdict, however slow a mode is."""
    plan = made_plan(lines=["default", "consumer-ack"], queues=(1,))

    text, good = reported(
        plan, [made_run(plan, t, 10.0 if t.line != "default" else 1000.0) for t in plan.trials]
    )

    assert "0.01 [one pair]       not judged: 1 of 6 blocks" in text
    assert good


def test_what_is_missing_is_said():
    """A sweep that was stopped reports what it has; a line that was not measured has no figures, nor has its ratio."""
    plan = made_plan(queues=(1,))
    kept = [trial for trial in plan.trials if trial.line != "default"]

    text, _ = reported(plan, [made_run(plan, trial) for trial in kept])

    assert "NOT COMPLETE: 1 of 3 runs are missing" in text
    assert row(text, 1, "default") == ["1", "default", "0", "not", "measured"]
    assert row(text, 1, "consumer-ack")[4:8] == ["-", "1.00", "[one", "pair]"]
    assert "not judged: 0 of 6 blocks" in text


def test_a_run_without_its_samples_counts_as_missing():
    """No figure is made of a run whose seconds are not there."""
    plan = made_plan(lines=["default"], queues=(1,))
    run, _, cost = made_run(plan, plan.trials[0])

    assert [] == results(plan, [run], [], [cost])


def test_windows_are_apart():
    """Each publisher window has its table, and nothing is paired across them."""
    plan = made_plan(lines=["default", "consumer-ack"], queues=(1,), windows=(50, 1000))

    text, _ = reported(
        plan, [made_run(plan, t, (2.0 if t.line == "default" else 3.0) * t.window) for t in plan.trials]
    )

    assert text.index("Publisher window -c 50\n") < text.index("Publisher window -c 1000\n")
    assert ["50 1 queues consumer-ack 1.50", "1000 1 queues consumer-ack 1.50"] == [
        " ".join(each.split()[1:6]) for each in text.splitlines() if each.startswith("  -c")
    ]


def test_queue_counts_above_three_have_their_mean():
    """Queue counts above three have the arithmetic mean of the speed-ups, as in the paper; here of 1.5 and 2.5."""
    plan = made_plan(lines=["default", "consumer-ack"], queues=(3, 5, 8))
    factor = {3: 100.0, 5: 1.5, 8: 2.5}

    text, _ = reported(
        plan,
        [made_run(plan, t, 1000.0 * (factor[t.queues] if t.line != "default" else 1)) for t in plan.trials],
    )

    assert (
        "mean over more than 3 queues: 2.00 x default (2 queue counts); the paper, over all it measured: 1.43"
        in text
    )


def test_doubtful_runs_are_named():
    """Other work on the machine, refused messages, missing counters and mixed revisions are reported."""
    plan = made_plan(lines=["default", "consumer-ack"], queues=(1,))
    first, second = plan.trials

    text, _ = reported(
        plan, [made_run(plan, first, other=0.3, nacked=1.0, counters={}), made_run(plan, second, git="def")]
    )

    assert f"went to something else: 1 of 2 runs ({first.line} 1)" in text
    assert f"refused in the seconds that count: 1 of 2 runs ({first.line} 1)" in text
    assert f"logged no counters: 1 of 2 runs ({first.line} 1)" in text
    assert "runs of 2 revisions: abc, def" in text


@pytest.mark.parametrize("queues", [15, 16])
def test_two_perf_tests_are_explained_where_there_were_two(queues):
    """Above 15 queues the report says how they were divided."""
    plan = made_plan(lines=["default"], queues=(queues,))

    text, _ = reported(plan, [made_run(plan, plan.trials[0])])

    assert (queues > 15) == ("two PerfTests at once" in text)


def test_ratios_are_shown_with_what_they_have():
    """Ratios of no pair, one pair and several are shown with their intervals, if any."""
    assert ["-", "1.50 [one pair]", "1.50 [1.25, 1.75]"] == [
        shown(None),
        shown(Ratio(1, 1.5, None, None)),
        shown(Ratio(6, 1.5, 1.25, 1.75)),
    ]
    assert speed_up("consumer-ack", "default", []) is None
