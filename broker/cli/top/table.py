"""The table: which columns have space, and the lines of the heading and of the items."""

from collections.abc import Mapping, Sequence

from leveret.broker.cli.top.cells import Line, fit, width_of
from leveret.broker.cli.top.views import Column, Item, View

NAME_LEAST = 14
"""Cells that the names keep for themselves on a narrow terminal."""
NAME_ENOUGH = 40
"""Cells of names above which further columns are worth more."""
NAME_STEP = 10
"""Wider names make the column wider by this, so that it does not change with every item that comes or goes."""
DESCENDING, ASCENDING = "▼", "▲"
Widths = dict[str, int]
"""Title of a column of names or texts -> cells of the longest text so far."""


def widen(widths: Widths, view: View, items: Sequence[Item]) -> None:
    """Take the texts of these items into account; columns never become narrower."""
    for column in view.columns:
        if column.kind != "number":
            longest = max([width_of(column.text(item)) for item in items], default=0)
            widths[column.title] = max(widths.get(column.title, 0), longest)


def layout(view: View, widths: Mapping[str, int], total: int) -> list[tuple[Column, int]]:
    """Return the columns that have space on a terminal of `total` cells, in their order, each with its cells."""

    def needed(column: Column) -> int:
        if column.kind == "text":
            return max(len(column.title), min(column.width, widths.get(column.title, 0)))
        return max(len(column.title), column.width)

    name = next(each for each in view.columns if each.kind == "name")
    longest = widths.get(name.title, 0)
    enough = min(NAME_ENOUGH, max(NAME_LEAST, longest))
    chosen = {name.title}
    left = total
    kept = [view.column(title) for title in view.first]
    others = [each for each in view.columns if each not in {name, *kept} and widths.get(each.title) != 0]
    for column in [*kept, *others]:
        if left - needed(column) - 1 >= (NAME_LEAST if column in kept else enough):
            chosen.add(column.title)
            left -= needed(column) + 1
        elif column in kept:
            break
    wanted = max(NAME_ENOUGH, -(-longest // NAME_STEP) * NAME_STEP)
    return [
        (column, max(1, min(left, wanted)) if column is name else needed(column))
        for column in view.columns
        if column.title in chosen
    ]


def heading(columns: Sequence[tuple[Column, int]], sort: Column, *, is_descending: bool) -> Line:
    """Return the line of titles; that of the sorted column stands out, with an arrow in the space beside it."""
    arrow = DESCENDING if is_descending else ASCENDING
    line: Line = []
    gap = ""
    for column, cells in columns:
        is_left = column.kind != "number"
        title = fit(column.title, cells, is_left=is_left)
        if column is not sort:
            line += [(gap, "heading"), (title, "heading")]
        elif not is_left and gap:
            line += [(arrow, "sorted"), (title, "sorted")]
        elif is_left and width_of(column.title) < cells:
            line += [(gap, "heading"), (fit(f"{column.title}{arrow}", cells), "sorted")]
        else:
            line += [(gap, "heading"), (title, "sorted")]
            gap = arrow
            continue
        gap = " "
    return line


def row(columns: Sequence[tuple[Column, int]], item: Item, *, style: str = "") -> Line:
    """Return the line of an item."""
    cells = [fit(column.text(item), width, is_left=column.kind != "number") for column, width in columns]
    if style:
        return [(" ".join(cells), style)]
    line: Line = []
    for at, ((column, _width), text) in enumerate(zip(columns, cells, strict=True)):
        line.append((" " * bool(at) + text, _style(column, text.strip())))
    return line


def _style(column: Column, text: str) -> str:
    """Return the style of a cell: what is nothing is dim, a state that slows somebody down stands out."""
    if column.title == "STATE":
        return {"flow": "warning", "blocked": "alarm", "blocking": "warning"}.get(text, "dim")
    return "dim" if column.kind == "number" and text in {"0", "-", "0 %"} else ""
