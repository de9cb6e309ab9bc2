"""Administration of policies and parameters."""

import pytest
from doubles.fakes import Client
from services.api import OPERATOR, Api

from leveret.broker.administration import BadRequestError

TERM = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues"}


@pytest.fixture
def policies(node):
    return node.administration.policies


def test_a_policy_shows_on_what_it_applies_to(node, policies):
    """Setting or clearing a policy takes effect at once and survives a restart."""
    Client(node).declare("q", durable=True)
    policies.set(None, "/", "p", {**TERM, "priority": 2})
    policies.set(None, "/", "o", {"pattern": "", "definition": {"expires": 1000000}}, operator=True)
    policies.set(None, "/", "x", {"pattern": "^amq.t", "definition": {"alternate-exchange": "amq.fanout"}})
    node.commit()
    node = node.restarted()
    policies = node.administration.policies
    (shown,) = Api(node, OPERATOR).get("queues")
    exchanges = {each["name"]: each.get("policy") for each in Api(node, OPERATOR).get("exchanges")}
    before = node.vhosts["/"].queues["q"].settings.max_length
    policies.clear(None, "/", "p")

    assert ("p", "o", {"expires": 1000000, "max-length": 5}) == tuple(
        shown[name] for name in ("policy", "operator_policy", "effective_policy_definition")
    )
    assert ("x", None) == (exchanges["amq.topic"], exchanges["amq.direct"])
    assert {"vhost": "/", "name": "x", "apply-to": "all", "priority": 0} == {
        key: value
        for key, value in policies.get(None, "/", "x").items()
        if key not in {"pattern", "definition"}
    }
    assert (5, None) == (before, node.vhosts["/"].queues["q"].settings.max_length)
    assert (["x"], ["o"]) == tuple(
        [each["name"] for each in policies.all(None, operator=operator)] for operator in (False, True)
    )


@pytest.mark.parametrize(
    ("name", "term", "text"),
    [
        ("", TERM, "policy name cannot be empty"),
        ("p", {**TERM, "pattern": "("}, "pattern should be regular expression"),
        ("p", {**TERM, "definition": {"bunnies": 1}}, "are not recognised policy settings"),
        ("p", {}, 'Key "pattern" not found'),
    ],
)
def test_impossible_policies(policies, name, term, text):
    """A faulty policy is refused with RabbitMQ's text."""
    with pytest.raises(BadRequestError, match=text):
        policies.set(None, "/", name, term)
