"""Checks that connections change their states as the table of states says."""

from collections.abc import Iterator

import pytest

from leveret.broker.connection.connection import Connection
from leveret.broker.connection.state import STATES

_enter = Connection.enter


def _checked(connection: Connection, state: str) -> None:
    assert state in STATES[connection.state].following, f"{connection.state} -> {state}"
    _enter(connection, state)


@pytest.fixture(autouse=True, scope="module")
def _states_follow_the_table() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "enter", _checked)
        yield
