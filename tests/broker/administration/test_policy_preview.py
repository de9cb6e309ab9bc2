"""Previews of policies."""

from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, set_policy, settle

from leveret.broker.administration import BadRequestError, ForbiddenError
from leveret.broker.administration.policies import policy_preview
from leveret.broker.auth.users import User


@pytest.fixture
def node() -> Node:
    """A broker with messages in two queues, one of which has a dead letter exchange, and with a policy."""
    node = Node()
    dead = {"x-dead-letter-exchange": ""}
    node.administration.topology.declare_queue(None, "/", "shop.orders")
    node.administration.topology.declare_queue(None, "/", "shop.mail", arguments=dead)
    node.administration.topology.declare_queue(None, "/", "other")
    set_policy(node.vhosts["/"].policies, "limit", "^shop", {"max-length": 100})
    client = Client(node)
    for _ in range(5):
        client.publish("shop.orders", b"12345")
        client.publish("shop.mail", b"12345")
    node.run_turn()
    return node


def preview(
    node: Node, name: str, term: Any, actor: User | None = None, *, operator: bool = False
) -> dict[str, Any]:
    steps = policy_preview(node, actor, "/", name, term, operator=operator)
    while True:
        try:
            next(steps)
        except StopIteration as stopped:
            return stopped.value


def term(pattern: str, priority: int = 0, apply_to: str = "all", **definition: Any) -> dict[str, Any]:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"pattern": pattern, "definition": keys, "priority": priority, "apply-to": apply_to}


def test_settings_that_would_be_others_are_named(node):
    """With both values; nothing is changed."""
    found = preview(node, "ttl", term("^shop", 5, message_ttl=1000))

    assert (2, 2, 0) == (found["matched"], found["changed"], found["dropped"])
    assert {"shop.orders", "shop.mail"} == {each["name"] for each in found["queues"]}
    assert [
        {"key": "message-ttl", "now": None, "then": 1000},
        {"key": "max-length", "now": 100, "then": None},
    ] == found["queues"][0]["changes"]
    assert node.vhosts["/"].policies.get("ttl") is None


def test_messages_that_would_be_deleted_at_once_are_counted(node):
    """Not those that a dead letter exchange gets, nor of queues that refuse new ones instead; the worst queue is first."""
    found = preview(node, "limit", term("^shop", max_length=2))

    assert 3 == found["dropped"]
    assert {"shop.orders": (3, False), "shop.mail": (3, True)} == {
        each["name"]: (each["dropped"], each["dead_lettered"]) for each in found["queues"]
    }
    refusing = preview(node, "limit", term("^shop", max_length=2, overflow="reject-publish"))
    assert 0 == refusing["dropped"]


def test_messages_beyond_a_size_are_estimated(tmp_path):
    """As if all messages of a queue had the same size."""
    node = DiskNode(tmp_path)
    node.administration.topology.declare_queue(None, "/", "q")
    client = Client(node)
    for _ in range(4):
        client.publish("q", b"x" * 1000)
    node.run_turn()

    assert 3 == preview(node, "size", term("q", max_length_bytes=1100))["dropped"]
    assert 0 == preview(node, "size", term("q", max_length_bytes=9000))["dropped"]


def test_the_removal_of_a_policy_has_a_preview(node):
    """The settings that end with it are named."""
    found = preview(node, "limit", None)

    assert (0, 2) == (found["matched"], found["changed"])
    assert [{"key": "max-length", "now": 100, "then": None}] == found["queues"][0]["changes"]


def test_a_policy_that_another_outranks_changes_nothing(node):
    """It matches all the same."""
    found = preview(node, "low", term("^shop", -1, max_length=1))

    assert (2, 0) == (found["matched"], found["changed"])


def test_exchanges_with_another_alternate_exchange_are_named(node):
    """The default exchange has none."""
    found = preview(node, "lost", term("^amq.topic$", alternate_exchange="lost"))

    assert ["amq.topic"] == found["exchanges"]


def test_exchanges_that_would_take_each_message_once_are_named(node):
    """And those that would forget their ids; one with another mode is for queues."""
    for definition, expected in (
        ({"deduplicate": "message_id"}, ["amq.topic"]),
        ({"deduplicate": "message_id", "deduplicate_mode": "running"}, []),
    ):
        assert expected == preview(node, "once", term("^amq.topic$", **definition))["exchanges"]
    set_policy(node.vhosts["/"].policies, "once", "^amq.topic$", {"deduplicate": "message_id"})
    settle(node)
    assert ["amq.topic"] == preview(node, "once", None)["exchanges"]


def test_a_preview_needs_the_right_to_set_the_policy(node):
    """An operator policy is for administrators; an invalid one gets the error that setting it would get."""
    maker = User("maker", "", ("policymaker",))
    with pytest.raises(ForbiddenError):
        preview(node, "p", term("x", max_length=1), maker, operator=True)
    with pytest.raises(BadRequestError, match="not recognised policy settings"):
        preview(node, "p", term("x", max_lenght=1))
