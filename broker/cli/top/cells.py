"""Text for the cells of a terminal: widths, safe names, and numbers in a few characters."""

import unicodedata
from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size

ELLIPSIS = "…"
REPLACEMENT = "�"
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_STEPS = ("", "k", "M", "G", "T", "P", "E")
_THOUSAND, _KIB = 1000, 1024

Span = tuple[str, str]  # A text and the name of its style, which is empty for plain text
Line = list[Span]


def safe(text: str) -> str:
    """Return a name without the characters that would steer the terminal, or reorder the text around them."""
    if text.isascii() and text.isprintable():
        return text
    return "".join([REPLACEMENT if unicodedata.category(each) in _UNSAFE else each for each in text])


def fit(text: str, width: int, *, is_left: bool = True) -> str:
    """Return a safe text in exactly this number of cells (at least 1): cut with an ellipsis, or filled with spaces."""
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + ELLIPSIS
    spaces = " " * (width - cell_len(text))
    return text + spaces if is_left else spaces + text


def shown_width(line: Iterable[Span]) -> int:
    """Return the number of cells that a line takes."""
    return sum([cell_len(text) for text, _style in line])


def count(value: float | None) -> str:
    """Return a number of things in at most six characters: 99999, then 100k and 1.23M; `-` if it is not known."""
    if value is None:
        return "-"
    if value < 100 * _THOUSAND:
        return f"{value:.0f}"
    return _scaled(value, _THOUSAND)


def rate(value: float | None) -> str:
    """Return a rate in at most six characters: 0, 0.4, 25, 1234, 12.3k."""
    if value is None:
        return "-"
    if 0 < value < 9.95:  # noqa: PLR2004 - what rounds to less than ten
        return f"{value:.1f}"
    return count(value)


def octets(value: float | None) -> str:
    """Return a number of bytes in at most six characters: 640, 12.3k, 1.50M; units are powers of 1024."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value < _KIB else _scaled(value, _KIB)


def _scaled(value: float, base: int) -> str:
    step = 0
    while step + 1 < len(_STEPS) and value >= base * (1 - 0.5 / _THOUSAND):
        value /= base
        step += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0  # noqa: PLR2004 - three digits in all
    return f"{value:.{digits}f}{_STEPS[step]}"


def grouped(value: float | None) -> str:
    """Return a whole number with commas; `-` if it is not known."""
    return "-" if value is None else f"{value:,.0f}"


def memory(value: float | None) -> str:
    """Return a number of bytes with its unit, for a line of text: `1.5 GiB`."""
    if value is None:
        return "-"
    if value < _KIB:
        return f"{value:.0f} B"
    text = _scaled(value, _KIB)
    return f"{text[:-1]} {text[-1].upper()}iB"


def share(value: float | None) -> str:
    """Return a part of 1 in percent, at most six characters; `-` if it is not known."""
    return "-" if value is None else f"{100 * value:.0f} %"
