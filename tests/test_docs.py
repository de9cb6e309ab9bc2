"""The documents agree with the code and with each other, and every test says what it shows."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from broker.config_reference import render

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def named(path: Path) -> str:
    """A path as seen from the top of the project."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    """Each relative link in a page names a file that exists."""
    targets = [target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [
        target for target in targets if target and "://" not in target and not target.startswith("mailto:")
    ]

    assert [] == [target for target in local if not (page.parent / target).exists()]


def test_the_page_of_keys_is_current():
    """docs/configuration.md is generated from the table of keys; `make docs` brings it up to date."""
    assert render() == (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_version_has_an_entry_in_the_changelog():
    """What is released is described: the version of the project heads a section of the changelog."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_decisions_have_a_number_and_a_status():
    """No two records of decisions share a number, and each says whether it holds."""
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [int(record.name[:4]) for record in records]

    assert records
    assert len(set(numbers)) == len(numbers)
    assert [] == [
        named(record) for record in records if "status" not in record.read_text(encoding="utf-8").lower()
    ]


def test_every_lint_exception_has_its_reason():
    """Each rule that ruff is told to ignore has a comment saying why."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = re.findall(r'^ {4}"[A-Z]+[0-9]*",.*$', text, re.MULTILINE)

    assert rules
    assert [] == [rule for rule in rules if not re.search(r"# \S", rule)]


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The tests in a file."""
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


@pytest.mark.parametrize("path", TESTS, ids=named)
def test_every_test_says_what_is_true(path):
    """Each test has a docstring: one sentence with the fact it shows."""
    assert [] == [
        test.name for test in functions(path) if not (ast.get_docstring(test) or "").strip().endswith(".")
    ]
