"""Tokens of a condition: names, operators, texts, numbers; and the error of one that cannot be parsed."""

import re
from enum import StrEnum
from typing import Any, NamedTuple

DURATIONS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Units of durations, in seconds."""
SIZES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""Units of sizes, in bytes."""
KEYWORDS = ("and", "or", "not", "in", "exists", "true", "false")
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "r": "\r"}
_DIGITS = 40
"""Maximum length of a number."""
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<operator>==|!=|<=|>=|=~|<|>|\(|\)|,)
    |(?P<number>[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)(?P<unit>[A-Za-z]*)
    |(?P<name>[A-Za-z_][A-Za-z0-9_$/-]*(?:\.[A-Za-z0-9_$/-]+)*\.?)
    |(?P<quote>["'])""",
    re.VERBOSE,
)


class FilterError(ValueError):
    """A condition is not in the language of `MessageFilter`; `column` is where, from 1."""

    def __init__(self, reason: str, at: int) -> None:
        self.column = at + 1
        super().__init__(f"column {self.column}: {reason}")


class Kind(StrEnum):
    """Kinds of tokens."""

    OPERATOR = "operator"
    KEYWORD = "keyword"
    NAME = "name"
    TEXT = "text"
    NUMBER = "number"
    END = "end"


class Token(NamedTuple):
    """A token at a position of the condition; `unit` is that of a number, or ''."""

    kind: Kind
    value: Any
    at: int
    unit: str = ""

    def __str__(self) -> str:
        return {Kind.END: "the end", Kind.TEXT: "a text", Kind.NUMBER: "a number"}.get(
            self.kind, f"'{self.value}'"
        )


def tokens(text: str) -> list[Token]:
    """Divide a condition into tokens; the last one is the end. Raises FilterError if something is no token."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise FilterError(_unexpected(text[at]), at)
        start, at = at, match.end()
        match match.lastgroup:
            case "operator":
                found.append(Token(Kind.OPERATOR, match[0], start))
            case "unit":
                found.append(_number(match["number"], match["unit"], start))
            case "name":
                is_keyword = match[0].lower() in KEYWORDS
                found.append(
                    Token(Kind.KEYWORD, match[0].lower(), start)
                    if is_keyword
                    else Token(Kind.NAME, match[0], start)
                )
            case "quote":
                value, at = _quoted(text, start)
                found.append(Token(Kind.TEXT, value, start))
    found.append(Token(Kind.END, "", len(text)))
    return found


def _unexpected(sign: str) -> str:
    advice = {"=": ": equality is '=='", "&": ": use 'and'", "|": ": use 'or'", "!": ": use 'not' or '!='"}
    return f"unexpected {sign!r}{advice.get(sign, '')}"


def _number(digits: str, unit: str, at: int) -> Token:
    if len(digits) > _DIGITS:
        raise FilterError(f"a number has at most {_DIGITS} characters", at)
    if unit and unit not in DURATIONS and unit not in SIZES:
        raise FilterError(f"unknown unit '{unit}' (durations: {_list(DURATIONS)}; sizes: {_list(SIZES)})", at)
    number = float(digits) if set(digits) & set(".eE") else int(digits)
    return Token(Kind.NUMBER, number, at, unit)


def _list(units: dict[str, Any]) -> str:
    return ", ".join(units)


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the value of the quoted text that begins at a position, and the position behind it."""
    quote = text[at]
    parts: list[str] = []
    start, at = at, at + 1
    while at < len(text) and text[at] != quote:
        if text[at] != "\\":
            parts.append(text[at])
            at += 1
            continue
        escaped = text[at + 1 : at + 2]
        if escaped not in _ESCAPES:
            raise FilterError(f"'\\{escaped}' is no escape: write a backslash as '\\\\'", at)
        parts.append(_ESCAPES[escaped])
        at += 2
    if at >= len(text):
        raise FilterError("the text has no closing quote", start)
    return "".join(parts), at + 1
