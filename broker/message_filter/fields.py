"""Fields of a message that a condition can name."""

import difflib
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from leveret.broker.message_filter.errors import FilterError
from leveret.broker.message_filter.tokens import DURATIONS, SIZES, Token

ABSENT: Final = object()
"""The value of a field that a message does not have."""


class Facts(Protocol):
    """A message, as conditions see it. A filter asks only for what its condition names."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers as plain values."""

    @property
    def properties(self) -> Mapping[str, Any]:
        """The properties that are set, by their AMQP names, without `headers`."""

    @property
    def exchange(self) -> str:
        """The exchange that it was published to; '' for the default exchange."""

    @property
    def routing_key(self) -> str:
        """The routing key."""

    @property
    def redelivered(self) -> bool:
        """True if its next delivery will be marked as redelivered."""

    @property
    def age(self) -> float | None:
        """Seconds since it came to its queue; None if that is unknown."""

    @property
    def size(self) -> int:
        """Bytes of its body."""

    @property
    def death(self) -> Mapping[str, Any] | None:
        """The newest entry of its `x-death` header; None if it was never dead-lettered."""


class Type(StrEnum):
    """Types of values."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ANY = "any"
    """Any of them: a header. Also the type of values that are none of them, such as lists."""


class Field(NamedTuple):
    """A field.

    Attributes:
        name: as it was written.
        type: the type of its values.
        value: returns its value for a message; `ABSENT` if there is none.
        units: the units in which numbers may be compared with it, by name.

    """

    name: str
    type: Type
    value: Callable[[Facts], Any]
    units: Mapping[str, float] = {}


def _age(facts: Facts) -> Any:
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
_NUMBERS = ("delivery_mode", "priority", "timestamp")
_PROPERTIES = (
    "app_id",
    "cluster_id",
    "content_encoding",
    "content_type",
    "correlation_id",
    "delivery_mode",
    "expiration",
    "message_id",
    "priority",
    "reply_to",
    "timestamp",
    "type",
    "user_id",
)
NAMES = (
    *_SIMPLE,
    *[f"death.{key}" for key in _DEATH],
    *[f"properties.{key}" for key in _PROPERTIES],
)
"""The names of all fields but headers."""


def field(token: Token, quoted: Token | None = None) -> Field:
    """Return a field by its name.

    Args:
        token: the name.
        quoted: the text behind `headers.`, if the name ends there: a name of a header that needs quotes.

    Raises:
        FilterError: there is no such field.

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
    kind = Type.NUMBER if name in _NUMBERS else Type.TEXT
    return Field(f"properties.{name}", kind, lambda facts: facts.properties.get(name, ABSENT))


def _death(key: str) -> Field:
    def value(facts: Facts) -> Any:
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
