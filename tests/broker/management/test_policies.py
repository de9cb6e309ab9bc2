"""Policies and operator policies in the API."""

import pytest

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
    """The reasons are RabbitMQ's; those of policies are escaped for HTML."""
    missing = api.request("PUT", f"{kind}/%2F/p", {})
    wrong = api.request("PUT", f"{kind}/%2F/p", {"pattern": "", "definition": {"max-length": "5"}})

    assert (400, "[{key_missing,pattern},{key_missing,definition}]") == (
        missing.status,
        missing.body["reason"],
    )
    text = '&lt;&lt;"5"&gt;&gt;' if kind == "policies" else '<<"5">>'
    assert f"Validation failed\n\n{text} is not a valid maximum length\n" == wrong.body["reason"]
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
