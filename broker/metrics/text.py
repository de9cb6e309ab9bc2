"""Prometheus' text format, made piece by piece so that a large answer stalls nobody.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, UNTYPED, HISTOGRAM = "counter", "gauge", "untyped", "histogram"
LINES = 1000
"""Samples that are written in one piece: about a millisecond."""

Sample = tuple[str, str, float | None]
"""What follows the family's name (`_bucket`), the labels as they are written, the value; None for none."""
T = TypeVar("T")


class Column(NamedTuple, Generic[T]):
    """A family with one sample for each object of a kind.

    Attributes:
        name: its name, without the prefix that endpoints differ in.
        kind: its type.
        text: what it means, one line.
        value: the value for an object.
        adds_up: whether the sum over all objects says something.

    """

    name: str
    kind: str
    text: str
    value: Callable[[T], float | None]
    adds_up: bool = True


def escape(text: str) -> str:
    """The value of a label as it is written between the quotes; octets that are no UTF-8 are shown by their numbers."""
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels as they are written, without the braces."""
    return ",".join([f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True)])


def head(name: str, kind: str, text: str) -> str:
    """The lines that begin a family."""
    shown = text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# TYPE {name} {kind}\n# HELP {name} {shown}\n"


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    """A whole family of a few samples; nothing if none has a value."""
    lines = [
        f"{name}{suffix}{{{labels}}} {value}\n" if labels else f"{name}{suffix} {value}\n"
        for suffix, labels, value in samples
        if value is not None
    ]
    return head(name, kind, text) + "".join(lines) if lines else ""


def columns(prefix: str, shown: Iterable[Column[T]], rows: Sequence[tuple[str, T]]) -> Iterator[str]:
    """Families with a sample for each row, in pieces of `LINES`; rows are labels and objects."""
    for column in shown:
        value = column.value
        yield from _pieces(
            prefix + column.name,
            column.kind,
            column.text,
            (
                [(labels, value(row)) for labels, row in rows[at : at + LINES]]
                for at in range(0, len(rows), LINES)
            ),
        )


def _pieces(
    name: str, kind: str, text: str, parts: Iterable[Sequence[tuple[str, float | None]]]
) -> Iterator[str]:
    start = f"{name}{{"
    begun = False
    for samples in parts:
        lines = [f"{start}{labels}}} {value}\n" for labels, value in samples if value is not None]
        if lines and not begun:
            begun = True
            lines.insert(0, head(name, kind, text))
        yield "".join(lines)


def sums(prefix: str, shown: Iterable[Column[T]], total: T) -> str:
    """Families with one sample each, for all objects together."""
    return "".join(
        [
            family(prefix + column.name, column.kind, column.text, [("", "", column.value(total))])
            for column in shown
            if column.adds_up
        ]
    )


def buckets(
    bounds: Iterable[str], below: Iterable[int], labels: str, count: int, total: float
) -> list[Sample]:
    """The samples of one histogram.

    Args:
        bounds: its upper bounds as they are written, ascending, without +Inf.
        below: how many were at most each of them.
        labels: as they are written, '' for none.
        count: how many there were.
        total: their sum.

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
