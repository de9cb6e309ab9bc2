"""Exchanges that delay: the header `x-delay` says for how many milliseconds, before they route as another type does.

What RabbitMQ's plugin does (rabbit_exchange_type_delayed_message): the argument `x-delayed-type` names the type whose
bindings and routing count. A message with a delay goes to the exchange's `line`, whatever it is bound to; the line
gives it back when its time has come, with the delay negated, which is no delay. The delay is an integer of any width,
or a string or floating-point number that is turned into one, of at most 2^32-1.

Where `line` is None nothing is delayed.
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named beside them

from typing import Any, ClassVar

from leveret.exchanges.base import Exchange, Headers, Table
from leveret.exchanges.direct import DirectExchange
from leveret.exchanges.errors import InvalidDelayedTypeError, UnknownExchangeTypeError
from leveret.exchanges.fanout import FanoutExchange
from leveret.exchanges.headers import HeadersExchange
from leveret.exchanges.topic import TopicExchange

DELAYED = "x-delayed-message"
HEADER = "x-delay"
MAX_DELAY = 4294967295
"""The longest delay in milliseconds, nearly 50 days; a longer one is none, as in RabbitMQ's plugin."""

_ARGUMENT = "x-delayed-type"
_INTEGERS = frozenset(("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint"))


def delay_of(headers: Table | None) -> int:
    """For how many milliseconds a message with these headers is delayed; 0 for not at all."""
    field = None if headers is None else headers.get(HEADER)
    if field is None:
        return 0
    kind, value = field
    if kind not in _INTEGERS:
        value = _converted(kind, value)
    return value if isinstance(value, int) and 0 < value <= MAX_DELAY else 0


def _converted(kind: str, value: object) -> int:
    """A delay that is no integer; 0 where the plugin would fail."""
    if kind == "longstr" and isinstance(value, str):
        digits = value.removeprefix("+")
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else 0
    if kind in {"double", "float"} and isinstance(value, float):
        return int(value)
    return 0


class DelayedExchange(Exchange):
    """What the types below have in common; each has another type's bindings and routing behind it in its bases."""

    __slots__ = ()

    type: ClassVar[str] = DELAYED
    needs_headers: ClassVar[bool] = True
    indexed: ClassVar[bool] = False

    def match(self, routing_key: str, headers: Headers = None) -> Any:
        """Return the line for a message with a delay, the destinations of the type behind for any other."""
        table = headers() if callable(headers) else headers
        if self.line is not None and delay_of(table):
            return (self.line,)
        return super().match(routing_key, table)


class _DelayedDirect(DelayedExchange, DirectExchange):
    __slots__ = ()


class _DelayedFanout(DelayedExchange, FanoutExchange):
    __slots__ = ()


class _DelayedTopic(DelayedExchange, TopicExchange):
    __slots__ = ()


class _DelayedHeaders(DelayedExchange, HeadersExchange):
    __slots__ = ()


_BEHIND: dict[str, type[DelayedExchange]] = {
    "direct": _DelayedDirect,
    "fanout": _DelayedFanout,
    "topic": _DelayedTopic,
    "headers": _DelayedHeaders,
}


def delayed_class(arguments: Table | None) -> type[DelayedExchange]:
    """Find the class for an exchange that is declared with these arguments.

    Raises:
        InvalidDelayedTypeError: `x-delayed-type` is missing, no string, or the delayed type itself.
        UnknownExchangeTypeError: it names no type.

    """
    kind, value = (arguments or {}).get(_ARGUMENT, ("void", None))
    if kind != "longstr" or not isinstance(value, str):
        raise InvalidDelayedTypeError("'x-delayed-type' must be an existing exchange type")
    if value == DELAYED:
        raise InvalidDelayedTypeError(f"'{DELAYED}' can't be used for 'x-delayed-type'")
    found = _BEHIND.get(value)
    if found is None:
        raise UnknownExchangeTypeError(value)
    return found
