"""Dead letters go back to where they died, and count their retries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from doubles.fakes import Client, Node

from leveret.broker.administration import transfers as transfers_module
from leveret.broker.administration.access import ForbiddenError
from leveret.broker.administration.transfers import EVERYTHING, Chosen
from leveret.broker.amqp.commands import Basic, Queue as Wire, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.errors import NotYet
from leveret.broker.transfer import retry as module
from leveret.broker.transfer.retry import death_of

DEAD: Table = {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")}


@pytest.fixture
def client(node) -> Client:
    client = Client(node)
    client.declare("dead")
    for name in ("work", "other"):
        client.declare(name, arguments=DEAD)
        client.send(make(Wire.Bind, 0, name, "amq.topic", f"{name}.#", False, {}))
    return client


def fail(client: Client, queue: str) -> list[Any]:
    """Take all messages of a queue and reject them; returns them."""
    taken = []
    client.take()
    while True:
        client.send(make(Basic.Get, 0, queue, False))
        (item,) = client.take()
        if not isinstance(item.method, Basic.GetOk):
            return taken
        taken.append(item)
        client.send(make(Basic.Reject, item.method.delivery_tag, False))


def headers(item: Any) -> dict[str, Any]:
    """Return the headers of a delivery, without types."""
    return {name: value for name, (_, value) in (Properties(item.header).headers or {}).items()}


def retry(node: Node, chosen: Chosen = EVERYTHING, **options: Any) -> tuple[int, dict[str, int]]:
    """Retry the dead letters; returns how many, and the causes for which others stay."""
    transfers = node.administration.transfers
    number = transfers.start_retry(None, "/", "dead", chosen=chosen, **options)
    node.clock.run()
    found = transfers.transfer(None, number)
    assert "done" == found["state"], found
    return found["done"], found["causes"]


def test_a_dead_letter_goes_back_to_its_queue_alone(node, client):
    """It goes straight into the queue of its newest death, with exchange and key that it had there, and a count."""
    client.declare("copy")
    client.send(make(Wire.Bind, 0, "copy", "amq.topic", "#", False, {}))
    client.publish(
        "work.now", b"poison", exchange="amq.topic", headers={"own": ("longstr", "kept")}, delivery_mode=2
    )
    fail(client, "work")
    depth = node.vhosts["/"].queues["copy"].ready_count

    assert (1, {}) == retry(node)
    (item,) = fail(client, "work")
    assert ("amq.topic", "work.now", b"poison") == (item.method.exchange, item.method.routing_key, item.body)
    assert not item.method.redelivered
    assert (1, "kept", 2) == (
        headers(item)["x-leveret-retries"],
        headers(item)["own"],
        Properties(item.header).delivery_mode,
    )
    assert depth == node.vhosts["/"].queues["copy"].ready_count
    (died,) = [value for kind, value in headers(item)["x-death"]]
    assert ("longstr", "work") == died["queue"]


def test_a_message_stays_after_its_last_retry(node, client):
    """The header counts over all retries, and at the maximum the message stays."""
    client.publish("work", b"poison")
    for count in range(1, 4):
        fail(client, "work")
        assert (1, {}) == retry(node, most_retries=3)
        (message,) = fail(client, "work")
        assert count == headers(message)["x-leveret-retries"]
    assert (0, {"retries used up": 1}) == retry(node, most_retries=3)
    assert 1 == node.vhosts["/"].queues["dead"].ready_count


def test_the_count_of_retries_has_an_end(node, client):
    """The greatest number that a header can say stays, and a time that is no number is none."""
    greatest = (1 << 63) - 1
    client.publish("work", b"poison", headers={"x-leveret-retries": ("long", greatest)})
    fail(client, "work")

    assert (1, {}) == retry(node, most_retries=1 << 64)
    (message,) = fail(client, "work")
    assert greatest == headers(message)["x-leveret-retries"]
    assert module.time_of({"time": True}) is None


@contextmanager
def forgotten() -> Iterator[None]:
    """Plant an error: the retry forgets its count."""
    with patch.object(module, "counted", lambda message, _: message):
        yield


def test_a_retry_that_forgets_its_count_is_found(node, client):
    """The test of the count fails if the header is not written."""
    with forgotten(), pytest.raises(KeyError, match="x-leveret-retries"):
        test_a_message_stays_after_its_last_retry(node, client)


def test_causes_are_counted(node, client):
    """A message without x-death, and one whose queue was deleted, stay in their order and are counted."""
    client.publish("dead", b"first")
    client.publish("work", b"second")
    client.publish("other", b"third")
    fail(client, "work")
    fail(client, "other")
    client.send(make(Wire.Delete, 0, "other", False, False, False))

    assert (1, {"no x-death": 1, "origin does not exist": 1}) == retry(node)
    assert [b"first", b"third"] == [item.body for item in fail(client, "dead")]


@pytest.mark.parametrize("first", [False, True])
def test_a_client_does_not_choose_the_origin(node, client, first):
    """A forged `x-death` neither sends a message into the queue that it names nor moves one that has died elsewhere."""
    client.declare("payments")
    entry = {
        "queue": ("longstr", "payments"),
        "reason": ("longstr", "rejected"),
        "exchange": ("longstr", ""),
        "routing-keys": ("array", [("longstr", "payments")]),
        "count": ("long", 1),
        "time": ("timestamp", 1),
    }
    forged: Table = {
        "x-death": ("array", [("table", entry)]),
        "x-first-death-queue": ("longstr", "payments"),
        "x-first-death-reason": ("longstr", "rejected"),
    }
    client.publish("dead", b"forged", headers=forged)
    client.publish("work", b"mixed", headers=forged)
    fail(client, "work")

    assert (1, {"x-death was written by a client": 1}) == retry(node, first=first)
    assert 0 == node.vhosts["/"].queues["payments"].ready_count
    assert [b"mixed"] == [item.body for item in fail(client, "work")]


def test_only_some_are_retried(node, client):
    """Reason, condition and limit choose dead letters."""
    client.declare("short", arguments={**DEAD, "x-message-ttl": ("signedint", 10)})
    client.publish("short", b"late")
    node.pass_time(20)
    for number in range(4):
        client.publish("work", b"%d" % number, headers={"n": ("signedint", number)})
    fail(client, "work")

    assert (1, {}) == retry(node, reason="expired", chosen=Chosen(is_dry=True))
    assert (2, {}) == retry(node, Chosen("headers.n >= 2"), reason="rejected")
    assert (1, {}) == retry(node, Chosen(limit=1), reason="rejected")
    assert [b"2", b"3", b"0"] == [item.body for item in fail(client, "work")]


def test_the_first_death_and_another_destination(node, client):
    """`first` means the queue of the first death; another destination is for dead letters, too."""
    client.publish("work", b"twice")
    fail(client, "work")
    (letter,) = fail(client, "dead")
    client.publish("other", b"twice", headers=Properties(letter.header).headers)
    fail(client, "other")
    client.publish("dead", b"alive")

    assert (1, {"no x-death": 1}) == retry(node, Chosen(is_dry=True), destination="other")
    assert (1, {"no x-death": 1}) == retry(node, first=True)
    assert [b"twice"] == [item.body for item in fail(client, "other")]  # what the client wrote does not count
    assert (1, {"no x-death": 1}) == retry(node, destination="exchange:amq.topic/other.x")
    assert [2] == sorted(headers(item)["x-leveret-retries"] for item in fail(client, "other"))


@pytest.mark.parametrize(
    ("found", "first", "queue"),
    [
        ({}, False, None),
        ({"x-death": "text"}, False, None),
        ({"x-death": [1, {"queue": 2}, {"queue": "q"}]}, False, "q"),
        ({"x-death": [{"queue": "new"}, {"queue": "old"}]}, True, "old"),
        ({"x-death": [{"queue": "new"}], "x-first-death-queue": "oldest"}, True, "oldest"),
        (
            {
                "x-death": [{"queue": "q", "reason": "a"}, {"queue": "q", "reason": "b"}],
                "x-first-death-queue": "q",
                "x-first-death-reason": "b",
            },
            True,
            "q",
        ),
    ],
)
def test_headers_of_clients_do_no_harm(found, first, queue):
    """Whatever a client has written into x-death is read as far as it can be."""
    death = death_of(found, first=first)

    assert queue == (None if death is None else death.queue)


def test_a_retry_waits_for_the_decision_about_a_queue(node, client):
    """A retry waits where a backend has to be asked whether the user may write to an origin, and goes on with its answer."""
    for queue in ("work", "other", "work"):
        client.publish(queue, queue.encode())
        fail(client, queue)
    asked: list[Callable[[], object]] = []
    decisions = {"work": True}

    def decide(_broker, _actor, _vhost, kind, _what, name) -> None:
        if kind == "write" and name not in decisions:
            raise NotYet(asked.append)
        if not decisions.get(name, True):
            raise ForbiddenError("no")

    with patch.object(transfers_module, "check_permission", decide):
        transfers = node.administration.transfers
        number = transfers.start_retry(None, "/", "dead")
        node.clock.run()
        assert (1, "running") == tuple(transfers.transfer(None, number)[key] for key in ("done", "state"))
        decisions["other"] = False
        (resume,) = asked
        resume()
        node.clock.run()

    found = transfers.transfer(None, number)
    assert ("done", 2, {"not permitted": 1}) == (found["state"], found["done"], found["causes"])
