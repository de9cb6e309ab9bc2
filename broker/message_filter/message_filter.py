"""Filter of messages: a condition, parsed and compiled to a function of a message.

Theory. A condition comes from a user and is never evaluated as Python: a recursive descent over its tokens builds
functions. What it may cost is bounded while it is parsed: its length, depth, number of values, and the size of its
regular expressions, which are RE2's and search the beginning of a text only. So one message costs some milliseconds at
most, and microseconds in practice.

    condition  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation   = "not" negation | "(" condition ")" | comparison
    comparison = field ("==" | "!=" | "<" | "<=" | ">" | ">=" | "=~") value
               | field ["not"] "in" "(" value {"," value} ")"
               | field "exists"
               | field

docs/filters.md describes it for users.
"""

from collections.abc import Callable
from typing import Any, Final

from leveret.broker.message_filter.fields import (
    MOST_PATTERN,
    ORDERS,
    Field,
    Predicate,
    Type,
    comparable,
    equals,
    exists,
    field,
    is_one_of,
    is_ordered,
    is_true,
    searched,
)
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.message_filter.tokens import FilterError, Kind, Token, tokens

MOST_CHARACTERS: Final = 4096
"""Maximum length of a condition."""
MOST_DEPTH: Final = 32
"""Maximum depth of parentheses and `not`."""
MOST_VALUES: Final = 256
"""Maximum number of values that a condition compares with, and fields that it asks for."""


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
        """Parse a whole condition."""
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
        return equals(found, value, negated=sign.value == "!=")

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
