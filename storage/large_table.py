"""A mapping with integer keys that never resizes all at once.

Theory. A full dict is copied into a larger one, which blocks the event loop for 40 ms at 700,000 entries, and it does
not shrink when entries are removed. A `LargeTable` keeps entries with neighbouring keys in a small dict of their own,
which is released with its last entry. That costs a third of a microsecond more per entry, so small tables are plain
dicts: code that adds to a table or removes from it calls `fitting` afterwards.
"""
# ruff: noqa: SLF001 - friends in one layer

from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from itertools import chain
from typing import Any, TypeVar, cast

V = TypeVar("V")

MANY = 65_536  # maximum number of entries in a plain dict
FEW = 16_384  # number of entries at which a large table becomes a plain dict again
_BITS = 12  # low bits in which neighbouring keys may differ
_SPARSE = frozenset({0, 64, 512})
"""Entries left at which a part's dict, still sized for all neighbours, is replaced by a smaller copy."""
_MISSING = object()


def fitting(table: MutableMapping[int, V]) -> MutableMapping[int, V]:
    """Return the table to use after entries were added or removed; usually the same one."""
    if type(table) is dict:
        return LargeTable(table) if len(table) > MANY else table
    return dict(table.items()) if len(table) < FEW else table


def large(table: MutableMapping[int, V]) -> "LargeTable[V]":
    """Return a large table with the same entries; the table itself if it is one."""
    return table if isinstance(table, LargeTable) else LargeTable(table)


class LargeTable(MutableMapping[int, V]):
    """A dict with integer keys, split into many parts.

    It is iterated in ascending order of keys if they were added in ascending order, or after `sort` was called.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self, entries: Mapping[int, V] | None = None) -> None:
        self._parts: dict[int, dict[int, V]] = {}  # by the high bits of the keys, ascending
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
        """Return a view of the entries, which iterates faster than the default one."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return a view of the values, which iterates faster than the default one."""
        return _Values(self)

    def pop(self, number: int, default: Any = _MISSING) -> Any:
        """Remove and return one value; `KeyError` if it is missing and there is no default."""
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
        """Remove and return the last entry of the part with the highest keys; `KeyError` if there is none."""
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
        """Remove all entries."""
        self._parts.clear()
        self._count = 0

    def update(self, entries: Iterable[tuple[int, V]]) -> None:  # type: ignore[override] # nobody has others
        """Add entries."""
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
        """Sort the entries by key, a few thousand between two yields."""
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
