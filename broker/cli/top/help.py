"""The texts of the line of keys, and of the help."""

from collections.abc import Sequence

from leveret.broker.cli.top.cells import Line
from leveret.broker.cli.top.views import View

KEYS = (
    ("q", "quit"),
    ("?", "help"),
    ("1 2 3", "list"),
    ("/", "filter"),
    ("← →", "sort by"),
    ("r", "reverse"),
    ("p", "pause"),
)
"""The keys of the last line, the most important of them."""
TYPING_KEYS = (("enter", "keep this filter"), ("esc", "show all"))
"""The keys of the last line while somebody types a filter."""
_ALL = (
    ("1 2 3  tab", "queues, connections, channels"),
    ("/", "type a part of the name; enter keeps it, esc shows all"),
    ("← →  < >", "sort by the column to the left, to the right"),
    ("r", "reverse the order"),
    ("↑ ↓  home end", "choose an item; the line below the table has its details"),
    ("page up, down", "turn the page"),
    ("p  space", "pause, and go on"),
    ("q  ctrl-c", "quit"),
    ("ctrl-z", "leave it for the shell, where `fg` comes back to it"),
)
_KEY_CELLS = 15


def key_line(keys: Sequence[tuple[str, str]]) -> Line:
    """Return a line of keys and what they do."""
    return [span for key, text in keys for span in ((f"{key} ", "key"), (f"{text}  ", "label"))]


def help_lines(view: View) -> list[Line]:
    """Return the help, with the columns of this list."""
    lines: list[Line] = [[(f"{key:<{_KEY_CELLS}}", "key"), (text, "")] for key, text in _ALL]
    lines += [[], [(f"Columns of {view.title.lower()} (a narrow terminal has not all)", "heading")]]
    lines += [[(f"{column.title:<{_KEY_CELLS}}", "key"), (column.meaning, "")] for column in view.columns]
    lines += [[], [("Rates are those of the broker's last sample (5 s).", "label")]]
    lines += [[("k, M, G are thousands of messages; of bytes units of 1024.", "label")]]
    return lines
