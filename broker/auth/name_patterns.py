r"""Regular expressions of permissions and policies, matched in time linear in the length of the name.

Theory. Names come from clients, so no pattern may block the broker, whatever the name: patterns are those of
`leveret.broker.automaton`, which do not backtrack. They have no lookahead, but the most common pattern of
RabbitMQ's users begins with one (`^(?!amq\.).*`). Such a lookahead, a single one at the start of the name, is replaced
by two matches without lookahead: one that must succeed and one that must fail (or succeed). Anything else that is
refused there is an error, or is passed to Python's `re` if `compatibility.python_patterns` is set. Patterns are at most
`MAX_OCTETS` long, which bounds the cost of one match (some 20 ms for the worst
found).

Patterns are matched against the octets of a name, as in RabbitMQ, which calls `re:run` without the option `unicode`.
"""

import logging
import re
from collections.abc import Callable, Iterator
from operator import not_

from leveret.broker.automaton import ExpressionError, compiled
from leveret.exchanges.erlang_hash import octets

log = logging.getLogger("leveret.definitions")

Matcher = Callable[[bytes], object]  # searches the octets of a name; true if the pattern is in it

MAX_OCTETS = 1024  # maximum length of a pattern, in octets of UTF-8, before variables are substituted

_MEMORY = 8 * 1024 * 1024  # of a compiled pattern, in bytes
_SHOWN = 200  # maximum number of characters of a pattern in an error text
_LOOKAHEAD = re.compile(r"\^\(\?([=!])")


class InvalidPatternError(ValueError):
    """A pattern is not a supported regular expression; `reason` says why without repeating `pattern`."""

    def __init__(self, pattern: str, reason: str) -> None:
        shown = pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}..."
        super().__init__(f"invalid regular expression '{shown}': {reason}")
        self.pattern = pattern
        self.reason = reason


class Patterns:
    """Compiles and caches patterns; `python`: refused ones become Python's `re`, which may take exponential time."""

    def __init__(self, *, python: bool = False) -> None:
        self._python = python
        self._known: dict[str, Matcher] = {}

    def compile(self, pattern: str, **variables: str) -> Matcher:
        """Compile a pattern in which `{name}` stands for the literal text of a variable.

        Raises InvalidPatternError: it is too long, or not a regular expression of linear time, with or without a
        leading lookahead.
        """
        size = len(octets(pattern))
        if size > MAX_OCTETS:
            raise InvalidPatternError(pattern, f"it is {size} bytes long, more than {MAX_OCTETS}")
        written = pattern
        for name, value in variables.items():
            pattern = pattern.replace(f"{{{name}}}", re.escape(value))
        matcher = self._known.get(pattern)
        if matcher is None:
            matcher = self._compiled(pattern, written)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[pattern] = matcher
        return matcher

    def stored(self, pattern: str, owner: str, **variables: str) -> Matcher:
        """Compile a pattern that an earlier version accepted; one that is not supported is logged and matches nothing.

        `owner` is the object it belongs to, for the log.
        """
        try:
            return self.compile(pattern, **variables)
        except InvalidPatternError as error:
            log.error(  # noqa: TRY400 - the text says it all
                "%s: %s. It matches nothing until it is replaced or compatibility.python_patterns is set to true",
                owner,
                error,
            )
            return no_name

    def _compiled(self, pattern: str, written: str) -> Matcher:
        if pattern == ".*":
            return any_name
        if pattern in {"", "^$"}:
            return not_
        try:
            return _linear(pattern)
        except ExpressionError as error:
            reason = str(error)
        if not self._python:
            raise InvalidPatternError(written, reason)
        try:
            search: Matcher = re.compile(octets(pattern)).search
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidPatternError(written, str(error)) from None
        log.warning(
            "pattern '%s' is matched by Python's re, which may take exponential time (%s)", written, reason
        )
        return search


_REMEMBERED = 1024  # maximum number of cached matchers


def any_name(_name: bytes) -> bool:
    """Match any name: the matcher of `.*`."""
    return True


def no_name(_name: bytes) -> bool:
    """Match no name: the matcher of an unsupported pattern."""
    return False


def _without_lookahead(pattern: str) -> Matcher:
    return compiled(octets(pattern), memory=_MEMORY).search


def _linear(pattern: str) -> Matcher:
    """Compile a pattern, a leading lookahead separately; raises ExpressionError."""
    parts = _split_lookahead(pattern)
    if parts is None:
        return _without_lookahead(pattern)
    positive = parts[0]
    ahead, rest = (_without_lookahead(f"^(?:{part})") for part in parts[1:])
    return lambda name: bool(ahead(name)) is positive and bool(rest(name))


def _split_lookahead(pattern: str) -> tuple[bool, str, str] | None:
    """Split `^(?=X)Y` or `^(?!X)Y` into true if X must match, X and Y; return None for any other pattern."""
    # Y must be a single alternative: in `^(?!X)Y|Z` the lookahead does not apply to Z.
    found = _LOOKAHEAD.match(pattern)
    if found is None or "\\Q" in pattern:
        return None
    end = -1
    for at, sign, depth in _structure(pattern, found.end()):
        if end < 0:
            if sign == ")" and depth < 0:
                end = at
        elif depth < -1 or (sign == "|" and depth == -1):
            return None
    if end < 0:
        return None
    return found[1] == "=", pattern[found.end() : end], pattern[end + 1 :]


def _structure(pattern: str, at: int) -> Iterator[tuple[int, str, int]]:
    """Yield the parentheses and bars from `at` on, each with the depth after it; skip escapes and character classes."""
    depth = 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += 2
            continue
        if sign == "[":
            at = _class_end(pattern, at)
            continue
        if sign in "()|":
            depth += {"(": 1, ")": -1, "|": 0}[sign]
            yield at, sign, depth
        at += 1


def _class_end(pattern: str, at: int) -> int:
    """Return the position after the character class that begins at `at`, or the end of the pattern."""
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    first = at
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        if pattern.startswith("[:", at) and (close := pattern.find(":]", at)) >= 0:
            at = close + 2
            continue
        if pattern[at] == "]" and at > first:
            return at + 1
        at += 1
    return at
