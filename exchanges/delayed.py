"""Delayed exchanges: hold a message for the milliseconds in its header `x-delay`, then route it as another type.

As in RabbitMQ's plugin (rabbit_exchange_type_delayed_message), the argument `x-delayed-type` names the type whose
bindings and routing are used. A message with a delay goes to the exchange's `line`, whatever its bindings; the line
returns it when it is due, with the delay negated, which means no delay. The delay is an integer of any width, or a
string or floating-point number that is converted to one, of at most 2^32-1.

Without a `line` (None) no message is delayed.
"""
# ruff: noqa: PLR2004 - offsets and numbers of the format are named next to them

from typing import Any, ClassVar

from leveret.exchanges.base import Exchange, Headers, Table
from leveret.exchanges.direct import DirectExchange, FanoutExchange
from leveret.exchanges.errors import InvalidDelayedTypeError, UnknownExchangeTypeError
from leveret.exchanges.headers import HeadersExchange
from leveret.exchanges.topic import TopicExchange

DELAYED = "x-delayed-message"
HEADER = "x-delay"
MAX_DELAY = 4294967295
"""Maximum delay in milliseconds, nearly 50 days; a longer one is ignored, as in RabbitMQ's plugin."""

_ARGUMENT = "x-delayed-type"
_SIGNED = 2**31
_INTEGERS = frozenset(("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint"))


def delay_of(headers: Table | None) -> int:
    """Return the delay in milliseconds of a message with these headers; 0 for none."""
    field = None if headers is None else headers.get(HEADER)
    if field is None:
        return 0
    kind, value = field
    if kind not in _INTEGERS:
        value = _converted(kind, value)
    return value if isinstance(value, int) and 0 < value <= MAX_DELAY else 0


def due_headers(headers: Table) -> Table:
    """Return the headers of a message as its line returns it: with the delay negated."""
    delay = delay_of(headers)
    return headers | {HEADER: ("signedint" if delay < _SIGNED else "long", -delay)}


def _converted(kind: str, value: object) -> int:
    """Return a delay that is no integer, converted; 0 where the plugin would fail."""
    if kind == "longstr" and isinstance(value, str):
        digits = value.removeprefix("+")
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else 0
    if kind in {"double", "float"} and isinstance(value, float):
        return int(value)
    return 0


class DelayedExchange(Exchange):
    """Base of the delayed types; each also inherits the bindings and routing of another type."""

    __slots__ = ()

    type: ClassVar[str] = DELAYED
    needs_headers: ClassVar[bool] = True
    indexed: ClassVar[bool] = False

    def match(self, routing_key: str, headers: Headers = None) -> Any:
        """Return the line for a message with a delay, the destinations of the underlying type for any other."""
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
    """Return the class for an exchange that is declared with these arguments.

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
