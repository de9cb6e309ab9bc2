"""Publishes to a queue that holds, in one read and one by one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from doubles.fakes import Client, DiskNode, publish_frames, settle, verdicts
from hypothesis import HealthCheck, example, given, settings, strategies as st

from leveret.broker.amqp.commands import Confirm, make
from leveret.broker.channel.channel import Channel as ServerChannel

FAR = 1_700_000_000_000
TIMES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("x-deliver-at", "long"): (FAR, FAR + 1, FAR + 2, 0),
    ("x-deliver-at", "timestamp"): (FAR, FAR + 1, 0),
    ("x-delay", "signedint"): (1, 2, 3, -1),
    ("x-delay", "long"): (FAR, 2, 0),
    ("x-delay", "longstr"): ("0071", "soon", "0072"),
    ("x-deliver-at", "void"): (None,),
    ("eta", "longstr"): ("2950-01-01", "2951-01-01", "1951-01-01"),
}
OTHERS: dict[str, tuple[Any, ...]] = {
    "tag": ("a", "b", "\x07x-delayI\0\0\0\5", ""),
    "body": (b"", b"m", b"m" * 300),
    "delivery_mode": (2, 1),
    "more": ({}, {"message_id": "1"}, {"expiration": "100000"}, {"message_id": "2"}),
}
KINDS = {
    "plain": {},
    "most": {"x-max-held": ("long", 3)},
    "named": {"x-hold-until-header": ("longstr", "eta")},
    "quorum": {"x-queue-type": ("longstr", "quorum")},
    "short": {"x-max-length": ("long", 5)},
    "refuses": {"x-max-length": ("long", 5), "x-overflow": ("longstr", "reject-publish")},
    "once": {"x-deduplicate": ("longstr", "message_id")},
    "acks": {"x-confirm-mode": ("longstr", "consumer-ack")},
}


def mostly_first(values: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Return a strategy for one of some values, of which the last is the rarest."""
    return st.sampled_from(
        [each for at, each in enumerate(values) for _ in range(3 ** (len(values) - 1 - at))]
    )


@st.composite
def runs(draw: Any) -> list[bytes]:
    """Return the frames of messages of which each differs from the first in one thing at most, but for the time."""
    fields = draw(st.lists(st.sampled_from(list(TIMES)), min_size=1, max_size=2))
    first = {name: draw(mostly_first(values)) for name, values in OTHERS.items()}
    is_tag_first, is_twice = draw(st.booleans()), draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(2, 8))):
        changed = draw(st.sampled_from(("", "", "body", *OTHERS)))
        message = first | ({changed: draw(st.sampled_from(OTHERS[changed]))} if changed else {})
        headers = {name: (kind, draw(mostly_first(TIMES[name, kind]))) for name, kind in fields}
        if is_twice:  # a table may have a name twice, which no client makes of a dictionary
            more = {f"{name[:-1]}?": (kind, draw(mostly_first(TIMES[name, kind]))) for name, kind in fields}
            headers = more | headers
        tag = {"tag": ("longstr", message["tag"])} if message["tag"] else {}
        headers = tag | headers if is_tag_first else headers | tag
        mode = message["delivery_mode"]
        octets = publish_frames("q", message["body"], headers=headers, delivery_mode=mode, **message["more"])
        found.append(twice(octets, *[name for name, _ in fields]))
    return found


def twice(octets: bytes, *names: str) -> bytes:
    """Give headers whose name ends in a question mark the name of another one."""
    for name in names:
        octets = octets.replace(f"{name[:-1]}?".encode(), name.encode())
    return octets


FIRST_APPLIES = [
    twice(
        publish_frames("q", headers={"x-dela?": ("signedint", first), "x-delay": ("signedint", second)}),
        "x-delay",
    )
    for first, second in ((1, 5), (1, 6), (2, 6))
]
"""Messages with a time twice, of which the first applies: a run must not take the other one, which changes, for it."""


def outcome(octets: list[bytes], arguments: Any, *, is_run: bool) -> Any:
    """Publish messages, in one read or one by one; returns what becomes of them."""
    with TemporaryDirectory() as folder:
        node = DiskNode(Path(folder))
        client = Client(node)
        client.send(make(Confirm.Select, False))
        client.declare("q", durable=True, arguments=arguments)
        settle(node)
        node.pass_time(60_000)
        client.take()
        for each in [b"".join(octets)] if is_run else octets:
            client.receive(each)
        queue = node.vhosts["/"].queues["q"]
        rows = [sorted(line.window.peek()[0].items()) for line in queue.lines]
        before = verdicts(client)
        settle(node)
        # of a run that ends with an error all sizes are counted, and those before it are confirmed by no turn
        sizes = {} if before[1] else dict(node.context.totals.sizes.fresh)
        node.disk.close()
        return (
            rows,
            before[1] or before,
            verdicts(client),
            queue.held_count,
            queue.ready_count,
            queue.published,
            sizes,
        )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(octets=runs(), kind=st.sampled_from(list(KINDS)))
@example(octets=FIRST_APPLIES, kind="plain")
def test_a_run_is_held_as_its_messages_are_one_by_one(octets, kind):
    """Messages of one read are held, confirmed, refused and counted as those of as many reads."""
    arguments = {"x-allow-hold": ("bool", True)} | KINDS[kind]
    assert outcome(octets, arguments, is_run=False) == outcome(octets, arguments, is_run=True)


def test_publishes_with_times_are_one_run(tmp_path):
    """Of publishes with ids and times of their own only the first leaves the path of runs; the commit confirms all."""
    node = DiskNode(tmp_path)
    client = Client(node)
    client.send(make(Confirm.Select, False))
    client.declare("q", durable=True, arguments={"x-allow-hold": ("bool", True)})
    settle(node)
    client.take()
    octets = [
        publish_frames(
            "q", b"m" * at, headers={"id": ("long", at), "x-delay": ("signedint", at + 1)}, delivery_mode=2
        )
        for at in range(20)
    ]
    with patch.object(ServerChannel, "publish", autospec=True, side_effect=ServerChannel.publish) as publish:
        client.receive(b"".join(octets))
    queue = node.vhosts["/"].queues["q"]
    assert (1, 20, False) == (publish.call_count, queue.held_count, queue.inbox_persistent)
    assert set() == verdicts(client)[0]
    settle(node)
    assert {("Ack", number) for number in range(1, 21)} == verdicts(client)[0]
    node.disk.close()
