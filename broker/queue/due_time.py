"""The time at which a message is released, from its headers.

`x-deliver-at` is a timestamp, or milliseconds since 1970 as an integer; `x-delay` is a number of milliseconds. A queue
may name one further header, as Celery's `eta`: ISO 8601 (without an offset it is UTC), seconds or milliseconds since
1970. Of several that a message has, the first in this order applies. A time that has passed means now, as does a header
without a value. Times have 63 bits: some 292 million years.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from leveret.broker.amqp.properties import FLAGS_IN_FRAME, Properties, headers_in
from leveret.broker.amqp.tables import INTEGERS, Field, Table, decode_value, find_field
from leveret.broker.time_text import YEAR_10000
from leveret.exchanges.delayed import HEADER, delay_of, due_headers, milliseconds
from leveret.storage.message import Message

DELIVER_AT, DELAY = "x-deliver-at", HEADER
Sources = dict[str, tuple[bytes, Callable[[Field, int], int], str]]
"""Names of headers; for each its octets in a table, what makes a time (epoch ms) of its field and now, and its form."""
LATEST = 2**63 - 1  # the latest time (epoch ms) of a held message
_VOID = ord("V")
_WIDTHS = {ord("I"): 5, ord("l"): 9}  # octets of the usual integers, with their tags
_NOTHING: Field = ("void", None)
_NUMBERS = INTEGERS | {"double", "float"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = 100_000_000_000
"""Numbers from this on are milliseconds (since March 1973), lower ones are seconds (until the year 5138)."""


class InvalidDueTimeError(ValueError):
    """The value of a header is no time; the text names both."""

    def __init__(self, header: str, value: object, form: str) -> None:
        super().__init__(f"invalid header '{header}': {str(value)[:64]!r} is not {form}")


def due_times(messages: Iterable[Message], now: int, sources: Sources) -> Iterator[int]:
    """Yield the times (epoch ms) until which messages that come `now` (epoch ms) are held; 0 for now.

    Raises InvalidDueTimeError.
    """
    name, at, alike = "", 0, b""
    for message in messages:
        content = message.content
        if not (alike and content.startswith(alike, FLAGS_IN_FRAME)):
            name, at, alike = _place(content, sources)
        if not name:
            yield 0
            continue
        _, parse, form = sources[name]
        field = decode_value(content, at)
        try:
            due = parse(field, now)
        except (ValueError, OverflowError):  # not a number, infinite, or of thousands of digits
            raise InvalidDueTimeError(name, field[1], form) from None
        if due > LATEST:
            raise InvalidDueTimeError(name, field[1], "a time of 63 bits")
        yield due if due > now else 0


def _place(content: bytes, sources: Sources) -> tuple[str, int, bytes]:
    """Return the name of the header that tells a time, where its value is, and what tells the same of others.

    Those that are alike from their flags to its tag have it there if it is an integer at the end of the table.
    """
    start, stop = headers_in(content)
    for name, (octets, _, _) in sources.items() if start < stop else ():
        at = content.find(octets, start + 4, stop)
        if at > start + 4:  # it may be in the value of another header
            at = find_field(content, start, stop, octets)
        if at < 0 or content[at + len(octets)] == _VOID:
            continue
        at += len(octets)
        is_last = content[at] in _WIDTHS and at + _WIDTHS[content[at]] == stop
        return name, at, content[FLAGS_IN_FRAME : at + 1] if is_last else b""
    return "", 0, b""


def _telling(headers: Table, sources: Sources) -> str | None:
    """Return the name of the header that tells the time: the first that has a value."""
    return next((name for name in sources if headers.get(name, _NOTHING)[0] != "void"), None)


def with_time(headers: Table, to: int, sources: Sources) -> Table:
    """Return headers with another time (epoch ms), in the form of the one they have.

    A consumer that reads the header itself, as Celery's worker does, would wait for the old time.
    """
    name = _telling(headers, sources)
    if name is None or name == DELAY:
        return headers
    kind, value = headers[name]
    if kind == "timestamp" or (kind == "longstr" and _is_number(value) and float(value) < _MILLISECONDS):
        told: object = to // 1000 if kind == "timestamp" else str(to / 1000)
    elif kind == "longstr":
        has_year = not _is_number(value) and to < YEAR_10000
        told = datetime.fromtimestamp(to / 1000, UTC).isoformat() if has_year else str(to)
    elif kind not in _NUMBERS:  # another header had the time, before the settings changed
        return headers
    else:
        kind, told = "long", to if name == DELIVER_AT or value >= _MILLISECONDS else to // 1000
    return headers | {name: (kind, told)}


def with_passed_delay(message: Message) -> Message:
    """Return a message whose time has come: with a delay negated, as the exchange that delays does."""
    content = message.content
    name, at, _ = _place(content, {DELAY: _OWN[DELAY]})
    if not name:
        return message
    kind, value = decode_value(content, at)
    if kind == "signedint":  # several times faster
        told = content[: at + 1] + (-abs(value)).to_bytes(4, "big", signed=True) + content[at + 5 :]
        return Message(message.address, told, message.channel_id)
    properties = Properties(message.header)
    headers = properties.headers
    if headers is None or not delay_of(headers):
        return message
    return message.with_header(properties.replace(headers=due_headers(headers)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()


def _milliseconds(number: float) -> int:
    """Return the first millisecond that is not before a time: nothing is released early."""
    return math.ceil(number if number >= _MILLISECONDS else round(number * 1000, 2))  # a product is not exact


def _iso(text: str) -> int:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0, -((_EPOCH - time) // timedelta(milliseconds=1)))


def _deliver_at(field: Field, _now: int) -> int:
    kind, value = field
    if kind not in INTEGERS | {"timestamp"}:
        raise ValueError
    return int(value) * (1000 if kind == "timestamp" else 1)


def _any_form(field: Field, now: int) -> int:
    kind, value = field
    if kind == "longstr":
        return _milliseconds(float(value)) if _is_number(value) else _iso(value)
    return _milliseconds(value) if kind in _NUMBERS else _deliver_at(field, now)


def _field(name: str) -> bytes:
    octets = name.encode("utf-8", "surrogateescape")
    return bytes((len(octets),)) + octets if len(octets) < 256 else b"\0\0"  # noqa: PLR2004 - as no field begins


_OWN: Sources = {
    DELIVER_AT: (_field(DELIVER_AT), _deliver_at, "a timestamp, or milliseconds as an integer"),
    DELAY: (_field(DELAY), lambda field, now: now + milliseconds(field), "a number of milliseconds"),
}


def sources_of(named: str | None, *, own: bool) -> Sources:
    """Return the headers that tell a time, the first of which applies.

    `named` is the name of the further header, None for none; `own`: `x-deliver-at` and `x-delay` are obeyed.
    """
    form = "a time (ISO 8601, or seconds or milliseconds since 1970)"
    further: Sources = {} if named is None else {named: (_field(named), _any_form, form)}
    return _OWN | further | _OWN if own else further
