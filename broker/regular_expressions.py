"""Regular expressions of users and clients, searched in time linear in the length of the text.

With the package google-re2 (the extra `leveret[re2]`) they are RE2's. Without it they are those of `Automaton`, whose
language is a part of RE2's, with the same meaning; what is not in it is refused.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from leveret.broker.automaton import Automaton, ExpressionError

_WEIGHT: Final = 4  # the cost of a position of an automaton, in instructions of RE2
_INSTALL: Final = "without RE2; to have it: pip install 'leveret[re2]'"


class Expression(NamedTuple):
    """A compiled expression: `search` returns what is true if it matches somewhere; `size` in instructions of RE2."""

    search: Callable[[bytes], object]
    size: int


def compiled(pattern: bytes, *, memory: int, encoding: str = "latin-1") -> Expression:
    """Compile an expression, encoded as the texts are: in octets (`latin-1`), or in characters of `utf-8`.

    `memory` is the maximum of a compiled one in RE2, in bytes, which bounds the time of a search. Raises
    ExpressionError: the expression is invalid, too large, or not supported; the text says by what.
    """
    try:
        import re2  # noqa: PLC0415 - an extra; and most brokers have only trivial patterns and need not load it
    except ImportError:
        return _automaton(pattern, encoding)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory
    if encoding == "latin-1":
        options.encoding = re2.Options.Encoding.LATIN1
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0] if error.args else ""
        reason = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)
        raise ExpressionError(f"RE2: {reason}") from None
    return Expression(found.search, int(found.programsize))


def _automaton(pattern: bytes, encoding: str) -> Expression:
    try:
        automaton = Automaton(pattern.decode(encoding, "surrogateescape"))
    except ExpressionError as error:
        raise ExpressionError(f"{error} ({_INSTALL})") from None
    search = automaton.search
    return Expression(
        lambda octets: search(octets.decode(encoding, "surrogateescape")), _WEIGHT * automaton.positions
    )
