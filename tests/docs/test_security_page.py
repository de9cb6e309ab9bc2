"""The table of tests/security/guarantees.md about networks names keys and tests that there are."""

import re
from pathlib import Path

from leveret.broker.config.keys import KEYS
from leveret.broker.config.rabbitmq import FOREIGN

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "tests" / "security" / "guarantees.md").read_text(encoding="utf-8")
HEADING = "## What a network needs"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition(HEADING)[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| Need")
]
CODE = re.compile(r"`([^`]+)`")
DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
LEAST = 30


def written() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in DEFINED.findall(path.read_text(encoding="utf-8"))
    }


def test_each_row_is_shown_or_explained():
    """A row that works names tests or guarantees, all of which there are; one that is not taken has a reason."""
    there = written()
    assert len(ROWS) >= LEAST
    for need, here, shown in ROWS:
        named = re.findall(r"`(test_\w+)`", shown)
        ids = [f"| {each} |" for each in re.findall(r"SEC-\d\d", shown)]
        assert [] == [name for name in named if name not in there], need
        assert [] == [each for each in ids if each not in PAGE], need
        if here.startswith("works"):
            assert named or ids, need
        else:
            assert here == "not taken", need
            assert len(shown) > 20, need


def test_keys_of_the_table_are_known():
    """A key of a row that works is one of ours; a key that is not taken causes a warning or an error."""
    ours = {re.sub(r"\$\w+", "$", key.name) for key in KEYS}
    foreign = [re.compile(re.escape(name).replace(r"\*", ".*")) for each in FOREIGN for name in each.keys]
    for need, here, _ in ROWS:
        keys = [each.partition(" =")[0] for each in CODE.findall(need.partition(":")[2])]
        for key in (each for each in keys if "." in each and " " not in each and "..." not in each):
            plain = re.sub(r"\$\w+", "$", key)
            is_ours = any(
                name == plain or (plain.endswith("*") and name.startswith(plain[:-1])) for name in ours
            )
            is_foreign = any(each.fullmatch(key) for each in foreign)
            assert is_ours if here.startswith("works") else is_ours or is_foreign, (need, key)
