"""Byte limits of queues with damaged messages."""

import pytest
from doubles.fakes import Client, DiskNode, queue_declare

from leveret.broker.amqp.commands import Basic, Confirm, Queue, make
from leveret.storage.journal.blocks import offsets_of, read_header

LIMIT = {"x-max-length-bytes": ("long", 1000), "x-overflow": ("longstr", "reject-publish")}


def damage(node, *places):
    """Flip a bit in these records of the only block."""
    store = node.disk.environment.store
    with store.env.begin(write=True) as txn:
        ((key, value),) = list(txn.cursor(store.db["blocks"]))
        octets = bytearray(value)
        for place in places:
            octets[offsets_of(value, read_header(key, value))[place] + 20] ^= 1
        txn.put(key, bytes(octets), db=store.db["blocks"])


def outcome(client, body):
    """Publish a message and return the names of the broker's replies."""
    client.publish("q", body, delivery_mode=2)
    client.node.commit()
    return [text.split()[1] for text in client.sent()]


@pytest.mark.parametrize("places", [(0,), (3, 4), (9,), tuple(range(10))])
def test_damaged_messages_take_no_room(tmp_path, places):
    """A full queue has room for the bytes of its damaged messages as soon as these are found."""
    node = DiskNode(tmp_path)
    client = Client(node)
    client.send(queue_declare("q", durable=True, arguments=LIMIT))
    node.commit()
    for _ in range(10):
        client.publish("q", bytes(100), delivery_mode=2)
    node.commit()
    damage(node, *places)
    node = node.killed()
    client = Client(node, port=50001)
    client.send(Confirm.Select())
    client.sent()
    assert ["basic.nack"] == outcome(client, b"x")

    client.send(make(Basic.Get, 0, "q", False))
    while node.disk.loads:
        node.read()
    got = "basic.get-ok" in " ".join(client.sent())
    room = 100 * len(places) + 100 * got

    assert ["basic.nack"] == outcome(client, bytes(room + 1))
    assert ["basic.ack"] == outcome(client, bytes(room))
    assert ["basic.nack"] == outcome(client, b"x")
    (left,) = client.ask(make(Queue.Declare, 0, "q", True, False, False, False, False, {}))
    assert f"message_count={10 - len(places) - got + 1}" in left
    node.disk.close()
