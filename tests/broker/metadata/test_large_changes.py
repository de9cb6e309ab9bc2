"""Policies and imports that concern very many objects are carried out in slices."""

import itertools
import json

import pytest
from doubles.fakes import Client, Node, StoringNode, hurry, publish_frames

from leveret.broker.administration import BadRequestError
from leveret.broker.amqp.commands import Basic, Exchange, Queue, make
from leveret.broker.vhost.vhost import VHost
from leveret.storage.store.metadata_rows import BindingRow

COUNT = 30
LIMIT = {"pattern": "^q", "definition": {"max-length": 3}}


def node_with_queues() -> Node:
    """A broker with some queues, whose steps end after five looks at the clock."""
    node = Node()
    client = Client(node)
    for number in range(COUNT):
        client.declare(f"q{number}")
    hurry(node, looks=5)
    node.turn.slices.begin()
    return node


def limited(vhost: VHost) -> int:
    return sum(queue.settings.max_length is not None for queue in vhost.queues.values())


def test_a_policy_is_applied_in_slices():
    """A policy is in effect for the last of many queues in a later step, and for a new one at once."""
    node = node_with_queues()
    vhost = node.vhosts["/"]
    node.administration.policies.set(None, "/", "p", LIMIT)
    at_once = limited(vhost)
    Client(node).declare("q-new")
    is_new_limited = vhost.queues["q-new"].settings.max_length
    node.clock.run()

    assert 0 < at_once < COUNT
    assert (3, COUNT + 1) == (is_new_limited, limited(vhost))


def test_policies_that_change_meanwhile_are_applied_by_the_same_job():
    """One job applies any number of policies to the queues, and the last setting wins."""
    node = node_with_queues()
    vhost = node.vhosts["/"]
    for number in range(100):
        node.administration.policies.set(None, "/", f"p{number}", LIMIT | {"priority": number})
    jobs = len(node.turn.slices)
    node.administration.policies.set(
        None, "/", "last", {"pattern": "^q1", "definition": {"max-length": 7}, "priority": 200}
    )
    node.clock.run()

    assert 1 == jobs
    assert {3, 7} == {queue.settings.max_length for queue in vhost.queues.values()}
    assert 7 == vhost.queues["q1"].settings.max_length


def test_a_queue_that_goes_meanwhile_is_left_out():
    """A queue that is deleted before its turn does not stop the others."""
    node = node_with_queues()
    vhost = node.vhosts["/"]
    node.administration.policies.set(None, "/", "p", LIMIT)
    vhost.delete_queue(vhost.queues[f"q{COUNT - 1}"])
    node.clock.run()

    assert COUNT - 1 == limited(vhost)


def definitions(count: int, **more: object) -> bytes:
    """A definitions file with so many queues and a policy."""
    queues = [
        {"name": f"n{number}", "vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
        for number in range(count)
    ]
    policy = {
        "name": "p",
        "vhost": "/",
        "pattern": "^n",
        "definition": {"max-length": 3},
        "priority": 0,
        "apply-to": "all",
    }
    return json.dumps({"queues": queues, "policies": [policy], **more}).encode()


def test_an_import_can_be_a_job():
    """An import while clients are connected is carried out in slices and is complete at the end."""
    node = node_with_queues()
    node.turn.add_writing_job(node.administration.definitions.importing(None, definitions(50)), "import")
    at_once = len(node.vhosts["/"].queues)
    node.clock.run()

    assert (COUNT, COUNT + 50, 50) == (
        at_once,
        len(node.vhosts["/"].queues),
        limited(node.vhosts["/"]),
    )


def test_an_import_waits_for_the_disk():
    """An import that is a job creates nothing more while the disk has a backlog."""
    node = node_with_queues()
    queues, turn = node.vhosts["/"].queues, node.turn
    turn.is_backlogged = lambda: len(queues) == COUNT + 10
    turn.add_writing_job(node.administration.definitions.importing(None, definitions(50)), "import")
    node.clock.run()
    meanwhile = len(queues)
    turn.is_backlogged = lambda: False
    turn.disk_caught_up()
    node.clock.run()

    assert (COUNT + 10, COUNT + 50) == (meanwhile, len(queues))


def test_an_import_that_cannot_be_changes_nothing():
    """An import checks its last entry before it makes the first."""
    node = node_with_queues()
    wrong = definitions(
        20, bindings=[{"source": "none", "vhost": "/", "destination": "n1", "destination_type": "queue"}]
    )
    with pytest.raises(BadRequestError):
        node.administration.definitions.import_file(None, wrong)

    assert COUNT == len(node.vhosts["/"].queues)


@pytest.mark.parametrize("what", ["queue", "exchange"])
def test_a_deletion_is_on_disk_before_all_bindings_are_gone(what: str):
    """A restart in the middle of a deletion has neither the deleted object nor any of its bindings."""
    node = StoringNode()
    client = Client(node)
    client.send(make(Exchange.Declare, 0, "x", "topic", False, True, False, False, True, {}))
    for name in ("q", "other"):
        client.declare(name, durable=True)
        node.commit()
    router = node.vhosts["/"].router
    for number in range(1000):
        router.bind("x", router.queues["q"], f"k{number}", {})
    router.bind("amq.topic", router.queues["other"], "k", {})
    node.commit()
    hurry(node, looks=3)
    node.turn.slices.begin()
    if what == "exchange":
        client.send(make(Exchange.Delete, 0, "x", False, True))
    else:
        client.send(make(Queue.Delete, 0, "q", False, False, True))
    node.store.commit()
    rows = sum(key.startswith(BindingRow.kind) for key in node.store.rows)
    following = node.restarted()
    vhost = following.vhosts["/"]
    following.commit()

    assert 100 < rows < 1001
    assert (what == "exchange", what == "queue") == ("q" in vhost.queues, "x" in vhost.router.exchanges)
    assert 1 == vhost.router.binding_count
    assert 1 == sum(key.startswith(BindingRow.kind) for key in following.store.rows)
    node.clock.run()
    node.commit()
    assert 1 == sum(key.startswith(BindingRow.kind) for key in node.store.rows)


def test_octets_are_counted_in_slices():
    """A byte limit set on a queue with messages counts them in slices, with those that come and go meanwhile."""
    node = Node()
    client = Client(node)
    client.declare("q")
    queue = node.vhosts["/"].queues["q"]
    count = 20_000
    for _ in range(count):
        client.publish("q", b"12345")
    hurry(node, looks=5)
    node.turn.slices.begin()
    limit = (count - 2000) * 5
    node.administration.policies.set(
        None, "/", "p", {"pattern": "^q", "definition": {"max-length-bytes": limit}}
    )
    node.turn.slices.begin()
    node.turn.run()
    at_once = queue.ready_count
    for _ in range(100):
        client.publish("q", b"123456789")
    for _ in range(50):
        client.ask(make(Basic.Get, 0, "q", True))
    node.clock.run()

    assert count == at_once
    assert limit - 9 < 5 * (queue.ready_count - 100) + 9 * 100 <= limit


def test_a_purge_ends_the_count_of_octets():
    """Bytes counted of purged messages do not shorten the queue."""
    node = Node()
    client = Client(node)
    client.declare("q")
    for _ in range(20_000):
        client.publish("q", b"12345")
    hurry(node, looks=5)
    node.turn.slices.begin()
    node.administration.policies.set(
        None, "/", "p", {"pattern": "^q", "definition": {"max-length-bytes": 50}}
    )
    jobs = len(node.turn.slices)
    node.vhosts["/"].queues["q"].purge()
    for _ in range(20):
        client.publish("q", b"12345")
    node.clock.run()

    assert (2, 10) == (jobs, node.vhosts["/"].queues["q"].ready_count)


def test_a_match_of_hostile_patterns_is_made_in_slices():
    """A key that very many patterns match in many ways is routed in slices, and later publishes do not overtake it."""
    node = Node()
    client = Client(node)
    router = node.vhosts["/"].router
    client.declare("q")
    client.declare("other")
    for pattern in itertools.product("*a", repeat=13):
        router.bind("amq.topic", router.queues["q"], ".".join(pattern))
    hurry(node, looks=3)
    node.turn.slices.begin()
    key = ".".join("a" * 13)
    octets = publish_frames(key, b"first", exchange="amq.topic") + publish_frames("other", b"second")
    client.connection.receive(octets)
    client.driver.pause_reading()
    client.driver.wait()
    queues = node.vhosts["/"].queues
    at_once = [queues[name].ready_count for name in ("q", "other")]
    Client(node).publish("other", b"from another connection")
    between = [queues[name].ready_count for name in ("q", "other")]
    node.clock.run()

    assert [0, 0] == at_once
    assert [0, 1] == between
    assert [1, 2] == [queues[name].ready_count for name in ("q", "other")]
