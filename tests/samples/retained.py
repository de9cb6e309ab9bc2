"""Queues that retain acked messages, for the tests of retention."""

from typing import Any

from doubles.fakes import Client, DiskNode, Node, queue_declare

from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.tables import Table
from leveret.broker.queue.queue import Queue

HOUR = 3_600_000
RETAIN: Table = {"x-retain-for": ("signedint", HOUR)}


def commit(node: Node) -> None:
    """Commit, if there is a disk."""
    if isinstance(node, DiskNode):
        node.commit()


def read(node: Node) -> None:
    """Read what queues have asked for, until they ask for nothing more."""
    node.run_turn()
    while isinstance(node, DiskNode) and node.disk.loads:
        node.read()


def declare(client: Client, name: str = "q", *, durable: bool = True, **arguments: Any) -> None:
    """Declare a queue that retains for an hour; other arguments are AMQP fields, with underscores for dashes."""
    others = {f"x-{key.replace('_', '-')}": field for key, field in arguments.items()}
    client.send(queue_declare(name, durable=durable, arguments={**RETAIN, **others}))
    commit(client.node)
    client.take()


def queue(node: Node, name: str = "q") -> Queue:
    return node.vhosts["/"].queues[name]


def publish(client: Client, *bodies: bytes, key: str = "q", delivery_mode: int = 2, **options: Any) -> None:
    for body in bodies:
        client.publish(key, body, delivery_mode=delivery_mode, **options)


def get(client: Client, name: str = "q", *, no_ack: bool = False) -> int:
    """Get a message; returns its delivery tag, 0 if there is none."""
    client.take()
    client.send(make(Basic.Get, 0, name, no_ack))
    for _ in range(100):
        found = client.take()
        if found:
            return getattr(found[-1].method, "delivery_tag", 0)
        commit(client.node)
        read(client.node)
    raise AssertionError("no answer")


def ack(client: Client, tag: int, *, multiple: bool = False) -> None:
    client.send(make(Basic.Ack, tag, multiple))


def consume(client: Client, *bodies: bytes, **options: Any) -> None:
    publish(client, *bodies, **options)
    for _ in bodies:
        ack(client, get(client, options.get("key", "q")))


def consume_together(client: Client, *bodies: bytes, **options: Any) -> None:
    """Publish messages, get all, and ack them together."""
    publish(client, *bodies, **options)
    tags = [get(client, options.get("key", "q")) for _ in bodies]
    ack(client, tags[-1], multiple=True)


def contents(backing: Any) -> list[bytes]:
    """Return the bodies of the ready messages of a backing queue, without taking them."""
    steps = backing.peek()
    answer = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stopped:
            return [peeked.message.body for peeked in stopped.value.ready]
        answer = wanted() if wanted is not None else None


def retained(node: Node, name: str = "q") -> list[bytes] | None:
    """Return the bodies of the retained messages of a queue; None if it retains none."""
    read(node)
    found = queue(node, name).retained
    return None if found is None else contents(found.backing)


def ready(node: Node, name: str = "q") -> list[bytes]:
    node.run_turn()
    return contents(queue(node, name).backing)
