"""Expiry, length limits, delivery limits and dead letters."""

from pathlib import Path

from doubles.fakes import Client, DiskNode, Node

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, make
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
