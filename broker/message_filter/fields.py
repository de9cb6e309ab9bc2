"""Fields of a message that a condition can name, and their comparisons, compiled to functions of a message.

A field that a message does not have makes every comparison false, also `!=`. Values of different types are not equal,
and neither is less or greater.
"""

import difflib
import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from leveret.broker.amqp.properties import PROPERTIES
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.message_filter.tokens import DURATIONS, SIZES, FilterError, Token

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
"""Maximum size of all patterns of a condition, in instructions of RE2."""
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


_SIMPLE = {
    "routing_key": Field("routing_key", Type.TEXT, lambda facts: facts.routing_key),
    "exchange": Field("exchange", Type.TEXT, lambda facts: facts.exchange),
    "redelivered": Field("redelivered", Type.BOOLEAN, lambda facts: facts.redelivered),
    "age": Field("age", Type.NUMBER, _age, DURATIONS),
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
    """Return the type of a value and the value to compare; octets are a text."""
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


def equals(field: Field, wanted: Any, *, negated: bool) -> Predicate:
    """Compare with `==`, or with `!=` if negated."""
    return is_one_of(field, (wanted,), negated=negated)


def is_one_of(field: Field, wanted: Sequence[Any], *, negated: bool) -> Predicate:
    """Compare with `in`, or with `not in` if negated."""
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
        found = value(facts)
        if found is ABSENT:
            return False
        found_type, found = comparable(found)
        return found_type is wanted_type and order(found, wanted)

    return compare


def searched(field: Field, pattern: str, at: int) -> tuple[Predicate, int]:
    """Compare with `=~`; returns also the size of the pattern in instructions. Raises FilterError."""
    import re2  # noqa: PLC0415 - most conditions have no patterns

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        compiled = re2.compile(pattern.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode("utf-8", "backslashreplace") if isinstance(reason, bytes) else str(reason)
        raise FilterError(f"invalid regular expression: {text}", at) from None
    search, value = compiled.search, field.value

    def compare(facts: MessageFacts) -> bool:
        found = value(facts)
        if found is ABSENT:
            return False
        found_type, found = comparable(found)
        if found_type is not Type.TEXT:
            return False
        return search(found[:SEARCHED].encode("utf-8", "surrogateescape")[:SEARCHED]) is not None

    return compare, int(compiled.programsize)
