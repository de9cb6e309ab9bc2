"""Forwards deliveries of one channel as publishes on another, and confirms as acks. No socket, no clock.

Theory. Both channels have number 1, and what is delivered goes on in the same order: the n-th delivery is the n-th
publish, so a delivery tag and the sequence number of its publish are equal, and a confirm is an ack of the same number.
The frames of a content are passed on as they are, large bodies frame by frame as they arrive: memory is needed for one
read and for nothing else. The destination's frames may not be smaller than the source's; the code that connects ensures
that.

What is passed on becomes frames of a connection that may do what its login may, within this broker often everything.
So nothing is passed on but the header and the body of a delivery on its channel, each frame of the type that comes
next, and exactly as much as the header says.

`Deliveries` is the receiving side of the source's connection, `Settlements` that of the destination's, and `Forwarding`
what they share. Whoever drives them calls `take_publishes` and `take_settlements` after each read.
"""

from collections.abc import Callable
from struct import Struct

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import (
    BASIC_ACK,
    FRAME_END,
    FRAME_OVERHEAD,
    TYPE_BODY,
    TYPE_HEADER,
    TYPE_METHOD,
    pack_confirm,
    unpack_ack,
    unpack_frame,
    unpack_header,
    unpack_method,
)
from leveret.broker.client.errors import UnreachableError
from leveret.broker.client.frames import FIELDS_AT, SMALL_PIECE, Incoming
from leveret.broker.shovel.definition import ON_CONFIRM, ON_PUBLISH, Rewrite

CHANNEL = 1
BASIC_DELIVER = Basic.Deliver.index
BASIC_NACK = Basic.Nack.index
PREFIXES = 1024  # addresses whose publish frames are kept
HEAD = 22  # bytes of a content header frame up to the flags of its properties, with those
PAYLOAD_AT = 7
LEAST_HEADER = 14  # bytes of the payload of a content header without properties
MOST_GAPS = 65_536  # messages that may be confirmed before an earlier one: their numbers are kept

_unpack_tag = Struct(">Q").unpack_from
_pack_frame = Struct(">BHI").pack


class Forwarding:
    """The messages under way between two channels, by this exchange and key; None for those of each message."""

    def __init__(self, ack_mode: str, exchange: str | None, routing_key: str | None) -> None:
        self._ack_mode = ack_mode
        self._exchange = exchange
        self._routing_key = routing_key
        self.rewrite: Rewrite | None = None  # changes the properties of messages; None: they stay as they are
        self.most: int | None = None  # number of messages after which none are published; None for no limit
        self.published = 0  # number of messages that were begun to be published
        self.settled = 0  # those that need no more: confirmed, or published where nothing is confirmed
        self.refused = 0  # number of those that the destination has nacked; they return to their queue
        self._prefixes: dict[bytes, bytes] = {}
        self._publishes: list[bytes] = []
        self._settlements: list[bytes] = []
        self._low = 0  # all sequence numbers up to this one are confirmed or nacked
        self._above: set[int] = set()  # those beyond that are, too
        self._ack_up_to = 0  # last delivery up to which all are to be acked at once; 0 for none

    @property
    def unconfirmed(self) -> int:
        """Number of messages under way: begun, and neither settled nor refused."""
        if self._ack_mode != ON_CONFIRM:
            return self.published - self.settled
        return self.published - self._low - len(self._above)

    @property
    def is_complete(self) -> bool:
        """True if as many messages as there may be are published, and none is under way."""
        return self.most is not None and self.published >= self.most and not self.unconfirmed

    # -- from the source ------------------------------------------------------------------------------------------

    def begin(self, tag: int, address: bytes) -> bool:
        """Begin to publish the next delivery; returns False if it is one too many, which stays unacked.

        Raises UnreachableError if its delivery tag is not the next one.
        """
        if self.most is not None and self.published >= self.most:
            return False
        if tag != self.published + 1:
            raise UnreachableError(f"the broker sent delivery tag {tag} instead of {self.published + 1}")
        self.published = tag
        prefix = self._prefixes.get(address)
        self._publishes.append(self._prefix(address) if prefix is None else prefix)
        return True

    def add(self, frames: bytes) -> None:
        """Pass on frames of the content that was begun."""
        self._publishes.append(frames)

    def _prefix(self, address: bytes) -> bytes:
        """Return the publish frame for messages with this exchange and routing key, as they are on the wire."""
        size = address[0]
        if size + 2 > len(address) or size + 2 + address[1 + size] != len(address):
            raise UnreachableError("the broker sent a delivery whose lengths lead out of it")
        exchange = address[1 : 1 + size].decode("utf-8", "surrogateescape")
        key = address[2 + size :].decode("utf-8", "surrogateescape")
        exchange = exchange if self._exchange is None else self._exchange
        key = key if self._routing_key is None else self._routing_key
        prefix = encode_method(CHANNEL, make(Basic.Publish, 0, exchange, key, False, False))
        if len(self._prefixes) >= PREFIXES:
            self._prefixes.clear()
        self._prefixes[address] = prefix
        return prefix

    def take_publishes(self) -> bytes:
        """Return the frames for the destination."""
        if not self._publishes:
            return b""
        frames = b"".join(self._publishes)
        self._publishes.clear()
        return frames

    def sent(self, *, is_open: bool) -> None:
        """Note that all taken was sent (the last in part if it `is_open`), which settles it without confirms."""
        complete = self.published - is_open
        if self._ack_mode == ON_CONFIRM or complete == self.settled:
            return
        self.settled = complete
        if self._ack_mode == ON_PUBLISH:
            self._ack_up_to = complete

    # -- from the destination -------------------------------------------------------------------------------------

    def confirm(self, number: int, *, multiple: bool) -> bool:
        """Ack what the destination has confirmed; returns False if that was nothing new."""
        done = self._settle(number, multiple=multiple)
        self.settled += done
        if not done:
            return False
        if multiple or number <= self._low:
            self._ack_up_to = max(self._ack_up_to, number or self._low)
        else:
            self._settlements.append(pack_confirm(CHANNEL, number, multiple=False, ack=True))
        return True

    def refuse(self, number: int, *, multiple: bool) -> bool:
        """Return to their queue what the destination has refused; returns False if that was nothing new."""
        self._flush_ack()
        done = self._settle(number, multiple=multiple)
        if not done:
            return False
        self.refused += done
        self._settlements.append(pack_confirm(CHANNEL, number or self._low, multiple=multiple, ack=False))
        return True

    def _settle(self, number: int, *, multiple: bool) -> int:
        """Note a sequence number, or all up to it (0: all); returns how many it settles that were not before."""
        if number > self.published:
            raise UnreachableError(f"the broker confirmed {number} of {self.published} messages")
        low, above = self._low, self._above
        if multiple:
            number = number or self.published
            if number <= low:
                return 0
            before = {each for each in above if each <= number}
            above -= before
            done = number - low - len(before)
            low = number
        elif number <= low or number in above:
            return 0
        elif number != low + 1:
            if len(above) >= MOST_GAPS:
                raise UnreachableError(f"the broker confirms {MOST_GAPS} messages, and none before them")
            above.add(number)
            return 1
        else:
            done, low = 1, number
        while above and low + 1 in above:
            low += 1
            above.discard(low)
        self._low = low
        return done

    def _flush_ack(self) -> None:
        """Ack everything up to the last message that was confirmed in order: what is before is settled already."""
        if self._ack_up_to:
            self._settlements.append(pack_confirm(CHANNEL, self._ack_up_to, multiple=True, ack=True))
            self._ack_up_to = 0

    def take_settlements(self) -> bytes:
        """Return the frames for the source."""
        self._flush_ack()
        if not self._settlements:
            return b""
        frames = b"".join(self._settlements)
        self._settlements.clear()
        return frames


class Deliveries(Incoming):
    """The receiving side of the source's connection."""

    def __init__(self, forwarding: Forwarding) -> None:
        super().__init__()
        self._forwarding = forwarding
        self._is_open = False  # True from a delivery passed on frame by frame to the end of its content
        self._is_passed = True
        self._missing = -1  # bytes of the body that are missing; -1 before the header
        self.is_consuming = False  # True once a consumer was asked for: before that, nothing may be delivered

    @property
    def is_open(self) -> bool:
        """True while the content of a message that is passed on is incomplete."""
        return self._is_open and self._is_passed

    def skip(self, data: bytes, at: int, now: int) -> int:  # noqa: ARG002 - see the base
        """Pass on the deliveries that are complete, from `at` on."""
        if self._is_open or not self.is_consuming:
            return at
        most = self.frame_max
        forwarding = self._forwarding
        begin, add, rewrite = forwarding.begin, forwarding.add, forwarding.rewrite
        size = len(data)
        while size - at > FIELDS_AT:
            kind, channel, length, index = unpack_method(data, at)
            header_at = at + length + FRAME_OVERHEAD
            if (
                kind != TYPE_METHOD
                or channel != CHANNEL
                or index != BASIC_DELIVER
                or length > most
                or size - header_at < HEAD
                or data[header_at - 1] != FRAME_END
            ):
                break
            kind, channel, header_size, _, body_size, _ = unpack_header(data, header_at)
            end = body_at = header_at + header_size + FRAME_OVERHEAD
            if (
                kind != TYPE_HEADER
                or channel != CHANNEL
                or not LEAST_HEADER <= header_size <= most
                or end > size
                or data[end - 1] != FRAME_END
            ):
                break
            while body_size > 0 and end + FRAME_OVERHEAD <= size:
                kind, channel, length = unpack_frame(data, end)
                end += length + FRAME_OVERHEAD
                body_size -= length
                if (
                    kind != TYPE_BODY
                    or channel != CHANNEL
                    or length > most
                    or end > size
                    or data[end - 1] != FRAME_END
                    or (body_size and length < SMALL_PIECE)
                ):
                    body_size = -1
            if body_size:
                break
            tag_at = at + FIELDS_AT + 1 + data[at + FIELDS_AT]
            if begin(_unpack_tag(data, tag_at)[0], data[tag_at + 9 : header_at - 1]):
                if rewrite is None:
                    add(data[header_at:end])
                else:
                    add(
                        _header_frame(rewrite(data[header_at + PAYLOAD_AT : body_at - 1])) + data[body_at:end]
                    )
            at = end
        return at

    def handle(self, index: int, data: bytes, at: int, now: int) -> bool:  # noqa: ARG002 - see the base
        """Begin a delivery whose content is not complete yet."""
        if index != BASIC_DELIVER or not self.is_consuming:
            return False
        _, channel, length = unpack_frame(data, at)
        if self._is_open or channel != CHANNEL:
            raise UnreachableError(
                "the broker sent a delivery in the middle of another, or on another channel"
            )
        end = at + length + FRAME_OVERHEAD
        tag_at = at + FIELDS_AT + 1 + data[at + FIELDS_AT]
        self._is_open = True
        self._missing = -1
        self._is_passed = self._forwarding.begin(_unpack_tag(data, tag_at)[0], data[tag_at + 9 : end - 1])
        return True

    def content(self, kind: int, data: bytes, at: int, end: int, now: int) -> None:
        """Pass on a frame of the content that was begun."""
        channel, length = unpack_frame(data, at)[1:]
        if not self._is_open or channel != CHANNEL or (kind == TYPE_HEADER) != (self._missing < 0):
            raise UnreachableError("the broker sent content frames that belong to no delivery")
        frame = data[at:end]
        if kind == TYPE_BODY:
            self._missing -= length
            if self._missing < 0:
                raise UnreachableError("the broker sent a body that is longer than its header says")
            if self._missing and length < SMALL_PIECE:
                self.count(0, now)
        elif length < LEAST_HEADER:
            raise UnreachableError("the broker sent a content header that is too short")
        else:
            self._missing = unpack_header(data, at)[4]
            if self._forwarding.rewrite is not None:
                frame = _header_frame(self._forwarding.rewrite(data[at + PAYLOAD_AT : end - 1]))
        if self._is_passed:
            self._forwarding.add(frame)
        self._is_open = self._missing > 0


def _header_frame(payload: bytes) -> bytes:
    return b"%b%b\xce" % (_pack_frame(TYPE_HEADER, CHANNEL, len(payload)), payload)


class Settlements(Incoming):
    """The receiving side of the destination's connection."""

    def __init__(self, forwarding: Forwarding) -> None:
        super().__init__()
        self._forwarding = forwarding

    def handle(self, index: int, data: bytes, at: int, now: int) -> bool:
        """Pass on a confirm or a nack."""
        if index not in {BASIC_ACK, BASIC_NACK}:
            return False
        number, bits, _ = unpack_ack(data, at + FIELDS_AT)
        settle: Callable[..., bool] = (
            self._forwarding.confirm if index == BASIC_ACK else self._forwarding.refuse
        )
        if not settle(number, multiple=bool(bits & 1)):
            self.count(0, now)
        return True
