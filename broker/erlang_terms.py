"""Terms of Erlang, as in RabbitMQ's advanced.config and in queries of its LDAP backend: read and written. Pure.

Read are atoms (`constant`, `'and'`), strings, binaries with a string in them, numbers, tuples and lists, and comments
(`%`). An `Atom` is distinct from a string, a tuple from a list; a binary is a string.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from leveret.exchanges.erlang_hash import Atom

DEEPEST: Final = 32  # maximum depth of tuples and lists inside each other
_TOKEN: Final = re.compile(
    r"""(?:\s|%[^\n]*)*(?:
        (?P<atom>[a-z][\w@]*) | '(?P<quoted>(?:[^'\\]|\\.)+)' | "(?P<string>(?:[^"\\]|\\.)*)"
        | <<\s*"(?P<binary>(?:[^"\\]|\\.)*)"\s*>> | (?P<float>-?\d+\.\d+(?:[eE][+-]?\d+)?) | (?P<integer>-?\d+)
        | (?P<mark>[\[\]{},.])
    )(?:\s|%[^\n]*)*""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_PLAIN_ATOM: Final = re.compile(r"[a-z][\w@]*", re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t", "s": " ", "r": "\r"}
_CLOSING: Final = {"{": "}", "[": "]"}
_VALUE, _END = "value", "end"  # kinds of tokens beside the punctuation marks


def parsed(text: str) -> Any:
    """Return the term that a text consists of; there may be a full stop after it.

    Raises ValueError: the text is no term, or one of another kind; the message says at which character.
    """
    reader = _Reader(text)
    term = reader.term(0)
    if reader.kind == ".":
        reader.step()
    if reader.kind != _END:
        raise ValueError(f"there is more after the term, at character {reader.at + 1}")
    return term


def parsed_several(text: str) -> list[Any]:
    """Return the terms that a text consists of, with nothing between them; raises ValueError as `parsed` does."""
    reader, terms = _Reader(text), []
    while reader.kind != _END:
        terms.append(reader.term(0))
    return terms


def written(term: Any) -> str:
    """Return a term as text that `parsed` reads."""
    match term:
        case Atom():
            return str(term) if _PLAIN_ATOM.fullmatch(term) else f"'{_escape(term, chr(39))}'"
        case str():
            return f'"{_escape(term, chr(34))}"'
        case tuple():
            return "{" + ", ".join(map(written, term)) + "}"
        case list():
            return "[" + ", ".join(map(written, term)) + "]"
    return repr(term)


def _escape(text: str, quote: str) -> str:
    return text.replace("\\", "\\\\").replace(quote, f"\\{quote}")


def _tokens(text: str) -> Iterator[tuple[int, str, Any]]:
    """Yield each token when it is asked for: position, kind, and value; a punctuation mark is its own kind."""
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"this is no term of Erlang that is known here, at character {at + 1}")
        kind = found.lastgroup or ""
        match kind:
            case "mark":
                yield at, found[kind], ""
            case "atom":
                yield at, _VALUE, Atom(found[kind])
            case "integer":
                yield at, _VALUE, int(found[kind])
            case "float":
                yield at, _VALUE, float(found[kind])
            case _:
                value = _ESCAPED.sub(lambda escaped: _LETTERS.get(escaped[1], escaped[1]), found[kind])
                yield at, _VALUE, Atom(value) if kind == "quoted" else value
        at = found.end()
    yield at, _END, ""


class _Reader:
    """Reads a text from token to token, of which it has the present one."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self.step()

    def step(self) -> None:
        self.at, self.kind, self._value = next(self._tokens)

    def term(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError(f"terms are nested more than {DEEPEST} deep")
        if self.kind == _VALUE:
            value = self._value
            self.step()
            return value
        if self.kind == _END:
            raise ValueError("a term is missing at the end")
        closing = _CLOSING.get(self.kind)
        if closing is None:
            raise ValueError(f"a term is missing at character {self.at + 1}")
        self.step()
        found: list[Any] = []
        while self.kind != closing:
            if found:
                if self.kind != ",":
                    raise ValueError(f"a comma or {closing} is missing at character {self.at + 1}")
                self.step()
            found.append(self.term(depth + 1))
        self.step()
        return tuple(found) if closing == "}" else found
