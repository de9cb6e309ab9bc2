"""docs/security.md and the tests that it names agree."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
ROW = re.compile(r"^\| SEC-(\d\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NAME = re.compile(r"`(test_\w+)`")
LAST = 41


def rows() -> dict[int, tuple[str, set[str]]]:
    """Return the last column of each row by number, and the tests that it names."""
    return {
        int(number): (shown, set(NAME.findall(shown))) for number, _, shown in ROW.findall(PAGE.read_text())
    }


def written() -> set[str]:
    """The names of all tests beside this one."""
    return {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_id_has_a_row():
    """Each of the ids has one row, with tests."""
    assert list(range(1, LAST + 1)) == [int(number) for number, *_ in ROW.findall(PAGE.read_text())]
    assert [] == [number for number, (_, names) in rows().items() if not names]


def test_every_named_test_exists_and_every_test_is_named():
    """A test that is named is there, and one that has an id stands in the row of that id."""
    named = {name for _, names in rows().values() for name in names}
    missing = [
        name
        for name in written()
        if (found := re.match(r"test_sec_(\d\d)_", name)) and name not in rows()[int(found[1])][1]
    ]

    assert set() == named - written()
    assert [] == sorted(missing)
