"""The broker that is administered."""

import pytest
from doubles.fakes import StoringNode


@pytest.fixture
def node() -> StoringNode:
    return StoringNode()
