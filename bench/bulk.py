"""A blocking client for very many small messages, which fills and drains queues and checks their order.

Every body begins with its number (8 bytes, big-endian). Frames are made in chunks and numbered by slice assignment, and
deliveries, which all have one length, are checked by slices as well: a few nanoseconds per message. So one core is
enough to be faster than a broker, and ten million messages take minutes.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator

from pamqp import commands, frame

from bench.client import Confirms, ack_frame, publish_frames
from bench.endpoint import Endpoint, endpoint

FRAME_MAX = 131072
CHUNK_OCTETS = 256 * 1024
PATIENCE = 120.0
DELIVER = b"\x00\x3c\x00\x3c"
CONFIRM_ACK, CONFIRM_NACK = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"
ack_at = struct.Struct(">Q?").unpack_from
frame_at = struct.Struct(">BHI").unpack_from


class BulkError(Exception):
    """Raised when the broker did something unexpected; the text says what."""


class Bulk:
    """One connection with one channel.

    Args:
        place: the broker's port on 127.0.0.1, or its endpoint.
        patience: seconds to wait for a connection, and later for data.

    Raises:
        OSError: no broker listens on the port.

    """

    def __init__(self, place: int | Endpoint, *, patience: float = PATIENCE) -> None:
        where = endpoint(place)
        self.socket = socket.create_connection(("127.0.0.1", where.port), patience)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.patience = patience
        self.rest = b""
        self.confirming = False
        self.sent = self.confirmed = 0
        self._confirms = Confirms()
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.reply()
        capabilities = {"capabilities": {"basic.nack": True, "publisher_confirms": True}}
        self.call(commands.Connection.StartOk(capabilities, "PLAIN", where.response, "en_US"), 0)
        self.send(commands.Connection.TuneOk(2047, FRAME_MAX, 0), 0)
        self.call(commands.Connection.Open(where.vhost), 0)
        self.call(commands.Channel.Open())

    def close(self) -> None:
        """Close the socket without the protocol's close handshake."""
        self.socket.close()

    def send(self, method, channel: int = 1) -> None:
        """Write a method."""
        self.socket.sendall(frame.marshal(method, channel))

    def call(self, method, channel: int = 1):
        """Write a method and return the reply.

        Raises:
            BulkError: the broker closed the channel or the connection instead.

        """
        self.send(method, channel)
        return self.reply()

    def read(self) -> None:
        """Wait for data.

        Raises:
            BulkError: the connection was closed, or no data came in time.
        """
        try:
            octets = self.socket.recv(1 << 20)
        except TimeoutError:
            message = f"nothing came for {self.patience:.0f} s"
            raise BulkError(message) from None
        if not octets:
            message = "the broker hung up"
            raise BulkError(message)
        self.rest = self.rest + octets if self.rest else octets

    def reply(self):
        """Return the next method that is no confirm."""
        while True:
            while len(self.rest) < 8 or len(self.rest) < frame_at(self.rest)[2] + 8:
                self.read()
            end = frame_at(self.rest)[2] + 8
            octets, self.rest = self.rest[:end], self.rest[end:]
            if octets[0] == 8 or self._settled(octets):
                continue
            _, _, method = frame.unmarshal(octets)
            if isinstance(method, (commands.Connection.Close, commands.Channel.Close)):
                raise BulkError(f"{method.reply_code} {method.reply_text}")
            if not isinstance(method, (commands.Connection.Blocked, commands.Connection.Unblocked)):
                return method

    def declare(self, queue: str, *, durable: bool = True) -> None:
        """Declare a classic queue."""
        self.call(commands.Queue.Declare(queue=queue, durable=durable))

    def ready_messages(self, queue: str) -> int:
        """Return the number of ready messages in a queue."""
        return int(self.call(commands.Queue.Declare(queue=queue, passive=True)).message_count)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def fill(
        self,
        queue: str,
        first: int,
        count: int,
        size: int,
        *,
        persistent: bool,
        window: int = 20_000,
        progress: Callable[[int], None] | None = None,
    ) -> float:
        """Publish numbered messages to a queue; return the rate until the broker has accepted all.

        Persistent messages are confirmed, with at most `window` unconfirmed; transient ones are followed by a
        synchronous method.

        Raises:
            BulkError: a message was nacked, or the broker closed.
        """
        if persistent and not self.confirming:
            self.call(commands.Confirm.Select())
            self.confirming = True
        began = time.perf_counter()
        before = self.sent
        for octets, many in chunks(queue, first, count, size, persistent=persistent):
            self._write(octets)
            self.sent += many
            while self.confirming and self.sent - self.confirmed > window:
                self.read_confirms()
            if progress is not None:
                progress(self.sent - before)
        while self.confirming and self.confirmed < self.sent:
            self.read_confirms()
        self.ready_messages(queue)
        return count / (time.perf_counter() - began)

    def _write(self, octets: bytearray) -> None:
        """Write all bytes, reading confirms meanwhile, so that the two sides do not wait for each other forever."""
        view = memoryview(octets)
        deadline = time.monotonic() + self.patience
        while view:
            readable, writable, _ = select.select([self.socket], [self.socket], [], self.patience)
            if readable:
                self.read_confirms()
            if writable:
                view = view[self.socket.send(view[:CHUNK_OCTETS], socket.MSG_DONTWAIT) :]
                deadline = time.monotonic() + self.patience
            elif time.monotonic() > deadline:
                message = f"the broker took nothing for {self.patience:.0f} s"
                raise BulkError(message)

    def read_confirms(self) -> None:
        """Wait for data and count the confirms in it."""
        self.read()
        at, octets = 0, self.rest
        while len(octets) - at >= 8:
            end = at + frame_at(octets, at)[2] + 8
            if end > len(octets):
                break
            if not self._settled(octets[at:end]) and octets[at] != 8:
                _, _, method = frame.unmarshal(octets[at:end])
                if not isinstance(method, (commands.Connection.Blocked, commands.Connection.Unblocked)):
                    raise BulkError(f"unexpected {method}")
            at = end
        self.rest = octets[at:]

    def _settled(self, octets: bytes) -> bool:
        """Count a confirm; return whether it was one."""
        if octets[7:11] == CONFIRM_ACK:
            self.confirmed = self._confirms.add(*ack_at(octets, 11))
            return True
        if octets[7:11] == CONFIRM_NACK:
            message = f"messages up to {ack_at(octets, 11)[0]} were refused"
            raise BulkError(message)
        return False

    # -- consuming ----------------------------------------------------------------------------------------------------

    def drain(
        self,
        queue: str,
        first: int,
        count: int,
        *,
        prefetch: int = 200,
        multiple: bool = False,
        redelivered: bool | None = None,
    ) -> float:
        """Consume and ack numbered messages; return the rate from `consume` to the last delivery.

        Args:
            queue: the queue.
            first: the number of the first message.
            count: the number of messages.
            prefetch: maximum number of unacknowledged messages.
            multiple: one ack for all messages of one read, instead of one each.
            redelivered: the expected flag, None for any.

        Raises:
            BulkError: one is missing, out of order or wrongly marked.
        """
        taken = Drain(
            self, queue, first, count, prefetch=prefetch, multiple=multiple, redelivered=redelivered
        )
        began = time.perf_counter()
        taken.begin()
        while not taken.step():
            self.read()
        took = time.perf_counter() - began
        if self.rest:
            message = f"more than the {count} messages expected came"
            raise BulkError(message)
        self.call(commands.Basic.Cancel(consumer_tag="bulk"))
        return count / took


class Drain:
    """Drains a queue of numbered messages as far as they have been read; see `Bulk.drain`."""

    def __init__(
        self,
        client: Bulk,
        queue: str,
        first: int,
        count: int,
        *,
        prefetch: int = 200,
        multiple: bool = False,
        redelivered: bool | None = None,
    ) -> None:
        self.client, self.queue, self.first, self.count = client, queue, first, count
        self.prefetch, self.multiple, self.redelivered = prefetch, multiple, redelivered
        self.got = 0
        self.shape: Shape | None = None

    def begin(self) -> None:
        """Start to consume."""
        self.client.call(commands.Basic.Qos(prefetch_count=self.prefetch))
        self.client.call(commands.Basic.Consume(queue=self.queue, consumer_tag="bulk"))

    def step(self) -> bool:
        """Check and ack the messages that have been read; return whether all are drained.

        Raises:
            BulkError: a message is missing, out of order or wrongly marked.
        """
        client = self.client
        shape = self.shape = self.shape or Shape.of(client.rest)
        if shape is None:
            return not self.count
        many = min(len(client.rest) // shape.length, self.count - self.got)
        if many:
            octets = client.rest[: many * shape.length]
            shape.check(octets, many, self.first + self.got, redelivered=self.redelivered)
            (tag,) = struct.unpack_from(">Q", octets, (many - 1) * shape.length + shape.tag)
            client.socket.sendall(
                ack_frame(1, 1, 13, 60, 80, tag, True, 0xCE) if self.multiple else acks(tag, many)
            )
            client.rest = client.rest[many * shape.length :]
            self.got += many
        return self.got == self.count


class Shape:
    """Layout of a delivery, as long as all are alike."""

    def __init__(self, length: int, tag: int, number: int) -> None:
        self.length, self.tag, self.number = length, tag, number

    @classmethod
    def of(cls, octets: bytes) -> "Shape | None":
        """Derive the layout from a first delivery; None if that is incomplete."""
        at, ends = 0, []
        for _ in range(3):
            if len(octets) - at < 8:
                return None
            at += frame_at(octets, at)[2] + 8
            ends.append(at)
        if len(octets) < at:
            return None
        return cls(length=at, tag=12 + octets[11], number=ends[1] + 7)

    def check(self, octets: bytes, count: int, first: int, *, redelivered: bool | None) -> None:
        """Check kind, order and mark of `count` deliveries.

        Raises:
            BulkError: a delivery is not as expected.
        """
        step = self.length
        for at, value in enumerate(DELIVER, 7):
            if octets[at::step] != bytes((value,)) * count:
                raise BulkError(f"something else came among the deliveries after message {first}")
        numbers = bytearray(8 * count)
        for at in range(8):
            numbers[at::8] = octets[self.number + at :: step]
        expected = struct.pack(f">{count}Q", *range(first, first + count))
        if numbers != expected:
            found = struct.unpack(f">{count}Q", numbers)
            wrong = next(n for n, number in enumerate(found) if number != first + n)
            raise BulkError(f"message {found[wrong]} came where {first + wrong} was due")
        if redelivered is not None:
            marks = octets[self.tag + 8 :: step]
            if marks != bytes((redelivered,)) * count:
                raise BulkError(f"redelivered is not {redelivered} throughout after message {first}")


def acks(last: int, count: int) -> bytes:
    """Return the frames of one ack for each of `count` delivery tags up to `last`."""
    one = ack_frame(1, 1, 13, 60, 80, 0, False, 0xCE)
    octets = bytearray(one * count)
    tags = struct.pack(f">{count}Q", *range(last - count + 1, last + 1))
    for at in range(8):
        octets[11 + at :: len(one)] = tags[at::8]
    return bytes(octets)


def chunks(
    queue: str,
    first: int,
    count: int,
    size: int,
    *,
    persistent: bool,
    filling: Callable[[int], bytes] | None = None,
) -> Iterator[tuple[bytearray, int]]:
    """Yield frames of numbered messages and the number of messages in each; the buffer is reused.

    `filling` returns so many bytes for what follows the number in the body of each message; the same letter by default.
    """
    one = publish_frames(queue, bytes(8) + b"x" * (size - 8), persistent=persistent)
    step = len(one)
    number = step - 1 - size
    many = max(1, CHUNK_OCTETS // step)
    octets = bytearray(one * many)
    for at in range(first, first + count, many):
        if (left := first + count - at) < many:
            many = left
            octets = bytearray(one * many)
        numbers = struct.pack(f">{many}Q", *range(at, at + many))
        for each in range(8):
            octets[number + each :: step] = numbers[each::8]
        if filling is not None:
            for end in range(step - 1, len(octets), step):
                octets[end - size + 8 : end] = filling(size - 8)
        yield octets, many
