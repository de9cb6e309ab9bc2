"""Erlang terms in texts: the form of LDAP queries in RabbitMQ's advanced.config. Pure.

Of Erlang's terms there are those that queries consist of: atoms (`constant`, `'and'`), strings, binaries with a string
in them, tuples and lists. An `Atom` is distinct from a string, a tuple from a list.
"""

import re
from typing import Any, Final

DEEPEST: Final = 32
"""Maximum depth of tuples and lists inside each other."""
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<atom>[a-z][\w@]*) | '(?P<quoted>(?:[^'\\]|\\.)+)' | "(?P<string>(?:[^"\\]|\\.)*)"
        | <<\s*"(?P<binary>(?:[^"\\]|\\.)*)"\s*>> | (?P<mark>[\[\]{},.])
    )\s*""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t", "s": " ", "r": "\r"}
_CLOSING: Final = {"{": "}", "[": "]"}


class Atom(str):
    """An atom; equal to the string with the same text."""

    __slots__ = ()


def parsed(text: str) -> Any:
    """Return the term that a text consists of; there may be a full stop after it.

    Raises:
        ValueError: the text is no term, or one of another kind; the message says at which character.

    """
    reader = _Reader(text)
    term = reader.term(0)
    if reader.mark == ".":
        reader.step()
    if not reader.is_over:
        raise ValueError(f"there is more after the term, at character {reader.at + 1}")
    return term


class _Reader:
    """Reads a text from token to token.

    Attributes:
        at: position of the present token.
        mark: the token, if it is a punctuation mark.
        is_over: True at the end.

    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self.step()

    def step(self) -> None:
        """Go to the next token."""
        self.at = self._next
        self.is_over = self.at >= len(self._text.rstrip())
        self.mark = ""
        self._value: str | None = None
        if self.is_over:
            return
        found = _TOKEN.match(self._text, self.at)
        if found is None:
            raise ValueError(f"this is no term of Erlang that a query has, at character {self.at + 1}")
        self._next = found.end()
        kind = found.lastgroup or ""
        if kind == "mark":
            self.mark = found[kind]
        elif kind == "atom":
            self._value = Atom(found[kind])
        else:
            text = _ESCAPED.sub(lambda escaped: _LETTERS.get(escaped[1], escaped[1]), found[kind])
            self._value = Atom(text) if kind == "quoted" else text

    def term(self, depth: int) -> Any:
        """Read a term."""
        if depth > DEEPEST:
            raise ValueError(f"terms are nested more than {DEEPEST} deep")
        if self._value is not None:
            value = self._value
            self.step()
            return value
        closing = _CLOSING.get(self.mark)
        if closing is None:
            raise ValueError(
                "a term is missing at the end"
                if self.is_over
                else f"a term is missing at character {self.at + 1}"
            )
        self.step()
        found: list[Any] = []
        while self.mark != closing:
            if found:
                if self.mark != ",":
                    raise ValueError(f"a comma or {closing} is missing at character {self.at + 1}")
                self.step()
            found.append(self.term(depth + 1))
        self.step()
        return tuple(found) if closing == "}" else found
