"""One answer of the answers of several processes: lists, objects, definitions. Pure."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from http import HTTPStatus
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from leveret.broker.auth.name_patterns import Patterns
from leveret.broker.http.call import Content, Item
from leveret.broker.http.listing import (
    STEP,
    Columns,
    PartHead,
    asked_page,
    items,
    order,
    page_head,
    sort_paths,
    value_at,
)
from leveret.broker.management.definitions import written

MISSING_HEADER = "x-leveret-missing"  # of an answer without that of some processes, with their numbers
MISSING = "missing_processes"  # key of an object or a page with them
JSON = "application/json"
LIMITS = "vhost-limits"  # component of parameters that the front has
# fmt: off
_OF_FRONT = frozenset({
    "at", "disk_free", "disk_free_limit", "free", "interval", "limit", "mem_limit", "net_ticktime", "pid", "processors",
    "run_queue", "timestamp", "total", "uptime",
})
# fmt: on
"""Keys whose numbers are those of the machine, or of the front, and not added."""

_GREATEST = frozenset({"p50", "p99"})
"""Keys whose values are not added: the greatest is that of all."""

decoded = msgspec.json.decode


class Answered(NamedTuple):
    """The answer of a process: bytes, or the lines of a part of a list."""

    process: int
    status: int
    content_type: str
    content: bytes = b""
    lines: Sequence[bytes] = ()

    @property
    def value(self) -> Any:
        """The object of a JSON answer."""
        return decoded(self.content)


class Answers(NamedTuple):
    """The answers of all processes, and the numbers of those that are missing."""

    found: Sequence[Answered]
    missing: Sequence[int]

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the missing processes."""
        return {MISSING_HEADER: ", ".join(map(str, self.missing))} if self.missing else {}

    def item(self, value: dict[str, Any]) -> Item:
        """Return an object that names them, too."""
        return Item({**value, MISSING: self.missing} if self.missing else value, self.headers)


def fine(answers: Answers) -> Answers | Content:
    """Return the answers that are no errors; instead of all an error, unless some only do not know the object."""
    found = [each for each in answers.found if each.status < HTTPStatus.BAD_REQUEST]
    errors = [each for each in answers.found if each.status >= HTTPStatus.BAD_REQUEST]
    if found or answers.missing:
        errors = [each for each in errors if each.status != HTTPStatus.NOT_FOUND]
    if errors:
        return Content((errors[0].content,), errors[0].content_type, {}, errors[0].status)
    return Answers(found, answers.missing)


def part_query(query: Mapping[str, str], patterns: Patterns) -> dict[str, str]:
    """Return the query for a process's part of a list: a page may have all its items. Raises ApiError."""
    wanted = dict(query)
    page = asked_page(query, patterns)
    if page is not None:
        wanted |= {"page": "1", "page_size": str(page.first + page.size)}
    if query.get("columns"):  # those by which the parts are merged, too
        wanted["columns"] = ",".join([query["columns"], "vhost", "name", *filter(None, [query.get("sort")])])
    return wanted


def listed(answers: Answers, query: Mapping[str, str], patterns: Patterns) -> Generator[None, None, Content]:
    """Return the list of all parts, or its page, in steps; raises ApiError."""
    heads = [decoded(each.lines[0], type=PartHead) for each in answers.found]
    rows = _merged([each.lines[1:] for each in answers.found], query, heads[0].sort)
    columns = Columns.asked(query)
    page = asked_page(query, patterns) if heads[0].is_page else None
    if page is None:
        return Content(items(rows, None, columns), JSON, answers.headers)
    total, filtered = sum([each.total for each in heads]), sum([each.filtered for each in heads])
    more = {MISSING: answers.missing} if answers.missing else {}
    head = page_head(page, total, filtered, **more)
    for at, _ in enumerate(islice(rows, page.first)):
        if not at % STEP:
            yield
    return Content(items(islice(rows, page.size), None, columns, head, b"]}"), JSON, answers.headers)


def _merged(lists: Sequence[Sequence[bytes]], query: Mapping[str, str], sort: Sequence[str]) -> Iterator[Any]:
    paths = sort_paths(query, sort)
    parts = [map(decoded, each) for each in lists]
    if not paths:
        return chain.from_iterable(parts)
    reverse = query.get("sort_reverse") == "true"
    return merge(*parts, key=lambda row: [order(value_at(row, path)) for path in paths], reverse=reverse)


def added(values: Sequence[Any], name: str = "") -> Any:
    """Return one value of those of several processes: numbers are added, and an alarm of one is one of all."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    first = known[0]
    if isinstance(first, bool):
        return any(known)
    if isinstance(first, int | float):
        return (
            first if name in _OF_FRONT else max(known) if "_avg_" in name or name in _GREATEST else sum(known)
        )
    if isinstance(first, Mapping):
        keys = dict.fromkeys(chain.from_iterable(known))
        return {key: added([value[key] for value in known if key in value], key) for key in keys}
    if name == "samples":
        at: dict[int, list[Any]] = {}
        for sample in chain.from_iterable(known):
            at.setdefault(sample["timestamp"], []).append(sample)
        return [added(at[timestamp]) for timestamp in sorted(at, reverse=True)]
    return first


class _Part(msgspec.Struct):
    """The definitions that a process has, not decoded."""

    queues: list[msgspec.Raw] = []
    exchanges: list[msgspec.Raw] = []
    bindings: list[msgspec.Raw] = []
    policies: list[msgspec.Raw] = []
    parameters: list[msgspec.Raw] = []


def exported(
    head: Mapping[str, Any], sections: Iterable[tuple[str, Iterable[Any]]], answers: Answers
) -> Content:
    """Return the definitions of the front, with those that the processes have."""
    parts = [decoded(each.content, type=_Part) for each in answers.found]
    for part in parts:
        part.parameters = [each for each in part.parameters if decoded(each)["component"] != LIMITS]
    more = ((name, chain(own, *[getattr(part, name, ()) for part in parts])) for name, own in sections)
    if answers.missing:
        head = {**head, MISSING: answers.missing}
    return Content(written(head, more), JSON, answers.headers)
