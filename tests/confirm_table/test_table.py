"""The table of docs/confirm-events.md and its tests: one for each cell."""

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confirm_table.cells import MODES

PAGE = Path(__file__).parent.parent.parent / "docs" / "confirm-events.md"
MODULES = sorted(Path(__file__).parent.glob("test_*.py"))
Cell = tuple[str, str]


def table() -> dict[Cell, str]:
    """The cells of the page: event and mode to what stands there."""
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    heads = next(words for line in lines if (words := row(line))[:2] == ["Id", "Event"])
    cells: dict[Cell, str] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        if not line.startswith("|--"):
            event, _, *texts = row(line)
            assert (event.strip("`"), MODES[0]) not in cells, f"{event} stands there twice"
            cells |= {(event.strip("`"), mode): text for mode, text in zip(heads[2:], texts, strict=True)}
    return cells


def row(line: str) -> list[str]:
    """Return the cells of a line, between its bars."""
    return [word.strip() for word in line.strip("|").split("|")]


def cells_tested() -> Iterator[Cell]:
    """The cells that tests say they are for, as often as they say so."""
    for path in MODULES:
        spec = importlib.util.spec_from_file_location(f"cells_of_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, thing in vars(module).items():
            if name.startswith("test_"):
                yield from getattr(thing, "cells", ())


def difference(cells: dict[Cell, str], found: Iterator[Cell]) -> list[str]:
    """Return the differences: cells without a test, with several, and tests of cells that are not there."""
    count = Counter(found)
    wrong = [f"{event}, {mode}: no test" for event, mode in cells if (event, mode) not in count]
    wrong += [f"{event}, {mode}: {n} tests" for (event, mode), n in count.items() if n > 1]
    return wrong + [f"{event}, {mode}: no such cell" for event, mode in count if (event, mode) not in cells]


def test_each_cell_has_one_test():
    """Each event and mode of the page is tested once, and no others are."""
    cells = table()

    assert 40 * len(MODES) <= len(cells)
    assert [] == difference(cells, cells_tested())


def test_no_cell_is_empty():
    """The page says something of each event in each mode, and has a column for each."""
    cells = table()

    assert set(MODES) == {mode for _, mode in cells}
    assert [] == [cell for cell, text in cells.items() if not text]


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([("a", "m")], ["b, m: no test"]),
        ([("a", "m"), ("b", "m"), ("a", "m")], ["a, m: 2 tests"]),
        ([("a", "m"), ("b", "m"), ("a", "n")], ["a, n: no such cell"]),
        ([("a", "m"), ("b", "m")], []),
    ],
)
def test_differences_are_noticed(found, wrong):
    """A cell without a test, one with two, and a test without a cell are distinguished."""
    assert wrong == difference({("a", "m"): "ack", ("b", "m"): "nack"}, iter(found))
