"""Dead letters of messages that die together, in one run and one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from doubles.fakes import Client, DiskNode, settle
from hypothesis import HealthCheck, example, given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue as Wire, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.broker.vhost import dead_lettering

TARGETS: dict[str, Table] = {
    "plain": {},
    "quorum": {"x-queue-type": ("longstr", "quorum")},
    "short": {"x-max-length": ("signedint", 2)},
    "refuses": {"x-max-length": ("signedint", 2), "x-overflow": ("longstr", "reject-publish")},
    "again": {
        "x-max-length": ("signedint", 1),
        "x-dead-letter-exchange": ("longstr", ""),
        "x-dead-letter-routing-key": ("longstr", "plain"),
    },
    "expires": {"x-message-ttl": ("signedint", 60_000)},
    "acks": {"x-confirm-mode": ("longstr", "consumer-ack")},
    "once": {"x-deduplicate": ("longstr", "message_id")},
}
PROPERTIES: list[dict[str, Any]] = [
    {},
    {"headers": {"n": ("long", 1)}},
    {"message_id": "1"},
    {"expiration": "90000"},
    {"headers": {"CC": ("array", [("longstr", "plain")])}},
]


AFTER = st.sampled_from(("commit", "full", "kill"))


class Case(NamedTuple):
    """Messages that die together: what they are, where their dead letters go, and how they die."""

    messages: list[tuple[dict[str, Any], int, bytes]]
    targets: list[str]
    durable: bool
    kind: str  # of the dead letter exchange; "" for the default one
    confirms: bool
    is_stored: bool  # before they die
    is_rejected: bool
    awaits_consumers: bool
    after: str  # what comes then: commit, full disk, kill


SIMPLE = Case(
    [],
    ["plain"],
    durable=True,
    kind="",
    confirms=False,
    is_stored=True,
    is_rejected=False,
    awaits_consumers=False,
    after="commit",
)


@st.composite
def cases(draw: Any) -> Case:
    """Return messages of which most agree in all that their dead letters share."""
    first = draw(st.sampled_from(PROPERTIES))
    sizes = st.sampled_from((b"", b"m", b"m" * 300, b"m" * 300, b"x" * 6000))
    messages = [
        (draw(st.sampled_from([first] * 4 + PROPERTIES)), draw(st.sampled_from((2, 2, 2, 1))), draw(sizes))
        for _ in range(draw(st.integers(1, 9)))
    ]
    lists = st.lists(st.sampled_from(list(TARGETS)), max_size=3, unique=True)
    targets = draw(st.one_of(st.just(["plain"]), lists))
    kind = draw(st.sampled_from(("", "fanout", "topic", "headers", "x-consistent-hash")))
    return Case(
        messages, targets, draw(st.booleans()), kind, *[draw(st.booleans()) for _ in range(4)], draw(AFTER)
    )


@contextmanager
def brokers() -> Iterator[list[DiskNode]]:
    """Yield two brokers, both of which write bodies of more than 5000 bytes to files."""
    with TemporaryDirectory() as folder:
        storage = StorageConfig(sync=False, check_invariants=True, blob_threshold=5000)
        nodes = [DiskNode(Path(folder, name), storage=storage) for name in "ab"]
        yield nodes


def declare(client: Client, case: Case) -> None:
    """Declare the queue in which the messages die, their exchange, and the queues of that."""
    exchange = "dlx" if case.kind else ""
    if case.kind:
        client.send(make(Exchange.Declare, 0, exchange, case.kind, False, True, False, False, False, {}))
        settle(client.node)
    for name in {*case.targets, "plain"}:
        client.declare(name, durable=case.durable or name == "quorum", arguments=TARGETS[name])
        settle(client.node)
    for name in case.targets if case.kind else ():
        key = "1" if case.kind == "x-consistent-hash" else "#"
        client.send(make(Wire.Bind, 0, name, exchange, key, False, {}))
        settle(client.node)
    arguments: Table = {"x-dead-letter-exchange": ("longstr", exchange)}
    if not case.kind and case.targets:
        arguments["x-dead-letter-routing-key"] = "longstr", case.targets[0]
    if case.awaits_consumers:
        arguments |= TARGETS["acks"]
    if not case.is_rejected:
        arguments["x-message-ttl"] = "signedint", 100
    client.declare("q", durable=True, arguments=arguments)
    settle(client.node)
    client.take()


def outcome(node: DiskNode, case: Case) -> Any:
    """Let the messages die; returns what is where, who was told what, and what was counted."""
    client = Client(node)
    declare(client, case)
    if case.confirms:
        client.send(make(Confirm.Select, False))
    for properties, mode, body in case.messages:
        client.publish("q", body, delivery_mode=mode, **properties)
    if case.is_stored:
        settle(node)
        node.write_files()
    if case.is_rejected:
        client.consume("q")
        client.send(make(Basic.Nack, 0, True, False))
    else:
        node.pass_time(100)
    sent = [verdicts(client)]
    if case.after == "full":
        node.fail()
        sent.append(verdicts(client))
    node.commit()
    sent.append(verdicts(client))
    if case.after != "kill":
        settle(node)
        node.write_files()
        settle(node)
        sent.append(verdicts(client))
    vhost = node.vhosts["/"]
    figures = [(name, queue.counts(), queue.ready_count) for name, queue in sorted(vhost.queues.items())]
    published = [(each.name, each.lookups, each.published_in) for each in vhost.router.exchanges.values()]
    if case.after == "kill":
        node = node.killed()
        node.read()
    found = contents(node)
    node.disk.close()
    return sent, figures, published, found


def verdicts(client: Client) -> list[str]:
    """Return the acks and nacks that a client got since the last call."""
    return sorted(text for text in client.sent() if "ack" in text)


def contents(node: DiskNode) -> dict[str, list[tuple[bytes, bytes]]]:
    """Take what the queues have, with its properties."""
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    client = Client(node)
    for name in sorted(node.vhosts["/"].queues):
        found[name] = []
        while True:
            client.send(make(Basic.Get, 0, name, True))
            settle(node)
            answer = client.take()[-1]
            if not answer.header:
                break
            found[name].append((answer.header, answer.body))
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
@example(case=SIMPLE._replace(messages=[({}, 2, b"x" * 6000)] * 2, after="kill"))
def test_messages_that_die_together_leave_what_they_leave_one_by_one(case: Case) -> None:
    """A run of dead letters is routed, stored, confirmed and counted as its messages are one by one."""
    with brokers() as (together, apart):
        with patch.object(dead_lettering, "groupby", lambda made, key: ((None, [each]) for each in made)):
            expected = outcome(apart, case)
        assert expected == outcome(together, case)


def test_messages_that_share_all_but_their_bodies_are_routed_once(tmp_path: Path) -> None:
    """One call puts a run of dead letters into its queue; a header that differs begins another one."""
    node = DiskNode(tmp_path)
    client = Client(node)
    declare(client, SIMPLE)
    for number in (1, 1, 1, 2, 2, 3):
        client.publish("q", b"m" * number, delivery_mode=2, headers={"n": ("long", number)})
    settle(node)
    with patch.object(
        dead_lettering, "distribute_all", wraps=dead_lettering.distribute_all
    ) as distribute_all:
        node.pass_time(100)
    assert [3, 2] == [len(call.args[1]) for call in distribute_all.call_args_list]
    assert 6 == node.vhosts["/"].queues["plain"].ready_count
    node.disk.close()
