"""The lists that can be shown, and their columns: what is asked for, what it is sorted by, and how it reads."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from leveret.broker.cli.top.cells import count, octets, rate, safe, share

Item = Mapping[str, Any]
Kind = Literal["name", "text", "number"]


class Column(NamedTuple):
    """A column.

    Attributes:
        title: heading; at most `width` long.
        path: key of the items, with dots, which the API sorts by and which `show` gets the value of.
        show: makes the text of a value.
        width: cells.
        meaning: for the help.
        kind: a name takes the cells that are left over; a text is left-aligned, and as wide as the page needs, at most
            `width`; a number is right-aligned.
        needs: further keys to ask for.
        whole: makes the text of a whole item instead of `show`.

    """

    title: str
    path: str
    show: Callable[[Any], str]
    width: int
    meaning: str
    kind: Kind = "number"
    needs: tuple[str, ...] = ()
    whole: Callable[[Item], str] | None = None

    def text(self, item: Item) -> str:
        """Return the text of an item."""
        return self.whole(item) if self.whole is not None else self.show(at(item, self.path))


class View(NamedTuple):
    """A list.

    Attributes:
        title: heading.
        key: key that chooses it.
        resource: path of the API.
        total: key of the number of all in `object_totals`.
        columns: in their order; the first is the name.
        first: titles of those that a narrow terminal shows, the most important first; the others are shown where the
            names have enough space.
        sort: title of the column that it is sorted by at first.
        details: makes the line about the chosen item.
        needs: further keys that `details` needs.

    """

    title: str
    key: str
    resource: str
    total: str
    columns: tuple[Column, ...]
    first: tuple[str, ...]
    sort: str
    details: Callable[[Item], list[tuple[str, str]]]
    needs: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """The keys to ask for, as the parameter `columns`."""
        paths = [path for column in self.columns for path in (column.path, *column.needs)]
        return ",".join(dict.fromkeys([*paths, *self.needs]))

    def column(self, title: str) -> Column:
        """Return the column of this title."""
        return next(each for each in self.columns if each.title == title)


def at(item: Any, path: str) -> Any:
    """Return the value at a path of keys with dots; None if it is not there."""
    for key in path.split("."):
        item = item.get(key) if isinstance(item, Mapping) else None
    return item


def _text(value: Any) -> str:
    return "" if value is None else safe(str(value))


def _rate_of(name: str) -> str:
    return f"message_stats.{name}_details.rate"


def _percent(value: Any) -> str:
    return share(value, 1)


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


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _mode(item: Item) -> str:
    return "tx" if item.get("transactional") else "confirm" if item.get("confirm") else ""


def _reads(per_delivered: Any) -> str:
    return f"{per_delivered:.2f} per delivery" if per_delivered else ""


def _queue_details(item: Item) -> list[tuple[str, str]]:
    arguments = item.get("arguments") or {}
    return [
        ("queue", _text(item.get("name"))),
        ("vhost", _text(item.get("vhost"))),
        ("type", _text(item.get("type"))),
        ("policy", _text(item.get("policy"))),
        ("durable", "" if item.get("durable") is None else "yes" if item["durable"] else "no"),
        ("read back", _reads(item.get("disk_reads_per_delivered"))),
        ("arguments", ", ".join([f"{safe(name)}={_text(value)}" for name, value in arguments.items()])),
    ]


def _connection_details(item: Item) -> list[tuple[str, str]]:
    properties = item.get("client_properties") or {}
    product = f"{_text(properties.get('product'))} {_text(properties.get('version'))}".strip()
    since = item.get("connected_at")
    return [
        ("connection", _text(item.get("name"))),
        ("since", _moment(since) if since else ""),
        ("name", _text(item.get("user_provided_name"))),
        ("library", product),
    ]


def _channel_details(item: Item) -> list[tuple[str, str]]:
    return [
        ("channel", _text(item.get("name"))),
        ("vhost", _text(item.get("vhost"))),
        ("uncommitted", count(item.get("messages_uncommitted") or None).strip("-")),
    ]


_VHOST = Column("VHOST", "vhost", _text, 14, "virtual host", "text")
_USER = Column("USER", "user", _text, 12, "user", "text")
_STATE = Column(
    "STATE", "state", _text, 8, "running, idle, paused, flow (publishers are slowed down), blocked", "text"
)

QUEUES = View(
    "Queues",
    "1",
    "queues",
    "queues",
    (
        Column("NAME", "name", _text, 10, "queue", "name"),
        _VHOST,
        Column("READY", "messages_ready", count, 6, "messages that wait for a consumer"),
        Column("UNACKED", "messages_unacknowledged", count, 7, "messages at consumers, not acknowledged yet"),
        Column("IN/S", _rate_of("publish"), rate, 6, "messages a second that were published to it"),
        Column("OUT/S", _rate_of("deliver_get"), rate, 6, "messages a second that consumers got"),
        Column("ACK/S", _rate_of("ack"), rate, 6, "messages a second that were acknowledged"),
        Column("REDEL/S", _rate_of("redeliver"), rate, 7, "messages a second that were delivered again"),
        Column("CONS", "consumers", count, 5, "consumers"),
        Column("BUSY", "consumer_capacity", _percent, 6, "share of time in which a consumer could take one"),
        Column("BYTES", "message_bytes", octets, 6, "bytes of all message bodies, in memory or on disk"),
        Column("MEMORY", "memory", octets, 6, "estimate of the memory that it takes"),
        _STATE,
        Column("TYPE", "type", _text, 8, "classic or quorum", "text"),
        Column("POLICY", "policy", _text, 14, "policy that applies", "text"),
    ),
    ("READY", "UNACKED", "IN/S", "OUT/S", "ACK/S", "CONS", "VHOST", "STATE", "MEMORY"),
    "READY",
    _queue_details,
    ("durable", "arguments", "disk_reads_per_delivered"),
)
CONNECTIONS = View(
    "Connections",
    "2",
    "connections",
    "connections",
    (
        Column("PEER", "name", _text, 21, "address of the client", "text", whole=_peer),
        Column(
            "CLIENT",
            "user_provided_name",
            _text,
            10,
            "name that the client gave, or its library",
            "name",
            ("client_properties.connection_name", "client_properties.product"),
            _client,
        ),
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
    _connection_details,
    ("connected_at", "client_properties.version"),
)
CHANNELS = View(
    "Channels",
    "3",
    "channels",
    "channels",
    (
        Column("CHANNEL", "name", _text, 10, "address of the client, and number", "name", ("number",), _peer),
        _USER,
        _VHOST,
        Column(
            "UNACKED", "messages_unacknowledged", count, 7, "messages at its consumers, not acknowledged yet"
        ),
        Column(
            "UNCONF", "messages_unconfirmed", count, 6, "messages that were published and not confirmed yet"
        ),
        Column("IN/S", _rate_of("publish"), rate, 6, "messages a second that it published"),
        Column("OUT/S", _rate_of("deliver_get"), rate, 6, "messages a second that it got"),
        Column("ACK/S", _rate_of("ack"), rate, 6, "messages a second that it acknowledged"),
        Column("CONS", "consumer_count", count, 5, "consumers"),
        Column("PREFETCH", "prefetch_count", count, 8, "prefetch count of new consumers; 0 is no limit"),
        Column(
            "MODE", "confirm", _text, 7, "confirm or tx (transactions)", "text", ("transactional",), _mode
        ),
        _STATE,
    ),
    ("UNACKED", "IN/S", "OUT/S", "ACK/S", "UNCONF", "CONS", "USER", "STATE"),
    "UNACKED",
    _channel_details,
    ("messages_uncommitted",),
)
VIEWS = (QUEUES, CONNECTIONS, CHANNELS)
