"""Checks what a broker sends to one client: whole frames, legal methods in legal places, closes as the spec has them."""

import struct

from conformance.codec import BODY, FRAME_END, HEADER, HEARTBEAT, METHOD, SPECS, decode_header, decode_method

SOFT = frozenset((311, 312, 313, 403, 404, 405, 406))
"""Reply codes that close a channel (`amqp0-9-1.xml`, class "soft-error")."""
HARD = frozenset((320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541))
"""Reply codes that close a connection (class "hard-error")."""

_FROM_SERVER = {
    (spec.class_id, spec.method_id): spec
    for spec in SPECS.values()
    if spec.name
    in {
        "connection.start", "connection.tune", "connection.open-ok", "connection.close", "connection.close-ok",
        "connection.blocked", "connection.unblocked", "connection.update-secret-ok",
        "channel.open-ok", "channel.flow-ok", "channel.close", "channel.close-ok", "access.request-ok",
        "exchange.declare-ok", "exchange.delete-ok", "exchange.bind-ok", "exchange.unbind-ok",
        "queue.declare-ok", "queue.bind-ok", "queue.unbind-ok", "queue.purge-ok", "queue.delete-ok",
        "basic.qos-ok", "basic.consume-ok", "basic.cancel", "basic.cancel-ok", "basic.return", "basic.deliver",
        "basic.get-ok", "basic.get-empty", "basic.recover-ok", "basic.ack", "basic.nack",
        "confirm.select-ok", "tx.select-ok", "tx.commit-ok", "tx.rollback-ok",
    }
}  # fmt: skip
LARGEST_HEADER = 131072
"""Octets of the largest content header that a publisher can send: the broker's own frame_max and its grace of 8 octets.

It has to reach consumers who have agreed on less, and AMQP has no way to split it.
"""
_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_head = struct.Struct(">BHI").unpack_from
_ids = struct.Struct(">HH").unpack_from


class ReplyError(Exception):
    """The broker sent what it must not."""


class Replies:
    """The replies on one connection.

    `feed` raises ReplyError for what a broker must not send.

    Args:
        frame_max: the largest frame, as agreed on in the handshake, octets; content headers may exceed it.
        record: whether to keep the methods of each channel.

    """

    __slots__ = (
        "_buffer", "_closed_channels", "_confirmed_above", "_content", "_frame_max", "_started", "closed", "confirmed", "methods", "opened", "record",
    )  # fmt: skip

    def __init__(self, *, frame_max: int = 131072, record: bool = False) -> None:
        self.record = record
        self._frame_max = frame_max
        self.methods: dict[int, list[str]] = {}
        """The replies with `record`, by channel, confirms left out."""
        self.confirmed: dict[int, int] = {}
        """The number up to which every publish is confirmed, by channel."""
        self._confirmed_above: dict[int, set[int]] = {}
        self.closed: tuple[int, str] | None = None
        """Code and text of the connection.close that came."""
        self.opened = False
        self._started = False
        self._buffer = b""
        self._content: dict[int, int] = {}  # channel: octets of body still to come, -1 for a header
        self._closed_channels: set[int] = set()

    @property
    def whole(self) -> bool:
        """Return whether the octets so far end between two frames."""
        return not self._buffer

    def feed(self, data: bytes) -> None:
        """Take octets as they come."""
        if self._buffer:
            data = self._buffer + data
        at, size = 0, len(data)
        while size - at >= 8:
            if not self._started and data.startswith(_PROTOCOL_HEADER):
                if size > 8:
                    raise ReplyError(f"octets after the protocol header: {data[8:40]!r}")
                self._started, at = True, 8
                break
            kind, number, length = _head(data, at)
            if length > (LARGEST_HEADER if kind == HEADER else self._frame_max - 8):
                raise ReplyError(f"frame of {length} octets, {self._frame_max} were agreed")
            end = at + 8 + length
            if end > size:
                break
            if data[end - 1] != FRAME_END:
                raise ReplyError(f"frame end is {data[end - 1]}")
            self._frame(kind, number, data[at + 7 : end - 1])
            at = end
        self._buffer = data[at:]

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == METHOD:
            self._method(number, payload)
        elif kind == HEARTBEAT:
            if number or payload:
                raise ReplyError("heartbeat with a channel or a payload")
        elif kind == HEADER:
            if self._content.get(number) != -1:
                raise ReplyError(f"content header out of place on channel {number}")
            self._expect_body(number, decode_header(payload)[0])
        elif kind == BODY:
            left = self._content.get(number, 0)
            if left < len(payload) or not payload:
                raise ReplyError(f"body of {len(payload)} octets where {left} are to come")
            self._expect_body(number, left - len(payload))
        else:
            raise ReplyError(f"frame of type {kind}")

    def _expect_body(self, number: int, left: int) -> None:
        if left:
            self._content[number] = left
        else:
            del self._content[number]

    def _method(self, number: int, payload: bytes) -> None:
        if len(payload) < 4:
            raise ReplyError(f"method frame of {len(payload)} octets")
        ids = _ids(payload)
        spec = _FROM_SERVER.get(ids)
        if spec is None:
            raise ReplyError(f"method {ids} is not a server's")
        if bool(number) == (spec.class_id == 10):
            raise ReplyError(f"{spec.name} on channel {number}")
        if number in self._content:
            raise ReplyError(f"{spec.name} amid content on channel {number}")
        name = spec.name
        message = decode_method(number, payload)
        if self.closed is not None and name != "connection.close-ok":
            raise ReplyError(f"{name} after connection.close {self.closed}")
        if number in self._closed_channels:
            if name not in {"channel.open-ok", "channel.close-ok"}:
                raise ReplyError(f"{name} on channel {number}, which is closed")
            if name == "channel.open-ok":
                self._closed_channels.discard(number)
        if spec.content:
            self._content[number] = -1
        elif name in {"basic.ack", "basic.nack"}:
            self._confirm(number, message.fields["delivery_tag"], multiple=message.fields["multiple"])
            return
        elif name == "channel.close":
            if message.fields["reply_code"] not in SOFT:
                raise ReplyError(f"channel.close with code {message.fields['reply_code']}")
            self._closed_channels.add(number)
        elif name == "channel.open-ok":
            self.confirmed.pop(number, None)
            self._confirmed_above.pop(number, None)
        elif name == "connection.close":
            self._close(message.fields["reply_code"], message.fields["reply_text"])
        elif name == "connection.open-ok":
            self.opened = True
        elif name == "connection.start":
            self._started = True
        if self.record:
            self.methods.setdefault(number, []).append(name)

    def _confirm(self, number: int, tag: int, *, multiple: bool) -> None:
        low, above = self.confirmed.get(number, 0), self._confirmed_above.setdefault(number, set())
        if tag <= low or tag in above:
            raise ReplyError(f"confirm of {tag}, which is confirmed")
        if not above and (multiple or tag == low + 1):
            self.confirmed[number] = tag
            return
        above.add(tag)
        if multiple:
            low = tag
        while low + 1 in above:
            low += 1
        self.confirmed[number] = low
        self._confirmed_above[number] = {one for one in above if one > low}

    def _close(self, code: int, text: str) -> None:
        if code not in HARD and not (code == 403 and not self.opened):
            raise ReplyError(f"connection.close with code {code}")
        self.closed = code, text
