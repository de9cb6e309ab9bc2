"""Records of a sweep, and what an interruption leaves of them."""

import itertools
import json
from pathlib import Path

import pytest
from samples.paper_runs import made_plan, made_run

from bench.paper_plan import Done, remaining
from bench.paper_records import BenchCost, BenchRun, BenchSample, Records, RecordsError

RUN_FIELDS = (
    "v run_id git host cpu kernel broker version mode sync queues producers_q consumers_q ch_prod ch_cons size persistent "
    "block rep order_in_block start_ts dur_s"
)
SAMPLE_FIELDS = "v run_id t_s published confirmed returned nacked received c_p50 c_p75 c_p95 c_p99 l_p50 l_p75 l_p95 l_p99"


class StoppedError(BaseException):
    """Stands for a kill: no handler catches it."""


def stopped_at(step, monkeypatch):
    """Let the process end at one of the steps that change files, a write of them half done."""
    steps = itertools.count()
    write, replace = Path.write_bytes, Path.replace

    def writes(path, content):
        if next(steps) == step:
            write(path, content[: len(content) // 2])
            raise StoppedError
        return write(path, content)

    def replaces(path, target):
        if next(steps) == step:
            raise StoppedError
        return replace(path, target)

    monkeypatch.setattr(Path, "write_bytes", writes)
    monkeypatch.setattr(Path, "replace", replaces)


def finish(records):
    """Do the rest of a sweep as `bench.paper` does, from its very beginning if it has no plan yet."""
    if not (records.directory / "plan.json").exists():
        records.begin(made_plan())
    records.tidy()
    for trial, attempt in remaining(records.plan(), records.done(records.plan())):
        records.add(*made_run(records.plan(), trial, attempt=attempt), trial.number)


def test_tables_have_the_fields_of_the_export():
    """Names and order are those that readers of the export know."""
    assert RUN_FIELDS.split() == list(BenchRun.__struct_fields__)
    assert SAMPLE_FIELDS.split() == list(BenchSample.__struct_fields__)


def test_a_run_is_lines_of_json_in_three_tables(tmp_path):
    """Files are named after table, start and number, in a folder of their hour and machine."""
    records, plan = Records(tmp_path / "new"), made_plan()
    records.begin(plan)
    run, samples, cost = made_run(plan, plan.trials[0])
    records.add(run, samples, cost, 1)

    folder = "dt=2027-01-15/hour=08/node=here"
    text = (tmp_path / "new" / "bench_sample" / folder / "bench_sample-1800000001000-1.jsonl").read_text()
    assert [1.0, 2.0, 3.0, 4.0] == [json.loads(line)["t_s"] for line in text.splitlines()]
    assert SAMPLE_FIELDS.split() == list(json.loads(text.splitlines()[0]))
    assert [run] == records.read(BenchRun)
    assert samples == records.read(BenchSample)
    assert [cost] == records.read(BenchCost)
    assert {Done(1, 1, False)} == records.done(plan)


@pytest.mark.parametrize("step", range(38))
def test_a_sweep_that_was_stopped_anywhere_ends_as_if_it_had_not_been(tmp_path, monkeypatch, step):
    """A sweep stopped at any step records each run of the plan once, in the order that was drawn."""
    records, plan = Records(tmp_path), made_plan()
    with monkeypatch.context() as patched:
        stopped_at(step, patched)
        with pytest.raises(StoppedError):
            finish(records)
    finish(records)

    assert plan == records.plan()
    ids = [plan.run_id(trial) for trial in plan.trials]
    assert ids == [run.run_id for run in records.read(BenchRun)]
    assert ids == [cost.run_id for cost in records.read(BenchCost)]
    assert [each for each in ids for _ in range(4)] == [row.run_id for row in records.read(BenchSample)]
    assert [] == list(tmp_path.rglob(".*"))


def test_stopping_was_tried_at_every_step(tmp_path, monkeypatch):
    """The sweep of the test above has two steps for its plan and six for each of its six runs."""
    records = Records(tmp_path)
    stopped_at(2 + 6 * 6, monkeypatch)
    finish(records)

    assert len(records.done(records.plan())) == 6


def test_a_directory_takes_one_sweep(tmp_path):
    """A second plan is refused, and the first stays."""
    records, plan = Records(tmp_path), made_plan()
    records.begin(plan)

    with pytest.raises(RecordsError, match="holds a sweep already"):
        records.begin(made_plan(seed=6))
    assert plan == records.plan()


def test_two_processes_cannot_measure_into_one_directory(tmp_path):
    """The second process reports that the directory is in use, until the first has ended."""
    records = Records(tmp_path)
    records.begin(made_plan())

    with records.held(), pytest.raises(RecordsError, match="another process"), Records(tmp_path).held():
        pass
    with records.held():
        pass


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "holds no sweep"), ("{", "cannot be read"), ("{}", "cannot be read")]
)
def test_a_directory_without_a_plan_is_refused(tmp_path, content, reason):
    """A directory without a known plan is refused."""
    if content is not None:
        (tmp_path / "plan.json").write_text(content)

    with pytest.raises(RecordsError, match=reason):
        Records(tmp_path).plan()
