"""Comparisons of a field with values, compiled to functions of a message.

A field that a message does not have makes every comparison false, also `!=`. Values of different types are not equal,
and neither is less or greater.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from leveret.broker.message_filter.errors import FilterError
from leveret.broker.message_filter.fields import ABSENT, Facts, Field, Type, comparable

Predicate = Callable[[Facts], bool]

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

    def compare(facts: Facts) -> bool:
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

    def compare(facts: Facts) -> bool:
        found = value(facts)
        if found is ABSENT:
            return False
        found_type, found = comparable(found)
        return found_type is wanted_type and order(found, wanted)

    return compare


def searched(field: Field, pattern: str, at: int) -> tuple[Predicate, int]:
    """Compare with `=~`; returns also the size of the pattern in instructions.

    Raises:
        FilterError: RE2 does not have such a pattern.

    """
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

    def compare(facts: Facts) -> bool:
        found = value(facts)
        if found is ABSENT:
            return False
        found_type, found = comparable(found)
        if found_type is not Type.TEXT:
            return False
        return search(found[:SEARCHED].encode("utf-8", "surrogateescape")[:SEARCHED]) is not None

    return compare, int(compiled.programsize)
