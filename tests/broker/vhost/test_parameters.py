"""Parameters of vhosts and global ones: their effects, and RabbitMQ's texts for invalid ones."""

from typing import Any

import pytest
from doubles.fakes import StoringNode, set_policy

from leveret.broker.auth.users import VHostLimits
from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.broker.vhost.parameters import Parameter


@pytest.fixture
def node() -> StoringNode:
    return StoringNode()


def fault(node: StoringNode, component: str, name: str, value: Any) -> str:
    with pytest.raises(ParameterError) as error:
        node.parameters.set("/", component, name, value)
    return str(error.value).removeprefix("Validation failed\n\n").removesuffix("\n")


def test_a_vhosts_limits_are_a_parameter(node):
    """The vhost's limits are set by the parameter; negative ones are kept, and clearing removes them."""
    node.parameters.set("/", "vhost-limits", "limits", {"max-connections": 5, "max-queues": -1})
    assert VHostLimits(5, -1) == node.users.vhost_limits("/")
    assert [
        Parameter("/", "vhost-limits", "limits", {"max-connections": 5, "max-queues": -1})
    ] == node.parameters.list("/")
    node.parameters.clear("/", "vhost-limits", "limits")

    assert VHostLimits() == node.users.vhost_limits("/")
    assert [] == node.parameters.list()


def test_an_empty_list_sets_no_limits(node):
    """Limits may be an empty list, which in Erlang is an empty list of pairs."""
    node.users.set_vhost_limits("/", VHostLimits(1, 2))
    node.parameters.set("/", "vhost-limits", "limits", [])

    assert VHostLimits() == node.users.vhost_limits("/")
    assert [Parameter("/", "vhost-limits", "limits", [])] == node.parameters.list()


def test_operator_policies_are_parameters(node):
    """Operator policies are listed and exported as parameters, as by RabbitMQ; policies are not."""
    term = {"pattern": "^q", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}
    node.parameters.set("/", "operator_policy", "o", term)
    set_policy(node.vhosts["/"].policies, "p", "", {"max-length": 1})
    expected = Parameter("/", "operator_policy", "o", term)

    assert [expected] == node.parameters.list()
    assert [expected] == node.parameters.list("/", "operator_policy")
    assert [] == node.parameters.list("/", "vhost-limits")
    assert ["o"] == [policy.name for policy in node.vhosts["/"].policies.list(operator=True)]
    node.parameters.clear("/", "operator_policy", "o")
    assert [] == node.parameters.list()


@pytest.mark.parametrize(
    ("component", "value", "text"),
    [
        ("federation", {"a": 1}, "component federation not found"),
        ("policy", {}, "policies may not be set using this method"),
        ("vhost-limits", {"foo": 1}, 'Unrecognised terms [{<<"foo">>,1}] in limits'),
        ("vhost-limits", [1], "Unrecognised terms [1] in limits"),
        ("vhost-limits", "x", 'limits not a list <<"x">>'),
        (
            "vhost-limits",
            {"max-connections": "a"},
            'max-connections should be a number, actually was <<"a">>',
        ),
        ("vhost-limits", {"max-queues": 1.5}, "max-queues should be a number, actually was 1.5"),
        ("vhost-limits", {"max-queues": True}, "max-queues should be a number, actually was true"),
        (
            "operator_policy",
            {"pattern": "a", "priority": 0},
            'Key "definition" not found in limits',
        ),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(node, component, value, text):
    """An invalid parameter is refused with RabbitMQ's text and changes nothing."""
    assert text == fault(node, component, "limits", value)
    assert [] == node.parameters.list()


def test_limits_have_one_name(node):
    """Limits with another name are refused: RabbitMQ stores them and crashes over them."""
    assert "the parameter of component vhost-limits is named 'limits'" == fault(
        node, "vhost-limits", "other", {"max-queues": 1}
    )


@pytest.mark.parametrize(
    ("component", "name", "text"),
    [
        ("vhost-limits", "limits", "Parameter does not exist"),
        ("operator_policy", "o", "Parameter does not exist"),
        ("shovel", "s", "Parameter does not exist"),
        ("policy", "p", "policies may not be cleared using this method"),
    ],
)
def test_what_is_not_there_cannot_be_cleared(node, component, name, text):
    """Clearing a parameter that does not exist fails with RabbitMQ's text."""
    with pytest.raises(ParameterError, match=f"^{text}$"):
        node.parameters.clear("/", component, name)


def test_global_parameters_are_kept(node):
    """A global parameter has any name and any JSON value, and survives a restart."""
    value = {"a": [1, 2.5, None, True, 10**30, "\xe9\ud800"]}
    node.directory.global_parameters.set("cluster_name", "first")
    node.directory.global_parameters.set("cluster_name", value)
    node.directory.global_parameters.set("n\udcff", 1)
    node.directory.global_parameters.set("gone", 1)
    node.directory.global_parameters.clear("gone")
    node.commit()

    assert {"cluster_name": value, "n\udcff": 1} == node.restarted().directory.global_parameters.list()
    with pytest.raises(ParameterError, match=r"^Parameter does not exist$"):
        node.directory.global_parameters.clear("gone")


def test_parameters_of_vhosts_are_kept(node):
    """Parameters of vhosts, which are limits and operator policies, survive a restart."""
    node.parameters.set("/", "vhost-limits", "limits", {"max-queues": 3})
    term = {"pattern": "^q", "definition": {"max-length": 5}, "priority": 1}
    node.parameters.set("/", "operator_policy", "o", term)
    node.commit()

    assert node.parameters.list() == node.restarted().parameters.list()
    assert {**term, "apply-to": "all"} == node.parameters.list()[1].value
