"""Every case against our broker, and the tables about the cases against each other."""

import itertools
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from conformance import report
from conformance.brokers import Broker
from conformance.cases import Case, run
from conformance.explained import EXPLAINED
from conformance.features import FEATURES
from conformance.rows import CASES, LAST_ROW, NOT_APPLICABLE

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def _parameter(case: Case) -> object:
    marks = [pytest.mark.xfail(reason=f"later: {case.later}")] if case.later else []
    if case.outside:
        marks.append(pytest.mark.skip(reason="needs an interface other than loopback"))
    return pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", [_parameter(case) for case in CASES])
def test_case(case: Case, broker_for: Callable[[str], Broker]) -> None:
    """The broker's outcome of a case is the one written down for it."""
    outcome = run(case, broker_for(case.setup))

    assert case.expect == outcome, f"{case.statement}\nwanted: {case.expect}\ngot:    {outcome}"


def test_ids_are_unique() -> None:
    """No two cases have the same id."""
    assert len(CASES) == len({case.id for case in CASES})


def test_every_row_is_there() -> None:
    """Each of the 111 rows has a case, or a reason why it cannot have one."""
    assert set(range(1, LAST_ROW + 1)) == {case.row for case in CASES} - {0} | set(NOT_APPLICABLE)


def test_no_row_is_both() -> None:
    """A row that has a case is not listed as impossible."""
    assert not {case.row for case in CASES} & set(NOT_APPLICABLE)


def test_every_explanation_explains() -> None:
    """Each explanation covers a case, and says what RabbitMQ does there other than we do."""
    for explanation in EXPLAINED:
        covered = [case for case in CASES if explanation.covers(case.id)]

        assert covered, explanation.cases
        assert any(explanation.theirs(case.expect) != case.expect for case in covered), explanation.cases


def test_every_feature_is_asked_about() -> None:
    """Each pattern of a feature covers a case, and a feature without cases says why."""
    for feature in itertools.chain(*FEATURES.values()):
        assert feature.cases or feature.note, feature.name
        for pattern in feature.cases:
            assert any(fnmatchcase(case.id, pattern) for case in CASES), (feature.name, pattern)


def test_document_agrees() -> None:
    """docs/compatibility.md holds the tables that these data make."""
    text = DOCUMENT.read_text(encoding="utf-8")

    assert report.document(text) == text, "run: python tests/conformance/run.py --write-docs"


def test_document_names_every_explained_case() -> None:
    """Each explained case is listed in docs/compatibility.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for explanation in EXPLAINED:
        assert all(re.search(re.escape(f"`{ident}`"), text) for ident in explanation.cases)
