"""The table: columns, heading, rows."""

import pytest
from samples.top_answers import queue

from leveret.broker.cli.top import views
from leveret.broker.cli.top.views import QUEUES, VIEWS, shown_width


def titles(columns):
    return [column.title for column, _cells in columns]


def text_of(line):
    return "".join(text for text, _style in line)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.title)
@pytest.mark.parametrize("cells", [1, 20, 40, 79, 80, 81, 100, 140, 250])
def test_a_line_is_never_wider_than_the_terminal(view, cells):
    """From a few cells on, where only a name is left."""
    widths = {}
    item = {"name": "n" * 300, "vhost": "v" * 50, "user": "u" * 50, "policy": "p" * 50, "state": "running"}
    views.widen(widths, view, [item])
    columns = views.layout(view, widths, cells)

    assert shown_width(views.row(columns, item)) <= cells
    assert shown_width(views.heading(columns, columns[-1][0], is_descending=True)) <= cells


def test_eighty_cells_have_what_an_operator_needs():
    """All figures of a queue that decide, and a name of at least 14 cells."""
    widths = {}
    views.widen(widths, QUEUES, [queue("orders")])
    columns = views.layout(QUEUES, widths, 80)

    assert [
        "NAME",
        "VHOST",
        "READY",
        "UNACKED",
        "IN/S",
        "OUT/S",
        "ACK/S",
        "CONS",
        "MEMORY",
        "STATE",
    ] == titles(columns)
    assert views.NAME_LEAST <= columns[0][1]


def test_a_narrow_terminal_drops_the_least_important():
    """The name, the number of messages and the first rate stay."""
    assert ["NAME", "READY", "UNACKED", "IN/S"] == titles(views.layout(QUEUES, {}, 40))


def test_a_wide_terminal_shows_more():
    """Bytes, redeliveries and types; a policy only if a queue has one."""
    widths = {}
    views.widen(widths, QUEUES, [queue("orders")])
    without = titles(views.layout(QUEUES, widths, 160))
    views.widen(widths, QUEUES, [queue("orders", policy="ttl")])

    assert {"BYTES", "REDEL/S", "BUSY", "TYPE"} <= set(without)
    assert "POLICY" not in without
    assert "POLICY" in titles(views.layout(QUEUES, widths, 160))


def test_columns_never_become_narrower():
    """So that they stand still while items come and go."""
    widths = {}
    views.widen(widths, QUEUES, [queue("q", vhost="a-long-vhost")])
    before = views.layout(QUEUES, widths, 100)
    views.widen(widths, QUEUES, [queue("q")])

    assert before == views.layout(QUEUES, widths, 100)


@pytest.mark.parametrize(
    ("title", "is_descending", "shown"),
    [("READY", True, "READY▼"), ("IN/S", False, " IN/S▲"), ("STATE", False, "STATE▲ ")],
)
def test_the_sorted_column_stands_out(title, is_descending, shown):
    """By its style and an arrow, which needs no further space."""
    widths = {}
    views.widen(widths, QUEUES, [queue("orders")])
    columns = views.layout(QUEUES, widths, 80)
    line = views.heading(columns, QUEUES.column(title), is_descending=is_descending)

    assert shown == "".join(text for text, style in line if style == "sorted")
    assert shown_width(line) == shown_width(views.row(columns, queue("q")))


def test_states_and_zeros_have_styles():
    """A slowed queue stands out, nothing is dim."""
    columns = [(QUEUES.column(title), 9) for title in ("NAME", "READY", "STATE")]
    line = views.row(columns, queue("orders", state="flow"))

    assert [("orders   ", ""), ("         0", "dim"), (" flow     ", "warning")] == line
    assert [("orders            0 running  ", "cursor")] == views.row(
        columns, queue("orders"), style="cursor"
    )
    assert "orders" in text_of(line)
