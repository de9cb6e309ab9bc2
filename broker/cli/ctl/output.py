"""Output: rows, values and errors as RabbitMQ's tools print them; texts that have no effect on a terminal."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http.client import TOO_MANY_REQUESTS
from typing import Any

import msgspec

from leveret.broker import exit_codes

Row = Mapping[str, Any]


def printable(value: Any) -> str:
    """Return a value as one line for a terminal, on which no character of a name or a message may have an effect."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(value)
    )


def printable_lines(text: str) -> str:
    """Return a text of several lines for a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def writable(text: str) -> str:
    """Return a text that can be written as UTF-8, with an escape for each byte of an argument that is not."""
    return text.encode("utf-8", "backslashreplace").decode()


def duration(seconds: float | None) -> str:
    """Return a duration in the largest units that tell it; '' for None."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if not hours:
        return f"{minutes}m{whole % 60:02}s"
    return f"{hours}h{minutes % 60:02}m" if not days else f"{days}d{hours % 24:02}h"


class Arguments(dict[str, Any]):
    """Arguments of a queue, exchange, binding or consumer, which are printed as Erlang terms."""


def cell(value: Any) -> str:
    """Return a value as it stands in a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Arguments):
        return _term(value)
    if isinstance(value, Mapping):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(cell(each) for each in value) + "]"
    return str(value)


def _term(value: Any) -> str:
    if isinstance(value, Mapping):
        return "[" + ",".join(f'{{"{name}",{_term(each)}}}' for name, each in value.items()) + "]"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_term, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else cell(value)


def as_json(value: Any) -> Any:
    """Return a value as RabbitMQ's JSON formatter has it: arguments as lists of name, type and value."""
    if isinstance(value, Arguments):
        return [[name, *_typed(each)] for name, each in value.items()]
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return "" if value is None else value


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of cells in columns that are as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


_TYPES: tuple[tuple[type, str], ...] = ((bool, "bool"), (float, "double"), (str, "longstr"))
_INTEGER = 1 << 31


def _typed(value: Any) -> tuple[str, Any]:
    if isinstance(value, Mapping):
        return "table", as_json(Arguments(value))
    if isinstance(value, list):
        return "array", [list(_typed(each)) for each in value]
    for kind, name in _TYPES:
        if isinstance(value, kind):
            return name, value
    if isinstance(value, int):
        return "signedint" if -_INTEGER <= value < _INTEGER else "long", value
    return "void", ""


def _table(
    rows: Sequence[Row],
    columns: Sequence[str],
    *,
    headers: bool,
    joined: Callable[[Iterable[str]], str] = "\t".join,
) -> Iterator[str]:
    if rows and headers:
        yield joined(columns)
    for row in rows:
        yield joined(cell(row.get(name)) for name in columns)


def _json(rows: Sequence[Row], columns: Sequence[str], *, headers: bool) -> Iterator[str]:
    del headers
    yield "["
    for at, row in enumerate(rows):
        item = {name: as_json(row.get(name)) for name in columns}
        yield ("," if at else "") + msgspec.json.encode(item).decode()
    yield "]"


def _csv_line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="").writerow(cells)
    return line.getvalue()


def _pretty(rows: Sequence[Row], columns: Sequence[str], *, headers: bool) -> Iterator[str]:
    if not rows:
        return
    lines = [[cell(row.get(name)) for name in columns] for row in rows]
    shown = [list(columns), *lines] if headers else lines
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    def drawn(line: Sequence[str]) -> str:
        return "│" + "│".join(f" {text:<{width}} " for text, width in zip(line, widths, strict=True)) + "│"

    yield rule("┌", "┬", "┐")
    if headers:
        yield drawn(columns)
        yield rule("├", "┼", "┤")
    yield from map(drawn, lines)
    yield rule("└", "┴", "┘")


FORMATTERS: Mapping[str, Callable[..., Iterator[str]]] = {
    "table": _table,
    "json": _json,
    "csv": partial(_table, joined=_csv_line),
    "pretty_table": _pretty,
}
CHATTY = frozenset({"table", "pretty_table"})  # those for people: messages may stand before their output


DISK_FULL = "disk_full"  # broker's word for a change that is not on disk, and would be lost with the broker


class CtlError(Exception):
    """A command failed: its exit code, and a text for the administrator.

    What would act on a terminal is escaped, since names are chosen by clients.
    """

    def __init__(self, text: str, code: int = exit_codes.UNAVAILABLE) -> None:
        super().__init__(printable_lines(text))
        self.code = code
        self.shown = str(self)  # text that the command prints


class UsageError(CtlError):
    """The arguments of a command are invalid: RabbitMQ's words, and a hint in detail; its usage is shown, too."""

    def __init__(self, text: str, code: int, hint: str = "") -> None:
        super().__init__(text, code)
        self.hint = hint


class ApiError(CtlError):
    """The broker answered with an error: HTTP status, its text, escaped for HTML, and its word, such as `disk_full`."""

    def __init__(self, status: int, reason: str, kind: str = "") -> None:
        code = exit_codes.CANNOT_CREATE if kind == DISK_FULL else exit_codes.UNAVAILABLE
        super().__init__(reason, exit_codes.TEMPORARY if status == TOO_MANY_REQUESTS else code)
        self.status = status
        self.kind = kind
        self.reason = str(self)
        text = self.reason.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        self.shown = f"Error:\n{printable_lines(text)}"


def refused(text: str) -> CtlError:
    """Return the error for an operation that the broker refused, or a check that failed."""
    return CtlError(f"Error:\n{text}")
