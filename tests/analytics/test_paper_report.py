"""The report of a sweep on the console."""

import pytest
from samples.paper_runs import made_plan, made_run, write

from bench.paper_report import report
from bench.paper_tables import tables_of

SPEED = {"default": 1.0, "consumer-ack": 1.3, "consumer-ack-light": 0.9}


@pytest.fixture
def reported(spark, tmp_path):
    """Return a function that makes the report of runs that `made_run` made, and whether no verdict is against us."""

    def make(plan, runs):
        write(tmp_path, plan, runs)
        text, good = report(plan, tables_of(spark, tmp_path))
        return "\n".join(text), good

    return make


def test_six_blocks_are_judged_in_each_window(reported):
    """Each window has its tables, nothing is paired across them, and a mode that is slower is a verdict against us."""
    plan = made_plan(lines=list(SPEED), queues=(15,), windows=(50, 1000), blocks=6)

    text, good = reported(plan, [made_run(plan, t, t.window * t.block * SPEED[t.line]) for t in plan.trials])

    verdicts = [each.split(maxsplit=4) for each in text.splitlines() if each.startswith("  -c")]
    assert [
        "consumer-ack        1.30 (1.30 to 1.30)   holds",
        "consumer-ack-light  0.90 (0.90 to 0.90)   DOES NOT HOLD",
    ] * 2 == [each[4] for each in verdicts]
    assert not good
    assert text.index("Publisher window -c 50\n") < text.index("Publisher window -c 1000\n")
    assert "storage.commit_interval=200ms" not in text
    assert "  consumer-ack        the paper's first optimisation [confirm.mode=consumer-ack]" in text


def test_what_is_missing_or_doubtful_is_said(reported):
    """A sweep that was stopped reports what it has; other work, missing counters and mixed revisions are reported."""
    plan = made_plan(lines=["default", "consumer-ack", "paper-standard"], queues=(1,))
    first, second, _ = plan.trials

    text, good = reported(
        plan, [made_run(plan, first, other=0.3, counters={}), made_run(plan, second, git="def")]
    )

    assert "NOT COMPLETE: 1 of 3 runs are missing" in text
    assert f"went to something else: 1 of 2 runs ({first.line} 1)" in text
    assert f"logged no counters: 1 of 2 runs ({first.line} 1)" in text
    assert "runs of 2 revisions: " in text
    assert "of 6 blocks" in text
    assert good
