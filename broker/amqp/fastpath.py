"""Hand-packed frames of the hot path: publish, deliver, ack and their content.

An optimisation with an oracle: for every input the octets equal those that `codec` (and pamqp) would write; a
property test checks this. Anything unusual is left to `codec`.

Hot path: see docs/performance.md.
"""

from collections.abc import Iterable
from struct import Struct

FRAME_END = 0xCE
FRAME_OVERHEAD = 8  # type, channel, size, end octet

TYPE_METHOD = 1
TYPE_HEADER = 2
TYPE_BODY = 3
TYPE_HEARTBEAT = 8

BASIC_PUBLISH = 60 << 16 | 40
BASIC_ACK = 60 << 16 | 80
BASIC_CLASS = 60 << 16  # content header: class 60, weight 0

unpack_frame = Struct(">BHI").unpack_from  # type, channel, payload size
unpack_method = Struct(">BHII").unpack_from  # type, channel, payload size, class and method as one number
unpack_header = Struct(">BHIIQH").unpack_from
"""Type, channel, payload size, class and weight as one number, body size, first property flags."""
unpack_ack = Struct(">QBB").unpack_from  # delivery tag, multiple, frame end
unpack_acks = Struct(">11sQH").iter_unpack
"""Of each ack what is before its tag, the tag, `multiple` and the frame end as one number."""
pack_tag = Struct(">Q").pack
_pack_frame = Struct(">BHI").pack
_pack_ack = Struct(">BHIHHQBB").pack
_pack_short = Struct(">H").pack

SPLIT_LIMIT = 64 * 1024  # bytes of a content from which `reframed` passes it by reference in parts

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def shortstr(text: str) -> bytes:
    """Encode a shortstr; the caller must ensure that the text encodes to at most 255 octets."""
    octets = text.encode("utf-8", "surrogateescape")
    return bytes((len(octets),)) + octets


def split_address(address: bytes) -> tuple[str, str]:
    """Return the exchange and the routing key of an address, which are two short strings on the wire."""
    at = 1 + address[0]
    return (
        address[1:at].decode("utf-8", "surrogateescape"),
        address[at + 1 :].decode("utf-8", "surrogateescape"),
    )


def join_address(exchange: str, routing_key: str) -> bytes:
    """Return the address of an exchange and a routing key, each cut off at 255 octets."""
    parts = [text.encode("utf-8", "surrogateescape")[:255] for text in (exchange, routing_key)]
    return b"".join([bytes((len(part),)) + part for part in parts])


def body_size_of(header: bytes) -> int:
    """Return the body size, in octets, that a content header frame declares."""
    size: int = unpack_header(header, 0)[4]
    return size


def pack_confirm(number: int, delivery_tag: int, *, multiple: bool, ack: bool) -> bytes:
    """Encode a `basic.ack` or `basic.nack` frame to a publisher; a nack has `requeue` set, as in RabbitMQ."""
    return pack_confirms(number, ((delivery_tag, multiple, ack),))[0]


def pack_confirms(number: int, confirms: Iterable[tuple[int, bool, bool]]) -> list[bytes]:
    """Encode the frames of several confirms: of each the delivery tag, `multiple`, and true for an ack."""
    return [
        _pack_ack(TYPE_METHOD, number, 13, 60, 80, tag, multiple, FRAME_END)
        if is_ack
        else _pack_ack(TYPE_METHOD, number, 13, 60, 120, tag, multiple | 2, FRAME_END)
        for tag, multiple, is_ack in confirms
    ]


def deliver_head(number: int, consumer_tag: str, address_size: int) -> bytes:
    """Return a `basic.deliver` up to the tag; it, the redelivered byte, the address and the frame end follow."""
    tag = shortstr(consumer_tag)
    return _pack_frame(TYPE_METHOD, number, 4 + len(tag) + 8 + 1 + address_size) + b"\x00\x3c\x00\x3c" + tag


def pack_get_ok(
    number: int, delivery_tag: int, address: bytes, message_count: int, *, redelivered: bool
) -> bytes:
    """Encode a `basic.get-ok` frame."""
    size = 4 + 8 + 1 + len(address) + 4
    return b"".join(
        (
            _pack_frame(TYPE_METHOD, number, size),
            b"\x00\x3c\x00\x47",
            pack_tag(delivery_tag),
            b"\x01" if redelivered else b"\x00",
            address,
            message_count.to_bytes(4, "big"),
            b"\xce",
        )
    )


def pack_return(number: int, reply_code: int, reply_text: str, address: bytes) -> bytes:
    """Encode a `basic.return` frame."""
    text = shortstr(reply_text)
    return b"".join(
        (
            _pack_frame(TYPE_METHOD, number, 4 + 2 + len(text) + len(address)),
            b"\x00\x3c\x00\x32",
            _pack_short(reply_code),
            text,
            address,
            b"\xce",
        )
    )


def content_frames(number: int, frame_max: int, header: bytes, body: bytes) -> bytes:
    """Encode a content header frame and as many body frames as `frame_max` (octets, 0 = no limit) requires.

    The header is one frame of any size: AMQP cannot split it, and RabbitMQ sends it the same way.
    """
    parts = [_pack_frame(TYPE_HEADER, number, len(header)), header, b"\xce"]
    step = frame_max - FRAME_OVERHEAD if frame_max else len(body) or 1
    for at in range(0, len(body), step):
        chunk = body[at : at + step]
        parts += _pack_frame(TYPE_BODY, number, len(chunk)), chunk, b"\xce"
    return b"".join(parts)


def reframe(content: bytes, number: int, frame_max: int) -> bytes:
    """Return the content for another channel, its body split again if a frame exceeds `frame_max` (0: no limit)."""
    short = _pack_short(number)
    if content[1:3] == short and (not frame_max or len(content) <= frame_max):
        return content
    (size,) = _unpack_size(content, 3)
    stop = size + FRAME_OVERHEAD
    if stop < len(content):
        (size,) = _unpack_size(content, stop + 3)
        if stop + size + FRAME_OVERHEAD == len(content) and (
            not frame_max or size + FRAME_OVERHEAD <= frame_max
        ):
            return b"\x02%b%b\x03%b%b" % (short, content[3:stop], short, content[stop + 3 :])
    out = [b"\x02", short, content[3:stop]]
    at, end = stop, len(content)
    while at < end:
        (size,) = _unpack_size(content, at + 3)
        stop = at + size + FRAME_OVERHEAD
        if frame_max and size + FRAME_OVERHEAD > frame_max:
            return _split(content, number, frame_max)
        out += content[at : at + 1], short, content[at + 3 : stop]
        at = stop
    return b"".join(out)


def body_start(content: bytes) -> int:
    """Return the number of bytes before the body, or 0 if the body has more than one frame."""
    stop = _unpack_size(content, 3)[0] + FRAME_OVERHEAD
    if stop == len(content):
        return int(stop)
    if stop + _unpack_size(content, stop + 3)[0] + FRAME_OVERHEAD == len(content):
        return int(stop) + FRAME_OVERHEAD - 1
    return 0


def reframed(content: bytes, number: int, frame_max: int) -> list[bytes | memoryview]:
    """Like `reframe`, but for large contents: return buffers to be written in order, without a copy of the body.

    A body frame that exceeds `frame_max` is split at that size; its last part is not joined with the next frame.
    """
    short = _pack_short(number)
    view = memoryview(content)
    limit = frame_max - FRAME_OVERHEAD if frame_max else len(content)
    at, end = _unpack_size(content, 3)[0] + FRAME_OVERHEAD, len(content)
    out: list[bytes | memoryview] = [b"\x02%b%b" % (short, content[3:at])]
    fits = content[1:3] == short
    while at < end:
        (size,) = _unpack_size(content, at + 3)
        body, stop = at + FRAME_OVERHEAD - 1, at + size + FRAME_OVERHEAD
        fits = fits and size <= limit
        while body + limit < stop - 1:
            out += b"\x03%b%b" % (short, _pack_size(limit)), view[body : body + limit], b"\xce"
            body += limit
        out += b"\x03%b%b" % (short, _pack_size(stop - 1 - body)), view[body:stop]
        at = stop
    return [content] if fits else out


_unpack_size = Struct(">I").unpack_from
_pack_size = Struct(">I").pack


def _split(content: bytes, number: int, frame_max: int) -> bytes:
    (size,) = _unpack_size(content, 3)
    header = content[7 : 7 + size]
    at = size + FRAME_OVERHEAD
    body = []
    while at < len(content):
        (size,) = _unpack_size(content, at + 3)
        body.append(content[at + 7 : at + 7 + size])
        at += size + FRAME_OVERHEAD
    return content_frames(number, frame_max, header, b"".join(body))
