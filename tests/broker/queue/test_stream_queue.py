"""Streams of a broker: what operators do with them, and what their consumers keep of each other."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, basic_consume, queue_declare, set_policy

from leveret.broker.administration import BadRequestError
from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Tx, make
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import Properties, build, with_offset
from leveret.broker.queue import stream_queue
from leveret.broker.queue.stream_queue import StreamQueue
from leveret.broker.scheduling.time_slices import TimeSlices
from leveret.storage.message import Message
from leveret.storage.queues.chunks import Copies
from leveret.storage.store.check import Check, Finding

STREAM = {"x-queue-type": ("longstr", "stream")}


@pytest.fixture(params=["memory", "disk"])
def node(request: Any, tmp_path: Any) -> Iterator[Node]:
    """A broker in memory, and one with a disk."""
    if request.param == "memory":
        yield Node()
        return
    made = DiskNode(tmp_path / "data")
    yield made
    made.disk.close()


def settle(node: Node) -> None:
    """Commit and read until nothing more is to be done."""
    node.run_turn()
    for _ in range(20):
        if not isinstance(node, DiskNode):
            return
        node.write_files()
        node.read()
        node.run_turn()


def stream(client: Client, count: int = 0, **arguments: Any) -> StreamQueue:
    """Declare a stream with so many messages, which have their numbers as bodies."""
    client.send(queue_declare("s", durable=True, arguments={**STREAM, **arguments}))
    settle(client.node)
    publish(client, range(count))
    client.send(make(Basic.Qos, 0, 100, False))
    client.take()
    found = client.node.vhosts["/"].queues["s"]
    assert isinstance(found, StreamQueue)
    return found


def publish(client: Client, numbers: Any, **options: Any) -> None:
    for number in numbers:
        client.publish("s", b"%d" % number, **options)
    settle(client.node)


def read(client: Client, tag: str = "c", offset: Any = ("longstr", "first"), **more: Any) -> list[bytes]:
    """Return the bodies that a new consumer gets at once."""
    client.send(basic_consume("s", tag, arguments={"x-stream-offset": offset, **more}))
    return taken(client)


def taken(client: Client) -> list[bytes]:
    """Return the bodies delivered since the last call."""
    settle(client.node)
    return [
        each.body
        for each in client.take()
        if each.body is not None and isinstance(each.method, Basic.Deliver)
    ]


def frame_sizes(octets: bytes) -> Iterator[int]:
    at = 0
    while at < len(octets):
        size = int.from_bytes(octets[at + 3 : at + 7], "big") + 8
        yield size
        at += size


def test_each_consumer_reads_for_itself(node: Node) -> None:
    """Neither the acks of another consumer nor its cancellation change what one gets."""
    client, other = Client(node), Client(node, port=50001)
    other.send(make(Basic.Qos, 0, 2, False))
    found = stream(client, 4)
    assert read(client) == [b"0", b"1", b"2", b"3"]
    assert read(other, offset=("long", 1)) == [b"1", b"2"]
    assert found.unacked_count == 6
    client.send(make(Basic.Cancel, "c", False))
    other.send(make(Basic.Ack, 1, False))
    assert taken(other) == [b"3"]
    other.send(make(Basic.Nack, 0, True, True))
    assert taken(other) == []
    publish(client, [4])
    assert taken(other) == [b"4"]
    assert found.ready_count == 5


def test_a_paused_stream_delivers_nothing_and_slows_no_publisher(node: Node) -> None:
    """A reader continues after the pause, and publishers never wait for readers."""
    client = Client(node)
    found = stream(client, 2)
    found.pause()
    assert read(client) == []
    found.unpause()
    assert taken(client) == [b"0", b"1"]
    assert found.no_pause_until == float("inf")


def test_a_reader_that_is_behind_continues_with_what_is_left(node: Node) -> None:
    """Retention does not wait for readers; a policy deletes what is too much at once."""
    client = Client(node)
    client.send(make(Basic.Qos, 0, 1, False))
    found = stream(client)
    client.send(make(Basic.Qos, 0, 1, False))
    found.log.segment_octets = 200
    publish(client, range(30))
    assert read(client) == [b"0"]
    set_policy(node.vhosts["/"].policies, "p", "s", {"max-length-bytes": 400})
    settle(node)
    assert 20 < found.log.first < 30
    assert found.counts().dropped == found.log.first
    client.send(make(Basic.Ack, 0, True))
    assert taken(client) == [b"%d" % found.log.first]


def test_a_stream_that_is_deleted_cancels_its_readers(node: Node) -> None:
    """A reader that waits for the disk hears of it, and a new stream of the name begins with offset 0."""
    client, other = Client(node), Client(node, port=50001)
    found = stream(client, 3)
    client.send(basic_consume("s", "c", arguments={"x-stream-offset": ("longstr", "first")}))
    node.vhosts["/"].delete_queue(found)
    settle(node)
    assert any("basic.cancel" in each for each in client.sent())
    stream(other, 1)
    assert read(other) == [b"0"]


def test_a_filter_is_exact(node: Node) -> None:
    """A consumer gets the messages with its values, in order, however few they are."""
    client = Client(node)
    stream(client)
    for number in range(1000):
        header = {"x-stream-filter-value": ("longstr", f"v{number % 100}")} if number % 3 else {}
        client.publish("s", b"%d" % number, headers=header)
    settle(node)
    wanted = {"x-stream-filter": ("array", [("longstr", "v1"), ("longstr", "v2")])}
    expected = [b"%d" % each for each in range(1000) if each % 3 and each % 100 in {1, 2}]
    assert read(client, **wanted) == expected


def test_operators_look_at_a_stream_and_copy_it(node: Node) -> None:
    """A look shows the offset and no expiry; a transfer that would take messages out is refused."""
    client = Client(node)
    stream(client, 3)
    transfers = node.administration.transfers
    for refused in (transfers.start_discard, transfers.start_retry):
        with pytest.raises(BadRequestError, match="copied only"):
            refused(None, "/", "s")


def test_a_stream_waits_for_no_consumer(node: Node) -> None:
    """A policy or the configuration with a consumer-ack mode does not apply: a stream confirms what is safe."""
    client = Client(node)
    found = stream(client)
    set_policy(node.vhosts["/"].policies, "p", "s", {"confirm-mode": "consumer-ack"})
    settle(node)
    assert not found.awaits_consumers
    assert found.settings.confirm_mode == "standard"


KEPT = {"x-stream-automatic-offset-tracking": ("bool", True)}


def resume(client: Client, tag: str = "c", **more: Any) -> list[bytes]:
    """Return the bodies that a new consumer gets at once, whose offset the stream keeps."""
    client.send(basic_consume("s", tag, arguments={**KEPT, **more}))
    return taken(client)


def end(client: Client, way: str) -> Client:
    if way == "cancel":
        client.send(make(Basic.Cancel, "c", False))
        return client
    node = client.node
    if way == "channel":
        client.send(make(Channel.Close, 200, "", 0, 0))
        settle(node)
        client.send(make(Channel.Open, ""))
    else:
        client.connection.lost()
        settle(node)
        client = Client(node, port=50001)
    client.send(make(Basic.Qos, 0, 100, False))
    settle(node)
    client.take()
    return client


@pytest.mark.parametrize("way", ["cancel", "channel", "connection"])
def test_a_consumer_continues_where_the_last_one_with_its_tag_has_ended(node: Node, way: str) -> None:
    """It gets what was not acked, and what came later; a consumer with another tag begins with the first message."""
    client = Client(node)
    stream(client, 6)
    assert resume(client) == [b"%d" % number for number in range(6)]
    client.send(make(Basic.Ack, 2, True))
    client.send(make(Basic.Ack, 5, False))  # one that is not acked comes before it
    settle(node)
    client = end(client, way)
    publish(client, [6])
    assert resume(client) == [b"2", b"3", b"4", b"5", b"6"]
    assert resume(client, "other") == [b"%d" % number for number in range(7)]


def test_acks_of_a_transaction_count_when_it_is_committed(node: Node) -> None:
    """A rollback leaves the offset where it was."""
    client = Client(node)
    found = stream(client, 4)
    client.send(make(Tx.Select))
    resume(client)
    client.send(make(Basic.Ack, 1, True))
    client.send(make(Tx.Commit))
    settle(node)
    client.send(make(Basic.Ack, 3, True))
    found.touch()
    settle(node)
    client.send(make(Tx.Rollback))
    settle(node)
    client = end(client, "channel")
    assert resume(client) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (make(Basic.Reject, 3, True), 2),
        (make(Basic.Nack, 4, True, True), 1),
        (make(Basic.Recover, True), 1),
        (make(Basic.Reject, 3, False), 5),
        (make(Basic.Nack, 4, True, False), 5),
    ],
)
@pytest.mark.parametrize("is_transaction", [False, True])
def test_a_delivery_that_is_requeued_comes_to_the_next_consumer(
    node: Node, method: Any, expected: int, *, is_transaction: bool
) -> None:
    """A client that cancels a consumer first requeues what the application did not take; what is rejected is settled."""
    client, other = Client(node), Client(node, port=50001)
    stream(client, 5)
    other.send(make(Basic.Qos, 0, 100, False))
    assert len(resume(client)) == len(resume(other, "other")) == 5
    if is_transaction:
        client.send(make(Tx.Select))
    client.send(make(Basic.Ack, 1, False))
    client.send(method)
    other.send(make(Basic.Reject, 1, True))
    other.send(make(Basic.Ack, 0, True))
    client.send(make(Basic.Ack, 0, True))
    if is_transaction:
        client.send(make(Tx.Commit))
    settle(node)
    client.send(make(Basic.Cancel, "c", False))
    client.take()
    assert resume(client) == [b"%d" % number for number in range(expected, 5)]
    other = end(other, "connection")
    assert resume(other, "other") == [b"%d" % number for number in range(5)]


def test_what_a_transaction_requeues_is_not_settled_while_it_is_being_committed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream may run between two steps of a commit: the offset moves with the last one, and no further."""
    client = Client(node)
    found = stream(client, 3)
    client.send(make(Tx.Select))
    resume(client)
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Basic.Reject, 2, True))
    client.send(make(Basic.Ack, 3, False))
    with monkeypatch.context() as patch:
        patch.setattr(TimeSlices, "is_over", lambda _: True)
        client.connection.receive(encode_method(1, make(Tx.Commit)))
        for _ in range(20):
            found.touch()
            found.run()
            assert found.log.offsets.by_tag.get("c", 0) < 2
            while node.clock.soon:
                node.clock.soon.pop(0)()
    settle(node)
    assert "1 tx.commit-ok" in client.sent()
    assert found.log.offsets.by_tag == {"c": 1}


def test_acks_that_come_just_before_the_end_count(node: Node) -> None:
    """The queue need not have run in between."""
    client = Client(node)
    stream(client, 3)
    resume(client)
    client.connection.receive(encode_method(1, make(Basic.Ack, 2, True)))
    client.connection.lost()
    client = Client(node, port=50001)
    client.send(make(Basic.Qos, 0, 100, False))
    assert resume(client) == [b"2"]


def test_an_offset_that_is_kept_goes_before_the_one_that_is_asked_for(node: Node) -> None:
    """The first consumer with a tag begins where it asks, others where that one has ended; without the argument none."""
    client = Client(node)
    found = stream(client, 6)
    asked = {"x-stream-offset": ("long", 3)}
    assert resume(client, **asked) == [b"3", b"4", b"5"]
    client.send(make(Basic.Ack, 2, True))
    settle(node)
    client = end(client, "cancel")
    assert resume(client, **asked) == [b"5"]
    client = end(client, "cancel")
    assert read(client, offset=("long", 3)) == [b"3", b"4", b"5"]
    found.log.segment_octets = 1
    publish(client, range(6, 12))
    set_policy(node.vhosts["/"].policies, "p", "s", {"max-length-bytes": 4})
    settle(node)
    client = end(client, "channel")
    assert resume(client)[0] == b"%d" % found.log.first


def test_offsets_survive_a_kill_and_end_with_their_stream(tmp_path: Path) -> None:
    """A commit after the acks has them. A stream that is deleted leaves none behind."""
    node = DiskNode(tmp_path / "data")
    client = Client(node)
    stream(client, 5)
    resume(client)
    client.send(make(Basic.Ack, 3, True))
    settle(node)
    for _ in range(2):  # the second time nothing is acked
        node.disk.close()
        node = DiskNode(tmp_path / "data")
        client = Client(node)
        client.send(make(Basic.Qos, 0, 100, False))
        assert resume(client) == [b"3", b"4"]
    found = node.vhosts["/"].queues["s"]
    client.send(make(Basic.Ack, 1, False))
    node.run_turn()
    node.vhosts["/"].delete_queue(found)
    settle(node)
    assert node.disk.environment.offsets() == {}
    node.disk.close()


def test_a_stream_forgets_the_offset_that_is_idle_longest(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One tag too many takes the place of that which moved first and has no consumer; the log says so."""
    monkeypatch.setattr(stream_queue, "MOST_TAGS", 3)
    client = Client(node)
    found = stream(client)
    for tag in ("active", "b", "c", "b", "d"):
        resume(client, tag)
        publish(client, [0])
        client.send(make(Basic.Ack, 0, True))
        settle(node)
        if tag != "active":
            client.send(make(Basic.Cancel, tag, False))
    assert set(found.log.offsets.by_tag) == {"active", "b", "d"}
    assert "consumer tag 'c'" in caplog.text


def test_what_cannot_keep_an_offset_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer needs a tag of its own, a stream has so many with offsets, and other queues have none."""
    monkeypatch.setattr(stream_queue, "MOST_TAGS", 2)
    client = Client(node)
    stream(client, 1)
    for tag, fault in (
        ("", "needs a consumer tag for stream"),
        ("c", "it keeps offsets of 2 consumers already"),
    ):
        resume(client, "a")
        resume(client, "b")
        client.send(basic_consume("s", tag, arguments=KEPT))
        assert any(fault in each for each in client.sent())
        client.send(make(Channel.CloseOk))
        client.send(make(Channel.Open, ""))
        client.send(make(Basic.Qos, 0, 100, False))
    client.send(queue_declare("q"))
    client.send(basic_consume("q", "c", arguments=KEPT))
    assert any("invalid arg 'x-stream-automatic-offset-tracking'" in each for each in client.sent())


def test_a_large_message_is_copied_once_for_its_header() -> None:
    """The event loop copies each megabyte of it once."""
    header = build(1 << 22)
    content = b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce" + bytes(1 << 22)
    copies = Copies(with_offset)
    tracemalloc.start()
    try:
        copy = copies.copy(7, b"", content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(copy) > len(content)
    assert peak < 1.5 * len(content)


@pytest.mark.parametrize(("channel", "frame_max"), [(1, 131072), (2, 131072), (1, 4096)])
def test_a_delivery_is_the_same_on_any_channel(node: Node, channel: int, frame_max: int) -> None:
    """A reader gets key, headers and body of each message, on its channel, in frames of its size, after the offset."""
    client, other = Client(node), Client(node, port=50001, frame_max=frame_max)
    stream(client)
    bodies = [b"a", b"b" * 5000, b"", b"c" * 70_000]
    for number, body in enumerate(bodies):
        client.publish("s", body, headers={"n": ("longstr", str(number))} if number % 2 else {})
    settle(node)
    if channel > 1:
        other.send(make(Channel.Open, ""), channel)
    other.send(make(Basic.Qos, 0, 100, False), channel)
    other.take()
    offset = {"x-stream-offset": ("longstr", "first")}
    other.send(basic_consume("s", "c", arguments=offset), channel)
    settle(node)
    assert max(frame_sizes(bytes(other.driver.octets))) <= frame_max
    found = [each for each in other.take() if isinstance(each.method, Basic.Deliver)]
    assert [each.body for each in found] == bodies
    assert [each.channel for each in found] == [channel] * 4
    assert [each.method.delivery_tag for each in found] == [1, 2, 3, 4]
    assert [each.method.routing_key for each in found] == ["s"] * 4
    headers = [Properties(each.header).headers for each in found]
    assert [each["x-stream-offset"] for each in headers] == [("long", number) for number in range(4)]
    assert [each.get("n") for each in headers] == [None, ("longstr", "1"), None, ("longstr", "3")]


def test_a_delivery_that_is_never_acked_takes_no_memory_for_those_behind_it(node: Node) -> None:
    """A stream remembers unacked deliveries of a consumer whose offset it keeps, and few of the others."""
    client = Client(node)
    found = stream(client, 1)
    assert resume(client) == [b"0"]
    for first in range(1, 5000, 90):
        publish(client, range(first, first + 90))
        for number in range(first, first + 90):
            client.send(make(Basic.Ack, number + 1, False))
    settle(node)
    (reader,) = found._kept.values()
    assert len(reader.sent or ()) < 1000
    client = end(client, "channel")
    assert resume(client)[0] == b"0"


def test_a_consumer_that_hangs_does_not_set_the_offset_of_its_tag_back(node: Node) -> None:
    """Its client may have begun again with the same tag before the broker finds that its connection is dead."""
    hung, client = Client(node, port=50001), Client(node)
    found = stream(client, 4)
    hung.send(make(Basic.Qos, 0, 100, False))
    assert len(resume(hung)) == len(resume(client)) == 4
    client.send(make(Basic.Ack, 0, True))
    settle(node)
    publish(client, [4])
    client.send(make(Basic.Ack, 0, True))
    settle(node)
    found.touch()
    settle(node)
    assert found.log.offsets.by_tag == {"c": 5}


HOLDS = {"x-allow-hold": ("bool", True)}
ONCE = {"x-deduplicate": ("longstr", "message_id"), "x-deduplicate-for": ("signedint", 60_000)}


def held(client: Client, delay: int, body: bytes, **options: Any) -> None:
    """Publish a message that is due in `delay` ms."""
    client.publish("s", body, headers={"x-delay": ("signedint", delay)}, **options)
    settle(client.node)


@pytest.mark.parametrize("way", ["argument", "policy"])
def test_a_held_message_is_appended_at_its_time(node: Node, way: str) -> None:
    """Readers get it then, behind what came before, and its time in the stream is that of its release."""
    client = Client(node)
    found = stream(client, **(HOLDS if way == "argument" else {}))
    if way == "policy":
        set_policy(node.vhosts["/"].policies, "p", "s", {"allow-hold": True, "max-length-bytes": 1})
        assert found.limits is not None
        assert found.limits.obstacle(Message(b"", content_frames(1, 0, build(2), b"ab"), 1), 1, 2) == ""
    held(client, 2000, b"later")
    publish(client, [1])
    assert read(client) == [b"1"]
    assert (found.held_count, found.ready_count) == (1, 1)
    node.pass_time(1999)
    assert taken(client) == []
    node.pass_time(1)
    assert taken(client) == [b"later"]
    assert (found.held_count, found.log.next_seq) == (0, 2)
    assert read(client, "d", ("timestamp", node.wall_clock() // 1000)) == [b"later"]


@pytest.mark.parametrize("size", [1, 5_000, 5_000_000])
def test_held_messages_and_ids_survive_a_kill(tmp_path: Path, size: int) -> None:
    """Repeats are dropped, and a held message is in the stream at its time, once; nothing is left of it elsewhere."""
    node = DiskNode(tmp_path / "data")
    client = Client(node)
    stream(client, **HOLDS, **ONCE, **{"x-stream-max-segment-size-bytes": ("long", 1)})
    held(client, 1000, bytes(size), message_id="held")
    client.publish("s", bytes(size), message_id="now")
    settle(node)
    for _ in range(3):  # before its time, then after it, and once more
        node.disk.close()
        node = DiskNode(tmp_path / "data")
        client = Client(node)
        for name in ("held", "now"):
            client.publish("s", b"repeat", message_id=name)
        settle(node)
        node.pass_time(1000)
        settle(node)
        client.publish("s", b"end", message_id="end")
        client.send(make(Basic.Qos, 0, 100, False))
        assert read(client) == [bytes(size), bytes(size), b"end"]
    found = node.vhosts["/"].queues["s"]
    assert (found.held_count, found.counts().repeated, len(node.disk.environment.offsets())) == (0, 3, 0)
    node.vhosts["/"].delete_queue(found)
    settle(node)
    node.disk.close()
    findings: list[Finding] = []
    Check(tmp_path / "data", findings.append).run()
    assert findings == []


def test_a_stream_takes_each_id_once_for_a_time(node: Node) -> None:
    """A repeat is confirmed and dropped, alone or in a run, even after the message was deleted; later it is taken."""
    client = Client(node)
    client.send(make(Confirm.Select, False))
    found = stream(client, **ONCE)
    for number in (1, 1, 2, 3, 1, 2):
        client.publish("s", b"%d" % number, message_id=str(number))
    settle(node)
    client.publish("s", b"1", message_id="1", mandatory=True)
    settle(node)
    confirmed: set[int] = set()
    for each in client.take():
        if isinstance(ack := each.method, Basic.Ack):
            confirmed |= {*range(1 if ack.multiple else ack.delivery_tag, ack.delivery_tag + 1)}
    assert confirmed == {*range(1, 8)}
    assert (found.ready_count, found.counts().repeated) == (3, 4)
    found.log.segment_octets = 1
    publish(client, [9])
    found.log.retain(1, 0)
    publish(client, [1], message_id="1")
    node.pass_time(60_001)
    publish(client, [1], message_id="1")
    assert read(client)[-2:] == [b"9", b"1"]


def test_the_ids_of_a_stream_have_one_mode(node: Node) -> None:
    """Messages of a stream never leave it by their consumers: the other modes mean nothing, and are refused."""
    client = Client(node)
    mode = {"x-deduplicate-mode": ("longstr", "running")}
    client.send(queue_declare("s", durable=True, arguments={**STREAM, **ONCE, **mode}))
    settle(node)
    assert any("invalid arg 'x-deduplicate-mode'" in each for each in client.sent())
    found = stream(Client(node, port=50001))
    set_policy(node.vhosts["/"].policies, "p", "s", {"deduplicate": "body", "deduplicate-mode": "running"})
    assert found.settings.deduplicate is None
    set_policy(node.vhosts["/"].policies, "p", "s", {"deduplicate": "body"})
    assert ("body", "window") == found.settings.once
