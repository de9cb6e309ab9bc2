"""The headers exchange: matches arguments of bindings with the headers of messages.

As in RabbitMQ (rabbit_exchange_type_headers), `x-match` is all (also when missing), any, all-with-x or any-with-x;
arguments whose name starts with `x-` are ignored by the first two, `x-match` itself by all. A void argument requires
presence only. Otherwise the values have to be equal: the types' names do not matter, so that numbers of all types and
widths are one kind (they compare as Erlang's `==` does, as observed on 3.10.8: 5 is 5.0), and long strings and byte
arrays another; a boolean equals only a boolean. After `compare_exactly` they compare as Erlang's `=:=` does, as in
RabbitMQ 4.3: 5 is not 5.0, 0.0 is not -0.0, and a time in a message is its number of milliseconds. Without arguments
left, all matches and any does not.

Hot path: see docs/performance.md.
"""

from collections.abc import Callable, Collection
from operator import itemgetter
from typing import ClassVar

from leveret.exchanges.base import (
    Destinations,
    Exchange,
    Headers,
    Identity,
    Table,
    drop,
    union_of,
    with_destination,
    without_destination,
)
from leveret.exchanges.errors import InvalidXMatch

_X_MATCH = "x-match"
_FORMS = {
    # x-match: (all criteria have to be met, x- arguments count)
    "all": (True, False),
    "any": (False, False),
    "all-with-x": (True, True),
    "any-with-x": (False, True),
}

_Value = tuple[str, object]  # (kind, value) such that == is RabbitMQ's equality
_KINDS = {"bool": "bool", "longstr": "binary", "binary": "binary"}
_PRESENT: _Value = ("void", None)  # as a criterion: matches any value
_ALWAYS = ("", ("always", None))  # place in the index of criteria without conditions


_Wanted = tuple[tuple[str, _Value], ...]  # the conditions of a binding: names of headers, and their values


class _Criteria:
    """Conditions that must all be met, of one or several bindings, and their destinations."""

    __slots__ = ("destinations", "place", "wanted")

    def __init__(self, wanted: _Wanted) -> None:
        self.wanted = wanted
        self.place: tuple[str, _Value] = _ALWAYS  # in the index, set on insertion
        self.destinations: Destinations = ()

    def met_by(self, headers: dict[str, _Value]) -> bool:
        """Return whether a message with these headers meets every criterion."""
        for name, wanted in self.wanted:
            value = headers.get(name)
            if value is None or (wanted is not _PRESENT and wanted != value):
                return False
        return True


class HeadersExchange(Exchange):
    """Routes by headers, for any routing key.

    Bindings with `any` are not checked one by one: each argument is indexed with the destinations of all such bindings
    that have it, however many there are.
    """

    __slots__ = ("_any", "_comparable", "_criteria", "_index", "_of_header")

    type: ClassVar[str] = "headers"
    needs_headers: ClassVar[bool] = True
    keyless: ClassVar[bool] = True

    def _prepare(self) -> None:
        self._comparable = self._of_header = _comparable
        self._criteria: dict[_Wanted, _Criteria] = {}
        # By name and value: criteria with that and other conditions.
        self._index: dict[tuple[str, _Value], tuple[_Criteria, ...] | dict[_Criteria, None]] = {}
        # By name and value: destinations of bindings for which that is sufficient.
        self._any: dict[tuple[str, _Value], Destinations] = {}

    def validate_binding(self, destination: object, binding_key: str, arguments: Table) -> None:
        """Raise InvalidXMatch unless `x-match` is missing or one of the four words."""
        del destination, binding_key
        field_type, value = arguments.get(_X_MATCH, ("longstr", "all"))
        if field_type != "longstr" or value not in _FORMS:
            raise InvalidXMatch(field_type, value)

    def compare_exactly(self) -> None:
        """Tell integers from floats, and 0.0 from -0.0; must be called before there are bindings."""
        self._comparable, self._of_header = _exact, _exact_header

    def match(self, routing_key: str, headers: Headers = None) -> Collection[object]:  # noqa: ARG002
        """Return the destinations whose arguments the headers meet, each once."""
        table = headers() if callable(headers) else headers
        index, enough = self._index, self._any
        found = [criteria.destinations for criteria in index.get(_ALWAYS, ())]
        if table:
            comparable = self._of_header
            values = {name: comparable(*field) for name, field in table.items()}
            for place in values.items():
                for asked in (place, (place[0], _PRESENT)):
                    destinations = enough.get(asked)
                    if destinations is not None:
                        found.append(destinations)
                    for criteria in index.get(asked, ()):
                        if criteria.met_by(values):
                            found.append(criteria.destinations)  # noqa: PERF401 - no generator per header
        if not found:
            return ()
        if len(found) == 1:
            return found[0]
        return union_of(found)

    def _bound(self, destination: object, identity: Identity) -> None:
        wanted, every = _compiled(identity, self._comparable)
        if not every:
            for place in wanted:
                self._add_to(self._any, place, destination)
            return
        criteria = self._criteria.get(wanted)
        if criteria is None:
            criteria = self._criteria[wanted] = _Criteria(wanted)
            if wanted:
                # All are needed, so one is enough as the index key: the one that the fewest others use.
                criteria.place = min(wanted, key=lambda place: len(self._index.get(place, ())))
            self._index[criteria.place] = with_destination(self._index.get(criteria.place, ()), criteria)
        if destination in criteria.destinations:
            # Bound with another key already, or with arguments that differ only in ignored parts.
            self._repeat(destination, criteria)
        else:
            criteria.destinations = with_destination(criteria.destinations, destination)

    def _unbound(self, destination: object, identity: Identity) -> None:
        wanted, every = _compiled(identity, self._comparable)
        if not every:
            for place in wanted:
                self._drop_from(self._any, place, destination)
            return
        criteria = self._criteria[wanted]
        if self._repeat_gone(destination, criteria):
            return
        criteria.destinations = without_destination(criteria.destinations, destination)
        if not criteria.destinations:
            del self._criteria[wanted]
            drop(self._index, criteria.place, criteria)


def _compiled(identity: Identity, comparable: Callable[[str, object], _Value]) -> tuple[_Wanted, bool]:
    """Return the conditions of a binding's arguments, and whether all of them are needed."""
    if isinstance(identity, str):
        return (), True
    arguments = identity.arguments
    every, with_x = _FORMS[str(arguments.get(_X_MATCH, ("longstr", "all"))[1])]
    wanted = tuple(
        (name, _PRESENT if field[0] == "void" else comparable(*field))
        for name, field in sorted(arguments.items(), key=itemgetter(0))
        if name != _X_MATCH and (with_x or not name.startswith("x-"))
    )
    return wanted, every


def _comparable(field_type: str, value: object) -> _Value:
    """Return a hashable form of a value whose equality is that of RabbitMQ's terms."""
    if field_type == "longstr":
        return ("binary", value)
    if isinstance(value, bytes | bytearray | memoryview):
        return ("binary", bytes(value).decode("utf-8", "surrogateescape"))
    if isinstance(value, dict):
        return (
            "table",
            tuple((name, kind, _comparable(kind, inner)) for name, (kind, inner) in value.items()),
        )
    if isinstance(value, list):
        # Inside arrays and tables RabbitMQ compares the types' names as well.
        return ("array", tuple((kind, _comparable(kind, inner)) for kind, inner in value))
    if isinstance(value, tuple):
        return ("decimal", value)
    return (_KINDS.get(field_type, "term" if value is not None else "void"), value)


def _exact(field_type: str, value: object) -> _Value:
    if isinstance(value, float):
        return ("float", value.hex())
    return _comparable(field_type, value)


def _exact_header(field_type: str, value: object) -> _Value:
    return _exact(field_type, value * 1000 if field_type == "timestamp" and isinstance(value, int) else value)
