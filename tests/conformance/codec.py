"""AMQP 0-9-1 on the wire, for tests: methods, tables, content headers, frames.

A codec of its own (the method table below, from the AMQP 0-9-1 XML and RabbitMQ's extensions), so that a mistake in the
broker's codec cannot hide behind the same mistake in the test.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

# (class id, method id): "name field:type ...". Types: o octet, s short, l long, L longlong, S shortstr, X longstr, T table,
# b bit. A method with content ends in "+".
_METHODS = {
    (10, 10): "connection.start version_major:o version_minor:o server_properties:T mechanisms:X locales:X",
    (10, 11): "connection.start-ok client_properties:T mechanism:S response:X locale:S",
    (10, 20): "connection.secure challenge:X",
    (10, 21): "connection.secure-ok response:X",
    (10, 30): "connection.tune channel_max:s frame_max:l heartbeat:s",
    (10, 31): "connection.tune-ok channel_max:s frame_max:l heartbeat:s",
    (10, 40): "connection.open virtual_host:S reserved_1:S reserved_2:b",
    (10, 41): "connection.open-ok reserved_1:S",
    (10, 50): "connection.close reply_code:s reply_text:S class_id:s method_id:s",
    (10, 51): "connection.close-ok",
    (10, 60): "connection.blocked reason:S",
    (10, 61): "connection.unblocked",
    (10, 70): "connection.update-secret new_secret:X reason:S",
    (10, 71): "connection.update-secret-ok",
    (20, 10): "channel.open reserved_1:S",
    (20, 11): "channel.open-ok reserved_1:X",
    (20, 20): "channel.flow active:b",
    (20, 21): "channel.flow-ok active:b",
    (20, 40): "channel.close reply_code:s reply_text:S class_id:s method_id:s",
    (20, 41): "channel.close-ok",
    (30, 10): "access.request realm:S exclusive:b passive:b active:b write:b read:b",
    (30, 11): "access.request-ok ticket:s",
    (
        40,
        10,
    ): "exchange.declare ticket:s exchange:S type:S passive:b durable:b auto_delete:b internal:b nowait:b arguments:T",
    (40, 11): "exchange.declare-ok",
    (40, 20): "exchange.delete ticket:s exchange:S if_unused:b nowait:b",
    (40, 21): "exchange.delete-ok",
    (40, 30): "exchange.bind ticket:s destination:S source:S routing_key:S nowait:b arguments:T",
    (40, 31): "exchange.bind-ok",
    (40, 40): "exchange.unbind ticket:s destination:S source:S routing_key:S nowait:b arguments:T",
    (40, 51): "exchange.unbind-ok",
    (
        50,
        10,
    ): "queue.declare ticket:s queue:S passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:T",
    (50, 11): "queue.declare-ok queue:S message_count:l consumer_count:l",
    (50, 20): "queue.bind ticket:s queue:S exchange:S routing_key:S nowait:b arguments:T",
    (50, 21): "queue.bind-ok",
    (50, 30): "queue.purge ticket:s queue:S nowait:b",
    (50, 31): "queue.purge-ok message_count:l",
    (50, 40): "queue.delete ticket:s queue:S if_unused:b if_empty:b nowait:b",
    (50, 41): "queue.delete-ok message_count:l",
    (50, 50): "queue.unbind ticket:s queue:S exchange:S routing_key:S arguments:T",
    (50, 51): "queue.unbind-ok",
    (60, 10): "basic.qos prefetch_size:l prefetch_count:s global_:b",
    (60, 11): "basic.qos-ok",
    (
        60,
        20,
    ): "basic.consume ticket:s queue:S consumer_tag:S no_local:b no_ack:b exclusive:b nowait:b arguments:T",
    (60, 21): "basic.consume-ok consumer_tag:S",
    (60, 30): "basic.cancel consumer_tag:S nowait:b",
    (60, 31): "basic.cancel-ok consumer_tag:S",
    (60, 40): "basic.publish ticket:s exchange:S routing_key:S mandatory:b immediate:b +",
    (60, 50): "basic.return reply_code:s reply_text:S exchange:S routing_key:S +",
    (60, 60): "basic.deliver consumer_tag:S delivery_tag:L redelivered:b exchange:S routing_key:S +",
    (60, 70): "basic.get ticket:s queue:S no_ack:b",
    (60, 71): "basic.get-ok delivery_tag:L redelivered:b exchange:S routing_key:S message_count:l +",
    (60, 72): "basic.get-empty cluster_id:S",
    (60, 80): "basic.ack delivery_tag:L multiple:b",
    (60, 90): "basic.reject delivery_tag:L requeue:b",
    (60, 100): "basic.recover-async requeue:b",
    (60, 110): "basic.recover requeue:b",
    (60, 111): "basic.recover-ok",
    (60, 120): "basic.nack delivery_tag:L multiple:b requeue:b",
    (85, 10): "confirm.select nowait:b",
    (85, 11): "confirm.select-ok",
    (90, 10): "tx.select",
    (90, 11): "tx.select-ok",
    (90, 20): "tx.commit",
    (90, 21): "tx.commit-ok",
    (90, 30): "tx.rollback",
    (90, 31): "tx.rollback-ok",
}


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One AMQP method: its ids, its fields in wire order, and whether content follows it."""

    name: str
    class_id: int
    method_id: int
    fields: tuple[tuple[str, str], ...]
    content: bool


def _specs() -> dict[tuple[int, int], MethodSpec]:
    specs = {}
    for (class_id, method_id), line in _METHODS.items():
        name, *rest = line.split()
        pairs = tuple((part.split(":")[0], part.split(":")[1]) for part in rest if part != "+")
        specs[class_id, method_id] = MethodSpec(name, class_id, method_id, pairs, "+" in rest)
    return specs


SPECS = _specs()
BY_NAME = {spec.name: spec for spec in SPECS.values()}


@dataclass(frozen=True, slots=True)
class T:
    """A table value with an explicit wire tag: ``T("s", 5)`` is a 16-bit 5, ``T(b"?", b"raw")`` sends raw octets."""

    tag: str
    value: Any


_FIXED = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "L": ">q",
    "f": ">f",
    "d": ">d",
}


def _value(value: Any) -> bytes:
    if not isinstance(value, T):
        if value is None:
            value = T("V", None)
        elif isinstance(value, bool):
            value = T("t", value)
        elif isinstance(value, int):
            value = T("I" if -(2**31) <= value < 2**31 else "l", value)
        else:
            value = T({str: "S", bytes: "S", float: "d", list: "A", dict: "F"}[type(value)], value)
    tag, content = value.tag.encode(), value.value
    if value.tag == "V":
        return tag
    if value.tag == "t":
        return tag + (b"\x01" if content else b"\x00")
    if value.tag in _FIXED:
        return tag + struct.pack(_FIXED[value.tag], content)
    if value.tag in "Sx":
        return tag + _longstr(content)
    if value.tag == "T":
        return tag + struct.pack(">Q", content)
    if value.tag == "D":
        return tag + struct.pack(">BI", *content)
    if value.tag == "A":
        return tag + _longstr(b"".join(map(_value, content)))
    if value.tag == "F":
        return tag + table(content)
    return tag + bytes(content)


def _octets(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _longstr(text: str | bytes) -> bytes:
    octets = _octets(text)
    return struct.pack(">I", len(octets)) + octets


def shortstr(text: str | bytes) -> bytes:
    """A length octet and the text."""
    octets = _octets(text)
    return struct.pack(">B", len(octets)) + octets


def table(content: dict[str, Any] | bytes) -> bytes:
    """A field table with its length; `bytes` are taken as the already encoded inside."""
    inside = (
        content
        if isinstance(content, bytes)
        else b"".join(shortstr(k) + _value(v) for k, v in content.items())
    )
    return struct.pack(">I", len(inside)) + inside


class Reader:
    """Takes values off the front of a payload."""

    def __init__(self, payload: bytes) -> None:
        """Read from the first octet of `payload`."""
        self.data, self.at = payload, 0

    def take(self, count: int) -> bytes:
        """The next `count` octets."""
        if self.at + count > len(self.data):
            message = f"short payload {self.data!r}"
            raise ValueError(message)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        """One `struct` value."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def shortstr(self) -> str:
        """A short string as text."""
        return self.take(self.number(">B")).decode("utf-8", "surrogateescape")

    def longstr(self) -> str:
        """A long string as text."""
        return self.take(self.number(">I")).decode("utf-8", "surrogateescape")

    def table(self) -> dict[str, Any]:
        """A field table as a dict of plain values."""
        inner = Reader(self.take(self.number(">I")))
        result = {}
        while inner.at < len(inner.data):
            name = inner.shortstr()
            result[name] = inner.value()
        return result

    def value(self) -> Any:
        """One tagged value."""
        tag = self.take(1).decode("latin-1")
        if tag in _FIXED:
            return self.number(_FIXED[tag])
        if tag == "A":
            inner = Reader(self.take(self.number(">I")))
            items = []
            while inner.at < len(inner.data):
                items.append(inner.value())
            return items
        simple: dict[str, Callable[[], Any]] = {
            "t": lambda: bool(self.number(">B")),
            "S": self.longstr,
            "x": lambda: self.take(self.number(">I")),
            "F": self.table,
            "T": lambda: self.number(">Q"),
            "D": lambda: (self.number(">B"), self.number(">I")),
            "V": lambda: None,
        }
        return simple[tag]()


_NUMBERS = {"o": ">B", "s": ">H", "l": ">I", "L": ">Q"}


def encode_method(name: str, **fields: Any) -> bytes:
    """The payload of one method frame; fields not given are zero or empty."""
    spec = BY_NAME[name]
    unknown = set(fields) - {field_name for field_name, _ in spec.fields}
    if unknown:
        message = f"{name} has no {unknown}"
        raise TypeError(message)
    out = [struct.pack(">HH", spec.class_id, spec.method_id)]
    bits: list[bool] = []
    for field_name, kind in spec.fields:
        if kind == "b":
            bits.append(bool(fields.get(field_name)))
            continue
        if bits:
            out.append(_bits(bits))
            bits = []
        if kind in _NUMBERS:
            out.append(struct.pack(_NUMBERS[kind], fields.get(field_name, 0)))
        elif kind == "S":
            out.append(shortstr(fields.get(field_name, "")))
        elif kind == "X":
            out.append(_longstr(fields.get(field_name, "")))
        else:
            out.append(table(fields.get(field_name, {})))
    if bits:
        out.append(_bits(bits))
    return b"".join(out)


def _bits(bits: Iterable[bool]) -> bytes:
    return bytes([sum(1 << i for i, bit in enumerate(bits) if bit)])


@dataclass(slots=True)
class Message:
    """A received method, with its content where it has any."""

    name: str
    channel: int
    fields: dict[str, Any]
    properties: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def __getattr__(self, name: str) -> Any:
        """Fields of the method read as attributes."""
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


def decode_method(channel: int, payload: bytes) -> Message:
    """The method in a method frame's payload."""
    reader = Reader(payload)
    spec = SPECS[reader.number(">H"), reader.number(">H")]
    fields: dict[str, Any] = {}
    bit = 8
    octet = 0
    for name, kind in spec.fields:
        if kind == "b":
            if bit >= 8:
                octet, bit = reader.number(">B"), 0
            fields[name] = bool(octet >> bit & 1)
            bit += 1
            continue
        bit = 8
        if kind in _NUMBERS:
            fields[name] = reader.number(_NUMBERS[kind])
        else:
            fields[name] = {"S": reader.shortstr, "X": reader.longstr, "T": reader.table}[kind]()
    if reader.at != len(payload):
        message = f"{spec.name} has octets left over"
        raise ValueError(message)
    return Message(spec.name, channel, fields)


_PROPERTIES = (
    ("content_type", "S"), ("content_encoding", "S"), ("headers", "T"), ("delivery_mode", "o"), ("priority", "o"),
    ("correlation_id", "S"), ("reply_to", "S"), ("expiration", "S"), ("message_id", "S"), ("timestamp", "L"),
    ("type", "S"), ("user_id", "S"), ("app_id", "S"), ("cluster_id", "S"),
)  # fmt: skip


def encode_header(size: int, class_id: int = 60, **properties: Any) -> bytes:
    """The payload of a content header frame."""
    flags, out = 0, []
    for index, (name, kind) in enumerate(_PROPERTIES):
        if name not in properties:
            continue
        value = properties.pop(name)
        flags |= 1 << 15 - index
        if kind in _NUMBERS:
            out.append(struct.pack(_NUMBERS[kind], value))
        else:
            out.append(shortstr(value) if kind == "S" else table(value))
    if properties:
        message = f"no such properties: {properties}"
        raise TypeError(message)
    return struct.pack(">HHQH", class_id, 0, size, flags) + b"".join(out)


def decode_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    """Body size and properties of a content header frame's payload."""
    reader = Reader(payload)
    reader.take(4)
    size, flags = reader.number(">Q"), reader.number(">H")
    properties: dict[str, Any] = {}
    for index, (name, kind) in enumerate(_PROPERTIES):
        if flags >> 15 - index & 1:
            if kind in _NUMBERS:
                properties[name] = reader.number(_NUMBERS[kind])
            else:
                properties[name] = reader.shortstr() if kind == "S" else reader.table()
    return size, properties


def frame(kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> bytes:
    """One frame, with any end octet."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])
