"""The consistent hash exchange: a key always goes to the same destination, and few keys move when bindings change.

As in RabbitMQ's plugin (rabbit_exchange_type_consistent_hash) the key of a binding is its weight, the number of buckets
that its destination gets in a ring, in the order in which the destinations were bound. The argument `hash-header` or
`hash-property` (message_id, correlation_id or timestamp) names what is hashed in place of the routing key. What the
plugin's jump hash and Erlang's hash make of a key, `exchanges.erlang_hash` does. A destination's oldest binding counts.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from leveret.exchanges.base import Envelope, ExchangeClass, Field, Headers, Table
from leveret.exchanges.choice import ChoiceExchange
from leveret.exchanges.erlang_hash import jump, phash2
from leveret.exchanges.errors import InvalidArgumentError, InvalidBindingError, erlang_term

_HEADER, _PROPERTY = "hash-header", "hash-property"
_PROPERTIES = ("correlation_id", "message_id", "timestamp")
_WEIGHT = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_REMEMBERED = 4096  # hashes whose destinations an exchange remembers


class ConsistentHashExchange(ChoiceExchange):
    """Routes by the hash of the routing key; those of CC and BCC do not matter."""

    __slots__ = ("_ends", "_known")

    type: ClassVar[str] = "x-consistent-hash"
    is_ordered: ClassVar[bool] = True

    @classmethod
    def class_for(cls, arguments: Table) -> ExchangeClass:
        """Return the class for what is hashed; raises InvalidArgumentError with RabbitMQ's texts."""
        for name in (_HEADER, _PROPERTY):
            kind, value = arguments.get(name, ("longstr", ""))
            if kind != "longstr":
                raise InvalidArgumentError(f"{name} must be a string, not {erlang_term(kind, value)}")
        if _HEADER in arguments and _PROPERTY in arguments:
            raise InvalidArgumentError(f"{_HEADER} and {_PROPERTY} are mutually exclusive")
        if _PROPERTY in arguments:
            if arguments[_PROPERTY][1] not in _PROPERTIES:
                raise InvalidArgumentError(f"Unsupported property: {arguments[_PROPERTY][1]}")
            return _ByProperty
        return _ByHeader if _HEADER in arguments else cls

    def _prepare(self) -> None:
        super()._prepare()
        self._ends: Sequence[int] = ()  # behind the last bucket of each of the choices
        self._known: dict[int, tuple[object, ...]] = {}  # destinations by hash: computing one takes long

    def validate_binding(self, destination: object, binding_key: str, arguments: Table) -> None:
        """Raise InvalidBindingError unless the key is a weight."""
        del destination, arguments
        self.weight_of(binding_key)

    def weight_of(self, binding_key: str) -> int:
        """Return the weight, at least 1, that a key is; else raises InvalidBindingError with RabbitMQ's text."""
        if not _WEIGHT.match(binding_key):
            text = erlang_term("longstr", binding_key)
            raise InvalidBindingError(f"The binding key must be an integer: {text}")
        weight = int(binding_key)
        if weight < 1:
            raise InvalidBindingError("The binding key must be greater than 0")
        return weight

    def _listed(self) -> Sequence[object]:
        self._ends = tuple(accumulate(int(self.binding_keys_to(each)[0]) for each in self._by_destination))
        return tuple(self._by_destination)

    def _forget(self) -> None:
        super()._forget()
        self._known.clear()

    def match(self, routing_key: str, headers: Headers = None) -> tuple[object, ...]:
        """Return the destination for the key of a message."""
        choices = self.choices
        if not choices:
            return ()
        key = self._key(routing_key, headers)
        found = self._known.get(key)
        if found is None:
            found = (choices[bisect_right(self._ends, jump(key, self._ends[-1]))],)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found

    def _key(self, routing_key: str, headers: Headers) -> int:
        del headers
        return phash2(routing_key)

    def reason(self, routing_keys: Sequence[str]) -> str:  # noqa: ARG002
        """Return what is hashed."""
        if _HEADER in self.arguments:
            return f"the hash of its header '{self.arguments[_HEADER][1]}'"
        if _PROPERTY in self.arguments:
            return f"the hash of its property '{self.arguments[_PROPERTY][1]}', which is missing here"
        return "the hash of its routing key"


class _ByHeader(ConsistentHashExchange):
    __slots__ = ()

    needs_headers: ClassVar[bool] = True
    keyless: ClassVar[bool] = True

    def _key(self, routing_key: str, headers: Headers) -> int:
        del routing_key
        table = headers() if callable(headers) else headers
        return _hashed((table or {}).get(str(self.arguments[_HEADER][1]), ("void", None)))


class _ByProperty(_ByHeader):
    __slots__ = ()

    reads_properties: ClassVar[bool] = True

    def _key(self, routing_key: str, headers: Headers) -> int:
        del routing_key
        table = headers() if callable(headers) else headers
        properties = table.properties if isinstance(table, Envelope) else None
        value = getattr(properties, str(self.arguments[_PROPERTY][1]), None)
        return phash2(None if value is None else str(value))


def _hashed(field: Field) -> int:
    """Return the hash of a header as RabbitMQ 4.3: an integer is its own; array, table, decimal have one of ours."""
    kind, value = field
    if kind == "timestamp" and isinstance(value, int):
        return value * 1000
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if value is None or isinstance(value, bool | str | float):
        return phash2(value)
    return value if isinstance(value, int) else phash2(repr(value))
