"""Field tables with their wire types, decoded from untrusted input in linear time.

Types, tags and names are RabbitMQ's (rabbit_binary_parser; the AMQP 0-9-1 errata list the tags). A table
keeps the type with each value because RabbitMQ compares, prints and re-encodes arguments by type, which a
mapping of plain values cannot do.

Strings are UTF-8 with `surrogateescape`, so that any octets survive a round trip.
"""
# ruff: noqa: C901, PLR0911, PLR0912 - one case after the other, in the order of the specification
# ruff: noqa: PLR2004 - offsets and constants of the format are explained next to them

import datetime as dt
import decimal
import math
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

from leveret.broker.amqp.errors import MalformedTable, TableTooLarge

Field = tuple[str, Any]  # RabbitMQ's name of the type, and the value

Table = dict[str, Field]  # names to fields, in wire order. Must not be shared while it may be modified

INTEGERS = frozenset(("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint"))
"""The types of integers."""

MAX_DEPTH = 32  # maximum nesting of tables and arrays, the outermost included

MAX_ENTRIES = 4096  # maximum number of values in a table, those in nested tables and arrays included

MAX_APART = 16_384  # most values in fields that the broker adds to headers; not counted in `MAX_ENTRIES`

_LENGTH = struct.Struct(">I")
_DECIMAL = struct.Struct(">BI")

# Tag -> (name, struct) of the types of fixed size; `t`, `D` and `V` are decoded separately.
_FIXED: dict[int, tuple[str, struct.Struct]] = {
    ord("b"): ("byte", struct.Struct(">b")),
    ord("B"): ("unsignedbyte", struct.Struct(">B")),
    ord("s"): ("short", struct.Struct(">h")),
    ord("u"): ("unsignedshort", struct.Struct(">H")),
    ord("I"): ("signedint", struct.Struct(">i")),
    ord("i"): ("unsignedint", struct.Struct(">I")),
    ord("L"): ("long", struct.Struct(">q")),
    ord("l"): ("long", struct.Struct(">q")),  # after `L`: RabbitMQ writes `l`
    ord("f"): ("float", struct.Struct(">f")),
    ord("d"): ("double", struct.Struct(">d")),
    ord("T"): ("timestamp", struct.Struct(">Q")),
}
_NUMBERS: dict[str, tuple[bytes, struct.Struct]] = {
    name: (bytes((tag,)), packing) for tag, (name, packing) in _FIXED.items()
}

_SIZES = [0] * 256  # size in octets of a value including its tag, by tag; 0 where a length follows
for _tag, (_, _packing) in _FIXED.items():
    _SIZES[_tag] = 1 + _packing.size
_SIZES[ord("V")], _SIZES[ord("t")], _SIZES[ord("D")] = 1, 2, 6
_LONG_LONG, _BOOL, _TABLE, _ARRAY = b"LtFA"
_STRINGS, _CONTAINERS, _REALS = b"Sx", b"FA", b"fd"
_ROUTING = (b"CC", b"BCC")  # fields of headers that name more routing keys
_PLAIN_OCTETS, _PLAIN_DEPTH = MAX_ENTRIES, 4  # so many have no more values than `MAX_ENTRIES`

_FLOATS = frozenset(("float", "double"))


def decode_table(
    data: bytes, at: int, end: int, *, max_entries: int = MAX_ENTRIES, apart: Collection[str] = ()
) -> tuple[Table, int]:
    """Decode the table whose 32-bit length starts at `at` and that must end before `end`.

    Of several fields with one name the first is used, as in RabbitMQ's look-ups. Not-a-number and infinite
    floats are refused, because RabbitMQ's parser refuses them.

    Returns:
        The table and the position after it.

    Raises MalformedTable: anything that RabbitMQ could not decode; TableTooLarge: more than `MAX_DEPTH` levels, or more
    than `max_entries` values. Fields with names in `apart` do not count: they may have `MAX_APART` values together.
    """
    start, stop = _span(data, at, end)
    together = [MAX_APART]
    own = dict.fromkeys(apart, together) if apart else None
    return _fields(data, start, stop, 1, [max_entries], own), stop


def decode_whole_table(data: bytes) -> Table:
    """Decode a table, including its length, that takes up all of `data`; raises MalformedTable."""
    table, stop = decode_table(data, 0, len(data))
    if stop < len(data):
        raise MalformedTable("trailing bytes after the table")
    return table


def decode_fields(data: bytes) -> Table:
    """Decode fields without a preceding length, as in an AMQPLAIN response; raises MalformedTable."""
    return _fields(data, 0, len(data), 1, [MAX_ENTRIES])


def _span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the 32-bit length at `at` and return the span that it covers, which must end before `end`."""
    start = at + 4
    if start > end:
        raise MalformedTable("truncated length")
    stop = start + int.from_bytes(data[at:start], "big")
    if stop > end:
        raise MalformedTable("length exceeds the enclosing value")
    return start, stop


def _fields(
    data: bytes,
    at: int,
    end: int,
    depth: int,
    budget: list[int],
    apart: Mapping[str, list[int]] | None = None,
) -> Table:
    table: Table = {}
    while at < end:
        start = at + 1
        at = start + data[at]
        if at >= end:
            raise MalformedTable("truncated field")
        name = data[start:at].decode("utf-8", "surrogateescape")
        field, at = _value(data, at, end, depth, budget if apart is None else apart.get(name, budget))
        table.setdefault(name, field)
    return table


def _items(data: bytes, at: int, end: int, depth: int, budget: list[int]) -> list[Field]:
    items: list[Field] = []
    while at < end:
        field, at = _value(data, at, end, depth, budget)
        items.append(field)
    return items


def _value(data: bytes, at: int, end: int, depth: int, budget: list[int]) -> tuple[Field, int]:
    """Decode the tagged value at `at`, which is before `end`. `budget` holds the number of entries still allowed."""
    budget[0] -= 1
    if budget[0] < 0:
        raise TableTooLarge(f"a table may have at most {MAX_ENTRIES} values, nested ones included")
    tag = data[at]
    at += 1
    fixed = _FIXED.get(tag)
    if fixed is not None:
        name, packing = fixed
        stop = at + packing.size
        if stop > end:
            raise MalformedTable("truncated value")
        (number,) = packing.unpack_from(data, at)
        if name in _FLOATS and not math.isfinite(number):
            raise MalformedTable("float value is NaN")
        return (name, number), stop
    if tag in b"SxFA":
        start, stop = _span(data, at, end)
        if tag == 0x53:
            return ("longstr", data[start:stop].decode("utf-8", "surrogateescape")), stop
        if tag == 0x78:
            return ("binary", data[start:stop]), stop
        if depth == MAX_DEPTH:
            raise TableTooLarge(f"a table may have at most {MAX_DEPTH} levels")
        if tag == 0x46:
            return ("table", _fields(data, start, stop, depth + 1, budget)), stop
        return ("array", _items(data, start, stop, depth + 1, budget)), stop
    if tag == 0x56:
        return ("void", None), at
    if tag == 0x74:
        if at >= end:
            raise MalformedTable("truncated value")
        return ("bool", data[at] != 0), at + 1
    if tag == 0x44:
        if at + 5 > end:
            raise MalformedTable("truncated value")
        return ("decimal", _DECIMAL.unpack_from(data, at)), at + 5
    raise MalformedTable(f"unknown type tag {tag}")


def plain_end(data: bytes, at: int, depth: int = 1) -> int:
    """Return the end of the table at `at` if it needs no decoder; -1 if that has to judge it.

    It judges what is malformed or may be too large, numbers that may be infinite, and a table with a field `CC` or
    `BCC`. `data` may end anywhere: an incomplete table has an end after it, or none. Raises IndexError for some of
    these. Each field takes a third of the time of decoding it.
    """
    sizes, from_bytes = _SIZES, int.from_bytes
    is_array = depth > 1 and data[at - 1] == _ARRAY
    stop = at + 4 + from_bytes(data[at : at + 4], "big")
    if stop - at > _PLAIN_OCTETS:
        return -1
    at += 4
    while at < stop:
        if not is_array:
            start = at + 1
            at = start + data[at]
            if at - start <= 3 and data[start:at] in _ROUTING:
                return -1
        tag = data[at]
        size = sizes[tag]
        if not size:
            if tag in _STRINGS:
                size = 5 + from_bytes(data[at + 1 : at + 5], "big")
            elif tag not in _CONTAINERS or depth == _PLAIN_DEPTH:
                return -1
            else:
                size = plain_end(data, at + 1, depth + 1) - at
                if size < 0:
                    return -1
        elif tag in _REALS and data[at + 1] & 0x7F == 0x7F:  # it may be no number
            return -1
        at += size
    return stop if at == stop else -1


def split_fields(data: bytes, at: int, end: int) -> dict[bytes, bytes]:
    """Split a table into its fields without decoding them.

    `decode_table` must have accepted the table. Returns the encoded values, each with its tag, by encoded name; of
    several fields with one name only the first.
    """
    at, stop = _span(data, at, end)
    fields: dict[bytes, bytes] = {}
    sizes, from_bytes = _SIZES, int.from_bytes
    while at < stop:
        start = at + 1
        value_at = start + data[at]
        size = sizes[data[value_at]]
        at = value_at + (size or 5 + from_bytes(data[value_at + 1 : value_at + 5], "big"))
        name = data[start:value_at]
        if name not in fields:
            fields[name] = data[value_at:at]
    return fields


def find_field(data: bytes, at: int, end: int, field: bytes) -> int:
    """Return where a field begins in the table at `at`; -1 if that has no such field.

    `field` is its name after the length of that. Otherwise as `split_fields`.
    """
    at += 4
    found, sizes, from_bytes = data.find(field, at, end), _SIZES, int.from_bytes
    while found > at:  # it may be in the value of another field
        while at < found:
            at += 1 + data[at]
            at += sizes[data[at]] or 5 + from_bytes(data[at + 1 : at + 5], "big")
        found = data.find(field, at, end)
    return found


def split_items(value: bytes) -> list[bytes]:
    """Split an array, given with its tag, into its items, each with its tag. The array must be valid."""
    items = []
    at, stop = 5, len(value)
    sizes = _SIZES
    while at < stop:
        start = at
        at += sizes[value[at]] or 5 + int.from_bytes(value[at + 1 : at + 5], "big")
        items.append(value[start:at])
    return items


def as_written(value: bytes) -> bytes:
    """Return an undecoded value, with its tag, as decoding and encoding it would give it (see `encode_table`)."""
    tag = value[0]
    if tag == _LONG_LONG:
        return b"l" + value[1:]
    if tag == _BOOL:
        return b"t\x01" if value[1] else b"t\x00"
    if tag == _TABLE:
        fields = split_fields(value, 1, len(value))
        return b"F" + join_fields([(name, as_written(inner)) for name, inner in fields.items()])
    if tag == _ARRAY:
        items = b"".join([as_written(item) for item in split_items(value)])
        return b"A" + _LENGTH.pack(len(items)) + items
    return value


def count_values(value: bytes) -> int:
    """Return the number of values in a valid one, given with its tag: those of tables and arrays, and itself."""
    if value[0] == _TABLE:
        return 1 + sum([count_values(inner) for inner in split_fields(value, 1, len(value)).values()])
    return 1 + sum([count_values(item) for item in split_items(value)]) if value[0] == _ARRAY else 1


def decode_value(data: bytes, at: int = 0) -> Field:
    """Decode the value whose tag is at `at`; it must be known to be valid."""
    fixed = _FIXED.get(data[at])
    if fixed is not None:  # 0.18 us, and 0.35 by `_value`, which checks the size and the entries
        return fixed[0], fixed[1].unpack_from(data, at + 1)[0]
    return _value(data, at, len(data), 0, [sys.maxsize])[0]


def encode_value(field: Field) -> bytes:
    """Encode a value with its tag; raises as `encode_table`."""
    parts: list[bytes] = []
    _write(field, parts)
    return b"".join(parts)


def join_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Build an encoded table, including its length, from encoded names and values."""
    octets = b"".join([b"%c%b%b" % (len(name), name, value) for name, value in fields])
    return _LENGTH.pack(len(octets)) + octets


def encode_table(table: Table) -> bytes:
    """Encode a table with its length.

    A decoded table is encoded as the octets it was decoded from, except that repeated fields are removed, `L` is
    written as `l` and a true bool as 1, as RabbitMQ re-encodes it. Raises ValueError, not for a decoded table, if a
    name has more than 255 octets, or a value does not fit its type.
    """
    parts: list[bytes] = []
    _write_table(table, parts)
    return b"".join(parts)


def _write_table(table: Table, parts: list[bytes]) -> None:
    place = len(parts)
    parts.append(b"")
    for name, field in table.items():
        octets = name.encode("utf-8", "surrogateescape")
        if len(octets) > 255:
            raise ValueError(f"field name of {len(octets)} octets")
        parts += (bytes((len(octets),)), octets)
        _write(field, parts)
    parts[place] = _LENGTH.pack(sum(map(len, parts[place + 1 :])))


def _write_array(items: list[Field], parts: list[bytes]) -> None:
    place = len(parts)
    parts.append(b"")
    for field in items:
        _write(field, parts)
    parts[place] = _LENGTH.pack(sum(map(len, parts[place + 1 :])))


def _write(field: Field, parts: list[bytes]) -> None:
    name, value = field
    number = _NUMBERS.get(name)
    try:
        if number is not None:
            parts += (number[0], number[1].pack(value))
        elif name == "longstr":
            octets = value.encode("utf-8", "surrogateescape")
            parts += (b"S", _LENGTH.pack(len(octets)), octets)
        elif name == "bool":
            parts.append(b"t\x01" if value else b"t\x00")
        elif name == "table":
            parts.append(b"F")
            _write_table(value, parts)
        elif name == "array":
            parts.append(b"A")
            _write_array(value, parts)
        elif name == "binary":
            parts += (b"x", _LENGTH.pack(len(value)), value)
        elif name == "void":
            parts.append(b"V")
        elif name == "decimal":
            parts += (b"D", _DECIMAL.pack(*value))
        else:
            raise ValueError(f"unknown field type '{name}'")
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} is not of type {name}") from error


def typed(mapping: Mapping[str, object]) -> Table:
    """Convert plain Python values to typed fields, with the types that RabbitMQ itself would choose.

    An int becomes 'signedint' if it fits, otherwise 'long'; a str 'longstr', a float 'double'. A tuple is taken as a
    field that already has its type. Raises ValueError or TypeError for a value that has no field type.
    """
    return {name: _typed_value(value) for name, value in mapping.items()}


def _typed_value(value: object) -> Field:
    match value:
        case None:
            return "void", None
        case bool():
            return "bool", value
        case int():
            return _typed_int(value)
        case str():
            return "longstr", value
        case float():
            return "double", value
        case bytes() | bytearray():
            return "binary", bytes(value)
        case Mapping():
            return "table", typed(value)
        case list():
            return "array", [_typed_value(item) for item in value]
        case tuple():
            return cast("Field", value)
        case dt.datetime():
            return "timestamp", int(value.timestamp())
        case decimal.Decimal():
            sign, digits, exponent = value.as_tuple()
            if sign or not isinstance(exponent, int) or not -255 <= exponent <= 0:
                raise ValueError(f"{value} is not an AMQP decimal")
            return "decimal", (-exponent, int("".join(map(str, digits))))
    raise TypeError(f"no field type for {type(value).__name__}")


def _typed_int(value: int) -> Field:
    if -(2**31) <= value < 2**31:
        return "signedint", value
    if -(2**63) <= value < 2**63:
        return "long", value
    raise ValueError(f"{value} does not fit into any integer type")


def plain(table: Table) -> dict[str, object]:
    """Convert a table to plain values without types, for printing, JSON and comparison with other libraries."""
    return {name: _plain_value(field) for name, field in table.items()}


def _plain_value(field: Field) -> object:
    name, value = field
    if name == "table":
        return plain(value)
    if name == "array":
        return [_plain_value(item) for item in value]
    if name == "decimal":
        scale, digits = value
        return decimal.Decimal(digits).scaleb(-scale)
    return value


def strings(field: Field) -> tuple[str, ...]:
    """Return the strings of an array, as the headers `CC` and `BCC` have them; none of a field of another type."""
    kind, items = field
    return tuple(value for item_kind, value in items if item_kind == "longstr") if kind == "array" else ()


def value_text(field: Field) -> str:
    """Format the value as RabbitMQ does in `the value '5' of type 'long'`: strings bare, others as a term."""
    name, value = field
    if name == "longstr":
        return cast("str", value)
    if name == "binary":
        return cast("bytes", value).decode("utf-8", "surrogateescape")
    return term_text(field)


def argument_text(field: Field | None) -> str:
    """Format one side of an `inequivalent arg` text (rabbit_misc:val/1)."""
    if field is None:
        return "none"
    return f"the value '{value_text(field)}' of type '{field[0]}'"


def term_text(field: Field) -> str:
    """Format the value as an Erlang term (`~p`), without line breaks."""
    name, value = field
    writer = _TERMS.get(name)
    return str(value) if writer is None else writer(value)


def binary_text(octets: bytes) -> str:
    """Format a binary as `~p` does: quoted if it is printable Latin-1, otherwise as numbers."""
    quoted = string_text(octets)
    return f"<<{quoted}>>" if quoted and octets else bytes_text(octets)


def utf8_text(octets: bytes) -> str:
    """Format a binary as `~tp` of Erlang 29 does: quoted if it is printable UTF-8 or Latin-1, otherwise as numbers."""
    try:
        text, mark = octets.decode(), "" if octets.isascii() else "/utf8"
    except UnicodeDecodeError:
        text, mark = octets.decode("latin-1"), ""
    if text and all(ord(each) in _ESCAPES or " " <= each <= "~" or each >= "\xa0" for each in text):
        return f'<<"{text.translate(_ESCAPES)}"{mark}>>'
    return bytes_text(octets)


def bytes_text(octets: bytes) -> str:
    """Format a binary as `~w` does: `<<1,2,3>>`."""
    return f"<<{','.join(map(str, octets))}>>"


def string_text(octets: bytes) -> str:
    """Format a printable string as `~p` does, with quotes and escapes; '' if it is not printable."""
    if all(octet in _ESCAPES or 32 <= octet <= 126 or octet >= 160 for octet in octets):
        return f'"{octets.decode("utf-8", "surrogateescape").translate(_ESCAPES)}"'
    return ""


_ESCAPES = {
    8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\e", 34: '\\"', 92: "\\\\",
}  # fmt: skip


def float_text(value: float) -> str:
    """Format a float as Erlang does: the shortest digits, as `1.0e5` where that is shorter than `100000.0`."""
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    if not any(digits):
        return "-0.0" if sign else "0.0"
    figures = "".join(map(str, digits))
    point = len(figures) + cast("int", exponent)  # number of digits before the decimal point
    mantissa = f"{figures[0]}.{figures[1:] or '0'}e{point - 1}"
    if point <= 0:
        text = f"0.{'0' * -point}{figures}"
    elif point >= len(figures):
        text = f"{figures}{'0' * (point - len(figures))}.0"
    else:
        text = f"{figures[:point]}.{figures[point:]}"
    shorter = text if len(text) <= len(mantissa) else mantissa
    return f"-{shorter}" if sign else shorter


def _array_text(items: list[Field]) -> str:
    return f"[{','.join(f'{{{item[0]},{term_text(item)}}}' for item in items)}]"


def entry_texts(table: Table) -> Iterator[str]:
    """Yield each entry of a table as an Erlang term, `{<<"name">>,type,value}`."""
    for name, field in table.items():
        yield f"{{{binary_text(name.encode('utf-8', 'surrogateescape'))},{field[0]},{term_text(field)}}}"


def _table_text(table: Table) -> str:
    return f"[{','.join(entry_texts(table))}]"


_TERMS: dict[str, Callable[[Any], str]] = {
    "longstr": lambda value: binary_text(value.encode("utf-8", "surrogateescape")),
    "binary": binary_text,
    "bool": lambda value: "true" if value else "false",
    "void": lambda _value: "undefined",
    "float": float_text,
    "double": float_text,
    "decimal": lambda value: f"{{{value[0]},{value[1]}}}",
    "array": _array_text,
    "table": _table_text,
}
