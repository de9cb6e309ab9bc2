"""Lazy access to the property list of a content header: only the requested properties are decoded.

The payload of a content header frame is class (2 octets), weight (2), body size (8), flag words (2 each) and
the list of the properties whose flags are set (spec 4.2.6.1, amqp0-9-1 class 60). A broker stores and
forwards it unchanged; these functions read it in place.

Class 60 needs one flag word. Bit 0 of a word announces another one: up to `MAX_FLAG_WORDS` in all are
accepted, but the others must not set a flag. (RabbitMQ ignores bit 0, and then fails on the second word.)

Hot path: see docs/performance.md.
"""
# ruff: noqa: PLR2004 - offsets and constants of the format are explained next to them

import functools
import struct
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from leveret.broker.amqp.errors import (
    HeadersTooLarge,
    InvalidExpiration,
    MalformedProperties,
    MalformedTable,
    TableTooLarge,
)
from leveret.broker.amqp.tables import (
    MAX_ENTRIES,
    Table,
    decode_table,
    encode_table,
    join_fields,
    plain_end,
    split_fields,
    string_text,
)

FLAG_CONTENT_TYPE = 0x8000
FLAG_CONTENT_ENCODING = 0x4000
FLAG_HEADERS = 0x2000
FLAG_DELIVERY_MODE = 0x1000
FLAG_PRIORITY = 0x0800
FLAG_CORRELATION_ID = 0x0400
FLAG_REPLY_TO = 0x0200
FLAG_EXPIRATION = 0x0100
FLAG_MESSAGE_ID = 0x0080
FLAG_TIMESTAMP = 0x0040
FLAG_TYPE = 0x0020
FLAG_USER_ID = 0x0010
FLAG_APP_ID = 0x0008
FLAG_CLUSTER_ID = 0x0004
FLAG_CONTINUATION = 0x0001

FLAGS_AT = 12  # offset of the flags in the payload

LIST_AT = 14  # offset of the property list in the payload, unless more flag words follow

MAX_FLAG_WORDS = 4

MAX_EXPIRATION = 315_360_000_000  # ten years in milliseconds: RabbitMQ's limit for expirations and TTLs

OWN_HEADERS = frozenset((
    "x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange", "x-last-death-reason",
    "x-last-death-queue", "x-last-death-exchange", "x-delivery-count", "x-leveret-retries", "x-leveret-replayed",
    "x-shovelled", "x-shovelled-timestamp", "x-invalid-headers", "x-stream-offset",
))  # fmt: skip
"""Headers that the broker adds to messages. They do not count among the values that a publisher may send."""

_FRAME_HEAD = 7
FLAGS_IN_FRAME = _FRAME_HEAD + FLAGS_AT
_LIST_IN_FRAME = _FRAME_HEAD + LIST_AT
# Bits of the first octet of the flags.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = (
    FLAG_CONTENT_TYPE >> 8,
    FLAG_CONTENT_ENCODING >> 8,
    FLAG_HEADERS >> 8,
)
_CORRELATION_ID, _REPLY_TO = FLAG_CORRELATION_ID >> 8, FLAG_REPLY_TO >> 8
_DELIVERY_MODE, _PRIORITY, _EXPIRATION = FLAG_DELIVERY_MODE >> 8, FLAG_PRIORITY >> 8, FLAG_EXPIRATION >> 8
_FIXED = struct.Struct(">HHQ")
_U32 = struct.Struct(">I")
PERSISTENT_MODE = 2
_SHORTSTR, _TABLE, _OCTET, _TIMESTAMP = range(4)
_MODE, _HEADER_FIELDS, _REPLY_ADDRESS, _EXPIRES = -1, -2, -3, -4  # steps of `list_end`
_PLAIN_DIGITS, _ZERO = 9, ord("0")  # an expiration of so many digits is not too large
REPLY_TO = "amq.rabbitmq.reply-to"
_DIRECT_REPLY = b"%c%b" % (len(REPLY_TO), REPLY_TO.encode())

# In wire order. `type` is pamqp's `message_type`.
_LAYOUT: tuple[tuple[int, str, int], ...] = (
    (FLAG_CONTENT_TYPE, "content_type", _SHORTSTR),
    (FLAG_CONTENT_ENCODING, "content_encoding", _SHORTSTR),
    (FLAG_HEADERS, "headers", _TABLE),
    (FLAG_DELIVERY_MODE, "delivery_mode", _OCTET),
    (FLAG_PRIORITY, "priority", _OCTET),
    (FLAG_CORRELATION_ID, "correlation_id", _SHORTSTR),
    (FLAG_REPLY_TO, "reply_to", _SHORTSTR),
    (FLAG_EXPIRATION, "expiration", _SHORTSTR),
    (FLAG_MESSAGE_ID, "message_id", _SHORTSTR),
    (FLAG_TIMESTAMP, "timestamp", _TIMESTAMP),
    (FLAG_TYPE, "type", _SHORTSTR),
    (FLAG_USER_ID, "user_id", _SHORTSTR),
    (FLAG_APP_ID, "app_id", _SHORTSTR),
    (FLAG_CLUSTER_ID, "cluster_id", _SHORTSTR),
)
_NAMES = {name: (flag, kind) for flag, name, kind in _LAYOUT}
PROPERTIES: dict[str, type] = {name: (str, dict, int, int)[kind] for _flag, name, kind in _LAYOUT}
"""The names of all properties in wire order, with the types of their values."""


def flags(payload: bytes) -> int:
    """Return the first flag word, which says which properties are present; raises MalformedProperties."""
    if len(payload) < LIST_AT:
        raise MalformedProperties(f"content header of {len(payload)} octets")
    return payload[12] << 8 | payload[13]


def _list_at(payload: bytes, word: int) -> int:
    """Return the offset of the property list; `word` is the first flag word."""
    at = LIST_AT
    while word & FLAG_CONTINUATION:
        if at + 2 > len(payload) or at == FLAGS_AT + 2 * MAX_FLAG_WORDS:
            raise MalformedProperties("property flags without an end")
        word = payload[at] << 8 | payload[at + 1]
        if word & ~FLAG_CONTINUATION:
            raise MalformedProperties("unknown property flag")
        at += 2
    return at


def _stop(payload: bytes, at: int, end: int, kind: int) -> int:
    stop = end + 1
    if kind == _SHORTSTR:
        if at < end:
            stop = at + 1 + payload[at]
    elif kind == _OCTET:
        stop = at + 1
    elif kind == _TIMESTAMP:
        stop = at + 8
    elif at + 4 <= end:
        stop = at + 4 + int.from_bytes(payload[at : at + 4], "big")
    if stop > end:
        raise MalformedProperties("truncated property")
    return stop


def headers_in(content: bytes) -> tuple[int, int]:
    """Return the start and end of the header fields, with their length, of a message given as the frames received.

    They are equal if it has none. `checked` must have accepted its properties.
    """
    present = content[FLAGS_IN_FRAME]
    at = _LIST_IN_FRAME
    if content[FLAGS_IN_FRAME + 1] & FLAG_CONTINUATION:
        at = _FRAME_HEAD + _list_at(content[_FRAME_HEAD:], flags(content[_FRAME_HEAD:]))
    if present & _CONTENT_TYPE:
        at += 1 + content[at]
    if present & _CONTENT_ENCODING:
        at += 1 + content[at]
    return at, at + 4 + int.from_bytes(content[at : at + 4], "big") if present & _HEADERS else at


def is_persistent(content: bytes) -> bool:
    """Return whether a message given as the frames received is persistent, without a `Properties` for it.

    `checked` must have accepted its properties.
    """
    return has_delivery_mode(content) and content[headers_in(content)[1]] == PERSISTENT_MODE


def priority(content: bytes, default: int = 0) -> int:
    """Return the priority, 0 to 255, of a message given as the frames received; the default if it has none.

    Called for each message of a priority queue. The caller must have checked the property list with `checked`.
    """
    present = content[FLAGS_IN_FRAME]
    if not present & _PRIORITY:
        return default
    at = _LIST_IN_FRAME  # the walk of `headers_in` inline: 0.35 us, and 0.57 if this calls it
    if content[FLAGS_IN_FRAME + 1] & FLAG_CONTINUATION:
        at = _FRAME_HEAD + _list_at(content[_FRAME_HEAD:], flags(content[_FRAME_HEAD:]))
    if present & _CONTENT_TYPE:
        at += 1 + content[at]
    if present & _CONTENT_ENCODING:
        at += 1 + content[at]
    if present & _HEADERS:
        at += 4 + int.from_bytes(content[at : at + 4], "big")
    if present & _DELIVERY_MODE:
        at += 1
    return content[at]


def may_expire(content: bytes) -> bool:
    """Return whether a message, given as its frames, has an expiration. `checked` must have accepted its properties."""
    return bool(content[FLAGS_IN_FRAME] & _EXPIRATION)


def any_may_expire(contents: Collection[bytes]) -> bool:
    """Return whether any of some messages has an expiration: `may_expire` for many, in a third of the time."""
    return any([content[FLAGS_IN_FRAME] & _EXPIRATION for content in contents])  # noqa: C419


def expiration(content: bytes) -> bytes:
    """Return the expiration of a message that has one, given as its frames, without a `Properties` for it.

    `checked` must have accepted its properties.
    """
    present = content[FLAGS_IN_FRAME]
    at = headers_in(content)[1]
    if present & _DELIVERY_MODE:
        at += 1
    if present & _PRIORITY:
        at += 1
    if present & _CORRELATION_ID:
        at += 1 + content[at]
    if present & _REPLY_TO:
        at += 1 + content[at]
    return content[at + 1 : at + 1 + content[at]]


def has_delivery_mode(content: bytes) -> bool:
    """Return whether a message, given as its frames, has a delivery mode; without one it is transient."""
    return bool(content[FLAGS_IN_FRAME] & _DELIVERY_MODE)


def message_ids(contents: Iterable[bytes]) -> list[bytes]:  # noqa: C901, PLR0912 - hot: one flat loop
    """Return the `message_id` of each message given as the frames received; empty if it has none.

    The caller must have checked the property lists.
    """
    found = []
    for content in contents:
        # the walk of `priority` inline: 0.47 us each, and 0.55 if both call one function
        present = content[FLAGS_IN_FRAME]
        rest = content[FLAGS_IN_FRAME + 1]
        if present == _DELIVERY_MODE and rest == FLAG_MESSAGE_ID:  # as most: half the time
            found.append(content[_LIST_IN_FRAME + 2 : _LIST_IN_FRAME + 2 + content[_LIST_IN_FRAME + 1]])
            continue
        if not rest & FLAG_MESSAGE_ID:
            found.append(b"")
            continue
        at = _LIST_IN_FRAME
        if rest & FLAG_CONTINUATION:
            at = _FRAME_HEAD + _list_at(content[_FRAME_HEAD:], flags(content[_FRAME_HEAD:]))
        if present & (_CONTENT_TYPE | _CONTENT_ENCODING | _HEADERS):
            if present & _CONTENT_TYPE:
                at += 1 + content[at]
            if present & _CONTENT_ENCODING:
                at += 1 + content[at]
            if present & _HEADERS:
                at += 4 + int.from_bytes(content[at : at + 4], "big")
        if present & _DELIVERY_MODE:
            at += 1
        if present & _PRIORITY:
            at += 1
        if present & (_CORRELATION_ID | _REPLY_TO | _EXPIRATION):
            for flag in (_CORRELATION_ID, _REPLY_TO, _EXPIRATION):
                if present & flag:
                    at += 1 + content[at]
        found.append(content[at + 1 : at + 1 + content[at]])
    return found


def checked(payload: bytes) -> "Properties":
    """Validate the whole property list, headers included, and return it.

    Raises as `Properties` and its `headers` do, if no consumer could decode it.
    """
    properties = Properties(payload)
    _ = properties.headers  # decoding validates them
    return properties


@functools.lru_cache(maxsize=256)
def _declared(word: int) -> tuple[tuple[int, int], ...]:
    """Return the flags and types of the properties that a flag word declares, in order."""
    return tuple((flag, kind) for flag, _name, kind in _LAYOUT if word & flag)


def list_end(data: bytes, at: int, word: int) -> tuple[int, int]:  # noqa: C901 - hot: one flat loop
    """Return the end of a property list, by the lengths in it, and its delivery mode (0: none).

    It is -1 if a decoder has to judge the headers (`broker.amqp.tables.plain_end`) or an expiration (one that is not a
    number of few digits without a sign or zeros before it), or if a direct reply is wanted. The list begins at `at`,
    after its only flag word; `data` may end anywhere, even before the list does.
    """
    mode = 0
    try:
        for step in _steps(word):
            if not step:
                at += 1 + data[at]
            elif step > 0:
                at += step
            elif step == _MODE:
                mode = data[at]
                at += 1
            elif step == _HEADER_FIELDS:
                at = plain_end(data, at)
                if at < 0:
                    break
            elif step == _EXPIRES:
                end = at + 1 + data[at]
                digits = data[at + 1 : end]
                if not digits.isdigit() or len(digits) > _PLAIN_DIGITS or digits[0] == _ZERO:
                    return -1, 0
                at = end
            else:
                if data.startswith(_DIRECT_REPLY, at):
                    return -1, 0
                at += 1 + data[at]
    except IndexError:
        return -1, 0
    return at, mode


@functools.lru_cache(maxsize=256)
def _steps(word: int) -> tuple[int, ...]:
    """Return what each property takes: bytes, 0 for a short string, or one of those that `list_end` looks at."""
    size = {_SHORTSTR: 0, _OCTET: 1, _TIMESTAMP: 8, _TABLE: _HEADER_FIELDS}
    special = {FLAG_DELIVERY_MODE: _MODE, FLAG_REPLY_TO: _REPLY_ADDRESS, FLAG_EXPIRATION: _EXPIRES}
    return tuple(special.get(flag, size[kind]) for flag, kind in _declared(word))


def _headers(payload: bytes, at: int, stop: int, max_entries: int = MAX_ENTRIES) -> Table:
    try:
        try:
            return decode_table(payload, at, stop, max_entries=max_entries)[0]
        except TableTooLarge:
            # what the broker delivers with fields of its own can be published again
            return decode_table(payload, at, stop, max_entries=max_entries, apart=OWN_HEADERS)[0]
    except TableTooLarge as error:
        raise HeadersTooLarge(f"headers: {error}") from error
    except MalformedTable as error:
        raise MalformedProperties(f"headers: {error}") from error


class LongHeader(NamedTuple):
    """The header frame of a content with a header that is a number of 64 bits: what is before and after its octets."""

    before: bytes
    after: bytes


def with_long(frame: bytes, name: bytes) -> LongHeader:
    """Return the frame of a valid content header with such a header, in place of one of the same name."""
    word = frame[FLAGS_IN_FRAME] << 8 | frame[FLAGS_IN_FRAME + 1]
    # messages whose headers differ come here one by one: what follows takes 1.6 us, and the general way 8.2 us
    if word & FLAG_CONTINUATION or name in frame:
        return _with_long(frame, name)
    at = _LIST_IN_FRAME
    if word & FLAG_CONTENT_TYPE:
        at += 1 + frame[at]
    if word & FLAG_CONTENT_ENCODING:
        at += 1 + frame[at]
    start, octets = at, 0
    if word & FLAG_HEADERS:
        (octets,) = _U32.unpack_from(frame, at)
        start += 4
    end = start + octets
    field = b"%c%bl" % (len(name), name)
    added = len(field) + 8
    before = b"".join((
        frame[:3],
        _U32.pack(len(frame) - _FRAME_HEAD - 1 + added + 4 * (start == at)),
        frame[_FRAME_HEAD:FLAGS_IN_FRAME],
        (word | FLAG_HEADERS).to_bytes(2, "big"),
        frame[_LIST_IN_FRAME:at],
        _U32.pack(octets + added),
        frame[start:end],
        field,
    ))  # fmt: skip
    return LongHeader(before, frame[end:])


def with_offset(frame: bytes) -> LongHeader:
    """Return the frame of a valid content header with the offset of a message of a stream."""
    return with_long(frame, b"x-stream-offset")


def _with_long(frame: bytes, name: bytes) -> LongHeader:
    properties = Properties(frame[_FRAME_HEAD:-1])
    fields = properties.split_headers()
    fields.pop(name, None)
    fields[name] = b"l" + bytes(8)
    header = properties.replace(headers=join_fields(fields.items()))
    _, end = Properties(header).spans[FLAG_HEADERS]
    return LongHeader(frame[:3] + _U32.pack(len(header)) + header[: end - 8], header[end:] + frame[-1:])


def parse_expiration(text: str) -> int:
    """Parse an expiration in milliseconds (rabbit_basic:parse_expiration); InvalidExpiration has RabbitMQ's reason."""
    start = 1 if text[:1] in {"+", "-"} else 0
    stop = start
    while stop < len(text) and "0" <= text[stop] <= "9":
        stop += 1
    if stop == start:
        raise InvalidExpiration("no_integer")
    if stop < len(text):
        rest = text[stop:].encode("utf-8", "surrogateescape")
        shown = string_text(rest) or f"[{','.join(map(str, rest))}]"
        raise InvalidExpiration(f"{{leftover_string,{shown}}}")
    milliseconds = int(text)
    if milliseconds < 0:
        raise InvalidExpiration(f"{{value_negative,{milliseconds}}}")
    if milliseconds > MAX_EXPIRATION:
        raise InvalidExpiration(f"{{value_too_large,{milliseconds}}}")
    return milliseconds


def _text(flag: int) -> Any:
    def get(properties: "Properties") -> str | None:
        span = properties.spans.get(flag)
        return (
            None
            if span is None
            else properties.payload[span[0] + 1 : span[1]].decode("utf-8", "surrogateescape")
        )

    return property(get)


def _number(flag: int) -> Any:
    def get(properties: "Properties") -> int | None:
        span = properties.spans.get(flag)
        return None if span is None else int.from_bytes(properties.payload[span[0] : span[1]], "big")

    return property(get)


class Properties:
    """The properties of one content header, each decoded on access.

    Args:
        payload: the payload of the header frame, starting with the class. The constructor scans it once;
            headers are decoded on first access and cached, so they must not be modified.
        max_entries: maximum number of fields in the headers, nested ones included.

    Raises:
        MalformedProperties: in the constructor if the list does not match the flags, in `headers` if it is not a table.
        HeadersTooLarge: in `headers`, if they have more values than that without `OWN_HEADERS`, or too many levels.
    """

    __slots__ = ("_headers", "_max_entries", "payload", "spans")

    def __init__(self, payload: bytes, *, max_entries: int = MAX_ENTRIES) -> None:
        self.payload = payload
        self._max_entries = max_entries
        self._headers: Table | None = None
        word = flags(payload)
        at = _list_at(payload, word)
        end = len(payload)
        spans: dict[int, tuple[int, int]] = {}
        for flag, kind in _declared(word):
            stop = _stop(payload, at, end, kind)
            spans[flag] = at, stop
            at = stop
        if at != end:
            raise MalformedProperties("trailing bytes after the properties")
        self.spans = spans

    # each None if it is absent; `expiration` is a text (`parse_expiration`), `timestamp` by specification in seconds
    content_type: str | None = _text(FLAG_CONTENT_TYPE)
    content_encoding: str | None = _text(FLAG_CONTENT_ENCODING)
    delivery_mode: int | None = _number(FLAG_DELIVERY_MODE)
    priority: int | None = _number(FLAG_PRIORITY)
    correlation_id: str | None = _text(FLAG_CORRELATION_ID)
    reply_to: str | None = _text(FLAG_REPLY_TO)
    expiration: str | None = _text(FLAG_EXPIRATION)
    message_id: str | None = _text(FLAG_MESSAGE_ID)
    timestamp: int | None = _number(FLAG_TIMESTAMP)
    type: str | None = _text(FLAG_TYPE)
    user_id: str | None = _text(FLAG_USER_ID)
    app_id: str | None = _text(FLAG_APP_ID)
    cluster_id: str | None = _text(FLAG_CLUSTER_ID)

    @property
    def headers(self) -> Table | None:
        """The application's header fields."""
        if self._headers is None:
            span = self.spans.get(FLAG_HEADERS)
            if span is not None:
                self._headers = _headers(self.payload, *span, self._max_entries)
        return self._headers

    @property
    def body_size(self) -> int:
        """Size of the body in octets."""
        return int.from_bytes(self.payload[4:12], "big")

    def present(self) -> dict[str, object]:
        """Return the properties that are present, by name; headers as a typed table."""
        return {name: getattr(self, name) for flag, name, _kind in _LAYOUT if flag in self.spans}

    def split_headers(self) -> dict[bytes, bytes]:
        """Return the header fields undecoded (see `broker.amqp.tables.split_fields`); they must be valid."""
        span = self.spans.get(FLAG_HEADERS)
        return {} if span is None else split_fields(self.payload, *span)

    def with_reply_to(self, address: str) -> bytes:
        """Return a header payload with another address for replies than the one it has; faster than `replace`.

        Raises KeyError if it has none, ValueError for an address of more than 255 bytes.
        """
        start, stop = self.spans[FLAG_REPLY_TO]
        payload = self.payload
        return payload[:start] + _encode(address, _SHORTSTR) + payload[stop:]

    def replace(self, **changes: str | int | Table | bytes | None) -> bytes:
        """Return a header payload with some properties set or, if given as None, removed.

        Everything else stays octet for octet, the body size too. Headers may be given as an encoded table. Raises
        TypeError for an unknown property, ValueError for a value that does not fit.
        """
        encoded: dict[int, bytes | None] = {}
        for name, value in changes.items():
            if name not in _NAMES:
                raise TypeError(f"no property '{name}'")
            flag, kind = _NAMES[name]
            try:
                encoded[flag] = None if value is None else _encode(value, kind)
            except AttributeError:
                raise TypeError(f"'{name}' cannot have the type {type(value).__name__}") from None
        word = 0
        parts = [self.payload[:FLAGS_AT], b""]
        for flag, _name, _kind in _LAYOUT:
            if flag in encoded:
                octets = encoded[flag]
            else:
                span = self.spans.get(flag)
                octets = None if span is None else self.payload[span[0] : span[1]]
            if octets is not None:
                word |= flag
                parts.append(octets)
        parts[1] = word.to_bytes(2, "big")
        return b"".join(parts)


def build(body_size: int, **values: str | int | Table | None) -> bytes:
    """Build a header payload of class 60 from scratch, for messages of the broker itself; raises as `replace`."""
    return Properties(_FIXED.pack(60, 0, body_size) + b"\x00\x00").replace(**values)


def _encode(value: Any, kind: int) -> bytes:
    if kind == _SHORTSTR:
        octets: bytes = value.encode("utf-8", "surrogateescape")
        if len(octets) > 255:
            raise ValueError(f"property of {len(octets)} octets")
        return bytes((len(octets),)) + octets
    if kind == _TABLE:
        return value if isinstance(value, bytes) else encode_table(value)
    try:
        number: bytes = value.to_bytes(1 if kind == _OCTET else 8, "big")
    except OverflowError as error:
        raise ValueError(f"property of {value}") from error
    return number
