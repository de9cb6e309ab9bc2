"""Notes of answers, and the later questions that they answer. Spark is not needed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from leveret.analytics import answers
from leveret.analytics.asked import Asked
from leveret.analytics.command import main
from leveret.analytics.objective import DEFAULT, Objective, parse
from leveret.analytics.scope import EVERYTHING, Scope


def asked(folder, *names, scope=EVERYTHING, objective=DEFAULT):
    return Asked(names, folder / "in", folder / "out", scope, objective, None, {}, None)


@pytest.fixture
def answered(tmp_path):
    """A folder with an input, and an output with the answer about its latency."""
    for name in ("in/event/event-1.jsonl", "out/latency/report.html", "out/latency/curves/part-0.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    request = asked(tmp_path, "latency")
    answers.note(request, answers.question(request))
    return tmp_path


def test_the_same_question_about_the_same_files_is_answered(answered, monkeypatch):
    """A file that a broker has not finished has no rows, and a relative path is the same place."""
    (answered / "in" / "event" / ".event-2.jsonl").write_text("{")
    monkeypatch.chdir(answered)

    assert answers.is_answered(asked(answered, "latency"))
    assert answers.is_answered(asked(Path(), "latency"))


@pytest.mark.parametrize(
    "name",
    [
        "in/event/event-1.jsonl",
        "in/event/event-2.jsonl",
        "in/plan.json",
        "out/latency/report.html",
        "out/latency/curves/part-0.parquet",
    ],
)
def test_a_file_that_has_changed_makes_it_another_question(answered, name):
    """A file of the input or of the output was written again, or is new."""
    (answered / name).write_text("something else")
    assert not answers.is_answered(asked(answered, "latency"))


@pytest.mark.parametrize(
    ("names", "other"),
    [
        (["paging"], {}),
        (["latency", "paging"], {}),
        (["latency"], {"scope": Scope(since_ms=1)}),
        (["latency"], {"objective": Objective(0.9, 1000)}),
    ],
)
def test_other_words_are_another_question(answered, names, other):
    """Other jobs, limits or objectives have other pages."""
    assert not answers.is_answered(asked(answered, *names, **other))


def test_another_version_of_the_program_answers_again(answered, tmp_path, monkeypatch):
    """Its files are part of the question, but not what Python makes of them."""
    program = tmp_path / "program"
    program.mkdir()
    monkeypatch.setattr(answers, "__file__", str(program / "answers.py"))
    assert answers.question(asked(answered, "latency")) is None
    (program / "answers.py").write_text("1")
    before = answers.question(asked(answered, "latency"))

    (program / "answers.pyc").write_text("1")
    assert before == answers.question(asked(answered, "latency"))
    (program / "answers.py").write_text("12")
    assert before != answers.question(asked(answered, "latency"))


def test_a_command_about_an_unchanged_input_starts_no_java(answered):
    """It names the page, and neither asks a server nor starts Spark."""
    words = ["latency", "--input", str(answered / "in"), "--output", str(answered / "out")]
    request = asked(answered, "latency", objective=parse(DEFAULT.words()))
    answers.note(request, answers.question(request))

    result = CliRunner().invoke(main, words)

    assert 0 == result.exit_code
    assert f"the input has not changed: {answered / 'out' / 'latency' / 'report.html'}\n" in result.output
    assert "Spark" not in result.output
