"""Every case against our broker, and the tables about the cases against each other."""

import itertools
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from conformance import octets, peers, report
from conformance.brokers import Broker
from conformance.cases import Case, run
from conformance.explained import EXPLAINED, explanation
from conformance.features import CHANGES, FEATURES, changed
from conformance.peers import OF_MACHINE, PEERS, Peer
from conformance.rows import CASES, LAST_ROW, NOT_APPLICABLE

REPORT = Path(__file__).with_name("cases.md")


def _parameters() -> Iterator[object]:
    """Each case without a profile, and those that 4.3 knows with its profile."""
    for peer in PEERS.values():
        for case in CASES:
            marks = (
                [pytest.mark.skip(reason="needs an interface other than loopback")] if case.outside else []
            )
            if peer.profile in case.profiles and (peer is OF_MACHINE or case.asked_of(peer.name)):
                yield pytest.param(case, peer, id=f"{case.id}-{peer.profile}", marks=marks)


@pytest.mark.parametrize(("case", "peer"), list(_parameters()))
def test_case(case: Case, peer: Peer, broker_for: Callable[..., Broker]) -> None:
    """The broker's outcome of a case is the one written down for it, or recorded of the release that it follows."""
    record = peers.recorded()[peer.name]
    outcome = run(case, broker_for(case.setup, peer.profile))
    fine, verdict = report.compared(case, peer, record, report.shown(case, outcome))

    assert fine, f"{case.statement}\n{verdict}\nwritten: {case.expect}\ngot:     {outcome}"


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_every_difference_is_explained(peer: Peer) -> None:
    """Each case that a release can be asked about is recorded, and a difference from it has an explanation."""
    record = peers.recorded()[peer.name]
    asked = [case for case in CASES if case.asked_of(peer.name)]

    assert {case.id for case in asked} == record.keys(), "run.py --write records them"
    assert [] == [
        case.id
        for case in asked
        if record[case.id] != report.expected(case, peer, record) and not explanation(case.id, peer.name)
    ]


def test_99_percent_are_the_same_in_the_profile_4_3() -> None:
    """Of all cases that 4.3 was asked, at least 99 % end as there; the others are explained."""
    found, asked = report.same(PEERS["4.3"])

    assert found >= 0.99 * asked


def test_what_4_has_changed_is_followed() -> None:
    """With the profile 4.3 all questions about its changes but three end as in 4.3.6, and most of these end otherwise in 3.10.8."""
    followed = {case.id for case in changed(CASES)} - {case.id for case in report.differing(PEERS["4.3"])}
    before, after = (peers.recorded()[name] for name in PEERS)

    assert all(change.covered(CASES) for change in CHANGES)
    assert {"1c", "39b", "61a"} == {case.id for case in changed(CASES)} - followed
    assert len(followed) >= 31
    assert 0.8 * len(followed) < sum(before.get(each) != after[each] for each in followed)


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
    """Each explanation covers, for each of its releases, a case or a script of which that one's outcome differs."""
    for one in EXPLAINED:
        for name in one.of:
            record, peer = peers.recorded()[name], PEERS[name]
            cases = [case for case in CASES if explanation(case.id, name) is one]
            scripts = [each for each in octets.SCRIPTS if explanation(f"octets.{each}", name) is one]

            assert any(record.get(case.id, "=") != "=" for case in cases) or any(
                octets.read(peer)[each] != octets.expected(peer, each) for each in scripts
            ), (one.cases, name)


def test_every_feature_is_asked_about() -> None:
    """Each pattern of a feature covers a case, and a feature without cases says why."""
    for feature in itertools.chain(*FEATURES.values(), CHANGES):
        assert feature.cases or feature.note, feature.name
        for pattern in feature.cases:
            assert any(fnmatchcase(case.id, pattern) for case in CASES), (feature.name, pattern)


def test_report_agrees() -> None:
    """cases.md has the tables that these data make."""
    assert report.all_cases() == REPORT.read_text(encoding="utf-8"), (
        "run: tests/conformance/run.py --write-docs"
    )


def test_report_names_every_explained_case() -> None:
    """Each explained case is listed in cases.md."""
    text = REPORT.read_text(encoding="utf-8").partition("## Explained differences")[2]
    for one in EXPLAINED:
        assert all(re.search(re.escape(f"`{ident}`"), text) for ident in one.cases)
