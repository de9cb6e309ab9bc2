"""The recent history exchange: a fanout whose last messages a queue gets when it is bound.

As in RabbitMQ's plugin (rabbit_exchange_type_recent_history): the argument `x-recent-history-length` is the number of
messages that are kept, and one with the header `x-recent-history-no-store` is not. Who routes messages keeps them.
"""

from typing import ClassVar, Final

from leveret.exchanges.base import ExchangeClass, Table
from leveret.exchanges.direct import FanoutExchange
from leveret.exchanges.errors import InvalidArgumentError, erlang_term

LENGTH: Final = "x-recent-history-length"
NO_STORE: Final = "x-recent-history-no-store"
_DEFAULT = ("long", 20)
_INTEGERS = frozenset(("byte", "short", "signedint", "long"))


class RecentHistoryExchange(FanoutExchange):
    """Routes to every destination."""

    __slots__ = ()

    type: ClassVar[str] = "x-recent-history"

    @classmethod
    def class_for(cls, arguments: Table) -> ExchangeClass:
        """Return this class; raises InvalidArgumentError for a length that is no positive integer."""
        kind, value = arguments.get(LENGTH, _DEFAULT)
        if kind not in _INTEGERS or not isinstance(value, int) or value < 1:
            fault = f"'{LENGTH}' must be a positive integer"
            raise InvalidArgumentError(f"Invalid argument {erlang_term(kind, value)}, {fault}")
        return cls

    @property
    def length(self) -> int:
        """Number of messages that are kept."""
        return int(str(self.arguments.get(LENGTH, _DEFAULT)[1]))
