"""A small blocking AMQP 0-9-1 client for tests: it can send anything and shows what came back, frame by frame.

It has a codec of its own (the method table below, from the AMQP 0-9-1 XML and RabbitMQ's extensions), so that a mistake
in the broker's codec cannot hide behind the same mistake in the test.
"""

import socket
import struct
import time
from collections import deque
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


class ClosedError(Exception):
    """The broker ended the channel, the connection, or the socket."""

    def __init__(self, level: str, client: "Client", close: Message | None = None) -> None:
        """`level` is "channel", "connection" or "socket"; `close` the method that said so."""
        super().__init__(f"{level} closed: {close.fields if close else 'without a method'}")
        self.level, self.client, self.close = level, client, close


class QuietError(Exception):
    """Nothing came in time."""


ALL_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class Client:
    """One TCP connection to a broker."""

    def __init__(self, address: tuple[str, int], timeout: float = 5.0) -> None:
        """Connect the socket only; `timeout` seconds is the longest any wait takes."""
        self.timeout = timeout
        self.socket = socket.create_connection(address, timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._inbox: deque[Message] = deque()
        self._content: dict[int, tuple[Message, int]] = {}
        self.tune: dict[str, Any] = {}
        self.start: dict[str, Any] = {}

    def close_socket(self) -> None:
        """Drop the connection without a word."""
        self.socket.close()

    # --- sending -----------------------------------------------------------------------------------------------------

    def raw(self, data: bytes) -> None:
        """Send octets as they are."""
        self.socket.sendall(data)

    def frame(self, kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> None:
        """Send one frame."""
        self.raw(frame(kind, channel, payload, end))

    def send(self, channel: int, method: str, **fields: Any) -> None:
        """Send one method without waiting for anything."""
        self.frame(METHOD, channel, encode_method(method, **fields))

    def publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        body: bytes = b"",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Send a whole message in one write."""
        method = encode_method(
            "basic.publish",
            exchange=exchange,
            routing_key=routing_key,
            mandatory=mandatory,
            immediate=immediate,
        )
        room = self.tune.get("frame_max", 131072) - 8
        parts = [
            frame(METHOD, channel, method),
            frame(HEADER, channel, encode_header(len(body), **properties)),
        ]
        parts += [frame(BODY, channel, body[i : i + room]) for i in range(0, len(body), room)]
        self.raw(b"".join(parts))

    # --- receiving ---------------------------------------------------------------------------------------------------

    def read_octets(self, count: int, deadline: float) -> bytes:
        """Exactly `count` octets; ClosedError at the end of the stream, QuietError at the deadline."""
        while len(self._buffer) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise QuietError
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                raise QuietError from None
            except ConnectionError:
                data = b""
            finally:
                self.socket.settimeout(self.timeout)
            if not data:
                level = "socket"
                raise ClosedError(level, self)
            self._buffer += data
        result, self._buffer = self._buffer[:count], self._buffer[count:]
        return result

    def read_frame(self, timeout: float | None = None) -> tuple[int, int, bytes]:
        """The next frame: its type, channel and payload."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        kind, channel, size = struct.unpack(">BHI", self.read_octets(7, deadline))
        payload = self.read_octets(size + 1, deadline)
        assert payload[-1] == FRAME_END, "the broker sent a frame without its end octet"
        return kind, channel, payload[:-1]

    def read_rest(self, timeout: float | None = None) -> bytes:
        """Everything until the broker closes the socket; QuietError if it does not in time."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        out = b""
        try:
            while True:
                out += self.read_octets(1, deadline)
        except ClosedError:
            return out

    def _next(self, timeout: float | None) -> Message:
        """The next whole method (with its content) from the socket; heartbeats are skipped."""
        while True:
            kind, channel, payload = self.read_frame(timeout)
            if kind == METHOD:
                message = decode_method(channel, payload)
                if not BY_NAME[message.name].content:
                    return message
                self._content[channel] = (message, -1)
            elif kind == HEADER:
                message, _ = self._content[channel]
                size, message.properties = decode_header(payload)
                self._content[channel] = (message, size)
            elif kind == BODY:
                message, size = self._content[channel]
                message.body += payload
            else:
                continue
            message, size = self._content[channel]
            if size == len(message.body):
                del self._content[channel]
                return message

    def receive(self, channel: int | None = None, *names: str, timeout: float | None = None) -> Message:
        """The next method on `channel` (None: on any) with one of the names (none given: any).

        A close that was not asked for raises ClosedError; other methods wait in the inbox for a later call.
        """
        for message in self._inbox:
            if channel in {None, message.channel} and (not names or message.name in names):
                self._inbox.remove(message)
                return message
            if message.name == "channel.close" and channel == message.channel:
                self._inbox.remove(message)
                level = "channel"
                raise ClosedError(level, self, message)
        while True:
            message = self._next(timeout)
            if channel in {None, message.channel} and (not names or message.name in names):
                return message
            if message.name == "connection.close":
                level = "connection"
                raise ClosedError(level, self, message)
            if message.name == "channel.close" and channel in {None, message.channel}:
                level = "channel"
                raise ClosedError(level, self, message)
            self._inbox.append(message)

    def quiet(self, channel: int | None = None, *names: str, timeout: float = 0.15) -> bool:
        """Whether nothing of that kind comes within `timeout` seconds."""
        try:
            self.receive(channel, *names, timeout=timeout)
        except QuietError:
            return True
        return False

    def call(self, channel: int, method: str, **fields: Any) -> Message:
        """Send a method and wait for its ``-ok`` (or ``get-empty``)."""
        self.send(channel, method, **fields)
        answers = {"basic.get": ("basic.get-ok", "basic.get-empty")}
        return self.receive(channel, *answers.get(method, (method + "-ok",)))

    # --- handshake ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Send the protocol header and read connection.start."""
        self.raw(PROTOCOL_HEADER)
        self.start = self.receive(0, "connection.start").fields

    def start_ok(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        capabilities: dict[str, bool] | None = None,
    ) -> None:
        """Send connection.start-ok with these credentials."""
        if response is None:
            response = b"\0" + user.encode() + b"\0" + password.encode()
        self.send(
            0,
            "connection.start-ok",
            client_properties={
                "product": "conformance",
                "capabilities": ALL_CAPABILITIES if capabilities is None else capabilities,
            },
            mechanism=mechanism,
            response=response,
            locale="en_US",
        )

    def tune_ok(self, **changes: int) -> None:
        """Read connection.tune and answer with the server's values, changed as given."""
        self.tune = self.receive(0, "connection.tune").fields
        self.tune = {**self.tune, "heartbeat": 0, **changes}
        self.send(0, "connection.tune-ok", **self.tune)

    def open(self, virtual_host: str = "/") -> None:
        """Open the virtual host."""
        self.call(0, "connection.open", virtual_host=virtual_host)

    def login(
        self,
        user: str = "guest",
        password: str = "guest",
        virtual_host: str = "/",
        capabilities: dict[str, bool] | None = None,
        **tune: int,
    ) -> "Client":
        """The whole handshake."""
        self.begin()
        self.start_ok(user, password, capabilities=capabilities)
        self.tune_ok(**tune)
        self.open(virtual_host)
        return self

    def channel(self, number: int = 1) -> "Channel":
        """Open a channel."""
        self.call(number, "channel.open")
        return Channel(self, number)


class Channel:
    """A channel of a client, so that scripts need not repeat its number."""

    def __init__(self, client: Client, number: int) -> None:
        """Speak on channel `number` of `client`, opened or not."""
        self.client, self.number = client, number

    def call(self, method: str, **fields: Any) -> Message:
        """Send a method and wait for its answer."""
        return self.client.call(self.number, method, **fields)

    def send(self, method: str, **fields: Any) -> None:
        """Send a method and wait for nothing."""
        self.client.send(self.number, method, **fields)

    def publish(self, exchange: str, routing_key: str, body: bytes = b"", **rest: Any) -> None:
        """Send a whole message."""
        self.client.publish(self.number, exchange, routing_key, body, **rest)

    def receive(self, *names: str, timeout: float | None = None) -> Message:
        """The next method on this channel with one of the names."""
        return self.client.receive(self.number, *names, timeout=timeout)

    def quiet(self, *names: str, timeout: float = 0.15) -> bool:
        """Whether nothing of that kind comes."""
        return self.client.quiet(self.number, *names, timeout=timeout)

    def sync(self) -> None:
        """Wait until the broker has processed everything sent so far."""
        self.call("exchange.declare", exchange="amq.direct", type="direct", passive=True)

    def queue(self, name: str = "", **fields: Any) -> str:
        """Declare a queue; its name."""
        return str(self.call("queue.declare", queue=name, **fields).queue)

    def exchange(self, name: str, kind: str = "direct", **fields: Any) -> str:
        """Declare an exchange; its name."""
        self.call("exchange.declare", exchange=name, type=kind, **fields)
        return name

    def ready(self, queue: str, expected: int = 0) -> int:
        """How many ready messages a queue has, asked passively.

        RabbitMQ answers this before it handles publishes it has just received: up to a second is given to reach
        `expected`. For what a message must not reach, use `drain`, which is answered in order.
        """
        deadline = time.monotonic() + 1
        while True:
            count = int(self.call("queue.declare", queue=queue, passive=True).message_count)
            if count == expected or time.monotonic() > deadline:
                return count

    def drain(self, queue: str) -> int:
        """Take all messages out of a queue; how many there were."""
        count = 0
        while self.get(queue) is not None:
            count += 1
        return count

    def get(self, queue: str, *, no_ack: bool = True) -> bytes | None:
        """The body of the next message, None when there is none."""
        message = self.call("basic.get", queue=queue, no_ack=no_ack)
        return message.body if message.name == "basic.get-ok" else None

    def consume(self, queue: str, tag: str = "ct", **fields: Any) -> str:
        """Start a consumer; its tag."""
        return str(self.call("basic.consume", queue=queue, consumer_tag=tag, **fields).consumer_tag)

    def deliver(self, timeout: float | None = None) -> Message:
        """The next delivery."""
        return self.receive("basic.deliver", timeout=timeout)
