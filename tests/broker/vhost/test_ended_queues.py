"""Messages that a deleted queue still had to discard are dead-lettered, in order, however it was deleted."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from doubles.fakes import Client, DiskNode, Node, StoringNode, hurry, publish_frames, set_policy

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Connection, Queue as Wire, Tx, make
from leveret.broker.amqp.tables import Table

DLX: Table = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}
COUNT = 300


def counts(node: Node, name: str) -> tuple[int, int]:
    queue = node.vhosts["/"].queues[name]
    return queue.ready_count, queue.unacked_count


def letters(client: Client) -> list[bytes]:
    client.take()
    client.send(make(Basic.Consume, 0, "dead", "letters", False, True, False, False, {}))
    client.node.clock.run()
    client.node.run_turn()
    client.node.clock.run()
    return [item.body for item in client.take() if item.body]


def jam(node: Node, chunks: int) -> None:
    """Let the disk accept so many more chunks of dead letters, and then no more."""
    looks = iter([False] * chunks)
    node.turn.is_backlogged = lambda: next(looks, True)


def clear(node: Node) -> None:
    """Let the disk catch up."""
    node.turn.is_backlogged = lambda: False
    node.loop.backlog_cleared()
    node.run_turn()
    node.clock.run()


def delete(worker: Client) -> None:
    worker.send(make(Wire.Delete, 0, "q", False, False, False))


def delete_if_empty(worker: Client) -> None:
    worker.send(make(Wire.Delete, 0, "q", False, True, False))


def cancel(worker: Client) -> None:
    worker.send(make(Basic.Cancel, "c-q", False))


def close_channel(worker: Client) -> None:
    worker.send(make(Channel.Close, 200, "", 0, 0))


def vanish(worker: Client) -> None:
    worker.connection.lost()


def vanish_for_long(worker: Client) -> None:
    worker.connection.lost()
    worker.node.pass_time(1000)


def purge(worker: Client) -> None:
    worker.send(make(Wire.Purge, 0, "q", False))


EXPIRES: Table = {"x-expires": ("signedint", 1000)}


@pytest.mark.parametrize(
    ("options", "arguments", "end"),
    [
        ({}, {}, delete),
        ({}, {}, delete_if_empty),
        ({}, {}, purge),
        ({"auto_delete": True}, {}, cancel),
        ({"auto_delete": True}, {}, close_channel),
        ({"auto_delete": True}, {}, vanish),
        ({"exclusive": True}, {}, vanish),
        ({}, EXPIRES, vanish_for_long),
    ],
)
def test_what_was_rejected_survives_its_queue(
    options: dict[str, bool], arguments: Table, end: Callable[[Client], None]
) -> None:
    """All messages that a consumer has rejected are dead-lettered in order though their queue ends before that."""
    worker = Client()
    other = Client(worker.node, port=50001)
    other.declare("dead")
    worker.declare("q", arguments=DLX | arguments, **options)
    worker.receive(b"".join(publish_frames("q", b"%d" % number) for number in range(COUNT)))
    worker.consume("q")
    hurry(worker.node, looks=50)
    worker.send(make(Basic.Nack, 0, True, False))
    end(worker)
    worker.node.clock.run()

    assert end is purge or "q" not in worker.node.vhosts["/"].queues
    assert [b"%d" % number for number in range(COUNT)] == letters(other)
    assert {} == worker.node.vhosts["/"].ending


@pytest.mark.parametrize("end", [delete, vanish])
def test_what_is_read_from_disk_survives_its_queue(tmp_path: Path, end: Callable[[Client], None]) -> None:
    """Rejected messages whose bodies were paged out are read and dead-lettered in order after their queue has ended."""
    node = DiskNode(tmp_path)
    worker, other = Client(node), Client(node, port=50001)
    for name, options in (("dead", False), ("q", True)):
        worker.declare(name, durable=True, auto_delete=options, arguments=DLX if options else {})
        node.commit()
    worker.sent()
    for number in range(COUNT):
        worker.publish("q", b"%d" % number, delivery_mode=2)
    node.commit()
    worker.consume("q")
    queue = node.vhosts["/"].queues["q"]
    queue.backing.set_ram_target(100, 1 << 30)  # the youngest are paged out
    node.commit()
    worker.send(make(Basic.Nack, 0, True, False))
    end(worker)
    worker.sent()
    for _ in range(10):
        node.read()

    assert {} == node.vhosts["/"].ending
    node.commit()
    if end is delete:
        assert ["1 queue.delete-ok"] == [text for text in worker.sent() if "delete-ok" in text]
    assert [b"%d" % number for number in range(COUNT)] == letters(other)
    node.disk.close()


def test_dead_letters_of_one_nack_keep_their_order(tmp_path: Path) -> None:
    """Messages with bodies in memory do not overtake those whose bodies have to be read."""
    node = DiskNode(tmp_path)
    client = Client(node)
    for name, arguments in (("dead", {}), ("q", DLX)):
        client.declare(name, durable=True, arguments=arguments)
        node.commit()
    for number in range(COUNT):
        client.publish("q", b"%d" % number, delivery_mode=2)
    node.commit()
    client.sent()
    client.consume("q")
    node.vhosts["/"].queues["q"].backing.set_ram_target(100, 1 << 30)
    node.commit()
    # the second half is in memory, and the first half is rejected before it
    tags = [*range(101, COUNT + 1, 2), *range(1, 101), *range(102, COUNT + 1, 2)]
    for tag in tags:
        client.send(make(Basic.Reject, tag, False))
    for _ in range(10):
        node.read()

    assert [b"%d" % (tag - 1) for tag in tags] == letters(client)
    node.disk.close()


def test_delete_ok_waits_for_the_dead_letters() -> None:
    """A queue cannot be found while it discards, and delete-ok follows its last dead letter."""
    client = Client()
    other = Client(client.node, port=50001)
    client.declare("dead")
    client.declare("q", arguments=DLX)
    client.receive(publish_frames("q", b"1") * COUNT)
    client.consume("q")
    jam(client.node, 1)
    client.send(make(Basic.Nack, 0, True, False))
    client.take()
    delete(client)

    assert [] == client.sent()
    assert "404" in other.ask(make(Wire.Declare, 0, "q", True, False, False, False, False, {}))[-1]
    clear(client.node)
    assert ["1 queue.delete-ok", "1 basic.cancel consumer_tag=c-q nowait"] == client.sent()
    assert (COUNT, 0) == counts(client.node, "dead")


def test_what_is_rejected_after_the_deletion_is_dropped() -> None:
    """Deliveries rejected while a deleted queue discards leave no dead letters."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=DLX)
    client.receive(publish_frames("q", b"1") * COUNT)
    client.consume("q")
    jam(client.node, 1)
    client.send(make(Basic.Nack, COUNT - 10, True, False))
    Client(client.node, port=50001).send(make(Wire.Delete, 0, "q", False, False, True))
    client.send(make(Basic.Nack, 0, True, False))
    assert 1 == len(client.node.vhosts["/"].ending)
    clear(client.node)

    assert (COUNT - 10, 0) == counts(client.node, "dead")


def test_dead_letters_after_the_deletion_are_counted() -> None:
    """Dead letters of a deleted queue count in the totals."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=DLX, auto_delete=True)
    client.receive(publish_frames("q", b"1") * COUNT)
    client.consume("q")
    jam(client.node, 1)
    client.send(make(Basic.Nack, 0, True, False))
    cancel(client)
    clear(client.node)
    gone = client.node.context.totals.queues["classic"]

    assert (COUNT, COUNT) == (gone.rejected, gone.dead_lettered)


def ended_durably(tmp_path: Path) -> tuple[DiskNode, Client]:
    """Delete a durable queue without time for its dead letters; part of them is on disk."""
    node = DiskNode(tmp_path)
    client = Client(node)
    for name, arguments in (("dead", {}), ("q", DLX)):
        client.declare(name, durable=True, arguments=arguments)
        node.commit()
    client.send(make(Wire.Bind, 0, "q", "amq.fanout", "", False, {}))
    node.commit()
    client.receive(publish_frames("q", b"1", delivery_mode=2) * COUNT)
    node.commit()
    client.consume("q")
    node.commit()
    client.sent()
    jam(node, 2)
    client.send(make(Basic.Nack, 0, True, False))
    delete(client)
    assert [] == client.sent()
    return node, client


def test_a_crash_before_the_last_dead_letter_loses_none(tmp_path: Path) -> None:
    """A durable queue killed while it discards is restored with its binding and all messages that had not moved."""
    node, _ = ended_durably(tmp_path)
    node.disk.environment.commit(node.disk.journal.cut())
    node.disk.journal.settled(None)
    again = node.killed()
    moved = counts(again, "dead")[0]

    assert 0 < moved < COUNT
    assert (COUNT - moved, 0) == counts(again, "q")
    client = Client(again)
    client.publish(exchange="amq.fanout", body=b"bound")
    assert (COUNT - moved + 1, 0) == counts(again, "q")
    again.disk.close()


def test_a_crash_after_delete_ok_finds_no_queue(tmp_path: Path) -> None:
    """A durable queue and its bindings are removed with the commit of its last dead letters."""
    node, client = ended_durably(tmp_path)
    clear(node)
    assert [] == client.sent()
    node.commit()
    assert "1 queue.delete-ok" == client.sent()[0]
    again = node.killed()

    assert ["dead"] == list(again.vhosts["/"].queues)
    assert (COUNT, 0) == counts(again, "dead")
    assert () == again.vhosts["/"].router.route(again.vhosts["/"].exchange("amq.fanout"), ("",), {})
    again.disk.close()


def test_a_queue_of_the_same_name_waits(tmp_path: Path) -> None:
    """A declaration waits while a durable queue of the same name still discards."""
    node, _ = ended_durably(tmp_path)
    other = Client(node, port=50001)
    other.send(make(Wire.Declare, 0, "q", False, True, False, False, False, {}))

    assert [] == other.sent()
    clear(node)
    node.commit()
    node.commit()
    assert ["1 queue.declare-ok queue=q"] == other.sent()
    again = node.killed()
    assert {"dead", "q"} == set(again.vhosts["/"].queues)
    assert ((COUNT, 0), (0, 0)) == (counts(again, "dead"), counts(again, "q"))
    again.disk.close()


def test_bindings_of_an_ended_queue_go_with_their_exchange(tmp_path: Path) -> None:
    """An exchange deleted while a queue discards removes the queue's binding, on disk as well."""
    node, _ = ended_durably(tmp_path)
    node.vhosts["/"].router.remove("amq.fanout")
    node.commit()
    again = node.killed()

    assert [] == [row for key, row in again.disk.environment.rows("defs") if key[:1] == b"B"]
    again.disk.close()


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_every_promise_has_one_verdict(mode: str) -> None:
    """Each publish that waits for consumers has one outcome: ack if its message was rejected, nack if dropped."""
    client = Client()
    publisher = Client(client.node, port=50001)
    client.declare("dead")
    asked = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "confirm-mode": mode}
    set_policy(client.node.vhosts["/"].policies, "p", "^q$", asked)
    client.declare("q")
    publisher.ask(Confirm.Select(False))
    client.send(make(Basic.Qos, 0, COUNT // 2, False))
    client.consume("q")
    publisher.receive(publish_frames("q", b"1") * COUNT)
    jam(client.node, 1)
    client.send(make(Basic.Nack, 0, True, False))
    delete(client)
    clear(client.node)
    verdict_counts = [0] * (COUNT + 1)
    last = 0
    for line in publisher.sent():
        if "ack" not in line:
            continue
        tag = int(line.split("delivery_tag=")[1].split()[0])
        first = last + 1 if "multiple" in line else tag
        for number in range(first, tag + 1):
            verdict_counts[number] += 1
    assert publisher.connection.channels[1].confirms is not None
    confirms = publisher.connection.channels[1].confirms

    assert COUNT == confirms.confirmed_count + confirms.nacked_count
    assert not confirms.held


def over(length: int) -> Table:
    """Return the arguments of a limited queue with dead letters."""
    return DLX | {"x-max-length": ("signedint", length)}


def overfilled() -> Client:
    """Return a client that has just committed more to a queue than there was time to drop."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=over(10))
    client.send(make(Tx.Select))
    client.receive(b"".join(publish_frames("q", b"%d" % number) for number in range(COUNT)))
    client.take()
    hurry(client.node, looks=50)
    client.send(make(Tx.Commit))
    return client


def test_counts_after_a_commit_see_the_limit() -> None:
    """A passive declaration after a large transaction counts what the limit allows."""
    client = overfilled()
    client.send(make(Wire.Declare, 0, "q", True, False, False, False, False, {}))
    client.node.clock.run()

    assert ["1 tx.commit-ok", "1 queue.declare-ok queue=q message_count=10"] == client.sent()


def test_a_get_after_a_commit_sees_the_limit() -> None:
    """The first message to get is the oldest that the limit allows."""
    client = overfilled()
    client.send(make(Basic.Get, 0, "q", True))
    client.node.clock.run()

    assert [b"%d" % (COUNT - 10)] == [item.body for item in client.take() if item.body]


def test_consumers_after_a_commit_see_the_limit() -> None:
    """No message above the limit is delivered, though there was no time to drop it."""
    client = overfilled()
    client.consume("q")
    client.node.clock.run()

    assert [b"%d" % number for number in range(COUNT - 10, COUNT)] == [
        item.body for item in client.take() if item.body
    ]


@pytest.mark.parametrize("if_empty", [False, True])
def test_a_deletion_after_a_commit_loses_no_dead_letter(if_empty: bool) -> None:
    """Messages above the limit are dead-lettered before the deletion, and delete-ok counts the others."""
    client = overfilled()
    other = Client(client.node, port=50001)
    client.send(make(Wire.Delete, 0, "q", False, if_empty, False))
    client.node.clock.run()

    replies = client.sent()
    assert ("406" in replies[-1]) is if_empty
    assert if_empty or "1 queue.delete-ok message_count=10" == replies[-1]
    assert [b"%d" % number for number in range(COUNT - 10)] == letters(other)


def test_a_purge_after_a_commit_loses_no_dead_letter() -> None:
    """A purge counts and drops what the limit allows; the rest is dead-lettered."""
    client = overfilled()
    purge(client)
    client.node.clock.run()

    assert "1 queue.purge-ok message_count=10" == client.sent()[-1]
    assert (COUNT - 10, 0) == counts(client.node, "dead")


@pytest.mark.parametrize("end", [vanish])
def test_what_is_too_much_survives_its_queue(end: Callable[[Client], None]) -> None:
    """Messages above the limit are dead-lettered if the connection ends the queue; the others are dropped."""
    worker = Client()
    other = Client(worker.node, port=50001)
    other.declare("dead")
    worker.declare("q", arguments=over(10), exclusive=True)
    worker.send(make(Tx.Select))
    worker.receive(b"".join(publish_frames("q", b"%d" % number) for number in range(COUNT)))
    hurry(worker.node, looks=50)
    worker.send(make(Tx.Commit))
    end(worker)
    worker.node.clock.run()

    assert [b"%d" % number for number in range(COUNT - 10)] == letters(other)
    assert {} == worker.node.vhosts["/"].ending


def test_what_has_expired_survives_its_queue() -> None:
    """Messages that have expired when the queue ends are dead-lettered, the others are dropped."""
    worker = Client()
    other = Client(worker.node, port=50001)
    other.declare("dead")
    worker.declare("q", arguments=DLX, exclusive=True)
    worker.receive(b"".join(publish_frames("q", b"%d" % number, expiration="100") for number in range(COUNT)))
    worker.receive(publish_frames("q", b"later", expiration="200") * COUNT)
    hurry(worker.node, looks=50)
    worker.node.pass_time(100)
    vanish(worker)
    worker.node.clock.run()
    worker.node.pass_time(100)

    assert [b"%d" % number for number in range(COUNT)] == letters(other)
    assert {} == worker.node.vhosts["/"].ending


def test_dead_letters_wait_for_the_disk() -> None:
    """No dead letter is added while the disk has a backlog; they go on once it has caught up."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=DLX)
    client.receive(publish_frames("q", b"1") * COUNT)
    client.consume("q")
    turn = client.node.turn
    turn.is_backlogged = lambda: True
    client.send(make(Basic.Nack, 0, True, False))
    client.node.clock.run()

    assert (0, 0) == counts(client.node, "dead")
    assert [] == turn.unfinished
    turn.is_backlogged = lambda: False
    client.node.loop.backlog_cleared()
    client.node.run_turn()
    assert (COUNT, 0) == counts(client.node, "dead")


def test_expired_messages_that_wait_for_the_disk_keep_nothing_busy() -> None:
    """While expired messages wait for the disk no timer is due; they go on once it has caught up."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=DLX | {"x-message-ttl": ("long", 1000)})
    client.receive(publish_frames("q", b"1") * COUNT)
    turn = client.node.turn
    turn.is_backlogged = lambda: True
    client.node.pass_time(1001)
    client.node.clock.run()

    assert (0, 0) == counts(client.node, "dead")
    assert [] == turn.unfinished
    assert 0 == len(client.node.context.timers)
    turn.is_backlogged = lambda: False
    client.node.loop.backlog_cleared()
    client.node.run_turn()
    assert (COUNT, 0) == counts(client.node, "dead")


def test_queues_of_a_lost_connection_go_in_slices() -> None:
    """Exclusive and auto-delete queues of a closed connection are deleted in several steps."""
    client = Client()
    other = Client(client.node, port=50001)
    for number in range(100):
        client.declare(f"x{number}", exclusive=True)
        client.declare(f"a{number}", auto_delete=True)
        client.consume(f"a{number}")
    hurry(client.node, looks=10)
    vanish(client)
    queues = client.node.vhosts["/"].queues
    left = [len(queues)]
    while client.node.clock.soon:
        client.node.clock.soon.pop(0)()
        left.append(len(queues))

    assert 0 == left[-1]
    assert all(before - after <= 50 for before, after in pairwise(left))
    assert (
        "1 queue.declare-ok queue=x99"
        == other.ask(make(Wire.Declare, 0, "x99", False, False, True, False, False, {}))[-1]
    )


def unused_by_loss(client: Client, count: int) -> None:
    """Leave durable queues without their only consumers."""
    for number in range(count):
        client.declare(f"q{number}", durable=True, auto_delete=True)
        client.node.commit()
        client.consume(f"q{number}")
    vanish(client)


def unused_for_long(client: Client, count: int) -> None:
    """Leave durable queues unused until they expire."""
    for number in range(count):
        client.declare(f"q{number}", durable=True, arguments={"x-expires": ("long", 1000)})
        client.node.commit()
    client.node.pass_time(1001)


@pytest.mark.parametrize("leave", [unused_by_loss, unused_for_long])
def test_unused_durable_queues_wait_for_the_disk(leave: Callable[[Client, int], None]) -> None:
    """No more durable queues go while the disk has a backlog; the others follow, except those used meanwhile."""
    node = StoringNode()
    client, other = Client(node), Client(node, port=50001)
    queues = node.vhosts["/"].queues
    node.turn.is_backlogged = lambda: 0 < len(queues) <= 15
    leave(client, 20)
    node.clock.run()
    meanwhile = len(queues)
    other.consume("q19")
    clear(node)

    assert (15, ["q19"]) == (meanwhile, list(queues))


def test_a_queue_declared_anew_is_not_deleted_for_the_one_before() -> None:
    """A declaration of an auto-delete queue whose deletion waits for the disk creates another one, which stays."""
    node = StoringNode()
    client, other = Client(node), Client(node, port=50001)
    queues = node.vhosts["/"].queues
    node.turn.is_backlogged = lambda: 0 < len(queues) <= 1
    unused_by_loss(client, 2)
    node.clock.run()
    (left,) = queues
    before = queues[left]
    node.turn.is_backlogged = lambda: False
    other.declare(left, durable=True)
    clear(node)

    assert [left] == list(queues)
    assert not queues[left].auto_delete
    assert before.deleted


def test_a_lapsed_queue_that_was_used_meanwhile_expires_later() -> None:
    """A queue that is declared again while its deletion waits for the disk is unused from then on."""
    node = StoringNode()
    client = Client(node)
    queues = node.vhosts["/"].queues
    node.turn.is_backlogged = lambda: 0 < len(queues) <= 1
    unused_for_long(client, 2)
    node.clock.run()
    (left,) = queues
    client.declare(left, durable=True, arguments={"x-expires": ("long", 1000)})
    clear(node)
    still = list(queues)
    node.pass_time(1001)
    clear(node)

    assert ([left], []) == (still, list(queues))


def test_close_ok_comes_after_the_exclusive_queues() -> None:
    """A client may use the names of its exclusive queues as soon as its connection has closed."""
    client = Client()
    for number in range(100):
        client.declare(f"x{number}", exclusive=True)
    client.sent()
    hurry(client.node, looks=10)
    client.send(make(Connection.Close, 200, "", 0, 0), channel=0)

    assert [] == client.sent()
    client.node.clock.run()
    assert {} == client.node.vhosts["/"].queues
    assert ["0 connection.close-ok"] == client.sent()


def test_queues_that_expire_together_go_in_slices() -> None:
    """Thousands of unused queues that expire are deleted in several steps."""
    client = Client()
    for number in range(100):
        client.declare(f"q{number}", arguments=EXPIRES)
    node = client.node
    hurry(node, looks=10)
    node.clock.now += 1
    node.loop.run_timers()
    queues = node.vhosts["/"].queues

    assert 50 < len(queues) < 100
    while node.clock.later:
        node.clock.later.pop()[1]()
    assert {} == queues
