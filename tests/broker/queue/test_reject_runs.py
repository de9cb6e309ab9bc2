"""Publishes to queues that refuse what is too much, in one read and one by one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from doubles.fakes import Client, DiskNode, publish_frames, settle, verdicts
from hypothesis import HealthCheck, given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Confirm, Queue, make
from leveret.broker.channel import channel

OVERFLOW = ("reject-publish", "reject-publish-dlx", "drop-head")
MORE: tuple[dict[str, Any], ...] = ({}, {"priority": 3}, {"expiration": "100000"}, {"delivery_mode": 2})


@st.composite
def arguments(draw: Any) -> dict[str, Any]:
    """Return the arguments of a queue, which has a limit most of the time."""
    found: dict[str, Any] = {"x-overflow": ("longstr", draw(st.sampled_from(OVERFLOW)))}
    if draw(st.integers(0, 4)):
        found["x-max-length"] = ("long", draw(st.integers(0, 5)))
    if not draw(st.integers(0, 3)):
        found["x-max-length-bytes"] = ("long", draw(st.integers(0, 20)))
    if draw(st.booleans()):
        found |= {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}
    if not draw(st.integers(0, 4)):
        found["x-confirm-mode"] = ("longstr", "consumer-ack")
    if not draw(st.integers(0, 3)):
        found["x-max-priority"] = ("long", 5)
    return found


MESSAGES = st.lists(
    st.tuples(st.sampled_from((b"", b"m", b"m" * 9)), st.sampled_from(MORE)), min_size=1, max_size=7
)
STEPS = st.lists(st.one_of(MESSAGES, st.integers(1, 4)), min_size=1, max_size=6)
"""Messages that come in one read, or a number of deliveries that are acked."""


def outcome(steps: Any, queues: list[Any], *, prefetch: int, confirms: bool) -> list[Any]:
    """Return what becomes of messages of which each read has some, with a consumer of the first queue."""
    with TemporaryDirectory() as folder:
        node = DiskNode(Path(folder))
        client, consumer = Client(node), Client(node)
        client.declare("dead", durable=True)
        for name, each in zip("ab", queues, strict=False):
            client.declare(name, durable=True, arguments=each)
            settle(node)
            client.send(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
        if confirms:
            client.send(make(Confirm.Select, False))
        if prefetch:
            consumer.send(make(Basic.Qos, 0, prefetch, False))
            consumer.consume("a")
        settle(node)
        client.take()
        found: list[Any] = []
        acked = delivered = 0
        for at, step in enumerate(steps):
            if not isinstance(step, int):
                octets = [
                    publish_frames("", b"%d-%d" % (at, place) + rest, exchange="amq.fanout", **more)
                    for place, (rest, more) in enumerate(step)
                ]
                client.receive(b"".join(octets))
            elif acked < delivered:
                acked = min(acked + step, delivered)
                consumer.send(make(Basic.Ack, acked, True))
            settle(node)
            got = consumer.sent()
            delivered += len(got)
            found += [verdicts(client), got]
        names = node.vhosts["/"].queues
        for name in names:
            left: list[tuple[bytes, bytes]] = []
            while names[name].ready_count:
                client.send(make(Basic.Get, 0, name, True))
                settle(node)
                left += [(item.body, item.header) for item in client.take()]
            found.append(sorted(left) if name == "dead" else left)  # those of two queues are in no order
        published = [queue.published for queue in names.values()]
        node.disk.close()
        return [*found, published]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    queues=st.lists(arguments(), min_size=1, max_size=2),
    prefetch=st.integers(0, 2),
    confirms=st.booleans(),
)
def test_a_run_is_refused_as_its_messages_are_one_by_one(steps, queues, prefetch, confirms):
    """Messages of one read are taken, refused, dead-lettered and delivered as if each had come by the long way."""
    with patch.object(channel, "_sifting", lambda kind, queues, once: (kind, False)):
        expected = outcome(steps, queues, prefetch=prefetch, confirms=confirms)
    assert expected == outcome(steps, queues, prefetch=prefetch, confirms=confirms)
