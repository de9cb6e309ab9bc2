r"""Regular expressions of users and clients, searched in time linear in the length of the text.

Theory of the automaton, which needs Python alone. Each character that the expression names is a position, and so are
`^` and `$`, which read the beginning and the end of the text (Glushkov's construction). A set of positions is the bits
of an integer. What is active after each character depends on the active positions and on the character only, so nothing
is ever tried twice: a text of n characters costs n steps, each of at most as many operations as there are positions.

    expression = ["(?" flags ")"] choice
    choice     = sequence {"|" sequence}
    sequence   = {(atom | "^" | "$" | "(" ["?:"] choice ")") [times]}
    times      = ("*" | "+" | "?" | "{n}" | "{n,}" | "{n,m}") ["?"]

An atom is a character, `.`, a class in brackets, one of `\d \D \w \W \s \S \n \t \r`, or a backslash before
punctuation. This is what RE2, PCRE and Python's `re` read in the same way; anything else is refused. `$` is the end
only, as in RE2, and letters and digits are those of ASCII.

With the package google-re2 (the extra `leveret[re2]`) they are RE2's. Without it they are those of `Automaton`, whose
language is a part of RE2's, with the same meaning.
"""

import re
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Final, NamedTuple

MOST_POSITIONS: Final = 1024  # maximum number of positions, with those of repetitions
_MOST_DEPTH: Final = 50  # of groups
_REMEMBERED: Final = 1024  # maximum number of cached characters, and of cached sets
_BEGINNING, _END = "^beginning", "end$"  # read as if they were characters, which are shorter
_SYNTAX: Final = r"""(?P<atom>
        \\[dDwWsSntr] | \\[\x00-/:-@\[-^`{-\x7f] | [^\\^$|()\[\]{}*+?]
        | \[ \^? (?: (?!--|&&|\|\||~~) (?: \\[dDwWsSntr] | \\[\x00-/:-@\[-^`{-\x7f] | [^\\\[\]] ) )+ \]
      )
    | (?P<edge>[\^$])
    | (?P<open>\((?:\?:|(?!\?)))
    | (?P<sign>[|)])
    | (?P<times>[*+?] | \{(?P<low>\d{1,4})(?P<range>,(?P<high>\d{0,4}))?\})\??"""
"""Compiled where it is used: nearly all brokers have RE2, or no patterns."""
_TIMES: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_FLAGS: Final = r"\(\?([is]+)\)"


class ExpressionError(ValueError):
    """An expression is not in the language of `Automaton`, or too large."""


class _Part(NamedTuple):
    """A part of an expression: whether it matches nothing at all, and the positions that begin and that end it."""

    empty: bool
    first: int
    last: int


_NOTHING: Final = _Part(empty=True, first=0, last=0)


class _Tree(NamedTuple):
    """An atom or an edge (`text`), or a group, with the times that it is repeated (None: any number)."""

    text: str
    choices: list[list["_Tree"]]
    low: int = 1
    high: int | None = 1


class Automaton:
    """A compiled expression; raises ExpressionError."""

    __slots__ = ("_after", "_bits", "_first", "_flags", "_follow", "_last", "_masks", "_matches_all")

    def __init__(self, expression: str) -> None:
        flags = re.match(_FLAGS, expression)
        self._flags = re.ASCII
        for letter in flags[1] if flags else "":
            self._flags |= re.IGNORECASE if letter == "i" else re.DOTALL
        self._follow: list[int] = []
        self._bits: dict[str, int] = {}
        self._masks: dict[str, int] = {}
        self._after: dict[int, int] = {}
        part = self._choice(_Parser(expression, flags.end() if flags else 0).parse())
        self._matches_all, self._first, self._last = part
        beginnings = self._bits.get(_BEGINNING, 0)  # an edge is read once
        if self._following(beginnings) & beginnings or self._following(self._bits.get(_END, 0)):
            raise ExpressionError("^ may not follow ^, and nothing may follow $")

    @property
    def positions(self) -> int:
        """The number of positions: the cost of one character at worst."""
        return len(self._follow)

    def search(self, text: str) -> bool:
        """Return whether the expression matches somewhere in a text."""
        if self._matches_all:
            return True
        first, last, masks, after = self._first, self._last, self._masks, self._after
        active = first
        for sign in (_BEGINNING, *text, _END):
            mask = masks.get(sign)
            hit = active & (self._mask(sign) if mask is None else mask)
            if hit & last:
                return True
            following = after.get(hit)
            active = first | (self._following(hit) if following is None else following)
        return False

    def _mask(self, sign: str) -> int:
        """Return the positions that read a character or an edge."""
        if len(self._masks) >= _REMEMBERED:
            self._masks.clear()
        mask = self._bits.get(sign, 0) if len(sign) > 1 else 0
        if len(sign) == 1:
            for text, bits in self._bits.items():
                if text not in {_BEGINNING, _END} and re.fullmatch(text, sign, self._flags):
                    mask |= bits
        self._masks[sign] = mask
        return mask

    def _following(self, hit: int) -> int:
        """Return the positions that may read what comes after some positions."""
        if len(self._after) >= _REMEMBERED:
            self._after.clear()
        self._after[hit] = following = reduce(int.__or__, [self._follow[at] for at in _positions(hit)], 0)
        return following

    # -- construction

    def _choice(self, choices: list[list[_Tree]]) -> _Part:
        parts = [reduce(self._joined, map(self._repeated, each), _NOTHING) for each in choices]
        return _Part(
            any(part.empty for part in parts),
            reduce(int.__or__, [part.first for part in parts]),
            reduce(int.__or__, [part.last for part in parts]),
        )

    def _joined(self, one: _Part, two: _Part) -> _Part:
        for at in _positions(one.last):
            self._follow[at] |= two.first
        return _Part(
            one.empty and two.empty,
            one.first | (two.first if one.empty else 0),
            two.last | (one.last if two.empty else 0),
        )

    def _repeated(self, tree: _Tree) -> _Part:
        whole = _NOTHING
        for count in range(max(tree.low, 1) if tree.high is None else tree.high):
            part = self._choice(tree.choices) if tree.choices else self._position(tree.text)
            if not part.first:
                break
            if tree.high is None and count + 1 >= tree.low:
                self._joined(part, part)
            whole = self._joined(whole, part._replace(empty=part.empty or count >= tree.low))
        return whole

    def _position(self, text: str) -> _Part:
        at = len(self._follow)
        if at >= MOST_POSITIONS:
            raise ExpressionError(
                f"it has more than {MOST_POSITIONS} characters, with those that are repeated"
            )
        try:
            re.compile(text, self._flags)
        except re.error as error:
            raise ExpressionError(f"{text}: {error.msg}") from None
        self._follow.append(0)
        self._bits[text] = self._bits.get(text, 0) | 1 << at
        return _Part(empty=False, first=1 << at, last=1 << at)


def _positions(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


class _Parser:
    """Parses an expression from a position on."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at
        self._depth = 0
        self._token = re.compile(_SYNTAX, re.VERBOSE | re.DOTALL)

    def parse(self) -> list[list[_Tree]]:
        """Return the alternatives of the whole expression."""
        choices = self._choice()
        if self._at < len(self._text):
            raise ExpressionError("unexpected )")
        return choices

    def _choice(self) -> list[list[_Tree]]:
        """Parse alternatives up to a closing parenthesis or the end."""
        choices: list[list[_Tree]] = [[]]
        while self._at < len(self._text):
            found = self._token.match(self._text, self._at)
            if found is None:
                raise ExpressionError(f"{self._text[self._at : self._at + 8]!r} is not supported")
            if found[0] == ")":
                break
            self._at = found.end()
            if found["times"]:
                self._times(choices[-1], found)
            elif found["sign"]:
                choices.append([])
            elif found["open"]:
                choices[-1].append(_Tree("", self._group()))
            else:
                choices[-1].append(_Tree({"^": _BEGINNING, "$": _END}.get(found[0], found[0]), []))
        return choices

    def _group(self) -> list[list[_Tree]]:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ExpressionError(f"more than {_MOST_DEPTH} levels of parentheses")
        choices = self._choice()
        if self._at >= len(self._text):
            raise ExpressionError("missing )")
        self._at += 1
        self._depth -= 1
        return choices

    @staticmethod
    def _times(sequence: list[_Tree], found: re.Match[str]) -> None:
        """Repeat the last part of a sequence."""
        if not sequence or sequence[-1][2:] != (1, 1) or sequence[-1].text in {_BEGINNING, _END}:
            raise ExpressionError(f"nothing to repeat before {found[0]}")
        low, high = _TIMES.get(found["times"]) or _bounds(found)
        if high is not None and high < low:
            raise ExpressionError(f"{found[0]}: the maximum is below the minimum")
        sequence[-1] = sequence[-1]._replace(low=low, high=high)


def _bounds(found: re.Match[str]) -> tuple[int, int | None]:
    """Return the minimum and the maximum that are written in braces."""
    low = int(found["low"])
    if found["range"] is None:
        return low, low
    return low, int(found["high"]) if found["high"] else None


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
