"""Deliveries of a consumer on the wire, and its room for them."""

from types import SimpleNamespace
from typing import Any

from doubles.fakes import parse
from hypothesis import given, strategies as st

from leveret.broker.amqp.fastpath import content_frames, shortstr
from leveret.broker.amqp.properties import build
from leveret.broker.queue.consumer import UNLIMITED, Consumer, GetRecipient
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.scheduling.turn import Turn
from leveret.storage.message import Message


class FakeQueue:
    """A queue that records which consumers return to the rotation."""

    name = "q"

    def __init__(self) -> None:
        self.delivered = 0
        self.rejoined: list[Consumer] = []

    def rejoin(self, consumer: Consumer) -> None:
        self.rejoined.append(consumer)


def channel(
    number: int = 1, *, frame_max: int = 131072, limit: int = 1 << 20, global_prefetch: int = 0
) -> Any:
    """Return the parts of a channel that a consumer needs."""
    return SimpleNamespace(
        number=number,
        frame_max=frame_max,
        delivery_tag=0,
        unacked={},
        outbox=Outbox(Turn(), SimpleNamespace(flush=list), limit),
        global_prefetch=global_prefetch,
        global_room=global_prefetch,
        got=0,
        delivered=0,
    )


def message(body: bytes, *, key: str = "k", number: int = 1, frame_max: int = 0) -> Message:
    address = shortstr("x") + shortstr(key)
    return Message(address, content_frames(number, frame_max, build(len(body)), body), number)


def consumer(on: Any, **options: Any) -> Consumer:
    return Consumer("tag", FakeQueue(), on, **{"no_ack": False, **options})  # type: ignore[arg-type]


@given(
    bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    keys=st.lists(st.sampled_from(["a", "b", "\udcff"]), min_size=8, max_size=8),
    numbers=st.lists(st.integers(1, 3), min_size=8, max_size=8),
    frame_max=st.sampled_from((30, 64, 131072)),
    redelivered=st.booleans(),
)
def test_deliveries_carry_what_was_published(bodies, keys, numbers, frame_max, redelivered):
    """Each message has the next tag, its address, header and body, in frames of this channel's size."""
    on = channel(2, frame_max=frame_max)
    on.delivery_tag = 10
    messages = [
        message(body, key=key, number=number)
        for body, key, number in zip(bodies, keys, numbers, strict=False)
    ]
    taker = consumer(on)
    taker.deliver(range(len(messages)), messages, redelivered=redelivered)
    sent = parse(b"".join(on.outbox.frames))

    assert [2] * len(bodies) == [item.channel for item in sent]
    assert list(range(11, 11 + len(bodies))) == [item.method.delivery_tag for item in sent]
    assert bodies == [item.body for item in sent]
    assert [each.header for each in messages] == [item.header for item in sent]
    assert keys[: len(bodies)] == [item.method.routing_key for item in sent]
    assert {("tag", "x", redelivered)} == {
        (item.method.consumer_tag, item.method.exchange, item.method.redelivered) for item in sent
    }
    assert len(bodies) == on.delivered == taker.queue.delivered == taker.unacked
    assert [(taker, seq_id) for seq_id in range(len(bodies))] == list(on.unacked.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"b", bytes(40), b"\xce" * 40, bytes(60), bytes(600)]),
            st.sampled_from([{}, {"delivery_mode": 2}, {"priority": 3}, {"app_id": "x" * 250}]),
            st.sampled_from([1, 3]),
            st.sampled_from([0, 30]),
        ),
        max_size=30,
    ),
    st.sampled_from([131072, 40]),
)
def test_contents_of_another_channel_are_framed_for_this_one(contents, frame_max):
    """Whatever came before it, a content of another channel is delivered as it would be alone."""
    on = channel(2, frame_max=frame_max)
    messages = [
        Message(
            shortstr("") + shortstr("q"),
            content_frames(number, size, build(len(body), **properties), body),
            number,
        )
        for body, properties, number, size in contents
    ]
    consumer(on).deliver(range(len(messages)), messages, redelivered=False)
    sent = b"".join(on.outbox.frames)

    expected = b""
    for tag, one in enumerate(messages):
        alone = channel(2, frame_max=frame_max)
        alone.delivery_tag = tag
        consumer(alone).deliver([0], [one], redelivered=False)
        expected += b"".join(alone.outbox.frames)
    assert expected == sent
    assert [body for body, *_ in contents] == [item.body for item in parse(sent)]


def test_what_is_remembered_of_contents_is_bounded():
    """A consumer keeps no start of a content with long properties."""
    on = channel(2)
    taker = consumer(on)
    long = Message(b"\0\0", content_frames(1, 0, build(1, app_id="x" * 250, user_id="y" * 250), b"a"), 1)
    taker.deliver([0, 1, 2], [long] * 3, redelivered=False)

    assert 512 >= len(taker._start[0])
    assert [b"a"] * 3 == [item.body for item in parse(b"".join(on.outbox.frames))]


def test_large_content_of_another_channel_is_not_copied():
    """The frames of a large message on another channel are views of the content that was published."""
    on = channel(2)
    large = message(bytes(100_000), number=1)
    consumer(on).deliver([0], [large], redelivered=False)

    assert [large.content] == [part.obj for part in on.outbox.frames if isinstance(part, memoryview)]
    assert [bytes(100_000)] == [item.body for item in parse(b"".join(on.outbox.frames))]


def test_large_content_is_passed_on_uncopied():
    """The frames of a large message in the outbox are the very object that was published."""
    on = channel()
    large = message(bytes(10_000))
    consumer(on).deliver([0], [large], redelivered=False)

    assert on.outbox.frames[1] is large.content


def test_without_acks_nothing_is_remembered():
    """Deliveries of a no-ack consumer leave nothing unacked, and no prefetch applies."""
    on = channel()
    taker = consumer(on, no_ack=True, prefetch_count=1)
    taker.deliver([0, 1], [message(b"a"), message(b"b")], redelivered=False)

    assert ({}, 0, UNLIMITED) == (on.unacked, taker.unacked, taker.room)


def test_room_is_what_prefetch_and_outbox_leave():
    """Room is the consumer's limit less its unacked, at most the channel's, and none while the outbox is full."""
    on = channel(limit=100)
    taker = consumer(on, prefetch_count=3)
    taker.deliver([0], [message(b"a")], redelivered=False)

    assert 2 == taker.room
    on.global_prefetch, on.global_room = 5, 1
    assert 1 == taker.room
    taker.deliver([1], [message(bytes(200))], redelivered=False)
    assert on.outbox.full
    assert 0 == taker.room


def test_a_parked_consumer_comes_back_once():
    """A consumer rejoins once when it has room again, and not when it is cancelled."""
    on = channel()
    taker = consumer(on, prefetch_count=1)
    taker.unacked = 1
    taker.park()
    taker.wake()

    assert [] == taker.queue.rejoined
    taker.unacked = 0
    taker.wake()
    taker.wake()
    assert [taker] == taker.queue.rejoined
    taker.park()
    taker.cancelled = True
    taker.wake()
    assert [taker] == taker.queue.rejoined


def test_a_consumer_waits_for_its_outbox():
    """A consumer parked for a full outbox, or given credit meanwhile, rejoins when the outbox has drained."""
    on = channel()
    taker, other = consumer(on), consumer(on)
    on.outbox.full = True
    taker.park()
    other.parked = True
    other.wake()

    assert [] == taker.queue.rejoined
    on.outbox.drained()
    assert [taker] == taker.queue.rejoined
    assert [other] == other.queue.rejoined


def test_many_addresses_are_not_kept_forever():
    """A consumer remembers one address, and what comes before addresses only by their size."""
    taker = consumer(channel(), no_ack=True)
    taker.deliver(range(3000), [message(b"", key=str(number)) for number in range(3000)], redelivered=False)

    assert {len(message(b"", key=key).address) for key in ("1", "10", "100", "1000")} == set(taker._heads)


def test_a_getter_waits_for_nothing():
    """The entry of `basic.get` in the unacked table is never parked, and counts the gets of its channel."""
    on = channel()
    getter = GetRecipient(FakeQueue(), on)  # type: ignore[arg-type]
    getter.unacked += 2
    getter.wake()

    assert not getter.parked
    assert 2 == on.got
