"""Meaning of a confirm for acks that arrived before the publish on the same channel."""

import pytest
from doubles.fakes import Client, DiskNode
from samples.retained import commit, get, ready

from leveret.broker.amqp.commands import Basic, Confirm, make


@pytest.fixture
def worker(tmp_path):
    """A channel in confirm mode, and a queue whose only message was delivered on it."""
    client = Client(DiskNode(tmp_path / "data"))
    for name in ("jobs", "results"):
        client.declare(name, durable=True)
        commit(client.node)
    client.send(make(Confirm.Select, False))
    client.publish("jobs", b"job", delivery_mode=2)
    commit(client.node)
    client.send(make(Basic.Ack, get(client, "jobs"), False))
    client.take()
    yield client
    client.node.disk.close()


def _confirms(client: Client) -> int:
    return sum("basic.ack" in sent for sent in client.sent())


def _to_a_consumer(client: Client) -> None:
    client.consume("results", no_ack=True)
    client.take()
    client.publish("results", b"result", delivery_mode=2)


def _transient(client: Client) -> None:
    client.publish("results", b"result")


def _unroutable(client: Client) -> None:
    client.publish("nowhere", b"result", delivery_mode=2)


def test_an_ack_is_on_disk_with_the_confirm_of_a_later_publish_that_is_stored(worker):
    """A confirm that comes with a commit says that the acks before it are on disk, too."""
    worker.publish("results", b"result", delivery_mode=2)
    before = _confirms(worker)
    commit(worker.node)

    assert (0, 1) == (before, _confirms(worker))
    worker.node = worker.node.killed()
    assert ([], [b"result"]) == (ready(worker.node, "jobs"), ready(worker.node, "results"))


@pytest.mark.parametrize("publish", [_to_a_consumer, _transient, _unroutable])
def test_a_confirm_that_waits_for_no_commit_says_nothing_of_acks(worker, publish):
    """A message that is not stored is confirmed at once; the acks before it are committed later, and may be lost."""
    publish(worker)

    assert 1 == _confirms(worker)
    worker.node = worker.node.killed()
    assert [b"job"] == ready(worker.node, "jobs")
