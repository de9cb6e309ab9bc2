"""Filter of messages: a condition, parsed and compiled to a function of a message.

Theory. A condition comes from a user and is never evaluated as Python: a recursive descent over its tokens builds
functions. What it may cost is bounded while it is parsed: its length, depth, number of values, and the size of its
regular expressions, which do not backtrack and search the beginning of a text only. So one message costs some
milliseconds at most, and microseconds in practice.

    condition  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation   = "not" negation | "(" condition ")" | comparison
    comparison = field ("==" | "!=" | "<" | "<=" | ">" | ">=" | "=~") value
               | field ["not"] "in" "(" value {"," value} ")"
               | field "exists"
               | field

A field that a message does not have makes every comparison false, also `!=`. Values of different types are not equal,
and neither is less or greater.

docs/filters.md describes it for users.
"""

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from leveret.broker.amqp.properties import PROPERTIES
from leveret.broker.automaton import ExpressionError, compiled
from leveret.broker.message_filter.message_facts import MessageFacts

MOST_CHARACTERS: Final = 4096
"""Maximum length of a condition."""
MOST_DEPTH: Final = 32
"""Maximum depth of parentheses and `not`."""
MOST_VALUES: Final = 256
"""Maximum number of values that a condition compares with, and fields that it asks for."""

# -- tokens ---------------------------------------------------------------------------------------------------------

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
        known = f"durations: {', '.join(DURATIONS)}; sizes: {', '.join(SIZES)}"
        raise FilterError(f"unknown unit '{unit}' ({known})", at)
    number = float(digits) if set(digits) & set(".eE") else int(digits)
    return Token(Kind.NUMBER, number, at, unit)


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


# -- fields, and their comparisons ----------------------------------------------------------------------------------

ABSENT: Final = object()
"""The value of a field that a message does not have."""
Predicate = Callable[[MessageFacts], bool]

ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MOST_PATTERN = 1000
"""Maximum size of all patterns of a condition (`regular_expressions.Expression.size`)."""
SEARCHED = 4096
"""Bytes of a text in which a pattern is searched."""
_PATTERN_MEMORY = 1024 * 1024


class Type(StrEnum):
    """Types of values."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ANY = "any"
    """Any of them: a header. Also the type of values that are none of them, such as lists."""


class Field(NamedTuple):
    """A field; `value` returns its value for a message, `ABSENT` if there is none; numbers may have its `units`."""

    name: str
    type: Type
    value: Callable[[MessageFacts], Any]
    units: Mapping[str, float] = {}


def _age(facts: MessageFacts) -> Any:
    age = facts.age
    return ABSENT if age is None else age


def _due(facts: MessageFacts) -> Any:
    due = facts.due_in
    return ABSENT if due is None else due


_SIMPLE = {
    "routing_key": Field("routing_key", Type.TEXT, lambda facts: facts.routing_key),
    "exchange": Field("exchange", Type.TEXT, lambda facts: facts.exchange),
    "redelivered": Field("redelivered", Type.BOOLEAN, lambda facts: facts.redelivered),
    "age": Field("age", Type.NUMBER, _age, DURATIONS),
    "due": Field("due", Type.NUMBER, _due, DURATIONS),
    "size": Field("size", Type.NUMBER, lambda facts: facts.size, SIZES),
}
_DEATH = {"reason": "reason", "queue": "queue"}
_PROPERTIES = {
    name: Type.NUMBER if kind is int else Type.TEXT
    for name, kind in sorted(PROPERTIES.items())
    if kind is not dict
}
NAMES = (*_SIMPLE, *[f"death.{key}" for key in _DEATH], *[f"properties.{key}" for key in _PROPERTIES])
"""The names of all fields but headers."""


def field(token: Token, quoted: Token | None = None) -> Field:
    """Return a field by its name; raises FilterError if there is none.

    `quoted`: the text behind `headers.`, if the name ends there: a name of a header that needs quotes.
    """
    name: str = token.value
    group, dot, rest = name.partition(".")
    if group == "headers" and dot:
        if not rest and quoted is None:
            raise FilterError('the name of a header is missing: headers.NAME or headers."NAME"', token.at)
        return _header(rest if quoted is None else quoted.value)
    if name in _SIMPLE:
        return _SIMPLE[name]
    if group == "death" and rest in _DEATH:
        return _death(_DEATH[rest])
    if group == "properties" and rest in _PROPERTIES:
        return _property(rest)
    near = difflib.get_close_matches(name[:80], NAMES, 1)
    advice = f"did you mean {near[0]}?" if near else f"there are headers.NAME, {', '.join(NAMES)}"
    raise FilterError(f"unknown field '{name}': {advice}", token.at)


def _header(name: str) -> Field:
    return Field(f"headers.{name}", Type.ANY, lambda facts: facts.headers.get(name, ABSENT))


def _property(name: str) -> Field:
    return Field(f"properties.{name}", _PROPERTIES[name], lambda facts: facts.properties.get(name, ABSENT))


def _death(key: str) -> Field:
    def value(facts: MessageFacts) -> Any:
        death = facts.death
        return ABSENT if death is None else death.get(key, ABSENT)

    return Field(f"death.{key}", Type.TEXT, value)


def comparable(value: Any) -> tuple[Type, Any]:
    """Return the type of a value, `ANY` of `ABSENT`, and the value to compare; octets are a text."""
    match value:
        case bool():
            return Type.BOOLEAN, value
        case int() | float():
            return Type.NUMBER, value
        case str():
            return Type.TEXT, value
        case bytes() | bytearray():
            return Type.TEXT, bytes(value).decode("utf-8", "surrogateescape")
        case Decimal():
            return Type.NUMBER, float(value)
    return Type.ANY, value


def exists(field: Field) -> Predicate:
    """Return whether a message has a field."""
    value = field.value
    return lambda facts: value(facts) is not ABSENT


def is_true(field: Field) -> Predicate:
    """Return whether a field is the boolean true."""
    value = field.value
    return lambda facts: value(facts) is True


def is_one_of(field: Field, wanted: Sequence[Any], *, negated: bool) -> Predicate:
    """Compare with `in` or `==`, or with `not in` or `!=` if negated."""
    value = field.value
    values = frozenset(map(comparable, wanted))

    def compare(facts: MessageFacts) -> bool:
        found = value(facts)
        if found is ABSENT:
            return False
        typed = comparable(found)
        return (typed[0] is not Type.ANY and typed in values) is not negated

    return compare


def is_ordered(field: Field, sign: str, wanted: Any) -> Predicate:
    """Compare by order."""
    value, order = field.value, ORDERS[sign]
    wanted_type, wanted = comparable(wanted)

    def compare(facts: MessageFacts) -> bool:
        found_type, found = comparable(value(facts))
        return found_type is wanted_type and order(found, wanted)

    return compare


def searched(field: Field, pattern: str, at: int) -> tuple[Predicate, int]:
    """Compare with `=~`; returns also the size of the pattern. Raises FilterError."""
    octets = pattern.encode("utf-8", "surrogateescape")
    try:
        search, size = compiled(octets, memory=_PATTERN_MEMORY, encoding="utf-8")
    except ExpressionError as error:
        raise FilterError(f"invalid regular expression: {error}", at) from None
    value = field.value

    def compare(facts: MessageFacts) -> bool:
        found_type, found = comparable(value(facts))
        if found_type is not Type.TEXT:
            return False
        return bool(search(found[:SEARCHED].encode("utf-8", "surrogateescape")[:SEARCHED]))

    return compare, size


# -- conditions -----------------------------------------------------------------------------------------------------


class MessageFilter:
    """A condition on messages, '' for any; raises FilterError if it is not in the language, or exceeds a limit."""

    __slots__ = ("matches", "text")

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise FilterError(f"a condition has at most {MOST_CHARACTERS} characters", MOST_CHARACTERS)
        self.text = text
        self.matches: Callable[[MessageFacts], bool] = _Parser(tokens(text)).parse() if text.strip() else _any

    def __bool__(self) -> bool:
        return self.matches is not _any


def _any(_facts: MessageFacts) -> bool:
    return True


class _Parser:
    """Parses tokens to predicates."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0
        self._depth = 0
        self._values = 0
        self._pattern = 0

    def parse(self) -> Predicate:
        predicate = self._condition()
        token = self._next
        if token.kind is not Kind.END:
            raise FilterError(f"'and', 'or' or the end is expected, not {token}", token.at)
        return predicate

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        if token.kind is not Kind.END:
            self._at += 1
        return token

    def _accepts(self, kind: Kind, value: str) -> bool:
        token = self._next
        if token.kind is not kind or token.value != value:
            return False
        self._at += 1
        return True

    def _condition(self) -> Predicate:
        terms = [self._conjunction()]
        while self._accepts(Kind.KEYWORD, "or"):
            terms.append(self._conjunction())
        return terms[0] if len(terms) == 1 else lambda facts: any(term(facts) for term in terms)

    def _conjunction(self) -> Predicate:
        terms = [self._negation()]
        while self._accepts(Kind.KEYWORD, "and"):
            terms.append(self._negation())
        return terms[0] if len(terms) == 1 else lambda facts: all(term(facts) for term in terms)

    def _negation(self) -> Predicate:
        token = self._next
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise FilterError(f"more than {MOST_DEPTH} levels of parentheses and 'not'", token.at)
        if self._accepts(Kind.KEYWORD, "not"):
            inner = self._negation()
            predicate: Predicate = lambda facts: not inner(facts)  # noqa: E731 - as the others
        elif self._accepts(Kind.OPERATOR, "("):
            predicate = self._condition()
            self._expect(")")
        else:
            predicate = self._comparison()
        self._depth -= 1
        return predicate

    def _expect(self, sign: str) -> None:
        token = self._next
        if not self._accepts(Kind.OPERATOR, sign):
            raise FilterError(f"'{sign}' is expected, not {token}", token.at)

    def _comparison(self) -> Predicate:
        found = self._field()
        token = self._next
        if token.kind is Kind.KEYWORD and token.value in {"exists", "in"}:
            self._at += 1
            return exists(found) if token.value == "exists" else self._one_of(found, negated=False)
        if self._accepts(Kind.KEYWORD, "not"):
            after = self._next
            if not self._accepts(Kind.KEYWORD, "in"):
                raise FilterError(f"'in' is expected after 'not', not {after}", after.at)
            return self._one_of(found, negated=True)
        if token.kind is Kind.OPERATOR and token.value not in {"(", ")", ","}:
            self._at += 1
            return self._compared(found, token)
        if found.type in {Type.BOOLEAN, Type.ANY}:
            return is_true(found)
        raise FilterError(f"a comparison is expected after {found.name}, not {token}", token.at)

    def _field(self) -> Field:
        token = self._take()
        if token.kind is not Kind.NAME:
            hint = ": write 'FIELD exists'" if str(token) == "'exists'" else ""
            raise FilterError(f"a field is expected, not {token}{hint}", token.at)
        quoted = None
        if token.value == "headers." and self._next.kind is Kind.TEXT:
            quoted = self._take()
        self._count(token)
        return field(token, quoted)

    def _count(self, token: Token) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise FilterError(f"a condition has at most {MOST_VALUES} fields and values", token.at)

    def _compared(self, found: Field, sign: Token) -> Predicate:
        token = self._next
        if sign.value == "=~":
            return self._searched(found, sign)
        value = self._value(found)
        if sign.value in ORDERS:
            if isinstance(value, bool):
                raise FilterError(f"'{sign.value}' needs a number or a text", token.at)
            return is_ordered(found, sign.value, value)
        return is_one_of(found, (value,), negated=sign.value == "!=")

    def _searched(self, found: Field, sign: Token) -> Predicate:
        if found.type not in {Type.TEXT, Type.ANY}:
            raise FilterError(f"'=~' needs a text, but {found.name} is a {found.type}", sign.at)
        token = self._take()
        if token.kind is not Kind.TEXT:
            raise FilterError(f"a regular expression in quotes is expected, not {token}", token.at)
        self._count(token)
        predicate, size = searched(found, token.value, token.at)
        self._pattern += size
        if self._pattern > MOST_PATTERN:
            raise FilterError("the regular expressions of the condition are too large", token.at)
        return predicate

    def _one_of(self, found: Field, *, negated: bool) -> Predicate:
        self._expect("(")
        values = [self._value(found)]
        while self._accepts(Kind.OPERATOR, ","):
            values.append(self._value(found))
        self._expect(")")
        return is_one_of(found, values, negated=negated)

    def _value(self, found: Field) -> Any:
        token = self._take()
        self._count(token)
        if token.kind is Kind.KEYWORD and token.value in {"true", "false"}:
            value: Any = token.value == "true"
        elif token.kind in {Kind.TEXT, Kind.NUMBER}:
            value = token.value
        else:
            raise FilterError(f"a text in quotes, a number, true or false is expected, not {token}", token.at)
        if token.unit:
            if token.unit not in found.units:
                raise FilterError(f"{found.name} has no unit '{token.unit}'", token.at)
            value *= found.units[token.unit]
        kind = comparable(value)[0]
        if found.type not in {Type.ANY, kind}:
            raise FilterError(f"{found.name} is a {found.type}, not a {kind}", token.at)
        return value
