"""Queues that hold messages until their time."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, basic_consume, node_in, set_policy, settle

from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.properties import Properties
from leveret.storage import delayed
from leveret.storage.errors import DiskFullError
from leveret.storage.store import recovery
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import compact
from leveret.storage.store.environment import Environment

ALLOWED = {"x-allow-hold": ("bool", True)}


@pytest.fixture(params=["memory", "disk"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with node_in(request.param, tmp_path) as made:
        yield made


def ready(node: Node, name: str = "q", arguments: Any = None) -> Client:
    """Return a client that has declared a durable queue, with `x-allow-hold` by default."""
    client = Client(node)
    client.declare(name, durable=True, arguments=ALLOWED if arguments is None else arguments)
    settle(node)
    client.take()
    return client


def queue(node: Node, name: str = "q") -> Any:
    return node.vhosts["/"].queues[name]


def hold(client: Client, delay: int, body: bytes = b"m", **options: Any) -> None:
    """Publish a persistent message that is due in `delay` ms."""
    at = client.node.wall_clock() + delay
    headers = {"x-deliver-at": ("long", at)} | options.pop("headers", {})
    client.publish(options.pop("key", "q"), body, headers=headers, delivery_mode=2, **options)


def counts(node: Node, name: str = "q") -> tuple[int, int]:
    return queue(node, name).held_count, queue(node, name).ready_count


def bodies(client: Client) -> list[bytes]:
    """Return the bodies delivered since the last call."""
    return [item.body for item in client.take() if isinstance(item.method, Basic.Deliver)]


class TestTime:
    def test_nobody_gets_a_message_before_its_time(self, node):
        """A held message is neither ready nor delivered until its time, and is delivered then."""
        client = ready(node)
        client.consume("q", no_ack=True)
        hold(client, 500)
        settle(node)
        node.pass_time(499)
        hold(client, 500, b"n")  # which has the queue look at what is due
        settle(node)
        assert (2, 0) == counts(node)
        assert [] == bodies(client)
        node.pass_time(1)
        assert [b"m"] == bodies(client)
        assert (1, 0) == counts(node)

    def test_at_its_time_it_takes_its_place_at_the_tail(self, node):
        """Messages are appended in the order in which they are due, behind those that are ready."""
        client = ready(node)
        hold(client, 200, b"c")
        hold(client, 100, b"b")
        client.publish("q", b"a", delivery_mode=2)
        settle(node)
        node.pass_time(300)
        client.send(basic_consume("q", "c", no_ack=True))
        assert [b"a", b"b", b"c"] == bodies(client)

    def test_a_time_in_centuries_is_held(self, node):
        """A message may be due in thirty, or in a million, years."""
        client = ready(node)
        hold(client, 30 * 365 * 86_400_000)
        client.publish("q", b"x", headers={"x-delay": ("long", 2**62)}, delivery_mode=2)
        settle(node)
        node.pass_time(86_400_000 * 3)
        assert (2, 0) == counts(node)
        node.pass_time(30 * 365 * 86_400_000)
        assert (1, 1) == counts(node)

    def test_a_clock_that_is_set_back_holds_longer(self, node):
        """A message waits until the wall clock has its time, however often that is set."""
        client = ready(node)
        hold(client, 1000)
        settle(node)
        node.pass_time(900)
        node.pass_time(-5000)
        node.pass_time(5099)
        assert (1, 0) == counts(node)
        node.pass_time(1)
        assert (0, 1) == counts(node)

    def test_its_time_to_live_begins_then(self, node):
        """x-message-ttl counts from the time at which a message is released."""
        client = ready(node, arguments=ALLOWED | {"x-message-ttl": ("signedint", 100)})
        hold(client, 500)
        settle(node)
        node.pass_time(500)
        assert (0, 1) == counts(node)
        node.pass_time(99)
        assert (0, 1) == counts(node)
        node.pass_time(1)
        assert (0, 0) == counts(node)

    def test_an_unused_queue_stays_while_it_holds(self, node):
        """x-expires does not delete a queue with held messages; its time begins with the last release."""
        client = ready(node, arguments=ALLOWED | {"x-expires": ("signedint", 1000)})
        hold(client, 5000)
        settle(node)
        node.pass_time(4999)
        assert (1, 0) == counts(node)
        node.pass_time(1)
        node.pass_time(999)
        assert (0, 1) == counts(node)
        node.pass_time(1)
        settle(node)
        assert "q" not in node.vhosts["/"].queues

    def test_an_unused_queue_that_holds_looks_seldom_whether_it_may_go(self, node):
        """After x-expires a queue with held messages waits for as long again, and not in a loop."""
        client = ready(node, arguments=ALLOWED | {"x-expires": ("signedint", 1000)})
        hold(client, 5000)
        settle(node)
        node.pass_time(1000)
        node.run_turn()
        now = node.wall_clock()
        assert now + 1000 == node.context.timers.run(now)


class TestSources:
    def test_a_queue_that_does_not_allow_it_holds_nothing(self, node):
        """Without x-allow-hold the headers mean nothing, as in RabbitMQ."""
        client = ready(node, arguments={})
        hold(client, 500)
        client.publish("q", b"x", headers={"x-deliver-at": ("longstr", "soon")})
        assert (0, 2) == counts(node)

    def test_a_policy_names_the_header(self, node):
        """hold-until-header makes a queue hold by that header, for publishes from then on."""
        client = ready(node, arguments={})
        eta = {"eta": ("longstr", "2060-01-01T00:00:00+00:00")}
        client.publish("q", b"1", headers=eta)
        set_policy(node.vhosts["/"].policies, "p", "^q$", {"hold-until-header": "eta"})
        node.run_turn()
        node.clock.run()
        client.publish("q", b"2", headers=eta)
        client.publish("q", b"3", headers={"eta": ("void", None)})
        assert (1, 2) == counts(node)

    def test_a_malformed_time_closes_the_channel_with_406(self, node):
        """The error names header, value and queue; nothing is enqueued."""
        client = ready(node)
        client.publish("q", b"x", headers={"x-delay": ("longstr", "soon")})
        (sent,) = client.sent()
        assert (
            "invalid header 'x-delay': 'soon' is not a number of milliseconds, in a message for queue 'q'"
            in sent
        )
        assert "reply_code=406" in sent
        assert (0, 0) == counts(node)

    def test_a_transaction_holds_with_its_commit(self, node):
        """A publish in a transaction is held from its commit on; a malformed time fails at the publish."""
        client = ready(node)
        client.send(Tx.Select())
        hold(client, 500)
        assert (0, 0) == counts(node)
        client.send(Tx.Commit())
        settle(node)
        assert (1, 0) == counts(node)

    def test_a_fanout_holds_where_that_is_allowed(self, node):
        """Of two queues that a message reaches only the one that allows it holds; each gets it once."""
        client = ready(node)
        client.declare("other", durable=True)
        for name in ("q", "other"):
            client.send(make(Queue.Bind, 0, name, "amq.fanout", "", False, {}))
        settle(node)
        hold(client, 500, exchange="amq.fanout")
        settle(node)
        assert ((1, 0), (0, 1)) == (counts(node), counts(node, "other"))
        node.pass_time(500)
        assert (0, 1) == counts(node)

    def test_a_dead_letter_with_a_malformed_time_is_not_lost(self, node, caplog):
        """A dead letter is delivered at once if its header tells no time, and the log says so once."""
        client = ready(node)
        dead = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "q")}
        client.declare("from", durable=True, arguments=dead | {"x-message-ttl": ("signedint", 1)})
        settle(node)
        for _ in range(2):
            client.publish("from", b"x", headers={"x-delay": ("longstr", "soon")}, delivery_mode=2)
        with caplog.at_level(logging.WARNING):
            node.pass_time(10)
            settle(node)
        assert (0, 2) == counts(node)
        assert 1 == sum("is not held" in each.message for each in caplog.records)

    def test_a_released_message_is_not_held_again(self, node):
        """The delay of a released message is negated."""
        client = ready(node)
        client.consume("q", no_ack=True)
        client.publish("q", b"x", headers={"x-delay": ("signedint", 100)}, delivery_mode=2)
        settle(node)
        node.pass_time(100)
        (sent,) = client.sent()
        assert "headers={'x-delay': ('signedint', -100)}" in sent


class TestOtherHeaders:
    """Headers that do not tell the time of a held message."""

    @pytest.mark.parametrize("delay", ["5 minutes", "9" * 30])
    def test_a_malformed_delay_beside_another_time_stays(self, node, delay):
        """A message that one header holds is released whatever x-delay says."""
        client = ready(node)
        hold(client, 500, headers={"x-delay": ("longstr", delay)})
        settle(node)
        node.pass_time(500)
        assert (0, 1) == counts(node)
        client.send(basic_consume("q", "c", no_ack=True))
        assert f"'x-delay': ('longstr', '{delay}')" in client.sent()[-1]


class TestLimits:
    def test_a_queue_is_shortened_when_it_holds_another_message(self, node):
        """A held message that makes the queue too long has a ready one dropped at once, and nobody waits for that."""
        client = ready(node, arguments=ALLOWED | {"x-max-length": ("signedint", 2)})
        client.publish("q", b"a", delivery_mode=2)
        client.publish("q", b"b", delivery_mode=2)
        settle(node)
        hold(client, 500)
        settle(node)
        assert (1, 1) == counts(node)
        client.take()
        client.send(make(Basic.Get, 0, "q", False))
        assert "basic.get-ok" in client.sent()[0]

    def test_held_messages_count_for_the_length(self, node):
        """With reject-publish a queue whose held messages reach x-max-length refuses publishes."""
        client = ready(
            node,
            arguments=ALLOWED
            | {"x-max-length": ("signedint", 2), "x-overflow": ("longstr", "reject-publish")},
        )
        hold(client, 500)
        client.publish("q", b"a", delivery_mode=2)
        hold(client, 500)
        client.publish("q", b"b", delivery_mode=2)
        settle(node)
        assert (1, 1) == counts(node)
        node.pass_time(500)
        assert (0, 2) == counts(node)

    def test_a_queue_holds_at_most_as_many_as_it_may(self, node):
        """Above x-max-held a publish to be held is refused: the publisher gets a nack."""
        client = ready(node, arguments=ALLOWED | {"x-max-held": ("signedint", 1)})
        client.send(Confirm.Select())
        hold(client, 500)
        hold(client, 500)
        client.publish("q", b"a", delivery_mode=2)
        settle(node)
        assert (1, 1) == counts(node)
        assert 1 == sum("basic.nack" in each for each in client.sent())

    def test_purge_and_delete_remove_held_messages(self, node):
        """A purge removes and counts held messages, as RabbitMQ's; later ones are held as before."""
        client = ready(node)
        hold(client, 500)
        client.publish("q", b"a", delivery_mode=2)
        settle(node)
        assert 2 == queue(node).purge()
        hold(client, 700, b"later")
        settle(node)
        node.pass_time(600)
        assert (1, 0) == counts(node)
        client.send(make(Queue.Delete, 0, "q", False, False, False))
        settle(node)
        client = ready(node)
        node.pass_time(1000)
        assert (0, 0) == counts(node)

    def test_a_queue_that_holds_is_not_empty(self, node):
        """A deletion with if-empty is refused while messages are held."""
        client = ready(node)
        hold(client, 500)
        settle(node)
        (sent,) = client.ask(make(Queue.Delete, 0, "q", False, True, False))
        assert "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty" in sent


class TestConfirms:
    def test_a_persistent_message_is_confirmed_when_its_row_is_committed(self, disk_node):
        """The confirm of a held message waits for the commit that has it."""
        client = ready(disk_node)
        client.send(Confirm.Select())
        client.take()
        hold(client, 500)
        assert [] == client.sent()
        disk_node.commit()
        assert 1 == sum("basic.ack" in each for each in client.sent())

    @pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
    def test_a_queue_that_confirms_on_acks_confirms_a_held_message_at_the_commit(self, node, mode):
        """The promise of a held message would wait for days: it is kept when the message is safe."""
        client = ready(node, arguments=ALLOWED | {"x-confirm-mode": ("longstr", mode)})
        client.send(Confirm.Select())
        client.take()
        hold(client, 500)
        settle(node)
        assert 1 == sum("basic.ack" in each for each in client.sent())
        node.pass_time(500)
        settle(node)
        assert (0, 1) == counts(node)

    def test_on_a_full_disk_it_is_nacked_and_stays(self, disk_node):
        """A held message that finds no space is nacked, stays in memory, and is released at its time."""
        client = ready(disk_node)
        client.send(Confirm.Select())
        client.take()
        hold(client, 500)
        disk_node.fail()
        assert 1 == sum("basic.nack" in each for each in client.sent())
        assert (1, 0) == counts(disk_node)
        disk_node.commit()
        disk_node.pass_time(500)
        assert (0, 1) == counts(disk_node)


def findings(node: DiskNode) -> list[Finding]:
    """Close the data directory, and return what a check of it finds."""
    node.disk.close()
    found: list[Finding] = []
    Check(node.data_dir, found.append).run()
    return found


LARGE = bytes(5000)  # stored apart from its record, and so from its row


def released(node: DiskNode, *, delay: int = 500) -> Client:
    """Return a client whose large message was held, is on disk, and was released since the last commit."""
    client = ready(node)
    hold(client, delay, LARGE)
    node.commit()
    node.pass_time(delay)
    assert (0, 1) == counts(node)
    return client


def on_disk(node: DiskNode) -> tuple[int, int, int]:
    """Close the data directory, check it, and return the numbers of messages, bodies and held messages."""
    found: list[Finding] = []
    node.disk.close()
    stats = Check(node.data_dir, found.append).run()
    assert [] == found
    assert stats is not None
    return stats.messages, stats.bodies, stats.delayed


class TestBodies:
    def test_a_release_does_not_write_a_large_body_again(self, disk_node):
        """The record of a released message refers to the body that its row had; a kill finds it there."""
        client = ready(disk_node)
        hold(client, 500, LARGE)
        disk_node.commit()
        written = disk_node.disk.journal.octets_written
        assert written > len(LARGE)
        disk_node.pass_time(500)
        disk_node.commit()
        assert disk_node.disk.journal.octets_written - written < 300
        again = disk_node.killed()
        client = Client(again)
        client.consume("q")
        settle(again)
        assert [LARGE] == bodies(client)
        assert (1, 1, 0) == on_disk(again)

    def test_a_release_that_was_not_committed_has_its_row_and_body(self, disk_node):
        """A kill before the commit of a release finds the message held; it is released again, once."""
        released(disk_node)
        assert (0, 1, 1) == on_disk(disk_node)
        again = disk_node.killed()
        settle(again)
        again.pass_time(500)
        assert (0, 1) == counts(again)
        settle(again)
        assert (1, 1, 0) == on_disk(again)

    @pytest.mark.parametrize("no_ack", [True, False])
    @pytest.mark.parametrize("when", ["before the commit", "during it", "after it"])
    def test_a_body_goes_with_its_message(self, disk_node, no_ack, when):
        """Nothing is left on disk of a released message that a consumer has settled, before its commit or later."""
        client = released(disk_node)
        journal = disk_node.disk.journal
        if when == "during it":
            batch = journal.cut()
        elif when == "after it":
            disk_node.commit()
        client.send(basic_consume("q", "c", no_ack=no_ack))
        assert [LARGE] == bodies(client)
        if not no_ack:
            client.send(make(Basic.Ack, 0, True))
        disk_node.run_turn()
        if when == "during it":
            disk_node.disk.environment.commit(batch)
            disk_node._settled(None)
        settle(disk_node)
        assert (0, 0, 0) == on_disk(disk_node)

    @pytest.mark.parametrize("acked", ["during the commit", "after it", "never"])
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_full_disk_at_a_release_keeps_one_body(self, disk_node, acked, times):
        """A release that finds the disk full is written when there is space, or ends with its message."""
        client = released(disk_node)
        client.send(basic_consume("q", "c", no_ack=False))
        assert [LARGE] == bodies(client)
        journal = disk_node.disk.journal
        journal.cut()
        if acked == "during the commit":
            client.send(make(Basic.Ack, 0, True))
            disk_node.run_turn()
        disk_node._settled(DiskFullError("no room"))
        if acked == "after it":
            client.send(make(Basic.Ack, 0, True))
            disk_node.run_turn()
        for _ in range(times - 1):
            disk_node.fail()
        batch = journal.cut()
        assert [] == batch.durable.unrefs  # which a full disk would apply without the deletion of the row
        disk_node.disk.environment.commit(batch)
        disk_node._settled(None)
        settle(disk_node)
        assert ((1, 1, 0) if acked == "never" else (0, 0, 0)) == on_disk(disk_node)

    @pytest.mark.parametrize("act", ["purge", "delete"])
    @pytest.mark.parametrize("when", ["held", "released", "being written"])
    def test_what_a_queue_held_goes_with_it(self, disk_node, act, when):
        """A purge and a deletion leave no body on disk, at whichever moment they come."""
        client = released(disk_node) if when != "held" else ready(disk_node)
        if when == "held":
            hold(client, 500, LARGE)
        if when == "being written":
            batch = disk_node.disk.journal.cut()
        method = Queue.Purge if act == "purge" else Queue.Delete
        client.send(make(method, 0, "q", *([False] * (1 if act == "purge" else 3))))
        disk_node.run_turn()
        if when == "being written":
            disk_node.disk.environment.commit(batch)
            disk_node._settled(None)
        settle(disk_node)
        assert (0, 0, 0) == on_disk(disk_node)

    def test_a_transient_message_keeps_its_body_in_the_row(self, disk_node):
        """A body that the queue will have in memory only is not stored apart."""
        client = ready(disk_node)
        client.publish("q", LARGE, headers={"x-delay": ("long", 500)}, delivery_mode=1)
        disk_node.commit()
        store = disk_node.disk.environment.store
        with store.env.begin() as txn:
            assert 0 == txn.stat(store.db["bodies"])["entries"]
        again = disk_node.killed()
        settle(again)
        again.pass_time(500)
        settle(again)
        assert (0, 1) == counts(again)
        assert (0, 0, 0) == on_disk(again)

    def test_a_delay_is_negated_as_that_of_a_small_message(self, disk_node):
        """A consumer sees the delay of a large message as that of any other: it has passed."""
        client = ready(disk_node)
        for body in (b"small", LARGE):
            client.publish("q", body, headers={"x-delay": ("signedint", 500)}, delivery_mode=2)
        disk_node.commit()
        disk_node.pass_time(500)
        settle(disk_node)
        client.send(basic_consume("q", "c", no_ack=True))
        found = [each.header for each in client.take() if isinstance(each.method, Basic.Deliver)]
        assert 2 * [{"x-delay": ("signedint", -500)}] == [Properties(each).headers for each in found]

    def test_a_new_time_is_in_the_header_of_a_large_message(self, disk_node):
        """A large message that was rescheduled has its new time in its header, after a kill, too."""
        client = ready(disk_node)
        hold(client, 500, LARGE)
        settle(disk_node)
        held, to = queue(disk_node).hold, disk_node.wall_clock() + 300
        (piece,) = held.pieces([])  # in memory
        assert 1 == len(held.move(dict(piece), to))
        disk_node.commit()
        again = disk_node.killed()
        settle(again)
        again.pass_time(300)
        client = Client(again)
        client.send(basic_consume("q", "c", no_ack=True))
        settle(again)
        (sent,) = [each for each in client.take() if isinstance(each.method, Basic.Deliver)]
        assert ({"x-deliver-at": ("long", to)}, LARGE) == (Properties(sent.header).headers, sent.body)
        assert (0, 0, 0) == on_disk(again)

    def test_a_missing_body_is_counted_and_hurts_no_other(self, disk_node):
        """A held message whose body is gone from the disk is skipped, noted as damage, and the next one comes."""
        client = ready(disk_node)
        hold(client, 500, LARGE)
        hold(client, 500, b"other")
        disk_node.commit()
        store = disk_node.disk.environment.store
        with store.env.begin(write=True) as txn:
            txn.drop(store.db["bodies"], delete=False)
        again = disk_node.killed()
        settle(again)
        again.pass_time(500)
        settle(again)
        assert (0, 1) == counts(again)
        assert 1 == len(again.disk.damages.take())
        assert (1, 0, 0) == on_disk(again)


class TestRestart:
    def test_a_start_gives_pages_back_while_it_counts_bodies(self, disk_node, monkeypatch):
        """After a kill all rows are read for one body that is apart; their pages go back piece by piece."""
        client = ready(disk_node)
        for body in (LARGE, *[b"small"] * 5):
            hold(client, 500, body)
        disk_node.commit()
        calls: list[Environment | None] = []
        monkeypatch.setattr(delayed, "WINDOW", 2)
        monkeypatch.setattr(Environment, "give_back", lambda self: calls.append(self) or None)
        monkeypatch.setattr(recovery, "_repair_bodies", lambda *_: calls.append(None))
        disk_node.killed().disk.close()
        assert 4 == calls.index(None)  # for six messages, and the row of their number

    def test_what_is_held_survives_a_kill_with_its_time(self, disk_node):
        """After a kill a confirmed message is still held, and released at its time."""
        client = ready(disk_node)
        hold(client, 500)
        disk_node.commit()
        again = disk_node.killed()
        again.read()
        again.pass_time(499)
        assert (1, 0) == counts(again)
        again.pass_time(1)
        assert (0, 1) == counts(again)
        again.commit()
        last = again.killed()
        last.read()
        assert (0, 1) == counts(last)
        assert [] == findings(last)

    def test_a_kill_between_release_and_commit_leaves_one(self, disk_node):
        """The row is deleted by the commit that has the message in its queue: a kill before that releases it again."""
        client = ready(disk_node)
        hold(client, 500)
        disk_node.commit()
        disk_node.pass_time(500)
        assert (0, 1) == counts(disk_node)
        again = disk_node.killed()
        again.read()
        assert 1 == sum(counts(again))
        again.pass_time(500)
        again.commit()
        assert (0, 1) == counts(again)

    def test_it_stays_held_if_the_policy_is_gone(self, disk_node):
        """A queue whose policy no longer holds keeps what it holds, also over a restart."""
        client = ready(disk_node, arguments={})
        policies = disk_node.vhosts["/"].policies
        set_policy(policies, "p", "^q$", {"allow-hold": True})
        disk_node.run_turn()
        disk_node.clock.run()
        hold(client, 500)
        policies.clear("p")
        disk_node.run_turn()
        disk_node.clock.run()
        hold(client, 500)
        disk_node.commit()
        assert (1, 1) == counts(disk_node)
        again = disk_node.killed()
        again.read()
        assert (1, 1) == counts(again)
        again.pass_time(500)
        assert (0, 2) == counts(again)

    def test_what_was_purged_stays_gone(self, disk_node, monkeypatch):
        """Neither a kill before the sweep nor one after it brings purged messages back; later ones are there."""
        monkeypatch.setattr("leveret.storage.delayed.SWEEP_ROWS", 1)
        client = ready(disk_node)
        for _ in range(3):
            hold(client, 500)
        disk_node.commit()
        queue(disk_node).purge()
        disk_node.commit()
        hold(client, 600)
        disk_node.commit()
        again = disk_node.killed()
        again.read()
        assert (1, 0) == counts(again)
        queue(again).purge()
        again.commit()
        last = again.killed()
        last.read()
        assert (0, 0) == counts(last)
        last.commit()
        assert [] == findings(last)

    def test_compaction_and_check_know_held_messages(self, disk_node):
        """A compacted file has the held messages, and a check of it finds nothing."""
        client = ready(disk_node)
        hold(client, 500, bytes(10_000))
        disk_node.commit()
        assert [] == findings(disk_node)
        compact(disk_node.data_dir)
        assert [] == findings(disk_node)
        again = DiskNode(disk_node.data_dir)
        again.read()
        assert (1, 0) == counts(again)
        again.disk.close()

    def test_very_large_bodies_are_released_with_their_files(self, disk_node):
        """The row of a large message stays until the commit that follows its file."""
        client = ready(disk_node)
        body = bytes(disk_node.disk.blob_threshold + 1)
        hold(client, 500, body)
        disk_node.commit()
        disk_node.pass_time(500)
        disk_node.commit()
        again = disk_node.killed()
        again.read()
        again.pass_time(500)
        again.write_files()
        again.commit()
        assert (0, 1) == counts(again)
        last = again.killed()
        last.read()
        assert (0, 1) == counts(last)


def fanned_out(node: DiskNode, size: int, *, durable: bool = True) -> Client:
    """Publish a message to a queue that holds it, and to the durable queue p, in confirm mode."""
    client = Client(node)
    client.declare("q", durable=durable, exclusive=not durable, arguments=ALLOWED)
    client.declare("p", durable=True)
    settle(node)
    client.send(make(Exchange.Declare, 0, "f", "fanout", False, True, False, False, False, {}))
    settle(node)
    for name in "qp":
        client.send(make(Queue.Bind, 0, name, "f", "", False, {}))
        settle(node)
    client.send(Confirm.Select())
    settle(node)
    client.take()
    hold(client, 500, bytes(size), exchange="f")
    return client


class TestFanOut:
    """Messages of which one queue holds a copy, and another has one."""

    def test_the_bodies_of_other_queues_are_not_shared_with_the_row(self, disk_node):
        """A large body that only one record refers to has one reference, and goes with it."""
        client = fanned_out(disk_node, 9000)
        disk_node.commit()
        assert ["1 basic.ack delivery_tag=1"] == client.sent()
        client.send(make(Queue.Purge, 0, "p", False))
        settle(disk_node)
        assert [] == findings(disk_node)

    def test_very_large_bodies_have_a_file_for_other_queues_only(self, disk_node):
        """The file of a body has one reference, that of the queue that has it, and the row one of its own."""
        client = fanned_out(disk_node, disk_node.disk.blob_threshold + 1)
        disk_node.commit()
        assert [] == client.sent()
        disk_node.write_files()
        assert ["1 basic.ack delivery_tag=1"] == client.sent()
        assert (1, 0) == counts(disk_node)
        disk_node.disk.close()
        found: list[Finding] = []
        Check(disk_node.data_dir, found.append).run()
        assert [] == [each for each in found if each.where.startswith("refs")]

    def test_the_confirm_waits_for_both(self, disk_node):
        """The publisher hears at the commit of the row, though a consumer has had the other copy before."""
        client = Client(disk_node)
        client.declare("p", durable=True)
        settle(disk_node)
        client.consume("p", no_ack=True)
        client = fanned_out(disk_node, 10)
        assert [] == client.sent()
        disk_node.commit()
        assert ["1 basic.ack delivery_tag=1"] == client.sent()

    def test_a_queue_that_holds_in_memory_confirms_nothing_for_others(self, disk_node):
        """The confirm waits for the commit of the other queue, though a transient one holds its copy already."""
        client = fanned_out(disk_node, 10, durable=False)
        assert [] == client.sent()
        disk_node.commit()
        assert ["1 basic.ack delivery_tag=1"] == client.sent()
        disk_node.disk.close()


def test_a_declaration_is_compared_with_the_arguments(node):
    """A redeclaration must repeat x-allow-hold, and its value must be a boolean."""
    client = ready(node)
    (sent,) = client.declare("q", durable=True)
    assert "inequivalent arg 'x-allow-hold' for queue 'q' in vhost '/': received none but current is" in sent


def test_an_exchange_that_delays_and_a_queue_that_holds_do_not_add_up(node):
    """A message that its exchange has delayed is not held once more: its delay is negated."""
    client = ready(node)
    inner = {"x-delayed-type": ("longstr", "direct")}
    client.send(make(Exchange.Declare, 0, "d", "x-delayed-message", False, True, False, False, False, inner))
    settle(node)
    client.send(make(Queue.Bind, 0, "q", "d", "q", False, {}))
    settle(node)
    client.publish("q", b"x", exchange="d", headers={"x-delay": ("signedint", 100)}, delivery_mode=2)
    settle(node)
    node.pass_time(100)
    settle(node)
    assert (0, 1) == counts(node)
