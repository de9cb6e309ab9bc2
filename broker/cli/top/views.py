"""The lists that can be shown: columns, which are selections of the API's keys, lines and cells; keys, the help."""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

ELLIPSIS = "…"
REPLACEMENT = "�"
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_STEPS = ("", "k", "M", "G", "T", "P", "E")
_THOUSAND, _KIB = 1000, 1024

Span = tuple[str, str]  # A text and the name of its style, which is empty for plain text
Line = list[Span]


def safe(text: str) -> str:
    """Return a name without the characters that would steer the terminal, or reorder the text around them."""
    if text.isascii() and text.isprintable():
        return text
    return "".join([REPLACEMENT if unicodedata.category(each) in _UNSAFE else each for each in text])


def fit(text: str, width: int, *, is_left: bool = True) -> str:
    """Return a safe text in exactly this number of cells (at least 1): cut with an ellipsis, or filled with spaces."""
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + ELLIPSIS
    spaces = " " * (width - cell_len(text))
    return text + spaces if is_left else spaces + text


def shown_width(line: Iterable[Span]) -> int:
    """Return the number of cells that a line takes."""
    return sum([cell_len(text) for text, _style in line])


def count(value: float | None) -> str:
    """Return a number of things in at most six characters: 99999, then 100k and 1.23M; `-` if it is not known."""
    if value is None:
        return "-"
    if value < 100 * _THOUSAND:
        return f"{value:.0f}"
    return _scaled(value, _THOUSAND)


def rate(value: float | None) -> str:
    """Return a rate in at most six characters: 0, 0.4, 25, 1234, 12.3k."""
    if value is None:
        return "-"
    if 0 < value < 9.95:  # noqa: PLR2004 - what rounds to less than ten
        return f"{value:.1f}"
    return count(value)


def octets(value: float | None) -> str:
    """Return a number of bytes in at most six characters: 640, 12.3k, 1.50M; units are powers of 1024."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value < _KIB else _scaled(value, _KIB)


def _scaled(value: float, base: int) -> str:
    step = 0
    while step + 1 < len(_STEPS) and value >= base * (1 - 0.5 / _THOUSAND):
        value /= base
        step += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0  # noqa: PLR2004 - three digits in all
    return f"{value:.{digits}f}{_STEPS[step]}"


def grouped(value: float | None) -> str:
    """Return a whole number with commas; `-` if it is not known."""
    return "-" if value is None else f"{value:,.0f}"


def memory(value: float | None) -> str:
    """Return a number of bytes with its unit, for a line of text: `1.5 GiB`."""
    if value is None:
        return "-"
    if value < _KIB:
        return f"{value:.0f} B"
    text = _scaled(value, _KIB)
    return f"{text[:-1]} {text[-1].upper()}iB"


def share(value: float | None) -> str:
    """Return a part of 1 in percent, at most six characters; `-` if it is not known."""
    return "-" if value is None else f"{100 * value:.0f} %"


Item = Mapping[str, Any]
Kind = Literal["name", "text", "number"]
Read = str | Callable[[Item], Any]  # path of a key of an item, with dots, or what returns the value


class Column(NamedTuple):
    """A column."""

    title: str  # heading; at most `width` long
    path: str  # key of the items, with dots, which the API sorts by and which `show` gets the value of
    show: Callable[[Any], str]  # makes the text of a value
    width: int  # cells
    meaning: str  # for the help
    kind: Kind = "number"
    """A name takes the cells that are left over; a text is left-aligned, and as wide as the page needs, at most
    `width`; a number is right-aligned."""
    needs: tuple[str, ...] = ()  # further keys to ask for
    whole: Callable[[Item], str] | None = None  # makes the text of a whole item instead of `show`

    def text(self, item: Item) -> str:
        """Return the text of an item."""
        return self.whole(item) if self.whole is not None else self.show(at(item, self.path))


class View(NamedTuple):
    """A list."""

    title: str  # heading
    key: str  # key that chooses it
    resource: str  # path of the API, and key of the number of all in `object_totals`
    columns: tuple[Column, ...]  # in their order; the first is the name
    first: tuple[str, ...]
    """Titles of those that a narrow terminal shows, the most important first; the others are shown where the names have
    enough space."""
    sort: str  # title of the column that it is sorted by at first
    details: Mapping[str, Read]  # what the line about the chosen item tells: labels, and how texts are read
    needs: tuple[str, ...] = ()  # further keys that `details` needs

    @property
    def asked(self) -> str:
        """The keys to ask for, as the parameter `columns`."""
        paths = [path for column in self.columns for path in (column.path, *column.needs)]
        return ",".join(dict.fromkeys([*paths, *self.needs]))

    def column(self, title: str) -> Column:
        """Return the column of this title."""
        return next(each for each in self.columns if each.title == title)

    def details_of(self, item: Item) -> list[tuple[str, str]]:
        """Return the labels and texts about an item; a text may be empty."""
        reads = self.details.items()
        return [
            (label, _text(at(item, read) if isinstance(read, str) else read(item))) for label, read in reads
        ]


def at(item: Any, path: str) -> Any:
    """Return the value at a path of keys with dots; None if it is not there."""
    for key in path.split("."):
        item = item.get(key) if isinstance(item, Mapping) else None
    return item


def _text(value: Any) -> str:
    return "" if value is None else safe(str(value))


def _rate_of(name: str) -> str:
    return f"message_stats.{name}_details.rate"


def _client(item: Item) -> str:
    properties = item.get("client_properties") or {}
    given = item.get("user_provided_name") or properties.get("connection_name") or properties.get("product")
    return _text(given)


def _peer(item: Item) -> str:
    """Return the client's end of the name of a connection or channel, and the number of a channel."""
    name = _text(item.get("name"))
    peer, arrow, rest = name.partition(" -> ")
    number = item.get("number")
    return f"{peer} ({number})" if arrow and rest and number is not None else peer


def _read_back(item: Item) -> str:
    reads = item.get("disk_reads_per_delivered")
    return f"{reads:.2f} per delivery" if reads else ""


def _arguments(item: Item) -> str:
    return ", ".join([f"{name}={_text(value)}" for name, value in (item.get("arguments") or {}).items()])


def _since(item: Item) -> str:
    milliseconds = item.get("connected_at")
    if not milliseconds:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _library(item: Item) -> str:
    properties = item.get("client_properties") or {}
    return f"{_text(properties.get('product'))} {_text(properties.get('version'))}".strip()


_VHOST = Column("VHOST", "vhost", _text, 14, "virtual host", "text")
_USER = Column("USER", "user", _text, 12, "user", "text")
_STATE = Column(
    "STATE", "state", _text, 8, "running, idle, paused, flow (publishers are slowed down), blocked", "text"
)
QUEUES = View(
    "Queues", "1", "queues",
    (
        Column("NAME", "name", _text, 10, "queue", "name"),
        _VHOST,
        Column("READY", "messages_ready", count, 6, "messages that wait for a consumer"),
        Column("UNACKED", "messages_unacknowledged", count, 7, "messages at consumers, not acknowledged yet"),
        Column("HELD", "messages_delayed", count, 6, "messages held until their time, or waiting for a retry"),
        Column("IN/S", _rate_of("publish"), rate, 6, "messages a second that were published to it"),
        Column("OUT/S", _rate_of("deliver_get"), rate, 6, "messages a second that consumers got"),
        Column("ACK/S", _rate_of("ack"), rate, 6, "messages a second that were acknowledged"),
        Column("REDEL/S", _rate_of("redeliver"), rate, 7, "messages a second that were delivered again"),
        Column("CONS", "consumers", count, 5, "consumers"),
        Column("BUSY", "consumer_capacity", share, 6, "share of time in which a consumer could take one"),
        Column("BYTES", "message_bytes", octets, 6, "bytes of all message bodies, in memory or on disk"),
        Column("MEMORY", "memory", octets, 6, "estimate of the memory that it takes"),
        Column("HEALTH", "health.reason", _text, 25, "what is wrong with it; the line below the table says what to do",
               "text", ("health.advice", "health.state")),
        _STATE,
        Column("TYPE", "type", _text, 8, "classic or quorum", "text"),
        Column("POLICY", "policy", _text, 14, "policy that applies", "text"),
    ),
    ("READY", "UNACKED", "IN/S", "OUT/S", "ACK/S", "CONS", "HEALTH", "VHOST", "STATE", "MEMORY"),
    "READY",
    {
        "queue": "name", "wrong": "health.advice", "vhost": "vhost", "type": "type", "policy": "policy",
        "durable": lambda item: {None: "", True: "yes", False: "no"}[item.get("durable")],
        "read back": _read_back, "arguments": _arguments,
    },
    ("durable", "arguments", "disk_reads_per_delivered"),
)  # fmt: skip
CONNECTIONS = View(
    "Connections", "2", "connections",
    (
        Column("PEER", "name", _text, 21, "address of the client", "text", whole=_peer),
        Column("CLIENT", "user_provided_name", _text, 10, "name that the client gave, or its library", "name",
               ("client_properties.connection_name", "client_properties.product"), _client),
        _USER,
        _VHOST,
        Column("CHANS", "channels", count, 5, "channels"),
        Column("IN B/S", "recv_oct_details.rate", octets, 6, "bytes a second from the client"),
        Column("OUT B/S", "send_oct_details.rate", octets, 7, "bytes a second to the client"),
        Column("PENDING", "send_pend", count, 7, "frames that wait for the client to read"),
        _STATE,
    ),
    ("USER", "IN B/S", "OUT B/S", "STATE", "PEER", "CHANS", "VHOST"),
    "IN B/S",
    {"connection": "name", "since": _since, "name": "user_provided_name", "library": _library},
    ("connected_at", "client_properties.version"),
)  # fmt: skip
CHANNELS = View(
    "Channels", "3", "channels",
    (
        Column("CHANNEL", "name", _text, 10, "address of the client, and number", "name", ("number",), _peer),
        _USER,
        _VHOST,
        Column("UNACKED", "messages_unacknowledged", count, 7, "messages at its consumers, not acknowledged yet"),
        Column("UNCONF", "messages_unconfirmed", count, 6, "messages that were published and not confirmed yet"),
        Column("IN/S", _rate_of("publish"), rate, 6, "messages a second that it published"),
        Column("OUT/S", _rate_of("deliver_get"), rate, 6, "messages a second that it got"),
        Column("ACK/S", _rate_of("ack"), rate, 6, "messages a second that it acknowledged"),
        Column("CONS", "consumer_count", count, 5, "consumers"),
        Column("PREFETCH", "prefetch_count", count, 8, "prefetch count of new consumers; 0 is no limit"),
        Column("MODE", "confirm", _text, 7, "confirm or tx (transactions)", "text", ("transactional",),
               lambda item: "tx" if item.get("transactional") else "confirm" if item.get("confirm") else ""),
        _STATE,
    ),
    ("UNACKED", "IN/S", "OUT/S", "ACK/S", "UNCONF", "CONS", "USER", "STATE"),
    "UNACKED",
    {"channel": "name", "vhost": "vhost", "uncommitted": lambda item: item.get("messages_uncommitted") or None},
    ("messages_uncommitted",),
)  # fmt: skip
VIEWS = (QUEUES, CONNECTIONS, CHANNELS)


# -- the table: which columns have space, and the lines of the heading and of the items --------------------------------


NAME_LEAST = 14  # cells that the names keep for themselves on a narrow terminal
NAME_ENOUGH = 40  # cells of names above which further columns are worth more
NAME_STEP = 10  # wider names widen the column by this, so that it does not change with every item
DESCENDING, ASCENDING = "▼", "▲"
Widths = dict[str, int]  # title of a column of names or texts -> cells of the longest text so far


def widen(widths: Widths, view: View, items: Sequence[Item]) -> None:
    """Take the texts of these items into account; columns never become narrower."""
    for column in view.columns:
        if column.kind != "number":
            longest = max([cell_len(column.text(item)) for item in items], default=0)
            widths[column.title] = max(widths.get(column.title, 0), longest)


def layout(view: View, widths: Mapping[str, int], total: int) -> list[tuple[Column, int]]:
    """Return the columns that have space on a terminal of `total` cells, in their order, each with its cells."""

    def needed(column: Column) -> int:
        if column.kind == "text":
            return max(len(column.title), min(column.width, widths.get(column.title, 0)))
        return max(len(column.title), column.width)

    name = next(each for each in view.columns if each.kind == "name")
    longest = widths.get(name.title, 0)
    enough = min(NAME_ENOUGH, max(NAME_LEAST, longest))
    chosen = {name.title}
    left = total
    kept = [view.column(title) for title in view.first if widths.get(title) != 0]
    others = [each for each in view.columns if each not in {name, *kept} and widths.get(each.title) != 0]
    for column in [*kept, *others]:
        if left - needed(column) - 1 >= (NAME_LEAST if column in kept else enough):
            chosen.add(column.title)
            left -= needed(column) + 1
        elif column in kept:
            break
    wanted = max(NAME_ENOUGH, -(-longest // NAME_STEP) * NAME_STEP)
    return [
        (column, max(1, min(left, wanted)) if column is name else needed(column))
        for column in view.columns
        if column.title in chosen
    ]


def heading(columns: Sequence[tuple[Column, int]], sort: Column, *, is_descending: bool) -> Line:
    """Return the line of titles; that of the sorted column stands out, with an arrow behind it."""
    arrow = DESCENDING if is_descending else ASCENDING
    line: Line = []
    gap = ""
    for column, cells in columns:
        is_left = column.kind != "number"
        title = fit(column.title, cells, is_left=is_left)
        if column is not sort:
            line += [(gap, "heading"), (title, "heading")]
        elif cell_len(column.title) < cells:
            line += [(gap, "heading"), (fit(f"{column.title}{arrow}", cells, is_left=is_left), "sorted")]
        else:
            line += [(gap, "heading"), (title, "sorted")]
            gap = arrow
            continue
        gap = " "
    return line


def row(columns: Sequence[tuple[Column, int]], item: Item, *, style: str = "") -> Line:
    """Return the line of an item."""
    cells = [fit(column.text(item), width, is_left=column.kind != "number") for column, width in columns]
    if style:
        return [(" ".join(cells), style)]
    line: Line = []
    health = {"critical": "alarm", "warning": "warning"}.get(at(item, "health.state"), "dim")
    for place, ((column, _width), text) in enumerate(zip(columns, cells, strict=True)):
        style = health if column.title == "HEALTH" else _style(column, text.strip())
        line.append((" " * bool(place) + text, style))
    return line


def _style(column: Column, text: str) -> str:
    """Return the style of a cell: zero is dim, a state that slows a client down stands out."""
    if column.title == "STATE":
        return {"flow": "warning", "blocked": "alarm", "blocking": "warning"}.get(text, "dim")
    return "dim" if column.kind == "number" and text in {"0", "-", "0 %"} else ""


# -- keys and the help -------------------------------------------------------------------------------------------------


KEYS = (  # the keys of the last line, the most important of them
    ("q", "quit"),
    ("?", "help"),
    ("1 2 3", "list"),
    ("/", "filter"),
    ("← →", "sort by"),
    ("r", "reverse"),
    ("p", "pause"),
)
TYPING_KEYS = (("enter", "keep this filter"), ("esc", "show all"))  # those shown while a filter is typed
_ALL = (
    ("1 2 3  tab", "queues, connections, channels"),
    ("/", "type a part of the name; enter keeps it, esc shows all"),
    ("← →  < >", "sort by the column to the left, to the right"),
    ("r", "reverse the order"),
    ("↑ ↓  home end", "choose an item; the line below the table has its details"),
    ("page up, down", "turn the page"),
    ("p  space", "pause, and go on"),
    ("q  ctrl-c", "quit"),
    ("ctrl-z", "leave it for the shell, where `fg` comes back to it"),
)
_KEY_CELLS = 15


def key_line(keys: Sequence[tuple[str, str]]) -> Line:
    """Return a line of keys and what they do."""
    return [span for key, text in keys for span in ((f"{key} ", "key"), (f"{text}  ", "label"))]


def help_lines(view: View) -> list[Line]:
    """Return the help, with the columns of this list."""
    lines: list[Line] = [[(f"{key:<{_KEY_CELLS}}", "key"), (text, "")] for key, text in _ALL]
    lines += [[], [(f"Columns of {view.title.lower()} (a narrow terminal has not all)", "heading")]]
    lines += [[(f"{column.title:<{_KEY_CELLS}}", "key"), (column.meaning, "")] for column in view.columns]
    lines += [[], [("Rates are those of the broker's last sample (5 s).", "label")]]
    lines += [[("k, M, G are thousands of messages; of bytes units of 1024.", "label")]]
    return lines
