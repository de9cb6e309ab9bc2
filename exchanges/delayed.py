"""Delayed exchanges: hold a message for the milliseconds in its header `x-delay`, then route it as another type.

As in RabbitMQ's plugin (rabbit_exchange_type_delayed_message), the argument `x-delayed-type` names the type whose
bindings and routing are used. A message with a delay goes to the exchange's `line`, whatever its bindings; the line
returns it when it is due, with the delay negated, which means no delay. The delay is an integer of any width, or a
string or floating-point number that is converted to one. A line tells the longest that it takes.

Without a `line` (None) no message is delayed.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from leveret.exchanges.base import Exchange, ExchangeClass, Headers, Table
from leveret.exchanges.choice import LocalRandomExchange, ModulusHashExchange, RandomExchange
from leveret.exchanges.consistent_hash import ConsistentHashExchange
from leveret.exchanges.direct import DirectExchange, FanoutExchange
from leveret.exchanges.errors import InvalidDelayedTypeError, UnknownExchangeTypeError
from leveret.exchanges.headers import HeadersExchange
from leveret.exchanges.recent_history import RecentHistoryExchange
from leveret.exchanges.topic import TopicExchange

DELAYED = "x-delayed-message"
HEADER = "x-delay"
LONGEST_OF_PLUGIN = 2**32 - 1  # most milliseconds of RabbitMQ's plugin, nearly 50 days: it ignores more
LONGEST = 2**62  # maximum delay in milliseconds, 146 million years

DELAYABLE_TYPES: dict[str, type[Exchange]] = {  # the types that `x-delayed-type` may name
    each.type: each
    for each in (
        DirectExchange,
        FanoutExchange,
        TopicExchange,
        HeadersExchange,
        ConsistentHashExchange,
        LocalRandomExchange,
        ModulusHashExchange,
        RandomExchange,
    )
}

_ARGUMENT = "x-delayed-type"
_SIGNED = 2**31
_NUMBERS = frozenset(
    ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint", "double", "float")
)


def delay_of(headers: Table | None) -> int:
    """Return the delay in milliseconds of a message with these headers; 0 for none, or where the plugin would fail."""
    field = headers.get(HEADER) if headers else None
    try:
        delay = 0 if field is None else milliseconds(field)
    except (ValueError, OverflowError):
        return 0
    return delay if 0 < delay <= LONGEST else 0


def milliseconds(field: tuple[str, Any]) -> int:
    """Return a delay as an integer; raises ValueError or OverflowError for what is not converted to one."""
    kind, value = field
    if kind in _NUMBERS or (kind == "longstr" and value.isascii() and value.lstrip("+-").isdigit()):
        return int(value)
    raise ValueError(kind)


def due_headers(headers: Table) -> Table:
    """Return the headers of a message as its line returns it: with the delay negated."""
    delay = delay_of(headers)
    return headers | {HEADER: ("signedint" if delay < _SIGNED else "long", -delay)}


class DelayedExchange(Exchange):
    """Base of the delayed types; each also inherits the bindings and routing of another type."""

    __slots__ = ()

    type: ClassVar[str] = DELAYED
    needs_headers: ClassVar[bool] = True
    indexed: ClassVar[bool] = False

    @classmethod
    def class_for(cls, arguments: Table) -> ExchangeClass:
        """Return the class for the type behind it.

        Raises InvalidDelayedTypeError if `x-delayed-type` is missing, no string, or a type that cannot be delayed,
        UnknownExchangeTypeError if it names no type.
        """
        kind, value = arguments.get(_ARGUMENT, ("void", None))
        if kind != "longstr" or not isinstance(value, str):
            raise InvalidDelayedTypeError("'x-delayed-type' must be an existing exchange type")
        if value in {DELAYED, RecentHistoryExchange.type}:
            raise InvalidDelayedTypeError(f"'{value}' can't be used for 'x-delayed-type'")
        found = DELAYABLE_TYPES.get(value)
        if found is None:
            raise UnknownExchangeTypeError(value)
        return _delayed(found.class_for(arguments))  # type: ignore[arg-type] # a class is hashable

    def _keeps(self, headers: Headers) -> bool:
        line = self.line
        delay = 0 if line is None else delay_of(headers() if callable(headers) else headers)
        if line is None or not delay:
            return False
        if delay > line.longest:
            line.ignored(delay)
            return False
        return True

    def match(self, routing_key: str, headers: Headers = None) -> Any:
        """Return the line for a message with a delay, the destinations of the underlying type for any other."""
        return (self.line,) if self._keeps(headers) else super().match(routing_key, headers)

    def match_keys(self, routing_keys: Sequence[str], headers: Headers) -> Any:
        """Return the same for several keys."""
        return (self.line,) if self._keeps(headers) else super().match_keys(routing_keys, headers)

    def matched(self, routing_keys: Sequence[str], headers: Headers) -> Any:
        """Return the same for the message that was just routed."""
        return (self.line,) if self._keeps(headers) else super().matched(routing_keys, headers)


@cache
def _delayed(behind: type[Exchange]) -> type[Exchange]:
    return type(f"Delayed{behind.__name__}", (DelayedExchange, behind), {"__slots__": ()})
