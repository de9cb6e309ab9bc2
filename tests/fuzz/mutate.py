"""Mutations of valid sessions: what a broken or hostile client would send."""

import struct
from collections.abc import Callable
from random import Random

from conformance.codec import BODY, HEADER, HEARTBEAT, METHOD, SPECS, encode_header, frame
from fuzz.grammar import CLIENT_METHODS, Script, random_method

OCTETS = (0, 1, 2, 7, 0x7F, 0x80, 0xFE, 0xFF)
SHORTS = (0, 1, 255, 256, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)
LONGS = (0, 1, 7, 8, 4095, 4096, 131064, 131072, 131080, 131081, 2**31 - 1, 2**31, 2**32 - 1)
LONGLONGS = (*LONGS, 134217728, 134217729, 536870912, 536870913, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    b"", b"\0", b"a" * 255, b"\xff\xfe", b"\xed\xa0\x80", b"\r\n", b"amq.", b"amq.direct", b"#" * 255, b"#.#.#.#.#.#.#",
    b"amq.rabbitmq.reply-to", b"amq.rabbitmq.reply-to.g1h2AA5yZXBseUA", b"shared0", b"' OR 1=1", b"%s%n{0}", b"*.*",
    "\N{SNOWMAN}".encode() * 85, b"." * 255, b"-1", b"99999999999999999999",
)  # fmt: skip
_NUMBERS = {"o": (">B", OCTETS), "s": (">H", SHORTS), "l": (">I", LONGS), "L": (">Q", LONGLONGS)}


def deep_table(depth: int) -> bytes:
    """A field table with that many tables inside each other, as octets."""
    octets = struct.pack(">I", 0)
    for _ in range(depth):
        inside = b"\x01tF" + octets
        octets = struct.pack(">I", len(inside)) + inside
    return octets


def deep_array(depth: int) -> bytes:
    """A field table with that many arrays inside each other, as octets."""
    octets = struct.pack(">I", 0)
    for _ in range(depth):
        inside = b"A" + octets
        octets = struct.pack(">I", len(inside)) + inside
    inside = b"\x01a" + b"A" + octets
    return struct.pack(">I", len(inside)) + inside


def _table(inside: bytes) -> bytes:
    return struct.pack(">I", len(inside)) + inside


def _bombs() -> tuple[bytes, ...]:
    many = [
        b"".join(b"\x04" + b"%04x" % i + b"V" for i in range(count)) for count in (4095, 4096, 4097, 20000)
    ]
    voids = b"\x01a" + b"A" + _table(b"V" * 100_000)
    return (
        *(deep_table(depth) for depth in (31, 32, 33, 100, 1000, 10000)),
        *(deep_array(depth) for depth in (30, 31, 32, 1000, 10000)),
        *map(_table, many),
        _table(voids),
        struct.pack(">I", 2**32 - 1),
        struct.pack(">I", 5) + b"\x01aS",
        _table(b"\x01aS" + struct.pack(">I", 2**31) + b"x"),
        _table(b"\x01aA" + struct.pack(">I", 2**32 - 1)),
        _table(b"\x01aF" + struct.pack(">I", 100) + b"\x01bV"),
        _table(b"\xffa"),
        _table(b"\x01a"),
        _table(b"\x01a?"),
        _table(b"\x01ax" + struct.pack(">I", 0)),
        _table(b"\x00V" * 500),
        _table(b"\x01ad" + b"\x7f\xf8\0\0\0\0\0\0"),
        _table(b"\x01af" + b"\x7f\x80\0\0"),
        _table(b"\x02CCV"),
        _table(b"\x02CCA" + _table(b"V" * 100)),
        _table(b"\x02CCA" + _table((b"S" + _table(b"shared0")) * 200)),
        _table(b"\x03BCCA" + _table(b"I\0\0\0\1")),
        _table(b"\x07x-matchI\0\0\0\1"),
        _table(b"\x07x-matchS" + _table(b"none")),
        _table(b"\x12alternate-exchangeV"),
        _table(b"\x12alternate-exchangeS" + _table(b"sx.direct0")),
        _table(b"\x16x-dead-letter-exchangeA" + _table(b"")),
        _table(b"\x0cx-max-lengthl" + b"\xff" * 8),
        _table(b"\x0ax-priorityS" + _table(b"5")),
    )  # fmt: skip


BOMBS = _bombs()
GARBAGE_FRAMES = (
    frame(METHOD, 0, b""),
    frame(METHOD, 1, b"\0\x0a"),
    frame(METHOD, 0, struct.pack(">HH", 10, 10)),
    frame(METHOD, 0, struct.pack(">HH", 10, 20) + struct.pack(">I", 3) + b"abc"),
    frame(METHOD, 0, struct.pack(">HH", 10, 51)),
    frame(METHOD, 0, struct.pack(">HH", 10, 61)),
    frame(METHOD, 1, struct.pack(">HH", 60, 60) + b"\1t" + b"\0" * 8 + b"\0\0\0"),
    frame(METHOD, 1, struct.pack(">HH", 60, 80) + b"\0" * 7 + b"\1\0"),
    frame(METHOD, 1, struct.pack(">HH", 61, 1)),
    frame(METHOD, 1, struct.pack(">HH", 0, 0)),
    frame(METHOD, 1, struct.pack(">HH", 65535, 65535)),
    frame(METHOD, 1, struct.pack(">HH", 20, 41)),
    frame(METHOD, 1, struct.pack(">HH", 20, 11) + b"\0\0\0\0"),
    frame(METHOD, 1, struct.pack(">HHB", 20, 20, 0)),
    frame(METHOD, 1, struct.pack(">HHIHB", 60, 10, 1, 1, 0)),
    frame(METHOD, 1, struct.pack(">HHB", 60, 110, 0)),
    frame(METHOD, 1, struct.pack(">HH", 10, 50) + b"\0\xc8\0\0\0\0\0"),
    frame(METHOD, 0, struct.pack(">HH", 20, 10) + b"\0"),
    frame(HEADER, 1, encode_header(0)),
    frame(HEADER, 1, encode_header(5, class_id=10)),
    frame(HEADER, 1, b"\0<\0\0"),
    frame(HEADER, 0, encode_header(1)),
    frame(BODY, 1, b"stray"),
    frame(BODY, 1, b""),
    frame(BODY, 0, b"stray"),
    frame(HEARTBEAT, 0, b""),
    frame(HEARTBEAT, 0, b"x"),
    frame(HEARTBEAT, 1, b""),
    frame(4, 1, b"oob"),
    frame(0, 0, b""),
    frame(255, 65535, b"?"),
    b"AMQP\x00\x00\x09\x01",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\xce" * 9,
    frame(METHOD, 1, b"\0\x32\0\x0a" + b"\0" * 131060),
    frame(BODY, 1, b"b" * 131072),
    frame(BODY, 1, b"b" * 131073),
)

Spans = list[tuple[str, int, int]]


def field_spans(payload: bytes) -> Spans:
    """Type, start and end of each field of a method payload made by this package; runs of bits are one field."""
    spec = SPECS.get(struct.unpack_from(">HH", payload)) if len(payload) >= 4 else None
    if spec is None:
        return []
    spans: Spans = []
    at, in_bits = 4, False
    for _, kind in spec.fields:
        if kind == "b":
            if not in_bits:
                spans.append(("o", at, at + 1))
                at += 1
            in_bits = True
            continue
        in_bits = False
        if kind in _NUMBERS:
            size = struct.calcsize(_NUMBERS[kind][0])
        elif at >= len(payload):
            return []  # mutated before
        elif kind == "S":
            size = 1 + payload[at]
        else:
            size = 4 + int.from_bytes(payload[at : at + 4], "big")
        spans.append((kind, at, at + size))
        at += size
    return spans if at == len(payload) else []


def _interesting(rng: Random, kind: str) -> bytes:
    if kind in _NUMBERS:
        form, values = _NUMBERS[kind]
        return struct.pack(form, rng.choice(values))
    if kind == "T":
        return rng.choice(BOMBS)
    octets = rng.choice(TEXTS)
    return (struct.pack(">B", len(octets)) if kind == "S" else struct.pack(">I", len(octets))) + octets


def _payload(octets: bytes) -> bytes:
    return octets[7:-1]


def _reframe(octets: bytes, payload: bytes) -> bytes:
    """The frame with another payload and the length that fits it."""
    return octets[:3] + struct.pack(">I", len(payload)) + payload + octets[-1:]


class Mutator:
    """Mutates the frames of one session.

    Args:
        rng: all choices come from it.
        frames: the session, changed in place.
        first: index of the first frame that may change.

    """

    __slots__ = ("_first", "_frames", "_rng")

    def __init__(self, rng: Random, frames: list[bytes], first: int) -> None:
        self._rng = rng
        self._frames = frames
        self._first = first

    def mutate(self, times: int) -> list[str]:
        """Apply that many mutations; their names."""
        names = []
        for _ in range(times):
            mutation = self._rng.choice(self._MUTATIONS)
            if len(self._frames) > self._first:
                mutation(self)
                names.append(mutation.__name__[1:])
        return names

    def _at(self) -> int:
        return self._rng.randrange(self._first, len(self._frames))

    def _flip_bits(self) -> None:
        at = self._at()
        octets = bytearray(self._frames[at])
        for _ in range(self._rng.choice((1, 1, 1, 2, 4, 8))):
            octets[self._rng.randrange(len(octets))] ^= 1 << self._rng.randrange(8)
        self._frames[at] = bytes(octets)

    def _set_octet(self) -> None:
        at = self._at()
        octets = bytearray(self._frames[at])
        octets[self._rng.randrange(len(octets))] = self._rng.choice(OCTETS)
        self._frames[at] = bytes(octets)

    def _frame_length(self) -> None:
        at = self._at()
        octets = self._frames[at]
        length = int.from_bytes(octets[3:7], "big")
        rng = self._rng
        length = rng.choice((length + 1, length - 1, length + 8, length * 2, rng.choice(LONGS))) % 2**32
        self._frames[at] = octets[:3] + struct.pack(">I", length) + octets[7:]

    def _field(self) -> None:
        """Another value in a field of a method, of the field's own type."""
        rng = self._rng
        for _ in range(5):
            at = self._at()
            octets = self._frames[at]
            payload = _payload(octets)
            spans = field_spans(payload) if octets[:1] == b"\x01" else []
            if spans:
                kind, start, stop = rng.choice(spans)
                self._frames[at] = _reframe(
                    octets, payload[:start] + _interesting(rng, kind) + payload[stop:]
                )
                return

    def _field_length(self) -> None:
        """A wrong length in front of a string or table."""
        rng = self._rng
        for _ in range(5):
            at = self._at()
            octets = self._frames[at]
            spans = field_spans(_payload(octets)) if octets[:1] == b"\x01" else []
            spans = [span for span in spans if span[0] in "SXT"]
            if spans:
                kind, start, _ = rng.choice(spans)
                start += 7
                length = bytes([rng.choice(OCTETS)]) if kind == "S" else struct.pack(">I", rng.choice(LONGS))
                self._frames[at] = octets[:start] + length + octets[start + len(length) :]
                return

    def _bomb(self) -> None:
        """A table that is too much, in a method or in a message's headers."""
        rng = self._rng
        if rng.random() < 0.4:
            at = self._at()
            number = int.from_bytes(self._frames[at][1:3], "big")
            header = encode_header(rng.choice((0, 0, 3)), headers=b"")
            bombed = frame(HEADER, number, header[:14] + rng.choice(BOMBS))
            self._frames[at:at] = [
                frame(METHOD, number, struct.pack(">HHHB", 60, 40, 0, 0) + b"\x07shared0\0"),
                bombed,
            ]
            return
        for _ in range(10):
            at = self._at()
            octets = self._frames[at]
            payload = _payload(octets)
            spans = field_spans(payload) if octets[:1] == b"\x01" else []
            tables = [span for span in spans if span[0] == "T"]
            if tables:
                _, start, stop = tables[0]
                self._frames[at] = _reframe(octets, payload[:start] + rng.choice(BOMBS) + payload[stop:])
                return

    def _truncate_payload(self) -> None:
        at = self._at()
        octets = self._frames[at]
        payload = _payload(octets)
        self._frames[at] = _reframe(octets, payload[: self._rng.randrange(len(payload) + 1)])

    def _extend_payload(self) -> None:
        at = self._at()
        octets = self._frames[at]
        self._frames[at] = _reframe(
            octets, _payload(octets) + self._rng.randbytes(self._rng.randrange(1, 20))
        )

    def _truncate_stream(self) -> None:
        at = self._at()
        octets = self._frames[at]
        del self._frames[at + 1 :]
        self._frames[at] = octets[: self._rng.randrange(1, len(octets) + 1)]

    def _cut_octets(self) -> None:
        at = self._at()
        octets = self._frames[at]
        start = self._rng.randrange(len(octets))
        self._frames[at] = octets[:start] + octets[start + self._rng.randrange(1, 9) :] or b"\0"

    def _drop(self) -> None:
        if len(self._frames) > self._first + 1:
            del self._frames[self._at()]

    def _duplicate(self) -> None:
        at = self._at()
        self._frames[at:at] = [self._frames[at]] * self._rng.choice((1, 1, 1, 2, 20))

    def _swap(self) -> None:
        one, other = self._at(), self._at()
        self._frames[one], self._frames[other] = self._frames[other], self._frames[one]

    def _shuffle(self) -> None:
        at = self._at()
        some = self._frames[at : at + 6]
        self._rng.shuffle(some)
        self._frames[at : at + 6] = some

    def _insert_garbage(self) -> None:
        self._frames.insert(self._at(), self._rng.choice(GARBAGE_FRAMES))

    def _insert_octets(self) -> None:
        self._frames.insert(self._at(), self._rng.randbytes(self._rng.randrange(1, 40)))

    def _insert_method(self) -> None:
        """A method of a client that has no business there, also where content is awaited."""
        rng = self._rng
        method = rng.choice(CLIENT_METHODS)
        number = rng.choice((1, 1, 1, 2, 3, 0))
        self._frames.insert(self._at(), frame(METHOD, number, random_method(rng, method, "inserted")))

    def _channel_number(self) -> None:
        at = self._at()
        octets = self._frames[at]
        number = self._rng.choice((0, 1, 2, 3, 4, 2047, 2048, 65535))
        self._frames[at] = octets[:1] + struct.pack(">H", number) + octets[3:]

    def _frame_type(self) -> None:
        at = self._at()
        kind = self._rng.choice((0, 1, 2, 3, 4, 8, 9, 65, 206, 255))
        self._frames[at] = bytes([kind]) + self._frames[at][1:]

    def _frame_end(self) -> None:
        at = self._at()
        self._frames[at] = self._frames[at][:-1] + bytes([self._rng.choice((0, 0xCD, 0xCF, 1, 255))])

    def _content_header(self) -> None:
        """Class, weight, body size or property flags of a content header."""
        rng = self._rng
        headers = [at for at in range(self._first, len(self._frames)) if self._frames[at][:1] == b"\x02"]
        if not headers:
            return
        at = rng.choice(headers)
        octets = self._frames[at]
        if len(octets) < 22:
            return
        payload = bytearray(_payload(octets))
        what = rng.randrange(5)
        if what == 0:
            payload[0:2] = struct.pack(">H", rng.choice((0, 10, 50, 59, 61, 65535)))
        elif what == 1:
            payload[2:4] = struct.pack(">H", rng.choice((1, 255, 65535)))
        elif what <= 3:
            size = int.from_bytes(payload[4:12], "big")
            size = rng.choice((size + 1, max(0, size - 1), 0, rng.choice(LONGLONGS)))
            payload[4:12] = struct.pack(">Q", size)
        else:
            payload[12:14] = struct.pack(
                ">H", rng.choice((1, 2, 0x8000, 0x2000, 0xFFFE, 0xFFFF, 0x0010, 0x0100))
            )
        self._frames[at] = _reframe(octets, bytes(payload))

    _MUTATIONS: tuple[Callable[["Mutator"], None], ...] = (
        _flip_bits, _flip_bits, _set_octet, _set_octet, _frame_length, _field, _field, _field, _field_length, _bomb,
        _truncate_payload, _extend_payload, _truncate_stream, _cut_octets, _drop, _duplicate, _swap, _shuffle,
        _insert_garbage, _insert_garbage, _insert_octets, _insert_method, _insert_method, _channel_number,
        _frame_type, _frame_end, _content_header, _content_header,
    )  # fmt: skip


def mutated(script: Script, *, after_open: bool) -> list[str]:
    """Mutate a script once to three times, behind its first `channel.open` or in the handshake; the mutations' names."""
    rng, frames, first = script.rng, script.frames, script.first_channel_frame
    times = rng.choice((1, 1, 2, 3))
    if after_open:
        return Mutator(rng, frames, first + 1).mutate(times)
    handshake = frames[:first]
    names = Mutator(rng, handshake, 0).mutate(times)
    frames[:first] = handshake
    return names
