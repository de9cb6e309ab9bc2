"""The list of published advisories, and the command that compares it with what is here."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from security import advisories

ROOT = Path(__file__).resolve().parents[2]
LISTED = tomllib.loads(advisories.FILE.read_text())["advisory"]


def test_all_listed_advisories_are_answered():
    """By a row with tests, by the version of a library, or by a reason."""
    assert [] == list(advisories.unanswered())


@pytest.mark.parametrize("advisory", LISTED, ids=lambda advisory: advisory["id"])
def test_an_advisory_has_all_it_needs(advisory):
    """An id that is published, one of the products, a summary, and exactly one answer."""
    assert re.fullmatch(r"CVE-\d{4}-\d{4,}|GHSA(-\w{4}){3}", advisory["id"])
    assert advisory["product"] in advisories.PRODUCTS
    assert advisory["summary"]
    assert 1 == len({"sec", "fixed", "reason"} & advisory.keys())


def test_pip_installs_nothing_with_a_published_hole():
    """The lower bound in pyproject.toml has what is said to be fixed, not only the pinned version."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = {each.name: each.specifier for each in map(Requirement, lines)}
    fixed = {(each["product"], each["fixed"]) for each in LISTED if "fixed" in each}

    assert [] == [
        (name, version)
        for name, version in sorted(fixed)
        if name in needed
        and max(Version(each.version) for each in needed[name] if each.operator == ">=") < Version(version)
    ]


def test_an_advisory_without_an_answer_is_listed(tmp_path):
    """A row that is not there, a version that is too old here, nothing at all."""
    file = tmp_path / "advisories.toml"
    common = 'product = "aiohttp"\nsummary = "s"\n'
    answers = ["sec = 99", 'fixed = "999.0"', "", 'fixed = "1.0"', "sec = 1", 'reason = "r"']
    text = "".join(f'[[advisory]]\nid = "CVE-{at}"\n{common}{answer}\n' for at, answer in enumerate(answers))
    file.write_text(text)

    assert ["CVE-0 (aiohttp): s", "CVE-1 (aiohttp): s", "CVE-2 (aiohttp): s"] == list(
        advisories.unanswered(file)
    )
