"""A table by number that never grows all at once.

Theory. A dict that is full is copied into a larger one: with 700,000 entries that holds everybody for 40 ms, and it is
not copied into a smaller one when entries go. A `LargeTable` keeps entries whose numbers are neighbours in a dict of
their own, which is small, and goes with its last entry. That costs a third of a microsecond more for each entry, so
tables are dicts as long as they are small: whoever adds to one, or takes from it, asks for the `fitting` one then.
"""
# ruff: noqa: SLF001 - friends in one layer

from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from itertools import chain
from typing import Any, TypeVar, cast

V = TypeVar("V")

MANY = 65_536
"""Entries that a dict may have."""
FEW = 16_384
"""Entries for which a dict will do again."""
_BITS = 12
"""Numbers that have all but so many bits in common are neighbours."""
_SPARSE = frozenset({0, 64, 512})
"""How many entries are left when a dict, which has room for all neighbours still, is replaced by a smaller one."""
_MISSING = object()


def fitting(table: MutableMapping[int, V]) -> MutableMapping[int, V]:
    """What is to be used from now on instead of a table that has grown or shrunk; mostly itself."""
    if type(table) is dict:
        return LargeTable(table) if len(table) > MANY else table
    return dict(table.items()) if len(table) < FEW else table


def large(table: MutableMapping[int, V]) -> "LargeTable[V]":
    """The same entries in a large table: itself, if it is one."""
    return table if isinstance(table, LargeTable) else LargeTable(table)


class LargeTable(MutableMapping[int, V]):
    """A dict by number in many parts.

    It is walked along in ascending order of numbers, as far as they were added in ascending order or `sort` was
    called behind.

    Args:
        entries: what is in it at first.

    """

    __slots__ = ("_count", "_parts")

    def __init__(self, entries: Mapping[int, V] | None = None) -> None:
        self._parts: dict[int, dict[int, V]] = {}
        """By what their numbers have in common, ascending."""
        self._count = 0
        if entries:
            self.update(entries.items())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._parts.values())

    def __contains__(self, number: object) -> bool:
        return number in self._parts.get(cast("int", number) >> _BITS, ())

    def __getitem__(self, number: int) -> V:
        return self._parts[number >> _BITS][number]

    def __setitem__(self, number: int, value: V) -> None:
        self.update(((number, value),))

    def __delitem__(self, number: int) -> None:
        self.pop(number)

    def items(self) -> ItemsView[int, V]:
        """The entries; not as slow to walk along as they are by default."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """The values, likewise."""
        return _Values(self)

    def pop(self, number: int, default: Any = _MISSING) -> Any:
        """Take out one entry; `KeyError` if there is none and no default."""
        place = number >> _BITS
        part = self._parts.get(place)
        if part is None or number not in part:
            if default is _MISSING:
                raise KeyError(number)
            return default
        value = part.pop(number)
        self._count -= 1
        if len(part) in _SPARSE:
            self._compact(place, part)
        return value

    def popitem(self) -> tuple[int, V]:
        """Take out the entry that was added last of those with the highest numbers; `KeyError` if there is none."""
        if not self._parts:
            raise KeyError("popitem of an empty table")
        place = next(reversed(self._parts))
        part = self._parts[place]
        entry = part.popitem()
        self._count -= 1
        if len(part) in _SPARSE:
            self._compact(place, part)
        return entry

    def clear(self) -> None:
        """Take out all entries."""
        self._parts.clear()
        self._count = 0

    def update(self, entries: Iterable[tuple[int, V]]) -> None:  # type: ignore[override] # nobody has others
        """Put in entries."""
        part: dict[int, V] = {}
        place, before = -1, 0
        for number, value in entries:
            if number >> _BITS != place:
                self._count += len(part) - before
                place = number >> _BITS
                part = self._part(place)
                before = len(part)
            part[number] = value
        self._count += len(part) - before

    def _part(self, place: int) -> dict[int, V]:
        parts = self._parts
        part = parts.get(place)
        if part is None:
            behind = next(reversed(parts)) if parts else -1
            part = parts[place] = {}
            if place < behind:
                self._parts = dict(sorted(parts.items()))
        return part

    def _compact(self, place: int, part: dict[int, V]) -> None:
        if part:
            self._parts[place] = dict(part)
        else:
            del self._parts[place]

    def sort(self) -> Iterator[None]:
        """Bring entries into ascending order, some thousands between two yields."""
        for place in list(self._parts):
            part = self._parts[place]
            self._parts[place] = {number: part[number] for number in sorted(part)}
            yield


class _Items(ItemsView[int, V]):
    _mapping: LargeTable[V]

    def __iter__(self) -> Iterator[tuple[int, V]]:
        return chain.from_iterable([part.items() for part in self._mapping._parts.values()])


class _Values(ValuesView[V]):
    _mapping: LargeTable[V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable([part.values() for part in self._mapping._parts.values()])
