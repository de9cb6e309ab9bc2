"""Lists: sorted, filtered, divided into pages, reduced to columns, and encoded in pieces. Pure.

All of it in steps, because a list may have a hundred thousand items: keys are computed a few at a time, sorted in runs
that are merged, and only the items of the page are computed whole. Bodies of messages are texts of JSON that are made
in pieces: no client waits for a large one, and it is in memory once.

Long lists that were sent a moment ago are kept encoded, so that ten dashboards cost little more than one: as in
RabbitMQ for five times as long as it took, and not beyond the next samples. A list of few objects is never old, and
none is given after an object was declared or deleted. What is kept is bounded in octets, with what is being collected
and what slow clients still read.
"""

import binascii
import codecs
import heapq
import re
import secrets
import sys
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from leveret.broker.administration.definitions_document import encoded, readable
from leveret.broker.auth.name_patterns import InvalidPatternError, Patterns
from leveret.broker.http.call import Listing, Values
from leveret.broker.http.errors import ApiError, bad_request
from leveret.broker.http.route import Key
from leveret.broker.statistics.series import Ranges, Span

PAGE_SIZE = 100
MOST_PAGE_SIZE = 500
MOST_PATTERN = 1024  # maximum length of a pattern in characters
STEP = 16  # items that are looked at in one step
RUN = 256  # items that are sorted in one step
MERGED = 64  # items that are merged in one step
PIECE = 64 * 1024  # octets of an encoded list that are written together

ABSENT = msgspec.UNSET  # value of a key that an item does not have
_NUMBER = re.compile(r"-?[0-9]{1,19}")

Fields = Mapping[str, Callable[[Any], Any]] | None


# -- JSON in pieces ---------------------------------------------------------------------------------------------------


TEXT_STEP: Final = 48 * 1024  # octets that are encoded at once
Parts = Callable[[], Iterable[bytes | memoryview]]  # returns a body's octets in parts, from the beginning


class LargeText:
    """A body as a text of JSON: octets in parts, UTF-8 unless they are encoded as base64."""

    def __init__(self, parts: Parts, *, is_base64: bool) -> None:
        self._parts = parts
        self._is_base64 = is_base64

    def pieces(self) -> Iterator[bytes]:
        """Yield the text as JSON has it, without quotes around it."""
        if not self._is_base64:
            decode = codecs.getincrementaldecoder("utf-8")().decode
            for piece in _divided(self._parts):
                yield msgspec.json.encode(decode(piece))[1:-1]
            return
        rest = b""
        for piece in _divided(self._parts):
            octets = rest + piece
            whole = len(octets) - len(octets) % 3
            rest = octets[whole:]
            yield binascii.b2a_base64(octets[:whole], newline=False)
        if rest:
            yield binascii.b2a_base64(rest, newline=False)


def text_of(
    parts: Parts, size: int, *, is_base64: bool
) -> Generator[None, None, tuple[str | LargeText, str]]:
    """Return a body as text and the name of its encoding, in steps.

    `size` is the number of its octets; it is in base64 if that is wanted, and if it is not UTF-8.
    """
    if not is_base64 and not (yield from _is_utf8(parts)):
        is_base64 = True
    name = "base64" if is_base64 else "string"
    text = LargeText(parts, is_base64=is_base64)
    if size > TEXT_STEP:
        return text, name
    octets = b"".join(parts())
    return (binascii.b2a_base64(octets, newline=False) if is_base64 else octets).decode(), name


def _is_utf8(parts: Parts) -> Generator[None, None, bool]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for piece in _divided(parts):
            decode(piece)
            yield None
        decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _divided(parts: Parts) -> Iterator[bytes]:
    for part in parts():
        for at in range(0, len(part), TEXT_STEP):
            yield bytes(part[at : at + TEXT_STEP])


def encoded_pieces(value: Any) -> Iterator[bytes]:
    """Encode a value as `encoded`, in several pieces if there are large texts (`LargeText`) in it."""
    mark = secrets.token_hex(16)  # which nobody can have put into the value
    try:
        octets, texts = _marked(value, mark)
    except UnicodeEncodeError:
        octets, texts = _marked(readable(value), mark)
    first, *others = octets.split(mark.encode())
    yield first
    for text, following in zip(texts, others, strict=True):
        yield from text.pieces()
        yield following


def _marked(value: Any, mark: str) -> tuple[bytes, list[LargeText]]:
    """Encode a value with a mark in place of each large text; returns these, too."""
    texts: list[LargeText] = []

    def marked(text: Any) -> str:
        if not isinstance(text, LargeText):
            raise TypeError(type(text).__name__)
        texts.append(text)
        return mark

    return msgspec.json.encode(value, enc_hook=marked), texts


# -- what a request asks for ------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """The page that a request asks for: its number from 1 on, its size, and whether a name is listed."""

    number: int
    size: int
    matches: Callable[[str], object]

    @property
    def first(self) -> int:
        """The place of its first item in the list."""
        return (self.number - 1) * self.size


def asked_page(query: Mapping[str, str], patterns: Patterns, most: int = MOST_PAGE_SIZE) -> Page | None:
    """Return the page that a query asks for, of at most so many items; None for the whole list. Raises ApiError."""
    if "page" not in query:
        return None
    number, size = (_positive(query, *each) for each in (("page", 1), ("page_size", PAGE_SIZE)))
    if number < 1 or not 1 <= size <= most:
        raise ApiError(
            400,
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {number}, page size {query.get('page_size') or 'undefined'}",
        )
    return Page(number, size, _name_filter(query, patterns))


def _positive(query: Mapping[str, str], key: str, default: int) -> int:
    given = query.get(key, "")
    if not given:
        return default
    if not _NUMBER.fullmatch(given):
        raise bad_request("Pagination parameters are invalid")
    return int(given)


def _name_filter(query: Mapping[str, str], patterns: Patterns) -> Callable[[str], object]:
    wanted = query.get("name", "")
    if not wanted:
        return lambda _name: True
    if not Values(query).flag("use_regex"):
        folded = wanted.lower()
        return lambda name: folded in name.lower()
    if len(wanted) > MOST_PATTERN:
        raise bad_request(f"the pattern has more than {MOST_PATTERN} characters")
    try:
        search = patterns.compile(f"(?i){wanted}")
    except InvalidPatternError:
        raise bad_request("Pagination parameters are invalid") from None
    return lambda name: search(name.encode("utf-8", "surrogateescape"))


MOST_SAMPLES = 500
_RANGES = ("lengths", "msg_rates", "data_rates", "node_stats")
RANGES = tuple(
    Key(f"{name}_{part}", "integer", doc=f"{what}, seconds")
    for name in _RANGES
    for part, what in (("age", "samples of this time"), ("incr", "time between two samples"))
)


def asked_ranges(query: Mapping[str, str], *, one: bool = False) -> Ranges:
    """Return the ranges of a query; raises ApiError if one is not positive, or has too many samples.

    `one` is true if one object is asked for: RabbitMQ names the error otherwise then.
    """
    try:
        return Ranges(*[_span(query, name) for name in _RANGES])
    except ValueError as error:
        raise ApiError(400, "bad_request" if one else "invalid_range_parameters", str(error)) from None


def _span(query: Mapping[str, str], name: str) -> Span | None:
    given = query.get(f"{name}_age", ""), query.get(f"{name}_incr", "")
    try:
        age, increment = (int(each) for each in given)
    except ValueError:
        return None
    if age <= 0 or increment <= 0 or age / increment > MOST_SAMPLES:
        raise ValueError(f"Invalid range parameters: age {age}, incr {increment}")
    return Span(age, increment)


# -- values -----------------------------------------------------------------------------------------------------


def value_at(item: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of keys; None if it is not there."""
    for key in path:
        if not isinstance(item, Mapping) or key not in item:
            return None
        item = item[key]
    return item


def _field(row: Any, fields: Fields, path: Sequence[str]) -> Any:
    if fields is None:
        return value_at(row, path)
    compute = fields.get(path[0])
    value = None if compute is None else value_at(compute(row), path[1:])
    return None if value is ABSENT else value


def order(value: Any) -> tuple[int, Any]:
    """Return the sort key of a value of any type, as RabbitMQ orders them; one that is not there is like 0."""
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, str(value).lower()
    if isinstance(value, int | float):
        return 0, value
    if isinstance(value, str):
        return 4, value
    return (2, str(value)) if isinstance(value, Mapping) else (3, str(value))


def whole(row: Any, fields: Fields, columns: "Columns | None") -> Any:
    """Return the item of a row, reduced to the columns if some are given."""
    if fields is None:
        return row if columns is None else columns.reduce(row)
    wanted: Iterable[tuple[str, Callable[[Any], Any]]] = fields.items()
    if columns is not None:
        wanted = [each for each in wanted if each[0] in columns.tops]
    item = {name: value for name, compute in wanted if (value := compute(row)) is not ABSENT}
    return item if columns is None else columns.reduce(item)


class Columns:
    """The columns that a request asks for: paths, with dots between the keys; `tops` are their first keys."""

    def __init__(self, names: Iterable[str]) -> None:
        self._tree: dict[str, Any] = {}
        for name in names:
            node = self._tree
            for key in name.split("."):
                node = node.setdefault(key, {})
        self.tops = frozenset(self._tree)

    @classmethod
    def asked(cls, query: Mapping[str, str]) -> "Columns | None":
        """Return the columns of a query; None for all."""
        given = query.get("columns", "")
        return cls(given.split(",")) if given else None

    def reduce(self, item: Any) -> Any:
        """Return the item with these keys only, those that it has."""
        return _reduced(item, self._tree)


def _reduced(value: Any, tree: Mapping[str, Any]) -> Any:
    if not tree:
        return value
    if isinstance(value, Mapping):
        return {key: _reduced(value[key], below) for key, below in tree.items() if key in value}
    if isinstance(value, list):
        return [_reduced(each, tree) for each in value]
    return value


# -- lists ------------------------------------------------------------------------------------------------------


def encode_listing(
    listing: Listing, query: Mapping[str, str], patterns: Patterns, *, is_part: bool = False
) -> Generator[bytes | None, None, int]:
    """Encode a list as a query asks for it, in steps: yields pieces of the body, None between.

    The query has `sort`, `sort_reverse`, `columns`, and of a page `page`, `page_size`, `name`, `use_regex`. A part of a
    list, of one process of several, is lines: by what it is sorted and how long it is, then an item each, those of the
    first page. Returns the number of rows that were looked at. Raises ApiError before the first piece.
    """
    most = sys.maxsize if is_part else MOST_PAGE_SIZE
    page = asked_page(query, patterns, most) if listing.is_paged else None
    columns = Columns.asked(query)
    fields = listing.fields
    rows: list[Any] = []
    total = 0
    for row in listing.rows:
        if page is None or page.matches(str(_field(row, fields, ("name",)) or "")):
            rows.append(row)
        total += 1
        if not total % STEP:
            yield None
    paths = sort_paths(query, listing.sort)
    if paths:
        rows = yield from _sorted(rows, fields, paths, reverse=query.get("sort_reverse") == "true")
    if is_part:
        part = PartHead(listing.sort, page is not None, total, len(rows))
        chosen = rows if page is None else rows[: page.size]
        yield from items(chosen, fields, columns, encoded(part) + b"\n", b"", b"\n")
    elif page is None:
        yield from items(rows, fields, columns)
    else:
        head = page_head(page, total, len(rows))
        yield from items(rows[page.first : page.first + page.size], fields, columns, head, b"]}")
    return total


class PartHead(msgspec.Struct, frozen=True):
    """The first line of a part of a list: by which keys it is sorted after those that were asked for, and lengths."""

    sort: tuple[str, ...]
    is_page: bool
    total: int
    filtered: int


def sort_paths(query: Mapping[str, str], sort: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the paths of the keys by which a list is sorted: that of a query, then the usual ones, for equal ones."""
    given = query.get("sort", "")
    paths: list[tuple[str, ...]] = [tuple(given.split("."))] if given else []
    return [*paths, *[(key,) for key in sort]]


def page_head(page: Page, total: int, filtered: int, **more: Any) -> bytes:
    """Encode what a page begins with, up to its items; raises ApiError if there is no such page."""
    count = -(-filtered // page.size)
    if page.number > max(1, count):
        raise ApiError(
            400, "page_out_of_range", f"Page out of range, page: {page.number} page size: {page.size}, "
            f"len: {filtered}"
        )  # fmt: skip
    head = {
        "total_count": total,
        "item_count": min(page.size, filtered - page.first),
        "filtered_count": filtered,
        "page": page.number,
        "page_size": page.size,
        "page_count": count,
        **more,
    }
    return encoded(head)[:-1] + b',"items":['


def _sorted(
    rows: list[Any], fields: Fields, paths: list[tuple[str, ...]], *, reverse: bool
) -> Generator[None, None, list[Any]]:
    """Sort rows by the values at these paths, in steps; equal ones keep their order."""
    runs: list[list[tuple[Any, int]]] = []
    for first in range(0, len(rows), RUN):
        run = []
        for at in range(first, min(first + RUN, len(rows))):
            run.append((tuple([order(_field(rows[at], fields, path)) for path in paths]), at))
            if not at % STEP:
                yield None
        run.sort()
        runs.append(run)
    found = []
    for _key, at in heapq.merge(*runs):
        found.append(rows[at])
        if not len(found) % MERGED:
            yield None
    if reverse:
        found.reverse()
    return found


def items(
    rows: Iterable[Any],
    fields: Fields,
    columns: Columns | None,
    head: bytes = b"[",
    tail: bytes = b"]",
    between: bytes = b",",
) -> Iterator[bytes | None]:
    """Encode rows, in pieces; None where others may have a turn."""
    buffer = bytearray(head)
    separator = b""
    for at, row in enumerate(rows):
        buffer += separator
        for piece in encoded_pieces(whole(row, fields, columns)):
            buffer += piece
            if len(buffer) >= PIECE:
                yield bytes(buffer)
                buffer.clear()
        separator = between
        if not at % STEP:
            yield None
    yield bytes(buffer + tail)


# -- lists that were sent a moment ago --------------------------------------------------------------------------------


MOST_OCTETS = 32 << 20  # maximum octets of all lists together; a longer list is not kept
MOST_LISTS = 64
LEAST_ROWS = 1000  # rows up to which a list is made again for each request
FACTOR = 5
MOST_SECONDS = 5.0  # maximum age of a list in seconds, from when it was begun


class _Kept:
    """A list: its pieces, until when it is given to others, and whether only those who read it have it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.octets = 0
        self.readers = 0
        self.until = 0.0
        self.is_dropped = False


class ListCache:
    """The lists of one listener."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lists: dict[Hashable, _Kept] = {}
        self.octets = 0  # octets in use

    def __len__(self) -> int:
        return len(self._lists)

    def find(self, key: Hashable) -> Iterator[bytes] | None:
        """Return the pieces of a list; None if it is not there, or too old."""
        self.expire()
        kept = self._lists.get(key)
        return None if kept is None else self._read(kept)

    def collect(
        self, key: Hashable, pieces: Generator[bytes | None, None, int]
    ) -> Generator[bytes | None, None, int]:
        """Yield the pieces of a list as they are made, and keep them at the end; returns the number of its rows."""
        began = self._now()
        kept = _Kept()
        is_whole, is_kept = True, False
        try:
            while True:
                try:
                    piece = next(pieces)
                except StopIteration as done:
                    rows: int = done.value
                    break
                if piece and is_whole:
                    is_whole = self._add(kept, piece)
                yield piece
            kept.until = began + min(MOST_SECONDS, FACTOR * (self._now() - began))
            if is_whole and rows > LEAST_ROWS:
                self._keep(key, kept)
                is_kept = True
            return rows
        finally:
            if not is_kept:
                self._release(kept)

    def clear(self) -> None:
        """Drop all lists: something was changed."""
        for key in tuple(self._lists):
            self._drop(key)

    def expire(self) -> None:
        """Drop the lists that are too old."""
        now = self._now()
        for key in [key for key, kept in self._lists.items() if kept.until <= now]:
            self._drop(key)

    def _add(self, kept: _Kept, piece: bytes) -> bool:
        """Add a piece to a list; returns False, and forgets the list, if there is no room for it."""
        while self._lists and self.octets + len(piece) > MOST_OCTETS:
            self._drop(next(iter(self._lists)))
        if self.octets + len(piece) > MOST_OCTETS:
            self._release(kept)
            kept.pieces.clear()
            return False
        kept.pieces.append(piece)
        kept.octets += len(piece)
        self.octets += len(piece)
        return True

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        if key in self._lists:
            self._drop(key)
        elif len(self._lists) >= MOST_LISTS:
            self._drop(next(iter(self._lists)))
        self._lists[key] = kept

    def _read(self, kept: _Kept) -> Iterator[bytes]:
        kept.readers += 1
        try:
            yield from kept.pieces
        finally:
            kept.readers -= 1
            if kept.is_dropped and not kept.readers:
                self._release(kept)

    def _drop(self, key: Hashable) -> None:
        kept = self._lists.pop(key)
        kept.is_dropped = True
        if not kept.readers:
            self._release(kept)

    def _release(self, kept: _Kept) -> None:
        self.octets -= kept.octets
        kept.octets = 0
