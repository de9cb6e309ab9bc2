"""The stage for the tests of cells."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confirm_table.cells import Stage


@pytest.fixture
def stage(tmp_path: Path, mode: str) -> Iterator[Stage]:
    """A broker in the mode of the cell; at the end each number has had its one verdict."""
    made = Stage(tmp_path, mode)
    yield made
    made.end()
