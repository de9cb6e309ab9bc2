"""Administration of exchanges, queues and bindings."""

from unittest.mock import ANY

import pytest
from doubles.fakes import Client
from services.api import OPERATOR, Api

from leveret.broker.administration import BadRequestError, ForbiddenError, NotFoundError
from leveret.broker.auth.users import User

ADMIN = User("guest", "", ("administrator",))


@pytest.fixture
def topology(node):
    return node.administration.topology


def test_what_is_declared_survives(node, topology):
    """Exchanges, queues and bindings made here equal those that a client declares."""
    topology.declare_exchange(ADMIN, "/", "x", "topic", arguments={"alternate-exchange": "amq.fanout"})
    topology.declare_queue(ADMIN, "/", "q", arguments={"x-max-length": 5, "x-queue-mode": "lazy"})
    topology.bind(ADMIN, "/", "x", "q", routing_key="a.#", arguments={"n": 1.5})
    topology.bind(ADMIN, "/", "x", "amq.fanout", destination_type="exchange")
    node.commit()
    node = node.restarted()
    api = Api(node, OPERATOR)

    assert {"x-max-length": ("long", 5), "x-queue-mode": ("longstr", "lazy")} == node.vhosts["/"].queues[
        "q"
    ].arguments
    assert [
        ("", "q", "queue", "q", {}),
        ("x", "amq.fanout", "exchange", "", {}),
        ("x", "q", "queue", "a.#", {"n": 1.5}),
    ] == sorted(
        (
            each["source"],
            each["destination"],
            each["destination_type"],
            each["routing_key"],
            each["arguments"],
        )
        for each in api.get("bindings")
    )
    assert {
        "name": "x",
        "vhost": "/",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {"alternate-exchange": "amq.fanout"},
        "user_who_performed_action": "",
        "message_stats": ANY,
    } in api.get("exchanges/%2F")


def test_what_is_deleted_is_gone(node, topology):
    """Bindings, queues and exchanges are deleted, and the ready messages of a deleted queue are counted."""
    client = Client(node)
    client.declare("q")
    client.publish("q", b"1")
    client.publish("q", b"2")
    topology.declare_exchange(None, "/", "x", "direct")
    topology.bind(None, "/", "x", "q", routing_key="k")
    topology.bind(None, "/", "x", "amq.fanout", destination_type="exchange")
    topology.unbind(None, "/", "x", "q", routing_key="k")
    topology.unbind(None, "/", "x", "amq.fanout", destination_type="exchange")
    bindings = [each["source"] for each in Api(node, OPERATOR).get("bindings")]
    purged = topology.purge_queue(None, "/", "q")
    client.publish("q", b"3")
    deleted = topology.delete_queue(None, "/", "q")
    topology.delete_exchange(None, "/", "x")

    assert ([""], 2, 1, {}) == (bindings, purged, deleted, node.vhosts["/"].queues)
    assert node.vhosts["/"].router.get("x") is None


def test_a_user_meets_the_rules_a_client_meets(node, topology):
    """Permissions, names, arguments and equivalence are checked with the texts that clients get."""
    node.users.set_permissions("guest", "/", "^q", ".*", ".*")
    topology.declare_queue(ADMIN, "/", "q", arguments={"x-max-length": 5})
    for error, text, ask in (
        (
            ForbiddenError,
            "configure access to queue 'other'",
            lambda: topology.declare_queue(ADMIN, "/", "other"),
        ),
        (BadRequestError, "inequivalent arg 'x-max-length'", lambda: topology.declare_queue(ADMIN, "/", "q")),
        (ForbiddenError, "reserved prefix", lambda: topology.declare_queue(None, "/", "amq.q")),
        (BadRequestError, "queue name cannot be empty", lambda: topology.declare_queue(None, "/", "")),
        (
            BadRequestError,
            "value_negative",
            lambda: topology.declare_queue(None, "/", "q2", arguments={"x-max-length": -5}),
        ),
        (
            BadRequestError,
            "argument 'x': null",
            lambda: topology.declare_queue(None, "/", "q2", arguments={"x": None}),
        ),
        (
            BadRequestError,
            "unknown exchange type 'y'",
            lambda: topology.declare_exchange(None, "/", "x", "y"),
        ),
        (ForbiddenError, "not permitted on the default", lambda: topology.bind(None, "/", "", "q")),
        (NotFoundError, "no exchange 'x'", lambda: topology.bind(None, "/", "x", "q")),
        (NotFoundError, "no queue 'nope'", lambda: topology.purge_queue(None, "/", "nope")),
        (NotFoundError, "no queue 'nope'", lambda: topology.delete_queue(None, "/", "nope")),
        (NotFoundError, "no exchange 'nope'", lambda: topology.delete_exchange(None, "/", "nope")),
        (NotFoundError, "Virtual host 'v' does not exist", lambda: topology.declare_queue(None, "v", "q")),
    ):
        with pytest.raises(error, match=text):
            ask()


def test_an_exclusive_queue_is_its_connections(node, topology):
    """A user may not change an exclusive queue of a connection; the operator may delete it."""
    client = Client(node)
    client.declare("mine", exclusive=True)
    with pytest.raises(BadRequestError, match="cannot obtain exclusive access to locked queue 'mine'"):
        topology.delete_queue(ADMIN, "/", "mine")

    assert 0 == topology.delete_queue(None, "/", "mine")
    assert {} == node.vhosts["/"].queues


def test_a_vhost_one_may_not_enter(node, topology):
    """An administrator needs permissions in a vhost to change objects, but none to list them."""
    node.directory.add_vhost("v")
    with pytest.raises(ForbiddenError, match="not authorised to access virtual host"):
        topology.declare_queue(ADMIN, "v", "q")

    assert [] == Api(node).get("bindings/v")
