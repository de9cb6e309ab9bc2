"""Publishes with expirations, in one read and one by one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from doubles.fakes import Client, DiskNode, basic_consume, publish_frames, settle
from hypothesis import HealthCheck, given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, make
from leveret.broker.channel.channel import Channel as ServerChannel

EXPIRATIONS = (
    None,
    "20",
    "20",
    "30",
    "500",
    "0",
    "+30",
    "030",
    "999999999",
    "1000000000",
    "315360000001",
    "no",
    "",
)
KINDS: dict[str, Any] = {
    "plain": {},
    "ttl": {"x-message-ttl": ("signedint", 100)},
    "short": {"x-max-length": ("long", 5)},
    "refuses": {"x-max-length": ("long", 5), "x-overflow": ("longstr", "reject-publish")},
    "once": {"x-deduplicate": ("longstr", "message_id")},
    "acks": {"x-confirm-mode": ("longstr", "consumer-ack")},
    "quorum": {"x-queue-type": ("longstr", "quorum")},
    "priorities": {"x-max-priority": ("signedint", 3)},
    "dead letters": {
        "x-dead-letter-exchange": ("longstr", ""),
        "x-dead-letter-routing-key": ("longstr", "other"),
    },
}
message = st.fixed_dictionaries(
    {"delivery_mode": st.sampled_from((2, 2, 2, 1))},
    optional={
        "expiration": st.sampled_from(EXPIRATIONS[1:]) | st.just("20"),
        "message_id": st.sampled_from("abc"),
        "priority": st.sampled_from((1, 2)),
        "reply_to": st.just("answers"),
        "correlation_id": st.sampled_from("de"),
        "headers": st.sampled_from(({}, {"id": ("long", 1)}, {"CC": ("array", [("longstr", "other")])})),
        "user_id": st.just("guest"),
    },
)


def told(client: Client) -> list[Any]:
    """Return the numbers of confirmed and refused messages, the bodies of deliveries, and errors."""
    found: set[Any] = set()
    last, bodies, errors = 0, [], []
    for item in client.take():
        method = item.method
        if isinstance(method, Basic.Ack | Basic.Nack):
            first = last + 1 if method.multiple else method.delivery_tag
            found |= {(type(method).__name__, at) for at in range(first, method.delivery_tag + 1)}
            last = max(last, method.delivery_tag)
        elif isinstance(method, Channel.Close):
            errors.append(method.reply_text)
        elif isinstance(method, Basic.Deliver):
            bodies.append(item.body)
    return [found, bodies, errors]


def outcome(octets: list[bytes], arguments: Any, *, is_run: bool, consumes: bool) -> list[Any]:
    """Publish messages, in one read or one by one; returns what becomes of them while time passes."""
    with TemporaryDirectory() as folder:
        node = DiskNode(Path(folder))
        client, reader = Client(node), Client(node)
        client.send(make(Confirm.Select, False))
        for name in ("q", "other"):
            client.declare(name, durable=True, arguments=arguments if name == "q" else {})
        settle(node)
        client.take()
        if consumes:
            reader.send(make(Basic.Qos, 0, 3, False))
            reader.send(basic_consume("q", "c"))
            reader.take()
        for each in [b"".join(octets)] if is_run else octets:
            client.receive(each)
        found: list[Any] = [[told(client), told(reader)]]
        settle(node)
        for passed in (0, 20, 10, 70, 400):
            node.pass_time(passed)
            settle(node)
            queues = [node.vhosts["/"].queues[name] for name in ("q", "other")]
            counts = [(each.ready_count, each.unacked_count, each.published) for each in queues]
            found.append([told(client), told(reader), counts, dict(node.context.totals.sizes.fresh)])
        node.disk.close()
        return found


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    properties=st.lists(message, min_size=2, max_size=9),
    kind=st.sampled_from(list(KINDS)),
    consumes=st.booleans(),
)
def test_a_run_expires_as_its_messages_do_one_by_one(properties, kind, consumes):
    """Messages of one read are confirmed, refused, delivered, and expire as those of as many reads."""
    if (
        kind == "once"
    ):  # a persistent message takes the place of a transient one unless that was delivered before
        properties = [each | {"delivery_mode": properties[0]["delivery_mode"]} for each in properties]
    octets = [publish_frames("q", b"%d" % at, **each) for at, each in enumerate(properties)]
    alone, together = (
        outcome(octets, KINDS[kind], is_run=is_run, consumes=consumes) for is_run in (False, True)
    )
    if kind in ("short", "refuses"):  # a limit of length applies once a turn
        alone, together = [[each[0][2] for each in found] for found in (alone, together)]
    assert alone == together


@pytest.mark.parametrize("differs", [False, True])
def test_of_messages_that_expire_only_the_first_leaves_the_path_of_runs(tmp_path, differs):
    """The others of a read go to their queue as messages without an expiration do, and expire in their time."""
    node = DiskNode(tmp_path)
    client = Client(node)
    client.send(make(Confirm.Select, False))
    client.declare("q", durable=True)
    settle(node)
    client.take()
    octets = [
        publish_frames("q", b"m", expiration=str(100 + differs * at), delivery_mode=2) for at in range(20)
    ]
    with patch.object(ServerChannel, "publish", autospec=True, side_effect=ServerChannel.publish) as publish:
        client.receive(b"".join(octets))
    settle(node)
    assert 1 == publish.call_count
    assert {("Ack", number) for number in range(1, 21)} == told(client)[0]
    node.pass_time(109)
    queue = node.vhosts["/"].queues["q"]
    assert (10 if differs else 0) == queue.ready_count
    node.disk.close()


def test_a_queue_looks_for_expirations_though_the_first_message_never_reached_it(tmp_path):
    """A repeat that its exchange drops has not told the queue; the messages behind it in the read expire all the same."""
    node = DiskNode(tmp_path)
    client = Client(node)
    arguments = {"x-deduplicate": ("longstr", "message_id"), "x-deduplicate-for": ("signedint", 60_000)}
    client.send(make(Exchange.Declare, 0, "e", "fanout", False, True, False, False, False, arguments))
    client.declare("q", durable=True)
    client.send(make(Queue.Bind, 0, "q", "e", "", False, {}))
    settle(node)
    first = publish_frames("", b"m", exchange="e", message_id="1")
    again, new = (publish_frames("", b"m", exchange="e", message_id=each, expiration="20") for each in "12")
    client.receive(first)
    client.receive(again + new)
    settle(node)
    queue = node.vhosts["/"].queues["q"]
    assert 2 == queue.ready_count
    client.send(make(Basic.Get, 0, "q", True))
    node.pass_time(20)
    assert 0 == queue.ready_count
    node.disk.close()
