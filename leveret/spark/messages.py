"""Messages as rows: the columns of a source, and their conversion to Arrow. No socket.

Theory. Spark takes Arrow batches as they are, which saves it a Python object for each value. Most messages of a stream
have the same properties but for their offset, so a property list is decoded once: its key is the header without the
eight bytes of the offset. Columns that depend on it are then made of the few different values and an index.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa
from pyarrow import json as arrow_json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leveret.broker.amqp.fastpath import FRAME_OVERHEAD, split_address
from leveret.broker.amqp.properties import FLAGS_AT, Properties
from leveret.broker.amqp.tables import plain

TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip
NUMBERS: Final = ("delivery_mode", "priority")
PROPERTIES: Final = f"struct<{','.join(f'{name}:string' for name in TEXTS)},delivery_mode:int,priority:int>"
COLUMNS: Final = {
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "string",
    "exchange": "string",
    "headers": "map<string,string>",
    "properties": PROPERTIES,
    "body": "binary",
}
"""The columns of a source, with the names that Spark gives their types."""
OFFSET: Final = "x-stream-offset"
TIME: Final = "timestamp_in_ms"
"""Header of the time at which a broker took a message, if it is configured to set it."""
_MARK: Final = b"\x0fx-stream-offsetl"
_HEAD: Final = 7  # bytes of a frame before its payload
MOST_MILLISECONDS: Final = 253_402_300_799_999  # the end of the year 9999, after which a timestamp is none
MOST_KEPT: Final = 10_000  # decoded property lists that are kept

_decode_json = json.JSONDecoder().raw_decode
_unpack_size = Struct(">I").unpack_from
_unpack_offset = Struct(">q").unpack_from


Content = bytes | list[bytes]  # the frames of a content header and body: those of a read, or of several


class NotAStreamError(Exception):
    """Raised for a delivery without an offset."""

    def __init__(self) -> None:
        super().__init__(f"a message has no {OFFSET}: it is not of a stream (use option queue)")


class Delivered(NamedTuple):
    """Messages as they were delivered: exchange and routing key of each on the wire, and the frames of its content."""

    addresses: Sequence[bytes]
    contents: Sequence[Content]


class _Decoded(NamedTuple):
    headers: list[tuple[str, str]]
    properties: dict[str, Any]
    timestamp: int | None


def decoded(payload: bytes) -> tuple[_Decoded, int | None]:
    """Return the properties of a message, given the payload of its content header, and its offset.

    Raises WireError if they are not valid AMQP 0-9-1.
    """
    found = Properties(payload)
    headers = plain(found.headers or {})
    offset, time = headers.pop(OFFSET, None), headers.get(TIME)
    milliseconds = (
        time if isinstance(time, int) else None if found.timestamp is None else found.timestamp * 1000
    )
    values: dict[str, Any] = {
        name: None if (text := getattr(found, name)) is None else _clean(text) for name in TEXTS
    }
    values |= {name: getattr(found, name) for name in NUMBERS}
    made = _Decoded(
        [(_clean(name), _text(value)) for name, value in headers.items()],
        values,
        None if milliseconds is None or milliseconds > MOST_MILLISECONDS else milliseconds * 1000,
    )
    return made, offset if isinstance(offset, int) else None


def columns(body_format: str, body_schema: str) -> dict[str, str]:
    """Return the columns of a source, with their types as DDL; raises KeyError for an unknown format."""
    types = {"binary": "binary", "text": "string", "json": f"struct<{body_schema}>"}
    return COLUMNS | {"body": types[body_format]}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a schema."""
    convert: Any = to_arrow_schema
    return convert(schema, timezone="UTC") if "timezone" in signature(convert).parameters else convert(schema)


def _clean(text: str) -> str:
    """Return a text without the surrogates that stand for bytes that are not UTF-8, which Arrow refuses."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _text(value: object) -> str:
    match value:
        case str():
            return _clean(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case bool() | list() | dict() | None:
            return _clean(json.dumps(value, ensure_ascii=False, default=_text))
    return str(value)


class Rows:
    """Converts messages to Arrow batches with some of the columns of a source.

    Args:
        schema: the columns that are wanted.
        body_format: as in `SourceOptions`.
        has_offsets: whether the messages are from a stream.
        part: number of a part of the routing keys by their hash, and how many parts there are; None for all keys.
    """

    def __init__(
        self,
        schema: StructType,
        body_format: str,
        *,
        has_offsets: bool,
        part: tuple[int, int] | None = None,
    ) -> None:
        self._part = part
        self._schema = arrow_schema(schema)
        self._has_offsets = has_offsets
        body = next((field.type for field in self._schema if field.name == "body"), None)
        self._body: Callable[[Sequence[bytes]], Any] = {
            "binary": lambda bodies: pa.array(bodies, pa.binary()),
            "text": lambda bodies: pa.array(
                [each.decode("utf-8", "replace") for each in bodies], pa.string()
            ),
            "json": lambda bodies: parsed(bodies, body),
        }[body_format]
        self._known: dict[bytes, _Decoded] = {}

    def _decode(self, content: Content) -> tuple[_Decoded, int]:
        """Return the properties of a message, and its offset (0 in a queue)."""
        content = content if isinstance(content, bytes) else content[0]
        end = _HEAD + _unpack_size(content, 3)[0]
        at = content.find(_MARK, _HEAD, end) + len(_MARK) if self._has_offsets else end
        # The first place of the mark, so that no other header with another one is equal without the offset.
        key = content[_HEAD + FLAGS_AT : at] + content[at + 8 : end]
        found = self._known.get(key)
        if found is not None:
            return found, _unpack_offset(content, at)[0] if self._has_offsets else 0
        found, offset = decoded(content[_HEAD:end])
        if not self._has_offsets:
            offset = 0
        elif offset is None:
            raise NotAStreamError
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        if not self._has_offsets or (at >= len(_MARK) + _HEAD and offset == _unpack_offset(content, at)[0]):
            self._known[key] = found
        return found, offset

    def offset(self, content: Content) -> int:
        """Return the offset of a message; raises as `batch`."""
        return self._decode(content)[1]

    def batch(
        self, messages: Delivered, first: int = 0, end: int | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """Return the batch of messages with offsets from `first` on, before `end`, and the last offset of all messages.

        Raises NotAStreamError for a message without an offset; WireError for one that is not valid AMQP 0-9-1.
        """
        decode, addresses = self._decode, messages.addresses
        others = frozenset(self._others(addresses))
        index: dict[int, tuple[int, _Decoded]] = {}
        offsets: list[int] = []
        kept: list[int] = []
        which: list[int] = []
        offset = first
        for number, content in enumerate(messages.contents):
            found, offset = decode(content)
            if self._has_offsets and (offset < first or (end is not None and offset >= end)):
                continue
            if others and addresses[number] in others:
                continue
            offsets.append(offset)
            kept.append(number)
            which.append(index.setdefault(id(found), (len(index), found))[0])
        return self._made(messages, kept, offsets, which, [each for _, each in index.values()]), offset

    def _others(self, addresses: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the addresses whose keys are in another part."""
        if self._part is not None:
            number, parts = self._part
            for address in set(addresses):
                if crc32(split_address(address)[1].encode("utf-8", "surrogateescape")) % parts != number:
                    yield address

    def _made(
        self,
        messages: Delivered,
        kept: Sequence[int],
        offsets: Sequence[int],
        which: Sequence[int],
        found: Sequence[_Decoded],
    ) -> pa.RecordBatch:
        contents, addresses = messages.contents, messages.addresses
        taken = pa.array(which, pa.int32())
        columns = []
        for field in self._schema:
            match field.name:
                case "offset":
                    columns.append(pa.array(offsets if self._has_offsets else [None] * len(kept), pa.int64()))
                case "body":
                    columns.append(self._body([body_of(contents[number]) for number in kept]))
                case "key" | "exchange":
                    place = field.name == "key"
                    texts = {each: _clean(split_address(each)[place]) for each in set(addresses)}
                    columns.append(pa.array([texts[addresses[number]] for number in kept], pa.string()))
                case name:
                    columns.append(pa.array([getattr(each, name) for each in found], field.type).take(taken))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def body_of(content: Content) -> bytes:
    """Return the body of a message from the frames of its content."""
    frames = content if isinstance(content, bytes) else b"".join(content)
    at, end = _unpack_size(frames, 3)[0] + FRAME_OVERHEAD, len(frames)
    if at < end and at + FRAME_OVERHEAD + _unpack_size(frames, at + 3)[0] == end:
        return frames[at + _HEAD : -1]
    parts = []
    while at < end:
        start = at + _HEAD
        at = start + _unpack_size(frames, at + 3)[0] + 1
        parts.append(frames[start : at - 1])
    return b"".join(parts)


def not_in_json(kind: DataType) -> Iterator[str]:
    """Yield the types below one that are made of no JSON value."""
    match kind:
        case StructType():
            for field in kind:
                yield from not_in_json(field.dataType)
        case ArrayType():
            yield from not_in_json(kind.elementType)
        case BooleanType() | NumericType() | StringType() | TimestampType() | TimestampNTZType():
            pass
        case _:
            yield kind.simpleString()


def _is_object(body: bytes) -> bool:
    """Return whether a body is one JSON object: Arrow crashes at `null`, and may read several bodies as one object."""
    try:
        text = body.decode().strip()
        return text[:1] == "{" and _decode_json(text)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def parsed(bodies: Sequence[bytes], kind: Any) -> Any:
    """Return bodies of JSON objects as an Arrow array of structs; null for a body that is none, or of other types."""
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema(list(kind)), newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    are_objects = [_is_object(body) for body in bodies]

    def read(text: bytes) -> Any:
        try:
            table = arrow_json.read_json(
                pa.BufferReader(text), arrow_json.ReadOptions(block_size=len(text) + 1), options
            )
        except pa.ArrowInvalid:
            return None
        return table.to_struct_array().combine_chunks()

    objects = [body for body, is_object in zip(bodies, are_objects, strict=True) if is_object]
    made = read(b"\n".join(objects)) if objects else pa.nulls(0, kind)
    if made is None:  # one of them is of other types
        each = [read(body) for body in objects]
        made = pa.concat_arrays([pa.nulls(1, kind) if one is None else one.cast(kind) for one in each])
    places = iter(range(len(objects)))
    return made.cast(kind).take(
        pa.array([next(places) if each else None for each in are_objects], pa.int64())
    )
