"""The headers exchange: arguments of bindings against the headers of messages.

What RabbitMQ does (rabbit_exchange_type_headers): `x-match` is all (also when missing), any, all-
with-x or any-with-x; arguments whose name starts with `x-` do not count with the first two, `x-match`
itself never. A void argument asks for presence only. Otherwise the values have to be the same: the types'
names do not matter, so that numbers of all types and widths are one kind (they compare as Erlang's `==`
does, as observed on 3.10.8: 5 is 5.0), and long strings and byte arrays another; a boolean equals only a
boolean. No argument left: all matches, any does not.

Hot path: see docs/performance.md.
"""

from collections.abc import Collection
from typing import ClassVar

from exchanges.base import Exchange, Headers, Identity, Table
from exchanges.destinations import Destinations, with_destination, without_destination
from exchanges.errors import InvalidXMatch

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
_PRESENT: _Value = ("void", None)  # as a criterion: any value will do
_ALWAYS = ("", ("always", None))  # where the index keeps criteria that ask for nothing


class _Criteria:
    """The arguments of one or several equal bindings, ready to be compared, and where they lead."""

    __slots__ = ("destinations", "every", "places", "wanted")

    def __init__(self, wanted: tuple[tuple[str, _Value], ...], *, every: bool) -> None:
        self.wanted = wanted
        self.every = every
        self.places: tuple[tuple[str, _Value], ...] = ()  # in the index, set when they are put there
        self.destinations: Destinations = ()

    def met_by(self, headers: dict[str, _Value]) -> bool:
        """Tell whether a message with these headers meets every criterion."""
        for name, wanted in self.wanted:
            value = headers.get(name)
            if value is None or (wanted is not _PRESENT and wanted != value):
                return False
        return True


class HeadersExchange(Exchange):
    """Routes by headers, whatever the routing key."""

    __slots__ = ("_criteria", "_index")

    type: ClassVar[str] = "headers"
    needs_headers: ClassVar[bool] = True
    keyless: ClassVar[bool] = True

    def _prepare(self) -> None:
        self._criteria: dict[object, _Criteria] = {}
        # By name and value: criteria of which every one, or one of which any one, asks for that.
        self._index: dict[tuple[str, _Value], tuple[_Criteria, ...] | dict[_Criteria, None]] = {}

    def validate(self, arguments: Table) -> None:
        """Raise InvalidXMatch unless `x-match` is missing or one of the four words."""
        field_type, value = arguments.get(_X_MATCH, ("longstr", "all"))
        if field_type != "longstr" or value not in _FORMS:
            raise InvalidXMatch(field_type, value)

    def match(self, routing_key: str, headers: Headers = None) -> Collection[object]:  # noqa: ARG002
        """Return the destinations whose arguments the headers meet, each once."""
        table = headers() if callable(headers) else headers
        index = self._index
        found = [criteria.destinations for criteria in index.get(_ALWAYS, ())]
        if table:
            values = {name: _comparable(*field) for name, field in table.items()}
            for place in values.items():
                for candidates in (index.get(place), index.get((place[0], _PRESENT))):
                    if candidates is None:
                        continue
                    for criteria in candidates:
                        if not criteria.every or criteria.met_by(values):
                            found.append(criteria.destinations)  # noqa: PERF401 - no generator per header
        if not found:
            return ()
        if len(found) == 1:
            return found[0]
        union: dict[object, None] = {}
        for destinations in found:
            union.update(dict.fromkeys(destinations))
        return union

    def _bound(self, destination: object, identity: Identity) -> None:
        fresh = _compiled(identity)
        criteria = self._criteria.setdefault((fresh.every, fresh.wanted), fresh)
        if criteria is fresh:
            fresh.places = self._places(fresh)
            for place in fresh.places:
                self._index[place] = with_destination(self._index.get(place, ()), fresh)
        if destination in criteria.destinations:
            # Bound with another key already, or with arguments that differ only in what does not count.
            self._repeat(destination, criteria)
        else:
            criteria.destinations = with_destination(criteria.destinations, destination)

    def _places(self, criteria: _Criteria) -> tuple[tuple[str, _Value], ...]:
        """Choose where the index leads to these criteria, so that whatever meets them finds them."""
        wanted = criteria.wanted
        if not criteria.every:
            return wanted  # any one of them is enough
        if not wanted:
            return (_ALWAYS,)
        # All are needed, so one is enough to be found by: the one that the fewest others are found by.
        return (min(wanted, key=self._crowd),)

    def _crowd(self, place: tuple[str, _Value]) -> int:
        return len(self._index.get(place, ()))

    def _unbound(self, destination: object, identity: Identity) -> None:
        gone = _compiled(identity)
        index = (gone.every, gone.wanted)
        criteria = self._criteria[index]
        if self._repeat_gone(destination, criteria):
            return
        criteria.destinations = without_destination(criteria.destinations, destination)
        if not criteria.destinations:
            del self._criteria[index]
            for place in criteria.places:
                left = without_destination(self._index[place], criteria)
                if left:
                    self._index[place] = left
                else:
                    del self._index[place]


def _compiled(identity: Identity) -> _Criteria:
    """Read a binding's arguments."""
    if isinstance(identity, str):
        return _Criteria((), every=True)
    arguments = identity.arguments
    every, with_x = _FORMS[str(arguments.get(_X_MATCH, ("longstr", "all"))[1])]
    wanted = tuple(
        (name, _PRESENT if field[0] == "void" else _comparable(*field))
        for name, field in sorted(arguments.items(), key=_name)
        if name != _X_MATCH and (with_x or not name.startswith("x-"))
    )
    return _Criteria(wanted, every=every)


def _name(item: tuple[str, tuple[str, object]]) -> str:
    return item[0]


def _comparable(field_type: str, value: object) -> _Value:
    """Bring a value into a hashable form whose equality is that of RabbitMQ's terms."""
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
