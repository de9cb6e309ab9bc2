"""Publishes to exchanges that choose one queue: on the fast path where they may, and what surrounds them."""

from collections import Counter
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, publish_frames

from leveret.broker.amqp.commands import Basic, Exchange, Queue, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.channel.settings import Compatibility

KEYS = [f"key-{number}" for number in range(40)]


def declare(client: Client, name: str, kind: str, **arguments: Any) -> list[str]:
    """Declare a durable exchange; arguments as typed fields."""
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    return client.ask(make(Exchange.Declare, 0, name, kind, False, True, False, False, False, table))


def bind(client: Client, key: str, *queues: str, exchange: str = "x") -> list[str]:
    return [
        text for queue in queues for text in client.ask(make(Queue.Bind, 0, queue, exchange, key, False, {}))
    ]


def client_of(kind: str, key: str = "", queues: str = "abc", **arguments: Any) -> Client:
    client = Client()
    declare(client, "x", kind, **arguments)
    for name in queues:
        client.declare(name)
    bind(client, key, *queues)
    return client


def counts(client: Client) -> dict[str, int]:
    queues = client.node.vhosts["/"].queues.values()
    return {queue.name: queue.ready_count for queue in queues if queue.ready_count}


def places(client: Client) -> dict[str, str]:
    """Return the queue of each message, by its body."""
    found = {}
    for queue in client.node.vhosts["/"].queues:
        while True:
            client.send(make(Basic.Get, 0, queue, True))
            (got,) = client.take()
            if not isinstance(got.method, Basic.GetOk):
                break
            assert got.body is not None
            assert got.body.decode() not in found
            found[got.body.decode()] = queue
    return found


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_no_choice_is_cached(kind):
    """Publishes with the same octets, one by one or together, go to all queues."""
    client = client_of(kind)
    client.receive(publish_frames("k", b"m", exchange="x") * 200)
    for _ in range(100):
        client.publish("k", b"m", exchange="x")
    found = counts(client)
    assert {"a", "b", "c"} == set(found)
    assert 300 == sum(found.values())
    assert min(found.values()) > 50


@pytest.mark.parametrize(("kind", "key"), [("x-consistent-hash", "1"), ("x-modulus-hash", "")])
def test_a_hash_is_cached_until_bindings_change(kind, key):
    """Messages of a key are on the fast path to one queue, and go elsewhere when that is gone."""
    client = client_of(kind, key)
    client.receive(publish_frames("k", b"m", exchange="x") * 10)
    exchange = client.node.vhosts["/"].router.get("x")
    assert 1 == exchange.lookups
    (first,) = counts(client)
    assert {first: 10} == counts(client)
    client.send(make(Queue.Delete, 0, first, False, False, False))
    client.receive(publish_frames("k", b"m", exchange="x") * 10)
    assert [10] == list(counts(client).values())
    assert 20 == exchange.published_in == exchange.published_out


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_a_property_is_hashed(name):
    """Its values spread over the queues, equal ones go to one; also of messages that need nothing else."""
    client = client_of("x-consistent-hash", "1", hash_property=("longstr", name))
    for number in range(30):
        for copy in "mn":
            value = number if name == "timestamp" else f"id-{number}"
            client.publish("k", f"{copy}{number}".encode(), exchange="x", **{name: value})
    found = places(client)
    assert {"a", "b", "c"} == set(found.values())
    assert all(found[f"m{number}"] == found[f"n{number}"] for number in range(30))


def test_a_header_is_hashed():
    """With other headers and properties beside it."""
    client = client_of("x-consistent-hash", "1", hash_header=("longstr", "customer"))
    for number, key in enumerate(KEYS):
        headers = {"customer": ("longstr", key), "n": ("long", number)}
        client.publish("k", f"m{key}".encode(), exchange="x", headers=headers, delivery_mode=2)
        client.publish("l", f"n{key}".encode(), exchange="x", headers={"customer": ("longstr", key)})
    found = places(client)
    assert {"a", "b", "c"} == set(found.values())
    assert all(found[f"m{key}"] == found[f"n{key}"] for key in KEYS)


def test_a_dead_letter_is_hashed_as_its_original():
    """By key, header or property it goes to the queue that a publish would go to."""
    for arguments in ({}, {"hash_header": ("longstr", "h")}, {"hash_property": ("longstr", "message_id")}):
        client = client_of("x-consistent-hash", "1", **arguments)
        table: Table = {"x-dead-letter-exchange": ("longstr", "x"), "x-max-length": ("signedint", 0)}
        client.declare("dying", arguments=table)
        declare(client, "in", "fanout")
        bind(client, "", "dying", exchange="in")
        for key in KEYS:
            properties: Any = {"message_id": key, "headers": {"h": ("longstr", key)}}
            client.publish(key, f"m{key}".encode(), exchange="x", **properties)
            client.publish(key, f"n{key}".encode(), exchange="in", **properties)
        found = places(client)
        assert all(found[f"m{key}"] == found[f"n{key}"] for key in KEYS)
        assert {"a", "b", "c"} == set(found.values())


@pytest.mark.parametrize(
    ("kind", "key"),
    [("x-consistent-hash", "1"), ("x-modulus-hash", ""), ("x-random", ""), ("x-local-random", "")],
)
def test_behind_a_delay(kind, key):
    """A delayed message goes to one queue when it is due, by the same hash; CC gives it no second one."""
    node = Node()
    client = Client(node)
    arguments: Any = {"x_delayed_type": ("longstr", kind)}
    if key:
        arguments["hash_property"] = ("longstr", "message_id")
    declare(client, "x", "x-delayed-message", **arguments)
    for name in "abc":
        client.declare(name)
    bind(client, key, *"abc")
    copies: Any = {"CC": ("array", [("longstr", "copy")])}
    for each in KEYS:
        late = {"x-delay": ("signedint", 1000), **copies}
        client.publish(each, f"n{each}".encode(), exchange="x", headers=late, message_id=each)
    assert {} == counts(client)
    node.pass_time(1000)
    for each in KEYS:
        client.publish(each, f"m{each}".encode(), exchange="x", headers=copies, message_id=each)
    found = places(client)
    assert 2 * len(KEYS) == len(found)
    assert {"a", "b", "c"} == set(found.values())
    if "hash" in kind:
        assert all(found[f"m{each}"] == found[f"n{each}"] for each in KEYS)


def test_a_transaction_goes_to_the_queues_that_were_chosen():
    """Each message of a commit is in one queue."""
    client = client_of("x-random")
    client.send(make(Tx.Select))
    for number in range(60):
        client.publish("k", str(number).encode(), exchange="x")
    assert {} == counts(client)
    client.send(make(Tx.Commit))
    client.take()
    assert 60 == len(places(client))


def test_refusals():
    """Declarations and bindings that RabbitMQ refuses close the channel with its texts."""
    both: Any = {"hash_header": ("longstr", "h"), "hash_property": ("longstr", "message_id")}
    (closed,) = declare(Client(), "x", "x-consistent-hash", **both)
    assert "PRECONDITION_FAILED - hash-header and hash-property are mutually exclusive" in closed
    (closed,) = bind(client_of("x-consistent-hash", "1"), "many", "a")
    assert 'PRECONDITION_FAILED - The binding key must be an integer: <<"many">>' in closed
    (closed,) = bind(client_of("x-local-random"), "k", "a")
    assert "PRECONDITION_FAILED - Non empty binding 'k' key not permitted" in closed
    client = client_of("x-local-random")
    client.declare("q", durable=True, arguments={"x-queue-type": ("longstr", "quorum")})
    (closed,) = bind(client, "", "q")
    assert "Queue type rabbit_quorum_queue not valid for this exchange type" in closed


def test_weights_may_be_limited():
    """`compatibility.hash_max_weight` is the largest weight, as in RabbitMQ 4.3; without it there is none."""
    for most, is_refused in ((10000, True), (0, False)):
        client = Client(Node(compatibility=Compatibility(hash_max_weight=most)))
        declare(client, "x", "x-consistent-hash")
        client.declare("a")
        assert ["1 queue.bind-ok"] == bind(client, "10000", "a")
        client.send(make(Queue.Unbind, 0, "a", "x", "10000", {}))
        client.take()
        answer = bind(client, "10001", "a")[-1]
        assert is_refused is ("The binding key must not exceed 10000" in answer)


def test_a_restart_moves_no_key(tmp_path):
    """The ring has the order of the bindings again, whatever that of the queues is."""
    client = Client(DiskNode(tmp_path))
    declare(client, "x", "x-consistent-hash")
    client.node.commit()
    for name in "abcd":
        client.declare(name, durable=True)
        client.node.commit()
    for name, weight in (("d", "2"), ("b", "1"), ("c", "3"), ("a", "2")):
        bind(client, weight, name)
        client.node.commit()

    def routed(node: Any) -> list[str]:
        router = node.vhosts["/"].router
        return [queue.name for key in KEYS for queue in router.route(router.get("x"), (key,))]

    before = routed(client.node)
    assert 4 == len(Counter(before))
    assert before == routed(client.node.killed())
