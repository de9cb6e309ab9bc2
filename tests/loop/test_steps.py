"""Reports of the loop's steps, and of confirms beside them."""

import json
from pathlib import Path
from typing import Any

import pytest
from loop import harness
from loop.canary import Measurement, Times
from loop.harness import Run, Step
from loop.steps import best, cases, is_good, table, write
from samples.made_tables import marks

BEGIN, END = marks("loop-steps")


def measurement(p99: float) -> Measurement:
    return Measurement(
        1.0, 1000, 900, 0, Times(1.0, p99, 2 * p99), Times(1.0, p99, p99), Times(0.1, 0.2, 0.3)
    )


def kept(**changes: Any) -> dict[str, Any]:
    """Return the record of a case without fault."""
    found = {
        "case": "rejection",
        "exit": 0,
        "milliseconds": 12.3,
        "what": "job",
        "runs": 1,
        "seconds": 4.0,
        "is_prompt": True,
        "beside": measurement(90.0)._asdict(),
        "alone": measurement(10.0)._asdict(),
        "others": 0.02,
        "date": "2026-11-22",
        "revision": "abc",
    }
    return found | changes


def test_confirms_are_judged_by_a_time_or_a_ratio():
    """A run is prompt with a p99 of at most 100 ms, or of three times that without the case, and without a canary."""
    step = Step(1.0, "")

    assert Run(step, 1.0, measurement(100.0), measurement(1.0)).is_prompt
    assert not Run(step, 1.0, measurement(101.0), measurement(33.0)).is_prompt
    assert Run(step, 1.0, measurement(101.0), measurement(34.0)).is_prompt
    assert Run(step, 1.0, None, None).is_prompt


def test_cases_are_what_pytest_collects():
    """A case has the name of its parameter, or of its test; tests of the harness are none."""
    listing = """tests/loop/test_ending.py::test_what_ends_holds_nobody[expiry]
tests/loop/test_settling.py::test_closing_many_channels
tests/loop/test_canary.py::test_confirms_go_on_beside_a_case
tests/loop/test_steps.py::test_cases_are_what_pytest_collects

4 tests collected in 0.01s
"""

    found = cases(listing)

    assert ["expiry", "closing_many_channels"] == [case.name for case in found]
    assert "tests/loop/test_ending.py::test_what_ends_holds_nobody[expiry]" == found[0].node


def test_the_table_tells_what_is_over_a_bar():
    """A case is over for its step, which is named, or for its confirms, or has failed without a figure."""
    found = [
        kept(),
        kept(milliseconds=51.0, exit=1, what="read of connection x"),
        kept(is_prompt=False),
        {"case": "gone", "exit": 1, "others": 0.0, "date": "2026-11-23", "revision": "abc"},
    ]

    text = table(found)

    assert [True, False, False, False] == [is_good(each) for each in found]
    verdicts = [line.split(" | ")[-1].strip(" |") for line in text.splitlines()[2:6]]
    assert ["ok", "over: read of connection x", "over: p99", "failed"] == verdicts
    assert "| rejection | 1 | 12 | 4.0 | 1, 10 | 1, 90, 180 |" in text
    assert "1 of 4 cases are below the bars; 2026-11-22 to 2026-11-23, revision `abc`" in text


def test_a_case_without_clients_has_no_confirms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A case in the test's own process is written, compared and shown with its steps alone."""
    result = tmp_path / "result.json"
    monkeypatch.setattr(harness, "RESULT", str(result))

    step = harness.best_of(
        Run(Step(milliseconds, "job"), 2.0, None, None) for milliseconds in (51.0, 20.0, 9.0)
    )

    alone = kept(**json.loads(result.read_text()))
    assert 20.0 == step.milliseconds == best(alone, kept(**alone))["milliseconds"]
    assert is_good(alone)
    assert "| rejection | 2 | 20 | 2.0 |  |  |  |  | 2% | ok |" in table([alone])


def test_the_best_of_runs_counts():
    """The shortest longest step and the fastest confirms may be of different runs; a run without figures adds nothing."""
    slow = kept(milliseconds=60.0, exit=1, what="long", beside=measurement(20.0)._asdict())
    late = kept(milliseconds=30.0, what="short", is_prompt=False, beside=measurement(500.0)._asdict())
    failed = {"case": "rejection", "exit": 1}

    found = best(slow, late)

    assert (30.0, "short", 0, 2) == (found["milliseconds"], found["what"], found["exit"], found["runs"])
    assert (True, 20.0) == (found["is_prompt"], found["beside"]["since_sent"].p99)
    assert late == best(failed, late) == best(late, failed)


def test_the_table_is_written_between_its_marks(tmp_path: Path):
    """The page around the marks stays, and a second table replaces the first."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    write(page, table([kept()]))
    write(page, "new")

    assert f"before\n{BEGIN}\n\nnew\n{END}\nafter\n" == page.read_text()
