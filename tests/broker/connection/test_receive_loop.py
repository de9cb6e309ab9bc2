"""The receive loop compared with a plain one: a stream has the same effects, however it is cut into reads.

The loop handles a publish in one of three ways (as a repetition of the last one, whole, or assembled from frames),
depending on where reads end. So the same stream is fed whole, frame by frame, octet by octet and cut at random, and
to a reference that handles one frame at a time and caches nothing.

Only the grouping of confirms may differ, and the order of deliveries and returns among each other, which a channel
gets independently. Streams are valid for a client: it settles only deliveries it has received, and each queue has at
most one consumer, since with two the distribution of messages may depend on the reads.
"""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from checks.internals import ready_messages
from doubles.fakes import Client, Node, Sent, frames_of, hurry, publish_frames
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.codec import decode_method, encode_method
from leveret.broker.amqp.commands import (
    Basic,
    Channel as ChannelMethods,
    Confirm,
    Connection as Wire,
    Exchange,
    Queue,
    Tx,
    make,
)
from leveret.broker.amqp.fastpath import (
    BASIC_ACK,
    BASIC_PUBLISH,
    FRAME_END,
    FRAME_OVERHEAD,
    HEARTBEAT,
    TYPE_BODY,
    TYPE_HEADER,
    TYPE_METHOD,
    shortstr,
    unpack_frame,
)
from leveret.broker.amqp.properties import REPLY_TO
from leveret.broker.amqp.tables import Table
from leveret.broker.channel import channel as channel_module, transaction
from leveret.broker.channel.settings import Limits
from leveret.broker.connection import receive_loop
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.receive_loop import malformed, piece
from leveret.broker.errors import AMQPError, ReplyCode, precondition_failed
from leveret.broker.queue import consumer
from leveret.broker.vhost.publish_route import inspect

LIMIT = 300  # octets of the largest message allowed here
CHANNELS = (1, 2, 3)
QUEUES = ("q1", "q2", "q3")


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Turn off log lines of errors: half of these streams cause them, with octets that no report can show."""
    logging.disable()
    with pytest.MonkeyPatch.context() as patch:
        for module in (channel_module, transaction):
            patch.setattr(module, "PIECE", 2)  # so that few deliveries are many
        yield
    logging.disable(logging.NOTSET)


class PlainConnection(Connection):
    """The reference: one frame at a time, every method decoded, every route computed again."""

    begun: dict[int, Any]
    """The publishes whose contents are arriving, by channel."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun = {}

    def _scan_open(self, data: bytes, at: int) -> int:
        while len(data) - at >= FRAME_OVERHEAD:
            kind, number, length = unpack_frame(data, at)
            end = at + FRAME_OVERHEAD + length
            if length > self.frame_limit:
                self._frame_too_large(data, at, kind, length)
            if end > len(data):
                break
            if data[end - 1] != FRAME_END:
                self._bad_frame_end(data, at, end, kind)
            self._resume_at, self._number = end, number
            self._refresh()
            if kind == TYPE_METHOD:
                ids = int.from_bytes(data[at + 7 : at + 11], "big")
                if ids == BASIC_PUBLISH:
                    self._plain_publish(number, data, at, end)
                elif ids == BASIC_ACK and number in self.channels and not self.channels[number].missing:
                    self._current = (60, 80)
                    method: Any = decode_method(data, at + 7, end - 1)
                    self.channels[number].ack(method.delivery_tag, multiple=method.multiple)
                else:
                    self._method(number, data, at, end)
                    if self.state != "open":
                        return end
            elif kind in (TYPE_HEADER, TYPE_BODY):
                self._plain_content(kind, number, data, at, end)
            else:
                self._other_frame(kind, number, data, at, end)
            self.node.turn.run()
            at = end
        return at

    def _plain_publish(self, number: int, data: bytes, at: int, end: int) -> None:
        self._current = (60, 40)
        channel = self.channels.get(number)
        if channel is None:
            self._no_channel(number, Basic.Publish)
            return
        if channel.missing:
            self._unexpected_frame(channel)
        try:
            method: Any = decode_method(data, at + 7, end - 1)
        except Exception as error:
            raise malformed(error) from None
        self.begun[number] = method
        channel.missing = -1

    def _plain_content(self, kind: int, number: int, data: bytes, at: int, end: int) -> None:
        channel = self.channels.get(number)
        if channel is None or (channel.missing >= 0 if kind == TYPE_HEADER else channel.missing <= 0):
            self._stray_content(number, data, at, end, kind)
            return
        self._current = (60, 40)
        if kind == TYPE_HEADER:
            payload = data[at + 7 : end - 1]
            if len(payload) < 14:
                raise AMQPError(ReplyCode.INTERNAL_ERROR)
            if payload[:2] != b"\x00\x3c":
                self._header(channel, data, at, end)
            channel.demands = inspect(payload)
            channel.missing = int.from_bytes(payload[4:12], "big")
            channel.parts = []
            if channel.missing > 1 << 29:
                self._header(channel, data, at, end)
            if channel.missing > LIMIT:
                text = f"message size {channel.missing} is larger than configured max size {LIMIT}"
                raise precondition_failed(text)
        else:
            channel.missing -= end - at - FRAME_OVERHEAD
        channel.parts.append(data[at:end])
        if channel.missing < 0:
            channel.missing = 0
            raise AMQPError(ReplyCode.FRAME_ERROR, "content body frame exceeds remaining content size")
        if not channel.missing:
            content, channel.parts = b"".join(channel.parts), []
            method = self.begun.pop(number)  # RabbitMQ, too, looks at it when its content is complete
            address = shortstr(method.exchange) + shortstr(method.routing_key)
            route = channel.find_route(address, method.mandatory + 2 * method.immediate)
            channel.publish(route, channel.demands, content)


class PlainClient(Client):
    connection_class = PlainConnection


Split = Callable[[list[bytes]], list[bytes]]


def whole(frames: list[bytes]) -> list[bytes]:
    return [b"".join(frames)]


def by_frame(frames: list[bytes]) -> list[bytes]:
    return frames


def by_octet(frames: list[bytes]) -> list[bytes]:
    octets = b"".join(frames)
    return [octets[at : at + 1] for at in range(len(octets))]


def at_random(seed: int, longest: int) -> Split:
    """Reads of random lengths up to `longest` octets."""
    chosen = random.Random(seed)

    def split(frames: list[bytes]) -> list[bytes]:
        octets = b"".join(frames)
        pieces, at = [], 0
        while at < len(octets):
            size = chosen.randint(1, longest)
            pieces.append(octets[at : at + size])
            at += size
        return pieces

    return split


class Session:
    """A broker with a client whose octets arrive split in one given way.

    Args:
        split: that way.
        client_class: with the receive loop that is meant.
        looks: looks at the clock after which each step of the loop ends; 0 for never.

    """

    def __init__(self, split: Split, client_class: type[Client] = Client, *, looks: int = 0) -> None:
        self.split = split
        self.is_hurried = looks > 0
        self.node = Node(limits=Limits(max_message_size=LIMIT))
        self.client = client_class(self.node)
        self.ordered: dict[int, list[str]] = {}
        self.returns: dict[int, list[str]] = {}
        self.confirmed: dict[int, list[set[int]]] = {1: [set()]}
        for channel in CHANNELS[1:]:
            self.client.send(ChannelMethods.Open(), channel)
        for method in topology():
            self.client.send(method)
        self._look()
        if looks:
            hurry(self.node, looks=looks)

    def feed(self, frames: list[bytes]) -> None:
        """Receive the frames, then wait until all is done."""
        for octets in self.split(frames):
            self.client.receive(octets)
        self.node.clock.run()
        self._look()

    def _look(self) -> None:
        for item in self.client.take():
            self._sort(item)

    def _sort(self, item: Sent) -> None:
        number, method = item.channel, item.method
        if isinstance(method, Basic.Ack | Basic.Nack):
            tags = self.confirmed[number][-1]
            if method.multiple:
                tags |= set(range(1, method.delivery_tag + 1))
            else:
                tags.add(method.delivery_tag)
            return
        if isinstance(method, ChannelMethods.OpenOk):
            self.confirmed.setdefault(number, []).append(set())
        if not isinstance(method, Basic.Deliver):
            self.returns.setdefault(number, []).append(str(item))
        if not isinstance(method, Basic.Return):
            self.ordered.setdefault(number, []).append(str(item))

    def seen(self) -> dict[str, Any]:
        """Return everything that must not depend on the way the stream was split."""
        connection = self.client.connection
        vhost = self.node.vhosts["/"]
        return {
            "frames": self.ordered,
            "returns": self.returns,
            "confirmed": self.confirmed,
            "state": (connection.state, ascii(connection.close_reason), self.client.driver.closed),
            "closing": connection._closing_channels,
            "channels": {
                channel.number: (
                    channel.published,
                    channel.delivered,
                    channel.acked,
                    channel.returned,
                    channel.delivery_tag,
                    list(channel.unacked),
                    list(channel.consumers),
                    channel.missing,
                    channel.confirms and channel.confirms.seq_no,
                    channel.tx and (len(channel.tx.publishes), len(channel.tx.settled)),
                )
                for channel in connection.channels.values()
            },
            "queues": {queue.name: queue_seen(queue) for queue in vhost.queues.values()},
            "exchanges": {
                name: exchange.published_in
                for name in ("", "direct", "fanout", "topic", "headers")
                if (exchange := vhost.router.get(name))
            },
            "left to do": (self.node.turn.queues, self.node.turn.channels, self.node.turn.unfinished),
        }


def queue_seen(queue: Any) -> tuple[object, ...]:
    return (
        [(message.address, message.header, message.body) for message in ready_messages(queue.backing)],
        sorted(seq_id for seq_id, _ in queue.backing._requeued),
        sorted(queue.backing._unacked),
        queue.published,
        queue.delivered,
        queue.redelivered,
        queue.acked,
    )


def topology() -> Iterator[Any]:
    """Yield the declarations that precede the stream."""
    for queue in QUEUES:
        yield declare(queue)
    for kind in ("direct", "fanout", "topic", "headers"):
        yield make(Exchange.Declare, 0, kind, kind, False, False, False, False, False, {})
    yield bind("q1", "direct", "k")
    yield bind("q2", "fanout")
    yield bind("q3", "fanout")
    yield bind("q1", "topic", "a.#")
    yield bind("q3", "topic", "*.b")
    yield make(Queue.Bind, 0, "q2", "headers", "", False, {"x": ("signedint", 1)})


def declare(queue: str, *, passive: bool = False) -> Any:
    return make(Queue.Declare, 0, queue, passive, False, False, False, False, {})


def bind(queue: str, exchange: str, key: str = "") -> Any:
    return make(Queue.Bind, 0, queue, exchange, key, False, {})


ADDRESSES = (
    ("", "q1"), ("", "q2"), ("", "q3"), ("", "nowhere"), ("direct", "k"), ("direct", "other"), ("fanout", ""),
    ("fanout", "any"), ("topic", "a.b"), ("topic", "c.b"), ("topic", "c"), ("headers", ""),
)  # fmt: skip
PLAIN: tuple[dict[str, Any], ...] = (
    {},
    {"delivery_mode": 2},
    {"content_type": "text/plain", "correlation_id": "\udcce7"},
    {"headers": {"x": ("signedint", 1)}},
    {"headers": {"x": ("signedint", 2)}, "expiration": "60000"},
    {"user_id": "guest"},
    {"headers": {"CC": ("array", [("longstr", "q2"), ("longstr", "q3")])}},
    {"headers": {"BCC": ("array", [("longstr", "q1")]), "x": ("signedint", 1)}},
)
WRONG: tuple[dict[str, Any], ...] = (
    {"expiration": "never"},
    {"user_id": "other"},
    {"message_id": "1", "reply_to": REPLY_TO},
    {"message_id": "1", "headers": {"CC": ("longstr", "no array")}},
)

HEADERS: tuple[Table, ...] = (
    {},
    {"eta": ("void", None), "limits": ("array", [("void", None), ("table", {"x": ("bool", True)})])},
    {"x": ("signedint", 1)},  # the headers exchange asks for it
    {"CC": ("array", [("longstr", "q2")])},
    {"BCC": ("array", [("longstr", "q3")])},
    {"inner": ("table", {"CC": ("signedint", 1)}), "near": ("double", 0.5)},
)
"""Headers of messages that differ from one to the next anyway."""


class Script:
    """A generator of what a client sends next, knowing what it has been sent."""

    def __init__(self, seed: int, reader: Session) -> None:
        self.chosen = random.Random(seed)
        self._reader = reader

    def phase(self, size: int, *, settling: bool = True) -> list[bytes]:
        """About `size` operations on several channels, their frames shuffled as channels may be."""
        connection = self._reader.client.connection
        left: list[list[bytes]] = []
        for number in CHANNELS:
            channel = connection.channels.get(number)
            octets = b""
            if channel is None:
                if number in connection._closing_channels:
                    octets += encode_method(number, ChannelMethods.CloseOk())
                octets += encode_method(number, ChannelMethods.Open())
            self._tags = list(channel.unacked) if channel and settling else []
            self._consuming = bool(channel and channel.consumers)
            self._may_consume = settling and not self._consuming
            for _ in range(self.chosen.randint(0, size)):
                octets += self._operation(number)
            left.append(cut(octets))
        merged = []
        while left := [frames for frames in left if frames]:
            frames = self.chosen.choice(left)
            count = self.chosen.choice((1, 2, 3, 5, 20, 60))
            merged += frames[:count]
            del frames[:count]
        return merged

    def _operation(self, number: int) -> bytes:
        kind = self.chosen.random()
        if kind < 0.45:
            return self._publishes(number)
        if kind < 0.70 and self._tags:
            return self._settlement(number)
        if kind < 0.72:
            return HEARTBEAT
        return b"".join(encode_method(number, method) for method in self._cold(number))

    def _publishes(self, number: int) -> bytes:
        """One publish, or several that differ in their bodies only, or in properties of each message, too."""
        choice = self.chosen.choice
        exchange, key = choice(ADDRESSES)
        properties = choice(PLAIN)
        if self.chosen.random() < 0.02:
            properties = choice(WRONG)
        if self.chosen.random() < 0.01:
            exchange = "missing"
        size = choice((0, 0, 1, 2, 7, 8, 30, LIMIT))
        if self.chosen.random() < 0.01:
            size = LIMIT + 1
        options = {
            "exchange": exchange,
            "channel": number,
            "mandatory": choice((False, True)),
            "frame_max": choice((131072, 131072, 131072, 9, 23)),
            **properties,
        }
        octets = b""
        unique = choice((False, False, True))
        for _ in range(choice((1, 1, 2, 3, 8))):
            if unique:
                options |= self._unique()
            octets += publish_frames(key, self._body(size, octets), **options)
            if self.chosen.random() < 0.1:
                octets += publish_frames(key, self._body(choice((0, 1, size)), octets), **options)
        return with_empty_frames(octets, number) if self.chosen.random() < 0.05 else octets

    def _unique(self) -> dict[str, Any]:
        """Properties that mostly differ from message to message, and sometimes others beside."""
        chosen = self.chosen
        text = "i" * chosen.randrange(9) + str(chosen.random())
        found: dict[str, Any] = {chosen.choice(("message_id", "correlation_id")): text}
        if chosen.random() < 0.3:
            found["timestamp"] = chosen.randrange(1 << 32)
        if chosen.random() < 0.2:
            found["delivery_mode"] = chosen.choice((1, 2))
        if chosen.random() < 0.1:
            found |= chosen.choice(
                ({"expiration": "60000"}, {"user_id": "guest"}, {"type": "t", "app_id": "a"})
            )
        if chosen.random() < 0.3:
            found["headers"] = {"id": ("longstr", text)} | chosen.choice(HEADERS)
            if chosen.random() < 0.3:
                found = {"headers": found["headers"]}
        if chosen.random() < 0.1:
            found["reply_to"] = chosen.choice(("", text))
        if chosen.random() < 0.02:
            found |= chosen.choice(WRONG)
        return found

    def _body(self, size: int, like: bytes) -> bytes:
        """A body, sometimes one that looks like frames."""
        kind = self.chosen.random()
        if kind < 0.3 and like:
            at = self.chosen.randrange(len(like))
            return (like[at:] + like * (size // len(like) + 1))[:size]
        if kind < 0.5:
            return b"\xce" * size
        if kind < 0.6:
            return (HEARTBEAT * (size // 8 + 1))[:size]
        return self.chosen.randbytes(size)

    def _settlement(self, number: int) -> bytes:
        """Settle deliveries that the client has received before this phase."""
        at = 0 if self.chosen.random() < 0.6 else self.chosen.randrange(len(self._tags))
        tag = self._tags[at]
        multiple = self.chosen.random() < 0.3
        if multiple:
            del self._tags[: at + 1]
        else:
            del self._tags[at]
        kind = self.chosen.random()
        requeue = self.chosen.random() < 0.5
        if kind < 0.7:
            method: Any = make(Basic.Ack, tag, multiple)
        elif kind < 0.9 or multiple:
            method = make(Basic.Nack, tag, multiple, requeue)
        else:
            method = make(Basic.Reject, tag, requeue)
        return encode_method(number, method)

    def _cold(self, number: int) -> Iterator[Any]:
        chosen = self.chosen
        queue = chosen.choice(QUEUES)
        kind = chosen.randrange(24)
        if kind < 4 and self._may_consume:
            self._may_consume = False
            no_ack = chosen.random() < 0.3
            yield make(Basic.Consume, 0, f"q{number}", f"c{number}", False, no_ack, False, False, {})
        elif kind == 4 and self._consuming:
            self._consuming = False
            yield make(Basic.Cancel, f"c{number}", False)
        elif kind < 7:
            yield make(Basic.Qos, 0, chosen.randrange(5), chosen.random() < 0.3)
        elif kind < 9:
            yield make(Basic.Get, 0, queue, chosen.random() < 0.5)
        elif kind < 11:
            yield declare(queue, passive=True)
        elif kind < 13:
            yield bind(queue, "direct", chosen.choice(("k", "other")))
        elif kind < 15:
            yield make(Queue.Unbind, 0, queue, "topic", chosen.choice(("a.#", "*.b")), {})
        elif kind == 15:
            yield make(Queue.Purge, 0, queue, False)
        elif kind == 16:
            yield make(Queue.Delete, 0, queue, False, False, False)
            yield declare(queue)
        elif kind == 17:
            yield make(Basic.Recover, True)
        elif kind == 18 and chosen.random() < 0.3:
            yield make(ChannelMethods.Close, 0, "", 0, 0)
            yield ChannelMethods.Open()
        elif kind == 19 and chosen.random() < 0.3:
            yield make(Basic.Ack, 1 << 40, chosen.random() < 0.5)
        elif kind == 20:
            yield make(Confirm.Select, False)
        elif kind == 21 and chosen.random() < 0.5:
            yield Tx.Select()
        elif kind == 22 and chosen.random() < 0.8:
            yield Tx.Commit()
        elif kind == 23 and chosen.random() < 0.8:
            yield Tx.Rollback()


def cut(octets: bytes) -> list[bytes]:
    frames, at = [], 0
    for _, _, payload in frames_of(octets):
        end = at + len(payload) + FRAME_OVERHEAD
        frames.append(octets[at:end])
        at = end
    return frames


def with_empty_frames(octets: bytes, number: int) -> bytes:
    """Insert an empty body frame, which is legal, before each body frame of the stream."""
    empty = bytes((TYPE_BODY, *number.to_bytes(2, "big"), 0, 0, 0, 0, FRAME_END))
    return b"".join(empty + frame if frame[0] == TYPE_BODY else frame for frame in cut(octets))


def sessions(seed: int) -> list[Session]:
    """Return brokers that are fed the same stream, each with reads cut in its own way."""
    splits = (whole, by_frame, by_octet, at_random(seed, 40), at_random(seed + 1, 700))
    return [Session(split) for split in splits]


def hurried_sessions() -> list[Session]:
    """Return brokers whose steps end after a few looks at the clock."""
    return [Session(whole, looks=looks) for looks in (1, 2, 5)]


@contextmanager
def limits_of_sizes(*, small: bool) -> Iterator[None]:
    """Let bodies of some dozen octets be large ones: they are taken in pieces, and sent without a copy."""
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(receive_loop, "_PIECE_OCTETS", 24)
            patch.setattr(receive_loop, "LARGE", 100)
            patch.setattr(consumer, "SPLIT_LIMIT", 50)
        yield


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32), phases=st.integers(1, 4), size=st.integers(1, 24), small=st.booleans())
def test_the_split_of_a_stream_does_not_matter(seed, phases, size, small):
    """A valid stream has the effects of the reference, whatever reads it arrives in and however short steps are."""
    reference = Session(by_frame, PlainClient)
    others = [*sessions(seed), *hurried_sessions()]
    script = Script(seed, reference)
    for _ in range(phases):
        frames = script.phase(size)
        reference.feed(frames)
        expected = reference.seen()
        with limits_of_sizes(small=small):
            for session in others:
                session.feed(frames)
        refused = "channel.close " in str(expected["frames"])
        for session in others:
            # What a channel still gets that an error closes in the same read depends on the time there is.
            if not (refused and session.is_hurried):
                assert expected == session.seen()


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32), size=st.integers(1, 12), faults=st.integers(1, 3), small=st.booleans())
def test_an_invalid_stream_fails_the_same_way(seed, size, faults, small):
    """Frames lost, doubled, swapped or garbled end a connection in the same way, whatever reads they arrive in."""
    script = Script(seed, Session(by_frame))
    frames = script.phase(size, settling=False)
    for _ in range(faults if frames else 0):
        at = script.chosen.randrange(len(frames))
        kind = script.chosen.randrange(4)
        if kind == 0:
            frames[at] = b""
        elif kind == 1:
            frames.insert(at, frames[at])
        elif kind == 2:
            frames[at - 1 : at + 1] = reversed(frames[at - 1 : at + 1])
        elif frames[at]:
            garbled = bytearray(frames[at])
            garbled[script.chosen.randrange(len(garbled))] = script.chosen.randrange(256)
            frames[at] = bytes(garbled)
    expected = None
    for session in sessions(seed):
        with limits_of_sizes(small=small and expected is not None):
            session.feed(frames)
        seen = session.seen()
        expected = expected or seen

        assert expected == seen


@pytest.mark.parametrize("size", [0, 1, 40])
def test_repeated_publishes_are_distinguished_by_their_bodies_only(size):
    """A run of publishes that differ in their bodies only arrives body by body, in order."""
    session = Session(whole)
    bodies = [bytes([65 + number]) * size for number in range(20)]
    session.feed([publish_frames("q1", body) for body in bodies])

    assert bodies == [
        message.body for message in ready_messages(session.node.vhosts["/"].queues["q1"].backing)
    ]


def test_a_repeated_publish_does_not_pass_an_unfinished_one():
    """A publish in place of an expected content is 505, even if it equals the last complete one."""
    complete = publish_frames("q1", b"body")
    unfinished = cut(publish_frames("q2", b"body"))[0]
    session = Session(whole)
    session.feed([complete, complete, unfinished, HEARTBEAT, complete])

    assert "closing" == session.client.connection.state
    assert "505" in session.ordered[0][-1]


def test_a_remembered_route_ends_with_the_binding():
    """After an unbind on any connection, equal publishes no longer reach the queue."""
    session = Session(whole)
    publish = publish_frames("k", b"body", exchange="direct")
    session.feed([publish, publish])
    other = Client(session.node, port=50001)
    other.send(make(Queue.Unbind, 0, "q1", "direct", "k", {}))
    session.feed([publish, publish])

    assert 2 == session.node.vhosts["/"].queues["q1"].ready_count


def test_a_message_is_routed_when_it_is_complete():
    """Changes while a content arrives count: a deleted queue gets nothing, a newly bound one gets the message."""
    session = Session(whole)
    *begun, body = cut(publish_frames("k", b"body", exchange="direct"))
    session.feed(begun)
    other = Client(session.node, port=50001)
    other.send(make(Queue.Delete, 0, "q1", False, False, False))
    other.send(bind("q2", "direct", "k"))
    session.feed([body])

    assert 1 == session.node.vhosts["/"].queues["q2"].ready_count


def test_a_body_in_many_small_frames_takes_no_more_memory_than_in_one():
    """A message is kept in frames worth their overhead, however small its frames and however many are empty."""
    node = Node()
    client = Client(node)
    client.declare("q")
    body = random.Random(1).randbytes(20_000)
    client.receive(with_empty_frames(publish_frames("q", body, frame_max=9), 1))
    (message,) = ready_messages(node.vhosts["/"].queues["q"].backing)

    assert body == message.body
    assert 25_000 > len(message.content)


def test_a_remembered_route_ends_with_the_permission():
    """An equal publish is refused after its permission is revoked."""
    session = Session(whole)
    publish = publish_frames("q1", b"body")
    session.feed([publish, publish])
    session.node.users.set_permissions("guest", "/", ".*", "^$|q2", ".*")
    session.feed([publish])

    assert "1 channel.close reply_code=403" in session.ordered[1][-1]
    assert 2 == session.node.vhosts["/"].queues["q1"].ready_count


def test_large_messages_are_counted_large_when_repeated():
    """A queue remembers that its messages are large although it becomes empty between equal publishes."""
    node = Node()
    client = Client(node)
    client.declare("q")
    queue = node.vhosts["/"].queues["q"]
    publish = publish_frames("q", bytes(10_000))
    client.receive(publish * 2)
    queue.purge()
    client.receive(publish * 2)

    assert queue.largest > 10_000


def test_more_addresses_than_are_remembered():
    """Publishes to more keys than the connection's route cache holds all arrive."""
    session = Session(whole)
    session.feed([publish_frames(f"a.{number}", exchange="topic") for number in range(5000)])

    assert 5000 == session.node.vhosts["/"].queues["q1"].ready_count


def test_a_large_frame_arrives_in_pieces():
    """A message of several megabytes in frames of the negotiated size is one message."""
    node = Node()
    client = Client(node)
    client.declare("q")
    body = random.Random(1).randbytes(3_000_000)
    octets = publish_frames("q", body)
    for at in range(0, len(octets), 65536):
        client.receive(octets[at : at + 65536])

    assert [body] == [message.body for message in ready_messages(node.vhosts["/"].queues["q"].backing)]


READ = 65536


def begun(size: int, *, rest: int, reads: int = READ) -> tuple[Client, bytes]:
    """Return a client that has sent a message of `size` octets but for the last `rest` bytes, and those."""
    client = Client()
    client.declare("q")
    octets = publish_frames("q", random.Random(2).randbytes(size))
    for at in range(0, len(octets) - rest, reads):
        client.receive(octets[at : min(at + reads, len(octets) - rest)])
    return client, octets[len(octets) - rest :]


@given(st.integers(0, 300_000), st.integers(0, 300_000), st.integers(0, 300_000))
def test_a_piece_keeps_no_more_than_its_size_beside_it(before, size, after):
    """A part of a read that is kept while a body arrives never keeps more bytes of the read than it has itself."""
    data = bytes(before + size + after)
    taken = piece(data, before, before + size)

    assert size == len(taken)
    assert type(taken) is bytes or len(data) <= 2 * size
    assert size == len(data) or data is not taken


@pytest.mark.parametrize("size", [40_000, 100_000, 1_048_576])
def test_a_body_is_copied_once(size):
    """A read inside a body is kept as it is, and the body is joined when its last byte is there."""
    client, rest = begun(size, rest=17_000)
    channel = client.connection.channels[1]
    before = len(channel.parts)
    first = rest[:16_384]
    client.receive(first)

    assert first is channel.parts[before]
    assert [] == client.connection._chunks
    client.receive(rest[16_384:])
    (message,) = ready_messages(client.node.vhosts["/"].queues["q"].backing)
    assert random.Random(2).randbytes(size) == message.body
    assert [] == channel.parts


def test_small_reads_of_a_body_are_joined():
    """A peer that sends a body byte by byte makes the broker keep a few pieces, not one for each read."""
    client, rest = begun(100_000, rest=50_000)
    channel = client.connection.channels[1]
    before = len(channel.parts)
    for at in range(len(rest) - 1):
        client.receive(rest[at : at + 1])

    assert before + 3 == len(channel.parts)
    assert receive_loop._PIECE_OCTETS > len(client.connection._chunks)
    client.receive(rest[-1:])
    assert 1 == client.node.vhosts["/"].queues["q"].ready_count


def test_a_body_may_end_the_channel_while_it_arrives():
    """The rest of a body whose channel has been closed is ignored, and what follows is read."""
    client, rest = begun(200_000, rest=40_000)
    connection = client.connection
    connection._close_channel(connection.channels[1], precondition_failed("no more"), 0, 0)
    client.receive(rest[:20_000])
    client.receive(
        rest[20_000:] + encode_method(1, ChannelMethods.CloseOk()) + encode_method(2, ChannelMethods.Open())
    )

    assert "2 channel.open-ok" in client.sent()[-1]
    assert 0 == client.node.vhosts["/"].queues["q"].ready_count
    assert "open" == connection.state


def test_a_connection_may_be_closed_while_a_body_arrives():
    """Close-ok is found after the rest of a body, whatever that contains."""
    client, rest = begun(200_000, rest=40_000)
    client.connection.force_close("enough")
    close_ok = encode_method(0, Wire.CloseOk())
    client.receive(rest[:20_000])
    client.receive(rest[20_000:] + close_ok[:5])
    assert "closing" == client.connection.state
    client.receive(close_ok[5:])

    assert "closed" == client.connection.state


def test_a_frame_in_pieces_ends_as_others_do():
    """A wrong frame end is 501 with the beginning of the frame, as for a frame that arrives whole."""
    errors = []
    for reads in (READ, 1 << 20):
        client, _rest = begun(100_000, rest=1, reads=reads)
        client.receive(b"\x07")
        errors += client.sent()[-1:]

    assert "501" in errors[0]
    assert errors[0] == errors[1]


def test_nothing_follows_a_body_during_an_alarm():
    """A body in pieces that is complete during an alarm is published, and blocks the connection before the next."""
    client, rest = begun(100_000, rest=20_000)
    client.node.set_alarm("memory")
    client.receive(rest + encode_method(1, declare("later")) + publish_frames("q", b"next"))

    assert 1 == client.node.vhosts["/"].queues["q"].ready_count
    assert "later" not in client.node.vhosts["/"].queues
    assert client.connection.blocked


def test_a_route_is_looked_up_again_when_a_body_in_pieces_is_complete():
    """A permission that is revoked while a body arrives counts."""
    client, rest = begun(100_000, rest=20_000)
    client.node.users.set_permissions("guest", "/", ".*", "^$", ".*")
    client.receive(rest)

    assert "1 channel.close reply_code=403" in client.sent()[-1]


@pytest.mark.parametrize("reads", [1 << 20, READ])
def test_a_frame_longer_than_what_is_missing_is_refused(reads):
    """A body frame that exceeds the declared size is 501, in pieces as whole, and nothing of it is published."""
    client = Client()
    client.declare("q")
    *begun, last = cut(publish_frames("q", bytes(200_000), frame_max=100_008))
    longer = b"\x03\x00\x01" + (110_000).to_bytes(4, "big") + bytes(110_000) + b"\xce"
    octets = b"".join((*begun, longer))
    for at in range(0, len(octets), reads):
        client.receive(octets[at : at + reads])

    assert 100_008 == len(last)
    assert "501" in client.sent()[-1]
    assert 0 == client.node.vhosts["/"].queues["q"].ready_count


def test_an_interrupted_publish_is_routed_when_it_is_complete():
    """Changes of bindings count for a content whose last frame follows a publish of another channel."""
    session = Session(whole)
    *begun, body = cut(publish_frames("k", b"one", exchange="direct", channel=2))
    other = cut(publish_frames("k", b"two", exchange="direct", channel=1))
    session.feed([publish_frames("k", b"none", exchange="direct", channel=2), *begun])
    Client(session.node, port=50001).send(bind("q2", "direct", "k"))
    session.feed([other[0], body, *other[1:]])

    bodies = [message.body for message in ready_messages(session.node.vhosts["/"].queues["q2"].backing)]
    assert [b"one", b"two"] == bodies


def test_an_interrupted_body_has_all_its_frames():
    """A body whose frames are interrupted by publishes of other channels is complete."""
    session = Session(whole)
    method, header, first, second = cut(publish_frames("q1", b"12345678", frame_max=12))
    other = cut(publish_frames("q2", b"abc", channel=2))
    session.feed([*other, *other, method, header, other[0], first, *other[1:]])
    session.feed([other[0], second, *other[1:]])

    queues = session.node.vhosts["/"].queues
    assert [b"12345678"] == [message.body for message in ready_messages(queues["q1"].backing)]
    assert [b"abc"] * 4 == [message.body for message in ready_messages(queues["q2"].backing)]
    assert (queues["q2"],) == tuple(session.client.connection.published_to)


def test_the_queues_of_the_last_publish_are_known():
    """Flow control gets the queues of the last of several publishes that interrupt each other."""
    session = Session(whole)
    one, two = (cut(publish_frames(f"q{number}", b"abc", channel=number)) for number in (1, 2))
    session.feed([*one, *two])
    for last, before in ((one, two), (two, one)):
        session.client.receive(b"".join((before[0], last[0], before[1], last[1], before[2], last[2])))
        queues = [queue.name for queue in session.client.connection.published_to]
        assert ["q1" if last is one else "q2"] == queues


@pytest.mark.parametrize("reads", [1 << 20, READ, 20_000])
def test_large_bodies_that_interrupt_each_other_are_kept_apart(reads):
    """Large body frames of two channels in turn reach the bodies of their own channels."""
    client = Client()
    client.send(ChannelMethods.Open(), 2)
    client.declare("q")
    bodies = [random.Random(number).randbytes(600_000) for number in (1, 2)]
    frames = [cut(publish_frames("q", body, channel=number)) for number, body in enumerate(bodies, 1)]
    octets = b"".join(frame for pair in zip(*frames, strict=True) for frame in pair)
    for at in range(0, len(octets), reads):
        client.receive(octets[at : at + reads])

    assert bodies == [message.body for message in ready_messages(client.node.vhosts["/"].queues["q"].backing)]


def test_headers_are_remembered_within_bounds():
    """Publishes that interrupt each other with ever new sizes all arrive, and a bounded number of headers is kept."""
    node = Node()
    client = Client(node)
    client.send(ChannelMethods.Open(), 2)
    client.declare("q")
    for size in range(1, 1000):
        one, two = (cut(publish_frames("q", bytes(size), channel=number)) for number in (1, 2))
        client.receive(b"".join(frame for pair in zip(one, two, strict=True) for frame in pair))

    assert 1998 == node.vhosts["/"].queues["q"].ready_count
    assert 256 >= len(client.connection._heads)


def test_contents_are_remembered_for_each_channel():
    """Publishes on two channels in turn have the bodies and properties of their own channels."""
    node = Node()
    client = Client(node)
    client.send(ChannelMethods.Open(), 2)
    client.declare("q")
    for number in range(20):
        client.receive(
            publish_frames("q", b"one%d" % (number % 10), content_type="a")
            + publish_frames("q", b"second%d" % (number % 10), channel=2, app_id="b")
        )
    bodies = [message.body for message in ready_messages(node.vhosts["/"].queues["q"].backing)]

    assert [b"one%d" % (n % 10) if m else b"second%d" % (n % 10) for n in range(20) for m in (1, 0)] == bodies
    assert {1, 2} >= client.connection._contents.keys()


def test_messages_may_be_too_large_for_the_configuration():
    """A body above the limit is 406 as soon as its header arrives, with no octet of it kept."""
    session = Session(whole)
    octets = publish_frames("q1", bytes(LIMIT + 1))
    session.feed([octets[: -(LIMIT + 9)]])

    assert "message size 301 is larger than configured max size 300" in session.ordered[1][-1]
    assert [] == session.client.connection._chunks


def test_more_kinds_of_properties_than_are_remembered():
    """Publishes with ever new property lists all arrive, and a bounded number of lists is cached."""
    session = Session(whole)
    session.feed([publish_frames("q1", correlation_id=str(number)) for number in range(3000)])
    session.feed([publish_frames("q1", headers={"n": ("long", number)}) for number in range(3000)])

    assert 6000 == session.node.vhosts["/"].queues["q1"].ready_count
    assert 1024 >= len(session.client.connection._demands) + len(session.client.connection._lists)


@pytest.mark.parametrize("before", [0, 1, 2, 5])
@pytest.mark.parametrize(
    "octets",
    [
        b"\x00\x80\x09short",
        b"\x00\x80\x02more",
        b"\x00\x40\x00\x00",
        b"\x00\xc0\x01i" + bytes(9),
        b"\x20\x80\0\0\0\5\1nS\0\0\0\1i",
        b"\x20\x80\0\0\0\3\1n?\1i",
        b"\x20\x80\0\0\0\x0b\1nd\x7f\xf0\0\0\0\0\0\0\1i",
        b"\x20\x80\0\0\0\2\5n\1i",
        b"\x20\x80\0\0",
    ],
)
def test_a_malformed_list_of_unique_properties_is_refused_wherever_it_stands(before, octets):
    """Alone, or after others of the same method frame, it closes the connection, and those before it have arrived."""
    session = Session(whole)
    good = [publish_frames("q1", b"body", message_id=str(number)) for number in range(before)]
    bad = publish_frames("q1", b"body")
    at = unpack_frame(bad, 0)[2] + FRAME_OVERHEAD
    end = at + unpack_frame(bad, at)[2] + FRAME_OVERHEAD
    header = bad[at + 7 : at + 19] + octets
    bad = bad[:at] + b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce" + bad[end:]
    session.feed([b"".join((*good, bad, publish_frames("q1", b"never")))])

    assert "541" in str(session.ordered[0][-1])
    assert before == session.node.vhosts["/"].queues["q1"].ready_count


@pytest.mark.parametrize("wrong", WRONG)
def test_what_properties_require_is_checked_in_a_run_of_unique_ones(wrong: dict[str, Any]):
    """A publish that is refused for its properties is refused after others that differ in theirs, too."""
    session = Session(whole)
    good = [publish_frames("q1", message_id=str(number)) for number in range(3)]
    session.feed([b"".join((*good, publish_frames("q1", **{"message_id": "x", **wrong})))])

    assert "PRECONDITION_FAILED" in str(session.ordered[1][-1])
    assert 3 == session.node.vhosts["/"].queues["q1"].ready_count


def test_publishes_in_a_row_with_unique_properties_are_counted():
    """A run of publishes whose properties and sizes differ counts its messages, sizes and queues as each alone does."""
    counted = []
    for cut in (whole, by_frame):
        session = Session(cut)
        sent = [publish_frames("q1", bytes(number), message_id=str(number)) for number in range(200)]
        sent += [publish_frames("nowhere", bytes(number), correlation_id=str(number)) for number in range(20)]
        session.feed(sent)
        totals = session.node.context.totals
        queue = session.node.vhosts["/"].queues["q1"]
        counted.append(
            (
                totals.sizes.counts,
                totals.sizes.octets,
                queue.published,
                session.client.connection.channels[1].published,
            )
        )
        assert 20 == session.client.connection.channels[1].dropped

    assert counted[0] == counted[1]


def test_the_size_of_the_last_message_is_known():
    """Flow control gets the size of the content of the last publish."""
    session = Session(whole)
    publish = publish_frames("q1", b"body")
    assert 0 == session.client.connection.message_size
    session.feed([publish])

    content = publish[unpack_frame(publish, 0)[2] + FRAME_OVERHEAD :]
    assert len(content) == session.client.connection.message_size


def test_acks_in_a_row_count_for_their_consumers():
    """Acks of one read settle the messages of each consumer of the channel, up to one with an unknown tag."""
    session = Session(whole)
    client, queues = session.client, session.node.vhosts["/"].queues
    for name in ("q1", "q2"):
        client.send(make(Basic.Consume, 0, name, f"of-{name}", False, False, False, False, {}))
    session.feed([publish_frames(name, b"body") for name in ("q1", "q2") for _ in range(4)])
    acks = [encode_method(1, Basic.Ack(tag, False)) for tag in (1, 2, 5, 3, 6, 99, 7)]
    channel = client.connection.channels[1]
    session.feed([b"".join(acks[:5])])
    assert (5, 3) == (channel.acked, len(channel.unacked))
    assert {"q1": (3, 1), "q2": (2, 2)} == {
        name: (queues[name].acked, next(iter(queues[name].consumers)).unacked) for name in ("q1", "q2")
    }
    session.feed([b"".join(acks[3:])])

    assert "unknown delivery tag 3" in session.ordered[1][-1]


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_an_ack_after_single_ones_may_be_for_many(damaged):
    """An ack for several messages, or one with a wrong frame end, is none of the single acks before it."""
    session = Session(whole)
    client = session.client
    client.send(make(Basic.Consume, 0, "q1", "tag", False, False, False, False, {}))
    session.feed([publish_frames("q1", b"body") * 5])
    channel = client.connection.channels[1]
    acks = [encode_method(1, Basic.Ack(tag, tag == 4)) for tag in (1, 2, 4)]
    session.feed([b"".join(acks)[:-1] + (b"\x00" if damaged else b"\xce")])

    expected = (2, "closed") if damaged else (4, "open")
    assert expected == (channel.acked, client.connection.state)
