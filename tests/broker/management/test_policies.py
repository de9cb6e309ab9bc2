"""Policies, operator policies and parameters in the API."""

import pytest
from doubles.fakes import configure

POLICY = {"pattern": "^q", "definition": {"max-length": 5}}


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_a_policy_is_set_and_removed(api, kind):
    """PUT answers 201 for a new policy; keys that it does not have are ignored."""
    shown = {"vhost": "/", "name": "p", **POLICY, "priority": 0, "apply-to": "all"}
    assert [] == api.get(kind)
    assert 201 == api.put(f"{kind}/%2F/p", POLICY | {"vhost": "x", "name": "y"})
    assert shown == api.get(f"{kind}/%2F/p")
    assert [shown] == api.get(kind) == api.get(f"{kind}/%2F")
    assert 204 == api.put(f"{kind}/%2F/p", POLICY | {"priority": 1, "apply-to": "queues"})
    assert shown | {"priority": 1, "apply-to": "queues"} == api.get(f"{kind}/%2F/p")
    assert 204 == api.delete(f"{kind}/%2F/p")
    assert [404, 404] == [api.request(method, f"{kind}/%2F/p").status for method in ("GET", "DELETE")]


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_an_invalid_policy_is_refused(api, kind):
    """The reasons are RabbitMQ's; those of policies are escaped for HTML, but not by 4.3."""
    missing = api.request("PUT", f"{kind}/%2F/p", {})
    wrong = api.request("PUT", f"{kind}/%2F/p", {"pattern": "", "definition": {"max-length": "5"}})

    assert (400, "[{key_missing,pattern},{key_missing,definition}]") == (
        missing.status,
        missing.body["reason"],
    )
    text = '&lt;&lt;"5"&gt;&gt;' if kind == "policies" else '<<"5">>'
    assert f"Validation failed\n\n{text} is not a valid maximum length\n" == wrong.body["reason"]
    configure(api.node, "compatibility", profile="4.3")
    wrong = api.request("PUT", f"{kind}/%2F/p", {"pattern": "", "definition": {"max-length": "5"}})
    assert 'Validation failed\n\n<<"5">> is not a valid maximum length\n' == wrong.body["reason"]
    nowhere = api.request("PUT", f"{kind}/none/p", POLICY)
    assert (404, {"error": "not_found", "reason": "vhost_not_found"}) == (nowhere.status, nowhere.body)
    assert 404 == api.request("GET", f"{kind}/none").status


def test_who_may_change_policies(users):
    """A policymaker in its vhosts; operator policies are for administrators only, and all may list them."""
    refused = {"error": "not_authorised", "reason": "User not authorised to access object"}
    for name in ("management", "monitoring"):
        for method in ("PUT", "GET", "DELETE"):
            answer = users[name].request(method, "policies/own/p", POLICY)
            assert (401, refused) == (answer.status, answer.body), (name, method)
    assert 201 == users["policymaker"].put("policies/own/p", POLICY)
    assert refused == users["policymaker"].request("PUT", "policies/%2F/p", POLICY).body
    answer = users["policymaker"].request("PUT", "operator-policies/own/p", POLICY)
    assert "Not administrator user" == answer.body["reason"]
    assert ["p"] == [policy["name"] for policy in users["management"].get("policies")]
    elsewhere = users["monitoring"].request("GET", "policies/%2F")
    assert "User not authorised to access virtual host" == elsewhere.body["reason"]


def test_a_parameter_is_set_and_removed(api):
    """The limits of a vhost are one; the four levels of lists show it."""
    path = "parameters/vhost-limits/%2F/limits"
    assert 201 == api.put(path, {"value": {"max-queues": 5}})
    assert 204 == api.put(path, {"value": {"max-queues": 6}})
    shown = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 6}}
    assert shown == api.get(path)
    for each in ("parameters", "parameters/vhost-limits", "parameters/vhost-limits/%2F"):
        assert [shown] == api.get(each)
    assert [] == api.get("parameters/shovel/%2F")
    assert 204 == api.delete(path)
    assert [404, 404] == [api.request(method, path).status for method in ("GET", "DELETE")]


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("vhost-limits/%2F/limits", {}, 400, "[{key_missing,value}]"),
        ("vhost-limits/%2F/limits", {"value": 5}, 400, "Validation failed\n\nlimits not a list 5\n"),
        (
            "vhost-limits/%2F/limits",
            {"value": {"max-queues": "5"}},
            400,
            'Validation failed\n\nmax-queues should be a number, actually was &lt;&lt;"5"&gt;&gt;\n',
        ),
        ("unknown/%2F/n", {"value": 5}, 400, "Validation failed\n\ncomponent unknown not found\n"),
        ("policy/%2F/n", {"value": 5}, 400, "policies may not be set using this method"),
        ("vhost-limits/none/limits", {"value": {}}, 404, "vhost_not_found"),
    ],
)
def test_an_invalid_parameter_is_refused(api, path, body, status, reason):
    """The reasons are RabbitMQ's."""
    answer = api.request("PUT", f"parameters/{path}", body)

    assert (status, reason) == (answer.status, answer.body["reason"])


def test_parameters_are_listed_by_vhost_and_name(api):
    """Their components do not matter."""
    api.put("parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 6}})
    api.put("operator-policies/%2F/o", {"pattern": "", "definition": {"max-length": 1}})
    api.put("operator-policies/%2F/a", {"pattern": "", "definition": {"max-length": 1}})

    assert ["a", "limits", "o"] == [each["name"] for each in api.get("parameters")]


def test_who_may_use_parameters(users):
    """Policymakers, in their vhosts; limits are for administrators only."""
    refused = {"error": "not_authorised", "reason": "User not authorised to access object"}
    users["administrator"].put("parameters/vhost-limits/own/limits", {"value": {"max-queues": 5}})
    users["administrator"].put("parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 5}})
    for path in (
        "parameters",
        "parameters/vhost-limits/own/limits",
        "global-parameters",
        "global-parameters/x",
    ):
        assert refused == users["monitoring"].request("GET", path).body, path
    assert ["own"] == [row["vhost"] for row in users["policymaker"].get("parameters")]
    assert refused == users["policymaker"].request("GET", "parameters/vhost-limits/%2F").body
    for path in ("vhost-limits/own/limits", "operator_policy/own/o"):
        answer = users["policymaker"].request("PUT", f"parameters/{path}", {"value": {}})
        assert "Not administrator user" == answer.body["reason"]


def test_a_global_parameter_is_set_and_removed(api):
    """It may have any value."""
    assert 404 == api.request("GET", "global-parameters/g").status
    assert 201 == api.put("global-parameters/g", {"value": {"a": [1, None]}})
    assert {"name": "g", "value": {"a": [1, None]}} == api.get("global-parameters/g")
    assert 204 == api.put("global-parameters/g", {"value": 5})
    assert [{"name": "g", "value": 5}] == api.get("global-parameters")
    assert 400 == api.put("global-parameters/g", {})
    assert 204 == api.delete("global-parameters/g")
    assert 404 == api.delete("global-parameters/g")
