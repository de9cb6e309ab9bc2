"""State of the screen of `leveret top`: lines about the broker, the list, its filter, its page, the chosen item."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from leveret.broker.cli.ctl.output import duration
from leveret.broker.cli.top.views import (
    VIEWS,
    Column,
    Item,
    Line,
    View,
    Widths,
    at,
    fit,
    grouped,
    heading,
    layout,
    memory,
    rate,
    row,
    safe,
    shown_width,
    widen,
)

_RATES = (
    ("in", "publish"),
    ("out", "deliver_get"),
    ("acks", "ack"),
    ("confirms", "confirm"),
    ("unroutable", "drop_unroutable"),
    ("redelivered", "redeliver"),
)
_GAP = "  "
_BEGIN = 12  # cells of the word that begins a line
Node = Mapping[str, Any]


class Broker(NamedTuple):
    """Figures of a broker: `/api/overview`, and its item of `/api/nodes`, empty if the user may not see it."""

    overview: Mapping[str, Any]
    node: Node


def summary(broker: Broker, width: int) -> list[Line]:
    """Return the lines about a broker, each at most `width` cells."""
    return [
        _fitting("messages/s", _messages(broker.overview), width),
        _fitting("messages", _objects(broker.overview), width),
        _fitting("node", _resources(broker.node), width),
    ]


def name(broker: Broker) -> list[str]:
    """Return the name of a broker, its version and its uptime, as far as they are known."""
    overview, node = broker.overview, broker.node
    ours = overview.get("leveret_version")
    version = f"Leveret {ours}" if ours else f"RabbitMQ {overview.get('rabbitmq_version', '')}"
    known = [safe(str(overview.get("node") or overview.get("cluster_name") or "")), version]
    if (uptime := node.get("uptime")) is not None:
        known.append(f"up {duration(uptime / 1000)}")
    if missing := overview.get("missing_processes"):
        known.append(f"without process {', '.join(map(str, missing))}")
    return known


def alarms(node: Node) -> list[str]:
    """Return what each alarm is about: the figure, and its limit."""
    found = []
    if node.get("mem_alarm"):
        found.append(f"memory {memory(node.get('mem_used'))} (limit {memory(node.get('mem_limit'))})")
    if node.get("disk_free_alarm"):
        found.append(
            f"disk free {memory(node.get('disk_free'))} (limit {memory(node.get('disk_free_limit'))})"
        )
    return found


def _fitting(begin: str, fields: list[Line], width: int) -> Line:
    """Return the fields that have space, as one line; a field that has none ends it."""
    line: Line = [(f"{begin:<{_BEGIN}}", "label")]
    for number, field in enumerate(fields):
        gap: Line = [(_GAP if number else "", "")]
        if shown_width([*line, *gap, *field]) > width:
            break
        line += [*gap, *field]
    return line


def _field(label: str, value: str, style: str = "value") -> Line:
    return [(f"{label} ", "label"), (value, style)]


def _messages(overview: Mapping[str, Any]) -> list[Line]:
    stats = overview.get("message_stats") or {}
    fields = []
    for label, key in _RATES:
        value = at(stats, f"{key}_details.rate")
        style = "warning" if key == "drop_unroutable" and value else "value"
        fields.append(_field(label, rate(value) if value is None or value < 10 else grouped(value), style))  # noqa: PLR2004
    return fields


def _objects(overview: Mapping[str, Any]) -> list[Line]:
    totals, objects = overview.get("queue_totals") or {}, overview.get("object_totals") or {}
    return [
        _field("ready", grouped(totals.get("messages_ready"))),
        _field("unacked", grouped(totals.get("messages_unacknowledged"))),
        _field("consumers", grouped(objects.get("consumers"))),
        _field("exchanges", grouped(objects.get("exchanges"))),
    ]


def _resources(node: Node) -> list[Line]:
    if not node:
        return [[("memory and disk are for users with the tag monitoring", "label")]]
    used, limit = node.get("mem_used"), node.get("mem_limit")
    files, most = node.get("fd_used"), node.get("fd_total")
    disk = "alarm" if node.get("disk_free_alarm") else "value"
    return [
        [
            *_field("memory", memory(used), "alarm" if node.get("mem_alarm") else "value"),
            (f" of {memory(limit)}", "label"),
        ],
        _field("disk free", memory(node.get("disk_free")), disk),
        [*_field("files", grouped(files)), (f" of {grouped(most)}", "label")],
        _field("disk limit", memory(node.get("disk_free_limit"))),
    ]


MOST_ROWS = 500  # the most items of a page that the API gives
HEADER_LINES = 5  # lines above the table: name, three of the summary, the lists
LINES_AROUND = HEADER_LINES + 3  # lines that are not items: also the titles, the chosen item, and the keys


class Question(msgspec.Struct, frozen=True):
    """A question to the API: a page of a list by the parameters of the query, beside the figures of the broker."""

    view: View
    query: Mapping[str, str]


class Answer(msgspec.Struct, frozen=True):
    """The answer to a question: the overview and the node, and the page of the list, as the API gives it."""

    question: Question
    broker: Broker
    page: Mapping[str, Any]


class _Order(msgspec.Struct):
    sort: Column
    is_descending: bool
    filter: str = ""
    page: int = 1


class Model:
    """State of the screen."""

    def __init__(self) -> None:
        self.view = VIEWS[0]  # the list
        self.is_paused = False  # whether the picture stays as it is
        self.problem = ""  # sentence about why the figures are old; empty if they are not
        self.cursor = 0  # position of the chosen item on the page
        self._orders = {view.title: _Order(view.column(view.sort), is_descending=True) for view in VIEWS}
        self._widths: dict[str, Widths] = {view.title: {} for view in VIEWS}
        self._broker = Broker({}, {})
        self._items: Sequence[Item] = ()
        self._counts: Mapping[str, int] = {}
        self._cells, self._lines = 80, 24
        self._shown = self.question()

    # -- keys ---------------------------------------------------------------------------------------------------

    def resize(self, cells: int, lines: int) -> None:
        """Take another size of the terminal."""
        before = self.rows
        self._cells, self._lines = cells, lines
        if self.rows != before:
            order = self._order
            order.page = (order.page - 1) * before // self.rows + 1
            self.cursor = min(self.cursor, self.rows - 1)

    def show(self, view: View) -> None:
        """Show another list."""
        self.view = view
        self.cursor = 0

    def show_next(self, step: int) -> None:
        """Show the list that stands so many after this one."""
        self.show(VIEWS[(VIEWS.index(self.view) + step) % len(VIEWS)])

    def sort_next(self, step: int) -> None:
        """Sort by the shown column that stands so many after this one; numbers descend, texts ascend."""
        shown = [column for column, _width in self._layout()]
        order = self._order
        now = shown.index(order.sort) if order.sort in shown else 0
        order.sort = shown[(now + step) % len(shown)]
        order.is_descending = order.sort.kind == "number"
        self.go_first()

    def flip(self) -> None:
        """Turn the order round."""
        self._order.is_descending = not self._order.is_descending
        self.go_first()

    def narrow(self, text: str) -> None:
        """Show only what has this text in its name."""
        if text != self._order.filter:
            self._order.filter = text
            self.go_first()

    def move(self, step: int) -> None:
        """Choose the item that stands so many after this one; it may be on the next page, or on the one before."""
        wanted = self.cursor + step
        if wanted < 0 and self._order.page > 1:
            self._order.page -= 1
            self.cursor = self.rows - 1
        elif wanted >= self.rows and self._order.page < self.pages:
            self._order.page += 1
            self.cursor = 0
        else:
            self.cursor = max(0, min(wanted, len(self._items) - 1))

    def turn(self, step: int) -> None:
        """Show the page that stands so many after this one."""
        page = max(1, min(self._order.page + step, self.pages))
        if page == self._order.page:
            self.cursor = 0 if step < 0 else max(0, len(self._items) - 1)
        self._order.page = page

    def go_first(self) -> None:
        """Show the first page."""
        self._order.page = 1
        self.cursor = 0

    def go_last(self) -> None:
        """Show the last page."""
        self._order.page = self.pages
        self.cursor = self.rows - 1

    @property
    def _order(self) -> _Order:
        return self._orders[self.view.title]

    @property
    def filter(self) -> str:
        """The part of the names that are shown."""
        return self._order.filter

    @property
    def rows(self) -> int:
        """Items of a page: as many as the terminal has lines for."""
        return max(1, min(self._lines - LINES_AROUND, MOST_ROWS))

    @property
    def pages(self) -> int:
        """Pages that there are."""
        return max(1, self._counts.get("page_count", 1))

    @property
    def is_answered(self) -> bool:
        """True once there was an answer."""
        return bool(self._broker.overview)

    @property
    def is_outdated(self) -> bool:
        """True if what is shown is no longer what is asked for."""
        return self._shown != self.question()

    # -- the broker ---------------------------------------------------------------------------------------------

    def question(self) -> Question:
        """Return the question whose answer the screen needs."""
        order = self._order
        query = {
            "page": str(order.page),
            "page_size": str(self.rows),
            "sort": order.sort.path,
            "sort_reverse": "true" if order.is_descending else "false",
            "columns": self.view.asked,
        }
        if order.filter:
            query["name"] = order.filter
        return Question(self.view, query)

    def take(self, answer: Answer) -> None:
        """Take an answer; one to a question that is no longer asked changes the figures of the broker only."""
        self.problem = ""
        self._broker = answer.broker
        if answer.question != self.question():
            return
        self._items = answer.page.get("items") or []
        self._counts = {key: value for key, value in answer.page.items() if isinstance(value, int)}
        self._order.page = self._counts.get("page", 1)
        self.cursor = max(0, min(self.cursor, len(self._items) - 1))
        self._shown = self.question()
        widen(self._widths[self.view.title], self.view, self._items)

    def fail(self, problem: str) -> None:
        """Keep what is shown, and tell why it is old."""
        self.problem = problem

    # -- the picture --------------------------------------------------------------------------------------------

    def _layout(self) -> list[tuple[Column, int]]:
        return layout(self.view, self._widths[self.view.title], self._cells)

    def header(self, clock: str, interval: str) -> list[Line]:
        """Return the lines above the table."""
        return [
            self._title(clock, interval),
            *summary(self._broker, self._cells),
            self._lists(),
        ]

    def _title(self, clock: str, interval: str) -> Line:
        state = "PAUSED" if self.is_paused else f"every {interval}"
        right = f"{state}  {clock}"
        left = ["leveret top", *filter(None, name(self._broker))]
        while len(left) > 1 and len("  ".join(left)) + len(right) + 2 > self._cells:
            left.pop()
        text = "  ".join(left)
        space = " " * max(1, self._cells - shown_width([(text, "")]) - len(right))
        style = "title"
        return [(text + space, style), (right, "paused" if self.is_paused else style)]

    def _lists(self) -> Line:
        objects = self._broker.overview.get("object_totals") or {}
        line: Line = []
        for view in VIEWS:
            style = "chosen" if view is self.view else "label"
            line += [(f" {view.key} {view.title} {grouped(objects.get(view.resource))} ", style), (" ", "")]
        told = self._range()
        space = self._cells - shown_width(line) - len(told)
        return [*line, (" " * space + told, "label")] if space >= 0 else line

    def _range(self) -> str:
        if self._shown.view is not self.view or not self._counts:
            return ""
        first = (self._order.page - 1) * self.rows
        found = grouped(self._counts.get("filtered_count"))
        told = f"{first + 1}-{first + len(self._items)} of {found}" if self._items else "0"
        return f"filter {safe(self.filter)}: {told}" if self.filter else told

    def table(self) -> list[Line]:
        """Return the lines of the table, with its titles."""
        columns = self._layout()
        order = self._order
        lines = [heading(columns, order.sort, is_descending=order.is_descending)]
        if self._shown.view is not self.view:
            return lines
        for number, item in enumerate(self._items[: self.rows]):
            style = "cursor" if number == self.cursor else "dim" if self.problem else ""
            lines.append(row(columns, item, style=style))
        if not self._items and self._counts:
            what, given = self.view.title.lower(), safe(self.filter)
            text = f"No {what} with “{given}” in their name" if given else f"There are no {what}"
            lines.append([(text, "label")])
        return lines

    def status(self) -> Line:
        """Return the line below the table: that the broker cannot be asked, its alarms, or else the chosen item."""
        if self.problem:
            return [(fit(safe(self.problem), self._cells), "alarm")]
        if figures := alarms(self._broker.node):
            text = f"ALARM  publishers are blocked: {', '.join(figures)}"
            return [(fit(text, self._cells), "alarm")]
        if self._shown.view is not self.view or self.cursor >= len(self._items):
            return []
        line: Line = []
        for label, value in self.view.details_of(self._items[self.cursor]):
            if value:
                line += [(f"{label} ", "label"), (f"{value}  ", "value")]
        return _cut(line, self._cells)


def _cut(line: Line, cells: int) -> Line:
    found: Line = []
    for text, style in line:
        left = cells - shown_width(found)
        if left <= 0:
            break
        found.append((text if shown_width([(text, style)]) <= left else fit(text, left), style))
    return found
