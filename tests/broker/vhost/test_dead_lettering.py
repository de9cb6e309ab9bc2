"""Dead lettering: originals that wait for their dead letters, refused ones, and queues that get their own back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import Client, DiskNode, Node, hurry, publish_frames

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.storage.errors import DiskFullError

LARGE = b"x" * 6000
"""A body above the size from which `disk` writes files."""


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
    """Return the ready and unacked counts of a queue."""
    queue = node.vhosts["/"].queues[name]
    return queue.ready_count, queue.unacked_count


def declare(node: DiskNode, client: Client, name: str, arguments: Table) -> None:
    """Declare a durable queue."""
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


def test_messages_of_a_deleted_queue_leave_no_dead_letters() -> None:
    """A message rejected after the deletion of its queue is not dead-lettered."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=dying("dead"))
    client.publish("q", b"1")
    client.consume("q")
    client.send(make(Wire.Delete, 0, "q", False, False, False))
    client.send(make(Basic.Reject, 1, False))

    assert (0, 0) == counts(client.node, "dead")


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
