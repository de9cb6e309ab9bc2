"""Messages move, are copied and discarded by a condition, in batches that are whole."""

import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from doubles.fakes import Client, DiskNode, Node, hurry, node_in, queue_declare

from leveret.broker.administration.transfers import EVERYTHING, Chosen
from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue as Wire, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.broker.queue.queue import Queue as QueueClass
from leveret.broker.transfer import transfer as module
from leveret.broker.transfer.transfer import Action
from leveret.broker.vhost.publish_route import PERSISTENT_MODE
from leveret.storage.message import Message

ODD = 'headers.odd == "yes"'
FILES_FROM = 5000
"""Bytes of contents that are written to files, in tests of that."""
LARGE = b"x" * FILES_FROM
DIED = ("array", [("table", {"queue": ("longstr", "to"), "reason": ("longstr", "rejected")})])
"""The header x-death of a message that died in the queue `to`."""


def fill(client: Client, queue: str, count: int, **properties: Any) -> list[bytes]:
    """Publish numbered messages, of which every other has a header; returns their bodies."""
    bodies = [b"%d" % number for number in range(count)]
    for number, body in enumerate(bodies):
        headers: Table = {"odd": ("longstr", "yes" if number % 2 else "no")}
        client.publish(queue, body, headers=headers, **properties)
    return bodies


def declare(client: Client, queue: str, **options: Any) -> None:
    say(client, queue_declare(queue, **options))


def say(client: Client, method: Any) -> None:
    client.send(method)
    if isinstance(client.node, DiskNode):
        client.node.commit()


def bodies(node: Node, queue: str) -> list[bytes]:
    """Return the ready messages of a queue in order, without taking them."""
    return [message.body for message in ready(node, queue)]


def ready(node: Node, queue: str) -> list[Message]:
    node.run_turn()
    steps = node.vhosts["/"].queues[queue].backing.peek()
    answer = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stopped:
            return [peeked.message for peeked in stopped.value.ready]
        answer = wanted() if wanted is not None else None


def result(node: Node, number: int) -> dict[str, Any]:
    for _ in range(10_000):
        node.clock.run()
        found = node.administration.transfers.transfer(None, number)
        if found["ended"] is not None:
            return found
        if isinstance(node, DiskNode):
            node.commit()
        node.pass_time(10)
    raise AssertionError(found)


def move(
    node: Node, queue: str, to: str, chosen: Chosen = EVERYTHING, *, is_copy: bool = False
) -> dict[str, Any]:
    started = node.administration.transfers.start_move(None, "/", queue, to, is_copy=is_copy, chosen=chosen)
    return result(node, started)


def summary(found: dict[str, Any]) -> tuple[Any, ...]:
    """Return state, number of messages, those that match, those that are done, and the causes of the others."""
    return (*(found[key] for key in ("state", "messages", "matched", "done")), found["causes"])


@pytest.fixture(params=["memory", "disk"])
def node(request, tmp_path) -> Iterator[Node]:
    """A broker in memory, and one with a disk."""
    with node_in(request.param, tmp_path / "data") as made:
        yield made


@pytest.fixture
def client(node) -> Client:
    """A client that has declared two durable queues."""
    made = Client(node)
    declare(made, "q", durable=True)
    declare(made, "to", durable=True)
    return made


def test_a_move_takes_what_meets_the_condition(node, client):
    """Messages that meet the condition are in the destination in their order, with properties; others stay in theirs."""
    sent = fill(client, "q", 600, delivery_mode=2, message_id="m")

    assert ("done", 600, 300, 300, {}) == summary(move(node, "q", "to", Chosen(ODD)))
    assert sent[::2] == bodies(node, "q")
    assert sent[1::2] == bodies(node, "to")
    moved = ready(node, "to")[0]
    assert b"\0\1q" == moved.address
    assert b"odd" in moved.header
    assert b"m" in moved.header
    client.take()
    client.send(make(Basic.Consume, 0, "q", "c", False, True, False, False, {}))
    node.clock.run()
    assert [] == [item for item in client.take() if item.body and "True" in str(item)]


def test_a_copy_leaves_everything(node, client):
    """A copy puts messages into the destination, and leaves them."""
    sent = fill(client, "q", 10, delivery_mode=2)

    assert ("done", 10, 5, 5, {}) == summary(move(node, "q", "to", Chosen(ODD), is_copy=True))
    assert sent == bodies(node, "q")
    assert sent[1::2] == bodies(node, "to")


def test_a_discard_drops_messages_without_dead_letters(node, client):
    """Discarded messages are gone, and are not dead-lettered."""
    dead_letters: Table = {
        "x-dead-letter-exchange": ("longstr", ""),
        "x-dead-letter-routing-key": ("longstr", "to"),
    }
    declare(client, "d", durable=True, arguments=dead_letters)
    sent = fill(client, "d", 10, delivery_mode=2)
    started = node.administration.transfers.start_discard(None, "/", "d", Chosen(ODD, limit=3))

    assert ("done", 10, 3, 3, {}) == summary(result(node, started))
    assert [*sent[:6:2], *sent[6:]] == bodies(node, "d")
    assert [] == bodies(node, "to")
    assert 3 == node.vhosts["/"].queues["d"].counts().purged


def test_a_dry_run_counts(node, client):
    """A dry run says what would happen, also how many would find no room, and changes nothing."""
    full: Table = {"x-max-length": ("signedint", 3), "x-overflow": ("longstr", "reject-publish")}
    declare(client, "small", durable=True, arguments=full)
    sent = fill(client, "q", 10)

    assert ("done", 10, 5, 5, {}) == summary(move(node, "q", "to", Chosen(ODD, is_dry=True)))
    assert ("done", 10, 10, 3, {"full": 7}) == summary(move(node, "q", "small", Chosen(is_dry=True)))
    assert (sent, [], []) == (bodies(node, "q"), bodies(node, "to"), bodies(node, "small"))


@pytest.mark.parametrize(
    ("arguments", "cause", "stay"),
    [
        (
            {"x-max-length": ("signedint", 2), "x-overflow": ("longstr", "reject-publish")},
            "full",
            slice(2, None),
        ),
        ({"x-max-length": ("signedint", 0)}, "full", slice(0, None)),
        ({"x-max-length-bytes": ("signedint", 1)}, "too large", slice(1, None)),
        (
            {"x-max-length-bytes": ("signedint", 7), "x-overflow": ("longstr", "reject-publish-dlx")},
            "full",
            slice(3, None),
        ),
    ],
)
def test_what_does_not_fit_stays(node, client, arguments, cause, stay):
    """A message that its destination cannot take stays in its place, and is counted."""
    declare(client, "small", durable=True, arguments=arguments)
    for number in range(5):
        client.publish("q", b"x" * (1 + 2 * min(number, 1)))
    sent = bodies(node, "q")
    found = move(node, "q", "small")

    assert {cause: len(sent[stay])} == found["causes"]
    assert sent[stay] == bodies(node, "q")
    assert 5 - len(sent[stay]) == found["done"]


def test_a_full_queue_with_consumers_takes_more(node, client):
    """Messages that go straight to consumers do not count as being in the way of the next ones."""
    full: Table = {"x-max-length": ("signedint", 2), "x-overflow": ("longstr", "reject-publish")}
    declare(client, "small", durable=True, arguments=full)
    client.consume("small", "c", no_ack=True)
    fill(client, "q", 50)

    assert ("done", 50, 50, 50, {}) == summary(move(node, "q", "small"))


def test_an_exchange_is_a_destination(node, client):
    """Messages go to the queues of an exchange by their key or a given one; a message that it does not route stays."""
    say(client, make(Exchange.Declare, 0, "x", "direct", False, True, False, False, False, {}))
    say(client, make(Wire.Bind, 0, "to", "x", "q", False, {}))
    say(client, make(Wire.Bind, 0, "to", "x", "other", False, {}))
    say(client, make(Wire.Bind, 0, "q", "x", "back", False, {}))
    fill(client, "q", 4)

    assert {"unroutable": 4} == move(node, "q", "exchange:x/none")["causes"]
    assert {"returns to its queue": 4} == move(node, "q", "exchange:x/back")["causes"]
    assert 1 == move(node, "q", "exchange:x", Chosen(limit=1))["done"]
    assert b"\1x\1q" == ready(node, "to")[0].address
    assert 3 == move(node, "q", "exchange:x/other")["done"]
    assert b"\1x\5other" == ready(node, "to")[3].address


def test_an_exchange_may_have_a_slash_in_its_name(node, client):
    """A slash and a percent sign of the name are written as in a URL; those of the routing key as they are."""
    say(client, make(Exchange.Declare, 0, "100%/x", "topic", False, True, False, False, False, {}))
    say(client, make(Wire.Bind, 0, "to", "100%/x", "a/b%2F", False, {}))
    fill(client, "q", 1)

    assert 1 == move(node, "q", "exchange:100%25%2Fx/a/b%2F")["done"]
    assert b"100%/xa/b%2F" == ready(node, "to")[0].address


def test_times_are_not_carried_over(node, client):
    """A message that moves gets the TTL of its new queue, and its own from the beginning."""
    declare(client, "short", durable=True, arguments={"x-message-ttl": ("signedint", 10_000)})
    client.publish("q", b"own", expiration="3000")
    client.publish("q", b"none")
    node.pass_time(2000)
    move(node, "q", "short")
    node.pass_time(2000)
    assert [b"own", b"none"] == bodies(node, "short")
    node.pass_time(1500)
    assert [b"none"] == bodies(node, "short")
    node.pass_time(7000)

    assert [] == bodies(node, "short")


def test_what_has_expired_does_not_move(node, client):
    """A message that has expired behind another one is not brought back to life by a move."""
    client.publish("q", b"stays")
    client.publish("q", b"gone", expiration="100")
    node.pass_time(200)

    assert 1 == move(node, "q", "to")["done"]
    assert [b"stays"] == bodies(node, "to")


def test_a_rate_is_kept(node, client):
    """A transfer with a rate moves no more messages a second."""
    fill(client, "q", 50)
    transfers = node.administration.transfers
    number = transfers.start_move(None, "/", "q", "to", chosen=Chosen(rate=20))
    for second in range(1, 3):
        for _ in range(100):
            node.clock.run()
            node.pass_time(10)
        assert 20 * second - 4 <= transfers.transfer(None, number)["done"] <= 20 * second + 4


def test_a_cancelled_transfer_ends_after_a_batch(node, client):
    """Cancelling leaves what has moved, and what has not; a rate does not delay it."""
    sent = fill(client, "q", 50)
    transfers = node.administration.transfers
    number = transfers.start_move(None, "/", "q", "to", chosen=Chosen(rate=10))
    node.clock.run()
    transfers.cancel(None, number)
    found = result(node, number)

    assert "cancelled" == found["state"]
    assert sent == bodies(node, "to") + bodies(node, "q")
    assert found["done"] == len(bodies(node, "to")) < 50


@pytest.mark.parametrize("gone", ["q", "to"])
def test_a_queue_that_goes_ends_the_transfer(node, client, gone):
    """The transfer fails when one of its queues is deleted; what the other one has stays."""
    sent = fill(client, "q", 50)
    transfers = node.administration.transfers
    number = transfers.start_move(None, "/", "q", "to", chosen=Chosen(rate=10))
    node.clock.run()
    moved = transfers.transfer(None, number)["done"]
    say(client, make(Wire.Delete, 0, gone, False, False, False))
    found = result(node, number)

    assert ("failed", f"queue '{gone}' was deleted") == (found["state"], found["error"])
    assert (sent[:moved] if gone == "q" else sent[moved:]) == bodies(node, "to" if gone == "q" else "q")


def test_a_transfer_takes_turns(node, client):
    """A transfer of many messages is divided into steps, each of which looks at the clock, and is not confused by it."""
    sent = fill(client, "q", 1000)
    hurry(node, looks=5)

    assert ("done", 1000, 500, 500, {}) == summary(move(node, "q", "to", Chosen(ODD)))
    assert sent[1::2] == bodies(node, "to")


def test_priorities_and_limits_of_the_source_stay_right(node, client):
    """A queue with priorities and limits counts on after messages were taken out of its middle."""
    limits: Table = {
        "x-max-priority": ("signedint", 3),
        "x-max-length-bytes": ("signedint", 10),
        "x-overflow": ("longstr", "reject-publish"),
    }
    declare(client, "p", durable=True, arguments=limits)
    client.send(Confirm.Select())
    for number in range(10):
        client.publish("p", b"%d" % number, priority=number % 3, headers={"n": ("signedint", number)})
    assert 5 == move(node, "p", "to", Chosen("headers.n >= 5"))["done"]
    assert [b"5", b"8", b"7", b"6", b"9"] == bodies(node, "to")
    assert [b"2", b"1", b"4", b"0", b"3"] == bodies(node, "p")
    client.take()
    client.publish("p", b"12345")
    client.publish("p", b"x")
    node.commit() if isinstance(node, DiskNode) else node.run_turn()

    assert [b"12345"] == bodies(node, "p")[-1:]
    assert any("nack" in item for item in client.sent())


class Confirmed:
    """A client in confirm mode, and the queues for consumer acks."""

    def __init__(self, node: Node) -> None:
        self.client = Client(node, port=50001)
        for name in ("acks", "more-acks"):
            declare(
                self.client, name, durable=True, arguments={"x-confirm-mode": ("longstr", "consumer-ack")}
            )
        self.client.send(Confirm.Select())
        self.client.publish("acks", b"one", delivery_mode=2)
        self.client.take()

    @property
    def verdicts(self) -> list[str]:
        return [item for item in self.client.sent() if "ack" in item]


def test_a_promise_goes_with_the_message(node, client):
    """The publisher waits for a consumer of the new queue, if that confirms on consumer acks."""
    publisher = Confirmed(node)
    move(node, "acks", "more-acks")
    assert [] == publisher.verdicts
    consumer = Client(node, port=50002)
    consumer.send(make(Basic.Consume, 0, "more-acks", "c", False, True, False, False, {}))
    node.run_turn()

    assert ["1 basic.ack delivery_tag=1"] == publisher.verdicts


def test_a_promise_is_kept_on_disk(node, client):
    """In a queue of the standard mode it is kept when the message is on disk, as that of a dead letter."""
    publisher = Confirmed(node)
    node.administration.transfers.start_move(None, "/", "acks", "to")
    node.clock.run()
    if isinstance(node, DiskNode):
        assert [] == publisher.verdicts
        node.commit()

    assert ["1 basic.ack delivery_tag=1"] == publisher.verdicts


def test_a_discard_breaks_the_promise(node, client):
    """Nobody has consumed the message: a nack, as after a purge. A copy leaves the promise with the original."""
    publisher = Confirmed(node)
    move(node, "acks", "more-acks", is_copy=True)
    assert [] == publisher.verdicts
    result(node, node.administration.transfers.start_discard(None, "/", "acks"))

    assert ["1 basic.nack delivery_tag=1 requeue"] == publisher.verdicts
    assert [b"one"] == bodies(node, "more-acks")


def test_a_transfer_is_over_when_it_is_on_disk(tmp_path):
    """A copy, move or discard that is over survives a kill; one that finds the disk full says so."""
    node = DiskNode(tmp_path)
    client = Client(node)
    for queue in ("q", "to"):
        declare(client, queue, durable=True)
    sent = fill(client, "q", 10, delivery_mode=2)
    node.commit()
    transfers = node.administration.transfers
    copied, discarded = (
        transfers.start_move(None, "/", "q", "to", is_copy=True),
        transfers.start_discard(None, "/", "q"),
    )
    node.clock.run()
    assert [("running", 10), ("running", 10)] == [
        (each["state"], each["done"]) for each in transfers.transfers(None)
    ]
    node.commit()

    assert {"done"} == {transfers.transfer(None, number)["state"] for number in (copied, discarded)}
    node = node.killed()
    assert ([], sent) == (bodies(node, "q"), bodies(node, "to"))
    number = node.administration.transfers.start_move(None, "/", "to", "q")
    node.clock.run()
    node.fail()
    found = node.administration.transfers.transfer(None, number)
    assert ("failed", 10) == (found["state"], found["done"])
    assert "disk is full" in found["error"]
    node.commit()
    node.disk.close()


# -- bodies in files --------------------------------------------------------------------------------------------------


def node_with_files(data_dir: Path) -> DiskNode:
    """Return a broker that writes large bodies to files of their own."""
    storage = StorageConfig(sync=False, check_invariants=True, blob_threshold=FILES_FROM)
    return DiskNode(data_dir, storage=storage)


def write_file(node: DiskNode, msg_id: int) -> None:
    """Write the body of a message to its file, as the committer does."""
    environment, journal = node.disk.environment, node.disk.journal
    environment.bodies.write(msg_id, journal.files[msg_id][0].content)
    if not journal.file_written(msg_id):
        environment.bodies.path(msg_id).unlink()
    node.run_turn()


def commit(node: DiskNode) -> None:
    """Commit, and remove the files of bodies that are not needed any more, before anybody knows of the commit."""
    for msg_id in node.disk.environment.commit(node.disk.journal.cut()):
        node.disk.environment.bodies.path(msg_id).unlink(missing_ok=True)


@pytest.mark.parametrize("looks", [1, 2, 5])
def test_a_copy_waits_for_queues_that_have_no_time(tmp_path, looks):
    """A copy is over when queues that were deferred have taken its messages, and the files of these are written."""
    node = node_with_files(tmp_path)
    client = Client(node)
    say(client, make(Exchange.Declare, 0, "x", "fanout", False, True, False, False, False, {}))
    declare(client, "q", durable=True)
    for queue in ("a", "b", "to", "c"):
        declare(client, queue, durable=True)
        say(client, make(Wire.Bind, 0, queue, "x", "", False, {}))
    for _ in range(5):
        client.publish("q", LARGE, delivery_mode=PERSISTENT_MODE)
    for msg_id in [*node.disk.journal.files]:
        write_file(node, msg_id)
    node.commit()
    hurry(node, looks=looks)
    transfers = node.administration.transfers
    number = transfers.start_move(None, "/", "q", "exchange:x", is_copy=True)
    while transfers.transfer(None, number)["ended"] is None:
        if node.clock.soon:
            node.clock.soon.pop(0)()
        elif node.disk.journal.has_work:
            node.commit()
        else:
            write_file(node, next(iter(node.disk.journal.files)))
    assert not node.disk.journal.files
    node = node.killed()

    assert [[LARGE] * 5] * 4 == [bodies(node, queue) for queue in ("a", "b", "to", "c")]
    node.disk.close()


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_transfer_is_not_over_before_it_is_on_disk(tmp_path, is_copy):
    """However short a transfer is: if the broker is killed as soon as it is over, its messages are at the destination."""
    node = DiskNode(tmp_path)
    client = Client(node)
    for queue in ("from", "to"):
        declare(client, queue, durable=True)
    client.publish("from", b"1", delivery_mode=PERSISTENT_MODE)
    node.commit()
    transfers = node.administration.transfers
    number = transfers.start_move(None, "/", "from", "to", is_copy=is_copy)
    for _ in range(10):
        node.turn.slices.run()
        if transfers.transfer(None, number)["ended"] is not None:
            break
        node.run_turn()
        if node.disk.journal.has_work:
            node.commit()
    assert "done" == transfers.transfer(None, number)["state"]
    node = node.killed()

    assert [b"1"] == bodies(node, "to")
    assert [b"1"] * is_copy == bodies(node, "from")
    node.disk.close()


@pytest.fixture(params=[Action.MOVE, Action.RETRY])
def moving(request, tmp_path) -> Iterator[tuple[DiskNode, Client]]:
    """A broker in which a large message has moved from `q` to `to`, and its new file is not written yet."""
    node = node_with_files(tmp_path / "data")
    client = Client(node)
    for queue in ("q", "to"):
        declare(client, queue, durable=True)
    client.publish("q", LARGE, delivery_mode=PERSISTENT_MODE, headers={"x-death": DIED})
    write_file(node, *node.disk.journal.files)
    node.commit()
    transfers = node.administration.transfers
    if request.param is Action.MOVE:
        transfers.start_move(None, "/", "q", "to")
    else:
        transfers.start_retry(None, "/", "q", destination="to")
    node.clock.run()
    assert [LARGE] == bodies(node, "to")
    yield node, client
    node.disk.close()


def test_a_large_message_is_in_one_queue_whenever_the_broker_is_killed(moving):
    """The original stays until the commit that has the copy, and is gone with it: see `storage.message.Moved`."""
    node, _ = moving
    commit(node)
    node.disk.journal.settled()
    write_file(node, *node.disk.journal.files)
    commit(node)
    node = node.killed()

    assert ([], [LARGE]) == (bodies(node, "q"), bodies(node, "to"))
    node.disk.close()


def test_a_deleted_queue_keeps_what_moves_until_it_is_safe(moving):
    """A kill after the deletion of the source, and before the body has its new file, restores the queue with it."""
    node, client = moving
    client.take()
    say(client, make(Wire.Delete, 0, "q", False, False, False))
    assert [] == client.sent()
    node = node.killed()

    assert ([LARGE], []) == (bodies(node, "q"), bodies(node, "to"))
    node.disk.close()


def test_a_deletion_is_answered_when_what_moves_is_safe(moving):
    """The source is gone with the commit that has the copy; then its name is free."""
    node, client = moving
    client.take()
    client.send(make(Wire.Delete, 0, "q", False, False, False))
    other = Client(node, port=50009)
    other.send(make(Wire.Delete, 0, "q", False, False, False))
    node.commit()
    write_file(node, *node.disk.journal.files)
    assert ([], []) == (client.sent(), other.sent())
    node.commit()
    node.commit()
    assert ["1 queue.delete-ok"] == client.sent() == other.sent()
    node = node.killed()

    assert "q" not in node.vhosts["/"].queues
    assert [LARGE] == bodies(node, "to")
    node.disk.close()


def test_a_deleted_destination_lets_go_of_what_moves(moving):
    """The copy is gone with its queue, so the original is, too; a kill before that is on disk brings it back."""
    node, client = moving
    say(client, make(Wire.Delete, 0, "to", False, False, False))
    node.commit()

    assert ([], 0) == (bodies(node, "q"), node.vhosts["/"].queues["q"].unacked_count)


def test_a_vhost_that_goes_waits_for_nothing(moving):
    """The destination goes with the source."""
    node, _ = moving
    source = node.vhosts["/"].queues["q"]
    for _ in node.vhosts["/"].remove_all():
        pass

    assert source.finished


# -- kills ------------------------------------------------------------------------------------------------------------


class Beside:
    """A transfer from a durable queue beside traffic, deletions and kills; every message must be in one place then.

    Args:
        data_dir: the directory of the broker.
        seed: decides what happens.
        action: move, copy, discard or retry.

    """

    def __init__(self, data_dir: Path, seed: int, action: str) -> None:
        self.chance = random.Random(seed)
        self.action = action
        self.node = node_with_files(data_dir)
        self.connect()
        for name in ("q", "to"):
            declare(self.client, name, durable=True)
        self.deleting = ""
        """Queue whose deletion is not answered yet."""
        self.sent: dict[bytes, bool] = {}
        """Confirmed messages; true for those that meet the condition."""
        self.consumed: set[bytes] = set()
        self.discarded: set[bytes] = set()
        self.kills = 0

    def connect(self) -> None:
        self.client = Client(self.node)
        self.consumer = Client(self.node, port=50001)
        self.client.send(Confirm.Select())
        self.waiting: dict[int, tuple[bytes, bool]] = {}
        self.published = 0
        self.deleting = ""

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, 30)):
            body = b"%d-%d" % (self.kills, self.published)
            is_odd = self.chance.random() < 0.5
            if self.chance.random() < 0.1:
                body += b"x" * self.chance.choice([FILES_FROM - 500, FILES_FROM])
            headers: Table = {"odd": ("longstr", "yes" if is_odd else "no"), "x-death": DIED}
            self.client.publish("q", body, delivery_mode=PERSISTENT_MODE, headers=headers)
            self.published += 1
            self.waiting[self.published] = body, is_odd
        self.note_confirms()

    def note_confirms(self) -> None:
        for item in self.client.take():
            if isinstance(item.method, Basic.Ack):
                for number in [*self.waiting]:
                    tag = item.method.delivery_tag
                    if number == tag or (item.method.multiple and number <= tag):
                        body, is_odd = self.waiting.pop(number)
                        self.sent[body] = is_odd
            elif isinstance(item.method, Wire.DeleteOk):
                declare(self.client, self.deleting, durable=True)
                self.deleting = ""

    def delete(self) -> None:
        """Delete a queue; what the other one has stays."""
        self.note_confirms()
        name, other = self.chance.choice([("q", "to"), ("to", "q")])
        kept = {*bodies(self.node, other)}
        self.sent = {body: is_odd for body, is_odd in self.sent.items() if body in kept}
        self.waiting = {number: each for number, each in self.waiting.items() if each[0] in kept}
        self.client.send(make(Wire.Delete, 0, name, False, False, False))
        self.deleting = name

    def consume(self) -> None:
        """Take some messages; what was taken may come back after a kill."""
        for _ in range(self.chance.randint(1, 40)):
            names = [name for name in ("q", "to") if name != self.deleting]
            self.consumer.send(make(Basic.Get, 0, self.chance.choice(names), False))
            for item in self.consumer.take():
                if isinstance(item.method, Basic.GetOk):
                    self.consumed.add(item.body)
                    self.consumer.send(make(Basic.Ack, item.method.delivery_tag, False))

    def page(self) -> None:
        queue = self.node.vhosts["/"].queues["q"]
        queue.store.set_ram_target(self.chance.choice([0, 3, 20]), 1 << 40)

    def step(self) -> None:
        kinds = ["consume", "commit", "commit", "jobs", "jobs", "jobs", "read", "file", "file"]
        if not self.deleting:
            kinds += ["publish", "page", "start"]
            if self.action != "copy" and self.chance.random() < 0.1:
                kinds = ["delete"]
        kind = self.chance.choice(kinds)
        if kind == "publish":
            self.publish()
        elif kind == "consume":
            self.consume()
        elif kind == "page":
            self.page()
        elif kind == "start":
            self.start()
        elif kind == "delete":
            self.delete()
        elif kind == "file":
            for msg_id in self.chance.sample(
                [*self.node.disk.journal.files], k=min(3, len(self.node.disk.journal.files))
            ):
                write_file(self.node, msg_id)
        elif kind == "commit":
            assert not self.node.turn.is_split
            commit(self.node)
            if self.chance.random() < 0.05:  # written, and nobody knows
                self.kill()
                return
            self.node._settled(None)
            self.note_confirms()
        elif kind == "jobs":
            self.node.turn.slices.run()
            self.node.run_turn()
        else:
            self.node.read()

    def start(self) -> None:
        transfers = self.node.administration.transfers
        if self.action == "discard":
            transfers.start_discard(None, "/", "q", Chosen(ODD))
        elif self.action == "retry":
            transfers.start_retry(None, "/", "q", destination="to", chosen=Chosen(ODD))
        else:
            is_copy = self.action == "copy"
            chosen = Chosen(ODD, limit=20 if is_copy else None)  # copies of copies would only make it slow
            transfers.start_move(None, "/", "q", "to", is_copy=is_copy, chosen=chosen)

    def kill(self) -> None:
        self.kills += 1
        self.node = self.node.killed()
        hurry(self.node, looks=self.chance.choice([2, 5, 30]))
        self.connect()
        self.check()

    def check(self) -> None:
        for name in {"q", "to"} - self.node.vhosts["/"].queues.keys():
            declare(self.client, name, durable=True)
        there, moved = bodies(self.node, "q"), bodies(self.node, "to")
        assert len(set(there)) == len(there), "a message is in its queue twice"
        if self.action in {"move", "retry"}:
            assert not set(there) & set(moved), "a message is in both queues"
            assert len(set(moved)) == len(moved), "a message has moved twice"
        if self.action == "discard":
            assert not moved
            lost = {body for body, is_odd in self.sent.items() if not is_odd} - {*there, *self.consumed}
        else:
            lost = self.sent.keys() - {*there, *moved, *self.consumed}
        assert not lost, "a message is lost"
        if self.action == "copy":
            assert self.sent.keys() <= {*there, *self.consumed}, "a message is not where it was copied from"

    def run(self, kills: int) -> None:
        hurry(self.node, looks=5)
        while self.kills < kills:
            self.step()
            if self.chance.random() < 0.01:
                self.kill()
        self.node.disk.close()


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("seed", range(2))
def test_kills_lose_and_duplicate_nothing(tmp_path, action, seed):
    """Whenever the broker is killed during a transfer, each confirmed message is in exactly one queue."""
    Beside(tmp_path / "data", seed, action).run(8)


@contextmanager
def early_deletion() -> Iterator[None]:
    """Plant an error: the copy enters its queue in a later step than the one in which the original is removed."""
    send = module.send

    def send_later(original: Any, resolved: Any, *options: Any) -> bool:
        resolved.queues[0].turn.slices.later(lambda: send(original, resolved, *options))
        return True

    with patch.object(module, "send", send_later):
        yield


def campaign(data_dir: Path, action: str, seeds: range, kills: int) -> None:
    """Run transfers of each seed with so many kills."""
    for seed in seeds:
        Beside(data_dir / f"{action}-{seed}", seed, action).run(kills)


def test_a_planted_error_is_found(tmp_path):
    """The test with kills finds a move that deletes a message before its copy is noted for the same commit."""
    with early_deletion(), pytest.raises(AssertionError, match="lost"):
        campaign(tmp_path, "move", range(20), 10)


def test_a_deletion_that_does_not_wait_is_found(tmp_path):
    """The test with kills finds a deleted queue that takes with it what is still being written to files."""

    def moving_nothing(queue: Any) -> int:
        return 0

    planted = property(moving_nothing, lambda _queue, _count: None)
    with patch.object(QueueClass, "moving", planted), pytest.raises(AssertionError, match="lost"):
        campaign(tmp_path, "move", range(20), 10)


def test_messages_are_chosen_by_their_age(tmp_path):
    """A condition on the age moves what came before; the copies are new where they go."""
    node = DiskNode(tmp_path)
    client = Client(node)
    for queue in ("q", "r"):
        declare(client, queue, durable=True)
    client.publish("q", b"old")
    node.disk.monitor.look(node.now())
    node.clock.now += 100
    client.publish("q", b"new")
    node.commit()

    transfers = node.administration.transfers
    number = transfers.start_move(None, "/", "q", "r", chosen=Chosen("age > 1m"))

    assert 1 == result(node, number)["done"]
    assert ([b"new"], [b"old"]) == (bodies(node, "q"), bodies(node, "r"))


def main(kills: int) -> None:
    """Kill the broker so often during each kind of transfer, in runs of at most 25 kills."""
    logging.disable()
    for action in Action:
        with tempfile.TemporaryDirectory() as folder:
            campaign(Path(folder), action, range(-(-kills // 25)), min(kills, 25))
        print(f"{action}: {kills} kills, nothing is lost, and nothing is in two places")


if __name__ == "__main__":
    main(int(sys.argv[1]))


def test_what_moves_is_no_repeat_and_what_is_copied_may_be_one(node, client):
    """A queue that takes each message once takes those that are moved to it, and copies with ids that it does not know."""
    once: Table = {"x-deduplicate": ("longstr", "message_id"), "x-deduplicate-for": ("signedint", 60_000)}
    declare(client, "once", durable=True, arguments=once)
    for name in ("q", "q", "to", "once"):
        client.publish(name, name.encode(), message_id="m", delivery_mode=2)
    client.publish("to", b"new", message_id="n", delivery_mode=2)

    assert ("done", 2, 2, 2, {}) == summary(move(node, "to", "once", Chosen(""), is_copy=True))
    assert [b"once", b"new"] == bodies(node, "once")
    assert ("done", 2, 2, 2, {}) == summary(move(node, "q", "once", Chosen("")))
    assert [b"once", b"new", b"q", b"q"] == bodies(node, "once")
