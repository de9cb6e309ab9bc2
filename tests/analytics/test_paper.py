"""The experiment's command line, with runs that are made up."""

import contextlib
import io

import pytest
from samples.paper_runs import made_run

from bench import paper, perftest
from bench.paper_plan import DESIGN, PAPER_LINES, QUEUES, SHORT_QUEUES
from bench.paper_records import BenchRun, Records
from bench.paper_run import TrialError, workload


@pytest.fixture(autouse=True)
def no_perf_test(monkeypatch, tmp_path):
    """PerfTest is not downloaded."""
    monkeypatch.setattr(perftest, "fetch", lambda _version: tmp_path)


@pytest.fixture
def reporting(spark, monkeypatch):
    monkeypatch.setattr("leveret.analytics.session.session", lambda *_, **__: contextlib.nullcontext(spark))


def measured(plan, trial, _folder, tick, attempt):
    """A run that takes no time."""
    tick(1.0)
    return made_run(plan, trial, attempt=attempt)


SMALL = [
    "--queues",
    "1,2",
    "--seconds",
    "4",
    "--cut-start",
    "1",
    "--cut-end",
    "1",
    "--lines",
    "default,consumer-ack",
]


@pytest.mark.usefixtures("reporting")
def test_a_sweep_is_measured_recorded_and_reported(tmp_path, capsys):
    """A sweep makes all runs, each with a line of progress, and the table follows."""
    assert paper.main([*SMALL, "--blocks", "2", "--out", str(tmp_path / "o")], measured) == 0

    records = Records(tmp_path / "o")
    assert len(records.read(BenchRun)) == len(records.plan().trials) == 8
    text = capsys.readouterr().out
    assert "8/8 100%, 0:00:00 left" in text
    assert "x `paper-standard`" in text


@pytest.mark.usefixtures("reporting")
def test_what_failed_is_tried_again_by_resume(tmp_path, capsys):
    """A run that fails is reported and not recorded; the exit code says so until it has been made good."""

    def failing(plan, trial, folder, tick, attempt):
        if trial.line == "consumer-ack":
            raise TrialError("the broker ended: no such key")
        return measured(plan, trial, folder, tick, attempt)

    out = str(tmp_path / "o")
    assert paper.main([*SMALL, "--blocks", "1", "--out", out], failing) == 2
    text = capsys.readouterr().out
    assert "FAILED: the broker ended: no such key" in text
    assert "NOT COMPLETE: 2 of 4" in text
    assert paper.main(["--resume", out], measured) == 0
    assert "NOT COMPLETE" not in capsys.readouterr().out


@pytest.mark.usefixtures("reporting")
def test_a_stopped_sweep_goes_on_where_it_was(tmp_path, capsys):
    """Ctrl-C says how to go on, and what is recorded is not measured again."""
    seen = []

    def stopping(plan, trial, folder, tick, attempt):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(trial.number)
        return measured(plan, trial, folder, tick, attempt)

    def noting(plan, trial, folder, tick, attempt):
        seen.append(trial.number)
        return measured(plan, trial, folder, tick, attempt)

    out = str(tmp_path / "o")
    assert paper.main([*SMALL, "--blocks", "1", "--out", out], stopping) == 130
    assert f"--resume {out}" in capsys.readouterr().err
    assert paper.main(["--resume", out], noting) == 0
    assert [1, 2, 3, 4] == seen


@pytest.mark.usefixtures("reporting")
def test_report_measures_nothing(tmp_path, capsys):
    """Recorded figures are printed as often as one likes, without measuring."""
    out = str(tmp_path / "o")
    paper.main([*SMALL, "--blocks", "1", "--out", out], measured)
    table = capsys.readouterr().out.partition("Sweep ")[2]

    assert paper.main(["--report", out], lambda *_: pytest.fail("measured")) == 0
    assert table == capsys.readouterr().out.partition("Sweep ")[2]


@pytest.mark.usefixtures("reporting")
def test_a_verdict_against_us_is_the_exit_code(tmp_path):
    """Six blocks in which a mode is slower make 1."""

    def slow(plan, trial, _folder, _tick, _attempt):
        return made_run(plan, trial, 1000.0 if trial.line == "default" else 900.0)

    assert paper.main([*SMALL, "--blocks", "6", "--out", str(tmp_path / "o")], slow) == 1


@pytest.mark.parametrize(
    ("arguments", "queues", "seconds", "counted", "blocks"),
    [
        (["--short"], SHORT_QUEUES, 30, (8.0, 2.0), 1),
        ([], QUEUES, 60, (15.0, 5.0), 6),
        (["--paper-length"], QUEUES, 600, (15.0, 5.0), 3),
        (
            ["--short", "--blocks", "6", "--seconds", "20", "--cut-start", "0", "--queues", "3"],
            (3,),
            20,
            (0.0, 2.0),
            6,
        ),
    ],
)
def test_lengths(arguments, queues, seconds, counted, blocks):
    """The lengths that have names, and that each part of them may be changed."""
    command = paper.parser()
    plan = paper.planned(command, command.parse_args(arguments))

    assert [(200, count) for count in queues] == plan.cells()
    assert (seconds, *counted, blocks) == (plan.seconds, plan.cut_start, plan.cut_end, plan.blocks)
    assert list(PAPER_LINES) == plan.lines()
    assert len(plan.trials) == len(queues) * len(PAPER_LINES) * blocks


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lines", "default,kafka"],
        ["--queues", "0"],
        ["--seconds", "5", "--cut-start", "3", "--cut-end", "2"],
        ["--short", "--paper-length"],
        ["--resume", "somewhere", "--blocks", "6"],
    ],
)
def test_what_makes_no_sense_is_refused(arguments, capsys):
    """Unknown lines, no queue, nothing left to count, two lengths, a plan changed on its way."""
    with pytest.raises(SystemExit) as ended:
        paper.main(arguments, lambda *_: pytest.fail("measured"))

    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.usefixtures("reporting")
def test_a_disturbed_cell_is_repeated_counted_and_marked(tmp_path, capsys):
    """Runs beside other programs are made again twice; what counts then is marked, and nothing more is to be done."""
    seen = []

    def disturbed(plan, trial, _folder, _tick, attempt):
        seen.append((trial.queues, attempt))
        return made_run(plan, trial, attempt=attempt, other=0.2 if trial.queues == 2 else 0.0)

    out = str(tmp_path / "o")
    assert paper.main([*SMALL, "--blocks", "1", "--out", out], disturbed) == 0

    assert [(1, 1), (2, 1), (2, 2), (2, 3)] == sorted(set(seen))
    assert len(seen) == 2 + 6
    text = capsys.readouterr().out
    assert "attempt 3: 1,000 msg/s, warm-up included, DISTURBED (20% went to other programs)" in text
    assert "NOT COMPLETE" not in text
    assert "more than 10% of the machine went to something else: 2 of 4 runs" in text
    assert paper.main(["--resume", out], lambda *_: pytest.fail("measured")) == 0


@pytest.mark.usefixtures("reporting")
def test_a_sweep_is_done_in_slices(tmp_path, capsys):
    """`--into` begins a sweep and goes on with it, `--for` ends before a run that would take too long, and says so."""
    arguments = [*SMALL, "--blocks", "1", "--into", str(tmp_path / "o"), "--for"]

    assert paper.main([*arguments, "1"], lambda *_: pytest.fail("measured")) == 0
    assert "4 run(s) left; to go on" in capsys.readouterr().out
    assert paper.main([*arguments, "1000"], measured) == 0
    assert "x `paper-standard`" in capsys.readouterr().out
    assert len(Records(tmp_path / "o").read(BenchRun)) == 4


@pytest.mark.usefixtures("reporting")
def test_another_revision_is_reported(tmp_path, capsys, monkeypatch):
    """A sweep that goes on with another revision than it began with says both."""
    out = str(tmp_path / "o")
    paper.main([*SMALL, "--blocks", "1", "--into", out, "--for", "1"], measured)
    monkeypatch.setattr(paper, "git_revision", lambda: "another")

    paper.main(["--resume", out], measured)

    assert "the sweep began with revision" in capsys.readouterr().out.partition("this is another")[0]


def test_make_paper_sweep_has_the_design():
    """`--sweep` plans the paper's ten queue counts, and the 2^3 design at four of them, in six blocks."""
    command = paper.parser()
    plan = paper.planned(command, command.parse_args(["--sweep"]))

    assert [(200, count) for count in QUEUES] == plan.cells()
    assert {1, 5, 15, 30} == {each.queues for each in plan.trials if each.line == "late-tables"}
    assert {*PAPER_LINES, *DESIGN} == set(plan.lines())
    assert (12, 6, 540) == (plan.seconds, plan.blocks, len(plan.trials))


def test_nothing_to_resume(tmp_path, capsys):
    """A directory without a sweep is an error."""
    assert paper.main(["--resume", str(tmp_path)], measured) == 2
    assert "holds no sweep" in capsys.readouterr().err


def test_the_bar_knows_what_is_left():
    """The bar starts from a guess and goes on with the time that runs took."""
    progress = paper.Progress(4, 0, 30, io.StringIO())

    assert progress.bar() == "[........................] 0/4   0%, 0:02:32 left"
    progress.finished("one", 60.0)
    assert progress.bar(30.0) == "[#########...............] 1/4  38%, 0:02:30 left"


def test_a_terminal_has_its_bar_redrawn():
    """A bar is redrawn each second on a terminal, and printed once a run elsewhere."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, file = Terminal(), io.StringIO()
    for sink in (terminal, file):
        progress = paper.Progress(2, 0, 30, sink)
        progress.tick("one", 1.0)
        progress.finished("one", 38.0)

    assert terminal.getvalue().count("\r") == 2
    assert file.getvalue() == "[############............] 1/2  50%, 0:00:38 left  one\n"


def test_the_load_is_the_papers():
    """Two producers of two channels and three consumers of three, 1,500 octets, persistent, the window as asked."""
    command = paper.parser()
    plan = paper.planned(command, command.parse_args(["--windows", "1000", "--queues", "15"]))

    load = workload(plan.trials[0])

    assert load.flags == "-X2 -Y3 -q200 -c1000 -s1500 -f persistent"
    assert load.queues == 15
