"""Acked messages are retained, in the commit of their acks; others are not."""

import logging
from collections.abc import Iterator
from math import inf

import pytest
from doubles.fakes import Client, DiskNode, Node, basic_consume, hurry, queue_declare
from samples.retained import (
    HOUR,
    RETAIN,
    ack,
    commit,
    consume,
    consume_together,
    declare,
    get,
    publish,
    queue,
    read,
    ready,
    retained,
)  # fmt: skip

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, Tx, make
from leveret.broker.config.config import StorageConfig
from leveret.broker.queue.retained_queue import RetainedQueue
from leveret.broker.queue.retention import STEP
from leveret.storage.journal import journal
from leveret.storage.store.check import Check, Finding

EIGHTH = HOUR // 8  # a segment
QUORUM = {"queue_type": ("longstr", "quorum")}
PRIORITIES = {"max_priority": ("signedint", 3)}
KINDS = {
    "classic": {},
    "quorum": QUORUM,
    "priorities": PRIORITIES,
    "consumer-ack": {"confirm_mode": ("longstr", "consumer-ack")},
    "consumer-ack-light": {"confirm_mode": ("longstr", "consumer-ack-light")},
    "lazy": {"queue_mode": ("longstr", "lazy")},
}


@pytest.fixture(params=["memory", "disk", "late"])
def node(request, tmp_path) -> Iterator[Node]:
    """A broker in memory, one with a disk, and one that writes what is acked before its commit."""
    if request.param == "memory":
        yield Node()
        return
    config = StorageConfig(sync=False, check_invariants=True, early_confirm=request.param == "disk")
    made = DiskNode(tmp_path / "data", storage=config)
    yield made
    made.disk.close()


@pytest.fixture
def disk(tmp_path) -> Iterator[list[DiskNode]]:
    """A broker with a disk; its followers replace it in the list."""
    nodes = [DiskNode(tmp_path / "data")]
    yield nodes
    nodes[0].disk.close()


@pytest.mark.parametrize("kind", KINDS)
def test_acked_messages_are_retained_in_the_order_of_their_acks(node, kind):
    """Of three deliveries the acked ones are retained, the last acked one last; the third stays in the queue."""
    client = Client(node)
    declare(client, **KINDS[kind])
    publish(client, b"1", b"2", b"3")
    commit(node)
    tags = [get(client) for _ in range(3)]
    ack(client, tags[2])
    ack(client, tags[0])

    assert [b"3", b"1"] == retained(node)
    assert 1 == queue(node).unacked_count
    commit(node)
    assert [b"3", b"1"] == retained(node)


def test_without_the_setting_nothing_is_retained(node):
    """Queues retain nothing by default, nor with a time or a size of 0."""
    client = Client(node)
    for name, arguments in (
        ("plain", {}),
        ("no time", {"x-retain-for": ("signedint", 0)}),
        ("no size", {**RETAIN, "x-retain-bytes": ("signedint", 0)}),
    ):
        client.send(queue_declare(name, durable=True, arguments=arguments))
        commit(node)
        consume(client, b"1", key=name)

        assert retained(node, name) is None


def test_deliveries_without_ack_count_as_acked(node):
    """Messages that basic.get or a consumer gets without acks are retained."""
    client = Client(node)
    declare(client)
    publish(client, b"got", b"stored")
    get(client, no_ack=True)
    client.send(basic_consume("q", "c", no_ack=True))
    publish(client, b"passed on", b"transient", delivery_mode=1)

    assert [b"got", b"stored", b"passed on", b"transient"] == retained(node)
    commit(node)
    assert 0 == queue(node).unacked_count


@pytest.mark.parametrize("kind", ["classic", "quorum", "priorities", "consumer-ack"])
def test_discarded_messages_are_not_retained(node, kind):
    """Messages that expire, exceed a limit, are rejected, purged, moved or discarded are not retained."""
    client = Client(node)
    declare(client, **KINDS[kind], max_length=("signedint", 4), message_ttl=("signedint", 1000))
    declare(client, "other")
    publish(client, b"dropped", b"rejected", b"nacked", b"acked", b"expired")
    for method in (Basic.Reject, Basic.Nack):
        tag = get(client)
        client.send(make(method, tag, False) if method is Basic.Reject else make(method, tag, False, False))
    ack(client, get(client))
    node.pass_time(1000)
    publish(client, b"purged")
    commit(node)
    client.send(make(Wire.Purge, 0, "q", False))
    commit(node)
    publish(client, b"moved")
    commit(node)
    node.administration.transfers.start_move(None, "/", "q", "other")
    node.clock.run()
    publish(client, b"discarded")
    node.administration.transfers.start_discard(None, "/", "q")
    node.clock.run()

    assert [b"acked"] == retained(node)
    assert [b"moved"] == ready(node, "other")
    assert (0, 0) == (queue(node).ready_count, queue(node).unacked_count)


def test_dead_letters_and_messages_over_the_delivery_limit_are_not_retained(node):
    """A rejected message that goes to a dead letter exchange, or that was requeued too often, is not retained."""
    client = Client(node)
    declare(
        client,
        dead_letter_exchange=("longstr", ""),
        dead_letter_routing_key=("longstr", "dead"),
    )
    declare(client, "dead")
    declare(client, "limited", delivery_limit=("signedint", 0))
    publish(client, b"rejected")
    client.send(make(Basic.Reject, get(client), False))
    publish(client, b"returned", key="limited")
    client.send(make(Basic.Reject, get(client, "limited"), True))

    assert ([], []) == (retained(node), retained(node, "limited"))
    assert [b"rejected"] == ready(node, "dead")
    assert 0 == queue(node, "limited").ready_count


def test_messages_leave_after_the_retention_time(node):
    """A message is retained from its ack until the retention time has passed, and an eighth of it longer at most."""
    client = Client(node)
    declare(client)
    consume(client, b"1")
    commit(node)
    node.pass_time(EIGHTH)
    consume(client, b"2")
    commit(node)
    node.pass_time(HOUR - EIGHTH - 1)

    assert [b"1", b"2"] == retained(node)
    node.pass_time(EIGHTH + 1)
    assert [b"2"] == retained(node)
    commit(node)
    node.pass_time(EIGHTH + 1)
    assert [] == retained(node)


def test_the_oldest_leave_when_there_are_too_many_bytes(node):
    """Retained messages take at most x-retain-bytes, and not much less; a message above it empties nothing."""
    client = Client(node)
    declare(client, retain_bytes=("signedint", 8000))
    for number in range(200):
        consume(client, b"%0100d" % number)
        commit(node)
    found = retained(node)
    assert found is not None
    assert found == [b"%0100d" % number for number in range(200 - len(found), 200)]
    assert 7000 - 150 < 131 * len(found) <= 8000

    consume(client, b"x" * 8000)
    assert found == retained(node)
    assert {"too large": 1} == queue(node).limits.retention.skipped  # type: ignore[union-attr]


def test_messages_with_an_expiration_of_their_own_are_not_retained(node):
    """A message that its publisher gave an expiration never comes back after it, because it is not retained."""
    client = Client(node)
    declare(client)
    consume(client, b"short", expiration="60000")
    publish(client, b"short too", expiration="60000")
    get(client, no_ack=True)

    assert [] == retained(node)
    assert {"own expiration": 2} == queue(node).limits.retention.skipped  # type: ignore[union-attr]
    assert 0 == queue(node).unacked_count


def policy(node: Node, **definition: int) -> None:
    """Set the policy of all queues, or clear it."""
    policies = node.administration.policies
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    if named:
        policies.set(None, "/", "keep", {"pattern": ".*", "definition": named})
    else:
        policies.clear(None, "/", "keep")
    node.run_turn()
    node.clock.run()
    commit(node)


def test_policies_switch_retention_on_shorten_it_and_switch_it_off(node):
    """Retention follows policies: a shorter time trims what is retained, without one all of it is dropped."""
    client = Client(node)
    client.send(queue_declare("q", durable=True))
    commit(node)
    consume(client, b"before")
    policy(node, retain_for=HOUR)
    consume(client, b"1")
    commit(node)
    node.pass_time(EIGHTH)
    consume(client, b"2")
    assert [b"1", b"2"] == retained(node)
    commit(node)

    policy(node, retain_for=2 * HOUR)
    node.pass_time(HOUR)
    assert [b"1", b"2"] == retained(node)
    policy(node, retain_for=HOUR - 1)
    assert [b"2"] == retained(node)
    policy(node, retain_for=2 * HOUR, retain_bytes=0)
    assert retained(node) is None
    policy(node, retain_for=2 * HOUR)
    consume(client, b"3")
    assert [b"3"] == retained(node)
    policy(node)
    assert retained(node) is None
    consume(client, b"4")
    policy(node, retain_for=HOUR)
    assert [] == retained(node)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["restarted", "killed"])
def test_retained_messages_survive_the_broker(disk, kind, end):
    """After a stop or a kill the retained messages are those of before, with the times of their acks."""
    client = Client(disk[0])
    declare(client, **KINDS[kind])
    consume(client, b"early")  # acked before its commit
    publish(client, b"stored", b"large" * 2000, b"left")
    disk[0].commit()
    ack(client, get(client))
    ack(client, get(client))
    read(disk[0])
    disk[0].commit()
    disk[0].pass_time(1000)
    disk[0].commit()
    disk[0] = node = getattr(disk[0], end)()

    assert [b"early", b"stored", b"large" * 2000] == retained(node)
    assert [b"left"] == ready(node)
    node.pass_time(HOUR - 1001)
    assert 3 == len(retained(node) or ())
    node.pass_time(EIGHTH + 1)
    assert [] == retained(node)


def test_a_message_is_in_its_queue_or_retained_at_every_kill(disk):
    """Killed before the commit of an ack the message is ready again, afterwards it is retained, and never both."""
    client = Client(disk[0])
    declare(client)
    client.send(make(Confirm.Select, False))
    publish(client, b"1")
    disk[0].commit()
    tag = get(client)
    ack(client, tag)
    assert [b"1"] == retained(disk[0])
    disk[0] = disk[0].killed()

    assert ([b"1"], []) == (ready(disk[0]), retained(disk[0]))
    client = Client(disk[0])
    ack(client, get(client))
    disk[0].commit()
    disk[0] = disk[0].killed()
    assert ([], [b"1"]) == (ready(disk[0]), retained(disk[0]))


def test_a_message_that_is_acked_before_its_commit_is_confirmed_at_its_ack(disk):
    """A publish whose message is acked before any commit waits for none; the next commit has it among the retained."""
    client = Client(disk[0])
    declare(client)
    client.send(make(Confirm.Select, False))
    client.send(basic_consume("q", "c"))
    client.take()
    publish(client, b"1", b"large" * 2000)
    ack(client, 0, multiple=True)
    assert "1 basic.ack delivery_tag=2 multiple" == client.sent()[-1]

    disk[0].commit()
    disk[0] = disk[0].killed()
    assert [b"1", b"large" * 2000] == retained(disk[0])


def spans(node: Node) -> list[int]:
    """Return the numbers of messages of the records of what is retained."""
    limits = queue(node).limits
    assert limits is not None
    assert limits.retention is not None
    return [entry.span for entry in limits.retention.retained.log._tail.entries]  # type: ignore[attr-defined] # as below


def waiting(node: Node) -> list[bytes]:
    """Return the bodies of retained messages that wait for others of their record."""
    limits = queue(node).limits
    assert limits is not None
    assert limits.retention is not None
    return [message.body for message in limits.retention.retained.inbox]  # type: ignore[attr-defined] # a `RetainedQueue`


def test_messages_acked_together_are_one_record(disk):
    """Small messages of one ack are one record, persistent and transient ones, and keep their order over a kill."""
    client = Client(disk[0])
    declare(client)
    consume_together(client, b"1", b"2", b"3")
    publish(client, b"4")
    publish(client, b"5", b"6", delivery_mode=1)
    publish(client, b"7" * 70_000, b"8")
    for _ in range(4):
        get(client)
    ack(client, get(client), multiple=True)
    expected = [b"1", b"2", b"3", b"4", b"5", b"6", b"7" * 70_000, b"8"]

    assert expected == retained(disk[0])
    assert [6, 1, 1] == spans(disk[0])
    disk[0].commit()
    disk[0] = disk[0].killed()
    assert expected == retained(disk[0])
    assert len(expected) == queue(disk[0]).retained.ready_count


def test_retained_messages_leave_without_being_read(disk):
    """The oldest leave when there are too many bytes, though they are on disk only, and nothing is read for it."""
    node = disk[0]
    client = Client(node)
    declare(client, retain_bytes=("signedint", 160_000))
    for number in range(30):
        consume_together(client, *[b"%02d" % number + b"x" * 2998] * 3)
        node.commit()
    found = queue(node).retained

    assert ([], 0) == (node.disk.loads, found.log.pager.read_delta.messages)
    assert 140_000 - 9000 < found.log.kept_octets == 3031 * found.ready_count <= 160_000
    assert [b"29"] * 3 == [body[:2] for body in retained(node)[-3:]]
    node.commit()
    with node.disk.environment.store.reading() as txn:
        tables = node.disk.environment.store.db
        assert found.ready_count // 3 + 1 >= txn.stat(tables["blocks"])["entries"]


def test_messages_of_several_turns_are_one_record(disk):
    """Messages that are acked before the same commit are one record, and that commit has it and their ends."""
    client = Client(disk[0])
    declare(client)
    publish(client, b"1", b"2", b"3")
    disk[0].commit()
    for _ in range(2):
        ack(client, get(client))
    consume(client, b"transient", delivery_mode=1)
    found = waiting(disk[0])
    disk[0] = disk[0].killed()

    assert [b"1", b"2"] == found[:2]
    assert ([], [b"1", b"2", b"3"]) == (retained(disk[0]), ready(disk[0]))
    client = Client(disk[0])
    for _ in range(2):
        ack(client, get(client))
    disk[0].commit()
    with disk[0].disk.environment.store.reading() as txn:
        assert 2 == txn.stat(disk[0].disk.environment.store.db["blocks"])["entries"]
    disk[0] = disk[0].killed()
    assert ([b"1", b"2"], [b"3"]) == (retained(disk[0]), ready(disk[0]))


def test_messages_wait_for_others_no_longer_than_their_record_has_space(disk):
    """Messages are retained when there are enough for a record, if they are large, or when somebody looks."""
    client = Client(disk[0])
    declare(client)
    publish(client, *[b"%010000d" % number for number in range(14)])
    disk[0].commit()
    for number in range(14):
        ack(client, get(client))
        assert (number + 1) % 14 == len(waiting(disk[0]))
    consume(client, b"x" * 20_000)
    assert [] == waiting(disk[0])
    consume(client, b"small")
    assert [b"small"] == waiting(disk[0])
    assert 16 == len(retained(disk[0]) or ())


def test_a_retention_that_begins_again_loses_nothing_to_the_last_one(disk):
    """Messages stay that are retained before those of an ended retention are removed from disk."""
    client = Client(disk[0])
    client.send(queue_declare("q", durable=True))
    policy(disk[0], retain_for=HOUR)
    disk[0].commit()
    consume(client, b"old")
    publish(client, b"new")
    disk[0].commit()
    tag = get(client)
    policies = disk[0].administration.policies
    policies.clear(None, "/", "keep")
    policies.set(None, "/", "keep", {"pattern": ".*", "definition": {"retain-for": HOUR}})
    disk[0].run_turn()
    ack(client, tag)
    disk[0].commit()
    disk[0] = disk[0].killed()

    assert ([b"new"], []) == (retained(disk[0]), ready(disk[0]))


def test_only_so_many_queues_wait_for_a_commit(disk, monkeypatch):
    """Those beyond, which would make the step of the commit long, retain at the end of their turn, and lose nothing."""
    monkeypatch.setattr(journal, "MOST_BEFORE_CUT", 0)
    client = Client(disk[0])
    declare(client)
    consume(client, b"1")

    assert [] == waiting(disk[0])
    disk[0].commit()
    disk[0] = disk[0].killed()
    assert [b"1"] == retained(disk[0])


def test_an_error_while_a_commit_begins_loses_what_waited_only(disk, monkeypatch, caplog):
    """An internal error in a queue of retained messages is logged, and the commit, and those after it, go on."""
    client = Client(disk[0])
    declare(client)
    consume(client, b"1")
    with monkeypatch.context() as patch:
        patch.setattr(RetainedQueue, "run", lambda _: 1 // 0)
        disk[0].commit()
    consume(client, b"2")
    disk[0].commit()
    disk[0] = disk[0].killed()

    assert "internal error" in caplog.text
    assert ([b"2"], []) == (retained(disk[0]), ready(disk[0]))


def test_messages_that_wait_for_others_are_deleted_with_their_queue(node):
    """Nothing is left of a queue, and of what waited in it, when it is deleted, or retains nothing any more."""
    client = Client(node)
    declare(client)
    consume(client, b"1", delivery_mode=1)
    client.send(make(Wire.Delete, 0, "q", False, False, False))
    commit(node)
    declare(client)

    assert [] == retained(node)


def test_the_retained_messages_are_deleted_with_their_queue(disk):
    """A deleted queue leaves nothing on disk, and one declared again under its name has nothing retained."""
    client = Client(disk[0])
    declare(client)
    consume(client, b"1", b"large" * 2000)
    disk[0].commit()
    client.send(make(Wire.Delete, 0, "q", False, False, False))
    disk[0].commit()
    declare(client)

    assert [] == retained(disk[0])
    disk[0].commit()
    with disk[0].disk.environment.store.env.begin() as txn:
        tables = disk[0].disk.environment.store.db
        assert (0, 0) == (txn.stat(tables["blocks"])["entries"], txn.stat(tables["bodies"])["entries"])


def test_what_a_policy_no_longer_retains_is_gone_after_a_start(disk):
    """Retention that is switched off is off after a kill, too, and leaves nothing on disk."""
    client = Client(disk[0])
    client.send(queue_declare("q", durable=True))
    disk[0].commit()
    policy(disk[0], retain_for=HOUR)
    consume(client, b"1")
    disk[0].commit()
    policy(disk[0])
    disk[0].commit()
    disk[0] = disk[0].killed()

    assert retained(disk[0]) is None
    with disk[0].disk.environment.store.env.begin() as txn:
        assert 0 == txn.stat(disk[0].disk.environment.store.db["blocks"])["entries"]


@pytest.mark.parametrize("end", ["restarted", "killed"])
def test_what_a_transient_queue_retained_is_removed_at_the_start(disk, end, caplog):
    """Its messages are on disk while it is, and go with it: the next start says so, and leaves nothing there."""
    client = Client(disk[0])
    client.send(queue_declare("q", arguments=RETAIN))
    consume(client, b"1", b"large" * 2000)
    disk[0].commit()
    with disk[0].disk.environment.store.env.begin() as txn:
        assert 0 < txn.stat(disk[0].disk.environment.store.db["blocks"])["entries"]
    disk[0] = getattr(disk[0], end)()

    assert "q" not in disk[0].vhosts["/"].queues
    warning = (
        "leveret.storage",
        logging.WARNING,
        "storage: removing messages of 1 queues that no longer exist",
    )
    assert warning in caplog.record_tuples
    with disk[0].disk.environment.store.env.begin() as txn:
        tables = disk[0].disk.environment.store.db
        assert (0, 0) == (txn.stat(tables["blocks"])["entries"], txn.stat(tables["bodies"])["entries"])


def test_very_many_acks_are_retained_in_steps(node):
    """One ack of many messages is carried out in many steps, in each of which time is left for others."""
    client = Client(node)
    declare(client)
    client.send(basic_consume("q", "c"))
    bodies = [b"%d" % number for number in range(3 * STEP)]
    publish(client, *bodies)
    commit(node)
    hurry(node, looks=1)
    queue(node).limits.retention.take(sorted(queue(node).backing.unacked_ids()))  # type: ignore[union-attr]
    assert 2 * STEP == queue(node).backing.unacked_count
    for _ in range(100):
        node.turn.slices.begin()
        node.run_turn()
        node.clock.run()

    assert 0 == queue(node).backing.unacked_count
    assert bodies == retained(node)


def test_a_transaction_waits_until_its_acks_are_retained(node):
    """The commit of a transaction is answered when none of its acks waits for time, and is durable then."""
    client = Client(node)
    declare(client)
    client.send(make(Tx.Select))
    client.send(basic_consume("q", "c"))
    for number in range(1000):
        publish(client, b"%d" % number)
    client.send(make(Tx.Commit))
    commit(node)
    node.clock.run()
    commit(node)
    client.take()
    hurry(node, looks=3)
    client.send(make(Basic.Ack, 0, True))
    client.send(make(Tx.Commit))
    for _ in range(1000):
        node.turn.slices.begin()
        node.turn.resume_unfinished()
        node.run_turn()
        node.clock.run()
        commit(node)
        if [line for line in client.sent() if "commit-ok" in line]:
            break

    assert 0 == queue(node).backing.unacked_count
    assert 1000 == len(retained(node) or ())


def test_messages_that_were_paged_out_are_read_before_they_are_retained(disk):
    """An ack of a message whose body is on disk takes effect when it has been read, and nothing overtakes it."""
    client = Client(disk[0])
    declare(client)
    publish(client, b"1" * 100, b"2" * 100, b"3" * 100)
    disk[0].commit()
    tags = [get(client) for _ in range(3)]
    backing = queue(disk[0]).store
    backing.set_ram_target(0, 0)  # type: ignore[attr-defined]
    disk[0].commit()
    ack(client, tags[1])
    ack(client, tags[2])
    assert 3 == queue(disk[0]).backing.unacked_count

    assert [b"2" * 100, b"3" * 100] == retained(disk[0])
    assert 1 == queue(disk[0]).backing.unacked_count


def _get_and_ack(client):
    ack(client, get(client))


def _get_without_ack(client):
    get(client, no_ack=True)


def _consume_without_ack(client):
    client.send(basic_consume("q", "c", no_ack=True))


@pytest.mark.parametrize("take", [_get_and_ack, _get_without_ack, _consume_without_ack])
def test_the_original_of_a_very_large_message_stays_until_its_copy_is_written(tmp_path, take):
    """A body in a file of its own is in its queue until the file of the retained message is complete."""
    config = StorageConfig(sync=False, check_invariants=True, blob_threshold=10_000)
    node = DiskNode(tmp_path / "data", storage=config)
    client = Client(node)
    declare(client)
    body = b"x" * 20_000
    publish(client, body)
    node.write_files()
    take(client)
    node.commit()
    assert 1 == queue(node).backing.unacked_count
    node = node.killed()
    assert ([body], []) == (ready(node), retained(node))
    client = Client(node)
    take(client)
    read(node)
    node.write_files()
    node.commit()
    assert 0 == queue(node).backing.unacked_count
    node = node.killed()

    assert ([], [body]) == (ready(node), retained(node))
    node.disk.close()


def test_acks_free_space_while_the_disk_is_full(disk):
    """While the disk is full acks remove messages without retaining them, and retention resumes afterwards."""
    client = Client(disk[0])
    declare(client)
    publish(client, b"1", b"2", b"3")
    disk[0].commit()
    tags = [get(client) for _ in range(3)]
    ack(client, tags[0])
    disk[0].fail()
    ack(client, tags[1])
    assert {"disk full": 1} == queue(disk[0]).limits.retention.skipped  # type: ignore[union-attr]
    disk[0].commit()
    ack(client, tags[2])
    disk[0].commit()

    assert [b"1", b"3"] == retained(disk[0])
    disk[0] = disk[0].killed()
    assert ([], [b"1", b"3"]) == (ready(disk[0]), retained(disk[0]))


def test_clients_cannot_see_the_retained_messages(node):
    """Retained messages are in no listing, and no queue name leads to them."""
    client = Client(node)
    declare(client)
    consume(client, b"1")

    assert ["q"] == [each.name for each in node.administration.listings.queues(None, "/")]
    assert ["q"] == [each.name for each in node.vhosts["/"].queues.values()]


def page_out(node: DiskNode) -> None:
    queue(node).store.set_ram_target(0, 0)  # type: ignore[attr-defined]
    node.commit()


def test_nothing_overtakes_a_message_that_is_being_read(disk):
    """A message that is acked after one that has to be read is retained after it."""
    client = Client(disk[0])
    declare(client)
    publish(client, b"1" * 100)
    disk[0].commit()
    first = get(client)
    page_out(disk[0])
    queue(disk[0]).store.set_ram_target(inf, 1 << 20)  # type: ignore[attr-defined]
    publish(client, b"2")
    second = get(client)
    ack(client, first)
    ack(client, second)
    assert 2 == queue(disk[0]).backing.unacked_count

    assert [b"1" * 100, b"2"] == retained(disk[0])


def test_a_transaction_waits_for_what_is_being_read(disk):
    """The commit of a transaction is answered when what it has acked is retained, and on disk there."""
    client = Client(disk[0])
    declare(client)
    publish(client, b"1" * 100)
    disk[0].commit()
    tag = get(client)
    page_out(disk[0])
    client.ask(make(Tx.Select))
    ack(client, tag)
    client.send(make(Tx.Commit))
    disk[0].commit()
    assert [] == client.sent()
    read(disk[0])
    disk[0].clock.run()
    disk[0].commit()

    assert ["1 tx.commit-ok"] == client.sent()
    disk[0] = disk[0].killed()
    assert ([], [b"1" * 100]) == (ready(disk[0]), retained(disk[0]))


def test_the_end_of_a_message_is_written_with_its_retained_copy_only(disk):
    """A commit for which there is space for deletions only leaves the acked message where it is."""
    client = Client(disk[0])
    declare(client)
    publish(client, b"1")
    disk[0].commit()
    ack(client, get(client))
    batch = disk[0].disk.journal.cut()

    assert batch.durable.moves is not None
    assert ([], []) == (batch.durable.deletes, batch.durable.merges)
    disk[0].disk.environment.commit(batch)
    disk[0]._settled(None)
    disk[0] = disk[0].killed()
    assert ([], [b"1"]) == (ready(disk[0]), retained(disk[0]))


def test_a_large_publish_that_is_acked_during_its_commit_is_confirmed_when_that_is_done(disk):
    """It is in its queue or retained after a kill from then on, though its ack is in the next commit."""
    client = Client(disk[0])
    declare(client)
    client.send(make(Confirm.Select, False))
    client.send(basic_consume("q", "c"))
    publish(client, b"large" * 20_000)
    client.take()
    disk[0].disk.environment.commit(disk[0].disk.journal.cut())
    ack(client, 0, multiple=True)
    disk[0]._settled(None)
    assert ["1 basic.ack delivery_tag=1"] == client.sent()
    disk[0] = disk[0].killed()
    assert ([b"large" * 20_000], []) == (ready(disk[0]), retained(disk[0]))


def test_a_very_large_message_that_was_moved_is_not_retained(tmp_path):
    """An operator's move of a message whose body goes to a file of its own retains nothing."""
    config = StorageConfig(sync=False, check_invariants=True, blob_threshold=10_000)
    node = DiskNode(tmp_path / "data", storage=config)
    client = Client(node)
    declare(client)
    declare(client, "other")
    publish(client, b"x" * 20_000)
    node.write_files()
    node.administration.transfers.start_move(None, "/", "q", "other")
    node.clock.run()
    node.write_files()
    node.commit()

    assert ([], []) == (ready(node), retained(node))
    assert [b"x" * 20_000] == ready(node, "other")
    node.disk.close()


def test_a_check_knows_whose_segments_they_are(disk):
    """A check of the data finds nothing wrong with what a queue retains."""
    client = Client(disk[0])
    declare(client)
    consume_together(client, b"1", b"2")
    disk[0] = disk[0].restarted()
    findings: list[Finding] = []
    disk[0].disk.close()
    stats = Check(disk[0].disk.environment.data_dir, findings.append).run()
    assert stats is not None
    assert [2] == [each.messages for each in stats.queues if each.retained]
    assert [] == [each for each in findings if "segments" in each.where]
    disk[0] = DiskNode(disk[0].disk.environment.data_dir)
