"""guarantees.md and the tests that it names agree."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("guarantees.md")
ROW = re.compile(r"^\| SEC-(\d\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)
SEC = re.compile(r"test_sec_(\d\d)_")
DEFINED = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
NAME = re.compile(r"`(test_\w+)`")


def rows() -> dict[int, tuple[str, set[str]]]:
    """Return the last column of each row by number, and the tests that it names."""
    return {
        int(number): (shown, set(NAME.findall(shown))) for number, _, shown in ROW.findall(PAGE.read_text())
    }


def written() -> set[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in DEFINED.findall(text)}


def test_every_id_has_a_row():
    """Each of the ids has one row, in their order, with tests."""
    assert sorted(rows()) == [int(number) for number, *_ in ROW.findall(PAGE.read_text())]
    assert [] == [number for number, (_, names) in rows().items() if not names]


def test_every_named_test_exists_and_every_test_is_named():
    """A test that is named is there, and one that has an id stands in the row of that id."""
    named = {name for _, names in rows().values() for name in names}
    missing = [
        name
        for name in written()
        if (found := SEC.match(name)) and name not in rows().get(int(found[1]), ("", set()))[1]
    ]

    assert set() == named - written()
    assert [] == sorted(missing)
