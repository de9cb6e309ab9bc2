"""A publisher whose message is dropped before it is written hears of it when that is safe, whatever drops it."""

from collections.abc import Callable

import pytest
from doubles.fakes import Client, DiskNode, queue_declare
from samples.retained import commit, ready

from leveret.broker.amqp.commands import Basic, Confirm, Queue as Wire, make

OLD, NEW = b"old", b"new"
PRIORITIES = {"x-max-priority": ("signedint", 3)}


def _confirms(client: Client) -> list[str]:
    return [name for name in client.sent() if "basic.ack" in name]


@pytest.fixture(params=[{}, PRIORITIES], ids=["classic", "priorities"])
def client(request, tmp_path):
    """A publisher in confirm mode, and a queue that has an older message on disk and a new one that is not written."""
    client = Client(DiskNode(tmp_path / "data"))
    client.send(queue_declare("q", durable=True, arguments=request.param))
    commit(client.node)
    client.send(make(Confirm.Select, False))
    client.publish("q", OLD, delivery_mode=2)
    commit(client.node)
    assert 1 == len(_confirms(client))
    client.publish("q", NEW, delivery_mode=2)
    yield client
    client.node.disk.close()


def _purge(client: Client) -> None:
    client.send(make(Wire.Purge, 0, "q", False))


def _delete(client: Client) -> None:
    client.send(make(Wire.Delete, 0, "q", False, False, False))


def _delete_with_consumer(client: Client) -> None:
    client.send(make(Basic.Get, 0, "q", False))
    client.send(make(Basic.Get, 0, "q", False))
    client.take()
    _delete(client)


def _limit(client: Client) -> None:
    definition = {"pattern": "^q$", "definition": {"max-length": 0}}
    client.node.administration.policies.set(None, "/", "short", definition)
    client.node.run_turn()


def _limit_octets(client: Client) -> None:
    definition = {"pattern": "^q$", "definition": {"max-length-bytes": 0}}
    client.node.administration.policies.set(None, "/", "short", definition)
    client.node.run_turn()


def _expire(client: Client) -> None:
    definition = {"pattern": "^q$", "definition": {"expires": 1}, "apply-to": "queues"}
    client.node.administration.policies.set(None, "/", "short", definition)
    client.node.run_turn()
    client.node.pass_time(10)
    client.node.clock.run()


DROPS = (_purge, _delete, _delete_with_consumer, _limit, _limit_octets, _expire)


@pytest.mark.parametrize("drop", DROPS)
def test_a_kill_does_not_bring_back_what_is_older_than_what_was_confirmed(
    client: Client, drop: Callable[[Client], None]
) -> None:
    """A dropped message is not confirmed before older ones are dropped on disk, and is confirmed then."""
    drop(client)
    before = _confirms(client)
    commit(client.node)
    after = _confirms(client)
    client.node = client.node.killed()

    assert ([], 1) == (before, len(after))
    assert "q" not in client.node.vhosts["/"].queues or [] == ready(client.node)


@pytest.mark.parametrize("drop", DROPS)
def test_a_drop_that_finds_no_room_on_disk_is_nacked(client: Client, drop: Callable[[Client], None]) -> None:
    """If the disk is full the publisher of what was dropped gets a nack: a kill would bring back what is older."""
    drop(client)
    client.sent()
    client.node.fail()
    sent = client.sent()

    assert 1 == sum("basic.nack" in name for name in sent), sent
    assert not _confirms(client)


def test_a_drop_among_messages_that_await_consumers_is_confirmed_when_it_is_safe(client: Client) -> None:
    """A message of the mode before waits for the drop though later ones are nacked at once."""
    for limit in ({}, {"max-length": 0}):
        definition = {"pattern": "^q$", "definition": {"confirm-mode": "consumer-ack", **limit}}
        client.node.administration.policies.set(None, "/", "short", definition)
        client.node.run_turn()
        if not limit:
            client.publish("q", b"awaited")
    before = client.sent()
    commit(client.node)

    assert (["1 basic.nack delivery_tag=3 requeue"], ["1 basic.ack delivery_tag=2"]) == (
        before,
        client.sent(),
    )
