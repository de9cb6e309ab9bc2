"""Prometheus' text format, generated in pieces so that a large response does not block the loop.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, UNTYPED, HISTOGRAM = "counter", "gauge", "untyped", "histogram"
LINES = 1000  # samples per piece: about a millisecond

Sample = tuple[str, str, float | None]
"""Suffix of the family's name (`_bucket`), formatted labels, and value; None if there is none."""


Read = str | Callable[[Any], Any]  # path of attributes to a value, or a function that returns it


class Column(NamedTuple):
    """A family with one sample per object of a kind.

    The name is without the prefix of the endpoint, the text is one line. `value` returns the value of an object, None
    if it has none; `adds_up` is true if the sum over all objects is meaningful.
    """

    name: str
    kind: str
    text: str
    value: Callable[[Any], float | None]
    adds_up: bool = True


def reader(read: Read) -> Callable[[Any], Any]:
    """Return a function that reads a value."""
    return attrgetter(read) if isinstance(read, str) else read


def gauge(name: str, text: str, read: Read, *, adds_up: bool = True) -> Column:
    """Return a column of current values."""
    return Column(name, GAUGE, text, reader(read), adds_up)


def counter(name: str, text: str, read: Read) -> Column:
    """Return a column of counters."""
    return Column(name, COUNTER, text, reader(read))


def escape(text: str) -> str:
    """Escape the value of a label; bytes that are not valid UTF-8 are shown by their numbers."""
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Format labels, without the braces."""
    return ",".join([f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True)])


def head(name: str, kind: str, text: str) -> str:
    """Return the header lines of a family."""
    shown = text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# TYPE {name} {kind}\n# HELP {name} {shown}\n"


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    """Return a whole family of a few samples; empty if none has a value."""
    lines = [
        f"{name}{suffix}{{{labels}}} {value}\n" if labels else f"{name}{suffix} {value}\n"
        for suffix, labels, value in samples
        if value is not None
    ]
    return head(name, kind, text) + "".join(lines) if lines else ""


def columns(prefix: str, shown: Iterable[Column], rows: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Yield families with a sample for each row, in pieces of `LINES`; rows are labels and objects."""
    for column in shown:
        name, value = prefix + column.name, column.value
        begun = False
        for at in range(0, len(rows), LINES):
            lines = [
                f"{name}{{{labels}}} {found}\n"
                for labels, row in rows[at : at + LINES]
                if (found := value(row)) is not None
            ]
            if lines and not begun:
                begun = True
                lines.insert(0, head(name, column.kind, column.text))
            yield "".join(lines)


def sums(prefix: str, shown: Iterable[Column], total: Any) -> str:
    """Return families with one sample each, for all objects together."""
    found = [column for column in shown if column.adds_up]
    return "".join([family(prefix + c.name, c.kind, c.text, [("", "", c.value(total))]) for c in found])


def buckets(
    bounds: Iterable[str], below: Iterable[int], labels: str, count: int, total: float
) -> list[Sample]:
    """Return the samples of one histogram, given its count and sum.

    `bounds` are its formatted upper bounds, ascending, without +Inf; `below` has for each the number of values at most
    as large; `labels` are formatted, '' for none.
    """
    before = f"{labels}," if labels else ""
    samples: list[Sample] = [
        ("_bucket", f'{before}le="{bound}"', number) for bound, number in zip(bounds, below, strict=True)
    ]
    return [
        *samples,
        ("_bucket", f'{before}le="+Inf"', count),
        ("_count", labels, count),
        ("_sum", labels, total),
    ]
