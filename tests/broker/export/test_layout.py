"""Paths of export files."""

from pathlib import Path

import pytest

from leveret.broker.export.writer import Layout, finished_name

LAYOUT = Layout(Path("/x"), "rabbit@host")
MOMENT = 1_763_740_799_999  # 2025-11-21 15:59:59.999 UTC


def test_a_file_lies_in_its_hour():
    """Table, day, hour and node are directories, in UTC."""
    names = LAYOUT.names("event", Layout.hour(MOMENT), MOMENT, 7)

    assert (
        Path("/x/event/dt=2025-11-21/hour=15/node=rabbit@host/event-1763740799999-7.jsonl") == names.finished
    )
    assert ".event-1763740799999-7.jsonl.tmp" == names.unfinished.name
    assert names.finished.parent == names.unfinished.parent


def test_hours_end_on_the_millisecond():
    """A file of the next millisecond lies in the next hour."""
    assert "dt=2025-11-21/hour=16" == Layout.hour(MOMENT + 1)


def test_the_name_follows_from_that_of_the_unfinished_file():
    """An unfinished file of an earlier run can be finished by its name alone."""
    names = LAYOUT.names("event", Layout.hour(MOMENT), MOMENT, 7)

    assert names.finished == finished_name(names.unfinished)


@pytest.mark.parametrize(
    ("node", "folder"),
    [
        ("rabbit@a-b.c_d", "node=rabbit@a-b.c_d"),
        ("../x", "node=..%2Fx"),
        ("a=b c", "node=a%3Db%20c"),
        ("é", "node=%C3%A9"),
    ],
)
def test_no_name_of_a_node_leaves_its_folder(node, folder):
    """Characters with a meaning in paths or for readers of partitions are percent-encoded."""
    assert folder == Layout(Path("/x"), node).node_folder


def test_days_are_in_order():
    """The directory of an earlier day sorts before that of a later one."""
    assert Layout.day(MOMENT - 86_400_000) < Layout.day(MOMENT)
    assert "dt=2025-11-21" == Layout.day(MOMENT)
