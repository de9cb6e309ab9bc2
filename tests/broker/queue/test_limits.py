"""Expiry, length limits, delivery limits and dead letters."""

from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, basic_consume, set_policy

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, Tx, make
from leveret.broker.amqp.tables import Table

TTL: Table = {"x-message-ttl": ("signedint", 100)}
DLX: Table = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}


def limit(length: int, overflow: str = "drop-head") -> Table:
    return {"x-max-length": ("signedint", length), "x-overflow": ("longstr", overflow)}


def bodies(client: Client, queue: str, *, no_ack: bool = True) -> list[bytes]:
    found = []
    while True:
        client.send(make(Basic.Get, 0, queue, no_ack))
        (item,) = client.take()
        if "get-empty" in str(item):
            return found
        found.append(item.body)


def counts(node: Node, name: str) -> tuple[int, int]:
    queue = node.vhosts["/"].queues[name]
    return queue.ready_count, queue.unacked_count


def test_messages_expire_after_the_queues_time() -> None:
    """A message expires after the queue's TTL and not before."""
    client = Client()
    client.declare("q", arguments=TTL)
    client.publish("q", b"1")
    client.node.pass_time(99)

    assert (1, 0) == counts(client.node, "q")
    client.node.pass_time(1)
    assert (0, 0) == counts(client.node, "q")


def test_the_shorter_of_both_times_counts() -> None:
    """A message's own expiration shortens the queue's TTL and never lengthens it; without a TTL it applies alone."""
    client = Client()
    client.declare("q", arguments=TTL)
    client.declare("plain")
    client.publish("q", b"short", expiration="20")
    client.publish("q", b"long", expiration="5000")
    client.publish("plain", b"alone", expiration="50")
    client.publish("plain", b"for ever")
    client.node.pass_time(20)

    assert (1, 0) == counts(client.node, "q")
    assert (2, 0) == counts(client.node, "plain")
    client.node.pass_time(30)
    assert (1, 0) == counts(client.node, "plain")
    client.node.pass_time(50)
    assert (0, 0) == counts(client.node, "q")
    assert [b"for ever"] == bodies(client, "plain")


def test_only_the_head_expires() -> None:
    """An expired message behind one that has not expired stays until it reaches the head, and is never delivered."""
    client = Client()
    client.declare("q")
    for body, expiration in ((b"1", None), (b"2", "10"), (b"3", "10"), (b"4", None)):
        client.publish("q", body, **({"expiration": expiration} if expiration else {}))
    client.node.pass_time(1000)

    assert (4, 0) == counts(client.node, "q")
    assert [b"1", b"4"] == bodies(client, "q")


def test_consumers_never_get_what_has_expired() -> None:
    """Expired messages between others are skipped when a consumer comes."""
    client = Client()
    client.declare("q")
    for number in range(100):
        client.publish("q", b"%d" % number, **({"expiration": "10"} if number % 3 else {}))
    client.node.pass_time(11)
    client.send(basic_consume("q", "c", no_ack=True))
    delivered = [int(item.body) for item in client.take() if item.body]

    assert (0, 0) == counts(client.node, "q")
    assert list(range(0, 100, 3)) == delivered


def test_a_time_of_zero_is_for_consumers_that_wait() -> None:
    """A message with TTL 0 goes to a consumer with room at once, or expires."""
    client = Client()
    client.declare("q", arguments={"x-message-ttl": ("signedint", 0)})
    client.publish("q", b"nobody")
    client.send(make(Basic.Qos, 0, 1, False))
    client.consume("q")
    client.take()
    client.publish("q", b"1")
    client.publish("q", b"2")

    assert [b"1"] == [item.body for item in client.take() if item.body]
    assert (0, 1) == counts(client.node, "q")


def test_requeued_messages_keep_their_time() -> None:
    """A message requeued after its TTL has expired."""
    client = Client()
    client.declare("q", arguments=TTL)
    client.publish("q", b"1")
    client.send(make(Basic.Get, 0, "q", False))
    client.node.pass_time(150)

    assert (0, 1) == counts(client.node, "q")
    client.send(make(Basic.Reject, 1, True))
    assert (0, 0) == counts(client.node, "q")


def test_a_limited_queue_drops_its_head() -> None:
    """The oldest ready messages are dropped above the limit; unacked ones do not count."""
    client = Client()
    client.declare("q", arguments=limit(3))
    client.publish("q", b"unacked")
    client.send(make(Basic.Get, 0, "q", False))
    client.take()
    for number in range(5):
        client.publish("q", b"%d" % number)

    assert (3, 1) == counts(client.node, "q")
    assert [b"2", b"3", b"4"] == bodies(client, "q")


def test_octets_are_limited_by_bodies() -> None:
    """The byte limit counts the bodies of ready messages only."""
    client = Client()
    client.declare("q", arguments={"x-max-length-bytes": ("signedint", 10)})
    for body in (b"aaaa", b"bbbb", b"cc"):
        client.publish("q", body)

    assert (3, 0) == counts(client.node, "q")
    client.send(make(Basic.Get, 0, "q", False))
    client.take()
    client.publish("q", b"dddd")
    assert (3, 1) == counts(client.node, "q")
    client.send(make(Basic.Reject, 1, True))
    assert [b"bbbb", b"cc", b"dddd"] == bodies(client, "q")
    client.publish("q", b"too large for it")
    assert (0, 0) == counts(client.node, "q")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_full_queue_refuses_publishes(persistent: bool) -> None:
    """With reject-publish a publish above the limit is nacked, and others are acked."""
    client = Client()
    client.declare("q", arguments=limit(2, "reject-publish"), durable=True)
    client.ask(Confirm.Select(False))
    mode = {"delivery_mode": 2} if persistent else {}
    for number in range(4):
        client.publish("q", b"%d" % number, **mode)

    assert [
        "1 basic.ack delivery_tag=1",
        "1 basic.ack delivery_tag=2",
        "1 basic.nack delivery_tag=3",
        "1 basic.nack delivery_tag=4",
    ] == [line.replace(" multiple", "").replace(" requeue", "") for line in client.sent()]
    assert [b"0", b"1"] == bodies(client, "q")


def test_one_queue_that_refuses_is_enough_for_a_nack() -> None:
    """A publish that one queue refuses is nacked, though the other queues keep the message."""
    client = Client()
    client.declare("full", arguments=limit(0, "reject-publish"))
    client.declare("other")
    for name in ("full", "other"):
        client.ask(make(Wire.Bind, 0, name, "amq.fanout", "", False, {}))
    client.ask(Confirm.Select(False))
    client.publish("", b"1", exchange="amq.fanout")

    assert ["nack"] == [line.split(".")[1][:4] for line in client.sent()]
    assert (1, 0) == counts(client.node, "other")


def test_a_transaction_that_a_queue_refuses_is_partial() -> None:
    """A commit that a queue refuses fails with 406, though other messages stay."""
    client = Client()
    client.declare("q", arguments=limit(1, "reject-publish"))
    client.ask(Tx.Select())
    client.publish("q", b"1")
    client.publish("q", b"2")

    assert "406" in client.ask(Tx.Commit())[-1]
    assert (1, 0) == counts(client.node, "q")


def test_what_a_queue_discards_goes_to_its_dead_letter_exchange() -> None:
    """Expired, dropped and rejected messages are dead-lettered, with the reason in their headers."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=TTL | DLX | limit(2))
    for body in (b"dropped", b"rejected", b"expired"):
        client.publish("q", body)
    client.send(make(Basic.Get, 0, "q", False))
    client.take()
    client.send(make(Basic.Reject, 1, False))
    client.node.pass_time(100)

    assert (0, 0) == counts(client.node, "q")
    assert [b"dropped", b"rejected", b"expired"] == bodies(client, "dead")


def test_dead_letters_of_refused_publishes() -> None:
    """With reject-publish-dlx a refused message is dead-lettered as well."""
    client = Client()
    client.declare("dead")
    client.declare("q", arguments=DLX | limit(1, "reject-publish-dlx"))
    client.ask(Confirm.Select(False))
    for body in (b"1", b"2"):
        client.publish("q", body)

    assert ["ack", "nack"] == [line.split()[1].split(".")[1] for line in client.sent()]
    assert [b"2"] == bodies(client, "dead")


def test_dead_letters_of_refused_dead_letters() -> None:
    """Any number of full queues may pass a message on."""
    client = Client()
    client.declare("dead")
    hops = 250
    for number in range(hops):
        to = f"q{number + 1}" if number < hops - 1 else "dead"
        key: Table = {**DLX, "x-dead-letter-routing-key": ("longstr", to)}
        client.declare(f"q{number}", arguments={**limit(0, "reject-publish-dlx"), **key})
    client.publish("q0", b"1")

    assert [b"1"] == bodies(client, "dead")


def test_an_unused_queue_expires() -> None:
    """A queue expires when it is unused; each get, declaration and departure of a consumer restarts its time."""
    client = Client()
    client.declare("q", arguments={"x-expires": ("signedint", 100)})
    node = client.node

    def use() -> Any:
        return node.vhosts["/"].queues.get("q")

    node.pass_time(60)
    client.ask(make(Basic.Get, 0, "q", True))
    node.pass_time(60)
    client.declare("q", passive=True)
    node.pass_time(60)
    client.consume("q", tag="c")
    node.pass_time(500)
    client.ask(make(Basic.Cancel, "c", False))
    node.pass_time(99)
    client.publish("q", b"does not count")
    assert use() is not None
    node.pass_time(1)
    assert use() is None
    assert len(node.context.timers) == 0


def test_a_message_comes_back_so_often_and_no_more() -> None:
    """A delivery limit of 2 discards a message at its third return; it carries its delivery count."""
    client = Client()
    client.declare("dead")
    client.declare("q")
    asked = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "delivery-limit": 2}
    set_policy(client.node.vhosts["/"].policies, "p", "^q$", asked)
    client.publish("q", b"1")
    seen = []
    for tag in (1, 2, 3):
        client.send(make(Basic.Get, 0, "q", False))
        (item,) = client.take()
        seen.append("x-delivery-count" in str(item))
        client.send(make(Basic.Reject, tag, True))

    assert [False, True, True] == seen
    assert (0, 0) == counts(client.node, "q")
    assert [b"1"] == bodies(client, "dead")


def durable_pair(client: Client, arguments: Table) -> None:
    """Declare a durable queue with these arguments, and one for its dead letters."""
    client.send(make(Wire.Declare, 0, "dead", False, True, False, False, True, {}))
    client.send(make(Wire.Declare, 0, "q", False, True, False, False, True, DLX | arguments))
    client.send(Confirm.Select(False))
    client.node.commit()  # type: ignore[attr-defined]
    client.take()


def test_dead_letters_move_in_one_commit(tmp_path: Path) -> None:
    """After a crash a message is in its queue or among the dead letters, and never in both or neither."""
    node = DiskNode(tmp_path)
    client = Client(node)
    durable_pair(client, TTL)
    for number in range(3):
        client.publish("q", b"%d" % number, delivery_mode=2)
    node.commit()
    assert "ack" in client.sent()[-1]
    node.pass_time(100)
    again = node.killed()

    assert ((3, 0), (0, 0)) == (counts(again, "q"), counts(again, "dead"))
    again.run_turn()
    again.read()
    again.pass_time(101)
    again.read()
    assert ((0, 0), (3, 0)) == (counts(again, "q"), counts(again, "dead"))
    again.commit()
    third = again.killed()
    assert ((0, 0), (3, 0)) == (counts(third, "q"), counts(third, "dead"))
    third.disk.close()


def test_a_publisher_waits_for_the_dead_letter(tmp_path: Path) -> None:
    """A message discarded before it is on disk is confirmed when its dead letter is."""
    node = DiskNode(tmp_path)
    client = Client(node)
    durable_pair(client, limit(0))
    client.publish("q", b"1", delivery_mode=2)

    assert ((0, 0), (1, 0)) == (counts(node, "q"), counts(node, "dead"))
    assert [] == client.sent()
    node.commit()
    assert ["1 basic.ack delivery_tag=1"] == client.sent()
    again = node.killed()
    assert ((0, 0), (1, 0)) == (counts(again, "q"), counts(again, "dead"))
    again.disk.close()


def test_rejected_messages_are_read_before_they_move(tmp_path: Path) -> None:
    """Dead letters have their bodies, also if these were paged out while the messages were unacked."""
    node = DiskNode(tmp_path)
    client = Client(node)
    durable_pair(client, {"x-queue-mode": ("longstr", "lazy")})
    for number in range(300):
        client.publish("q", b"%d" % number * 50, delivery_mode=2)
    node.commit()
    for _ in range(10):
        node.read()
    client.take()
    client.consume("q")
    for _ in range(10):
        node.read()
    assert (0, 300) == counts(node, "q")
    queue = node.vhosts["/"].queues["q"]
    queue.backing.set_lazy(lazy=True)
    client.take()
    client.send(make(Basic.Nack, 0, True, False))
    for _ in range(10):
        node.read()

    assert ((0, 0), (300, 0)) == (counts(node, "q"), counts(node, "dead"))
    node.commit()
    client.declare("dead", passive=True, durable=True)
    node.disk.close()
