"""Codec of the cold methods: payload octets to pamqp's command objects and back.

The fields of a method are declared by pamqp. They are decoded here, because pamqp's decoder has no limits and loses the
types in tables; and encoded by pamqp, except those that it refuses or writes differently from RabbitMQ (docs/adr/0025).
The checks and error texts follow rabbit_framing_amqp_0_9_1 and rabbit_binary_parser. Every shortstr must be UTF-8
except in the methods that carry content; strings are `str` with `surrogateescape`.
"""
# ruff: noqa: C901, PLR0912 - one case after the other, in the order of the specification
# ruff: noqa: PLR2004 - offsets and constants of the format are explained next to them
# ruff: noqa: TRY301 - errors are raised and handled in the same function

import struct
from collections.abc import Callable
from typing import Any

from pamqp.base import Frame
from pamqp.commands import INDEX_MAPPING, Basic, Channel
from pamqp.frame import marshal

from leveret.broker.amqp.commands import Access
from leveret.broker.amqp.errors import (
    MalformedMethod,
    MalformedTable,
    MethodTooLarge,
    TableTooLarge,
    UnknownMethod,
)
from leveret.broker.amqp.tables import binary_text, bytes_text, decode_table, encode_table, utf8_text

_HEAD = struct.Struct(">BHII")
_LENGTH = struct.Struct(">I")
_INTEGERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}

_WITH_CONTENT = frozenset((Basic.Publish.index, Basic.Return.index, Basic.Deliver.index, Basic.GetOk.index))

# Human-readable texts are truncated to fit a shortstr; any other shortstr that is too long is a bug of the broker.
_CUT = frozenset(("reply_text", "reason"))


class _BadTextError(Exception):
    """A shortstr that must be UTF-8 is not valid UTF-8."""


class _CutError(Exception):
    """The payload ends inside a field."""


Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""Decodes the field at a position, given the end of the payload; returns the value and the position after it."""


def _integer_reader(packing: struct.Struct) -> Reader:
    size = packing.size
    unpack_from = packing.unpack_from

    def read(data: bytes, at: int, end: int) -> tuple[int, int]:
        if at + size > end:
            raise _CutError
        return unpack_from(data, at)[0], at + size

    return read


def _shortstr_octets(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    if at >= end:
        raise _CutError
    start = at + 1
    stop = start + data[at]
    if stop > end:
        raise _CutError
    return data[start:stop], stop


def _read_checked(data: bytes, at: int, end: int) -> tuple[str, int]:
    octets, stop = _shortstr_octets(data, at, end)
    try:
        return octets.decode(), stop
    except UnicodeDecodeError:
        pass
    try:
        # RabbitMQ's check accepts encoded surrogates; they are kept as the octets they are.
        octets.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _BadTextError from error
    return octets.decode("utf-8", "surrogateescape"), stop


def _read_unchecked(data: bytes, at: int, end: int) -> tuple[str, int]:
    octets, stop = _shortstr_octets(data, at, end)
    return octets.decode("utf-8", "surrogateescape"), stop


def _long_span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the octets after a 32-bit length begin and end."""
    start = at + 4
    if start > end:
        raise _CutError
    stop = start + int.from_bytes(data[at:start], "big")
    if stop > end:
        raise _CutError
    return start, stop


def _read_longstr(data: bytes, at: int, end: int) -> tuple[str, int]:
    start, stop = _long_span(data, at, end)
    return data[start:stop].decode("utf-8", "surrogateescape"), stop


def _skip_table(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Check only the length of a table and return its position: RabbitMQ decodes tables after all fields fit."""
    return at, _long_span(data, at, end)[1]


Step = tuple[tuple[str, ...], Reader, str]
"""The names of the fields that a step sets (several for bits, which share an octet), their reader and type."""

_read_octet = _integer_reader(_INTEGERS["octet"])


def _steps(method: type[Frame], index: int) -> tuple[Step, ...]:
    """Compile pamqp's declaration of a method's fields into decoding steps."""
    steps: list[Step] = []
    bits: list[str] = []
    shortstr = _read_unchecked if index in _WITH_CONTENT else _read_checked

    def end_bits() -> None:
        if bits:
            steps.append((tuple(bits), _read_octet, "bit"))
            bits.clear()

    for name in method.__slots__:
        kind = method.amqp_type(name)
        if kind == "bit":
            if len(bits) == 8:
                end_bits()
            bits.append(name)
            continue
        end_bits()
        if kind == "shortstr":
            steps.append(((name,), shortstr, kind))
        elif kind == "longstr":
            steps.append(((name,), _read_longstr, kind))
        elif kind == "table":
            steps.append(((name,), _skip_table, kind))
        else:
            steps.append(((name,), _integer_reader(_INTEGERS[kind]), kind))
    end_bits()
    return tuple(steps)


_METHODS: dict[int, tuple[type[Frame], tuple[Step, ...]]] = {
    index: (method, _steps(method, index))
    for index, method in (
        *INDEX_MAPPING.items(),
        (Access.Request.index, Access.Request),
        (Access.RequestOk.index, Access.RequestOk),
    )
}


def decode_method(payload: bytes | memoryview, at: int, end: int) -> Frame:
    """Decode the payload of a method frame between `at` and `end`; table attributes are set to typed tables.

    Octets after the last field are an error, as in RabbitMQ. Raises UnknownMethod, MalformedMethod if the payload does
    not match the method's fields, and MethodTooLarge if a table has more levels or values than the broker takes.
    """
    data = payload if isinstance(payload, bytes) else bytes(payload[:end])
    fields_at = at + 4
    if fields_at > end:
        raise MalformedMethod(f"type 1, all octets = {bytes_text(data[at:end])}: unknown_frame")
    index = int.from_bytes(data[at:fields_at], "big")
    class_id, method_id = index >> 16, index & 0xFFFF
    known = _METHODS.get(index)
    if known is None:
        raise UnknownMethod(class_id, method_id)
    method, steps = known
    made = method.__new__(method)
    position = fields_at
    bad_text = False
    tables: list[tuple[str, int, int]] = []
    try:
        for names, read, kind in steps:
            try:
                value, stop = read(data, position, end)
            except _BadTextError:
                # Reported only if the rest of the payload fits: RabbitMQ matches lengths first.
                bad_text = True
                stop = position + 1 + data[position]
                value = ""
            if kind == "bit":
                for bit, name in enumerate(names):
                    setattr(made, name, value & 1 << bit != 0)
            elif kind == "table":
                tables.append((names[0], value, stop))
            else:
                setattr(made, names[0], value)
            position = stop
        if position != end:
            raise _CutError
    except _CutError:
        octets = bytes_text(data[fields_at : min(end, fields_at + 300)])  # a reply text holds no more
        raise MalformedMethod(f"cannot decode {octets}", class_id, method_id) from None
    if bad_text:
        raise MalformedMethod("Malformed UTF-8 in shortstr")
    for name, start, stop in tables:
        try:
            table, _ = decode_table(data, start, stop)
        except TableTooLarge as error:
            raise MethodTooLarge(str(error), class_id, method_id) from error
        except MalformedTable as error:
            raise MalformedMethod("") from error
        setattr(made, name, table)
    return made


_NOT_BY_PAMQP = frozenset(  # methods with typed tables, and the one that pamqp refuses as RabbitMQ sends it
    index for index, (_, steps) in _METHODS.items() if any(kind == "table" for _, _, kind in steps)
) | {Channel.OpenOk.index}


def encode_method(channel_id: int, method: Frame) -> bytes:
    """Encode a method as a whole frame: by pamqp, or by `encode_any_method` if that refuses it or may not encode it.

    Raises ValueError if a name has more than 255 octets, or a number does not fit its field.
    """
    if method.index not in _NOT_BY_PAMQP:
        try:
            return marshal(method, channel_id)
        except (TypeError, ValueError, struct.error):  # a name, text or number that RabbitMQ may send
            pass
    return encode_any_method(channel_id, method)


def encode_any_method(channel_id: int, method: Frame) -> bytes:
    """Encode a method as a whole frame, with any values that RabbitMQ takes; raises as `encode_method`.

    An attribute of None is encoded as empty, zero or false. `reply_text` and `reason` are truncated to 255 octets as in
    RabbitMQ (252 and `...`), but never inside a character.
    """
    steps = _METHODS[method.index][1]
    parts: list[bytes] = []
    for names, _read, kind in steps:
        name = names[0]
        value = getattr(method, name)
        if kind == "bit":
            octet = 0
            for bit, flag in enumerate(names):
                if getattr(method, flag):
                    octet |= 1 << bit
            parts.append(bytes((octet,)))
        elif kind == "shortstr":
            octets = (value or "").encode("utf-8", "surrogateescape")
            if len(octets) > 255:
                if name not in _CUT:
                    raise ValueError(f"{method.name}: {name} of {len(octets)} octets")
                octets = _cut(octets)
            parts += (bytes((len(octets),)), octets)
        elif kind == "longstr":
            octets = (value or "").encode("utf-8", "surrogateescape")
            parts += (_LENGTH.pack(len(octets)), octets)
        elif kind == "table":
            parts.append(encode_table(value or {}))
        else:
            try:
                parts.append(_INTEGERS[kind].pack(value or 0))
            except struct.error as error:
                raise ValueError(f"{method.name}: {name} of {value}") from error
    fields = b"".join(parts)
    return b"".join((_HEAD.pack(1, channel_id, len(fields) + 4, method.index), fields, b"\xce"))


def _cut(octets: bytes) -> bytes:
    stop = 252
    while octets[stop] & 0xC0 == 0x80:
        stop -= 1
    return octets[:stop] + b"..."


def method_ids(method: Frame) -> tuple[int, int]:
    """Return the class and method number of a method."""
    index = method.index
    return index >> 16, index & 0xFFFF


def frame_text(kind: int, payload: bytes, release: str = "3.13") -> str:
    """Format a frame as a release of RabbitMQ, 3.13 or 4.3, does in an error text."""
    which = "all" if len(payload) <= 16 else "first 16"
    quoted = (binary_text if release == "3.13" else utf8_text)(payload[:16])
    return f"type {kind}, {which} octets = {quoted}"
