"""Dead lettering: originals that wait for their dead letters, refused ones, and queues that get their own back."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.fakes import Client, DiskNode, Node, Sent, hurry, publish_frames
from services.api import Api

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, Tx, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.storage.errors import DiskFullError

LARGE = b"x" * 6000
"""A body above the size from which `disk` writes files."""
CLAIM: Table = {
    "count": ("long", 1),
    "reason": ("longstr", "expired"),
    "queue": ("longstr", ""),
    "time": ("timestamp", 1_700_000_000),
    "exchange": ("longstr", ""),
    "routing-keys": ("array", [("longstr", "q")]),
}
"""A death as the broker writes it."""
CLAIMS: Table = {
    "x-delivery-count": ("long", 1 << 62),
    "x-first-death-queue": ("longstr", "q"),
    "x-first-death-reason": ("longstr", "expired"),
    "x-last-death-queue": ("longstr", "dead"),
    "x-last-death-reason": ("longstr", "expired"),
    "x-death": ("array", [("table", {**CLAIM, "queue": ("longstr", "dead")})]),
    "x-leveret-retries": ("long", 1 << 62),
    "x-retain-for": ("long", 0),
    "x-message-ttl": ("long", 0),
    "x-expires": ("long", 1),
    "x-delivery-limit": ("long", 0),
    "x-delay": ("long", 1 << 62),
    "x-shovelled": ("array", [("table", {})]),
    "x-opt-deaths": ("array", []),
}
"""Headers that the broker writes, and arguments that are none of a message, as a client may send them."""


def dying(key: str, **more: int | str) -> Table:
    """Return the arguments of a queue with dead letters to another queue, and any other ones."""
    arguments: Table = {
        "x-dead-letter-exchange": ("longstr", ""),
        "x-dead-letter-routing-key": ("longstr", key),
    }
    for name, value in more.items():
        kind = "longstr" if isinstance(value, str) else "signedint"
        arguments["x-" + name.replace("_", "-")] = kind, value
    return arguments


def full(length: int) -> Table:
    """Return the arguments of a queue that refuses messages above its limit."""
    return {"x-max-length": ("signedint", length), "x-overflow": ("longstr", "reject-publish")}


def counts(node: Node, name: str) -> tuple[int, int]:
    queue = node.vhosts["/"].queues[name]
    return queue.ready_count, queue.unacked_count


def declare(node: DiskNode, client: Client, name: str, arguments: Table) -> None:
    client.declare(name, durable=True, arguments=arguments)
    node.commit()
    client.sent()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskNode]:
    """A broker that writes bodies of more than 5000 bytes to files."""
    storage = StorageConfig(sync=False, check_invariants=True, blob_threshold=5000)
    node = DiskNode(tmp_path / "data", storage=storage)
    yield node
    node.disk.close()


def test_the_original_of_a_large_dead_letter_goes_when_that_is_refused(disk: DiskNode) -> None:
    """An original that waits for the body file of its dead letter is released if no queue accepts that."""
    client = Client(disk)
    declare(disk, client, "dead", full(0))
    declare(disk, client, "q", dying("dead", message_ttl=100))
    client.publish("q", LARGE, delivery_mode=2)
    disk.run_turn()
    disk.write_files()
    disk.pass_time(100)

    assert (0, 0) == counts(disk, "q")
    assert (0, 0) == counts(disk, "dead")


def test_the_original_of_a_large_dead_letter_waits_for_room(disk: DiskNode) -> None:
    """A body file without space on disk is retried; the original is removed when the file is written."""
    client = Client(disk)
    declare(disk, client, "dead", {})
    declare(disk, client, "q", dying("dead", message_ttl=100))
    client.publish("q", LARGE, delivery_mode=2)
    disk.run_turn()
    disk.write_files()
    disk.pass_time(100)
    journal = disk.disk.journal
    for msg_id in journal.files:
        journal.file_failed(msg_id)
    disk.run_turn()

    assert (0, 1) == counts(disk, "q")
    disk.write_files()
    assert (0, 0) == counts(disk, "q")
    assert (1, 0) == counts(disk, "dead")


def test_a_dead_letter_that_is_refused_is_confirmed(disk: DiskNode) -> None:
    """A message dead-lettered before its commit that no queue accepts is dropped, and its publish confirmed."""
    client = Client(disk)
    client.send(make(Confirm.Select, False))
    declare(disk, client, "dead", full(0))
    declare(disk, client, "q", dying("dead", message_ttl=0))
    client.publish("q", b"1", delivery_mode=2)
    disk.commit()

    assert ["1 basic.ack delivery_tag=1"] == client.sent()


def test_many_rejected_messages_do_not_die_in_one_turn() -> None:
    """Other queues have their turns while one dead-letters what was rejected."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=dying("dead"))
    client.consume("q")
    client.receive(publish_frames("q", b"1") * 300)
    hurry(client.node, looks=50)
    client.send(make(Basic.Nack, 0, True, False))

    left = counts(client.node, "q")[1]
    assert 200 < left < 300
    client.node.clock.run()
    assert (0, 0) == counts(client.node, "q")
    assert (300, 0) == counts(client.node, "dead")


def test_a_dead_letter_that_comes_back_waits_for_the_end_of_the_run() -> None:
    """A queue that gets dead letters during its own run does not begin another: its consumers' room is kept."""
    client = Client()
    client.send(make(Tx.Select))
    client.declare("q", arguments=dying("other") | full(5))
    client.declare("other", arguments=dying("q") | full(4))
    client.receive(publish_frames("other", b"o") * 4 + publish_frames("q", b"u") * 2)
    client.send(make(Tx.Commit))
    client.consume("other")
    client.send(make(Basic.Qos, 0, 2, False))
    client.consume("q")
    client.receive(publish_frames("q", b"1") + publish_frames("q", b"2", expiration="10"))
    client.receive(publish_frames("q", b"3"))
    client.send(make(Tx.Commit))
    client.node.pass_time(10)
    client.sent()
    client.receive(publish_frames("q", b"4") + publish_frames("other", b"5") * 4)
    for tag in (5, 6):
        client.send(make(Basic.Ack, tag, False))
    for tag in range(1, 5):
        client.send(make(Basic.Reject, tag, False))
    client.send(make(Tx.Commit))

    assert [b"1", b"3"] == [item.body for item in client.take() if item.body and "c-q" in str(item)]
    assert (4, 2) == counts(client.node, "q")


def test_bodies_of_dead_letters_go_with_their_last_record(disk: DiskNode) -> None:
    """A body stored by one queue and passed on by another before its commit is deleted when both copies are acked."""
    client = Client(disk)
    client.send(make(Confirm.Select, False))
    declare(disk, client, "dead", {})
    declare(disk, client, "q", dying("dead", message_ttl=0))
    declare(disk, client, "other", {})
    for name in ("q", "other"):
        client.send(make(Wire.Bind, 0, name, "amq.fanout", "", False, {}))
        disk.commit()
    client.sent()
    client.publish(exchange="amq.fanout", body=bytes(4500), delivery_mode=2)
    disk.commit()

    assert ["1 basic.ack delivery_tag=1"] == client.sent()
    for name in ("dead", "other"):
        client.send(make(Wire.Purge, 0, name, False))
        disk.commit()
    assert [] == list(disk.disk.environment.rows("bodies"))


def test_a_publisher_is_notified_once_where_its_message_and_dead_letters_find_no_room(disk: DiskNode) -> None:
    """A publish refused with one commit is neither refused again nor confirmed with a later one."""
    client = Client(disk)
    client.send(make(Confirm.Select, False))
    declare(disk, client, "dead", {})
    declare(disk, client, "q", dying("dead", message_ttl=10))
    client.publish("q", b"1", delivery_mode=2)
    disk.disk.journal.cut()
    disk.pass_time(10)
    disk._settled(DiskFullError("no room"))
    disk.fail()
    disk.commit()
    disk.commit()

    assert ["1 basic.nack delivery_tag=1 requeue"] == [text for text in client.sent() if "ack" in text]
    assert (1, 0) == counts(disk, "dead")


def test_a_large_original_goes_though_its_letter_is_acked_in_the_same_queue(disk: DiskNode) -> None:
    """A dead letter may return to the queue of its original and be acked there before its body is in a file."""
    client = Client(disk)
    declare(disk, client, "q", dying("q"))
    client.publish("q", LARGE, delivery_mode=2)
    disk.run_turn()
    disk.write_files()
    client.consume("q")
    client.send(make(Basic.Reject, 1, False))

    assert (0, 2) == counts(disk, "q")
    client.send(make(Basic.Ack, 2, False))
    assert (0, 0) == counts(disk, "q")


def test_a_letter_of_a_letter_does_not_confirm_what_was_refused(disk: DiskNode) -> None:
    """A publish that is refused and dead-lettered is nacked once, whatever happens to the dead letter."""
    client = Client(disk)
    client.send(make(Confirm.Select, False))
    declare(disk, client, "dead", {})
    declare(disk, client, "middle", dying("dead", message_ttl=10))
    declare(disk, client, "q", dying("middle", max_length=0, overflow="reject-publish-dlx"))
    client.publish("q", b"1", delivery_mode=2)
    disk.pass_time(10)
    disk.commit()

    assert ["1 basic.nack delivery_tag=1 requeue"] == client.sent()
    assert (1, 0) == counts(disk, "dead")


def waiting(node: DiskNode, client: Client, *chain: str) -> None:
    """Declare queues in which messages wait for 100 ms and then go to the next one; the last is an ordinary queue."""
    for name, following in itertools.pairwise(chain):
        declare(node, client, name, dying(following, message_ttl=100))
    declare(node, client, chain[-1], {})


def got(client: Client, queue: str) -> Sent:
    """Take the message that a queue must have."""
    client.send(make(Basic.Get, 0, queue, True))
    answer = client.take()[-1]
    assert answer.header, f"no message in {queue}"
    return answer


def headers(answer: Sent) -> Table:
    """Return the headers of a message that a client got."""
    return Properties(answer.header).headers or {}


def test_a_retry_with_the_headers_that_came_is_never_a_cycle(disk: DiskNode) -> None:
    """A client that publishes what it got with its `x-death` gets it again each time, and its counts go on."""
    client = Client(disk)
    waiting(disk, client, "wait1", "wait0", "task")
    client.publish("wait1", b"task", delivery_mode=2)
    for attempt in (1, 2, 3):
        for _ in range(2):
            disk.commit()
            disk.pass_time(100)
        answer = got(client, "task")
        found = headers(answer)
        assert [("wait0", attempt), ("wait1", attempt)] == [
            (death["queue"][1], death["count"][1]) for _, death in found["x-death"][1]
        ]
        client.publish("wait1", answer.body, delivery_mode=2, headers=found)
    assert (1, 0) == counts(disk, "wait1")


@pytest.mark.parametrize("event", ["nothing", "killed", "restarted", "moved"])
def test_the_brokers_deaths_are_known_wherever_the_message_was(disk: DiskNode, event: str) -> None:
    """A cycle ends after a kill, a stop or a move, too; what the client claimed beforehand ends none."""
    node, client = disk, Client(disk)
    for name, following in (("a", "b"), ("b", "a"), ("c", "a")):
        declare(node, client, name, dying(following, message_ttl=100))
    claimed = ("array", [("table", {**CLAIM, "queue": ("longstr", name)}) for name in "abc"])
    client.publish("a", b"1", delivery_mode=2, headers={"x-death": claimed})
    node.commit()
    node.pass_time(100)
    node.commit()
    assert (1, 0) == counts(node, "b")
    source = "b"
    if event == "moved":
        source = "c"
        assert 202 == Api(node).post("leveret/queues/%2F/b/move", {"destination": source}).status
        node.clock.run()
        node.commit()
    elif event != "nothing":
        node = getattr(node, event)()
        node.read()
    assert (1, 0) == counts(node, source)
    node.pass_time(100)
    while node.disk.loads:
        node.read()
    node.commit()

    assert [(0, 0)] * 3 == [counts(node, name) for name in "abc"]
    assert 1 == node.vhosts["/"].queues[source].counts().cycled
    node.disk.close()


def test_a_message_that_is_dropped_in_a_cycle_is_told_of() -> None:
    """Messages that a cycle ends are counted for the queue, listed with the dead letters, and explained."""
    node = Node()
    client = Client(node)
    client.declare("a", arguments=dying("b", message_ttl=100))
    client.declare("b", arguments=dying("a", message_ttl=100))
    client.publish("a", b"1")
    node.pass_time(100)
    node.pass_time(100)
    api = Api(node)

    (row,) = api.get("leveret/dead-letters/%2F")
    assert ("b", 0, 0, 1) == tuple(row[key] for key in ("queue", "messages", "dead_letters", "cycled"))
    told = (
        "1 dead letter of this queue dropped: without a reject, it would have returned to a queue it died in"
    )
    assert told in str(api.get("leveret/explain/queue/%2F/b"))
    assert told not in str(api.get("leveret/explain/queue/%2F/a"))


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_no_other_header_of_a_client_ends_a_message(disk: DiskNode, queue_type: str) -> None:
    """A message with any header that the broker writes itself is returned, dies and reaches its queue like others."""
    client = Client(disk)
    kind: Table = {"x-queue-type": ("longstr", queue_type)}
    declare(disk, client, "dead", {**kind})
    declare(disk, client, "q", {**dying("dead", delivery_limit=1), **kind})
    client.publish("q", b"1", delivery_mode=2, headers=CLAIMS)
    client.consume("q")
    for tag in (1, 2):
        disk.commit()
        assert (0, 1) == counts(disk, "q")
        client.send(make(Basic.Nack, tag, False, True))
    disk.commit()

    assert b"1" == got(client, "dead").body
