"""The time at which a message is released, from its headers.

`x-deliver-at` is a timestamp, or milliseconds since 1970 as an integer; `x-delay` is a number of milliseconds. A queue
may name one further header, as Celery's `eta`: ISO 8601 (without an offset it is UTC), seconds or milliseconds since
1970. Of several that a message has, the first in this order applies. A time that has passed means now, as does a header
without a value. Times have 63 bits: some 292 million years.
"""

import math
from datetime import UTC, datetime, timedelta

from leveret.broker.amqp.properties import headers_in
from leveret.broker.amqp.tables import INTEGERS, Field, Table, split_fields
from leveret.broker.errors import YEAR_10000
from leveret.exchanges.delayed import HEADER, delay_of, due_headers

DELIVER_AT, DELAY = "x-deliver-at", HEADER
NOTHING: Field = ("void", None)
_DELAY_FIELD = b"%c%b" % (len(DELAY), DELAY.encode())
_NUMBERS = INTEGERS | {"double", "float"}
LATEST = 2**63 - 1  # the latest time (epoch ms) of a held message
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = 100_000_000_000
"""Numbers from this on are milliseconds (since March 1973), lower ones are seconds (until the year 5138)."""


class InvalidDueTimeError(ValueError):
    """The value of a header is no time; the text names both."""

    def __init__(self, header: str, value: object, form: str) -> None:
        super().__init__(f"invalid header '{header}': {str(value)[:64]!r} is not {form}")


def due_time(headers: Table, now: int, *, named: str | None, own: bool) -> int:
    """Return the time (epoch ms) until which a message that comes `now` (epoch ms) is held; 0 for now.

    `named` is the name of the further header, None for none; `own`: `x-deliver-at` and `x-delay` are obeyed. Raises
    InvalidDueTimeError.
    """
    due = 0
    if own and has_value(field := headers.get(DELIVER_AT, NOTHING)):
        due = _deliver_at(field)
    elif own and has_value(field := headers.get(DELAY, NOTHING)):
        due = now + _delay(field)
    elif named is not None and has_value(field := headers.get(named, NOTHING)):
        due = _any_form(named, field)
    if due > LATEST:
        raise InvalidDueTimeError("x-delay" if own else str(named), due, "a time of 63 bits")
    return due if due > now else 0


def has_value(field: Field) -> bool:
    """Return whether a header has a value."""
    return field[0] != "void"


def with_time(headers: Table, to: int, *, named: str | None, own: bool) -> Table:
    """Return headers with another time (epoch ms), in the form of the one they have; other arguments as above.

    A consumer that reads the header itself, as Celery's worker does, would wait for the old time.
    """
    name = next(
        (name for name in (DELIVER_AT, DELAY) if own and has_value(headers.get(name, NOTHING))), named
    )
    kind, value = headers.get(name, NOTHING) if name is not None else NOTHING
    if name is None or name == DELAY or kind == "void":
        return headers
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


def encoded_headers(content: bytes) -> dict[bytes, bytes]:
    """Return the encoded values of the headers of a message, given as its frames, by their encoded names."""
    start, stop = headers_in(content)
    return split_fields(content, start, stop) if start < stop else {}


def with_passed_delay(content: bytes) -> bytes | None:
    """Return the frames of a message with its delay, an integer of 32 bits, negated, as by `without_delay`.

    None if it has no such header, or if that is not the only place that looks like it.
    """
    start, stop = headers_in(content)
    value = encoded_headers(content).get(DELAY.encode(), b"")
    if value[:1] != b"I" or content.count(_DELAY_FIELD, start, stop) != 1:
        return None
    at = content.index(_DELAY_FIELD, start) + len(_DELAY_FIELD)
    delay = int.from_bytes(value[1:], "big", signed=True)
    return content[: at + 1] + (-abs(delay)).to_bytes(4, "big", signed=True) + content[at + len(value) :]


def without_delay(headers: Table) -> Table:
    """Return the headers of a message whose time has come: with a delay negated, as the exchange that delays does."""
    return due_headers(headers) if delay_of(headers) else headers


def _deliver_at(field: Field) -> int:
    kind, value = field
    if kind == "timestamp":
        return int(value) * 1000
    if kind in INTEGERS:
        return int(value)
    raise InvalidDueTimeError(DELIVER_AT, value, "a timestamp, or milliseconds as an integer")


def _delay(field: Field) -> int:
    kind, value = field
    try:
        if kind in _NUMBERS:
            return int(value)
        if kind == "longstr" and value.lstrip("+-").isascii() and value.lstrip("+-").isdigit():
            return int(value)
    except (ValueError, OverflowError):  # not a number, infinite, or of thousands of digits
        pass
    raise InvalidDueTimeError(DELAY, value, "a number of milliseconds")


def _any_form(name: str, field: Field) -> int:
    kind, value = field
    try:
        if kind == "timestamp":
            return int(value) * 1000
        if kind in _NUMBERS:
            return _milliseconds(value)
        if kind == "longstr":
            return _milliseconds(float(value)) if _is_number(value) else _iso(value)
    except (ValueError, OverflowError):
        pass
    raise InvalidDueTimeError(name, value, "a time (ISO 8601, or seconds or milliseconds since 1970)")


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
