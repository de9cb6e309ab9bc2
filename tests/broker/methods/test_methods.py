"""Checks and replies of method handlers that the scenarios do not cover."""

from typing import Any

import pytest
from doubles.fakes import Client, Node

from leveret.broker.amqp.commands import Exchange, make
from leveret.broker.channel.settings import Compatibility
from leveret.broker.methods import HANDLERS
from leveret.broker.vhost.vhost import Metadata


@pytest.fixture
def client() -> Client:
    """A client with a queue `q` and an exchange `x`."""
    made = Client()
    made.declare("q")
    made.send(declare("x"))
    made.sent()
    return made


def declare(
    name: str, kind: str = "direct", *, passive: bool = False, nowait: bool = False, **arguments: Any
) -> Any:
    return make(Exchange.Declare, 0, name, kind, passive, False, False, False, nowait, arguments)


def test_handlers_are_named_after_the_wire():
    """Each handler is named `class_method` for the method it handles."""
    names = {
        method.name.replace(".", "_").lower(): handler.__name__.replace("_", "")
        for method, handler in HANDLERS.items()
    }

    assert [] == [(name, handler) for name, handler in names.items() if name.replace("_", "") != handler]


def test_a_vhosts_default_type_is_that_of_its_queues(client):
    """A queue declared without a type gets the vhost's default and keeps it, and can be redeclared without one."""
    vhost = client.node.vhosts["/"]
    vhost.metadata = Metadata(default_queue_type="quorum")
    client.declare("durable", durable=True)
    client.declare("passing")

    assert ("quorum", "classic") == (vhost.queues["durable"].type, vhost.queues["passing"].type)
    assert ["1 queue.declare-ok queue=durable"] == client.declare("durable", durable=True)
    vhost.metadata = Metadata()
    assert "inequivalent arg 'x-queue-type'" in client.declare("durable", durable=True)[0]


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        (
            "3.13",
            "Its use is not permitted per the configuration (overriding the default, which is permitted):",
        ),
        ("4.3", "By default, this feature is not permitted anymore."),
    ],
)
def test_who_denies_a_deprecated_feature_is_told(profile, reason):
    """In 3.13 only the configuration denies transient queues that are not exclusive; in 4.3 the release does."""
    switches = Compatibility(profile=profile, transient_nonexcl_queues="denied")
    (closed,) = Client(Node(compatibility=switches)).declare("q")

    assert f"Feature `transient_nonexcl_queues` is deprecated.\n{reason}\n" in closed
