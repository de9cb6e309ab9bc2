"""The scenarios of the cells' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confirm_table.cells import Scenario


@pytest.fixture
def scenario(tmp_path: Path, mode: str) -> Iterator[Scenario]:
    """A broker in the mode of the cell; at the end each number has had its one verdict."""
    made = Scenario(tmp_path, mode)
    yield made
    made.end()
